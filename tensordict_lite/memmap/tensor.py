""":class:`MemoryMappedTensor`: a CPU tensor in a file or in anonymous shared memory.

Torch functions are disabled for the subclass, so an operation costs as much as on a plain tensor and returns one.
Methods that return views (indexing, ``unbind``, ``split``, ``view``...) keep the type, and with it the file name in
pickles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from tensordict_lite.kernel import DeviceLike
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.disk.files import is_same_file, new_file, write_tensor
from tensordict_lite.memmap.disk.mapping import (
    Region,
    SharedHandle,
    anonymous_storage,
    check_dtype,
    file_of,
    holds_many,
    is_anonymous,
    is_changed_copy,
    is_reachable,
    map_file,
    region_of,
    remember,
    reserve,
)
from tensordict_lite.memmap.disk.placed import is_placed
from tensordict_lite.memmap.disk.staging import sync_file
from tensordict_lite.paths import absolute_path
from tensordict_lite.registry import register
from tensordict_lite.strided import shape_of

_getitem = Tensor.__getitem__
_as_subclass = Tensor.as_subclass
_is_traced = torch.compiler.is_dynamo_compiling
_VIEWS_BY_TYPE = frozenset((int, slice, type(None), type(Ellipsis)))


class MemoryMappedTensor(Tensor):
    """A CPU tensor in a file that other processes can map too, or in anonymous shared memory.

    Data larger than memory is read page by page when it is used, writes reach the file, and sending the tensor to
    another process sends the name of the file, not the data. Create one with :meth:`from_tensor`,
    :meth:`from_filename`, :meth:`from_storage`, :meth:`empty`, :meth:`zeros`, :meth:`ones`, :meth:`full` or their
    ``_like`` forms. Disk blocks are allocated when a file is created, so a full disk raises ``OSError`` there and never
    a bus error later.

    Args:
        source: a tensor (shares its memory, or is copied to ``filename``), a storage, or the name of a file.
        dtype: element type, for a storage or a file name.
        shape: shape, for a storage or a file name.
        index: applied to the result.
        device: ``None`` or ``"cpu"``.
        filename: file to copy a tensor to.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import MemoryMappedTensor
        >>> folder = tempfile.TemporaryDirectory()
        >>> x = MemoryMappedTensor.from_tensor(torch.arange(6.0), filename=f"{folder.name}/x.memmap")
        >>> x[2:4] = 10.0  # in the file
        >>> MemoryMappedTensor.from_filename(x.filename, torch.float32, (2, 3))
        MemoryMappedTensor([[ 0.,  1., 10.],
                            [10.,  4.,  5.]])
        >>> type(x[0]).__name__, type(x + 1).__name__
        ('MemoryMappedTensor', 'Tensor')
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's Parameter

    _buffer: Tensor
    """All elements of a nested tensor in one dimension."""
    _empty_file: str
    """File of an empty tensor, which has no storage to name it."""

    def __new__(
        cls,
        source: Any,
        *,
        dtype: torch.dtype | None = None,
        shape: Any = None,
        index: Any = None,
        device: DeviceLike | None = None,
        filename: str | os.PathLike[str] | None = None,
        handler: SharedHandle | None = None,
    ) -> MemoryMappedTensor:
        if device is not None and torch.device(device).type != "cpu":
            raise ValueError(f"a MemoryMappedTensor is on the CPU, got device={device!r}")
        if isinstance(source, (str, os.PathLike)):
            if dtype is None or shape is None:
                raise TypeError(f"to map the file {os.fspath(source)!r}, give its dtype= and shape=")
            return cls.from_filename(source, dtype, shape, index)
        if isinstance(source, (torch.TypedStorage, UntypedStorage)):
            return cls.from_storage(source, shape=shape, dtype=dtype, index=index, filename=filename, handler=handler)
        if filename is not None:
            if dtype is not None:
                raise TypeError("dtype= is not accepted together with filename=: the tensor has one")
            return cls.from_tensor(source, filename=filename, shape=shape)
        if not isinstance(source, Tensor):
            raise TypeError(
                f"a MemoryMappedTensor is made from a tensor, a storage or a file: got a {type(source).__name__}. For "
                "values that are mapped, MemoryMappedTensor.from_tensor(torch.as_tensor(values), filename=...)"
            )
        out = _as_subclass(source, cls)
        return out if index is None else out[index]

    # -- making ----------------------------------------------------------------------------------------

    @classmethod
    def from_tensor(
        cls,
        input: Tensor,
        *,
        filename: str | os.PathLike[str] | None = None,
        existsok: bool = False,
        copy_existing: bool = False,
        copy_data: bool = True,
        shape: Any = None,
    ) -> MemoryMappedTensor:
        """A memory-mapped copy of a tensor, or the tensor itself if it is already mapped there.

        Args:
            input: any dense or nested tensor that does not require grad, on any device.
            filename: file to write; ``None`` for anonymous shared memory.
            existsok: replace an existing file; otherwise it raises RuntimeError.
            copy_existing: allow copying a tensor that is mapped to another file.
            copy_data: ``False`` allocates zeros of the same shape and dtype and copies nothing.
            shape: a shape that ``input`` broadcasts to (for a nested tensor, a ``[n, dims]`` tensor of shapes).

        Raises:
            RuntimeError: ``input`` requires grad, is mapped elsewhere, or the file exists.
            TypeError: ``input`` is not a tensor, or quantized.
            OSError: not enough space; no incomplete file is left.
        """
        if not isinstance(input, Tensor):
            raise TypeError(f"convert the input to a torch.Tensor first: got a {type(input).__name__}")
        check_dtype(input.dtype)
        if input.requires_grad:
            raise RuntimeError(
                "MemoryMappedTensor.from_tensor is incompatible with tensor.requires_grad: call detach() first"
            )
        path = None if filename is None else absolute_path(filename)
        if isinstance(input, MemoryMappedTensor):
            same = input._same_file(path, copy_existing)
            if same and shape is None:
                return input
        if shape is not None and not input.is_nested:
            input = input.expand(_size(shape))
        if input.is_nested:
            return nested.from_tensor(cls, input, path, existsok, copy_data)
        if path is None:
            out = cls.empty(input.shape, dtype=input.dtype)
            if copy_data:
                out.copy_(input)
            return out
        write_tensor(path, input, existsok=existsok, copy_data=copy_data)
        return cls._map(path, input.dtype, input.shape)

    def _same_file(self, path: str | None, copy_existing: bool) -> bool:
        """Whether this tensor already maps ``path``; RuntimeError if copying is not allowed."""
        storage = self.untyped_storage()
        if holds_many(storage):
            return False
        own: Any = file_of(storage) or self.__dict__.get("_empty_file")
        anonymous = own is None or is_anonymous(own)
        if path is None:
            return anonymous
        if own == path or (not anonymous and is_same_file(own, path)):
            if is_changed_copy(self) or not is_placed(storage, path):
                return False  # the file has other values: it was mapped copy-on-write or replaced
            return is_whole(self)
        if not anonymous and not copy_existing:
            raise RuntimeError(
                f"A filename was provided but the tensor already has a file associated ({own}). To copy it to the new "
                f"location, {path}, pass copy_existing=True."
            )
        return False

    @classmethod
    def from_filename(
        cls,
        filename: str | os.PathLike[str],
        dtype: torch.dtype,
        shape: Any,
        index: Any = None,
        mode: str | None = None,
    ) -> MemoryMappedTensor:
        """Map an existing file of raw numbers.

        Args:
            filename: the file; it must hold at least the bytes that the shape needs.
            dtype: its element type.
            shape: shape of the result; a ``[n, dims]`` tensor of shapes gives a nested tensor.
            index: applied to the result.
            mode: ``"r+"``: writes reach the file; ``"r"``: copy-on-write. Default: ``"r+"`` if the file is writable.

        Raises:
            FileNotFoundError: the file does not exist (it is never created here).
            ValueError: the file is smaller than the shape, a dimension is negative, or the mode is unknown.
            PermissionError: ``mode="r+"`` on a file that cannot be written.
        """
        path = absolute_path(filename)
        writable = _writable(path, mode)
        if isinstance(shape, Tensor) and shape.ndim == 2:
            out: MemoryMappedTensor = nested.map_file(cls, path, dtype, shape, writable)
        else:
            size = _size(shape)
            needed = size.numel() * dtype.itemsize
            found = os.stat(path).st_size if needed else 0
            if found < needed:
                raise ValueError(f"{path} holds {found:,} bytes; shape {tuple(size)} of {dtype} needs {needed:,}")
            out = cls._map(path, dtype, size, writable)
        return out if index is None else out[index]

    @classmethod
    def _map(cls, path: str, dtype: torch.dtype, shape: Sequence[int], writable: bool = True) -> MemoryMappedTensor:
        """Map a file that exists and is large enough."""
        numel = 1
        for n in shape:
            numel *= n
        if not numel:
            out = _as_subclass(torch.empty(shape, dtype=dtype, device="cpu"), cls)
            out._empty_file = path
            return out
        if not writable:
            return cls._over(map_file(path, numel * dtype.itemsize, writable=False), dtype, shape)
        flat = torch.from_file(path, True, numel, dtype=dtype)
        return _typed(flat if len(shape) == 1 else flat.view(shape), cls)

    @classmethod
    def _over(
        cls, storage: UntypedStorage, dtype: torch.dtype, shape: Sequence[int], start: int = 0
    ) -> MemoryMappedTensor:
        out: Any = torch.empty(0, dtype=dtype, device="cpu")  # torch's stubs ask for the strides too
        return _as_subclass(out.set_(storage, start // dtype.itemsize, tuple(shape)), cls)

    @classmethod
    def from_handler(
        cls, handler: SharedHandle, dtype: torch.dtype, shape: Any, index: Any = None
    ) -> MemoryMappedTensor:
        """The memory named by the :attr:`handler` of another tensor, in this or another process.

        Raises:
            DatasetError: the memory or the file no longer exists.
        """
        storage = handler.open()
        out = (
            nested.over_storage(cls, storage, dtype, shape)
            if isinstance(shape, Tensor) and shape.ndim == 2
            else cls._over(storage, dtype, _size(shape), handler.offset)
        )
        return out if index is None else out[index]

    @classmethod
    def from_storage(
        cls,
        storage: UntypedStorage | torch.TypedStorage,
        *,
        shape: Any = None,
        dtype: torch.dtype | None = None,
        device: DeviceLike | None = None,
        index: Any = None,
        filename: str | os.PathLike[str] | None = None,
        handler: SharedHandle | None = None,
    ) -> MemoryMappedTensor:
        """A tensor over an existing storage, without a copy.

        Args:
            storage: bytes in CPU memory, mapped from a file or not.
            shape: shape of the result (default: one dimension, all of it).
            dtype: element type (default: the storage's own, ``torch.int64`` for an untyped one).
            index: applied to the result.
            filename: the expected file of the storage; RuntimeError if it is another.
        """
        _check_device(device)
        if isinstance(storage, torch.TypedStorage):
            dtype = dtype or storage.dtype
            storage = storage._untyped_storage
        dtype = dtype or torch.int64
        own = file_of(storage)
        if own is not None and filename is not None and not is_same_file(own, absolute_path(filename)):
            raise RuntimeError(
                f"the storage is mapped from {own}, not from the filename that was given ({os.fspath(filename)})"
            )
        if isinstance(shape, Tensor) and shape.ndim == 2:
            out = nested.over_storage(cls, storage, dtype, shape)
        else:
            size = torch.Size((storage.nbytes() // dtype.itemsize,)) if shape is None else _size(shape)
            if size.numel() * dtype.itemsize > storage.nbytes():
                raise RuntimeError(
                    f"shape {tuple(size)} of {dtype} needs {size.numel() * dtype.itemsize:,} bytes; the storage has "
                    f"{storage.nbytes():,}"
                )
            out = cls._over(storage, dtype, size)
        return out if index is None else out[index]

    @classmethod
    def empty(
        cls,
        *size: Any,
        shape: Any = None,
        dtype: torch.dtype | None = None,
        device: DeviceLike | None = None,
        filename: str | os.PathLike[str] | None = None,
        existsok: bool = False,
    ) -> MemoryMappedTensor:
        """A new tensor with allocated blocks (and so zero-filled).

        Args:
            *size: ints or one sequence; one ``[n, dims]`` tensor of shapes makes a nested tensor.
            dtype: element type; by default torch's default dtype.
            device: ``None`` or ``"cpu"``.
            filename: the file to create; ``None`` for anonymous shared memory.
            existsok: replace an existing file; otherwise it raises RuntimeError.

        Raises:
            TypeError: no size (``()`` makes a scalar), or a quantized dtype.
            OSError: not enough space, with the bytes needed and available.
        """
        _check_device(device)
        if not size and shape is None:
            raise TypeError("the size is missing: give ints, one sequence (`()` for a scalar), or shape=")
        dtype = dtype or torch.get_default_dtype()
        check_dtype(dtype)
        wanted = shape if shape is not None else size[0] if len(size) == 1 else size
        path = None if filename is None else absolute_path(filename)
        if isinstance(wanted, Tensor) and wanted.ndim == 2:
            return nested.make(cls, wanted, dtype, path, existsok)
        dims = _size(wanted)
        nbytes = dims.numel() * dtype.itemsize
        if path is not None:
            with new_file(path, existsok=existsok) as fd:
                reserve(fd, nbytes, path)
            return cls._map(path, dtype, dims)
        if not nbytes:
            return _as_subclass(torch.empty(dims, dtype=dtype, device="cpu"), cls)
        return cls._over(anonymous_storage(nbytes), dtype, dims)

    @classmethod
    def zeros(cls, *size: Any, **kwargs: Any) -> MemoryMappedTensor:
        """:meth:`empty`, filled with zeros. Same arguments."""
        return cls.empty(*size, **kwargs)  # allocated blocks read as zeros

    @classmethod
    def ones(cls, *size: Any, **kwargs: Any) -> MemoryMappedTensor:
        """:meth:`empty`, filled with ones. Same arguments."""
        return cls.empty(*size, **kwargs)._filled(1)

    @classmethod
    def full(cls, *size: Any, fill_value: Any, **kwargs: Any) -> MemoryMappedTensor:
        """:meth:`empty`, filled with ``fill_value``. Same arguments."""
        return cls.empty(*size, **kwargs)._filled(fill_value)

    @classmethod
    def empty_like(cls, input: Tensor, *, filename: str | os.PathLike[str] | None = None) -> MemoryMappedTensor:
        """A new tensor with the shape and dtype of ``input``."""
        shape = nested.sizes(input) if input.is_nested else input.shape
        return cls.empty(shape, dtype=input.dtype, filename=filename)

    @classmethod
    def zeros_like(cls, input: Tensor, *, filename: str | os.PathLike[str] | None = None) -> MemoryMappedTensor:
        """Zeros with the shape and dtype of ``input``."""
        return cls.empty_like(input, filename=filename)

    @classmethod
    def ones_like(cls, input: Tensor, *, filename: str | os.PathLike[str] | None = None) -> MemoryMappedTensor:
        """Ones with the shape and dtype of ``input``."""
        return cls.empty_like(input, filename=filename)._filled(1)

    @classmethod
    def full_like(
        cls, input: Tensor, fill_value: Any, *, filename: str | os.PathLike[str] | None = None
    ) -> MemoryMappedTensor:
        """``fill_value`` in the shape and dtype of ``input``."""
        return cls.empty_like(input, filename=filename)._filled(fill_value)

    def _filled(self, value: Any) -> MemoryMappedTensor:
        self.fill_(value)
        return self

    # -- its file -------------------------------------------------------------------------------

    @property
    def filename(self) -> str:
        """Absolute path of the file.

        Raises:
            RuntimeError: the tensor is in anonymous shared memory.
        """
        path = file_of(self.untyped_storage()) or self.__dict__.get("_empty_file")
        if path is None or is_anonymous(path):
            raise RuntimeError("this MemoryMappedTensor has no file: it is in anonymous shared memory")
        return path

    @property
    def handler(self) -> SharedHandle | None:
        """Name of the memory of a contiguous tensor, for :meth:`from_handler`; ``None`` if it is not mapped."""
        region = region_of(self)
        return None if region is None else region.named

    @property
    def region(self) -> Region | None:
        """File, offset, shape and strides of this view, ``None`` if the memory is not mapped."""
        return region_of(self)

    def sync(self) -> None:
        """Wait until everything written so far is on the disk (``fsync``); no effect for anonymous memory."""
        path = file_of(self.untyped_storage())
        if path is not None and not is_anonymous(path):
            sync_file(path)

    # -- pickling and copying ------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        region = region_of(self)
        if region is not None and is_reachable(region.handle, self.untyped_storage()):
            remember(region.handle, self.untyped_storage(), region.writable)
            return _open_region, tuple(region)
        if self.is_nested:
            return nested.reduce(self)
        path = self.__dict__.get("_empty_file")
        if path is not None:
            return _open_empty, (path, self.dtype, tuple(self.shape))
        plain = _as_subclass(self, Tensor)  # ordinary memory: pickled like an ordinary tensor
        # A written copy-on-write tensor: by value, without the rest of its storage.
        return _rewrap, (plain if file_of(self.untyped_storage()) is None else plain.clone(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        out = memo.get(id(self))
        if out is None:
            out = memo[id(self)] = self.clone()
        return out

    def __format__(self, spec: str) -> str:
        return format(_as_subclass(self, Tensor), spec)

    def share_memory_(self) -> MemoryMappedTensor:
        """No effect: the memory is already shared."""
        return self

    # -- views keep the type -------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        kind = type(index)
        if kind in _VIEWS_BY_TYPE:
            return _typed(_getitem(self, index))
        if kind is Tensor and index.ndim == 1 and index.dtype is torch.int64 and self.ndim:
            # Sampling rows: copying whole rows is many times faster than torch's general indexing.
            try:
                return torch.index_select(self, 0, index)
            except (IndexError, RuntimeError):  # negative rows, or vmap
                pass
        out = _getitem(self, index)
        if out.untyped_storage() is self.untyped_storage():
            return _as_subclass(out, MemoryMappedTensor)
        return out

    def __iter__(self) -> Any:
        return iter(self.unbind(0))


class MappedNestedTensor(MemoryMappedTensor):
    """A :class:`MemoryMappedTensor` of the strided nested layout, with the shape that torch does not provide."""

    @property
    def handler(self) -> SharedHandle | None:
        """:attr:`MemoryMappedTensor.handler`, which includes the table of shapes."""
        region = region_of(self._buffer) if hasattr(self, "_buffer") else None
        return None if region is None else region.handle

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """``[n, ...]``, with -1 for a dimension in which the elements differ."""
        return shape_of(self)


def _typed(tensor: Tensor, cls: type[MemoryMappedTensor] = MemoryMappedTensor) -> Any:
    """Set the type of a tensor without other references; costs a fifth of ``as_subclass``, which makes a new one."""
    if _is_traced():  # under torch.compile, which supports only as_subclass
        return _as_subclass(tensor, cls)
    tensor.__class__ = cls
    return tensor


def _view_method(name: str) -> Callable[..., Any]:
    """The tensor method of that name, which always returns a view, keeping the type."""
    method = getattr(Tensor, name)

    def call(self: MemoryMappedTensor, *args: Any, **kwargs: Any) -> Any:
        return _typed(method(self, *args, **kwargs))

    return _named(call, name)


def _maybe_view_method(name: str) -> Callable[..., Any]:
    """The same for a method that copies if necessary: a copy is a plain tensor."""
    method = getattr(Tensor, name)

    def call(self: MemoryMappedTensor, *args: Any, **kwargs: Any) -> Any:
        out = method(self, *args, **kwargs)
        if out.untyped_storage() is self.untyped_storage():
            return _as_subclass(out, MemoryMappedTensor)
        return out

    return _named(call, name)


def _views_method(name: str) -> Callable[..., Any]:
    """The same for a method that returns several views."""
    method = getattr(Tensor, name)

    def call(self: MemoryMappedTensor, *args: Any, **kwargs: Any) -> Any:
        return tuple([_typed(part) for part in method(self, *args, **kwargs)])

    return _named(call, name)


def _named(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    call.__name__, call.__qualname__ = name, f"MemoryMappedTensor.{name}"
    call.__doc__ = f"See :meth:`torch.Tensor.{name}`; what is in the same memory is a MemoryMappedTensor."
    return call


_METHODS = {
    _view_method: (
        ("expand", "expand_as", "movedim", "narrow", "permute", "select", "squeeze", "swapaxes", "t", "transpose")
        + ("unflatten", "unsqueeze", "view")
    ),
    _maybe_view_method: ("flatten", "reshape"),
    _views_method: ("chunk", "split", "tensor_split", "unbind"),
}
for _make, _names in _METHODS.items():
    for _name in _names:
        setattr(MemoryMappedTensor, _name, _make(_name))


def _open_region(*fields: Any) -> MemoryMappedTensor:
    return _as_subclass(Region(*fields).open(), MemoryMappedTensor)


def _open_empty(path: str, dtype: torch.dtype, shape: tuple[int, ...]) -> MemoryMappedTensor:
    return MemoryMappedTensor._map(path, dtype, shape)


def _rewrap(tensor: Tensor) -> MemoryMappedTensor:
    return _as_subclass(tensor, MemoryMappedTensor)


def _size(shape: Any) -> torch.Size:
    if isinstance(shape, int):
        return torch.Size((shape,))
    size = torch.Size(shape.tolist() if isinstance(shape, Tensor) else shape)
    if any(n < 0 for n in size):
        raise ValueError(f"a shape has no negative dimensions: got {tuple(size)}")
    return size


def _check_device(device: Any) -> None:
    if device is not None and torch.device(device).type != "cpu":
        raise RuntimeError(f"only CPU tensors are supported: a memory map cannot be on {device!r}")


def _writable(path: str, mode: str | None) -> bool:
    if mode not in (None, "r", "r+"):
        raise ValueError(f'mode is None, "r" (copy-on-write) or "r+" (writes reach the file): got {mode!r}')
    if mode == "r":
        return False
    writable = os.access(path, os.W_OK)
    if not writable and not os.path.exists(path):
        raise FileNotFoundError(2, "no such file to map", path)
    if mode == "r+" and not writable:
        raise PermissionError(13, 'the file cannot be written; use mode="r" to map it copy-on-write', path)
    return writable


def is_whole(tensor: Tensor) -> bool:
    """Whether a mapped tensor is all of its file."""
    if tensor.is_nested or not tensor.numel():
        return True
    if tensor.storage_offset() or not tensor.is_contiguous():
        return False
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


register(MappedNestedTensor=MappedNestedTensor, MemoryMappedTensor=MemoryMappedTensor)
