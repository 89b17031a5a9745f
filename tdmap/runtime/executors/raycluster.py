"""Which machines of a Ray cluster work for a job, and what each worker has there.

Ray itself is imported when the first job needs it, and not before: `import tdmap` is no slower for it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdmap.errors import WorkerStartError
from tdmap.job import Job
from tdmap.runtime.executors.base import Executor, Workers
from tdmap.runtime.executors.raypool import borrow_ray_pool
from tdmap.runtime.executors.rayworkers import RayWorkers
from tdmap.runtime.executors.serial import SerialWorkers

if TYPE_CHECKING:
    from tdmap.execution import Execution

TRANSPORTS = ("auto", "memory", "folder", "store")
"""How rows get to workers."""


@dataclass(frozen=True)
class RayCluster(Executor):
    """Runs jobs on a Ray cluster: pass it as `executor=` to any operation. `executor="ray"` is `RayCluster()`.

    A worker is a Ray actor, which later jobs reuse until it has been idle for a minute. It gets the same chunks and
    seeds as a local process, and if it dies, another worker runs its chunks again. So results have the same bits.
    Workers on the caller's machine use shared memory and files. Workers on other machines use files of a shared folder,
    or receive rows and return results through Ray's object store.

    Args:
        address: address of the cluster: `"auto"` or `"host:port"`. Default: the cluster that this program is connected
            to, else that of `RAY_ADDRESS`, else that of this machine, else a new cluster on this machine.
        num_cpus: CPUs per worker.
        num_gpus: GPUs per worker; may be a fraction.
        resources: custom resources per worker.
        runtime_env: packages, files and environment variables of workers, as in Ray.
        scheduling_strategy: Ray's placement of workers: `"DEFAULT"`, `"SPREAD"`, or a strategy object of Ray.
        transport: how rows reach workers. `"auto"` tests each worker. `"memory"` uses only workers that can open this
            program's memory. With `"folder"`, workers open files of a shared folder, and other rows go through the
            object store. With `"store"`, all rows go through the object store.
        start_timeout: seconds to wait for the first worker.

    Raises:
        ValueError: an option is out of range.

    Example:
        >>> RayCluster(num_cpus=2, num_gpus=0.5).options["num_gpus"]
        0.5
    """

    address: str | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    scheduling_strategy: Any = None
    transport: str = "auto"
    start_timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"{name} must be a number of at least 0: got {value!r}.")
        if not self.num_cpus and not self.num_gpus and not self.resources:
            raise ValueError("a worker must require a resource, such as num_cpus=0.5.")
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}: got {self.transport!r}.")

    def check(self, execution: Execution) -> None:
        self.require()
        for name in ("pool", "mp_start_method", "max_tasks_per_child", "max_memory"):
            if getattr(execution, name) is not None:
                raise ValueError(f"{name}= is about processes of this machine, and executor= names a Ray cluster.")

    def workers(self, wanted: int | None) -> int:
        return wanted or self.slots()

    def begin(self, job: Job, execution: Execution) -> Workers:
        if execution.is_nested():
            return SerialWorkers(job)
        borrowed = borrow_ray_pool(self, execution.workers, execution.worker_threads)
        return RayWorkers(job, borrowed, min(execution.workers, job.plan.num_chunks), execution.tuning)

    def start(self, job: Job) -> Workers:
        raise TypeError("a RayCluster starts workers for a call: pass it as executor=")

    @property
    def options(self) -> dict[str, Any]:
        """What Ray is told about each worker."""
        options: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "max_restarts": 0}
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.runtime_env:
            options["runtime_env"] = dict(self.runtime_env)
        if self.transport == "memory":
            options["scheduling_strategy"] = _on_this_machine()
        elif self.scheduling_strategy is not None:
            options["scheduling_strategy"] = self.scheduling_strategy
        return options

    @property
    def demand(self) -> dict[str, float]:
        """What one worker takes, by the names of resources."""
        wanted = {"CPU": float(self.num_cpus), "GPU": float(self.num_gpus), **self.resources}
        return {name: amount for name, amount in wanted.items() if amount}

    @property
    def key(self) -> str:
        """Equal for clusters whose workers may take each other's place."""
        # Workers whose rows travel are the same ones, whichever way rows take.
        way = "far" if self.transport in ("folder", "store") else self.transport
        return repr((self.address, self.demand, self.runtime_env, self.scheduling_strategy, way))

    def require(self) -> None:
        """Raise ModuleNotFoundError unless Ray is installed, ValueError where its workers cannot be waited for."""
        if not hasattr(os, "eventfd"):
            raise ValueError('executor="ray" needs Linux on the machine that calls, whatever its workers run.')
        if importlib.util.find_spec("ray") is None:
            raise ModuleNotFoundError(
                'executor="ray" needs the package ray, which is not installed: pip install "tdmap[ray]".', name="ray"
            )

    def connect(self) -> Any:
        """The module `ray`, connected to the cluster.

        Raises:
            ModuleNotFoundError: Ray is not installed.
            ConnectionError: no cluster at the address.
        """
        self.require()
        import ray

        if ray.is_initialized():
            return ray
        if self.address is not None or os.environ.get("RAY_ADDRESS"):
            ray.init(address=self.address, logging_level=logging.WARNING)
            return ray
        try:
            ray.init(address="auto", logging_level=logging.WARNING)
        except ConnectionError:
            ray.init(include_dashboard=False, logging_level=logging.WARNING)
        return ray

    def slots(self) -> int:
        """How many workers the machines that are there now have room for; at least one.

        Raises:
            WorkerStartError: no machine is large enough for one worker.
        """
        nodes = [node["Resources"] for node in self.connect().nodes() if node["Alive"]]
        demand = self.demand
        room = sum(min(int(node.get(name, 0) / amount) for name, amount in demand.items()) for node in nodes)
        if room == 0 and not self._may_grow():
            wanted = ", ".join(f"{amount:g} {name}" for name, amount in demand.items())
            there = "; ".join(", ".join(f"{node.get(name, 0):g} {name}" for name in demand) for node in nodes)
            raise WorkerStartError(f"a worker takes {wanted}, and no machine of the cluster has so much: {there}.")
        return max(room, 1)

    def _may_grow(self) -> bool:
        """Whether machines may come that are not there yet."""
        return bool(os.environ.get("RAY_ENABLE_AUTOSCALER_V2") or os.environ.get("RAY_CLOUD_INSTANCE_ID"))


def _on_this_machine() -> Any:
    """Ray's word for: on the machine of this program, or nowhere."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
