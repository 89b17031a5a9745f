"""Results with columns of tensors and of jagged rows, from workers or from a stream, into one folder.

    first job    chunk ──fn──► columns ──► spill file: rows (with the lengths of jagged ones), values of each of those
    between      prefix sums over the pieces of every kind: each has its place
    second job   piece ──copy_file_range──► its place

Columns of tensors go to their places in the first job, where it is known how many rows come before (see `placing`). It
is the engine's way to results of any length (see `append`), with several things of unknown length instead of one. A
run that is killed goes on where it was.

    out/rows/          the columns of tensors, batch size [n]
    out/jagged/text/   values, offsets and kind of each jagged column
    out/columns.json   their order and types (see `tables.about`)
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from tdmap.data.kinds import Data
from tdmap.data.schema import KeyPath, Schema
from tdmap.data.store import OutputFolder
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import example_of
from tdmap.datasets.placing import ColumnFiles, SpillColumns
from tdmap.datasets.tables.about import Types, require_same, write_types
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.job import Job, Source, function_name
from tdmap.memory.spill import ALIGNMENT, Spill
from tdmap.output.append import Piece, SpillRows, append_rows, spill_of
from tdmap.output.append import Pieces as AppendPieces
from tdmap.output.copying import CopyTable, Target
from tdmap.output.output import Output
from tdmap.plan import ChunkPlan, make_plan
from tdmap.rowerrors import OnError
from tdmap.run.arguments import handler_of, policy_for
from tdmap.run.call import run_job
from tdmap.run.context import Context
from tdmap.run.fingerprint import function_parts
from tdmap.runtime.skipping import DROP
from tensordict_lite import TensorDict

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions

ROWS, JAGGED = "rows", "jagged"
_LENGTH, _KIND, _TYPE = "__length__", "__kind__", "__type__:"


class Columns(NamedTuple):
    """Some rows: columns of tensors, jagged ones by their names, and what is known of both."""

    rows: TensorDict
    jagged: Mapping[str, Jagged]
    types: Types = {}


class NoRows(ValueError):
    """Nothing tells the columns of a result."""


class Apart:
    """Takes the columns that a function returns apart into one dataset for all rows, and one for the values of each
    jagged column."""

    takes_start = True

    def __init__(self, fn: Callable[..., Columns], names: Sequence[str] | None, placed: bool = False) -> None:
        self.fn = fn
        self.names = None if names is None else list(names)
        self.placed = placed
        self._positional = getattr(fn, "takes_start", False)
        self.__qualname__ = function_name(fn)

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by, and what its pieces are."""
        return {**function_parts(self.fn), **({"columns": "placed"} if self.placed else {})}

    def __call__(self, chunk: Any, start: int = 0) -> list[TensorDict]:
        columns = self.fn(chunk, start) if self._positional else self.fn(chunk)
        return take_apart(columns, self.names, self.placed)


def take_apart(columns: Columns, names: Sequence[str] | None, placed: bool = False) -> list[TensorDict]:
    """The datasets of some rows: all of them with their lengths, and the values of each jagged column.

    Without `names`, the columns are those of the rows, and no rows tell nothing about columns. With `placed`, the
    columns of tensors are a dataset of their own, the last one.

    Raises:
        OutputMismatch: the columns do not have the same rows, or are others than the jagged ones named.
    """
    rows, jagged, types = Columns(*columns)
    if names is None:
        names = sorted(jagged)
        if not len(rows) and not any(len(column) for column in jagged.values()):
            return []
    if set(jagged) != set(names):
        raise OutputMismatch(f"results have the jagged columns {sorted(jagged)}, where {sorted(names)} were expected.")
    count = len(jagged[names[0]]) if names else len(rows)
    entries: dict[str, Any] = {}
    has_rows = len(list(rows.keys())) > 0
    if has_rows and not placed:
        entries[ROWS] = rows
    for number, name in enumerate(names):
        column = jagged[name]
        if len(column) != count or (has_rows and len(rows) != count):
            raise OutputMismatch(f"{name or 'the jagged column'} has {len(column)} rows, and others have {count}.")
        entries[f"{_LENGTH}{number}"] = column.lengths
        entries[f"{_KIND}:{number}:{column.kind}:{name}"] = torch.zeros(count, 0)
    if types:
        entries |= {_TYPE + json.dumps([name, types[name]]): torch.zeros(count, 0) for name in types}
    values = [TensorDict({"values": jagged[name].flat()}, [jagged[name].total]) for name in names]
    return [TensorDict(entries, [count]), *values, *([rows] if placed else [])]


