"""Real processes, real signals: nothing is lost, and it never hangs."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import time

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict
from tests.processes import comes_true

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
        if 50 in x:
            for number in range(times):
                try:
                    os.close(os.open(f"{marker}{number}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
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


def test_max_tasks_per_child_replaces_workers(tmp_path):
    def who(x):
        (tmp_path / str(os.getpid())).touch()
        return x

    x = torch.arange(20)
    assert torch.equal(tdmap.map(x, who, num_workers=2, chunksize=1, max_tasks_per_child=4), x)
    assert len(list(tmp_path.iterdir())) >= 5


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
