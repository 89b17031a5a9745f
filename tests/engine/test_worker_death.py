"""Real processes, real signals: nothing is lost, and it never hangs."""

import faulthandler
import io
import os
import signal
import sys
import threading
import time

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.data.reader import Reader
from tdmap.job import Policy
from tdmap.plan import ChunkPlan
from tdmap.runtime.chunkloop import ChunkLoop
from tdmap.runtime.executors.base import as_it_is
from tdmap.runtime.undo import Undo
from tdmap.runtime.wire.messages import GaveBack
from tdmap.runtime.workers import control as at
from tensordict_lite import TensorDict
from tests.processes import comes_true, once

METHODS = ["fork", "forkserver"]


class Log(tdmap.events.Callback):
    """Keeps the events."""

    def __init__(self):
        self.died, self.retried, self.leases, self.ended, self.started = [], [], [], [], []

    def on_job_started(self, event):
        self.started.append(event)

    def on_lease_done(self, event):
        self.leases.append(event)

    def on_worker_died(self, event):
        self.died.append(event)

    def on_chunk_retried(self, event):
        self.retried.append(event)

    def on_job_ended(self, event):
        self.ended.append(event)


def dying(how, marker, times):
    """A function that ends its process on row 50 as often as told, and doubles its rows else."""

    def double(x):
        if 50 in x and any(once(f"{marker}{number}") for number in range(times)):
            how()
        return x * 2

    return double


def by_signal(number):
    def kill():
        faulthandler.disable()  # pytest's, which would write the stack to the terminal
        os.kill(os.getpid(), number)

    return kill


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "how",
    [by_signal(signal.SIGKILL), by_signal(signal.SIGSEGV), by_signal(signal.SIGTERM), lambda: os._exit(3)],
    ids=["SIGKILL", "SIGSEGV", "SIGTERM", "_exit"],
)
def test_a_killed_worker_loses_no_rows(method, how, tmp_path):
    x, log = torch.arange(400), Log()
    fn = dying(how, tmp_path / "died", times=2)
    result = tdmap.map(x, fn, num_workers=2, chunksize=4, mp_start_method=method, callbacks=[log])
    assert torch.equal(result, x * 2)
    assert [event.rows for event in log.retried] == [(48, 52)] * 2
    assert len(log.died) == 2
    assert sum(event.rows for event in log.leases) <= 400
    assert log.ended[0].ok and log.ended[0].done_rows == 400


def test_only_the_chunk_that_ran_is_run_again(tmp_path):
    x = torch.arange(3000)
    fn = dying(by_signal(signal.SIGKILL), tmp_path / "died", times=1)
    runs = tmp_path / "runs"

    def counted(part):
        with open(runs, "a") as file:
            file.write(f"{int(part[0])}\n")
        return fn(part)

    result = tdmap.map(x, counted, num_workers=2, chunksize=1)
    assert torch.equal(result, x * 2)
    rows = [int(line) for line in runs.read_text().split()]
    assert sorted(rows) == sorted([*range(3000), 50])


def test_a_worker_killed_between_chunks_is_replaced(tmp_path):
    x, log = torch.arange(60), Log()

    def slow(part):
        (tmp_path / str(os.getpid())).touch()
        # Nobody comes to the end before the one that takes the place of the killed one is there.
        assert int(part[0]) < 30 or comes_true(lambda: len(os.listdir(tmp_path)) == 3)
        return part + 1

    class Killer(Log):
        killed = False

        def on_lease_done(self, event):
            if not self.killed and event.worker != os.getpid():
                self.killed = True
                os.kill(event.worker, signal.SIGKILL)

    killer = Killer()
    result = tdmap.map(x, slow, num_workers=2, chunksize=2, callbacks=[killer, log])
    assert torch.equal(result, x + 1)
    assert [event.signal for event in log.died] == [signal.SIGKILL]
    assert len(list(tmp_path.iterdir())) == 3


