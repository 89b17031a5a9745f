"""The same seed gives the same bits, for any number of workers and any executor."""

import concurrent.futures
import contextlib
import os
import random
import signal
import sys
import threading

import numpy as np
import pytest
import torch

import tdmap
import tdmap.seeding
from tdmap import tuning
from tdmap.seeding import derive


def noise(x):
    return torch.stack(
        [torch.rand(len(x)), torch.from_numpy(np.random.rand(len(x))).float(), torch.full((len(x),), random.random())],
        1,
    )


def run(seed, **options):
    return tdmap.map(torch.arange(50), noise, chunksize=4, seed=seed, **{"num_workers": 2, **options})


def test_results_depend_on_the_seed_alone():
    first = run(1)
    assert torch.equal(first, run(1))
    assert torch.equal(first, run(1, num_workers=3))
    assert torch.equal(first, run(1, executor="serial"))
    assert torch.equal(first, run(1, executor="thread"))
    assert torch.equal(first, run(1, mp_start_method="forkserver"))
    assert not torch.equal(first, run(2))


def test_chunks_have_different_streams():
    columns = run(1)
    assert len(columns[::4].unique(dim=0)) == 13


def test_a_retry_draws_the_same_numbers(tmp_path):
    marker = tmp_path / "died"

    def fragile(x):
        result = noise(x)
        if 20 in x and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    result = tdmap.map(torch.arange(50), fragile, chunksize=4, seed=1, num_workers=2)
    assert marker.exists()
    assert torch.equal(result, run(1))


def test_a_generator_gives_the_seed_and_advances():
    def with_generator(generator):
        return tdmap.map(torch.arange(50), noise, chunksize=4, num_workers=2, generator=generator)

    generator = torch.Generator().manual_seed(3)
    first, second = with_generator(generator), with_generator(generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, with_generator(torch.Generator().manual_seed(3)))


def pipeline(seed, **options):
    kept = tdmap.Pipeline(torch.arange(600), seed=seed).filter(lambda x: x % 2 == 0)
    return list(kept.map(noise).batch(32).iter(**{"num_workers": 2, **options}))


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
@pytest.mark.parametrize("call", [run, pipeline])
def test_the_callers_streams_are_left_alone(call, executor):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    call(1, executor=executor)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_unseeded_workers_draw_different_numbers():
    result = tdmap.map(
        torch.arange(64), lambda x: torch.rand(len(x)), num_workers=2, chunksize=1, mp_start_method="fork"
    )
    assert len(result.unique()) == 64


def test_streams_of_neighbouring_rows_and_seeds_differ():
    values = {derive(seed, row) for seed in (-1, 0, 1, 2**63) for row in range(100)}
    assert len(values) == 400


@pytest.mark.parametrize("other", ["serial", "thread", "process"])
def test_two_iterations_at_once_draw_what_each_draws_alone(other):
    def epoch(executor):
        return tdmap.map_iter(torch.arange(90), noise, chunksize=3, seed=1, num_workers=2, executor=executor)

    alone = [part.tolist() for part in epoch("serial")]
    for _ in range(5):
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(epoch("thread"), epoch(other), strict=True)]
        assert pairs == [(part, part) for part in alone]


def test_maps_of_several_threads_draw_what_each_draws_alone():
    alone = run(1)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        kinds = ["serial", "thread", "serial", "process"] * 6
        for result in pool.map(lambda executor: run(1, executor=executor), kinds):
            assert torch.equal(result, alone)


@pytest.mark.parametrize("inner", ["serial", "thread", "process"])
@pytest.mark.parametrize("outer", ["serial", "thread", "process"])
def test_a_chunk_may_map_and_goes_on_with_its_own_stream(outer, inner):
    def nested(x):
        before = torch.rand(len(x), 1)
        return torch.cat([before, run(7, executor=inner, num_workers=1)[: len(x)], torch.rand(len(x), 1)], 1)

    def plain(x):
        return torch.rand(2 * len(x), 1)

    x = torch.arange(9)
    result = tdmap.map(x, nested, chunksize=3, seed=2, num_workers=1, executor=outer)
    own = tdmap.map(torch.arange(18), plain, chunksize=3, seed=2, num_workers=1, executor="serial")
    assert torch.equal(result[:, 1:4], run(7)[:3].repeat(3, 1))
    assert torch.equal(result[:3, 0], own[:3, 0]) and torch.equal(result[:3, 4], own[3:6, 0])


def test_a_chunk_that_waits_for_a_thread_of_its_own_is_not_waited_for_for_ever():
    hurried = tuning.use(turn_seconds=0.1)(run)

    def waits(x):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(hurried, 1, executor="serial").result()[: len(x)]

    with pytest.warns(RuntimeWarning, match="go on at once, after a wait of 0.1 s"):
        result = tdmap.map(torch.arange(3), waits, chunksize=3, seed=2, executor="serial")
    assert result.shape == (3, 3)
    assert torch.equal(run(1, executor="thread"), run(1))


