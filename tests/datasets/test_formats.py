"""Files and objects of other libraries as datasets, and back: their own readers are the oracle."""

import contextlib
import datetime
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.datasets import (
    convert,
    from_arrow,
    from_dataset,
    from_huggingface,
    from_pandas,
    from_polars,
    read,
    to_arrow,
    to_huggingface,
    to_pandas,
    to_polars,
    write,
)  # fmt: skip
from tdmap.datasets.arrow import _one
from tdmap.datasets.jsontext import decoded
from tdmap.errors import ResumeMismatch
from tensordict_lite import Ragged, TensorDict
from tests.datasets.killing import contents, kill_until_done
from tests.datasets.listing import listed

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 1000


def table() -> Any:
    """An Arrow table with a column of every kind that has a place here."""
    generator = np.random.default_rng(0)
    numbers = {
        str(dtype): generator.integers(0, 2 if dtype == "bool" else 100, ROWS).astype(dtype)
        for dtype in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
                      "float32", "float64")
    }  # fmt: skip
    words = [f"word {number}" * (number % 3) for number in range(ROWS)]
    lists = [list(range(number % 4)) for number in range(ROWS)]
    matrix = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 6, dtype=np.float32)), 6)
    return pa.table(
        {
            **numbers,
            "text": words,
            "wide": pa.array(words, pa.large_string()),
            "view": pa.array(words, pa.string_view()),
            "bytes": [word.encode() for word in words],
            "list": lists,
            "vector": matrix,
            "matrix": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(matrix.values, 3), 2),
            "pairs": pa.array([[[1, 2]] * (number % 3) for number in range(ROWS)], pa.list_(pa.list_(pa.int16(), 2))),
            "category": pa.array(words).dictionary_encode(),
            "time": pa.array([datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=n) for n in range(ROWS)]),
            "day": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(days=n) for n in range(ROWS)]),
            "struct": [{"a": number, "b": {"c": str(number)}} for number in range(ROWS)],
        }
    )


def check(found: TensorDict, expected: Any) -> None:
    """The columns are those of the Arrow table."""
    while any(pa.types.is_struct(field.type) for field in expected.schema):
        expected = expected.flatten()
    columns = listed(found)
    assert list(columns) == expected.column_names
    for name in expected.column_names:
        values = expected[name].to_pylist()
        if pa.types.is_temporal(expected[name].type):
            width = pa.int32() if expected[name].type.bit_width == 32 else pa.int64()
            values = expected[name].cast(width).to_pylist()
            assert found.arrow_types[name] == str(expected[name].type)
        assert columns[name] == values, name


@pytest.mark.parametrize("workers", [0, 2])
def test_parquet_of_every_type_is_read_by_workers(tmp_path: Path, workers: int) -> None:
    for number in range(3):
        pq.write_table(table(), tmp_path / f"part-{number}.parquet", row_group_size=170)
    whole = pa.concat_tables([table()] * 3)
    sources = (tmp_path, str(tmp_path / "*.parquet"), sorted(map(str, tmp_path.glob("*.parquet"))))
    for source in sources[:1] if workers else sources:
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        check(read(source, out, num_workers=workers), whole)
        check(TensorDict.load_memmap(out), whole)
    check(read(tmp_path / "part-1.parquet"), table())


