"""Means and variances: accurate where naive sums are not, and folded once where several need the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import reducers as r
from tdmap.reducers import blocks, moments
from tensordict_lite import TensorDict


def exact(values: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance over rows in extended precision."""
    wide = values.numpy().astype(np.longdouble)
    return wide.mean(0), wide.var(0, ddof=1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 7, 50_000, blocks.BLOCK + 1])
def test_blocks_of_any_size_give_the_moments(dtype: torch.dtype, columns: int) -> None:
    rows = max(3 * blocks.BLOCK // columns, 3)
    x = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 20 + 60).to(dtype)
    mean, var = exact(x)
    np.testing.assert_allclose(r.Mean().finish(r.Mean().of(x, (0,))).numpy(), mean.astype(float), rtol=1e-12)
    got = r.Var().finish(r.Var().of(x, (0,))).numpy()
    np.testing.assert_allclose(got, var.astype(float), rtol=1e-11, atol=1e-12)


@given(st.integers(-60, 60), st.integers(0, 45), st.booleans())
@settings(max_examples=80, deadline=None)
def test_variance_is_accurate_however_far_the_mean(scale: int, distance: int, drifts: bool) -> None:
    generator = torch.Generator().manual_seed(distance)
    x = torch.randn(300, 2, dtype=torch.float64, generator=generator)
    x = (x.sort(0).values if drifts else x) * 2.0**scale + 2.0 ** (scale + distance)
    got = tdmap.reduce(x, r.Var(), num_workers=0, chunksize=70).numpy()
    # Means have 53 bits, of which `distance` say nothing about how far two chunks lie apart.
    np.testing.assert_allclose(got, exact(x)[1].astype(float), rtol=1e-11 + 2.0 ** (distance - 48))


def test_variance_of_a_constant_is_zero_and_never_below() -> None:
    assert float(tdmap.reduce(torch.full((1000,), 0.1), r.Var(), num_workers=0, chunksize=30)) == pytest.approx(
        0, abs=1e-30
    )
    assert (
        float(tdmap.reduce(torch.full((1000,), 1e300, dtype=torch.float64), r.Std(), num_workers=0, chunksize=30)) >= 0
    )


def test_nan_and_infinity_stay_in_their_column() -> None:
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(1))
    x[7, 0], x[9, 1] = torch.nan, torch.inf
    answer = tdmap.reduce(TensorDict({"x": x}, [100]), {"m": r.Mean("x"), "v": r.Var("x")}, num_workers=0, chunksize=30)
    assert answer["m"][0].isnan() and answer["m"][1] == torch.inf and answer["v"][:2].isnan().all()
    np.testing.assert_allclose(answer["v"][2], exact(x[:, 2])[1].astype(float), rtol=1e-12)


def test_the_mean_of_large_integers_does_not_wrap_around() -> None:
    nanoseconds = torch.full((1000,), 1_700_000_000_000_000_000)
    assert float(tdmap.reduce(nanoseconds, r.Mean(), num_workers=0)) == pytest.approx(1.7e18, rel=1e-12)


def test_complex_numbers_have_a_complex_mean_and_a_real_variance() -> None:
    x = torch.randn(50, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
    for values in (x, x.conj()):
        np.testing.assert_allclose(
            tdmap.reduce(values, r.Mean(), num_workers=0, chunksize=20), values.mean(0), rtol=1e-5
        )
        np.testing.assert_allclose(tdmap.reduce(values, r.Var(), num_workers=0, chunksize=20), values.var(0), rtol=1e-5)


def test_a_mean_beside_a_variance_is_folded_with_it_and_has_the_bits_of_a_mean_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = TensorDict({"x": torch.randn(500, 4), "y": torch.randn(500)}, [500])
    alone = tdmap.reduce(data, {"m": r.Mean("x")}, num_workers=0, chunksize=60)["m"]
    calls = []
    monkeypatch.setattr(moments, "moments", lambda *a: calls.append("moments") or blocks.moments(*a))
    monkeypatch.setattr(moments, "wide_sum", lambda *a: calls.append("sum") or blocks.wide_sum(*a))
    parts = {"m": r.Mean("x"), "v": r.Var("x"), "s": r.Std("x", correction=0), "other": r.Mean("x", dim=None)}
    answer = tdmap.reduce(data, parts, num_workers=0, chunksize=500)
    assert sorted(calls) == ["moments", "sum"]
    answer = tdmap.reduce(data, parts, num_workers=2, chunksize=60)
    assert torch.equal(answer["m"], alone)
    torch.testing.assert_close(answer["s"], data["x"].double().std(0, correction=0))
    assert answer["other"].shape == ()
