"""Where a save is written until it is complete, and how it takes its place.

A new dataset is written to a temporary folder beside its destination and renamed into place: it is there whole
or not at all. Over an existing dataset everything is written first, so that a full disk or a kill leaves the old
one as it was; then its metadata goes (the root's first), the files move in, and the new metadata follows, the
root's last. Whoever is killed in between leaves a folder without ``meta.json``, which nobody loads.

Saves to one folder take turns: a lock on it is held from the first file that moves until the caller has mapped its
files. So each of them is there whole, one after the other, and the last one stays.
Where one file changes and the metadata stays, that file is swapped, and the dataset is whole at any time
(:func:`swapped_file`). Small files that nobody has open are written in place (:mod:`.inplace`). A dataset that is one
file is written to a temporary file beside it, and renamed over it (:func:`staged_file`).
What a killed save leaves is removed by the next one in that folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import secrets
import shutil
import socket
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk import forks
from tensordict_lite.memmap.disk.contents import STALE, is_temporary, put_away, require_only
from tensordict_lite.memmap.disk.files import open_at_once, open_folder, refuse_link
from tensordict_lite.memmap.disk.format import META, REPLACED, RUNS
from tensordict_lite.memmap.disk.turns import holds_dataset, is_at, reading, turn_in

__all__ = [
    "Staging",
    "Superseded",
    "below",
    "exchange_in_turn",
    "remove_stale",
    "resolved",
    "staged_file",
    "staged_path",
    "swapped_file",
    "temporary_name",
    "sync_file",
    "sync_files",
    "sync_folder",
]

Replaced: TypeAlias = Literal["all", "some", "none"]
"""Which tensors of a dataset a save gives new files."""

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@functools.cache
def _host() -> str:
    """The machine and, in a container, its processes: a number of a process means nothing to those of another one."""
    namespace = 0
    with contextlib.suppress(OSError):  # no /proc
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{zlib.crc32(f'{socket.gethostname()} {namespace}'.encode()):08x}"


def temporary_name() -> str:
    """A name of what is being written, or the end of one: it says which process of which machine does it."""
    return f".tdlite-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


class Superseded(DatasetError):
    """Another save has changed the folder while this one was written: to be done anew."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "another save has replaced this dataset meanwhile, and nothing of this one: try again")


