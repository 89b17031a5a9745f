"""Arrays of strings and objects, and columns of other libraries, are columns when they have the batch's rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import tdmap
from tensordict_lite import NonTensorData, NonTensorStack, Ragged, TensorDict, tensorclass

WORDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "column",
    [
        np.array(WORDS),
        np.array(WORDS, dtype=object),
        np.array([w.encode() for w in WORDS]),
        pd.Series(WORDS),
        pd.Series(WORDS, dtype="category"),
        pd.Series(WORDS, dtype="string"),
        pd.Index(WORDS),
        pa.array(WORDS),
        pa.chunked_array([WORDS[:1], WORDS[1:]]),
        pa.array(WORDS).dictionary_encode(),
    ],
    ids=lambda column: f"{type(column).__module__.partition('.')[0]} {getattr(column, 'dtype', type(column).__name__)}",
)
def test_rows_of_a_column_follow_their_rows(column):
    data = TensorDict({"word": column, "n": torch.arange(4)}, [4])
    words = [w.encode() for w in WORDS] if getattr(column, "dtype", None) == np.dtype("S1") else WORDS
    assert isinstance(data.get("word"), NonTensorStack) and data["word"] == words
    assert tdmap.filter(data, lambda c: c["n"] % 2 == 1, num_workers=0)["word"] == words[1::2]
    assert tdmap.sort(data, "n", descending=True, num_workers=0)["word"] == words[::-1]


@pytest.mark.parametrize(
    "column, dtype",
    [
        (pd.Series([1, 2, 3, 4]), torch.int64),
        (pd.Series([1.5, float("nan"), 3, 4]), torch.float64),
        (pd.Series([True, False, True, False]), torch.bool),
        (pa.array([1, 2, 3, 4], pa.int64()), torch.int64),
        (pd.Index([1, 2, 3, 4]), torch.int64),
    ],
    ids=str,
)
def test_numbers_are_tensors(column, dtype):
    data = TensorDict({"x": column}, [4])
    assert data["x"].dtype is dtype and data["x"].nan_to_num().tolist() == np.nan_to_num(np.asarray(column)).tolist()
    data["x"][0] = 0  # the frame's own memory may only be read


def test_missing_values_are_none():
    frame = pd.DataFrame({"s": ["a", None, float("nan")], "i": pd.array([1, None, 3], dtype="Int64")})
    data = TensorDict({"s": frame["s"], "i": frame["i"], "arrow": pa.array(["x", None, "z"])}, [3])
    assert data["s"] == ["a", None, None] and data["i"] == [1, None, 3] and data["arrow"] == ["x", None, "z"]


def test_records_keep_what_they_are():
    records = np.array([("a", 1), ("b", 2)], dtype=[("name", "U1"), ("n", "i4")])
    times = pd.Series(np.array(["2020-01-01T12", "2021-01-01T00"], dtype="M8[ns]"))
    data = TensorDict({"record": records, "series": times}, [2])
    assert data[0]["record"] == records[0] and data[1]["series"] == pd.Timestamp("2021-01-01")


def read_only(array):
    array.flags.writeable = False
    return array


ARRAYS = {
    **{f"big-endian {kind}": np.arange(4).astype(f">{kind}") for kind in ("i2", "i4", "u2", "f4", "f8", "c16", "f2")},
    "bools": np.array([True, False, False, False])[::-1],
    "backwards": np.arange(4)[::-1],
    "columns backwards": np.arange(12.0).reshape(4, 3)[:, ::-1],
    "big-endian rows": np.arange(12).reshape(4, 3).astype(">i8")[::-1],
    "read only": read_only(np.arange(4)),
    "a field": np.zeros(4, "u1,f8")["f1"],
    "every other": np.arange(8)[::2],
}
TIMES = {
    "M8[ns]": ("timestamp[ns]", "M8[ns]"),
    ">M8[s]": ("timestamp[s]", "M8[s]"),
    "M8[D]": ("date32[day]", "M8[D]"),
    "M8[M]": ("date32[day]", "M8[D]"),
    "M8[h]": ("timestamp[s]", "M8[s]"),
    ">m8[ms]": ("duration[ms]", "m8[ms]"),
    "m8[D]": ("duration[s]", "m8[s]"),
}


def set_later(array):
    data = TensorDict({}, [4])
    data["x"] = array
    return data


def of_class(array):
    @tensorclass
    class Row:
        x: torch.Tensor

    return Row(x=array, batch_size=[4]).to_tensordict()


def of_records(array):
    records = np.zeros(4, [("pad", "u1"), ("x", array.dtype, array.shape[1:])])
    records["x"] = array
    return TensorDict.from_struct_array(records)


ENTRANCES = {
    "TensorDict": lambda array: TensorDict({"x": array}, [4]),
    "set": set_later,
    "nested": lambda array: TensorDict({"in": {"x": array}}, [4])["in"],
    "tensorclass": of_class,
    "records": of_records,
    "function": lambda array: tdmap.map(torch.arange(4), lambda rows: {"x": array}, chunksize=4, num_workers=0),
    "function, folder": lambda array, out: tdmap.map(
        torch.arange(4), lambda rows: {"x": array}, chunksize=4, num_workers=0, out=out
    ),
}


def entered(entrance, array, folder):
    fn = ENTRANCES[entrance]
    return fn(array, folder / "out") if entrance == "function, folder" else fn(array)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_arrays_of_any_order_and_layout_are_tensors(entrance, tmp_path):
    for number, (name, array) in enumerate(ARRAYS.items()):
        data = entered(entrance, array, tmp_path / str(number))
        assert isinstance(data["x"], torch.Tensor), name
        assert np.array_equal(data["x"].numpy(), array) and data["x"].numpy().dtype == array.dtype.newbyteorder("=")
        data["x"][0] = 0  # is that of the tensor alone, where the array may only be read


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_times_are_integers_with_a_type(entrance, tmp_path):
    for number, (kind, (name, unit)) in enumerate(TIMES.items()):
        times = np.arange(3, 7).astype("i8").astype(kind)
        data = entered(entrance, times, tmp_path / str(number))
        assert data.arrow_types == {"x": name} and data["x"].tolist() == times.astype(unit).astype("i8").tolist()
        data.memmap(tmp_path / f"m{number}", copy_existing=True)
        again = TensorDict.load_memmap(tmp_path / f"m{number}")
        assert again.arrow_types == {"x": name} and again["x"].equal(data["x"].as_subclass(torch.Tensor))


@pytest.mark.parametrize("entrance", [name for name in ENTRANCES if name != "records"])
@pytest.mark.parametrize(
    "array, match",
    [
        (np.ones(4, "g"), "'x'.*(float128|float96|longdouble)"),
        (np.array(["2020-01-01", "NaT"] * 2, "M8[s]"), "'x'.*NaT in row 1"),
        (np.arange(4).astype("M8[ps]"), r"'x'.*datetime64\[ps\]"),
        (np.array([1, 2, 2**62, 3]).astype("M8[h]"), "'x'.*row 2"),
    ],
    ids=["longdouble", "NaT", "ps", "too large"],
)
def test_what_no_tensor_holds_is_refused_by_name(entrance, array, match, tmp_path):
    with pytest.raises((TypeError, ValueError), match=match):
        entered(entrance, array, tmp_path)


def test_rows_and_indices_may_be_any_arrays():
    rows = [np.arange(3, dtype=">i4"), np.arange(2)[::-1].astype("i4")]
    assert Ragged.from_list(rows).tolist() == [[0, 1, 2], [1, 0]]
    data = TensorDict({"x": torch.arange(4)}, [4])
    for index in (np.array([2, 1], ">i8"), np.array([1, 2])[::-1], read_only(np.array([2, 1]))):
        assert data[index]["x"].tolist() == [2, 1]
    data[:2] = {"x": np.array([7, 8], ">i4")}
    data.set_("x", np.array([1, 2, 8, 7])[::-1])
    assert data["x"].tolist() == [7, 8, 2, 1]


PATHS = {
    "memmap": lambda data, out: data.memmap(out),
    "map": lambda data, out: tdmap.map(data, lambda rows: {"p": [p.parent / p.name for p in rows["p"]]}, out=out),
    "map rows": lambda data, out: tdmap.map(data, lambda row: {"p": row["p"] / ""}, chunksize=0, out=out),
    "pass": lambda data, out: tdmap.map(data, lambda rows: rows, out=out),
    "filter": lambda data, out: tdmap.filter(data, lambda rows: rows["i"] >= 0, out=out),
    "sort": lambda data, out: tdmap.sort(data, "i", out=out),
    "parquet": lambda data, out: tdmap.datasets.write(data, f"{out}.parquet"),
}


@pytest.mark.parametrize("rows", [4, 300])
@pytest.mark.parametrize("how", PATHS)
def test_paths_are_text_in_files(how, rows, tmp_path):
    data = TensorDict({"p": [Path("a", str(n)) for n in range(rows)], "i": torch.arange(rows)}, [rows])
    PATHS[how](data, tmp_path / "out")
    found = tdmap.datasets.read(tmp_path / "out.parquet") if how == "parquet" else tdmap.open(tmp_path / "out")
    assert list(found["p"]) == [str(Path("a", str(n))) for n in range(rows)]
    assert data["p"][0] == Path("a/0")


def test_more_dimensions():
    words = np.array([["a", "b", "c"], ["d", "e", "f"]])
    assert TensorDict({"w": words}, [2, 3])[1, 2]["w"] == "f"
    assert TensorDict({"w": words}, [2])[1]["w"] == ["d", "e", "f"]


@pytest.mark.parametrize("batch", [[], [3]], ids=str)
def test_an_array_with_other_rows_is_one_object(batch):
    entry = TensorDict({"word": np.array(WORDS)}, batch).get("word")
    assert isinstance(entry, NonTensorData) and entry.data.tolist() == WORDS


def test_entries_that_are_set_later_and_fields_of_classes():
    @tensorclass
    class Row:
        word: str
        n: torch.Tensor

    data = TensorDict({"n": torch.arange(4)}, [4])
    data["word"] = np.array(WORDS)
    data["meta", "word"] = pd.Series(WORDS)
    row = Row(word=np.array(WORDS), n=torch.arange(4), batch_size=[4])
    assert data[2]["word"] == data[2]["meta", "word"] == row[2].word == "c"
