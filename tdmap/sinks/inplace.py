"""Results go back into the rows that they came from (`out=data`)."""

from __future__ import annotations

from tdmap._data import RowWriter
from tdmap.plan import ChunkPlan
from tdmap.sinks.base import Allocate
from tdmap.sinks.preallocated import Preallocated


class InPlace(Preallocated):
    """A `Preallocated` sink whose output is the source: what the function changed in place is not copied again."""

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._writer = RowWriter(self.out, plan, exact=False, aliased=True)
