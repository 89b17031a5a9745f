"""What `out=` means for `map`: a class for each kind of it.

    Gathered        None           results are joined into a new value
    InFolder        a path         a new memory-mapped dataset
    InShards        a path, a URL  a new dataset of several folders
    Given           a dataset      rows that there are
    ItsOwnSource    the data       the rows that the results are made of

`Target.of` looks at the arguments alone. `run` knows the job: it refuses what does not go with this kind of output, and
runs the job in the way that `resume` and `shard` ask for.
"""

from __future__ import annotations

import contextlib
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from tdmap.data.alike import VALID
from tdmap.data.join import check_rows, result_of_no_rows
from tdmap.data.kinds import Data, is_data, is_read_anew
from tdmap.data.reader import rows_of
from tdmap.data.store import OutputFolder, destination, folder_of
from tdmap.devices import Devices, Placement, check_no_device
from tdmap.errors import OutputMismatch, add_note
from tdmap.execution import Execution
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory import links
from tdmap.ops.dropping import map_dropping, write_dropping
from tdmap.output.output import Output
from tdmap.output.sharding import check_rows_per_shard, map_to_shards, write_folder
from tdmap.output.spilled import PlaceSpilled, placing
from tdmap.ranks import running as by_ranks
from tdmap.ranks.shard import Rank, ShardLike, rank_of
from tdmap.run.call import resumable_call
from tdmap.run.context import Context
from tdmap.run.identity import MAP, identify
from tdmap.run.resumable import fill_folder, map_in_place, map_to_files
from tdmap.run.run import Resume
from tdmap.runtime.commits import KnownChunks
from tdmap.runtime.ondevice import OnDevice
from tdmap.runtime.skipping import DROP
from tdmap.runtime.wire.lending import NotLent, cannot_lend
from tdmap.sinks import Gather, InPlace, Preallocated, Sink
from tdmap.sinks.device import DeviceBuffer


@dataclass(frozen=True)
class Target(ABC):
    """Where the results of one call of `map` go."""

    out: Any
    """The argument."""
    placement: Placement
    """Where the function runs, and where the output lies."""
    rank: Rank | None
    """Which part of the chunks this program runs; None: all of them."""
    resume: Resume

    @staticmethod
    def of(
        out: Data | str | os.PathLike[str] | None,
        data: Data,
        device: Devices,
        shard: ShardLike,
        resume: Resume,
        overwrite: bool,
    ) -> Target:
        """From the arguments of `map`.

        Raises:
            ValueError: `out` is the name of a device, a device does not exist, or `overwrite` where there is no folder.
        """
        check_no_device(out, data)
        folder = destination(out, overwrite)
        placement = Placement.of(device, out if is_data(out) else None)
        rank = rank_of(shard)
        if out is None:
            return Gathered(out, placement, rank, resume)
        if isinstance(out, (str, os.PathLike)):
            return InFolder(out, placement, rank, resume, folder)
        return (ItsOwnSource if out is data else Given)(out, placement, rank, resume)

    @property
    def given(self) -> Any:
        """The output, where it exists already."""
        return None

    @property
    def cuts_by_result(self) -> bool:
        """Whether default chunks may wait for the first result; ranks must cut alike, and do not know it."""
        return self.rank is None

    @abstractmethod
    def run(self, job: Job, ctx: Context) -> Any:
        """Run the job; what `map` returns."""


def _needing_results(job: Job) -> Job:
    return replace(job, policy=replace(job.policy, needs_results=True))


class Gathered(Target):
    """Results are joined into a new value."""

    def run(self, job: Job, ctx: Context) -> Any:
        if self.resume:
            raise ValueError("resume=True keeps its journal beside the output: pass out=a folder, or out=data.")
        if self.rank is not None:
            whole, job = job, by_ranks.part_of(job, self.rank)
            if job.plan.length == 0 < whole.plan.length:
                return None
        if job.plan.length == 0:
            return result_of_no_rows(job.fn, job.source.data, job.plan)
        with placing(ctx.execution) as place:
            result = ctx.run(job, Gather(job.name, job.policy.skip == DROP, place))
        data = job.source.data
        if result is None and (is_read_anew(data) or not rows_of(data).is_view):
            what = "PersistentTensorDict" if is_read_anew(data) else "dataset of several folders, which is read only"
            raise OutputMismatch(
                f"{job.name} returned None for every chunk. A function that changes its chunk in place has no effect "
                f"on a {what}: let it return the chunk, and pass out=."
            )
        return result


@dataclass(frozen=True)
class InFolder(Target):
    """A new memory-mapped dataset."""

    folder: str | os.PathLike[str] | OutputFolder
    """The path, or a folder whose dataset is replaced."""

    def run(self, job: Job, ctx: Context) -> Any:
        job = _needing_results(job)
        if job.policy.skip == DROP:
            if self.rank is not None:
                raise ValueError(
                    "on_error='drop' leaves rows out, and ranks must know where their rows are before they begin: use "
                    "on_error='mark', and tdmap.filter afterwards."
                )
            return map_dropping(job, self.folder, ctx)
        if self.rank is None:
            return map_to_folder(job, self.folder, self.resume, ctx)
        if isinstance(self.folder, OutputFolder):
            raise ValueError(
                "overwrite=True replaces the folder when one call is done, and ranks fill it together: remove it "
                "before they begin."
            )
        return by_ranks.map_to_folder(job, self.folder, self.rank, self.resume or True, ctx.execution)


