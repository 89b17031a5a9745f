"""Writing a dataset to a temporary folder, and moving it to its place.

A dataset is written to a temporary folder next to its destination. A new one is renamed to its place. To replace a
dataset, the two folders are exchanged in one step (``RENAME_EXCHANGE``), and the old one is removed. Readers, also
after a kill, find the old or the new dataset, complete.

Some folders cannot be exchanged: a mount point, the working directory, a folder whose parent is not writable or on a
file system without that step, one whose owner or attributes cannot be copied, one with files outside its dataset, or
with the state of runs over columns that are kept. Then all files are written first and replaced one by one
(:meth:`Staging._move_in`): the old metadata is removed (that of the root first), the files are moved, and the new
metadata follows, that of the root last. A process that is killed in between leaves no ``meta.json``, so no dataset.

Saves to one folder exclude each other (:mod:`.locks`) from that step until the caller has mapped its files. A dataset
in one file is written to a temporary file next to it and renamed (:func:`staged_file`). The next save in a folder
removes what a killed one left there.
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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.contents import STALE, is_temporary, left_by, put_away, remove_emptied
from tensordict_lite.memmap.disk.files import below, is_there, open_at_once, refuse_link, stat_of
from tensordict_lite.memmap.disk.format import META, REPLACED, RUNS
from tensordict_lite.memmap.disk.locks import close, is_at, kept, lock, open_folder, unlock

Replaced: TypeAlias = Literal["all", "some", "none"]
"""Which tensors of a dataset a save replaces."""

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@functools.cache
def _host() -> str:
    """The machine and, in a container, its process namespace: process numbers are valid only there."""
    namespace = 0
    with contextlib.suppress(OSError):  # no /proc
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{zlib.crc32(f'{socket.gethostname()} {namespace}'.encode()):08x}"


def temporary_name() -> str:
    """A name for unfinished files, or a suffix of one, that identifies its process and machine."""
    return f".tdlite-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


class Superseded(DatasetError):
    """Another save has changed the folder meanwhile: the save must be repeated."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "another save has replaced this dataset meanwhile, and nothing of this one: try again")