class Staging:
    """A folder to write a dataset into, and its way to ``prefix``.

    Args:
        prefix: where the dataset goes. The folder may exist.
        atomic: exchange the whole folder even where a dataset exists (files that the new one lacks are gone).

    Attributes:
        root: write here. Paths relative to it are the paths below ``prefix``.
    """

    def __init__(self, prefix: str, *, atomic: bool = False) -> None:
        self.prefix, mode = resolved(prefix)
        self._moved, self._atomic = False, atomic
        parent, name = os.path.split(self.prefix)
        self.exists = mode != 0
        if not self.exists and not os.path.isdir(parent):
            os.makedirs(parent, exist_ok=True)
        if self.exists and not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "a dataset is a folder, and this is a file", self.prefix)
        there = os.listdir(self.prefix) if self.exists else []
        occupied = any(not is_temporary(name) for name in there)
        is_left = any(STALE.search(name) for name in there)
        self.exchange = atomic and occupied
        if self.exchange and not holds_dataset(self.prefix):
            if not is_left:
                raise RuntimeError(
                    f"{self.prefix} holds files but no dataset; atomic=True would remove them. Give an empty folder."
                )
            self.exchange = False  # a killed save has left no dataset, whose place is taken as without `atomic`
        if self.exchange:
            with reading(self.prefix):
                require_only(self.prefix)
        beside = not occupied or self.exchange
        if beside and ((self.exists and os.path.ismount(self.prefix)) or not os.access(parent, os.W_OK)):
            beside = self.exchange = False
        self.inside = not beside
        tag = temporary_name()
        where = self.prefix if self.inside else parent
        if not self.inside or is_left:
            remove_stale(where)
        self.root = f"{where}/{tag}" if self.inside else f"{where}/.{name[:100]}{tag}"
        if not self.inside:
            os.mkdir(self.root)
        try:
            if self.inside:
                os.mkdir(self.root)
            self._lock = forks.kept(open_folder(self.root))
        except FileNotFoundError as err:
            raise Superseded(self.prefix) from err
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # says that this save runs, also to who cannot see the process
        self._turn = -1

    def abort(self) -> None:
        """Removes what was written; ``prefix`` is as it was."""
        if not self._moved:
            shutil.rmtree(self.root, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Lets others put something into ``prefix``; after :meth:`commit`, when its files have been mapped."""
        for name in ("_lock", "_turn"):
            forks.unlock(getattr(self, name))
            setattr(self, name, -1)

    def commit(
        self,
        files: list[str],
        folders: list[str],
        *,
        meanwhile: Callable[[], None] | None = None,
        is_current: Callable[[], bool] = lambda: True,
        replaced: Replaced = "all",
    ) -> None:
        """Puts the dataset in its place, where nobody else puts one before :meth:`release`.

        Args:
            files: paths of the data files, relative.
            folders: relative paths of the folders, each with its ``meta.json``; the root is ``""``.
            meanwhile: changes files of the old dataset in place; called while there is no metadata.
            is_current: whether the other files of the folder are what they were; asked while nobody changes them.
            replaced: which tensors of a dataset that is there get new files. What runs have noted about the rows that
                it had (``.tdmap``) is removed with ``"all"``, and marked as doubtful with ``"some"``.

        Raises:
            DatasetError: one of them is a symbolic link in the dataset that is there; nothing has changed.
            Superseded: they are not, or what was written here is gone; nothing has changed.
        """
        if self.inside:
            self._take_turn()
            if self.is_gone() or not is_current():
                raise Superseded(self.prefix)
            self._move_in(files, folders, meanwhile, replaced)
        else:
            self._rename(files, folders)

    def is_gone(self) -> bool:
        """Whether a save that replaces whole folders has taken what is written here, with the rest of the old one."""
        return not is_at(self._lock, self.root)

    def _rename(self, files: list[str], folders: list[str]) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # of the folder that is about to be the dataset
        if self.exists:
            shutil.copymode(self.prefix, self.root)
        if self.exchange:
            self._exchange()
            return
        try:
            os.rename(self.root, self.prefix)
            self._moved = True
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                raise
            if self._atomic and err.errno != errno.EBUSY and holds_dataset(self.prefix):
                self._exchange()
                return
            self._move_in(files, folders)  # somebody wrote there meanwhile, or it cannot be replaced

    def _exchange(self) -> None:
        self._take_turn()
        exchange(self.root, self.prefix)
        self._moved = True
        put_away(self.root, self.prefix)

    def _take_turn(self) -> None:
        """Waits until nobody else changes the folder that ``prefix`` is."""
        if self._turn < 0:
            self._turn = turn_in(self.prefix)

    def _move_in(
        self,
        files: list[str],
        folders: list[str],
        meanwhile: Callable[[], None] | None = None,
        replaced: Replaced = "all",
    ) -> None:
        self._take_turn()
        for path in (*folders, *files):  # of the root, a link is the user's choice
            if path:
                refuse_link(f"{self.prefix}/{path}")
        order = sorted(folders, key=lambda folder: folder.count("/") + bool(folder))
        for folder in order:
            _require_folder(self.prefix, folder)
        is_marked = replaced != "none" and _mark_runs(self.prefix)
        for folder in order:  # from the root down: whatever is half replaced has no metadata above it
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(below(self.prefix, folder, META))
        if is_marked and replaced == "all":
            gone = f"{self.prefix}/{temporary_name()}"
            os.rename(f"{self.prefix}/{RUNS}", gone)  # in one step: the mark goes with what it is about
            shutil.rmtree(gone, ignore_errors=True)
        for folder in dict.fromkeys((*order, *(file.rpartition("/")[0] for file in files))):
            if folder:
                os.makedirs(f"{self.prefix}/{folder}", exist_ok=True)
        for file in files:
            _replace_file(f"{self.root}/{file}", f"{self.prefix}/{file}")
        if meanwhile is not None:
            meanwhile()
        for folder in reversed(order):
            os.replace(below(self.root, folder, META), below(self.prefix, folder, META))
        _remove(self.root, files, folders)


def _mark_runs(prefix: str) -> bool:
    """Marks what runs have noted about the rows of a dataset, before these are replaced; whether it is marked.

    A folder without a dataset is that of a run which makes one, unless a save was killed after it had marked it.
    """
    runs = f"{prefix}/{RUNS}"
    if stat.S_ISDIR(_mode_of(runs)) and os.path.lexists(f"{prefix}/{META}"):
        with contextlib.suppress(OSError):  # it is there, or the folder is of another user, whose runs are not used
            os.mkdir(f"{runs}/{REPLACED}")
    return os.path.isdir(f"{runs}/{REPLACED}")


@contextlib.contextmanager
def swapped_file(
    prefix: str, file: str, write: Callable[[int, str], None], is_current: Callable[[], bool]
) -> Iterator[bool]:
    """Puts a new file into the place of one of a dataset, whose others and whose metadata stay.

    By one swap: readers, and those who come after a kill, find a whole dataset, with the old file or with the new one.
    Nobody replaces it before the block ends.

    Args:
        prefix: folder of the dataset.
        file: path of the file, relative.
        write: fills the new one, given its descriptor and the path that it will have.
        is_current: whether the rest of the dataset is that of the new file; asked while nobody changes it.

    Yields:
        False where it is not, and nothing has changed.

    Raises:
        DatasetError: a symbolic link is in the place; nothing has changed.
    """
    prefix = resolved(prefix)[0]
    remove_stale(prefix)
    new, place, turn = f"{prefix}/{temporary_name()}", f"{prefix}/{file}", -1
    fd = forks.kept(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_SH)  # see Staging
            write(fd, place)
            turn = turn_in(prefix)
            refuse_link(place)
            is_swapped = is_at(fd, new) and is_current()
            if is_swapped:
                _replace_file(new, place)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(new)  # or what was there before
        yield is_swapped
    finally:
        forks.unlock(fd)
        forks.unlock(turn)


def resolved(prefix: str) -> tuple[str, int]:
    """Absolute path of a folder that may be, and its :func:`_mode_of`.

    Of a link, it is the folder that it leads to that is changed; links further up are followed anyway.
    """
    prefix = os.path.abspath(prefix)
    mode = _mode_of(prefix)
    if stat.S_ISLNK(mode):
        prefix = os.path.realpath(prefix)
        mode = _mode_of(prefix)
    return prefix, mode


def _mode_of(path: str) -> int:
    """Kind and permissions of what is at a path, links not followed; 0 where there is nothing."""
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):
        return 0


def below(root: str, *parts: str) -> str:
    """``os.path.join``, of relative parts that may be empty."""
    return "/".join((root, *filter(None, parts)))


def _replace_file(new: str, place: str) -> None:
    """Puts a file into a place where one may be, which then has the name of the new one, or none.

    Swapped, not renamed over: that makes ext4 write the new file to the disk at once (``auto_da_alloc``), which takes
    longer than everything else. What a rename promises beyond that is not needed while there is no metadata.
    """
    if not _exchanged(new, place):
        os.replace(new, place)


def _remove(root: str, files: list[str], folders: list[str]) -> None:
    """Removes a folder of known content, of which some may be gone; and what else somebody has put there."""
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(f"{root}/{file}")
    try:
        for folder in sorted(folders, key=len, reverse=True):
            os.rmdir(below(root, folder))
    except OSError:
        shutil.rmtree(root, ignore_errors=True)


def exchange_in_turn(a: str, b: str) -> None:
    """:func:`exchange`, when nobody else reads or changes the folder at ``b``."""
    fd = turn_in(b)
    try:
        exchange(a, b)
    finally:
        forks.unlock(fd)


def _require_folder(root: str, folder: str) -> None:
    """Raises :class:`DatasetError` where there is a file in the place of a folder, given relative to the root."""
    if not folder:
        return
    path = f"{root}/{folder}"
    if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
        raise DatasetError(path, "is no folder")


@contextlib.contextmanager
def staged_file(path: str) -> Iterator[int]:
    """A descriptor of a new file that replaces ``path`` when the block succeeds, see :func:`staged_path`."""
    with staged_path(path) as temporary:
        fd = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


@contextlib.contextmanager
def staged_path(path: str) -> Iterator[str]:
    """The name of a new file that replaces ``path`` when the block succeeds, and vanishes otherwise.

    A link is followed. The file gets the permissions of the one that it replaces; whoever has that one open, or
    mapped, keeps it.

    Raises:
        ValueError: there is a folder at ``path``.
    """
    path = os.path.realpath(path)
    parent, name = os.path.split(path)
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder, and cannot become a file: give another name, or remove it")
    os.makedirs(parent, exist_ok=True)
    remove_stale(parent)
    temporary = os.path.join(parent, f".{name[:100]}{temporary_name()}")
    fd = forks.kept(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_SH)  # see Staging
            yield temporary
            mode = os.fstat(fd).st_mode
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(path).st_mode
            os.chmod(temporary, mode & 0o7777)
        finally:
            forks.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


FEW = 100
"""Entries of a folder that are looked through before every save."""

_rests: dict[str, float] = {}
"""Until when a folder of many entries is not looked through again (``time.monotonic``)."""


def remove_stale(folder: str) -> None:
    """Removes what processes of this machine that no longer run have left unfinished.

    Beside thousands of datasets looking takes longer than saving one: it is done in a twentieth of the time there.
    """
    if _rests and time.monotonic() < _rests.get(folder, 0.0):
        return
    start = time.thread_time()
    if _sweep(folder) > FEW:
        if len(_rests) > 1000:
            _rests.clear()
        _rests[folder] = time.monotonic() + 20 * (time.thread_time() - start)


def _sweep(folder: str) -> int:
    """How many entries there are; removes those that are stale."""
    count = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            count += 1
            match = STALE.search(entry.name)
            if match and match[1] == _host() and not os.path.exists(f"/proc/{match[2]}"):
                with contextlib.suppress(OSError):  # it belongs to another user
                    _remove_stale(entry)
    return count


def _remove_stale(entry: os.DirEntry[str]) -> None:
    if entry.stat(follow_symlinks=False).st_uid != os.geteuid() or _is_held(entry.path):
        return
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        os.unlink(entry.path)


def _is_held(path: str) -> bool:
    """Whether the save that made a folder or file runs still, perhaps in a container with processes of its own."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def exchange(a: str, b: str) -> None:
    """Swaps two folders; in one step where the kernel and the file system can, in two renames otherwise."""
    if _exchanged(a, b):
        return
    aside = a + ".old"
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)


def _exchanged(a: str, b: str) -> bool:
    """Swaps two files or folders in one step, if both are there, and the kernel and the file system can."""
    swap = _renameat2()
    return swap is not None and swap(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0


@functools.cache
def _renameat2() -> Any:
    """The function of the C library, ``None`` where it has none."""
    with contextlib.suppress(AttributeError, OSError):
        return ctypes.CDLL(None).renameat2
    return None


def sync_folder(path: str) -> None:
    """Waits until the entries of a folder are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str) -> None:
    """Waits until the content of a file is on the disk."""
    fd = open_at_once(os.path.realpath(path))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_files(paths: Iterable[str]) -> None:
    """:func:`sync_file` of many: those that wait at one time share the trips of the journal to the disk."""
    paths = list(paths)
    if len(paths) <= 2:
        for path in paths:
            sync_file(path)
        return
    with ThreadPoolExecutor(min(16, len(paths)), "sync") as pool:
        list(pool.map(sync_file, paths))
