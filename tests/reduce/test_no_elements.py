"""Entries whose rows have no elements: NaN, zeros or an error that says so, for every dtype."""

import pytest
import torch

import tdmap
from tdmap import reducers as r
from tensordict_lite import TensorDict

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool, torch.int64], ids=str)
CHUNKS = pytest.mark.parametrize("chunksize", [1, 2, None])


def data(dtype: torch.dtype, *row: int) -> TensorDict:
    return TensorDict({"x": torch.zeros(5, *row, dtype=dtype), "g": torch.tensor([0, 1, 0, 1, 1])}, [5])


@DTYPES
@CHUNKS
@pytest.mark.parametrize("row", [(0,), (2, 0), (0, 2)], ids=str)
def test_statistics_of_no_elements(dtype: torch.dtype, chunksize: int | None, row: tuple[int, ...]) -> None:
    parts = {"sum": r.Sum("x", None), "mean": r.Mean("x", None), "var": r.Var("x", None), "std": r.Std("x", None)}
    got = tdmap.reduce(data(dtype, *row), parts, num_workers=0, chunksize=chunksize)
    assert got["sum"] == 0 and all(got[name].isnan() for name in ("mean", "var", "std"))
    got = tdmap.group_by(data(dtype, *row), "g").reduce(parts, num_workers=0, chunksize=chunksize)
    assert got["sum"].tolist() == [0, 0] and all(got[name].isnan().all() for name in ("mean", "var", "std"))


@DTYPES
@CHUNKS
def test_each_of_no_columns(dtype: torch.dtype, chunksize: int | None) -> None:
    parts = {"sum": r.Sum("x"), "var": r.Var("x"), "low": r.Min("x"), "bins": r.Histogram("x", 3, (0, 1), dim=0)}
    got = tdmap.reduce(data(dtype, 0), parts, num_workers=0, chunksize=chunksize)
    assert [tuple(got[name].shape) for name in ("sum", "var", "low")] == [(0,)] * 3
    assert got["bins", "count"].shape == (0, 3) and got["bins", "below"].shape == (0,)


@DTYPES
@CHUNKS
@pytest.mark.parametrize("kind", [r.Min, r.Max, r.MinMax])
def test_nothing_is_the_smallest_of_no_elements(
    dtype: torch.dtype, chunksize: int | None, kind: type[r.MinMax]
) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__}.'x', dim=None.: the rows have no elements"):
        tdmap.reduce(data(dtype, 0), kind("x", None), num_workers=0, chunksize=chunksize)
    with pytest.raises(ValueError, match="value of 'x': the rows have no elements"):
        tdmap.group_by(data(dtype, 0), "g").reduce({"a": kind("x", None)}, num_workers=0, chunksize=chunksize)
