"""Consolidated files: the storage, then the tree as JSON, then the length of the JSON in eight bytes.

A second JSON with extensions of this package, its length and :data:`MAGIC` follow the storage, where the ``tensordict``
package does not look.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.consolidated.layout import JaggedSpot, Layout, leaves_of
from tensordict_lite.consolidated.metadata import describe, make, parse
from tensordict_lite.consolidated.record import Record, flat_of, identity_of, kind_of, note
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.files import (
    OutputFile,
    all_bytes,
    byte_blocks,
    size_of_file,
    write_all,
    write_tensor_to,
)
from tensordict_lite.memmap.disk.format import decode_json
from tensordict_lite.memmap.disk.mapping import check_room, map_file, preallocate
from tensordict_lite.memmap.disk.staging import staged_file
from tensordict_lite.paths import absolute_path
from tensordict_lite.tensorclass.decorator import TensorClass

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

_LENGTH = struct.Struct("<q")
MAGIC = b"tdlite\0\1"
_MAX_JSON = 1 << 30
_SMALL = 256 << 10
_GATHER = 8 << 20


def write_file(path: str, node: TensorCollection, layout: Layout, locked: bool, flat: Tensor | None = None) -> None:
    """Write a tree to a file, completely or not at all.

    Args:
        path: the file.
        node: the tree.
        layout: positions of its tensors.
        locked: whether it is locked after loading.
        flat: the bytes of all tensors, if they were already copied together.

    Raises:
        OSError: not enough space; an existing file is kept.
        RuntimeError: see :func:`describe`.
    """
    tail = _tail(node, layout.spots, locked)
    check_room(path, layout.nbytes + len(tail))
    with staged_file(path) as fd:
        if layout.nbytes >= _GATHER:
            preallocate(fd, layout.nbytes)
        if flat is not None:
            write_tensor_to(fd, flat, path)
            write_all(fd, tail, layout.nbytes, path)
        else:
            _write(fd, path, layout, tail)


def _tail(node: TensorCollection, spots: Any, locked: bool) -> bytes:
    """The bytes after the storage."""
    about, told = describe(node, spots, locked)
    more = told + _LENGTH.pack(len(told)) + MAGIC if told else b""
    return more + about + _LENGTH.pack(len(about))


def _write(fd: int, path: str, layout: Layout, tail: bytes) -> None:
    """Write the tensors at their positions, small ones together."""
    at = 0
    with io.BufferedWriter(OutputFile(fd, path), _SMALL) as file:
        for (start, _, _), tensor in layout.sources:
            if start > at:
                file.write(bytes(start - at))
            nbytes = tensor.numel() * tensor.element_size()
            for block in (all_bytes(tensor),) if nbytes <= _SMALL else byte_blocks(tensor):
                file.write(block)
            at = start + nbytes
        file.write(tail)


def from_consolidated(filename: str | os.PathLike[str], cls: Any = None) -> Any:
    """The tree in a file written by :meth:`TensorDict.consolidate`, of this package or of ``tensordict``.

    Its tensors are views of one copy-on-write mapping of the file: nothing is read until it is used, and writes stay in
    this process. Everything is checked first, and nothing in the file is executed.

    Args:
        filename: the file.
        cls: class of the result if the file names none: a tensorclass.

    Returns:
        A consolidated collection of the class that was saved; locked if that one was.

    Raises:
        DatasetNotFoundError: (a FileNotFoundError) the file does not exist.
        DatasetError: the file has another format, or was truncated or edited.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict, from_consolidated
        >>> folder = tempfile.TemporaryDirectory()
        >>> data = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
        >>> _ = data.consolidate(f"{folder.name}/data.bin")
        >>> loaded = from_consolidated(f"{folder.name}/data.bin")
        >>> loaded["a"], loaded.is_consolidated()
        (MemoryMappedTensor([0, 1, 2]), True)
    """
    path = absolute_path(filename)
    total = size_of_file(path, DatasetError, DatasetNotFoundError)
    if total <= _LENGTH.size:
        raise DatasetError(path, f"is not a file of consolidate(): it has {total} bytes")
    storage = map_file(path, total, writable=False)
    data = flat_of(storage, total).numpy().data
    room, about, told = _about(path, data, total)
    try:
        root, spots = parse(path, about, told, room)
        for spot in spots:
            if type(spot) is JaggedSpot:
                _check_jagged(path, data, spot)
        found = leaves_of(storage, spots, kind_of(storage), copy_tables=True)
        ragged = iter(found[sum(type(spot) is tuple or type(spot) is JaggedSpot for spot in spots) :])
        node = make(path, root if root.cls is not None else root._replace(cls=_tensorclass(cls)), iter(found), ragged)
    except RecursionError:
        raise DatasetError(path, "is nested too deeply to be a dataset") from None
    return note(node, Record(node, flat_of(storage, room), spots, root.locked))


def _tensorclass(cls: Any) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, TensorClass)):
        return None
    return (
        getattr(cls, "_member_class", None) or cls
    )  # the class of a lazy stack of instances implies that of the members


def _about(path: str, data: memoryview, total: int) -> tuple[int, Any, Any]:
    """Size of the storage, and the contents of both JSON texts."""
    end = total - _LENGTH.size
    (length,) = _LENGTH.unpack(data[end:])
    if not 2 <= length <= min(end, _MAX_JSON) or data[end - length] != ord("{"):
        hint = "; it is an archive: load it with load_memmap" if zipfile.is_zipfile(path) else ""
        raise DatasetError(path, f"is not a file of consolidate(), or was truncated: its end does not add up{hint}")
    room = end - length
    about, told = decode_json(path, bytes(data[room:end])), None
    if bytes(data[max(room - len(MAGIC), 0) : room]) == MAGIC:
        end = room - len(MAGIC) - _LENGTH.size
        length = _LENGTH.unpack(data[end : end + _LENGTH.size])[0] if end > 0 else -1
        if not 0 < length <= end:
            raise DatasetError(path, "is damaged: its description of ragged entries and types has an impossible length")
        room = end - length
        told = decode_json(path, bytes(data[room:end]))
    return room, about, told


def _check_jagged(path: str, data: memoryview, spot: JaggedSpot) -> None:
    """Check that offsets and lengths of a jagged tensor stay within its values: torch does not."""
    values, offsets, lengths, ragged, _ = spot
    bounds = _integers(data, offsets)
    longest = values[2][ragged - 1]
    rows = bounds.diff() if lengths is None else _integers(data, lengths)
    ends = bounds[:-1] + rows
    if bounds[0] < 0 or bool((rows < 0).any()) or bool((bounds.diff() < 0).any()) or bool((ends > longest).any()):
        raise DatasetError(path, "the offsets of a jagged tensor lead outside its values")


def _integers(data: memoryview, place: Any) -> Tensor:
    start, dtype, shape = place
    return torch.frombuffer(bytearray(data[start : start + shape[0] * dtype.itemsize]), dtype=dtype).long()


def is_described(path: str, node: TensorCollection, record: Record) -> bool:
    """Whether a file still belongs to a consolidated tree, and its JSON describes the current tree."""
    try:
        with open(path, "rb") as file:
            if identity_of(file.fileno()) != record.identity:
                return False
            file.seek(record.flat.numel())
            return file.read() == _tail(node, record.spots, record.locked)
    except OSError:
        return False
