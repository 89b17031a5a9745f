"""Saving a collection as a folder of memory maps, whole or not at all."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.disk.files import all_bytes, refuse_link, write_all, write_tensor_to
from tensordict_lite.memmap.disk.format import META, RUNS, read_small
from tensordict_lite.memmap.disk.inplace import may_overwrite, overwritten
from tensordict_lite.memmap.disk.mapping import anonymous_storage, check_room, holds_many, is_changed_copy, reserve
from tensordict_lite.memmap.disk.placed import is_placed
from tensordict_lite.memmap.disk.staging import Replaced, Staging, Superseded, swapped_file
from tensordict_lite.memmap.disk.turns import reading
from tensordict_lite.memmap.objects import share_objects
from tensordict_lite.memmap.plan import Leaf, Plan, file_of, is_whole, mapped_root, plan_for
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.paths import absolute_path

__all__ = ["TensorDictFuture", "save_collection"]

_CPU = torch.device("cpu")
_LARGE = 256 << 10  # bytes of a leaf that is worth handing to a thread by itself
_ARENA_LEAVES = 16
_ALIGN = 64  # a multiple of every element size, and a cache line
_CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class TensorDictFuture:
    """A save that is under way, from ``return_early=True``.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict
        >>> folder = tempfile.TemporaryDirectory()
        >>> future = TensorDict({"a": torch.ones(3)}).memmap(folder.name, num_threads=2, return_early=True)
        >>> future.result()["a"].sum()
        tensor(3.)
    """

    __slots__ = ("_future",)

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the files and gives the memory-mapped collection; raises what the save raised."""
        return self._future.result(timeout)

    def done(self) -> bool:
        """Whether :meth:`result` would return at once."""
        return self._future.done()


def save_collection(
    node: TensorCollection,
    prefix: str | os.PathLike[str] | None,
    *,
    inplace: bool = False,
    like: bool = False,
    copy_existing: bool = False,
    num_threads: int = 0,
    return_early: bool = False,
    share_non_tensor: bool = False,
    existsok: bool = True,
    robust_key: bool | None = True,
    atomic: bool = False,
    allow_pickle: bool = False,
    reference_format: bool = False,
) -> Any:
    """Writes a collection and maps it: what ``memmap``, ``memmap_`` and ``memmap_like`` do.

    Args:
        node: the collection.
        prefix: destination folder; ``None`` is the folder that it is mapped to already, or shared memory.
        inplace: put the mapped tensors into ``node`` itself.
        like: make room, copy nothing, keep files that are there.

    Returns:
        The mapped collection, locked; or a :class:`TensorDictFuture` of it.
    """
    job = _Save(
        node,
        prefix,
        inplace=inplace,
        like=like,
        copy_existing=copy_existing,
        num_threads=num_threads,
        share_non_tensor=share_non_tensor,
        existsok=existsok,
        robust_key=robust_key is not False,
        atomic=atomic,
        allow_pickle=allow_pickle,
        reference_format=reference_format,
    )
    if return_early and atomic:
        raise NotImplementedError("return_early=True and atomic=True cannot be combined: wait for the save")
    if return_early and num_threads > 1:
        pool = ThreadPoolExecutor(1, "memmap")
        future = pool.submit(job.run)
        pool.shutdown(wait=False)
        return TensorDictFuture(future)
    return job.run()