ENDINGS = ["parquet", "arrow", "csv", "tsv", "jsonl", "json", "npz", "h5", "zarr"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_that_are_written_may_be_chosen(tmp_path: Path, ending: str) -> None:
    for module in {"h5": ["h5py"], "zarr": ["zarr"]}.get(ending, []):
        pytest.importorskip(module)
    data = TensorDict({"x": torch.arange(3), "größe": torch.arange(3) / 2, "y": torch.ones(3)}, [3])
    place = tmp_path / f"a.{ending}"
    write(data, place, columns=["größe", "x"])
    found = read(place)
    assert set(found.keys()) == {"größe", "x"} and found["größe"].tolist() == [0, 0.5, 1]
    with pytest.raises(KeyError, match="no column 'gröse'. Columns: 'x', 'größe', 'y'. Did you mean 'größe'"):
        write(data, tmp_path / f"b.{ending}", columns=["gröse"])
    with pytest.raises(ValueError, match="no columns to write"):
        write(data, tmp_path / f"b.{ending}", columns=[])
    assert not (tmp_path / f"b.{ending}").exists()
    for call in (lambda: write(data, place, columns="x"), lambda: read(place, columns="x")):
        with pytest.raises(TypeError, match=r"columns= is a list of names, as in columns=\['x'\]"):
            call()


@pytest.mark.parametrize("out", [None, "folder"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_column_that_a_file_lacks_is_told(tmp_path: Path, ending: str, out: str | None) -> None:
    for module in {"h5": ["h5py"], "zarr": ["zarr"]}.get(ending, []):
        pytest.importorskip(module)
    place = tmp_path / f"a.{ending}"
    write({"word": torch.arange(3), "x": torch.ones(3)}, place)
    with pytest.raises(
        ValueError, match=rf"a.{ending} has no column 'wrod'. Columns: 'word', 'x'. Did you mean 'word'"
    ):
        read(place, out and tmp_path / out, columns=["x", "wrod"])
    assert not (tmp_path / "folder").exists()
    assert list(read(place, columns=["x", "x"]).keys()) == ["x"]


def test_masks_go_with_the_columns_that_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,word\n1,ant\n,bee\n3,\n")
    data = read(tmp_path / "a.csv", tmp_path / "data", nulls="mask")
    write(data, tmp_path / "b.parquet", columns=["x"], nulls="mask")
    assert pq.read_table(tmp_path / "b.parquet").to_pydict() == {"x": [1, None, 3]}
    write(data, tmp_path / "c.parquet", columns=["x"])
    assert pq.read_table(tmp_path / "c.parquet").to_pydict() == {"x": [1, 0, 3]}
    convert(tmp_path / "data", tmp_path / "d.parquet", columns=["x"], nulls="mask")
    assert pq.read_table(tmp_path / "d.parquet").to_pydict() == {"x": [1, None, 3]}


def test_convert_replaces_a_folder_when_it_is_asked_for(tmp_path: Path) -> None:
    write({"x": torch.arange(3), "word": ["a", "b", "c"]}, tmp_path / "a.csv")
    convert(tmp_path / "a.csv", tmp_path / "one")
    convert(tmp_path / "one", tmp_path / "two", columns=["word"])
    assert list(TensorDict.load_memmap(tmp_path / "two").keys()) == ["word"]
    for source in ("a.csv", "one"):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            convert(tmp_path / source, tmp_path / "two")
        convert(tmp_path / source, tmp_path / "two", overwrite=True)
        assert list(TensorDict.load_memmap(tmp_path / "two").keys()) == ["x", "word"]
    with pytest.raises(KeyError, match="no column 'wrod'"):
        convert(tmp_path / "one", tmp_path / "two", columns=["wrod"], overwrite=True)


def small() -> TensorDict:
    """What every format can hold."""
    words = Ragged.from_list([f"ü{n}" for n in range(300)])
    return TensorDict({"a": torch.arange(300), "b": torch.linspace(0, 1, 300).double(), "t": words}, [300])


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.feather", "x.csv", "x.tsv", "x.jsonl", "x.npz"])
@pytest.mark.parametrize("batch", [7, 1 << 16])
def test_files_come_back(tmp_path: Path, name: str, batch: int) -> None:
    write(small(), tmp_path / name, batch_rows=batch)
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing half-written is left
    for out in (None, tmp_path / "out"):
        assert to_arrow(read(tmp_path / name, out)).select(["a", "b", "t"]).equals(to_arrow(small()))


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_every_column_comes_back(tmp_path: Path, name: str) -> None:
    first = from_arrow(table(), tmp_path / "first")
    write(first, tmp_path / name, batch_rows=130)
    again = read(tmp_path / name, tmp_path / "again", num_workers=2)
    assert list(again.keys()) == list(first.keys())
    assert to_arrow(again).equals(to_arrow(first))


def test_files_are_what_other_readers_expect(tmp_path: Path) -> None:
    for name, reader in [
        ("x.parquet", pd.read_parquet), ("x.csv", pd.read_csv), ("x.feather", pd.read_feather),
        ("x.jsonl", lambda path: pd.read_json(path, lines=True)),
    ]:  # fmt: skip
        write(small(), tmp_path / name)
        frame = reader(tmp_path / name)
        assert frame["a"].tolist() == list(range(300)) and frame["t"].tolist() == [f"ü{n}" for n in range(300)]
    write(small(), tmp_path / "x.npz")
    assert np.load(tmp_path / "x.npz")["t"].tolist() == [f"ü{n}" for n in range(300)]


@pytest.mark.parametrize("source", ["x.parquet", "x.csv", "x.npz", "dataset"])
@pytest.mark.parametrize("target", ["y.parquet", "y.jsonl", "y.arrow", "other"])
def test_convert_guesses_both_formats(tmp_path: Path, source: str, target: str) -> None:
    if source == "dataset":
        small().memmap(tmp_path / source)
    else:
        write(small(), tmp_path / source)
    convert(tmp_path / source, tmp_path / target, num_workers=0)
    found = TensorDict.load_memmap(tmp_path / target) if target == "other" else read(tmp_path / target)
    assert to_arrow(found).select(["a", "b", "t"]).equals(to_arrow(small()))


def test_convert_takes_several_files_as_read_does(tmp_path: Path) -> None:
    for name in ("1.csv", "2.csv"):
        write(small(), tmp_path / name)
    assert convert([tmp_path / "1.csv", tmp_path / "2.csv"], tmp_path / "y.parquet") == 2 * len(small())
    assert to_arrow(read(tmp_path / "y.parquet")).slice(len(small())).equals(to_arrow(read(tmp_path / "2.csv")))


def test_convert_says_what_writes_a_dataset_of_several_folders(tmp_path: Path) -> None:
    data = TensorDict({"a": torch.arange(5)}, [5])
    tdmap.map(data, lambda chunk: chunk, out=tmp_path / "shards", rows_per_shard=2, num_workers=0)
    with pytest.raises(FileNotFoundError, match=r"sharded dataset: write\(tdmap\.open\("):
        convert(tmp_path / "shards", tmp_path / "y.csv")
    write(tdmap.open(tmp_path / "shards"), tmp_path / "y.csv")
    assert read(tmp_path / "y.csv")["a"].tolist() == list(range(5))


def test_urls_of_fsspec_are_read_and_written(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    for name in ("x.parquet", "x.csv", "x.jsonl"):
        write(small(), f"memory://{tmp_path.name}/{name}")
        assert read(f"memory://{tmp_path.name}/{name}")["t"] == small()["t"]
    read(f"memory://{tmp_path.name}/x.parquet", tmp_path / "out", num_workers=0)


def with_nulls() -> Any:
    return pa.table(
        {"i": [1, None, 3], "f": [None, 1.5, 2.5], "s": ["a", None, "c"], "b": [True, None, False],
         "l": [[1], None, [2]],
         "v": pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int8(), 2)), "y": [b"a", b"b", None],
         "d": pa.array(["u", None, "u"]).dictionary_encode(), "t": pa.array([1, None, 2], pa.timestamp("us"))}
    )  # fmt: skip


def test_nulls_are_told_or_masked(tmp_path: Path) -> None:
    data = with_nulls()
    pq.write_table(data, tmp_path / "x.parquet")
    for name in data.column_names:
        row = data[name].to_pylist().index(None)
        with pytest.raises(ValueError, match=f"{name!r} has nulls, the first in row {row}"):
            from_arrow(data.select([name]))
    with pytest.raises(ValueError, match="nulls='mask'"):
        read(tmp_path / "x.parquet", tmp_path / "raises", num_workers=2)
    for found in (from_arrow(data, nulls="mask"), read(tmp_path / "x.parquet", tmp_path / "out", nulls="mask")):
        blank = {"i": 0, "f": 0.0, "s": "", "b": False, "l": [], "v": [0, 0], "y": b"", "d": "", "t": 0}
        columns = listed(found)
        for name in data.column_names:
            values = data[name].to_pylist() if name != "t" else [1, None, 2]
            assert columns[name] == [blank[name] if value is None else value for value in values], name
            assert columns[f"{name}.valid"] == [value is not None for value in values]


def test_masks_are_nulls_again(tmp_path: Path) -> None:
    data = with_nulls().set_column(8, "t", pa.array([1, None, 2]))
    expected = data.to_pydict()
    masked = from_arrow(data, tmp_path / "masked", nulls="mask")
    assert {name: to_arrow(masked, nulls="mask")[name].to_pylist() for name in expected} == expected
    assert to_pandas(masked, nulls="mask")["s"].isna().tolist() == [False, True, False]
    plain = data.select(["i", "f", "b"])
    for name, columns in {"x.parquet": data, "x.arrow": data, "x.csv": plain, "x.jsonl": plain}.items():
        write(from_arrow(columns, nulls="mask"), tmp_path / name, nulls="mask", batch_rows=2)
        assert to_arrow(read(tmp_path / name, nulls="mask"), nulls="mask").to_pydict() == columns.to_pydict(), name
    convert(tmp_path / "x.parquet", tmp_path / "y.arrow", nulls="mask")
    convert(tmp_path / "masked", tmp_path / "z.parquet", nulls="mask")
    for name in ("y.arrow", "z.parquet"):
        assert to_arrow(read(tmp_path / name, nulls="mask"), nulls="mask").to_pydict() == expected, name
    convert(tmp_path / "x.csv", tmp_path / "x.npz", nulls="mask")
    assert read(tmp_path / "x.npz")["i.valid"].tolist() == [True, False, True]


def test_formats_and_masks_without_nulls_say_so(tmp_path: Path) -> None:
    data = from_arrow(pa.table({"i": [1, None]}), nulls="mask")
    with pytest.raises(ValueError, match="numpy has no nulls, as parquet, arrow, csv, tsv, jsonl, json have"):
        write(data, tmp_path / "x.npz", nulls="mask")
    with pytest.raises(ValueError, match="'i.valid' must hold one bool per row: False where 'i' is null"):
        write({"i": torch.zeros(2), "i.valid": torch.zeros(2)}, tmp_path / "x.parquet", nulls="mask")
    with pytest.raises(ValueError, match="nulls must be 'mask'"):
        to_arrow(data, nulls="raise")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1, None], [2]]), "nulls within its lists"),
        (pa.array([[datetime.datetime(2020, 1, 1)], []], pa.list_(pa.timestamp("us"))), "has times (timestamp[us])"),
        (pa.array([[datetime.date(2020, 1, 1)]] * 2, pa.list_(pa.date32(), 1)), "has times (date32[day])"),
        (pa.array([[1], [2]], pa.list_(pa.duration("s"))), "has times (duration[s])"),
        (pa.array([[1], [2]], pa.list_(pa.int32())).cast(pa.list_(pa.time32("s"))), "has times (time32["),
        (pa.array([{}, {}], pa.struct([])), "without fields"),
        (
            pa.UnionArray.from_dense(pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])]),
            "union",
        ),
        (pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]), "union"),
        (pa.array([(1, 2, 3), (4, 5, 6)], pa.month_day_nano_interval()), "month_day_nano_interval"),
        (pa.array(pd.period_range("2020", periods=2, freq="D")), "period"),
        (pa.array([[(1, 1)], []], pa.map_(pa.int64(), pa.int64())), "type map"),
        (pa.array([1, 2]).cast(pa.decimal128(24, 2)), "decimal128"),
    ],
)
def test_columns_without_a_place_are_named(tmp_path: Path, column: Any, message: str) -> None:
    data = pa.table({"good": [1, 2], "bad": column})
    with pytest.raises((TypeError, ValueError), match="'bad'") as caught:
        from_arrow(data, nulls="mask")
    assert message in str(caught.value)
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
        writer.write_table(data)
    with contextlib.suppress(pa.ArrowNotImplementedError):
        pq.write_table(data, tmp_path / "x.parquet")
    for path in tmp_path.glob("x.[ap]*"):
        for out in (None, tmp_path / f"out of {path.name}"):
            with pytest.raises((TypeError, ValueError), match="'bad'") as caught:
                read(path, out, nulls="mask", num_workers=0)
            assert message in str(caught.value)
            found = read(path, out, nulls="mask", columns=["good"], num_workers=0, overwrite=out is not None)
            assert found["good"].tolist() == [1, 2]


