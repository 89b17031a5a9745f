"""Calls that can be resumed: their log, and for a run in place what tells it from others.

    out/.tdmap/             or, for an in-place run, the same folder inside the dataset
      journal               the log (see `log`)
      lock                  held by the call that works (see `folderlock`)
      workers.lock          held by its workers, as long as they may change rows in place
      skipped.jsonl         rows on which the function raised, for people
      spill-*               intermediate files, until the run is over
      data/                 a new output, until it is whole (see `outputfolder`)
      done, undo-*          of an in-place run (see `ledger`)
      history.jsonl         in-place runs that are over

`open_run` compares the call with what the folder holds. The same run resumes; a complete run is not done again; another
run is refused, with a list of what differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tdmap.errors import AlreadyComplete, ResumeMismatch
from tdmap.events import Callback
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory.folderlock import without_strays
from tdmap.memory.hidden import append_line, lines, remove, remove_tree
from tdmap.run import disk
from tdmap.run import ledger as ledgers
from tdmap.run.fingerprint import PACKAGE, without_versioned
from tdmap.run.history import AFTER_CRASH, IN_PLACE, REDO, STEPWISE, TRUST, History, check_identity
from tdmap.run.identity import OVERWRITE, refuse
from tdmap.run.ledger import Ledger
from tdmap.run.log import Log, begun, changes_of
from tdmap.run.options import Resume
from tdmap.runtime.skiplog import SkipLog
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import REPLACED

HISTORY = "history.jsonl"
"""Runs over a dataset, in place, that were complete before the last one began."""

ONCE_MORE = "call it without resume=True to change the rows once more"
"""How a run in place that is complete is begun anew, in the words of a warning; see `OVERWRITE`."""


@contextlib.contextmanager
def open_run(
    folder: Path,
    identity: dict[str, Any],
    job: Job | None = None,
    resume: Resume = True,
    *,
    files: Sequence[str] | None = (),
    lists: bool = True,
    again: str = OVERWRITE,
    warns: bool = True,
    replays: bool = False,
) -> Iterator[Log | None]:
    """Begin a run in `folder`, or resume the one that is there. The caller holds the lock (see `folderlock`).

    Args:
        folder: the hidden folder.
        identity: what tells the run from others.
        job: the one whose function may skip rows, or changes rows in place.
        resume: `TRUST` or `REDO` where the machine went down in the middle of the run.
        files: files of the output, as far as they are known. None: nothing has to reach the disk.
        lists: the rows that are skipped are listed in a file of `folder`, for people.
        again: how a run is begun anew, for the error, and the warning that it is complete.
        warns: whether there is a warning.
        replays: a run that is complete gives its log too: its jobs have their results there.

    Yields:
        Its log; None where it was complete before, unless `replays`. A warning tells of that.

    Raises:
        ResumeMismatch: the folder holds another run; names what differs.
        UntrustedFile: it holds what this library does not put there.
    """
    found = history_of(folder, identity, resume, again=again)
    history, ledger = found.history, None
    list_in = folder if lists else None
    if found.is_over or history.is_complete:
        if warns:
            text = f"the run of {identity['name']} was complete before, and nothing was done ({again})."
            warn_user(f"{folder.parent}: {text}", AlreadyComplete)
        if warns and job is not None and job.policy.skip and not found.is_over:
            SkipLog(job, Callback()).report(history.bad_rows, list_in)
        if not replays:
            yield None
            return
    elif identity["kind"] == IN_PLACE:
        assert job is not None
        with without_strays(folder / "workers.lock"):
            # A worker may have outlived its driver until now.
            history = History(folder / "journal", None if resume == TRUST else disk.boot_number())
            logged = history.ranges if history.begun and not found.is_torn else None
            ledger = Ledger(folder, job.source.data, job.plan, logged)
            if found.is_torn:
                ledger.restart(history.ranges)
            ledger.recover()
    log = Log(folder, history, ledger)
    log.list_in = list_in
    if files is not None:
        log.add_files([str(log.path), *files])
    try:
        yield log
        if ledger is not None and log.is_complete:
            ledgers.forget(folder)
    except BaseException as error:
        log.failed(error)
        raise
    finally:
        log.close()


class Found(NamedTuple):
    """What a hidden folder says of a run."""

    history: History
    is_over: bool = False
    """In place: it was complete before the run that the log is of."""
    is_torn: bool = False
    """In place: the machine went down in the middle of it."""


def history_of(
    folder: Path, identity: dict[str, Any], resume: Resume, ranks: bool = False, again: str = OVERWRITE
) -> Found:
    """The log of a run, a new one where there is none. Arguments and errors as `open_run` and `begun`."""
    boot = None if resume == TRUST else disk.boot_number()
    over = {str(line.get("run")) for line in lines(folder / HISTORY) if type(line) is dict}
    is_over = bool(over) and _digest(identity) in over
    if identity["kind"] != IN_PLACE:
        path = folder / "journal"
        return Found(History(path) if is_over else begun(folder, identity, boot, ranks, again=again), is_over)
    history = History(folder / "journal", boot)
    torn = boot is not None and not history.is_settled(boot)
    _refuse_replaced(folder, history, identity, is_over)
    if is_over:
        return Found(history, is_over)
    if torn and resume != REDO:
        _refuse_unsettled(folder)
    if history.is_complete and not torn and _is_same(folder, history, identity):
        return Found(history)
    _end_other(folder, history, identity, ranks, torn)
    return Found(begun(folder, identity, boot, ranks, durable=True), is_torn=torn)


def _end_other(folder: Path, history: History, identity: dict[str, Any], ranks: bool, torn: bool) -> None:
    """Remove what another run has left that is over, or has changed nothing.

    Raises:
        ResumeMismatch: it has changed rows, and is not over.
    """
    path = folder / "journal"
    if history.header is not None:
        old = check_identity(history.header, path)
        if history.is_complete and not torn:
            line = {"run": _digest(old), "name": old["name"]}
            append_line(folder / HISTORY, json.dumps(line).encode(), durable=True)
        else:
            changes = changes_of(history, identity, ranks, path)
            if not changes:
                return
            of_steps = old["kind"] == STEPWISE and history.begun
            said = History(path).ranges  # also what was lost with the machine: rows of it may have reached the disk
            if said or history.by_ranks or of_steps or ledgers.has_changes(folder):
                refuse(
                    folder,
                    changes,
                    "holds an unfinished in-place run that differs from this one",
                    "Only some rows are changed: finish that run first, by repeating its call; or restore "
                    "the dataset from a copy and remove its .tdmap folder.",
                )
    elif ledgers.has_changes(folder):
        refuse(
            folder,
            ["the log of the run is gone, or cut"],
            "holds an unfinished in-place run",
            "Only some rows are changed: restore the dataset from a copy and remove its .tdmap folder.",
        )
    if is_there(folder / REPLACED, follow=False):
        remove(folder / HISTORY)
        remove_tree(folder / REPLACED)
    ledgers.forget(folder)
    remove(path)


def _digest(identity: dict[str, Any]) -> str:
    names = ("name",) if identity["kind"] == STEPWISE else ()  # the function of another run is known by its parts
    kept = {key: identity[key] for key in ("kind", "function", "source", "plan", "seed", *names)}
    # Rows that were changed in place stay changed, whatever version of a package did it.
    kept["function"] = {k: part for k, part in without_versioned(kept["function"]).items() if PACKAGE not in k}
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()


def _is_same(folder: Path, history: History, identity: dict[str, Any]) -> bool:
    return history.header is not None and _digest(check_identity(history.header, folder / "journal")) == _digest(
        identity
    )


def _refuse_replaced(folder: Path, history: History, identity: dict[str, Any], over: bool) -> None:
    """Refuse a run of which some rows are those of before a save, and some are not."""
    if not is_there(folder / REPLACED, follow=False):
        return
    if history.header is not None and not over:
        over = history.is_complete
        if over and not _is_same(folder, history, identity):
            return  # another run, which may begin
    if history.header is None and not over:
        return
    refuse(
        folder,
        ["a save has replaced files of the dataset since, and not all of them"],
        "holds a complete in-place run" if over else "holds an unfinished in-place run",
        "To change the rows again, call it without resume=True."
        if over
        else "Restore the dataset from a copy, or save all of its columns again, and remove its .tdmap folder.",
    )


def _refuse_unsettled(folder: Path) -> None:
    raise ResumeMismatch(
        f"{folder}: the machine went down during this in-place run, and it is unknown which changes reached "
        f"the disk.\n{AFTER_CRASH}\nWith a folder as out=, resume=True is enough.",
        ("the machine went down in the middle of an in-place run",),
    )
