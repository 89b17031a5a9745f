"""`map(fn, device=...)`: chunks go to the device ahead of their turn, and everything else is as it is without one."""

import functools
import os
import signal
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap import functions
from tdmap.data.reader import Reader
from tdmap.memory import links as device_module
from tdmap.plan import ChunkPlan
from tdmap.runtime import ondevice, undo
from tdmap.testing.executor import CASES
from tensordict_lite import TensorDict
from tests.device.fakelink import FakeLink

FAKE = "mtia"
EXECUTORS = ["serial", "thread", "process"]
ROWS = 60


class NotingLink(FakeLink):
    """Writes down which process has opened which device."""

    def __init__(self, device, folder):
        super().__init__(device)
        (Path(folder) / f"{device.index}-{os.getpid()}-{id(self)}").touch()


@pytest.fixture
def data() -> TensorDict:
    x = torch.arange(ROWS * 500.0).reshape(ROWS, 500)
    return TensorDict({"x": x, "meta": {"row": torch.arange(ROWS)}, "flag": torch.arange(ROWS) % 2 == 0}, [ROWS])


@pytest.fixture(params=EXECUTORS)
def on_device(request, monkeypatch):
    """`map` on a fake device. Forks are quicker to start than what a real device needs."""

    def call(data, fn, *args, seed_of_link=0, **options):
        link = functools.partial(FakeLink, seed=seed_of_link)
        monkeypatch.setitem(device_module.LINKS, FAKE, link)
        options.setdefault("num_workers", 2)
        options.setdefault("chunksize", 3)
        options.setdefault("device", FAKE)
        if request.param == "process":
            options.setdefault("mp_start_method", "fork")
        return tdmap.map(data, fn, *args, executor=request.param, **options)

    return call


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", [case for case in CASES if case != "states_merge_with_their_neighbours"])
def test_an_executor_does_on_a_device_what_it_does_without(case, executor, monkeypatch):
    """All but reductions, which know no device."""
    monkeypatch.setitem(device_module.LINKS, FAKE, functools.partial(FakeLink, seed=len(case)))
    options = {"mp_start_method": "fork"} if executor == "process" else {}
    CASES[case](device=FAKE, executor=executor, num_workers=2, **options)


def test_tensors_other_dimensions_and_single_rows(on_device, data):
    x = data["x"]
    assert torch.equal(on_device(x, lambda part: part + 1), x + 1)
    assert torch.equal(on_device(x, lambda part: part * 3, 1, chunksize=70), x * 3)
    assert torch.equal(on_device(data, lambda td: td["x"].sum(), chunksize=0), x.sum(1))


def test_chunks_keep_their_kind(on_device, data):
    kinds = on_device(
        TensorDict({"x": data["x"], "name": "photos"}, [ROWS]),
        lambda td: (
            torch.tensor([td["name"] == "photos", td.device == torch.device("cpu"), type(td).__name__ == "TensorDict"])
            .all()
            .expand(td.shape)
        ),
    )
    assert bool(kinds.all())


def test_a_function_in_place_changes_the_source(on_device, data):
    before = data.clone()

    def half(td):
        td["x"].mul_(0.5)

    assert on_device(data, half) is None
    assert torch.equal(data["x"], before["x"] * 0.5) and torch.equal(data["meta", "row"], before["meta", "row"])
    assert on_device(data, half, out=data) is data
    assert torch.equal(data["x"], before["x"] * 0.25)
    assert on_device(data, lambda td: TensorDict({"x": td["x"] + 1}, td.batch_size), out=data) is data
    assert torch.equal(data["x"], before["x"] * 0.25 + 1)


def test_what_a_function_in_place_leaves_alone_is_not_written(data, monkeypatch):
    monkeypatch.setitem(device_module.LINKS, FAKE, FakeLink)
    before = data["meta", "row"]._version
    tdmap.map(data, lambda td: td["x"].neg_() is None or None, device=FAKE, executor="serial", chunksize=ROWS)
    assert data["meta", "row"]._version == before and float(data["x"][0, 1]) == -1


