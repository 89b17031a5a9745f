"""Answers against Python's own integers and fractions: no wrap-around, every dtype, the same by group."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import reducers as r
from tensordict_lite import TensorDict

INTEGERS = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64
]  # fmt: skip
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]


def limits(dtype: torch.dtype) -> tuple[int, int]:
    if dtype is torch.bool:
        return 0, 1
    info = np.iinfo(str(dtype).removeprefix("torch."))
    return int(info.min), int(info.max)


def tensor(numbers: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, dtype=str(dtype).removeprefix("torch.")))


def both_ways(reducer: r.Reducer, rows: torch.Tensor, chunk: int, workers: int = 0) -> list:
    """The answer of `reduce`, and that of one group."""
    data = TensorDict({"k": torch.zeros(len(rows), dtype=torch.int64), "x": rows}, [len(rows)])
    options = {"num_workers": workers, "chunksize": chunk}
    return [tdmap.reduce(data, reducer, **options), tdmap.group_by(data, "k").reduce(reducer, **options)["result"][0]]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_sums_of_integers_are_exact_or_an_error(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTEGERS))
    low, high = limits(dtype)
    near = st.sampled_from([low, low + 1, high, high - 1, 0, 1]).map(lambda n: min(max(n, low), high))
    numbers = data.draw(st.lists(near | st.integers(low, high), min_size=1, max_size=30))
    chunk = data.draw(st.integers(1, 8))
    wanted = sum(numbers)
    if -(1 << 63) <= wanted < 1 << 63:
        for answer in both_ways(r.Sum("x"), tensor(numbers, dtype), chunk):
            assert answer.dtype is torch.int64 and int(answer) == wanted
        return
    rows = TensorDict({"k": torch.zeros(len(numbers)), "x": tensor(numbers, dtype)}, [len(numbers)])
    with pytest.raises(OverflowError, match=str(wanted)):
        tdmap.reduce(rows, r.Sum("x"), num_workers=0, chunksize=chunk)
    with pytest.raises(OverflowError, match=str(wanted)):
        tdmap.group_by(rows, "k").reduce(r.Sum("x"), num_workers=0, chunksize=chunk)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64, torch.uint32], ids=str)
def test_sums_over_other_dimensions_and_of_many_groups(dtype: torch.dtype) -> None:
    low, high = limits(dtype)
    rng = np.random.default_rng(0)
    kind = str(dtype).removeprefix("torch.")
    raw = rng.integers(low // 128, high // 128, (300, 3, 2), dtype=kind)
    raw[0, 0, 0] = min(high, 1 << 62)  # so that the largest one, many times, would be too much
    rows, keys = torch.from_numpy(raw), torch.from_numpy(rng.integers(0, 100, 300))
    data = TensorDict({"k": keys, "x": rows}, [300])
    whole = raw.astype(object)
    for dim, axes in (((0, 2), (0, 2)), ((0, 1), (0, 1))):
        wanted = whole[:4].sum(axes)
        assert tdmap.reduce(data[:4], r.Sum("x", dim=dim), num_workers=0, chunksize=3).tolist() == wanted.tolist()
    groups = tdmap.group_by(data, "k").reduce(r.Sum("x", dim=(0,)), num_workers=2, chunksize=40)
    for key, answer in zip(groups["k"].tolist(), groups["result"], strict=True):
        assert answer.tolist() == whole[keys.numpy() == key].sum(0).tolist()


def test_an_overflow_in_a_worker_names_the_sum() -> None:
    rows = torch.full((1000,), (1 << 62) + 1)
    for call in (
        lambda: tdmap.reduce(rows, r.Sum(), num_workers=2, chunksize=100),
        lambda: both_ways(r.Sum("x"), rows, 100, workers=2)[1],
    ):
        with pytest.raises(OverflowError, match=f"{1000 * ((1 << 62) + 1)}.*float64"):
            call()


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_extremes_and_rankings_of_every_dtype(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    if dtype in INTEGERS:
        low, high = limits(dtype)
        numbers = [int(n) for n in rng.integers(low, high, 40, dtype=tensor([0], dtype).numpy().dtype, endpoint=True)]
        numbers += [low, high, high, 0]
        rows = tensor(numbers, dtype)
    else:
        rows = torch.from_numpy(rng.integers(-40, 40, 44)).float().to(dtype)
        numbers = rows.double().tolist()

    def plain(value: torch.Tensor) -> list:
        assert value.dtype is dtype
        return (value if value.dtype in INTEGERS else value.double()).tolist()

    for chunk in (3, 100):
        for answer in both_ways(r.Min("x"), rows, chunk):
            assert plain(answer) == min(numbers)
        for answer in both_ways(r.Max("x"), rows, chunk):
            assert plain(answer) == max(numbers)
        for answer in both_ways(r.MinMax("x"), rows, chunk):
            assert (plain(answer["min"]), plain(answer["max"])) == (min(numbers), max(numbers))
        for largest in (True, False):
            best = sorted(range(len(numbers)), key=lambda n: (-numbers[n] if largest else numbers[n], n))[:5]
            answer = tdmap.reduce(
                TensorDict({"x": rows}, [44]), r.TopK("x", 5, largest), num_workers=0, chunksize=chunk
            )
            assert answer["row"].tolist() == best and plain(answer["value"]) == [numbers[n] for n in best]
            assert plain(both_ways(r.TopK("x", 5, largest), rows, chunk)[1]["value"]) == [numbers[n] for n in best]
        for answer in both_ways(r.Unique("x"), rows, chunk):
            assert plain(answer) == sorted(set(numbers))
        for answer in both_ways(r.ValueCounts("x"), rows, chunk):
            assert answer["count"].tolist() == [numbers.count(n) for n in sorted(set(numbers))]


@pytest.mark.parametrize(
    "reducer", [r.Min("x"), r.Max("x"), r.MinMax("x"), r.TopK("x"), r.Unique("x"), r.ValueCounts("x")], ids=repr
)
def test_what_has_no_order_is_refused_with_words(reducer: r.Reducer) -> None:
    rows = torch.randn(10, dtype=torch.complex64)
    with pytest.raises(TypeError, match="complex"):
        tdmap.reduce(TensorDict({"x": rows}, [10]), reducer, num_workers=0)
    with pytest.raises(TypeError, match="complex"):
        both_ways(reducer, rows, 10)[1]


def test_extremes_keep_nan() -> None:
    rows = torch.tensor([1.0, math.nan, -2.0, 5.0])
    for chunk in (1, 2, 4):
        for reducer in (r.Min("x"), r.Max("x")):
            assert all(answer.isnan() for answer in both_ways(reducer, rows, chunk))


# -- accuracy ----------------------------------------------------------------------------------------


def test_sums_of_many_float32_rows_have_the_digits_that_are_documented() -> None:
    # The error grows with the root of the number of rows at most: of 1e8 rows it is ten times that of these.
    rows = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0))
    wanted = math.fsum(rows.tolist())
    for answer in both_ways(r.Sum("x"), rows, 40_000):
        assert answer.dtype is torch.float64
        assert abs(float(answer) / wanted - 1) < 1e-13
    for answer in both_ways(r.Mean("x"), rows, 40_000):
        assert abs(float(answer) * len(rows) / wanted - 1) < 1e-13


@pytest.mark.parametrize("base", [0.0, -1e9, 1e12, 1e15])
@pytest.mark.parametrize("drifts", [False, True])
def test_moments_far_from_zero_are_those_of_the_numbers_that_there_are(base: float, drifts: bool) -> None:
    # numpy's and torch's own are off by a quarter and more at 1e15: their mean has not the digits.
    rows = torch.from_numpy(base + np.random.default_rng(0).random(1000))
    rows = rows.sort().values if drifts else rows
    exact = [Fraction(value) for value in rows.tolist()]
    mean = sum(exact) / len(exact)
    wanted = float(sum((value - mean) ** 2 for value in exact) / (len(exact) - 1))
    for chunk in (7, 1000):
        for answer in both_ways(r.Var("x"), rows, chunk):
            assert float(answer) == pytest.approx(wanted, rel=1e-12)
        for answer in both_ways(r.Std("x"), rows, chunk):
            assert float(answer) == pytest.approx(math.sqrt(wanted), rel=1e-12)
        covariance = tdmap.reduce(rows, r.CovarianceMatrix(), num_workers=0, chunksize=chunk)
        assert float(covariance) == pytest.approx(wanted, rel=1e-12)
    together = tdmap.reduce(rows, {"m": r.Mean(), "v": r.Var()}, num_workers=0, chunksize=700)
    assert float(together["m"]) == pytest.approx(float(mean), rel=1e-15)


def test_moments_of_complex_numbers_far_from_zero() -> None:
    rng = np.random.default_rng(1)
    rows = torch.from_numpy(1e12 + rng.random(500) + 1j * (3e12 + rng.random(500)))
    parts = [[Fraction(value) for value in part.tolist()] for part in (rows.real, rows.imag)]
    wanted = sum(float(sum((v - sum(part) / 500) ** 2 for v in part) / 499) for part in parts)
    for answer in both_ways(r.Var("x"), rows, 70):
        assert float(answer) == pytest.approx(wanted, rel=1e-12)
