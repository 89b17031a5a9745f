"""Any module stands where a function is expected, stays as it was, and is not copied for each worker."""

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tdmap
from tdmap.functions import ModuleFunction, OnKeys, as_function, check_placement, image_key, modules_of, moved
from tensordict_lite import TensorDict

EXECUTORS = ["serial", "thread", "process"]


@pytest.fixture
def data() -> TensorDict:
    return TensorDict({"x": torch.randn(24, 5), "meta": {"y": torch.randn(24, 3)}, "row": torch.arange(24)}, [24])


class Both(nn.Module):
    """Two arguments, two results."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 2)

    def forward(self, x, y):
        return self.first(x), y.sum(-1)


class OfTree(nn.Module):
    """Takes the whole collection."""

    def forward(self, td):
        return TensorDict({"z": td["x"].sum(-1), "grad": torch.full(td.shape, torch.is_grad_enabled())}, td.batch_size)


class WithKeys(nn.Module):
    """As modules of the tensordict world: it says what it reads and writes."""

    in_keys, out_keys = ["x"], ["z"]

    def forward(self, td):
        td["z"] = td["x"] * 2
        return td


@pytest.fixture(params=EXECUTORS)
def run(request):
    def call(*args, **options):
        return tdmap.map(*args, num_workers=2, chunksize=5, executor=request.param, **options)

    return call


def test_a_module_on_a_tensor(run, data):
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2))
    result = run(data["x"], model)
    assert torch.allclose(result, model(data["x"])) and not result.requires_grad


def test_a_module_on_entries(run, data):
    model = Both()
    result = run(data, model, in_keys=["x", ("meta", "y")], out_keys=["score", ("meta", "total")])
    assert torch.allclose(result["score"], model.first(data["x"]))
    assert torch.equal(result["meta", "total"], data["meta", "y"].sum(-1))
    assert torch.equal(result["x"], data["x"]) and "total" not in data["meta"].keys()
    alone = run(data, OnKeys(model, ["x", ("meta", "y")], ["a", "b"], keep=False))
    assert sorted(alone.keys()) == ["a", "b"]


def test_a_module_on_a_collection_gets_it_whole(run, data):
    result = run(data, OfTree())
    assert torch.equal(result["z"], data["x"].sum(-1)) and not result["grad"].any()


def test_a_module_with_keys_of_its_own_writes_into_a_copy(run, data):
    result = run(data.lock_(), WithKeys())
    assert torch.equal(result["z"], data["x"] * 2) and "z" not in data.keys()


def test_the_module_stays_as_it_was(run, data):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout()).eval()
    before = {name: (tensor.clone(), tensor.data_ptr()) for name, tensor in model.state_dict().items()}
    flags = [p.requires_grad for p in model.parameters()]
    run(data["x"], model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name][0]) and tensor.data_ptr() == before[name][1] and not tensor.is_shared()
    assert [p.requires_grad for p in model.parameters()] == flags and not model.training


def test_train_and_eval_mode_are_kept(run, data):
    model = nn.Dropout(1.0)
    assert not run(data["x"], model).any()
    assert torch.equal(run(data["x"], model.eval()), data["x"])


def test_modes_and_rounding_of_map_iter_and_map_reduce(data):
    model = nn.Linear(5, 2)
    parts = list(tdmap.map_iter(data, model, in_keys="x", out_keys="z", num_workers=2, chunksize=5))
    assert torch.allclose(torch.cat(parts)["z"], model(data["x"])) and not parts[0]["z"].requires_grad
    total = tdmap.map_reduce(data["x"], model, lambda a, b: torch.cat([a, b]), num_workers=2, chunksize=5)
    assert torch.allclose(total, model(data["x"]))


def own_copies(model: nn.Module) -> bool:
    """Whether a parameter of the module lies in memory of this process alone."""
    spans = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .{4} .*memfd:tdmap", Path("/proc/self/maps").read_text(), re.M)
    ranges = [(int(a, 16), int(b, 16)) for a, b in spans]
    return any(not any(a <= p.data_ptr() < b for a, b in ranges) for p in model.parameters())


class Witness(nn.Module):
    """Says where its parameters and buffers lie."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(300, 300)
        self.tied = nn.Linear(300, 300)
        self.tied.weight = self.layer.weight
        self.register_buffer("count", torch.zeros(2000))

    def forward(self, x):
        self.count += 1  # a buffer is each worker's own
        return torch.tensor([own_copies(self), self.tied.weight is self.layer.weight, float(self.count[0])])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_share_the_parameters_and_have_buffers_of_their_own(method):
    model = Witness()
    rows = tdmap.map(torch.zeros(8, 3), model, num_workers=2, chunksize=0, mp_start_method=method)
    assert not rows[:, 0].any(), "a worker has a copy of the parameters"
    assert rows[:, 1].all(), "tied weights came apart"
    counts = sorted(int(count) for count in rows[:, 2])
    most = counts[-1]  # of one worker; the other, if it came to run any, counted from 1 too
    assert counts == sorted([*range(1, most + 1), *range(1, 8 - most + 1)]) and not model.count.any()