class Pieces(AppendPieces):
    """Pieces of several datasets in turns, each of which must look alike within itself.

    Args:
        names: of the jagged columns; None: they are those of the first rows.
        placed: columns of tensors are in pieces of their own, the last group.
        alone: the one jagged column is the dataset itself, not one of the columns of a table.
    """

    def __init__(self, names: Sequence[str] | None, placed: bool = False, alone: bool = False) -> None:
        super().__init__()
        self.placed, self.alone = placed, alone
        self._name(names)
        self._firsts: dict[int, int] = {}

    def _name(self, names: Sequence[str] | None) -> None:
        self.is_named = names is not None
        self.names = list(names or ())
        self.groups = len(self.names) + 1 + self.placed

    def learn(self, chunk: int, pieces: tuple[Piece, ...] | None) -> None:
        if not self.is_named and pieces:
            self._name([name for _, name in _kinds_and_names(self._known(pieces[0]))])
        for number, piece in enumerate(pieces or ()):
            self._known(piece)
            if not piece.rows:
                continue
            group = number % self.groups
            first = self._firsts.setdefault(group, piece.digest)
            if piece.digest != first:
                if not group:
                    self._check_kinds(self.schemas[first], self.schemas[piece.digest])
                name = self.names[group - 1] if 0 < group <= len(self.names) else ""
                where = f" (in the column {name!r})" if name else ""
                difference = self.schemas[first].difference(self.schemas[piece.digest])
                raise OutputMismatch(f"results must look alike to go into one dataset, and {difference}{where}.")

    def can_read(self, piece: Piece, is_there: Callable[[str, int], bool]) -> bool:
        columns = self.placed and is_there(f"{piece.file}0", 0)  # of tensors, each of which has a file
        return columns or super().can_read(piece, is_there)

    @staticmethod
    def _check_kinds(one: Schema, other: Schema) -> None:
        kinds, others = (_kinds_and_names(schema) for schema in (one, other))
        if [name for _, name in kinds] != [name for _, name in others]:
            given = (", ".join(repr(name) for _, name in found) or "none" for found in (kinds, others))
            raise OutputMismatch("some chunks gave the jagged columns {}, and others {}.".format(*given))
        if kinds != others:
            one_kind, other_kind = (", ".join(kind for kind, _ in found) for found in (kinds, others))
            raise OutputMismatch(
                f"jagged rows of one column are of one kind, and some chunks gave {one_kind} where others gave "
                f"{other_kind}."
            )
        try:
            require_same(_types(one), _types(other), "chunks")
        except ValueError as error:
            raise OutputMismatch(str(error)) from None

    def of_group(self, group: int) -> list[Piece]:
        """The pieces with rows of one of the datasets, in their order."""
        return [piece for pieces in self.result() for piece in (pieces or ())[group :: self.groups] if piece.rows]

    def schema_of(self, group: int) -> Schema:
        """Of the first rows; without any, of the first empty result."""
        found = self.of_group(group)
        found = found or [piece for pieces in self.result() for piece in (pieces or ())[group :: self.groups]]
        return self.schemas[found[0].digest]


