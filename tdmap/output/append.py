"""Results with any number of rows, as one contiguous dataset in the order of the chunks.

    first job    chunk k ──fn──► rows ──► spill file of the worker        pieces of chunk k: (rows, file, offset)
    between      prefix sum over the pieces: each has its place           the output is allocated, exactly
    second job   piece ──copy_file_range──► its place in the output       in parallel, any order

`fn` runs once a chunk: it may be costly, or random. Bytes are written twice, which is the price of not knowing how
many rows there will be; the second time they do not pass through any process. What travels is a few numbers a chunk.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdmap.data.alike import not_alike
from tdmap.data.kinds import Data, KeyPath, is_data
from tdmap.data.objectlog import describe_spilled, known_spilled
from tdmap.data.objects import Spilled, form_of, spilled, two_forms
from tdmap.data.schema import Parts, Schema, take_apart
from tdmap.data.sizes import result_bytes
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch
from tdmap.functions import plain_rows
from tdmap.job import Job, Wrapped
from tdmap.memory.hidden import open_file
from tdmap.memory.rowfiles import RowFiles
from tdmap.memory.shm import Arena
from tdmap.memory.spill import ALIGNMENT, Spill
from tdmap.output.output import Output, Step
from tdmap.output.spill import copy_bytes, joined_rows
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context
from tdmap.run.values import Codec
from tdmap.sink import Allocate, Demands, Kind
from tensordict_lite import TensorDict


class SpilledRows(NamedTuple):
    """Rows that wait in a spill file, tensor after tensor."""

    rows: int
    digest: int
    """Of their schema."""
    file: str
    offset: int
    objects: dict[KeyPath, Any]
    """Entries that are no tensors: `Spilled` where their rows wait in a file as well; others travel."""
    schema: Schema | None
    """The first time that a worker sends this one."""


def pack_pieces(values: Sequence[tuple[SpilledRows, ...] | None]) -> dict[str, Any]:
    """The pieces of consecutive chunks as data for a log: their numbers in one tensor."""
    pieces = [piece for found in values for piece in found or ()]
    files = {file: number for number, file in enumerate(dict.fromkeys(piece.file for piece in pieces))}
    numbers = [(piece.rows, piece.digest, files[piece.file], piece.offset) for piece in pieces]
    columns: dict[Any, int] = {}
    waiting = []
    for number, piece in enumerate(pieces):
        for path, rows in piece.objects.items():
            if isinstance(rows, Spilled):
                column = columns.setdefault((path, *describe_spilled(rows)), len(columns))
                waiting.append((number, column, *rows[3:5], files.setdefault(rows.file, len(files)), *rows[6:]))
    return {
        "pieces": torch.tensor([-1 if found is None else len(found) for found in values]),
        "numbers": torch.tensor(numbers, dtype=torch.int64).reshape(-1, 4),
        "files": list(files),
        "objects": {number: _travelling(piece) for number, piece in enumerate(pieces) if _travelling(piece)},
        "columns": list(columns),
        "spilled": torch.tensor(waiting, dtype=torch.int64).reshape(-1, 7),
        "skeletons": {number: piece.schema.skeleton for number, piece in enumerate(pieces) if piece.schema is not None},
    }


def unpack_pieces(packed: dict[str, Any]) -> list[tuple[SpilledRows, ...] | None]:
    """What `pack_pieces` was given. Raises ValueError, TypeError or LookupError for other data."""
    schemas = {number: Schema(skeleton) for number, skeleton in packed["skeletons"].items()}
    pieces = [
        SpilledRows(rows, digest, packed["files"][file], offset, packed["objects"].get(number, {}), schemas.get(number))
        for number, (rows, digest, file, offset) in enumerate(packed["numbers"].tolist())
    ]
    for number, column, rows, total, file, lengths, values in packed["spilled"].tolist():
        path, *kind = packed["columns"][column]
        pieces[number].objects[path] = known_spilled(*kind, rows, total, packed["files"][file], lengths, values)
    if any(piece.schema is not None and piece.schema.digest != piece.digest for piece in pieces):
        raise ValueError("rows are not as they were described")
    rest = iter(pieces)
    values = [None if count < 0 else tuple(itertools.islice(rest, count)) for count in packed["pieces"].tolist()]
    if next(rest, None) is not None:
        raise ValueError("more pieces than chunks")
    return values


def _travelling(piece: SpilledRows) -> dict[KeyPath, Any]:
    return {path: entry for path, entry in piece.objects.items() if not isinstance(entry, Spilled)}


class SpillRows(Wrapped):
    """What a worker calls in the first job.

    Args:
        fn: the user's function: rows, None, or an iterable of them.
        spill: where rows wait.
    """

    value_codec = Codec(pack_pieces, unpack_pieces)

    def __init__(self, fn: Callable[..., Any], spill: Spill) -> None:
        super().__init__(fn)
        self.spill = spill
        # By thread: another one's pieces may reach the driver first, and what is under way may never do.
        self._sent: dict[int, set[int]] = {}

    def __call__(self, chunk: Data, start: int = 0) -> tuple[SpilledRows, ...]:
        sent = self._sent.setdefault(threading.get_ident(), set())
        known = set(sent)
        pieces = tuple(self._spill(rows, known) for rows in each_result(self.call(chunk, start), chunk))
        sent |= known
        return pieces

    def join_states(self, states: list[tuple[SpilledRows, ...]]) -> tuple[SpilledRows, ...]:
        """The pieces of a chunk whose parts were processed one by one, because some of its rows raise."""
        return tuple(piece for state in states for piece in state)

    def _spill(self, rows: Data, known: set[int]) -> SpilledRows:
        parts = take_apart(rows)
        digest = parts.schema.digest
        file, offset = "", 0
        tensors = [tensor.contiguous() for tensor in parts.tensors]
        if parts.rows and tensors:
            file, offset, _ = self.spill.append(tensors)[0]
        new = digest not in known
        known.add(digest)
        return SpilledRows(parts.rows, digest, file, offset, self._objects_of(parts), parts.schema if new else None)

    def _objects_of(self, parts: Parts) -> dict[KeyPath, Any]:
        plan = ChunkPlan(parts.rows, max(parts.rows, 1))
        return {path: spilled(entry, plan, self.spill) or entry for path, entry in parts.objects.items()}


class WriteRows(SpillRows):
    """The same where it is known which rows each chunk gives: their tensors are written to their places at once.

    Args:
        fn, spill: as of `SpillRows`. Each chunk is one row of the source.
        schema: of the rows.
        firsts: the number of the first row of each chunk, and of all rows.
        places: those of the tensors.
    """

    def __init__(
        self, fn: Callable[..., Any], spill: Spill, schema: Schema, firsts: Sequence[int], places: RowFiles
    ) -> None:
        super().__init__(fn, spill)
        self.schema, self.firsts, self.places = schema, list(firsts), places

    def __call__(self, chunk: Data, start: int = 0) -> tuple[SpilledRows, ...]:
        first, last = self.firsts[start : start + 2]
        pieces: list[SpilledRows] = []
        row = first
        files = self.places.descriptors
        for rows in each_result(self.call(chunk, start), chunk):
            parts = take_apart(rows)
            if parts.schema.digest != self.schema.digest:
                raise not_alike(self.schema.difference(parts.schema))
            if row + parts.rows <= last:
                for number, (file, tensor) in enumerate(zip(files, parts.tensors)):
                    self.places.write(number, file, row, tensor.contiguous())
            row += parts.rows
            objects = self._objects_of(parts)
            new = None if pieces else self.schema
            pieces.append(SpilledRows(parts.rows, self.schema.digest, "", 0, objects, new))
        if row != last:
            raise OutputMismatch(f"there are {row - first:,} rows, and {last - first:,} were announced")
        return tuple(pieces)


def each_result(result: object, chunk: Data) -> Iterator[Data]:
    """The datasets that a function has returned: one, none, or those of an iterable; dicts of columns are datasets."""
    if result is None:
        return
    if is_data(result) or isinstance(result, (dict, np.ndarray)):
        yield plain_rows(result, chunk, "any")
    elif isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
        for part in result:
            yield from each_result(part, chunk)
    else:
        raise OutputMismatch(
            "the function must return a tensor or a collection with rows in dimension 0, a dict of columns, "
            f"None, or an iterable of these: got a {type(result).__name__}."
        )


class LikeTheFirst(RowWriter):
    """Writes nothing: where rows that raise are left out, it refuses those that do not look like the first ones.

    Args:
        first: the first rows.
        schema: theirs.
        plan: how rows are cut.
    """

    def __init__(self, first: SpilledRows, schema: Schema, plan: ChunkPlan) -> None:
        super().__init__(TensorDict({}, [plan.length]), plan, exact=True)
        self._digest, self._schemas = first.digest, {first.digest: schema}
        self._forms = {path: form_of(entry) for path, entry in first.objects.items()}

    def own(self) -> LikeTheFirst:
        return self

    def over(self, out: Data, base: int) -> LikeTheFirst:
        return self

    def rows(self, start: int, stop: int) -> Iterator[Data]:
        return itertools.repeat(None, stop - start)

    def misfit(self, rows: Data, result: Any) -> OutputMismatch | None:
        pieces: tuple[SpilledRows, ...] = result
        for piece in pieces:
            if piece.schema is not None:
                self._schemas[piece.digest] = piece.schema
            if not piece.rows:
                continue
            if piece.digest != self._digest:
                theirs = self._schemas.get(piece.digest)  # None: of a chunk that was run before the first rows came
                other = "it has other entries" if theirs is None else self._schemas[self._digest].difference(theirs)
                return not_alike(other)
            found = (two_forms(path, form_of(piece.objects[path]), form) for path, form in self._forms.items())
            wrong = next(filter(None, found), None)
            if wrong is not None:
                return OutputMismatch(wrong)
        return None


class CollectPieces(Collect):
    """Keeps the pieces of every chunk, and refuses rows that do not look like those before.

    Args:
        output: refuses rows for which it has no place.
        skips: workers refuse such rows, which are left out like those that raise.

    Attributes:
        schemas: every schema that was met, by its digest.
    """

    def __init__(self, output: Output | None = None, skips: bool = False) -> None:
        super().__init__()
        self._output = output
        self._skips = skips
        self.schemas: dict[int, Schema] = {}
        self._first: tuple[int, int] | None = None

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(first_alone=True)

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        super().open(plan, allocate)
        self._plan = plan
        for chunk, pieces in self.restored.items():
            self.learn(chunk, pieces)

    def replan(self, plan: ChunkPlan) -> None:
        super().replan(plan)
        self._plan = plan
        if self.writer is not None:
            self.writer.plan = plan

    def restore(self, values: dict[int, Any], is_there: Callable[[str, int], bool]) -> None:
        pieces = [piece for found in values.values() for piece in found or ()]
        self.schemas.update({piece.digest: piece.schema for piece in pieces if piece.schema is not None})
        for chunk, found in values.items():
            known = all(piece.digest in self.schemas for piece in found or ())
            if known and all(self._can_read(piece, is_there) for piece in found or ()):
                self.restored[chunk] = found

    def _can_read(self, piece: SpilledRows, is_there: Callable[[str, int], bool]) -> bool:
        """Whether the rows of a piece are still in their files."""
        waiting = [rows for rows in piece.objects.values() if isinstance(rows, Spilled)]
        return (not piece.file or is_there(piece.file, piece.offset)) and all(
            is_there(rows.file, rows.values + rows.nbytes) for rows in waiting
        )

    def value_bytes(self, value: Any) -> int:
        total = 0
        for piece in value:
            schema = self._known(piece)
            total += piece.rows * sum(schema.row_bytes)
            total += sum(x.nbytes if isinstance(x, Spilled) else result_bytes(x) for x in piece.objects.values())
        return total

    def _known(self, piece: SpilledRows) -> Schema:
        """The schema of a piece, which came with it or with an earlier one of its worker."""
        if piece.schema is not None:
            self.schemas.setdefault(piece.digest, piece.schema)
        return self.schemas[piece.digest]

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        super().accept(start, stop, kind, values)
        for chunk, pieces in zip(range(start, stop), values):
            self.learn(chunk, pieces)

    def learn(self, chunk: int, pieces: tuple[SpilledRows, ...] | None) -> None:
        """Take note of what the rows of a chunk look like.

        Raises:
            OutputMismatch: they look different from others.
        """
        for piece in pieces or ():
            self._known(piece)
            if not piece.rows:
                continue
            if self._first is None:
                self._first = chunk, piece.digest
                if self._output is not None:
                    self._output.check(self.schemas[piece.digest], 0)
                if self._skips:
                    self.writer = LikeTheFirst(piece, self.schemas[piece.digest], self._plan)
            if piece.digest != self._first[1]:
                other, digest = self._first
                difference = self.schemas[digest].difference(self.schemas[piece.digest])
                this, first = (self._plan.describe(number) for number in (chunk, other))
                raise not_alike(difference, where=f"{this}, unlike {first}")
            if self._output is not None and piece.objects:
                self._output.check_objects(piece.objects, self._plan.describe(chunk))

    @property
    def all(self) -> list[SpilledRows]:
        """The pieces that have rows, in the order of the chunks."""
        return [piece for pieces in self.result() for piece in pieces or () if piece.rows]

    @property
    def schema(self) -> Schema | None:
        """Of the first rows; without any, of the first empty result; else None."""
        for wanted in (self.all, [piece for pieces in self.result() for piece in pieces or ()]):
            if wanted:
                return self.schemas[wanted[0].digest]
        return None


class PlacePieces(Step):
    """The second job: copies pieces to their place.

    Its chunks are rows of an int64 table: first row in the output, rows, file, offset of the piece, rows of the
    piece, first row in the piece.
    """

    def __init__(self, spill: Spill, files: list[str], row_bytes: list[int], places: RowFiles) -> None:
        super().__init__("append_rows")
        self.spill = spill
        self.files = files
        self.row_bytes = row_bytes
        self.places = places

    def __call__(self, tasks: Tensor, start: int = 0) -> int:
        sources: dict[int, int] = {}
        try:
            targets = self.places.descriptors
            for row, rows, file, offset, piece_rows, skip in tasks.tolist():
                if file not in sources:
                    sources[file] = open_file(self.spill.folder / self.files[file])
                self._place(sources[file], targets, row, rows, offset, piece_rows, skip)
        finally:
            for fd in sources.values():
                os.close(fd)
        return len(tasks)

    def _place(
        self, source: int, targets: Iterable[int], row: int, rows: int, offset: int, piece_rows: int, skip: int
    ) -> None:
        for place, target, row_bytes in zip(self.places.files, targets, self.row_bytes):
            if place is not None:
                copy_bytes(source, offset + skip * row_bytes, target, place.offset + row * row_bytes, rows * row_bytes)
            offset += -(-piece_rows * row_bytes // ALIGNMENT) * ALIGNMENT


def tasks_of(pieces: Sequence[SpilledRows], files: list[str], row_bytes: int, most_bytes: int) -> Tensor:
    """The table of the second job, of parts of at most so many bytes; adds the names of files to `files`."""
    numbers: dict[str, int] = {}
    most = max(most_bytes // max(row_bytes, 1), 1)
    table, row = [], 0
    for piece in pieces:
        if piece.file:
            number = numbers.setdefault(piece.file, len(numbers))
            for skip in range(0, piece.rows, most):
                rows = min(most, piece.rows - skip)
                table.append((row + skip, rows, number, piece.offset, piece.rows, skip))
        row += piece.rows
    files += numbers
    return torch.tensor(table, dtype=torch.int64).reshape(-1, 6)


def objects_of_pieces(pieces: Sequence[SpilledRows], spill: Spill) -> dict[KeyPath, Any]:
    """The entries that are no tensors, of all pieces together."""
    objects = {}
    for path in pieces[0].objects if pieces else ():
        objects[path] = joined_rows(path, [(piece.rows, piece.objects[path]) for piece in pieces], spill)
    return objects


def place_pieces(ctx: Context, pieces: Sequence[SpilledRows], schema: Schema, spill: Spill) -> None:
    """Allocate the output, and bring every piece to its place."""
    objects = objects_of_pieces(pieces, spill)
    total = sum(piece.rows for piece in pieces)
    places = ctx.output.open(schema, total, objects)
    files: list[str] = []
    row_bytes = schema.row_bytes
    table = tasks_of(pieces, files, sum(row_bytes), ctx.tuning.copy_bytes)
    if not len(table):
        return
    each = max(total * sum(row_bytes) // len(table), 1)
    plan = ChunkPlan(len(table), max(min(ctx.tuning.copy_bytes // each, -(-len(table) // 4)), 1))
    ctx.step(table, plan, PlacePieces(spill, files, row_bytes, places))


def append_rows(
    ctx: Context,
    job: Job,
    *,
    empty: Schema | None = None,
) -> Data:
    """Apply the function of a job to the chunks of its dataset, and put the rows that it returns one after the other.

    Args:
        ctx: the call, with the output.
        job: its function is called once with each chunk (with a row without its dimension where the plan unbinds; with
            the number of the chunk's first row besides, where it has an attribute `takes_start` that is true). It
            returns rows in dimension 0, any number, None for none, or an iterable of those.
        empty: the schema of zero rows, where no result tells it.

    Returns:
        The rows, in the order of the chunks.

    Raises:
        OutputMismatch: results differ in keys, dtypes or shapes, or do not fit the output; names rows and key.
        ValueError: there are zero rows, and nothing tells what they look like.
        OSError: there is no room for the rows, or for the intermediate ones; names the folder.
        Exception: as `tdmap.map`.
    """
    pieces = CollectPieces(ctx.output, bool(job.policy.skip))
    with ctx.spill() as spill:
        if job.plan.length:
            ctx.run(replace(job, fn=SpillRows(job.fn, spill)), pieces)
        schema = pieces.schema or empty
        if schema is None and ctx.output.given is not None:
            schema = take_apart(ctx.output.given[:0]).schema
        if schema is None:
            raise ValueError(
                f"{job.name} returned no rows, so the schema of the result is unknown. Return an empty TensorDict "
                "with its keys instead of None, or handle this case before the call."
            )
        place_pieces(ctx, pieces.all, schema, spill)
    return ctx.output.result()


def append_known(ctx: Context, job: Job, schema: Schema, firsts: Sequence[int]) -> Data:
    """`append_rows` into a folder where it is known which rows each chunk gives: only ragged rows wait in files.

    Args:
        ctx, job: as of `append_rows`. Each chunk is one row of the source.
        schema: of the rows.
        firsts: the number of the first row of each chunk, and of all rows.
    """
    places, pieces = ctx.output.open(schema, firsts[-1]), CollectPieces(ctx.output)
    with ctx.spill() as spill:
        ctx.run(replace(job, fn=WriteRows(job.fn, spill, schema, firsts, places)), pieces)
        ctx.output.add(objects_of_pieces(pieces.all, spill))
    return ctx.output.result()


def append_stream(ctx: Context, parts: Iterable[Data], empty: Callable[[], Schema] | None = None) -> Data:
    """Put datasets that come one after the other, in this process, into a new folder; memory holds one of them.

    Args:
        ctx: the call, with the output.
        parts: what look alike, with rows in dimension 0.
        empty: gives the schema of zero rows, or raises ValueError; called when there are no parts.

    Raises:
        OutputMismatch: parts differ in keys, dtypes or shapes.
        ValueError: there are no parts, and nothing tells what they look like.
    """
    with ctx.spill() as spill:
        pieces, spilling, found = CollectPieces(ctx.output), SpillRows(_same, spill), []
        pieces.open(ChunkPlan(0, 1), Arena().empty)
        for number, rows in enumerate(parts):
            found.append(spilling(rows))
            pieces.learn(number, found[-1])
        kept = [piece for each in found for piece in each if piece.rows]
        first = kept or [piece for each in found for piece in each]
        if first:
            schema = pieces.schemas[first[0].digest]
        elif empty is not None:
            schema = empty()
        else:
            raise ValueError("without rows, the schema of the dataset is unknown.")
        place_pieces(ctx, kept, schema, spill)
    return ctx.output.result()


def _same(rows: Data) -> Data:
    return rows
