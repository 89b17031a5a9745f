"""torch.compile in one graph, of any number of rows; torch.export and torch.fx of modules."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tensordict_lite import LazyStackedTensorDict, TensorClass, TensorCollection, TensorDict, lazy_stack, tensorclass
from tensordict_lite.nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictParams,
    TensorDictSequential,
    WrapModule,
    dispatch,
    set_skip_existing,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@tensorclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor


class Labelled(TensorClass):
    a: torch.Tensor
    label: str = "hi"


def flat(rows: int) -> TensorDict:
    return TensorDict({"x": torch.arange(4.0 * rows).view(rows, 4), "n": {"y": torch.ones(rows)}}, [rows])


def pair(rows: int) -> Pair:
    return Pair(torch.arange(2.0 * rows).view(rows, 2), torch.ones(rows), batch_size=[rows])


def labelled(rows: int) -> Labelled:
    return Labelled(torch.ones(rows, 2), batch_size=[rows])


def stack(rows: int) -> LazyStackedTensorDict:
    return lazy_stack([flat(rows).select("x"), flat(rows).select("x") * 2])


def plain(rows: int) -> torch.Tensor:
    return flat(rows)["x"]


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, TensorCollection):
        assert a.batch_size == b.batch_size and a.is_locked == b.is_locked
        assert sorted(a.keys(True, True), key=str) == sorted(b.keys(True, True), key=str)
        for key in a.keys(True, True):
            same(a.get(key), b.get(key))
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def check(f: Any, *makes: Any, graphs: int = 2, backend: str = "eager") -> None:
    """One graph for the first number of rows, and at most one more for all others; results and side effects agree."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for rows in (3, 4, 5):
        given, twins = [make(rows) for make in makes], [make(rows) for make in makes]
        same(compiled(*given), f(*twins))
        same(given, twins)
    assert counters["stats"]["unique_graphs"] <= graphs


def writes(td: TensorDict) -> TensorDict:
    td["z"] = td["x"] + 1
    td["n", "w"] = td["x"].sum(-1)
    td.set("v", td["z"] * 2).set_("x", td["x"] * 3)
    del td["z"]
    td[0] = td[1] * 2
    return td


COLLECTIONS: dict[str, Any] = {
    "construct": (lambda x: TensorDict({"a": x, "n": {"b": x + 1}}, [x.shape[0]]), plain),
    "construct by keywords": (lambda x: TensorDict(a=x, batch_size=x.shape[:1]) + 1, plain),
    "read": (lambda td: td["x"] + td["n", "y"].unsqueeze(-1) + td.get("q", 1.0), flat),
    "write": (writes, flat),
    "write where locked": (lambda td: td.lock_().set_("x", td["x"] + 1), flat),
    "index": (lambda td: (td[0], td[1:], td[..., None], td[torch.tensor([0, 2])], td[td["x"][:, 0] > 3]), flat),
    "arithmetic": (lambda td: ((td * 2 - td) / 3 + td.sqrt()).clamp(0, 1).add_(1), flat),
    "reduce": (lambda td: (td.sum(), td.mean(0), td.norm()), flat),
    "shape": (lambda td: td.reshape(1, -1).permute(1, 0).squeeze(1).unsqueeze(0).expand(2, *td.shape), flat),
    "join": (lambda td: (torch.stack([td, td]), torch.cat([td, td + 1])), flat),
    "apply": (lambda td: td.apply(lambda x: x + 1).named_apply(lambda name, x: x * len(name)), flat),
    "keys": (lambda td: (td.flatten_keys(".").unflatten_keys("."), td.select("x"), [v + 1 for v in td.values()]), flat),
    "update": (lambda td: td.update({"x": td["x"] + 1, "new": td["x"]}), flat),
    "cast": (lambda td: td.to(torch.float64).to("cpu"), flat),
    "names": (lambda td: td.refine_names("rows") + 1, flat),
    "objects": (lambda td: (td.set("s", "text"), td["s"], td["x"] + 1), flat),
    "tensorclass": (lambda c: Pair(c.a + c.b.unsqueeze(-1), (c * 2).b, batch_size=c.batch_size), pair),
    "tensorclass with text": (lambda c: (c + 1, c[0], c.label), labelled),
    "lazy stack": (lambda s: (s + 1, s["x"], s[0], s[1:], s[:, 1:].set("y", s["x"][:, 1:])), stack),
    "lazy construct": (lambda x: lazy_stack([TensorDict({"x": y}, x.shape[:1]) for y in (x, x + 1)]), plain),
    "vmap": (lambda td: torch.vmap(lambda row: (row + 1, row["x"].sum()), (0,), (0, 0))(td), flat),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIONS)
def test_collections_compile_in_one_graph(name: str) -> None:
    check(*COLLECTIONS[name])


# -- modules -------------------------------------------------------------------------------------------------------


class Doubled(TensorDictModuleBase):
    in_keys = ("x",)
    out_keys = ("z",)

    @dispatch
    def forward(self, tensordict: TensorDict) -> TensorDict:
        return tensordict.set("z", tensordict["x"] * 2)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.params = TensorDictParams(TensorDict({"w": torch.ones(4), "n": {"b": torch.zeros(())}}))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.params["w"] + self.params["n", "b"]


def linear(source: str, target: str) -> TensorDictModule:
    return TensorDictModule(nn.Linear(4, 4), [source], [target])