def test_poison_rows_are_named_after_the_retries():
    def poison(x):
        if 50 in x:
            os.kill(os.getpid(), signal.SIGSEGV)
        return x

    with pytest.raises(tdmap.errors.WorkerLost, match=r"rows 48:52.*3 workers died.*SIGSEGV") as caught:
        tdmap.map(torch.arange(100), poison, num_workers=2, chunksize=4)
    assert caught.value.rows == (48, 52)
    assert (caught.value.signal, caught.value.exit_code) == (signal.SIGSEGV, None)
    assert isinstance(caught.value, RuntimeError)


def test_the_pool_is_usable_after_a_lost_job(tmp_path):
    with tdmap.WorkerPool(2) as pool:
        with pytest.raises(tdmap.errors.WorkerLost):
            tdmap.map(torch.arange(100), lambda x: os._exit(1), chunksize=4, pool=pool)
        assert torch.equal(tdmap.map(torch.arange(100), lambda x: x + 1, pool=pool), torch.arange(1, 101))
        assert pool.stats()["lost"] >= 3


def test_large_results_of_a_killed_worker_are_computed_again(tmp_path):
    x = torch.arange(100.0)[:, None].expand(100, 30_000)
    fn = dying(by_signal(signal.SIGKILL), tmp_path / "died", times=2)
    for number, part in enumerate(tdmap.map_iter(x, fn, num_workers=2, chunksize=1)):
        assert torch.equal(part, x[number : number + 1] * 2)
    assert number == 99


@pytest.mark.parametrize("undo", ["data", None])
@pytest.mark.parametrize("mapped", [True, False])
def test_in_place_work_is_done_exactly_once(tmp_path, mapped, undo):
    data = TensorDict({"x": torch.arange(400.0), "meta": {"y": torch.arange(400)}}, [400])
    if mapped:
        data = data.memmap_(tmp_path / "td")
    die = dying(by_signal(signal.SIGKILL), tmp_path / "died", times=2)

    def increment(td):
        td["x"].add_(1)
        td["meta", "y"].mul_(2)
        die(td["x"] - 1)  # half-way: the rows are changed, and the worker dies
        td["x"].add_(1)

    tdmap.map(data, increment, num_workers=2, chunksize=4, out=data if undo else None)
    assert torch.equal(data["x"], torch.arange(400.0) + 2)
    assert torch.equal(data["meta", "y"], torch.arange(400) * 2)


@pytest.mark.filterwarnings("ignore:.*changed rows of the source")
@pytest.mark.parametrize("first, lease_seconds", [(0, 10), (40, 0)], ids=["leases of many chunks", "only later chunks"])
def test_rows_are_put_back_whichever_chunk_of_a_lease_the_function_changes(first, lease_seconds, tmp_path):
    x = torch.arange(60.0)
    die = dying(by_signal(signal.SIGKILL), tmp_path / "died", times=1)

    def change(part):
        row = part.clone()
        if int(row) >= first:
            part.add_(1000)
            die(row)
        return part.repeat(2)  # more rows: they travel

    with tuning.use(lease_seconds=lease_seconds):
        found = tdmap.map(x, change, num_workers=1, chunksize=1)
    assert torch.equal(x, torch.arange(60.0) + 1000 * (torch.arange(60) >= first))
    assert torch.equal(found, x.repeat_interleave(2))


class Slots:
    """A control block that tells of each store before it is made."""

    def __init__(self, slots, before):
        self.slots, self.before = slots, before

    def __getitem__(self, slot):
        return self.slots[slot]

    def __setitem__(self, slot, value):
        self.before()
        self.slots[slot] = value


def kill_before(number, armed, monkeypatch):
    """Kill one worker before its n-th step since a file is there: a store to its control block, or a copy of rows."""
    driver, left, map_control, save = os.getpid(), [number], at.map_control, Undo.save

    def before():
        if os.getpid() != driver and armed.exists():
            left[0] -= 1
            if not left[0] and once(f"{armed}, killed"):
                os.kill(os.getpid(), signal.SIGKILL)

    def saved(undo, chunk):
        before()
        save(undo, chunk)

    monkeypatch.setattr(at, "map_control", lambda path: Slots(map_control(path), before))
    monkeypatch.setattr(Undo, "save", saved)


