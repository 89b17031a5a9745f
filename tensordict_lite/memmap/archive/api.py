"""Datasets as one file: save, pack, unpack, and refresh the checksums of an archive."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipInfo

import torch
from torch import Tensor

from tensordict_lite.errors import ArchiveError, DatasetError
from tensordict_lite.kernel import Kernel
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.archive.load import ArchiveLoader
from tensordict_lite.memmap.archive.read import MAX_RATIO, Archive, opened
from tensordict_lite.memmap.archive.write import FileData, Zeros, ZipMember, check_level, method_of, write_archive
from tensordict_lite.memmap.checksum import Corruption, Report, threads
from tensordict_lite.memmap.disk.contents import complete_files
from tensordict_lite.memmap.disk.files import below, created, is_there, write_all
from tensordict_lite.memmap.disk.format import META, PICKLES, RUNS, SUFFIX
from tensordict_lite.memmap.disk.locks import reading
from tensordict_lite.memmap.disk.mapping import check_room, hold_many, map_file
from tensordict_lite.memmap.disk.pieces import Pieces, Place
from tensordict_lite.memmap.disk.staging import Staging, staged_file
from tensordict_lite.memmap.load import load_collection
from tensordict_lite.memmap.plan import Leaf, SaveOptions, SavePlan, plan_for
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.paths import absolute_path
from tensordict_lite.registry import register

_CPU = torch.device("cpu")


def save_archive(node: Kernel, prefix: str | os.PathLike[str], options: SaveOptions) -> Any:
    """Write a collection to one file and load it. With ``like``, allocate zeros; writes then reach the file.

    Returns:
        The loaded collection: not locked, with its tensors in one mapping of the file.
    """
    if options.return_early:
        raise NotImplementedError("return_early=True is not supported for an archive: wait for the save")
    path, like, num_threads = absolute_path(prefix), options.like, options.num_threads
    method = method_of(options.compression)
    if not options.existsok and is_there(path, follow=False):
        raise RuntimeError(f"the file {path} already exists: pass existsok=True to replace it")
    plan = plan_for(node, replace(options, reference_format=True), ragged_text=True)
    members = [ZipMember(folder.join(META), content := folder.json(), len(content), False) for folder in plan.folders]
    members += [
        ZipMember(folder.join(name), blob, blob.nbytes if isinstance(blob, Tensor) else len(blob), name not in PICKLES)
        for folder in plan.folders
        for name, blob in folder.blobs.items()
    ]
    nbytes = sum(member.nbytes for member in members) + sum(map(_nbytes, plan.leaves))
    every = itertools.chain(members, _members_of(plan, like))
    with staged_file(path) as fd:
        starts = write_archive(fd, path, every, nbytes, method, None, num_threads)
        size = os.fstat(fd).st_size
    if method != ZIP_STORED:
        return load_collection(
            path, num_threads=num_threads, robust_key=options.robust_key, allow_pickle=options.allow_pickle
        )
    storage = hold_many(map_file(path, size, writable=like))
    out = node._with_leaves(_mapped(plan, storage, starts[len(members) :]))
    out._set_device(_CPU)
    return out


def _members_of(plan: SavePlan, like: bool) -> Iterator[ZipMember]:
    for leaf in plan.leaves:
        tensor = leaf.tensor
        if tensor.is_nested:
            yield _member(leaf.file, nested.buffer_of(tensor), like)
            yield _member(nested.shape_file(leaf.file), nested.sizes(tensor), False)
        else:
            nbytes = tensor.nbytes
            if nbytes:
                yield _new_member(ZipMember, (leaf.file, Zeros() if like else tensor, nbytes, True))


_new_member = tuple.__new__  # a third of the price of the constructor of a named tuple


def _member(file: str, tensor: Tensor, like: bool) -> ZipMember:
    nbytes = tensor.numel() * tensor.element_size()
    return ZipMember(file, Zeros() if like else tensor, nbytes)


def _nbytes(leaf: Leaf) -> int:
    tensor = leaf.tensor
    return (nested.count(tensor) if tensor.is_nested else tensor.numel()) * tensor.element_size()


def _places(plan: SavePlan, at: Iterator[int]) -> Iterator[Place]:
    for leaf in plan.leaves:
        tensor = leaf.tensor
        if tensor.is_nested:
            yield next(at), tensor.dtype, (nested.count(tensor),)
            next(at)  # the table of its shapes
        elif tensor.numel():
            yield next(at), tensor.dtype, tensor.shape


def _mapped(plan: SavePlan, storage: torch.UntypedStorage, starts: list[int]) -> Iterator[Tensor]:
    """The tensors of a plan, mapped from the written archive."""
    pieces = iter(Pieces(storage, MemoryMappedTensor).at(_places(plan, iter(starts))))
    for leaf in plan.leaves:
        tensor = leaf.tensor
        if tensor.is_nested:
            yield nested.mapped_view(next(pieces), nested.sizes(tensor), leaf.entry.get("layout"))
        else:
            yield next(pieces) if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def pack_memmap(
    prefix: str | os.PathLike[str],
    archive_path: str | os.PathLike[str],
    *,
    compression: str | int | None = None,
    compresslevel: int | None = None,
    num_threads: int = 0,
) -> Path:
    """Pack the folder of a saved dataset into one file, a zip archive.

    The entries are the files of the folder, so both ``unzip`` and :func:`unpack_memmap` restore the folder. Tensors are
    stored uncompressed and aligned by default, so that :meth:`TensorDict.load_memmap` maps the file without copying;
    compressed ones are smaller and are decompressed into memory when loaded. The archive is written next to
    ``archive_path`` and renamed, so it is complete or absent.

    Args:
        prefix: the folder.
        archive_path: the file; an existing one is replaced. It must be outside ``prefix``.
        compression: ``"stored"`` (the default), ``"deflate"``, or the constant of :mod:`zipfile`.
        compresslevel: 0 to 9 for deflate (default 6).
        num_threads: threads that read, compute checksums and deflate; 0 or 1 is the calling thread.

    Returns:
        The path of the archive.

    Raises:
        ArchiveError: (a ValueError) ``prefix`` is not a saved dataset.
        ValueError: the archive would be inside the folder, or the compression is unknown.
        OSError: not enough space; an existing file is kept.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict, pack_memmap
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict({"a": torch.arange(3)}, [3]).memmap(f"{folder.name}/data")
        >>> archive = pack_memmap(f"{folder.name}/data", f"{folder.name}/data.tdz")
        >>> archive.name, TensorDict.load_memmap(archive)["a"]
        ('data.tdz', MemoryMappedTensor([0, 1, 2]))
    """
    root, path = absolute_path(prefix), absolute_path(archive_path)
    method = method_of(compression)
    check_level(compresslevel)
    _require_dataset(root)
    real = os.path.realpath(path)
    if real.startswith(os.path.realpath(root) + os.sep):
        raise ValueError(f"the archive {path} must be outside the folder {root} that goes into it")
    for attempt in range(_ATTEMPTS):
        excluding_saves = reading(root) if attempt >= _WITHOUT_LOCK else contextlib.nullcontext()
        with excluding_saves, contextlib.suppress(_Changed), staged_file(path) as fd:
            _pack(
                root, lambda members, size: write_archive(fd, path, members, size, method, compresslevel, num_threads)
            )
            return Path(archive_path)
        _require_dataset(root)
    raise DatasetError(root, f"was changed {_ATTEMPTS} times while it was packed: pack it when no process writes to it")


def _pack(root: str, write: Callable[[Iterator[ZipMember], int], Any]) -> None:
    """Write the files of a folder to an archive; _Changed if they were replaced meanwhile."""
    try:
        sizes, stamps = _snapshot(root)
        names = sorted(sizes, key=lambda name: (not name.endswith(META), name.count("/"), name))
        members = (ZipMember(name, FileData(f"{root}/{name}"), sizes[name], name.endswith(SUFFIX)) for name in names)
        write(members, sum(sizes.values()))
        is_same = META in sizes and _snapshot(root)[1] == stamps  # without it, files are being replaced one by one
    except OSError as problem:
        if problem.errno not in (errno.ENOENT, None):  # missing, or shorter than it was
            raise
        is_same = False
    if not is_same:
        raise _Changed


def _require_dataset(root: str) -> None:
    """ArchiveError if a folder has no dataset and none is being moved into it."""
    with reading(root):
        found = is_there(f"{root}/{META}")
    if not found:
        raise ArchiveError(root, f"is not the folder of a saved dataset: it has no {META}")


_ATTEMPTS = 20
_WITHOUT_LOCK = 3
"""Number of attempts that read the files without blocking saves."""


class _Changed(Exception):
    """The folder was replaced, or rows were appended, while it was read."""


def _snapshot(root: str) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Sizes of the files of a dataset, and what changes where a save, not a write in place, replaces one.

    Raises:
        DatasetError: one is a link, which may point elsewhere.
    """
    sizes: dict[str, int] = {}
    stamps: dict[str, tuple[int, ...]] = {}
    for name in complete_files(root):
        info = os.lstat(f"{root}/{name}")
        if not stat.S_ISREG(info.st_mode):
            raise DatasetError(f"{root}/{name}", "is a link or a special file; a dataset has only files and folders")
        sizes[name] = info.st_size
        stamps[name] = (info.st_dev, info.st_ino)
    for folder in {os.path.dirname(name) for name in sizes}:
        if not f"{folder}/".startswith(f"{RUNS}/"):
            info = os.stat(f"{root}/{folder}")
            stamps[f"{folder}/"] = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)
    return sizes, stamps


