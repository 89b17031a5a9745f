"""The ways to run a job whose result lies in files: into a folder, into mapped tensors, and in place."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from tdmap.data.join import result_of_no_rows
from tdmap.data.kinds import Data, leaves_hold_rows
from tdmap.data.objects import object_paths
from tdmap.data.store import OutputFolder, files_of, folder_of, require_room_for_hidden
from tdmap.execution import Execution
from tdmap.job import Job
from tdmap.memory.folderlock import locked
from tdmap.memory.hidden import HIDDEN, remove
from tdmap.memory.spill import Spill
from tdmap.output.spilled import PlaceSpilled
from tdmap.run.identity import IN_PLACE, MAP
from tdmap.run.run import Resume, Run, can_begin_anew, open_run
from tdmap.sinks import Folder, InPlace, Preallocated
from tdmap.sinks.folder import check_for_folder, returned_none
from tensordict_lite.memmap.plan import replaced_file

SPILL = "spill-"
"""Beginning of the names of files in which ragged results wait; files of such names are brought to the disk with the
journal."""


def map_to_folder(job: Job, out: str | os.PathLike[str] | OutputFolder, resume: Resume, execution: Execution) -> Data:
    """Run a job whose results become a new dataset in a folder.

    Raises:
        FolderInUse: somebody else writes it.
        FileExistsError: the folder holds something else, or the unfinished run of a call with `resume=True`.
        ResumeMismatch: the folder holds another run.
    """
    store = OutputFolder.of(out)
    with store.claimed(f"map({job.name})", folder_of(job.source.data), bool(resume)):
        if resume:
            return _resume_to_folder(job, store, execution, resume)
        if job.plan.length:
            _fill(job, Folder(store, _ignore, spill=(spill := _spill(store, execution))), store, spill, execution)
        else:
            _put_no_rows(job, store)
        return store.publish()


def _spill(store: OutputFolder, execution: Execution) -> Spill | None:
    """Where ragged results wait; None where workers may be on machines without the folder."""
    return Spill(store.hidden, f"{SPILL}{secrets.token_hex(8)}-") if execution.owns_workers else None


def _fill(
    job: Job,
    sink: Folder,
    store: OutputFolder,
    spill: Spill | None,
    execution: Execution,
    run: Run | None = None,
) -> None:
    """Run a job, then bring ragged results to their places."""
    if spill is None:
        execution.run(job, sink, *(() if run is None else (run,)))
        return
    try:
        execution.run(job, sink, *(() if run is None else (run,)))
        sink.complete(PlaceSpilled(store, spill, replace(execution, profile=False)))
    finally:
        if run is None:
            spill.remove()


def _put_no_rows(job: Job, store: OutputFolder) -> None:
    """Put what the function makes of zero rows where the results of chunks would be."""
    rows = result_of_no_rows(job.fn, job.source.data, job.plan)
    if rows is None:
        raise returned_none("the data has no rows")
    check_for_folder(rows, 0, job.plan, "the data has no rows")
    store.put(rows)


def _resume_to_folder(job: Job, store: OutputFolder, execution: Execution, resume: Resume) -> Data:
    if store.load() is None and store.has_journal and can_begin_anew(store.hidden / "journal", MAP):
        store.begin_anew()  # nothing was begun, or somebody removed it
    with open_run(store.hidden, job, MAP, [], resume) as run:
        if run.is_complete:
            result = store.publish()
            _forget(run, store)  # of a session that was killed before it did
            return result
        if job.plan.length:
            spill = _spill(store, execution)
            sink = Folder(store, lambda data: _use_files(run, data), run.objects, spill)
            _fill(run.planned(job), sink, store, spill, execution, run)
        else:
            _put_no_rows(job, store)
        result = store.publish()
        _use_files(run, result)  # their names have changed
        run.finish(job.plan.length)
        _forget(run, store)
    return result


def _forget(run: Run, store: OutputFolder) -> None:
    """Remove what a run that is complete kept to be resumed."""
    run.objects.forget()
    for path in store.hidden.glob(f"{SPILL}*"):
        remove(path)


def _use_files(run: Run, data: Data) -> None:
    assert run.journal is not None
    run.journal.files = [*files_of(data), str(run.objects.path)]


def map_to_files(job: Job, out: Data, execution: Execution, resume: Resume = True) -> Data:
    """Run a job whose results go into the memory-mapped dataset `out`, so that it can be resumed.

    Raises:
        ValueError: `out` does not lie in a folder of its own.
        ResumeMismatch: the folder holds another run.
    """
    folder = own_folder(out, "out")
    with locked(folder, f"map({job.name})"), open_run(folder / HIDDEN, job, MAP, files_of(out), resume) as run:
        if not run.is_complete:
            _expect_objects(run, out)
            execution.run(job, Preallocated(out, run.objects), run)
            run.finish(job.plan.length)
            run.objects.forget()
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
    folder, call = own_folder(data, "data"), f"map({job.name}) in place"
    with locked(folder, call), open_run(folder / HIDDEN, job, IN_PLACE, files_of(data), resume) as run:
        if not run.is_complete:
            _expect_objects(run, data)
            execution.run(replace(job, ledger=run.ledger), InPlace(data, run.objects), run)
            run.finish(job.plan.length)
            run.objects.forget()
    return data


def _expect_objects(run: Run, out: Data) -> None:
    """Have room for the entries of `out` that are no tensors until the run is over."""
    paths = object_paths(out)
    if paths and not run.objects.columns():
        run.objects.begin(paths)
    if paths:
        assert run.journal is not None
        run.journal.files = [*run.journal.files, str(run.objects.path)]


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


def _ignore(data: Data) -> None:
    pass
