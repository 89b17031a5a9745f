"""The chunks of a head, numbered through all epochs, and the jobs that compute them: one job an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tdmap.arguments import require_integer
from tdmap.data.combine import Combined
from tdmap.data.kinds import Data, Picks, Rows, is_dense, tensors_of, with_tensors
from tdmap.data.reader import InMemory
from tdmap.data.sizes import result_bytes
from tdmap.data.trees import FreshResults
from tdmap.diagnostics.progress import StageBars
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source, require_rows_apart
from tdmap.memory.links import CudaLink
from tdmap.memory.mapped import check_mapped_files
from tdmap.memory.shm import Arena, shared_region
from tdmap.output.values import Collect
from tdmap.pipeline.planning import Head, Plan
from tdmap.pipeline.rows import View, epoch_seed, few, tensor_of
from tdmap.pipeline.shares import Share
from tdmap.pipeline.stages import ENDLESS, Batch
from tdmap.pipeline.work import Work
from tdmap.plan import LEAD_ROWS, MIN_CHUNKS, ChunkPlan, default_chunk_size, make_plan
from tdmap.run.context import Context
from tdmap.seeding import Captured, derive, seeded

OUTPUT_FACTOR = 4
"""A row's result is taken to be so many times its bytes (uint8 to float32)."""


@dataclass(frozen=True)
class RunSettings:
    """How a plan is run."""

    execution: Execution | None
    """Who runs it; None: this thread, without any machinery."""
    seed: int | None
    """Of the random streams of chunks; None leaves them alone."""
    epoch: int = 0
    prefetch: int | None = None
    """Chunks that may be under way; None: see `default_ahead`."""
    chunksize: int | None = None
    """Rows of a chunk where no batch decides."""
    num_chunks: int | None = None
    """Instead, how many chunks."""
    share: Share = Share()
    """Of the chunks: that of a rank, and of a worker of torch's DataLoader."""
    failures: Policy = field(default_factory=Policy)
    """What is done about failures; its seed does not count."""
    on_row_error: Callable[[BaseException, tuple[int, int]], Any] | None = None
    """Called with each row that is skipped."""
    link: CudaLink | None = None
    """Where results go on to."""
    shared: dict[int, Data] | None = None
    """Datasets that have been moved to shared memory for all epochs, by the number of the original."""

    @classmethod
    def of(cls, ctx: Context, seed: int | None, epoch: int = 0, prefetch: int | None = None) -> RunSettings:
        """Those of a call.

        Args:
            ctx: the call.
            seed: of the pipeline; an option of the call takes its place.
            epoch, prefetch: as the attributes.

        Raises:
            ValueError: an option is out of range.
        """
        chunksize, num_chunks = ctx.options.get("chunksize"), ctx.options.get("num_chunks")
        if chunksize == 0:
            raise ValueError(
                "chunksize must be a number of rows, at least 1: got 0. For a function of rows: .map_rows()."
            )
        make_plan(0, chunksize=chunksize, num_chunks=num_chunks)
        require_integer("epoch", epoch, 0)
        return cls(
            ctx.execution.with_bars(StageBars),
            seed if ctx.function.seed is None else ctx.function.seed,
            epoch,
            prefetch,
            chunksize,
            num_chunks,
            failures=ctx.function,
            on_row_error=ctx.on_row_error,
        )

    def chunk_of(self, head: Head) -> int | None:
        """Rows of a chunk, as the call asks for them; None where it does not."""
        if self.num_chunks is not None:
            return make_plan(head.view.length or 0, num_chunks=self.num_chunks).size
        return self.chunksize

    @property
    def is_here(self) -> bool:
        """Whether functions run in this process."""
        return self.execution is None or not self.execution.in_processes

    def keep(self, data: Data) -> Data:
        """A dataset, moved to shared memory the first time, where workers are processes and jobs are many."""
        if self.shared is None or self.execution is None or not self.execution.in_processes:
            return data
        if id(data) not in self.shared:
            self.shared[id(data)] = shared_copy(data)
        return self.shared[id(data)]

    def epoch_of(self, number: int, epochs: int) -> RunSettings:
        """The settings of one of several epochs."""
        base = self.epoch << 32 if epochs == ENDLESS else self.epoch * epochs
        return replace(self, epoch=base + number)

    def other(self) -> RunSettings:
        """With other random streams, for a second source of rows."""
        return self if self.seed is None else replace(self, seed=derive(self.seed, 1 << 40) >> 1)

    def policy(self, epoch: int) -> Policy:
        return replace(self.failures, seed=self.seed_of(epoch))

    def seed_of(self, epoch: int) -> int | None:
        """Of the random streams in an epoch."""
        return None if self.seed is None else epoch_seed(self.seed, epoch)


