"""Results are joined into one new value, whose shape is learnt from the first of them."""

from __future__ import annotations

from typing import Any

import torch

from tdmap.data.alike import describe_difference, not_alike
from tdmap.data.join import allocate_like, gatherable, join, joinable, stack_unlike
from tdmap.data.kinds import Data, KeyPath, is_data, stored_leaves, tensors_of
from tdmap.data.objects import (
    ObjectColumns,
    Placer,
    as_chunk,
    blank_like,
    entry_paths,
    forms_of,
    object_paths,
    spill_of,
    spill_pieces,
    with_objects,
    without_objects,
)
from tdmap.data.reader import narrow
from tdmap.data.schema import plain
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch
from tdmap.frames import warn_user
from tdmap.plan import ChunkPlan
from tdmap.sink import Allocate, Demands, Kind, Sink


class Gather(Sink[Any]):
    """Concatenates results along the plan's dimension (stacks them when the plan unbinds).

    The first results travel. If they have as many rows as their chunks, one output of the full length is
    allocated and the workers write the others straight into it. Results that do not fit it (other row counts,
    keys, shapes or dtypes) go on travelling and are concatenated in order at the end. None results are left out;
    when there is nothing else, so is the output.

    Args:
        name: of the function, for a warning where only some of its results are None; empty where that is meant.
        drops: rows that raise are left out, and are no zeros.
        place: where ragged rows wait until all are there, and what brings them to their places; None: in memory.
    """

    def __init__(self, name: str = "", drops: bool = False, place: Placer | None = None) -> None:
        self._place = place
        self._name = name
        self._drops = drops
        self.writer: RowWriter | None = None
        self._loose: dict[int, Data] = {}
        self._none: list[tuple[int, int]] = []
        self._failed: list[tuple[int, int]] = []
        self._written = False
        self._gather = True
        self._objects = ObjectColumns(())
        self._order: tuple[KeyPath, ...] = ()

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(first_alone=True)

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._plan = plan
        self._allocate = allocate

    def replan(self, plan: ChunkPlan) -> None:
        self._plan = plan
        if self.writer is not None:
            self.writer.plan = plan

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.FAILED:
            self._failed.append((start, stop))
        elif kind is Kind.NONE:
            self._none.append((start, stop))
        elif kind is Kind.WRITTEN:
            self._written = True
        elif kind is Kind.OBJECTS:
            self._written = True
            for chunk, pieces in zip(range(start, stop), values):
                self._objects.add(chunk, spill_pieces(pieces, self._plan, spill_of(self._place)))
        else:
            for chunk, value in zip(range(start, stop), values):
                self._take(chunk, value)

    def _take(self, chunk: int, value: Data) -> None:
        if self.writer is None and self._gather:
            first, last = self._plan.rows(chunk)
            if gatherable(value, last - first, self._plan):
                paths = object_paths(value)
                out = allocate_like(without_objects(value), self._plan, self._allocate)
                self._order = entry_paths(value)
                forms = forms_of(value)
                self.writer = RowWriter(out, self._plan, exact=True, objects=paths, place=self._place, forms=forms)
                self._objects = ObjectColumns(paths)
            else:
                self._gather = False
        if self.writer is not None and self.writer.write(next(self.writer.rows(chunk, chunk + 1)), value):
            self._written = True
            pieces = self.writer.objects_of(value, *self._plan.rows(chunk))
            if pieces is not None:
                self._objects.add(chunk, spill_pieces(pieces, self._plan, spill_of(self._place)))
        else:
            self._loose[chunk] = value

    def result(self) -> Any:
        if self._name and self._none and (self.writer is not None or self._loose):
            self._warn_of_none()
        try:
            joined = self._joined()
            if self._name and not self._plan.unbind:
                self._warn_of_rows()
            return joined
        except (RuntimeError, KeyError, ValueError, TypeError):
            if not all(is_data(part) for part in self._loose.values()):
                raise
            misfit = self._misfit()
            if misfit is None:
                raise
            raise misfit from None

    def _joined(self) -> Any:
        self._blank_failed()
        if not self._loose and not self._none and self.writer is not None:
            return self._out()
        parts = self._parts()
        if not parts:
            return None
        plan = self._plan
        as_chunks = plan.unbind and self._written
        try:
            return join(parts, ChunkPlan(plan.length, plan.size, plan.dim) if as_chunks else plan)
        except RuntimeError:
            rows = [row for part in parts for row in part.unbind(plan.dim)] if as_chunks else parts
            found = stack_unlike(rows, plan.dim) if plan.unbind else None
            if found is None:
                raise
            return found

    def _warn_of_none(self) -> None:
        spans = sorted(self._none)
        rows = sum(self._plan.count(*span) for span in spans)
        shown = ", ".join(self._plan.describe(*span) for span in spans[:3]) + (", ..." if len(spans) > 3 else "")
        warn_user(
            f"{self._name} returned None for {rows} of {self._plan.length} rows ({shown}) and results for the "
            "others: the result lacks these rows. Return their results too, or use tdmap.filter to leave out "
            "rows, or tdmap.flat_map to return any number of rows."
        )

    def _warn_of_rows(self) -> None:
        plan = self._plan
        found = {chunk: int(value.shape[plan.dim]) for chunk, value in self._loose.items()}
        odd = next((chunk for chunk in sorted(found) if found[chunk] != plan.count(chunk, chunk + 1)), None)
        if odd is not None:
            asked = sum(plan.count(chunk, chunk + 1) for chunk in found)
            warn_user(
                f"{self._name} returned {sum(found.values())} rows for {asked} rows ({found[odd]} for "
                f"{plan.describe(odd)}). map expects one row for each row of a chunk, and chunks may be cut otherwise "
                "elsewhere: use tdmap.flat_map to return any number of rows, or tdmap.filter to leave out rows."
            )

    def _out(self) -> Data:
        """What the workers have written, with the entries that are no tensors."""
        assert self.writer is not None
        if not self._objects.paths:
            return self.writer.out
        columns = self._objects.columns(self._plan, self.writer.out, place=self._place)
        return with_objects(self.writer.out, columns, self._order)

    def _misfit(self) -> OutputMismatch | None:
        """The first result that does not go with the one before it, for the error."""
        chunks, dim = sorted(self._loose), self._plan.dim
        for chunk in chunks:
            obstacle = _not_strided(self._loose[chunk])
            if obstacle is not None:
                return OutputMismatch(f"{self._plan.describe(chunk)}: {obstacle}")
            shape = tuple(self._loose[chunk].shape)
            if not self._plan.unbind and len(shape) <= dim:
                return OutputMismatch(
                    f"{self._plan.describe(chunk)}: the function returned a result of shape {shape}, and "
                    f"map joins results along their rows, dimension {dim}. Return a value for each row; for one value "
                    "of all rows use tdmap.map_reduce or tdmap.reduce, for one a chunk tdmap.map_iter."
                )
        if self.writer is not None:
            before, name = self._out(), ""
            if self._plan.unbind:
                before = narrow(before, dim, 0, 1)[(slice(None),) * dim + (0,)]
        else:
            before, name = self._loose[chunks[0]], self._plan.describe(chunks[0])
        before = self._row_of(before)
        for chunk in chunks:
            value = self._row_of(self._loose[chunk])
            if not joinable([before, value], self._plan):
                return not_alike(
                    describe_difference(before, value),
                    where=self._plan.describe(chunk) + (f", unlike {name}" if name else ""),
                    purpose="to be joined",
                    advice=(
                        "Return the same keys, dtypes and row shapes for every chunk, or use map_iter, which "
                        "yields results without joining them."
                    ),
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
        if self._drops or (self.writer is None and not self._by_row()):
            self._none += self._failed
            return
        if self.writer is None:
            self._blank_loose()
            return
        for start, stop in self._failed:
            for leaf in tensors_of(narrow(self.writer.out, self._plan.dim, *self._plan.span(start, stop))):
                leaf.zero_()

    def _by_row(self) -> bool:
        """Whether results have as many rows as their chunks, so that others can have as many zeros."""
        plan = self._plan
        if not self._loose or not all(map(is_data, self._loose.values())):
            return False
        shapes = [(chunk, value.shape) for chunk, value in self._loose.items()]
        return plan.unbind or all(
            len(shape) > plan.dim and shape[plan.dim] == plan.count(chunk, chunk + 1) for chunk, shape in shapes
        )

    def _blank_loose(self) -> None:
        plan, example = self._plan, next(iter(self._loose.values()))
        blank = blank_like(example if plan.unbind else narrow(example, plan.dim, 0, 1))
        for start, stop in self._failed:
            for chunk in range(start, stop):
                rows: list[Any] = [blank] * plan.count(chunk, chunk + 1)
                self._loose[chunk] = blank if plan.unbind else torch.cat(rows, plan.dim)

    def _parts(self) -> list[Data]:
        """Results in the order of the chunks, runs of written ones as one part."""
        plan, parts = self._plan, []
        out = None if self.writer is None else self._out()
        stack = plan.unbind and self._written
        gaps = sorted([*self._none, *((chunk, chunk + 1) for chunk in self._loose)])
        position = 0
        for start, stop in [*gaps, (plan.num_chunks, plan.num_chunks)]:
            if start > position and out is not None:
                parts.append(narrow(out, plan.dim, *plan.span(position, start)))
            if start in self._loose:
                value = self._loose[start]
                parts.append(as_chunk(value, plan.dim) if stack else value)
            position = stop
        return parts


def _not_strided(result: Data) -> str | None:
    """Which tensor of a result has no rows that can be joined, and what to do."""
    for path, leaf in stored_leaves(result):
        if isinstance(leaf, torch.Tensor):
            try:
                plain(leaf, path)
            except OutputMismatch as error:
                return (
                    f"{error} Return dense tensors (to_dense(), dequantize()), indices and values as separate "
                    "columns, or rows of different lengths as a lazy stack; or use map_iter, which yields "
                    "each result."
                )
    return None
