"""Memory of the leaves: sharing, pinning, sizes and addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.kernel import Kernel, Lock
from tensordict_lite.views import public

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

    CastFilter = Callable[[tuple[str, ...], Tensor], bool]


class SharedLock(Lock):
    """The lock of a collection that :meth:`MemoryOps.share_memory_` moved: unlocking drops the shared mark."""

    __slots__ = ()


class MemoryOps(Kernel):
    """Sharing, pinning, addresses and sizes."""

    __slots__ = ()

    def share_memory_(self) -> Self:
        """Move the tensors to shared memory, lock the collection and return it.

        Processes that receive it read and write the same memory. No effect on a CUDA device, whose tensors are always
        shared.

        Raises:
            RuntimeError: the collection is memory-mapped, and thus already shared through its files.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).share_memory_()
            >>> td.is_shared(), td.is_locked, td["a"].is_shared()
            (True, True, True)
        """
        if self.is_memmap():
            raise RuntimeError(
                "memory-mapped tensors cannot be moved to shared memory: their files are shared already. "
                "Clone the collection first to share a copy."
            )
        if self._device is not None and self._device.type == "cuda":
            return self
        for leaf in self._leaves():
            if leaf.device.type == "cpu":
                leaf.share_memory_()
        for column in ragged_columns(self):
            column.share_memory_()
        if self._lock is None:
            self._propagate_lock(None)
        mark_shared(self)
        return self

    def is_shared(self) -> bool:
        """Whether :meth:`share_memory_` was called since the last unlock; always on a CUDA device."""
        if self._device is not None and self._device.type == "cuda":
            return True
        return type(self._lock) is SharedLock

    def pin_memory(self, num_threads: int | None = None, inplace: bool = False) -> Self:
        """The same entries in page-locked memory, which is copied to an accelerator faster.

        Args:
            num_threads: number of threads that pin; ``None`` or 0 uses the calling thread.
            inplace: replace the tensors in this collection and return it.

        Raises:
            RuntimeError: no accelerator is available.
        """
        leaves = pinned(self._leaves(), num_threads)
        return self._swap_leaves(leaves) if inplace else self._with_leaves(iter(leaves))

    def pin_memory_(self, num_threads: int = 0) -> Self:
        """:meth:`pin_memory` in place."""
        return self.pin_memory(num_threads, inplace=True)

    def record_stream(self, stream: torch.cuda.Stream) -> Self:
        """Tell the allocator that ``stream`` uses every tensor, see :meth:`torch.Tensor.record_stream`."""
        for leaf in self._leaves():
            leaf.record_stream(stream)
        return self

    def data_ptr(self, *, storage: bool = False) -> TensorCollection:
        """Addresses of the tensors: a TensorDict of zero-dimensional int64 tensors under the same keys.

        Args:
            storage: return the address of the storage, which a view shares with its base, not that of the first
                element.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> bool((td[1:].data_ptr(storage=True) == td.data_ptr(storage=True)).all())
            True
        """
        return _address_tree(self, storage)

    def bytes(self, *, count_duplicates: bool = True) -> int:
        """Size of all tensors in bytes, including gradients, and offsets (and lengths) of jagged ones.

        Args:
            count_duplicates: count a tensor under two keys twice.
        """
        total = 0
        for leaf in _distinct(self._leaves(), count_duplicates):
            total += leaf.numel() * leaf.element_size()
            if leaf.is_nested and leaf.layout is torch.jagged:
                rows = (leaf.offsets(), leaf._lengths)  # type: ignore[attr-defined]
                total += sum(part.numel() * part.element_size() for part in rows if part is not None)
            grad = leaf.grad if leaf.is_leaf and leaf.requires_grad else None
            if grad is not None:
                total += grad.numel() * grad.element_size()
        return total

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Number of elements of all tensors.

        Args:
            count_duplicates: count a tensor under two keys twice.
        """
        return sum(leaf.numel() for leaf in _distinct(self._leaves(), count_duplicates))

    @property
    def is_cpu(self) -> bool:
        """Whether the device of the collection is the CPU (not whether its tensors are there)."""
        return self._device is not None and self._device.type == "cpu"

    @property
    def is_cuda(self) -> bool:
        """Whether the device of the collection is a CUDA device."""
        return self._device is not None and self._device.type == "cuda"

    @property
    def is_meta(self) -> bool:
        """Whether the device of the collection is ``meta``."""
        return self._device is not None and self._device.type == "meta"


def ragged_columns(node: Any) -> Iterator[Any]:
    """The values and offsets of the ragged entries of a tree."""
    for sub in () if node._is_non_tensor and not hasattr(node, "column") else node._nested():
        yield from ragged_columns(sub)
    column = getattr(node, "column", None) if node._is_non_tensor else None
    if column is not None:
        yield column


def pinned(leaves: list[Tensor], num_threads: int | None) -> list[Tensor]:
    if num_threads and len(leaves) > 1:
        with ThreadPoolExecutor(min(num_threads, len(leaves))) as threads:
            return list(threads.map(Tensor.pin_memory, leaves))
    return [leaf.pin_memory() for leaf in leaves]


def mark_shared(node: Any) -> None:
    """Mark a locked tree as being in shared memory."""
    node._changed_under_lock()
    node._lock = SharedLock(node._lock)
    for sub in node._nested():
        mark_shared(sub)


def _distinct(leaves: list[Tensor], count_duplicates: bool) -> list[Tensor]:
    return leaves if count_duplicates else list({id(leaf): leaf for leaf in leaves}.values())


def _address_tree(node: Any, storage: bool) -> Any:
    source = node._source
    entries = source.items() if isinstance(source, dict) else ((str(i), sub) for i, sub in enumerate(node._nested()))
    out = {}
    for key, value in entries:
        value = public(value)
        if isinstance(value, Tensor):
            address = value.untyped_storage().data_ptr() if storage else value.data_ptr()
            out[key] = torch.tensor(address, dtype=torch.int64)
        elif value._leaves():
            out[key] = _address_tree(value, storage)
    return registry.TensorDict._trusted(out, torch.Size(()), torch.device("cpu"))
