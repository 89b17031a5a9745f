"""Saving to memory maps and loading from them; all tensors in one piece of memory or one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel

if TYPE_CHECKING:
    from tensordict_lite.memmap.tensor import MemoryMappedTensor

PathLike = "str | os.PathLike[str]"


class StorageOps(Kernel):
    """``memmap``, ``load_memmap``, ``consolidate`` and more, implemented in :mod:`tensordict_lite.memmap`."""

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
        """Write every tensor to its own file and return a collection of the mapped files.

        A tensor at ``("a", "b")`` goes to ``prefix/a/b.memmap``; each level has a ``meta.json``. The files are written
        to a temporary folder next to ``prefix``, which is then renamed. An existing dataset is exchanged in one step:
        readers find the complete old or the complete new dataset, also after a kill. All files of the old dataset are
        deleted; tensors that map them keep their values. Load with :meth:`load_memmap`.

        If ``prefix`` cannot be exchanged, its files are replaced one by one, and a kill in between leaves no dataset.
        This applies to a mount point, the working directory, a folder with a read-only parent or with other files
        (which stay), and to file systems without ``RENAME_EXCHANGE``.

        A ``prefix`` that ends in ``.tdz`` is written as one file, a zip archive whose tensors are mapped in place. An
        archive is always written completely or not at all. The result equals that of :meth:`load_memmap`: it is not
        locked, and writes to it do not reach the file.

        Args:
            prefix: folder to write to. ``None``: the folder that the tensors are already mapped from, otherwise
                anonymous shared memory, which exists as long as it is used.
            copy_existing: copy tensors that are mapped to another file; otherwise they raise RuntimeError.
            num_threads: number of writer threads; 0 or 1 writes in the calling thread.
            return_early: with ``num_threads > 1``, return a :class:`TensorDictFuture` at once.
            share_non_tensor: keep pickled non-tensor entries in shared memory, so that every process with this
                collection sees an in-place write (:meth:`set_`, :meth:`update_`). Such a write always reaches the file.
            existsok: replace an existing dataset; otherwise it raises RuntimeError.
            robust_key: percent-encode keys that are not plain file names; ``False`` uses keys as file names.
            archive: write one file. ``None``: if ``prefix`` ends in ``.tdz``. An archive always copies mapped tensors.
            compression: compression of an archive: ``"stored"`` (default), ``"deflate"`` or the constant of
                :mod:`zipfile`. Compressed tensors are decompressed when loaded, not mapped.
            allow_pickle: pickle non-tensor data that JSON cannot hold; otherwise it raises RuntimeError.
            reference_format: write only formats that ``tensordict`` reads. By default a column of thousands of strings
                is written to two memory-mapped files instead of JSON. An archive always uses the format of
                ``tensordict``.

        Returns:
            A locked collection of :class:`MemoryMappedTensor` leaves (device ``cpu``).

        Raises:
            OSError: not enough space (with bytes needed and available); an existing dataset is kept.
            RuntimeError, TypeError: a leaf cannot be saved, or is mapped from another file.
            ValueError: ``compression`` without an archive, an archive without ``prefix``, or a folder at the archive's
                path.
            NotImplementedError: ``return_early`` for an archive.

        Example:
            >>> import tempfile, torch
            >>> folder = tempfile.TemporaryDirectory()
            >>> data = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
            >>> mapped = data.memmap(folder.name)
            >>> mapped.is_memmap(), mapped.is_locked, type(mapped["b", "c"]).__name__
            (True, True, 'MemoryMappedTensor')
        """
        return _save(self, prefix, locals())

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
        """:meth:`memmap` in place: this collection gets the mapped tensors. Same arguments.

        Returns:
            self, locked, on the device ``cpu`` (or a :class:`TensorDictFuture` of it).

        Raises:
            RuntimeError: the collection is in shared memory (:meth:`share_memory_`).
        """
        if hasattr(self, "named_parameters"):
            raise RuntimeError("Cannot build a memmap TensorDict in-place: use memmap() for a mapped copy")
        here = self.device is None or self.device.type == "cpu"  # what is on a device counts as shared
        if here and self.is_shared() and not self.is_memmap() and not _all_mapped(self):
            raise RuntimeError("memmap and shared memory are mutually exclusive features: use memmap() for a copy")
        return _save(self, prefix, locals(), archive=False, inplace=True)

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
        """Allocate files for the keys, shapes and dtypes of this collection, without copying values.

        New files are zero-filled and their blocks reserved. An existing file keeps its content and is extended if it is
        too short. The arguments are those of :meth:`memmap`. An archive (``.tdz``) is always created anew, and writes
        to the result reach it; until :func:`refresh_archive_checksums` is called, its checksums are those of zeros.

        Returns:
            A locked, mapped collection; an archive gives an unlocked one.

        Example:
            >>> import tempfile, torch
            >>> folder = tempfile.TemporaryDirectory()
            >>> datum = TensorDict({"image": torch.zeros(3, 64, 64, dtype=torch.uint8), "label": torch.tensor(0)})
            >>> data = datum.expand(1000).memmap_like(folder.name)  # expand takes no memory
            >>> data["image"].shape, data["label"].sum()
            (torch.Size([1000, 3, 64, 64]), tensor(0))
        """
        return _save(self, prefix, locals(), like=True)

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
        """:meth:`memmap` that replaces existing files. Same arguments; load with :meth:`load`.

        Example:
            >>> import tempfile, torch
            >>> folder = tempfile.TemporaryDirectory()
            >>> data = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
            >>> _ = data.save(f"{folder.name}/data.tdz")
            >>> loaded = TensorDict.load(f"{folder.name}/data.tdz")
            >>> loaded["a"].untyped_storage().data_ptr() == loaded["b", "c"].untyped_storage().data_ptr()
            True
            >>> _ = data.save(f"{folder.name}/small.tdz", compression="deflate")
        """
        return _save(self, prefix, locals())

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
        """Open a dataset written by :meth:`memmap` or :meth:`save`, of this package or of ``tensordict``.

        One small JSON file is read per folder and one mapping made per tensor; rows are read when they are used.
        Everything is checked first, and nothing in the folder is executed. A sub-folder can be loaded alone. An archive
        is mapped once and its tensors are views of that mapping; compressed or unaligned tensors are copied into
        memory.

        Args:
            prefix: the folder, or the file of an archive.
            device: copy the tensors there. ``"meta"`` or an active ``FakeTensorMode`` opens no data file.
            non_blocking: do not wait for the copies to ``device``.
            out: collection to put the loaded tensors into; keys that the dataset lacks are removed from it.
            robust_key: as it was when the dataset was saved.
            subpath: load a nested collection only, ``"a/b"`` or ``("a", "b")``.
            mode: ``"r+"``: writes reach the files; ``"r"``: copy-on-write. Default: ``"r+"`` if permissions allow it,
                ``"r"`` for an archive.
            num_threads: threads that decompress tensors of an archive; 0 or 1 is the calling thread.
            allow_pickle: open pickled non-tensor data, which can run any code: use it only for data that you trust.

        Returns:
            A collection of the class that was saved, not locked.

        Raises:
            DatasetError: the folder is not a dataset, was truncated or edited, or points outside itself.
            ArchiveError: (a DatasetError and a ValueError) the same for an archive, a file that is not an archive, or
                ``mode="r+"`` for an archive that cannot be mapped in place.
            ValueError: ``subpath`` does not exist.

        Example:
            >>> import tempfile, torch
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
        """Replace the entries of this collection by those of a saved one; see :meth:`load_memmap`.

        Nested collections are reused, tensors are replaced, keys that the dataset lacks are removed. A memory-mapped
        collection is mapped from the loaded folder afterwards (not for an archive, nor with ``mode="r"``).

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
        """Load the entries again from :attr:`saved_path`, after another process has changed them.

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
        """Whether :meth:`memmap`, :meth:`memmap_` or :meth:`memmap_like` made this collection and it is still locked.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3)})
            >>> td.is_memmap(), td.memmap().is_memmap()
            (False, True)
        """
        return getattr(self, "_memmap_path", None) is not None

    @property
    def saved_path(self) -> Path | None:
        """Folder of a memory-mapped collection; ``None`` in anonymous memory or for a stack of several folders.

        Raises:
            AttributeError: the collection is not memory-mapped.
        """
        path = getattr(self, "_memmap_path", None)
        if path is None and not self.is_memmap():
            raise AttributeError(f"this {type(self).__name__} is not memory-mapped (is_memmap() is False)")
        return Path(path) if path else None

    def sync(self) -> Self:
        """Wait until everything written so far is on the disk: data first, then metadata.

        Returns:
            self
        """
        from tensordict_lite.memmap.durable import sync_collection

        sync_collection(self)
        return self

    def checksum(self, num_threads: int | None = None) -> dict[str, list[int]]:
        """Store the checksums of the files of a mapped collection, for ``tdmap verify`` and :func:`verify`.

        Args:
            num_threads: number of reader threads; by default one per core.

        Returns:
            CRC-32 of every block of each file, by path below the folder.

        Raises:
            RuntimeError: the collection is not mapped from a folder.

        Example:
            >>> import tempfile, torch
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
        """Add a zero-filled tensor to a locked, memory-mapped collection and return it.

        Args:
            key: nested key; missing levels are created.
            shape: its shape, or a tensor ``[n, dims]`` of shapes for a nested tensor.
            dtype: its dtype; by default torch's default dtype.
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
        """Add a mapped copy of a tensor to a locked, memory-mapped collection and return it.

        Args:
            key: nested key; missing levels are created.
            tensor: the tensor to copy.
            copy_data: ``False`` only allocates the file.
            existsok: replace an existing file; otherwise it raises RuntimeError.
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
        """Add a tensor over an existing storage to a memory-mapped collection and return it.

        In a collection with a folder the storage must be the file of the new entry there; otherwise the entry would be
        missing when the dataset is loaded.

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
    ) -> Any:
        """Copy tensors and :class:`Ragged` entries into one storage and return the same collection with views of it.

        One storage is faster than many tensors: :meth:`to` moves it in one copy, and a pickle, a queue between
        processes or ``torch.save`` handles one tensor. The result is locked. In-place writes keep it consolidated;
        replacing an entry does not (:meth:`is_consolidated`).

        With ``filename`` the storage is a mapping of that file, and writes into the tensors reach it. The file is
        written next to ``filename`` and renamed, so it is complete or absent; a process that has an older file of that
        name open or mapped keeps it. :func:`from_consolidated` and the ``tensordict`` package read it. There, ragged
        rows are a nested tensor; fewer than 4 096 strings, or less than 4 MB of JSON values, are objects.

        A consolidated collection is returned unchanged, unless another file, device or kind of memory is requested.

        Args:
            filename: file to write; ``None`` for memory.
            num_threads: threads that copy into memory; 0 or 1 is the calling thread.
            device: of the storage; by default that of the collection, or the CPU.
            non_blocking: do not wait for copies between devices.
            inplace: put the views into this collection and return it.
            return_early: with ``num_threads > 1``, return a :class:`TensorDictFuture` at once.
            use_buffer: with ``filename``, copy into memory and write the file at the end. Later writes into the tensors
                do not reach the file.
            share_memory: use shared memory, which other processes receive without a copy.
            pin_memory: use page-locked memory, which is copied to an accelerator faster. Needs an accelerator.

        Returns:
            A locked collection of the same class (or ``self``, or a future of it).

        Raises:
            RuntimeError: ``inplace`` and the collection is locked; ``filename`` with a ``device`` other than the CPU;
                an object that JSON cannot hold, for a file; ``pin_memory`` without an accelerator.
            NotImplementedError: nested tensors of the strided layout; ``return_early`` with ``use_buffer`` or
                ``non_blocking``.
            OSError: not enough space; an existing file is kept.

        Example:
            >>> import pickle, tempfile, torch
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
        """The collection in a file written by :meth:`consolidate`; see :func:`from_consolidated`.

        Called on a tensorclass, it returns an instance of that class.

        Example:
            >>> import tempfile, torch
            >>> folder = tempfile.TemporaryDirectory()
            >>> _ = TensorDict({"a": torch.arange(3)}, [3]).consolidate(f"{folder.name}/data.bin")
            >>> TensorDict.from_consolidated(f"{folder.name}/data.bin").batch_size
            torch.Size([3])
        """
        from tensordict_lite.consolidated import from_consolidated

        return from_consolidated(filename, cls)

    def is_consolidated(self) -> bool:
        """Whether every tensor is still a view of the storage that :meth:`consolidate` made.

        In-place writes into tensors do not change this. Replacing, adding or removing an entry does, as does another
        object in a non-tensor entry.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3)})
            >>> td.is_consolidated(), td.consolidate().is_consolidated()
            (False, True)
        """
        if getattr(self, "_consolidated", None) is None:
            return False
        from tensordict_lite.consolidated.record import record_of

        return record_of(self) is not None


def _save(td: Any, prefix: str | os.PathLike[str] | None, arguments: dict[str, Any], **more: Any) -> Any:
    """Save with the options among the arguments of a method."""
    from tensordict_lite.memmap.plan import SaveOptions
    from tensordict_lite.memmap.save import save_collection

    options = {name: arguments[name] for name in SaveOptions.__dataclass_fields__ if name in arguments}
    return save_collection(td, prefix, SaveOptions(**options, **more))


def _all_mapped(node: Any) -> bool:
    from tensordict_lite.memmap.tensor import MemoryMappedTensor

    return all(isinstance(leaf, MemoryMappedTensor) for leaf in node._leaves())
