"""Resumable runs: the hidden folder that keeps what is needed to go on after any interruption.

    out/.tdmap/             or, for an in-place run, the same folder inside the dataset
      journal               what the run is (function, source, plan, seed), and which chunks are done
      lock                  held by the call that works (see `folderlock`)
      workers.lock          held by its workers, as long as they may change rows in place
      errors.jsonl          the errors that the run has ended with
      skipped.jsonl         rows on which the function raised, with `on_error` (see `runtime.skipfile`)
      objects.jsonl         entries of results that are no tensors, until the run is over (see `objectlog`)
      data/                 a new output, until it is whole (see `store`)
      done, undo-*          of an in-place run (see `runtime.ledger`)
      history.jsonl         in-place runs that are over

Operations of several jobs, and reductions, keep a log instead (see `log`).

`open_run` compares the call with what the folder holds. The same run goes on; a complete run is not done again; another
run is refused, with a list of what differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from tdmap.data.objectlog import ObjectLog
from tdmap.data.skipfile import SkipFile
from tdmap.errors import AlreadyComplete, ResumeMismatch
from tdmap.events import Callback
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory.folderlock import without_strays
from tdmap.memory.hidden import append_line, exists, lines, remove, remove_tree
from tdmap.plan import ChunkPlan, subtract_ranges
from tdmap.run import journal as journals
from tdmap.run.fingerprint import PACKAGE, without_versioned
from tdmap.run.identity import COMMAND, IN_PLACE, check_identity, differences, identify, refuse, refuse_other
from tdmap.run.journal import Journal
from tdmap.run.ledger import Ledger
from tdmap.run.log import History
from tdmap.runtime.skiplog import SkipLog
from tensordict_lite.memmap.disk.format import REPLACED

HISTORY = "history.jsonl"

TRUST, REDO = "trust", "redo"
"""After the machine went down during an in-place run: trust the files as they are, or run every chunk again that is not
known to have reached the disk."""

Resume: TypeAlias = "bool | str"
"""False, True, `TRUST` or `REDO`."""


def check_resume(value: Any) -> Resume:
    """`value`, if it may be passed as `resume`.

    Raises:
        ValueError: it may not.
    """
    if value in (False, True, TRUST, REDO):
        checked: Resume = value
        return checked
    raise ValueError(f"resume must be True, False, {TRUST!r} or {REDO!r}: got {value!r}.")


def _digest(identity: dict[str, Any]) -> str:
    kept = {key: identity[key] for key in ("kind", "function", "source", "plan", "seed")}
    # Rows that were changed in place stay changed, whatever version of a package did it.
    kept["function"] = {k: part for k, part in without_versioned(kept["function"]).items() if PACKAGE not in k}
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()


class Run:
    """A resumable run that is open in this process: the driver's commit log.

    Attributes:
        committed: chunks that an earlier session has done.
        is_complete: nothing is left to do.
        is_latest: no other run has been in the folder since.
        chunk_size: rows of the later chunks, where an earlier session has settled them.
        ledger: of an in-place run.
        skips: the rows that all its sessions have skipped.
        objects: entries of results that are no tensors, until the run is over.
        by_ranks: several programs do it, each a part.
        elsewhere: chunks that the others do.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.identity = identity
        self.committed: list[tuple[int, int]] = []
        self.is_complete = False
        self.is_latest = True
        self.chunk_size: int | None = None
        self.ledger: Ledger | None = None
        self.journal: Journal | None = None
        self.skips = SkipFile(folder)
        self.objects = ObjectLog(folder)
        self.by_ranks = False
        self.elsewhere: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        assert self.journal is not None
        if self.ledger is not None:
            self.ledger.done[start:stop] = 1
        self.journal.add(start, stop)

    def tick(self, now: float) -> None:
        assert self.journal is not None
        self.journal.tick(now)

    def planned(self, job: Job) -> Job:
        """The job, cut as an earlier session has decided; if none has, this session will note its decision."""
        if not job.plan.is_open:
            return job
        if self.chunk_size is not None:
            return replace(job, plan=job.plan.settled(self.chunk_size))
        return replace(job, on_settled=self._settle)

    def _settle(self, plan: ChunkPlan) -> None:
        assert self.journal is not None
        self.journal.settle(plan.size)

    def finish(self, rows: int) -> None:
        """The run has come to its end."""
        assert self.journal is not None
        self.journal.complete(rows)
        if self.ledger is not None:
            self.ledger.forget()

    def failed(self, error: BaseException) -> None:
        """The run has ended with an exception; what is done stays done."""
        assert self.journal is not None
        if not self.journal.is_mine:
            return  # this is a forked child that leaves: the run goes on in its parent
        self.journal.failed()
        notes = list(getattr(error, "__notes__", []))
        line = {"time": time.time(), "type": type(error).__name__, "error": str(error), "notes": notes}
        with contextlib.suppress(OSError):
            append_line(self.folder / "errors.jsonl", json.dumps(line).encode())