def modules() -> dict[str, Any]:
    torch.manual_seed(0)
    module = linear("x", "o")
    chain = TensorDictSequential(linear("x", "h"), TensorDictModule(torch.relu, ["h"], ["o"]), lambda td: td + 1)

    def skipping(td: TensorDict) -> TensorDict:
        with set_skip_existing(True):
            return module(td.set("o", td["x"] * 0))

    dispatched = Doubled()
    return {
        "module": (module, flat),
        "tensors": (lambda x: module(x=x) + module(x), plain),
        "sequence": (chain, flat),
        "selected": (TensorDictModule(lambda x: (x, x + 1), ["x"], ["a", "b"]).select_out_keys("b"), flat),
        "keywords": (TensorDictModule(lambda *, x, y: x * y[:, None], {"x": "x", "y": ("n", "y")}, ["o"]), flat),
        "new tensordict": (TensorDictModule(torch.neg, ["x"], ["o"], inplace=False), flat),
        "wrapped": (WrapModule(lambda td: td.reshape(-1, 1)), flat),
        "dispatch": (lambda td: (dispatched(td), dispatched(x=td["x"])), flat),
        "skipped": (skipping, flat),
        "parameters": (Holder(), plain),
    }


@pytest.mark.parametrize("name", list(modules()))
def test_modules_compile_in_one_graph(name: str) -> None:
    check(*modules()[name])


def test_functional_calls_compile_in_one_graph() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    weights = TensorDict.from_module(net).data.clone()
    three = TensorDict.from_modules(*(nn.Linear(4, 4) for _ in range(3)))
    layer = nn.Linear(4, 4, device="meta")

    def call(x: torch.Tensor, params: TensorDict, module: nn.Module = net) -> torch.Tensor:
        with params.to_module(module):
            return module(x)

    def train(x: torch.Tensor, params: TensorDict) -> TensorDict:
        return params - torch.func.grad(lambda p: call(x, p).square().mean())(params) * 0.1

    check(call, plain, lambda rows: weights.clone())
    params = TensorDictParams(weights.clone())
    check(lambda x: call(x, params), plain)
    check(train, plain, lambda rows: weights.clone())
    check(lambda x: torch.vmap(lambda p: call(x, p, layer))(three), plain)
    assert layer.weight.is_meta


def test_new_collections_of_one_structure_reuse_the_graph() -> None:
    """What changes from step to step in a training loop: the objects, values of objects, locks, an outer mode."""
    seen = itertools.count()
    module = torch.compile(linear("x", "o"), fullgraph=True, backend="eager")
    torch._dynamo.reset()
    counters.clear()
    for _ in range(5):
        td = flat(3).set_non_tensor("step", next(seen))
        with set_skip_existing(False):
            module(td.lock_().unlock_())
            module(flat(3).set_non_tensor("step", f"text {next(seen)}"))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_the_default_backend_computes_and_differentiates_the_same() -> None:
    torch.manual_seed(0)
    chain = TensorDictSequential(linear("x", "h"), TensorDictModule(torch.tanh, ["h"], ["o"]))

    def loss(td: TensorDict) -> torch.Tensor:
        return chain(td)["o"].square().sum()

    check(loss, flat, backend="inductor")
    torch.compile(loss, fullgraph=True)(flat(3)).backward()
    found = TensorDict.from_module(chain).grad.clone()
    chain.zero_grad()
    loss(flat(3)).backward()
    same(found.unlock_(), TensorDict.from_module(chain).grad.unlock_())


# -- torch.export and torch.fx -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_modules_export(strict: bool) -> None:
    torch.manual_seed(0)
    chain = TensorDictSequential(linear("x", "h"), TensorDictModule(torch.relu, ["h"], [("n", "o")]))
    x = torch.randn(3, 4)
    exported = torch.export.export(chain, (), {"x": x}, strict=strict)
    same(exported.module()(x=x), chain(x=x))


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_that_works_on_tensordicts_inside_exports_for_any_number_of_rows(strict: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = TensorDictSequential(linear("x", "h"), TensorDictModule(torch.relu, ["h"], ["o"]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            td = self.chain(TensorDict({"x": x}, x.shape[:1]))
            return (td * 2)["o"][1:]

    model = Model()
    rows = {"x": {0: torch.export.Dim("rows", min=3)}}
    exported = torch.export.export(model, (torch.randn(3, 4),), strict=strict, dynamic_shapes=rows)
    x = torch.randn(7, 4)
    same(exported.module()(x), model(x))


def test_modules_trace_symbolically() -> None:
    torch.manual_seed(0)
    chain = TensorDictSequential(
        TensorDictModule(lambda a, b: (a + b, a * b), ["x", ("n", "y")], ["h", ("n", "o")]),
        TensorDictModule(nn.Linear(4, 4), ["h"], ["o"]),
    )
    traced = torch.fx.symbolic_trace(chain)
    td = flat(3).apply(lambda v: v if v.ndim == 2 else v.unsqueeze(-1))
    same(traced(td.copy()), chain(td.copy()))
    assert sorted(dict(traced.named_parameters())) == sorted(dict(chain.named_parameters()))
    selected = torch.fx.symbolic_trace(TensorDictSequential(*chain, selected_out_keys=["o"]))
    assert "h" not in selected(td.copy()).keys()
    with pytest.raises(torch.fx.proxy.TraceError):  # as for the function alone
        torch.fx.symbolic_trace(TensorDictModule(lambda x: x + 1 if x.sum() > 0 else x, ["x"], ["o"]))