def unpack_memmap(
    archive_path: str | os.PathLike[str],
    prefix: str | os.PathLike[str],
    *,
    max_ratio: float = MAX_RATIO,
) -> Path:
    """Write the files of an archive to a folder, the inverse of :func:`pack_memmap`.

    Every file is checked against its checksum. The folder is written next to ``prefix`` and moved there when it is
    complete; an existing dataset is replaced.

    Args:
        archive_path: an archive of :func:`pack_memmap` or :meth:`TensorDict.save`, or a zip file of such a folder.
        prefix: the folder.
        max_ratio: largest accepted ratio of uncompressed to compressed size. The default is the limit of deflate; a
            larger ratio could fill the disk from a small file. Raise it for an archive that you trust.

    Returns:
        The path of the folder.

    Raises:
        ArchiveError: (a ValueError) it is not an archive, or it is damaged or hostile; nothing is written.
        OSError: not enough space.

    Example:
        >>> import os, tempfile, torch
        >>> from tensordict_lite import TensorDict, unpack_memmap
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict({"a": torch.arange(3)}, [3]).save(f"{folder.name}/data.tdz")
        >>> sorted(os.listdir(unpack_memmap(f"{folder.name}/data.tdz", f"{folder.name}/data")))
        ['a.memmap', 'meta.json']
    """
    archive = opened(archive_path, max_ratio=max_ratio)
    folders = _folders_of(archive)
    root = absolute_path(prefix)
    with Staging(root) as staging:
        check_room(root, sum(entry.file_size for entry in archive.entries.values()))
        for folder in folders:
            os.makedirs(os.path.join(staging.root, folder), exist_ok=True)
        for entry in archive.entries.values():
            _extract(archive, entry, os.path.join(staging.root, entry.filename))
        metas = [folder for folder in folders if below(folder, META) in archive.entries]
        files = [name for name in archive.entries if name.rpartition("/")[2] != META]
        staging.commit(files, metas)
    return Path(prefix)


