"""Complex numbers: statistics of them are right, and what needs an order says so."""

import numpy as np
import pytest
import torch

import tdmap
from tdmap import reducers as r
from tensordict_lite import TensorDict

VALUES = torch.tensor([1 + 2j, 1 - 2j, 0, 3j, -0j, 3])


def data(dtype: torch.dtype = torch.complex64) -> TensorDict:
    return TensorDict({"z": VALUES.to(dtype), "row": torch.arange(6)}, [6])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("chunksize", [1, 4, None])
def test_statistics_of_complex_numbers(dtype: torch.dtype, chunksize: int | None) -> None:
    parts = {"sum": r.Sum("z"), "mean": r.Mean("z"), "var": r.Var("z"), "first": r.First("z")}
    for rows in (data(dtype), data(dtype).apply(lambda leaf: leaf.conj() if leaf.is_complex() else leaf)):
        got = tdmap.reduce(rows, parts, num_workers=0, chunksize=chunksize)
        wanted = rows["z"].resolve_conj().numpy()
        np.testing.assert_allclose(got["sum"], wanted.sum())
        np.testing.assert_allclose(got["mean"], wanted.mean())
        np.testing.assert_allclose(got["var"], wanted.var(ddof=1))
        assert complex(got["first"]) == complex(wanted[0])


@pytest.mark.parametrize(
    "reducer",
    [r.Quantile("z"), r.Histogram("z"), r.Histogram("z", dim=0), r.Min("z"), r.Unique("z"), r.TopK("z")],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_a_reducer_that_orders_numbers_refuses_complex_ones(reducer: r.Reducer[object]) -> None:
    with pytest.raises(TypeError, match=f"^{type(reducer).__name__}.*'z'.* needs real numbers: got complex numbers"):
        tdmap.reduce(data(), reducer, num_workers=0)
    with pytest.raises(TypeError, match="'z'.* needs real numbers: got complex numbers"):
        tdmap.group_by(data(), "row").reduce({"a": reducer}, num_workers=0)


@pytest.mark.filterwarnings("error")
def test_rows_are_not_chosen_by_complex_numbers() -> None:
    with pytest.raises(TypeError, match="weights= needs real numbers"):
        tdmap.sample(data(), 3, weights="z", num_workers=0)
    with pytest.raises(TypeError, match="stratify= needs real numbers"):
        tdmap.train_test_split(data(), 0.5, stratify="z", num_workers=0)
