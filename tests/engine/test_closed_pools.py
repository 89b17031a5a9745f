"""A pool that is closed while a job runs on it ends the job with an error; nobody waits for workers that are gone."""

import threading

import pytest
import torch

import tdmap

X = torch.arange(1000)


def nap(part):
    threading.Event().wait(0.05)
    return part


def test_an_iterator_that_outlives_its_pool():
    with tdmap.WorkerPool(2) as pool:
        rows = tdmap.map_iter(X, nap, pool=pool, chunksize=10)
        assert torch.equal(next(rows), X[:10])
    with pytest.raises(RuntimeError, match="closed while a job ran on it"):
        list(rows)


def test_an_iterator_when_all_pools_are_closed():
    rows = tdmap.map_iter(X, nap, num_workers=2, chunksize=10)
    next(rows)
    tdmap.close_pools()
    with pytest.raises(RuntimeError, match="closed while a job ran on it"):
        list(rows)
    assert torch.equal(tdmap.map(X, torch.neg, num_workers=2), -X)


def test_a_map_in_another_thread():
    errors = []

    def endless(part):
        if int(part[0]) > 500:
            threading.Event().wait()  # so that the job is not over when the pool is closed
        return part

    running = threading.Event()

    class Watch(tdmap.events.Callback):
        def on_lease_done(self, event):
            running.set()

    def work():
        try:
            tdmap.map(X, endless, pool=pool, chunksize=10, callbacks=[Watch()])
        except RuntimeError as error:
            errors.append(str(error))

    pool = tdmap.WorkerPool(2)
    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(300)
    pool.close()
    thread.join(300)
    assert not thread.is_alive()
    assert len(errors) == 1 and "closed while a job ran on it" in errors[0]
