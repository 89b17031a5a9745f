"""What `device=` and an `out` on a device mean for a job: checks, and the function's wrapping."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from tdmap.data.kinds import Data, device_of, entries_of, is_dense, tensors_of
from tdmap.execution import Execution
from tdmap.functions import check_placement
from tdmap.memory import links as links
from tdmap.memory.links import Device, resolve_device
from tdmap.plan import MIN_CHUNKS
from tdmap.runtime.ondevice import OnDevice
from tdmap.runtime.wire.lending import can_lend
from tdmap.runtime.workers.pool import WorkerPool

Devices: TypeAlias = "Device | Sequence[Device] | None"

FN_CHUNKS = 16
"""A default chunk is so many times larger when the function runs on a device, where starting it is what costs."""

FN_MIN_CHUNKS = 16
"""And there are at least so many: a device has few workers, where a machine has many cores."""

FN_WORKERS = 2
"""Default workers for each device that runs the function: one computes while the results of the other come back. Each
has a context of its own in the device's memory. Contexts take turns, so that more of them only copy faster."""

OUT_CHUNKS = 16
"""A default chunk is so many times larger when only its result goes there: each is a copy for each entry, and the
processor's part of a copy takes as long as some megabytes of the link's."""


@dataclass(frozen=True)
class DevicePlan:
    """Where a job's function runs and where its results go."""

    devices: tuple[torch.device, ...]
    """Where the function runs; empty: in this machine's memory."""
    out_device: torch.device | None
    """Where `out` lies; None: in this machine's memory, or there is none."""

    @classmethod
    def of(cls, device: Devices, out: Data | None) -> DevicePlan:
        """From the arguments of `map`.

        Raises:
            ValueError: a device does not exist, or `out` lies on several.
        """
        out_device = None if out is None else check_device_out(out)
        devices = () if device is None else devices_of(device)
        return cls(devices, None if out_device is None else resolve_device(out_device, "out"))

    @property
    def chunks(self) -> tuple[int, int]:
        """How many times larger a default chunk is, and how many there are at least, rows permitting."""
        if self.devices:
            return FN_CHUNKS, FN_MIN_CHUNKS
        return (1 if self.out_device is None else OUT_CHUNKS), MIN_CHUNKS

    def check(self, data: Data, out: Data | None, execution: Execution, resume: bool) -> None:
        """Raise ValueError for what cannot work together."""
        processes = execution.in_processes
        if processes:
            for device in {*self.devices, *([] if self.out_device is None else [self.out_device])}:
                check_start_method(execution, device)
            where = device_of(data)
            if where is not None:
                raise ValueError(
                    f'the data are on {where}, and workers are processes, which cannot see them: use executor="thread" '
                    f'(or "serial"), or pass data on the CPU with device="{where}".'
                )
        if self.devices and execution.is_foreign:
            raise ValueError(
                "device= needs workers of tdmap: use num_workers= or a tdmap.WorkerPool instead of this pool."
            )
        if self.out_device is None or out is data:
            return
        if resume:
            raise ValueError(f"resume=True needs an output in files: out is on {self.out_device}.")

    def execution(self, execution: Execution) -> Execution:
        """`execution` with processes that may use a device, and by default no more of them than it can feed."""
        if not self.devices or execution.pool is not None:
            return execution
        workers = execution.num_workers
        if workers is None:
            workers = min(FN_WORKERS * len(self.devices), execution.workers)
        return replace(execution, num_workers=workers, mp_start_method=execution.mp_start_method or "spawn")

    def function(self, fn: Callable[[Any], Any], execution: Execution) -> Callable[[Any], Any]:
        """`fn`, for chunks of the source."""
        check_placement(fn, execution.in_processes, self.devices[0] if self.devices else None)
        if not self.devices:
            return fn
        opened = tuple(functools.partial(links.LINKS[device.type], device) for device in self.devices)
        return OnDevice(fn, self.devices, opened, stays=self.stays(execution))

    def stays(self, execution: Execution) -> bool:
        """Whether results go from the device into `out` without coming back to this machine's memory."""
        if not self.devices or self.out_device is None:
            return False
        return not execution.in_processes or can_lend(self.out_device)


