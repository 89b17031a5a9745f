"""Finding the rows on which a function raises, so that every other row is processed.

    chunk raises ──► rows put back ──► parts of about √n rows ──► rows of the parts that raise, one by one: reported
                                        └── a part that succeeds: its result is kept

A chunk of *n* rows with few bad ones costs `n + √n` more rows. When two parts in a row contain a bad one, the rest is
called row by row. A worker that meets bad rows in two chunks in a row starts with parts, or with single rows, until a
chunk has no bad row. So a job costs at most about twice the work, whether bad rows are few or many. With a seed, every
chunk is first tried whole, because its random streams must not depend on other chunks.

Before each further call, the rows that the last call may have changed are restored from the undo buffer. So each row is
processed once, bad rows stay as they were, and a worker that dies leaves nothing half done: the buffer still holds the
whole chunk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tdmap.data.failures import note_skipped
from tdmap.data.join import join, joinable
from tdmap.data.kinds import Data, is_data, tensors_of
from tdmap.data.objects import Pieces, blank_like, concat_pieces, without_gaps
from tdmap.data.reader import cut, narrow
from tdmap.data.trees import FreshResults
from tdmap.errors import add_note
from tdmap.job import FirstRow, takes_start
from tdmap.runtime.wire.messages import Skipped
from tdmap.runtime.wire.remote import pack_error
from tdmap.runtime.workers import control as at
from tdmap.sink import Kind

if TYPE_CHECKING:
    from tdmap.runtime.chunkloop import ChunkLoop

PAD, DROP = "pad", "drop"
"""Modes. For a bad row, the result has zeros (None for objects), or no row."""

FEW_ROWS = 16
"""Up to so many rows are called one by one, without trying parts first."""

WARY = 2
"""After so many consecutive chunks with bad rows, a worker no longer tries whole chunks, and then no parts."""


Target: TypeAlias = "Data | tuple[Tensor, ...]"
"""Rows of an output, or the tensors of some."""


class Settled(NamedTuple):
    """Replaces the result of a chunk whose rows are already written."""

    kind: Kind
    objects: Pieces | None = None
    """Its entries that are no tensors: they are not written yet."""


class _Part(NamedTuple):
    """The result of some rows of a chunk, counted from its first."""

    start: int
    stop: int
    value: Data


class Skipper:
    """Calls the function of a loop, and again on parts of a chunk that it raises on.

    Args:
        loop: the chunk loop; its function, rows and undo buffer are used.
        mode: `PAD` or `DROP`.
    """

    def __init__(self, loop: ChunkLoop, mode: str) -> None:
        self.loop = loop
        self.mode = mode
        self._bad_chunks = 0
        self._row_by_row = False
        self._positional = takes_start(loop.fn)

    def call(self, lease: int, chunk: int, rows: Data, target: Target | None) -> Any:
        """The result of a chunk, of what is left of it, or a `Settled`."""
        before = self.loop._version()
        start, stop = self.loop.plan.rows(chunk)
        search = _Search(self, chunk, before, target)
        if self._bad_chunks >= WARY and stop - start > 1 and self.loop.policy.seed is None:
            self._row_by_row = search.try_parts(stop - start, self._row_by_row)
            return self._found(lease, chunk, target, search)
        try:
            result = self._invoke(rows, self.loop.plan.original_row(chunk))
        except Exception as error:
            if self.loop.is_none_of_rows(error):
                raise
            failure = error  # handled outside this block, so that later exceptions are not chained to it
        else:
            misfit = self.misfit(target, result)
            if misfit is None:
                self._bad_chunks = 0
                return result
            failure = misfit
        search.failed(0, stop - start, failure)
        if stop - start > 1:
            self._row_by_row = search.try_parts(stop - start, False)
        return self._found(lease, chunk, target, search)

    def misfit(self, target: Target | None, result: Any) -> Exception | None:
        """What is wrong with a result, where it has to fit an output: an error of its rows like any other."""
        writer = self.loop.writer
        return None if writer is None else writer.misfit(target, result)

    def _invoke(self, rows: Data, start: int) -> Any:
        fn: Callable[..., Any] = self.loop.fn
        return fn(rows, start) if self._positional else fn(rows)

    def _found(self, lease: int, chunk: int, target: Target | None, search: _Search) -> Any:
        """Report the bad rows that a search has found, and bring the results of the others to their place."""
        bad = [offset for offset, _ in search.errors]
        self._bad_chunks = self._bad_chunks + 1 if bad else 0
        if bad:
            self._report(lease, chunk, search)
        result = self._settle(search, bad, target)
        for _, error in search.errors:
            error.__traceback__ = None  # as in `_Search.failed`
        return result

    def _report(self, lease: int, chunk: int, search: _Search) -> None:
        start = self.loop.plan.rows(chunk)[0]
        report = tuple((offset, pack_error(bad)) for offset, bad in search.errors)
        undo = self.loop.undo
        if undo is not None and undo.room.skipped is not None:
            failures = [(start + offset, bad, packed.text) for (offset, bad), (_, packed) in zip(search.errors, report)]
            note_skipped(undo.room.skipped, chunk, failures)
        self.loop.emit(Skipped(self.loop.job, lease, chunk, report))

    def _settle(self, search: _Search, bad: list[int], target: Target | None) -> Any:
        """Put the results of the parts where the result of the whole chunk belongs."""
        join_states = getattr(self.loop.fn, "join_states", None)
        if join_states is not None:
            whole = search.parts and getattr(self.loop.fn, "takes_whole", False)
            return join_states([search.again(bad)] if whole else [part.value for part in search.parts])
        parts = [part for part in search.parts if part.value is not None]
        complete = len(parts) == len(search.parts)
        writer = self.loop.writer
        if target is not None and writer is not None and (self.mode == PAD or not writer.exact):
            settled = self._write(search, parts, bad, target, complete)
            if settled is not None:
                return settled
        if not search.parts:
            return Settled(Kind.FAILED)
        return self._join(search, parts, bad, complete) if parts else None

    def _write(
        self, search: _Search, parts: list[_Part], bad: list[int], target: Target | None, complete: bool
    ) -> Settled | None:
        """Write the results of parts into the output; None where they have to travel."""
        writer, plan = self.loop.writer, self.loop.plan
        assert writer is not None
        if writer.exact:
            for offset in bad:
                _zero(target if plan.unbind else _part_of(target, plan.dim, offset, offset + 1))
        if not parts or not (complete or not writer.exact):
            return None
        whole = [target if plan.unbind else _part_of(target, plan.dim, p.start, p.stop) for p in parts]
        if not all(writer.write(rows, part.value) for rows, part in zip(whole, parts)):
            return None
        if not writer.objects:
            return Settled(Kind.WRITTEN)
        first, last = plan.rows(search.chunk)
        spans = [(p.value, first + p.start, first + p.stop) for p in parts]
        pieces = [(p.start, p.stop, writer.objects_of(*span, spills=False)) for p, span in zip(parts, spans)]
        if all(piece is None for _, _, piece in pieces):
            return Settled(Kind.WRITTEN)
        columns: Iterable[Any] = zip(*_without_gaps(pieces, last - first, len(writer.objects)))
        if writer.exact:  # else missing rows keep what the output has
            columns = map(without_gaps, columns)
        return Settled(Kind.OBJECTS, writer.kept(tuple(map(concat_pieces, columns)), first, last))

    def _join(self, search: _Search, parts: list[_Part], bad: list[int], complete: bool) -> Any:
        """The result of the rows that are left: joined, where results have one row for each of theirs."""
        plan = self.loop.plan
        values = [part.value for part in parts]
        if plan.unbind:
            return values[0]
        per_row = all(_count(part.value, plan.dim) == part.stop - part.start for part in parts)
        whole: Any = join(values, plan) if per_row and joinable(values, plan) else search.again(bad)
        start, stop = plan.rows(search.chunk)
        if not bad or not complete or self.mode != PAD or _count(whole, plan.dim) != stop - start - len(bad):
            return whole
        blank: Any = blank_like(narrow(whole, plan.dim, 0, 1))
        places = torch.ones(stop - start, dtype=torch.int64)
        places[bad] = 0
        places = torch.where(places > 0, places.cumsum(0) - 1, stop - start - len(bad))
        return torch.cat([whole, blank], plan.dim)[(slice(None),) * plan.dim + (places,)]


def _without_gaps(
    parts: list[tuple[int, int, Pieces | None]], rows: int, width: int
) -> Iterator[list[tuple[int, Any]]]:
    """The pieces of all rows of a chunk, column by column in each of the results: (rows, piece)."""
    position = 0
    for start, stop, pieces in sorted(parts, key=lambda part: part[0]):
        if start > position:
            yield [(start - position, None)] * width
        yield [(stop - start, piece) for piece in pieces or (None,) * width]
        position = stop
    if position < rows:
        yield [(rows - position, None)] * width


class _Search:
    """The search in one chunk."""

    def __init__(self, skipper: Skipper, chunk: int, before: int, target: Target | None) -> None:
        self.skipper = skipper
        self.target = target
        self.loop = skipper.loop
        self.chunk = chunk
        self.before = before
        self.errors: list[tuple[int, Exception]] = []
        self.fresh = FreshResults()
        self.parts: list[_Part] = []

    def try_parts(self, count: int, row_by_row: bool) -> bool:
        """Call the function with parts of the `count` rows of the chunk, and row by row where those raise.

        Returns:
            Whether bad rows are so many that it went on row by row.
        """
        size = 1 if row_by_row or count <= FEW_ROWS else math.isqrt(count)
        bad_parts = first = 0
        while first < count:
            last = min(first + size, count)
            if self._attempt(first, last):
                bad_parts = 0
            elif last - first > 1:
                for row in range(first, last):
                    self._attempt(row, row + 1)
                bad_parts += 1
                size = 1 if bad_parts >= WARY else size
            first = last
        return size == 1 and len(self.errors) >= math.isqrt(count)

    def _attempt(self, start: int, stop: int) -> bool:
        """Call the function with some rows, and put them back if it raises; a single row is bad then."""
        try:
            value = self._call(self._rows(start, stop), start)
        except Exception as error:
            if self.loop.is_none_of_rows(error):
                raise
            failure = error
        else:
            target = None if self.target is None else self._target(start, stop)
            misfit = self.skipper.misfit(target, value)
            if misfit is None:
                self.parts.append(_Part(start, stop, self.fresh(value)))
                return True
            failure = misfit
        self.failed(start, stop, failure)
        return False

    def failed(self, start: int, stop: int, error: Exception) -> None:
        """The function raised on some rows: put them back. A single row is bad."""
        self.put_back(start, stop, error)
        if stop - start == 1:
            self.errors.append((start, error))
        else:
            error.__traceback__ = None  # its frames hold the rows, and the error: a circle

    def _target(self, start: int, stop: int) -> Any:
        plan = self.loop.plan
        return self.target if plan.unbind else _part_of(self.target, plan.dim, start, stop)

    def _call(self, rows: Data, start: int, offsets: Tensor | None = None) -> Any:
        """Call the function with rows of the chunk from `start` on, or with those at `offsets`."""
        loop = self.loop
        first = loop.plan.original_row(self.chunk) + start
        loop.control[at.SINCE] = time.monotonic_ns()
        loop.streams.start(first)
        return self.skipper._invoke(rows, first if offsets is None else FirstRow.of(offsets + first))

    def _rows(self, start: int, stop: int) -> Data:
        rows = next(self.loop.reader.read(self.chunk, self.chunk + 1))
        return cut(rows, self.loop.plan.dim, start, stop, stop - start)[0]

    def put_back(self, start: int, stop: int, error: Exception) -> None:
        """Undo what a call that has raised did to its rows."""
        loop, undo = self.loop, self.loop.undo
        if undo is not None and loop.control[at.UNDO] == self.chunk + 1:
            undo.restore(self.chunk, start, stop)
        elif loop._version() != self.before:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        add_note(
            error,
            "on_error: these rows cannot be skipped, because the function changes rows in place and raised half-way, "
            "and no copy of them was kept (undo=False, or chunks too large). Use undo=True and a smaller chunksize.",
        )
        raise error

    def again(self, bad: list[int]) -> Any:
        """Call the function once more, on all good rows together, when results of parts cannot be joined."""
        loop, plan = self.loop, self.loop.plan
        if loop._version() != self.before:
            error = self.errors[0][1]
            add_note(error, "on_error: the function changes rows in place and returns values that cannot be joined")
            raise error
        start, stop = plan.rows(self.chunk)
        good = torch.tensor([offset for offset in range(stop - start) if offset not in set(bad)])
        rows = self._rows(0, stop - start)
        return self._call(rows[(*(slice(None),) * plan.dim, good)], 0, good)


def _count(value: Data, dim: int) -> int:
    """Rows of a result; -1 where it has none."""
    return int(value.shape[dim]) if is_data(value) and len(value.shape) > dim else -1


def _part_of(target: Target | None, dim: int, start: int, stop: int) -> Any:
    if type(target) is tuple:
        return tuple(tensor.narrow(dim, start, stop - start) for tensor in target)
    return narrow(target, dim, start, stop)


def _zero(rows: Data) -> None:
    if isinstance(rows, torch.Tensor):
        rows.zero_()
        return
    for leaf in rows if type(rows) is tuple else tensors_of(rows):
        leaf.zero_()
