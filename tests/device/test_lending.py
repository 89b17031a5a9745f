"""Memory that is lent to workers comes back, whatever becomes of them.

A device is played by a file, which opening a loan maps; what would lower a counter of torch is written down instead.
"""

import os
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.devices import DevicePlan
from tdmap.execution import Execution
from tdmap.job import Job, Source
from tdmap.memory import links as device_module
from tdmap.output.given import Preallocated
from tdmap.plan import ChunkPlan
from tdmap.runtime.executors import processes
from tdmap.runtime.wire import lending, packing, payload
from tests.device.fakelink import FakeLink

FAKE = torch.device("mtia:0")
ROWS = 40


def open_file(path: str, rows: int, opens: bool) -> torch.Tensor:
    """What a worker does with a loan."""
    if not opens:
        raise RuntimeError("pidfd_getfd: Operation not permitted")
    return torch.from_file(path, shared=True, size=rows)


class Lender:
    """Lends one tensor over a file, and writes down what comes back."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "device")
        self.out = torch.from_file(self.path, shared=True, size=ROWS).fill_(-1)
        self.lent = 0
        self.back: list[int] = []
        self.opens = True

    def is_lendable(self, tensor):
        return tensor.data_ptr() == self.out.data_ptr() and tensor.numel() == ROWS

    def lend(self, tensor):
        self.lent += 1
        return open_file, (self.path, ROWS, self.opens), lending.Loan("file", b"", self.lent)

    def take_back(self, loans):
        self.back += [loan.offset for loan in loans]


@pytest.fixture
def lender(tmp_path, monkeypatch):
    lender = Lender(tmp_path)
    monkeypatch.setattr(packing, "is_lendable", lender.is_lendable)
    for module in (packing, lending):
        monkeypatch.setattr(module, "lend", lender.lend)
    for module in (processes, payload):
        monkeypatch.setattr(module, "take_back", lender.take_back)
    monkeypatch.setattr(processes, "device_of", lambda out: FAKE)
    # A worker that takes that long to let go is stuck; on a busy machine, seconds are no sign of it.
    with tuning.use(let_go_seconds=300.0):
        yield lender


def run(lender, fn, pool, chunksize=2):
    data = torch.arange(float(ROWS))
    job = Job(Source(data), ChunkPlan(ROWS, chunksize), fn)
    return Execution(pool=pool).run(job, Preallocated(lender.out))


def test_each_worker_is_lent_it_once_and_lets_go_of_it(lender):
    with tdmap.WorkerPool(2) as pool:
        pool.warm_up()  # one would do all before the other is there
        for turn in range(3):
            run(lender, lambda x: x + 1, pool)
            assert torch.equal(lender.out, torch.arange(float(ROWS)) + 1)
            assert lender.lent == 2 * (turn + 1)
    assert not lender.back  # every worker has said that it let go


def test_what_a_killed_worker_was_lent_is_taken_back_once(lender, tmp_path):
    flag = tmp_path / "killed"

    def kill_once(x):
        if int(x[0]) == 20 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)
        return x + 1

    with tdmap.WorkerPool(1) as pool:
        run(lender, kill_once, pool)
        assert torch.equal(lender.out, torch.arange(float(ROWS)) + 1)
        assert lender.lent == 2 and lender.back == [1]


@tuning.use(grace_seconds=300.0)  # that the other one has to end its chunk
def test_what_workers_had_is_taken_back_after_an_error(lender):
    def fail(x):
        if int(x[0]) == 20:
            raise KeyError("twenty")
        return x

    with tdmap.WorkerPool(2) as pool:
        with pytest.raises(KeyError, match="twenty"):
            run(lender, fail, pool)
        assert not lender.back  # they live, and have let go
        run(lender, lambda x: x * 2, pool)
    assert torch.equal(lender.out, torch.arange(float(ROWS)) * 2)


def test_what_a_stuck_worker_was_lent_is_taken_back(lender, tmp_path):
    flag = tmp_path / "stuck"

    def stuck(x):
        import time

        if int(x[0]) == 20:
            while not flag.exists():
                time.sleep(0.01)
            raise KeyError("twenty")
        flag.touch()
        time.sleep(600)

    with tdmap.WorkerPool(2) as pool, pytest.raises(KeyError):
        run(lender, stuck, pool, chunksize=20)
    assert len(lender.back) == 1  # of the one that was killed


def test_a_worker_that_is_worn_out_gives_back(lender):
    with tdmap.WorkerPool(1, max_tasks_per_child=5) as pool:
        run(lender, lambda x: x + 1, pool)
    assert torch.equal(lender.out, torch.arange(float(ROWS)) + 1)
    assert lender.lent == 4 and lender.back[:3] == [1, 2, 3]


# -- handles that cannot be opened -----------------------------------------------------------------------


@pytest.fixture
def placed(lender, monkeypatch):
    """`map(device=..., out=...)` where the output is the lender's, which results may reach without coming back."""
    lendable = {FAKE: True}
    monkeypatch.setitem(device_module.LINKS, FAKE.type, FakeLink)
    monkeypatch.setattr("tdmap.devices.can_lend", lendable.get)
    monkeypatch.setattr("tdmap.ops.map.cannot_lend", lambda device: lendable.update({device: False}))
    monkeypatch.setattr(DevicePlan, "of", lambda device, out: DevicePlan((FAKE,), FAKE))
    return lendable