def test_names_in_messages_are_the_modules():
    with pytest.raises(RuntimeError) as caught:
        tdmap.map(torch.zeros(4, 3), nn.Linear(5, 2), num_workers=1, chunksize=2)
    assert any("raised by Linear on rows 0:2" in note for note in caught.value.__notes__)


def test_an_entry_that_is_missing_and_results_that_are_too_few(data):
    with pytest.raises(KeyError, match="unknown entry 'z'.*'x'"):
        OnKeys(torch.neg, "z")(data)
    with pytest.raises(ValueError, match="needs a tuple of 2 results: got a Tensor"):
        OnKeys(torch.neg, "x", ["a", "b"])(data)
    with pytest.raises(TypeError, match="needs a collection"):
        OnKeys(torch.neg, "x")(data["x"])
    with pytest.raises(ValueError, match="in_keys"):
        as_function(torch.neg, out_keys="x")
    with pytest.raises(ValueError, match="must name an entry"):
        OnKeys(torch.neg, [])
    with pytest.raises(TypeError, match="'no function'"):
        as_function("no function")


def test_a_module_that_wants_entries_says_so(data):
    with pytest.raises(TypeError) as caught:
        tdmap.map(data, nn.Linear(5, 2), executor="serial")
    assert any("Linear was called with a TensorDict" in note and "in_keys=" in note for note in caught.value.__notes__)


def test_functions_are_left_as_they_are():
    def double(x):
        return x * 2

    assert as_function(double) is double and list(modules_of(double)) == []
    model = nn.ReLU()
    assert as_function(as_function(model)).module is model
    assert list(modules_of(as_function(model, "x"))) == [model]


def test_a_module_on_another_device_is_left_there_and_used_here(data):
    """`moved` for a worker that shares the module with its caller: nothing of the module changes."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).double()
    function = moved(as_function(model, "x", "z"), torch.device("meta"), own=False)
    result = function(data.double().to("meta"))
    assert result["z"].device.type == "meta" and all(p.device.type == "cpu" for p in model.parameters())
    assert moved(ModuleFunction(model), torch.device("cpu"), own=True).module is model


class Overlapping(nn.Module):
    """Says where its weight is before and after another thread has called it."""

    began = threading.Barrier(2)
    first_is_out = threading.Event()

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        before = self.weight.device.type
        if self.began.wait(30):
            self.first_is_out.wait(30)
        return [before, self.weight.device.type]


def test_threads_may_call_a_module_of_another_device_at_a_time():
    model = Overlapping()
    function, found = moved(ModuleFunction(model), torch.device("meta"), own=False), []

    def call():
        found.append(function.call(torch.ones(2, device="meta")))
        model.first_is_out.set()

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [["meta", "meta"]] * 2 and model.weight.device.type == "cpu"


def test_tied_weights_stay_tied_on_another_device():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    there = moved(ModuleFunction(model), torch.device("meta"), own=False).module
    assert there[0].weight is there[1].weight and there[0].weight.is_meta and not model[0].weight.is_meta


def test_parameters_that_workers_cannot_reach(data):
    model = nn.Linear(5, 2, device="meta")
    with pytest.raises(ValueError, match="weight is on the meta device"):
        check_placement(as_function(model, "x"), True, None)


class Elsewhere(nn.Module):
    """A module that says it is on a device which this machine need not have."""

    def named_parameters(self, *args, **options):
        yield "layer.weight", SimpleNamespace(device=torch.device("cuda:1"))


def test_a_module_on_a_device_and_workers_on_the_cpu(data):
    with pytest.raises(ValueError, match=r'layer.weight is on cuda:1.*device="cuda:1".*module.cpu\(\)'):
        tdmap.map(data, Elsewhere(), num_workers=1)
    with pytest.raises(ValueError, match="cuda:1"):
        tdmap.map_iter(data, Elsewhere(), in_keys="x", num_workers=1)
    with pytest.raises(ValueError, match="cuda:1"):
        tdmap.map_reduce(data, Elsewhere(), max, num_workers=1)
    check_placement(as_function(Elsewhere()), False, None)
    check_placement(as_function(Elsewhere()), True, torch.device("cuda:1"))


def test_a_picture_is_found_by_its_shape():
    picture, mask = torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8)
    assert image_key(TensorDict({"a": {"b": picture}, "label": torch.zeros(2)}, [2])) == ("a", "b")
    assert image_key(TensorDict({"mask": mask, "image": picture}, [2])) == "image"
    with pytest.raises(ValueError, match=r"2 of these have it: 'a' \(2, 3, 8, 8\), 'mask'.*in_keys"):
        image_key(TensorDict({"a": picture, "mask": mask}, [2]))
    with pytest.raises(ValueError, match="0 of these"):
        image_key(TensorDict({"a": torch.zeros(2, 8, 8, 3)}, [2]))
