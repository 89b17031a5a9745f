"""Where the time of a worker goes: clocks around the function, the reader and the writer of its loop.

    ChunkLoop ──fn──────► clock ──► the user's function        a few chunks also: CPU time, page faults, waits
              ──read────► clock ──► rows that must be gathered
              ──write───► clock ──► rows of the output, copies to send, copies to put back

The loop does not know it: the clocks replace its parts when the job begins, and only where a callback has asked. They
cost about `CLOCK_SECONDS` a chunk. Where that is more than `BUDGET`, only some leases have clocks, and of the others
the time is known, and divided as in the last one that had. What the kernel counts costs more to ask for, so only as
many chunks are asked about as stay below `BUDGET` too.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tdmap.data.kinds import is_data, is_dense, tensors_of
from tdmap.data.writer import RowWriter
from tdmap.events import Measures
from tdmap.runtime.ondevice import Runner
from tdmap.runtime.undo import Undo

if TYPE_CHECKING:
    from tdmap.runtime.chunkloop import ChunkLoop

BUDGET = 0.002
"""Share of the time that the clocks may take, and that asking the kernel about a part of the work may."""

CLOCK_SECONDS = 2e-6
"""What the clocks around one chunk cost, about."""

SAMPLE_SECONDS = 6e-6
"""What one chunk's questions cost, about."""

SPARSE = 16
"""One lease in so many has clocks at least."""

DETAILED = 4
"""The first leases of a job all have."""

RSS_SECONDS = 0.01
"""Resident memory is looked at so often at most."""

KEPT_SECONDS = 0.05
"""Samples of so much time count fully."""

USS_SECONDS = 1.0
"""The memory that is a process's own is looked at so often at most; it takes the kernel a millisecond or more."""

USS_BUDGET = 0.002
"""Share of the time that this may take."""

USS_PAGE_SECONDS = 100e-9
"""What it takes for each resident page, about."""

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_BLOCK = 512
_PAGE = resource.getpagesize()


