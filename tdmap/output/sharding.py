"""A run whose result is a dataset of several folders: each is made by one worker, and a manifest makes them one.

    driver ── shard k: rows [k * N, (k + 1) * N) ──► worker: the chunks of these rows, one after another
       ▲                                                │ writes shard k, whole
       └── rows, digest, schema, rows that failed ◄─────┘ (and notes that, where the run can be resumed)
    manifest, last

A worker runs the chunks of its shard as a job of its own, with the random streams that these rows have in any case. So
a shard is the unit of work, of retries and of resumption: there should be some for each worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.data.failures import are_failures, failure, row_errors
from tdmap.data.join import allocate_like
from tdmap.data.kinds import Data, data_length, tensors_of
from tdmap.data.objects import KeyPath, blank_like, with_objects
from tdmap.data.schema import Schema
from tdmap.data.sizes import row_bytes_of
from tdmap.data.store import OutputFolder
from tdmap.errors import AlreadyComplete, FolderInUse, OutputMismatch, UntrustedFile
from tdmap.events import Callback
from tdmap.execution import Execution
from tdmap.frames import warn_user
from tdmap.job import Job, Source, function_name
from tdmap.memory.folderlock import locked
from tdmap.memory.hidden import HIDDEN, parse_json, printable
from tdmap.plan import ChunkPlan, merge_ranges
from tdmap.process_state import ProcessId
from tdmap.rowerrors import RowError
from tdmap.run.identity import COMMAND, MAP, check_identity, differences, identify, refuse
from tdmap.run.log import EarlierSkips
from tdmap.run.resumable import fill_folder
from tdmap.runtime.commits import KnownChunks
from tdmap.runtime.skiplog import SkipLog
from tdmap.runtime.skipping import DROP
from tdmap.runtime.wire.messages import Skipped
from tdmap.runtime.wire.remote import PackedError, pack_error, unpack_error
from tdmap.sinks import Folder
from tdmap.sinks.collect import Collect
from tdmap.stores.manifest import MANIFEST, ShardEntry, pack
from tdmap.stores.opening import concat, open
from tdmap.stores.sharded import ShardedDataset
from tdmap.stores.sources import digest_of_bytes
from tdmap.stores.targets import NEW, PER_SHARD, RUN, WRITING, LocalTarget, StoreTarget, Target
from tensordict_lite import is_tensor_collection
from tensordict_lite.memmap.disk.contents import owned, refuse_others, refuse_part
from tensordict_lite.memmap.disk.format import META, PICKLES, SUFFIX
from tensordict_lite.paths import is_url, local_path

SHARD_BYTES = 64 << 20
"""Bytes of input of a shard in a store, without `rows_per_shard`."""

MEMORY_BYTES = 128 << 20
"""A shard of at most so many bytes of input is made in the worker's memory, where it goes to a store."""

MIN_SHARDS = 16
"""and there are at least so many, rows permitting."""


class WrittenShard(NamedTuple):
    """What a worker says of a shard that it has written."""

    rows: int
    meta: str
    nbytes: int
    schema: list[Any] | None
    """Its fields, as plain values; None where every row raised, and the shard is not written yet."""
    skipped: list[tuple[int, PackedError]]
    """Rows that raised, counted from the first of the shard; none of a shard of an earlier session."""


