"""Saving to memory maps and loading from them; all tensors in one piece of memory or one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel

if TYPE_CHECKING:
    from typing import Self

    from tensordict_lite.memmap.tensor import MemoryMappedTensor

__all__ = ["StorageOps"]

PathLike = "str | os.PathLike[str]"


class StorageOps(Kernel):
    """``memmap`` and its relatives. The work is in :mod:`tensordict_lite.memmap`."""

    __slots__ = ()

    def memmap(
        self,
        prefix: str | os.PathLike[str] | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        archive: bool | None = None,
        compression: str | int | None = None,
        allow_pickle: bool = False,
        reference_format: bool = False,
    ) -> Any:
        """Writes every tensor to a file of its own and gives a collection of the mapped files.

        A tensor at ``("a", "b")`` goes to ``prefix/a/b.memmap``; each level has a ``meta.json``. The files are
        written to a folder beside ``prefix``, which is renamed to it. A dataset that is there is exchanged for the new
        one in one step: readers and programs that are killed leave or find one of them, whole. All its files go;
        tensors that are mapped from them keep their values. Load with :meth:`load_memmap`.

        Where ``prefix`` cannot be exchanged, its files are replaced one by one, and a kill in between leaves no
        dataset: a mount point, the working directory, a folder in one that is not writable, with files that are not of
        the dataset (which stay), or on a file system without ``RENAME_EXCHANGE``.

        A ``prefix`` that ends in ``.tdz`` is one file instead, a zip archive of these files, whose tensors are mapped
        where they lie in it. It is written whole or not at all in any case, and what is returned is what
        :meth:`load_memmap` gives: not locked, and writes to it do not reach the file.

        Args:
            prefix: folder to write to. ``None``: the folder that the tensors are mapped from already, else
                anonymous shared memory, which lasts as long as it is used.
            copy_existing: copy tensors that are mapped to another file; otherwise they are a RuntimeError.
            num_threads: threads that write; 0 or 1 is this one.
            return_early: with ``num_threads > 1``, return a :class:`TensorDictFuture` at once.
            share_non_tensor: keep the objects of non-tensor entries in shared memory, so that an in-place write of
                one (:meth:`set_`, :meth:`update_`) in one process is seen by all that have this collection. They
                are pickled for it. In either case such a write also reaches the file.
            existsok: replace files that exist; otherwise they are a RuntimeError.
            robust_key: percent-encode keys that are not plain file names; ``False`` uses them as they are.
            archive: write one file; ``None``: where ``prefix`` ends in ``.tdz``. Tensors that are mapped already are
                copied, whatever ``copy_existing`` says.
            compression: of an archive: ``"stored"`` (the default), ``"deflate"``, ``"bzip2"``, ``"lzma"``, or a
                constant of :mod:`zipfile`. A compressed tensor is not mapped when it is loaded, but decompressed.
            allow_pickle: pickle non-tensor data that JSON cannot hold; otherwise it is a RuntimeError.
            reference_format: write nothing that ``tensordict`` does not open. Otherwise thousands of strings are
                written to two files instead of JSON, which opens in no time whatever their number. An archive is
                always in its format.

        Returns:
            A locked collection of :class:`MemoryMappedTensor` leaves (device ``cpu``).

        Raises:
            OSError: there is no room (with bytes needed and available); what was there before stays.
            RuntimeError, TypeError: a leaf cannot be saved, or exists elsewhere.
            ValueError: ``compression`` without an archive, an archive without ``prefix``, or in place of a folder.
            NotImplementedError: ``return_early`` for an archive.

        Example:
            >>> import tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> folder = tempfile.TemporaryDirectory()
            >>> data = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
            >>> mapped = data.memmap(folder.name)
            >>> mapped.is_memmap(), mapped.is_locked, type(mapped["b", "c"]).__name__
            (True, True, 'MemoryMappedTensor')
        """
        from tensordict_lite.memmap.plan import SaveOptions
        from tensordict_lite.memmap.save import save_collection

        options = SaveOptions(
            copy_existing=copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            share_non_tensor=share_non_tensor,
            existsok=existsok,
            robust_key=robust_key,
            archive=archive,
            compression=compression,
            allow_pickle=allow_pickle,
            reference_format=reference_format,
        )
        return save_collection(self, prefix, options)

    def memmap_(
        self,
        prefix: str | os.PathLike[str] | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        allow_pickle: bool = False,
        reference_format: bool = False,
    ) -> Any:
        """:meth:`memmap`, with the mapped tensors put into this collection. Same arguments.

        Returns:
            self, locked, on the device ``cpu`` (or a :class:`TensorDictFuture` of it).

        Raises:
            RuntimeError: the collection is in shared memory (:meth:`share_memory_`).
        """
        from tensordict_lite.memmap.plan import SaveOptions
        from tensordict_lite.memmap.save import save_collection

        if hasattr(self, "named_parameters"):
            raise RuntimeError("Cannot build a memmap TensorDict in-place: use memmap() for a mapped copy")
        if self.is_shared() and not self.is_memmap() and not _all_mapped(self):
            raise RuntimeError("memmap and shared memory are mutually exclusive features: use memmap() for a copy")
        options = SaveOptions(
            copy_existing=copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            share_non_tensor=share_non_tensor,
            existsok=existsok,
            robust_key=robust_key,
            allow_pickle=allow_pickle,
            reference_format=reference_format,
            archive=False,
            inplace=True,
        )
        return save_collection(self, prefix, options)

    def memmap_like(
        self,
        prefix: str | os.PathLike[str] | None = None,
        copy_existing: bool = False,
        *,
        existsok: bool = True,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool | None = True,
        archive: bool | None = None,
        allow_pickle: bool = False,
        reference_format: bool = False,
    ) -> Any:
        """Room on disk for a collection of these keys, shapes and dtypes, without copying a value.

        New files are zero-filled with all their blocks reserved; a file that exists keeps its content (and is
        grown where it is too short). The arguments are those of :meth:`memmap`. An archive (``.tdz``) is always made
        anew, and writes to the result reach it; its checksums are those of zeros until
        :func:`refresh_archive_checksums` is called.

        Returns:
            A locked, mapped collection; of an archive, one that is not locked.

        Example:
            >>> import tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> folder = tempfile.TemporaryDirectory()
            >>> datum = TensorDict({"image": torch.zeros(3, 64, 64, dtype=torch.uint8), "label": torch.tensor(0)})
            >>> data = datum.expand(1000).memmap_like(folder.name)  # expand takes no memory
            >>> data["image"].shape, data["label"].sum()
            (torch.Size([1000, 3, 64, 64]), tensor(0))
        """
        from tensordict_lite.memmap.plan import SaveOptions
        from tensordict_lite.memmap.save import save_collection

        options = SaveOptions(
            copy_existing=copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            share_non_tensor=share_non_tensor,
            existsok=existsok,
            robust_key=robust_key,
            archive=archive,
            allow_pickle=allow_pickle,
            reference_format=reference_format,
            like=True,
        )
        return save_collection(self, prefix, options)

    def save(
        self,
        prefix: str | os.PathLike[str] | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool | None = True,
        archive: bool | None = None,
        compression: str | int | None = None,
        allow_pickle: bool = False,
        reference_format: bool = False,
    ) -> Any:
        """:meth:`memmap` over whatever is there. Same arguments; load with :meth:`load`.

        Example:
            >>> import tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> folder = tempfile.TemporaryDirectory()
            >>> data = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
            >>> _ = data.save(f"{folder.name}/data.tdz")
            >>> loaded = TensorDict.load(f"{folder.name}/data.tdz")
            >>> loaded["a"].untyped_storage().data_ptr() == loaded["b", "c"].untyped_storage().data_ptr()
            True
            >>> _ = data.save(f"{folder.name}/small.tdz", compression="deflate")
        """
        return self.memmap(
            prefix,
            copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            share_non_tensor=share_non_tensor,
            robust_key=robust_key,
            archive=archive,
            compression=compression,
            allow_pickle=allow_pickle,
            reference_format=reference_format,
        )

    dumps = save

    @classmethod
    def load_memmap(
        cls,
        prefix: str | os.PathLike[str],
        device: torch.device | str | int | None = None,
        non_blocking: bool = False,
        *,
        out: Any = None,
        robust_key: bool | None = True,
        subpath: Any = None,
        mode: str | None = None,
        num_threads: int = 0,
        allow_pickle: bool | None = None,
    ) -> Any:
        """Opens a dataset that :meth:`memmap` or :meth:`save` wrote (here or by the ``tensordict`` package).

        One small JSON is read for each folder and one map made for each tensor; rows are read when they are
        touched. Everything is checked first, and nothing in the folder is ever executed. A sub-folder can be
        loaded alone. An archive is mapped once, and its tensors are views of that one mapping; those that are
        compressed, or not aligned, are copied into memory.

        Args:
            prefix: the folder, or the file of an archive.
            device: copy the tensors there. ``"meta"`` opens no data file, as does an active ``FakeTensorMode``.
            non_blocking: do not wait for the copies to ``device``.
            out: collection to put the loaded tensors into; keys that the dataset lacks are removed.
            robust_key: ``False`` reads folders that were saved so.
            subpath: load a nested collection only, ``"a/b"`` or ``("a", "b")``.
            mode: ``"r+"`` writes reach the files, ``"r"`` copy-on-write. Default: ``"r+"`` where it is allowed,
                ``"r"`` for an archive.
            num_threads: threads that decompress the tensors of an archive; 0 or 1 is this one.
            allow_pickle: open pickled non-tensor data, which can run any code: only for data that you trust.

        Returns:
            A collection of the class that was saved; not locked.

        Raises:
            DatasetError: the folder is not a dataset, was truncated or edited, or points outside itself.
            ArchiveError: (a DatasetError and a ValueError) the same of an archive, or it is a file and none; or
                ``mode="r+"`` for one that cannot be mapped in place.
            ValueError: ``subpath`` does not exist.

        Example:
            >>> import tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> folder = tempfile.TemporaryDirectory()
            >>> _ = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3)}}, [3]).memmap(folder.name)
            >>> TensorDict.load_memmap(folder.name)["a"]
            MemoryMappedTensor([0, 1, 2])
            >>> TensorDict.load_memmap(folder.name + "/b")["c"].sum()
            tensor(3.)
            >>> TensorDict.load_memmap(folder.name, device="meta")["a"].device
            device(type='meta')
        """
        from tensordict_lite.memmap.load import load_collection

        return load_collection(
            prefix,
            device,
            non_blocking,
            out=out,
            robust_key=robust_key,
            subpath=subpath,
            mode=mode,
            num_threads=num_threads,
            allow_pickle=allow_pickle,
        )

    @classmethod
    def load(cls, prefix: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """:meth:`load_memmap`. Same arguments."""
        return cls.load_memmap(prefix, *args, **kwargs)

    def load_memmap_(
        self,
        prefix: str | os.PathLike[str],
        robust_key: bool | None = True,
        *,
        allow_pickle: bool | None = None,
        mode: str | None = None,
    ) -> Self:
        """Replaces the entries of this collection by those of a saved one; see :meth:`load_memmap`.

        Nested collections are reused, tensors are replaced, keys that the dataset lacks are removed. A collection
        that was memory-mapped is so again afterwards, in the loaded folder (not in an archive, nor with ``mode="r"``).

        Returns:
            self
        """
        mapped = self.is_memmap()
        if mapped:
            self.unlock_()
        self.load_memmap(prefix, out=self, robust_key=robust_key, allow_pickle=allow_pickle, mode=mode)
        if mapped and mode != "r" and not os.path.isfile(prefix):
            self.memmap_(prefix)
        return self

    def load_(self, prefix: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Self:
        """:meth:`load_memmap_`. Same arguments."""
        return self.load_memmap_(prefix, *args, **kwargs)

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """Loads the entries again from :attr:`saved_path`, after another process has changed them.

        Raises:
            RuntimeError: the collection is not memory-mapped in a folder.

        Returns:
            self
        """
        path = getattr(self, "_memmap_path", None)
        if not path:
            raise RuntimeError("cannot refresh a collection that is not memory-mapped in a folder: use load_memmap")
        return self.load_memmap_(path, allow_pickle=allow_pickle)

    # -- state -------------------------------------------------------------------------------------------

    def is_memmap(self) -> bool:
        """Whether this is what :meth:`memmap`, :meth:`memmap_` or :meth:`memmap_like` gave, still locked.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3)})
            >>> td.is_memmap(), td.memmap().is_memmap()
            (False, True)
        """
        return getattr(self, "_memmap_path", None) is not None

    @property
    def saved_path(self) -> Path | None:
        """Folder of a memory-mapped collection, ``None`` when it is in anonymous memory, or a stack of several.

        Raises:
            AttributeError: the collection is not memory-mapped.
        """
        path = getattr(self, "_memmap_path", None)
        if path is None and not self.is_memmap():
            raise AttributeError(f"this {type(self).__name__} is not memory-mapped (is_memmap() is False)")
        return Path(path) if path else None

    def sync(self) -> Self:
        """Returns when everything that was written so far is on the disk: data first, then metadata.

        Returns:
            self
        """
        from tensordict_lite.memmap.durable import sync_collection

        sync_collection(self)
        return self

    def checksum(self, num_threads: int | None = None) -> dict[str, list[int]]:
        """Stores the checksums of the files of a mapped collection, for ``tdmap verify`` and :func:`verify`.

        Args:
            num_threads: threads that read; by default one a core.

        Returns:
            CRC-32 of every block of each file, by path below the folder.

        Raises:
            RuntimeError: the collection is not mapped from a folder.

        Example:
            >>> import tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> from tensordict_lite.memmap.checksum import verify
            >>> folder = tempfile.TemporaryDirectory()
            >>> sums = TensorDict({"a": torch.arange(1000)}).memmap(folder.name).checksum()
            >>> sorted(sums), verify(folder.name).ok
            (['a.memmap', 'meta.json'], True)
        """
        from tensordict_lite.memmap.checksum import store
        from tensordict_lite.memmap.plan import mapped_root

        root = mapped_root(self)
        if root is None:
            raise RuntimeError("only a collection that is mapped from a folder has files: call memmap(prefix) first")
        return store(root, num_threads)

    # -- growing -------------------------------------------------------------------------------------------

    def make_memmap(
        self, key: Any, shape: Any, *, dtype: torch.dtype | None = None, robust_key: bool | None = True
    ) -> MemoryMappedTensor:
        """Adds a zero-filled tensor to a memory-mapped collection, locked as it is, and gives it.

        Args:
            key: nested key; missing levels are created.
            shape: its shape, or a ``[n, dims]`` tensor of shapes for a nested tensor.
            dtype: its dtype, the default one if not given.
            robust_key: see :meth:`memmap`.

        Raises:
            RuntimeError: the collection is not memory-mapped, or the key exists.
        """
        from tensordict_lite.memmap.grow import make

        return make(self, key, shape, dtype, robust_key)

    def make_memmap_from_tensor(
        self,
        key: Any,
        tensor: Tensor,
        *,
        copy_data: bool = True,
        existsok: bool = True,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Adds a mapped copy of a tensor to a memory-mapped collection, locked as it is, and gives it.

        Args:
            key: nested key; missing levels are created.
            tensor: what to copy.
            copy_data: ``False`` only makes room.
            existsok: a file that is there already is replaced; otherwise it is a RuntimeError.
            robust_key: see :meth:`memmap`.
        """
        from tensordict_lite.memmap.grow import make_from_tensor

        return make_from_tensor(self, key, tensor, copy_data, existsok, robust_key)

    def make_memmap_from_storage(
        self,
        key: Any,
        storage: torch.UntypedStorage,
        shape: Any,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Adds a tensor over an existing storage to a memory-mapped collection, and gives it.

        In a collection that has a folder, the storage must be the file of the new entry there: anything else
        would be missing when the dataset is loaded.

        Raises:
            RuntimeError: the storage is not that file, the key exists, or the collection is not memory-mapped.
        """
        from tensordict_lite.memmap.grow import make_from_storage

        return make_from_storage(self, key, storage, shape, dtype, robust_key)

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


def _all_mapped(node: Any) -> bool:
    from tensordict_lite.memmap.tensor import MemoryMappedTensor

    return all(isinstance(leaf, MemoryMappedTensor) for leaf in node._leaves())