def test_bad_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file.*nothing\.csv"):
        read(tmp_path / "nothing.csv")
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(ValueError, match=r"does not tell its format .*\.parquet"):
        read(tmp_path / "x.txt")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"x\.csv.*Expected 2 columns, got 1"):
        read(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_text("a,b\n")
    for name in ("y.arrow", "y.jsonl", "y"):
        with pytest.raises(ValueError, match=r"y\.csv has no rows"):
            convert(tmp_path / "y.csv", tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(ValueError, match="no rows"):
        read(tmp_path / "y.csv")
    with pytest.raises(FileNotFoundError, match="files is empty"):
        read([])
    with pytest.raises(TypeError, match="'z' is torch.complex64"):
        write(TensorDict({"z": torch.zeros(3, dtype=torch.complex64)}, [3]), tmp_path / "z.parquet")
    with pytest.raises(TypeError, match="'m' is .*CSV"):
        write(TensorDict({"m": torch.zeros(3, 2)}, [3]), tmp_path / "m.csv")
    assert not (tmp_path / "m.csv").exists()


def test_frames_of_pandas_and_polars(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "s": ["x", "y", "z"], "c": pd.Categorical(["u", "v", "u"]),
                          "t": pd.date_range("2020-01-01", periods=3)}, index=[7, 8, 9])  # fmt: skip
    found = from_pandas(frame, tmp_path / "out")
    assert (found["a"].tolist(), found["s"], found["c"]) == ([1, 2, 3], ["x", "y", "z"], ["u", "v", "u"])
    assert found["t"].tolist() == frame["t"].to_numpy().astype("int64").tolist()
    assert to_pandas(small())["t"].tolist() == small()["t"]
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1, 2], "s": ["x", "y"], "l": [[1], [2, 3]]})
    found = from_polars(frame)
    assert listed(found) == {"a": [1, 2], "s": ["x", "y"], "l": [[1], [2, 3]]}
    assert to_polars(found).select("a", "s", "l").equals(frame)


