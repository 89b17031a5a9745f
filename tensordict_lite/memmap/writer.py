"""Growing datasets: rows appended by one or many processes, readable at any moment.

The files have space for more rows than are committed; the metadata stores the number of committed ones. A flush takes a
lock, writes rows after the committed ones, and then the metadata. That of the outermost collection comes last: its row
count, replaced by one rename, is authoritative. A writer that is killed earlier has written after the end, where no
reader looks and the next flush writes again. Nested folders are updated before the root and read after it, so a reader
finds at least the rows that the root promises (``load.py`` drops the rest).

The values of ragged entries are written where those of the last committed row end, as stored in the file of offsets.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.files import (
    created,
    is_there,
    new_file,
    open_at_once,
    stat_of,
    write_all,
    write_new,
    write_tensor_to,
)
from tensordict_lite.memmap.disk.format import META, is_count, read_json
from tensordict_lite.memmap.disk.locks import is_at, locked, open_folder
from tensordict_lite.memmap.disk.mapping import check_room, reserve
from tensordict_lite.memmap.disk.staging import Staging, sync_folder
from tensordict_lite.memmap.load import load_collection
from tensordict_lite.memmap.plan import Leaf, SaveOptions, SavePlan, plan_for
from tensordict_lite.memmap.schema import FolderSchema, RaggedLeaf, listed_rows, load_head
from tensordict_lite.memmap.text import CLASS, text_fields, text_meta
from tensordict_lite.memmap.tuning import current
from tensordict_lite.paths import absolute_path
from tensordict_lite.ragged import Ragged, ragged_in

_MOST = 1 << 62  # rows
_MOST_FILES = 64  # that a writer keeps open: a dataset may have more columns than a process may have open files
_STEP = 1 << 30  # the allocation is doubled, but never extended by more than this many bytes per file


Method = TypeVar("Method", bound=Callable[..., Any])


def _one_thread_at_a_time(method: Method) -> Method:
    """Serialise threads of a process that share a writer; its lock excludes other processes only."""

    @functools.wraps(method)
    def call(self: DatasetWriter, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != self._pid:
            self._become_own()
        with self._mutex:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


class DatasetWriter:
    """Append rows to a dataset on disk.

    Args:
        path: folder of the dataset; created if it does not exist, otherwise continued.
        example: one row with the keys, shapes and dtypes of all rows: a TensorDict or a tensorclass, or a (nested)
            mapping from keys to ``(shape, dtype)``, ``str``, ``bytes``, or a :class:`Ragged` like those of the rows.
            With a ``Ragged`` among its entries, it is a batch of one or more rows. Optional for a dataset that exists.
        capacity: rows to allocate at once. The dataset may grow beyond it.

    Raises:
        ValueError: the existing dataset has other keys, shapes or dtypes.
        DatasetError: the folder holds no dataset and there is no ``example``, or the dataset is damaged.
        OSError: not enough space.

    Several writers in any number of processes may append to one dataset, and threads may share a writer: each flush
    adds a contiguous block of rows. Rows are kept in memory until :meth:`flush` (or up to a few megabytes), and a crash
    loses only those. Readers see committed rows; call ``TensorDict.load_memmap(path)`` again to see more.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import DatasetWriter
        >>> folder = tempfile.TemporaryDirectory()
        >>> with DatasetWriter(folder.name, TensorDict({"x": torch.zeros(2), "y": torch.tensor(0)})) as writer:
        ...     for i in range(3):
        ...         _ = writer.append(TensorDict({"x": torch.ones(2) * i, "y": torch.tensor(i)}))
        ...     rows = writer.flush()
        ...     _ = writer.append(TensorDict({"x": torch.ones(5, 2), "y": torch.arange(5)}, [5]))
        >>> rows, TensorDict.load_memmap(folder.name)["y"].tolist()
        (3, [0, 1, 2, 0, 1, 2, 3, 4])
        >>> DatasetWriter(folder.name).finalize().batch_size
        torch.Size([8])

        Rows of text:

        >>> with DatasetWriter(f"{folder.name}/notes", {"x": ((), torch.int64), "note": str}) as writer:
        ...     _ = writer.append(TensorDict({"x": torch.arange(2), "note": ["ant", "bee"]}, [2]))
        >>> list(TensorDict.load_memmap(f"{folder.name}/notes")["note"])
        ['ant', 'bee']
    """

    def __init__(self, path: str | os.PathLike[str], example: Any = None, capacity: int | None = None) -> None:
        self.path = absolute_path(path)
        self._rows: list[list[Tensor]] = []
        self._pending = self._pending_bytes = 0
        self._buffer_bytes = current().buffer_bytes
        self._files: dict[str, int] = {}
        self._inodes: dict[str, tuple[int, int]] = {}
        self._folder: int | None = None
        self._mutex = threading.RLock()
        row = None if example is None else _as_row(example)
        if not is_there(os.path.join(self.path, META)):
            if row is None:
                raise DatasetError(self.path, "there is no dataset to continue: give an example row to start one")
            _create(self.path, row, 0 if capacity is None else capacity)
        self._schema = FolderSchema.read(self.path)
        if row is not None:
            self._schema.check_example(row)
        self._folder = open_folder(self.path)
        self._pid = os.getpid()
        if capacity:
            try:
                with self._locked() as (rows, room):
                    if capacity > room:
                        self._find_texts(rows)
                        self._grow(rows, capacity)
            except BaseException:
                self._release()
                raise

    # -- appending -----------------------------------------------------------------------------------------

    @_one_thread_at_a_time
    def append(self, rows: Any) -> int:
        """Add a row (of the batch size of the example) or a batch of rows (with one more leading dimension).

        Returns:
            Number of rows waiting for :meth:`flush`.

        Raises:
            ValueError: keys, shapes, dtypes or kinds of ragged rows differ from the example; nothing is added.
        """
        self._check_open()
        leaves, count = self._schema.leaves_of(rows)
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        if size >= self._buffer_bytes:
            self.flush()
            self._write([leaves], count)
            return 0
        self._rows.append([leaf.detach().clone() for leaf in leaves])
        self._pending += count
        self._pending_bytes += size
        if self._pending_bytes >= self._buffer_bytes:
            self.flush()
        return self._pending

    @_one_thread_at_a_time
    def flush(self, durable: bool = False) -> int:
        """Commit the appended rows: readers see them, and a crash keeps them.

        Args:
            durable: also wait for the disk, data before metadata, so that they survive a power failure.

        Returns:
            Number of rows in the dataset, including those of other writers.
        """
        self._check_open()
        if not self._rows:
            return self._write([], 0, durable) if durable else len(self)
        total = self._write(self._rows, self._pending, durable)
        self._rows, self._pending, self._pending_bytes = [], 0, 0
        return total

    def __len__(self) -> int:
        """Number of committed rows, including those of other writers."""
        return self._state()[0]

    def _write(self, blocks: list[list[Tensor]], count: int, durable: bool = False) -> int:
        with self._locked() as (rows, room):
            self._find_texts(rows)
            if rows + count > room:
                self._grow(rows, rows + count)
            for number, leaf in enumerate(self._schema.leaves):
                if leaf.row_bytes and blocks:
                    parts = [block[number] for block in blocks]
                    tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
                    path = os.path.join(self.path, leaf.file)
                    write_tensor_to(self._file(leaf.file), tensor, path, rows * leaf.row_bytes)
            for number, ragged in enumerate(self._schema.ragged if blocks else ()):
                at = len(self._schema.leaves) + 2 * number
                pairs = [[block[place] for block in blocks] for place in (at, at + 1)]
                values, lengths = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in pairs)
                self._write_ragged(ragged, values, lengths, rows)
            for file in self._schema.files if durable else ():
                if is_there(os.path.join(self.path, file), follow=False):  # an empty one may be missing
                    os.fdatasync(self._file(file))
            self._commit(rows + count, durable)
        return rows + count

    def _write_ragged(self, leaf: RaggedLeaf, values: Tensor, lengths: Tensor, rows: int) -> None:
        start = torch.tensor([self._total(leaf, rows)], device="cpu")
        offsets = torch.cat([start, start + lengths.cumsum(0)])
        contents = [(leaf.values, values, int(start) * leaf.value_bytes), (leaf.offsets, offsets, rows * 8)]
        if leaf.table is not None:
            rest = torch.tensor(leaf.shape, dtype=torch.int64, device="cpu").expand(len(lengths), -1)
            contents.append((leaf.table, torch.cat([lengths[:, None], rest], 1), rows * 8 * (1 + len(leaf.shape))))
        for file, content, at in contents:
            path = os.path.join(self.path, file)
            check_room(path, content.nbytes)
            write_tensor_to(self._file(file, make=not at), content, path, at)

    def _total(self, leaf: RaggedLeaf, rows: int) -> int:
        """End of the values of the committed rows of a ragged entry."""
        if not rows or leaf.is_listed:
            return 0
        path = os.path.join(self.path, leaf.offsets)
        found = os.pread(self._file(leaf.offsets), 8, rows * 8)
        total = int.from_bytes(found, "little", signed=True)
        size = os.fstat(self._file(leaf.values)).st_size if total else 0
        if len(found) < 8 or not 0 <= total * leaf.value_bytes <= size:
            raise DatasetError(
                path, f"row {rows - 1} ends at {total:,}, but there are {size:,} bytes of values: the file is damaged"
            )
        return total

    def _find_texts(self, rows: int) -> None:
        """Find the files of strings, bytes and JSON values; create them for rows stored as a list in the metadata."""
        for leaf in self._schema.ragged:
            if leaf.table is not None:
                continue
            folder, path = os.path.dirname(leaf.meta), os.path.join(self.path, leaf.meta)
            meta = read_json(path, os.path.dirname(path))
            if type(meta) is dict and meta.get("_class") != CLASS:
                meta = self._place_list(leaf, path, meta, rows)
            _, _, _, names = text_fields(path, meta)
            leaf.values, leaf.offsets = (f"{folder}/{name}" for name in names)
            if leaf.is_listed:
                self._schema.add_meta(leaf.meta, meta)
                leaf.is_listed = False

    def _place_list(self, leaf: RaggedLeaf, path: str, meta: dict[str, Any], rows: int) -> dict[str, Any]:
        column = listed_rows(meta)
        if column is None or column.kind != leaf.kind or len(column) != rows:
            raise DatasetError(path, f"no longer lists {rows:,} rows of {leaf.kind}, as when this writer was opened")
        values, offsets = column.flat()
        meta = text_meta(leaf.kind, rows, len(values))
        for name, content in zip(meta["files"], (values, offsets)):
            file = os.path.join(os.path.dirname(path), name)
            with new_file(file) as fd:
                write_tensor_to(fd, content, file)
                os.fsync(fd)  # before the metadata, which then no longer list the rows
        _replace_json(path, meta, True)
        return meta

    def _file(self, file: str, make: bool = False) -> int:
        """The descriptor of a file, until the next call; ``make``: it is empty and may be missing."""
        fd = self._files.get(file)
        if fd is None:
            path = os.path.join(self.path, file)
            if make and not is_there(path, follow=False):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            fd = open_at_once(path, os.O_RDWR)
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                os.close(fd)
                raise DatasetError(path, "is not a regular file")
            self._inodes[file] = info.st_dev, info.st_ino
            if len(self._files) >= _MOST_FILES:
                os.close(self._files.pop(next(reversed(self._files))))  # the last: the first are those of the next rows
            self._files[file] = fd
        return fd

    @contextlib.contextmanager
    def _locked(self) -> Iterator[tuple[int, int]]:
        """Exclude other writers and return :meth:`_state`; the kernel releases the lock of a writer that dies."""
        assert self._folder is not None
        if not os.path.isdir(self.path):
            load_head(self._head)  # raises the error
        with locked(self.path):  # or another dataset, which is detected below
            head = load_head(self._head)
            self._require_same_dataset(head)
            yield self._sizes(head)

    def _require_same_dataset(self, head: Any) -> None:
        """Raise if the open files no longer belong to the dataset, or the dataset has other entries."""
        is_same = self._folder is not None and is_at(self._folder, self.path)
        for name, inode in self._inodes.items() if is_same else ():
            info = stat_of(os.path.join(self.path, name))
            is_same &= info is not None and (info.st_dev, info.st_ino) == inode
        if not is_same or not self._schema.is_that_of(self.path, head):
            raise DatasetError(
                self.path,
                f"was replaced, or got other entries, since this writer was opened, so {self._pending:,} rows were not "
                "written: open another DatasetWriter and append them there",
            )

    @property
    def _head(self) -> str:
        """The metadata with the authoritative row count."""
        return os.path.join(self.path, self._schema.head)

    def _state(self) -> tuple[int, int]:
        """Committed rows and allocated rows."""
        return self._sizes(load_head(self._head))

    def _sizes(self, head: Any) -> tuple[int, int]:
        rows, room = head["shape"][0], head.get("_growing", 0)
        if not is_count(rows, _MOST) or not is_count(room, _MOST):
            raise DatasetError(self._head, f"has impossible numbers of rows and of rows with room: {rows!r}, {room!r}")
        return rows, room

    def _grow(self, rows: int, wanted: int) -> None:
        """Allocate space, then record it; a reader never finds a file larger than its metadata allows."""
        largest = max((leaf.row_bytes for leaf in self._schema.leaves), default=1) or 1
        room = max(wanted, min(2 * rows, rows + max(1, _STEP // largest)))
        room = max(room, min(1024, max(1, self._buffer_bytes // largest)))
        self._commit(rows, False, room)
        try:
            self._reserve(rows, room)
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EFBIG) or room == wanted:
                raise
            self._reserve(rows, wanted)  # not twice as much, but what is needed now

    def _reserve(self, rows: int, room: int) -> None:
        for leaf in self._schema.leaves:
            if leaf.row_bytes:
                fd = self._file(leaf.file, make=not rows)
                path = os.path.join(self.path, leaf.file)
                reserve(fd, room * leaf.row_bytes, path, start=os.fstat(fd).st_size)

    def _commit(self, rows: int, durable: bool, room: int | None = None) -> None:
        """Write the row count everywhere, that of the head last."""
        for file in reversed(self._schema.metas):  # innermost first, the head last
            path = os.path.join(self.path, file)
            meta = load_head(path)
            _set_rows(meta, rows, room if room is not None else meta.get("_growing"))
            for leaf in self._schema.ragged:
                if leaf.meta == file:
                    leaf.set_total(meta, self._total(leaf, rows))
            _replace_json(path, meta, durable)

    # -- ending --------------------------------------------------------------------------------------------

    @_one_thread_at_a_time
    def finalize(self) -> Any:
        """Commit, free the unused space and make the folder an ordinary dataset, without a copy.

        To append again, use a new :class:`DatasetWriter`.

        Returns:
            The dataset, loaded.
        """
        self.flush()
        with self._locked() as (rows, _):
            self._commit(rows, False)  # a killed writer may have left larger counts in nested folders
            for leaf in self._schema.leaves:
                if leaf.row_bytes:
                    os.ftruncate(self._file(leaf.file, make=not rows), rows * leaf.row_bytes)
            for ragged in self._schema.ragged:
                if not ragged.is_listed:
                    total = self._total(ragged, rows)
                    os.ftruncate(self._file(ragged.values, make=not total), total * ragged.value_bytes)
                    os.ftruncate(self._file(ragged.offsets, make=not rows), 8 * (rows + 1))
                    if ragged.table is not None:
                        os.ftruncate(self._file(ragged.table, make=not rows), 8 * rows * (1 + len(ragged.shape)))
            for file in self._schema.metas:  # head first: nested folders may grow only below a head that does not
                path = os.path.join(self.path, file)
                meta = load_head(path)
                _set_rows(meta, rows, None)
                _replace_json(path, meta, False)
        self._release()
        return load_collection(self.path)

    @_one_thread_at_a_time
    def close(self) -> None:
        """Commit what was appended. Other writers can still extend the dataset."""
        if self._folder is not None:
            self.flush()
            self._release()

    def _release(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files, self._inodes = {}, {}
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def __del__(self) -> None:
        try:
            self._release()
        except (AttributeError, OSError):  # a writer whose constructor failed; or an interpreter that is shutting down
            pass

    def _check_open(self) -> None:
        if self._folder is None:
            raise ValueError(f"this writer of {self.path} is closed: open another DatasetWriter to continue")

    def _become_own(self) -> None:
        """In a forked child: use own locks, and drop the waiting rows, which belong to the parent."""
        self._pid, self._mutex = os.getpid(), threading.RLock()
        self._rows, self._pending, self._pending_bytes = [], 0, 0
        if self._folder is not None:
            self._folder = open_folder(self.path)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, exc_type: Any, exc: Any, tb: Any) -> None:
        if exc_type is None:
            self.close()
        else:  # rows of a failed block are not committed implicitly
            self._release()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the path only; rows that are not flushed are not sent."""
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]


