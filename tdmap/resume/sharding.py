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
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.data.join import allocate_like
from tdmap.data.kinds import Data, data_length, tensors_of
from tdmap.data.objects import KeyPath, with_objects
from tdmap.data.schema import Schema
from tdmap.data.sizes import row_bytes_of
from tdmap.errors import AlreadyComplete, OutputMismatch, ResumeMismatch, UntrustedFile
from tdmap.execution import Execution
from tdmap.frames import warn_user
from tdmap.job import Job, Source, function_name
from tdmap.memory.folderlock import locked
from tdmap.memory.hidden import HIDDEN
from tdmap.plan import ChunkPlan, merge_ranges
from tdmap.resume.resumable import map_to_folder
from tdmap.resume.run import COMMAND, MAP, differences, identify
from tdmap.runtime import shardfailures as failures
from tdmap.runtime.commits import KnownChunks
from tdmap.runtime.skipping import DROP
from tdmap.runtime.wire.remote import pack_error
from tdmap.sinks import Folder
from tdmap.sinks.collect import Collect
from tdmap.stores.manifest import MANIFEST, Shard, pack
from tdmap.stores.members import digest_of_bytes
from tdmap.stores.opening import concat, is_url, open
from tdmap.stores.targets import PER_SHARD, RUN, LocalTarget, StoreTarget, Target, old_entries
from tensordict_lite.base import TensorCollection
from tensordict_lite.memmap.disk.format import META

SHARD_BYTES = 64 << 20
"""Bytes of input of a shard in a store, where nobody says how many rows it has;"""

MEMORY_BYTES = 128 << 20
"""A shard of at most so many bytes of input is made in the worker's memory, where it goes to a store."""

MIN_SHARDS = 16
"""and there are at least so many, rows permitting."""


class Done(NamedTuple):
    """What a worker says of a shard that it has written."""

    rows: int
    meta: str
    nbytes: int
    schema: list[Any] | None
    """Its fields, as plain values; None where every row raised, and the shard is not written yet."""
    skipped: failures.Skipped


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
        skipped: failures.Skipped = []
        count = data_length(rows, 0)
        job = Job(
            Source(rows.window(0, count, lazy=False) if hasattr(rows, "window") else rows),
            replace(self.plan, length=count, origin=start),
            self.fn,
            replace(self.policy, timeout=None, part_of_call=True),
            on_row_error=(lambda error, at: skipped.append((at[0], pack_error(error)))) if self.collects else None,
            chunk_bytes=self.chunk_bytes,
        )
        try:
            done = Done(*self._written(job, rows, count, number), skipped)
        except Exception:
            if not count or len(skipped) < count:
                raise
            done = Done(count, "", 0, None, skipped)
        if self.noted:
            note = {**done._asdict(), "skipped": failures.as_plain(skipped)}
            self.target.write(f".tdmap/{self.run}/{number:05d}", json.dumps(note).encode())
        return tuple(done)

    def _written(self, job: Job, rows: Data, count: int, number: int) -> tuple[int, str, int, list[Any]]:
        """Write the shard of these rows; the first fields of `Done`."""
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

    def complete(self, data: Data, columns: dict[KeyPath, Any]) -> Data:
        self.data = with_objects(data, columns)
        return self.data


_spare: dict[int, list[bytearray]] = {}
"""Memory of the last shard that this process has sent."""


def _in_memory(job: Job) -> _Memory:
    """The result of a job, with every row in its place, as `write_folder` would write it."""
    memory = _Memory()
    Execution(num_workers=0).run(job, Folder(memory, lambda data: None))
    return memory


def write_folder(job: Job, folder: str) -> Data:
    """The result of a job, in a folder; every row has its place."""
    return map_to_folder(job, folder, False, Execution(num_workers=0))


def shard_name(run: str, number: int) -> str:
    """The folder of a shard."""
    return f"shard-{run}-{number:05d}"


def target_of(out: str | os.PathLike[str], options: dict[str, Any] | None) -> Target:
    """Where `out` is."""
    path = os.fspath(out)
    if is_url(path):
        return StoreTarget(path, options or {})
    return LocalTarget(path.removeprefix("file://"))


