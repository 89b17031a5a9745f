"""`map(shard=...)`: each rank runs its own chunks, and the last one to finish completes the result.

No rank waits. One that dies leaves its log, and the same call resumes there, whatever the others do meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tdmap.data.kinds import Data
from tdmap.data.objectlog import ObjectLog
from tdmap.data.reader import narrow, rows_of
from tdmap.errors import AlreadyComplete, OutputMismatch
from tdmap.execution import Execution
from tdmap.frames import warn_user
from tdmap.job import Job, Source
from tdmap.memory.folderlock import FolderLock
from tdmap.memory.hidden import HIDDEN
from tdmap.memory.spill import spill_beside
from tdmap.output.folder import Folder, no_rows_for_folder
from tdmap.output.given import InPlace, Preallocated, own_folder, require_undo
from tdmap.output.outputfolder import OutputFolder, files_of
from tdmap.output.spill import PlaceSpilled
from tdmap.plan import merge_ranges
from tdmap.ranks.folder import RankFolder
from tdmap.ranks.merging import merge
from tdmap.ranks.rank import Rank
from tdmap.run import disk
from tdmap.run.history import IN_PLACE, MAP, TRUST
from tdmap.run.identity import identify
from tdmap.run.log import Log
from tdmap.run.options import Resume
from tdmap.run.run import ONCE_MORE, open_run
from tdmap.sink import Kind, Sink
from tensordict_lite import is_tensor_collection


def part_of(job: Job, rank: Rank) -> Job:
    """The job over the rows of one rank alone, with the chunks and the random streams that the whole one has there."""
    first, last = rank.rows(job.plan)
    part = rows_of(job.source.data, job.plan.dim).window(first, last)
    if is_tensor_collection(part) and part.is_locked:  # as are its chunks, and functions may add entries
        part = part.copy()
    return replace(job, source=Source(part), plan=replace(job.plan, length=last - first, origin=first))


@contextlib.contextmanager
def _entered(
    folder: RankFolder, job: Job, kind: str, rank: Rank, resume: Resume, check: Callable[[], None], again: str
) -> Iterator[Log | None]:
    """The log of a rank's run; None where the rank, or all of them, are done.

    Args:
        folder: what is written.
        job: the whole job.
        kind: `MAP` or `IN_PLACE`.
        rank: which one this is.
        resume: see `open_run`.
        check: raises where nothing can be written.
        again: how the run is begun anew, for messages.
    """
    call = f"map({job.name}), {rank}"
    with contextlib.ExitStack() as stack:
        with folder.alone(call):
            check()
            if folder.begin(job, kind, call, again):
                text = f"{folder.path}: all ranks of {job.name} were done before, and nothing was done ({again})."
                if rank.chunks(job.plan)[0] < rank.chunks(job.plan)[1]:  # a rank without rows may come last
                    warn_user(text, AlreadyComplete)
                yield None
                return
            home = folder.enter(rank, kind)
            stack.enter_context(FolderLock(home, call))
        run = open_run(home / HIDDEN, identify(job, kind), job, resume, lists=False, again=again)
        log = stack.enter_context(run)
        if log is not None:
            boot = None if resume == TRUST else disk.boot_number()
            log.elsewhere = merge_ranges([*rank.elsewhere(job.plan), *folder.done(boot, but=rank)])
        yield log


def map_to_folder(
    job: Job, out: str | os.PathLike[str], rank: Rank, resume: Resume, execution: Execution
) -> Data | None:
    """Run the part of a rank, whose results become rows of a new dataset that all ranks make.

    Returns:
        The rows of this rank, as they lie in the files; None where it has no rows.

    Raises:
        FileExistsError: the folder holds something else.
        FolderInUse: the same rank, or a program that is no rank, writes it.
        ResumeMismatch: the folder holds another run.
    """
    folder, plan = RankFolder(out), job.plan
    free = OutputFolder(out)
    free.require_free(resume=True)  # before anything is made
    again = f"remove {folder.path} to run it again"
    with _entered(folder, job, MAP, rank, resume, lambda: free.require_free(resume=True), again) as log:
        if log is not None:
            if plan.length == 0:
                _write_no_rows(folder, job)
            else:
                place = PlaceSpilled(spill_beside(folder.hidden), execution)
                log.run(job, Folder(RankStore(folder, job.name, ObjectLog(log.folder)), log, place), execution)
            log.finish(plan.count(*rank.chunks(plan)))
    merge(folder)
    first, last = rank.rows(plan)
    if first == last and plan.length:
        return None
    return narrow(folder.open(), plan.dim, first, last)


def _write_no_rows(folder: RankFolder, job: Job) -> None:
    rows = no_rows_for_folder(job)
    with folder.alone(job.name):
        if not folder.is_begun:
            folder.create(rows, ())


def map_into(job: Job, out: Data, rank: Rank, resume: Resume, execution: Execution) -> Data:
    """Run the part of a rank, whose results go into the memory-mapped dataset `out`, be it the source or another.

    Raises:
        ValueError: `out` does not lie in a folder of its own, or cannot be put back.
        FolderInUse: the same rank writes it already.
        ResumeMismatch: the folder holds another run.
    """
    in_place = out is job.source.data
    if in_place:
        require_undo(job)
    folder, kind = RankFolder(own_folder(out, "data" if in_place else "out")), IN_PLACE if in_place else MAP
    again = ONCE_MORE if in_place else f"remove {folder.hidden} to run it again"
    with _entered(folder, job, kind, rank, resume, lambda: None, again) as log:
        if log is not None:
            log.add_files(files_of(out))
            sink: Sink[Any] = RankInPlace(out) if in_place else RankInto(out)
            log.run(job, sink, execution)
            log.finish(job.plan.count(*rank.chunks(job.plan)))
    merge(folder)
    return out


# -- sinks -------------------------------------------------------------------------------------------


class RankStore:
    """Makes the files of the dataset, unless another rank has. Entries that are no tensors wait in the object log of
    each rank, and ragged rows in spill files, until the merge.

    Args:
        folder: what is written.
        name: of the function.
        objects: of this rank.
    """

    def __init__(self, folder: RankFolder, name: str, objects: ObjectLog) -> None:
        self._folder = folder
        self._name = name
        self._objects = objects

    def load(self) -> Data | None:
        """The dataset that a rank has begun, or None."""
        with self._folder.alone(self._name):
            if not self._folder.reopen():
                return None
            self._folder.place()
            columns = self._folder.columns()
            if columns and self._objects.columns() != columns:
                self._objects.begin(columns)
            return self._folder.open()

    def create(self, example: Data) -> Data:
        """A dataset in files with the schema of `example`, or the one that another rank has made meanwhile."""
        columns = self._objects.columns()
        with self._folder.alone(self._name):
            if not self._folder.is_begun:
                self._folder.create(example, columns)
            elif self._folder.columns() != columns:
                others, mine = ([".".join(path) for path in paths] for paths in (self._folder.columns(), columns))
                raise OutputMismatch(
                    f"the non-tensor entries of results are {others} on another rank and {mine} on this rank: "
                    "return the same kinds of entries for every chunk."
                )
            return self._folder.open()


class RankInto(Preallocated):
    """Writes the results of a rank into rows of an existing output."""

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.OBJECTS and any(piece is not None for pieces in values for piece in pieces):
            assert self.writer is not None
            rows = self.writer.plan.describe(start, stop)
            keys = ", ".join(".".join(path) for path in self.writer.objects)
            raise OutputMismatch(
                f"{rows}: results have non-tensor entries ({keys}), which ranks cannot write into an existing "
                "dataset: leave them out of the results, or pass out='folder'."
            )
        super().accept(start, stop, kind, values)


class RankInPlace(InPlace, RankInto):
    """Writes the results of a rank back into the rows of the source."""
