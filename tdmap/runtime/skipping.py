"""Finding the rows on which a function raises, so that every other row is processed.

    chunk raises ──► rows put back ──► left half, right half ──► ... ──► single rows that raise: reported
                                        └── a half that succeeds: its result is kept

A chunk with one bad row of *n* costs about `2 * log2(n)` more calls. Before each further call the rows that the last
one may have changed are put back from the undo buffer, so a row is processed once, bad rows stay as they were, and
a worker that dies in the middle leaves nothing half done: the buffer still holds the whole chunk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdmap._data import Data, cut, gatherable, is_data, narrow
from tdmap.errors import add_note
from tdmap.runtime import control as at
from tdmap.runtime.remote import pack_error
from tdmap.runtime.skipfile import append
from tdmap.runtime.types import Kind, Skipped
from tdmap.runtime.undo import same_bits
from tdmap.seeding import derive, seed_everything

if TYPE_CHECKING:
    from tdmap.runtime.chunkloop import ChunkLoop

VALID = "__valid__"
"""A bool entry of `out` with this name is set: True for rows that were processed, False for rows that raised."""

PAD, DROP = "pad", "drop"
"""What a result that travels has for a bad row: zeros, or nothing."""


class Settled(NamedTuple):
    """Stands for the result of a chunk that is where it should be already."""

    kind: Kind


class _Part(NamedTuple):
    """The result of some rows of a chunk, counted from its first."""

    start: int
    stop: int
    value: Any


class Skipper:
    """Calls the function of a loop, and again on parts of a chunk that it raises on.

    Args:
        loop: whose function, rows and undo buffer these are.
        mode: `PAD` or `DROP`.
    """

    def __init__(self, loop: ChunkLoop, mode: str) -> None:
        self.loop = loop
        self.mode = mode
        self._positional = getattr(loop.fn, "takes_start", False)

    def call(self, lease: int, chunk: int, rows: Data, target: Any) -> Any:
        """The result of a chunk, of what is left of it, or a `Settled`."""
        before = self.loop._version()
        try:
            result = self._invoke(rows, chunk * self.loop.plan.size)
        except Exception as error:
            if self.loop.is_none_of_rows(error):
                raise
            failure = error  # and out of this block: what is raised below is no consequence of it
        else:
            misfit = self.misfit(target, result)
            if misfit is None:
                self._mark(chunk, [])
                return result
            failure = misfit
        return self._rescue(lease, chunk, target, failure, before)

    def misfit(self, target: Any, result: Any) -> Exception | None:
        """What is wrong with a result, where it has to fit an output: an error of its rows like any other."""
        writer = self.loop.writer
        return None if writer is None or target is None else writer.misfit(target, result)

    def _invoke(self, rows: Data, start: int) -> Any:
        fn: Callable[..., Any] = self.loop.fn
        return fn(rows, start) if self._positional else fn(rows)

    def _rescue(self, lease: int, chunk: int, target: Any, error: Exception, before: int) -> Any:
        start, stop = self.loop.plan.rows(chunk)
        search = _Search(self, chunk, before, target)
        search.failed(0, stop - start, error)
        report = tuple((offset, pack_error(_without_engine(bad))) for offset, bad in search.errors)
        undo = self.loop.undo
        if undo is not None and undo.skipped is not None:
            failures = [(start + offset, bad, packed.text) for (offset, bad), (_, packed) in zip(search.errors, report)]
            append(undo.skipped, chunk, failures)
        self.loop.emit(Skipped(self.loop.job, lease, chunk, report))
        bad = [offset for offset, _ in search.errors]
        self._mark(chunk, bad)
        return self._settle(search, bad, target)

    def _settle(self, search: _Search, bad: list[int], target: Any) -> Any:
        """Bring the results of the parts to where the result of the chunk belongs."""
        join_states = getattr(self.loop.fn, "join_states", None)
        if join_states is not None:
            return join_states([part.value for part in search.parts])
        parts = [part for part in search.parts if part.value is not None]
        writer, dim = self.loop.writer, self.loop.plan.dim
        exact = writer is not None and writer.exact
        if exact and target is not None:
            for offset in bad:
                _zero(target if self.loop.plan.unbind else _part_of(target, dim, offset, offset + 1))
        if not search.parts:
            return Settled(Kind.FAILED)
        if not parts:
            return None
        complete = len(parts) == len(search.parts)
        if writer is not None and target is not None and (complete or not exact):
            if all(writer.write(_part_of(target, dim, p.start, p.stop), p.value) for p in parts):
                return Settled(Kind.WRITTEN)
        return self._join(search, parts, bad, complete)

    def _join(self, search: _Search, parts: list[_Part], bad: list[int], complete: bool) -> Any:
        """The results of parts as one value."""
        plan = self.loop.plan
        if not all(is_data(part.value) and part.value.dim() > plan.dim for part in parts):
            return search.again(bad)
        per_row = all(gatherable(part.value, part.stop - part.start, plan) for part in parts)
        values = [(part.start, part.value) for part in parts]
        if per_row and complete and self.mode == PAD:
            blank = torch.zeros_like(narrow(parts[0].value, plan.dim, 0, 1))
            values = sorted([*values, *((offset, blank) for offset in bad)], key=lambda pair: pair[0])
        return values[0][1] if len(values) == 1 else torch.cat([value for _, value in values], plan.dim)

    def _mark(self, chunk: int, bad: list[int]) -> None:
        writer = self.loop.writer
        if writer is None or writer.exact or isinstance(writer.out, torch.Tensor):
            return
        mask = getattr(writer.out, "_source", {}).get(VALID)
        if isinstance(mask, torch.Tensor):
            plan = self.loop.plan
            start, stop = plan.rows(chunk)
            rows = mask.narrow(plan.dim, start, stop - start)
            rows.fill_(True)
            for offset in bad:
                rows.narrow(plan.dim, offset, 1).fill_(False)


class _Search:
    """The search in one chunk."""

    def __init__(self, skipper: Skipper, chunk: int, before: int, target: Any) -> None:
        self.skipper = skipper
        self.target = target
        self.loop = skipper.loop
        self.chunk = chunk
        self.before = before
        self.errors: list[tuple[int, Exception]] = []
        self.parts: list[_Part] = []

    def failed(self, start: int, stop: int, error: Exception) -> None:
        """The function has raised on the rows `start..stop` of the chunk: look closer."""
        self._put_back(start, stop, error)
        if stop - start == 1:
            self.errors.append((start, error))
            return
        middle = (start + stop) // 2
        del error  # it holds the frames of the call
        self._attempt(start, middle)
        self._attempt(middle, stop)

    def _attempt(self, start: int, stop: int) -> None:
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
                self.parts.append(_Part(start, stop, value))
                return
            failure = misfit
        self.failed(start, stop, failure)

    def _target(self, start: int, stop: int) -> Any:
        plan = self.loop.plan
        return self.target if plan.unbind else _part_of(self.target, plan.dim, start, stop)

    def _call(self, rows: Data, start: int) -> Any:
        loop = self.loop
        first = self.chunk * loop.plan.size + start
        loop.control[at.SINCE] = time.monotonic_ns()
        if loop.policy.seed is not None:
            seed_everything(derive(loop.policy.seed, first))
        return self.skipper._invoke(rows, first)

    def _rows(self, start: int, stop: int) -> Data:
        rows = next(self.loop.reader.read(self.chunk, self.chunk + 1))
        return cut(rows, self.loop.plan.dim, start, stop, stop - start)[0]

    def _put_back(self, start: int, stop: int, error: Exception) -> None:
        loop, plan = self.loop, self.loop.plan
        undo = loop.undo
        if undo is not None and loop.control[at.UNDO] == self.chunk + 1:
            first = plan.rows(self.chunk)[0]
            for leaf, buffer in zip(undo.leaves, undo.buffers):
                kept = buffer.narrow(plan.dim, start, stop - start)
                rows = leaf.narrow(plan.dim, first + start, stop - start)
                if not same_bits(rows, kept):  # a write would be taken for one of the function's
                    rows.copy_(kept)
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
        """One more call, on all good rows together: for results of which two cannot be joined."""
        loop, plan = self.loop, self.loop.plan
        if loop._version() != self.before:
            error = self.errors[0][1]
            add_note(error, "on_error: the function changes rows in place and returns values that cannot be joined")
            raise error
        start, stop = plan.rows(self.chunk)
        good = torch.tensor([offset for offset in range(stop - start) if offset not in set(bad)])
        rows = self._rows(0, stop - start)
        index: Any = (slice(None),) * plan.dim + (good,)
        return self._call(rows[index], 0)


def _part_of(target: Any, dim: int, start: int, stop: int) -> Any:
    if type(target) is tuple:
        return tuple(tensor.narrow(dim, start, stop - start) for tensor in target)
    return narrow(target, dim, start, stop)


def _zero(rows: Any) -> None:
    if isinstance(rows, torch.Tensor):
        rows.zero_()
        return
    for leaf in rows if type(rows) is tuple else rows._leaves():
        leaf.zero_()


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _without_engine(error: Exception) -> Exception:
    """`error` with the frames of the user's code only."""
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename.startswith(_HERE):
        step = step.tb_next
    error.__traceback__ = step or error.__traceback__
    return error
