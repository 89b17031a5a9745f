"""`rows_per_shard=` and URLs: the rows of a call become a dataset of several folders, which a manifest makes one.

    driver ── shard k: rows [k * N, (k + 1) * N) ──► worker: the chunks of these rows, one after another
       ▲                                                │ writes shard k, whole
       └── rows, digest, schema, rows that failed ◄─────┘ (and notes that, where the run can be resumed)
    manifest, last

A worker runs the chunks of its shard as a job of its own, with the random streams that these rows have in any case. So
a shard is the unit of work, of retries and of resumption: there should be some for each worker.

`map` knows the places of its rows, and its function makes the shards. Other operations make one folder, and a job
without a function copies it:

    operation ──► out/.tdmap/rows, or, where `out` is a URL, a folder among the temporary files
                      └── workers, a shard each ──► `out`

So the disk holds the result once more meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tdmap.arguments import require_integer
from tdmap.data.failures import are_failures, row_errors
from tdmap.data.kinds import Data
from tdmap.data.objects import blank_like
from tdmap.data.sizes import row_bytes_of
from tdmap.edges import edge
from tdmap.errors import AlreadyComplete, FolderInUse, OutputMismatch, RowError, UntrustedFile
from tdmap.events import Callback
from tdmap.execution import Execution
from tdmap.frames import warn_user
from tdmap.job import Job, Policy, Source
from tdmap.memory import hidden
from tdmap.memory.folderlock import FolderLock
from tdmap.memory.hidden import HIDDEN, SHARDS_ROWS, parse_json, printable
from tdmap.memory.scratch import temporary_path
from tdmap.output.store import (
    NEW,
    RUN,
    WRITING,
    LocalTarget,
    ShardWriter,
    Target,
    WrittenShard,
    facts_of,
    shard_name,
)
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan, merge_ranges
from tdmap.processes import ProcessId
from tdmap.run.history import MAP, PER_SHARD, check_identity
from tdmap.run.identity import differences, identify, refuse
from tdmap.runtime.commits import KnownChunks
from tdmap.runtime.skiplog import SkipLog
from tdmap.runtime.wire.messages import Skipped
from tdmap.shards.manifest import MANIFEST, ShardEntry, pack
from tdmap.shards.opening import concat, open
from tdmap.shards.sharded import ShardedDataset
from tdmap.shards.sources import digest_of_bytes
from tensordict_lite import is_tensor_collection
from tensordict_lite.memmap.disk.contents import owned, refuse_others, refuse_part
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import META, PICKLES, SUFFIX
from tensordict_lite.paths import is_url, local_path

CHUNK_BYTES = 4 << 20
"""Rows that are copied at a time."""

SHARD_BYTES = 64 << 20
"""Bytes of input of a shard in a store, without `rows_per_shard`."""

MIN_SHARDS = 16
"""And there are at least so many, rows permitting."""


class Shards:
    """A dataset of shards, as the output of an operation.

    Args:
        out: a folder, or the URL of a place in a store.
        rows_per_shard: rows of a shard. None: those of about 64 MiB.
        execution: who writes them.
        overwrite: replace the dataset that is there, once the new one is complete.
        options: of the store's file system.

    Raises:
        ValueError: `out` is no path, or an option is out of range.
    """

    def __init__(
        self,
        out: object,
        rows_per_shard: int | None,
        execution: Execution,
        overwrite: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        number = rows_per_shard
        if number is not None:
            require_integer("rows_per_shard", number, 1)
        if not isinstance(out, (str, os.PathLike)):
            raise ValueError("rows_per_shard= writes a folder of shards: pass out=its path, or a URL.")
        path = os.fspath(out)
        if is_url(path):
            self.target: Target = edge("shards in an object store")(path, dict(options or {}))
        else:
            self.target = LocalTarget(local_path(path))
        self.rows_per_shard = rows_per_shard
        self.execution = execution
        self.overwrite = overwrite
        self._above = None if isinstance(self.target, LocalTarget) else temporary_path("tdmap-rows")

    @property
    def folder(self) -> str:
        """Where the operation writes its rows."""
        return f"{self._above or f'{self.target.name}/{HIDDEN}'}/{SHARDS_ROWS}"

    def known_by(self, identity: dict[str, Any]) -> None:
        """Have the rows of a dataset in a store lie in a folder that another session of the same call finds again."""
        if self._above is not None:
            call = json.dumps([self.target.name, identity], sort_keys=True)
            name = hashlib.blake2b(call.encode(), digest_size=8).hexdigest()
            self._above = os.path.join(tempfile.gettempdir(), f"tdmap-rows-of-{os.geteuid()}-{name}")

    @contextlib.contextmanager
    def claimed(self, call: str, resume: bool) -> Iterator[None]:
        """Be the only writer; the rows are removed afterwards, unless the call can be resumed.

        Raises:
            FolderInUse: another call writes there.
            FileExistsError: something is in the place of the shards.
            ValueError: `resume`, and the dataset that is there is to be replaced.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._alone(call, resume))
            begun = is_there(f"{self.folder}/{HIDDEN}/journal", follow=False)
            if begun and not (resume or self.overwrite):
                raise FileExistsError(
                    f"{self.target.name} holds an unfinished run: pass resume=True to resume it, or overwrite=True to "
                    "replace it."
                )
            if not (resume and _known(self.target)[0] is not None):
                replaceable(self.target, self.overwrite)
            if self._above is not None:
                hidden.make_folder(self._above, 0o700)
                stack.callback(_remove_if_empty, self._above)
            if not (resume and begun):
                hidden.remove_tree(self.folder)  # of a call that was killed, also while it removed them
            if not resume:
                stack.callback(self._forget)
            yield

    @contextlib.contextmanager
    def _alone(self, call: str, resume: bool) -> Iterator[None]:
        """Be the only one who writes the target, where it is a folder."""
        target = self.target
        if resume and self.overwrite:
            raise ValueError(
                "resume=True resumes the run in the folder, and overwrite=True replaces the dataset: pass only one."
            )
        if not isinstance(target, LocalTarget):
            yield
            return
        with FolderLock(Path(target.name), call):
            yield

    def _forget(self) -> None:
        """Remove the rows."""
        hidden.remove_tree(self._above or self.folder)

    def complete(self, identity: dict[str, Any], call: str) -> Data | None:
        """The dataset, where an earlier session has written all of it, of which a warning tells; None where something
        is left to do.

        Raises:
            ResumeMismatch: another call has written there.
        """
        known, whole = _known(self.target)
        if known is None:
            return None
        header = _compared(self.target, self._identity(identity), known, whole)
        if not whole:
            return None
        _finish(self.target, header["run"], call)
        self._forget()  # of a session that was killed before it did
        return self.open()

    def open(self) -> Data:
        """The dataset."""
        return open(self.target.name, storage_options=self.target.options)

    def _identity(self, identity: dict[str, Any]) -> dict[str, Any]:
        """What a run that copies the rows of a call is known by."""
        plan = {**identity["plan"], PER_SHARD: self.rows_per_shard or 0}
        found: dict[str, Any] = json.loads(json.dumps({**identity, "plan": plan}))
        return found

    def map(self, job: Job, resume: bool, spill_dir: str | None = None) -> Data:
        """Run a job whose results become the rows of the shards, and open them.

        Args:
            job: what to run.
            resume: only for the shards that an earlier call has not written.
            spill_dir: where ragged results wait for their places. None: beside them.

        Raises:
            FileExistsError: something else is there, or an unfinished run and not `resume`.
            ResumeMismatch: `resume`, and the run that is there is another.
            OutputMismatch: shards have other keys, dtypes or row shapes than the others.
        """
        rows = self._rows_of(job)
        with self._alone(f"map({job.name})", resume):
            identity = None
            if resume:
                identity = identify(job, MAP)
                identity["plan"][PER_SHARD] = rows
            return _Run(self, job, rows, identity, spill_dir).run()

    def write(self, made: Data, policy: Policy, identity: dict[str, Any] | None = None) -> Data:
        """Copy the rows of the folder into shards, and open them. `policy` is that of the job; errors as `map`."""
        length = int(made.shape[0])
        plan = ChunkPlan(length, max(min(CHUNK_BYTES // max(row_bytes_of(made, length), 1), length), 1))
        job = Job(Source(made), plan, as_it_is, policy)
        known = None if identity is None else self._identity(identity)
        found = _Run(self, job, self._rows_of(job), known).run()
        if identity is not None:
            self._forget()
        return found

    def _rows_of(self, job: Job) -> int:
        """Rows of the source whose results make one shard."""
        if self.rows_per_shard:
            return self.rows_per_shard
        length = job.plan.length
        return max(min(SHARD_BYTES // max(row_bytes_of(job.source.data, length), 1), -(-length // MIN_SHARDS)), 1)


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def as_it_is(rows: Data) -> Data:
    """The function of the copy."""
    return rows


class _Run:
    """Writes the shards of one call, and the manifest.

    Args:
        shards: where; the target is claimed.
        job: makes their rows.
        rows: of the source, whose results make one shard.
        identity: what a run is known by that can be resumed; None: it cannot.
        spill_dir: where ragged results wait for their places. None: beside them.
    """

    def __init__(
        self,
        shards: Shards,
        job: Job,
        rows: int,
        identity: dict[str, Any] | None,
        spill_dir: str | None = None,
    ) -> None:
        self.shards = shards
        self.target = shards.target
        self.job = job
        self.rows = rows
        self.spill_dir = spill_dir
        self.identity: dict[str, Any] | None = None if identity is None else json.loads(json.dumps(identity))
        self._replaces: set[str] = set()
        self._skipped: list[RowError] = []

    def run(self) -> Data:
        name, done = self._begin()
        if done is None:
            return self.shards.open()
        try:
            found = self._execute(name, done)
            self._tell(found)
            self._add_blanks(found, name)
            self._check(found, name)
            self._publish(name, found)
        except BaseException:
            if self.identity is None:
                self._discard(name)
            raise
        return self.shards.open()

    def _begin(self) -> tuple[str, dict[int, WrittenShard] | None]:
        """The name of the run, and the shards that are done; None where all of it is."""
        known, whole = (None, False) if self.identity is None else _known(self.target)
        if self.identity is not None and known is not None:
            return self._go_on(self.identity, known, whole)
        self._replaces = replaceable(self.target, self.shards.overwrite)
        name = secrets.token_hex(4)
        if self.identity is None:
            self._note(name, [])
        else:
            header = {"run": name, "identity": self.identity, "began": time.time(), "sessions": 1, "argv": sys.argv}
            self.target.write(RUN, json.dumps(header).encode())
        return name, {}

    def _note(self, name: str, replaces: list[str]) -> None:
        """Say what a killed run has left: its shards until there is a manifest, from then on the files it replaces."""
        record = {"run": name, "process": [*ProcessId.own()], "replaces": replaces}
        self.target.write(WRITING, json.dumps(record).encode())

    def _go_on(self, identity: dict[str, Any], known: bytes, whole: bool) -> tuple[str, dict[int, WrittenShard] | None]:
        header = _compared(self.target, identity, known, whole)
        name = header["run"]
        if whole:
            _finish(self.target, name, self.job.name)
            return name, None
        sessions = header["sessions"] if type(header.get("sessions")) is int else 1
        self.target.write(RUN, json.dumps({**header, "sessions": sessions + 1}).encode())
        done: dict[int, WrittenShard] = {}
        for number, note in self.target.notes(name).items():
            done[number], skipped = _noted(f"{self.target.name}/{RUN}, shard {number}", note)
            self._skipped += skipped
        return name, done

    def _execute(self, name: str, done: dict[int, WrittenShard]) -> list[WrittenShard]:
        job, length = self.job, self.job.plan.length
        writer = ShardWriter(job, self.target, name, self.rows, self.identity is not None, self.spill_dir)
        if not length:
            return [WrittenShard(*writer(job.source.data, 0))]
        chunks = -(-self.rows // max(job.plan.size, 1))
        policy = replace(
            job.policy,
            seed=None,
            skip="",
            in_place=False,
            timeout=None if job.policy.timeout is None else job.policy.timeout * chunks,
        )
        outer = Job(Source(_lazy(job.source.data)), ChunkPlan(length, self.rows), writer, policy)
        log = KnownChunks(merge_ranges([(number, number + 1) for number in done]))
        values = self.shards.execution.run(outer, Collect(), log)
        return [done[number] if value is None else WrittenShard(*value) for number, value in enumerate(values)]

    def _tell(self, found: list[WrittenShard]) -> None:
        """Tell the handler of the job, or warn, of the rows that raised.

        Raises:
            Exception: every row of the call raised, or most results do not fit.
        """
        if not self.job.policy.skip:
            return
        plan = ChunkPlan(self.job.plan.length, self.rows)
        skips = SkipLog(replace(self.job, plan=plan), Callback())
        skips.begin(0, self._skipped)
        for number, done in enumerate(found):
            skips.add(Skipped(self.job.number, 0, number, tuple(done.skipped)))
        skips.commit(0, len(found))
        skips.finish(plan.length)

    def _add_blanks(self, found: list[WrittenShard], name: str) -> None:
        """Write the shards of which every row raised like one of the others."""
        for number in [number for number, done in enumerate(found) if done.schema is None]:
            known = next(number for number, done in enumerate(found) if done.schema is not None)
            example = open(f"{self.target.name}/{shard_name(name, known)}", storage_options=self.target.options)
            shard = blank_like(example[torch.zeros(found[number].rows, dtype=torch.int64)])
            meta = self.target.write_shard(shard_name(name, number), shard.memmap)
            length, nbytes, schema = facts_of(shard)
            found[number] = WrittenShard(length, digest_of_bytes(meta), nbytes, schema, [])

    def _check(self, found: list[WrittenShard], name: str) -> None:
        for number, done in enumerate(found):
            if done.schema != found[0].schema:
                mine, theirs = ({tuple(field[0]): field[1:] for field in one.schema or ()} for one in (found[0], done))
                keys = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)] or [()]
                what = f"the entry {keys[0][0] if len(keys[0]) == 1 else keys[0]!r}" if keys[0] else "the whole"
                raise OutputMismatch(
                    f"shards of {self.target.name} differ: {what} is {theirs.get(keys[0], 'absent')} in rows "
                    f"{number * self.rows}:{(number + 1) * self.rows}, and {mine.get(keys[0], 'absent')} in the first."
                )
        if isinstance(self.target, LocalTarget):
            for number in range(len(found)):
                folder = f"{self.target.name}/{shard_name(name, number)}"
                if not is_there(f"{folder}/{META}"):
                    raise FileNotFoundError(
                        f"{folder} was written, and cannot be found on this machine: workers on other "
                        "machines must share the folder of out, or out must be a URL."
                    )

    def _publish(self, name: str, found: list[WrittenShard]) -> None:
        kept = [(number, done) for number, done in enumerate(found) if done.rows] or [(0, found[0])]
        shards = [ShardEntry(shard_name(name, number), done.rows, done.meta, done.nbytes) for number, done in kept]
        if not self.shards.overwrite and {MANIFEST, META} & self.target.names():
            raise FileExistsError(f"another call has written a dataset to {self.target.name} during this call.")
        empty = [shard_name(name, number) for number, done in enumerate(found) if (number, done) not in kept]
        old = self._replaces - {MANIFEST}
        if empty:
            old |= {file for file in self.target.listing()[0] if file.partition("/")[0] in empty}
        if old:
            self._note(name, sorted(old))
        with self.target.turn():
            self.target.write(MANIFEST, pack(shards))
            self.target.remove(old)
        _forget(self.target, name)
        if self.shards.overwrite:  # of a run whose shards were replaced, which would go on or be complete
            earlier = _run_in(self.target.read(RUN))
            self.target.remove_state(RUN, *([f"{HIDDEN}/{earlier}"] if earlier.isalnum() else []))

    def _discard(self, name: str) -> None:
        with contextlib.suppress(Exception):
            self.target.remove(_shards_of(name, set(self.target.listing()[0])))
            _forget(self.target, name)


# -- what a target says of its run ---------------------------------------------------------------------


def replaceable(target: Target, overwrite: bool) -> set[str]:
    """The files of a target that a new dataset replaces, once what a killed run has left is removed.

    Raises:
        FileExistsError: other files are there, or a dataset and not `overwrite`, or a run that can be resumed.
        FolderInUse: another process writes there.
    """
    names = target.names()
    if not names:
        return set()
    known = target.read(RUN) if HIDDEN in names else None
    listed, read = target.listing()
    files = {file for file in listed if not file.startswith(f"{HIDDEN}/")}
    left = _left_in(target, files, overwrite) if HIDDEN in names else set()
    if overwrite:
        resumable = _shards_of(_run_in(known), files)
        if isinstance(target, LocalTarget):
            refuse_part(target.name)
        refuse_others(target.name, lambda: sorted(files - owned(listed, read) - left - resumable))
        return files
    if files - left or known is not None:
        raise FileExistsError(_in_the_way(target, files, known))
    if isinstance(target, LocalTarget) and is_there(f"{target.name}/{HIDDEN}/journal", follow=False):
        raise FileExistsError(
            f"{target.name} holds an unfinished run of a call without rows_per_shard=: resume it by calling it as "
            "it was called, with resume=True, or choose another place, or pass overwrite=True."
        )
    target.remove(left)
    if isinstance(target, LocalTarget):
        target.remove_state(NEW)
    return set()


def _in_the_way(target: Target, files: set[str], known: bytes | None) -> str:
    where = target.name
    if files & {MANIFEST, META}:
        return f"{where} holds a dataset already: choose another place, or pass overwrite=True."
    if known is not None:
        return f"{where} holds an unfinished run: pass resume=True to resume it, or overwrite=True to replace it."
    return f"{where} is not empty ({', '.join(sorted(files)[:3])}...): choose an empty or new folder."


def _left_in(target: Target, files: set[str], overwrite: bool) -> set[str]:
    """Files that a run has left which was killed, and which cannot be resumed.

    Raises:
        FolderInUse: it still runs. The lock of a folder says that it does not.
    """
    record = _parsed(target.read(WRITING))
    if not isinstance(target, LocalTarget) and not overwrite and record:
        try:
            process = ProcessId(*record.get("process", ()))
            alive = process.is_alive
        except (TypeError, OverflowError):
            alive = False
        if alive is not False:
            ended = "" if alive else " If it has ended, pass overwrite=True."
            raise FolderInUse(
                f"{target.name} is being written by process {process.pid} on {printable(process.host)}. Wait "
                f"until it has ended, or choose another folder.{ended}",
                target.name,
            )
    run = str(record.get("run", ""))
    if not run or f'"shard-{run}-'.encode() not in (target.read(MANIFEST) or b""):
        return _shards_of(run, files) | (files & {f"{MANIFEST}.new"} if record else set())
    replaced = [str(name) for name in record["replaces"]] if isinstance(record.get("replaces"), list) else []
    folders = {f"{name.rpartition('/')[0]}/" for name in replaced}
    return files.intersection(replaced) | {name for name in files if name in folders or f"{name}{META}" in replaced}


def _run_in(known: bytes | None) -> str:
    return str(_parsed(known).get("run", ""))


def _parsed(data: bytes | None) -> dict[str, Any]:
    """What a file of the hidden folder says; nothing where it is damaged."""
    with contextlib.suppress(ValueError):
        value = parse_json(data or b"")
        return value if isinstance(value, dict) else {}
    return {}


def _shards_of(run: str, files: set[str]) -> set[str]:
    """The files of the shards of a run; one that is sent to a store when its process is killed has no metadata."""
    ends = "|".join((rf"[^/]*{re.escape(SUFFIX)}", META, *PICKLES))
    mine = re.compile(rf"shard-{re.escape(run)}-\d{{5,}}/(.*/)?({ends})?")  # or an empty folder
    return {file for file in files if run and mine.fullmatch(file)}


def _known(target: Target) -> tuple[bytes | None, bool]:
    """What a target says of a run that can be resumed, and whether the dataset is there."""
    names = target.names()
    return target.read(RUN) if HIDDEN in names else None, MANIFEST in names


def _forget(target: Target, run: str) -> None:
    """Remove what a run needed to be resumed."""
    target.remove_state(f"{HIDDEN}/{run}", NEW, WRITING)


def _compared(target: Target, identity: dict[str, Any], known: bytes, whole: bool) -> dict[str, Any]:
    """What a target says of its run.

    Raises:
        ResumeMismatch: it is another one.
        UntrustedFile: it says what this library does not write.
    """
    where = f"{target.name}/{RUN}"
    try:
        header: dict[str, Any] = parse_json(known)
        name, old = header["run"], check_identity(header, Path(where))
        changes = differences(old, identity)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UntrustedFile(where, "does not say what its run is") from None
    if not isinstance(name, str) or not name.isalnum():
        raise UntrustedFile(where, "does not say what its run is")
    if changes:
        what = "the result of another run" if whole else "an unfinished run that differs from this one"
        refuse(target.name, changes, f"holds {what}", "Choose another folder or URL, or remove that one.")
    return header


def _finish(target: Target, run: str, call: str) -> None:
    """Warn that a run was complete before; finish what a process was killed at."""
    if target.read(WRITING) is not None:  # killed between the manifest and its end
        target.remove(_left_in(target, set(target.listing()[0]), overwrite=True))
    _forget(target, run)
    warn_user(
        f"{target.name}: the run of {call} was complete before, and nothing was done (remove it to run it again).",
        AlreadyComplete,
    )


def _noted(where: str, note: bytes) -> tuple[WrittenShard, list[RowError]]:
    try:
        value = parse_json(note)
        if not are_failures(value["skipped"]):
            raise ValueError("no rows that raised")
        skipped = row_errors([value["skipped"]])
        done = WrittenShard(value["rows"], value["meta"], value["nbytes"], value["schema"], [])
    except (ValueError, LookupError, TypeError) as error:
        raise UntrustedFile(where, f"is not a record of a writer of shards ({error})") from None
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (done.rows, done.nbytes)):
        raise UntrustedFile(where, f"does not say how many rows it has: {done.rows!r:.40}")
    return done, skipped


def _lazy(data: Data) -> Data:
    """The dataset as one whose slices are names of rows, which a worker reads chunk by chunk."""
    if not isinstance(data, ShardedDataset) and not is_tensor_collection(data):
        return data
    whole = data if isinstance(data, ShardedDataset) else concat([data])
    return whole.window(0, len(whole), lazy=True)