@pytest.mark.parametrize("workers", [0, 2])
def test_hugging_face_datasets(tmp_path: Path, workers: int) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(
        {"n": list(range(5000)), "s": [f"row {n}" for n in range(5000)], "l": [list(range(n % 5)) for n in range(5000)]}
    ).shuffle(seed=1).filter(lambda row: row["n"] % 3 > 0)  # fmt: skip
    expected = made.to_dict()
    for out in (None, tmp_path / "out"):
        found = from_huggingface(made, out, num_workers=workers)
        assert listed(found) == expected
    back = to_huggingface(TensorDict.load_memmap(tmp_path / "out"))
    assert back.to_dict() == {name: expected[name] for name in back.column_names}
    with pytest.raises(TypeError, match="choose one of 'train'"):
        from_huggingface(datasets.DatasetDict(train=made))


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 101

    def __getitem__(self, number: int) -> Any:
        return {"x": torch.full((2,), number), "y": number % 3, "name": f"n{number}", "tokens": np.arange(number % 5)}


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_of_torch(tmp_path: Path, workers: int) -> None:
    found = from_dataset(Samples(), tmp_path / "out", ragged=["tokens"], num_workers=workers)
    assert found["x"].tolist() == [[n, n] for n in range(101)]
    assert found["y"].tolist() == [n % 3 for n in range(101)]
    assert found["name"] == [f"n{n}" for n in range(101)]
    assert found["tokens"].tolist() == [list(range(n % 5)) for n in range(101)]
    pairs = torch.utils.data.TensorDataset(torch.randn(50, 3), torch.arange(50))
    data = from_dataset(pairs, tmp_path / "pairs", names=["x", "y"], num_workers=workers)
    assert torch.equal(data["x"], pairs.tensors[0]) and torch.equal(data["y"], pairs.tensors[1])
    with pytest.raises(TypeError, match=r"'tokens' of row 1 .*ragged=\['tokens'\]"):
        from_dataset(Samples(), tmp_path / "bad", num_workers=0)


