"""A process that forks while it maps: its child may drop, drain, collect, map and exit, and no job of it notices.

Each program here is run on its own, because a child that goes on in the middle of pytest would be a second pytest.
"""

import os
import signal
import textwrap

import pytest

from tests import interpreters

HEAD = """
import gc, os, signal, sys, time, warnings
signal.alarm(360)  # a hang ends here, and in no child
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12, of any fork
import torch, tdmap
from tensordict_lite import TensorDict
x = torch.arange(400)
torch.set_num_threads(1)  # its threads are not in a fork, which would wait for them
gc.collect()
gc.freeze()  # a child that collects garbage would copy all of torch

def fork(child):
    '''Run a function in a fork, and wait for its end; its exit status.'''
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def program(tmp_path, code, *arguments):
    """What a program prints; it must end well, say nothing on standard error, and leave no process."""
    script = tmp_path / "program.py"
    script.write_text(HEAD + textwrap.dedent(code))
    process = interpreters.Program([str(script), *arguments], cwd=tmp_path)
    try:
        out, err = process.communicate(timeout=380)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert (process.returncode, err) == (0, ""), out
    return out.split()


LOOPS = """
    import multiprocessing
    x_td = TensorDict({"x": x}, [400])
    own = tdmap.WorkerPool(2)
    double = lambda c: c * 2
    KINDS = {
        "process": lambda: tdmap.map_iter(x, double, num_workers=2, chunksize=10),
        "forkserver": lambda: tdmap.map_iter(x, double, num_workers=2, chunksize=10, mp_start_method="forkserver"),
        "thread": lambda: tdmap.map_iter(x, double, num_workers=2, chunksize=10, executor="thread"),
        "seeded thread": lambda: tdmap.map_iter(x, double, num_workers=2, chunksize=10, executor="thread", seed=1),
        "pool": lambda: tdmap.map_iter(x, double, chunksize=10, pool=own),
        "pipeline": lambda: x_td.pipeline().map(lambda td: td["x"] * 2).batch(10).iter(num_workers=2, chunksize=10),
        "bar": lambda: tdmap.map_iter(x, double, num_workers=2, chunksize=10, callbacks=[bar()]),
        "serial": lambda: tdmap.map_iter(x, double, num_workers=0, chunksize=10),
    }
    bar = lambda: tdmap.diagnostics.progress.ProgressBar(file=open("bar", "w"))

    def drop():
        global rows
        del rows
        gc.collect()

    def drain():
        try:
            more = torch.cat(list(rows))
        except RuntimeError as error:
            assert "in its fork" in str(error) and str(os.getppid()) in str(error), error
        else:  # it is whole in the child, as any generator is
            assert name in ("serial", "seeded thread") and torch.equal(more, 2 * x[10 * len(got):])

    for name, make in KINDS.items():
        rows, got = make(), []
        for part in rows:
            got.append(part)
            if len(got) in (3, 20):
                shown = os.path.getsize("bar") if name == "bar" else 0
                assert fork(lambda: sys.exit(7)) == 7
                assert fork(drop) == 0
                assert fork(drain) == 0
                p = multiprocessing.get_context("fork").Process(target=gc.collect)
                p.start()
                p.join()
                assert p.exitcode == 0
                assert name != "bar" or os.path.getsize("bar") == shown
        assert torch.equal(torch.cat(got), 2 * x), name
        print("ok")
