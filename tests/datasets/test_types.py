"""The order of columns, and which of their numbers are times: against Arrow, pandas and NumPy."""

import datetime
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.datasets import convert, from_arrow, from_pandas, read, to_arrow, to_pandas, write
from tdmap.errors import OutputMismatch
from tdmap.reducers import Count, First, Max, Mean, Min
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.errors import DatasetError

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
        "saved": rows_of.memmap(tmp_path / "b"),
        "pickled": pickle.loads(pickle.dumps(rows_of)),
        "parquet": read(tmp_path / "x.parquet", tmp_path / "c", num_workers=0),
        "stream": read(tmp_path / "x.parquet"),
        "taken": rows_of[torch.arange(len(rows))],
    }
    for name, table in made.items():
        assert list(table.keys()) == rows.column_names, name
        assert to_arrow(table).equals(rows), name
    assert list(TensorDict.load_memmap(tmp_path / "c").keys()) == rows.column_names
    assert to_pandas(made["folder"]).equals(rows.to_pandas())


def test_data_frames_of_pandas_come_back(tmp_path: Path) -> None:
    times = pandas.date_range("2020-03-01", periods=3, tz="Europe/Zurich")
    before = pandas.DataFrame({"s": ["a", "b", "c"], "t": times, "a": [1, 2, 3], "d": times - times[0]})
    for out in (None, tmp_path / "out"):
        after = to_pandas(from_pandas(before, out))
        pandas.testing.assert_frame_equal(after, before, check_dtype=False)
        assert after["t"].tolist() == before["t"].tolist() and after["d"].tolist() == before["d"].tolist()


def test_nanoseconds_of_a_day_are_not_cut_off() -> None:
    data = from_arrow(pa.table({"clock": pa.array([1001], pa.time64("ns"))}))
    with pytest.raises(ValueError, match=r"data\.arrow_types = \{\} makes plain numbers"):
        to_pandas(data)
    data.arrow_types = {}
    assert to_pandas(data)["clock"].tolist() == [1001]


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
    assert list(back.keys()) == rows.column_names
    if ending != "jsonl":  # where a day is text, and Arrow takes it for a time
        assert to_arrow(back)["day"].to_pylist() == [day]
    assert to_arrow(back)["at"].to_pylist() == [datetime.datetime(2024, 2, 29, 12)]


def test_numpy_has_dates(tmp_path: Path) -> None:
    times = {"t": np.array(["2020-01-01", "2021-01-01"], "M8[ms]"), "d": np.array([1, 2], "m8[us]"),
             "day": np.array(["2020-01-01", "2021-01-01"], "M8[D]"), "x": np.arange(2)}  # fmt: skip
    np.savez(tmp_path / "x.npz", **times)
    table = read(tmp_path / "x.npz", tmp_path / "out")
    assert table.arrow_types == {"t": "timestamp[ms]", "d": "duration[us]", "day": "date32[day]"}
    write(table, tmp_path / "y.npz")
    back = np.load(tmp_path / "y.npz")
    for name, values in times.items():
        assert back[name].dtype == values.dtype and back[name].tolist() == values.tolist()


TIMES = {"day": "date32[day]", "at": "timestamp[s]"}
COL = tdmap.col("zebra")


def group(data: Any, key: Any = "zebra") -> Any:
    return tdmap.group_by(data, key)


def kept(rows: TensorDict) -> TensorDict:
    return rows[rows["at"] > 3]


