"""`rows_per_shard=` and URLs. `map` knows the places of its rows, and writes shards at once.

Other operations make one folder, and then it is copied into shards:

    operation ──► out/.tdmap/rows, or, where `out` is a URL, a folder among the temporary files
                      └── workers, a shard each ──► `out`, the manifest last

So the disk holds the result once more meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tdmap.data.kinds import Data
from tdmap.data.sizes import row_bytes_of
from tdmap.execution import Execution
from tdmap.job import Job, Source
from tdmap.memory import hidden
from tdmap.memory.hidden import HIDDEN
from tdmap.memory.scratch import temporary_path
from tdmap.output.sharding import (
    check_rows_per_shard,
    claimed,
    has_run,
    is_written,
    map_to_target,
    replaceable,
    target_of,
)
from tdmap.plan import ChunkPlan
from tdmap.stores.opening import open
from tdmap.stores.targets import PER_SHARD, LocalTarget

ROWS = "rows"
"""Name of the folder that the operation writes, in that of its state."""

CHUNK_BYTES = 4 << 20
"""Rows that are copied at a time."""


class Shards:
    """A dataset of shards, as the output of an operation.

    Args:
        out: a folder, or the URL of a place in a store.
        rows_per_shard: rows of a shard. None: those of about 64 MiB.
        execution: who copies.
        overwrite: replace the dataset that is there, once the new one is complete.
        options: of the store's file system.

    Raises:
        ValueError: `out` is no path, or an option is out of range.
    """

    def __init__(
        self,
        out: Any,
        rows_per_shard: int | None,
        execution: Execution,
        overwrite: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_rows_per_shard(rows_per_shard)
        if not isinstance(out, (str, os.PathLike)):
            raise ValueError("rows_per_shard= writes a folder of shards: pass out=its path, or a URL.")
        self.target = target_of(out, dict(options or {}))
        self.rows_per_shard = rows_per_shard
        self.execution = execution
        self.overwrite = overwrite
        self.is_claimed = False
        """Whether this call is the only writer."""
        self._above = None if isinstance(self.target, LocalTarget) else temporary_path("tdmap-rows")

    @property
    def folder(self) -> str:
        """Where the operation writes its rows."""
        return f"{self._above or f'{self.target.name}/{HIDDEN}'}/{ROWS}"

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
        if self.is_claimed:  # by the operation that this one is a part of
            yield
            return
        if resume and self.overwrite:
            raise ValueError("resume=True resumes what is in the folder, and overwrite=True replaces it: pass one.")
        with contextlib.ExitStack() as stack:
            stack.enter_context(claimed(self.target, call))
            stack.callback(setattr, self, "is_claimed", False)
            self.is_claimed = True
            begun = hidden.exists(f"{self.folder}/{HIDDEN}/journal")
            if begun and not (resume or self.overwrite):
                raise FileExistsError(
                    f"{self.target.name} holds an unfinished run: pass resume=True to resume it, or overwrite=True to "
                    "replace it."
                )
            if not (resume and has_run(self.target)):
                replaceable(self.target, self.overwrite)
            if self._above is not None:
                hidden.make_folder(self._above, 0o700)
                stack.callback(remove_if_empty, self._above)
            if not (resume and begun):
                hidden.remove_tree(self.folder)  # of a call that was killed, also while it removed them
            if not resume:
                stack.callback(self._forget)
            yield

    def _forget(self) -> None:
        """Remove the rows."""
        hidden.remove_tree(self._above or self.folder)

    def complete(self, identity: dict[str, Any], call: str) -> Data | None:
        """The dataset, where an earlier session has written all of it; None where something is left to do.

        Raises:
            ResumeMismatch: another call has written there.
        """
        if not is_written(self.target, {**identity, "plan": self._plan(identity)}, call):
            return None
        self._forget()  # of a session that was killed before it did
        return open(self.target.name, storage_options=self.target.options)

    def _plan(self, identity: dict[str, Any]) -> dict[str, Any]:
        return {**identity["plan"], PER_SHARD: self.rows_per_shard or 0}

    def map(self, job: Job, resume: bool, write: Callable[[Job, str], Data]) -> Data:
        """Run a job whose results become the rows of the shards, and open them. See `map_to_target`."""
        if resume and self.overwrite:
            raise ValueError("resume=True resumes what is in the folder, and overwrite=True replaces it: pass one.")
        with claimed(self.target, f"map({job.name})"):
            return map_to_target(job, self.target, self.rows_per_shard, self.execution, resume, self.overwrite, write)

    def write(self, made: Data, identity: dict[str, Any] | None = None) -> Data:
        """Copy the rows of the folder into shards, and open them."""
        length = int(made.shape[0])
        plan = ChunkPlan(length, max(min(CHUNK_BYTES // max(row_bytes_of(made, length), 1), length), 1))
        job = Job(Source(made), plan, as_it_is)
        if identity is not None:
            identity = {**identity, "plan": self._plan(identity)}
        found = map_to_target(
            job,
            self.target,
            self.rows_per_shard,
            self.execution,
            resume=identity is not None,
            overwrite=self.overwrite,
            identity=identity,
        )
        if identity is not None:
            self._forget()
        return found


def remove_if_empty(folder: str) -> None:
    """Remove a folder, unless something is in it."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def as_it_is(rows: Data) -> Data:
    """The function of the copy."""
    return rows