def chunk_rows(head: Head, chunksize: int | None, batch: int | None = None) -> int:
    """Rows of a chunk: a batch, what was asked for, or what fits the cache; but not less than a batch made later."""
    if head.batch is not None:
        return head.batch.size
    if head.chunk is not None:
        return head.chunk
    if chunksize is not None:
        return chunksize
    rows = head.view.length or 0
    size = default_chunk_size(rows, head.view.row_bytes * (1 + OUTPUT_FACTOR), head.view.chunk_bytes)
    return max(size, batch or 1)


def is_open(head: Head, chunksize: int | None) -> bool:
    """Whether nothing but the bytes of rows and results says how large chunks should be."""
    return head.batch is None and head.chunk is None and chunksize is None


def open_plan(head: Head, rows: int) -> ChunkPlan:
    """How the rows of an open head are cut by a job whose first result settles it."""
    own = head.view.row_bytes
    result, chunk_bytes = own * OUTPUT_FACTOR, head.view.chunk_bytes
    return make_plan(rows, row_bytes=own, result_bytes=result, is_guess=True, chunk_bytes=chunk_bytes)


def chunk_sizes(plan: Plan, settings: RunSettings, batch: int | None = None) -> list[int]:
    """Rows of a chunk of each head, in the order of `heads_of`; `batch`: rows of the batches that are made later.

    Where nothing else says so, workers try the first rows: chunks of an iteration must be known before it begins,
    because its position is a number of them.
    """
    if isinstance(plan, Head):
        asked = settings.chunk_of(plan)
        if settings.execution is None or not is_open(plan, asked):
            return [chunk_rows(plan, asked, batch)]
        return [max(_tried(plan, settings), batch or 1)]
    if isinstance(plan.stage, Batch):
        batch = plan.stage.size
    return [size for source in plan.sources for size in chunk_sizes(source, settings, batch)]