@contextlib.contextmanager
def open_run(folder: Path, job: Job, kind: str, files: list[str], resume: Resume = True) -> Iterator[Run]:
    """Begin a run in `folder`, or go on with the one that is there. The caller holds the lock (see `folderlock`).

    Args:
        folder: the hidden folder.
        job: what is to be done.
        kind: `MAP` or `IN_PLACE`.
        files: files of the output, as far as they are known.
        resume: `TRUST` or `REDO` where the machine went down in the middle of the run.

    Raises:
        ResumeMismatch: the folder holds another run; names what differs.
        UntrustedFile: it holds what this library does not put there.
    """
    run = Run(folder, identify(job, kind))
    boot = None if resume == TRUST else journals.boot_number()
    contents, torn = contents_for(run, job, kind, resume, boot)
    if contents is not None and not run.is_complete:
        run.is_complete = contents.is_complete(boot)
    if run.is_complete:
        _say_complete(run, job)
        yield run
        return
    assert contents is not None
    run.committed, run.chunk_size = contents.ranges(boot), contents.chunk_size
    if kind == IN_PLACE:
        run.ledger = Ledger(folder, job.source.data, job.plan)
        _recover(run, run.committed if torn else None)
    run.skips.load(run.committed)
    run.journal = Journal(folder / "journal", contents, files)
    for start, stop in subtract_ranges(run.committed, contents.ranges(boot)):
        run.journal.add(start, stop)  # noted by workers of a driver that was killed before it read their messages
    try:
        yield run
    except BaseException as error:
        run.failed(error)
        raise
    finally:
        run.journal.close()


def contents_for(
    run: Run, job: Job, kind: str, resume: Resume, boot: int | None
) -> tuple[journals.Contents | None, bool]:
    """The journal of this run, a new one if there was none; and whether the machine went down in the middle of it."""
    path = run.folder / "journal"
    contents = journals.read(path)
    if contents is not None:
        check_identity(contents.header, path)
    else:
        _refuse_log(run, kind, History(path))
    torn = kind == IN_PLACE and contents is not None and boot is not None and not contents.is_settled(boot)
    replaced = run.folder / REPLACED
    run.is_complete = _digest(run.identity) in _history(run.folder)
    run.is_latest = not run.is_complete
    if kind == IN_PLACE and exists(replaced):
        _refuse_replaced(run, contents)
    if run.is_complete:
        return contents, torn
    if kind == IN_PLACE:
        if torn and resume != REDO:
            _refuse_unsettled(run)
        contents = _check_in_place(run, contents, torn)
    elif contents is not None:
        _check(run, contents)
    if contents is None and not run.is_complete:
        header = {"identity": run.identity, "began": time.time(), "argv": sys.argv, "cwd": os.getcwd()}
        run.skips.forget()
        run.objects.forget()
        if exists(replaced):
            remove(run.folder / HISTORY)
            remove_tree(replaced)
        # Rows that are changed in place, and no header to say so, would be changed twice.
        header |= {"command": COMMAND.get()} | ({"ranks": True} if run.by_ranks else {})
        journals.create(path, header, durable=kind == IN_PLACE)
        contents = journals.read(path)
        if kind == IN_PLACE:
            Ledger(run.folder, job.source.data, job.plan).forget()
    return contents, torn


def _refuse_log(run: Run, kind: str, log: History) -> None:
    """Raise ResumeMismatch where the folder holds the log of an operation, unless rows of its result may change."""
    if log.header is not None and log.begun and not (kind == IN_PLACE and log.is_complete):
        identity = check_identity(log.header, run.folder / "journal")
        refuse_other(run.folder, differences(identity, run.identity), log.is_complete)