class ShardWriter:
    """Makes one shard of the rows that it is called with: runs in a worker."""

    takes_start = True

    def __init__(self, job: Job, target: Target, run: str, rows_per_shard: int, noted: bool, execute: Any) -> None:
        self.fn = job.fn
        self.plan = job.plan
        self.policy = job.policy
        self.collects = job.policy.skip != ""
        self.chunk_bytes = job.chunk_bytes
        self.target = target
        self.run = run
        self.rows_per_shard = rows_per_shard
        self.noted = noted
        self.write = execute
        self.__qualname__ = function_name(job.fn)

    def shared_tensors(self) -> Any:
        """The parameters that the function would share with other workers."""
        shared = getattr(self.fn, "shared_tensors", None)
        return () if shared is None else shared()

    def __call__(self, rows: Data, start: int = 0) -> Any:
        number = start // self.rows_per_shard
        skipped: list[tuple[int, PackedError]] = []
        count = data_length(rows, 0)

        def collect(error: BaseException, at: tuple[int, int]) -> None:
            skipped.append((at[0] - start, pack_error(error)))

        job = Job(
            Source(rows.window(0, count, lazy=False) if isinstance(rows, ShardedDataset) else rows),
            replace(self.plan, length=count, origin=start),
            self.fn,
            replace(self.policy, timeout=None, part_of_call=True),
            on_row_error=collect if self.collects else None,
            chunk_bytes=self.chunk_bytes,
        )
        try:
            done = WrittenShard(*self._written(job, rows, count, number), skipped)
        except Exception:
            if not count or len(skipped) < count:
                raise
            done = WrittenShard(count, "", 0, None, skipped)
        if self.noted:
            raised = [failure(start + offset, unpack_error(packed), packed.text) for offset, packed in skipped]
            note = {**done._asdict(), "skipped": raised}
            self.target.write(f".tdmap/{self.run}/{number:05d}", json.dumps(note).encode())
        return tuple(done)

    def _written(self, job: Job, rows: Data, count: int, number: int) -> tuple[int, str, int, list[Any]]:
        """Write the shard of these rows; the first fields of `WrittenShard`."""
        written: list[Any] = []

        def make(folder: str) -> Data:
            written[:] = _facts(result := self.write(job, folder))
            return result

        ahead = getattr(rows, "fetch_next", None)
        small = row_bytes_of(rows, count) * count <= MEMORY_BYTES
        if small and count and hasattr(rows, "prefetch"):
            rows.prefetch(0, count)  # in as few requests as can be, where the chunks would make one each
        if is_url(self.target.name) and count and small and self.write is write_folder:
            made = _in_memory(job)
            written = _facts(made.data)
            if ahead is not None:
                ahead()
            meta = self.target.write_rows(shard_name(self.run, number), made.data, made.buffers)
            made.give_back()
        else:
            meta = self.target.write_shard(shard_name(self.run, number), make)
        length, nbytes, schema = written
        return length, digest_of_bytes(meta), nbytes, schema


def _facts(result: Data) -> list[Any]:
    """Rows, bytes and fields of a shard."""
    fields = [[list(f.path), f.kind, str(f.dtype), list(f.shape)] for f in Schema(result[:0]).fields]
    return [int(result.shape[0]), sum(leaf.nbytes for leaf in tensors_of(result)), fields]


