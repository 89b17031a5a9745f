"""Operations on tables: the engine works on numbers of rows, and on where jagged ones lie; values stay in their files.

sort, shuffle, filter, join    numbers of rows ──engine──► their order ──► columns of tensors by `permute`,
                                                                           jagged ones by `fill_jagged`
map, flat_map                  columns + where rows start and end ──engine──► chunks, which are tables
group_by                       see `groups`
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.entries import row_numbers
from tdmap.data.join import called_with_none
from tdmap.data.kinds import signed_view
from tdmap.data.store import OutputFolder
from tdmap.datasets.columns import JAGGED, ROWS, Columns, NoRows, map_columns, write_columns
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import Choice, fill_jagged
from tdmap.datasets.jaggedmap import CHUNK_VALUES, Answers, Chosen
from tdmap.datasets.table import Table
from tdmap.datasets.tables.about import write_types
from tdmap.datasets.tables.running import run_table
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.functions import user_function
from tdmap.job import Job, Policy, Source, function_name
from tdmap.keys.ranks import ranks_of
from tdmap.memory.rowfiles import SharedTensors
from tdmap.ops.sort import sort
from tdmap.output.output import Output, create_in, travels
from tdmap.output.permute import permute_rows
from tdmap.plan import make_plan
from tdmap.rowerrors import OnError
from tdmap.run.arguments import handler_of, policy_for
from tdmap.run.call import parts_of, parts_of_options
from tdmap.run.context import Context
from tdmap.run.fingerprint import function_parts, source_parts
from tdmap.runtime.skipping import DROP
from tdmap.sinks import Collect, Gather
from tensordict_lite import TensorDict

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions

KEY, ROW, SPANS = "__key__", "__row__", "__spans__"


# -- rows by their numbers ---------------------------------------------------------------------------------------------


def take(table: Table, order: Tensor, out: Any, execution: Execution, call: str) -> Table:
    """The rows with these numbers: in memory, sharing the values of jagged columns; or written to a new folder."""
    return placed([(table, row_numbers(order, len(table)), None)], out, execution, call)


def placed(parts: Sequence[tuple[Table, Tensor, Tensor | None]], out: Any, execution: Execution, call: str) -> Table:
    """Columns of several tables side by side, each with rows in an order of its own.

    Args:
        parts: tables without names in common; int64 `[n]` numbers of rows, and None or bool `[n]`: rows that are
            zeros, or empty, where it is False.
        out: None, or a folder.
    """
    count = len(parts[0][1])
    types = {name: kind for table, _, _ in parts for name, kind in table.types.items()}
    if out is None:
        rows: dict[Any, Any] = {}
        for table, order, kept in parts:
            for key in table.rows.keys(True, True):
                rows[key] = _zeroed(table.rows.get(key)[order], kept)
        jagged = {
            name: _emptied(column.take(order), kept)
            for table, order, kept in parts
            for name, column in table.jagged.items()
        }
        return Table(TensorDict(rows, [count]), jagged, types)
    store = OutputFolder.of(out)
    with store.claimed(call):
        example = {
            key: torch.zeros((), dtype=value.dtype).expand(count, *value.shape[1:])
            for table, _, _ in parts
            for key, value in table.rows.items(True, True)
        }
        like: Any = TensorDict(example, [count])
        chosen = {
            name: Choice(column, order) if kept is None else Choice(_emptied(column.take(order), kept))
            for table, order, kept in parts
            for name, column in table.jagged.items()
        }
        if chosen:
            entries = {name: choice.example() for name, choice in chosen.items()}
            like = TensorDict({JAGGED: TensorDict(entries, []), **({ROWS: like} if example else {})}, [])
        looks = [f"{key} {value.dtype} {list(value.shape)}" for key, value in like.items(True, True)]
        made: Any = create_in(store, like, looks)
        target = made if not chosen else made.get(ROWS, None)
        write_types(store, types, target, sorted(chosen))
        for table, order, kept in parts:
            keys = list(table.rows.keys(True, True))
            if keys and count:
                into = target.select(*keys)
                permute_rows(Context(call, execution, Output(into, table.rows)), table.rows, order)
                _zeroed(into, kept)
        for name, choice in chosen.items():
            fill_jagged(choice, made[JAGGED, name], execution)
        store.publish()
    return Table.open(store.path)


def written(table: Table, out: Any, execution: Execution, call: str) -> Table:
    """The table, or a copy of it in a new folder."""
    return table if out is None else placed([(table, torch.arange(len(table)), None)], out, execution, call)


def _emptied(column: Jagged, kept: Tensor | None) -> Jagged:
    if kept is None:
        return column
    return Jagged.of_spans(column.values, column.starts, torch.where(kept, column.ends, column.starts), column.kind)


def _zeroed(values: Any, kept: Tensor | None) -> Any:
    if kept is None or bool(kept.all()):
        return values
    for leaf in [values] if isinstance(values, Tensor) else values.values(True, True):
        signed_view(leaf)[~kept] = 0
    return values


# -- functions of chunks -----------------------------------------------------------------------------------------------


class OnTable:
    """Calls a function with chunks that are tables, where the engine has only where jagged rows start and end."""

    def __init__(self, fn: Callable[[Table], Any], table: Table, share: bool) -> None:
        self.fn = user_function(fn)
        self.kinds = {name: column.kind for name, column in table.jagged.items()}
        self.shared = SharedTensors([column.values for column in table.jagged.values()], share)
        self.types = table.types
        self._sources = [column.values for column in table.jagged.values()]
        self.__qualname__ = function_name(fn)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sources": []}

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        parts = function_parts(self.fn)
        for name, values in zip(self.kinds, self._sources):
            parts.update({f"{name} {key}": text for key, text in source_parts(values).items()})
        return parts

    def table(self, chunk: TensorDict) -> Table:
        """The rows of a chunk."""
        jagged = {}
        for number, (name, kind) in enumerate(self.kinds.items()):
            spans = chunk[SPANS, str(number)]
            values = self.shared.private[number].as_subclass(Tensor)
            jagged[name] = Jagged.of_spans(values, spans[:, 0], spans[:, 1], kind)
        rows = chunk.exclude(SPANS)
        return Table(TensorDict({key: rows.get(key) for key in rows.keys()}, chunk.batch_size[:1]), jagged, self.types)

    def __call__(self, chunk: Any) -> Any:
        result = self.fn(self.table(chunk))
        self.shared.trim()
        return result


class ToColumns:
    """A function of tables whose results are columns."""

    def __init__(self, fn: OnTable) -> None:
        self.fn = fn
        self.__qualname__ = function_name(fn)

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by."""
        return self.fn.identity_parts()

    def __call__(self, chunk: Any) -> Columns:
        return columns_of_result(self.fn(chunk))

    def of_no_rows(self, chunk: Any) -> Columns:
        """The columns of a chunk without rows.

        Raises:
            ValueError: the function does not work on zero rows, or does not tell the columns.
        """
        result = called_with_none(self.fn, chunk)
        names = result if isinstance(result, Mapping) and not hasattr(result, "batch_size") else ()
        unknown = next((name for name in names if isinstance(result[name], list) and not result[name]), None)
        if unknown is not None:
            raise NoRows(
                f"there are no rows at all, and nothing tells what the column {unknown!r} holds: return a tensor or a "
                "Jagged without rows."
            )
        return columns_of_result(result)