def check_rows_per_shard(value: Any) -> None:
    """Raise ValueError unless it is a number of rows."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"rows_per_shard must be a number of rows, at least 1: got {value!r}.")


def default_rows(data: Data, length: int) -> int:
    """Rows of a shard in a store, where nobody says how many."""
    return max(min(SHARD_BYTES // max(row_bytes_of(data, length), 1), -(-length // MIN_SHARDS)), 1)


def require_free(out: str | os.PathLike[str], overwrite: bool, options: dict[str, Any]) -> None:
    """Raise FileExistsError when shards cannot be written there, as a run that is not resumed would."""
    target = target_of(out, options)
    names = target.names()
    if not overwrite:
        _refuse_others(target, names, target.read(RUN) if HIDDEN in names else None)


def _refuse_others(target: Target, names: set[str], known: bytes | None) -> None:
    """Raise FileExistsError when something is there that is not to be replaced."""
    if names - {HIDDEN} or known is not None:
        raise FileExistsError(_in_the_way(target, names, known))
    if isinstance(target, LocalTarget) and os.path.lexists(f"{target.name}/{HIDDEN}/journal"):
        raise FileExistsError(
            f"{target.name} holds an unfinished run of a call without rows_per_shard=: go on with it by calling it as "
            "it was called, with resume=True, or choose another place, or pass overwrite=True."
        )


def _in_the_way(target: Target, names: set[str], known: bytes | None) -> str:
    where = target.name
    if MANIFEST in names or META in names:
        return f"{where} holds a dataset already: choose another place, or pass overwrite=True."
    if known is not None or any(name.startswith("shard-") for name in names):
        return f"{where} holds an unfinished run: pass resume=True to go on with it, or remove it."
    return f"{where} is not empty ({', '.join(sorted(names)[:3])}...): choose a place of its own."


def map_to_shards(
    job: Job,
    out: str | os.PathLike[str],
    rows_per_shard: int | None,
    execution: Execution,
    *,
    resume: bool = False,
    overwrite: bool = False,
    options: dict[str, Any] | None = None,
    write: Callable[[Job, str], Data] = write_folder,
) -> Data:
    """Run a job whose results become a new dataset of several folders.

    Args:
        job: what to run.
        out: a folder, or the URL of a place in a store.
        rows_per_shard: rows of the source whose results make one shard. Default: those of about 64 MiB.
        execution: who runs it.
        resume: go on with the shards that an earlier call has not written.
        overwrite: replace the dataset that is there, once the new one is whole.
        options: of the store's file system.
        write: makes one shard in a local folder.

    Raises:
        FileExistsError: something else is there, or an unfinished run and not `resume`.
        ResumeMismatch: `resume`, and the run that is there is another.
        OutputMismatch: shards have other keys, dtypes or row shapes than the others.
    """
    target = target_of(out, options)
    rows = rows_per_shard or default_rows(job.source.data, job.plan.length)
    with contextlib.ExitStack() as stack:
        if isinstance(target, LocalTarget):
            stack.enter_context(locked(_made(target.name), f"map({job.name})"))
        return _Sharding(job, target, rows, execution, write).run(resume, overwrite)


def _made(path: str) -> Path:
    if os.path.lexists(path) and not os.path.isdir(path):
        raise FileExistsError(f"{path} is a file, and a dataset of shards is a folder: choose another path.")
    return Path(path)


class _Sharding:
    """One call of `map_to_shards`."""

    def __init__(self, job: Job, target: Target, rows: int, execution: Execution, write: Any) -> None:
        self.job = job
        self.target = target
        self.rows = rows
        self.execution = execution
        self.write = write
        self.count = max(-(-job.plan.length // rows), 1)

    def run(self, resume: bool, overwrite: bool) -> Data:
        identity = self._identity() if resume else None
        name, done = self._begin(identity, overwrite)
        if done is None:
            return open(self.target.name, storage_options=self.target.options)
        try:
            found = self._execute(name, done, noted=resume)
            found = self._with_blanks(found, name)
            self._check(found, name)
            self._publish(name, found, overwrite, resume)
        except BaseException:
            if not resume:
                self._discard(name)
            raise
        failures.tell(self.job, failures.joined(found))
        return open(self.target.name, storage_options=self.target.options)

    def _identity(self) -> dict[str, Any]:
        found = identify(self.job, MAP)
        found["plan"][PER_SHARD] = self.rows
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    def _begin(self, identity: dict[str, Any] | None, overwrite: bool) -> tuple[str, dict[int, Done] | None]:
        """The name of the run, and the shards that are done; None where all of it is."""
        names = self.target.names()
        known = self.target.read(RUN) if HIDDEN in names else None
        if identity is not None and known is not None:
            return self._go_on(identity, known, MANIFEST in names)
        if not overwrite:
            _refuse_others(self.target, names, known)
        name = secrets.token_hex(4)
        if identity is not None:
            header = {"run": name, "identity": identity, "began": time.time(), "sessions": 1, "argv": sys.argv}
            self.target.write(RUN, json.dumps({**header, "command": COMMAND.get()}).encode())
        return name, {}

    def _go_on(self, identity: dict[str, Any], known: bytes, whole: bool) -> tuple[str, dict[int, Done] | None]:
        where = f"{self.target.name}/{RUN}"
        try:
            header = json.loads(known)
            name, old = header["run"], header["identity"]
            changes = differences(old, identity)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UntrustedFile(where, "does not say what its run is") from None
        if not isinstance(name, str) or not name.isalnum():
            raise UntrustedFile(where, "does not say what its run is")
        if changes:
            text = "\n".join(f"  - {change}" for change in changes)
            what = "the result of another run" if whole else "an unfinished run that is not this one"
            raise ResumeMismatch(
                f"{self.target.name} holds {what}:\n{text}\nChoose another place, or remove that one.", tuple(changes)
            )
        if whole:
            warn_user(
                f"{self.target.name}: the run of {self.job.name} was complete before, and nothing was done (remove it "
                "to run it again).",
                AlreadyComplete,
            )
            return name, None
        self.target.write(RUN, json.dumps({**header, "sessions": int(header.get("sessions", 1)) + 1}).encode())
        return name, {number: _noted(note) for number, note in self.target.notes(name).items()}

    def _execute(self, name: str, done: dict[int, Done], noted: bool) -> list[Done]:
        """Have all shards written that are not done."""
        job, length = self.job, self.job.plan.length
        writer = ShardWriter(job, self.target, name, self.rows, noted, self.write)
        if not length:
            return [Done(*writer(job.source.data, 0))]
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
        return [done[number] if value is None else Done(*value) for number, value in enumerate(values)]

    def _with_blanks(self, found: list[Done], name: str) -> list[Done]:
        """Write the shards of which every row raised like one of the others.

        Raises:
            Exception: every row of the call raised, or most do not fit.
        """
        skipped = failures.joined(found)
        try:
            failures.judge(self.job, skipped)
        except Exception:
            if self.job.on_row_error is not None:
                failures.tell(self.job, skipped)
            raise
        blank = [number for number, done in enumerate(found) if done.schema is None]
        if not blank:
            return found
        known = next(number for number, done in enumerate(found) if done.schema is not None)
        example = open(f"{self.target.name}/{shard_name(name, known)}", storage_options=self.target.options)
        for number in blank:
            rows = 0 if self.job.policy.skip == DROP else found[number].rows
            shard = failures.blank_like(example, rows)
            meta = self.target.write_shard(shard_name(name, number), shard.memmap)
            length, nbytes, schema = _facts(shard)
            found[number] = Done(length, digest_of_bytes(meta), nbytes, schema, found[number].skipped)
        return found

    def _check(self, found: list[Done], name: str) -> None:
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

    def _publish(self, name: str, found: list[Done], overwrite: bool, resume: bool) -> None:
        kept = [(number, done) for number, done in enumerate(found) if done.rows] or [(0, found[0])]
        shards = [Shard(shard_name(name, number), done.rows, done.meta, done.nbytes) for number, done in kept]
        if not overwrite and {MANIFEST, META} & self.target.names():
            raise FileExistsError(f"{self.target.name} has got a dataset of somebody else meanwhile.")
        self.target.write(MANIFEST, pack(shards))
        for number, done in enumerate(found):
            if (number, done) not in kept:
                self.target.remove(shard_name(name, number))
        if overwrite:
            for old in old_entries(self.target.names(), name):
                self.target.remove(old)
        if resume:
            self.target.remove(f".tdmap/{name}")
        elif overwrite:
            self.target.remove(RUN)  # of a run whose shards were replaced, which would go on or be complete

    def _discard(self, name: str) -> None:
        """Remove the shards of a run that was not finished and cannot be resumed."""
        with contextlib.suppress(Exception):
            for found in self.target.names():
                if found.startswith(f"shard-{name}-"):
                    self.target.remove(found)


def _noted(note: bytes) -> Done:
    value = json.loads(note)
    skipped = failures.from_plain(value["skipped"])
    return Done(int(value["rows"]), str(value["meta"]), int(value["nbytes"]), value["schema"], skipped)


def _lazy(data: Data) -> Data:
    """The dataset as one whose slices are names of rows, which a worker reads chunk by chunk."""
    if isinstance(data, Tensor) or not isinstance(data, TensorCollection):
        return data
    whole = data if hasattr(data, "window") else concat([data])
    return whole.window(0, len(whole), lazy=True)