class Staging(contextlib.AbstractContextManager["Staging"]):
    """A folder to write a dataset into, to be moved to ``prefix``.

    As a context manager it ends with :meth:`release`, or after an exception with :meth:`abort`.

    Args:
        prefix: where the dataset goes. The folder may exist.

    Attributes:
        root: the folder to write to. Paths relative to it are those below ``prefix``.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix, mode = resolved(prefix)
        if mode and not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "a dataset is a folder, and this is a file", self.prefix)
        parent, name = os.path.split(self.prefix)
        if not mode:
            os.makedirs(parent, exist_ok=True)
        self._is_inside = mode != 0 and not _can_be_replaced(self.prefix, parent)
        if self._is_inside:
            self.root = f"{self.prefix}/{temporary_name()}"
        else:
            self.root = f"{parent}/.{os.fsdecode(os.fsencode(name)[:200])}{temporary_name()}"
        remove_stale(os.path.dirname(self.root))
        self._is_exchanged, self._turn, self._lock, self._old = False, -1, -1, set[str]()
        try:
            os.mkdir(self.root)
            self._lock = kept(open_folder(self.root))
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_SH)  # a running save, also for readers that cannot see the process
            self._is_alike = self._is_inside or not mode or _made_alike(self.root, self.prefix)
        except FileNotFoundError as err:
            raise Superseded(self.prefix) from err
        except BaseException:
            self._abandon()
            raise

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        try:
            self._end(problem)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Leave what is there to the next save: an interrupt, such as Ctrl-C, came before it was removed."""
        _abandoned.add(self.root)
        unlock(self._lock)

    def _end(self, problem: BaseException | None) -> None:
        if problem is None:
            return self.release()
        name_place(problem, self.root, self.prefix)
        is_gone = isinstance(problem, FileNotFoundError) and self.is_gone()
        self.abort()
        if is_gone:
            raise Superseded(self.prefix) from problem

    def take_turn(self) -> None:
        """Wait until no other process changes or reads the dataset at ``prefix``, and exclude them."""
        if self._turn < 0:
            with contextlib.suppress(FileNotFoundError):  # it does not exist yet
                self._turn = lock(self.prefix)

    def keep(self, file: str) -> None:
        """Keep a file of the existing dataset in the new one; after :meth:`take_turn`."""
        try:
            os.link(f"{self.prefix}/{file}", f"{self.root}/{file}", follow_symlinks=False)
        except OSError:  # another user's, on another file system, or on one without hard links
            self._is_alike = False

    def commit(
        self, files: Iterable[str], folders: Iterable[str], *, replaced: Replaced = "all", existsok: bool = True
    ) -> None:
        """Move the dataset to its place; other saves wait until :meth:`release`.

        Args:
            files: relative paths of the data files. Those that are not in ``root`` are kept.
            folders: relative paths of the folders, each with its ``meta.json``; the root is ``""``.
            replaced: which tensors of an existing dataset are replaced. Notes of runs about its rows (``.tdmap``) are
                removed with ``"all"`` and marked as doubtful with ``"some"``.
            existsok: False keeps an existing dataset, and removes this one.

        Raises:
            DatasetError: one of them is a symbolic link in the existing dataset; nothing has changed.
            Superseded: the new files were removed; nothing has changed.
        """
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # the folder that becomes the dataset
        if self._is_alike and not self._is_inside and self._is_renamed():
            return
        self.take_turn()
        if self.is_gone():
            raise Superseded(self.prefix)
        replaces = is_there(f"{self.prefix}/{META}", follow=False)
        if replaces and not existsok:
            return self.abort()
        files, folders = list(files), sorted(folders, key=lambda folder: folder.count("/") + bool(folder))
        for path in (*folders, *files):  # ``prefix`` itself has been resolved
            refuse_link(f"{self.prefix}/{path}")
        if replaces:
            keep_modes(self.root, self.prefix, (*files, *(below(folder, META) for folder in folders)))
        for folder in folders:
            _require_folder(self.prefix, folder)
        left, has_others = left_by(self.prefix, {*files, *(below(folder, META) for folder in folders)})
        keeps_runs = replaced != "all" and is_there(f"{self.prefix}/{RUNS}", follow=False)
        may_exchange = replaces and self._is_alike and not (self._is_inside or has_others or keeps_runs)
        if may_exchange and self._are_alike(folders) and _exchanged(self.root, self.prefix):
            self._is_exchanged, self._old = True, left.union(files, (below(folder, META) for folder in folders))
        else:
            self._move_in(files, folders, left, replaced)

    def is_gone(self) -> bool:
        """Whether another save, which exchanged a parent folder, has removed the new files."""
        return not is_at(self._lock, self.root)

    def abort(self) -> None:
        """Remove what was written; ``prefix`` is unchanged."""
        if not self._is_exchanged:
            shutil.rmtree(self.root, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Let others change ``prefix``; after :meth:`commit`, when its files have been mapped."""
        for name in ("_lock", "_turn"):
            unlock(getattr(self, name))
            setattr(self, name, -1)
        if self._is_exchanged:
            with contextlib.suppress(OSError):  # not removable
                put_away(self.root, self.prefix, lambda names: {name for name in names if self._is_old(name)})
            self._is_exchanged = False

    def _is_old(self, name: str) -> bool:
        return name in self._old or name.startswith(f"{RUNS}/") or any(map(is_temporary, name.split("/")))

    def _is_renamed(self) -> bool:
        """Whether the place was free."""
        try:
            os.rename(self.root, self.prefix)
        except OSError as err:
            if not os.path.isdir(self.prefix):
                raise err
            return False  # another save was first, or a dataset must be replaced
        return True

    def _are_alike(self, folders: list[str]) -> bool:
        """Whether the new folders have the owners and permissions of those that they replace."""
        return all(
            _made_alike(f"{self.root}/{folder}", f"{self.prefix}/{folder}")
            for folder in folders
            if folder and is_there(f"{self.prefix}/{folder}", follow=False)
        )

    def _move_in(self, files: list[str], folders: list[str], left: set[str], replaced: Replaced) -> None:
        if not self._is_inside:
            remove_stale(self.prefix)
            inside = f"{self.prefix}/{temporary_name()}"
            shutil.move(self.root, inside)  # may copy; nothing of the old dataset has changed yet
            self.root = inside
        is_marked = replaced != "none" and _mark_runs(self.prefix)
        for folder in folders:  # root first: a half-replaced folder has no metadata above it
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(f"{self.prefix}/{below(folder, META)}")
        if is_marked and replaced == "all":
            gone = f"{self.prefix}/{temporary_name()}"
            os.rename(f"{self.prefix}/{RUNS}", gone)  # in one step: the mark is removed with the notes
            shutil.rmtree(gone, ignore_errors=True)
        old = [n for n in left if not n.startswith(f"{RUNS}/") and not any(map(is_temporary, n.split("/")))]
        for name in old:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.prefix}/{name}")
        remove_emptied(self.prefix, old, keep=folders)
        for folder in dict.fromkeys((*folders, *(file.rpartition("/")[0] for file in files))):
            if folder:
                os.makedirs(f"{self.prefix}/{folder}", exist_ok=True)
        for file in files:
            if is_there(f"{self.root}/{file}", follow=False):
                _replace_file(f"{self.root}/{file}", f"{self.prefix}/{file}")
        for folder in reversed(folders):
            os.replace(f"{self.root}/{below(folder, META)}", f"{self.prefix}/{below(folder, META)}")
        shutil.rmtree(self.root, ignore_errors=True)


def _can_be_replaced(folder: str, parent: str) -> bool:
    """Whether a folder can be replaced by another, as far as is known: the kernel may still refuse."""
    if os.path.ismount(folder) or not os.access(parent, os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    try:
        return not f"{os.getcwd()}/".startswith(f"{os.path.realpath(folder)}/")
    except FileNotFoundError:  # the working directory was deleted
        return True


def _made_alike(new: str, old: str) -> bool:
    """Copy owner, permissions and attributes of a folder; return whether they match and both are on one device."""
    wanted, found = os.stat(old), os.stat(new)
    if wanted.st_dev != found.st_dev:
        return False
    try:
        if (wanted.st_uid, wanted.st_gid) != (found.st_uid, found.st_gid):
            os.chown(new, wanted.st_uid, wanted.st_gid)
        if wanted.st_mode != found.st_mode:
            os.chmod(new, stat.S_IMODE(wanted.st_mode))
            if os.stat(new).st_mode != wanted.st_mode:  # a group of which this user is not a member
                return False
        return _attributes(new) == _attributes(old) or _set_attributes(new, _attributes(old))
    except OSError:
        return False


def keep_modes(new: str, old: str, paths: Iterable[str]) -> None:
    """Give the files and folders of a new dataset the permissions of those that they replace.

    A file without a counterpart gets those of the replaced metadata.

    Args:
        new, old: the folders.
        paths: relative. Those that are not in the new folder are left out.
    """
    default = _mode_of(f"{old}/{META}")
    for path in paths:
        made = _mode_of(f"{new}/{path}")
        wanted = _mode_of(f"{old}/{path}") or default
        if made != wanted and stat.S_IFMT(made) == stat.S_IFMT(wanted):
            os.chmod(f"{new}/{path}", stat.S_IMODE(wanted))


def _attributes(path: str) -> dict[str, bytes]:
    if not hasattr(os, "listxattr"):
        return {}
    try:
        return {name: os.getxattr(path, name) for name in os.listxattr(path)}
    except OSError as err:
        if err.errno == errno.ENOTSUP:
            return {}
        raise


def _set_attributes(path: str, wanted: dict[str, bytes]) -> bool:
    for name, value in wanted.items():
        os.setxattr(path, name, value)
    return _attributes(path) == wanted


def _mark_runs(prefix: str) -> bool:
    """Mark the notes of runs about the rows of a dataset before these are replaced; return whether it is marked.

    A folder without a dataset is the output of a running job, unless a save was killed after marking it.
    """
    runs = f"{prefix}/{RUNS}"
    if stat.S_ISDIR(_mode_of(runs)) and is_there(f"{prefix}/{META}", follow=False):
        with contextlib.suppress(OSError):  # it exists, or the folder belongs to another user, whose runs are not used
            os.mkdir(f"{runs}/{REPLACED}")
    return is_there(f"{runs}/{REPLACED}", follow=False)


def resolved(prefix: str) -> tuple[str, int]:
    """Absolute path of a folder that may exist, and its :func:`_mode_of`.

    If it is a link, the folder that it points to is changed; links in parent folders are followed anyway.
    """
    prefix = os.path.abspath(prefix)
    mode = _mode_of(prefix)
    if stat.S_ISLNK(mode):
        prefix = os.path.realpath(prefix)
        mode = _mode_of(prefix)
    return prefix, mode


def _mode_of(path: str) -> int:
    """Type and permissions of the file at a path, without following links; 0 if there is none."""
    info = stat_of(path, follow=False)
    return 0 if info is None else info.st_mode


def _replace_file(new: str, place: str) -> None:
    """Move a file to a place that may be taken; the replaced file then has the name of the new one, or none.

    Exchanged, not renamed: a rename over a file makes ext4 write the new one to the disk at once (``auto_da_alloc``),
    which takes longer than everything else. Its guarantees are not needed while there is no metadata.
    """
    if not _exchanged(new, place):
        os.replace(new, place)


def exchange_in_turn(a: str, b: str) -> None:
    """:func:`exchange` after other calls have finished reading or changing the folder at ``b``."""
    fd = lock(b)
    try:
        exchange(a, b)
    finally:
        unlock(fd)


def _require_folder(root: str, folder: str) -> None:
    """Raise :class:`DatasetError` if a file is at the relative path of a folder."""
    if not folder:
        return
    path = f"{root}/{folder}"
    if (mode := _mode_of(path)) and not stat.S_ISDIR(mode):
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
    """The path of a new file that replaces ``path`` if the block succeeds, and is removed otherwise.

    A link is followed. The file gets the permissions of the replaced one, which stays valid for processes that have it
    open or mapped.

    Raises:
        ValueError: ``path`` is a folder.
    """
    path = os.path.realpath(path)
    parent, name = os.path.split(path)
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder, and cannot become a file: give another name, or remove it")
    os.makedirs(parent, exist_ok=True)
    remove_stale(parent)
    temporary = os.path.join(parent, f".{name[:100]}{temporary_name()}")
    private = 0o600 if is_there(path) else 0o666  # until it has the permissions of the replaced file
    fd = kept(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, private))
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
            close(fd)
        os.replace(temporary, path)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        name_place(problem, temporary, path)
        raise


def name_place(problem: BaseException, made: str, place: str) -> None:
    """Name the place of a file, or a file of a folder, in an error of the system about what was to be moved there."""
    if not isinstance(problem, OSError) or not isinstance(problem.filename, (str, os.PathLike)):
        return
    name = os.fspath(problem.filename)
    if f"{name}/".startswith(f"{made}/"):
        problem.filename = place + name[len(made) :]


FEW = 100
"""Number of entries of a folder that are checked before every save."""

_abandoned: set[str] = set()
"""Folders of saves of this process that were interrupted before they had removed them."""

_rests: dict[str, float] = {}
"""Time (``time.monotonic``) until which a folder with many entries is not checked again."""


def remove_stale(folder: str) -> None:
    """Remove unfinished files of processes of this machine that have ended.

    Next to thousands of datasets, checking takes longer than saving: it gets a twentieth of the time there.
    """
    if _rests and time.monotonic() < _rests.get(folder, 0.0):
        return
    start = time.thread_time()
    if _sweep(folder) > FEW:
        if len(_rests) > 1000:
            _rests.clear()
        _rests[folder] = time.monotonic() + 20 * (time.thread_time() - start)


def _sweep(folder: str) -> int:
    """Remove stale entries; return the number of all entries."""
    count = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            count += 1
            match = STALE.search(entry.name)
            if not match or match[1] != _host():
                continue
            if entry.path in _abandoned or not os.path.exists(f"/proc/{match[2]}"):
                with contextlib.suppress(OSError):  # it belongs to another user
                    _remove_stale(entry)
    return count


def _remove_stale(entry: os.DirEntry[str]) -> None:
    if entry.stat(follow_symlinks=False).st_uid != os.geteuid() or _is_held(entry.path):
        return
    if entry.is_dir(follow_symlinks=False):
        _remove_folder(entry.path)
    else:
        os.unlink(entry.path)


def _remove_folder(path: str) -> None:
    """Remove an incomplete or replaced folder, except for files of the user that appeared in it."""
    folder, name = os.path.split(path)
    name = STALE.sub("", name)[1:]  # of the dataset next to it, if any
    with contextlib.suppress(DatasetError):
        if name and is_there(f"{path}/{META}", follow=False) and is_there(f"{folder}/{name}"):
            return put_away(path, f"{folder}/{name}")
    shutil.rmtree(path, ignore_errors=True)


def _is_held(path: str) -> bool:
    """Whether the save that made a folder or file still runs, perhaps in a container."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def exchange(a: str, b: str) -> None:
    """Exchange two folders: in one step if the kernel and the file system can, else by two renames."""
    if _exchanged(a, b):
        return
    aside = a + ".old"
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)


def _exchanged(a: str, b: str) -> bool:
    """Exchange two files or folders in one step, if both exist and the system supports it."""
    swap = _renameat2()
    return swap is not None and swap(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0


@functools.cache
def _renameat2() -> Any:
    """The C function, ``None`` if it is missing."""
    with contextlib.suppress(AttributeError, OSError):
        return ctypes.CDLL(None).renameat2
    return None


def sync_folder(path: str) -> None:
    """Wait until the entries of a folder are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str) -> None:
    """Wait until the content of a file is on the disk."""
    fd = open_at_once(os.path.realpath(path))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_files(paths: Iterable[str]) -> None:
    """:func:`sync_file` for many files: concurrent calls share journal commits."""
    paths = list(paths)
    if len(paths) <= 2:
        for path in paths:
            sync_file(path)
        return
    with ThreadPoolExecutor(min(16, len(paths)), "sync") as pool:
        list(pool.map(sync_file, paths))
