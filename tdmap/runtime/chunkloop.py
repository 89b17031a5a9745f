"""The inner loop: runs the chunks of a lease. The same code in worker processes, threads and the caller itself.

Every microsecond here is paid once a chunk. So views of a few hundred chunks are made in one call, nothing is
sent per chunk, and what the driver must know when this process dies is a handful of stores into the control
block.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import itemgetter
from typing import Any

import torch

from tdmap.data.alike import assigned
from tdmap.data.kinds import Data, leaves_hold_rows, tensors_of
from tdmap.data.objectlog import append
from tdmap.data.reader import Reader
from tdmap.data.trees import FreshResults
from tdmap.data.writer import RowWriter
from tdmap.errors import RemoteError, add_note
from tdmap.job import Policy, takes_start
from tdmap.memory.links import is_copied, is_lost
from tdmap.memory.mapped import check_mapped_files
from tdmap.memory.residency import Growth
from tdmap.plan import ChunkPlan
from tdmap.process_state import comes_from_handler, installed_handlers
from tdmap.reducers.base import MergeTree
from tdmap.runtime.ondevice import OnDevice, Runner
from tdmap.runtime.skipping import Settled, Skipper
from tdmap.runtime.undo import Comparisons, Undo, have_changed
from tdmap.runtime.wire.messages import Done, GaveBack, Segment
from tdmap.runtime.workers import control as at
from tdmap.runtime.workers.control import Control
from tdmap.runtime.writeahead import WriteAhead
from tdmap.seeding import Captured, ChunkStreams
from tdmap.sink import Kind, returned_none
from tensordict_lite.errors import DatasetError

FLUSH_SECONDS = 0.005
"""Results that travel wait at most so long for others to share a message."""

FLUSH_COUNT = 64
"""At most so many of them share one."""


class ChunkError(Exception):
    """Carries an exception of the user's function (its `__cause__`) and the chunk in which it came."""

    def __init__(self, chunk: int) -> None:
        super().__init__(chunk)
        self.chunk = chunk


# A function that forks, and whose child comes back from it as well, would have every later chunk done twice.
_generation = 0


def _next_generation() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_next_generation)


def _leave(error: BaseException | None) -> None:
    """End the child of a function that has forked, which has come back from it or has raised."""
    if isinstance(error, SystemExit):  # what it meant
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    text = "tdmap: the function has forked, and its child has returned from it too: the child ends here\n"
    with contextlib.suppress(Exception):
        os.write(2, (text if error is None else "".join(traceback.format_exception(error))).encode())
    os._exit(1)