def test_a_fork_does_not_wait_for_threads_of_its_parent():
    inside, leave = threading.Event(), threading.Event()

    def slow(x):
        inside.set()
        leave.wait(300)
        return noise(x)

    epoch = tdmap.map_iter(torch.arange(6), slow, chunksize=3, seed=1, num_workers=1, executor="thread")
    reader = threading.Thread(target=lambda: list(epoch), daemon=True)
    reader.start()
    try:
        assert inside.wait(300)
        pid = os.fork()
        if not pid:
            ok = False
            try:
                ok = run(1, executor="serial", num_workers=0).shape == (50, 3)
            finally:
                os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        leave.set()
        reader.join(300)


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_who_consumes_a_seeded_iteration_draws_as_without_it(executor):
    torch.manual_seed(3)
    own = [torch.rand(4).tolist() for _ in range(60)]
    alone = [part.tolist() for part in tdmap.map_iter(torch.arange(180), noise, chunksize=3, seed=1, num_workers=0)]
    torch.manual_seed(3)
    epoch = tdmap.map_iter(torch.arange(180), noise, chunksize=3, seed=1, num_workers=2, executor=executor)
    assert [(part.tolist(), torch.rand(4).tolist()) for part in epoch] == list(zip(alone, own, strict=True))


def begun_in_a_thread(fn):
    """A thread that runs `fn` in a seeded chunk, and is in it."""
    inside = threading.Event()

    def chunk(x):
        inside.set()
        fn()
        return x

    thread = threading.Thread(target=lambda: tdmap.map(torch.arange(3), chunk, chunksize=3, seed=1, num_workers=0))
    thread.start()
    assert inside.wait(300)
    return thread


def until(condition, released):
    """Wait for something, or until a test has nothing more to say."""
    while not (condition() or released.wait(0.01)):
        pass


@pytest.mark.parametrize("name", ["shuffle", "map_iter", "pipeline", "stage", "sample"])
def test_a_seed_that_is_drawn_is_not_of_a_seeded_chunk_elsewhere(name):
    x = torch.arange(40)
    calls = {
        "shuffle": lambda: tdmap.shuffle(x, num_workers=0),
        "map_iter": lambda: torch.cat(list(tdmap.map_iter(x, lambda c: c * 2, shuffle=True, num_workers=0))),
        "pipeline": lambda: torch.cat(list(tdmap.Pipeline(x).map(noise).batch(8).iter(num_workers=0))),
        "stage": lambda: torch.cat(list(tdmap.Pipeline(x).shuffle().batch(8).iter(num_workers=0))),
        "sample": lambda: tdmap.sample(x, 5, num_workers=0),
    }
    torch.manual_seed(5)
    wanted = calls[name]()
    torch.manual_seed(5)
    released = threading.Event()
    thread = begun_in_a_thread(lambda: until(lambda: len(tdmap.seeding._turn._line) > 1, released))
    try:
        found = calls[name]()
    finally:
        released.set()
        thread.join()
    assert torch.equal(found, wanted)


def test_who_waits_for_the_streams_is_not_passed_over():
    order, line = [], tdmap.seeding._turn._line

    def wait():
        with tdmap.seeding.own_streams():
            order.append("waited")

    with tdmap.seeding.own_streams():
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: len(line) == 2, threading.Event())
    with tdmap.seeding.own_streams():
        order.append("came back")
    thread.join()
    assert order == ["waited", "came back"]


def test_ctrl_c_ends_the_wait_for_the_streams():
    released = threading.Event()
    thread = begun_in_a_thread(lambda: released.wait(300))

    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        asks = threading.Thread(
            target=lambda: (
                until(lambda: len(tdmap.seeding._turn._line) > 1, released),
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1),
            )
        )
        asks.start()
        with pytest.raises(KeyboardInterrupt):
            run(1, executor="thread")
        assert thread.is_alive()
    finally:
        released.set()
        asks.join()
        signal.signal(signal.SIGUSR1, before)
        thread.join()


class Interrupt:
    """Raises KeyboardInterrupt before the n-th instruction in `seeding.py`; a context."""

    def __init__(self, at):
        self.at, self.count = at, 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for such a frame when a trace is set, and not later
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        if frame.f_code.co_filename != tdmap.seeding.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self._trace


def test_an_interrupt_at_any_instruction_leaves_the_streams_to_others(monkeypatch):
    def use(at):
        with Interrupt(at) as interrupt, tdmap.seeding.own_streams():
            torch.rand(3)
        return interrupt.count

    torch.manual_seed(5)
    before = torch.get_rng_state()
    steps = use(0)
    assert steps > 100
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # in `__del__`, which nobody can interrupt but this test
    for at in range(1, steps + 1):
        with contextlib.suppress(KeyboardInterrupt):
            use(at)
        assert not tdmap.seeding._turn._line, at
        assert torch.equal(torch.get_rng_state(), before), at
