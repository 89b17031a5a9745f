"""Results are small values of any kind, kept in the order of their chunks."""

from __future__ import annotations

from collections.abc import Callable
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

    def restore(self, values: dict[int, Any], is_there: Callable[[str, int], bool]) -> None:
        """Take over the values of chunks that an earlier session has done; those that refer to lost files run again.

        Args:
            values: by chunk.
            is_there: whether an intermediate file of that name has so many bytes.
        """
        for chunk, value in values.items():
            extents = getattr(value, "extents", ())
            if all(is_there(extent.file, extent.offset + extent.nbytes) for extent in extents):
                self.restored[chunk] = value

    def of(self, start: int, stop: int) -> tuple[Any, ...]:
        """What is known of the chunks `start..stop`."""
        return tuple(self._values[start:stop])

    def result(self) -> list[Any]:
        return self._values
