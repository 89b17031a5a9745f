"""Sums and moments: exact for integers, in float64 otherwise.

Means and variances merge by the parallel formulas of Chan, Golub and LeVeque ("Updating formulae and a pairwise
algorithm for computing sample variances", 1979), which stay accurate where the sum of squares would cancel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.reducers import exact
from tdmap.reducers.base import Key, Reducer, reduced_dims, values_of
from tdmap.reducers.blocks import moments, wide_sum
from tdmap.reducers.ranks import extreme, larger, ranked, require_elements, smaller, unranked
from tensordict_lite import TensorDict


def _shapes(state: Any) -> list[tuple[int, ...]]:
    parts = state if isinstance(state, tuple) else (state,)
    return [tuple(part.shape) for part in parts if isinstance(part, Tensor)]


def _count(values: Tensor, dims: tuple[int, ...]) -> int:
    out = 1
    for dim in dims:
        out *= values.shape[dim]
    return out


def wide(values: Tensor) -> Tensor:
    """The values in float64, or in complex128 when they are complex."""
    return values.resolve_conj().to(torch.complex128) if values.is_complex() else values.double()


def present(values: Tensor) -> tuple[Tensor, Tensor]:
    """The values as `wide` has them, with zeros for NaN; and which of them are not NaN."""
    numbers = wide(values)
    there = ~numbers.isnan()
    return torch.where(there, numbers, 0.0), there


def squared(distance: Tensor) -> Tensor:
    """Of complex numbers, the squares of both parts, added."""
    return (distance * distance.conj()).real if distance.is_complex() else distance * distance


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
    """A reduction of one entry over some of its dimensions. The elements of a ragged column count as its rows."""

    grows = False
    """Whether states of more rows may have more elements."""

    def __init__(self, key: Key | None = None, dim: int | tuple[int, ...] | None = 0, *, skipna: bool = False) -> None:
        self.key = key
        self.dim = dim
        self.skipna = skipna

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, dim={self.dim!r})"

    def init(self) -> Any:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        values = values_of(chunk, self.key, elements=True)
        if not values.shape[0]:
            return state
        mine = self.of(values, reduced_dims(self.dim, values.ndim))
        return self.merge(state, mine)

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        if not self.grows and _shapes(a) != _shapes(b):  # which torch might broadcast
            one, other = (max(shapes, key=len) for shapes in (_shapes(a), _shapes(b)))
            raise ValueError(
                f"{self!r}: results of shape {list(one)} and {list(other)} do not add up, because rows differ in shape "
                "from chunk to chunk: pad them, or reduce each row in a mapper."
            )
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
    """Sum over ``dim`` (rows, by default): int64 for integers and bools, float64 or complex128 otherwise.

    Sums of integers are exact, also if intermediate sums exceed int64; a result beyond int64 raises OverflowError.
    Floats are added in float64, chunk by chunk: the sum of 10^8 float32 numbers of one sign is right to 12 digits. The
    sum of zero rows is zero.

    Args:
        key: entry to reduce; ``None`` when rows are plain tensors.
        dim: dimensions of the whole entry, rows being 0; ``None`` for all.
        skipna: leave NaN out. Otherwise a sum with a NaN is NaN.
    """

    def of(self, values: Tensor, dims: tuple[int, ...]) -> Any:
        if exact.is_integer(values.dtype):
            return exact.exact_sum(values, dims)
        if self.skipna:
            return present(values)[0].sum(dims)
        return values.sum(dims, dtype=torch.complex128 if values.dtype.is_complex else torch.float64)

    def join(self, a: Any, b: Any) -> Any:
        return exact.add(a, b) if isinstance(a, tuple) else a + b

    def finish(self, state: Any) -> Tensor:
        if isinstance(state, tuple):
            return exact.total(state, repr(self))
        return torch.tensor(0) if state is None else state


class Moments(NamedTuple):
    """Of some numbers, in float64 or complex128."""

    count: Any
    """How many they are."""
    centre: Tensor
    """Somewhere near their mean, or zero."""
    sums: Tensor
    """The sum of their distances from it, which tells their mean to more digits than one number has."""
    m2: Tensor
    """The sum of their squared distances from the mean."""

    @property
    def mean(self) -> Tensor:
        mean: Tensor = self.centre + self.sums / self.count
        return mean

    def join(self, other: Moments) -> Moments:
        """Of both together (Chan, Golub and LeVeque)."""
        n, m = self.count, other.count
        centre = torch.where(n == 0, other.centre, self.centre) if isinstance(n, Tensor) else self.centre
        apart = other.centre - centre
        delta = apart + (other.sums / (m + (m == 0)) - self.sums / (n + (n == 0)))
        between = (delta * delta.conj()).real * (n * (m / (n + m + (n + m == 0))))
        return Moments(n + m, centre, self.sums + (other.sums + m * apart), self.m2 + other.m2 + between)


class _Moments(_Keyed):
    """Keeps `Moments`, as a plain tuple: states are saved as data, which names no classes."""

    def of(self, values: Tensor, dims: tuple[int, ...]) -> Any:
        if self.skipna:
            return self._of_present(values, dims)
        count = _count(values, dims)
        if values.is_complex():  # E|z - mean|^2: the variances of both parts, added
            centre, sums, m2 = moments(torch.view_as_real(values.resolve_conj()), dims, count)
            return count, torch.view_as_complex(centre), torch.view_as_complex(sums), m2.sum(-1)
        return count, *moments(values, dims, count)

    @staticmethod
    def _of_present(values: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, ...]:
        numbers, there = present(values)
        counts = there.sum(dims, keepdim=True).double()
        some = counts.clamp(min=1)
        centre = numbers.sum(dims, keepdim=True) / some
        centre = torch.where(centre.isfinite(), centre, 0.0)
        centred = torch.where(there, numbers - centre, 0.0)
        sums = centred.sum(dims, keepdim=True)
        m2 = squared(centred).sum(dims, keepdim=True) - squared(sums) / some
        kept = [size for dim, size in enumerate(values.shape) if dim not in dims]
        return counts.view(kept), centre.view(kept), sums.view(kept), m2.clamp(min=0).view(kept)

    def join(self, a: Any, b: Any) -> Any:
        if isinstance(a[0], int) and not a[0]:  # rows without elements
            return b
        return tuple(Moments(*a).join(Moments(*b)))

    def serves(self, other: Reducer[Any]) -> bool:
        return isinstance(other, _Moments) and all(
            getattr(other, name) == getattr(self, name) for name in ("key", "dim", "skipna")
        )


class Mean(_Moments):
    """Mean over ``dim``, in float64.

    Args:
        key, dim: as `Sum`.
        skipna: leave NaN out. Otherwise a mean with a NaN is NaN; a mean of nothing else always is.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> import tdmap
        >>> data = TensorDict({"image": torch.full((10, 3, 4, 4), 2, dtype=torch.uint8)}, [10])
        >>> tdmap.reduce(data, Mean("image", dim=(0, 2, 3)), num_workers=0)
        tensor([2., 2., 2.], dtype=torch.float64)
    """

    def of(self, values: Tensor, dims: tuple[int, ...]) -> Any:
        if self.skipna:
            numbers, there = present(values)
            return there.sum(dims).double(), numbers.sum(dims)
        sums = values.sum(dims, dtype=torch.complex128) if values.is_complex() else wide_sum(values, dims)
        return _count(values, dims), sums

    def join(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]

    def serves(self, other: Reducer[Any]) -> bool:
        return isinstance(other, Mean) and super().serves(other)

    def finish(self, state: Any) -> Tensor:
        state = self.need(state)
        mean: Tensor = Moments(*state).mean if len(state) > 2 else state[1] / state[0]  # of a variance beside it
        return mean


class Var(_Moments):
    """Variance over ``dim``, in float64, merged by Chan's formula.

    Args:
        key: entry to reduce.
        dim: dimensions of the whole entry, rows being 0.
        correction: subtracted from the number of values (1: the sample variance, as in torch; 0: as in NumPy).
        skipna: leave NaN out. Otherwise a variance with a NaN is NaN.
    """

    def __init__(
        self,
        key: Key | None = None,
        dim: int | tuple[int, ...] | None = 0,
        correction: int = 1,
        *,
        skipna: bool = False,
    ) -> None:
        super().__init__(key, dim, skipna=skipna)
        self.correction = correction

    def finish(self, state: Any) -> Tensor:
        count, *_, m2 = self.need(state)
        free = torch.as_tensor(count - self.correction, dtype=torch.float64)
        return torch.where(free > 0, m2 / free, torch.nan)


class Std(Var):
    """Standard deviation over ``dim``, in float64: the square root of :class:`Var`."""

    def finish(self, state: Any) -> Tensor:
        return super().finish(state).sqrt()


class MinMax(_Keyed):
    """Smallest and largest value over ``dim``, in the entry's dtype, as a TensorDict with ``min`` and ``max``.

    If any value is NaN, both are NaN; with ``skipna``, if all are. Complex numbers raise TypeError.
    """

    def of(self, values: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        ranks = ranked(values, repr(self))
        require_elements(_count(values, dims), repr(self))
        low, high = (unranked(extreme(ranks, dims, largest, self.skipna), values.dtype) for largest in (False, True))
        return low, high

    def join(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return smaller(a[0], b[0], self.skipna), larger(a[1], b[1], self.skipna)

    def finish(self, state: Any) -> Any:
        low, high = self.need(state)
        return TensorDict({"min": low, "max": high}, [])


class Min(MinMax):
    """Smallest value over ``dim``, in the entry's dtype."""

    def finish(self, state: Any) -> Tensor:
        low: Tensor = self.need(state)[0]
        return low


