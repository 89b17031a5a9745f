"""Lazy stacks: what is promised beyond the answers that the differential tests compare."""

import warnings
from typing import Any

import pytest
import torch

from tensordict_lite import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    dense_stack_tds,
    lazy_legacy,
    lazy_stack,
    maybe_dense_stack,
    set_lazy_legacy,
)


class Photo(TensorClass):
    pixels: torch.Tensor
    label: str = "none"


@pytest.mark.parametrize(
    "made_dense",
    [
        lambda stack: stack.densify(),
        lambda stack: stack.contiguous(),
        lambda stack: stack.new_zeros(3),
        lambda stack: stack.new_full((3,), 1.0),
        lambda stack: stack.sum(0),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_dense_forms_of_stacked_instances_are_instances(made_dense: Any, depth: int) -> None:
    def photos(levels: int) -> Any:
        if not levels:
            return Photo(torch.ones(3), None, batch_size=[])
        return lazy_stack([photos(levels - 1), photos(levels - 1)])

    assert type(made_dense(photos(depth))) is Photo


def test_ragged_instances_are_made_dense_as_an_instance_with_nested_tensors() -> None:
    photos = lazy_stack([Photo(torch.ones(n), f"photo {n}", batch_size=[]) for n in (2, 3)])
    dense = TensorDict({"photos": photos}, [2]).densify()["photos"]
    assert type(dense) is Photo and dense.pixels.is_nested
    assert list(dense.label) == ["photo 2", "photo 3"]


def test_the_legacy_mode_stacks_lazily():
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.ones(2)}, "s": "x"})
    calls = [
        lambda: torch.stack([td, td]),
        lambda: TensorDict.stack([td, td], 0),
        lambda: maybe_dense_stack([td, td]),
        lambda: dense_stack_tds([td, td], 0),
        lambda: TensorDict.from_list([td, td]),
    ]
    with pytest.warns(DeprecationWarning, match="lazy_stack"):
        legacy = set_lazy_legacy(True)
    with legacy:
        for call in calls:
            out = call()
            assert type(out) is LazyStackedTensorDict and out.tensordicts[0] is td and out.stack_dim == 0
        with pytest.raises(TypeError, match="Cannot pass batch-size"):
            torch.stack([td, td]).to(batch_size=[])
        stacked = torch.stack([lazy_stack([td, td]), lazy_stack([td, td])])
        assert stacked.stack_dim == 0 and stacked.contiguous()["a"].shape == (2, 2, 2)
        assert type(torch.stack([td, td], out=td.expand(2).clone())) is TensorDict
        assert type(torch.stack([NonTensorData("a")] * 2)) is NonTensorStack
    assert all(type(call()) is TensorDict for call in calls)

    @legacy
    def inside():
        return type(torch.stack([td, td]))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inside() is LazyStackedTensorDict and not lazy_legacy()


def _form(td):
    if isinstance(td, torch.Tensor):
        return tuple(td.shape)
    if isinstance(td, LazyStackedTensorDict):
        return td.stack_dim, [_form(member) for member in td.tensordicts]
    return {key: _form(td.get(key)) for key in sorted(td.keys())}


@pytest.mark.parametrize(
    "make", [maybe_dense_stack, dense_stack_tds, lambda items, dim: TensorDict.maybe_dense_stack(items, dim)]
)
def test_a_dense_stack_of_lazy_ones_stacks_their_members(make):
    first = TensorDict({"a": torch.zeros(5, 3)}, [5])
    second = TensorDict({"a": torch.zeros(5, 4), "b": torch.zeros(5, 2)}, [5])
    ragged = lazy_stack([first, second])
    outer = TensorDict({"lazy": ragged}, [2, 5])
    for dim, at in ((0, 1), (1, 0), (2, 0)):
        shape = (2, 5) if dim < 2 else (5, 2)
        members = [{"a": (*shape, 3)}, {"a": (*shape, 4), "b": (*shape, 2)}]
        assert _form(make([outer, outer.clone()], dim)) == {"lazy": (at, members)}
        assert _form(make([ragged, ragged.clone()], dim)) == (at, members)
    assert _form(dense_stack_tds(lazy_stack([outer, outer.clone()]))) == {
        "lazy": (1, [{"a": (2, 5, 3)}, {"a": (2, 5, 4), "b": (2, 5, 2)}])
    }
    uneven = [lazy_stack([TensorDict(a=torch.zeros(i + j + 1)) for j in range(2)]) for i in range(2)]
    assert _form(make(uneven, 0)) == (1, [(0, [{"a": (1,)}, {"a": (2,)}]), (0, [{"a": (2,)}, {"a": (3,)}])])
    even = [lazy_stack([TensorDict(a=torch.zeros(2))] * 2), TensorDict({"a": torch.zeros(2, 2)}, [2])]
    assert _form(make(even, 0)) == {"a": (2, 2, 2)}


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 6), (3, 2, 1), (3, 1, 2)])
def test_a_view_of_a_stack_writes_to_its_members(shape: tuple[int, ...]) -> None:
    for dim in (0, 1):
        stack = lazy_stack([TensorDict({"a": torch.zeros(2)}, [2]) for _ in range(3)], dim)
        view = stack.view(shape if dim == 0 else (*shape[-1:], *shape[:-1]))
        view.fill_("a", 1)
        assert all(member["a"].tolist() == [1, 1] for member in stack.tensordicts)


