"""The folder that several programs (ranks) fill together: which ranks work there, and which chunks are done.

    out/.tdmap/ranks.lock            held only while a rank begins, makes the files, or merges
    out/.tdmap/journal               what the run is; lists the chunks when all of them are done
    out/.tdmap/rank-0-of-4/.tdmap/   state of one rank, as of any resumable run: its lock, its log, ...
    out/.tdmap/shared/meta.json      metadata of a new dataset, until the last rank is done
    out/.tdmap/columns.json          which of its entries are no tensors: the ranks keep these until then
    out/                             its tensors, under their final names

So no rank waits for another, the folder holds no dataset while a row is missing, and a tensor that a rank has mapped
stays valid when the dataset becomes whole. Every rank numbers chunks as one program alone would, so ranks of another
world size can continue the run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tdmap.data.kinds import Data, KeyPath
from tdmap.errors import FolderInUse, ResumeMismatch, UntrustedFile
from tdmap.job import Job
from tdmap.memory import hidden
from tdmap.memory.folderlock import FolderLock
from tdmap.memory.hidden import HIDDEN, FileLock
from tdmap.memory.holder import holder_of
from tdmap.memory.spill import PREFIX
from tdmap.output.outputfolder import holds_dataset
from tdmap.plan import Ranges, merge_ranges
from tdmap.ranks.rank import Rank, homes_in
from tdmap.run.history import IN_PLACE, TRUST, History
from tdmap.run.identity import identify
from tdmap.run.log import Log
from tdmap.run.run import history_of
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import META, NodeMeta
from tensordict_lite.memmap.load import Loader

PATIENCE = 60.0
"""Seconds that a rank waits for the short steps of another one."""


class RankFolder:
    """The folder of a dataset that ranks write, be it new or not.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(os.fspath(path)))
        self.hidden = self.path / HIDDEN
        self.journal = self.hidden / "journal"
        self._columns = self.hidden / "columns.json"
        self._data = self.hidden / "shared"

    @contextlib.contextmanager
    def alone(self, call: str) -> Iterator[None]:
        """Be the only rank that looks at the folder as a whole, or changes it.

        Raises:
            FolderInUse: another one has been doing so for a minute.
        """
        os.makedirs(self.path, exist_ok=True)
        hidden.make_folder(self.hidden)
        path = self.hidden / "ranks.lock"
        try:
            lock = FileLock(path, PATIENCE)
        except BlockingIOError:
            text = f"{self.path}: another rank has held {path} for {PATIENCE:.0f} s. Check whether it is stopped."
            raise FolderInUse(text, str(self.path), call=call) from None
        with lock:
            if not lock.works:
                raise OSError(
                    errno.ENOLCK, "ranks cannot share a folder of a file system without locks", str(self.path)
                )
            yield

    # -- what the run is ---------------------------------------------------------------------------------

    def begin(self, job: Job, kind: str, call: str, again: str) -> bool:
        """Begin the run, or check that it is the one that was begun. Returns whether it is complete. Call it `alone`.

        Args:
            job, kind, call, again: as those of the run.

        Raises:
            ResumeMismatch: the folder holds another run; names what differs.
            FolderInUse: a program that is no rank writes it.
        """
        with contextlib.nullcontext() if is_there(self.journal, follow=False) else FolderLock(self.path, call):
            found = history_of(self.hidden, identify(job, kind), TRUST, ranks=True, again=again)
        return found.is_over or found.history.is_complete

    def history(self) -> History | None:
        """The log of all ranks; None when there is none, or it is of a run without ranks."""
        history = History(self.journal)
        return history if history.by_ranks else None

    def finish(self, files: list[str], chunks: int, rows: int) -> None:
        """Every chunk is done, and the result is in its place: forget the ranks. Call it `alone`."""
        log = Log(self.hidden, History(self.journal))
        try:
            log.merge([history for _, history in self.histories()], chunks, rows)
            log.finish(rows, files)
        finally:
            log.close()
        for _, home in homes_in(self.hidden):
            hidden.remove_tree(home)
        for path in self.hidden.glob(f"{PREFIX}*"):
            hidden.remove(path)
        hidden.remove(self._columns)
        hidden.remove_tree(self._data)

    # -- who is at work ----------------------------------------------------------------------------------

    def home(self, rank: Rank) -> Path:
        """Where a rank keeps its own state."""
        return self.hidden / f"rank-{rank.rank}-of-{rank.world_size}"

    def enter(self, rank: Rank, kind: str) -> Path:
        """Make the home of a rank. Call it `alone`, and lock the home before others may.

        Raises:
            FolderInUse: a rank of another world size is at work.
            ResumeMismatch: rows are changed in place, and the run was begun with another world size.
        """
        for other, home in homes_in(self.hidden):
            if other.world_size == rank.world_size:
                continue
            if kind == IN_PLACE:
                raise ResumeMismatch(
                    f"{self.path}: {other.world_size} ranks began this in-place run, and only they can "
                    f"restore the rows that they were changing: finish it with world size {other.world_size}.",
                    (f"the world size was {other.world_size}, and is {rank.world_size}",),
                )
            holder = holder_of(home)
            if holder is not None and holder.process.is_alive is not False:
                raise FolderInUse(
                    f"{self.path} is being written by {other}, {holder.describe()}: end it before you start {rank}.",
                    str(self.path),
                )
        home = self.home(rank)
        hidden.make_folder(home)
        return home

    def histories(self, boot: int | None = None) -> Iterator[tuple[Rank, History]]:
        """What the ranks' own logs say; `boot` as `History`."""
        for rank, home in homes_in(self.hidden):
            hidden.make_folder(home)  # no link
            history = History(home / HIDDEN / "journal", boot)
            if history.header is not None:
                yield rank, history

    def done(self, boot: int | None, but: Rank | None = None) -> Ranges:
        """The chunks that all ranks together have done.

        Args:
            boot: as `History`.
            but: leave out what this rank has done.
        """
        return merge_ranges(span for rank, own in self.histories(boot) if rank != but for span in own.ranges)

    # -- a new dataset -----------------------------------------------------------------------------------

    @property
    def is_begun(self) -> bool:
        """Whether the files of the new dataset have been made, and it is not in its place yet.

        Raises:
            DatasetError: they have been removed since.
        """
        if not is_there(self._columns, follow=False):
            return False
        if holds_dataset(self._data):
            return True
        if is_there(self.path / META):
            return False
        raise DatasetError(
            str(self._data), "is missing, with the rows of all ranks: remove the whole folder to start again"
        )

    def create(self, example: Data, columns: Iterable[KeyPath]) -> None:
        """Make the files of a new dataset. Call it `alone`."""
        hidden.remove_tree(self._data)
        example.memmap_like(self._data)
        text = json.dumps([list(path) for path in columns]).encode()
        hidden.replace_file(self._columns, text, durable=False)  # last: it says that they are there
        self.place()

    def reopen(self) -> bool:
        """Whether there are files to continue with, also those of a dataset that was whole before a power failure."""
        if not self.is_begun and is_there(self._columns, follow=False):
            hidden.make_folder(self._data)
            os.replace(self.path / META, self._data / META)
        return self.is_begun

    def place(self) -> None:
        """Move tensors to their final names. If this is interrupted, the next rank moves the rest."""
        for name in sorted(os.listdir(self._data)):
            if name != META:
                hidden.remove_tree(self.path / name)
                os.replace(self._data / name, self.path / name)

    def open(self) -> Data:
        """The dataset, whole or not."""
        if not self.is_begun:
            return Loader().load(str(self.path), top=True)
        return _Unfinished(self).load(str(self.path), top=True)

    def columns(self) -> tuple[KeyPath, ...]:
        """Its entries that are no tensors."""
        try:
            paths = hidden.parse_json(hidden.read(self._columns) or b"[]")
            return tuple(tuple(map(str, path)) for path in paths)
        except (ValueError, TypeError):
            raise UntrustedFile(self._columns, "does not say of which columns it is") from None

    def publish(self) -> None:
        """The dataset is whole. Call it `alone`."""
        if self.is_begun:
            os.replace(self._data / META, self.path / META)


class _Unfinished(Loader):
    """Opens a dataset whose own metadata is not in its place yet."""

    def __init__(self, folder: RankFolder) -> None:
        super().__init__()
        self._folder = folder

    def meta(self, folder: str, *, nested: bool = False) -> NodeMeta:
        root = str(self._folder.path)
        if folder != root:
            return super().meta(folder, nested=nested)
        meta = super().meta(str(self._folder._data))
        meta.path = root
        return meta
