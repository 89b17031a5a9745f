"""`Table.group_by`: text as numbers in its order, groups of the engine's, and key columns beside the figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tdmap.data.kinds import is_opened_by_row
from tdmap.data.store import destination
from tdmap.datasets.extras import no_column
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.table import Table
from tdmap.datasets.tables.about import joined
from tdmap.datasets.tables.ops import (
    ROW,
    SPANS,
    OnTable,
    columns_named,
    key_column,
    keys_of,
    source_of,
    take,
    written,
)
from tdmap.datasets.tables.running import parts_of_table, run_table
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.job import function_name
from tdmap.keys.named_aggregates import parse
from tdmap.ops.group_by import group_by
from tdmap.output.output import travels
from tdmap.process_state import on_host
from tdmap.reducers import First, Last, Max, Min, Reducer
from tdmap.run.call import parts_of, parts_of_options
from tdmap.run.options import worker_options
from tensordict_lite import TensorDict


@on_host
class TableGroups:
    """The groups of a table; made by `Table.group_by`."""

    def __init__(
        self,
        table: Table,
        key: Any,
        dropna: bool | None = None,
        name: str = "key",
        spill_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._table = table
        self._dropna = dropna
        self._spill_dir = spill_dir
        keyed = Table.of({name: key_column(table, key, "group_by", num_workers=0)}) if callable(key) else table
        self._own_keys = keyed if callable(key) else None
        self._columns = columns_named(keyed, name if callable(key) else key, "group_by")
        self._types = {name: keyed.types[name] for name in self._columns}
        ranks = keys_of(keyed, list(self._columns), "group_by")
        self._keys: Any = [f"__key{number}__" for number in range(len(ranks))]
        self._source = source_of(table)
        for name, values in zip(self._keys, ranks.values()):
            self._source[name] = values

    def __repr__(self) -> str:
        return f"TableGroups({len(self._table):,} rows, key={', '.join(map(repr, self._columns))})"

    def _groups(self, **more: Tensor) -> Any:
        """The groups of the columns of tensors, with the numbers of the rows."""
        keyed = self._source.exclude(SPANS)
        for name, column in {ROW: torch.arange(len(self._table)), **more}.items():
            keyed[name] = column
        return group_by(keyed, self._keys, dropna=self._dropna, spill_dir=self._spill_dir)

    def _require_numbers(self, call: str, keys: Iterable[Any]) -> None:
        """Raise where a statistic is of text, or of a column that is not there."""
        for key in keys:
            name = joined(key) if isinstance(key, (str, tuple)) else None
            if name in self._table.jagged:
                raise TypeError(
                    f"{call}: statistics are of numbers, and the rows of {name!r} are not; agg has their 'count', and "
                    "'nunique' of text."
                )
            if name is not None and name not in self._table.keys() and key not in self._table.rows.keys(True):
                raise KeyError(f"{call}: there is {no_column(name, self._table.keys())}")

    def _types_of(self, reducers: Mapping[Any, Reducer[Any]]) -> dict[str, str]:
        """What the numbers of figures stand for that are values of a column, as the earliest of several times is."""
        found = {}
        for path, reducer in reducers.items():
            key = getattr(reducer, "key", None)
            if type(reducer) in (Min, Max, First, Last) and key is not None:
                found[joined(path)] = self._table.types.get(joined(key), "")
        return {name: kind for name, kind in found.items() if kind}

    def _with_keys(self, found: Any, types: Mapping[str, str], out: Any, execution: Execution, call: str) -> Table:
        """Figures of groups behind the key columns, which are those of the first row of each group."""
        first = found[ROW].clone()
        jagged = {name: column.take(first) for name, column in self._columns.items() if isinstance(column, Jagged)}
        rows: dict[Any, Any] = {
            name: column[first] for name, column in self._columns.items() if not isinstance(column, Jagged)
        }
        rows.update(found.exclude(ROW, *self._keys).items())
        table = Table(TensorDict(rows, [len(first)]), jagged, self._types)
        known = {name: types.get(name, kind) for name, kind in table.types.items()}
        return written(Table(table.rows, jagged, known), out, execution, call)

    def _parts(self, **options: Any) -> dict[str, str]:
        """What the result of a method depends on besides the table."""
        found = parts_of_options(key=list(self._columns), dropna=self._dropna, **options)
        return found if self._own_keys is None else found | parts_of_table("keys", self._own_keys)

    def reduce(
        self, reducers: Any, *, out: Any = None, overwrite: bool = False, resume: bool = False, **options: Any
    ) -> Table:
        """One row for each key, in their order: the key columns, and an entry for each reducer.

        Args:
            reducers, out, overwrite, resume, **options: as `tdmap.GroupBy.reduce`. Reducers are of columns of
                tensors.
        """
        place = destination(out, overwrite)
        if not isinstance(reducers, Mapping):
            reducers = {"result": reducers}
        self._require_numbers("reduce", (getattr(reducer, "key", None) for reducer in reducers.values()))

        def work(out: Any) -> Table:
            found = self._groups().reduce({**reducers, ROW: Min(ROW)}, **options)
            types = self._types_of(reducers)
            return self._with_keys(found, types, out, Execution.of(**_workers(options)), "group_by.reduce")

        def parts() -> dict[str, str]:
            found = self._parts(chunksize=options.get("chunksize"))
            for name, reducer in reducers.items():
                found |= parts_of(f"reducer {name!r}", reducer)
            return found

        return run_table("group_by.reduce", self._table, parts, place, resume, work)

    def agg(
        self,
        spec: Mapping[Any, Any],
        *,
        out: Any = None,
        overwrite: bool = False,
        resume: bool = False,
        **options: Any,
    ) -> Table:
        """One row for each key, of statistics that are called by their names.

        Args:
            spec, out, overwrite, resume, **options: as `tdmap.GroupBy.agg`. Statistics are of columns of tensors;
                `"count"` and `"nunique"` of text, too.

        Example:
            >>> table = Table.of({"shop": ["east", "west", "east"], "sold": torch.tensor([1.0, 2.0, 5.0])})
            >>> table.group_by("shop").agg({"sold": ["max", "median"]}, num_workers=0)[0]
            {'shop': 'east', 'sold': {'max': tensor(5.), 'median': tensor(3., dtype=torch.float64)}}
        """
        place, asked = destination(out, overwrite), parse(spec)
        different = {one.key for one in asked.ordered.values() if one.q is None}
        self._require_numbers(
            "agg",
            [*(getattr(reducer, "key", None) for path, reducer in asked.reducers.items() if path not in asked.counted),
             *(one.key for one in asked.ordered.values() if one.q is not None)],
        )  # fmt: skip

        def work(out: Any) -> Table:
            words: dict[str, Tensor] = {}
            for key in self._table.jagged.keys() & {*asked.counted.values(), *different}:
                ranks = keys_of(self._table, key, "agg")[key] if key in different else torch.arange(len(self._table))
                words[key] = ranks
            found = self._groups(**words).agg({**spec, ROW: (ROW, "min")}, **options)
            types = self._types_of(asked.reducers)
            return self._with_keys(found, types, out, Execution.of(**_workers(options)), "group_by.agg")

        def parts() -> dict[str, str]:
            return self._parts(chunksize=options.get("chunksize")) | parts_of("statistics", asked)

        return run_table("group_by.agg", self._table, parts, place, resume, work)

    def top_k(
        self,
        key: str,
        k: int,
        *,
        largest: bool = True,
        out: Any = None,
        overwrite: bool = False,
        resume: bool = False,
        **options: Any,
    ) -> Table:
        """The `k` rows of each group with the largest values of a column: group by group, largest first.

        Args:
            key: the column, of numbers or of text.
            k, largest, out, overwrite, resume, **options: as `tdmap.GroupBy.top_k`.
        """
        place = destination(out, overwrite)

        def work(out: Any) -> Table:
            values = keys_of(self._table, key, "top_k")[key]
            best = self._groups(__value__=values).top_k("__value__", k, largest=largest, **options)
            return take(self._table, best[ROW].clone(), out, Execution.of(**_workers(options)), "group_by.top_k")

        parts = self._parts(column=key, k=k, largest=largest)
        return run_table("group_by.top_k", self._table, lambda: parts, place, resume, work)

    def map_groups(
        self,
        fn: Callable[[Table], Any],
        *,
        out: Any = None,
        overwrite: bool = False,
        resume: bool = False,
        **options: Any,
    ) -> Any:
        """Apply a function to each group, a `Table`, and put the rows that it returns one after the other.

        Args:
            fn: returns rows, or one row: a TensorDict, a dict of columns, or a table without lists.
            out: folder for the result, which takes no columns of bytes; None for memory.
            overwrite, resume, **options: as `tdmap.GroupBy.map_groups`.

        Returns:
            The rows, sorted by key; with `rows_per_shard=`, or a URL, the dataset that `tdmap.open` opens there.

        Raises:
            OutputMismatch: the function returned an object that is no tensor, string or bytes; names its column.

        Example:
            >>> table = Table.of({"shop": ["east", "west", "east"], "sold": torch.tensor([1.0, 2.0, 5.0])})
            >>> best = table.group_by("shop").map_groups(lambda rows: rows[rows["sold"].argmax()], num_workers=0)
            >>> best["shop"].tolist(), best["sold"].tolist()
            (['east', 'west'], [5.0, 2.0])
        """
        if out is not None and not isinstance(out, (str, os.PathLike)):
            raise TypeError(
                f"out must be a folder, or None, as a table has columns of text: got a {type(out).__name__}."
            )
        wrapped = GroupFunction(OnTable(fn, self._table, travels(Execution.of(**_workers(options)))), self._keys)
        wrapped.words = [name if isinstance(column, Jagged) else None for name, column in self._columns.items()]
        groups = group_by(self._source, self._keys, dropna=self._dropna, spill_dir=self._spill_dir)
        found: Any = groups.map_groups(wrapped, out=out, overwrite=overwrite, resume=resume, **options)
        return found if is_opened_by_row(found) else Table.of(found)


class GroupFunction:
    """Calls a function of a table with a group."""

    def __init__(self, fn: OnTable, keys: list[str]) -> None:
        self.fn = fn
        self.keys = keys
        self.words: list[str | None] = []
        """For each key that is a column of words, its name."""
        self.__qualname__ = function_name(fn)

    def shown_keys(self, rows: Any, values: list[str]) -> list[str]:
        """The keys of a group for messages, where the engine has numbers for words."""
        table = self.fn.table(rows.exclude(*self.keys))
        shown = []
        for name, value in zip(self.words, values):
            if name is None:
                shown.append(value)
            elif name in table.keys():
                shown.append(repr(table[name].tolist()[0]))
            else:  # the function that made the keys is not here
                shown.append(f"number {value}, in the order of the keys,")
        return shown

    def __call__(self, rows: Any) -> Any:
        found = self.fn(rows.exclude(*self.keys))
        if isinstance(found, (Table, Jagged)):
            return Table.of(found).to_tensordict()
        if isinstance(found, Mapping) or hasattr(found, "batch_size"):
            for name, value in found.items():
                _check_objects(name, value)
        return found


def _check_objects(name: Any, value: Any) -> None:
    """Raise OutputMismatch for objects that are no column of a table: now, and not when all groups are done."""
    if hasattr(value, "_is_non_tensor") and value._is_non_tensor:
        value = value.tolist()
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if one is None or isinstance(one, Mapping):
            raise OutputMismatch(
                f"the column {name!r} that the function returned has a {type(one).__name__}, and a table has tensors, "
                'strings and bytes: return "" or zeros for what is missing, and a column for each entry.'
            )


def _workers(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in worker_options()}
