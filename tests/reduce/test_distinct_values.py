"""Distinct values and their ranks do not depend on the chunk size: zeros of both signs, NaN, None, limits."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap import reducers as r
from tensordict_lite import NonTensorStack, Ragged, TensorDict

NAN, INF = math.nan, math.inf
VALUES = [1.5, -0.0, NAN, 0.0, INF, -2.0, NAN, -0.0, -INF, 1.5, NAN, 0.0, -2.0]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]
CHUNKS = pytest.mark.parametrize("chunksize", [1, 2, 3, 5, None])


def alike(found: list[float], wanted: list[float]) -> bool:
    """Whether numbers are the same, with the sign of zero, and all NaN alike."""
    return list(map(repr, found)) == list(map(repr, wanted))


@CHUNKS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zero_and_nan_are_one_value_each(dtype: torch.dtype, chunksize: int | None) -> None:
    data = TensorDict({"x": torch.tensor(VALUES).to(dtype)}, [len(VALUES)])
    got = tdmap.reduce(data, {"u": r.Unique("x"), "c": r.ValueCounts("x")}, num_workers=0, chunksize=chunksize)
    wanted, counts = np.unique(np.array(VALUES) + 0.0, return_counts=True)
    assert got["u"].dtype is got["c", "value"].dtype is dtype
    for found in (got["u"], got["c", "value"]):
        assert alike(found.double().tolist(), wanted.tolist())
    assert got["c", "count"].tolist() == counts.tolist()
    if dtype.itemsize > 1:
        keys = tdmap.value_counts(data, "x", sort=False, num_workers=0)
        assert alike(keys["x"].double().tolist(), wanted.tolist()) and keys["count"].tolist() == counts.tolist()


@CHUNKS
@pytest.mark.parametrize("column", [lambda v: NonTensorStack(*v), Ragged.from_objects], ids=["objects", "json"])
def test_nan_among_objects_comes_last(column: Callable[[list[Any]], Any], chunksize: int | None) -> None:
    values = [2.0, 1.5, NAN, 0.0, float("nan"), None, 7.0, NAN]
    data = TensorDict({"x": column(values)}, [len(values)])
    parts = {"u": r.Unique("x"), "c": r.ValueCounts("x"), "top": r.TopK("x", 6), "low": r.TopK("x", 3, largest=False)}
    got = tdmap.reduce(data, parts, num_workers=0, chunksize=chunksize)
    for found in (got["u"], list(got["c", "value"])):
        assert found[:-1] == [None, 0.0, 1.5, 2.0, 7.0] and math.isnan(found[-1])
    assert got["c", "count"].tolist() == [1, 1, 1, 1, 1, 3]
    assert got["top", "row"].tolist() == [6, 0, 1, 3, 2, 4] and got["low", "row"].tolist() == [3, 1, 0]


@CHUNKS
@pytest.mark.parametrize(
    "column",
    [torch.arange(300) % 5, (torch.arange(300) % 5).to(torch.uint8), [f"{n % 5}" for n in range(300)]],
    ids=["int64", "uint8", "text"],
)
def test_the_limit_of_distinct_values_holds_for_one_chunk(column: Any, chunksize: int | None) -> None:
    data = TensorDict({"x": column}, [300])
    assert len(tdmap.reduce(data, r.Unique("x", max_values=5), num_workers=0, chunksize=chunksize)) == 5
    with pytest.raises(ValueError, match="max_values=4"):
        tdmap.reduce(data, r.Unique("x", max_values=4), num_workers=0, chunksize=chunksize)