def _folders_of(archive: Archive) -> list[str]:
    """The folders of an archive that hold files, outermost first."""
    for name in archive.entries:
        if archive.has_folder(name):
            raise ArchiveError(archive.path, f"has both a file and a folder called {name!r}")
    found = {name.rpartition("/")[0] for name in archive.entries}
    return sorted(found, key=lambda folder: (folder.count("/") + bool(folder), folder))


def _extract(archive: Archive, entry: ZipInfo, path: str) -> None:
    with created(path) as fd:
        at = 0
        for block in archive.blocks(entry):
            write_all(fd, memoryview(block), at, path)
            at += len(block)


def is_memmap_archive(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an archive of a dataset: a zip file with a ``meta.json`` at its top.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict, is_memmap_archive
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict({"a": torch.arange(3)}, [3]).save(f"{folder.name}/data.tdz")
        >>> is_memmap_archive(f"{folder.name}/data.tdz"), is_memmap_archive(folder.name)
        (True, False)
    """
    try:
        opened(path)
    except (DatasetError, OSError):
        return False
    return True


def refresh_archive_checksums(archive_path: str | os.PathLike[str], num_threads: int | None = None) -> Path:
    """Recompute the checksums of an archive after in-place writes to its tensors.

    Writes to a dataset that was loaded with ``mode="r+"``, or made by :meth:`TensorDict.memmap_like`, do not update the
    checksums. Loading does not check those of mapped tensors; ``unzip``, :func:`unpack_memmap` and :func:`verify` do.

    Args:
        archive_path: the archive.
        num_threads: number of reader threads; by default one per core.

    Returns:
        The path of the archive.

    Raises:
        ArchiveError: (a ValueError) it is not an archive.

    Example:
        >>> import tempfile, torch, zipfile
        >>> from tensordict_lite import TensorDict, refresh_archive_checksums
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict({"a": torch.zeros(3)}, [3]).save(f"{folder.name}/data.tdz")
        >>> _ = TensorDict.load_memmap(f"{folder.name}/data.tdz", mode="r+")["a"].add_(1)
        >>> zipfile.ZipFile(f"{folder.name}/data.tdz").testzip()  # the first entry that differs
        'a.memmap'
        >>> _ = refresh_archive_checksums(f"{folder.name}/data.tdz")
        >>> zipfile.ZipFile(f"{folder.name}/data.tdz").testzip()
    """
    archive = opened(archive_path, writable=True)
    current_sums = {entry.filename: total for entry, total in checksums(archive, num_threads)}
    data, record = archive.data, archive.directory_start
    for entry in archive.directory:
        total = current_sums.get(entry.filename, entry.CRC)
        if total != entry.CRC:
            data[record + 16 : record + 20] = total.to_bytes(4, "little")
            if not entry.flag_bits & 8:  # otherwise it stands behind the data, and only streams need it
                data[entry.header_offset + 14 : entry.header_offset + 18] = total.to_bytes(4, "little")
        record += 46 + sum(struct.unpack_from("<3H", data, record + 28))  # name, extra field and comment
    return Path(archive_path)


def checksums(archive: Archive, num_threads: int | None) -> Iterator[tuple[ZipInfo, int]]:
    """Every stored entry with the current CRC of its data."""
    stored = [entry for entry in archive.entries.values() if entry.compress_type == ZIP_STORED]
    with ThreadPoolExecutor(threads(num_threads)) as pool:
        yield from zip(stored, pool.map(lambda entry: zlib.crc32(archive.raw(entry)), stored))


def store_checksums(path: str, num_threads: int | None) -> dict[str, list[int]]:
    """Refresh the checksums of an archive, and return them by entry."""
    refresh_archive_checksums(path, num_threads)
    return {entry.filename: [total] for entry, total in checksums(opened(path), num_threads)}


def verify(path: str, report: Report, num_threads: int | None) -> Report:
    """Read every entry of an archive, and report those that differ from their checksums."""
    archive = opened(path)

    def check(name: str) -> str | None:
        try:
            for _ in archive.blocks(archive.entries[name]):
                pass
        except ArchiveError as error:
            return error.reason
        return None

    names = sorted(archive.entries)
    with ThreadPoolExecutor(threads(num_threads)) as pool:
        for name, reason in zip(names, pool.map(check, names)):
            report.files += 1
            report.nbytes += archive.entries[name].file_size
            if reason is not None:
                report.problems.append(Corruption(name, reason))
    return report


register(
    open_archive=ArchiveLoader.open,
    save_archive=save_archive,
    store_archive_checksums=store_checksums,
    verify_archive=verify,
)
