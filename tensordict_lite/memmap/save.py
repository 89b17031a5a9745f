"""Saving a collection as a folder of memory maps, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.errors import DatasetError
from tensordict_lite.kernel import Kernel
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.disk.files import created, is_same_file, is_there, refuse_link, write_new
from tensordict_lite.memmap.disk.format import META, read_small
from tensordict_lite.memmap.disk.locks import reading
from tensordict_lite.memmap.disk.mapping import anonymous_storage, check_room, holds_many, is_changed_copy, reserve
from tensordict_lite.memmap.disk.placed import is_placed
from tensordict_lite.memmap.disk.staging import Replaced, Staging, Superseded
from tensordict_lite.memmap.objects import share_objects
from tensordict_lite.memmap.plan import (
    FolderPlan,
    Leaf,
    SaveOptions,
    SavePlan,
    file_of,
    mapped_root,
    plan_for,
)
from tensordict_lite.memmap.tensor import MemoryMappedTensor, is_whole
from tensordict_lite.paths import absolute_path
from tensordict_lite.ragged import RaggedColumn

ARCHIVE = ".tdz"
"""How the name of an archive ends."""

_CPU = torch.device("cpu")
_LARGE = 256 << 10  # bytes of a leaf that is worth handing to a thread by itself
_ARENA_LEAVES = 16
_ALIGN = 64  # a multiple of every element size, and a cache line


class TensorDictFuture:
    """A save that is under way, from ``return_early=True``.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.TemporaryDirectory()
        >>> future = TensorDict({"a": torch.ones(3)}).memmap(folder.name, num_threads=2, return_early=True)
        >>> future.result()["a"].sum()
        tensor(3.)
    """

    __slots__ = ("_future",)

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @classmethod
    def _started(cls, run: Callable[[], Any]) -> TensorDictFuture:
        pool = ThreadPoolExecutor(1, "save")
        future = pool.submit(run)
        pool.shutdown(wait=False)
        return cls(future)

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the files and gives the memory-mapped collection; raises what the save raised."""
        return self._future.result(timeout)

    def done(self) -> bool:
        """Whether :meth:`result` would return at once."""
        return self._future.done()


def save_collection(node: Kernel, prefix: str | os.PathLike[str] | None, options: SaveOptions) -> Any:
    """Write a collection and map it: what ``memmap``, ``memmap_``, ``memmap_like`` and ``save`` do.

    Args:
        node: the collection.
        prefix: a folder, or the file of an archive; ``None`` is the folder that it is mapped to already, or shared
            memory.
        options: see there.

    Returns:
        The mapped collection, or a :class:`TensorDictFuture` of it.
    """
    if _wants_archive(prefix, options):
        assert prefix is not None
        return registry.save_archive(node, prefix, options)
    job = _Save(node, prefix, options)
    if options.return_early and options.num_threads > 1:
        return TensorDictFuture._started(job.run)
    return job.run()


def _wants_archive(prefix: str | os.PathLike[str] | None, options: SaveOptions) -> bool:
    """Whether to save as one file: ``archive`` if given, else whether the path ends in ``.tdz``.

    Raises:
        ValueError: an archive without a path, or ``compression`` without an archive.
    """
    archive = options.archive
    wanted = archive if archive is not None else prefix is not None and os.fspath(prefix).endswith(ARCHIVE)
    if wanted and prefix is None:
        raise ValueError("archive=True needs a file to write to: pass prefix=")
    if options.compression is not None and not wanted:
        raise ValueError(
            f"compression={options.compression!r} is of archives: pass archive=True, or a prefix that ends in "
            f"{ARCHIVE!r}"
        )
    return bool(wanted)


def _require_free(root: str) -> None:
    if is_there(f"{root}/{META}", follow=False):
        raise RuntimeError(f"{root} already holds a dataset: pass existsok=True to replace it")


