"""The profile says what goes over the link to a device: over one that only pretends, and over a real one."""

import functools

import pytest
import torch

import tdmap
from tdmap.memory import links as device_module
from tensordict_lite import TensorDict
from tests.device.fakelink import FakeLink

FAKE = "mtia"
ROWS = 60


@pytest.fixture
def data() -> TensorDict:
    return TensorDict({"x": torch.arange(ROWS * 100.0).reshape(ROWS, 100), "y": torch.arange(ROWS)}, [ROWS])


def halve(td):
    return TensorDict({"x": td["x"][:, :50] * 1.0}, td.batch_size)


def change(td):
    td["y"].add_(1)


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_bytes_to_a_device_and_back_are_counted(executor, data, monkeypatch):
    monkeypatch.setitem(device_module.LINKS, FAKE, functools.partial(FakeLink, seed=0))
    options = {"mp_start_method": "fork"} if executor == "process" else {}
    with tdmap.Profiler() as prof:
        tdmap.map(data, halve, device=FAKE, executor=executor, num_workers=2, chunksize=3, **options)
    (job,) = prof.jobs
    sent = job.total("to_device")
    assert sent >= ROWS * 408 and sent % 408 == 0  # a chunk that another worker takes over has been sent twice
    assert job.total("from_device") == ROWS * 50 * 4
    assert "device link: " in prof.summary(300) and "/s there" in prof.summary(300)
    assert sum(worker["to_device"] for worker in prof.to_dict()["jobs"][0]["workers"]) == sent


def test_rows_that_a_device_has_changed_come_back(data, monkeypatch):
    monkeypatch.setitem(device_module.LINKS, FAKE, functools.partial(FakeLink, seed=0))
    with tdmap.Profiler() as prof:
        tdmap.map(data, change, device=FAKE, executor="serial", chunksize=7)
    assert prof.jobs[0].total("from_device") == ROWS * 8


def test_without_a_device_nothing_is_said_of_a_link(data):
    with tdmap.Profiler() as prof:
        tdmap.map(data, halve, num_workers=0)
    assert prof.jobs[0].total("to_device") == 0
    assert "device" not in prof.summary() and "device" not in prof.compare(prof)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bytes_over_a_real_link_are_counted(data):
    with tdmap.Profiler() as prof:
        result = tdmap.map(data, halve, device="cuda", num_workers=1, chunksize=3, mp_start_method="spawn")
    assert torch.equal(result["x"].cpu(), data["x"][:, :50])
    assert prof.jobs[0].total("to_device") >= ROWS * 408 and prof.jobs[0].total("from_device") == ROWS * 200
