"""Lazy stacks: what is promised beyond the answers that the differential tests compare."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictBase,
    dense_stack_tds,
    lazy_legacy,
    lazy_stack,
    maybe_dense_stack,
    set_lazy_legacy,
)


class Photo(TensorClass):
    pixels: torch.Tensor
    label: str = "none"

    def brighter(self) -> torch.Tensor:
        return self.pixels + 1

    @property
    def area(self) -> int:
        return self.pixels.shape[-1]


def ragged() -> LazyStackedTensorDict:
    return lazy_stack(
        [
            TensorDict({"a": torch.arange(2.0), "b": torch.ones(3), "only": torch.zeros(1)}),
            TensorDict({"a": torch.arange(2.0) + 2, "b": torch.ones(4)}),
        ]
    )


def test_common_keys_show_on_top_and_all_are_reachable_below() -> None:
    stack = ragged()
    assert list(stack.keys()) == ["a", "b"]
    assert "only" not in stack
    assert stack[0]["only"].shape == (1,)
    assert isinstance(stack, TensorDictBase)


def test_an_entry_of_different_shapes_is_an_error_that_names_key_and_shapes() -> None:
    with pytest.raises(RuntimeError, match=r"'b'.*\(3,\), \(4,\).*as_list=True"):
        ragged()["b"]


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_fills_the_chosen_side(side: str) -> None:
    padded = ragged().get("b", as_padded_tensor=True, padding_value=-1.0, padding_side=side)
    assert padded.shape == (2, 4)
    assert padded[0].tolist() == ([1, 1, 1, -1] if side == "right" else [-1, 1, 1, 1])
    assert padded[1].tolist() == [1, 1, 1, 1]


def test_ragged_values_come_as_list_or_nested_tensor_through_a_parent() -> None:
    parent = TensorDict({"x": ragged()}, [2])
    assert [value.shape[0] for value in parent.get(("x", "b"), as_list=True)] == [3, 4]
    assert parent.get(("x", "b"), as_nested_tensor=True).is_nested


def test_members_are_shared_not_copied() -> None:
    members = [TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.ones(2)})]
    stack = lazy_stack(members)
    assert stack[0] is members[0]
    assert stack.unbind(0)[1] is members[1]
    stack[1]["a"][0] = 5
    assert stack["a"][1, 0] == 5
    stack["new"] = torch.arange(2)
    assert members[1]["new"] == 1


def test_the_list_of_members_cannot_be_changed_behind_the_stack() -> None:
    stack = ragged()
    stack.tensordicts.append(TensorDict())
    assert len(stack) == 2 and stack.batch_size == (2,)


def test_writing_a_ragged_entry_takes_a_value_a_member() -> None:
    stack = ragged()
    stack.set("c", [torch.zeros(1), torch.zeros(5)])
    assert stack[1]["c"].shape == (5,)
    stack.set("d", torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)]))
    assert stack[1]["d"].tolist() == [1, 1, 1]


def test_a_value_that_does_not_fit_names_the_key_and_both_shapes() -> None:
    with pytest.raises(RuntimeError, match=r"2.*3.*'z'"):
        ragged()["z"] = torch.zeros(3)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_insert_append_and_extend_grow_the_stack_dimension(dim: int) -> None:
    rows = [TensorDict({"a": torch.full((3,), n)}, [3]) for n in range(4)]
    stack = lazy_stack(rows[:1], dim)
    stack.append(rows[3])
    stack.insert(1, rows[1])
    stack.extend([rows[2]])
    size = [3, 3]
    size[dim] = 4
    assert list(stack.batch_size) == size
    assert [int(row["a"][0]) for row in stack.unbind(dim)] == [0, 1, 3, 2]


def test_a_member_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(3)}, [3])])
    with pytest.raises(ValueError, match="3.*4"):
        stack.append(TensorDict({"a": torch.zeros(4)}, [4]))
    with pytest.raises(TypeError, match="Tensor"):
        stack.append(torch.zeros(3))
    assert stack.batch_size == (1, 3)


def test_members_of_different_lengths_show_minus_one() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(n)}, [n]) for n in (2, 3)])
    assert stack.batch_size == (2, -1)
    assert stack[1].batch_size == (3,)
    assert stack.get_item_shape("a") == (2, -1)
    assert (stack + 1)[1]["a"].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="strict_shape"):
        lazy_stack(stack.tensordicts, strict_shape=True)


def test_locking_locks_the_members_and_unlocking_a_member_alone_is_refused() -> None:
    stack = ragged().lock_()
    assert all(member.is_locked for member in stack.tensordicts)
    for write in (lambda: stack.set("z", torch.zeros(2)), lambda: stack.append(TensorDict()), lambda: stack.del_("a")):
        with pytest.raises(RuntimeError, match="locked"):
            write()
    with pytest.raises(RuntimeError, match="locked graph"):
        stack[0].unlock_()
    with stack.unlock_():
        stack["z"] = torch.zeros(2)
    assert stack.is_locked and "z" in stack


def test_densify_makes_nested_tensors_of_ragged_entries() -> None:
    dense = ragged().densify(layout=torch.jagged)
    assert type(dense) is TensorDict
    assert dense["a"].shape == (2, 2)
    assert [part.shape[0] for part in dense["b"].unbind()] == [3, 4]
    assert [part.shape[0] for part in dense["only"].unbind()] == [1, 0]


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


def test_maybe_dense_stack_is_lazy_only_where_it_must_be() -> None:
    items = [TensorDict({"d": torch.ones(2), "n": {"r": torch.ones(k)}}) for k in (2, 3)]
    stack = maybe_dense_stack(items)
    assert type(stack) is TensorDict
    assert stack["d"].shape == (2, 2)
    assert type(stack["n"]) is LazyStackedTensorDict


def test_names_follow_the_stack_dimension() -> None:
    members = [TensorDict({"a": torch.zeros(3)}, [3], names=["time"]) for _ in range(2)]
    stack = lazy_stack(members, 1, stack_dim_name="agent")
    assert stack.names == ["time", "agent"]
    assert stack.permute(1, 0).names == ["agent", "time"]
    assert stack[0].names == ["agent"]
    assert stack[:, 0].names == ["time"]
    stack.names = ["t", None]
    assert members[0].names == ["t"]


def test_a_view_in_a_with_block_is_written_back() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)])
    with stack.permute(1, 0) as turned:
        turned["a"] = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(stack["a"], torch.arange(6.0).reshape(3, 2).T)
    with stack.flatten_keys("/") as flat:
        flat["x/y"] = torch.zeros(2, 3)
    assert stack["x", "y"].shape == (2, 3)


def test_operations_on_leaves_reach_exclusive_entries() -> None:
    stack = ragged()
    assert (stack + 1)[0]["only"] == 1
    assert stack.to(torch.float64)[0]["only"].dtype is torch.float64
    assert stack.apply(lambda leaf: leaf + 2)[0]["only"] == 2


def test_lazy_preallocation_takes_ragged_rows() -> None:
    data = TensorDict({}, [3])
    data[1] = TensorDict({"x": lazy_stack([TensorDict(a=torch.ones(1)), TensorDict(a=torch.ones(2))])})
    assert data["x"].batch_size == (3, 2)
    assert data[1]["x"].get("a", as_list=True)[1].tolist() == [1, 1]
    assert data[0]["x"].get("a", as_list=True)[1].tolist() == [0, 0]


def test_pickling_keeps_members_and_lock() -> None:
    stack = pickle.loads(pickle.dumps(ragged().lock_()))
    assert stack.is_locked and stack[0].is_locked
    assert stack[0]["only"] == 0
    assert stack.unlock_().is_locked is False


def test_saved_and_loaded_stacks_keep_class_and_stack_dim(tmp_path: Path) -> None:
    stack = lazy_stack([TensorDict({"a": torch.ones(2, k + 1), "s": f"t{k}"}, [2]) for k in range(3)], 1)
    stack.memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path)
    assert type(loaded) is LazyStackedTensorDict
    assert (loaded.stack_dim, loaded.batch_size) == (1, (2, 3))
    assert [value.shape for value in loaded.get("a", as_list=True)] == [(2, 1), (2, 2), (2, 3)]
    assert loaded["s"] == [["t0", "t1", "t2"]] * 2


def test_a_stack_of_tensorclasses_has_their_fields_and_methods() -> None:
    stack = lazy_stack([Photo(torch.zeros(2), "cat"), Photo(torch.ones(2), "dog")])
    assert isinstance(stack, Photo)
    assert type(stack[0]) is Photo
    assert stack.pixels.shape == (2, 2)
    assert stack.label == ["cat", "dog"]
    assert stack.brighter()[1].tolist() == [2, 2]
    assert stack.area == 2
    stack.pixels = torch.full((2, 2), 7.0)
    assert stack[1].pixels.tolist() == [7, 7]
    assert type((stack + 1)[0]) is Photo
    assert type(stack.contiguous()) is Photo
    assert isinstance(pickle.loads(pickle.dumps(stack)), Photo)


def test_a_stack_of_ragged_tensorclasses_keeps_the_class_of_its_rows() -> None:
    stack = TensorDict({"p": lazy_stack([Photo(torch.zeros(2)), Photo(torch.ones(3))])}, [2])
    assert type(stack[1]["p"]) is Photo
    assert [value.shape[0] for value in stack["p"].get("pixels", as_list=True)] == [2, 3]
    with pytest.raises(RuntimeError, match="pixels"):
        _ = stack["p"].pixels


def test_empty_stacks_take_the_shape_of_their_first_member() -> None:
    stack = LazyStackedTensorDict(stack_dim=0)
    assert stack.batch_size == (0,) and list(stack.keys()) == []
    stack.append(TensorDict({"a": torch.zeros(3)}, [3]))
    assert stack.batch_size == (1, 3)
    assert stack["a"].shape == (1, 3)


def test_stacks_in_stacks_stack_at_both_levels() -> None:
    inner = [lazy_stack([TensorDict(a=torch.ones(2) * k), TensorDict(a=torch.zeros(2))]) for k in range(3)]
    stack = lazy_stack(inner, 1)
    assert stack.batch_size == (2, 3)
    assert stack["a"].shape == (2, 3, 2)
    assert stack["a"][0, :, 0].tolist() == [0, 1, 2]
    stack[0, 2] = TensorDict(a=torch.full((2,), 9.0))
    assert inner[2][0]["a"].tolist() == [9, 9]


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ([], RuntimeError),
        ([TensorDict({}, [2]), TensorDict({}, [2, 1])], RuntimeError),
        ([TensorDict(a=1, device="cpu"), TensorDict(a=1)], RuntimeError),
        ([TensorDict({}, [1], names=["x"]), TensorDict({}, [1])], ValueError),
    ],
)
def test_members_that_do_not_go_together_are_refused(members: list[TensorDict], error: type[Exception]) -> None:
    with pytest.raises(error):
        lazy_stack(members)


def test_levels_made_on_the_way_reach_the_members() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(2)}) for _ in range(2)])
    parent = TensorDict({"x": stack}, [2])
    parent["x", "p", "q"] = torch.arange(2)
    assert stack[1]["p", "q"] == 1
    parent.create_nested(("x", "r", "s"))
    assert ("r", "s") in stack[0].keys(True)


def test_in_place_updates_through_a_parent_reach_ragged_entries() -> None:
    parent = TensorDict({"x": ragged()}, [2])
    parent.update_(parent * 0)
    assert parent[1]["x"]["b"].tolist() == [0, 0, 0, 0]


def test_nested_tensors_stack_along_the_first_dimension_only() -> None:
    def stack(dim: int) -> LazyStackedTensorDict:
        return lazy_stack([TensorDict({"a": torch.ones(3, n)}, [3]) for n in (2, 4)], dim)

    for other in (stack(1), lazy_stack([TensorDict({"a": torch.ones(3, 2)}, [3])] * 2, 1)):
        with (
            pytest.warns(DeprecationWarning),
            pytest.raises(RuntimeError, match="can only be stacked along their first"),
        ):
            other.get_nestedtensor("a")
    with pytest.warns(DeprecationWarning, match="as_nested_tensor"):
        assert stack(0).get_nestedtensor("a").layout is torch.strided
    with pytest.warns(DeprecationWarning), pytest.raises(KeyError, match="missing"):
        stack(0).get_nestedtensor("missing")
    assert stack(0).get("a", as_nested_tensor=True).layout is torch.jagged
    both = lazy_stack([TensorDict(a=torch.ones(2, 3)), TensorDict(a=torch.ones(4, 5))])
    assert both.get("a", as_nested_tensor=True).layout is torch.strided  # jagged is ragged along one dimension


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


def test_each_with_undoes_its_own_operation():
    td = TensorDict(a=torch.zeros(()))
    with td.lock_():
        with td.unlock_():
            assert not td.is_locked
        assert td.is_locked
    assert not td.is_locked
    stack = lazy_stack([td, td.clone()]).lock_()
    with stack.unlock_():
        with stack.lock_():
            pass
        assert not stack.is_locked
    assert stack.is_locked
    td = TensorDict({"a": torch.zeros(2, 3), "n": {"b": torch.ones(2)}}, [2])
    with td.flatten_keys(".") as flat:
        with flat.lock_():
            pass
        flat["n.c"] = torch.ones(2)
    assert td["n", "c"].sum() == 2
    with td.view(-1) as outer, outer.view(2, 1) as inner:
        inner["d"] = torch.ones(2, 1)
    assert td["d"].shape == (2,)


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
        assert (whole.is_memmap(), whole.is_shared()) == (whole.get("n").is_memmap(), whole.get("n").is_shared())
        assert whole.is_memmap() is not whole.is_shared()
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


@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_cut_out_of_a_locked_stack_takes_no_new_entries(dim: int) -> None:
    members = [TensorDict(a=torch.zeros(3), n={"c": torch.ones(3)}, batch_size=[3]) for _ in range(3)]
    stack = lazy_stack(members, dim).lock_()
    cuts = [
        stack[:2, :2],
        stack[:, [0, 1]],
        stack[None],
        *stack.split(2, 1 - dim),
        stack.flatten(),
        stack.narrow(1, 0, 2),
    ]
    for part in cuts:
        assert part.is_locked and all(member.is_locked for member in part.tensordicts)
        with pytest.raises(RuntimeError, match="locked"):
            part.tensordicts[0]["new"] = torch.zeros(part.tensordicts[0].batch_size)
    part = stack[:, :2] if dim == 0 else stack[:2]
    part.unlock_()["new"] = torch.zeros(part.batch_size)  # rows of their own: the stack has none of it
    assert stack.is_locked and "new" not in stack
    for made in (torch.stack([stack, stack]), *stack.unbind(1 - dim)):
        made["new"] = torch.zeros(made.batch_size)
    assert "new" not in stack


def test_keys_of_a_ragged_stack_in_a_tree_are_found_without_stacking() -> None:
    tree = TensorDict({"l": ragged()}, [2])
    assert ("l", "b") in tree and ("l", "b") in tree.keys(True) and ("l", "only") not in tree
    assert ("l", "b", "c") not in tree.keys(True) and tree.get(("l", "b", "c"), 0) == tree.pop(("l", "b", "c"), 0) == 0