class _Save:
    """One save: plan, decide what is written, write, put in place, map."""

    def __init__(self, node: Kernel, prefix: str | os.PathLike[str] | None, options: SaveOptions) -> None:
        self.node = node
        self.options = options
        self.like = options.like
        self.plan: SavePlan = plan_for(node, options)
        self.columns: dict[int, RaggedColumn] = {}
        self.root: str | None = None
        if prefix is not None:
            self.root = absolute_path(prefix)
        elif not self.like:
            self.root = mapped_root(self.node, self.plan)

    # -- running ---------------------------------------------------------------------------------------

    def run(self) -> Kernel:
        if self.root is None:
            return self._finish(self._anonymous())
        while True:
            with contextlib.suppress(Superseded):  # by a save of a dataset that this one is a part of
                return self._finish(self._in_folder(self.root))

    def _map_ragged(self, root: str | None) -> None:
        self.columns = {id(ragged.rows): ragged.mapped(root) for ragged in self.plan.ragged}

    def _anonymous(self) -> list[Tensor]:
        self._map_ragged(None)
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
        fresh = not is_there(root)
        for folder in () if fresh else self.plan.folders:
            if folder.path:
                refuse_link(f"{root}/{folder.path}")
        keeps = [
            not (fresh and type(leaf.tensor) is Tensor) and self._keeps(leaf, f"{root}/{leaf.file}")
            for leaf in self.plan.leaves
        ]
        if not self.options.existsok and not any(keeps):
            _require_free(root)
        if not self.like and all(keeps) and self._metadata_is_current(root):
            with reading(root):
                if all(self._is_placed(root, leaf) for leaf in self.plan.leaves):
                    return [self._mapped(root, leaf) for leaf in self.plan.leaves]
        return self._write(root, keeps)

    @staticmethod
    def _is_placed(root: str, leaf: Leaf) -> bool:
        """Whether a tensor lies in its file, in whose place a save may have put another one."""
        return is_placed(leaf.tensor.untyped_storage(), f"{root}/{leaf.file}")

    @staticmethod
    def _mapped(root: str, leaf: Leaf) -> Tensor:
        """A leaf that lies in its file, as it is where what is written into it reaches the file."""
        path = f"{root}/{leaf.file}"
        if leaf.tensor.untyped_storage().filename or not os.access(path, os.W_OK):
            return leaf.tensor
        return _map_leaf(path, leaf)

    def _keeps(self, leaf: Leaf, path: str) -> bool:
        """Whether the file that is there has the values of a leaf or, with ``like``, may have any."""
        tensor = leaf.tensor
        file = file_of(tensor)
        if file is not None and not self.like:
            if is_same_file(file, path):
                # A later save may have put another file there; in a copy-on-write mapping, values may have changed.
                if not is_placed(tensor.untyped_storage(), path) or is_changed_copy(tensor):
                    return False
                if is_whole(tensor):
                    return True
            elif not self.options.copy_existing:
                raise self._elsewhere(leaf, file)
        if self.options.existsok and not self.like:
            return False
        if not is_there(path, follow=False):
            return False
        if not self.options.existsok:
            raise RuntimeError(f"the file {path} already exists: pass existsok=True to replace it")
        refuse_link(path)
        return bool(leaf.nbytes) and not tensor.is_nested

    def _elsewhere(self, leaf: Leaf, file: str) -> RuntimeError:
        return RuntimeError(
            f"A filename was provided but the tensor already has a file associated ({file}): the entry {leaf.path} is "
            "memory-mapped already. To copy it to the new location, pass copy_existing=True."
        )

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

    def _write(self, root: str, keeps: list[bool]) -> list[Tensor]:
        """Write files, and put them in place with those that stay; the mapped tensors."""
        todo = [leaf for leaf, keep in zip(self.plan.leaves, keeps) if not keep]
        stay = [leaf for leaf, keep in zip(self.plan.leaves, keeps) if keep]
        check_room(root, sum(leaf.nbytes for leaf in todo) + sum(self._missing(root, leaf) for leaf in stay))
        with Staging(root) as staging:
            for folder in self.plan.folders:
                if folder.path:
                    os.makedirs(f"{staging.root}/{folder.path}", exist_ok=True)
            self._write_leaves(staging.root, todo)
            staging.take_turn()
            if not self.options.existsok and not stay:
                _require_free(root)
            stayed = sum(self._is_kept(staging, leaf) for leaf in stay)
            files = [file for leaf in self.plan.leaves for file in _files_of(leaf)]
            for folder in reversed(self.plan.folders):  # the root's metadata last: with them, it is complete
                for name, content in folder.contents().items():
                    if self._is_in_place(staging.prefix, folder, name):
                        staging.keep(folder.join(name))
                    else:
                        write_new(f"{staging.root}/{folder.join(name)}", content)
                files += [folder.join(name) for name in folder.blobs]
            replaced: Replaced = "none" if stayed == len(keeps) else "some" if stayed else "all"
            staging.commit(files, [folder.path for folder in self.plan.folders], replaced=replaced)
            tensors = []
            for leaf, keep in zip(self.plan.leaves, keeps):
                path = f"{root}/{leaf.file}"
                tensors.append(leaf.tensor if keep and not os.access(path, os.W_OK) else _map_leaf(path, leaf))
            self._map_ragged(root)
        return tensors

    def _missing(self, root: str, leaf: Leaf) -> int:
        """Bytes that a file which stays is copied for, because it is too short."""
        if not self.like:
            return 0
        try:
            return leaf.nbytes if os.path.getsize(f"{root}/{leaf.file}") < leaf.nbytes else 0
        except FileNotFoundError:  # another save has replaced the dataset meanwhile
            return leaf.nbytes

    def _is_kept(self, staging: Staging, leaf: Leaf) -> bool:
        """Have a file stay, and whether it does: where another save has replaced it meanwhile, it is written again."""
        path = f"{staging.prefix}/{leaf.file}"
        if not (is_there(path, follow=False) if self.like else self._is_placed(staging.prefix, leaf)):
            (_reserve_leaf if self.like else _write_leaf)(staging.root, leaf)
            return False
        size = os.path.getsize(path) if leaf.nbytes and not leaf.tensor.is_nested else leaf.nbytes
        if size < leaf.nbytes:
            _copy_and_grow(path, f"{staging.root}/{leaf.file}", leaf.nbytes)
            return True
        if size > leaf.nbytes:  # there is room for more rows
            rows = leaf.tensor.shape[0] if leaf.tensor.ndim else 1
            leaf.entry["capacity"] = -(-size * rows // leaf.nbytes)
        for file in _files_of(leaf):
            staging.keep(file)
        return True

    def _is_in_place(self, root: str, folder: FolderPlan, name: str) -> bool:
        """Whether a tensor of an entry that is no leaf is mapped from the very file that it is to be written to."""
        content = folder.blobs.get(name)
        if not isinstance(content, Tensor):
            return False
        file = file_of(content)
        if file is None or not is_same_file(file, f"{root}/{folder.join(name)}"):
            return False
        return is_whole(content) and is_placed(content.untyped_storage(), file) and not is_changed_copy(content)

    def _write_leaves(self, root: str, todo: list[Leaf]) -> None:
        write: Callable[[str, Leaf], None] = _reserve_leaf if self.like else _write_leaf
        if self.options.num_threads <= 1 or len(todo) <= 1:
            for leaf in todo:
                write(root, leaf)
            return

        def work(leaves: list[Leaf]) -> None:
            for leaf in leaves:
                write(root, leaf)

        with ThreadPoolExecutor(self.options.num_threads, "memmap") as pool:
            jobs = [pool.submit(work, leaves) for leaves in _shares(todo, self.options.num_threads)]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise

    # -- the result --------------------------------------------------------------------------------------

    def _finish(self, mapped: list[Tensor]) -> Kernel:
        if self.options.inplace:
            out = self.node
            if not _is_same(out._leaves(), mapped):
                out._replace_leaves(mapped)
        else:
            out = self.node._with_leaves(iter(mapped))
        mark_mapped(out, self.plan, self.root, self.node, self.columns)
        if self.options.share_non_tensor:
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
        place: Any = torch.empty(0, dtype=tensor.dtype, device="cpu")
        yield place.set_(storage, start // tensor.element_size(), tuple(tensor.shape)).as_subclass(MemoryMappedTensor)


def mark_mapped(
    out: Kernel, plan: SavePlan, root: str | None, original: Kernel, columns: dict[int, RaggedColumn]
) -> None:
    """Locks a collection whose leaves are mapped, and tells every level where it is.

    ``columns``: the mapped ones of ragged entries, by the ``id`` of what they were in the original.
    """
    paths: dict[int, list[str]] = {}
    for folder in plan.folders:
        known = paths.setdefault(id(folder.node), [])
        if not (known and folder.path == f"{known[-1]}/_tensordict".lstrip("/")):  # a tensorclass is at the outer one
            known.append(folder.path)
    _mark(out, original, paths, root, columns)
    if out._lock is None:
        out._propagate_lock(None)


def _mark(
    node: Any, original: Any, paths: dict[int, list[str]], root: str | None, columns: dict[int, RaggedColumn]
) -> None:
    own = paths.get(id(original))
    node._changed_under_lock()
    node._device = _CPU
    if own:  # else it is an object of a stack of objects, which are in one file
        path = own.pop(0)  # an object may be in several places
        node._memmap_path = "" if root is None else (f"{root}/{path}" if path else root)
    column = columns.get(id(original))
    if column is not None:
        node._take_column(column)
        return
    if getattr(node, "_objects", None) is not None:  # a column of objects
        node._objects.device = _CPU
        return
    for child, original_child in zip(node._nested(), original._nested()):
        _mark(child, original_child, paths, root, columns)


def _is_same(leaves: list[Tensor], mapped: list[Tensor]) -> bool:
    return len(leaves) == len(mapped) and all(a is b for a, b in zip(leaves, mapped))


def _files_of(leaf: Leaf) -> list[str]:
    if leaf.tensor.is_nested:
        return [leaf.file, nested.shape_file(leaf.file)]
    return [leaf.file] if leaf.nbytes else []  # nothing in it: no file


def _write_leaf(root: str, leaf: Leaf) -> None:
    tensor = leaf.tensor
    if tensor.is_nested:
        write_new(f"{root}/{leaf.file}", nested.buffer_of(tensor))
        write_new(f"{root}/{nested.shape_file(leaf.file)}", nested.sizes(tensor))
    elif tensor.numel():
        write_new(f"{root}/{leaf.file}", tensor)


def _reserve_leaf(root: str, leaf: Leaf) -> None:
    path = f"{root}/{leaf.file}"
    if leaf.tensor.is_nested:
        write_new(f"{root}/{nested.shape_file(leaf.file)}", nested.sizes(leaf.tensor))
    elif not leaf.nbytes:
        return
    with created(path) as fd:
        reserve(fd, leaf.nbytes, path)


def _copy_and_grow(path: str, place: str, nbytes: int) -> None:
    shutil.copyfile(path, place, follow_symlinks=False)
    fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    try:
        reserve(fd, nbytes, path, start=os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _map_leaf(path: str, leaf: Leaf) -> Tensor:
    tensor = leaf.tensor
    if tensor.is_nested:
        shapes = nested.sizes(tensor)
        out = nested.map_file(MemoryMappedTensor, path, tensor.dtype, shapes, True)
        return nested.mapped_view(out._buffer, shapes, leaf.entry.get("layout"))
    return MemoryMappedTensor._map(path, tensor.dtype, tensor.shape)