class _Save:
    """One save: plan, decide what is written, write, put in place, map."""

    def __init__(
        self,
        node: TensorCollection,
        prefix: str | os.PathLike[str] | None,
        *,
        inplace: bool,
        like: bool,
        copy_existing: bool,
        num_threads: int,
        share_non_tensor: bool,
        existsok: bool,
        robust_key: bool,
        atomic: bool,
        allow_pickle: bool,
        reference_format: bool,
    ) -> None:
        self.node = node
        self.inplace = inplace
        self.like = like
        self.copy_existing = copy_existing
        self.num_threads = num_threads
        self.share_non_tensor = share_non_tensor
        self.existsok = existsok
        self.atomic = atomic
        self.grown: list[tuple[str, int, int]] = []  # files that are too short: path, size, wanted
        self.plan: Plan = plan_for(
            node, robust_key=robust_key, allow_pickle=allow_pickle, reference_format=reference_format
        )
        root = absolute_path(prefix) if prefix is not None else self._own_root()
        if atomic and root is None:
            raise ValueError("atomic=True needs a folder to write to: pass prefix=")
        self.root = root

    def _own_root(self) -> str | None:
        """The folder that the collection is mapped from already."""
        return None if self.like else mapped_root(self.node, self.plan)

    # -- running ---------------------------------------------------------------------------------------

    def run(self) -> TensorCollection:
        if self.root is None:
            return self._finish(self._anonymous())
        while True:
            with contextlib.suppress(Superseded):  # by another save, which came to its end
                return self._finish(self._in_folder(self.root))

    def _anonymous(self) -> list[Tensor]:
        tensors = [t.detach() if t.requires_grad else t for t in (leaf.tensor for leaf in self.plan.leaves)]
        is_packed = [self._is_packed(tensor) for tensor in tensors]
        if sum(is_packed) < _ARENA_LEAVES:
            is_packed = [False] * len(tensors)
        places = iter(_arena([tensor for tensor, packed in zip(tensors, is_packed) if packed]))
        out: list[Tensor] = []
        for tensor, packed in zip(tensors, is_packed):
            if packed:
                place = next(places)
                if not self.like:
                    place.copy_(tensor)
                out.append(place)
            elif self.like:
                out.append(MemoryMappedTensor.empty_like(tensor))
            else:
                out.append(MemoryMappedTensor.from_tensor(tensor))
        return out

    def _is_packed(self, tensor: Tensor) -> bool:
        """Whether a tensor gets new anonymous memory that it may share with others."""
        if tensor.is_nested or not tensor.numel():
            return False
        if self.like or not isinstance(tensor, MemoryMappedTensor):
            return True
        return file_of(tensor) is not None or holds_many(tensor.untyped_storage())

    def _in_folder(self, root: str) -> list[Tensor]:
        self.grown.clear()
        fresh = not os.path.exists(root)
        for folder in () if fresh else self.plan.folders:
            if folder.path:
                refuse_link(f"{root}/{folder.path}")
        kept = [
            "" if fresh and type(leaf.tensor) is Tensor else self._keeps(leaf, f"{root}/{leaf.file}")
            for leaf in self.plan.leaves
        ]
        todo = [leaf for leaf, keep in zip(self.plan.leaves, kept) if not keep]

        def mapped() -> list[Tensor]:
            return [
                leaf.tensor if keep == "tensor" else _map_leaf(f"{root}/{leaf.file}", leaf)
                for leaf, keep in zip(self.plan.leaves, kept)
            ]

        # With `like`, whatever is in a file that is used.
        stay = [leaf for leaf, keep in zip(self.plan.leaves, kept) if keep == "tensor" or (keep and not self.like)]

        def is_current() -> bool:
            return all(is_placed(leaf.tensor.untyped_storage(), f"{root}/{leaf.file}") for leaf in stay)

        if not todo and not self.grown and self._metadata_is_current(root):
            if "file" not in kept:
                return mapped()
            with reading(root):
                if is_current():
                    return mapped()
            raise Superseded(root)
        if len(todo) == 1 and not fresh and self._may_swap(root, todo[0]):
            tensors = self._swap(root, todo[0], mapped, is_current)
            if tensors is not None:
                return tensors
        if not fresh and self._may_overwrite(root, todo):
            tensors = self._overwrite(root, todo, mapped, is_current)
            if tensors is not None:
                return tensors
        return self._write(root, todo, mapped, is_current)

    def _may_swap(self, root: str, leaf: Leaf) -> bool:
        """Whether to try :meth:`_swap`; a small file costs less than a look at the metadata, which it takes anyway."""
        if self.like or self.atomic or _files_of(leaf) != [leaf.file] or os.path.lexists(f"{root}/{RUNS}"):
            return False
        return os.path.exists(f"{root}/{META}") and (leaf.nbytes < _LARGE or self._metadata_is_current(root))

    def _keeps(self, leaf: Leaf, path: str) -> str:
        """``"tensor"``: it is in its file already; ``"file"``: the file there is used; ``""``: to be written."""
        tensor = leaf.tensor
        file = file_of(tensor)
        if file is not None and not self.like:
            if file == path or _same(file, path):
                if not is_placed(tensor.untyped_storage(), path):  # a later save has put another file there
                    return ""
                if is_changed_copy(tensor):  # copy-on-write: the file has the old values
                    return ""
                if is_whole(tensor) and not self.atomic:
                    if leaf.nbytes and not tensor.is_nested:
                        self._keep_room(leaf, os.path.getsize(path))
                    return "tensor" if tensor.untyped_storage().filename or not os.access(path, os.W_OK) else "file"
                if self.atomic and not self.copy_existing:
                    raise self._elsewhere(leaf, file)
            elif not self.copy_existing:
                raise self._elsewhere(leaf, file)
        if self.existsok and not self.like:
            return ""
        if not os.path.lexists(path):
            return ""
        if not self.existsok:
            raise RuntimeError(f"the file {path} already exists: pass existsok=True to replace it")
        return self._reuse(leaf, path)

    def _elsewhere(self, leaf: Leaf, file: str) -> RuntimeError:
        return RuntimeError(
            f"A filename was provided but the tensor already has a file associated ({file}): the entry {leaf.path} is "
            "memory-mapped already. To copy it to the new location, pass copy_existing=True."
        )

    def _reuse(self, leaf: Leaf, path: str) -> str:
        """``memmap_like`` over an existing file: its content stays, room is added where it is too short."""
        if leaf.tensor.is_nested or not leaf.nbytes:
            return ""
        refuse_link(path)
        size = os.path.getsize(path)
        if size < leaf.nbytes:
            self.grown.append((path, size, leaf.nbytes))
        self._keep_room(leaf, size)
        return "file"

    @staticmethod
    def _keep_room(leaf: Leaf, size: int) -> None:
        """Has the metadata say that a file that stays, of ``size`` bytes, has room for more rows."""
        if size > leaf.nbytes:
            rows = leaf.tensor.shape[0] if leaf.tensor.ndim else 1
            leaf.entry["capacity"] = -(-size * rows // leaf.nbytes)

    def _grow_files(self) -> None:
        """Room in files that stay; and what is left of entries that hold nothing any more goes."""
        for leaf in self.plan.leaves:
            if not leaf.nbytes and not leaf.tensor.is_nested:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.root}/{leaf.file}")
        for path, size, wanted in self.grown:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                reserve(fd, wanted, path, start=size)
            finally:
                os.close(fd)

    def _metadata_is_current(self, root: str) -> bool:
        for folder in self.plan.folders:
            if folder.blobs:
                return False
            try:
                if read_small(f"{root}/{folder.join(META)}", root) != folder.json():
                    return False
            except DatasetError:
                return False
        return True

    def _swap(
        self, root: str, leaf: Leaf, mapped: Callable[[], list[Tensor]], is_current: Callable[[], bool]
    ) -> list[Tensor] | None:
        """Replaces the one file that changes, under the metadata that is there; None where that is another."""

        def may_change() -> bool:
            return self._metadata_is_current(root) and is_current()

        if leaf.nbytes <= mmap.PAGESIZE and may_overwrite([leaf.nbytes]):
            with overwritten(root, {leaf.file: all_bytes(leaf.tensor)}, {}, may_change) as is_done:
                if is_done:
                    return mapped()
        check_room(root, leaf.nbytes)

        def write(fd: int, path: str) -> None:
            write_tensor_to(fd, leaf.tensor, path)

        with swapped_file(root, leaf.file, write, may_change) as is_swapped:
            return mapped() if is_swapped else None

    def _may_overwrite(self, root: str, todo: list[Leaf]) -> bool:
        """Whether to try :meth:`_overwrite`."""
        if self.like or self.atomic or any(folder.blobs for folder in self.plan.folders):
            return False
        if not os.path.isfile(f"{root}/{META}") or os.path.lexists(f"{root}/{RUNS}"):
            return False
        return all(_files_of(leaf) == [leaf.file] for leaf in todo) and may_overwrite([leaf.nbytes for leaf in todo])

    def _overwrite(
        self, root: str, todo: list[Leaf], mapped: Callable[[], list[Tensor]], is_current: Callable[[], bool]
    ) -> list[Tensor] | None:
        """Writes small files in place; None where they may not be, see :mod:`~tensordict_lite.memmap.disk.inplace`."""
        contents = {leaf.file: all_bytes(leaf.tensor) for leaf in todo}
        metadata = {folder.path: folder.json() for folder in self.plan.folders}
        with overwritten(root, contents, metadata, is_current) as is_done:
            return mapped() if is_done else None

    def _write(
        self, root: str, todo: list[Leaf], mapped: Callable[[], list[Tensor]], is_current: Callable[[], bool]
    ) -> list[Tensor]:
        """Writes files and puts them in place; what ``mapped`` gives while they are certainly there."""
        check_room(root, sum(leaf.nbytes for leaf in todo) + sum(wanted - size for _, size, wanted in self.grown))
        staging = Staging(root, atomic=self.atomic)
        try:
            for folder in self.plan.folders:
                if folder.path:
                    os.makedirs(f"{staging.root}/{folder.path}", exist_ok=True)
            self._write_leaves(staging.root, todo)
            files = [file for leaf in todo for file in _files_of(leaf)]
            for folder in self.plan.folders:
                for name, content in {**folder.blobs, META: folder.json()}.items():
                    _write_bytes(f"{staging.root}/{folder.join(name)}", content)
                files += [folder.join(name) for name in folder.blobs]
            folders = [folder.path for folder in self.plan.folders]
            replaced: Replaced = "none" if not todo else "all" if len(todo) == len(self.plan.leaves) else "some"
            staging.commit(files, folders, meanwhile=self._grow_files, is_current=is_current, replaced=replaced)
            tensors = mapped()
        except BaseException as problem:
            is_gone = isinstance(problem, FileNotFoundError) and staging.inside and staging.is_gone()
            staging.abort()
            if is_gone:
                raise Superseded(root) from problem
            raise
        staging.release()
        return tensors

    def _write_leaves(self, root: str, todo: list[Leaf]) -> None:
        write: Callable[[str, Leaf], None] = _reserve_leaf if self.like else _write_leaf
        if self.num_threads <= 1 or len(todo) <= 1:
            for leaf in todo:
                write(root, leaf)
            return

        def work(leaves: list[Leaf]) -> None:
            for leaf in leaves:
                write(root, leaf)

        with ThreadPoolExecutor(self.num_threads, "memmap") as pool:
            jobs = [pool.submit(work, leaves) for leaves in _shares(todo, self.num_threads)]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise

    # -- the result --------------------------------------------------------------------------------------

    def _finish(self, mapped: list[Tensor]) -> TensorCollection:
        if self.inplace:
            out = self.node
            locked = out._lock is not None
            if not locked or not _is_same(out._leaves(), mapped):
                out._replace_leaves(mapped)
        else:
            out = self.node._with_leaves(iter(mapped))
        mark_mapped(out, self.plan, self.root, self.node)
        if self.share_non_tensor:
            share_objects(out)
        return out