@pytest.mark.slow
def test_a_killed_read_of_parquet_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.concat_tables([table()] * 40), tmp_path / "x.parquet", row_group_size=400)
    script = f"""
import warnings
warnings.simplefilter("ignore")
from tdmap.datasets import read
read({str(tmp_path / "x.parquet")!r}, {str(tmp_path / "out")!r}, resume=True, num_workers=2)
"""
    kills = kill_until_done(script, 1)
    read(tmp_path / "x.parquet", tmp_path / "whole", num_workers=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert kills == 1


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.feather", "x.npz", "x.npy", "x.json", "x.h5", "x.tar"])
@pytest.mark.parametrize("content", [b"", b"no such file, I am afraid"])
def test_errors_of_damaged_files_name_them(tmp_path: Path, name: str, content: bytes) -> None:
    if name == "x.h5":
        pytest.importorskip("h5py")
    (tmp_path / name).write_bytes(content)
    for out in (None, tmp_path / "out"):
        with pytest.raises((ValueError, EOFError, OSError)) as caught:
            read(tmp_path / name, out, num_workers=0)
        assert str(tmp_path / name) in str(caught.value) and isinstance(caught.value, ValueError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["new", "gone", "changed", "order", "nulls"])
def test_a_resumed_call_tells_which_files_differ(tmp_path: Path, change: str) -> None:
    files = [str(tmp_path / f"{name}.parquet") for name in "abc"]
    for name in files:
        write({"x": torch.arange(3)}, name)
    before, after = {"new": (files[:2], files), "gone": (files, files[:2]), "order": (files, files[::-1])}.get(
        change, (files, files)
    )
    read(before, tmp_path / "out", resume=True, num_workers=0)
    if change in ("changed", "nulls"):
        write({"x": torch.arange(4)}, files[2])
    with pytest.raises(ResumeMismatch) as caught:
        read(after, tmp_path / "out", resume=True, num_workers=0, nulls="mask" if change == "nulls" else "raise")
    size = r"\d+ bytes, written at \d{4}-\d\d-\d\d [\d:.]+"
    was, then = ("absent" if change == "new" else size), ("absent" if change == "gone" else size)
    told = caught.value.changes
    if change == "order":
        assert told == ("the call of read_groups(ReadGroup) differs in: fn: order of files",)
    else:
        assert len(told) == 1 + (change == "nulls")
        assert re.fullmatch(rf"the file {files[2]} was {was}, and is {then}", told[-1 if change != "nulls" else 0])
        assert f"  - {told[0]}\n" in str(caught.value) and (change != "nulls" or "fn: nulls" in str(told))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_damaged_row_group_names_it(tmp_path: Path, workers: int) -> None:
    numbers = pa.table({"s": [str(number) for number in range(10_000)]})
    pq.write_table(numbers, tmp_path / "x.parquet", row_group_size=1000)
    found = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(7).column(0)
    content = bytearray((tmp_path / "x.parquet").read_bytes())
    start = found.dictionary_page_offset
    content[start : start + found.total_compressed_size] = b"\xff" * found.total_compressed_size
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises((ValueError, OSError)) as caught:
        read(tmp_path / "x.parquet", tmp_path / "out", num_workers=workers)
    assert any("row group 7 of " in note and "x.parquet" in note for note in caught.value.__notes__)
    assert not (tmp_path / "out").exists()


def test_a_large_row_group_is_read_in_parts(tmp_path: Path) -> None:
    text = pa.array([f"{'text' * 10} {number % 1000}" for number in range(600_000)])
    numbers = pa.array(range(len(text))).take(pa.array([*range(len(text) - 1), None]))
    pq.write_table(pa.table({"s": text, "n": numbers}), tmp_path / "x.parquet")
    whole, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        found = read(tmp_path / "x.parquet", tmp_path / "out", nulls="mask", num_workers=0)
    finally:
        pa.set_memory_pool(whole)
    assert pool.max_memory() < text.nbytes * 2 // 3
    table = to_arrow(found, nulls="mask")
    assert table["n"].combine_chunks() == numbers and table["s"].combine_chunks().cast(pa.string()) == text
    with pytest.raises(ValueError, match=r"'n' has nulls, the first in row 599999: .* row group 0 of .*x\.parquet"):
        read(tmp_path / "x.parquet", tmp_path / "other", num_workers=0)


def test_without_arrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'tdmap\[arrow\]'"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("ending", ["csv.gz", "tsv.bz2", "jsonl.zst", "NDJSON.GZ"])
def test_text_is_read_and_written_compressed(tmp_path: Path, ending: str) -> None:
    words = ["ant", "b,e\ne", '"', "ü"]
    write({"x": torch.arange(4), "word": words}, tmp_path / f"x.{ending}")
    plain = f"y.{ending.rpartition('.')[0]}"
    write({"x": torch.arange(4), "word": words}, tmp_path / plain)
    content = (tmp_path / f"x.{ending}").read_bytes()
    if ending.lower().endswith(("gz", "bz2")):
        unpack: Any = __import__("gzip" if ending.lower().endswith("gz") else "bz2").decompress
        assert unpack(content) == (tmp_path / plain).read_bytes()
    for out in (None, tmp_path / "out"):
        found = read(tmp_path / f"x.{ending}", out)
        assert found["x"].tolist() == [0, 1, 2, 3] and found["word"] == words
    (tmp_path / f"cut.{ending}").write_bytes(content[:-9])
    with pytest.raises(OSError, match="Truncated") as caught:
        read(tmp_path / f"cut.{ending}", tmp_path / "cut")
    assert f"cut.{ending}" in str(caught.value)
    assert not (tmp_path / "cut").exists()


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,a\n1,2,3\n")
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array(["x"])], names=["a", "a"]), tmp_path / "x.parquet")
    pq.write_table(pa.table({"a.b": [1], "a": [{"b": 2}]}), tmp_path / "y.parquet")
    for name in ("x.csv", "x.parquet", "y.parquet"):
        for out in (None, tmp_path / "out"):
            with pytest.raises(ValueError, match=r"2 columns have the name 'a(\.b)?'"):
                read(tmp_path / name, out, num_workers=0)
    nested = TensorDict({"a.b": torch.arange(2), "a": {"b": torch.arange(2)}}, [2])
    with pytest.raises(ValueError, match=r"2 columns have the name 'a\.b'"):
        write(nested, tmp_path / "z.parquet")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a.b"], file["a/b"] = [1], [2]
    with pytest.raises(ValueError, match=r"2 columns have the name 'a\.b'"):
        read(tmp_path / "x.h5")


@pytest.mark.parametrize("names", [["a", "a.valid"], ["a.valid", "a"]])
def test_masks_that_are_columns_already_stay_masks(tmp_path: Path, names: list[str]) -> None:
    columns = {"a": pa.array([1, 2, None, 4]), "a.valid": pa.array([True, False, True, True])}
    pq.write_table(pa.table({name: columns[name] for name in names}), tmp_path / "x.parquet")
    found = read(tmp_path / "x.parquet", tmp_path / "out", nulls="mask", num_workers=0)
    assert set(found.keys()) == {"a", "a.valid"}
    assert found["a.valid"].tolist() == [True, False, False, True]
    pq.write_table(pa.table({"a": [1], "a.valid": [1.5]}), tmp_path / "y.parquet")
    with pytest.raises(ValueError, match=r"a\.valid.* have one of double"):
        read(tmp_path / "y.parquet", nulls="mask")


@pytest.mark.parametrize("name", ["x.csv", "x.tsv.gz", "x.jsonl"])
def test_whole_numbers_of_64_bits_keep_their_digits(tmp_path: Path, name: str) -> None:
    numbers = np.array([2**64 - 1, 3, 2**63 + 1, 2**53 + 1], np.uint64)
    floats = torch.tensor([1e19, 0.5, 1, 2], dtype=torch.float64)
    write({"id": torch.from_numpy(numbers), "x": floats}, tmp_path / name)
    found = read(tmp_path / name)
    assert found["id"].dtype == torch.uint64 and found["id"].numpy().tolist() == numbers.tolist()
    assert found["x"].tolist() == [1e19, 0.5, 1.0, 2.0]
    (tmp_path / "floats.jsonl").write_text('{"x": 1e19}\n{"x": 2.0}\n')
    (tmp_path / "floats.csv").write_text("x\n1e19\n2.0\n")
    assert read(tmp_path / "floats.jsonl")["x"].tolist() == read(tmp_path / "floats.csv")["x"].tolist() == [1e19, 2.0]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.npz", "x.zarr"])
