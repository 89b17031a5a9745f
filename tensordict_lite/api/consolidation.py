"""All tensors in one piece of memory, or in one file."""

from __future__ import annotations

import os
from typing import Any

import torch

from tensordict_lite.kernel import Kernel

__all__ = ["ConsolidationOps"]


class ConsolidationOps(Kernel):
    """``consolidate`` and its relatives. The work is in :mod:`tensordict_lite.consolidated`."""

    __slots__ = ()

    def consolidate(
        self,
        filename: str | os.PathLike[str] | None = None,
        *,
        num_threads: int = 0,
        device: torch.device | str | int | None = None,
        non_blocking: bool = False,
        inplace: bool = False,
        return_early: bool = False,
        use_buffer: bool = False,
        share_memory: bool = False,
        pin_memory: bool = False,
        metadata: bool = False,
    ) -> Any:
        """Copies tensors and :class:`Ragged` entries into one storage, and gives the same collection with views of it.

        One storage travels better than many: :meth:`to` moves it to another device in one copy, and a pickle, a queue
        between processes or ``torch.save`` has one tensor to deal with. The result is locked; in-place writes into its
        tensors are fine, and a replaced entry ends it (:meth:`is_consolidated`).

        With ``filename`` the storage is that file, and writes into the tensors reach it. It is written beside
        ``filename`` and renamed: it is there whole or not at all, and a process that has an older file of that
        name open or mapped keeps it. :func:`from_consolidated` reads it, and so does the ``tensordict`` package. Ragged
        rows are a nested tensor there; fewer than 4 096 strings or JSON values of less than 4 MB are objects.

        What is consolidated already is returned as it is, unless another file, device or kind of memory is asked for.

        Args:
            filename: file to write; ``None`` for memory.
            num_threads: threads that copy into memory; 0 or 1 is this one.
            device: of the storage; by default that of the collection, or the CPU.
            non_blocking: do not wait for copies between devices.
            inplace: put the views into this collection, and return it.
            return_early: with ``num_threads > 1``, return a :class:`TensorDictFuture` at once.
            use_buffer: with ``filename``, copy into memory and write that at the end. Later writes into the tensors
                do not reach the file.
            share_memory: shared memory, which other processes receive without a copy.
            pin_memory: page-locked memory, from which copies to an accelerator are faster. Needs an accelerator.
            metadata: accepted for compatibility: the structure always travels with the storage.

        Returns:
            A locked collection of the same class (or ``self``, or a future of it).

        Raises:
            RuntimeError: ``inplace`` and the collection is locked; ``filename`` with a ``device`` other than the CPU;
                an object that JSON cannot hold, for a file; ``pin_memory`` without an accelerator.
            NotImplementedError: nested tensors of the strided layout; ``return_early`` with ``use_buffer`` or
                ``non_blocking``.
            OSError: there is no room; a file that was there stays.

        Example:
            >>> import pickle, tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> data = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3, 2)}}, [3]).consolidate()
            >>> data["a"].untyped_storage().data_ptr() == data["b", "c"].untyped_storage().data_ptr()
            True
            >>> pickle.loads(pickle.dumps(data)).is_consolidated(), data.is_locked
            (True, True)
            >>> folder = tempfile.TemporaryDirectory()
            >>> filed = data.consolidate(f"{folder.name}/data.bin")
            >>> filed["a"].add_(1)
            MemoryMappedTensor([1., 1., 1.])
            >>> TensorDict.from_consolidated(f"{folder.name}/data.bin")["a"]
            MemoryMappedTensor([1., 1., 1.])
        """
        from tensordict_lite.consolidated import consolidate

        return consolidate(
            self,
            filename,
            num_threads=num_threads,
            device=device,
            non_blocking=non_blocking,
            inplace=inplace,
            return_early=return_early,
            use_buffer=use_buffer,
            share_memory=share_memory,
            pin_memory=pin_memory,
        )

    @classmethod
    def from_consolidated(cls, filename: str | os.PathLike[str]) -> Any:
        """The collection in a file that :meth:`consolidate` wrote; see :func:`from_consolidated`.

        Called on a tensorclass, the result is one of that class.

        Example:
            >>> import tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> folder = tempfile.TemporaryDirectory()
            >>> _ = TensorDict({"a": torch.arange(3)}, [3]).consolidate(f"{folder.name}/data.bin")
            >>> TensorDict.from_consolidated(f"{folder.name}/data.bin").batch_size
            torch.Size([3])
        """
        from tensordict_lite.consolidated import from_consolidated

        return from_consolidated(filename, cls)

    def is_consolidated(self) -> bool:
        """Whether every tensor is still the view of one storage that :meth:`consolidate` made.

        In-place writes into tensors keep it so. A replaced, added or removed entry, or another object in a non-tensor
        entry, ends it.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3)})
            >>> td.is_consolidated(), td.consolidate().is_consolidated()
            (False, True)
        """
        if getattr(self, "_consolidated", None) is None:
            return False
        from tensordict_lite.consolidated.record import record_of

        return record_of(self) is not None