@pytest.mark.filterwarnings("ignore:.*changed rows of the source")
@pytest.mark.parametrize("travels", [False, True], ids=["in place", "results travel"])
@pytest.mark.parametrize("number", range(1, 8))
@tuning.use(lease_seconds=0)
def test_a_worker_killed_before_any_step_with_an_earlier_chunk(number, travels, tmp_path, monkeypatch):
    """One worker dies in the first chunk when the other has done the rest, and then that dies, too."""
    x = torch.arange(16.0)

    def change(part):
        row = int(part)
        part.add_(100)
        (tmp_path / str(row)).touch()
        if row == 0 and not (tmp_path / "died").exists():
            assert comes_true(lambda: len(os.listdir(tmp_path)) >= 15)  # one may wait for this worker
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        part.mul_(3)
        return part.repeat(2) if travels else None

    kill_before(number, tmp_path / "died", monkeypatch)
    with tdmap.WorkerPool(2, "fork") as pool:
        found = tdmap.map(x, change, pool=pool, chunksize=1, out=None if travels else x)
    assert torch.equal(x, 3 * (torch.arange(16.0) + 100))
    assert not travels or torch.equal(found, x.repeat_interleave(2))
    assert (tmp_path / "died, killed").exists()


def read(marker, driver):
    if os.getpid() != driver and once(marker):
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.neg


