"""torch.vmap over collections: every dimension in and out, in-place writes, what stays torch's own."""

import itertools
import subprocess
import sys

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict, lazy_stack, tensorclass
from tensordict_lite.nn import TensorDictParams


@tensorclass
class Point:
    x: torch.Tensor
    label: str = "p"


def dense(*size: int) -> TensorDict:
    nested = TensorDict({"c": torch.randn(*size, 2)}, list(size))
    return TensorDict({"a": torch.randn(size), "n": nested, "text": "same"}, list(size))


SIZES = [(3,), (2, 3), (2, 3, 4)]
DIMS = [
    (size, in_dim, out_dim)
    for size in SIZES
    for in_dim in range(-len(size), len(size))
    for out_dim in range(-len(size), len(size))
]


@pytest.mark.parametrize(("size", "in_dim", "out_dim"), DIMS)
def test_a_row_goes_in_and_out_at_any_dimension(size: tuple[int, ...], in_dim: int, out_dim: int) -> None:
    td = dense(*size)
    td.names = [f"d{dim}" for dim in range(len(size))]
    seen = []

    def f(row: TensorDict) -> TensorDict:
        seen.append((row.batch_size, row.names, row["text"]))
        return row * 2

    out = torch.vmap(f, (in_dim,), (out_dim,))(td)
    wanted = torch.stack([row * 2 for row in td.unbind(in_dim)], out_dim)
    rest = [name for place, name in enumerate(td.names) if place != in_dim % len(size)]
    assert seen == [(td.unbind(in_dim)[0].batch_size, rest, "same")]
    assert out.batch_size == wanted.batch_size and (out == wanted).all() and out["text"] == "same"


@pytest.mark.parametrize(
    ("stack_dim", "in_dim", "out_dim"), list(itertools.product(range(3), range(-3, 3), range(-3, 3)))
)
def test_a_lazy_stack_stays_lazy(stack_dim: int, in_dim: int, out_dim: int) -> None:
    members = [dense(3, 4) for _ in range(2)]
    stack = lazy_stack(members, stack_dim)
    out = torch.vmap(lambda row: row.set("b", row.get("a") + row.get(("n", "c")).sum(-1)), (in_dim,), (out_dim,))(stack)
    assert isinstance(out, LazyStackedTensorDict) and "b" not in stack.keys()
    full = stack.contiguous()
    wanted = full.set("b", full["a"] + full["n", "c"].sum(-1)).movedim(in_dim, out_dim)
    assert out.batch_size == wanted.batch_size
    assert (out.contiguous().exclude("text") == wanted.exclude("text")).all()


@pytest.mark.parametrize("dim", [0, 1])
def test_writes_into_a_row_reach_the_members(dim: int) -> None:
    members = [dense(3) for _ in range(2)]
    stack = lazy_stack(members, 0)
    before = stack.contiguous()

    def f(row: TensorDict) -> torch.Tensor:
        if dim == 0:  # what a lazy stack returns for a key is a copy, here as elsewhere
            row["n", "c"].mul_(2)
        return row.set_("a", row["a"] + 1)["a"]

    torch.vmap(f, dim)(stack)
    assert torch.equal(torch.stack([member["a"] for member in members]), before["a"] + 1)
    assert torch.equal(torch.stack([member["n", "c"] for member in members]), before["n", "c"] * (2 - dim))
    td = dense(3)
    before = td.clone()
    torch.vmap(f)(td)
    assert torch.equal(td["a"], before["a"] + 1) and td.keys() == before.keys()