class WorkPart:
    """One part of the work on a chunk: its time, and what the kernel counted during some of its calls.

    Args:
        who: whose counts, as `resource.getrusage`.
    """

    __slots__ = ("counts", "period", "sampled", "seconds", "until", "who")

    def __init__(self, who: int) -> None:
        self.who = who
        self.until = self.period = 0
        self.seconds = 0.0
        self.sampled = 0.0
        """Seconds of the calls that were asked about."""
        self.counts = [0.0, 0.0, 0.0, 0.0]
        """CPU seconds, page faults without and with the disk, and waits, of those."""

    def timed(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` with a clock."""
        clock = time.perf_counter

        def call(*args: Any) -> Any:
            if self.until <= 0:
                return self.sample(fn, args)
            self.until -= 1
            began = clock()
            try:
                return fn(*args)
            finally:
                self.seconds += clock() - began

        return call

    def sample(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function, and ask the kernel before and after."""
        self.until = self.period
        before = resource.getrusage(self.who)
        began = time.perf_counter()
        try:
            return fn(*args)
        finally:
            seconds = time.perf_counter() - began
            after = resource.getrusage(self.who)
            counts = self.counts
            self.seconds += seconds
            self.sampled += seconds
            counts[0] += after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            counts[1] += after.ru_minflt - before.ru_minflt
            counts[2] += after.ru_majflt - before.ru_majflt
            counts[3] += after.ru_nvcsw - before.ru_nvcsw

    def take(self, chunks: int, whole: float) -> tuple[float, float, float, float, float]:
        """Seconds and counts since the last call, the counts scaled up from the samples; chooses how often to ask.

        Args:
            chunks: of the lease.
            whole: seconds of the lease.
        """
        seconds, self.seconds = self.seconds, 0.0
        scale = seconds / self.sampled if self.sampled > 0 else 0.0
        cpu, faults, disk, waits = (count * scale for count in self.counts)
        if chunks > 0:
            self.period = int(SAMPLE_SECONDS * chunks / (BUDGET * max(whole, 1e-9)))
            self.until = min(self.until, self.period)
        if self.sampled > KEPT_SECONDS:  # what came before counts half: a lease without samples goes by that
            self.sampled /= 2
            self.counts = [value / 2 for value in self.counts]
        return seconds, min(cpu, seconds), faults, disk, waits


class Meter:
    """Measures the leases of one loop.

    Args:
        loop: whose parts get clocks.
    """

    def __init__(self, loop: ChunkLoop) -> None:
        self.loop = loop
        self.who = resource.RUSAGE_SELF if loop.own_process else _THREAD
        self.read, self.fn, self.write = WorkPart(self.who), WorkPart(self.who), WorkPart(self.who)
        self.bytes_out = self._packed = 0
        self._out_row_bytes = 0
        self._writer: RowWriter | None = None
        self._undo: Undo | None = None
        self._began_job = time.monotonic()
        self._next_uss = self._began_job + USS_SECONDS  # not in jobs that are over at once
        self._task = "self" if loop.own_process else "thread-self"
        self._starved = starved_for(self._task)
        self._leases = 0
        self._last: tuple[float, ...] | None = None
        """Seconds of the last lease with clocks, and what they and the kernel said of it."""
        self._every, self._detailed = 1, True
        self._rss, self._next_rss = 0, 0.0
        self._attach(loop)

    def _attach(self, loop: ChunkLoop) -> None:
        self._plain_fn = loop.fn
        self._runner = loop.fn if isinstance(loop.fn, Runner) else None
        self._sent = self._fetched = 0
        loop.fn = self._timed_fn = _Timed(loop.fn, self.fn)
        loop.pack = self._packing(loop.pack)
        reader: Any = loop.reader
        if reader.order is not None or not (is_dense(reader.data) or isinstance(reader.data, torch.Tensor)):
            reader.read = self._reading(reader.read)  # else chunks are views, which cost next to nothing
        if loop.settle is not None:
            loop.settle = self.fn.timed(loop.settle)

    def _reading(self, read: Callable[[int, int], Iterator[Any]]) -> Callable[[int, int], Iterator[Any]]:
        step = self.read.timed(next)

        def timed(start: int, stop: int) -> Iterator[Any]:
            chunks = iter(read(start, stop))
            while (chunk := step(chunks, self)) is not self:  # no chunk is a meter
                yield chunk

        return timed

    def _packing(self, pack: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(result: Any) -> Any:
            self._packed += 1
            if is_data(result):
                self.bytes_out += sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(result))
            return pack(result)

        return self.write.timed(counted)

    # -- leases ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A lease begins."""
        loop = self.loop
        writer: Any = loop.writer
        if writer is not self._writer and writer is not None:
            self._writer = writer
            rows = max(loop.plan.length, 1)
            self._out_row_bytes = sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(writer.out)) // rows
            self._plain_write, self._timed_write = writer.write, self.write.timed(writer.write)
            writer.write = self._timed_write
        undo: Any = loop.undo
        if undo is not self._undo and undo is not None:
            self._undo = undo
            undo.save = self.write.timed(undo.save)
        detailed = self._last is None or self._leases % self._every == 0 or self._leases < DETAILED
        if detailed is not self._detailed:
            self._detailed = detailed
            loop.fn = self._timed_fn if detailed else self._plain_fn
            if writer is not None:
                writer.write = self._timed_write if detailed else self._plain_write
        self._leases += 1
        self.bytes_out = self._packed = 0
        starved = starved_for(self._task)
        self._starved_before, self._starved = starved - self._starved, starved
        self._usage = resource.getrusage(self.who)
        self._began = time.monotonic()

    def end(self, start: int, stop: int) -> Measures:
        """The lease is over; returns what was measured.

        Args:
            start: the first of its chunks.
            stop: one past the last.
        """
        ended, chunks = time.monotonic(), stop - start
        usage, before = resource.getrusage(self.who), self._usage
        total = starved_for(self._task)
        starved, self._starved = total - self._starved, total
        whole = ended - self._began
        stages = self._stages(chunks, whole)
        if self._writer is not None and chunks > 0:
            rows = self.loop.plan.count(start, stop) * max(chunks - self._packed, 0) // chunks
            self.bytes_out += rows * self._out_row_bytes
        measured = (
            self._began,
            ended,
            chunks,
            *stages,
            usage.ru_minflt - before.ru_minflt,
            usage.ru_majflt - before.ru_majflt,
            usage.ru_utime - before.ru_utime,
            usage.ru_stime - before.ru_stime,
            starved / 1e9,
            self._starved_before / 1e9,
            (usage.ru_inblock - before.ru_inblock) * _BLOCK,
            (usage.ru_oublock - before.ru_oublock) * _BLOCK,
            self.bytes_out,
            self._resident(ended),
            self._own(ended),
            *self._carried(),
        )
        return Measures._make(measured)

    def _stages(self, chunks: int, whole: float) -> tuple[float, ...]:
        """Of a lease, what `Measures` has from `read` to `write_waits`.

        Args:
            chunks: of the lease.
            whole: its seconds.
        """
        read, read_cpu, _, _, read_waits = self.read.take(chunks, whole)
        fn, fn_cpu, fn_faults, fn_disk, fn_waits = self.fn.take(chunks, whole)
        write, write_cpu, _, _, write_waits = self.write.take(chunks, whole)
        if not self._detailed and self._last is not None:  # what had a clock all the same is in there
            scale = whole / max(self._last[0], 1e-9)
            return tuple(value * scale for value in self._last[1:])
        found = (
            read, fn, write, read_cpu, fn_cpu, write_cpu, fn_faults, fn_disk, read_waits, fn_waits, write_waits
        )  # fmt: skip
        if chunks > 0:
            self._every = min(int(CLOCK_SECONDS * chunks / (BUDGET * max(whole, 1e-9))) + 1, SPARSE)
            self._last = (whole, *found)
        return found

    # -- what the kernel knows ---------------------------------------------------------------------------

    def _carried(self) -> tuple[int, int]:
        runner = self._runner
        if runner is None:
            return 0, 0
        sent, fetched = runner.sent - self._sent, runner.fetched - self._fetched
        self._sent, self._fetched = runner.sent, runner.fetched
        return sent, fetched

    def _resident(self, now: float) -> int:
        if now >= self._next_rss:
            self._next_rss = now + RSS_SECONDS
            self._rss = second_number("/proc/self/statm") * _PAGE
        return self._rss

    def _own(self, now: float) -> int:
        if now < self._next_uss:
            return 0
        ready = self._began_job + self._rss / _PAGE * USS_PAGE_SECONDS / USS_BUDGET
        if now < ready:  # a job as short as this is not worth the kernel's walk over so many pages
            self._next_uss = ready
            return 0
        size = own_memory()
        after = time.monotonic()
        self._next_uss = after + max(USS_SECONDS, (after - now) / USS_BUDGET)
        return size


class _Timed:
    """The function of a loop, with a clock; in all else it is the function."""

    def __init__(self, fn: Callable[..., Any], stage: WorkPart) -> None:
        self.fn = fn
        self.stage = stage
        merge = getattr(fn, "merge_states", None)
        if merge is not None:
            self.merge_states = stage.timed(merge)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)

    def __call__(self, *args: Any) -> Any:
        stage = self.stage
        if stage.until <= 0:
            return stage.sample(self.fn, args)
        stage.until -= 1
        began = time.perf_counter()
        try:
            return self.fn(*args)
        finally:
            stage.seconds += time.perf_counter() - began


def starved_for(task: str) -> int:
    """Nanoseconds that a task of `/proc` was ready to run, and no core was free."""
    return second_number(f"/proc/{task}/schedstat")


def second_number(path: str) -> int:
    """The second number in a file of `/proc`; 0 where there is no such file.

    The file is not kept open: of a loop that waits for the garbage collector, descriptors would wait, too.
    """
    try:
        with open(path, "rb", 0) as file:
            return int(file.read(128).split()[1])
    except OSError:
        return 0


def own_memory() -> int:
    """Bytes of this process that are its own alone (its unique set size); 0 where that cannot be told."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith((b"Private_Clean", b"Private_Dirty"))]
    return sum(sizes) * 1024