class KillsItsReader:
    """A function: the first worker that reads it is killed; others negate rows."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return read, (self.marker, os.getpid())

    def __call__(self, x):
        raise AssertionError("workers have it from `read`")


def test_a_worker_that_dies_before_its_first_chunk_is_blamed_for_none(tmp_path):
    """Whatever it ran in an earlier job: without retries, a chunk that is blamed ends this one."""
    x = torch.ones(1)
    with tdmap.WorkerPool(1) as pool:
        assert tdmap.map(x, torch.neg, pool=pool) == -x
        assert tdmap.map(x, KillsItsReader(str(tmp_path / "died")), pool=pool, retries=0) == -x
    assert len(os.listdir(tmp_path)) == 1


def test_a_stuck_chunk_is_stopped_and_named():
    def stuck(x):
        if 50 in x:
            time.sleep(600)
        return x

    log = Log()
    with pytest.raises(tdmap.errors.ChunkTimeout, match=r"rows 48:52") as caught:
        tdmap.map(torch.arange(100), stuck, num_workers=2, chunksize=4, timeout=1, retries=1, callbacks=[log])
    assert caught.value.rows == (48, 52)
    assert isinstance(caught.value, TimeoutError)
    # On a busy machine another chunk may take as long, once.
    assert [event.rows for event in log.retried].count((48, 52)) == 1


def test_a_stuck_chunk_may_succeed_the_second_time(tmp_path):
    fn = dying(lambda: time.sleep(600), tmp_path / "stuck", times=1)
    # On a busy machine others may be stopped besides, which have as many tries as they need.
    result = tdmap.map(torch.arange(100), fn, num_workers=2, chunksize=4, timeout=0.5, retries=1000)
    assert torch.equal(result, torch.arange(100) * 2)


def test_an_exception_does_not_wait_for_what_other_workers_do():
    def fail(x):
        if 0 in x:
            raise ValueError("first rows")
        time.sleep(600)  # far longer than a test may take
        return x

    with pytest.raises(ValueError, match="first rows"):
        tdmap.map(torch.arange(4), fn=fail, num_workers=2, chunksize=1)


def test_rows_of_a_worker_that_dies_while_the_job_stops_are_put_back(tmp_path):
    data = TensorDict({"x": torch.arange(4)}, [4]).memmap_(tmp_path / "td")
    changed, failed = tmp_path / "changed", tmp_path / "failed"

    def fail(td):
        if 0 in td["x"]:
            comes_true(changed.exists)
            failed.touch()
            raise ValueError("first rows")
        td["x"].add_(10)
        changed.touch()
        comes_true(failed.exists)
        by_signal(signal.SIGKILL)()

    with pytest.raises(ValueError, match="first rows"):
        tdmap.map(data, fail, out=data, num_workers=2, chunksize=2)
    assert data["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("who", ["callback", "thread"])
def test_rows_of_workers_whose_pool_is_closed_are_put_back(who, tmp_path):
    data = TensorDict({"x": torch.arange(4)}, [4]).memmap_(tmp_path / "td")

    def change(td):
        number = int(td["x"][0])
        td["x"].add_(10)
        (tmp_path / f"changed{number}").touch()
        time.sleep(600)

    def both_have_changed():
        return len(list(tmp_path.glob("changed*"))) == 2

    def close():
        assert comes_true(both_have_changed)
        pool.close()

    class Close(tdmap.events.Callback):
        def on_tick(self, now):
            if who == "callback" and both_have_changed():
                pool.close()

    with tdmap.WorkerPool(2) as pool:
        pool.warm_up()
        thread = threading.Thread(target=close if who == "thread" else int)
        thread.start()
        with pytest.raises(RuntimeError, match="was closed while a job ran"):
            tdmap.map(data, change, out=data, pool=pool, chunksize=2, callbacks=[Close()])
        assert data["x"].tolist() == [0, 1, 2, 3]
        thread.join()
        assert not pool.members


def test_a_straggler_shares_its_chunks(tmp_path):
    # Chunks become slow after the estimate was made, and stay so until both workers have met one: without sharing,
    # one worker holds them all, and they end without the other.
    def uneven(x):
        if int(x[0]) >= 1500 and len(os.listdir(tmp_path)) < 2:
            (tmp_path / str(os.getpid())).touch()
            time.sleep(0.05)
        return x

    x = torch.arange(1900)
    assert torch.equal(tdmap.map(x, uneven, num_workers=2, chunksize=1), x)
    assert len(os.listdir(tmp_path)) == 2


def test_a_worker_that_is_asked_gives_half_of_a_lease_back_once():
    said, ran, control = [], [], at.local_control()
    reader = Reader(torch.arange(16), ChunkPlan(16, 1))
    loop = ChunkLoop(1, reader, lambda rows: ran.append(int(rows)), Policy(), control, as_it_is, said.append)
    control[at.GIVE_BACK] = 1
    assert loop.run(7, 0, 16).upto == 8
    assert said == [GaveBack(1, 7, 8)] and ran == list(range(8))
    assert loop.run(8, 8, 16).upto == 16
    assert len(said) == 1 and ran == list(range(16))


def test_a_worker_that_is_asked_to_stop_ends_its_chunk():
    ran, control = [], at.local_control()

    def stop(rows):
        ran.append(int(rows))
        control[at.CANCEL] = int(rows) == 3

    loop = ChunkLoop(1, Reader(torch.arange(16), ChunkPlan(16, 1)), stop, Policy(), control, as_it_is, print)
    assert loop.run(7, 0, 16).upto == 4
    assert ran == [0, 1, 2, 3]


class SlowStream(io.StringIO):
    """Delays what a worker says after a lease."""

    def flush(self):
        time.sleep(0.1)


def test_the_last_word_on_one_job_does_not_hide_what_the_next_one_runs():
    """Results that travel may end a job before its worker has said so; the next job must not take that for its own."""

    def tell(x):
        x.add_(1)
        sys.stdout = SlowStream()
        return "told"

    with tdmap.WorkerPool(1) as pool:
        assert list(tdmap.map_iter(torch.zeros(1), tell, pool=pool)) == ["told"]
        with pytest.raises(tdmap.errors.ChunkTimeout):
            tdmap.map(torch.zeros(1), lambda x: time.sleep(600), pool=pool, timeout=0.4, retries=0)
        assert list(tdmap.map_iter(torch.zeros(1), tell, pool=pool)) == ["told"]
        with pytest.raises(tdmap.errors.WorkerLost) as caught:
            tdmap.map(torch.zeros(1), lambda x: os._exit(3), pool=pool, retries=0)
        assert caught.value.rows == (0, 1) and caught.value.exit_code == 3