_DEVICE_NAME = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


def check_no_device(out: object, data: Data) -> None:
    """Raise ValueError for an `out` that names a device, which would become a folder of that name."""
    if not isinstance(out, torch.device) and not (isinstance(out, str) and _DEVICE_NAME.fullmatch(out)):
        return
    where, nbytes = torch.device(out), sum(leaf.nbytes for leaf in tensors_of(data))
    folder = "" if isinstance(out, torch.device) else f" For a folder of that name, say './{out}'."
    if where.type == "cpu":
        raise ValueError(f"out={str(out)!r} is a device: without out= the result is in memory of the CPU.{folder}")
    room = ""
    if where.type == "cuda" and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info(where)
        room = f", of whose {total:,} bytes {free:,} are free"
    raise ValueError(
        f"out={str(out)!r} is a device{room}; the data have {nbytes:,} bytes. Allocate the output there and pass it: "
        f"out=TensorDict(...).to({str(out)!r}). Results that are larger than the device: "
        f"map_iter(device={str(out)!r}), batch by batch.{folder}"
    )


def devices_of(device: Device | Sequence[Device]) -> tuple[torch.device, ...]:
    """The devices that are meant; none for the CPU.

    Raises:
        ValueError: one does not exist, the CPU is one of several, or there are none.
    """
    several = isinstance(device, Sequence) and not isinstance(device, str)
    wanted: Sequence[Any] = device if several else [device]  # type: ignore[assignment]
    found = tuple(resolve_device(one) for one in wanted)
    if not found:
        raise ValueError("device=[] names no device: leave it out to run on the CPU.")
    if all(one.type == "cpu" for one in found):
        return ()
    if any(one.type == "cpu" for one in found):
        raise ValueError(f"device={device!r} mixes the CPU with other devices: workers run on one kind.")
    return found


def check_start_method(execution: Execution, device: torch.device) -> None:
    """Raise ValueError where workers would be forks of a process that uses CUDA."""
    if device.type not in links.NO_FORKS or not execution.in_processes:
        return
    pool = execution.pool
    method = pool.start_method if isinstance(pool, WorkerPool) else None if pool else execution.mp_start_method
    if method == "fork":
        raise ValueError(
            f'mp_start_method="fork" with {device}: a fork of a process that uses CUDA does not work. '
            'Use "spawn" or "forkserver", or leave it out.'
        )


def check_device_out(out: Data) -> torch.device | None:
    """The device that holds all of `out`; None for ordinary memory.

    Raises:
        ValueError: its tensors are on several devices; names a key of each.
        TypeError: it is a collection that is made of others, such as a lazy stack, on a device.
    """
    if isinstance(out, torch.Tensor):
        return None if out.device.type == "cpu" else out.device
    found: dict[torch.device, str] = {}
    for leaf in tensors_of(out):
        found.setdefault(leaf.device, "")
    if not found or set(found) == {torch.device("cpu")}:
        return None
    if len(found) > 1:
        for key, leaf in out.items(include_nested=True, leaves_only=True):
            found[leaf.device] = found.get(leaf.device) or repr(key)
        places = ", ".join(f"{key} on {device}" for device, key in found.items())
        raise ValueError(f"all tensors of out must be on one device: got {places}. Move them with out.to(device).")
    if not _all_dense(out):
        raise TypeError(
            f"out on {next(iter(found))} must be a tensor, a TensorDict or a tensorclass: got a {type(out).__name__}, "
            "or one inside it. Allocate it with TensorDict(...).to(device)."
        )
    return next(iter(found))


def _all_dense(data: Data) -> bool:
    if isinstance(data, torch.Tensor):
        return True
    if not is_dense(data):
        return not tensors_of(data)
    return all(_all_dense(value) for value in entries_of(data).values())