def run_columns(
    job: Job,
    names: Sequence[str] | None,
    output: Output,
    execution: Execution,
    resume: bool,
    counts: Tensor | int | None = None,
    alone: bool = False,
) -> None:
    """Run a job whose function returns columns into a folder.

    Args:
        job: its function is an `Apart`.
        names: of the jagged columns. None: those that the function returns.
        output: the folder.
        execution: who does it.
        resume: keep a journal.
        counts: as `map_columns`; the `Apart` is `placed` then.
        alone: the only jagged column lies in the folder itself, as a `Jagged`, and other columns in `rows`.
    """
    pieces = Pieces(names, counts is not None, alone)
    work = functools.partial(
        append_rows,
        Context("map", execution, output),
        job,
        pieces=pieces,
        place=lambda spill: _place(pieces, spill, output, execution),
        keep=SpillRows if counts is None else functools.partial(SpillColumns, counts=counts),
    )
    run_job("map", job, output, resume, work)


def map_columns(
    data: Data,
    fn: Callable[[Any], Columns],
    names: Sequence[str] | None,
    out: str | os.PathLike[str] | OutputFolder,
    *,
    chunksize: int,
    resume: bool = False,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    retries: int = 2,
    timeout: float | None = None,
    on_error: OnError = "raise",
    counts: Tensor | int | None = None,
    alone: bool = False,
    **options: Unpack[WorkerOptions],
) -> None:
    """Apply a function that returns columns to chunks of any dataset, into a folder.

    Args:
        data: the dataset.
        fn: called with each chunk; returns a TensorDict and the jagged columns by their names, of the same rows.
        names: of the jagged columns, as `run_columns`.
        out: the folder.
        chunksize: rows in a chunk.
        resume, seed, generator, retries, timeout, on_error, **options: as `tdmap.map`; rows that raise are left out.
        counts: rows of the result for each row of the data, int64 `[len(data)]`, or one number for all: columns of
            tensors are written to their places at once. None: nobody knows, or some may be left out.
        alone: as `run_columns`.
    """
    policy = policy_for(seed, generator, retries, timeout, on_error=on_error, skip=DROP)
    plan = make_plan(len(data), chunksize=chunksize)
    apart = Apart(fn, names, placed=counts is not None)
    job = Job(Source(data), plan, apart, policy, on_row_error=handler_of(on_error))
    run_columns(job, names, Output(out, data), Execution.of(**options), resume, counts, alone)


def write_columns(
    batches: Iterable[Columns],
    names: Sequence[str],
    out: str | os.PathLike[str] | OutputFolder,
    alone: bool = False,
) -> None:
    """Write a stream of columns, which only one process can read, into a folder.

    Args:
        batches: rows, a part at a time; memory holds one.
        names: of the jagged columns.
        out: the folder.
        alone: as `run_columns`.

    Raises:
        ValueError: there are no batches, so nothing tells what rows look like.
    """
    output = Output(out, torch.empty(0))
    with output.claimed("write_columns"):
        with spill_of(Context("write_columns", Execution(0), output)) as spill:
            pieces, keep = Pieces(names, alone=alone), SpillRows(Apart(lambda batch: batch, names), spill)
            found = [keep(batch) for batch in batches]
            if not found:
                raise ValueError("there are no rows, so nothing tells what the dataset looks like.")
            plan = ChunkPlan(len(found), 1)
            pieces.open(plan, None)
            for number, value in enumerate(found):
                pieces._values[number] = value
                pieces.learn(number, value)
            _place(pieces, spill, output, Execution(0))
        output.result()