def test_results_go_into_an_output_and_into_a_folder(on_device, data, tmp_path):
    out = TensorDict({"y": torch.zeros(ROWS, dtype=torch.float64)}, [ROWS])
    fn = functools.partial(lambda td, by: TensorDict({"y": td["x"].sum(1) * by}, td.batch_size), by=2)
    assert on_device(data, fn, out=out) is out
    assert torch.equal(out["y"], data["x"].sum(1).double() * 2)
    saved = on_device(data, fn, out=tmp_path / "saved")
    assert torch.equal(saved["y"], data["x"].sum(1) * 2)
    resumed = on_device(data, fn, out=tmp_path / "resumed", resume=True)
    assert torch.equal(resumed["y"], saved["y"])


def test_rows_that_raise_are_put_back(on_device, data):
    before = data.clone()

    def fail(td):
        td["x"].neg_()
        if (td["meta", "row"] == 31).any():
            raise ValueError("thirty-one")

    with pytest.warns(tdmap.errors.SkippedRows):
        on_device(data, fail, on_error="skip")
    want = -before["x"]
    want[31] = before["x"][31]
    assert torch.equal(data["x"], want)


def test_a_module_runs_there_and_stays_here(on_device, data):
    model = torch.nn.Sequential(torch.nn.Linear(500, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)).eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = on_device(data, model, in_keys="x", out_keys=("score", "raw"))
    assert torch.allclose(result["score", "raw"], model(data["x"]))
    assert not result["score", "raw"].requires_grad and not any(p.is_shared() for p in model.parameters())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_a_killed_worker_loses_no_rows(data, monkeypatch, tmp_path):
    monkeypatch.setitem(device_module.LINKS, FAKE, FakeLink)

    def kill_once(td):
        if int(td["meta", "row"][0]) == 30 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            td["x"].zero_()
            os.kill(os.getpid(), signal.SIGKILL)
        td["x"].add_(1)

    before = data.clone()
    tdmap.map(data, kill_once, num_workers=2, chunksize=3, device=FAKE, mp_start_method="fork")
    assert (tmp_path / "killed").exists() and torch.equal(data["x"], before["x"] + 1)


class Dying(FakeLink):
    """Kills the process, once, between two tensors of a chunk that come back."""

    def __init__(self, device, flag):
        super().__init__(device)
        self.flag = flag

    def fetch(self, tensors):
        first, *others = super().fetch(tensors)
        yield first
        if not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from others


def test_a_worker_that_is_killed_while_it_writes_rows_back_loses_none(data, monkeypatch, tmp_path):
    monkeypatch.setitem(device_module.LINKS, FAKE, functools.partial(Dying, flag=tmp_path / "killed"))

    def twice(td):
        td["x"].mul_(2)
        td["meta", "row"].add_(1)

    before = data.clone()
    tdmap.map(data, twice, num_workers=2, chunksize=3, device=FAKE, mp_start_method="fork")
    assert (tmp_path / "killed").exists() and torch.equal(data["x"], before["x"] * 2)
    assert torch.equal(data["meta", "row"], before["meta", "row"] + 1)


def test_rows_are_kept_only_when_they_are_written(data, monkeypatch):
    saved = []
    monkeypatch.setattr(undo.Undo, "save", lambda self, chunk: saved.append(chunk))
    monkeypatch.setitem(device_module.LINKS, FAKE, FakeLink)

    def even(td):
        if int(td["meta", "row"][0]) % 20 == 0:
            td["x"].neg_()

    options = {"device": FAKE, "executor": "thread", "num_workers": 1, "chunksize": 10}
    tdmap.map(data, lambda td: td["x"] + 1, **options)
    assert not saved
    tdmap.map(data, even, **options)
    assert saved == [0, 2, 4]


def test_workers_take_the_devices_in_turns(data, monkeypatch, tmp_path):
    monkeypatch.setitem(device_module.LINKS, FAKE, functools.partial(NotingLink, folder=str(tmp_path)))
    devices = [f"{FAKE}:0", f"{FAKE}:1"]
    with tdmap.WorkerPool(4, "fork") as pool:
        pool.warm_up()
        tdmap.map(data, lambda td: td["x"], device=devices, pool=pool, chunksize=1)
    opened = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert opened == ["0", "0", "1", "1"]
    for path in tmp_path.iterdir():
        path.unlink()
    tdmap.map(data, lambda td: td["x"], device=devices, num_workers=3, executor="thread")
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["0", "0", "1"]


def test_workers_are_spawned(data, monkeypatch, tmp_path):
    monkeypatch.setitem(device_module.LINKS, FAKE, functools.partial(NotingLink, folder=str(tmp_path)))

    def is_spawned(row):
        return torch.tensor("spawn_main" in Path("/proc/self/cmdline").read_text())

    assert bool(tdmap.map(data, is_spawned, device=FAKE, num_workers=1, chunksize=0).all())


