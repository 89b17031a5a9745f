"""`Table.join`: keys and numbers of rows are joined by `tdmap.join`; the columns follow their rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdmap.datasets.jagged import Jagged
from tdmap.datasets.table import Table
from tdmap.datasets.tables.ops import columns_named, given, placed, take
from tdmap.datasets.tables.running import parts_of_table, run_table
from tdmap.execution import Execution
from tdmap.keys.joins.sides import keys_of
from tdmap.keys.ranks import ranks_of
from tdmap.ops.join import join
from tdmap.run.call import parts_of_options
from tensordict_lite import TensorDict

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions

_ROW, _OTHER, _MATCHED = "__row__", "__other__", "__matched__"


def join_table(
    table: Table,
    other: Table,
    on: Any = None,
    how: str = "inner",
    out: Any = None,
    *,
    left_on: Any = None,
    right_on: Any = None,
    suffix: str = "_right",
    suffixes: tuple[str, str] | None = None,
    indicator: str = _MATCHED,
    resume: bool = False,
    chunksize: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    retries: int = 2,
    timeout: float | None = None,
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.join`."""
    mine, yours = (_names(spec.names) for spec in keys_of(on, left_on, right_on))

    def work(out: Any) -> Table:
        ours, theirs = _keys(table, other, mine, yours)
        numbers: Any = list(ours)
        both: Any = join(
            TensorDict({**ours, _ROW: torch.arange(len(table))}, [len(table)]),
            TensorDict({**theirs, _OTHER: torch.arange(len(other))}, [len(other)]),
            numbers, how, suffix=suffix, suffixes=suffixes, indicator=_MATCHED, chunksize=chunksize,
            spill_dir=spill_dir, retries=retries, timeout=timeout, **options,
        )  # fmt: skip
        execution = Execution.of(**options)
        left = both[_ROW].clone()
        if how in ("semi", "anti"):
            return take(table, left, out, execution, "join")
        right = both[_OTHER].clone()
        has_left, has_right, marks = _partners(both, how)
        keys = _key_columns(table, other, mine, yours, both, how) if how in ("right", "outer") else None
        first = _renamed(table, mine, set(other.keys()) - set(yours), (suffixes or ("",))[0], keys is None)
        second = _renamed(other, yours, set(table.keys()), suffixes[1] if suffixes else suffix, False)
        parts = [(_not_empty(first), left, has_left), (_not_empty(second), right, has_right)]
        if keys is not None:
            parts.insert(0, (keys, torch.arange(len(left)), None))
        if marks is not None:
            parts.append((Table(TensorDict({indicator: marks}, [len(left)])), torch.arange(len(left)), None))
        _check_names([part for part, _, _ in parts])
        return placed(parts, out, execution, "join")

    def parts() -> dict[str, str]:
        found = parts_of_options(keys=(mine, yours), how=how, suffixes=suffixes or suffix, indicator=indicator,
                           **given(chunksize=chunksize))  # fmt: skip
        return found | parts_of_table("second table", other)

    return run_table("join", table, parts, out, resume, work)


def _names(keys: Any) -> list[str]:
    return [key if isinstance(key, str) else ".".join(key) for key in keys]


def _keys(table: Table, other: Table, mine: list[str], yours: list[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The keys of both sides as tensors, by their number; text as numbers that compare as it does."""
    ours, theirs = columns_named(table, mine, "join"), columns_named(other, yours, "join")
    left: dict[str, Tensor] = {}
    right: dict[str, Tensor] = {}
    for number, (a, b) in enumerate(zip(mine, yours)):
        one, two = ours[a], theirs[b]
        kinds = [kind for kind in (table.types[a], other.types[b]) if kind]
        if len(set(kinds)) > 1:
            raise TypeError(f"join: {a!r} and {b!r} are {kinds[0]} and {kinds[1]}: cast one of them before.")
        if isinstance(one, Jagged) is not isinstance(two, Jagged):
            raise TypeError(f"join: {a!r} and {b!r} are a column of text and one of numbers, which are never equal.")
        if isinstance(one, Jagged):
            one, two = ranks_of([one, two])
        left[str(number)], right[str(number)] = one, two
    return left, right


def _partners(both: Any, how: str) -> tuple[Tensor | None, Tensor | None, Any]:
    """Which rows have one of the first table, and one of the second (None: all); what the result says of it."""
    if how == "inner":
        return None, None, None
    marks = both[_MATCHED].clone()
    if how == "outer":
        return marks["left"], marks["right"], marks
    return (marks, None, marks) if how == "right" else (None, marks, marks)


def _key_columns(table: Table, other: Table, mine: list[str], yours: list[str], both: Any, how: str) -> Table:
    """The keys of the result, from the side that has them, under the names of the first table."""
    rows: dict[Any, Tensor] = {}
    jagged: dict[str, Jagged] = {}
    left, right = both[_ROW].clone(), both[_OTHER].clone()
    for number, (a, b) in enumerate(zip(mine, yours)):
        column = table[a]
        if not isinstance(column, Jagged):
            rows[_path(table, a)] = both[str(number)].clone()
        elif how == "right":
            jagged[a] = other[b].take(right)
        else:  # rows without one of the first table come last
            count = int(both[_MATCHED, "left"].sum())
            jagged[a] = Jagged.cat([column.take(left[:count]), other[b].take(right[count:])])
    return Table(TensorDict(rows, [len(left)]), jagged, {name: table.types[name] for name in mine})


def _path(table: Table, name: str) -> Any:
    """Where a column of tensors is; the names of nested ones are joined by dots."""
    return name if name in table.rows.keys() else tuple(name.split("."))


def _renamed(table: Table, keys: list[str], taken: set[str], suffix: str, keep: bool) -> Table:
    """A table without its keys, unless they are to be kept; its other names get a suffix where they are taken."""
    rows: dict[Any, Tensor] = {}
    jagged: dict[str, Jagged] = {}
    types = {}
    for name, kind in table.types.items():
        if name in keys and not keep:
            continue
        new = f"{name}{suffix}" if suffix and name in taken and name not in keys else name
        types[new] = kind
        if name in table.jagged:
            jagged[new] = table.jagged[name]
        else:
            rows[_path(table, name) if new == name else new] = table[name]
    return Table(TensorDict(rows, [len(table)]), jagged, types)


def _not_empty(table: Table) -> Table:
    """The table, or one row of zeros and empty rows where it has none: what rows without a partner begin as."""
    if len(table):
        return table
    rows = {key: value.new_zeros((1, *value.shape[1:])) for key, value in table.rows.items(True, True)}
    none = torch.zeros(1, dtype=torch.int64)
    jagged = {name: Jagged.of_spans(one.values, none, none, one.kind) for name, one in table.jagged.items()}
    return Table(TensorDict(rows, [1]), jagged, table.types)


def _check_names(parts: list[Table]) -> None:
    seen: set[str] = set()
    for part in parts:
        for name in part.keys():
            if name in seen:
                raise ValueError(f"join: two columns would have the name {name!r}: see suffix= and indicator=.")
            seen.add(name)
