"""The record of a consolidated tree.

The record is attached to the tree when it is made and not updated afterwards: its reader compares it with the tree. So
assignments cost nothing extra.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, UntypedStorage

from tensordict_lite.consolidated.layout import RaggedSpot, Spot, leaves_of
from tensordict_lite.memmap.disk.mapping import Region, file_of, hold_many, region_of
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.ragged import Ragged, ragged_in
from tensordict_lite.registry import register

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection


class Record:
    """Storage and positions of the tensors and ragged entries of a tree, and what the tree held then."""

    __slots__ = ("file", "flat", "identity", "locked", "spots", "tree")

    def __init__(
        self, node: TensorCollection, flat: Tensor, spots: list[Spot], locked: bool, file: str | None = None
    ) -> None:
        self.flat = flat
        """All bytes, as a tensor of uint8."""
        self.spots = spots
        self.locked = locked
        """Whether what comes out of a pickle or a file is locked: as the tree that was consolidated was."""
        self.file = file
        """The file that writes reach, ``None`` for memory."""
        self.identity = None if file is None else identity_of(file)
        self.tree: list[Any] = []
        _describe(node, self.tree)

    @property
    def storage(self) -> UntypedStorage:
        """The memory."""
        return self.flat.untyped_storage()

    def fits(self, node: TensorCollection) -> bool:
        """Whether a tree still has the recorded entries."""
        now: list[Any] = []
        _describe(node, now)
        before = self.tree
        return len(now) == len(before) and all(a is b or (type(a) is str and a == b) for a, b in zip(now, before))


def identity_of(file: str | int) -> tuple[int, int] | None:
    """Device and inode of a file, ``None`` if it does not exist."""
    try:
        info = os.stat(file)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _describe(node: TensorCollection, out: list[Any]) -> None:
    """Keys, tensors and objects of a tree in its order."""
    if isinstance(node, Ragged) and (column := node.column) is not None:
        out += [column, node._rows, None]
        return
    source = node._source
    if type(source) is list:
        for member in source:
            _describe(member, out)
    else:
        for key, value in source.items():
            out.append(key)
            if isinstance(value, Tensor):
                out.append(value)
            else:
                _describe(value, out)
        if node._is_non_tensor:
            out.append(node._payload)
    out.append(None)  # the end of this level


def record_of(node: Any) -> Record | None:
    """The record of a tree that is still consolidated; ``None`` for others."""
    record: Record | None = getattr(node, "_consolidated", None)
    return record if record is not None and record.fits(node) else None


def note(node: TensorCollection, record: Record) -> Any:
    """Attach a record to its tree, which is returned."""
    node._consolidated = record
    return node


def flat_of(storage: UntypedStorage, nbytes: int) -> Tensor:
    """The first bytes of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (nbytes,), (1,))


def kind_of(storage: UntypedStorage) -> type[Tensor] | None:
    """Class of the views of a storage: memory-mapped for a file, so that tensors are sent as its path."""
    if storage.device.type != "cpu" or file_of(storage) is None:
        return None
    hold_many(storage)
    return MemoryMappedTensor


def tree_over(skeleton: Any, flat: Tensor, spots: list[Spot], locked: bool) -> Any:
    """A tree like ``skeleton``, which is unlocked, around the tensors in ``flat``."""
    storage = flat.untyped_storage()
    found = iter(leaves_of(storage, spots, kind_of(storage)))
    node = skeleton._with_leaves(found)
    fill_ragged(node, found)
    return note(node, Record(node, flat, spots, locked))


def fill_ragged(node: TensorCollection, found: Iterator[Any]) -> None:
    """Give the ragged entries of a tree the values and offsets of a storage; None: an entry keeps its own."""
    for rows, pair in zip(ragged_in(node), found):
        if pair is not None:
            rows._hold(*pair)


# -- moving ------------------------------------------------------------------------------------------------------


def relocated(node: TensorCollection, record: Record, flat: Tensor, device: torch.device) -> Any:
    """The tree around its storage on a device, which becomes the device of the tree; locked if this one is."""
    if flat is record.flat:
        new = node._with_leaves(iter(node._leaves()))
        note(new, Record(new, flat, record.spots, record.locked, record.file))
    else:
        on_host = device.type == "cpu"
        spots = [None if type(spot) is RaggedSpot and not on_host else spot for spot in record.spots]
        new = tree_over(node, flat, spots, record.locked)
    new._set_device(device)
    return node._keep_lock(new)


# -- pickling ----------------------------------------------------------------------------------------------------


class _Storage:
    """The storage in a pickle: its bytes, or between processes of this machine its file or shared memory."""

    __slots__ = ("flat",)

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat

    def __reduce__(self) -> Any:
        return _same, (self.flat,)  # the tensor itself: the pickler may have its own way to share memory


def _reduce_between_processes(value: _Storage) -> Any:
    region = region_of(value.flat)
    if region is not None:
        return _open, (tuple(region),)
    mapped = file_of(value.flat.untyped_storage()) is not None  # copy-on-write, and written to
    return _same, (value.flat.clone() if mapped else value.flat,)


ForkingPickler.register(_Storage, _reduce_between_processes)


def _same(flat: Tensor) -> Tensor:
    return flat


def _open(region: tuple[Any, ...]) -> Tensor:
    return Region(*region).open()


class _Placeholder(Tensor):
    """Replaces each tensor of a tree in its pickle, where one tensor takes as long as a tree."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _placeholder, ()


def _placeholder() -> Tensor:
    return _NOTHING


_NOTHING = torch.empty(0, device="cpu").as_subclass(_Placeholder)
_NO_ROWS = torch.empty(0, dtype=torch.uint8, device="cpu"), torch.zeros(1, dtype=torch.int64, device="cpu")


def reduce_tree(node: TensorCollection) -> Any:
    """The pickle of a consolidated tree: the tree without its tensors, their positions, and one storage.

    ``None`` for a tree that is no longer consolidated, which is pickled as usual.
    """
    record = record_of(node)
    if record is None:
        return None
    count = len(node._leaves())
    skeleton = node._with_leaves(iter([_NOTHING] * count))
    fill_ragged(skeleton, iter([None if spot is None else _NO_ROWS for spot in record.spots[count:]]))
    return _rebuild, (skeleton, record.spots, _Storage(record.flat), record.locked)


def _rebuild(skeleton: Any, spots: list[Any], flat: Tensor, locked: bool) -> Any:
    node = tree_over(skeleton, flat, spots, locked)
    if locked:
        node._propagate_lock(None)
    return node


register(record_of=record_of, reduce_tree=reduce_tree, relocated=relocated)
