"""``update`` and its relatives between collections of every kind: which keys, which rows, whose tensors."""

from typing import Any

import pytest
import torch

from tensordict_lite import NonTensorStack, TensorDict, lazy_stack, tensorclass


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


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_keys_to_update_names_all_that_is_written(method: str, destination: str, source: str) -> None:
    if method == "update" and KINDS[destination](1).is_locked:
        pytest.skip("a locked collection takes no new entries")
    choices: list[list[Any]] = [["a"], [("a", "b")], [("d", "e"), "s"], [(("d",), "e")], []]
    for keys in choices:
        td = KINDS[destination](1)
        METHODS[method](td, KINDS[source](2), keys)
        flat = [(("d", "e") if key == (("d",), "e") else key) for key in keys]
        for leaf in LEAVES:
            written = leaf in flat or (isinstance(leaf, tuple) and leaf[0] in flat)
            want: list[Any] = [2, 2, 2] if written else [1, 1, 1]
            assert _value(td, leaf) == ([str(v) for v in want] if leaf == "s" else want), (keys, leaf)


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
