"""A new dataset in a folder: made in a hidden folder by one call at a time, and moved to its place when it is whole.

    out/.tdmap/lock     held by the call that makes it (see `folderlock`)
    out/.tdmap/data/    the dataset while the run goes on
    out/.tdmap/moving   exists while the files of a whole dataset are moved
    out/                the final place; `meta.json` is moved last

So after an interruption the folder holds no dataset, and a dataset in the folder is always whole.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tdmap.data.kinds import Data, KeyPath, entries_of, is_dense, tensors_of
from tdmap.data.objects import ragged_tensors, with_objects
from tdmap.errors import OutputMismatch
from tdmap.memory import hidden
from tdmap.memory.files import mapped_file
from tdmap.memory.folderlock import FolderLock, replacement_of, require_no_file
from tdmap.memory.hidden import HIDDEN, SHARDS, SHARDS_RUN
from tdmap.memory.holder import LOCK, holder_of
from tensordict_lite import MemoryMappedTensor, Ragged, TensorDict, is_tensorclass
from tensordict_lite.base import TensorCollection
from tensordict_lite.memmap.disk.contents import others_in, put_away, require_only
from tensordict_lite.memmap.disk.files import is_there, stat_of
from tensordict_lite.memmap.disk.format import TEXTS, encode_key
from tensordict_lite.memmap.disk.locks import locked
from tensordict_lite.memmap.disk.mapping import region_of
from tensordict_lite.memmap.disk.staging import remove_stale
from tensordict_lite.memmap.plan import mapped_root
from tensordict_lite.paths import is_url, local_path

META = "meta.json"

DATA = "data"
"""Name of the folder, in the hidden one, of a dataset that is being made."""


class OutputFolder:
    """The folder that an operation writes its results to.

    Args:
        path: the folder; it need not exist.
        overwrite: a dataset may be there, and nothing else; the new one replaces it when it is whole.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        text = local_path(path)
        require_no_tilde(text)
        self._url = text if is_url(text) else None
        self._place = Path(os.path.abspath(text))
        self._lie_in(self._place)
        self._overwrite = overwrite
        self._lock: FolderLock | None = None
        self._replaced: FolderLock | None = None  # on the folder that the new one is exchanged with
        self._keeps = False

    def _lie_in(self, path: Path) -> None:
        self.path = path
        self.hidden = self.path / HIDDEN
        self._meta = f"{self.path}/{META}"
        self._journal = f"{self.hidden}/journal"
        self._data = f"{self.hidden}/{DATA}"
        self._moving = f"{self.hidden}/moving"

    def refuse_source(self, folder: str | os.PathLike[str]) -> None:
        """Raise FileExistsError where this is a folder of the data, or would be replaced with one below it."""
        if self._url is not None:
            return
        own, source = Path(os.path.realpath(self.path)), Path(os.path.realpath(folder))
        if own == source:
            raise FileExistsError(
                f"{folder} is the folder of the data: choose another one for the result, or change its rows with "
                "map(out=data)."
            )
        if self._overwrite and own in source.parents:
            raise FileExistsError(
                f"{self.path} has the data below it, in {folder}: to replace it would remove them. Choose another "
                "folder for the result."
            )

    @contextlib.contextmanager
    def claimed(self, call: str, resume: bool = False) -> Iterator[None]:
        """Be the only one who writes here. Within another claim of this object it does nothing.

        What a killed run has left is removed first. When the block raises, what it has made is removed. With `resume`,
        both stay.

        Args:
            call: what others are told, such as `map(double)`.
            resume: an unfinished run may be here, and may be resumed.

        Raises:
            FolderInUse: another call writes it; names it.
            FileExistsError: it holds something else, or is no folder.
        """
        if self._url is not None:
            raise ValueError(
                f"out={self._url!r} is a place in a store, and this operation writes a folder: let it, then copy that "
                "with tdmap.map(tdmap.open(folder), lambda chunk: chunk, out=url)."
            )
        if self._lock is not None:
            yield
            return
        if resume and self._overwrite:
            raise ValueError(
                "resume=True continues the dataset in the folder, and overwrite=True replaces it: pass one of them."
            )
        while not (self._overwrite and self.is_whole):
            with FolderLock(self.path, call) as lock:
                self._lock = lock
                try:
                    resumes = resume and self.has_journal
                    if self._can_be_finished and not resumes:
                        self._move()  # a run was killed while it moved its files
                    if self._overwrite and self.is_whole:  # now, or another call was first
                        continue
                    self.require_free(resume)
                    if not resumes:
                        self._discard()
                    try:
                        yield
                    except BaseException:
                        if not resume:
                            self._discard()
                        raise
                    return
                finally:
                    self._lock = None
        with self._replacing(call):
            yield

    @contextlib.contextmanager
    def _replacing(self, call: str) -> Iterator[None]:
        """Write beside the dataset that is here; `publish` exchanges them.

        A process that is killed meanwhile leaves the old dataset or the new one, whole.
        """
        with replacing(self._place, call) as lock:
            old = lock.folder
            new = replacement_of(old)
            put_away(str(new), str(old))  # left by a process that was killed while it held this lock
            if is_there(new):
                raise FileExistsError(f"{new} holds files that tdmap did not write: move them to another place.")
            os.mkdir(new, 0o700)  # until it has the permissions of the old one
            with FolderLock(new, call) as inner:  # so that others are kept out after the exchange, too
                self._lock, self._replaced = inner, lock
                self._lie_in(new)
                try:
                    yield
                finally:
                    self._lie_in(self._place)
                    self._lock = self._replaced = None
                    if lock.is_mine:  # and not in a fork of the program
                        put_away(str(new), str(old))

    @property
    def _is_on_its_way(self) -> bool:
        """Whether a whole dataset is being moved to its place, or its process was killed while it did that."""
        return is_there(self._moving, follow=False)

    @property
    def _can_be_finished(self) -> bool:
        """Whether an interrupted move can be finished: nothing is in the way of the files that are left."""
        if not self._is_on_its_way or not holds_dataset(self._data):
            return False
        return not (set(os.listdir(self._data)) - {META}) & self._names()

    def begin_anew(self) -> None:
        """Forget the run that is here, because its files have been removed.

        Raises:
            FileExistsError: there is something else.
        """
        hidden.remove(self.hidden / "journal")
        self.require_free()
        self._discard()

    @property
    def is_whole(self) -> bool:
        """Whether the folder holds a dataset."""
        return is_there(self._meta)

    @property
    def has_journal(self) -> bool:
        """Whether a run that can be resumed has been begun here."""
        return is_there(self._journal, follow=False)

    def require_free(self, resume: bool = False) -> None:
        """Raise FileExistsError unless a new dataset can be put here, or an unfinished run resumed."""
        names = self._names()
        begun = self.has_journal  # asked once, after the names: another rank may begin it at any moment
        if META not in names:
            self._require_no_shards(names)
        if not names or (resume and begun):
            return
        if META in names:
            raise FileExistsError(
                f"{self.path} holds a dataset already: choose another folder, or pass overwrite=True, which "
                "replaces it when the new one is complete."
            )
        if HIDDEN in names and begun:
            raise FileExistsError(
                f"{self.path} holds an unfinished run: pass resume=True to resume it, or remove the folder."
            )
        others = sorted(names - {HIDDEN})
        if others and not self._can_be_finished:
            raise FileExistsError(
                f"{self.path} is not empty ({', '.join(others[:3])}...): choose an empty or new folder."
            )

    def _require_no_shards(self, names: set[str]) -> None:
        if SHARDS not in names and not is_there(f"{self.path}/{SHARDS_RUN}", follow=False):
            return
        found = "a dataset of shards" if SHARDS in names else "an unfinished run of a call with rows_per_shard="
        raise FileExistsError(
            f"{self.path} holds {found}: choose another folder, go on with that run by calling it as it was called, or "
            "remove the folder."
        )

    def _names(self) -> set[str]:
        """What is in the folder; nothing when there is none."""
        try:
            return set(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            require_no_file(self.path)
            return set()

    def load(self) -> Data | None:
        """The dataset, whole or unfinished; None when there is none. An interrupted move is finished first."""
        remove_stale(str(self.hidden))  # a killed `complete` has left a second name for each file
        if self._is_on_its_way:
            self._move()
        if self.is_whole:
            return TensorDict.load_memmap(self.path)
        return TensorDict.load_memmap(self._data) if holds_dataset(self._data) else None

    def create(self, example: Data) -> Data:
        """Files for a dataset with the schema of `example`, zeroed and reserved."""
        self._make_room()
        return example.memmap_like(self._data)

    def _make_room(self) -> None:
        hidden.remove(self._moving)  # an interrupted move is forgotten: the files are made again
        remove_unfinished(self._data)

    def complete(self, data: Data, columns: dict[KeyPath, Any], order: Sequence[KeyPath] = ()) -> None:
        """Add non-tensor entries to a dataset that `create` has made; its metadata is replaced at once.

        Args:
            data: what `create` has made.
            columns: the entries by their paths.
            order: all entries in the order that is wanted.
        """
        if not self._has_moved:
            with_objects(data, columns, order).memmap_(self._data)

    def ragged(self, data: Data, path: KeyPath, rows: RaggedRows) -> Ragged:
        """As `ragged_files`, in the folder of what `create` has made; `complete` adds the entry."""
        return ragged_files(Path(self.path if self._has_moved else self._data), data, path, rows)

    @property
    def _has_moved(self) -> bool:
        """Whether `load` has finished an interrupted move, of a dataset that was complete."""
        return not holds_dataset(self._data)

    def save(self, data: Data) -> Any:
        """Write a dataset that is in memory, as a call of its own where the folder is not claimed. Errors as `claimed`
        and `require_room_for_hidden`."""
        require_room_for_hidden(data)
        with self.claimed("save"):
            self._make_room()
            data.memmap(self._data, copy_existing=True)  # the data may be rows of another dataset
            return self.publish()

    def publish(self) -> Data:
        """Move a finished dataset to its place, and open it there. May be repeated after an interruption.

        Raises:
            FileExistsError: another process has put something there meanwhile; the result stays where it was made.
        """
        self._move()
        if self._replaced is not None and self._lock is not None and self._lock.folder == self.path:
            self._lock.exchange(self._replaced)
        return TensorDict.load_memmap(self._place)

    def _move(self) -> None:
        with locked(str(self.path)):  # others may save a dataset there
            self._move_in_turn()

    def _move_in_turn(self) -> None:
        if holds_dataset(self._data):
            self._require_nothing_else()
            if not self._is_on_its_way:
                # From now on, neither folder holds a dataset until it is done.
                os.close(hidden.open_file(self._moving, os.O_WRONLY | os.O_CREAT))
            hidden.remove(self._meta)  # of the same run, which was interrupted and has made it anew
            for name in sorted(os.listdir(self._data)):
                if name != META:
                    hidden.remove_tree(f"{self.path}/{name}")  # of the same run, too
                    os.replace(f"{self._data}/{name}", f"{self.path}/{name}")
            os.replace(f"{self._data}/{META}", self._meta)
            if self._lock is not None:
                self._lock.made = False  # the folder stays, though it was made by this call
        if self._is_on_its_way:
            hidden.remove_tree(self._data)
            hidden.remove(self._moving)

    def _require_nothing_else(self) -> None:
        others = sorted(self._names() - {HIDDEN})
        if others and (self.has_journal or self._is_on_its_way):  # of the same run, which was interrupted
            moved = set(os.listdir(self._data))
            others = [name for name in others_in(str(self.path)) if name.partition("/")[0] in moved]
        if others:
            self._keeps = True
            raise FileExistsError(
                f"{self.path} was empty when the run began, and now holds {', '.join(others[:3])}, which "
                f"tdmap did not change. The complete result is in {self._data}: move it from there."
            )

    def _discard(self) -> None:
        """Remove what an unfinished run that cannot be resumed has left; nothing of a call that holds the lock."""
        if self._lock is None or not self._lock.is_mine or self._keeps:
            return
        with contextlib.suppress(FileNotFoundError):  # another process has removed it all
            for name in os.listdir(self.hidden):
                if name != LOCK:
                    remove_unfinished(self.hidden / name)


def holds_dataset(folder: str | os.PathLike[str]) -> bool:
    """Whether a dataset is in a folder of the hidden one.

    Raises:
        UntrustedFile: a link is in its place.
    """
    with contextlib.suppress(FileNotFoundError):
        os.close(hidden.open_folder(folder))
        return is_there(os.path.join(folder, META))
    return False


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove an unfinished dataset, or another file or folder of a call.

    Its metadata go first: what a process leaves that is killed meanwhile is no dataset.
    """
    info = stat_of(path, follow=False)
    if info is not None and stat.S_ISDIR(info.st_mode):
        hidden.remove(f"{os.fspath(path)}/{META}")
    hidden.remove_tree(path)


def folder_of(data: Data) -> Path | None:
    """The folder that a whole dataset is mapped from; None for a part of one, or data in memory."""
    if not isinstance(data, TensorCollection):
        return None
    root = mapped_root(data)
    return None if root is None else Path(root)


class RaggedRows(Protocol):
    """Ragged rows that are to be written."""

    kind: str
    dtype: torch.dtype
    row_shape: Sequence[int]
    total: int
    """Values of all rows."""

    def __len__(self) -> int: ...


def ragged_files(folder: Path, data: Data, path: KeyPath, rows: RaggedRows) -> Ragged:
    """Files of a ragged entry, zeroed, or those of before where they have this size.

    Args:
        folder: of the dataset.
        data: the dataset without the entry.
        path: of the entry.
        rows: what is to be written into them.
    """
    node = data
    for key in (None, *path[:-1]):
        if key is not None:
            node, folder = entries_of(node)[key], folder / encode_key(key)
        folder = folder / "_tensordict" if is_tensorclass(node) else folder
    stem = encode_key(path[-1])
    if rows.kind != "tensor":
        (folder / stem).mkdir(exist_ok=True)
    names = (f"{stem}.memmap", f"{stem}.offsets.memmap") if rows.kind == "tensor" else [f"{stem}/{n}" for n in TEXTS]
    files = [folder / name for name in names]
    shape = (rows.total, *rows.row_shape)
    for file, count, item in zip(files, (torch.Size(shape).numel(), len(rows) + 1), (rows.dtype.itemsize, 8)):
        mapped_file(file, count * item, keep=True, mode=0o666)
    values = torch.empty(shape, dtype=rows.dtype)
    if values.numel():
        values = MemoryMappedTensor.from_filename(files[0], rows.dtype, shape)
    offsets = MemoryMappedTensor.from_filename(files[1], torch.int64, (len(rows) + 1,))
    made: Ragged = Ragged._over(rows.kind, values, offsets)
    return made


def files_of(data: Data) -> list[str]:
    """The files that a dataset lies in."""
    regions = map(region_of, (*tensors_of(data), *ragged_tensors(data)))
    return [region.handle.path for region in regions if region is not None and not region.handle.anonymous]


@contextlib.contextmanager
def replacing(folder: Path, call: str) -> Iterator[FolderLock]:
    """Hold the lock of the dataset in a folder, which the block replaces.

    Args:
        folder: it, or a link to it.
        call: as for `FolderLock`.

    Raises:
        FileExistsError: the folder holds other files, or is the working directory.
        FolderInUse: another call writes it; names it.
        UntrustedFile: a link is where the new dataset is made.
    """
    if os.path.samefile(folder, os.curdir):
        raise FileExistsError(f"{folder} is the working directory, which would be removed: choose another folder.")
    try:
        require_only(str(folder))  # before anything is written there
    except FileExistsError:
        if holder_of(folder) is None:  # else they may be files of that call
            raise
    with FolderLock(Path(os.path.realpath(folder)), call) as lock:
        require_only(str(folder))
        with contextlib.suppress(FileNotFoundError):
            os.close(hidden.open_folder(replacement_of(lock.folder)))
        yield lock


def require_no_tilde(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for a path in the home folder as shells have it: here it would make a folder called `~`."""
    text = os.fspath(path)
    if isinstance(text, str) and (text == "~" or text.startswith(("~/", "~\\"))):
        raise ValueError(f"only a shell replaces the ~ of {text!r}: pass os.path.expanduser({text!r}).")


def destination(out: object, overwrite: bool = False) -> OutputFolder | None:
    """The folder that `out` of an operation names; None where it is None, or a dataset.

    Raises:
        ValueError: `overwrite`, and it is not a path.
    """
    if isinstance(out, (str, os.PathLike)):
        return OutputFolder(out, overwrite)
    if overwrite:
        what = "it is None" if out is None else f"got a {type(out).__name__}, whose rows are written over as it is"
        raise ValueError(f"overwrite=True replaces the dataset in a folder, so out must be its path: {what}.")
    return out if isinstance(out, OutputFolder) else None


def require_room_for_hidden(data: Data) -> None:
    """Raise OutputMismatch when an entry of a dataset would lie in its hidden folder."""
    if not is_dense(data) or HIDDEN not in entries_of(data) or is_tensorclass(data):
        return
    if not isinstance(entries_of(data)[HIDDEN], Tensor):  # a tensor lies in a file of another name
        raise OutputMismatch(
            f"the entry {HIDDEN!r} has the name of the folder that holds the state of runs: rename it "
            "(rename_key_), or keep the result in memory (out=None)."
        )