"""


def test_children_exit_drop_and_drain_an_iterator_and_its_loop_goes_on(tmp_path):
    assert program(tmp_path, LOOPS) == ["ok"] * 8


def test_children_of_a_loop_on_a_pool_of_multiprocessing(tmp_path):
    code = """
    import multiprocessing
    def drop():
        global rows
        del rows
        gc.collect()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        rows, got = tdmap.map_iter(x, lambda c: c * 2, chunksize=10, pool=pool), []
        for part in rows:
            got.append(part)
            if len(got) in (3, 20):
                print(fork(drop))
        print(torch.equal(torch.cat(got), 2 * x))
    """
    assert program(tmp_path, code) == ["0", "0", "True"]


def test_a_child_maps_with_workers_of_its_own(tmp_path):
    code = """
    rows = tdmap.map_iter(x, lambda c: c * 2, num_workers=2, chunksize=10)
    got = [next(rows)]
    def child():
        warnings.simplefilter("error")
        print(torch.equal(tdmap.map(x, torch.neg, num_workers=2), -x), flush=True)
        del globals()["rows"]
        print(torch.equal(tdmap.map(x, torch.neg, num_workers=2, mp_start_method="forkserver"), -x), flush=True)
        tdmap.close_pools()
    print(fork(child))
    print(torch.equal(torch.cat(got + list(rows)), 2 * x))
    """
    assert program(tmp_path, code) == ["True", "True", "0", "True"]


def test_a_child_is_not_warned_of_the_workers_of_its_parent(tmp_path):
    code = """
        import gc, os, sys, warnings
        import torch, tdmap
        warnings.simplefilter("error")
        for method in ("forkserver", "spawn"):
            pool = tdmap.WorkerPool(1, start_method=method)
            tdmap.map(torch.arange(10), lambda x: x, pool=pool)
            child = os.fork()
            if child == 0:
                del pool
                gc.collect()
                os._exit(0)
            os.waitpid(child, 0)
            pool.close()
    """
    process = interpreters.Program(["-c", textwrap.dedent(code)], cwd=tmp_path)
    assert process.communicate(300) == ("", "") and process.returncode == 0


def test_results_that_a_child_holds_are_not_overwritten_by_later_ones(tmp_path):
    code = """
    # Large results lie in memory of the worker, which is used again as soon as the consumer lets go of them.
    wide = torch.arange(60).repeat_interleave(50_000).view(60, 50_000)
    read, write = os.pipe()
    children = []
    for number, part in enumerate(tdmap.map_iter(wide, lambda c: c + 1, num_workers=1, chunksize=1)):
        if number % 10 == 3:
            pid = os.fork()
            if pid == 0:
                os.close(write)
                os.read(read, 1)  # until the parent has gone through all
                os._exit(0 if bool((part == number + 1).all()) else 1)
            children.append(pid)
        assert bool((part == number + 1).all())
    os.close(write)
    print(*[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
    """
    assert program(tmp_path, code) == ["0"] * 6


def test_forks_during_a_loop_do_not_pile_up_memory(tmp_path):
    code = """
    def shared():
        return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss_Shmem"))
    wide = torch.zeros(1, 250_000, dtype=torch.int64).expand(60, -1)  # 2 MB a result
    seen = []
    for number, part in enumerate(tdmap.map_iter(wide, lambda c: c + 1, num_workers=1, chunksize=1)):
        fork(lambda: None)
        seen.append(shared())
    print(max(seen) < 40_000)  # KiB; all of them together are 120 MB
    """
    assert program(tmp_path, code) == ["True"]


WRITES = """
    serial, process = dict(chunksize=20, num_workers=0), dict(chunksize=20, num_workers=2)

    def part(first):
        '''Once, half-way, fork; the child leaves somehow.'''
        if not forked and os.getpid() == me and first >= 100:
            forked.append(1)
            pid = os.fork()
            if pid == 0:
                leave()
                return
            os.waitpid(pid, 0)

    def leave():
        if how == "exit":
            sys.exit(0)
        if how == "raise":
            raise ValueError("in the child")

    def fn(c):
        part(int(c["x"].reshape(-1)[0]))
        return TensorDict({"x": c["x"] + 0}, c.batch_size)

    def change(c):
        first = int(c["x"][0])
        c["x"].add_(1000)
        part(first)

    class Watch(tdmap.events.Callback):
        def on_lease_done(self, event):
            part(event.done_rows)

    def quiet(c):
        return TensorDict({"x": c["x"] + 0}, c.batch_size)

    def quiet_change(c):
        c["x"].add_(1000)

    watched = dict(process, callbacks=[Watch()])
    RUNS = {
        "map": lambda: tdmap.map(data, fn, out=out, **serial),
        "map, resumable": lambda: tdmap.map(data, fn, out=out, resume=True, **serial),
        "flat_map": lambda: tdmap.flat_map(data, fn, out=out, **serial),
        "flat_map, resumable": lambda: tdmap.flat_map(data, fn, out=out, resume=True, **serial),
        "filter": lambda: tdmap.filter(data, lambda c: fn(c)["x"] >= 0, out=out, **serial),
        "filter, resumable": lambda: tdmap.filter(data, lambda c: fn(c)["x"] >= 0, out=out, resume=True, **serial),
        "pipeline": lambda: data.pipeline().map(fn).write(out, num_workers=0),
        "pipeline that grows": lambda: data.pipeline().flat_map(fn).write(out, num_workers=0),
        "groups": lambda: tdmap.group_by(data, "x").map_groups(fn, out=out, **serial),
        "sort": lambda: tdmap.sort(data, lambda c: fn(c)["x"], out=out, **serial),
        "in place": lambda: tdmap.map(data, change, out=data, **serial),
        "in place, resumable": lambda: tdmap.map(data, change, out=data, resume=True, **serial),
        "reduce, resumable": lambda: tdmap.map_reduce(data, fn, Sum("x"), resume=out, **serial),
        "map, callback": lambda: tdmap.map(data, quiet, out=out, resume=True, **watched),
        "flat_map, callback": lambda: tdmap.flat_map(data, quiet, out=out, **watched),
        "filter, callback": lambda: tdmap.filter(data, lambda c: c["x"] >= 0, out=out, resume=True, **watched),
        "in place, callback": lambda: tdmap.map(data, quiet_change, out=data, resume=True, **watched),
    }
    from tdmap.reducers import Sum
    me, how = os.getpid(), sys.argv[1]
    for number, (name, run) in enumerate(RUNS.items()):
        forked, out = [], f"out-{number}"
        TensorDict({"x": x.clone()}, [400]).memmap(f"in-{number}")
        data = TensorDict.load_memmap(f"in-{number}")
        try:
            result = run()
        except BaseException:
            if os.getpid() == me:
                raise
            gc.collect()
            os._exit(0)
        assert os.getpid() == me and forked, name
        if "reduce" in name:
            assert int(result) == int(x.sum())
            continue
        result = TensorDict.load_memmap(f"in-{number}" if "in place" in name else out)["x"]
        assert torch.equal(result, x + 1000 * ("in place" in name)), name
        left = os.listdir(f"{out}/.tdmap") if os.path.exists(f"{out}/.tdmap") else []
        assert not [path for path in left if path.startswith(("spill", "data", "moving"))], (name, left)
    print("ok")
"""


@pytest.mark.parametrize("how", ["exit", "raise", "return"])
def test_a_function_or_callback_that_forks_leaves_the_run_to_the_parent(tmp_path, how):
    assert program(tmp_path, WRITES, how) == ["ok"]


def test_a_child_that_leaves_the_function_by_an_exception_puts_no_rows_back(tmp_path):
    code = """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # tracebacks of children
    def change(c):
        c[:, 0].add_(1)
        if int(c[0, 1]) == 20:
            pid = os.fork()
            if pid == 0:
                how()
            c[:, 2] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        c[:, 0].add_(1)
    def boom():
        raise ValueError("in the child")
    for executor in ("process", "thread"):
        for on_error in ("raise", "skip"):
            for how, code in ((lambda: sys.exit(3), 3), (lambda: sys.exit("said"), 1), (sys.exit, 0), (boom, 1)):
                shared = torch.zeros(40, 3, dtype=torch.int64).share_memory_()
                shared[:, 1] = torch.arange(40)
                options = dict(chunksize=10, num_workers=2, executor=executor, on_error=on_error)
                tdmap.map(shared, change, out=shared, **options)
                assert shared[:, 0].unique().tolist() == [2], (executor, on_error, code)
                assert shared[20:30, 2].unique().tolist() == [code], (executor, on_error, code)
                print("ok")
    """
    assert program(tmp_path, code) == ["ok"] * 16
