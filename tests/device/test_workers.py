"""Which processes run a function on a device, how many of them, and what they know of the caller's settings."""

import os

import pytest
import torch

import tdmap
from tdmap.devices import FN_WORKERS, DevicePlan
from tdmap.execution import Execution
from tdmap.memory import links as device_module
from tdmap.process_state import ProcessSettings, ThreadSettings
from tests.device.fakelink import FakeLink

FAKE = "mtia"


@pytest.fixture
def no_forks(monkeypatch):
    """The fake is a device that no fork can use, as CUDA is once anything has asked for it. CPU workers are forks."""
    monkeypatch.setattr("tdmap.runtime.workers.launch.safe_to_fork", lambda worker_threads: True)
    monkeypatch.setitem(device_module.LINKS, FAKE, FakeLink)
    device_module.NO_FORKS.add(FAKE)
    yield
    device_module.NO_FORKS.discard(FAKE)


def pids(x):
    return torch.full((len(x),), os.getpid())


def test_a_pool_of_forks_gets_other_workers_for_a_device(no_forks):
    data = torch.zeros(40)
    with tdmap.WorkerPool(2) as pool:
        before = set(tdmap.map(data, pids, pool=pool, chunksize=1).tolist())
        assert [member.method for member in pool.members.values()] == ["fork", "fork"]
        there = set(tdmap.map(data, pids, device=FAKE, pool=pool, chunksize=1).tolist())
        assert not there & before
        assert {member.method for member in pool.members.values()} == {"forkserver"}
        after = set(tdmap.map(data, pids, pool=pool, chunksize=1).tolist())
        assert after <= there | set(pool.stats()["pids"])  # what can use a device can do anything else


def test_a_worker_that_is_lost_is_not_replaced_by_a_fork(no_forks, tmp_path):
    flag = tmp_path / "killed"

    def kill_once(x):
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)
        return x + 1

    with tdmap.WorkerPool(1) as pool:
        assert torch.equal(tdmap.map(torch.zeros(8), kill_once, device=FAKE, pool=pool, chunksize=2), torch.ones(8))
        assert {member.method for member in pool.members.values()} == {"forkserver"}


def test_a_pool_that_asks_for_forks_is_refused(no_forks):
    with tdmap.WorkerPool(1, "fork") as pool, pytest.raises(ValueError, match="spawn"):
        tdmap.map(torch.zeros(4), pids, device=FAKE, pool=pool)


def test_a_device_has_few_workers_unless_more_are_asked_for(monkeypatch):
    monkeypatch.setattr("tdmap.execution.usable_cores", lambda: 32)
    one, three = (DevicePlan(tuple(torch.device("cuda", n) for n in range(count)), None) for count in (1, 3))
    assert one.execution(Execution()).workers == FN_WORKERS
    assert three.execution(Execution()).workers == 3 * FN_WORKERS
    assert one.execution(Execution(num_workers=9)).workers == 9
    assert DevicePlan((), torch.device("cuda:0")).execution(Execution()).workers == 32
    monkeypatch.setattr("tdmap.execution.usable_cores", lambda: 1)
    assert three.execution(Execution()).workers == 1
    assert one.execution(Execution(executor="serial")).workers == 1


# -- settings --------------------------------------------------------------------------------------------


@pytest.fixture
def set_back():
    before = ProcessSettings.here(), ThreadSettings.here()
    yield
    for settings in before:
        settings.enter()
    assert (ProcessSettings.here(), ThreadSettings.here()) == before


def unusual():
    """Settings that are not torch's defaults."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_process_computes_with_the_callers_settings(set_back, method):
    with tdmap.WorkerPool(1, method) as pool:
        pool.warm_up()
        plain = ProcessSettings.here(), ThreadSettings.here()
        unusual()
        wanted = ProcessSettings.here(), ThreadSettings.here()
        assert wanted != plain

        def look(x):
            return ProcessSettings.here(), ThreadSettings.here()

        (found,) = tdmap.map_iter(torch.zeros(1), look, pool=pool)
        assert found == wanted
        for settings in plain:
            settings.enter()
        (found,) = tdmap.map_iter(torch.zeros(1), look, pool=pool)
        assert found == plain


def test_a_thread_computes_as_its_caller_does(set_back):
    x = torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = tdmap.map(x, lambda part: part @ part.T, executor="thread", chunksize=4)
    assert found.dtype is torch.bfloat16


def test_a_thread_works_on_its_callers_stream(monkeypatch):
    """Played without CUDA: streams are current for a thread, and those of a new thread are the default ones."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda number: f"stream of {number}")
    monkeypatch.setattr(torch.cuda, "default_stream", lambda number: "stream of 2" if number == 2 else "default")
    order = []
    monkeypatch.setattr(torch.cuda, "set_stream", order.append)
    ThreadSettings.with_streams().enter()
    assert order == ["stream of 0", "stream of 1"]  # the last one decides the device
    order.clear()
    tdmap.map(torch.zeros(4), lambda x: x, executor="thread", num_workers=2, chunksize=1)
    assert order == ["stream of 0", "stream of 1"] * 2
    assert ThreadSettings.here().streams == ()  # they mean nothing in another process