def _tried(head: Head, settings: RunSettings) -> int:
    """Rows of a chunk, by what the stages make of the first rows; a guess where they do not get through."""
    rows, guess = head.view.length or 0, chunk_rows(head, None)
    if not head.stages or rows <= MIN_CHUNKS or settings.execution is None:
        return guess
    found: list[int] = []
    with contextlib.suppress(Exception):  # the iteration itself will raise it, and say for which rows
        plain = Head(View(few(head.view.over, LEAD_ROWS), stages=head.view.stages), tail=head.tail)
        tried = replace(settings, shared=None, failures=replace(settings.failures, skip=""))
        job = head_job(EpochChunks(plain, LEAD_ROWS), 0, tried, then=_measured)
        quiet = replace(settings.execution, callbacks=(), pbar=False)
        found = [size for size in quiet.run(job, Collect()) if isinstance(size, int)]
    if not found:
        return guess
    return default_chunk_size(rows, head.view.row_bytes + found[0] // LEAD_ROWS, head.view.chunk_bytes)


def _measured(value: object, start: int) -> int:
    return result_bytes(value)


AHEAD_BYTES = 4 << 20
"""Results of small chunks that may be ahead of the consumer, for each worker."""

AHEAD_CHUNKS = 64
"""And how many of them, at most."""


def default_ahead(head: Head, size: int, workers: int) -> int:
    """Chunks that may be under way by default: three a worker, or more small ones.

    With fewer, the worker that is ahead would wait whenever the other one is slow.
    """
    result_bytes = max(size * head.view.row_bytes * OUTPUT_FACTOR, 1)
    return workers * max(min(AHEAD_BYTES // result_bytes, AHEAD_CHUNKS), 3)


class EpochChunks:
    """All chunks of a head. Chunk *g* belongs to the epoch in which it begins.

    Args:
        head: the rows, and what is done to them.
        size: rows of a chunk.
    """

    def __init__(self, head: Head, size: int) -> None:
        rows = head.view.length
        assert rows is not None
        self.head = head
        self.rows = rows
        self.size = size
        drop = head.batch is not None and head.batch.drop_last
        if head.across:
            total = rows * head.epochs
            every = total // size if drop else -(-total // size)
        else:
            self._each = rows // size if drop else -(-rows // size)
            every = self._each * head.epochs
        self.stop = every if head.stop is None else min(every, head.stop)
        self.start = min(head.first, self.stop)

    def epoch_of(self, chunk: int) -> int:
        """The epoch in which a chunk begins."""
        return chunk * self.size // self.rows if self.head.across else chunk // self._each

    def first(self, epoch: int) -> int:
        """The first chunk that begins in an epoch."""
        return -(-epoch * self.rows // self.size) if self.head.across else epoch * self._each

    def source(self, epoch: int, settings: RunSettings) -> tuple[Source, ChunkPlan]:
        """The rows of an epoch, and how they are cut."""
        view, epochs = self.head.view, self.head.epochs
        count = min(self.first(epoch + 1), self.stop) - self.first(epoch)
        index = view.order_in(settings.epoch_of(epoch, epochs).epoch)
        wanted = min(count * self.size, self.rows) if not self.head.across else count * self.size
        if self.head.across:
            index, later = index[self.first(epoch) * self.size - epoch * self.rows :], epoch
            while len(index) < wanted and later + 1 < epochs:
                later += 1
                more = view.order_in(settings.epoch_of(later, epochs).epoch)
                index = torch.cat([tensor_of(index), tensor_of(more)[: wanted - len(index)]])
        index = index[:wanted]
        number = settings.epoch_of(epoch, epochs).epoch
        rows, seed = view.over.at(number, settings.keep), settings.seed_of(number)
        if seed is not None and isinstance(rows, Combined):
            rows = View(rows, seed=derive(apart(seed, view.shares), 1 << 42))
        return _source(rows, index, bool(settings.failures.skip)), ChunkPlan(len(index), self.size)


def shared_copy(data: Data) -> Data:
    """A dataset that worker processes can open: itself where it lies in files, or a copy in shared memory."""
    if not (isinstance(data, torch.Tensor) or is_dense(data)):
        return data
    require_rows_apart(data)
    leaves = tensors_of(data)
    arena = Arena()
    copies = [x if not x.numel() or shared_region(x) is not None else arena.copy_of(x) for x in leaves]
    if all(copy is leaf for copy, leaf in zip(copies, leaves)):
        return data
    return with_tensors(data, copies)


def _source(rows: Rows, index: Picks, numbered: bool) -> Source:
    """These rows; `numbered`: they keep their numbers, by which those that raise are reported."""
    data = rows.data if isinstance(rows, InMemory) else rows
    if not isinstance(index, range):
        return Source(data, index)
    if index == range(data.shape[0]):
        return Source(data)
    if numbered or isinstance(rows, Combined):
        return Source(data, tensor_of(index))
    return Source(rows.window(index.start, index.stop))


def head_job(
    chunks: EpochChunks,
    epoch: int,
    settings: RunSettings,
    then: Callable[[Any, int], Any] | None = None,
    empty: Any = None,
    only: range | None = None,
    given: bool = False,
) -> Job:
    """The job of one epoch.

    Args:
        chunks: those of all epochs.
        epoch: which epoch.
        settings: seed and policy.
        only: of its chunks, numbered in the epoch.
        then: see `Work`.
        empty: see `Work`.
        given: the results go to the user.
    """
    head = chunks.head
    source, plan = chunks.source(epoch, settings)
    if only is not None:
        source, plan = _every(source, plan, only)
    number = settings.epoch_of(epoch, head.epochs).epoch
    views = source.order is None and not isinstance(source.data, Combined)
    policy = settings.policy(number)
    if policy.seed is not None:
        seed = apart(policy.seed, head.view.shares) if head.calls or then is not None else None
        policy = replace(policy, seed=seed)
    work = Work(head.stages, views, then, empty, given and settings.is_here)
    return Job(source, plan, work, policy, on_row_error=settings.on_row_error)


def _every(source: Source, plan: ChunkPlan, only: range) -> tuple[Source, ChunkPlan]:
    """Some chunks of a job, with the random streams that they have in the whole one."""
    order = torch.arange(plan.length) if source.order is None else source.order
    rows = torch.cat([order[slice(*plan.rows(chunk))] for chunk in only])
    return Source(source.data, rows), replace(
        plan, length=len(rows), origin=plan.original_row(only.start), stride=only.step * plan.stride
    )


def run_here(job: Job, chunks: Iterator[int]) -> Iterator[Any]:
    """Run chunks in this thread, one whenever the consumer asks: what a worker of torch's DataLoader does."""
    reader, fresh, captured = job.reader(), FreshResults(), Captured(job.fn)
    check_mapped_files(tensors_of(job.source.data))
    for chunk in chunks:
        (rows,) = reader.read(chunk, chunk + 1)
        first = job.plan.original_row(chunk)
        with seeded(job.policy.seed, first, captured):
            value = fresh(job.fn(rows, first))  # type: ignore[call-arg]
        yield value


def apart(seed: int, shares: Sequence[int]) -> int:
    """The seed of a rank that has a share: ranks number rows of their own alike, and must not draw alike."""
    for index in shares:
        seed = derive(seed, (1 << 43) + index) >> 1 if index else seed
    return seed