class ChunkLoop:
    """Runs leases of one job.

    Args:
        job: number of the job.
        reader: the rows.
        fn: the user's function.
        policy: seeding.
        control: the block to keep up to date.
        pack: makes a result fit to travel.
        emit: sends a message to the driver.
        in_caller: chunks run in the thread that called `map`, which Ctrl-C is meant for.
        own_fn: `fn` belongs to this loop alone, in a process of its own.
    """

    def __init__(
        self,
        job: int,
        reader: Reader,
        fn: Callable[..., Any],
        policy: Policy,
        control: Control,
        pack: Callable[[Any], Any],
        emit: Callable[[Any], None],
        own_fn: bool = False,
        in_caller: bool = False,
    ) -> None:
        self.settle: Callable[[], None] | None = None
        self._runner: Runner | None = None
        if isinstance(fn, OnDevice):
            runner = fn.open(control[at.RANK], own_fn)
            fn, reader, self.settle = runner, runner.reader(reader), runner.settle
            self._runner = runner
            devices = [runner.device]
            self._is_lost: list[Callable[[], bool]] = [runner.link.is_lost]
        else:
            devices = [one for one in {leaf.device for leaf in tensors_of(reader.data)} if one.type != "cpu"]
            self._is_lost = [functools.partial(is_lost, device) for device in devices]
        self._devices = devices
        self.raised = False
        """The function has raised: tensors may live on in tracebacks."""
        self.lost_device = False
        """The function, or its rows, have taken the device with them: this process can use it no more."""
        captured = Captured(fn)
        if own_fn and policy.seed is None:
            captured.seed_apart()  # other workers have copies of them
        self.streams = ChunkStreams(policy.seed, devices, captured)
        self.job = job
        self.reader = reader
        self.fn: Callable[..., Any] = fn
        self.policy = policy
        self.control = control
        self.pack = pack
        self.fresh = FreshResults()
        self.resized = reader.plan.num_known
        """The chunk from which on chunks have another size; a function may have another buffer for their results."""
        self.emit = emit
        self.in_caller = in_caller
        self.own_process = own_fn
        self.writer: RowWriter | None = None
        self.undo: Undo | None = None
        self.inference = False  # whether a worker runs it in a block of torch.inference_mode
        self._guard = True
        self._generation = _generation
        self._handlers = installed_handlers() if in_caller and policy.skip else frozenset()
        self._expect_changes = policy.in_place and reader.gives_views and self.settle is None
        self.meter = None if policy.meter is None else policy.meter(self)
        self._skipper = Skipper(self, policy.skip) if policy.skip else None
        returns = reader.order is not None and not reader.plan.unbind  # to a page, for copies of some of its rows
        self._memory = Growth() if reader.private and not returns else None
        self._look_at(reader)
        self._compared = Comparisons() if self._exposed and reader.gives_views and self.settle is None else None
        self._ahead: WriteAhead | None = None
        if self._expect_changes and not reader.plan.dim and leaves_hold_rows(reader.data):
            ahead = WriteAhead(tensors_of(reader.data), reader.base)
            self._ahead = ahead if ahead.is_of_use else None

    def look_at(self, reader: Reader) -> None:
        """Go on with other rows: those of the chunks that come next."""
        self.reader = reader if self._runner is None else self._runner.reader(reader)
        self._ahead = None
        self._look_at(self.reader)

    def _look_at(self, reader: Reader) -> None:
        # A function on a device has copies of the rows, and the runner writes what has changed in them.
        self._changes_late = self._runner is not None and all(map(is_copied, tensors_of(reader.data)))
        # Tensors of torch's inference mode count no versions.
        self._leaves = [leaf for leaf in tensors_of(reader.data) if not leaf.is_inference()]
        self._exposed = [leaf for leaf in reader.exposed if not leaf.is_inference()]
        self._versions = _versions_of(self._exposed)
        self._has_changed = False

    def _let_go(self) -> None:
        """Give back the pages of private rows that were read or written, when they have become many."""
        if self._memory is None or not self._memory.is_large():
            return
        self.reader.renew()
        self._memory.begin()
        self._look_at(self.reader)
        if self.undo is not None:
            self.undo.look_at(self.reader.data)

    @property
    def plan(self) -> ChunkPlan:
        """The plan that chunk numbers refer to."""
        return self.reader.plan

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        self.reader.replan(plan)
        if self.writer is not None:
            self.writer.plan = plan
        if self.undo is not None:
            self.undo.plan = plan

    def _version(self) -> int:
        return _versions_of(self._leaves)

    @property
    def mutated(self) -> bool:
        """Whether the function has changed rows of the source in place."""
        return self._has_changed or _versions_of(self._exposed) != self._versions

    def run(self, lease: int, start: int, stop: int) -> Done:
        """Run the chunks `start..stop`, sending what cannot wait, and return the report.

        Raises:
            ChunkError: the function raised. The chunks before are safe.
        """
        self._let_go()
        control, began, self._generation = self.control, time.perf_counter(), _generation
        control[at.COMMITTED] = 0  # never the new lease's number beside the old lease's progress
        control[at.LEASE] = lease
        segments = _Segments(self, lease, start)
        guarded = self.undo is not None
        done = None if self.undo is None else self.undo.done
        aliased = self.writer is not None and self.writer.aliased
        chunk = start
        if self.meter is not None:
            self.meter.begin()
        try:
            for chunk, result, rows in self._results(lease, start, stop, segments):
                if _generation != self._generation:
                    self._leave()
                if result is None:
                    kind = Kind.NONE
                elif result.__class__ is Settled:
                    kind, result = result
                elif rows is not None and self.writer is not None and self.writer.write(rows, result):
                    result = self.writer.objects_of(result, *self.plan.rows(chunk)) if self.writer.objects else None
                    kind = Kind.WRITTEN if result is None else Kind.OBJECTS
                else:
                    kind = Kind.PARCEL
                if guarded and self._guard and self._skipper is None:
                    self._guard = kind is Kind.NONE or aliased or self.mutated
                if kind is Kind.OBJECTS and self.undo is not None and self.undo.room.objects is not None:
                    append(self.undo.room.objects, chunk, result)  # before it is noted that the chunk is done
                    kind = Kind.WRITTEN
                if self.settle is not None and not kind.travels:
                    self.settle()  # a device works after it was asked to, and it is then that this chunk may fail
                if kind is not segments.kind or kind.travels:
                    segments.add(chunk, kind, result)
                segments.stop = chunk + 1
                if not kind.travels:
                    control[at.COMMITTED] = chunk + 1
                    if done is not None:
                        done[chunk] = 1
                elif guarded and self._guard:
                    segments.flush()  # its rows are changed, and only those of one chunk can be put back
            last = segments.take()
        except BaseException as error:
            if self.is_stray:
                self._leave(error)
                raise
            failed = min(segments.stop, stop - 1)
            self._explain(error)
            self._put_back(failed, error)
            if self.in_caller and not isinstance(error, (Exception, SystemExit)):  # Ctrl-C, most often
                raise
            segments.flush()
            raise ChunkError(failed) from _as_exception(self._cut_behind(error) or error)
        finally:
            control[at.RUNNING] = -1
            self.streams.end()
        upto = segments.stop
        mutated = self.mutated
        self._guard |= mutated
        measures = None if self.meter is None else self.meter.end(start, upto)
        return Done(self.job, lease, upto, time.perf_counter() - began, mutated, last, 0, measures)

    @property
    def is_stray(self) -> bool:
        """Whether this is a fork that the function has made: the chunk and its rows are its parent's business."""
        return self._generation != _generation

    def is_none_of_rows(self, error: BaseException) -> bool:
        """Whether an exception says nothing about its rows alone: a fork's, the caller's own alarm, a device's last, or
        one of the file that results wait in."""
        if self.is_stray or self._cut_behind(error) is not None or self._has_lost_device(error):
            return True
        spill = getattr(self.fn, "spill", None)
        if spill is not None and isinstance(error, OSError) and error.filename == str(spill.folder):
            return True
        return bool(self._handlers) and comes_from_handler(error, self._handlers)

    def _cut_behind(self, error: BaseException) -> DatasetError | None:
        """The error of a file that was truncated, where a system call was given its missing pages."""
        if isinstance(error, OSError) and error.errno == errno.EFAULT:
            try:
                check_mapped_files(tensors_of(self.reader.data))
            except DatasetError as cut:
                return cut
        return None

    def _leave(self, error: BaseException | None = None) -> None:
        if not self.in_caller:
            _leave(error)
        if error is None:  # the caller's own stack is above us
            raise RuntimeError(
                "the function has forked, and its child has returned from it too: the chunks belong to the parent. End "
                "the child within the function, by os._exit()."
            )

    def _has_lost_device(self, error: BaseException) -> bool:
        """Whether nothing can run any more where the function runs, since an exception of it."""
        self.raised = True
        if isinstance(error, RuntimeError) and not self.lost_device:
            self.lost_device = any(lost() for lost in self._is_lost)
        return self.lost_device

    def _explain(self, error: BaseException) -> None:
        """Say what a device has to do with an error."""
        where = ", ".join(str(device) for device in self._devices)
        if self._has_lost_device(error):
            what = "the worker is replaced" if self.own_process else "restart the program before you use it again"
            skip = " No other row could be tried, so these rows cannot be skipped." if self._skipper else ""
            add_note(error, f"{where} can be used no more in the process where this came up: {what}.{skip}")
        if self.settle is None and isinstance(error, torch.AcceleratorError):
            add_note(
                error, f"{where} reports errors late: these rows, or some before them. CUDA_LAUNCH_BLOCKING=1 tells."
            )

    def close(self) -> None:
        """The job is over: let go of its memory now, and not when the collector comes by."""
        self._skipper = None

    def _save(self, undo: Undo, chunk: int) -> None:
        self.control[at.UNDO] = 0
        undo.save(chunk)
        self.control[at.UNDO] = chunk + 1

    def _put_back(self, chunk: int, error: BaseException) -> None:
        """A chunk that raised leaves its rows as they were; where that fails, what it raised is told all the same."""
        if self.undo is None or self.control[at.UNDO] != chunk + 1:
            return
        try:
            self.undo.restore(chunk)
        except Exception as second:
            rows = self.plan.describe(chunk)
            add_note(error, f"{rows} could not be put back as they were: {type(second).__name__}: {second}")
            return
        self.undo.release()
        self.control[at.UNDO] = 0

    def _results(
        self, lease: int, start: int, stop: int, segments: _Segments
    ) -> Iterator[tuple[int, Any, Data | None]]:
        control, fn, clock = self.control, self.fn, time.monotonic_ns
        streams, plan, undo, skipper = self.streams, self.plan, self.undo, self._skipper
        compared = None if self.writer is not None and self.writer.aliased else self._compared
        positional = takes_start(fn)
        rows: Iterator[Any] = repeat(None) if self.writer is None else self.writer.rows(start, stop)
        for chunk, data, target in zip(range(start, stop), self.reader.read(start, stop), rows):
            if control[at.CANCEL]:
                return
            if control[at.GIVE_BACK]:
                control[at.GIVE_BACK] = 0
                keep = chunk + (stop - chunk) // 2
                self.emit(GaveBack(self.job, lease, keep))
                stop = keep
            if chunk >= stop:
                return
            control[at.SINCE] = clock()
            control[at.RUNNING] = chunk
            ahead = self._ahead
            if ahead is not None:
                ahead.before(*plan.rows(chunk), plan.rows(stop - 1)[1])
            if self._changes_late:
                assert self._runner is not None
                self._runner.before_change = None if undo is None else functools.partial(self._save, undo, chunk)
            elif undo is not None and self._guard:
                self._save(undo, chunk)
            copies = [] if compared is None else compared.copies(data)
            streams.start(plan.original_row(chunk))
            if skipper is not None:
                result = skipper.call(lease, chunk, data, target)
            else:
                result = fn(data, plan.original_row(chunk)) if positional else fn(data)
            if ahead is not None:
                ahead.after()
                if not ahead.is_of_use:
                    self._ahead = None
            if copies:
                self._has_changed |= have_changed(copies)
            if result is None and self._expect_changes:
                self._expect_changes = False  # a function that forgets to return its chunk does so every time
                lost = assigned(data, next(self.reader.read(chunk, chunk + 1)))
                if lost is not None:
                    raise lost
            if result is None and self.policy.needs_results and self.mutated:  # here, where its rows can be put back
                raise returned_none(plan.describe(chunk))
            yield chunk, result, target


