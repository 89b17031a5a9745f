"""Lists of text, of lists and of structs: read, mapped, written and read again in every format that has them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict

pytest.importorskip("pyarrow")

from tdmap.datasets import SkippedLines, convert, from_arrow, read, to_arrow, write
from tdmap.datasets.bridges import from_huggingface, to_huggingface

ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "messages": [{"role": "user", "content": f"hi \u00e9 {number}"}, {"role": "bot", "content": "x" * number}],
        "tags": ["a"] * (number % 3),
        "grid": [[1, 2], [3]] * (number % 2),
    }
    for number in range(60)
]
NESTED = ("messages", "tags", "grid")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def check(data: TensorDict) -> None:
    assert data["id"].tolist() == [row["id"] for row in ROWS]
    for name in NESTED:
        assert data.get(name).kind == "json" and data[name] == [row[name] for row in ROWS]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet", "arrow"])
@pytest.mark.parametrize("out", [False, True])
def test_chats_are_the_same_after_each_format(lines: Path, tmp_path: Path, ending: str, out: bool) -> None:
    data = read(lines, tmp_path / "data" if out else None)
    check(data)
    write(data, tmp_path / f"again.{ending}")
    check(read(tmp_path / f"again.{ending}", num_workers=0))
    assert convert(lines, tmp_path / f"converted.{ending}", num_workers=0) == len(ROWS)
    check(read(tmp_path / f"converted.{ending}", tmp_path / "converted", num_workers=0))
    check(from_arrow(to_arrow(data)))


def test_chats_through_hugging_face(lines: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    data = read(lines, tmp_path / "data")
    check(from_huggingface(to_huggingface(data)))
    check(from_huggingface(to_huggingface(data), tmp_path / "again", num_workers=0))


def test_functions_get_and_give_objects(lines: Path, tmp_path: Path) -> None:
    def last(rows: TensorDict) -> TensorDict:
        kept = [messages[-1:] for messages in rows["messages"]]
        return rows.copy().update({"messages": Ragged.from_objects(kept)})

    data = read(lines, tmp_path / "data")
    found = tdmap.map(data, last, out=tmp_path / "last", num_workers=2, chunksize=7)
    assert found["messages"] == [row["messages"][-1:] for row in ROWS]
    few = tdmap.filter(data, lambda rows: torch.tensor([len(tags) == 2 for tags in rows["tags"]]), num_workers=0)
    assert few["messages"] == [row["messages"] for row in ROWS[2::3]]


def test_types_that_differ_are_told_and_json_lines_keep_them(tmp_path: Path) -> None:
    rows = [[{"x": 1}], [{"x": "one"}]]
    data = TensorDict({"mixed": Ragged.from_objects(rows), "n": torch.arange(2)}, [2])
    write(data, tmp_path / "mixed.jsonl")
    assert [json.loads(line)["mixed"] for line in (tmp_path / "mixed.jsonl").read_text().splitlines()] == rows
    with pytest.raises(TypeError, match="'mixed' holds JSON values that have no type of Arrow's in common"):
        write(data, tmp_path / "mixed.parquet")
    assert not (tmp_path / "mixed.parquet").exists()


@pytest.mark.parametrize("values", ["times", "bytes"])
def test_what_json_has_not_is_told(values: str) -> None:
    import pyarrow as pa

    column = pa.array([[[b"a"]], []]) if values == "bytes" else pa.array([[], []], pa.list_(pa.list_(pa.date32())))
    with pytest.raises(TypeError, match="the column 'x' is of the type list.*JSON has no (binary|date32)"):
        from_arrow(pa.table({"x": column}))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.zst", "json", "parquet", "arrow", "csv", "npz", "h5", "zarr"])
@pytest.mark.parametrize("by", ["write", "convert"])
def test_columns_keep_their_order_and_their_nulls(ending: str, by: str, tmp_path: Path) -> None:
    """JSON values too, beside other columns and within a nested one, as far as a format has them."""
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    objects = ending.startswith(("json", "parquet", "arrow"))
    columns: dict[str, Any] = {"z": torch.arange(3)}
    if objects:
        columns["chat"] = Ragged.from_objects([[{"r": "a"}], None, [{"r": "\u00e9"}]])
        columns["chat.valid"] = torch.tensor([True, False, True])
        inner = {"b": torch.ones(3), "tags": Ragged.from_objects([["x"], [], ["y"]]), "a": torch.zeros(3)}
        columns["m"] = TensorDict(inner, [3])
    if ending != "zarr":
        columns["t"] = Ragged.from_list(["p", "", "q"])
    columns["a"] = torch.ones(3)
    data = TensorDict(columns, [3])
    nulls = "mask" if objects else None
    if by == "write":
        write(data, tmp_path / f"x.{ending}", nulls=nulls)
    else:
        convert(data.memmap(tmp_path / "data")._memmap_path, tmp_path / f"x.{ending}", nulls=nulls or "raise")
    found = read(tmp_path / f"x.{ending}", nulls=nulls or "raise", num_workers=0)
    names = [str(key) for key in found.keys() if not str(key).endswith(".valid")]
    expected = [name for name in columns if name != "chat.valid"]
    assert [name.partition(".")[0] for name in names] == expected
    if objects:
        assert found["chat"] == data["chat"] and found["chat.valid"].tolist() == [True, False, True]
        assert [key for key in found["m"].keys() if not key.endswith(".valid")] == ["b", "tags", "a"]
    if ending == "jsonl":
        lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
        assert [list(line) for line in lines] == [expected] * 3 and list(lines[0]["m"]) == ["b", "tags", "a"]
        with pytest.raises(TypeError, match="the column 'm.raw' is bytes"):
            write({"m": TensorDict({"raw": Ragged.from_list([b"a"])}, [1])}, tmp_path / "y.jsonl")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_row_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    """Saved, loaded and given to Arrow; Parquet, which holds no such value, is a named error."""
    rows = 1 << 31
    values = torch.full((rows + 3,), 97, dtype=torch.uint8)
    data = TensorDict({"t": Ragged(values, torch.tensor([0, 1, rows + 1, rows + 3]), "str")}, [3])
    data.memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    assert data.get("t").lengths.tolist() == [1, rows, 2] and data[2]["t"] == "aa"
    assert len(to_arrow(data)["t"][1].as_buffer()) == rows
    with pytest.raises(ValueError, match=f"column 't' has a value of {rows:,} bytes, and Parquet allows less"):
        write(data, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


TORN = {"jsonl": ('{"id": 1, "t": "a"}', '{"id": 2, "t": "b', "garbage", '{"id": 3, "t": "c"}')}
TORN["csv"] = ("id,t", "1,a", "2", "2,b,c", '3,"c\nd"')


@pytest.mark.parametrize("ending", TORN)
@pytest.mark.parametrize("out", [False, True])
def test_torn_lines_are_left_out_and_told(tmp_path: Path, ending: str, out: bool) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_text("\n".join(TORN[ending]))
    with pytest.raises(ValueError, match=f"(?s){path}.*on_error='skip' leaves out"):
        read(path)
    torn: list[Any] = []
    data = read(path, tmp_path / "data" if out else None, on_error=torn.append)
    assert data["id"].tolist() == [1, 3]
    numbers = (2, 3) if ending == "jsonl" else (3, 4)
    assert [(one.file, one.line, one.text) for one in torn] == [
        (str(path), number, TORN[ending][number - 1]) for number in numbers
    ]
    for name in ("x.jsonl", "x.parquet", "folder"):
        again: list[Any] = []
        assert convert(path, tmp_path / name, on_error=again.append, num_workers=0) == 2 and again == torn
    with pytest.warns(SkippedLines, match=rf"(?s)2 lines .*{path.name}, line {numbers[0]}") as caught:
        read(path, on_error="skip")
    assert caught.pop(SkippedLines).message.lines == torn
    for source in (tmp_path / "folder", tmp_path / "x.parquet"):
        with pytest.raises(ValueError, match="on_error='skip'.* for lines of CSV and JSON Lines, and .*(folder|parq)"):
            convert(source, tmp_path / "y.jsonl", on_error="skip")
    with pytest.raises(ValueError, match="for lines of CSV and JSON Lines, and this is parquet"):
        write(data, tmp_path / "x.parquet")
        read(tmp_path / "x.parquet", on_error="skip")


def test_a_value_that_does_not_fit_is_an_error_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n{"id": "one"}\n')
    with pytest.raises(ValueError, match="id"):
        read(path, on_error="skip")


GROWING: dict[str, list[Any]] = {
    "fields that come late": [[{"a": 1}], [], [{"b": None}], [{"b": ["x"], "a": None}]],
    "fractions": [[1], [2], [2.5], []],
    "nothing first": [[], [], [["x"]], [[]]],
    "text that looks like times": [["2024-01-01 00:00:00"], ["2024-01-01"], ["x"], ['"\\\n\u0001']],
    "whole numbers of 64 bits": [[2**60 + 1], [2**53 + 1], [0], [-(2**63)]],
}


@pytest.mark.parametrize("values", GROWING)
@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize("by", ["write", "convert"])
def test_types_that_grow_hold_all_rows(tmp_path: Path, values: str, ending: str, by: str) -> None:
    """Whichever rows are looked at together: a row at a time, or all of them."""
    rows = GROWING[values] * 3
    data = TensorDict({"v": Ragged.from_objects(rows), "n": torch.arange(12)}, [12])
    for batch in (1, 5, 12):
        if by == "write":
            write(data, tmp_path / f"x.{ending}", batch_rows=batch)
        else:
            write(data, tmp_path / "y.jsonl", batch_rows=batch)
            assert convert(tmp_path / "y.jsonl", tmp_path / f"x.{ending}") == 12
        found = read(tmp_path / f"x.{ending}", num_workers=0, nulls="mask")
        assert list(map(without_nulls, found.get("v").tolist())) == list(map(without_nulls, rows))
    assert not list(tmp_path.glob(".*"))


def without_nulls(value: Any) -> Any:
    """A value without fields that are None, which structs of Arrow have in every row."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value
