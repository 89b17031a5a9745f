"""Results go back into the rows that they came from (`out=data`)."""

from __future__ import annotations

from tdmap.plan import ChunkPlan
from tdmap.sinks.base import Demands
from tdmap.sinks.preallocated import Preallocated


class InPlace(Preallocated):
    """A `Preallocated` sink whose output is the source: what the function changed in place is not copied again."""

    aliased = True

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(in_place=True)
