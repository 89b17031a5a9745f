"""Reducers over many groups at once.

Rows come sorted by group, so a group is a run of rows, and a state of many groups is a few tensors with one row a
group. Sums and extrema of runs are `ufunc.reduceat` of numpy: one pass in row order, the same bits every time.

    rows    a a a | b | c c      starts = [0, 3, 4]
    update  └──┬──┘ │ └─┬─┘
    state      s_a s_b s_c       one row a group
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.columns import columns_of, reordered, split_rows
from tdmap.data.kinds import Data, is_data, signed_view
from tdmap.keys.slots import Slotted
from tdmap.reducers import Checksum, Count, First, Last, Max, Mean, Min, MinMax, Reducer, Std, Sum, Var, exact
from tdmap.reducers.base import Key, reduced_dims, values_of
from tdmap.reducers.moments import Moments, present, squared, wide
from tdmap.reducers.ranks import extreme, larger, ranked, require_elements, smaller, unranked
from tensordict_lite import TensorDict

States: TypeAlias = tuple[Any, ...]
"""Tensors with one row a group; or, of `OneByOne` alone, an array of objects."""

Starts: TypeAlias = NDArray[np.int64]
"""The first row of each group; the first one is 0, and no group is empty."""


class Grouped(ABC):
    """A reduction of many groups at once. A reducer has one when its method `grouped()` returns it.

    States are tuples of tensors with one row a group; they must not depend on rows of other groups.

    Example:
        >>> class Product(Grouped):
        ...     def update(self, rows, starts):
        ...         return (torch.from_numpy(np.multiply.reduceat(rows["x"].numpy(), starts)),)
        ...     def merge(self, a, b): return (a[0] * b[0],)
        ...     def finish(self, states): return states[0]
        >>> rows = TensorDict({"x": torch.tensor([2, 3, 5])}, [3])
        >>> Product().update(rows, np.array([0, 2]))[0]
        tensor([6, 5])
    """

    key: Key | None = None
    """The only entry that is read; None for all of them."""
    reads_rows = True
    """Whether values of rows matter at all."""
    keeps_type = False
    """Answers are values of the entry: of dates and times, dates and times."""
    objects = False
    """States are arrays of Python objects, which stay where they are made."""

    @abstractmethod
    def update(self, rows: Data, starts: Starts) -> States:
        """The states of groups; `rows` are sorted by group, and within one in the order of the dataset."""

    def update_after(self, rows: Data, starts: Starts, seen: NDArray[np.int64]) -> States:
        """As `update`, for groups of which so many rows, each, came in batches before."""
        return self.update(rows, starts)

    def update_slots(self, chunk: Slotted) -> States | None:
        """As `update`, of the used slots of a chunk whose rows are not sorted; None where runs are wanted."""
        return None

    @abstractmethod
    def merge(self, a: States, b: States) -> States:
        """The states of groups whose rows are those of `a` followed by those of `b`, group by group."""

    @abstractmethod
    def finish(self, states: States) -> Any:
        """The answers: a tensor or a collection with one row a group."""

    def fold(self, states: States, starts: Starts) -> States:
        """States of the same groups one after the other, as one each: merged in a fixed tree within a group."""
        rows = _rows_of(states)
        while len(starts) < rows:
            lengths = np.diff(starts, append=rows)
            rank = np.arange(rows) - np.repeat(starts, lengths)
            left = np.flatnonzero(rank % 2 == 0)
            has_right = left + 1 < np.repeat(starts + lengths, (lengths + 1) // 2)
            pairs = np.flatnonzero(has_right)
            merged = self.merge(pick(states, left[pairs]), pick(states, left[pairs] + 1))
            states = pick(states, left)
            for column, new in zip(states, merged):
                signed_view(column)[pairs] = signed_view(new)
            rows, starts = len(left), np.concatenate([[0], np.cumsum((lengths + 1) // 2)[:-1]])
        return states


def _rows_of(states: States) -> int:
    return len(states[0])


def pick(states: States, rows: NDArray[Any]) -> States:
    """Some groups of states, as a copy."""
    return tuple(reordered(column, rows) if isinstance(column, Tensor) else column[rows] for column in states)


def join_states(parts: Sequence[States]) -> States:
    """States of several blocks of groups as one."""
    if len(parts) == 1:
        return parts[0]
    return tuple(
        torch.cat(columns) if isinstance(columns[0], Tensor) else np.concatenate(columns) for columns in zip(*parts)
    )


def reduce_runs(ufunc: np.ufunc, values: Tensor, starts: Starts) -> Tensor:
    """A numpy ufunc over each run of rows; sums of infinities are NaN, as those of torch."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(ufunc.reduceat(values.numpy(force=True), starts, axis=0))


