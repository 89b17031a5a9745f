"""Arrays of strings and objects, and columns of other libraries, are columns when they have the batch's rows."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import tdmap
from tensordict_lite import NonTensorData, NonTensorStack, TensorDict, tensorclass

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


def test_times_and_records_keep_what_they_are():
    times = np.array(["2020-01-01T12", "2021-01-01T00"], dtype="M8[ns]")
    records = np.array([("a", 1), ("b", 2)], dtype=[("name", "U1"), ("n", "i4")])
    data = TensorDict({"at": times, "record": records, "series": pd.Series(times)}, [2])
    assert data[1]["at"] == times[1] and data[0]["record"] == records[0]
    assert data[1]["series"] == pd.Timestamp("2021-01-01")


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
