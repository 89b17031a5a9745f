"""Results are joined into one new value, whose shape is learnt from the first of them."""

from __future__ import annotations

from typing import Any

from tdmap._data import (
    Data,
    RowWriter,
    allocate_like,
    describe_difference,
    gatherable,
    is_data,
    join,
    joinable,
    narrow,
    tensors_of,
)
from tdmap.errors import OutputMismatch, describe_rows
from tdmap.plan import ChunkPlan
from tdmap.runtime.types import Kind
from tdmap.sinks.base import Allocate


class Gather:
    """Concatenates results along the plan's dimension (stacks them when the plan unbinds).

    The first results travel. If they have as many rows as their chunks, one output of the full length is
    allocated and the workers write the others straight into it. Results that do not fit it (other row counts,
    keys, shapes or dtypes) go on travelling and are concatenated in order at the end. None results are left out;
    when there is nothing else, so is the output.
    """

    streams = False

    def __init__(self) -> None:
        self._writer: RowWriter | None = None
        self._loose: dict[int, Data] = {}
        self._none: list[tuple[int, int]] = []
        self._failed: list[tuple[int, int]] = []
        self._written = False
        self._gather = True

    @property
    def writer(self) -> RowWriter | None:
        return self._writer

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._plan = plan
        self._allocate = allocate

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.FAILED:
            self._failed.append((start, stop))
        elif kind is Kind.NONE:
            self._none.append((start, stop))
        elif kind is Kind.WRITTEN:
            self._written = True
        else:
            for chunk, value in zip(range(start, stop), values):
                self._take(chunk, value)

    def _take(self, chunk: int, value: Data) -> None:
        if self._writer is None and self._gather:
            first, last = self._plan.rows(chunk)
            if gatherable(value, last - first, self._plan):
                out = allocate_like(value, self._plan, self._allocate)
                self._writer = RowWriter(out, self._plan, exact=True)
            else:
                self._gather = False
        if self._writer is not None and self._writer.write(next(self._writer.rows(chunk, chunk + 1)), value):
            self._written = True
        else:
            self._loose[chunk] = value

    def result(self) -> Any:
        self._blank_failed()
        if not self._loose and not self._none and self._writer is not None:
            return self._writer.out
        parts = self._parts()
        if not parts:
            return None
        plan = self._plan
        if plan.unbind and self._written:
            plan = ChunkPlan(plan.length, plan.size, plan.dim)
        try:
            return join(parts, plan)
        except (RuntimeError, KeyError, ValueError) as error:
            raise self._misfit() or error from error

    def _misfit(self) -> OutputMismatch | None:
        """The first result that does not go with the one before it, for the error."""
        chunks = sorted(self._loose)
        if self._writer is not None:
            before, name = next(self._writer.rows(0, 1)), "those that were written first"
        else:
            before, name = self._loose[chunks[0]], describe_rows(*self._plan.rows(chunks[0]))
        before = self._row_of(before)
        for chunk in chunks:
            value = self._row_of(self._loose[chunk])
            if not joinable([before, value], self._plan):
                return OutputMismatch(
                    f"{describe_rows(*self._plan.rows(chunk))}: results must look alike to be joined, and "
                    f"{describe_difference(before, value)} (the others: {name}). Return the same keys, dtypes and row "
                    "shapes for every chunk, or use map_iter, which yields each result by itself."
                )
        return None

    def _row_of(self, value: Data) -> Data:
        """One row of a result, to be compared with those of others; all of it where it has none."""
        dim = self._plan.dim
        if self._plan.unbind or not is_data(value) or len(value.shape) <= dim or not value.shape[dim]:
            return value
        return narrow(value, dim, 0, 1)

    def _blank_failed(self) -> None:
        """Zeros for chunks that failed altogether; where rows are dropped, they are left out like None results."""
        if self._writer is None:
            self._none += self._failed
            return
        for start, stop in self._failed:
            for leaf in tensors_of(narrow(self._writer.out, self._plan.dim, *self._plan.span(start, stop))):
                leaf.zero_()

    def _parts(self) -> list[Data]:
        """Results in the order of the chunks, runs of written ones as one part."""
        plan, parts = self._plan, []
        stack = plan.unbind and self._written
        gaps = sorted([*self._none, *((chunk, chunk + 1) for chunk in self._loose)])
        position = 0
        for start, stop in [*gaps, (plan.num_chunks, plan.num_chunks)]:
            if start > position and self._writer is not None:
                parts.append(narrow(self._writer.out, plan.dim, *plan.span(position, start)))
            if start in self._loose:
                value = self._loose[start]
                parts.append(value.unsqueeze(plan.dim) if stack else value)
            position = stop
        return parts
