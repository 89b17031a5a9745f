"""Results are handed to a consumer in the order of their chunks."""

from __future__ import annotations

from typing import Any

from tdmap.data.writer import RowWriter
from tdmap.memory.links import PageLocker
from tdmap.plan import ChunkPlan
from tdmap.sinks.base import Allocate, Demands, Kind, PlainSink


class Stream(PlainSink):
    """Keeps the few results that are ahead of their turn.

    Args:
        ahead: chunks that may be under way or done before they are wanted; None leaves it to the engine.
        link: what page-locks the slots of results that go on to a device.
    """

    writer: RowWriter | None = None

    def __init__(self, ahead: int | None = None, link: PageLocker | None = None) -> None:
        self.ahead = ahead
        self.link = link
        self._waiting: dict[int, Any] = {}

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(ordered=self, ahead=self.ahead, locker=self.link)

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        pass

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        self._waiting.update(zip(range(start, stop), values or (None,) * (stop - start)))

    def take(self, chunk: int) -> Any:
        """The result of `chunk`, which is not kept any longer."""
        return self._waiting.pop(chunk)

    def result(self) -> Any:
        return None