class _Memory:
    """A place for a shard that is sent from the memory of the worker (see `tdmap.sinks.Folder`)."""

    def __init__(self) -> None:
        self.data: Data = None
        self.buffers: dict[int, bytearray] = {}
        """What the tensors lie in, by their addresses: the libraries of stores take no other memory without a copy."""

    def load(self) -> Data | None:
        return None

    def create(self, example: Data) -> Data:
        self.data = allocate_like(example, ChunkPlan(len(example), len(example)), self._empty)
        return self.data

    def _empty(self, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        if not shape.numel():
            return torch.empty(shape, dtype=dtype)
        nbytes = shape.numel() * dtype.itemsize
        spare = _spare.get(nbytes)
        buffer = spare.pop() if spare else bytearray(nbytes)
        tensor = torch.frombuffer(buffer, dtype=dtype).view(shape)
        self.buffers[tensor.data_ptr()] = buffer
        return tensor

    def give_back(self) -> None:
        """The shard has been sent: the next one of this process uses its memory, whose pages are there."""
        self.data = None
        _spare.clear()
        for buffer in self.buffers.values():
            _spare.setdefault(len(buffer), []).append(buffer)
        self.buffers = {}

    def complete(self, data: Data, columns: dict[KeyPath, Any], order: Sequence[KeyPath] = ()) -> Data:
        self.data = with_objects(data, columns, order)
        return self.data


_spare: dict[int, list[bytearray]] = {}
"""Memory of the last shard that this process has sent."""


def _in_memory(job: Job) -> _Memory:
    """The result of a job, with every row in its place, as `write_folder` would write it."""
    memory = _Memory()
    Execution(num_workers=0).run(job, Folder(memory, lambda data: None))
    return memory


def write_folder(job: Job, folder: str, spill_dir: str | None = None) -> Data:
    """The result of a job, in a folder; every row has its place."""
    store = OutputFolder(folder)
    with store.claimed(f"map({job.name})"):
        return fill_folder(job, store, Execution(num_workers=0), None, spill_dir)


def shard_name(run: str, number: int) -> str:
    """The folder of a shard."""
    return f"shard-{run}-{number:05d}"


def target_of(out: str | os.PathLike[str], options: dict[str, Any] | None) -> Target:
    """Where `out` is."""
    path = os.fspath(out)
    if is_url(path):
        return StoreTarget(path, options or {})
    return LocalTarget(local_path(path))


def check_rows_per_shard(value: Any) -> None:
    """Raise ValueError unless it is a number of rows."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"rows_per_shard must be a number of rows, at least 1: got {value!r}.")


def default_rows(data: Data, length: int) -> int:
    """Rows of a shard in a store, without `rows_per_shard`."""
    return max(min(SHARD_BYTES // max(row_bytes_of(data, length), 1), -(-length // MIN_SHARDS)), 1)


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
    if isinstance(target, LocalTarget) and os.path.lexists(f"{target.name}/{HIDDEN}/journal"):
        raise FileExistsError(
            f"{target.name} holds an unfinished run of a call without rows_per_shard=: go on with it by calling it as "
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
    return f"{where} is not empty ({', '.join(sorted(files)[:3])}...): choose a place of its own."


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
                f"{target.name} is being written by process {process.pid} on {printable(process.host)}: wait until "
                f"that is done, or choose another place.{ended}",
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


def map_to_target(
    job: Job,
    target: Target,
    rows_per_shard: int | None,
    execution: Execution,
    resume: bool = False,
    overwrite: bool = False,
    write: Callable[[Job, str], Data] = write_folder,
    identity: dict[str, Any] | None = None,
) -> Data:
    """Run a job whose results become a new dataset of several folders.

    Args:
        job: what to run.
        target: where, `claimed`.
        rows_per_shard: rows of the source whose results make one shard. Default: those of about 64 MiB.
        execution: who runs it.
        resume: go on with the shards that an earlier call has not written.
        overwrite: replace the dataset that is there, once the new one is whole.
        write: makes one shard in a local folder.
        identity: what the run is known by, instead of by the job.

    Raises:
        FileExistsError: something else is there, or an unfinished run and not `resume`.
        ResumeMismatch: `resume`, and the run that is there is another.
        OutputMismatch: shards have other keys, dtypes or row shapes than the others.
    """
    rows = rows_per_shard or default_rows(job.source.data, job.plan.length)
    return _Sharding(job, target, rows, execution, write, identity).run(resume, overwrite)


@contextlib.contextmanager
def claimed(target: Target, call: str) -> Iterator[None]:
    """Be the only one who writes a target, where it is a folder."""
    if not isinstance(target, LocalTarget):
        yield
        return
    if os.path.lexists(target.name) and not os.path.isdir(target.name):
        raise FileExistsError(f"{target.name} is a file, and a dataset of shards is a folder: choose another path.")
    with locked(Path(target.name), call):
        yield


class _Sharding:
    """One call of `map_to_target`."""

    def __init__(
        self,
        job: Job,
        target: Target,
        rows: int,
        execution: Execution,
        write: Any,
        identity: dict[str, Any] | None = None,
    ) -> None:
        self.identity = identity
        self.job = job
        self.target = target
        self.rows = rows
        self.execution = execution
        self.write = write
        self.count = max(-(-job.plan.length // rows), 1)
        self._replaces: set[str] = set()
        self._skipped: list[RowError] = []

    def run(self, resume: bool, overwrite: bool) -> Data:
        identity = self._identity() if resume else None
        name, done = self._begin(identity, overwrite)
        if done is None:
            return open(self.target.name, storage_options=self.target.options)
        try:
            found = self._execute(name, done, noted=resume)
            self._tell(found)
            self._add_blanks(found, name)
            self._check(found, name)
            self._publish(name, found, overwrite, resume)
        except BaseException:
            if not resume:
                self._discard(name)
            raise
        return open(self.target.name, storage_options=self.target.options)

    def _identity(self) -> dict[str, Any]:
        found = self.identity
        if found is None:
            found = identify(self.job, MAP)
            found["plan"][PER_SHARD] = self.rows
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    def _begin(self, identity: dict[str, Any] | None, overwrite: bool) -> tuple[str, dict[int, WrittenShard] | None]:
        """The name of the run, and the shards that are done; None where all of it is."""
        names = self.target.names()
        known = self.target.read(RUN) if HIDDEN in names else None
        if identity is not None and known is not None:
            return self._go_on(identity, known, MANIFEST in names)
        self._replaces = replaceable(self.target, overwrite)
        name = secrets.token_hex(4)
        if identity is None:
            self._note(name, [])
        else:
            header = {"run": name, "identity": identity, "began": time.time(), "sessions": 1, "argv": sys.argv}
            self.target.write(RUN, json.dumps({**header, "command": COMMAND.get()}).encode())
        return name, {}

    def _note(self, name: str, replaces: list[str]) -> None:
        """Say what a killed run has left: its shards until there is a manifest, from then on the files it replaces."""
        record = {"run": name, "process": [*ProcessId.own()], "replaces": replaces}
        self.target.write(WRITING, json.dumps(record).encode())

    def _go_on(self, identity: dict[str, Any], known: bytes, whole: bool) -> tuple[str, dict[int, WrittenShard] | None]:
        header = compared(self.target, identity, known, whole)
        name = header["run"]
        if whole:
            finished(self.target, name, self.job.name)
            return name, None
        sessions = header["sessions"] if type(header.get("sessions")) is int else 1
        self.target.write(RUN, json.dumps({**header, "sessions": sessions + 1}).encode())
        done: dict[int, WrittenShard] = {}
        for number, note in self.target.notes(name).items():
            done[number], skipped = _noted(f"{self.target.name}/{RUN}, shard {number}", note)
            self._skipped += skipped
        return name, done

    def _execute(self, name: str, done: dict[int, WrittenShard], noted: bool) -> list[WrittenShard]:
        """Have all shards written that are not done."""
        job, length = self.job, self.job.plan.length
        writer = ShardWriter(job, self.target, name, self.rows, noted, self.write)
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
        values = self.execution.run(outer, Collect(), log)
        return [done[number] if value is None else WrittenShard(*value) for number, value in enumerate(values)]

    def _tell(self, found: list[WrittenShard]) -> None:
        """Tell the handler of the job, or warn, of the rows that raised.

        Raises:
            Exception: every row of the call raised, or most results do not fit.
        """
        plan = ChunkPlan(self.job.plan.length, self.rows)
        skips = SkipLog(replace(self.job, plan=plan), Callback(), EarlierSkips(None, 0, self._skipped))
        skips.begin()
        for number, done in enumerate(found):
            skips.add(Skipped(self.job.number, 0, number, tuple(done.skipped)))
        skips.commit(0, len(found))
        skips.finish(plan.length)

    def _add_blanks(self, found: list[WrittenShard], name: str) -> None:
        """Write the shards of which every row raised like one of the others."""
        for number in [number for number, done in enumerate(found) if done.schema is None]:
            known = next(number for number, done in enumerate(found) if done.schema is not None)
            example = open(f"{self.target.name}/{shard_name(name, known)}", storage_options=self.target.options)
            rows = 0 if self.job.policy.skip == DROP else found[number].rows
            shard = blank_like(example[torch.zeros(rows, dtype=torch.int64)])
            meta = self.target.write_shard(shard_name(name, number), shard.memmap)
            length, nbytes, schema = _facts(shard)
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
                if not os.path.exists(f"{folder}/{META}"):
                    raise FileNotFoundError(
                        f"{folder} was written, and is not here: workers on other machines must share the folder of "
                        "out, or out must be the URL of a store."
                    )

    def _publish(self, name: str, found: list[WrittenShard], overwrite: bool, resume: bool) -> None:
        kept = [(number, done) for number, done in enumerate(found) if done.rows] or [(0, found[0])]
        shards = [ShardEntry(shard_name(name, number), done.rows, done.meta, done.nbytes) for number, done in kept]
        if not overwrite and {MANIFEST, META} & self.target.names():
            raise FileExistsError(f"{self.target.name} has got a dataset of another call meanwhile.")
        empty = [shard_name(name, number) for number, done in enumerate(found) if (number, done) not in kept]
        old = self._replaces - {MANIFEST}
        if empty:
            old |= {file for file in self.target.listing()[0] if file.partition("/")[0] in empty}
        if old:
            self._note(name, sorted(old))
        self.target.write(MANIFEST, pack(shards))
        self.target.remove(old)
        self._forget(name)
        if overwrite:  # of a run whose shards were replaced, which would go on or be complete
            earlier = _run_in(self.target.read(RUN))
            self.target.remove_state(RUN, *([f"{HIDDEN}/{earlier}"] if earlier.isalnum() else []))

    def _discard(self, name: str) -> None:
        """Remove the shards of a run that was not finished and cannot be resumed."""
        with contextlib.suppress(Exception):
            self.target.remove(_shards_of(name, set(self.target.listing()[0])))
            self._forget(name)

    def _forget(self, name: str) -> None:
        forget(self.target, name)


def forget(target: Target, run: str) -> None:
    """Remove what a run needed to be resumed."""
    target.remove_state(f"{HIDDEN}/{run}", NEW, WRITING)


def has_run(target: Target) -> bool:
    """Whether a run that can be resumed has begun there."""
    return HIDDEN in target.names() and target.read(RUN) is not None


def is_written(target: Target, identity: dict[str, Any], call: str) -> bool:
    """Whether an earlier session of the same call has written all of it, of which a warning tells.

    Raises:
        ResumeMismatch: another call has written there.
    """
    names = target.names()
    known = target.read(RUN) if HIDDEN in names else None
    if known is None:
        return False
    header = compared(target, json.loads(json.dumps(identity)), known, MANIFEST in names)
    if MANIFEST in names:
        finished(target, header["run"], call)
    return MANIFEST in names


def compared(target: Target, identity: dict[str, Any], known: bytes, whole: bool) -> dict[str, Any]:
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
        what = "the result of another run" if whole else "an unfinished run that is not this one"
        refuse(target.name, changes, f"holds {what}", "Choose another place, or remove that one.")
    return header


def finished(target: Target, run: str, call: str) -> None:
    """Warn that a run was complete before; finish what a process was killed at."""
    if target.read(WRITING) is not None:  # killed between the manifest and its end
        target.remove(_left_in(target, set(target.listing()[0]), overwrite=True))
    forget(target, run)
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
        raise UntrustedFile(where, f"is not what a writer of shards has noted ({error})") from None
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (done.rows, done.nbytes)):
        raise UntrustedFile(where, f"does not say how many rows it has: {done.rows!r:.40}")
    return done, skipped


def _lazy(data: Data) -> Data:
    """The dataset as one whose slices are names of rows, which a worker reads chunk by chunk."""
    if not isinstance(data, ShardedDataset) and not is_tensor_collection(data):
        return data
    whole = data if isinstance(data, ShardedDataset) else concat([data])
    return whole.window(0, len(whole), lazy=True)
