"""`TensorDict.arrow_types`: kept by what keeps the entries, and by nothing else."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict, tensorclass

TYPES = {"day": "date32[day]", ("in", "seen"): "timestamp[us, tz=UTC]"}


def made(rows: int = 4) -> TensorDict:
    entries = {"day": torch.arange(rows, dtype=torch.int32), "x": torch.rand(rows), "in": {"seen": torch.arange(rows)}}
    data = TensorDict(entries, [rows])
    data.arrow_types = TYPES
    return data


def saved(data: TensorDict, path: Path, archive: bool = False) -> TensorDict:
    data.memmap(path / ("data.tdz" if archive else "data"))
    return TensorDict.load_memmap(path / ("data.tdz" if archive else "data"))


KEPT: dict[str, Callable[[TensorDict, Path], Any]] = {
    "slice": lambda data, path: data[1:],
    "row": lambda data, path: data[2],
    "mask": lambda data, path: data[torch.tensor([True, False, True, False])],
    "choice": lambda data, path: data[torch.tensor([3, 0])],
    "clone": lambda data, path: data.clone(),
    "deepcopy": lambda data, path: copy.deepcopy(data),
    "pickle": lambda data, path: pickle.loads(pickle.dumps(data)),
    "cat": lambda data, path: torch.cat([data, data[:1]]),
    "stack": lambda data, path: torch.stack([data[0], data[1]]),
    "lazy stack": lambda data, path: LazyStackedTensorDict(data[0], data[1]),
    "contiguous lazy stack": lambda data, path: LazyStackedTensorDict(data[0], data[1]).contiguous(),
    "split": lambda data, path: data.split(2)[1],
    "exclude": lambda data, path: data.exclude("x"),
    "select": lambda data, path: data.select("in", "day"),
    "folder": saved,
    "archive": lambda data, path: saved(data, path, archive=True),
    "memmap_like": lambda data, path: data.memmap_like(path / "like"),
    "shared": lambda data, path: data.clone().share_memory_(),
    "update": lambda data, path: data.clone().update({"x": torch.zeros(4)}),
    "written": lambda data, path: data.clone().set("day", torch.zeros(4, dtype=torch.int32)),
    "flat and nested": lambda data, path: data.flatten_keys("/").unflatten_keys("/"),
    "flat and nested in place": lambda data, path: data.flatten_keys(inplace=True).unflatten_keys(inplace=True),
    "lock": lambda data, path: data.clone().lock_(),
}


@pytest.mark.parametrize("way", KEPT)
def test_types_stay_with_their_entries(way: str, tmp_path: Path) -> None:
    assert KEPT[way](made(), tmp_path).arrow_types == TYPES


def test_types_follow_names_and_go_with_entries() -> None:
    data = made()
    assert data.rename_keys({"day": "x", "x": "day"}).arrow_types == {
        "x": TYPES["day"],
        ("in", "seen"): TYPES["in", "seen"],
    }
    assert data.clone().rename_key_("day", ("in", "day")).arrow_types == {
        ("in", "day"): TYPES["day"],
        ("in", "seen"): TYPES["in", "seen"],
    }
    flat = {"day": TYPES["day"], "in.seen": TYPES["in", "seen"]}
    assert data.flatten_keys(".").arrow_types == data.clone().flatten_keys(inplace=True).arrow_types == flat
    less = data.clone()
    del less["day"]
    less["day"] = torch.arange(4)
    assert list(less.arrow_types) == [("in", "seen")]
    chosen = data.select("x")
    chosen["day"] = torch.arange(4)
    assert chosen.arrow_types == {}
    assert list(data.set("day", torch.rand(4)).arrow_types) == [("in", "seen")], "no longer whole numbers"
    assert made()["in"].arrow_types == {"seen": TYPES["in", "seen"]}


def test_the_classes_of_users_keep_them(tmp_path: Path) -> None:
    @tensorclass
    class Event:
        day: torch.Tensor
        x: torch.Tensor

    event = Event.from_tensordict(made().exclude("in"))
    assert event[1:].arrow_types == saved(event.to_tensordict(), tmp_path).arrow_types == {"day": TYPES["day"]}


def test_rows_of_different_types_are_not_joined() -> None:
    other = made()
    other.arrow_types = {**TYPES, "day": "time32[s]"}
    with pytest.raises(ValueError, match=r"'day' is date32\[day\] and time32\[s\]"):
        torch.cat([made(), other])


@pytest.mark.parametrize(
    ("types", "error"),
    [
        ({"no": "date32[day]"}, KeyError),
        ({"x": "date32[day]"}, TypeError),
        ({"in": "date32[day]"}, TypeError),
        ({"day": ""}, TypeError),
        ({"day": 3}, TypeError),
        ({3: "date32[day]"}, Exception),
    ],
)
def test_types_that_make_no_sense_are_told(types: Any, error: type[Exception]) -> None:
    data = made()
    with pytest.raises(error):
        data.arrow_types = types
    assert data.arrow_types == TYPES


def test_a_folder_is_what_the_reference_opens(tmp_path: Path) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    saved(made(), tmp_path)
    assert reference.load_memmap(tmp_path / "data")["in", "seen"].tolist() == [0, 1, 2, 3]
