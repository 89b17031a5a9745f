"""Histograms, quantiles, distinct values, best rows and checksums: every dtype, and the short cuts that some have."""

import hashlib
import math

import numpy as np
import pytest
import torch

import tdmap
from tdmap import reducers as r
from tdmap.reducers import blocks
from tensordict_lite import Ragged, TensorDict

DTYPES = [torch.uint8, torch.int8, torch.bool, torch.int16, torch.int64, torch.float16, torch.float32, torch.float64]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 40
    return x.clamp(-100, 100).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [3, 1500, 40_000])
def test_histogram_of_every_dtype_equals_numpy(dtype: torch.dtype, rows: int) -> None:
    x = numbers(dtype, rows, 2, 3)
    got = tdmap.reduce(x, r.Histogram(bins=13, range=(-30, 90), dim=(0, 2)), num_workers=0, chunksize=max(rows // 3, 1))
    for channel in range(2):
        values = x[:, channel].numpy().astype(np.float64)
        np.testing.assert_array_equal(got["count"][channel], np.histogram(values, 13, (-30, 90))[0])
        assert int(got["below"][channel]) == (values < -30).sum() and int(got["above"][channel]) == (values > 90).sum()


@pytest.mark.parametrize("bins", [1, 3, 7, 10, 64, 100, 1000])
@pytest.mark.parametrize("low", [0.0, -1.0, 0.1, -0.3, 1e15, 1e-300, -1e307])
def test_histogram_counts_numbers_on_and_beside_edges_as_numpy(low: float, bins: int) -> None:
    high = {0.0: 1.0, -1.0: 1.0, 0.1: 0.7, 1e15: 1e15 + 3000.0, 1e-300: 1e-296, -1e307: 1.6e308}.get(low, 0.9)
    edges = np.linspace(low, high, bins + 1)
    x = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf), [np.nan, np.inf, -np.inf]])
    data = TensorDict({"x": torch.from_numpy(x), "b": torch.zeros(len(x), dtype=torch.bool)}, [len(x)])
    got = tdmap.reduce(data, r.Histogram("x", bins, (low, high)), num_workers=0, chunksize=100)
    wanted, found = np.histogram(x[np.isfinite(x)], bins, (low, high))
    np.testing.assert_array_equal(got["edges"], found)
    np.testing.assert_array_equal(got["count"], wanted)
    np.testing.assert_array_equal(got["count"], np.histogram(x[~np.isnan(x)], got["edges"].numpy())[0])
    assert [int(got["below"]), int(got["above"])] == [(x < low).sum(), (x > high).sum()]


@pytest.mark.parametrize(
    ("bins", "bounds"),
    [
        (0, (0, 1)),
        (3, (1, 1)),
        (3, (0, math.inf)),
        (3, (-math.inf, 0)),
        (3, (-1e308, 1e308)),
        (3, (0, math.nan)),
        (9, (0, 1e-323)),
        (100, (1e16, 1e16 + 100)),
    ],
)
def test_histogram_refuses_bins_that_have_no_width(bins: int, bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a range of two finite numbers|narrower than float64"):
        r.Histogram("x", bins, bounds)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [5, 3000])
def test_distinct_values_of_every_dtype_equal_torch(dtype: torch.dtype, rows: int) -> None:
    x = numbers(dtype, rows, 2)
    got = tdmap.reduce(x, r.ValueCounts(), num_workers=0, chunksize=max(rows // 2, 1))
    wanted, counts = torch.unique(x, return_counts=True)
    assert got["value"].dtype == dtype
    assert torch.equal(got["value"], wanted) and torch.equal(got["count"], counts)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float32], ids=str)
def test_quantiles_hold_their_bound_over_many_blocks(dtype: torch.dtype) -> None:
    x = numbers(dtype, 3 * blocks.BLOCK)
    q = (0.0, 0.01, 0.5, 0.99, 1.0)
    got = tdmap.reduce(x, r.Quantile(q=q, relative_error=0.01), num_workers=0, chunksize=len(x)).numpy()
    wanted = np.quantile(x.numpy().astype(np.float64), q, method="lower")
    assert (np.abs(got - wanted) <= 0.01 * np.abs(wanted) + 1e-9).all()


@pytest.mark.parametrize("about", [100, 1_700_000_000, -1_700_000_000, 10**15])
@pytest.mark.parametrize("spread", [1, 1000, 90_000_000])
def test_quantiles_about_a_number_are_relative_to_the_distance_from_it(about: int, spread: int) -> None:
    x = about + torch.randint(-spread, spread, (5000,), generator=torch.Generator().manual_seed(0))
    q = (0.0, 0.01, 0.5, 0.99, 1.0)
    got = tdmap.reduce(x, r.Quantile(q=q, about=about), num_workers=2, chunksize=700).numpy()
    wanted = np.quantile(x.numpy(), q, method="lower")
    assert (np.abs(got - wanted) <= 0.01 * np.abs(wanted - about) + 1e-9).all()
    small = tdmap.reduce((x - about).clamp(0, 100).to(torch.uint8), r.Quantile(q=q, about=50), num_workers=0).numpy()
    assert (np.abs(small - np.quantile((x - about).clamp(0, 100).numpy(), q, method="lower")) <= 0.5).all()


