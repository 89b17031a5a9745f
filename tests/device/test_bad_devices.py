"""What cannot work is refused when it is asked for, with what was found and what to do."""

from types import SimpleNamespace

import pytest
import torch

import tdmap
from tdmap.devices import DevicePlan, check_start_method, devices_of
from tdmap.execution import Execution
from tdmap.memory import links as device_module
from tdmap.memory.links import resolve_device
from tensordict_lite import TensorDict
from tests.cells.kinds import plain
from tests.cells.operations import OPERATIONS, resumable
from tests.device.fakelink import FakeLink

CUDA = torch.device("cuda:0")


@pytest.fixture
def data() -> TensorDict:
    return TensorDict({"x": torch.arange(6.0)}, [6])


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine that says it has two CUDA devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


def test_devices_are_counted(two_gpus):
    assert resolve_device("cuda") == torch.device("cuda:1") and resolve_device("cuda:0") == CUDA
    assert devices_of(["cuda:0", "cuda:1"]) == (CUDA, torch.device("cuda:1"))
    with pytest.raises(ValueError, match=r"cuda:7 does not exist: this machine has 2 CUDA devices.*cuda:0 to cuda:1"):
        resolve_device("cuda:7")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("call", ["map", "map_iter"])
def test_a_device_that_is_not_there(data, call):
    with pytest.raises(ValueError, match=r"cuda:3 does not exist: this machine has 0 CUDA devices\. .*leave"):
        getattr(tdmap, call)(data, lambda td: td, device="cuda:3")
    with pytest.raises(ValueError, match="0 CUDA devices"):
        tdmap.map(data, lambda td: td, device=["cuda:0", "cuda:1"])


@pytest.mark.parametrize("device", ["meta", "nonsense", [], ["cpu", "mtia:0"], [["cpu"]]])
def test_what_is_no_device_for_data(data, device, monkeypatch):
    monkeypatch.setitem(device_module.LINKS, "mtia", FakeLink)
    with pytest.raises(ValueError, match="device"):
        tdmap.map(data, lambda td: td, device=device)


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_other_accelerators_are_refused_with_the_way_round(data, kind):
    for call in (tdmap.map, tdmap.map_iter):
        with pytest.raises(ValueError, match=rf"device='{kind}'.*\.to\('{kind}'\).*executor=\"thread\""):
            call(data, lambda td: td, device=kind)
    with pytest.raises(ValueError, match=f"device='{kind}'"):
        tdmap.prefetch_to_device([], kind)


@pytest.mark.parametrize("out", ["cuda", "cuda:1", "mps", torch.device("cuda", 0)])
def test_an_output_that_is_the_name_of_a_device(data, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"is a device.*24 bytes.*Allocate"):
        tdmap.map(data, lambda td: td, out=out)
    with pytest.raises(ValueError, match="'cpu' is a device: without out= the result is in memory"):
        tdmap.map(data, lambda td: td, out=torch.device("cpu") if isinstance(out, torch.device) else "cpu")
    assert not list(tmp_path.iterdir())
    saved = tdmap.map(data, lambda td: td, out="./cuda", executor="serial")  # a folder, if that is what is meant
    assert torch.equal(saved["x"], data["x"]) and (tmp_path / "cuda").is_dir()


@pytest.mark.parametrize("name", resumable())
def test_no_operation_makes_a_folder_with_the_name_of_a_device(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="out='cuda:0' is a device.*Allocate"):
        OPERATIONS[name].call(plain(10), out="cuda:0", num_workers=0)
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_a_device_says_how_large_it_is(two_gpus, data, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 20))
    with pytest.raises(ValueError, match="of whose 20 bytes 10 are free; the data have 24 bytes"):
        tdmap.map(data, lambda td: td, out="cuda:1")


def test_an_output_on_two_devices_or_on_none(data):
    out = TensorDict({"x": torch.zeros(6), "y": torch.zeros(6, device="meta")}, [6])
    with pytest.raises(ValueError, match="one device.*'x' on cpu.*'y' on meta"):
        tdmap.map(data, lambda td: td, out=out)
    with pytest.raises(ValueError, match="out='meta'"):
        tdmap.map(data, lambda td: td, out=torch.zeros(6, device="meta"))


def test_an_output_that_is_too_small(data):
    out = TensorDict({"x": torch.zeros(4)}, [4])
    with pytest.raises(tdmap.errors.OutputMismatch, match="6 rows"):
        tdmap.map(data, lambda td: td, out=out)


@pytest.mark.parametrize("make_pool", [None, lambda: tdmap.WorkerPool(1, "fork")])
def test_forks_and_cuda_do_not_mix(make_pool):
    pool = make_pool and make_pool()
    execution = Execution(pool=pool, mp_start_method=None if pool else "fork")
    with pytest.raises(ValueError, match="fork.*spawn"):
        check_start_method(execution, CUDA)
    check_start_method(Execution(mp_start_method="spawn"), CUDA)
    check_start_method(Execution(), CUDA)  # the engine does not fork a process that uses CUDA
    check_start_method(Execution(executor="thread", mp_start_method="fork"), CUDA)
    if pool:
        pool.close()


def placed(devices=(), out_device=None):
    return DevicePlan(tuple(devices), out_device)


def test_workers_that_use_a_device_are_spawned_unless_told_otherwise():
    assert placed([CUDA]).execution(Execution()).mp_start_method == "spawn"
    assert placed([CUDA]).execution(Execution(mp_start_method="forkserver")).mp_start_method == "forkserver"
    assert placed([], CUDA).execution(Execution()).mp_start_method is None


def test_a_foreign_pool_cannot_run_functions_on_a_device(data, monkeypatch, spawned):
    monkeypatch.setitem(device_module.LINKS, "mtia", FakeLink)
    with pytest.raises(ValueError, match="workers of tdmap"):
        tdmap.map(data, lambda td: td, device="mtia", pool=spawned)


def test_data_elsewhere_and_processes():
    data = TensorDict({"x": torch.zeros(6, device="meta")}, [6])
    with pytest.raises(ValueError, match=r'data are on meta.*executor="thread".*device="meta"'):
        placed().check(data, None, Execution(), False)
    placed().check(data, None, Execution(executor="thread"), False)


def test_a_device_keeps_no_journal(data):
    out = SimpleNamespace(_source={})
    with pytest.raises(ValueError, match="resume=True"):
        placed([], CUDA).check(data, out, Execution(), True)


def test_a_module_elsewhere_and_workers_here(data):
    model = torch.nn.Linear(1, 1, device="meta")
    with pytest.raises(ValueError, match="weight is on the meta device"):
        tdmap.map(data, model)