def test_members_that_differ_map_along_another_dimension() -> None:
    stack = lazy_stack([TensorDict(a=torch.ones(4, 2), batch_size=[4]), TensorDict(a=torch.ones(4, 3), batch_size=[4])])
    out = torch.vmap(lambda row: row.apply(lambda x: x.cumsum(0)), 1, 1)(stack)
    assert out.batch_size == (2, 4) and torch.equal(out[1]["a"][3], torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(RuntimeError, match="one shape, and 'a' has another in each member"):
        torch.vmap(lambda row: row)(stack)


def test_tensorclasses_parameters_and_empty_collections_have_rows() -> None:
    point = Point(x=torch.arange(6.0).view(3, 2), batch_size=[3])
    out = torch.vmap(lambda p: Point(x=p.x.sum(), label=p.label + "!", batch_size=[]))(point)
    assert isinstance(out, Point) and out.batch_size == (3,) and out.label == "p!" and out.x.tolist() == [1, 5, 9]
    params = TensorDictParams(TensorDict({"w": torch.ones(3, 2)}, [3]))
    torch.vmap(lambda p: p["w"].sum())(params).sum().backward()
    assert params["w"].grad.shape == (3, 2)
    assert torch.vmap(lambda td: td)(TensorDict(batch_size=[3, 2])).batch_size == (3, 2)
    empty = TensorDict(batch_size=[3])
    assert torch.vmap(lambda td, x: td.set("x", x), (0, 0))(empty, torch.ones(3))["x"].shape == (3,)
    assert torch.vmap(lambda td: td + 1)(TensorDict({"a": torch.ones(0, 2)}, [0]))["a"].shape == (0, 2)


def test_results_may_be_trees() -> None:
    td, x = dense(3, 2), torch.randn(3)
    whole, (part, more) = torch.vmap(lambda q, y: (q, (q["a"] + y, {"y": y})), (0, 0), (1, 0))(td, x)
    assert whole.batch_size == (2, 3) and torch.equal(part, td["a"] + x[:, None]) and torch.equal(more["y"], x)
    out = torch.vmap(lambda qs: qs["left"] + qs["right"][0], ({"left": 0, "right": [None]},))(
        {"left": td.select("a"), "right": [td.select("a")[0]]}
    )
    assert torch.equal(out["a"], td["a"] + td["a"][0])
    one = torch.vmap(lambda q: q["a"].sum(), chunk_size=2)(dense(5))
    assert one.shape == (5,)


def test_maps_of_tensors_are_torchs_own() -> None:
    x = torch.randn(3, 4, 2)
    for options in ({"in_dims": 1}, {"in_dims": -1, "out_dims": 2}, {"chunk_size": 2}):
        found = torch.vmap(torch.sin, **options)(x)
        dim = options.get("in_dims", 0)
        assert torch.equal(found, x.sin().movedim(dim, options.get("out_dims", 0)))
    out, aux = torch.vmap(lambda a, b: (a * b, b), (0, None))(x, x[0])
    assert torch.equal(out, x * x[0]) and aux.shape == (3, 4, 2)
    with pytest.raises(ValueError, match="in_dims"):
        torch.vmap(torch.sin, 7)(x)
    torch.manual_seed(0)
    noise = torch.vmap(lambda row: row + torch.rand(()), randomness="different")(torch.zeros(4))
    assert noise.unique().numel() == 4


def test_it_works_with_the_reference_loaded_before_or_after() -> None:
    program = """
import torch, tensordict, tensordict_lite
for library in (tensordict, tensordict_lite):
    td = library.TensorDict(dict(a=torch.ones(3, 2)), [3])
    out = torch.vmap(lambda q, x: q.set("b", q["a"] + x), (0, None))(td, torch.ones(2))
    assert type(out) is library.TensorDict and out.batch_size == (3,) and (out["b"] == 2).all(), library
    stack = library.lazy_stack([td, td.clone()])
    assert type(torch.vmap(lambda q: q, 0, 1)(stack)) is library.LazyStackedTensorDict
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    exec(program, {})  # where `tensordict_lite` is imported already


def test_lazy_stack_is_mapped_and_written_in_inference_mode() -> None:
    stack = lazy_stack([TensorDict({"a": torch.ones(2) * i, "n": {"b": torch.ones(2)}}, []) for i in range(3)])
    with torch.inference_mode():
        assert torch.vmap(lambda td: td == 1)(stack)["a"][:, 0].tolist() == [False, True, False]
        torch.vmap(lambda td: td["a"].add_(1))(stack)
    assert [member["a"].tolist() for member in stack.tensordicts] == [[1, 1], [2, 2], [3, 3]]
