"""Sums and moments: exact for integers, in float64 otherwise.

Means and variances merge by the parallel formulas of Chan, Golub and LeVeque ("Updating formulae and a pairwise
algorithm for computing sample variances", 1979), which stay accurate where the sum of squares would cancel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdmap.reducers.base import Key, Reducer, reduced_dims, values_of
from tdmap.reducers.blocks import moments, wide_sum

__all__ = ["Count", "CovarianceMatrix", "Max", "Mean", "Min", "MinMax", "Std", "Sum", "Var"]


def _count(values: Tensor, dims: tuple[int, ...]) -> int:
    out = 1
    for dim in dims:
        out *= values.shape[dim]
    return out


class Count(Reducer[int]):
    """Number of rows, as an int64 scalar.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> import tdmap
        >>> int(tdmap.reduce(TensorDict({"x": torch.zeros(5)}, [5]), Count(), num_workers=0))
        5
    """

    def init(self) -> int:
        return 0

    def update(self, state: int, chunk: Any, start: int = 0) -> int:
        return state + int(chunk.shape[0])

    def merge(self, a: int, b: int) -> int:
        return a + b

    def finish(self, state: int) -> Tensor:
        return torch.tensor(state)


class _Keyed(Reducer[Any]):
    """A reduction of one entry over some of its dimensions."""

    def __init__(self, key: Key | None = None, dim: int | tuple[int, ...] | None = 0) -> None:
        self.key = key
        self.dim = dim

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, dim={self.dim!r})"

    def init(self) -> Any:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        values = values_of(chunk, self.key)
        if not values.shape[0]:
            return state
        mine = self.of(values, reduced_dims(self.dim, values.ndim))
        return mine if state is None else self.join(state, mine)

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return self.join(a, b)

    def of(self, values: Tensor, dims: tuple[int, ...]) -> Any:
        """The state of some rows (at least one)."""
        raise NotImplementedError

    def join(self, a: Any, b: Any) -> Any:
        """Two states that both have rows."""
        raise NotImplementedError

    def need(self, state: Any) -> Any:
        """The state, or an error when there were no rows."""
        if state is None:
            raise ValueError(f"{self!r} of zero rows is not defined")
        return state


class Sum(_Keyed):
    """Sum over ``dim`` (rows, by default): int64 for integers and bools, exactly; float64 otherwise. Zero for no rows.

    Args:
        key: entry to reduce; ``None`` when rows are plain tensors.
        dim: dimensions of the whole entry, rows being 0; ``None`` for all.
    """

    def of(self, values: Tensor, dims: tuple[int, ...]) -> Tensor:
        if values.dtype in (torch.uint8, torch.int8, torch.int16, torch.bool):
            return wide_sum(values, dims).long()  # exact, and several times as fast
        return values.sum(dims, dtype=_wide(values.dtype))

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def finish(self, state: Tensor | None) -> Tensor:
        return torch.tensor(0) if state is None else state


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


class _Moments(_Keyed):
    """State ``(n, sum, m2)`` in float64: the count, the sum, the sum of squared distances from the mean.

    Sums rather than means: they merge by one addition, and an infinite one stays infinite.
    """

    def of(self, values: Tensor, dims: tuple[int, ...]) -> tuple[int, Tensor, Tensor]:
        count = _count(values, dims)
        if values.is_complex():  # E|z - mean|^2: the variances of both parts, added
            sums, m2 = moments(torch.view_as_real(values.resolve_conj()), dims, count)
            return count, torch.view_as_complex(sums), m2.sum(-1)
        return count, *moments(values, dims, count)

    def join(self, a: tuple[int, Tensor, Tensor], b: tuple[int, Tensor, Tensor]) -> tuple[int, Tensor, Tensor]:
        n, sums, m2 = a
        other_n, other_sums, other_m2 = b
        delta = other_sums / other_n - sums / n
        distance = (delta * delta.conj()).real * (n * other_n / (n + other_n))
        return n + other_n, sums + other_sums, m2 + other_m2 + distance

    def serves(self, other: Reducer[Any]) -> bool:
        return isinstance(other, _Moments) and other.key == self.key and other.dim == self.dim


class Mean(_Moments):
    """Mean over ``dim``, in float64.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> import tdmap
        >>> data = TensorDict({"image": torch.full((10, 3, 4, 4), 2, dtype=torch.uint8)}, [10])
        >>> tdmap.reduce(data, Mean("image", dim=(0, 2, 3)), num_workers=0)
        tensor([2., 2., 2.], dtype=torch.float64)
    """

    def of(self, values: Tensor, dims: tuple[int, ...]) -> Any:
        sums = values.sum(dims, dtype=torch.complex128) if values.is_complex() else wide_sum(values, dims)
        return _count(values, dims), sums

    def join(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]

    def serves(self, other: Reducer[Any]) -> bool:
        return isinstance(other, Mean) and super().serves(other)

    def finish(self, state: Any) -> Tensor:
        count, sums = self.need(state)[:2]
        mean: Tensor = sums / count
        return mean


class Var(_Moments):
    """Variance over ``dim``, in float64, merged by Chan's formula.

    Args:
        key: entry to reduce.
        dim: dimensions of the whole entry, rows being 0.
        correction: degrees of freedom taken off (1: the sample variance, as torch).
    """

    def __init__(self, key: Key | None = None, dim: int | tuple[int, ...] | None = 0, correction: int = 1) -> None:
        super().__init__(key, dim)
        self.correction = correction

    def finish(self, state: Any) -> Tensor:
        count, _, m2 = self.need(state)
        out: Tensor = m2 / (count - self.correction) if count > self.correction else torch.full_like(m2, torch.nan)
        return out


class Std(Var):
    """Standard deviation over ``dim``, in float64: the square root of :class:`Var`."""

    def finish(self, state: Any) -> Tensor:
        return super().finish(state).sqrt()


class MinMax(_Keyed):
    """Smallest and largest value over ``dim``, in the entry's dtype, as a TensorDict with ``min`` and ``max``."""

    def of(self, values: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return values.amin(dims), values.amax(dims)

    def join(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.minimum(a[0], b[0]), torch.maximum(a[1], b[1])

    def finish(self, state: Any) -> Any:
        from tensordict_lite import TensorDict

        low, high = self.need(state)
        return TensorDict({"min": low, "max": high}, [])


class Min(MinMax):
    """Smallest value over ``dim``, in the entry's dtype."""

    def finish(self, state: Any) -> Any:
        return self.need(state)[0]


class Max(MinMax):
    """Largest value over ``dim``, in the entry's dtype."""

    def finish(self, state: Any) -> Any:
        return self.need(state)[1]


class CovarianceMatrix(_Keyed):
    """Covariance of the features of an entry: rows flattened to ``[features]``, answer ``[features, features]``.

    Args:
        key: entry to reduce.
        correction: degrees of freedom taken off (1, as :func:`torch.cov`).
    """

    def __init__(self, key: Key | None = None, correction: int = 1) -> None:
        super().__init__(key, 0)
        self.correction = correction

    def of(self, values: Tensor, dims: tuple[int, ...]) -> tuple[int, Tensor, Tensor]:
        rows = values.reshape(values.shape[0], -1)
        rows = rows.to(torch.complex128) if rows.is_complex() else rows.double()
        mean = rows.mean(0)
        centred = rows - mean
        return rows.shape[0], mean, centred.T @ centred.conj()

    def join(self, a: tuple[int, Tensor, Tensor], b: tuple[int, Tensor, Tensor]) -> tuple[int, Tensor, Tensor]:
        n, mean, m2 = a
        other_n, other_mean, other_m2 = b
        total = n + other_n
        delta = other_mean - mean
        outer = torch.outer(delta, delta.conj()) * (n * other_n / total)
        return total, mean + delta * (other_n / total), m2 + other_m2 + outer

    def finish(self, state: Any) -> Tensor:
        count, _, m2 = self.need(state)
        out: Tensor = m2 / (count - self.correction) if count > self.correction else torch.full_like(m2, torch.nan)
        return out
