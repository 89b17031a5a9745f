"""``update`` and its relatives between collections of every kind: which keys, which rows, whose tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, NonTensorStack, TensorDict, lazy_stack, tensorclass


@tensorclass
class Item:
    a: Any
    d: Any
    s: Any = None


def _dense(value: int) -> TensorDict:
    rows = torch.full((3,), value)
    return TensorDict({"a": {"b": rows}, "d": {"e": rows.clone()}, "s": NonTensorStack(*[str(value)] * 3)}, [3])


def _rows(value: int) -> list[TensorDict]:
    return [row.clone() for row in _dense(value).unbind(0)]


KINDS = {
    "dense": _dense,
    "class": lambda v: Item.from_tensordict(_dense(v)),
    "lazy": lambda v: lazy_stack(_rows(v)),
    "lazy class": lambda v: lazy_stack([Item.from_tensordict(row) for row in _rows(v)]),
    "mapped": lambda v: _dense(v).memmap(),
    "locked": lambda v: _dense(v).lock_(),
    "dict": lambda v: _dense(v).to_dict(),
}
DESTINATIONS = [kind for kind in KINDS if kind != "dict"]
METHODS = {
    "update": lambda td, other, keys: td.update(other, keys_to_update=keys),
    "update in place": lambda td, other, keys: td.update(other, inplace=True, keys_to_update=keys),
    "update_": lambda td, other, keys: td.update_(other, keys_to_update=keys),
    "update_at_": lambda td, other, keys: td.update_at_(other, slice(None), keys_to_update=keys),
}
LEAVES = [("a", "b"), ("d", "e"), "s"]


def _value(td: Any, key: Any) -> Any:
    value = td.get(key)
    return value.tolist() if hasattr(value, "tolist") else list(value)


@pytest.mark.parametrize("keys", [["a"], [("a", "b")], [("d", "e"), "s"], [(("d",), "e")], []], ids=str)
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_keys_to_update_names_all_that_is_written(method: str, destination: str, source: str, keys: Any) -> None:
    td = KINDS[destination](1)
    if method == "update" and td.is_locked:
        pytest.skip("a locked collection takes no new entries")
    METHODS[method](td, KINDS[source](2), keys)
    flat = [(("d", "e") if key == (("d",), "e") else key) for key in keys]
    for leaf in LEAVES:
        written = leaf in flat or (isinstance(leaf, tuple) and leaf[0] in flat)
        want: list[Any] = [2, 2, 2] if written else [1, 1, 1]
        assert _value(td, leaf) == ([str(v) for v in want] if leaf == "s" else want), leaf


@pytest.mark.parametrize("destination", ["dense", "lazy"])
@pytest.mark.parametrize("source", ["dense", "lazy", "dict"])
def test_an_entry_that_is_not_there_is_an_error_in_place(destination: str, source: str) -> None:
    other = TensorDict({"a": {"b": torch.ones(3)}, "new": torch.ones(3)}, [3])
    given = {"dense": other, "lazy": lazy_stack(list(other.unbind(0))), "dict": other.to_dict()}[source]
    for keys in (None, ["new"]):
        for method in ("update_", "update_at_"):
            arguments = (given,) if method == "update_" else (given, slice(None))
            with pytest.raises(KeyError, match="new"):
                getattr(KINDS[destination](1), method)(*arguments, keys_to_update=keys)


# -- lazy stacks into dense levels --------------------------------------------------------------------------------


def _ragged() -> LazyStackedTensorDict:
    return lazy_stack([TensorDict(c=torch.ones(3), d=torch.ones(2)), TensorDict(c=torch.ones(4) * 2)])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("clone", [False, True])
def test_merging_a_lazy_stack_keeps_what_only_one_side_has(depth: int, clone: bool) -> None:
    path = tuple("pqr"[:depth])
    td = TensorDict({(*path, k): torch.zeros(2, n) for k, n in (("c", 3), ("d", 5), ("e", 4))}, [2])
    source = TensorDict({path: _ragged()}, [2])
    td.update(source, clone=clone)
    rows = td[path].tensordicts
    assert [sorted(row.keys()) for row in rows] == [["c", "d", "e"], ["c", "d", "e"]]
    assert rows[0]["d"].tolist() == [1, 1] and rows[1]["d"].tolist() == [0] * 5
    assert rows[1]["c"].tolist() == [2] * 4 and rows[1]["e"].tolist() == [0] * 4
    assert (rows[1]["c"] is source[path].tensordicts[1]["c"]) is not clone


def test_stacks_below_stacks_are_merged_member_by_member() -> None:
    td = TensorDict(
        {("p", "a", "c"): torch.zeros(2, 3), ("p", "a", "e"): torch.zeros(2, 4), ("p", "q"): torch.ones(2)}, [2]
    )
    inner = _ragged()
    stack = lazy_stack([TensorDict({"a": inner[0]}), TensorDict({"a": inner[1], "r": torch.ones(1)})])
    td.update(TensorDict({"p": stack}, [2]))
    keys = [sorted(row.keys(True, True), key=str) for row in td["p"].tensordicts]
    assert keys == [[("a", "c"), ("a", "d"), ("a", "e"), "q"], [("a", "c"), ("a", "e"), "q", "r"]]


def test_a_stack_of_a_tensorclass_is_merged_into_an_instance() -> None:
    td = TensorDict({"n": Item(a=torch.zeros(2, 3), d=torch.zeros(2), batch_size=[2])}, [2])
    td.update({"n": lazy_stack([Item(a=torch.ones(3), d=None), Item(a=torch.ones(4), d=None)])})
    first, second = td["n"].unbind(0)
    assert isinstance(first, Item) and first.d.tolist() == 0 and second.a.tolist() == [1] * 4


def test_a_stack_is_written_in_place_where_it_fits() -> None:
    td = TensorDict({"n": {"c": torch.zeros(2, 3), "e": torch.zeros(2)}}, [2])
    level, tensor = td["n"], td["n", "c"]
    td.lock_()
    td.update({"n": lazy_stack([TensorDict(c=torch.ones(3)), TensorDict(c=torch.ones(3) * 2)])}, inplace=True)
    assert td["n"] is level and td["n", "c"] is tensor
    assert tensor.tolist() == [[1, 1, 1], [2, 2, 2]]
    with pytest.raises(RuntimeError, match="locked"):
        td.update({"n": lazy_stack([TensorDict(new=torch.ones(3)), TensorDict()])}, inplace=True)


# -- batch sizes -----------------------------------------------------------------------------------------------------


def test_update_batch_size_reaches_every_level_and_keeps_it() -> None:
    td = TensorDict({"x": torch.ones(3), "n": {"y": torch.ones(3), "m": {"k": torch.ones(3)}}, "s": "old"}, [3])
    level, deepest = td["n"], td["n", "m"]
    source = {"x": torch.ones(2), "n": {"y": torch.ones(2), "m": {"k": torch.ones(2)}, "w": torch.ones(2)}, "s": "new"}
    td.update(TensorDict(source, [2]), update_batch_size=True)
    assert td["n"] is level and td["n", "m"] is deepest
    assert td.batch_size == level.batch_size == deepest.batch_size == (2,) and td["s"] == "new"
    assert td["n", "w"].shape == (2,)


def test_update_batch_size_below_a_root_that_keeps_its_own() -> None:
    def tree(n: int) -> TensorDict:
        ragged = lazy_stack([TensorDict({"x": torch.ones(n)}, [n]), TensorDict({"x": torch.ones(n + 1)}, [n + 1])])
        item = Item(a=torch.ones(2, n), d=None, batch_size=[2, n])
        return TensorDict({"a": TensorDict({"x": torch.ones(2, n)}, [2, n]), "l": ragged, "i": item}, [2])

    def compare(td: TensorDict, n: int) -> None:
        assert td["a"].batch_size == td["i"].batch_size == (2, n)
        assert td["l"].tensordicts[1].batch_size == (n + 1,)

    td = tree(3)
    kept = td["a"], td["l"], td["l"].tensordicts
    with pytest.raises(RuntimeError, match="update_batch_size"):
        td.update(tree(5))
    td.update(tree(5), update_batch_size=True)
    compare(td, 5)
    assert td["a"] is kept[0] and td["l"] is kept[1]
    assert all(a is b for a, b in zip(td["l"].tensordicts, kept[2], strict=True))
    td.update(tree(4), update_batch_size=True, keys_to_update=["a"])
    assert td["a"].batch_size == (2, 4) and td["l"].tensordicts[0].batch_size == (5,)


def test_update_batch_size_of_a_lazy_stack() -> None:
    def stack(*sizes: int) -> LazyStackedTensorDict:
        return lazy_stack([TensorDict({"x": torch.ones(n)}, [n]) for n in sizes])

    td = stack(3, 3)
    members = td.tensordicts
    td.update(stack(2, 4), update_batch_size=True)
    assert td.batch_size == (2, -1) and all(a is b for a, b in zip(td.tensordicts, members, strict=True))
    td.update(stack(5, 5, 5), update_batch_size=True)
    assert td.batch_size == (3, 5)
    td.update(TensorDict({"x": torch.ones(2, 7)}, [2, 7]), update_batch_size=True)
    assert td.batch_size == (2, 7) and td["x"].shape == (2, 7)
    for options in ({"inplace": True}, {"keys_to_update": ["x"]}):
        with pytest.raises(RuntimeError, match="different batch-size"):
            td.update(stack(1, 1), update_batch_size=True, **options)


@pytest.mark.parametrize("lazy", [False, True])
def test_update_batch_size_needs_every_key(lazy: bool) -> None:
    td = TensorDict({"x": torch.ones(2, 3), "n": {"y": torch.ones(2, 3)}}, [2, 3])
    other = TensorDict({"x": torch.ones(2, 4), "n": {"z": torch.ones(2, 4)}}, [2, 4])
    if lazy:
        td, other = td.to_lazystack(0), other.to_lazystack(0)
    with pytest.raises(RuntimeError, match=r"must hold every key.*'y'"):
        td.update(other, update_batch_size=True)
