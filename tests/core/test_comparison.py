"""Comparisons: bool leaves under the same keys, and what is equal to what."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict, UnbatchedTensor, lazy_stack

COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def make() -> TensorDict:
    source = {"a": torch.randint(0, 3, (2, 3)), "n": {"c": torch.randint(0, 3, (2, 2)).float()}}
    return TensorDict(source, [2], device="cpu", names=["x"])


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize("kind", ["number", "tensor", "collection", "mapping", "numpy"])
def test_comparison_matches_torch(op: Any, kind: str) -> None:
    td, second = make(), make()
    row = torch.tensor([0, 2])
    other: Any = {
        "number": 1,
        "tensor": row,
        "collection": second,
        "mapping": {"a": second["a"], "n": {"c": second["n", "c"]}},
        "numpy": np.int64(1),
    }[kind]
    new = op(td, other)
    for key in ("a", ("n", "c")):
        match = {"number": 1, "numpy": 1, "tensor": row[:, None]}.get(kind, second[key])
        assert torch.equal(new[key], op(td[key], match))
    assert new.batch_size == td.batch_size and new.device == td.device


def test_results_are_unlocked_and_unnamed() -> None:
    td = make().lock_()
    for new in (td == td, td > 0, td != 1, td.bool() | True, td.bool() ^ td.bool()):
        assert not new.is_locked and not new["n"].is_locked and new.names == [None] == new["n"].names
    assert (td == torch.zeros(2)).names == ["x"]


@pytest.mark.parametrize("other", ["text", None, object(), [1, 2], np.ones(2)])
def test_other_types_are_unequal(other: Any) -> None:
    td = make()
    assert (td == other) is False and (td != other) is True


def test_objects_compare_as_objects() -> None:
    left = TensorDict({"a": torch.ones(2), "s": "text"}, [2])
    right = TensorDict({"a": torch.ones(2), "s": "other"}, [2])
    assert (left == left).all() and (left == left).get("s").tolist() == [True, True]
    assert (left == right).get("s").tolist() == [False, False]
    assert (left != right).get("s").all()
    assert (left > left)["s"] == "text"


def test_different_keys_are_an_error() -> None:
    td = make()
    with pytest.raises(KeyError, match=r"first TD has keys \['n'\]"):
        _ = td == td.select("a")
    with pytest.raises(KeyError, match="mismatch"):
        _ = td > {"a": 1, "n": {"c": 1, "d": 2}}


def test_batch_sizes_broadcast() -> None:
    td = make()
    assert (td == td.expand(3, 2)).batch_size == torch.Size([3, 2])
    assert (td == torch.ones(2, 1)).batch_size == torch.Size([2, 2])
    assert torch.equal((td == TensorDict({"a": 1, "n": {"c": 1}}, []))["a"], td["a"] == 1)
    with pytest.raises(RuntimeError, match="broadcast"):
        _ = td == torch.ones(3)


def test_lazy_stacks_compare_with_dense_collections() -> None:
    rows = [make()[0] for _ in range(2)]
    stack = LazyStackedTensorDict(*rows, stack_dim=0)
    dense = stack.contiguous()
    assert (stack == dense).all() and (dense == stack).all() and (stack == stack).all()
    assert not (stack != dense).any()
    assert torch.equal((stack > 1)["a"], dense["a"] > 1)
    assert torch.equal((stack == torch.tensor([0, 1]))["a"], dense["a"] == torch.tensor([[0], [1]]))


def test_collections_are_not_hashable_and_have_no_truth() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(make())
    with pytest.raises(RuntimeError, match="bool"):
        bool(make() == make())


def test_a_tensor_without_dimensions_is_compared_as_with_each_leaf() -> None:
    tenth = torch.tensor(0.1, dtype=torch.float64)  # of which a leaf of float32 is the nearest, as torch compares them
    dense = TensorDict({"a": torch.full((2, 3), 0.1), "n": {"b": torch.full((2,), 0.1)}}, [2])
    for td in (dense, dense.unsqueeze(0), TensorDict({"a": torch.full((3,), 0.1)}), lazy_stack([dense, dense.clone()])):
        assert (td == tenth).all() and not (td < tenth).any()
    held = TensorDict({"a": torch.ones(2), "u": UnbatchedTensor(torch.zeros(4, 5))}, [2])
    assert (held >= torch.tensor(1))["u"].shape == (4, 5) and not (held >= torch.tensor(1))["u"].any()
