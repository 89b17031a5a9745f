"""`tdmap.sort` gives the rows in the order that a stable sort of the keys has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap.bykey import index, prepare
from tensordict_lite import TensorDict


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(prepare, "PARTITION_BYTES", 1024)
    monkeypatch.setattr(prepare, "LIGHT_BYTES", 0)
    monkeypatch.setattr(index, "HEAP_BYTES", 1000)


def dataset(rows, spread):
    return TensorDict(
        {
            "k": torch.randint(0, spread, (rows,)) - spread // 2,
            "f": torch.randint(0, 4, (rows,)).float(),
            "m": {"row": torch.arange(rows)},
        },
        [rows],
    )


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
@pytest.mark.parametrize("descending", [False, True])
def test_a_stable_order(executor, descending, small_pieces):
    data = dataset(3000, 100)
    result = tdmap.sort(data, "k", descending=descending, num_workers=2, executor=executor, chunksize=100)
    order = torch.sort(data["k"], stable=True, descending=descending).indices
    assert (result == data[order]).all()


@pytest.mark.parametrize("heavy", [0.3, 0.9, 1.0])
def test_a_key_that_most_rows_have(heavy, small_pieces, monkeypatch):
    monkeypatch.setattr(index, "WHOLE_BYTES", 4096)
    data = dataset(4000, 2000)
    data["k"][torch.rand(4000) < heavy] = 7
    result = tdmap.sort(data, "k", num_workers=2, chunksize=100)
    assert (result == data[torch.sort(data["k"], stable=True).indices]).all()


def test_several_keys_with_directions_of_their_own(tmp_path, small_pieces):
    data = dataset(2000, 30)
    for f_down in (False, True):
        order = torch.sort(data["k"], stable=True, descending=not f_down).indices
        order = order[torch.sort(data["f"][order], stable=True, descending=f_down).indices]
        result = tdmap.sort(data, ["f", "k"], tmp_path / str(f_down), descending=[f_down, not f_down], num_workers=2)
        assert (result == data[order]).all()


def test_nan_is_the_largest_as_for_torch():
    data = TensorDict({"f": torch.tensor([1.0, torch.nan, -torch.inf, torch.inf, -torch.nan])}, [5])
    for descending in (False, True):
        result = tdmap.sort(data, "f", descending=descending, num_workers=2)["f"]
        assert torch.equal(result.nan_to_num(9), data["f"].sort(descending=descending).values.nan_to_num(9))


def test_strings_functions_tensors_and_nested_keys():
    words = ["b", "a", "", "ä", "b"]
    data = TensorDict({"word": words, "m": {"row": torch.arange(5)}}, [5])
    assert tdmap.sort(data, "word", num_workers=2)["m", "row"].tolist() == [2, 1, 0, 4, 3]
    assert tdmap.sort(data, "word", num_workers=2)["word"] == sorted(words)
    assert tdmap.sort(data, ("m", "row"), descending=True, num_workers=2)["m", "row"].tolist() == [4, 3, 2, 1, 0]
    x = torch.arange(10)
    assert tdmap.sort(x, lambda chunk: chunk % 3, num_workers=2).tolist() == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["bool", "uint8", "int16", "int64", "uint32", "float16", "float64"]),
    st.integers(0, 500),
    st.sampled_from([1, 2, 10, 2**62]),
    st.integers(1, 600),
)
def test_any_dtype_and_size(small_pieces, dtype, rows, spread, chunksize):
    random = np.random.default_rng(rows)
    keys = random.integers(-(spread // 2), spread // 2 + 1, rows).astype(dtype)
    data = TensorDict({"k": torch.from_numpy(keys), "row": torch.arange(rows)}, [rows])
    result = tdmap.sort(data, "k", num_workers=0, chunksize=chunksize)
    assert result["row"].tolist() == np.argsort(keys, kind="stable").tolist()
    assert np.array_equal(result["k"].numpy(), np.sort(keys))


def test_into_a_dataset_that_there_is_and_from_an_empty_one(tmp_path):
    data = dataset(100, 10)
    out = data.clone().zero_()
    assert tdmap.sort(data, "k", out, num_workers=2) is out
    assert torch.equal(out["k"], data["k"].sort().values)
    with pytest.raises(tdmap.OutputMismatch, match="50 rows and the result has 100"):
        tdmap.sort(data, "k", out[:50].clone(), num_workers=2)
    with pytest.raises(ValueError, match="shares memory"):
        tdmap.sort(data, "k", data, num_workers=2)
    assert tdmap.sort(data[:0], "k", num_workers=2).shape == (0,)
    assert tdmap.sort(data[:0], "k", tmp_path / "out", num_workers=2).shape == (0,)
