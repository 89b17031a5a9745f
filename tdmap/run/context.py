"""What an operation is given: who runs its jobs, where its rows go, and what earlier sessions have done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tdmap.data.kinds import Data, instead_of_data, is_data
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source, require_rows_apart
from tdmap.memory.rowfiles import SharedTensors
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.output.output import Output, spill_folder
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tdmap.rowerrors import OnError
from tdmap.run.arguments import plan_for
from tdmap.run.log import Log, run_logged
from tdmap.run.options import REDO, TRUST, Resume
from tdmap.sink import Sink
from tdmap.tuning import Tuning

T = TypeVar("T")

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
        log: of a call that can be resumed.
    """

    name: str
    execution: Execution
    output: Output
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: Policy = field(default_factory=lambda: Policy(undo=False))
    function: Policy = field(default_factory=Policy)
    log: Log | None = None

    @property
    def chunksize(self) -> int | None:
        """Rows of a chunk, as the call asked for them."""
        size: int | None = self.options.get("chunksize")
        return size

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

    def decide(self, name: str, find: Callable[[], T]) -> T:
        """What does not follow from the arguments: free memory, the number of workers, a random number.

        A call that is resumed gets what it had before, since what is done depends on it.

        Args:
            name: of what is found.
            find: finds it, without a job: a plain value.
        """
        if self.log is None:
            return find()
        value: T = self.log.decide(name, find)
        return value

    def plan(self, data: Data, results_vary: bool = False) -> ChunkPlan:
        """How the rows of a dataset are cut for a function, as the options say."""
        return plan_for(data, 0, self.chunksize, self.options.get("num_chunks"), None, results_vary=results_vary)

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
        return replace(self, output=Output(None, None))

    def spill(self, *, later: bool = False) -> Spill:
        """Intermediate files, removed at the end of a block, or kept until a resumed call is complete."""
        if self.log is not None:
            return self.log.spill()
        return Spill(spill_folder(self.output, self.options.get("spill_dir")), later=later)


def require_rows(data: Data, what: str) -> None:
    """Raise TypeError unless `data` has rows, which can be had one by one."""
    if not is_data(data) or not len(data.shape):
        found = f"one of shape {tuple(data.shape)}." if is_data(data) else instead_of_data(data)
        raise TypeError(f"{what} needs a tensor or a collection of tensors with its rows in dimension 0: got {found}")
    require_rows_apart(data)