def _shares(leaves: list[Leaf], num_threads: int) -> Iterator[list[Leaf]]:
    """Leaves for one thread at a time: large ones alone and first, so that none is left for the end.

    Small ones go in one share a thread: handing over a few kilobytes costs more than writing them.
    """
    large = [leaf for leaf in leaves if leaf.nbytes >= _LARGE]
    small = [leaf for leaf in leaves if leaf.nbytes < _LARGE]
    large.sort(key=lambda leaf: -leaf.nbytes)
    yield from ([leaf] for leaf in large)
    yield from (small[n::num_threads] for n in range(min(num_threads, len(small))))


def _arena(tensors: list[Tensor]) -> Iterator[Tensor]:
    """Room for many tensors in one piece of anonymous memory: each piece takes a file descriptor."""
    if not tensors:
        return
    starts, total = [], 0
    for tensor in tensors:
        starts.append(total)
        total += -(-tensor.nbytes // _ALIGN) * _ALIGN
    storage = anonymous_storage(total)
    for tensor, start in zip(tensors, starts):
        place = torch.empty(0, dtype=tensor.dtype, device="cpu")
        yield place.set_(storage, start // tensor.element_size(), tuple(tensor.shape)).as_subclass(MemoryMappedTensor)


def mark_mapped(out: TensorCollection, plan: Plan, root: str | None, original: TensorCollection) -> None:
    """Locks a collection whose leaves are mapped, and tells every level where it is."""
    paths: dict[int, list[str]] = {}
    for folder in plan.folders:
        known = paths.setdefault(id(folder.node), [])
        if not (known and folder.path == f"{known[-1]}/_tensordict".lstrip("/")):  # a tensorclass is at the outer one
            known.append(folder.path)
    _mark(out, original, paths, root)
    if out._lock is None:
        out._propagate_lock(None)


def _mark(node: Any, original: Any, paths: dict[int, list[str]], root: str | None) -> None:
    own = paths.get(id(original))
    node._changed_under_lock()
    node._device = _CPU
    if own:  # else it is an object of a stack of objects, which are in one file
        path = own.pop(0)  # an object may be in several places
        node._memmap_path = "" if root is None else (f"{root}/{path}" if path else root)
    if getattr(node, "_objects", None) is not None:  # a column of objects
        node._objects.device = _CPU
        return
    for child, original_child in zip(node._nested(), original._nested()):
        _mark(child, original_child, paths, root)


def _is_same(leaves: list[Tensor], mapped: list[Tensor]) -> bool:
    return len(leaves) == len(mapped) and all(a is b for a, b in zip(leaves, mapped))


def _same(a: str, b: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(a, b)
    return False


def _files_of(leaf: Leaf) -> list[str]:
    if leaf.tensor.is_nested:
        return [leaf.file, nested.shape_file(leaf.file)]
    return [leaf.file] if leaf.nbytes else []  # nothing in it: no file


def _write_leaf(root: str, leaf: Leaf) -> None:
    tensor = leaf.tensor
    if tensor.is_nested:
        _write_tensor(os.path.join(root, leaf.file), nested.buffer_of(tensor))
        _write_tensor(os.path.join(root, nested.shape_file(leaf.file)), nested.sizes(tensor))
    elif tensor.numel():
        _write_tensor(f"{root}/{leaf.file}", tensor)


def _write_tensor(path: str, tensor: Tensor) -> None:
    fd = os.open(path, _CREATE, 0o666)
    try:
        write_tensor_to(fd, tensor, path)
    finally:
        os.close(fd)


def _reserve_leaf(root: str, leaf: Leaf) -> None:
    if leaf.tensor.is_nested:
        shapes = nested.sizes(leaf.tensor)
        _reserve(os.path.join(root, leaf.file), int(shapes.prod(-1).sum()) * leaf.tensor.element_size())
        _write_tensor(os.path.join(root, nested.shape_file(leaf.file)), shapes)
    elif leaf.nbytes:
        _reserve(os.path.join(root, leaf.file), leaf.nbytes)


def _reserve(path: str, nbytes: int) -> None:
    fd = os.open(path, _CREATE, 0o666)
    try:
        reserve(fd, nbytes, path)
    finally:
        os.close(fd)


def _write_bytes(path: str, content: bytes) -> None:
    fd = os.open(path, _CREATE, 0o666)
    try:
        write_all(fd, content, 0, path)
    finally:
        os.close(fd)


def _map_leaf(path: str, leaf: Leaf) -> Tensor:
    tensor = leaf.tensor
    if tensor.is_nested:
        shapes = nested.sizes(tensor)
        out = nested.map_file(MemoryMappedTensor, path, tensor.dtype, shapes, True)
        return nested.mapped_view(out._buffer, shapes, leaf.entry.get("layout"))
    return MemoryMappedTensor._map(path, tensor.dtype, tensor.shape)