def test_results_come_back_where_a_handle_cannot_be_opened(lender, placed):
    lender.opens = False
    data = torch.arange(float(ROWS))
    with tdmap.WorkerPool(2, "fork") as pool:
        with pytest.warns(RuntimeWarning, match=r"cannot open memory of mtia:0.*pidfd_getfd.*slower") as caught:
            assert tdmap.map(data, lambda x: x + 1, device=FAKE, out=lender.out, pool=pool, chunksize=2) is lender.out
        assert caught.pop(RuntimeWarning).filename == __file__
        assert torch.equal(lender.out, data + 1) and not placed[FAKE]
        before = lender.lent
        tdmap.map(data, lambda x: x + 2, device=FAKE, out=lender.out, pool=pool, chunksize=2)
        assert torch.equal(lender.out, data + 2) and lender.lent == before  # it is not tried again


def test_a_function_in_place_is_not_run_twice_for_it(lender, placed):
    lender.opens = False
    data = torch.arange(float(ROWS)).share_memory_()

    def fn(x):
        x.add_(1)

    with tdmap.WorkerPool(2, "fork") as pool, pytest.warns(RuntimeWarning, match="cannot open"):
        tdmap.map(data, fn, device=FAKE, out=lender.out, pool=pool, chunksize=2)
    assert torch.equal(data, torch.arange(float(ROWS)) + 1)


def test_a_refusal_after_chunks_have_run_is_an_error(lender, placed, tmp_path):
    flag = tmp_path / "killed"

    def kill_once(x):
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)
        return x

    lend = lender.lend

    def lend_once(tensor):
        build, fields, loan = lend(tensor)
        return build, (*fields[:2], lender.lent == 1), loan

    packing.lend = lend_once
    with (
        tdmap.WorkerPool(1, "fork") as pool,
        pytest.raises(lending.NotLent, match="could not be opened in worker") as caught,
    ):
        tdmap.map(torch.zeros(ROWS), kill_once, device=FAKE, out=lender.out, pool=pool, chunksize=2)
    assert "call it again" in caught.value.__notes__[-1] and not placed[FAKE]


# -- modules -----------------------------------------------------------------------------------------------


def test_parameters_of_a_device_travel_through_memory_and_are_nobodys_loan(monkeypatch):
    monkeypatch.setattr(packing, "is_lendable", lambda tensor: True)
    monkeypatch.setattr(packing, "lend", None)  # not called
    from tdmap.functions import ModuleFunction

    model = torch.nn.Linear(300, 30)
    model.extra = model.weight
    packer = packing.Packer(private=True)
    data = packer.dumps(ModuleFunction(model))
    copy = packing.unpack(data).module
    assert len(data) < model.weight.nbytes and not packer.take_loans()
    assert torch.equal(copy.weight, model.weight) and copy.extra is copy.weight
    assert isinstance(copy.weight, torch.nn.Parameter) and copy.weight.requires_grad
