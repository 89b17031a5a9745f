"""Rows without duplicates are those that pandas keeps, for every key, kind of data and number of workers."""

import numpy as np
import pandas as pd
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.keys.keys import sample_rows
from tdmap.keys.prepare import SAMPLE_RUN, SAMPLE_RUNS
from tensordict_lite import TensorDict, lazy_stack
from tests.rows.conftest import WORKERS, bits

ROWS = 600
KEEPS = ("first", "last", None)
KEYS = ["number", "float", "word", ("nested", "small"), ["number", ("nested", "small")], ["word", "float"]]


@pytest.fixture(scope="module")
def data():
    """Keys that repeat, NaN and -0.0 among them."""
    random = np.random.default_rng(0)
    number = torch.from_numpy(random.integers(0, 200, ROWS))
    values = number.double() / 4
    values[::7], values[:3] = float("nan"), torch.tensor([0.0, -0.0, 0.0])
    nested = TensorDict({"small": (number % 5).to(torch.int8)}, [ROWS])
    words = [f"w{n % 90}" for n in number.tolist()]
    return TensorDict(
        {"row": torch.arange(ROWS), "number": number, "float": values, "word": words, "nested": nested}, [ROWS]
    )


def wanted(data, key, keep):
    """The numbers of the rows that pandas keeps."""
    columns = [data.get(name).tolist() for name in (key if isinstance(key, list) else [key])]
    duplicated = pd.DataFrame(dict(enumerate(columns))).duplicated(keep=False if keep is None else keep)
    return np.flatnonzero(~duplicated.to_numpy()).tolist()


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_rows_are_those_of_pandas_for_any_number_of_workers(key, keep, data):
    rows = wanted(data, key, keep)
    for options in ({"num_workers": 0}, *({"chunksize": 37, **workers} for workers in WORKERS)):
        assert bits(tdmap.drop_duplicates(data, key, keep, **options)) == bits(data[rows])


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("kind", ["lazy stack", "sharded", "mapped", "in files"])
def test_keys_of_any_kind_of_data(kind, keep, data, tmp_path):
    if kind == "lazy stack":
        source = lazy_stack(list(data.unbind(0)))
    elif kind == "sharded":
        source = tdmap.concat([data[:250].memmap(tmp_path / "a"), data[250:].memmap(tmp_path / "b")])
    else:
        source = data.clone().memmap(tmp_path / "all")
    size = 1024 if kind == "in files" else 64 << 20
    keys = {"word": "word", "few": ("nested", "small"), "text": lambda chunk: [word.upper() for word in chunk["word"]]}
    with tuning.use(partition_bytes=size, heap_bytes=size, kept_bytes=size):
        for name, key in keys.items():
            found = tdmap.drop_duplicates(source, key, keep, out=tmp_path / "out", overwrite=True, num_workers=0)
            assert found["row"].tolist() == wanted(data, "word" if name == "text" else key, keep)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("few", [True, False])
def test_a_sample_that_misleads(few, keep):
    """Rows beside the sample have keys of their own, or one key only."""
    number = torch.arange(300_000) if few else torch.zeros(300_000, dtype=torch.int64)
    seen = sample_rows(len(number), SAMPLE_RUNS, SAMPLE_RUN)
    number[seen] = -seen % 3 if few else -seen
    data = TensorDict({"row": torch.arange(len(number)), "number": number}, [len(number)])
    found = tdmap.drop_duplicates(data, "number", keep, num_workers=0)
    assert found["row"].tolist() == wanted(data, "number", keep)


def test_a_plain_tensor_has_a_key_by_a_function():
    rows = torch.tensor([[1, 2], [3, 4], [1, 5]])
    assert tdmap.drop_duplicates(rows, lambda chunk: chunk[:, 0], num_workers=0).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="a plain tensor has no entries. Pass a function"):
        tdmap.drop_duplicates(rows, "x", num_workers=0)


def test_arguments_that_make_no_sense(data):
    with pytest.raises(ValueError, match="keep must be 'first', 'last', or None .*: got False"):
        tdmap.drop_duplicates(data, "word", False)
    with pytest.raises(KeyError, match="the key of drop_duplicates.*Did you mean 'word'"):
        tdmap.drop_duplicates(data, "wrod")
