"""The order of the columns of a table, and which of its numbers are times: against Arrow, pandas and NumPy."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.datasets import Jagged, Table, convert, from_arrow, from_pandas, read, to_arrow, to_pandas, write
from tdmap.errors import OutputMismatch
from tdmap.reducers import Count, First, Max, Mean, Min
from tensordict_lite import TensorDict, is_non_tensor
from tensordict_lite.errors import DatasetError
from tests.memmap.test_planted import PLANTED

pa = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")

ROWS = 30
NAMES = ["zebra", "day", "word", "x", "seen", "apple", "took", "clock", "ids", "b c", "ü"]


def frame(seed: int = 0, rows: int = ROWS) -> Any:
    """An Arrow table with columns of every kind of times between others, in no order of the alphabet."""
    choose = random.Random(seed)
    words = pa.array([choose.choice(["ant", "bee", ""]) for _ in range(rows)], pa.large_string())
    numbers = pa.array([choose.randrange(9) for _ in range(rows)], pa.int64())

    def times(kind: Any, most: int) -> Any:
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([choose.randrange(most) for _ in range(rows)], width).view(kind)

    columns = {
        "zebra": words,
        "day": times(pa.date32(), 20_000),
        "word": words,
        "x": numbers,
        "seen": times(pa.timestamp("us", choose.choice([None, "UTC", "+05:30"])), 10**15),
        "apple": words,
        "took": times(pa.duration("ms"), 10**6),
        "clock": times(pa.time64("us"), 86_400 * 10**6),
        "ids": pa.array([list(range(choose.randrange(3))) for _ in range(rows)], pa.large_list(pa.int64())),
        "b c": times(pa.timestamp("ns"), 10**18),
        "ü": numbers,
    }
    return pa.table({name: columns[name] for name in choose.sample(NAMES, choose.randint(2, len(NAMES)))})


@pytest.mark.parametrize("seed", range(20))
def test_a_table_that_goes_through_a_dataset_is_the_same(tmp_path: Path, seed: int) -> None:
    rows = frame(seed, seed % 4 * 10)
    write(rows_of := from_arrow(rows), tmp_path / "x.parquet", batch_rows=7)
    made = {
        "memory": rows_of,
        "folder": from_arrow(rows, tmp_path / "a"),
        "saved": rows_of.save(tmp_path / "b", batch_rows=7),
        "parquet": read(tmp_path / "x.parquet", tmp_path / "c", num_workers=0),
        "stream": read(tmp_path / "x.parquet"),
        "taken": rows_of.take(torch.arange(len(rows)), tmp_path / "d", num_workers=0),
    }
    for name, table in made.items():
        assert table.keys() == rows.column_names, name
        assert to_arrow(table).equals(rows), name
    assert list(Table.open(tmp_path / "c").types) == rows.column_names
    assert to_pandas(made["folder"]).equals(rows.to_pandas())


def test_data_frames_of_pandas_come_back(tmp_path: Path) -> None:
    times = pandas.date_range("2020-03-01", periods=3, tz="Europe/Zurich")
    before = pandas.DataFrame({"s": ["a", "b", "c"], "t": times, "a": [1, 2, 3], "d": times - times[0]})
    for out in (None, tmp_path / "out"):
        after = to_pandas(from_pandas(before, out))
        pandas.testing.assert_frame_equal(after, before, check_dtype=False)
        assert after["t"].tolist() == before["t"].tolist() and after["d"].tolist() == before["d"].tolist()


def test_nanoseconds_of_a_day_are_not_cut_off() -> None:
    table = from_arrow(pa.table({"clock": pa.array([1001], pa.time64("ns"))}))
    with pytest.raises(ValueError, match="has its numbers without their type"):
        to_pandas(table)
    assert to_pandas(Table(table.rows, table.jagged))["clock"].tolist() == [1001]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "arrow", "parquet"])
def test_dates_are_dates_in_files(tmp_path: Path, ending: str) -> None:
    day = datetime.date(2024, 2, 29)
    noon = pa.array([datetime.datetime(2024, 2, 29, 12)], "timestamp[s]")
    rows = pa.table({"name": ["leap"], "day": [day], "at": noon, "took": pa.array([5], pa.duration("s"))})
    from_arrow(rows, tmp_path / "data")
    assert convert(tmp_path / "data", tmp_path / f"x.{ending}") == 1
    text = (tmp_path / f"x.{ending}").read_bytes()
    if ending in ("csv", "tsv", "jsonl"):
        assert b"2024-02-29" in text and b"2024-02-29 12:00:00" in text
    back = read(tmp_path / f"x.{ending}")
    assert back.keys() == rows.column_names
    if ending != "jsonl":  # where a day is text, and Arrow takes it for a time
        assert to_arrow(back)["day"].to_pylist() == [day]
    assert to_arrow(back)["at"].to_pylist() == [datetime.datetime(2024, 2, 29, 12)]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_large_numbers_stay_where_they_are(tmp_path: Path, ending: str) -> None:
    write(
        {"word": ["a"], "n": torch.tensor([2**64 - 1], dtype=torch.uint64), "x": torch.ones(1)},
        tmp_path / f"x.{ending}",
    )
    table = read(tmp_path / f"x.{ending}")
    assert table.keys() == ["word", "n", "x"] and table["n"].tolist() == [2**64 - 1]


@pytest.mark.parametrize("ending", ["npz", "h5", "zarr", "tar"])
def test_other_formats_keep_the_order(tmp_path: Path, ending: str) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    write({"zebra.npy": torch.arange(2), "ant.npy": torch.arange(2)}, tmp_path / f"x.{ending}")
    assert read(tmp_path / f"x.{ending}").keys()[:2] == ["zebra.npy", "ant.npy"]


def test_numpy_has_dates(tmp_path: Path) -> None:
    times = {"t": np.array(["2020-01-01", "2021-01-01"], "M8[ms]"), "d": np.array([1, 2], "m8[us]"),
             "day": np.array(["2020-01-01", "2021-01-01"], "M8[D]"), "x": np.arange(2)}  # fmt: skip
    np.savez(tmp_path / "x.npz", **times)
    table = read(tmp_path / "x.npz", tmp_path / "out")
    assert table.types == {"t": "timestamp[ms]", "d": "duration[us]", "day": "date32[day]", "x": ""}
    write(table, tmp_path / "y.npz")
    back = np.load(tmp_path / "y.npz")
    for name, values in times.items():
        assert back[name].dtype == values.dtype and back[name].tolist() == values.tolist()


@pytest.mark.parametrize("out", [False, True])
def test_operations_keep_order_and_types(tmp_path: Path, out: bool) -> None:
    words, days = ["ant", "bee", "cow"] * 10, [1, 1, 2, 3, 5] * 6
    rows = pa.table({"zebra": words, "day": pa.array(days, pa.int32()).cast(pa.date32()),
                     "at": pa.array(range(ROWS), pa.timestamp("s"))})  # fmt: skip
    table = from_arrow(rows, tmp_path / "in")
    place = lambda name: tmp_path / name if out else None  # noqa: E731
    types = {"zebra": "", "day": "date32[day]", "at": "timestamp[s]"}
    options: Any = {"num_workers": 0}
    found = {
        "filter": table.filter(tdmap.col("zebra") != "ant", place("filter"), **options),
        "map": table.map(lambda part: part[part["at"] > 3], place("map"), chunksize=4, **options),
        "sort": table.sort("day", place("sort"), **options),
        "shuffle": table.shuffle(place("shuffle"), seed=0, **options),
        "sample": table.sample(5, place("sample"), seed=0, **options),
        "top_k": table.top_k("at", 3, place("top"), **options),
        "join": table.join(table.select("at"), "at", "inner", place("join"), **options),
        "top of groups": table.group_by("zebra").top_k("at", 2, out=place("groups"), **options),
    }  # fmt: skip
    for name, one in found.items():
        assert {column: one.types[column] for column in types} == types, name
        assert [column for column in one.keys() if column in types] == list(types), name
        for part in (one[:2], one.head(1), Table.cat([one, one])):
            assert list(part.types.items()) == list(one.types.items()), name
    renamed = table.rename({"at": "when"}).exclude("day")
    assert renamed.types == {"zebra": "", "when": "timestamp[s]"}
    assert table.select("at", "zebra").types == {"at": "timestamp[s]", "zebra": ""}
    keyed = {
        "reduce": tdmap.group_by(table, "day").reduce({"n": Count()}, out=place("reduce"), **options),
        "agg": tdmap.group_by(table, ["day"]).agg({"n": ("at", "count")}, out=place("agg"), **options),
        "unique": tdmap.unique(table, "day", place("unique"), **options),
        "value_counts": tdmap.value_counts(table, "day", place("counts"), **options),
    }
    for name, one in keyed.items():
        assert one.types["day"] == "date32[day]" and one.keys()[0] == "day", name
    ends = {"n": Count(), "from": Min("at"), "to": Max("at"), "begin": First("day"), "mean": Mean("at")}
    figures = tdmap.group_by(table, "zebra").reduce(ends, out=place("ends"), **options)
    times = {"zebra": "", "n": "", "from": "timestamp[s]", "to": "timestamp[s]", "begin": "date32[day]", "mean": ""}
    assert list(figures.types.items()) == list(times.items())
    named = table.group_by("zebra").agg({"at": ["min", "median"], "end": ("day", "last")}, out=place("ag"), **options)
    assert named.types["at.min"] == "timestamp[s]" and named.types["end"] == "date32[day]"
    assert named.types["at.median"] == ""
    outer = table.join(table.rename({"zebra": "other"}), "day", "outer", place("outer"), suffix="2", **options)
    assert outer.types["day"] == "date32[day]" and outer.types["at2"] == outer.types["at"] == "timestamp[s]"


def test_equal_numbers_that_are_different_times_are_told(tmp_path: Path) -> None:
    def of(kind: str) -> Any:
        return from_arrow(pa.table({"word": ["a"], "t": pa.array([5], kind)}))

    seconds, millis = of("timestamp[s]"), of("timestamp[ms]")
    with pytest.raises(ValueError, match=r"'t' is timestamp\[s\] and timestamp\[ms\]"):
        torch.cat([seconds, millis])
    with pytest.raises(TypeError, match=r"'t' and 't' are timestamp\[s\] and timestamp\[ms\]"):
        tdmap.join(seconds, millis, "t", num_workers=0)
    assert len(tdmap.join(seconds, of("int64"), "t", num_workers=0)) == 1
    for number, data in enumerate((seconds, millis)):
        write(data, tmp_path / f"{number}.arrow")
        data.memmap(tmp_path / "folders" / str(number))
    for out in (None, tmp_path / "out"):
        with pytest.raises(ValueError, match=r"'t' is timestamp\[s\] and timestamp\[ms\]"):
            read(tmp_path / "*.arrow", out)
    with pytest.raises(ValueError, match=r"'t' is timestamp\[ms\] and plain numbers"):
        torch.cat([millis, of("int64")])
    two = torch.cat([seconds, seconds])
    two["t"][1] = 0
    for call in (tdmap.map, tdmap.flat_map):
        for out in (None, tmp_path / call.__name__):
            with pytest.raises(OutputMismatch, match=r"'t' is timestamp\[s\] and timestamp\[ms\]"):
                call(two, lambda rows: seconds if rows["t"][0] else millis, out=out, chunksize=1, num_workers=0)
    with pytest.raises(ValueError, match=r"'t' is timestamp\[s\] and timestamp\[ms\]"):
        tdmap.concat([seconds, millis])
    with pytest.raises(DatasetError, match="timestamp"):
        tdmap.open(tmp_path / "folders")


def test_numbers_of_different_kinds_are_not_made_one(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text(f"n\n{2**53 + 1}\n")
    (tmp_path / "1.csv").write_text("n\n0.5\n")
    with pytest.raises(ValueError, match=r"0\.csv: the column 'n' has the whole number 9007199254740993 in row 0"):
        read(tmp_path / "*.csv")
    with pytest.raises(FileNotFoundError, match="an empty list"):
        read([])


@pytest.mark.parametrize("content", [3, [], {"t": 1}, "x" * 10_000, ""], ids=str)
def test_other_content_is_no_type(tmp_path: Path, content: Any) -> None:
    from_arrow(pa.table({"word": ["a"], "t": pa.array([5], "timestamp[s]")}), tmp_path / "out")
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["t"]["arrow"] == "timestamp[s]"
    meta["t"]["arrow"] = content
    (tmp_path / "out" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DatasetError, match="'arrow' of 't' should be the name of a type"):
        TensorDict.load_memmap(tmp_path / "out")


def test_a_type_that_arrow_lacks_is_told(tmp_path: Path) -> None:
    data = TensorDict({"t": torch.arange(2)}, [2])
    data.arrow_types = {"t": "fortnight"}
    with pytest.raises((TypeError, ValueError), match="'t' .*fortnight"):
        to_arrow(data)
    with pytest.raises((TypeError, ValueError), match="'t' .*fortnight"):
        write(data, tmp_path / "x.csv")
    assert tdmap.filter(data, lambda rows: rows["t"] > 0, num_workers=0).arrow_types == {"t": "fortnight"}


def test_numbers_that_are_times_no_more_are_numbers() -> None:
    data = TensorDict({"t": torch.tensor([1], dtype=torch.int32)}, [1])
    data.arrow_types = {"t": "date32[day]"}
    data["t"] = torch.tensor([1])
    assert to_arrow(data)["t"].to_pylist() == [1]  # 64 bits
    data["t"] = torch.tensor([0.5])
    assert data.arrow_types == {} and to_arrow(data)["t"].to_pylist() == [0.5]


def _columns(names: list[str]) -> dict[str, Any]:
    return {name: torch.arange(3) + number for number, name in enumerate(names)}


@pytest.mark.parametrize(
    "names",
    [
        ["", "score", "n"],
        ["b", "", "a"],
        [""],
        ["shape", "other", "z"],
        ["device", "_type", "x", "_entries"],
        ["x.valid", "x", "a"],
        ["b", "b.valid", "a", "a.valid"],
        ["rows", "jagged", "a/b", "values", "offsets", "kind"],
    ],
)
@pytest.mark.parametrize("text", ["none", "first", "all"])
def test_columns_of_any_name_keep_their_order_and_values(tmp_path: Path, names: list[str], text: str) -> None:
    columns = _columns(names)
    for name in names[: {"none": 0, "first": 1, "all": len(names)}[text]]:
        columns[name] = Ragged.from_list([f"{name}:{number}" for number in range(3)])
    table = TensorDict(columns, [3])
    write(table, tmp_path / "x.parquet")
    write(table, tmp_path / "x.csv")
    made = {
        "saved": table.memmap(tmp_path / "a"),
        "arrow": from_arrow(to_arrow(table), tmp_path / "b"),
        "parquet": read(tmp_path / "x.parquet", tmp_path / "c", num_workers=0),
        "csv": read(tmp_path / "x.csv", tmp_path / "d"),
        "map": tdmap.map(table, lambda rows: rows, out=tmp_path / "e", num_workers=0),
        "sort": tdmap.sort(table, names[0], tmp_path / "f", num_workers=0),
        "filter": tdmap.filter(table, lambda rows: [True] * len(rows), tmp_path / "g", num_workers=0),
    }
    convert(tmp_path / "a", tmp_path / "y.arrow")
    made["converted"] = read(tmp_path / "y.arrow")
    for name, one in made.items():
        assert list(one.keys()) == names, name
        assert to_arrow(one).to_pydict() == to_arrow(table).to_pydict(), name


def test_masks_stand_behind_their_columns_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("b,a\n1,2\n3,\n")
    for out in (None, tmp_path / "out"):
        assert list(read(tmp_path / "x.csv", out, nulls="mask").keys()) == ["b", "b.valid", "a", "a.valid"]


def test_times_of_dictionaries_are_times(tmp_path: Path) -> None:
    days = pa.array([datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 1)]).dictionary_encode()
    for out in (None, tmp_path / "out"):
        found = from_arrow(pa.table({"day": days}), out, nulls="mask")
        assert to_arrow(found, nulls="mask")["day"].to_pylist() == days.to_pylist()
    times = pandas.Series(pandas.to_datetime(["2020-01-01", "2021-01-01"])).astype("category")
    assert from_pandas(pandas.DataFrame({"t": times})).arrow_types["t"].startswith("timestamp[")
