"""Where a dataset of several folders is written: a folder here, or a place in an object store (`tdmap.stores.target`);
and how a worker makes one of these folders there.

    OUT/shard-<run>-00000/   written by a worker, whole with its own meta.json; a folder is made in OUT/.tdmap/new
    OUT/.tdmap/<run>/00000   the worker's note that it is, where the run can be resumed
    OUT/.tdmap/run.json      which run this is, where it can be resumed
    OUT/.tdmap/writing.json  which run this is, its process, and the files that it replaces; until it ends
    OUT/shards.json          the manifest, last: from now on OUT is a dataset

The names of shards hold that of the run, so that two runs never write the same one, and an old dataset stays whole
until the manifest of the new one takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tdmap.data.failures import failure
from tdmap.data.join import allocate_like
from tdmap.data.kinds import Data, tensors_of
from tdmap.data.objects import with_objects
from tdmap.data.schema import Schema
from tdmap.data.sizes import row_bytes_of
from tdmap.execution import Execution
from tdmap.job import Job, Source, function_name
from tdmap.memory import hidden
from tdmap.memory.hidden import HIDDEN, SHARDS_RUN
from tdmap.output.folder import Folder, fill_folder
from tdmap.output.outputfolder import OutputFolder
from tdmap.plan import ChunkPlan
from tdmap.runtime.wire.remote import PackedError, pack_error, unpack_error
from tdmap.shards.sharded import ShardedDataset
from tdmap.shards.sources import digest_of_bytes
from tensordict_lite.memmap.disk.contents import files_below, put_away, reader_of, remove_emptied
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import META
from tensordict_lite.memmap.disk.locks import locked
from tensordict_lite.paths import is_url

RUN, WRITING, NEW = SHARDS_RUN, f"{HIDDEN}/writing.json", f"{HIDDEN}/new"

MEMORY_BYTES = 128 << 20
"""A shard of at most so many bytes of input is made in the worker's memory, where it goes to a store."""

Read = Callable[[list[str]], list[bytes]]


class Target(Protocol):
    """A place for a dataset; cheap to send to another process."""

    name: str
    """How messages call it."""
    options: dict[str, Any]
    """What its file system is made with."""

    def names(self) -> set[str]:
        """What is there, one level deep."""
        ...

    def listing(self) -> tuple[list[str], Read]:
        """All files, and what reads some of them."""
        ...

    def read(self, path: str) -> bytes | None:
        """A small file, or None."""
        ...

    def notes(self, run: str) -> dict[int, bytes]:
        """The notes of shards that are done."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """A small file, in one step."""
        ...

    def write_shard(self, path: str, make: Callable[[str], Data]) -> bytes:
        """A folder that `make(local folder)` fills; it is there whole, or its meta.json is not. That is returned."""
        ...

    def write_rows(self, path: str, rows: Data, buffers: dict[int, bytearray]) -> bytes:
        """The same, of rows in memory: in these buffers, by the addresses of their tensors."""
        ...

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Wait for other saves of this machine, and keep them out."""
        ...

    def remove(self, files: Iterable[str]) -> None:
        """Files, and the folders that are empty then; nothing where they are not there."""
        ...

    def remove_state(self, *paths: str) -> None:
        """Files and folders of the hidden one; nothing where they are not there."""
        ...


class LocalTarget:
    """A folder of this machine, or of a file system that all workers mount."""

    def __init__(self, path: str) -> None:
        self.name = os.path.abspath(path)
        self.options: dict[str, Any] = {}

    def names(self) -> set[str]:
        try:
            return set(os.listdir(self.name))
        except FileNotFoundError:
            return set()

    def listing(self) -> tuple[list[str], Read]:
        return files_below(self.name), reader_of(self.name)

    def read(self, path: str) -> bytes | None:
        return hidden.read(f"{self.name}/{path}")

    def notes(self, run: str) -> dict[int, bytes]:
        folder = f"{self.name}/{HIDDEN}/{run}"
        if not is_there(folder):
            return {}
        found = {int(name): hidden.read(f"{folder}/{name}") for name in os.listdir(folder) if name.isdecimal()}
        return {number: note for number, note in found.items() if note is not None}

    def write(self, path: str, data: bytes) -> None:
        whole = Path(self.name, path)
        whole.parent.mkdir(parents=True, exist_ok=True)
        hidden.replace_file(whole, data)

    def write_shard(self, path: str, make: Callable[[str], Data]) -> bytes:
        for part in (HIDDEN, NEW):
            hidden.make_folder(f"{self.name}/{part}")
        new, folder = f"{self.name}/{NEW}/{path}", f"{self.name}/{path}"
        hidden.remove_tree(new)  # of a worker that has died
        make(new)
        hidden.remove_tree(f"{new}/{HIDDEN}")
        if is_there(folder, follow=False):  # of a worker that died after this step
            put_away(folder, new)
        os.rename(new, folder)
        return Path(folder, META).read_bytes()

    def write_rows(self, path: str, rows: Data, buffers: dict[int, bytearray]) -> bytes:
        return self.write_shard(path, rows.memmap)

    def turn(self) -> contextlib.AbstractContextManager[None]:
        return locked(self.name)

    def remove(self, files: Iterable[str]) -> None:
        files = list(files)
        for file in files:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                os.unlink(f"{self.name}/{file}")
        remove_emptied(self.name, files)

    def remove_state(self, *paths: str) -> None:
        for path in paths:
            hidden.remove_tree(f"{self.name}/{path}")