def _place(pieces: Pieces, spill: Spill, output: Output, execution: Execution) -> None:
    """Allocate the folder and bring the pieces to their places."""
    if not pieces.is_named:
        raise NoRows("there are no rows at all, so nothing tells what the result looks like: handle this case.")
    names, schema = pieces.names, pieces.schema_of(0)
    at_place: list[KeyPath] = []
    if pieces.placed:
        fields = pieces.schema_of(pieces.groups - 1).tensors
        at_place = [(ROWS, *field.path) if names else field.path for field in fields]
    ready = ColumnFiles(pieces.of_group(pieces.groups - 1), at_place, spill)
    assert output.store is not None
    count = sum(piece.rows for piece in pieces.of_group(0))
    made = ready.create(output.store, _example(pieces, count, count), _example(pieces, count, 0))
    made_rows = made if not names else made.get(ROWS, None)
    write_types(output.store, _types(schema), made_rows, names)
    parts = [made] if pieces.alone else [made[JAGGED, name] for name in names]
    table = CopyTable()
    firsts = table.target([part["offsets"] for part in parts])
    into = table.target([made_rows.get(field.path[1:]) for field in schema.tensors if field.path[0] == ROWS])
    _add_rows(table, pieces, schema, firsts, into)
    for number, part in enumerate(parts):
        (target,) = table.target([part["values"]])
        at = 0
        for piece in pieces.of_group(number + 1):
            at += table.copy(target, at, piece.file, piece.offset, piece.rows * target.row_bytes)
    ready.copy(made, table)
    table.run(spill, execution)


def _example(pieces: Pieces, count: int, rows_of_columns: int) -> TensorDict:
    """What stands for a result of so many rows, without memory for it; columns of tensors may have others."""
    names, schema = pieces.names, pieces.schema_of(0)
    kinds = _kinds_and_names(schema)
    columns = pieces.schema_of(pieces.groups - 1).skeleton if pieces.placed else schema.skeleton.get(ROWS, None)
    # One element stands for all of them: nothing is allocated for an example.
    has_columns = columns is not None and len(list(columns.keys()))
    rows = columns.new_zeros(1)[0].expand(rows_of_columns) if has_columns else None
    values = []
    for number in range(1, len(names) + 1):
        skeleton = pieces.schema_of(number).skeleton["values"]
        total = sum(piece.rows for piece in pieces.of_group(number))
        values.append(example_of(kinds[number - 1][0], skeleton.dtype, skeleton.shape[1:], count, total))
    if not names:
        assert rows is not None
        return cast(TensorDict, rows)
    entries: dict[str, Any] = {JAGGED: TensorDict(dict(zip(names, values)), [])}
    example = values[0] if pieces.alone else TensorDict(entries, [])
    if rows is not None:
        example[ROWS] = rows
    return example


def _add_rows(table: CopyTable, pieces: Pieces, schema: Schema, firsts: list[Target], into: list[Target]) -> None:
    """Have the columns of tensors copied, and offsets made of the lengths of jagged rows."""
    row, totals = 0, [0] * len(firsts)
    for group in pieces.result():
        for first in range(0, len(group or ()), pieces.groups):
            piece, *values = group[first : first + pieces.groups]
            offset, tensors = piece.offset, iter(into)
            for field, row_bytes in zip(schema.tensors, schema.row_bytes):
                name = field.path[0]
                nbytes = piece.rows * row_bytes
                if piece.rows and name == ROWS:
                    target = next(tensors)
                    table.copy(target, row * target.row_bytes, piece.file, offset, nbytes)
                elif piece.rows and name.startswith(_LENGTH):
                    number = int(name.removeprefix(_LENGTH))
                    table.add_up(firsts[number], (row + 1) * 8, piece.file, offset, nbytes, totals[number])
                offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
            row += piece.rows
            totals = [total + piece.rows for total, piece in zip(totals, values)]


def _types(schema: Schema) -> Types:
    """What is known of columns, in their order."""
    told = (key.removeprefix(_TYPE) for key in schema.skeleton.keys() if key.startswith(_TYPE))
    return dict(json.loads(text) for text in told)


def _kinds_and_names(schema: Schema) -> list[tuple[str, str]]:
    """Kind and name of each jagged column, in their order."""
    found = [field.path[0].split(":", 3) for field in schema.tensors if field.path[0].startswith(f"{_KIND}:")]
    return [(kind, name) for _, _, kind, name in sorted(found, key=lambda parts: int(parts[1]))]
