"""A collection as a few messages: its structure and small tensors in one buffer, its large tensors separately.

::

    Parcel    body      one uint8 tensor: the tensors, grouped by dtype and shape, followed by the meta part:
                        types, keys, batch sizes, non-tensor data, and the position of each tensor
              direct    tensors of LARGE bytes and more, not copied
              files     memory-mapped tensors, which may be sent as the path of their file

The meta part is pickled, plain TensorDicts as tuples of their keys, because pickling thousands of Python objects is
slow. It is unpickled by the receiver: use it only among ranks that trust each other.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.distributed.bundles import name_of
from tensordict_lite.distributed.link import UnsendableError, unpacked
from tensordict_lite.memmap.tensor import MemoryMappedTensor

LARGE = 1 << 20
"""Tensors of at least this many bytes are separate messages, if a transfer has several messages anyway."""

_ALIGN = 64
_PAGE = 4096
Slot = tuple[str, tuple[int, ...]]  # dtype and shape


class PackedTree:
    """The result of :func:`pack`."""

    __slots__ = ("body", "direct", "files", "meta_size")

    def __init__(self, body: Tensor, meta_size: int, direct: list[Tensor], files: list[Tensor]) -> None:
        self.body = body
        self.meta_size = meta_size
        self.direct = direct
        self.files = files


# -- packing -----------------------------------------------------------------------------------------------------


def pack(td: Any, device: torch.device, *, split: bool) -> PackedTree:
    """Pack a collection into messages.

    Args:
        td: any tensor collection.
        device: device that sends the messages.
        split: send large tensors as separate messages.

    Raises:
        UnsendableError: a tensor is on the meta device, or an object cannot be pickled. The message names the entry.
    """
    leaves: list[Tensor] = []
    files: list[Tensor] = []
    tree = _describe(td, leaves, files, ())
    groups: dict[Slot, list[int]] = {}
    direct: list[int] = []
    for place, leaf in enumerate(leaves):
        if split and leaf.nbytes >= LARGE:
            direct.append(place)
        else:
            groups.setdefault((str(leaf.dtype)[6:], tuple(leaf.shape)), []).append(place)
    large = [leaves[place].detach().to(device).contiguous() for place in direct]
    table = (
        tree, len(leaves), list(groups.items()),
        [(place, str(leaf.dtype)[6:], tuple(leaf.shape)) for place, leaf in zip(direct, large)],
        [_file_facts(leaf) for leaf in files], _devices(leaves),
    )  # fmt: skip
    meta = bytearray(pickle.dumps(table, protocol=5))
    size = _layout(groups)[1]
    body = torch.empty(size + len(meta), dtype=torch.uint8, device=device)
    with torch.no_grad():
        _fill(body, groups, leaves)
        body[size:].copy_(torch.frombuffer(meta, dtype=torch.uint8))
    return PackedTree(body, len(meta), large, files)


def _describe(node: Any, leaves: list[Tensor], files: list[Tensor], path: tuple[str, ...]) -> Any:
    """A plain TensorDict as a tuple with indices for its tensors; other objects as a pickle of the same form."""
    if type(node) is not TensorDict or hasattr(node, "_memmap_path"):
        return _pickled(node, leaves, files, path)
    children: list[Any] = []
    for key, value in node._source.items():
        if type(value) is Tensor and _is_plain(value):
            if value.device.type == "meta":
                raise UnsendableError(
                    f"the entry {name_of((*path, key))} is on the meta device: it has no values to send"
                )
            children.append(len(leaves))
            leaves.append(value)
        else:
            children.append(_describe(value, leaves, files, (*path, key)))
    device = None if node._device is None else str(node._device)
    return (tuple(node._source), children, tuple(node._batch_size), device, node._names, node._lock is not None)


def _pickled(node: Any, leaves: list[Tensor], files: list[Tensor], path: tuple[str, ...]) -> bytes:
    out = io.BytesIO()
    try:
        _Pickler(out, leaves, files).dump(node)
    except Exception as error:
        where = f"the entry {name_of(path)}" if path else f"this {type(node).__name__}"
        raise UnsendableError(f"{where} cannot be sent: {type(error).__name__}: {error}") from error
    return out.getvalue()


class _Pickler(pickle.Pickler):
    """Writes indices in place of tensors, which it collects."""

    def __init__(self, file: Any, leaves: list[Tensor], files: list[Tensor]) -> None:
        super().__init__(file, protocol=5)
        self._leaves = leaves
        self._files = files

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        if isinstance(obj, MemoryMappedTensor):
            if _is_file(obj):
                self._files.append(obj)
                return _nth_file, (len(self._files) - 1,)
            obj = obj.as_subclass(Tensor)
            if not _is_plain(obj):
                return obj.__reduce_ex__(5)
        if type(obj) is not Tensor or not _is_plain(obj):
            return NotImplemented  # made of plain tensors, which are pickled in turn
        if obj.device.type == "meta":
            raise RuntimeError("a tensor on the meta device has no values to send")
        self._leaves.append(obj)
        return _nth, (len(self._leaves) - 1,)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _layout(groups: Any) -> tuple[list[int], int]:
    """The start of each group, and the total number of bytes."""
    starts, at = [], 0
    items = groups.items() if isinstance(groups, dict) else groups
    for (dtype, shape), places in items:
        starts.append(at)
        size = len(places) * torch.Size(shape).numel() * getattr(torch, dtype).itemsize
        at += -(-size // _ALIGN) * _ALIGN
    return starts, at


def _section(payload: Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...], count: int) -> Tensor:
    size = count * torch.Size(shape).numel() * dtype.itemsize
    return payload[start : start + size].view(dtype).view(count, *shape)


def _fill(payload: Tensor, groups: dict[Slot, list[int]], leaves: list[Tensor]) -> None:
    for ((dtype, shape), places), start in zip(groups.items(), _layout(groups)[0]):
        section = _section(payload, start, getattr(torch, dtype), shape, len(places))
        if len(places) == 1:
            section[0].copy_(leaves[places[0]])
            continue
        mine = [leaves[place] for place in places]
        if all(leaf.device == payload.device for leaf in mine):
            torch.stack(mine, out=section)
        else:
            for row, leaf in zip(section.unbind(0), mine):
                row.copy_(leaf)


def _devices(leaves: list[Tensor]) -> list[tuple[int, str]]:
    return [(place, str(leaf.device)) for place, leaf in enumerate(leaves) if leaf.device.type != "cpu"]


# -- unpacking -----------------------------------------------------------------------------------------------------

_reading = threading.local()
"""The tensors and files of the parcel that this thread unpacks; a pickle refers to them by index."""


def _nth(place: int) -> Tensor:
    return _reading.leaves[place]


def _nth_file(place: int) -> Any:
    return _reading.files[place]


class Letter:
    """A received body: its meta part is read, its tensors are views."""

    def __init__(self, body: Tensor, meta_size: int) -> None:
        self.body = body
        meta = unpacked(body[body.shape[0] - meta_size :])
        self.tree, self.count, self.groups, self.direct, self.files, self.devices = meta

    def room(self, device: torch.device) -> list[Tensor]:
        """Empty tensors for the large ones."""
        return [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for _, dtype, shape in self.direct]

    def file_room(self, device: torch.device) -> list[Tensor]:
        """Empty tensors for the content of files that this rank does not see."""
        return [
            torch.empty(facts["shape"], dtype=getattr(torch, facts["dtype"]), device=device) for facts in self.files
        ]

    def sees_files(self) -> bool:
        """Whether this rank sees the same files for the memory-mapped tensors."""
        return all(_is_same_file(facts) for facts in self.files)


def unpack(letter: Letter, direct: list[Tensor], files: list[Any], device: Any = None) -> Any:
    """The collection in a parcel; its tensors are views of the received data.

    Args:
        letter: the body.
        direct: the large tensors.
        files: memory-mapped tensors, or their content.
        device: device of the result; None: the device type of each sent tensor.
    """
    leaves: list[Any] = [None] * letter.count
    for ((dtype, shape), places), start in zip(letter.groups, _layout(letter.groups)[0]):
        section = _section(letter.body, start, getattr(torch, dtype), shape, len(places))
        for place, row in zip(places, section.unbind(0)):
            leaves[place] = row
    for (place, _, _), tensor in zip(letter.direct, direct):
        leaves[place] = tensor
    here = letter.body.device
    if device is None and (letter.devices or here.type != "cpu"):
        were = dict(letter.devices)
        for place, leaf in enumerate(leaves):
            leaves[place] = leaf.to(_own(were.get(place, "cpu"), here))
    with _context(leaves, files):
        out = _build(letter.tree, leaves, here)
    return out if device is None else out.to(device)


def _own(name: str, here: torch.device) -> torch.device:
    """The device of this rank that corresponds to a device of another rank."""
    device = torch.device(name)
    return here if device.type == here.type else device


@contextmanager
def _context(leaves: list[Any], files: list[Any]) -> Iterator[None]:
    _reading.leaves, _reading.files = leaves, files
    try:
        yield
    finally:
        del _reading.leaves, _reading.files


def _build(tree: Any, leaves: list[Any], here: torch.device) -> Any:
    if isinstance(tree, bytes):
        return pickle.loads(tree)
    keys, children, size, device, names, locked = tree
    values = [leaves[child] if type(child) is int else _build(child, leaves, here) for child in children]
    source = dict(zip(keys, values))
    out = TensorDict._trusted(source, torch.Size(size), None if device is None else _own(device, here), names)
    if locked:
        out._propagate_lock(None)
    return out


# -- files -----------------------------------------------------------------------------------------------------------


def _is_file(leaf: MemoryMappedTensor) -> bool:
    try:
        return os.path.isfile(leaf.filename) and _is_plain(leaf.as_subclass(Tensor))
    except RuntimeError:  # anonymous memory
        return False


def _file_facts(leaf: Any) -> dict[str, Any]:
    """What identifies a file on another machine, and how to open it."""
    return {
        "path": str(leaf.filename), "mark": _mark(leaf.filename), "dtype": str(leaf.dtype)[6:],
        "shape": tuple(leaf.shape), "open": pickle.dumps(leaf, protocol=5),
    }  # fmt: skip


def _mark(path: str) -> tuple[int, int, int]:
    """Inode, size, and a checksum of the first and the last page of a file."""
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        checksum = zlib.crc32(file.read(_PAGE))
        if stat.st_size > _PAGE:
            file.seek(-_PAGE, os.SEEK_END)
            checksum = zlib.crc32(file.read(_PAGE), checksum)
    return stat.st_ino, stat.st_size, checksum


def _is_same_file(facts: dict[str, Any]) -> bool:
    try:
        return _mark(facts["path"]) == facts["mark"]
    except OSError:
        return False


def open_files(letter: Letter) -> list[Any]:
    """Open the memory-mapped tensors of a parcel."""
    return [pickle.loads(facts["open"]) for facts in letter.files]