def _as_row(example: Any) -> TensorCollection:
    """A row from an example or a mapping of keys to ``(shape, dtype)``; a batch without rows if some are ragged."""
    if isinstance(example, TensorCollection):
        return example[:0] if ragged_in(example) else example
    if not isinstance(example, Mapping):
        raise ValueError(
            "an example is a TensorDict or a tensorclass, a schema a mapping from keys to (shape, dtype): got a "
            f"{type(example).__name__}"
        )
    return _from_schema(example, [0] if _has_ragged(example) else [])


def _has_ragged(schema: Mapping[Any, Any]) -> bool:
    return any(
        value is str
        or value is bytes
        or isinstance(value, Ragged)
        or (isinstance(value, Mapping) and _has_ragged(value))
        for value in schema.values()
    )


def _from_schema(schema: Mapping[Any, Any], lead: list[int]) -> TensorDict:
    entries: dict[Any, Any] = {}
    for key, value in schema.items():
        if isinstance(value, Ragged):
            entries[key] = value[:0]
        elif isinstance(value, Mapping):
            entries[key] = _from_schema(value, lead)
        elif value is str or value is bytes:
            entries[key] = Ragged._of_list(value.__name__, [], None)
        else:
            try:
                shape, dtype = value
                entries[key] = torch.zeros((), dtype=dtype, device="cpu").expand([*lead, *shape])
            except (TypeError, ValueError):
                raise ValueError(
                    f"the schema of {key!r} should be (shape, dtype), str, bytes or a Ragged, got {value!r}"
                ) from None
    return TensorDict(entries, lead)


