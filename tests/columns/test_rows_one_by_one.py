"""Single rows of `map(chunksize=0)`, `map_rows` and `map_groups` keep ragged entries as chunks of several rows do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict
from tests.products import sampled

KINDS: dict[str, Ragged] = {
    "text": Ragged.from_list(["ant", "", "bee", "\u00e9", "ant", "c" * 40]),
    "text with None": Ragged.from_list(["ant", None, "", None, None, "bee"]),
    "bytes": Ragged.from_list([b"ant", b"", b"\xff", b"b", b"ant", b"c" * 40]),
    "numbers": Ragged.from_list([[1, 2], [3], [], [4, 5], [6], [7, 8, 9]]),
    "numbers of one length": Ragged.from_list([[1.5, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12]]),
    "pairs": Ragged.from_list([torch.full((n, 2), n) for n in (1, 0, 2, 3, 0, 1)]),
    "json": Ragged.from_objects([[{"role": "user"}], None, "text", {"a": [1]}, 3, []]),
}
OUT = ("memory", "folder", "resume", "given", "in place", "shards", "drop")
NEW = ("memory", "folder", "shards")


def made(kind: str) -> TensorDict:
    return TensorDict({"x": torch.arange(6), "in": {"w": KINDS[kind].clone()}, "y": torch.arange(6)}, [6])


def same(rows: TensorDict) -> TensorDict:
    return rows


def as_dict(rows: TensorDict) -> dict[str, Any]:
    return {"x": rows["x"], "in": rows["in"], "y": rows["y"]}


def bad_row(rows: TensorDict) -> TensorDict:
    if (rows["x"] == 2).any():
        raise ValueError("a bad row")
    return rows


def renamed(row: TensorDict) -> TensorDict:
    """Rows of a new entry: `Ragged` of one row; bytes are taken as they are."""
    column = row["in"].get("w")
    if not isinstance(column, torch.Tensor):
        column = column.data
    new = column if isinstance(column, bytes) else Ragged.from_list([column])
    return TensorDict({"x": row["x"], "new": new, "y": row["y"]}, [])


def into(out: str, data: TensorDict, folder: Path) -> dict[str, Any]:
    other = data[[5, 4, 3, 2, 1, 0]].clone() if out == "given" else None
    return {
        "memory": {},
        "folder": {"out": folder},
        "resume": {"out": folder, "resume": True},
        "given": {"out": other},
        "in place": {"out": data},
        "shards": {"out": folder, "rows_per_shard": 4},
        "drop": {"out": folder, "on_error": tdmap.RowErrors("drop")},
    }[out]


@pytest.mark.parametrize("kind, out, chunksize, workers", sampled(2, KINDS, OUT, [0, 1, 4], [0, 2]))
def test_ragged_entries_stay_ragged(kind: str, out: str, chunksize: int, workers: int, tmp_path: Path) -> None:
    fn = bad_row if out == "drop" else same if workers else as_dict
    data = made(kind)
    result = tdmap.map(data, fn, chunksize=chunksize, num_workers=workers, **into(out, data, tmp_path / "out"))
    if out == "shards":
        result = result.contiguous()
    rows = [n for n in range(6) if out != "drop" or n != 2]
    column = result.get(("in", "w"))
    assert type(column) is Ragged and column.kind == KINDS[kind].kind and column.dtype == KINDS[kind].dtype
    assert result["x"].tolist() == rows
    assert column.tolist() == KINDS[kind][rows].tolist()
    assert list(result.keys())[:3] == ["x", "in", "y"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("text with None", "json")])
@pytest.mark.parametrize("out", NEW)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_ragged_of_one_row_is_a_row_of_a_new_entry(kind: str, out: str, workers: int, tmp_path: Path) -> None:
    data = made(kind)
    result = tdmap.map(data, renamed, chunksize=0, num_workers=workers, **into(out, data, tmp_path / "out"))
    column = (result.contiguous() if out == "shards" else result).get("new")
    assert type(column) is Ragged and column.tolist() == KINDS[kind].tolist()


BYTES: dict[str, Callable[..., Any]] = {
    "map": lambda data, **how: tdmap.map(data, same, chunksize=4, **how),
    "flat_map": lambda data, **how: tdmap.flat_map(data, same, chunksize=4, **how),
    "filter": lambda data, **how: tdmap.filter(data, lambda rows: rows["x"] >= 0, **how),
    "shuffle": lambda data, **how: tdmap.sort(tdmap.shuffle(data, 1, num_workers=0), "x", **how),
    "sort": lambda data, **how: tdmap.sort(data, "x", **how),
}


@pytest.mark.parametrize("out", NEW)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", BYTES)
def test_a_list_of_bytes_is_a_ragged_entry_of_a_folder(name: str, out: str, workers: int, tmp_path: Path) -> None:
    data = TensorDict({"x": torch.arange(6), "new": KINDS["bytes"].tolist()}, [6])
    result = BYTES[name](data, num_workers=workers, **into(out, data, tmp_path / "out"))
    column = (result.contiguous() if out == "shards" else result).get("new")
    assert column.tolist() == KINDS["bytes"].tolist() and (out == "memory" or type(column) is Ragged)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_map_rows_keeps_ragged_entries(kind: str, workers: int) -> None:
    result = made(kind).pipeline().map_rows(as_dict).collect(num_workers=workers)
    column = result.get(("in", "w"))
    assert type(column) is Ragged and column.kind == KINDS[kind].kind and column.tolist() == KINDS[kind].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("returned", ["a row", "rows and a row"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_of_a_group_keeps_ragged_entries(kind: str, returned: str, workers: int) -> None:
    data = made(kind).set("group", torch.tensor([2, 1, 0, 2, 1, 0]))

    def first(rows: TensorDict) -> TensorDict:
        return rows[:1] if returned != "a row" and rows["group"][0] == 1 else rows[0]

    result = tdmap.group_by(data, "group").map_groups(first, num_workers=workers)
    column = result.get(("in", "w"))
    assert type(column) is Ragged and column.kind == KINDS[kind].kind and column.dtype == KINDS[kind].dtype
    assert column.tolist() == KINDS[kind][[2, 1, 0]].tolist() and result["x"].tolist() == [2, 1, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_ragged_of_one_row_is_the_row_of_a_group(workers: int) -> None:
    data = TensorDict({"group": torch.tensor([1, 0, 1]), "x": torch.arange(3)}, [3])
    listed = tdmap.group_by(data, "group").map_groups(
        lambda rows: TensorDict({"xs": Ragged.from_list([rows["x"].tolist()])}, []), num_workers=workers
    )
    assert listed.get("xs").tolist() == [[1], [0, 2]]


def first_element(row: TensorDict) -> TensorDict:
    return TensorDict({"x": row["x"], "in": {"w": row["in", "w"].sum()}}, [])


@pytest.mark.parametrize("out", NEW)
def test_one_number_a_row_is_a_tensor(out: str, tmp_path: Path) -> None:
    data = made("numbers")
    result = tdmap.map(data, first_element, chunksize=0, num_workers=0, **into(out, data, tmp_path / "out"))
    assert result["in", "w"].tolist() == [3, 3, 0, 9, 6, 24]


@pytest.mark.parametrize("out", [out for out in NEW if out != "memory"])  # there, they become a lazy stack
def test_rows_of_another_length_say_what_to_return(out: str, tmp_path: Path) -> None:
    data = TensorDict({"x": torch.arange(3)}, [3])
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"'y'.*rows of different lengths are a .*Ragged"):
        tdmap.map(
            data,
            lambda row: TensorDict({"y": torch.arange(int(row["x"]))}, []),
            chunksize=0,
            num_workers=0,
            **into(out, data, tmp_path / "out"),
        )
