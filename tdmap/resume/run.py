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
      states, states.disk   of a reduction (see `checkpoint`)

`open_run` compares the call with what the folder holds. The same run goes on; a complete run is not done again; another
run is refused, with a list of what differs.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from tdmap.data.kinds import Data, is_opened_by_row, tensors_of
from tdmap.data.objectlog import ObjectLog
from tdmap.data.skipfile import SkipFile
from tdmap.errors import AlreadyComplete, ResumeMismatch, UntrustedFile
from tdmap.events import Callback
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory.folderlock import without_strays
from tdmap.memory.hidden import append_line, exists, lines, printable, remove, remove_tree
from tdmap.memory.regions import region_of
from tdmap.plan import ChunkPlan, subtract_ranges
from tdmap.resume import journal as journals
from tdmap.resume.fingerprint import PACKAGE, function_parts, source_parts
from tdmap.resume.journal import Journal
from tdmap.resume.ledger import Ledger
from tdmap.runtime.skiplog import SkipLog
from tensordict_lite.memmap.disk.format import REPLACED
from tensordict_lite.memmap.plan import mapped_root

HISTORY = "history.jsonl"

COMMAND: ContextVar[dict[str, Any] | None] = ContextVar("COMMAND", default=None)
"""How `tdmap resume` can call a run again; set by the command line while it begins one."""

MAP, IN_PLACE, REDUCE, STEPWISE = "map", "in place", "reduce", "several jobs"

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