class GroupedCount(Grouped):
    """`Count`."""

    reads_rows = False

    def update(self, rows: Data, starts: Starts) -> States:
        return (torch.from_numpy(np.diff(starts, append=rows.shape[0])),)

    def update_slots(self, chunk: Slotted) -> States:
        return (torch.from_numpy(chunk.slots.sizes[chunk.slots.used]),)

    def merge(self, a: States, b: States) -> States:
        return (a[0] + b[0],)

    def fold(self, states: States, starts: Starts) -> States:
        return (reduce_runs(np.add, states[0], starts),)

    def finish(self, states: States) -> Tensor:
        return torch.as_tensor(states[0])


class _OfEntry(Grouped):
    """Of one entry, reduced within each row first: over the dimensions of `dim` but the rows."""

    def __init__(self, key: Key | None, dim: int | tuple[int, ...] | None, skipna: bool) -> None:
        self.key = key
        self.dim = dim
        self.skipna = skipna

    def entry(self, rows: Data) -> tuple[Tensor, tuple[int, ...], int]:
        """Its values, the dimensions within a row to reduce, and how many elements they have."""
        values = values_of(rows, self.key)
        inner = tuple(dim for dim in reduced_dims(self.dim, values.ndim) if dim)
        return values, inner, torch.Size([values.shape[dim] for dim in inner]).numel()

    def total(self, chunk: Slotted) -> Tensor | None:
        """The sum of each used slot in float64; None where runs are wanted."""
        return chunk.once((self.key, self.dim, self.skipna), lambda: self._total(chunk))

    def _total(self, chunk: Slotted) -> Tensor | None:
        values, inner, _ = self.entry(chunk.rows)
        if values.is_complex():
            return None
        values = present(values)[0] if self.skipna else values
        return _add_by_slot(chunk, values.double().sum(inner) if inner else values)

    def counted(self, chunk: Slotted) -> tuple[Tensor, Tensor] | None:
        """How many elements each used slot has, besides."""
        sums = self.total(chunk)
        if sums is None:
            return None
        values, inner, each = self.entry(chunk.rows)
        if not self.skipna:
            return torch.from_numpy(chunk.slots.sizes[chunk.slots.used]) * each, sums
        there = present(values)[1].double()
        counts = _add_by_slot(chunk, there.sum(inner) if inner else there)
        return None if counts is None else (counts.long(), sums)

    def in_runs(self, rows: Data, starts: Starts) -> tuple[Tensor, tuple[int, ...], Tensor, Tensor | None]:
        """Numbers of rows as `wide` has them, dimensions that are reduced with the rows, counts of each run, and where
        numbers are, if some are not.

        With `skipna`, zeros stand for NaN, and numbers are counted for each element that is kept of a row.
        """
        values, inner, each = self.entry(rows)
        if not self.skipna:
            return wide(values), inner, torch.from_numpy(np.diff(starts, append=rows.shape[0])) * each, None
        numbers, there = present(values)
        return numbers, inner, reduce_runs(np.add, there.sum(inner) if inner else there.long(), starts), there


NOT_OF_NUMPY = frozenset(
    [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]
)
"""Dtypes of floats that numpy has not; float32 holds each of their values exactly."""

WIDE = 8
"""Elements of a row that are added up one by one; rows of more are sorted first."""


def _add_by_slot(chunk: Slotted, values: Tensor) -> Tensor | None:
    """Sums of numbers of each used slot, in float64; None where a row has many of them."""
    rows, width = values.shape[0], values.shape[1:].numel()
    if not 0 < width <= WIDE:
        return None
    values = values.detach()
    numbers = values.float() if values.dtype in NOT_OF_NUMPY else values
    flat = numbers.reshape(rows, width).numpy(force=True)
    sums = [chunk.add_up(flat[:, at])[chunk.slots.used] for at in range(width)]
    return torch.from_numpy(np.stack(sums, axis=1)).reshape(-1, *values.shape[1:])