OPERATIONS: dict[str, tuple[Any, dict[str, str]]] = {
    "filter": (lambda data, **o: tdmap.filter(data, COL != "ant", **o), TIMES),
    "filter by a function": (lambda data, **o: tdmap.filter(data, lambda rows: rows["at"] > 3, **o), TIMES),
    "map": (lambda data, **o: tdmap.map(data, lambda rows: rows, **o), TIMES),
    "flat_map": (lambda data, **o: tdmap.flat_map(data, kept, chunksize=4, **o), TIMES),
    "sort": (lambda data, **o: tdmap.sort(data, "day", **o), TIMES),
    "shuffle": (lambda data, **o: tdmap.shuffle(data, seed=0, **o), TIMES),
    "sample": (lambda data, **o: tdmap.sample(data, 5, seed=0, **o), TIMES),
    "top_k": (lambda data, **o: tdmap.top_k(data, "at", 3, **o), TIMES),
    "drop_duplicates": (lambda data, **o: tdmap.drop_duplicates(data, "day", **o), TIMES),
    "semi join": (lambda data, **o: tdmap.join(data, data.select("at"), "at", how="semi", **o), TIMES),
    "inner join": (lambda data, **o: tdmap.join(data, data.select("at"), "at", **o), TIMES),
    "outer join": (
        lambda data, **o: tdmap.join(
            data, renamed(data[:], zebra="other"), "day", how="outer", suffixes=("", "2"), **o
        ),
        {**TIMES, "at2": "timestamp[s]"},
    ),
    "top of groups": (lambda data, **o: group(data).top_k("at", 2, **o), TIMES),
    "map_groups": (lambda data, **o: group(data).map_groups(lambda rows: rows[:1], **o), TIMES),
    "reduce": (lambda data, **o: group(data, "day").reduce({"n": Count()}, **o), {"day": TIMES["day"]}),
    "agg": (lambda data, **o: group(data, ["day"]).agg({"n": ("at", "count")}, **o), {"day": TIMES["day"]}),
    "unique": (lambda data, **o: tdmap.unique(data, "day", **o), {"day": TIMES["day"]}),
    "value_counts": (lambda data, **o: tdmap.value_counts(data, "day", **o), {"day": TIMES["day"]}),
    "ends of groups": (
        lambda data, **o: group(data).reduce(
            {"n": Count(), "from": Min("at"), "to": Max("at"), "begin": First("day"), "mean": Mean("at")}, **o
        ),
        {"from": TIMES["at"], "to": TIMES["at"], "begin": TIMES["day"]},
    ),
    "figures of groups": (
        lambda data, **o: group(data).agg({"at": ["min", "median"], "end": ("day", "last")}, **o),
        {"at.min": TIMES["at"], "end": TIMES["day"]},
    ),
}


def renamed(data: TensorDict, **names: str) -> TensorDict:
    found = data.select(*data.keys())
    for old, new in names.items():
        found.rename_key_(old, new)
    return found


def times_in(data: Any) -> dict[str, str]:
    return {key if isinstance(key, str) else ".".join(key): name for key, name in data.arrow_types.items()}


@pytest.mark.parametrize("source", ["memory", "folder", "shards"])
@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_keep_order_and_types(tmp_path: Path, operation: str, out: bool, source: str) -> None:
    words, days = ["ant", "bee", "cow"] * 10, [1, 1, 2, 3, 5] * 6
    rows = pa.table({"zebra": words, "day": pa.array(days, pa.int32()).cast(pa.date32()),
                     "at": pa.array(range(ROWS), pa.timestamp("s"))})  # fmt: skip
    data = from_arrow(rows, tmp_path / "in" if source == "folder" else None)
    if source == "shards":
        for number, part in enumerate(data.split(12)):
            part.memmap(tmp_path / "in" / str(number))
        data = tdmap.open(sorted((tmp_path / "in").iterdir()))
    run, wanted = OPERATIONS[operation]
    found = run(data, num_workers=0, **({"out": tmp_path / "out"} if out else {}))
    assert times_in(found) == wanted
    assert [key for key in found.keys() if key in rows.column_names] == [
        name for name in rows.column_names if name in found.keys()
    ]
    for part in (found[:2], torch.cat([found[:], found[:]])):
        assert times_in(part) == wanted
    if out:
        assert times_in(TensorDict.load_memmap(tmp_path / "out")) == wanted


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
        with pytest.raises(ValueError, match=r"1\.arrow has other columns than .*0\.arrow: 't' is timestamp\[ms\]"):
            read(tmp_path / "*.arrow", out)
    with pytest.raises(ValueError, match=r"'t' is timestamp\[ms\] and plain numbers"):
        torch.cat([millis, of("int64")])
    two = torch.cat([seconds, seconds])
    two["t"][1] = 0
    for call in (tdmap.map, tdmap.flat_map):
        for out in (None, tmp_path / call.__name__):
            with pytest.raises((OutputMismatch, ValueError), match=r"'t' is timestamp\[(s|ms)\].* timestamp\[(s|ms)\]"):
                call(two, lambda rows: seconds if rows["t"][0] else millis, out=out, chunksize=1, num_workers=0)
    for call in (lambda: tdmap.concat([seconds, millis]), lambda: tdmap.open(sorted((tmp_path / "folders").iterdir()))):
        with pytest.raises(OutputMismatch, match=r"'t' is timestamp\[ms\].* timestamp\[s\]"):
            call()