def test_default_chunks_are_larger(data, monkeypatch):
    monkeypatch.setitem(device_module.LINKS, FAKE, FakeLink)
    long = torch.zeros(20_000, 500)

    def size_of(**options):
        return tdmap.map(long, lambda x: torch.full((len(x),), len(x)), executor="serial", **options).max()

    assert size_of(device=FAKE) > 2 * size_of()


def test_on_the_cpu_nothing_is_moved(data):
    part = tdmap.map(data, lambda td: td["x"], device="cpu", executor="serial", chunksize=ROWS)
    assert torch.equal(part, data["x"])
    calls = []
    tdmap.map(data, lambda td: calls.append(td["x"].data_ptr()), device=["cpu", "cpu"], executor="serial", chunksize=60)
    assert calls == [data["x"].data_ptr()]


def kernels(link: FakeLink, x: torch.Tensor) -> list[torch.Tensor]:
    """What a runner's function sees of each row, when it only gives work to a stream as CUDA functions do."""
    seen: list[torch.Tensor] = []

    def launch(chunk):
        link.current.enqueue(lambda: seen.append(chunk.clone()))
        link.wander()
        return chunk

    runner = ondevice.Runner(launch, link, stays=True)
    for chunk in runner.reader(Reader(x, ChunkPlan(len(x), 1))).read(0, len(x)):
        runner(chunk)
    link.settle()
    return seen


def test_staging_is_used_again_only_after_its_copy_has_run(data, monkeypatch):
    for seed in range(10):
        seen = kernels(FakeLink(seed=seed, caller_streams=True), data["x"])
        assert torch.equal(torch.cat(seen), data["x"])
    monkeypatch.setattr(
        ondevice._Staging, "mark", property(lambda self: None, lambda self, mark: None), raising=False
    )  # the instrument: without that wait, what is seen is wrong
    with pytest.raises((AssertionError, RuntimeError)):
        for seed in range(10):
            assert torch.equal(torch.cat(kernels(FakeLink(seed=seed, caller_streams=True), data["x"])), data["x"])


# -- a function that is called with row numbers, with options, or marked ----------------------------------------------


class Moved(torch.nn.Module):
    """Says where its parameters were, and adds the numbers of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, chunk, numbers=None, scale=1):
        x = chunk if isinstance(chunk, torch.Tensor) else chunk["x"][:, 0]
        x = x * self.weight.to(x.dtype) * scale
        return TensorDict({"y": x if numbers is None else x * 0 + numbers * scale}, [len(x)])


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("chunksize", [7, 60])
def test_row_numbers_are_those_of_the_dataset(on_device, data, mode, chunksize):
    def number(td, rows):
        return TensorDict({"y": td["x"][:, 0] * 0 + rows}, [len(td)])

    for fn in (number, Moved()):
        result = on_device(data, fn, with_indices=True, chunksize=chunksize, on_error=mode)
        assert result["y"].tolist() == list(range(ROWS))
    scaled = on_device(data, Moved(), with_indices=True, chunksize=chunksize, fn_kwargs={"scale": 3})
    assert scaled["y"].tolist() == list(range(0, 3 * ROWS, 3))


@pytest.mark.parametrize("options", [{"with_indices": True}, {"on_error": "skip"}, {"fn_kwargs": {"scale": 1}}, {}])
def test_modules_are_moved_whatever_else_is_asked_for(monkeypatch, data, options):
    def move_to(function, device, own):
        moved_to.append((type(function.module), own))
        return plain(function, device, own)

    moved_to, plain = [], functions.ModuleFunction.to_device
    monkeypatch.setattr(functions.ModuleFunction, "to_device", move_to)
    monkeypatch.setitem(device_module.LINKS, FAKE, FakeLink)
    tdmap.map(data, Moved(), device=FAKE, chunksize=20, executor="serial", **options)
    assert moved_to == [(Moved, False)]


@pytest.mark.parametrize("options", [{"with_indices": True}, {"on_error": "skip"}])
def test_a_module_without_values_is_refused_whatever_else_is_asked_for(data, options):
    with pytest.raises(ValueError, match="on the meta device and has no values"):
        tdmap.map(data, Moved().to("meta"), num_workers=0, **options)