def _versions_of(leaves: list[torch.Tensor]) -> int:
    """Rises with every in-place operation of torch on a view of a tensor, which shares the counter of its base."""
    return sum(leaf._version for leaf in leaves)


def _as_exception(error: BaseException) -> Exception:
    """What the function raised, as an error of its rows that ends neither the worker nor the program."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, StopIteration):  # what it becomes on leaving a generator
        error = cause
    elif isinstance(error, Exception):
        return error
    what = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r}"
    text = f"the function {what}, which tdmap reserves: raise another exception instead"
    remote = RemoteError(text, type(error).__qualname__)
    return remote.with_traceback(error.__traceback__)


class _Segments:
    """The results of a lease so far, as runs of the same kind that have not been reported yet.

    States of a reduction merge here, in the tree over the chunk numbers, and travel when the lease is over: one for
    each node of the tree instead of one for each chunk.
    """

    def __init__(self, loop: ChunkLoop, lease: int, start: int) -> None:
        self.loop = loop
        self.lease = lease
        self.start = start
        self.stop = start
        self.kind: Kind | None = None
        self.values: list[Any] = []
        self.merge: Callable[[Any, Any], Any] | None = getattr(loop.fn, "merge_states", None)
        self.tree: MergeTree | None = None
        self.since = 0.0

    def add(self, chunk: int, kind: Kind, value: object) -> None:
        """Begin a segment of another kind, or extend one of results that travel."""
        if kind is not self.kind or len(self.values) >= FLUSH_COUNT or self._old():
            self.flush()
            self.kind = kind
            self.loop.control[at.KIND] = kind
            self.since = time.perf_counter()
        if not kind.travels:
            return
        if chunk >= self.loop.resized:
            self.loop.resized = self.loop.plan.num_chunks
            self.loop.fresh.renew()
        value = self.loop.fresh(value)
        if self.merge is None:
            self.values.append(self.loop.pack(value))
            return
        tree = self.tree or MergeTree(self.loop.plan.num_chunks, self.merge)
        self.tree = None
        self.start, start = self.stop, self.start  # what a merge that raises has begun with is of no use any more
        tree.add(chunk, chunk + 1, value)
        self.start, self.tree = start, tree

    def _old(self) -> bool:
        return bool(self.values) and time.perf_counter() - self.since > FLUSH_SECONDS

    def take(self) -> Segment | None:
        """The open segment, as a message; None when it is empty."""
        if self.kind is None or self.start == self.stop:
            return None
        start, values, tree = self.start, self.values, self.tree
        self.start, self.values, self.tree = self.stop, [], None
        if tree is not None:
            values = [self.loop.pack(state) for _, _, state in sorted(tree.nodes(), key=itemgetter(0))]
        return Segment(self.loop.job, self.lease, start, self.stop, self.kind, tuple(values))

    def flush(self) -> None:
        """Send the open segment."""
        segment = self.take()
        if segment is not None:
            self.loop.emit(segment)
            self.loop.control[at.COMMITTED] = segment.stop


def note_rows(error: BaseException, plan: ChunkPlan, chunk: int, name: str, worker: str) -> None:
    """Tell the reader of a user's exception where it came from."""
    add_note(error, f"raised by {name} on {plan.describe(chunk)} (chunk {chunk}), {worker}")
    if type(error).__module__ == "bdb" and worker.startswith("in worker process"):
        add_note(error, "workers have no terminal: use the debugger with num_workers=0")
