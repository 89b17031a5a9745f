"""Statistics by their names, as `agg({"price": ["mean", "max"]})` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from tdmap.data.entries import path_of
from tdmap.reducers import Count, First, Last, Max, Mean, Min, MinMax, Reducer, Std, Sum, Var
from tdmap.reducers.base import Key

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

ORDERED = ("median", "quantile", "nunique")
"""What needs the values of a group in their order."""


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


def parse(spec: Any) -> Asked:
    """What `GroupBy.agg` was given.

    Raises:
        TypeError: it is no mapping, or a value is none of the forms.
        ValueError: a statistic that there is not; names those that there are.

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
    asked = Asked({}, {}, {})
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


def _called(what: Any) -> str:
    """The entry that one of several statistics goes to."""
    if isinstance(what, tuple):
        return "_".join(f"{part:g}" if isinstance(part, float) else str(part) for part in what)
    return what if isinstance(what, str) else type(what).__name__.lower()


def _add(asked: Asked, path: Path, key: Any, what: Any) -> None:
    if path in asked.reducers or path in asked.ordered:
        raise ValueError(f"agg: {path!r} is asked for twice.")
    if isinstance(what, Reducer):
        asked.reducers[path] = what
        return
    name, *arguments = what if isinstance(what, tuple) else (what,)
    if name in NAMED and not arguments:
        asked.reducers[path] = NAMED[name](key)
    elif name == "median" and not arguments:
        asked.ordered[path] = Ordered(key, 0.5)
    elif name == "nunique" and not arguments:
        asked.ordered[path] = Ordered(key, None)
    elif name == "quantile" and len(arguments) == 1:
        asked.ordered[path] = Ordered(key, _quantiles(arguments[0]))
    else:
        known = ", ".join(map(repr, (*NAMED, "median", "nunique")))
        raise ValueError(
            f"agg: {what!r} for {path!r} is none of {known}, ('quantile', q), or a tdmap.Reducer. A function of the "
            "rows of a group goes to map_groups(fn)."
        )


def _quantiles(q: Any) -> float | tuple[float, ...]:
    several = tuple(q) if isinstance(q, (list, tuple)) else (q,)
    if not several or not all(isinstance(one, (int, float)) and 0 <= one <= 1 for one in several):
        raise ValueError(f"quantiles lie in [0, 1]: got {q!r}.")
    return tuple(map(float, several)) if isinstance(q, (list, tuple)) else float(q)
