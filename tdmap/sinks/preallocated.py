"""Results go into an output that exists already; or back into the rows that they came from (`out=data`)."""

from __future__ import annotations

from typing import Any

from tdmap.data.kinds import Data
from tdmap.data.objectlog import ObjectLog
from tdmap.data.objects import ObjectColumns, Pieces, Placer, assign_objects, spill_of, spill_pieces, without_gaps_over
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch, describe_rows
from tdmap.plan import ChunkPlan
from tdmap.sinks.base import Allocate, Demands, Kind, PlainSink


class Preallocated(PlainSink):
    """Writes each result into the rows of `out` that its chunk has; a None result leaves them as they are.

    Args:
        out: the output.
        log: of a run that can be resumed: keeps the results' entries that are no tensors.
        place: as of `Gather`.
    """

    aliased = False

    def __init__(self, out: Data, log: ObjectLog | None = None, place: Placer | None = None) -> None:
        self.out = out
        self._log = log
        self._place = place
        self.writer: RowWriter | None = None
        self._objects = ObjectColumns(())

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self.writer = RowWriter(self.out, plan, exact=False, aliased=self.aliased)
        self.writer.spill_to(self._place)
        self._objects = ObjectColumns(self.writer.objects)

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.PARCEL:
            assert self.writer is not None
            first, last = self.writer.plan.span(start, stop)
            raise OutputMismatch(f"the results of {describe_rows(first, last)} did not fit out.")
        if kind is Kind.OBJECTS:
            assert self.writer is not None
            for chunk, pieces in zip(range(start, stop), values):
                pieces = self._complete(chunk, pieces)
                if self._log is not None:
                    self._log.add(chunk, pieces)
                self._objects.add(chunk, pieces)

    def _complete(self, chunk: int, pieces: Pieces) -> Pieces:
        assert self.writer is not None
        plan = self.writer.plan
        if not plan.dim and not plan.unbind:
            pieces = without_gaps_over(pieces, self._objects.paths, self.out, slice(*plan.rows(chunk)))
        return spill_pieces(pieces, plan, spill_of(self._place))

    def result(self) -> Any:
        self._assign()
        return self.out

    def abandon(self) -> None:
        """The job has failed: what is done stays done, as for tensors; with a log, it waits there."""
        if self._log is None:
            self._assign()

    def _assign(self) -> None:
        if self.writer is None or not self._objects:
            return
        if self._log is not None:
            for chunk, pieces in self._log.load(self._objects.paths).items():
                self._objects.add(chunk, pieces)
        if not self._objects.is_empty:
            columns = self._objects.columns(self.writer.plan, self.out, before=self.out, place=self._place)
            assign_objects(self.out, columns)


class InPlace(Preallocated):
    """A `Preallocated` sink whose output is the source: what the function changed in place is not copied again."""

    aliased = True

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(in_place=True)