def columns_of_result(result: Any) -> Columns:
    """What a function of a table has returned, as columns.

    Raises:
        OutputMismatch: it is something else; says what may be returned.
    """
    if not isinstance(result, (Table, Jagged, Mapping)) and not hasattr(result, "batch_size"):
        raise OutputMismatch(
            "the function must return rows: a Table, a TensorDict, a Jagged, or a dict of columns (tensors, arrays, "
            f"lists of strings, Jagged); got a {type(result).__name__}."
        )
    try:
        if isinstance(result, Mapping) and not hasattr(result, "batch_size"):
            result = {name: _column_of(values) for name, values in result.items()}
        table = Table.of(result)
    except (TypeError, ValueError) as error:
        raise OutputMismatch(f"what the function returned are no columns: {error}") from error
    return Columns(table.rows, table.jagged, table.types)


def _column_of(values: Any) -> Any:
    """A list of sequences is jagged, even where those of one chunk happen to have one length."""
    if isinstance(values, list) and values:
        first = values[0]
        if isinstance(first, (list, tuple)) or (isinstance(first, (Tensor, np.ndarray)) and len(first.shape)):
            return Jagged.from_list(values)
    return values


def source_of(table: Table) -> TensorDict:
    """The table as a dataset for the engine: columns of tensors, and where rows of the jagged ones start and end."""
    entries: dict[Any, Any] = {key: table.rows.get(key) for key in table.rows.keys()}
    spans = {
        str(number): torch.stack([column.starts, column.ends], 1) for number, column in enumerate(table.jagged.values())
    }
    if spans:
        entries[SPANS] = TensorDict(spans, [len(table)])
    return TensorDict(entries, [len(table)])