def test_files_without_rows_have_their_columns(tmp_path: Path, name: str) -> None:
    if name == "x.zarr":
        pytest.importorskip("zarr")
    columns: dict[str, Any] = {"x": torch.zeros(0, 3), "n": torch.zeros(0, dtype=torch.int64)}
    if name in ("x.parquet", "x.arrow"):
        columns["word"] = Ragged.from_list(["ant"])[:0]
    write(columns, tmp_path / name)
    for out in (None, tmp_path / "out"):
        found = read(tmp_path / name, out, num_workers=0)
        assert len(found) == 0 and set(found.keys()) == set(columns) and found["x"].shape == (0, 3)
    assert len(tdmap.sort(read(tmp_path / name, columns=["n"]), "n", num_workers=0)) == 0
    with_rows = {key: torch.ones(2, *value.shape[1:], dtype=value.dtype) for key, value in list(columns.items())[:2]}
    folder = name.replace("x", "y")
    write({**with_rows, **({"word": ["a", "b"]} if "word" in columns else {})}, tmp_path / folder)
    assert len(read([tmp_path / name, tmp_path / folder], tmp_path / "both", num_workers=0)) == 2


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"ab", None], pa.binary(2)),
        pa.array(["ab", None], pa.string_view()),
        pa.array([b"ab", None], pa.binary_view()),
        pa.array([b"ab", None], pa.large_binary()),
        pa.array([bytes(16), None], pa.binary(16)).cast(pa.uuid()),
        pa.array(["ab", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.nulls(1)),
        pa.nulls(2),
    ],
)
def test_nulls_of_every_type_are_masked(tmp_path: Path, column: Any) -> None:
    data = pa.table({"i": [1, 2], "u": column})
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
        writer.write_table(data)
    for out in (None, "out"):
        for made in (
            from_arrow(data, out and tmp_path / "a", nulls="mask"),
            read(tmp_path / "x.arrow", out and tmp_path / "b", nulls="mask"),
        ):
            assert made["u.valid"].tolist() == column.is_valid().to_pylist()
            back = to_arrow(made, nulls="mask")["u"]
            assert back.is_valid().to_pylist() == column.is_valid().to_pylist()
            stored = column.storage if column.type == pa.uuid() else column
            assert back[0].as_py() == stored[0].as_py()
    with pytest.raises(ValueError, match=r"x\.arrow: the column 'u' has nulls, the first in row"):
        read(tmp_path / "x.arrow")
    assert list(from_arrow(data[:0]).keys()) == ["i", "u"]


@pytest.mark.parametrize("target", ["memory", "folder", "file"])
@pytest.mark.parametrize("ending", ["arrow", "parquet", "none"])
def test_text_that_is_not_utf8_is_refused(tmp_path: Path, ending: str, target: str) -> None:
    offsets, content = np.array([0, 2, 4, 5], np.int32), b"okayz"[:4] + b"\xff"
    bad = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    data, path = pa.table({"i": [1, 2, 3], "bad": bad}), tmp_path / f"x.{ending}"
    if ending == "none":
        with pytest.raises(ValueError, match="'bad' has text in row 2 that is not UTF-8"):
            from_arrow(data, None if target == "memory" else tmp_path / "out")
        return
    if ending == "parquet":
        pq.write_table(data, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
            writer.write_table(data)
    with pytest.raises(ValueError, match=r"'bad' has text in row 2 that is not UTF-8") as caught:
        if target == "file":
            convert(path, tmp_path / "y.csv")
        else:
            read(path, None if target == "memory" else tmp_path / "out", num_workers=0)
    assert str(path) in str(caught.value) and not (tmp_path / "out").exists() and not (tmp_path / "y.csv").exists()


PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
TABLE = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in next(part for part in PAGE.split("\n\n") if part.startswith("| format |")).splitlines()
]
COLUMNS: dict[str, Any] = {
    "dtypes": torch.tensor([0.5, float("inf"), -1], dtype=torch.float16),
    "`[n, ...]`": torch.arange(12, dtype=torch.int16).reshape(3, 2, 2),
    "text": Ragged.from_list(["a", "", "\u00fc"]),
    "bytes": Ragged.from_list([b"a\0\xff", b"", b"b"]),
    "lists": Ragged.from_list([[1, 2], [], [3]]),
    "JSON values": Ragged.from_objects([[{"role": "user"}], [], [{"role": "bot"}]]),
    "nested": TensorDict({"b": torch.arange(3)}, [3]),
    "nulls": torch.tensor([1, 0, 3]),
    "times": torch.tensor([1, 2, 3]),
}


@pytest.mark.parametrize("row", TABLE[2:], ids=lambda row: row[0])
@pytest.mark.parametrize("kind", COLUMNS)
def test_the_page_says_what_each_format_keeps(tmp_path: Path, row: list[str], kind: str) -> None:
    cell, ending = row[TABLE[0].index(kind)], row[1].split()[0].strip("`").removeprefix(".")
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    data = TensorDict({"a": COLUMNS[kind], "b": torch.arange(3)}, [3])
    nulls = "mask" if kind == "nulls" else None
    if nulls:
        data["a.valid"] = torch.tensor([True, False, True])
    if kind == "times":
        data.arrow_types = {"a": "timestamp[us]"}
    if cell == "\u2013":
        with pytest.raises((TypeError, ValueError), match="no nulls" if nulls else "'a'"):
            write(data, tmp_path / f"x.{ending}", nulls=nulls)
        assert not list(tmp_path.iterdir())
        return
    write(data, tmp_path / f"x.{ending}", nulls=nulls)
    found = read(tmp_path / f"x.{ending}", nulls=nulls or "raise", num_workers=0)
    names = [name for name in found.keys() if str(name).startswith("a") and name != "a.valid"]
    column = found.get(names[0])
    kept = found.arrow_types == data.arrow_types
    if kind != "nested" and kept:
        same = column.dtype is COLUMNS[kind].dtype and column.tolist() == COLUMNS[kind].tolist()
        kept = same and (not nulls or found["a.valid"].tolist() == [True, False, True])
    elif kept:
        kept = names == ["a"] and column["b"].tolist() == [0, 1, 2]
    assert kept is (cell == "\u2713"), (cell, found)