def magnitudes() -> dict[str, np.ndarray]:
    """Finite numbers of float64 of any size."""
    random = np.random.default_rng(0)
    return {
        "SI": np.linspace(1e-13, 1e-12, 1001),
        "subnormal": random.integers(0, 1000, 1001) * 5e-324,
        "mixed": 10.0 ** random.uniform(-320, 308, 1001) * random.choice([-1, 1], 1001),
        "negative": -np.linspace(1e-300, 1e-299, 1001),
        "far apart": random.uniform(-1, 1, 1001) * 1.7e308,
        "zeros": np.repeat([0.0, 1e-310], [500, 501]),
        "offset": 1e15 + random.uniform(0, 1000, 1001),
        "one far away": np.append(np.full(500, 1.7e308), -1.7e308),
        "two": np.array([1e308, -1e308]),
        "three": np.array([1e308, 1.7e308, -1.7e308]),
    }


@pytest.mark.parametrize("chunksize", [100, None])
@pytest.mark.parametrize("case", magnitudes())
def test_quantiles_and_figures_of_any_magnitude(case: str, chunksize: int | None) -> None:
    x, q = magnitudes()[case], (0.0, 0.01, 0.05, 0.5, 0.95, 1.0)
    data = TensorDict({"x": torch.from_numpy(x)}, [len(x)])
    wanted = np.quantile(x, q, method="lower")
    for about in (0.0, float(x[0])):
        got = tdmap.reduce(data, r.Quantile("x", q, about=about), num_workers=0, chunksize=chunksize).numpy()
        assert (np.abs(got / 2 - wanted / 2) <= 0.01 * np.abs(wanted / 2 - about / 2) + 1e-323).all()
    found = tdmap.describe(data, num_workers=0, chunksize=chunksize)["x"]
    assert np.abs(np.array(found.quantiles) / 2 - wanted[2:5] / 2).max() <= 0.005 * np.abs(wanted).max() + 1e-323
    power = math.frexp(np.abs(x).max())[1]
    units = np.ldexp(x, -power)
    mean = math.fsum(units) / len(x)
    apart = units - units[0]  # exact
    deviation = math.sqrt(math.fsum((apart - math.fsum(apart) / len(x)) ** 2) / (len(x) - 1))
    assert found.mean is not None and found.std is not None
    assert np.ldexp(found.mean, -power) == pytest.approx(mean, abs=1e-15 + np.ldexp(5e-324, -power))
    assert found.std == pytest.approx(float(np.ldexp(deviation, power)), rel=1e-9, abs=1e-323)
    assert sum(found.histogram) == len(x) and (max(found.histogram) < 200 or case in ("mixed", "zeros", "one far away"))


def test_quantile_ranks_infinity_beyond_all_numbers_and_leaves_nan_out() -> None:
    x = torch.tensor([torch.nan, -torch.inf, 1.0, 2.0, torch.inf])
    low, middle, high = tdmap.reduce(x, r.Quantile(q=(0.0, 0.5, 1.0)), num_workers=0).tolist()
    assert low < -1e300 and high > 1e300 and 0.9 < middle < 2.1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32], ids=str)
@pytest.mark.parametrize("k", [1, 7, 400, 5000])
@pytest.mark.parametrize("largest", [True, False])
def test_top_k_among_many_ties_takes_the_earlier_rows(dtype: torch.dtype, k: int, largest: bool) -> None:
    x = (numbers(torch.float32, 2000) / 20).round().to(dtype)
    got = tdmap.reduce(x, r.TopK(k=k, largest=largest), num_workers=0, chunksize=300)
    values = x.to(torch.float64).numpy()
    order = np.argsort(-values if largest else values, kind="stable")[:k]
    assert got["row"].tolist() == order.tolist() and torch.equal(got["value"], x[torch.from_numpy(order)])


@pytest.mark.parametrize("key", ["x", "word"])
def test_top_k_takes_one_value_a_row(key: str) -> None:
    words = [["a", "b"], ["c", "d"], ["e", "f"]]
    data = TensorDict({"x": torch.arange(6).reshape(3, 2), "word": words}, [3, 2])
    with pytest.raises(ValueError, match=r"one value each; the entry .* has rows of shape \[2\]"):
        tdmap.top_k(data, key, 2, num_workers=0)


@pytest.mark.parametrize("width", [3, 2 * blocks.BLOCK])
def test_checksum_of_many_blocks_is_that_of_the_definition(width: int) -> None:
    x = numbers(torch.int16, max(3 * blocks.BLOCK // width, 2), width)
    data, step, row_step = x.numpy().view(np.uint8), -7046029254386353131, -4658895280553007687
    salt = int.from_bytes(hashlib.blake2b(b"None", digest_size=7).digest(), "little")
    rows = (np.arange(len(x)) * np.int64(row_step) + np.array([salt]) * np.int64(step))[:, None]
    weights = (rows + np.arange(data.shape[1] + 1) * np.int64(step)) | 1  # the first one of a row stands for the row
    wanted = int(weights[:, 0].sum() + ((data.astype(np.int64) + 1) * weights[:, 1:]).sum()) % (1 << 63)
    assert tdmap.reduce(x, r.Checksum(), num_workers=0, chunksize=1000) == wanted
    assert r.Checksum("x").update(0, TensorDict({"x": x}, [len(x)])) == r.Checksum("x").update(
        0, TensorDict({"x": Ragged.from_list(list(x))}, [len(x)])
    )


def test_reducing_in_inference_mode_first_spoils_nothing_afterwards() -> None:
    x = torch.randn(100)
    blocks._of_thread.buffer = None
    with torch.inference_mode():
        inside = r.Var().of(x, (0,))
    assert torch.equal(r.Var().of(x, (0,))[-1], inside[-1])


def test_parameters_are_reduced_without_a_graph() -> None:
    weights = torch.nn.Parameter(torch.randn(10, 3))
    assert not r.Mean().of(weights, (0,))[1].requires_grad
    assert len(tdmap.reduce(weights, r.Unique(), num_workers=0)) == 30