# -- metadata --------------------------------------------------------------------------------------------------


def _create(path: str, row: TensorCollection, capacity: int) -> None:
    """Create an empty dataset with the structure of a row; of several processes, the first creates it."""
    if any(leaf.is_nested for leaf in row._leaves()):
        raise ValueError("a dataset that grows has no nested tensors: their rows have no fixed size")
    plan: SavePlan = plan_for(row, SaveOptions(reference_format=True), ragged_text=True)
    is_batch = bool(ragged_in(row))
    for folder in plan.folders:
        meta = folder.meta
        if "shape" not in meta or is_batch:
            continue
        meta["shape"] = [0, *meta["shape"]]
        if meta.get("_names") is not None:
            meta["_names"] = [None, *meta["_names"]]
    for leaf in plan.leaves:
        if not is_batch:
            leaf.entry["shape"] = [0, *leaf.entry["shape"]]
    for folder in plan.folders:
        if "shape" in folder.meta or folder.meta.get("_class") == CLASS:
            _set_rows(folder.meta, 0, capacity)
    with Staging(path) as staging:
        files = []
        for folder in plan.folders:
            os.makedirs(os.path.join(staging.root, folder.path), exist_ok=True)
            for name, content in folder.contents().items():
                write_new(os.path.join(staging.root, folder.join(name)), content)
            files += [folder.join(name) for name in folder.blobs]
        for leaf in plan.leaves:
            with created(os.path.join(staging.root, leaf.file)) as fd:
                reserve(fd, capacity * _row_bytes(leaf), path)
            files.append(leaf.file)
        staging.commit(files, [folder.path for folder in plan.folders], existsok=False)


def _row_bytes(leaf: Leaf) -> int:
    return int(torch.Size(leaf.entry["shape"][1:]).numel() * leaf.tensor.element_size())


def _set_rows(meta: dict[str, Any], rows: int, room: int | None) -> None:
    """Set the row count and allocated rows of one folder; without allocation it is an ordinary dataset."""
    if "shape" in meta:
        meta["shape"] = [rows, *meta["shape"][1:]]
    else:
        meta["rows"] = rows
    entries = [*meta.values(), *meta.get("_entries", {}).values()]
    for entry in entries:
        if type(entry) is dict and "dtype" in entry:
            entry["shape"] = [rows, *entry["shape"][1:]]
            entry.pop("capacity", None)
            if room is not None:
                entry["capacity"] = room
    meta.pop("_growing", None)
    if room is not None:
        meta["_growing"] = room


def _replace_json(path: str, meta: dict[str, Any], durable: bool) -> None:
    with new_file(path) as fd:
        write_all(fd, json.dumps(meta).encode(), 0, path)
        if durable:
            os.fsync(fd)
    if durable:
        sync_folder(os.path.dirname(path))
