"""Statistics by their names, as `agg({"price": ["mean", "max"]})` has them; some need the sorted values of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.entries import path_of
from tdmap.data.kinds import Data
from tdmap.data.reader import narrow, require_entry
from tdmap.keys.codec import KeyCodec
from tdmap.keys.index import sorted_rows
from tdmap.keys.keys import KeySpec
from tdmap.keys.order import group_starts, take
from tdmap.keys.prepare import prepare
from tdmap.memory.spill import Spill
from tdmap.reducers import Count, First, Last, Max, Mean, Min, MinMax, Reducer, Std, Sum, Var
from tdmap.reducers.base import Key
from tdmap.reducers.moments import _Keyed
from tdmap.run.context import Context

Path: TypeAlias = "str | tuple[str, ...]"

NAMED: dict[str, Callable[[Any], Reducer[Any]]] = {
    "count": lambda key: Count(),
    "sum": Sum,
    "mean": Mean,
    "var": Var,
    "std": Std,
    "min": Min,
    "max": Max,
    "minmax": MinMax,
    "first": First,
    "last": Last,
}
"""What works on all groups at once."""


class Ordered(NamedTuple):
    """A statistic of the sorted values of a group."""

    key: Key
    """The entry."""
    q: float | tuple[float, ...] | None
    """Quantiles; None for the number of distinct values."""


class Asked(NamedTuple):
    """What a specification asks for, by where the answers go."""

    reducers: dict[Path, Reducer[Any]]
    ordered: dict[Path, Ordered]
    counted: dict[Path, Key]
    """Entries whose rows are counted, where they are named: a count reads none of them."""
    skipna: bool
    """Reducers by name leave NaN out."""


def parse(spec: object, skipna: bool = False) -> Asked:
    """What `GroupBy.agg` was given.

    Raises:
        TypeError: not a mapping, or a value of another form.
        ValueError: an unknown statistic; the message lists the valid ones.

    Example:
        >>> asked = parse({"x": ["mean", "max"], "y": "sum", "n": ("x", "count")})
        >>> list(asked.reducers)
        [('x', 'mean'), ('x', 'max'), 'y', 'n']
    """
    if not isinstance(spec, Mapping) or not spec:
        raise TypeError(
            'agg takes a mapping, as in {"price": ["mean", "max"], "sold": "sum", "n": ("price", "count")}: got '
            f"{spec!r}."
        )
    asked = Asked({}, {}, {}, skipna)
    for name, value in spec.items():
        if isinstance(value, list):
            parts = path_of(name)
            for one in value:
                _add(asked, (*parts, _called(one)), name, one)
                if one == "count":
                    asked.counted[(*parts, _called(one))] = name
        elif isinstance(value, tuple) and len(value) >= 2:
            key, *what = value
            _add(asked, name, key, what[0] if len(what) == 1 else tuple(what))
            if what == ["count"]:
                asked.counted[name] = key
        else:
            _add(asked, name, name, value)
    return asked


def _called(what: object) -> str:
    """The entry that one of several statistics goes to."""
    if isinstance(what, tuple):
        return "_".join(
            f"{part:g}" if isinstance(part, float) and float(f"{part:g}") == part else f"{part}" for part in what
        )
    return what if isinstance(what, str) else type(what).__name__.lower()


def _add(asked: Asked, path: Path, key: Key, what: object) -> None:
    if path in asked.reducers or path in asked.ordered:
        raise ValueError(f"agg: {path!r} is asked for twice.")
    if isinstance(what, Reducer):
        asked.reducers[path] = what
        return
    name, *arguments = what if isinstance(what, tuple) else (what,)
    if name in NAMED and not arguments:
        reducer = asked.reducers[path] = NAMED[name](key)
        if isinstance(reducer, _Keyed):
            reducer.skipna = asked.skipna
    elif name == "median" and not arguments:
        asked.ordered[path] = Ordered(key, 0.5)
    elif name == "nunique" and not arguments:
        asked.ordered[path] = Ordered(key, None)
    elif name == "quantile" and len(arguments) == 1:
        asked.ordered[path] = Ordered(key, _quantiles(arguments[0]))
    else:
        known = ", ".join(map(repr, (*NAMED, "median", "nunique")))
        raise ValueError(
            f"agg: {what!r} for {path!r} is none of {known}, ('quantile', q), or a Reducer. Pass a function "
            "of the rows of a group to map_groups(fn)."
        )


def _quantiles(q: Any) -> float | tuple[float, ...]:
    several = tuple(q) if isinstance(q, (list, tuple)) else (q,)
    if not several or not all(isinstance(one, Real) and 0 <= float(one) <= 1 for one in several):
        raise ValueError(f"a quantile must be in [0, 1]: got {q!r}.")
    return tuple(map(float, several)) if isinstance(q, (list, tuple)) else float(q)


def _missing(values: Tensor, none: int | None) -> NDArray[np.bool_]:
    """Which values are NaN, or the number that stands for None."""
    if values.is_floating_point():
        return values.isnan().reshape(len(values), values.shape[1:].numel()).any(1).numpy()
    return np.zeros(len(values), bool) if none is None else (values == none).numpy()


# -- groups whose rows are in the order of an entry ----------------------------------------------------

# The rows are sorted by key and value together (`tdmap.keys.index`), so what is asked about a group is a matter of
# positions: exact, and computed for all groups at once. It takes some 16 bytes of memory a row, however large rows are.


class OrderedGroups:
    """The rows of groups, sorted by an entry, NaN last.

    Args:
        data: the dataset.
        spec: its key.
        value: the entry.
        dropna: leave out rows whose key is NaN.
        descending: from large to small.
        with_rows: find the numbers of the rows too.
        text: the entry may hold strings or bytes, in the order of their code points.

    Raises:
        TypeError: the key is a function, or the entry has no one number a row.
    """

    def __init__(
        self,
        ctx: Context,
        data: Data,
        spec: KeySpec,
        value: Key,
        dropna: bool | None,
        spill: Spill,
        descending: bool = False,
        text: bool = False,
        with_rows: bool = False,
    ) -> None:
        if spec.fn is not None:
            raise TypeError(
                "groups by a function of a chunk have no order within: make its result an entry first, with tdmap.map."
            )
        require_entry(data, value, "the entry whose order is asked for")
        found = narrow(data, 0, 0, 0).get(value)
        if found.dim() != 1 or found.is_complex() if isinstance(found, Tensor) else not text:
            raise TypeError(f"an order within groups needs one number a row, and {value!r} is something else.")
        names = spec.names if value in spec.names else (*spec.names, value)
        descending = descending and value not in spec.names  # groups are in the order of their keys
        down = tuple(descending and name == value for name in names)
        keyed = prepare(ctx, data, KeySpec(names), "group_by", dropna=False, descending=down)
        index = sorted_rows(ctx, keyed, spill, with_words=True, with_rows=with_rows)
        self.rows: NDArray[np.int64] = index.rows.numpy()
        self.words = [word.numpy().view(np.uint64) for word in index.words]
        count, place = len(spec.names), names.index(value)
        columns = keyed.codec.columns
        own, alone = KeyCodec(columns[:count]), KeyCodec(columns[place : place + 1], down[place : place + 1])
        if place == count and own.num_words + alone.num_words == len(self.words):  # no word is of both
            keys, (self.values,) = self.words[: own.num_words], alone.decode(self.words[own.num_words :])
        else:
            decoded = keyed.codec.decode(self.words)
            keys, self.values = own.encode(decoded[:count]), decoded[place]
        nones = keyed.reader.none or (None,) * len(names)
        self.missing = _missing(self.values, nones[place])
        if dropna and len(self.values):
            bad = np.stack([_missing(key, none) for key, none in zip(own.decode(keys), nones)]).any(0)
            self._keep(np.flatnonzero(~bad))
            keys = take(keys, np.flatnonzero(~bad))
        self.starts = group_starts(keys)
        self.lengths = np.diff(self.starts, append=len(self.values))

    def _keep(self, kept: NDArray[np.int64]) -> None:
        self.rows = self.rows[kept] if len(self.rows) else self.rows
        self.words = [word[kept] for word in self.words]
        self.values = self.values[torch.from_numpy(kept)]
        self.missing = self.missing[kept]

    def quantiles(self, q: float | tuple[float, ...]) -> Tensor:
        """Quantiles of each group, interpolated between neighbours, as float64 `[groups]` or `[groups, quantiles]`.

        NaN do not count; NaN where there is nothing else.
        """
        counts = self._present()
        ranks = np.multiply.outer(np.maximum(counts - 1, 0), np.atleast_1d(np.asarray(q, dtype=np.float64)))
        low = np.floor(ranks)
        first = self.starts[:, None] + low.astype(np.int64)
        second = np.minimum(first + 1, (self.starts + np.maximum(counts - 1, 0))[:, None])
        a, b = (self.values[torch.from_numpy(at)].double().numpy() for at in (first, second))
        part = ranks - low
        with np.errstate(all="ignore"):
            found = np.where(a == b, a, a + (b - a) * part)
            beyond = ~np.isfinite(found)  # one is infinite, or they are further apart than a number can tell
            if beyond.any():
                found[beyond] = np.where(part == 0, a, a * (1 - part) + b * part)[beyond]
        found[counts == 0] = np.nan
        return torch.from_numpy(found if isinstance(q, tuple) else found[:, 0])

    def distinct(self) -> Tensor:
        """How many different values each group has, as int64 `[groups]`; NaN do not count."""
        new = np.zeros(len(self.values), dtype=np.int64)
        new[group_starts(self.words)] = 1
        new[self.missing] = 0
        return torch.from_numpy(np.add.reduceat(new, self.starts) if len(new) else new)

    def first_rows(self, k: int) -> Tensor:
        """The numbers of the first `k` rows of each group, group by group; those with NaN come last."""
        if not len(self.rows):
            return torch.from_numpy(self.rows)
        group = np.repeat(np.arange(len(self.starts)), self.lengths)
        place = np.arange(len(self.rows)) - self.starts[group]
        return torch.from_numpy(self.rows[place < k])

    def _present(self) -> NDArray[Any]:
        missing = np.add.reduceat(self.missing.astype(np.int64), self.starts) if len(self.values) else 0
        return self.lengths - missing
