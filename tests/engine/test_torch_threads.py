"""How many threads torch uses, in workers that are threads and in threads of the caller."""

import threading

import pytest
import torch

import tdmap
from tdmap import process_state
from tdmap.process_state import one_thread

X = torch.arange(8)


def in_new_thread(fn):
    found = []
    thread = threading.Thread(target=lambda: found.append(fn()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Job:
    """A map of two threads, begun in a thread of its own; both are at work until `end` is called."""

    def __init__(self, **options):
        self._inside, self._leave = threading.Semaphore(0), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(options,))
        self._thread.start()
        for _ in range(2):
            assert self._inside.acquire(timeout=300)

    def _run(self, options):
        self.result = tdmap.map(X, self._chunk, num_workers=2, chunksize=1, executor="thread", **options)

    def _chunk(self, x):
        threads = torch.get_num_threads()
        self._inside.release()
        assert self._leave.wait(300)
        return torch.full((len(x),), threads)

    def end(self):
        self._leave.set()
        self._thread.join()


def test_a_thread_that_starts_beside_a_job_has_the_threads_of_any_other():
    job = Job()
    try:
        assert in_new_thread(torch.get_num_threads) == 3
    finally:
        job.end()
    assert job.result.tolist() == [1] * 8
    assert in_new_thread(torch.get_num_threads) == torch.get_num_threads() == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_jobs_at_once_leave_the_threads_of_torch_alone_in_whatever_order_they_end(order):
    jobs = [Job(), Job(worker_threads=2), Job()]
    for number in order:
        jobs[number].end()
        assert in_new_thread(torch.get_num_threads) == 3
    assert [set(job.result.tolist()) for job in jobs] == [{1}, {2}, {1}]
    assert torch.get_num_threads() == 3


def test_a_thread_that_begins_beside_a_pipeline_leaves_the_others_alone():
    with one_thread():
        inside, leave = threading.Event(), threading.Event()

        def iterate():
            with one_thread():  # as a pipeline does, while it waits for its workers
                inside.set()
                assert leave.wait(300)

        thread = threading.Thread(target=iterate)
        thread.start()
        assert inside.wait(300)
    leave.set()
    thread.join()
    assert in_new_thread(torch.get_num_threads) == 3


def test_where_no_thread_can_start_the_workers_set_their_own(monkeypatch):
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    def use():
        monkeypatch.setattr(process_state.threading, "Thread", Refused)
        process_state.use_threads(2)
        return torch.get_num_threads()

    try:
        assert in_new_thread(use) == 2
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize("threads", [1, 2])
def test_processes_have_as_many_threads_as_they_are_told_and_can_use_them(threads):
    a = torch.randn(16, 256, 256)
    options = {"num_workers": 1, "worker_threads": threads, "mp_start_method": "forkserver", "chunksize": 8}
    found = tdmap.map(a, lambda x: (x @ x) * (torch.get_num_threads() == threads), **options)
    assert torch.allclose(found, a @ a, atol=1e-3)
