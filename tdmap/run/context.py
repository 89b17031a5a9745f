"""What an operation is given: who runs its jobs, where its rows go, and what earlier sessions have done.

`policy_for` makes a policy of its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tdmap.arguments import require_integer
from tdmap.data.kinds import Data, instead_of_data, is_data
from tdmap.data.reader import rows_of
from tdmap.data.sizes import row_bytes_of
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source, require_rows_apart
from tdmap.memory.rowfiles import SharedTensors
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.output.output import Output
from tdmap.output.values import Collect
from tdmap.plan import MIN_CHUNKS, ChunkPlan, make_plan
from tdmap.process_state import running_operation
from tdmap.rowerrors import OnError, mode_of
from tdmap.run.history import REDO, TRUST, Plain
from tdmap.run.log import Log, run_logged, spill_for
from tdmap.run.options import Resume
from tdmap.runtime.skipping import DROP
from tdmap.seeding import base_seed
from tdmap.sink import Sink
from tdmap.tuning import Tuning

T = TypeVar("T")
P = TypeVar("P", bound=Plain)

QUICK_BYTES = 32 << 20
"""Of work that takes as long as memory takes, workers gain as much on so many bytes as a job costs."""


@dataclass(frozen=True)
class Context:
    """One call of an operation.

    Attributes:
        name: of the operation, for messages.
        execution: who runs its jobs.
        output: where its rows go.
        options: those of the call.
        steps: how failures of the operation's own steps are handled.
        function: how failures and randomness of a function of the caller are handled.
    """

    name: str
    execution: Execution
    output: Output
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: Policy = field(default_factory=lambda: Policy(undo=False))
    function: Policy = field(default_factory=Policy)

    @property
    def log(self) -> Log | None:
        """Of a call that can be resumed."""
        return self.output.log

    @property
    def resume(self) -> Resume:
        """Whether the call keeps a log. Raises ValueError for another value."""
        value: Resume = self.options.get("resume", False)
        if value in (False, True, TRUST, REDO):
            return value
        raise ValueError(f"resume must be True, False, {TRUST!r} or {REDO!r}: got {value!r}.")

    @property
    def on_row_error(self) -> Callable[[BaseException, tuple[int, int]], Any] | None:
        """The function that is told of each row that raises, if there is one."""
        on_error: OnError = self.options.get("on_error", "raise")
        return None if isinstance(on_error, str) else on_error

    def run(self, job: Job, sink: Sink[T]) -> T:
        """Run a job, except for chunks that an earlier session of this call has done; the result of its sink."""
        return run_logged(self.log, self.execution, job, sink)

    def step(self, data: Data, plan: ChunkPlan, step: Callable[..., T]) -> list[T]:
        """Run a step of the operation's own on each chunk of a dataset; what it returned, in their order."""
        return self.run(Job(Source(data), plan, step, self.steps), Collect())

    def decide(self, name: str, find: Callable[[], P]) -> P:
        """What does not follow from the arguments: free memory, the number of workers, a random number.

        A call that is resumed gets what it had before, since what is done depends on it.

        Args:
            name: of what is found.
            find: finds it, without a job.
        """
        if self.log is None:
            return find()
        value: P = self.log.decide(name, find)
        return value

    def plan(
        self,
        data: Data,
        dim: int = 0,
        out: Data | None = None,
        factor: int = 1,
        min_chunks: int = MIN_CHUNKS,
        results_vary: bool = False,
    ) -> ChunkPlan:
        """How the rows of a dataset are cut for a function, as the options say.

        Args:
            data: the dataset.
            dim: the dimension that is cut.
            out: of `map`, where it exists already.
            factor: default chunks are so many times larger.
            min_chunks: there are at least so many, rows permitting.
            results_vary: the function returns rows that may be of any size: default chunks wait for the first one.

        Raises:
            TypeError: `data` is no tensor or collection.
            IndexError: `dim` is out of range.
            ValueError: both sizes are given, or one is out of range.
        """
        chunksize, num_chunks = self.options.get("chunksize"), self.options.get("num_chunks")
        if not is_data(data):
            running = running_operation()
            name = "map" if running is None else running.name
            raise TypeError(f"{name} needs a tensor or a collection of tensors, got {instead_of_data(data)}")
        dims = len(data.shape)
        if not isinstance(dim, int) or not -dims <= dim < dims:
            raise IndexError(
                f"dim={dim} is out of range for data of shape {tuple(data.shape)}: "
                + (f"use {-dims} to {dims - 1}." if dims else "it has no rows. Pass batch_size=[rows] to TensorDict.")
            )
        dim %= dims
        rows = rows_of(data, dim)
        if dim and not rows.is_view:
            raise ValueError(f"the rows of a sharded dataset are in dimension 0: dim={dim} is not supported.")
        if rows.is_remote:
            factor *= REMOTE_CHUNKS
        length = int(data.shape[dim])
        own = row_bytes_of(data, length)
        plan = make_plan(
            length,
            dim=dim,
            chunksize=chunksize,
            num_chunks=num_chunks,
            row_bytes=own,
            result_bytes=own * OUTPUT_FACTOR if out is None or out is data else row_bytes_of(out, length),
            is_guess=out is None and results_vary,
            chunk_bytes=rows.chunk_bytes * factor,
            min_chunks=min_chunks,
        )
        if rows.blocks and chunksize is None and num_chunks is None and rows.blocks[0] * own <= BLOCK_BYTES * factor:
            block = rows.blocks[0]
            plan = replace(plan, size=max(plan.size // block, 1) * block, lead=0, most=0)
        return plan

    def job(self, data: Data, plan: ChunkPlan, fn: Callable[..., Any]) -> Job:
        """A job with a function of the caller's."""
        return Job(Source(data), plan, fn, self.function, on_row_error=self.on_row_error)

    @property
    def tuning(self) -> Tuning:
        """Sizes and times that decide how jobs are cut."""
        return self.execution.tuning

    def shared(self, tensors: Sequence[Tensor]) -> SharedTensors:
        """Tensors as the workers of this call get them: by the name of their memory, where they are processes."""
        return SharedTensors(tensors, self.execution.in_processes)

    def light(self, nbytes: int) -> Context:
        """The same call, or one in the caller alone where so many bytes are less work than a job costs."""
        return replace(self, execution=self.execution.light(nbytes))

    def quick(self, nbytes: int) -> Context:
        """As `light`, for work of a few nanoseconds a row: with two workers it takes twice the bytes to be worth a
        job."""
        gained = nbytes - nbytes // self.execution.workers
        return self.light(0 if self.tuning.light_bytes and gained <= QUICK_BYTES else nbytes)

    def near(self, nbytes: int) -> Context:
        """The same call, or one in threads of the caller where so many bytes are copied sooner than mapped."""
        return replace(self, execution=self.execution.near(nbytes))

    def buffers(self, names: Sequence[str], dtype: torch.dtype, rows: int) -> dict[str, Tensor]:
        """Memory of so many numbers that workers fill, for each name; files, in a call that can be resumed."""
        if self.log is None:
            arena = Arena()
            return {name: arena.empty(dtype, torch.Size([rows])) for name in names}
        spill = self.log.spill()
        return {name: spill.mapped(name, rows * dtype.itemsize).view(dtype) for name in names}

    def inner(self) -> Context:
        """The same call with its rows in memory: for operations that are made of others."""
        output = Output(None, None, self.execution)
        output.log = self.log
        return replace(self, output=output)

    def spill(self, *, later: bool = False) -> Spill:
        """Intermediate files, removed at the end of a block, or kept until a resumed call is complete."""
        return spill_for(self.log, self.output.store, self.options.get("spill_dir"), later=later)


def require_rows(data: Data, what: str) -> None:
    """Raise TypeError unless `data` has rows, which can be had one by one."""
    if not is_data(data) or not len(data.shape):
        found = f"one of shape {tuple(data.shape)}." if is_data(data) else instead_of_data(data)
        raise TypeError(f"{what} needs a tensor or a collection of tensors with its rows in dimension 0: got {found}")
    require_rows_apart(data)


# -- what is made of arguments ---------------------------------------------------------------------------

OUTPUT_FACTOR = 4
"""Without `out`, a row's result is taken to be so many times its bytes (uint8 to float32)."""


BLOCK_BYTES = 32 << 20
"""Default chunks are whole blocks of a dataset that is stored in blocks, unless a block has more bytes."""

REMOTE_CHUNKS = 32
"""Default chunks of rows that are fetched from a store are so many times larger: a request for each takes its time."""


def policy_for(options: Mapping[str, Any], skip: str) -> Policy:
    """How failures and randomness of a function of the caller are handled.

    Args:
        options: of the call.
        skip: what results have for rows that raise.

    Raises:
        ValueError: an option is out of range.
    """
    retries, timeout = options.get("retries", 2), options.get("timeout")
    require_integer("retries", retries, 0)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, or None: got {timeout!r}.")
    mode = mode_of(options.get("on_error", "raise"))
    skip = "" if mode == "raise" else DROP if mode == "drop" else skip
    seed = base_seed(options.get("seed"), options.get("generator"))
    return Policy(seed, retries, timeout, skip=skip)