def rows_of_chunk(table: Table, chunksize: int | None) -> int:
    """Rows of a chunk: by default, as many as have about a million elements."""
    if chunksize is not None:
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise ValueError(
                f"the function gets a table of several rows, so chunksize is a number of rows, at least 1: got "
                f"{chunksize!r}. (With chunksize=1, a table of one row.)"
            )
        return chunksize
    count = max(len(table), 1)
    each = sum(leaf.numel() for leaf in table.rows.values(True, True)) + sum(c.total for c in table.jagged.values())
    return max(min(int(CHUNK_VALUES / max(each / count, 1.0)), -(-count // 8)), 1)


def map_table(
    table: Table,
    fn: Callable[[Table], Any],
    out: Any = None,
    *,
    resume: bool = False,
    chunksize: int | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    retries: int = 2,
    timeout: float | None = None,
    on_error: OnError = "raise",
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.map`."""
    execution = Execution.of(**options)
    wrapped = ToColumns(OnTable(fn, table, travels(execution)))
    source, size = source_of(table), rows_of_chunk(table, chunksize)
    if out is not None:
        store = OutputFolder.of(out)
        try:
            map_columns(
                source, wrapped, None, store, chunksize=size, resume=resume, seed=seed, generator=generator,
                retries=retries, timeout=timeout, on_error=on_error, **options,
            )  # fmt: skip
        except NoRows:
            columns = wrapped.of_no_rows(source[:0])
            write_columns([columns], sorted(columns.jagged), out)
        return Table.open(store.path)
    if resume:
        raise ValueError("resume=True keeps its journal in the folder of the result: pass out=a folder.")
    policy = policy_for(seed, generator, retries, timeout, on_error=on_error, skip=DROP)
    job = Job(Source(source), make_plan(len(table), chunksize=size), InMemory(wrapped), policy,
              on_row_error=handler_of(on_error))  # fmt: skip
    found = [columns for values in execution.run(job, Collect()) for columns in values or ()]
    return Table.cat(found or [wrapped.of_no_rows(source[:0])])


class InMemory:
    """Columns that travel to the caller."""

    def __init__(self, fn: ToColumns) -> None:
        self.fn = fn
        self.__qualname__ = function_name(fn)

    def __call__(self, chunk: Any) -> tuple[Columns, ...]:
        rows, jagged, types = self.fn(chunk)
        if not len(rows) and not any(map(len, jagged.values())):
            return ()  # whose columns may be of any kind
        return (Columns(rows.clone(), {name: column.compact() for name, column in jagged.items()}, types),)

    def join_states(self, states: list[tuple[Columns, ...]]) -> tuple[Columns, ...]:
        """The results of a chunk whose parts were processed one by one."""
        return tuple(columns for state in states for columns in state)


def filter_table(
    table: Table,
    predicate: Callable[[Table], Any],
    out: Any = None,
    *,
    resume: bool = False,
    chunksize: int | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    retries: int = 2,
    timeout: float | None = None,
    on_error: OnError = "raise",
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.filter`."""
    execution, call = Execution.of(**options), f"filter({function_name(predicate)})"
    if resume and out is None:
        raise ValueError("resume=True keeps its journal in the folder of the result: pass out=a folder.")
    if resume and len(table):  # the journal is one of chunks whose rows are written as soon as they are known
        fn = ToColumns(OnTable(Chosen(predicate), table, travels(execution)))
        names, size = sorted(table.jagged), rows_of_chunk(table, chunksize)
        store = OutputFolder.of(out)
        map_columns(
            source_of(table), fn, names, store, chunksize=size, resume=True, seed=seed, generator=generator,
            retries=retries, timeout=timeout, on_error=on_error, **options,
        )  # fmt: skip
        return Table.open(store.path)
    policy = policy_for(seed, generator, retries, timeout, on_error=on_error, skip="pad")
    if out is None:
        return take(table, _kept_rows(table, predicate, chunksize, policy, on_error, execution), None, execution, call)
    store = OutputFolder.of(out)
    with store.claimed(call):  # before the predicate is asked, which may take hours
        take(table, _kept_rows(table, predicate, chunksize, policy, on_error, execution), store, execution, call)
    return Table.open(store.path)  # where a dataset is replaced, it is at the end of the claim


def _kept_rows(
    table: Table,
    predicate: Callable[[Table], Any],
    chunksize: int | None,
    policy: Policy,
    on_error: OnError,
    execution: Execution,
) -> Tensor:
    """What a predicate says of each row, bool `[n]`."""
    kept = torch.zeros(0, dtype=torch.bool)
    if len(table):
        answers = TableAnswers(OnTable(predicate, table, travels(execution)))
        plan = make_plan(len(table), chunksize=rows_of_chunk(table, chunksize))
        job = Job(Source(source_of(table)), plan, answers, policy, on_row_error=handler_of(on_error))
        kept = execution.run(job, Gather(job.name))
    return kept


class TableAnswers(Answers):
    """Checks that a predicate returns a bool for each row."""

    def rows_of(self, chunk: Any) -> int:
        return len(chunk)


# -- keys --------------------------------------------------------------------------------------------------------------


def key_column(table: Table, fn: Callable[[Table], Any], call: str, **options: Any) -> Any:
    """What a function of a chunk, or a formula, says of each row of a table: a tensor `[n]`, or text.

    Raises:
        OutputMismatch: it is not one value a row.
    """
    if not len(table):
        raise ValueError(
            f"{call}: there are no rows, so nothing tells what the keys look like: handle this case before."
        )
    found = map_table(table, KeyFunction(fn, call), **options)
    return found[KEY]


class KeyFunction:
    """Calls a function of a chunk that returns one value a row, and makes a column of them."""

    def __init__(self, fn: Callable[[Table], Any], call: str) -> None:
        self.fn = fn
        self.call = call
        self.__qualname__ = function_name(fn)

    def __call__(self, rows: Table) -> Any:
        values = self.fn(rows)
        column = Table.of({KEY: _column_of(values)}) if isinstance(values, (Tensor, np.ndarray, list, Jagged)) else None
        if column is None or len(column) != len(rows):
            what = f"{len(column)} values" if column is not None else f"a {type(values).__name__}"
            raise OutputMismatch(
                f"the key function of {self.call} must return one value for each of {len(rows)} rows: a tensor, an "
                f"array, or a list of strings; got {what}."
            )
        return column


def keys_of(table: Table, key: Any, call: str) -> dict[str, Tensor]:
    """Columns of keys, strings as numbers in their order.

    Raises:
        KeyError: there is no such column; lists those that there are.
        TypeError: its rows cannot be keys.
    """
    return {name: ranks_of([column])[0] if isinstance(column, Jagged) else column
            for name, column in columns_named(table, key, call).items()}  # fmt: skip


def columns_named(table: Table, key: Any, call: str) -> dict[str, Any]:
    """Columns that may be keys, by their names.

    Raises:
        KeyError: there is no such column; lists those that there are.
        TypeError: its rows are lists, or it is a function, where a column is needed.
    """
    if callable(key):
        raise TypeError(f"{call} of a table takes names of columns, not a function: add a column with its values.")
    names = [key] if isinstance(key, str) else list(key)
    for name in names:
        if not isinstance(name, str) or name not in table.keys():
            raise KeyError(f"{call}: there is no column {name!r}; there are {', '.join(map(repr, table.keys()))}.")
        column = table[name]
        if isinstance(column, Jagged) and column.kind == "tensor":
            raise TypeError(f"{call}: rows of {name!r} are tensors of different lengths, which have no order.")
    return {name: table[name] for name in names}


def given(**options: Any) -> dict[str, Any]:
    """Those options that are not None: what a run is known by without them, it was known by before there were any."""
    return {name: value for name, value in options.items() if value is not None}


def key_parts(key: Any) -> dict[str, str]:
    """What a run is known by that has this key: names of columns, or a function of the table."""
    return parts_of("key", key) if callable(key) else parts_of_options(key=key)


def sort_table(
    table: Table,
    key: Any,
    out: Any = None,
    *,
    resume: bool = False,
    descending: Any = False,
    chunksize: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    retries: int = 2,
    timeout: float | None = None,
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.sort`."""
    tries: Any = {"retries": retries, "timeout": timeout}

    def work(out: Any) -> Table:
        by_value = callable(key)
        table_of_keys = Table.of({KEY: key_column(table, key, "sort", **tries, **options)}) if by_value else table
        keys = list(keys_of(table_of_keys, KEY if by_value else key, "sort").values())
        index = TensorDict({**{str(n): values for n, values in enumerate(keys)}, ROW: torch.arange(len(table))},
                           [len(table)])  # fmt: skip
        by: Any = [str(number) for number in range(len(keys))]
        order: Any = sort(
            index, by, descending=descending, chunksize=chunksize, spill_dir=spill_dir, **tries, **options
        )
        return take(table, order[ROW].clone(), out, Execution.of(**options), "sort")

    def parts() -> dict[str, str]:
        return key_parts(key) | parts_of_options(descending=descending, **given(chunksize=chunksize))

    return run_table("sort", table, parts, out, resume, work)
