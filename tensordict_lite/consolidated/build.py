"""Copying the tensors of a tree into one storage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from tensordict_lite.consolidated.files import is_described, write_file
from tensordict_lite.consolidated.layout import Layout, lay_out, leaves_of
from tensordict_lite.consolidated.record import Record, fill_ragged, flat_of, kind_of, note, record_of
from tensordict_lite.kernel import normalise_device
from tensordict_lite.memmap.disk.mapping import map_file
from tensordict_lite.memmap.disk.pieces import Pieces
from tensordict_lite.memmap.save import TensorDictFuture
from tensordict_lite.memmap.text import is_short
from tensordict_lite.ops.operands import leaf_paths
from tensordict_lite.paths import absolute_path
from tensordict_lite.ragged import ragged_in

_CPU = torch.device("cpu")


def consolidate(
    node: Any, filename: str | os.PathLike[str] | None = None, *, return_early: bool = False, **options: Any
) -> Any:
    """See :meth:`TensorDict.consolidate`."""
    job = _Job(node, filename, **options)
    early = return_early and job.num_threads > 1
    if early and (job.use_buffer or job.non_blocking):
        what = "use_buffer" if job.use_buffer else "non_blocking"
        raise NotImplementedError(f"return_early=True is not supported with {what}=True: wait for the copies")
    if job.is_done():
        return node
    job.prepare()
    return TensorDictFuture._started(job.run) if early else job.run()


@dataclass
class _Job:
    """One consolidation: the target, existing content, the copies, the resulting tree."""

    node: Any
    filename: str | os.PathLike[str] | None
    num_threads: int = 0
    device: Any = None
    non_blocking: bool = False
    inplace: bool = False
    use_buffer: bool = False
    share_memory: bool = False
    pin_memory: bool = False
    layout: Layout | None = None

    def __post_init__(self) -> None:
        self.path = None if self.filename is None else os.path.realpath(absolute_path(self.filename))
        self.device = None if self.device is None else normalise_device(self.device)
        if self.path is not None and self.device not in (None, _CPU):
            raise RuntimeError(
                f"device and filename are mutually exclusive arguments: got device={str(self.device)!r}, and a file is "
                "mapped into the memory of the CPU. Load it with from_consolidated(filename).to(device)"
            )
        self.mapped = self.path is not None and not self.use_buffer
        self.record: Record | None = record_of(self.node)

    def is_done(self) -> bool:
        """Whether the tree already is in the requested form."""
        record = self.record
        if record is None or (self.path is not None and record.file != self.path):
            return False
        if self.path is not None:
            return is_described(self.path, self.node, record)
        storage = record.storage
        return (
            (self.device is None or storage.device == self.device)
            and (not self.share_memory or storage.is_shared())
            and (not self.pin_memory or storage.device.type != "cpu" or storage.is_pinned())
        )

    def prepare(self) -> None:
        """Do everything that can fail because of the tree."""
        if self.inplace and self.node._lock is not None and self.record is None:
            raise self.node._locked_error()
        if self.inplace and hasattr(self.node, "named_parameters"):
            raise RuntimeError("parameters are not replaced in place: use consolidate() for a copy of their values")
        self.layout = lay_out(self.node._leaves(), lambda: leaf_paths(self.node), self._ragged())

    def _ragged(self) -> list[Any]:
        """The ragged entries; None for those outside the storage.

        An accelerator stores none, and a file stores few rows as JSON, which ``tensordict`` reads.
        """
        if self._storage_device.type != "cpu":
            return [None for _ in ragged_in(self.node)]
        found = ragged_in(self.node)
        if self.path is None:
            return found
        return [None if _is_short(rows) else rows for rows in found]

    def run(self) -> Any:
        assert self.layout is not None
        if self.mapped and self.path is not None:
            write_file(self.path, self.node, self.layout, self.locked)
            storage = _mapped(self.path, self.layout.nbytes)
        else:
            storage = self._storage(self.layout.nbytes)
            self._copy(self.layout, storage)
            if self.path is not None:
                write_file(self.path, self.node, self.layout, self.locked, flat_of(storage, self.layout.nbytes))
        return self._finish(storage)

    @property
    def locked(self) -> bool:
        """Whether the tree is locked, or was before consolidation."""
        return self.record.locked if self.record is not None else self.node._lock is not None

    @property
    def _storage_device(self) -> torch.device:
        return _CPU if self.mapped else self.device or self.node._device or _CPU

    def _storage(self, nbytes: int) -> UntypedStorage:
        device = self._storage_device
        if device.type == "cpu" and self.share_memory and not self.pin_memory:
            return UntypedStorage._new_shared(nbytes)
        pin = self.pin_memory and device.type == "cpu"
        return torch.empty(nbytes, dtype=torch.uint8, device=device, pin_memory=pin).untyped_storage()

    def _copy(self, layout: Layout, storage: UntypedStorage) -> None:
        places = Pieces(storage).at(place for place, _ in layout.sources)
        pairs = list(zip(places, (tensor.detach() for _, tensor in layout.sources)))
        if self.num_threads <= 1 or len(pairs) <= 1:
            self._copy_pairs(pairs)
        else:
            with ThreadPoolExecutor(self.num_threads, "consolidate") as pool:
                list(pool.map(self._copy_pairs, _shares(pairs, self.num_threads)))

    def _copy_pairs(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        if pairs:
            places, sources = zip(*pairs)
            with torch.no_grad():
                torch._foreach_copy_(places, sources, non_blocking=self.non_blocking)

    def _finish(self, storage: UntypedStorage) -> Any:
        assert self.layout is not None
        found = leaves_of(storage, self.layout.spots, kind_of(storage))
        count = len(self.node._leaves())
        again = self.record is not None and self.record.file == self.path and self.path is not None
        locked = self.locked
        if self.inplace or again:
            out = self.node._replace_leaves(found[:count])
        else:
            out = self.node._with_leaves(iter(found[:count]))
        if self.path is not None and self.mapped:
            out._set_device(_CPU)
        elif self.device is not None and out._device is not None:
            out._set_device(self.device)
        fill_ragged(out, iter(found[count:]))
        if out._lock is None:
            out._propagate_lock(None)
        file = self.path if self.mapped else None
        return note(out, Record(out, flat_of(storage, self.layout.nbytes), self.layout.spots, locked, file))


def _is_short(rows: Any) -> bool:
    return is_short(rows.kind, len(rows), lambda: int(rows.lengths.sum()))


def _mapped(path: str, nbytes: int) -> UntypedStorage:
    return map_file(path, nbytes) if nbytes else torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()


def _shares(pairs: list[tuple[Tensor, Tensor]], count: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Shares of about the same number of bytes, one for each thread."""
    pairs = sorted(pairs, key=lambda pair: -pair[0].numel() * pair[0].element_size())
    shares: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(min(count, len(pairs)))]
    loads = [0] * len(shares)
    for pair in pairs:
        least = loads.index(min(loads))
        shares[least].append(pair)
        loads[least] += pair[0].numel() * pair[0].element_size()
    return shares
