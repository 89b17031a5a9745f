"""A crew of actors on a Ray cluster.

Actors on this machine are workers of the process pool in all but name: they open the same memory, run the same loop and
leave the same notes behind when they die. So this crew is that of processes, over another pool.
"""

from __future__ import annotations

from tdmap.runtime.executors.processes import ProcessCrew
from tdmap.runtime.executors.raypool import RayMember, RayPool
from tdmap.runtime.pool import Member
from tdmap.runtime.driver import Joined


class RayCrew(ProcessCrew):
    """The actors of a pool, for one job.

    Args:
        pool: a reserved pool.
        wanted: how many of its actors.
    """

    kind = "ray"

    def __init__(self, pool: RayPool, wanted: int) -> None:
        super().__init__(pool, wanted)
        self._nodes: dict[int, str] = {}

    def _join(self, member: Member) -> Joined:
        assert isinstance(member, RayMember)
        self._nodes[member.number] = member.node
        return super()._join(member)

    def describe(self, worker: int) -> str:
        return f"{super().describe(worker)} on {self._nodes.get(worker) or 'a machine that is not known'}"

    def node(self, worker: int) -> str:
        """The machine that a worker runs on."""
        return self._nodes.get(worker, "")