def identify(job: Job, kind: str) -> dict[str, Any]:
    """The identity of a run: equal in every process for the same function, source, plan and seed."""
    plan = job.plan
    source = source_parts(job.source.data, contents=kind != IN_PLACE)
    return {
        "kind": kind,
        "name": job.name,
        "function": function_parts(job.fn),
        "source": source,
        "plan": describe_plan(plan),
        "seed": job.policy.seed,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


BY_RESULT = "by the first result"
"""The chunk size of a plan that is open."""


def describe_plan(plan: ChunkPlan) -> dict[str, Any]:
    """A plan as a dict of plain values."""
    size = f"{BY_RESULT}, after {plan.lead}" if plan.is_open else plan.size
    return {"rows": plan.length, "chunk size": size, "dim": plan.dim, "unbind": plan.unbind}


def plan_of(description: dict[str, Any], contents: journals.Contents) -> ChunkPlan:
    """The plan of a run that is journalled, as far as it is known."""
    rows, size = int(description["rows"]), description["chunk size"]
    if isinstance(size, int):
        return ChunkPlan(rows, max(size, 1))
    lead = int(str(size).rpartition(" ")[2])
    return ChunkPlan(rows, max(contents.chunk_size or rows, 1), lead=lead)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two identities, one sentence each."""
    found = []
    if old["kind"] != new["kind"]:
        found.append(f"it was a run of kind {old['kind']!r} and is one of kind {new['kind']!r}")
    parts = _changed(old["function"], new["function"])
    if old["kind"] == new["kind"] == STEPWISE:
        found += _other_call(old, new, parts)
    elif parts:
        names = f"{old['name']} has become {new['name']}" if old["name"] != new["name"] else new["name"]
        hint = ""
        if old["python"] != new["python"] and any("code" in part for part in parts):
            hint = f"; bytecode differs between Python {old['python']}, then, and {new['python']}, now"
        found.append(f"the function {names} differs in: {', '.join(parts)}{hint}")
    for key in _changed(old["source"], new["source"]):
        before, after = old["source"].get(key, "absent"), new["source"].get(key, "absent")
        found.append(f"the source's {key} was {before}, and is {after}")
    for key in _changed(old["plan"], new["plan"]):
        found.append(f"the plan's {key} was {old['plan'].get(key)}, and is {new['plan'].get(key)}")
    if old["seed"] != new["seed"]:
        found.append(f"the seed was {old['seed']}, and is {new['seed']}")
    return [printable(_STAMP.sub(_time_of, line), 4000) for line in found]


_STAMP = re.compile(r"(?<=written at )\d{12,20}")


def _time_of(nanoseconds: re.Match[str]) -> str:
    """The time of a file, for people, in the zone of this machine."""
    return f"{datetime.datetime.fromtimestamp(int(nanoseconds[0]) / 1e9):%Y-%m-%d %H:%M:%S.%f}"


def _other_call(old: dict[str, Any], new: dict[str, Any], parts: list[str]) -> list[str]:
    """How a call of an operation of several jobs differs."""
    if old["name"] != new["name"]:
        return [f"it was a call of {old['name']}, and is one of {new['name']}"]
    plain = [part for part in parts if part.startswith("the ")]
    before, after = old["function"], new["function"]
    found = [f"{part} was {before.get(part, 'absent')}, and is {after.get(part, 'absent')}" for part in plain]
    others = [part for part in parts if part not in plain]
    return found + ([f"the call of {new['name']} differs in: {', '.join(others)}"] if others else [])


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


def _digest(identity: dict[str, Any]) -> str:
    kept = {key: identity[key] for key in ("kind", "function", "source", "plan", "seed")}
    # Rows that were changed in place stay changed, whatever version of a package did it.
    kept["function"] = {key: part for key, part in kept["function"].items() if not key.startswith(PACKAGE)}
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


class RunLog:
    """A base for commit logs that keep more than which chunks are done, such as results, to resume from.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.elsewhere: list[tuple[int, int]] = []

    @property
    def skips(self) -> SkipFile:
        return self.run.skips

    def add(self, start: int, stop: int) -> None:
        self.run.add(start, stop)


@contextlib.contextmanager
def open_run(folder: Path, job: Job, kind: str, files: list[str], resume: Resume = True) -> Iterator[Run]:
    """Begin a run in `folder`, or go on with the one that is there. The caller holds the lock (see `folderlock`).

    Args:
        folder: the hidden folder.
        job: what is to be done.
        kind: `MAP`, `IN_PLACE`, `REDUCE`, `STEPWISE`, or one of `tdmap.resume.rowlog`.
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
    if kind != REDUCE:  # the states of a reduction say which of its chunks are done
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


def can_begin_anew(journal: Path, kind: str) -> bool:
    """Whether a journal without results may be replaced: it is unreadable, or of a run of this kind without ranks."""
    contents = journals.read(journal)
    if contents is None:
        return True
    return check_identity(contents.header, journal)["kind"] == kind and not contents.header.get("ranks")


def check_identity(header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The identity in the header of a journal, which is at `path`.

    Raises:
        UntrustedFile: the header is not one that this library writes.
    """
    identity = header.get("identity")
    wanted = {"kind": str, "name": str, "function": dict, "source": dict, "plan": dict, "python": str}
    if type(identity) is dict and all(type(identity.get(key)) is kind for key, kind in wanted.items()):
        if "seed" in identity and _is_plan(identity["plan"]):
            return identity
    raise UntrustedFile(path, "does not say what its run is")


def _is_plan(description: dict[str, Any]) -> bool:
    """Whether it is what `describe_plan` gives."""
    rows, size = description.get("rows"), description.get("chunk size")
    if type(size) is str:
        lead = size.removeprefix(f"{BY_RESULT}, after ")
        size = int(lead) if lead.isdecimal() and len(lead) < 19 else None
    return all(type(number) is int and 0 <= number < 1 << 62 for number in (rows, size))


def _changes(run: Run, contents: journals.Contents) -> list[str]:
    changes = differences(contents.header["identity"], run.identity)
    if bool(contents.header.get("ranks")) is not run.by_ranks and not contents.is_complete():
        who = ("one program", "ranks (shard=)")
        changes.append(f"it was a run of {who[not run.by_ranks]}, and is one of {who[run.by_ranks]}")
    return changes


def _check(run: Run, contents: journals.Contents) -> None:
    changes = _changes(run, contents)
    if changes:
        over = contents.is_complete()
        if not over and any(change.startswith("the source's") and "written at" in change for change in changes):
            changes = [*changes, WRITTEN_SINCE]
        _refuse(
            run,
            changes,
            "holds the result of another run" if over else "holds an unfinished run that is not this one",
            "Choose another folder, or pass overwrite=True instead of resume=True to "
            + ("run anew." if over else "begin anew; or call it as it was called, to go on with it."),
        )


def _check_in_place(run: Run, contents: journals.Contents | None, torn: bool) -> journals.Contents | None:
    """The journal of an unfinished run that is this one; None when there is none."""
    if contents is not None and (torn or not contents.is_complete()):
        changes = _changes(run, contents)
        begun = any(r.type is journals.Type.RANGE for r in contents.records) or contents.header.get("ranks")
        if changes and begun:
            _refuse(
                run,
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
    _refuse(
        run,
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


WRITTEN_SINCE = (
    "files of the source were written since: by the function itself, if it changes its chunks in place and returns "
    "them too. Such a function begins with chunk = chunk.clone()"
)

AFTER_CRASH = (
    f"  - Was it shut down in order, its file systems unmounted? Then everything did: resume={TRUST!r} goes on.\n"
    f"  - Does the function do no harm to rows that it has changed already? Then resume={REDO!r} runs every chunk "
    "again that is not known to have reached the disk.\n"
    "  - Otherwise restore the dataset from a copy and remove the folder."
)


def _refuse(run: Run, changes: list[str], found: str, advice: str) -> None:
    text = "\n".join(f"  - {change}" for change in changes)
    raise ResumeMismatch(f"{run.folder} {found}:\n{text}\n{advice}", tuple(changes))


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


def folder_of(data: Data) -> Path | None:
    """The folder that a whole dataset is mapped from; None for a part of one, or data in memory."""
    if not hasattr(data, "batch_size") or is_opened_by_row(data):
        return None
    root = mapped_root(data)
    return None if root is None else Path(root)


def files_of(data: Data) -> list[str]:
    """The files that a dataset lies in."""
    regions = [region_of(leaf) for leaf in tensors_of(data)]
    return [region.handle.path for region in regions if region is not None and not region.handle.anonymous]