@pytest.mark.parametrize("dim", [0, 1])
def test_set_in_place_writes_to_the_tensors_of_the_members_or_to_none(dim: int) -> None:
    members = [TensorDict({"a": torch.zeros(3, 2), "n": {"b": torch.zeros(3)}}, [3]) for _ in range(2)]
    stack = lazy_stack(members, dim).lock_()
    tensors = [member["a"] for member in members]
    value = torch.arange(12.0).view(*stack.batch_size, 2).double()
    stack.set_("a", value)
    stack.set_(("n", "b"), torch.ones(stack.batch_size))
    assert all(member["a"] is tensor for member, tensor in zip(members, tensors, strict=True))
    assert torch.equal(stack["a"], value.float()) and all(member["n", "b"].sum() == 3 for member in members)

    uneven = lazy_stack([members[0], TensorDict({"a": torch.zeros(3, 5)}, [3])], dim)
    before = members[0]["a"].clone()
    with pytest.raises(RuntimeError):
        uneven.set_("a", torch.ones(3, 5))
    with pytest.raises(KeyError):
        uneven.set_(("n", "b"), torch.ones(uneven.batch_size))
    assert torch.equal(members[0]["a"], before)


def test_a_stack_is_mapped_or_shared_when_every_member_is() -> None:
    """Of members that are only partly so, it is neither; unlocking ends it."""
    members = [TensorDict(a=torch.zeros(2), n={"c": torch.ones(2)}, batch_size=[2], device="cpu") for _ in range(2)]
    for move in (TensorDict.memmap, lambda member: member.clone().share_memory_()):
        moved = [move(member) for member in members]
        whole, part = lazy_stack(moved), lazy_stack([moved[0], members[1]])
        assert whole.get("n").is_memmap() is whole.is_memmap() is not whole.is_shared()
        assert not part.is_memmap() and not part.is_shared() and not part.is_locked
        assert not whole.unlock_().is_locked and not whole.is_memmap() and not whole.is_shared()


def test_unlocking_a_stack_of_locked_members_asks_who_else_holds_them() -> None:
    """Nothing is unlocked where another locked stack has the same members."""
    members = [TensorDict(a=torch.zeros(2), batch_size=[2]).lock_() for _ in range(2)]
    other = lazy_stack(members).lock_()
    with pytest.raises(RuntimeError, match="part of a locked graph"):
        lazy_stack(members).unlock_()
    assert other.is_locked and all(member.is_locked for member in members)
    other.unlock_()
    assert not lazy_stack(members).unlock_().is_locked


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_stacking_stacks_keeps_the_names_that_all_have(dim: int) -> None:
    """As stacking dense collections does: lazy or not, the new dimension has no name yet."""
    dense = TensorDict({"a": torch.zeros(2, 3)}, [2, 3], names=["t", "b"])
    lazy = lazy_stack([TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)]).rename("t", "b")
    expected = torch.stack([dense, dense.clone()], dim).names
    assert torch.stack([lazy, lazy.clone()], dim).names == expected == [*"tb"[:dim], None, *"tb"[dim:]]
    assert torch.stack([lazy, lazy.clone().rename("t", None)], dim).names == [None] * 3
