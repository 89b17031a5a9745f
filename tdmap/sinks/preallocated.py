"""Results go into an output that exists already."""

from __future__ import annotations

from typing import Any

from tdmap._data import Data, RowWriter, describe_rows
from tdmap.errors import OutputMismatch
from tdmap.plan import ChunkPlan
from tdmap.runtime.types import Kind
from tdmap.sinks.base import Allocate


class Preallocated:
    """Writes each result into the rows of `out` that its chunk has; a None result leaves them as they are."""

    streams = False

    def __init__(self, out: Data) -> None:
        self.out = out
        self._writer: RowWriter | None = None

    @property
    def writer(self) -> RowWriter | None:
        return self._writer

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._writer = RowWriter(self.out, plan, exact=False)

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.PARCEL:
            assert self._writer is not None
            first, last = self._writer.plan.span(start, stop)
            raise OutputMismatch(f"the results of {describe_rows(first, last)} did not fit out.")

    def result(self) -> Any:
        return self.out
