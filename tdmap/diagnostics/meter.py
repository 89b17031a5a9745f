"""Where the time of a worker goes: clocks around the function, the reader and the writer of its loop.

    ChunkLoop ──fn──────► clock ──► the user's function        a few chunks also: CPU time, page faults, waits
              ──read────► clock ──► rows that must be gathered
              ──write───► clock ──► rows of the output, copies to send, copies to put back

The loop does not know it: the clocks replace its parts when the job begins, and only where a callback has asked. They
cost about a microsecond a chunk. What the kernel counts costs more to ask for, so only as many chunks are asked about
as stay below `BUDGET`.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tdmap._data import is_data, is_dense, tensors_of
from tdmap.events import Measures

if TYPE_CHECKING:
    from tdmap.runtime.chunkloop import ChunkLoop

BUDGET = 0.005
"""Share of the time that asking the kernel may take."""

SAMPLE_SECONDS = 6e-6
"""What one chunk's questions cost, about."""

USS_SECONDS = 1.0
"""The memory that is a process's own is looked at so often at most; it takes the kernel a millisecond or more."""

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_BLOCK = 512
_PAGE = resource.getpagesize()


class Meter:
    """Measures the leases of one loop.

    Args:
        loop: whose parts get clocks.
    """

    def __init__(self, loop: ChunkLoop) -> None:
        self.loop = loop
        self.who = resource.RUSAGE_SELF if loop.own_process else _THREAD
        self.read = self.fn = self.write = 0.0
        self.sampled = self.sampled_cpu = 0.0
        self.sampled_chunks = self.sampled_faults = self.sampled_reads = self.sampled_waits = 0
        self.until_sample = self.period = 0
        self.bytes_out = 0
        self._out_row_bytes = 0
        self._writer: Any = None
        self._undo: Any = None
        self._next_uss = 0.0
        self._uss = 0
        task = "self" if loop.own_process else "thread-self"
        self._schedstat = open_counter(f"/proc/{task}/schedstat")
        self._statm = open_counter("/proc/self/statm")
        self._starved = self._starvation()
        self._attach(loop)

    def _attach(self, loop: ChunkLoop) -> None:
        loop.fn = _Timed(loop.fn, self)
        loop.pack = self._packing(loop.pack)
        reader: Any = loop.reader
        if reader.order is not None or not (is_data(reader.data) and (is_dense(reader.data) or _is_tensor(reader))):
            reader.read = self._reading(reader.read)  # else chunks are views, which cost next to nothing
        if loop.settle is not None:
            loop.settle = self._clocked(loop.settle, "fn")

    def _clocked(self, fn: Callable[..., Any], stage: str) -> Callable[..., Any]:
        clock = time.perf_counter

        def call(*args: Any) -> Any:
            began = clock()
            try:
                return fn(*args)
            finally:
                setattr(self, stage, getattr(self, stage) + clock() - began)

        return call

    def _reading(self, read: Callable[[int, int], Iterator[Any]]) -> Callable[[int, int], Iterator[Any]]:
        clock = time.perf_counter

        def timed(start: int, stop: int) -> Iterator[Any]:
            chunks = iter(read(start, stop))
            while True:
                began = clock()
                chunk = next(chunks, self)  # no chunk is a meter
                self.read += clock() - began
                if chunk is self:
                    return
                yield chunk

        return timed

    def _packing(self, pack: Callable[[Any], Any]) -> Callable[[Any], Any]:
        clock = time.perf_counter

        def timed(result: Any) -> Any:
            began = clock()
            parcel = pack(result)
            if is_data(result):
                self.bytes_out += sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(result))
            self.write += clock() - began
            return parcel

        return timed

    def _writing(self, write: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        clock, each = time.perf_counter, self._out_row_bytes
        plan = self.loop.plan

        def timed(rows: Any, result: Any) -> bool:
            began = clock()
            written = write(rows, result)
            self.write += clock() - began
            if written:
                count = 1 if plan.unbind else (rows[0] if type(rows) is tuple else rows).shape[plan.dim]
                self.bytes_out += count * each
            return written

        return timed

    # -- leases ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A lease begins."""
        loop = self.loop
        writer: Any = loop.writer
        if writer is not self._writer and writer is not None:
            self._writer = writer
            rows = max(loop.plan.length, 1)
            self._out_row_bytes = sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(writer.out)) // rows
            writer.write = self._writing(writer.write)
        undo: Any = loop.undo
        if undo is not self._undo and undo is not None:
            self._undo = undo
            undo.save = self._clocked(undo.save, "write")
        self._before = (self.read, self.fn, self.write, self.bytes_out)
        starved = self._starvation()
        self._starved_before, self._starved = starved - self._starved, starved
        self._usage = resource.getrusage(self.who)
        self._began = time.monotonic()

    def end(self, chunks: int) -> Measures:
        """It is over: what it took.

        Args:
            chunks: how many it had.
        """
        ended = time.monotonic()
        usage, before = resource.getrusage(self.who), self._usage
        total = self._starvation()
        starved, self._starved = total - self._starved, total
        read, fn, write, out = self._before
        if chunks > 0:
            self.period = int(SAMPLE_SECONDS * chunks / (BUDGET * max(ended - self._began, 1e-9)))
            self.until_sample = min(self.until_sample, self.period)
        seconds = self.fn - fn
        rate = seconds / self.sampled if self.sampled else 0.0
        scale = chunks / self.sampled_chunks if self.sampled_chunks else 0.0
        measures = Measures(
            self._began,
            ended,
            chunks,
            self.read - read,
            seconds,
            self.write - write,
            min(self.sampled_cpu * rate, seconds * _threads()),
            self.sampled_faults * scale,
            self.sampled_reads * scale,
            self.sampled_waits * scale,
            usage.ru_minflt - before.ru_minflt,
            usage.ru_majflt - before.ru_majflt,
            usage.ru_utime - before.ru_utime,
            usage.ru_stime - before.ru_stime,
            starved / 1e9,
            self._starved_before / 1e9,
            (usage.ru_inblock - before.ru_inblock) * _BLOCK,
            (usage.ru_oublock - before.ru_oublock) * _BLOCK,
            self.bytes_out - out,
            self._resident(),
            self._own(ended),
        )
        self._forget_half()
        return measures

    def _forget_half(self) -> None:
        """Samples of leases before count half: a lease whose own chunks were not asked about goes by those."""
        if self.sampled_chunks > 64:
            self.sampled /= 2
            self.sampled_cpu /= 2
            self.sampled_chunks //= 2
            self.sampled_faults //= 2
            self.sampled_reads //= 2
            self.sampled_waits //= 2

    def sample(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function, and ask the kernel before and after."""
        self.until_sample = self.period
        before = resource.getrusage(self.who)
        began = time.perf_counter()
        try:
            return fn(*args)
        finally:
            seconds = time.perf_counter() - began
            after = resource.getrusage(self.who)
            self.fn += seconds
            self.sampled += seconds
            self.sampled_chunks += 1
            self.sampled_cpu += after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            self.sampled_faults += after.ru_minflt - before.ru_minflt
            self.sampled_reads += after.ru_majflt - before.ru_majflt
            self.sampled_waits += after.ru_nvcsw - before.ru_nvcsw

    # -- what the kernel knows ---------------------------------------------------------------------------

    def _starvation(self) -> int:
        """Nanoseconds that this process, or thread, was ready and no core was free."""
        return 0 if self._schedstat is None else starvation(self._schedstat)

    def _resident(self) -> int:
        if self._statm is None:
            return 0
        return int(os.pread(self._statm.fileno(), 128, 0).split()[1]) * _PAGE

    def _own(self, now: float) -> int:
        if now < self._next_uss:
            return 0
        self._uss = own_memory()
        after = time.monotonic()
        self._next_uss = after + max(USS_SECONDS, (after - now) / BUDGET)
        return self._uss


class _Timed:
    """The function of a loop, with a clock."""

    def __init__(self, fn: Callable[..., Any], meter: Meter) -> None:
        self.fn = fn
        self.meter = meter
        merge = getattr(fn, "merge_states", None)
        if merge is not None:
            self.merge_states = meter._clocked(merge, "fn")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)

    def __call__(self, *args: Any, clock: Callable[[], float] = time.perf_counter) -> Any:
        meter = self.meter
        if meter.until_sample <= 0:
            return meter.sample(self.fn, args)
        meter.until_sample -= 1
        began = clock()
        try:
            return self.fn(*args)
        finally:
            meter.fn += clock() - began


def starvation(schedstat: Any) -> int:
    """Nanoseconds that the process or thread of an open `/proc/.../schedstat` was ready, and no core was free."""
    return int(os.pread(schedstat.fileno(), 128, 0).split()[1])


def own_memory() -> int:
    """Bytes of this process that are its own alone (its unique set size); 0 where that cannot be told."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith((b"Private_Clean", b"Private_Dirty"))]
    return sum(sizes) * 1024


def _is_tensor(reader: Any) -> bool:
    return not hasattr(reader.data, "keys")


def _threads() -> int:
    import torch

    return max(torch.get_num_threads(), 1)


def open_counter(path: str) -> Any:
    """A file that is read again and again, and closed with the meter; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        return open(path, "rb", buffering=0)
    except OSError:
        return None
