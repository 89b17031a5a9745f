"""The ways to run a job whose result lies in files: into a new folder, into mapped tensors, and in place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tdmap.data.kinds import Data, leaves_hold_rows
from tdmap.data.objectlog import OBJECTS, ObjectLog
from tdmap.data.objects import object_paths
from tdmap.data.store import OutputFolder, files_of, folder_of, require_room_for_hidden
from tdmap.execution import Execution
from tdmap.job import Job
from tdmap.memory.folderlock import locked
from tdmap.memory.hidden import HIDDEN
from tdmap.memory.scratch import temporary_path
from tdmap.memory.spill import Spill, spill_beside
from tdmap.output.spilled import PlaceSpilled
from tdmap.run.identity import IN_PLACE, MAP, identify
from tdmap.run.log import Log, clean, run_logged
from tdmap.run.run import ONCE_MORE, Resume, open_run
from tdmap.sinks import Folder, InPlace, Preallocated
from tdmap.sinks.folder import no_rows_for_folder
from tensordict_lite.memmap.plan import replaced_file


def fill_folder(
    job: Job,
    store: OutputFolder,
    execution: Execution,
    log: Log | None,
    spill_dir: str | os.PathLike[str] | None = None,
) -> Data:
    """Run a job of a call that has claimed the folder, bring ragged results to their places, and publish the dataset.

    Raises:
        OutputMismatch: a folder cannot hold the results, or they differ in schema.
        FileExistsError: another program has put files there meanwhile.
    """
    if not job.plan.length:
        return store.save(no_rows_for_folder(job))
    if log is not None and store.load() is None:
        log.lost("output")
    if log is None and spill_dir is not None:
        os.makedirs(spill_dir, exist_ok=True)
        spill = Spill(temporary_path("tdmap-spill", spill_dir))
    else:
        spill = spill_beside(store.hidden)
    objects = None if log is None else ObjectLog(store.hidden)
    sink = Folder(store, lambda data: use_files(log, data), objects, PlaceSpilled(spill, execution, store.ragged))
    try:
        run_logged(log, execution, job, sink)
        sink.complete()
    finally:
        if log is None:
            spill.remove()
    return store.publish()


def use_files(log: Log | None, data: Data) -> None:
    """Have the files of an output reach the disk before its chunks are durable."""
    if log is not None:
        log.files = [str(log.path), *files_of(data), str(log.folder / OBJECTS)]


def map_to_files(job: Job, out: Data, execution: Execution, resume: Resume = True) -> Data:
    """Run a job whose results go into the memory-mapped dataset `out`, so that it can be resumed.

    Raises:
        ValueError: `out` does not lie in a folder of its own.
        ResumeMismatch: the folder holds another run.
    """
    folder = own_folder(out, "out")
    hidden, known, files = folder / HIDDEN, identify(job, MAP), files_of(out)
    with locked(folder, f"map({job.name})"), open_run(hidden, known, job, resume, files=files) as log:
        if log is not None:
            _run_into(job, Preallocated, out, log, execution)
    return out


def map_in_place(job: Job, execution: Execution, resume: Resume = True) -> Data:
    """Run a job that changes its own source, so that it can be resumed.

    Raises:
        ValueError: the source does not lie in a folder of its own, or is a lazy stack; or `undo=False`.
        ResumeMismatch: the folder holds another run that is not finished.
    """
    data = job.source.data
    if not job.policy.undo:
        raise ValueError("resume=True with out=data needs undo=True: rows that were interrupted must be put back.")
    if not leaves_hold_rows(data):
        raise ValueError(
            f"resume=True with out=data keeps copies of the rows that are being changed, and the tensors of a "
            f"{type(data).__name__} do not have the rows along one dimension. Run out of place (out='folder'), or in "
            "place without resume=True; or save a dense copy: data.contiguous().memmap(folder)."
        )
    folder, known, files = own_folder(data, "data"), identify(job, IN_PLACE), files_of(data)
    with (
        locked(folder, f"map({job.name}) in place"),
        open_run(folder / HIDDEN, known, job, resume, files=files, again=ONCE_MORE) as log,
    ):
        if log is not None:
            _run_into(replace(job, ledger=log.ledger), InPlace, data, log, execution)
    return data


def _run_into(job: Job, sink: type[Preallocated], out: Data, log: Log, execution: Execution) -> None:
    """Run a job whose results go into `out`; entries that are no tensors wait in a file until the run is over."""
    paths, objects = object_paths(out), ObjectLog(log.folder)
    if paths and not objects.columns():
        objects.begin(paths)
    if paths:
        log.files = [*log.files, str(objects.path)]
    place = PlaceSpilled(spill_beside(log.folder), execution)
    log.run(job, sink(out, objects, place), execution.run)
    log.finish(job.plan.length, files_of(out))
    clean(log.folder)


def own_folder(data: Data, name: str) -> Path:
    """The folder of a dataset that is mapped whole; ValueError when it has none."""
    folder = folder_of(data)
    if folder is None:
        raise ValueError(
            f"resume=True needs {name} to be a whole memory-mapped dataset, which has a folder to keep the journal "
            f"in: got a {type(data).__name__} in memory, or a part of a dataset. Save it with memmap(folder), or pass "
            "out='folder'."
        )
    replaced = replaced_file(data)
    if replaced is not None:
        raise ValueError(
            f"{name} was mapped before a later save put another file in the place of {replaced}, so that what is "
            f"written into it is not in {folder}: load the dataset again."
        )
    require_room_for_hidden(data)
    return folder
