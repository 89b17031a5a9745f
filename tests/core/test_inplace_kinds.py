"""Writing in place never changes what an entry is: tensors stay tensors, objects objects, levels levels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensordict_lite as lib
from tensordict_lite import NonTensorData, NonTensorStack, TensorDict, lazy_stack, tensorclass
from tensordict_lite.errors import KeyThroughLeafError


@tensorclass
class Record:
    t: Any
    s: Any
    k: Any
    n: Any


def _dense() -> TensorDict:
    entries = {"t": torch.zeros(2), "s": "x", "k": NonTensorStack("p", "q"), "n": {"y": torch.zeros(2)}}
    return TensorDict(entries, [2])


KINDS = {
    "dense": _dense,
    "class": lambda: Record.from_tensordict(_dense()),
    "lazy": lambda: lazy_stack(list(_dense().unbind(0))),
    "locked": lambda: _dense().lock_(),
    "mapped": lambda: _dense().memmap(),
}
WRITES = {
    "set": lambda td, key, value: td.set(key, value, inplace=True),
    "set_": lambda td, key, value: td.set_(key, value),
    "update": lambda td, key, value: td.update({key: value}, inplace=True),
    "update_": lambda td, key, value: td.update_({key: value}),
}
WRONG = {
    "t": ["text", None, {1, 2}, NonTensorData("w", batch_size=[2]), TensorDict({"y": torch.ones(2)}, [2])],
    "s": [torch.ones(2), np.ones(2), 1, TensorDict({"y": torch.ones(2)}, [2])],
    "k": [torch.ones(2), np.ones(2), TensorDict({"y": torch.ones(2)}, [2])],
    "n": [torch.ones(2), "text", None, NonTensorData("w", batch_size=[2])],
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_another_kind_is_refused(kind: str, write: str) -> None:
    for key, values in WRONG.items():
        for value in values:
            td = KINDS[kind]()
            before = str(td.to_dict())
            with pytest.raises((ValueError, RuntimeError)):
                WRITES[write](td, key, value)
            assert str(td.to_dict()) == before, (key, value)


def test_the_error_is_one_that_programs_catch_under_any_of_its_names() -> None:
    for expected in (ValueError, RuntimeError, TypeError):
        with pytest.raises(expected, match="Failed to update 's'.*set\\(\\) replaces"):
            _dense().set_("s", torch.ones(2))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["dense", "class", "locked", "mapped"])
def test_objects_replace_objects_in_place(kind: str, write: str) -> None:
    td = KINDS[kind]()
    WRITES[write](td, "s", "new")
    WRITES[write](td, "k", ["u", "v"])
    assert td.get("s") == "new" or td.get("s").data == "new"
    plain = td.to_tensordict()
    assert plain["k"] == ["u", "v"]


ROW_WRITES = {
    "td[i] = tree": lambda td, key, value: td.__setitem__(0, TensorDict({key: value})),
    "td[i] = dict": lambda td, key, value: td.__setitem__(0, {key: value}),
    "set_at_": lambda td, key, value: td.set_at_(key, value, 0),
    "update_at_": lambda td, key, value: td.update_at_({key: value}, 0),
}


@pytest.mark.parametrize("write", ROW_WRITES)
@pytest.mark.parametrize("kind", ["dense", "lazy"])
def test_rows_of_another_kind_are_refused(kind: str, write: str) -> None:
    tree = TensorDict({"y": torch.ones(())})
    wrong = [("t", "text"), ("t", tree), ("s", tree), ("k", tree), ("n", "text"), ("n", NonTensorData("w"))]
    for key, value in wrong:
        td = KINDS[kind]()
        before = str(td.to_dict())
        with pytest.raises((ValueError, RuntimeError, TypeError, AttributeError)):
            ROW_WRITES[write](td, key, value)
        assert str(td.to_dict()) == before, (key, value)


@pytest.mark.parametrize("write", ROW_WRITES)
@pytest.mark.parametrize("kind", ["dense", "lazy"])
def test_an_object_for_a_row_is_written(kind: str, write: str) -> None:
    for value in ("new", NonTensorData("new")):
        td = KINDS[kind]()
        ROW_WRITES[write](td, "s", value)
        ROW_WRITES[write](td, "k", value)
        assert td["s"] == ["new", "x"] and td["k"] == ["new", "q"]


def test_get_of_a_class_reads_its_metadata() -> None:
    record = KINDS["class"]()
    for td in (record, lazy_stack([record, record])):
        assert td.get("batch_size") == td.get("shape") == td.batch_size
        assert td.get("device") is None and td.get("names") == td.names


# -- rows of other batch sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("locked", [False, True])
def test_an_object_a_row_is_written_over_one_for_all_rows(locked: bool, tmp_path: Path) -> None:
    td = TensorDict({"a": torch.zeros(2), "s": "x"}, [2])
    rows = torch.stack([TensorDict({"a": torch.zeros(()), "s": word}) for word in ("p", "q")])
    for write in (
        lambda to: to.update_(rows),
        lambda to: to.update(rows, inplace=True),
        lambda to: to.set_("s", NonTensorStack("p", "q")),
        lambda to: torch.stack(list(rows.unbind(0)), out=to),
    ):
        to = td.clone()
        write(to.lock_() if locked else to)
        assert to["s"] == ["p", "q"] and to[1]["s"] == "q" and to.is_locked == locked
    mapped = td.memmap(tmp_path)
    mapped.update_(rows)
    assert TensorDict.load_memmap(tmp_path)["s"] == ["p", "q"]
    with pytest.raises(RuntimeError):
        td.set_("s", NonTensorStack("p", "q", "r"))


# -- keys below tensors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", ["set_", "set_at_", "fill_", "pop", "del_", "rename_key_"])
@pytest.mark.parametrize("key", [("t", "b"), ("t", "b", "c"), ("n", "y", "d")])
@pytest.mark.parametrize("kind", ["dense", "class", "lazy", "mapped", "file"])
def test_a_key_below_a_tensor_is_told_from_one_that_is_missing(
    kind: str, key: tuple[str, ...], write: str, tmp_path: Path
) -> None:
    if kind == "file":
        pytest.importorskip("h5py")
        data: Any = lib.PersistentTensorDict.from_dict(_dense().select("t", "n"), tmp_path / "d.h5")
    else:
        data = KINDS[kind]()
    if data.is_locked and write in ("pop", "del_", "rename_key_"):
        pytest.skip("nothing is taken out of a locked collection")
    arguments = {"set_": [torch.ones(2)], "set_at_": [1.0, 0], "fill_": [1.0], "rename_key_": ["u"]}.get(write, [])
    before = data.to_tensordict()
    with pytest.raises(KeyThroughLeafError, match=f"{key[-2 if key[0] == 'n' else 0]!r} is a"):
        getattr(data, write)(key, *arguments)
    with pytest.raises(KeyError, match="missing.* not (found|in all)"):
        getattr(data, write)(("n", "missing"), *arguments)
    assert (data == before).all() and set(data.keys(True)) == set(before.keys(True))