OTHERS: dict[str, tuple[Any, Any, str]] = {
    "dtype": (torch.tensor([2**53 + 1]), torch.tensor([0.5]), r"float32 \[\] instead of int64 \[\]"),
    "width": (torch.tensor([1]), torch.tensor([1], dtype=torch.int32), r"int32 \[\] instead of int64 \[\]"),
    "shape": (torch.zeros(1, 2), torch.zeros(1, 3), r"float32 \[3\] instead of float32 \[2\]"),
    "kind": (Ragged.from_list(["a"]), torch.zeros(1), r"float32 \[\] instead of rows of str uint8 \[\]"),
}


@pytest.mark.parametrize("ending", ["arrow", "parquet", "npz", "h5", "zarr"])
@pytest.mark.parametrize("what", OTHERS)
def test_files_of_other_columns_are_not_made_one(tmp_path: Path, ending: str, what: str) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    *columns, told = OTHERS[what]
    if ending == "zarr" and what == "kind":
        pytest.skip("it has no text")
    for number, column in enumerate(columns):
        write(TensorDict({"deep": {"n": column}}, [1]), tmp_path / f"{number}.{ending}")
    for out in (None, tmp_path / "out"):
        with pytest.raises(
            ValueError, match=rf"1\.{ending} has other columns than .*0\.{ending}: ('deep\.n' is {told})?"
        ):
            read(tmp_path / f"*.{ending}", out, num_workers=0)


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


RESERVED = {"shape", "device", "_type", "_entries"}
"""Names that stand behind others in the metadata of a folder."""
IN_FOLDERS = ("arrow", "parquet", "csv", "map", "sort", "filter", "converted")


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
        "sort": tdmap.sort(table, names[0], out=tmp_path / "f", num_workers=0),
        "filter": tdmap.filter(table, lambda rows: [True] * len(rows), out=tmp_path / "g", num_workers=0),
    }
    convert(tmp_path / "a", tmp_path / "y.arrow")
    made["converted"] = read(tmp_path / "y.arrow")
    for name, one in made.items():
        assert list(one.keys()) == names or (name in IN_FOLDERS and RESERVED & set(names)), name
        assert to_arrow(one).to_pydict() == to_arrow(table).to_pydict(), name


def test_times_of_dictionaries_are_times(tmp_path: Path) -> None:
    days = pa.array([datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 1)]).dictionary_encode()
    for out in (None, tmp_path / "out"):
        found = from_arrow(pa.table({"day": days}), out, nulls="mask")
        assert to_arrow(found, nulls="mask")["day"].to_pylist() == days.to_pylist()
    times = pandas.Series(pandas.to_datetime(["2020-01-01", "2021-01-01"])).astype("category")
    assert from_pandas(pandas.DataFrame({"t": times})).arrow_types["t"].startswith("timestamp[")