class Max(MinMax):
    """Largest value over ``dim``, in the entry's dtype."""

    def finish(self, state: Any) -> Tensor:
        high: Tensor = self.need(state)[1]
        return high


class CovarianceMatrix(_Keyed):
    """Covariance of the features of an entry. Rows are flattened to
    ``[features]``; the result is ``[features, features]``.

    Args:
        key: entry to reduce.
        correction: subtracted from the number of rows (1, as in :func:`torch.cov`).
    """

    def __init__(self, key: Key | None = None, correction: int = 1) -> None:
        super().__init__(key, 0)
        self.correction = correction

    def of(self, values: Tensor, dims: tuple[int, ...]) -> tuple[Any, ...]:
        rows = values.reshape(values.shape[0], values.shape[1:].numel())
        rows = rows.to(torch.complex128) if rows.is_complex() else rows.double()
        centre = rows.mean(0)
        centred = rows - centre
        sums = centred.sum(0)
        return len(rows), centre, sums, centred.T @ centred.conj() - torch.outer(sums, sums.conj()) / len(rows)

    def join(self, a: Any, b: Any) -> Any:
        a, b = Moments(*a), Moments(*b)
        both = a.join(b)
        delta = b.centre - a.centre + (b.sums / b.count - a.sums / a.count)
        outer = torch.outer(delta, delta.conj()) * (a.count * (b.count / both.count))
        return tuple(both._replace(m2=a.m2 + b.m2 + outer))

    def finish(self, state: Any) -> Tensor:
        count, *_, m2 = self.need(state)
        out: Tensor = m2 / (count - self.correction) if count > self.correction else torch.full_like(m2, torch.nan)
        return out