def can_begin_anew(journal: Path, kind: str) -> bool:
    """Whether a journal without results may be replaced: it is unreadable, or of a run of this kind without ranks."""
    contents = journals.read(journal)
    if contents is None:
        return not History(journal).begun
    return check_identity(contents.header, journal)["kind"] == kind and not contents.header.get("ranks")


def _changes(run: Run, contents: journals.Contents) -> list[str]:
    changes = differences(contents.header["identity"], run.identity)
    if bool(contents.header.get("ranks")) is not run.by_ranks and not contents.is_complete():
        who = ("one program", "ranks (shard=)")
        changes.append(f"it was a run of {who[not run.by_ranks]}, and is one of {who[run.by_ranks]}")
    return changes


def _check(run: Run, contents: journals.Contents) -> None:
    changes = _changes(run, contents)
    if changes:
        refuse_other(run.folder, changes, contents.is_complete())


def _check_in_place(run: Run, contents: journals.Contents | None, torn: bool) -> journals.Contents | None:
    """The journal of an unfinished run that is this one; None when there is none."""
    if contents is not None and (torn or not contents.is_complete()):
        changes = _changes(run, contents)
        begun = any(r.type is journals.Type.RANGE for r in contents.records) or contents.header.get("ranks")
        if changes and begun:
            refuse(
                run.folder,
                changes,
                "holds an in-place run that is not finished, and is not this one",
                "Some rows are changed and some are not: finish that run first, by calling it as it was called; or "
                "restore the dataset from a copy and remove the folder.",
            )
        return None if changes else contents
    if contents is None:
        return None
    last = _digest(contents.header["identity"])
    run.is_complete = last == _digest(run.identity)
    if not run.is_complete:  # the next run replaces its journal
        line = {"run": last, "name": contents.header["identity"]["name"]}
        append_line(run.folder / HISTORY, json.dumps(line).encode(), durable=True)
    return None


def _history(folder: Path) -> set[str]:
    """Runs over this dataset that were complete before the last one began."""
    return {str(line.get("run")) for line in lines(folder / HISTORY) if type(line) is dict}


def _refuse_replaced(run: Run, contents: journals.Contents | None) -> None:
    """Refuse a run of which some rows are those of before a save, and some are not."""
    over = run.is_complete
    if contents is not None and not over:
        over = contents.is_complete()
        if over and _digest(contents.header["identity"]) != _digest(run.identity):
            return  # another run, which may begin
    if contents is None and not over:
        return
    refuse(
        run.folder,
        ["a save has replaced files of the dataset since, and not all of them"],
        "holds an in-place run that is complete" if over else "holds an in-place run that is not finished",
        "To change the rows once more, call it without resume=True."
        if over
        else "Restore the dataset from a copy, or save all of its columns anew, and remove the folder.",
    )


def _refuse_unsettled(run: Run) -> None:
    raise ResumeMismatch(
        f"{run.folder}: the machine went down while this in-place run was writing, so nobody knows which changes "
        f"reached the disk.\n{AFTER_CRASH}\nA run out of place (out=a folder) goes on after that without a question.",
        ("the machine went down in the middle of an in-place run",),
    )


AFTER_CRASH = (
    f"  - Was it shut down in order, its file systems unmounted? Then everything did: resume={TRUST!r} goes on.\n"
    f"  - Does the function do no harm to rows that it has changed already? Then resume={REDO!r} runs every chunk "
    "again that is not known to have reached the disk.\n"
    "  - Otherwise restore the dataset from a copy and remove the folder."
)


def _recover(run: Run, durable: list[tuple[int, int]] | None) -> None:
    """Put back the rows of chunks that were interrupted, and learn from the workers' own notes what is done.

    Args:
        run: the run.
        durable: after the machine went down, the only chunks that are taken for done; notes and copies are not.
    """
    assert run.ledger is not None
    with without_strays(run.folder / "workers.lock"):
        if durable is not None:
            run.ledger.restart(durable)
        run.ledger.recover()
        run.committed = run.ledger.committed()


def _say_complete(run: Run, job: Job) -> None:
    where = run.folder.parent
    hint = "pass overwrite=True instead of resume=True to run it again"
    if run.identity["kind"] == IN_PLACE:
        hint = "call it without resume=True to change the rows once more"
    warn_user(
        f"{where}: the run of {run.identity['name']} was complete before, and nothing was done ({hint}).",
        AlreadyComplete,
    )
    if job.policy.skip and run.is_latest:
        run.skips.load_all()
        SkipLog(job, Callback(), run.skips).report()
