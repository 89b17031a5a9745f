"""Reductions against torch on every leaf, with the batch sizes, names and types that come out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")

NAMES = ["sum", "mean", "nansum", "nanmean", "std", "var", "prod", "quantile"]


def make() -> TensorDict:
    nested = TensorDict({"c": torch.rand(2, 3, 5)}, [2, 3, 5])
    return TensorDict({"a": torch.rand(2, 3, 4), "n": nested}, [2, 3], names=["x", "y"])


def call(td: TensorDict, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(td, name)(*((0.3,) if name == "quantile" else ()), *args, **kwargs)


def plain(name: str, leaf: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return getattr(torch, name)(leaf, *((0.3,) if name == "quantile" else ()), *args, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_over_everything(name: str) -> None:
    td = make().lock_()
    new = call(td, name)
    assert new.batch_size == new["n"].batch_size == torch.Size([]) and not new.is_locked
    torch.testing.assert_close(new["a"], plain(name, td["a"]))
    torch.testing.assert_close(call(td, name, dim=())["n", "c"], plain(name, td["n", "c"]))
    kept = call(td, name, keepdim=True)
    assert kept.batch_size == torch.Size([1, 1]) and kept["a"].shape == ((1, 1) if name == "prod" else (1, 1, 1))
    assert call(TensorDict({"a": torch.ones(())}), name, keepdim=True)["a"].shape == ()
    torch.testing.assert_close(kept["a"].flatten()[0], new["a"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_over_one_batch_dimension(name: str, dim: int) -> None:
    td = make()
    new = call(td, name, dim)
    at = dim % 2
    assert new.names == [["y"], ["x"]][at] and new["n"].batch_size == torch.Size([[3, 5], [2, 5]][at])
    torch.testing.assert_close(new["a"], plain(name, td["a"], dim=at))
    torch.testing.assert_close(new["n", "c"], plain(name, td["n", "c"], dim=at))
    kept = call(td, name, dim, keepdim=True)
    assert kept.batch_size == torch.Size([[1, 3], [2, 1]][at]) and kept.names == ["x", "y"]
    torch.testing.assert_close(kept["a"], plain(name, td["a"], dim=at, keepdim=True))


@pytest.mark.parametrize("name", [*NAMES, "amin", "amax"])
def test_over_several_batch_dimensions(name: str) -> None:
    td = make()
    new = call(td, name, (0, -1))
    assert new.batch_size == torch.Size([])
    torch.testing.assert_close(new["a"], plain(name, td["a"].flatten(0, 1), dim=0))
    kept = call(td, name, (0, 1), keepdim=True)
    assert kept.batch_size == torch.Size([1, 1]) and kept["a"].shape == (1, 1, 4)
    torch.testing.assert_close(kept["a"][0, 0], new["a"])


@pytest.mark.parametrize("name", NAMES)
def test_over_features(name: str) -> None:
    td = make()
    new = call(td, name, "feature")
    assert new.batch_size == td.batch_size and new.names == ["x", "y"]
    torch.testing.assert_close(new["a"], plain(name, td["a"], dim=-1))
    # every dimension of the nested leaf is a batch dimension of its collection: one feature each
    torch.testing.assert_close(new["n", "c"], plain(name, td["n", "c"][..., None], dim=-1), equal_nan=True)
    with pytest.raises(TypeError, match="keepdim"):
        call(td, name, "feature", keepdim=True)


@pytest.mark.parametrize("name", [*NAMES, "amin", "amax", "min", "max"])
def test_all_tensors_together(name: str) -> None:
    td = make()
    everything = torch.cat([td["a"].flatten(), td["n", "c"].flatten()])
    torch.testing.assert_close(call(td, name, reduce=True), plain(name, everything))
    if name in NAMES:
        features = torch.cat([td["a"], td["n", "c"]], -1)
        torch.testing.assert_close(call(td, name, "feature", reduce=True), plain(name, features, dim=-1))
    pair = TensorDict({"a": torch.rand(2, 3), "b": torch.rand(2, 3)}, [2, 3])
    rows = torch.cat([pair["a"], pair["b"]], 0)
    torch.testing.assert_close(tuple(_parts(call(pair, name, 0, reduce=True))), tuple(_parts(plain(name, rows, dim=0))))
    with pytest.raises(ValueError, match="no tensor leaves"):
        call(TensorDict({}, [3]), name, reduce=True)


def _parts(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def test_options_reach_torch() -> None:
    td = make()
    assert td.sum(0, dtype=torch.float64)["a"].dtype == torch.float64
    torch.testing.assert_close(td.std(0, correction=0)["a"], td["a"].std(0, correction=0))
    torch.testing.assert_close(td.var((0, 1), correction=0)["a"], td["a"].var((0, 1), correction=0))
    torch.testing.assert_close(
        td.quantile(0.3, 0, interpolation="nearest")["a"], td["a"].quantile(0.3, 0, interpolation="nearest")
    )
    assert list(td.sum(key_transform=lambda key: f"sum_{key}").keys(True, True)) == ["sum_a", ("sum_n", "sum_c")]
    assert TensorDict({"a": torch.ones(2, dtype=torch.bool)}, [2]).sum()["a"].dtype == torch.int64
    with pytest.raises(RuntimeError, match="dtype"):
        TensorDict({"a": torch.arange(2)}, [2]).mean()


def test_several_quantiles_come_first() -> None:
    td = make()
    q = torch.tensor([0.1, 0.5, 0.9])
    new = td.quantile(q, 1)
    assert new.batch_size == torch.Size([3, 2]) and new.names == [None, "x"]
    torch.testing.assert_close(new["a"], td["a"].quantile(q, 1))
    assert td.quantile(q, (0, 1), keepdim=True)["a"].shape == (3, 1, 1, 4)


def test_logsumexp_reduces_batch_dimensions_only() -> None:
    td = make()
    torch.testing.assert_close(td.logsumexp()["a"], td["a"].logsumexp((0, 1)))
    torch.testing.assert_close(td.logsumexp(1, keepdim=True)["a"], td["a"].logsumexp(1, keepdim=True))
    out = td.logsumexp(0) * 0
    assert td.logsumexp(0, out=out) is out
    torch.testing.assert_close(out["n", "c"], td["n", "c"].logsumexp(0))
    with pytest.raises(ValueError, match="incompatible"):
        td.logsumexp(2)


def test_norm_is_per_leaf_and_keeps_the_lock() -> None:
    td = make().lock_()
    new = td.norm()
    torch.testing.assert_close(new["n", "c"], td["n", "c"].norm())
    assert new.is_locked and new.batch_size == torch.Size([])
    assert td.norm(dtype=torch.float64)["a"].dtype == torch.float64
    assert list(td.norm(key_transform=str.upper).keys()) == ["A", "N"]
    with pytest.raises(RuntimeError, match="[Ff]loating"):
        TensorDict({"a": torch.arange(3)}, [3]).norm()


@pytest.mark.parametrize("name", ["min", "max", "cummin", "cummax"])
@pytest.mark.parametrize("dim", [0, -1])
def test_extremes_have_values_and_indices(name: str, dim: int) -> None:
    td = make()
    result = getattr(td, name)(dim)
    assert type(result) is getattr(torch.return_types, name)
    values, indices = result
    expected = getattr(td["a"], name)(dim % 2)
    torch.testing.assert_close(values["a"], expected.values)
    assert torch.equal(result.indices["a"], expected.indices)
    running = name.startswith("cum")
    assert values.batch_size == indices.batch_size == (td.batch_size if running else torch.Size([[3], [2]][dim]))
    assert values["n"].batch_size == values.batch_size
    alone = getattr(td, name)(dim, return_indices=False)
    torch.testing.assert_close(alone["n", "c"], values["n", "c"])


def test_extremes_over_everything() -> None:
    td = make()
    assert td.max()["a"] == td["a"].max() and td.amin()["n", "c"] == td["n", "c"].min()
    assert td.amax(keepdim=True)["a"].shape == (1, 1, 1)
    assert td.max(0, keepdim=True).values["a"].shape == (1, 3, 4)
    with pytest.raises(TypeError, match="keepdim"):
        td.min(keepdim=True)
    with pytest.raises(TypeError, match="one dimension"):
        td.min((0, 1))


def test_truth() -> None:
    td = TensorDict({"a": torch.tensor([[1.0, 0.0], [2.0, 3.0]]), "n": {"b": torch.ones(2)}}, [2], names=["x"])
    assert td.all() is False and td.any() is True
    assert td.all(0)["a"].tolist() == [True, False] and td.any(-1)["n", "b"].dtype == torch.bool
    assert TensorDict({}, [3]).all() is True and TensorDict({}, [3]).any() is False
    with pytest.raises(RuntimeError, match="batch_dims"):
        td.all(1)
    with pytest.raises(TypeError, match="one batch dimension"):
        td.all((0,))


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "max", "cummax"])
@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_behind_the_batch_is_refused(name: str, dim: int) -> None:
    with pytest.raises(IndexError, match=f"dim {dim}"):
        getattr(make(), name)(dim)


def test_objects_survive_and_empty_trees_stay() -> None:
    td = TensorDict({"a": torch.ones(2), "s": "text", "n": {}}, [2])
    for new in (td.sum(), td.mean(0), td.amax(0), td.std("feature"), td.norm(), td.all(0)):
        assert new["s"] == "text" and new.get("s").batch_size == new.batch_size and "n" in new.keys()
    assert list(td.max(0).values.keys()) == ["a"]


def test_gradients_flow() -> None:
    td = make().requires_grad_()
    (td * 2).sum(reduce=True).backward()
    torch.testing.assert_close(td.grad["a"], torch.full((2, 3, 4), 2.0))


def test_lazy_stacks_reduce_like_dense_collections() -> None:
    stack = LazyStackedTensorDict(*make().unbind(0), stack_dim=0)
    dense = stack.contiguous()
    for args in ((), (0,), (1,), ("feature",)):
        torch.testing.assert_close(stack.sum(*args)["a"], dense.sum(*args)["a"])
    torch.testing.assert_close(stack.max(0).values["n", "c"], dense.max(0).values["n", "c"])
    assert stack.all() == dense.all()
    torch.testing.assert_close(stack.sum(reduce=True), dense.sum(reduce=True))
    torch.testing.assert_close(stack.norm()["n", "c"], dense.norm()["n", "c"])


def test_rows_of_different_shapes_reduce_together() -> None:
    rows = [TensorDict({"a": torch.ones(3)}), TensorDict({"a": torch.ones(4)})]
    assert LazyStackedTensorDict(*rows, stack_dim=0).sum(reduce=True) == 7


def test_a_stack_of_objects_cannot_be_reduced() -> None:
    td = TensorDict({"a": torch.ones(2), "s": ["x", "y"]}, [2])
    with pytest.raises(RuntimeError, match="objects cannot be reduced"):
        td.sum(0)
    assert td.max(0).values.keys() == {"a"}


@pytest.mark.parametrize("shape", [(), (0,), (1,), (32,), (33,), (4, 8), (3, 11), (2, 0, 3), (2, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_all_and_any_of_few_and_many_elements_are_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ones = torch.ones(shape, dtype=dtype)
    spoiled = [ones, ones * 0, ones.transpose(0, -1) if shape else ones]
    if ones.numel() > 1:
        one_zero, one_left = ones.clone(), ones * 0
        one_zero.view(-1)[-1], one_left.view(-1)[-1] = 0, 1
        spoiled += [one_zero, one_left, one_zero.expand(2, *shape)]
    if dtype.is_floating_point:
        spoiled += [ones * torch.nan, ones * -0.0]
    for value in spoiled:
        td = TensorDict({"a": value, "n": {"b": value.clone()}}, [])
        assert td.all() is bool(value.all()) and td.any() is bool(value.any())