LATIN = b"caf\xe9"
NOT_UTF8 = {
    "value.jsonl": (b'{"a": "x"}\n{"a": "%s"}\n' % LATIN, "the column 'a' has text in row 1 that is not UTF-8"),
    "list.jsonl": (b'{"a": ["x"]}\n{"a": ["%s"]}\n' % LATIN, "the column 'a' has text in row 1 that is not UTF-8"),
    "name.jsonl": (b'{"a": "x", "%s": 1}\n' % LATIN, "the name of a column is not UTF-8"),
    "value.csv": (b"a,b\nx,1\n%s,2\n" % LATIN, "the column 'a' has text in row 1 that is not UTF-8"),
    "name.csv": (b"a,%s\nx,1\n" % LATIN, "the name of a column is not UTF-8"),
}


@pytest.mark.parametrize("name", NOT_UTF8)
def test_lines_that_are_not_utf8_are_refused_with_what_was_found(tmp_path: Path, name: str) -> None:
    content, message = NOT_UTF8[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s){name}.*{message} \(b'.*caf\\xe9.*'\): encode"):
        read(tmp_path / name)
    if name == "value.csv":
        with pytest.raises(ValueError, match=rf"{name}: {message}: encode"):
            read(tmp_path / name, types={"a": str})
        assert read(tmp_path / name, types={"a": bytes})["a"].tolist() == [b"x", LATIN]


@pytest.mark.parametrize("ending", ["npz", "h5"])
def test_text_that_is_none_is_named(tmp_path: Path, ending: str) -> None:
    rows = Ragged.from_list(["a", None])
    with pytest.raises((TypeError, ValueError), match=rf"x\.{ending}: the column 'n.c' is None in row 1"):
        write(TensorDict({"n": TensorDict({"c": rows}, [2])}, [2]), tmp_path / f"x.{ending}", batch_rows=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "tsv", "jsonl"])
def test_lone_surrogates_are_refused_where_text_is_utf8(tmp_path: Path, ending: str) -> None:
    table = TensorDict({"s": Ragged.from_list(["a"] * 20 + ["\ud83d"])}, [21])
    assert table.memmap(tmp_path / "folder")["s"][20] == "\ud83d"
    with pytest.raises(ValueError, match=rf"x.{ending}: the column 's' has text in row 20 that is not UTF-8"):
        write(table, tmp_path / f"x.{ending}", batch_rows=8)
    assert not (tmp_path / f"x.{ending}").exists()
    for convert_to in (to_arrow, to_pandas, to_polars):
        with pytest.raises(ValueError, match="the column 's' has text in row 20 that is not UTF-8"):
            convert_to(table)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("plant", [pipe, endless])
@pytest.mark.parametrize("ending", ["csv", "jsonl.gz", "parquet", "arrow", "npz", "npy", "h5", "tar"])
@pytest.mark.parametrize("source", ["folder", "pattern", "list", "file"])
def test_pipes_and_devices_are_not_opened(tmp_path: Path, plant: Any, ending: str, source: str) -> None:
    (tmp_path / f"a.{ending}").write_bytes(b"a\n1\n")
    plant(tmp_path / f"b.{ending}")
    files: Any = {"folder": tmp_path, "pattern": str(tmp_path / "*"), "list": sorted(tmp_path.iterdir()),
                  "file": tmp_path / f"b.{ending}"}[source]  # fmt: skip
    for call in (
        lambda: read(files),
        lambda: read(files, tmp_path / "out"),
        lambda: convert(files, tmp_path / "x.npz"),
    ):
        with pytest.raises(ValueError, match=rf"b\.{ending} is a pipe or a device, not a file"):
            call()


def test_files_without_columns_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "x.parquet")
    pq.write_table(pa.table({"a": [1, 2]}).select([]), tmp_path / "y.parquet")
    for name in ("x.parquet", "y.parquet"):
        for out in (None, tmp_path / "out"):
            with pytest.raises(ValueError, match=rf"{name}.* rows without columns"):
                read(tmp_path / name, out, num_workers=0)
    with pytest.raises(ValueError, match="rows without columns"):
        from_arrow(pa.table({}))


@pytest.mark.parametrize("out", [None, "out"])
def test_hugging_face_datasets_lose_nothing(tmp_path: Path, out: str | None) -> None:
    datasets = pytest.importorskip("datasets")
    place = out and tmp_path / out
    rows = datasets.Dataset.from_dict({"x": [1, 2]})
    for hidden in (rows.with_transform(lambda batch: {"x": [0]}), rows.with_transform(lambda batch: batch, ["x"])):
        with pytest.raises(TypeError, match=r"has a transform, which from_huggingface does not apply: dataset\.map"):
            from_huggingface(hidden, place, num_workers=0)
    none = from_huggingface(rows.select([]), place, num_workers=0)
    assert len(none) == 0 and none["x"].dtype is torch.int64
    grid = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 1, 2]]]
    features = datasets.Features({"g": datasets.Array2D((2, 3), "int32")})
    found = from_huggingface(
        datasets.Dataset.from_dict({"g": grid}, features=features), tmp_path / "grid", num_workers=0
    )
    assert found["g"].shape == (2, 2, 3) and found["g"].tolist() == grid


def test_what_is_no_data_frame_is_told() -> None:
    polars = pytest.importorskip("polars")
    assert from_polars(polars.LazyFrame({"a": [1]}))["a"].tolist() == [1]
    with pytest.raises(TypeError, match="must be a DataFrame: got a Series"):
        from_polars(polars.Series([1]))
    with pytest.raises(TypeError, match="the column 'o' holds Python objects"):
        from_polars(polars.DataFrame({"a": [1], "o": polars.Series([object()], dtype=polars.Object)}))
    with pytest.raises(TypeError, match="must be a DataFrame: got a Series"):
        from_pandas(pd.Series([1]))
    with pytest.raises(TypeError, match=r"column m .*'x'.*Cast the column, as by \.astype"):
        from_pandas(pd.DataFrame({"a": [1, 2], "m": [1, "x"]}))