def map_to_folder(job: Job, out: str | os.PathLike[str] | OutputFolder, resume: Resume, ctx: Context) -> Data:
    """Run a job whose results become a new dataset in a folder. Errors as `resumable_call` and `fill_folder`."""
    name, data, store = f"map({job.name})", job.source.data, OutputFolder.of(out)
    options = {"resume": resume, "spill_dir": ctx.options.get("spill_dir")}
    call = Context(name, ctx.execution, Output(store, None), options)

    def work(ctx: Context) -> Data:
        return fill_folder(job, store, ctx.execution, ctx.log, ctx.options["spill_dir"])

    with store.claimed(name, folder_of(data), bool(resume)):
        return resumable_call(call, lambda: identify(job, MAP), work, job)


@dataclass(frozen=True)
class InShards(Target):
    """A new dataset of several folders, here or in a store."""

    overwrite: bool
    rows_per_shard: int | None
    options: dict[str, Any]

    @classmethod
    def instead_of(
        cls,
        target: Target,
        data: Data,
        dim: int,
        overwrite: bool,
        rows_per_shard: int | None,
        options: Mapping[str, Any] | None,
    ) -> InShards:
        """In the place of the kind of output that the other arguments mean.

        Raises:
            ValueError: they rule shards out.
        """
        check_rows_per_shard(rows_per_shard)
        out = target.out
        if not isinstance(out, (str, os.PathLike)):
            raise ValueError("rows_per_shard= writes a folder of shards: pass out=its path, or a URL.")
        if dim or target.rank is not None or target.placement != Placement.of(None, None):
            what = "rows_per_shard=" if rows_per_shard is not None else f"out={out!r}"
            raise ValueError(
                f"{what} writes whole shards of rows of dimension 0: dim=, device= and shard= rule that out."
            )
        return cls(out, target.placement, None, target.resume, overwrite, rows_per_shard, dict(options or {}))

    @property
    def cuts_by_result(self) -> bool:
        return False

    def run(self, job: Job, ctx: Context) -> Any:
        return map_to_shards(
            _needing_results(job),
            self.out,
            self.rows_per_shard,
            ctx.execution,
            resume=bool(self.resume),
            overwrite=self.overwrite,
            options=self.options,
            write=_writer(job.policy.skip == DROP, ctx.options.get("spill_dir")),
        )


def _writer(drops: bool, spill_dir: Any) -> Callable[[Job, str], Data]:
    """Writes a shard."""
    write = write_dropping if drops else write_folder
    return write if spill_dir is None else functools.partial(write, spill_dir=os.fspath(spill_dir))


class Given(Target):
    """Rows that there are: in memory, in files, or on a device."""

    @property
    def given(self) -> Any:
        return self.out

    def run(self, job: Job, ctx: Context) -> Any:
        if job.policy.skip == DROP:
            raise ValueError(
                "on_error='drop' leaves rows out, and out has a place for every row: use on_error='skip', which sets a "
                f"bool entry {VALID!r} of out to False there, out='folder', or out=None."
            )
        check_rows(self.out, job.plan, job.source.data.shape)
        if job.plan.length == 0:
            return self.out
        if self.resume:
            return self._run_journalled(job, ctx.execution)
        log = None if self.rank is None else KnownChunks(elsewhere=self.rank.elsewhere(job.plan))
        return self._run(job, ctx.execution, log)

    def _run_journalled(self, job: Job, execution: Execution) -> Any:
        """With `resume`."""
        if self.rank is not None:
            return by_ranks.map_into(job, self.out, self.rank, self.resume, execution)
        return map_to_files(job, self.out, execution, self.resume)

    def _run(self, job: Job, execution: Execution, log: KnownChunks | None) -> Any:
        """Without. Where workers cannot open memory that they were lent, results come back here and go on from here."""
        try:
            return self._run_once(job, execution, log)
        except NotLent as error:
            device, fn = self.placement.out_device, job.fn
            if device is None or not isinstance(fn, OnDevice):
                raise
            cannot_lend(device)
            if error.begun:  # a function that changes its rows in place must not meet them twice
                add_note(error, "other workers had run some chunks: call it again, and results will go another way")
                raise
            warn_user(
                f"worker processes cannot open memory of {device} that this one lends ({error.__cause__}): "
                "results come back to this process and go there by its own copies, which is slower.",
                RuntimeWarning,
            )
        return self._run_once(job.again(fn.coming_back()), execution, log)

    def _run_once(self, job: Job, execution: Execution, log: KnownChunks | None) -> Any:
        with placing(execution) as place:
            sink, surroundings = self._sink(execution, place)
            with surroundings:
                return execution.run(job, sink, log)

    def _sink(self, execution: Execution, place: PlaceSpilled | None) -> tuple[Sink, AbstractContextManager[Any]]:
        """Where results go, and what must be entered around the job."""
        device = self.placement.out_device
        if device is None or self.placement.stays(execution):
            return Preallocated(self.out, None, place), _lending(device)
        buffer = DeviceBuffer(self.out, links.open_link(device))
        return buffer, buffer


class ItsOwnSource(Given):
    """The rows that the results are made of."""

    def _run_journalled(self, job: Job, execution: Execution) -> Any:
        if execution.is_foreign:
            raise ValueError("resume=True with out=data needs workers of its own: use num_workers= or a WorkerPool.")
        if self.rank is not None:
            return by_ranks.map_into(job, self.out, self.rank, self.resume, execution)
        return map_in_place(job, execution, self.resume)

    def _run(self, job: Job, execution: Execution, log: KnownChunks | None) -> Any:
        with placing(execution) as place:
            return execution.run(job, InPlace(self.out, None, place), log)


@contextlib.contextmanager
def _lending(device: torch.device | None) -> Any:
    """Around a job whose workers write into memory of `device` themselves."""
    if device is None or device.type != "cuda":
        yield
        return
    torch.cuda.current_stream(device).synchronize()  # what the caller does to `out` comes before what workers do
    try:
        yield
    finally:
        torch.cuda.ipc_collect()
