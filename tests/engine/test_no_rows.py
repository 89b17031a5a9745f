"""Datasets without rows: the function says what rows would look like."""

from __future__ import annotations

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict


@pytest.fixture
def nothing():
    return TensorDict({"x": torch.zeros(0, 3, dtype=torch.uint8), "k": torch.zeros(0)}, [0])


def halve(td):
    return TensorDict({"y": td["x"].float().sum(-1) / 2}, td.batch_size)


def test_the_result_has_the_schema_of_results(nothing):
    result = tdmap.map(nothing, halve, num_workers=2)
    assert result.batch_size == (0,) and set(result.keys()) == {"y"}
    assert result["y"].dtype is torch.float32 and result["y"].shape == (0,)
    assert tdmap.map(nothing, lambda td: td["x"].new_ones(1, 7), num_workers=2).shape == (0, 7)


def test_so_has_the_dataset_in_a_folder(nothing, tmp_path):
    tdmap.map(nothing, halve, num_workers=2, out=tmp_path / "out")
    loaded = TensorDict.load_memmap(tmp_path / "out")
    assert set(loaded.keys()) == {"y"} and loaded.batch_size == (0,)
    with pytest.raises(tdmap.OutputMismatch, match="returned None, and out is a folder"):
        tdmap.map(nothing, lambda td: None, num_workers=2, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_functions_in_place_give_none(nothing):
    assert tdmap.map(nothing, lambda td: td["k"].add_(1) and None if len(td) else None, num_workers=2) is None


def test_an_output_is_given_back(nothing):
    out = TensorDict({"y": torch.zeros(0)}, [0])
    assert tdmap.map(nothing, halve, num_workers=2, out=out) is out
    assert list(tdmap.map_iter(nothing, halve, num_workers=2)) == []


def test_a_function_that_needs_a_row_is_named_with_its_error(nothing):
    with pytest.raises(ValueError, match=r"does not work on zero rows.*IndexError") as caught:
        tdmap.map(nothing, lambda td: td["k"][0] + td["x"], num_workers=2)
    assert isinstance(caught.value.__cause__, IndexError)
    with pytest.raises(ValueError, match="no rows, and chunksize=0"):
        tdmap.map(nothing, halve, num_workers=2, chunksize=0)