MASKED = np.ma.masked_equal(np.array([1, -9999, 3]), -9999)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorDict({"t": MASKED}, [3]),
        lambda: TensorDict({"deep": {"t": MASKED}}, [3]),
        lambda: TensorDict({"t": MASKED}, []),
        lambda: TensorDict({"t": [MASKED, MASKED]}, [2]),
        lambda: TensorDict({"t": torch.zeros(3)}, [3]).set("t", MASKED),
        lambda: TensorDict({"t": torch.zeros(3)}, [3]).update({"t": MASKED}),
        lambda: TensorDict({"t": torch.zeros(4)}, [4]).set_at_("t", MASKED, slice(3)),
        lambda: TensorDict.from_dict({"t": MASKED}),
        lambda: write({"t": MASKED}, "never.parquet"),
        lambda: Ragged.from_list([MASKED, MASKED]),
        lambda: tdmap.map(torch.arange(3), lambda c: {"t": MASKED[c.numpy()]}, num_workers=0),
        lambda: tdmap.map(torch.arange(3), lambda c: MASKED[c.numpy()], num_workers=0),
        lambda: tdmap.flat_map(torch.arange(3), lambda c: {"t": MASKED[c.numpy()]}, num_workers=0),
        lambda: from_dataset([{"t": MASKED}, {"t": MASKED}], "never", num_workers=0),
    ],
)
def test_masked_values_of_arrays_are_not_shown(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"has masked values, which a tensor would show: fill them"):
        make()
    assert TensorDict({"t": MASKED.filled(0)}, [3])["t"].tolist() == [1, 0, 3]
    assert TensorDict({"t": np.ma.masked_array([1, 2])}, [2])["t"].tolist() == [1, 2]


@pytest.mark.parametrize("place", ["folder", "memory://hive"])
@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_folders_of_keys_are_columns(tmp_path: Path, place: str, ending: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    root = f"{place}/{ending}" if "://" in place else str(tmp_path / place)
    store = fsspec.filesystem("memory" if "://" in place else "file")
    for number, below in enumerate(
        ("year=2024/who=a%20b", "year=2024/who=7", "year=2025/who=__HIVE_DEFAULT_PARTITION__")
    ):
        store.makedirs(f"{root}/{below}")
        write({"x": torch.tensor([number])}, f"{root}/{below}/t.{ending}")
        store.pipe_file(f"{root}/{below}/._t.{ending}", b"no table")
        store.pipe_file(f"{root}/_SUCCESS", b"")
    with pytest.raises(ValueError, match="'who' has nulls"):
        read(root)
    for out in (None, tmp_path / "out"):
        found = read(root, out, nulls="mask", num_workers=0)
        columns = found["x"].tolist(), found["year"].tolist(), list(found["who"]), found["who.valid"].tolist()
        assert sorted(zip(*columns, strict=True)) == [
            (0, 2024, "a b", True),
            (1, 2024, "7", True),
            (2, 2025, "", False),
        ]
    assert list(read(root, columns=["year", "x"]).keys()) == ["year", "x"]
    assert read(f"{root}/year=*/who=7/*.{ending}")["x"].tolist() == [1]
    write({"x": torch.tensor([9])}, f"{root}/t.{ending}")
    with pytest.raises(ValueError, match="folders of the keys"):
        read(root)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read(f"{root}/none*.{ending}")


def test_chunks_give_the_rows_of_one_array() -> None:
    text = pa.array(["a", "bé", None, "c"])
    lists = pa.array([["a"], [], None, ["b", "c"]])
    for column in (text, text.dictionary_encode(), lists, pa.array([{"s": "a", "l": ["b"]}] * 4)):
        whole = pa.table({"x": column})
        chunks = pa.table({"x": pa.chunked_array([column[:1], column[1:1], column[1:]])})
        assert to_arrow(from_arrow(whole, nulls="mask")).equals(to_arrow(from_arrow(chunks, nulls="mask")))


def test_text_of_more_than_two_gigabytes_has_wide_offsets() -> None:
    column = pa.chunked_array([pa.array(["ab"]), pa.array(["c"])])
    assert _one(pa, column).type == pa.large_string()
    assert decoded(pa.array(["ab"]).dictionary_encode()).type == pa.large_string()


@pytest.mark.parametrize("kind", ["int8", "uint64", "int64", "bool"])
def test_null_integers_keep_their_values_in_pandas(kind: str) -> None:
    values = [True, None, False] if kind == "bool" else [2 ** (int(kind.strip("uint")) - 1) - 1, None, 3]
    column = pa.array(values, pa.type_for_alias(kind))
    table = pa.table({"x": column, "n": pa.StructArray.from_arrays([column], ["a"])})
    data = from_arrow(table, nulls="mask")
    again = from_pandas(to_pandas(data, nulls="mask"), nulls="mask")
    assert to_arrow(again).select(["x", "x.valid", "n"]).equals(to_arrow(data).select(["x", "x.valid", "n"]))


@pytest.mark.parametrize("value", [2**70, "\ud800"])
def test_values_that_arrow_refuses_name_their_column(value: object) -> None:
    with pytest.raises(ValueError, match="the column 'bad' has"):
        from_pandas(pd.DataFrame({"good": [1], "bad": pd.Series([value], dtype=object)}))


def test_parquet_files_of_one_table_may_differ_in_form(tmp_path: Path) -> None:
    first = pa.table({"x": [1, 2], "s": ["a", "b"]})
    wide = first.cast(pa.schema([pa.field("x", pa.int64(), False), ("s", pa.large_string())]))
    tables = [first, first.select(["s", "x"]), wide, first.set_column(1, "s", first["s"].dictionary_encode())]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    for out in (None, tmp_path / "out"):
        found = read(tmp_path, out, num_workers=0)
        assert found["x"].tolist() == [1, 2] * 4 and list(found["s"]) == ["a", "b"] * 4
    pq.write_table(first.set_column(0, "x", pa.array([1.0, 2.0])), tmp_path / "9.parquet")
    for out in (None, tmp_path / "other"):
        with pytest.raises(ValueError, match=r"9\.parquet .* 'x' is float64 \[\] instead of int64"):
            read(tmp_path, out, num_workers=0)
