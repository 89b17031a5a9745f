"""Results are small values of any kind, kept in the order of their chunks."""

from __future__ import annotations

from typing import Any

from tdmap.data.writer import RowWriter
from tdmap.plan import ChunkPlan
from tdmap.sinks.base import Allocate, Kind, PlainSink


class Collect(PlainSink):
    """Keeps one value a chunk: counts, extents, errors. Its result is their list, None where there is none.

    Attributes:
        restored: the values of chunks that an earlier session has done, by their number.
    """

    writer: RowWriter | None = None

    def __init__(self) -> None:
        self._values: list[Any] = []
        self.restored: dict[int, Any] = {}

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._values = [None] * plan.num_known
        for chunk, value in self.restored.items():
            self._values[chunk] = value

    def replan(self, plan: ChunkPlan) -> None:
        self._values += [None] * (plan.num_chunks - len(self._values))

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.PARCEL:
            self._values[start:stop] = values

    def of(self, start: int, stop: int) -> tuple[Any, ...]:
        """What is known of the chunks `start..stop`."""
        return tuple(self._values[start:stop])

    def result(self) -> list[Any]:
        return self._values