class GroupedSum(_OfEntry):
    """`Sum`: of integers in one or two columns (see `tdmap.reducers.exact`), of floats in one."""

    def update(self, rows: Data, starts: Starts) -> States:
        values, inner, _ = self.entry(rows)
        if exact.is_integer(values.dtype):
            return exact.grouped_sum(values, inner, starts)
        numbers = present(values)[0] if self.skipna else wide(values)
        return (reduce_runs(np.add, numbers.sum(inner) if inner else numbers, starts),)

    def update_slots(self, chunk: Slotted) -> States | None:
        values, inner, each = self.entry(chunk.rows)
        if exact.is_integer(values.dtype):
            longest = chunk.slots.longest(exact.FEW_ROWS // max(each, 1))
            return exact.slotted_sum(values, inner, longest, lambda v: _add_by_slot(chunk, v))
        found = self.total(chunk)
        return None if found is None else (found,)

    def merge(self, a: States, b: States) -> States:
        return exact.add((a[0], a[1]), (b[0], b[1])) if len(a) == 2 else (a[0] + b[0],)

    def fold(self, states: States, starts: Starts) -> States:
        return exact.fold_runs(states, starts)

    def finish(self, states: States) -> Tensor:
        return (
            exact.total((states[0], states[1]), f"the sum of a group, Sum({self.key!r}),")
            if len(states) == 2
            else states[0]
        )


class GroupedMean(_OfEntry):
    """`Mean`: count and total."""

    def update(self, rows: Data, starts: Starts) -> States:
        # Not in int64: means of large integers are small, their sums are not.
        numbers, inner, counts, _ = self.in_runs(rows, starts)
        return counts, reduce_runs(np.add, numbers.sum(inner) if inner else numbers, starts)

    def update_slots(self, chunk: Slotted) -> States | None:
        return self.counted(chunk)

    def merge(self, a: States, b: States) -> States:
        return a[0] + b[0], a[1] + b[1]

    def fold(self, states: States, starts: Starts) -> States:
        return reduce_runs(np.add, states[0], starts), reduce_runs(np.add, states[1], starts)

    def finish(self, states: States) -> Tensor:
        counts, total = states
        mean: Tensor = total / _beside(counts, total)
        return mean


def _beside(counts: Tensor, values: Tensor) -> Tensor:
    """Counts of groups, shaped to be broadcast over their values, unless there is one for each of them."""
    return counts if counts.shape == values.shape else counts.reshape(-1, *[1] * (values.ndim - 1))


class GroupedVar(_OfEntry):
    """`Var` and `Std`: the columns of `Moments`, of each group."""

    def __init__(
        self, key: Key | None, dim: int | tuple[int, ...] | None, skipna: bool, correction: int, root: bool
    ) -> None:
        super().__init__(key, dim, skipna)
        self.correction = correction
        self.root = root

    def update(self, rows: Data, starts: Starts) -> States:
        numbers, inner, counts, there = self.in_runs(rows, starts)
        total = reduce_runs(np.add, numbers.sum(inner) if inner else numbers, starts)
        mean = total / _beside(counts, total)
        # Infinite numbers have no distance from an infinite mean, and no numbers have one at all.
        mean = torch.where(mean.isfinite(), mean, 0.0)
        # What is summed again below is kept: one mean an element of the rows' own shape.
        kept = [1 if dim in inner else size for dim, size in enumerate(numbers.shape)]
        lengths = torch.from_numpy(np.diff(starts, append=rows.shape[0]))
        centred = numbers - mean.reshape(-1, *kept[1:]).repeat_interleave(lengths, 0)
        centred = centred if there is None else torch.where(there, centred, 0.0)
        squares = squared(centred)
        m2 = reduce_runs(np.add, squares.sum(inner) if inner else squares, starts)
        sums = reduce_runs(np.add, centred.sum(inner) if inner else centred, starts)
        m2 = (m2 - squared(sums) / _beside(counts, sums).clamp(min=1)).clamp_(min=0)
        return counts, mean, sums, m2

    def update_slots(self, chunk: Slotted) -> States | None:
        values, inner, _ = self.entry(chunk.rows)
        found = None if inner or values.ndim != 1 or self.skipna else self.counted(chunk)
        if found is None:
            return None
        counts, total = found
        mean = total / counts
        mean = torch.where(mean.isfinite(), mean, 0.0)
        centres = torch.zeros(chunk.slots.count, dtype=torch.float64)
        centres[torch.from_numpy(chunk.slots.used)] = mean
        with np.errstate(all="ignore"):
            centred = values.double().numpy(force=True) - centres.numpy().take(chunk.slots.numbers)
            squares = np.square(centred)
        sums = torch.from_numpy(chunk.add_up(centred)[chunk.slots.used])
        m2 = torch.from_numpy(chunk.add_up(squares)[chunk.slots.used])
        return counts, mean, sums, (m2 - sums * sums / counts).clamp_(min=0)

    def merge(self, a: States, b: States) -> States:
        one, other = (Moments(_beside(s[0], s[1]).double(), *s[1:]) for s in (a, b))
        return a[0] + b[0], *one.join(other)[1:]

    def finish(self, states: States) -> Tensor:
        counts, m2 = states[0], states[-1]
        free = _beside(counts - self.correction, m2)
        out = torch.where(free > 0, m2 / free, torch.nan)
        return out.sqrt() if self.root else out


class GroupedExtrema(_OfEntry):
    """`MinMax`, `Min` and `Max`."""

    keeps_type = True

    def __init__(self, key: Key | None, dim: int | tuple[int, ...] | None, skipna: bool, which: str) -> None:
        super().__init__(key, dim, skipna)
        self.which = which
        self.smallest: np.ufunc = np.fmin if skipna else np.minimum
        self.largest: np.ufunc = np.fmax if skipna else np.maximum

    def update(self, rows: Data, starts: Starts) -> States:
        values, inner, each = self.entry(rows)
        ranks = ranked(values, f"the smallest or largest value of {self.key!r}")
        require_elements(each, f"the smallest or largest value of {self.key!r}")
        out = []
        if self.which != "max":
            found = extreme(ranks, inner, False, self.skipna) if inner else ranks
            out.append(_extreme(self.smallest, found, starts))
        if self.which != "min":
            found = extreme(ranks, inner, True, self.skipna) if inner else ranks
            out.append(_extreme(self.largest, found, starts))
        return tuple(unranked(column, values.dtype) for column in out)

    def update_slots(self, chunk: Slotted) -> States | None:
        values, _, _ = self.entry(chunk.rows)
        if values.ndim != 1:
            return None
        ranks = ranked(values, f"the smallest or largest value of {self.key!r}").detach()
        out = []
        if self.which != "max":
            out.append(_extreme_by_slot(self.smallest, ranks, chunk))
        if self.which != "min":
            out.append(_extreme_by_slot(self.largest, ranks, chunk))
        return tuple(unranked(column, values.dtype) for column in out)

    def merge(self, a: States, b: States) -> States:
        merged = []
        if self.which != "max":
            merged.append(smaller(a[0], b[0], self.skipna))
        if self.which != "min":
            merged.append(larger(a[-1], b[-1], self.skipna))
        return tuple(merged)

    def finish(self, states: States) -> Any:
        if self.which == "both":
            return TensorDict({"min": states[0], "max": states[1]}, [len(states[0])])
        return states[0]


def _extreme(ufunc: np.ufunc, values: Tensor, starts: Starts) -> Tensor:
    if values.dtype in NOT_OF_NUMPY:  # the detour is exact
        return reduce_runs(ufunc, values.float(), starts).to(values.dtype)
    return reduce_runs(ufunc, values, starts)


def _extreme_by_slot(ufunc: np.ufunc, values: Tensor, chunk: Slotted) -> Tensor:
    numbers = (values.float() if values.dtype in NOT_OF_NUMPY else values).numpy(force=True)
    found = np.empty(chunk.slots.count, dtype=numbers.dtype)
    found[chunk.slots.numbers] = numbers  # any value of the slot will do to begin with
    with np.errstate(all="ignore"):  # NaN is welcome
        ufunc.at(found, chunk.slots.numbers, numbers)
    return torch.from_numpy(found[chunk.slots.used]).to(values.dtype)


class GroupedEnd(Grouped):
    """`First` and `Last`."""

    keeps_type = True

    def __init__(self, key: Key | None, last: bool) -> None:
        self.key = key
        self.last = last

    def update(self, rows: Data, starts: Starts) -> States:
        values = values_of(rows, self.key).detach()
        return pick((values,), self._ends(starts, values.shape[0]))

    def update_slots(self, chunk: Slotted) -> States:
        values, numbers = values_of(chunk.rows, self.key).detach(), chunk.slots.numbers
        rows = np.arange(len(numbers))
        found = np.zeros(chunk.slots.count, dtype=np.int64)
        # Of several rows with one slot the last one that is written stays.
        found[numbers if self.last else numbers[::-1]] = rows if self.last else rows[::-1]
        return pick((values,), found[chunk.slots.used])

    def merge(self, a: States, b: States) -> States:
        return b if self.last else a

    def fold(self, states: States, starts: Starts) -> States:
        return pick(states, self._ends(starts, len(states[0])))

    def finish(self, states: States) -> Tensor:
        values: Tensor = states[0]
        return values

    def _ends(self, starts: Starts, rows: int) -> NDArray[np.int64]:
        return np.append(starts[1:], rows) - 1 if self.last else starts


class OneByOne(Grouped):
    """Any reducer: its states are objects, folded group by group."""

    objects = True

    def __init__(self, reducer: Reducer[Any], name: str) -> None:
        self.reducer = reducer
        self.name = name
        # Ready-made reducers read one entry; what another one reads is not known.
        if type(reducer).__module__.startswith("tdmap.reducers."):
            self.key = getattr(reducer, "key", None)

    def update(self, rows: Data, starts: Starts) -> States:
        return self.update_after(rows, starts, np.zeros(len(starts), dtype=np.int64))

    def update_after(self, rows: Data, starts: Starts, seen: NDArray[np.int64]) -> States:
        reducer = self.reducer
        states = np.empty(len(starts), dtype=object)
        lengths = np.diff(starts, append=rows.shape[0]).tolist()
        parts = split_rows(rows, columns_of(rows), lengths)
        for group, (part, start) in enumerate(zip(parts, seen.tolist())):
            states[group] = reducer.update(reducer.init(), part, start)
        return (states,)

    def merge(self, a: States, b: States) -> States:
        merged = np.empty(len(a[0]), dtype=object)
        for group, (one, other) in enumerate(zip(a[0], b[0])):
            merged[group] = self.reducer.merge(one, other)
        return (merged,)

    def finish(self, states: States) -> Any:
        answers = [self.reducer.finish(state) for state in states[0]]
        if isinstance(self.reducer, Checksum):  # 64 bits without a sign
            return torch.from_numpy(np.array(answers, dtype=np.uint64))
        return stack_answers(answers, self.name)


def stack_answers(answers: list[Any], name: str) -> Any:
    """The answers of groups as a column.

    Raises:
        ValueError: they differ in shape, dtype or entries.
        TypeError: they are no numbers, tensors or collections.
    """
    first = answers[0]
    if isinstance(first, (bool, int, float, np.number)):
        return torch.tensor(np.asarray(answers))
    if not is_data(first):
        raise TypeError(
            f"the answers of {name!r} become a column of the result, so they must be numbers, tensors or collections "
            f"of tensors: got a {type(first).__name__}. Use map_groups(fn) for anything else."
        )
    try:
        if any(type(one) is not type(first) or one.shape != first.shape for one in answers):
            raise ValueError("shapes differ")
        if isinstance(first, Tensor):
            return torch.stack(answers)
        stacked = torch.stack([one.reshape(1, *one.shape) for one in answers])
        return stacked.reshape(len(answers), *first.shape)
    except (RuntimeError, ValueError, KeyError) as error:
        shapes = list(dict.fromkeys(str(list(one.shape)) for one in answers))
        raise ValueError(
            f"results of {name!r} must have one shape, because they become a column: got "
            f"{', '.join(shapes[:4])}{', ...' if len(shapes) > 4 else ''}. Use map_groups(fn), whose results "
            "may have any number of rows."
        ) from error


_FORMS: Mapping[type, Callable[[Any], Grouped]] = {
    Count: lambda r: GroupedCount(),
    Sum: lambda r: GroupedSum(r.key, r.dim, r.skipna),
    Mean: lambda r: GroupedMean(r.key, r.dim, r.skipna),
    Var: lambda r: GroupedVar(r.key, r.dim, r.skipna, r.correction, False),
    Std: lambda r: GroupedVar(r.key, r.dim, r.skipna, r.correction, True),
    MinMax: lambda r: GroupedExtrema(r.key, r.dim, r.skipna, "both"),
    Min: lambda r: GroupedExtrema(r.key, r.dim, r.skipna, "min"),
    Max: lambda r: GroupedExtrema(r.key, r.dim, r.skipna, "max"),
    First: lambda r: GroupedEnd(r.key, False),
    Last: lambda r: GroupedEnd(r.key, True),
}


def grouped_form(reducer: object, name: str) -> Grouped:
    """How a reducer works on many groups: its own form, ours, or group by group.

    Raises:
        TypeError: it is no reducer.
    """
    if isinstance(reducer, type) and issubclass(reducer, Reducer):
        raise TypeError(f"pass an instance: {reducer.__name__}(...), not the class")
    if not isinstance(reducer, Reducer):
        raise TypeError(
            f"the reducer {name!r} is a {type(reducer).__name__}, not a Reducer. A function of the rows of a "
            "group goes to map_groups(fn)."
        )
    own = getattr(reducer, "grouped", None)
    if callable(own):
        form = own()
        if not isinstance(form, Grouped):
            raise TypeError(f"{type(reducer).__name__}.grouped() must return a tdmap.keys.Grouped, got {form!r}.")
        return form
    make = _FORMS.get(type(reducer))
    return OneByOne(reducer, name) if make is None else make(reducer)