# -- in the worker -------------------------------------------------------------------------------------


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

    def __init__(
        self, job: Job, target: Target, run: str, rows_per_shard: int, noted: bool, spill_dir: str | None
    ) -> None:
        self.fn = job.fn
        self.plan = job.plan
        self.policy = job.policy
        self.collects = job.policy.skip != ""
        self.target = target
        self.run = run
        self.rows_per_shard = rows_per_shard
        self.noted = noted
        self.spill_dir = spill_dir
        self.__qualname__ = function_name(job.fn)

    def shared_tensors(self) -> Any:
        """The parameters that the function would share with other workers."""
        shared = getattr(self.fn, "shared_tensors", None)
        return () if shared is None else shared()

    def __call__(self, rows: Data, start: int = 0) -> Any:
        number = start // self.rows_per_shard
        skipped: list[tuple[int, PackedError]] = []
        count = int(rows.shape[0])

        def collect(error: BaseException, at: tuple[int, int]) -> None:
            skipped.append((at[0] - start, pack_error(error)))

        job = Job(
            Source(rows.window(0, count, lazy=False) if isinstance(rows, ShardedDataset) else rows),
            replace(self.plan, length=count, origin=start),
            self.fn,
            replace(self.policy, timeout=None, part_of_call=True),
            on_row_error=collect if self.collects else None,
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
            written[:] = facts_of(result := write_folder(job, folder, self.spill_dir))
            return result

        ahead = getattr(rows, "fetch_next", None)
        small = row_bytes_of(rows, count) * count <= MEMORY_BYTES
        if small and count and hasattr(rows, "prefetch"):
            rows.prefetch(0, count)  # in as few requests as can be, where the chunks would make one each
        if is_url(self.target.name) and count and small and self.spill_dir is None:
            made = _in_memory(job)
            written = facts_of(made.data)
            if ahead is not None:
                ahead()
            meta = self.target.write_rows(shard_name(self.run, number), made.data, made.buffers)
            made.give_back()
        else:
            meta = self.target.write_shard(shard_name(self.run, number), make)
        length, nbytes, schema = written
        return length, digest_of_bytes(meta), nbytes, schema


def facts_of(result: Data) -> list[Any]:
    """Rows, bytes and fields of a shard."""
    fields = [[list(f.path), f.kind, str(f.dtype), list(f.shape)] for f in Schema(result[:0]).fields]
    return [int(result.shape[0]), sum(leaf.nbytes for leaf in tensors_of(result)), fields]


class _Memory:
    """A place for a shard that is sent from the memory of the worker (see `tdmap.output.folder`)."""

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


_spare: dict[int, list[bytearray]] = {}
"""Memory of the last shard that this process has sent."""


def _in_memory(job: Job) -> _Memory:
    """The result of a job, with every row in its place, as `write_folder` would write it."""
    memory = _Memory()
    sink = Folder(memory)
    memory.data = Execution(num_workers=0).run(job, sink)
    if columns := sink.columns():
        memory.data = with_objects(memory.data, columns, sink.order)
    return memory


def write_folder(job: Job, folder: str, spill_dir: str | None = None) -> Data:
    """The result of a job, in a folder; every row has its place."""
    store = OutputFolder(folder)
    with store.claimed(f"map({job.name})"):
        return fill_folder(job, store, Execution(num_workers=0), None, spill_dir)


def shard_name(run: str, number: int) -> str:
    """The folder of a shard."""
    return f"shard-{run}-{number:05d}"
