"""Collections from other values and as other values: dicts, lists, numpy, pytrees, HDF5 and Zarr files."""

from __future__ import annotations

import collections
import copy
import dataclasses
import keyword
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.arrays import tensor_of
from tensordict_lite.building.builders import (
    build,
    from_any,
    from_mapping,
    from_namedtuple,
    from_struct_array,
    from_tuple,
    tensors_of_dlpack,
)
from tensordict_lite.hooks import pytree
from tensordict_lite.hooks.pytree import resized
from tensordict_lite.kernel import Kernel
from tensordict_lite.ops.arrow_types import set_types, types_of
from tensordict_lite.settings import MISSING

if TYPE_CHECKING:
    import os

    from tensordict_lite.persistent import PersistentTensorDict


class ConvertOps(Kernel):
    """Class methods ``from_*`` that build a collection, the ``new_*`` methods, and the conversions ``to_*``."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        pytree.register(cls)

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
    ) -> dict[str, Any]:
        """The entries as a nested dict; tensors are shared, non-tensor data gives its object.

        Args:
            retain_none: keep entries that are ``None``, such as empty fields of tensorclasses.
            convert_tensors: ``True`` for nested lists of numbers, ``"numpy"`` for arrays.
            tolist_first: nested collections with batch dimensions become lists of dicts, see :meth:`tolist`.

        Example:
            >>> TensorDict({"a": torch.arange(2), "b": {"c": "text"}}, [2]).to_dict(convert_tensors=True)
            {'a': [0, 1], 'b': {'c': 'text'}}
        """
        out = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                out[key] = _plain_tensor(value, convert_tensors)
            elif value._is_unbatched:
                out[key] = _plain_tensor(value._as_value(), convert_tensors)
            elif tolist_first:
                out[key] = value.tolist(convert_tensors=convert_tensors, tolist_first=True)
            elif value._is_non_tensor:
                out[key] = value._as_value()
                if not retain_none and out[key] is None:
                    del out[key]
            else:
                out[key] = value.to_dict(retain_none=retain_none, convert_tensors=convert_tensors)
        return out

    def tolist(
        self,
        *,
        convert_nodes: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
    ) -> Any:
        """The elements of the batch as nested lists of dicts, one level per batch dimension.

        Args:
            convert_nodes: convert elements to dicts; ``False`` keeps them as collections.
            convert_tensors: as for :meth:`to_dict`.
            tolist_first: as for :meth:`to_dict`.

        Raises:
            TypeError: ``convert_tensors`` with ``convert_nodes=False``.

        Example:
            >>> TensorDict({"a": torch.arange(2)}, [2]).tolist(convert_tensors=True)
            [{'a': 0}, {'a': 1}]
        """
        if convert_tensors and not convert_nodes:
            raise TypeError("convert_tensors needs convert_nodes=True: a collection holds tensors")
        if not self._batch_size:
            if not convert_nodes:
                return self
            found = self.to_dict(retain_none=True, convert_tensors=convert_tensors, tolist_first=tolist_first)
            unset = self._none_fields() if hasattr(self, "_none_fields") else ()  # a tensorclass: its entries stay
            return {key: value for key, value in found.items() if key not in unset} if unset else found
        return [
            row.tolist(convert_nodes=convert_nodes, convert_tensors=convert_tensors, tolist_first=tolist_first)
            for row in self.unbind(0)
        ]

    def numpy(self) -> Any:
        """The entries as a nested dict of numpy arrays that share the memory of the tensors.

        Raises:
            RuntimeError: a tensor requires grad.
            TypeError: a tensor is not on the CPU.
        """
        out: dict[str, Any] = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                out[key] = tuple(part.numpy() for part in value.unbind(0)) if value.is_nested else value.numpy()
            elif value._is_unbatched:
                out[key] = value._plain().numpy()
            elif value._is_non_tensor:
                held = value._as_value()
                if held is not None:
                    out[key] = held
            else:
                out[key] = value.numpy()
        return out

    def to_namedtuple(self, dest_cls: Any = None) -> Any:
        """The entries as a named tuple, nested collections too. At the top a tensorclass gives a plain tuple.

        Args:
            dest_cls: named tuple class, with the keys as fields; also used for nested collections whose keys match.
                Others get a class named ``GenericDict``.

        Raises:
            TypeError: the fields of ``dest_cls`` are not the keys of this collection.
        """
        named = self._named(dest_cls, True)
        return tuple(named) if hasattr(type(self), "__dataclass_fields__") else named

    def _named(self, dest_cls: Any, required: bool = False) -> Any:
        data = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                data[key] = value
            elif value._is_non_tensor:
                data[key] = value._as_value()
            else:
                data[key] = value._named(dest_cls)
        if dest_cls is not None:
            try:
                return dest_cls(**data)
            except TypeError:  # other fields: a nested level gets a generic class
                if required:
                    raise
        return _named_tuple_class(tuple(data))(*data.values())

    def to_pytree(self) -> Any:
        """The lists, tuples and dicts that :meth:`from_pytree` converted; ``self`` if it was not made that way."""
        return pytree.to_pytree(self)

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """A plain, unlocked TensorDict with copies of all tensors, nested collections converted too.

        Args:
            retain_none: keep the ``None`` fields of tensorclasses.
        """
        out: dict[str, Any] = {}
        for key, value in self._entries():
            if isinstance(value, Tensor) or value._is_non_tensor:
                out[key] = value.clone()
            else:
                out[key] = value.to_tensordict(retain_none=retain_none)
        names = None if self._names is None else list(self._names)
        new = self._plain_class()._trusted(out, self._batch_size, self._device, names)
        new._types = self._types
        return new

    def to_h5(self, filename: str | os.PathLike[str], **options: Any) -> PersistentTensorDict:
        """Write the entries into a new HDF5 file and return the collection stored there, open for writing.

        Args:
            filename: the file; an existing one is replaced.
            **options: passed to :meth:`h5py.Group.create_dataset`, for example ``compression="gzip"``.

        Raises:
            ImportError: h5py is not installed.
            TypeError: HDF5 cannot store an entry.
        """
        from tensordict_lite.persistent import PersistentTensorDict

        return PersistentTensorDict.from_dict(self, filename, **options)

    @classmethod
    def from_h5(cls, filename: str | os.PathLike[str], **options: Any) -> PersistentTensorDict:
        """Open an HDF5 file; see :meth:`PersistentTensorDict.from_h5`."""
        from tensordict_lite.persistent import PersistentTensorDict

        return PersistentTensorDict.from_h5(filename, **options)

    def to_zarr(self, filename: Any, *, allow_pickle: bool | None = None, **options: Any) -> PersistentTensorDict:
        """Write the entries into a new Zarr store and return the collection stored there, open for writing.

        Args:
            filename: the folder, or a ``zarr.abc.store.Store``. An existing store is replaced; a folder is replaced
                after the new one is complete.
            allow_pickle: pickle the objects that JSON cannot hold.
            **options: passed to :meth:`zarr.Group.create_array`; ``chunks`` covers the leading dimensions. By default
                an array is one uncompressed chunk.

        Raises:
            FileExistsError: the folder contains files that are not part of a Zarr 3 store.
            ImportError: zarr is not installed.
            TypeError: Zarr cannot store an entry, or an object needs ``allow_pickle=True``.
            ValueError: a key cannot be a file name.

        Example:
            >>> import tempfile, torch
            >>> folder = tempfile.TemporaryDirectory()
            >>> data = TensorDict({"x": torch.arange(4), "word": ["a", "b", "c", "d"]}, [4])
            >>> _ = data.to_zarr(f"{folder.name}/store.zarr", chunks=(2,))
            >>> TensorDict.from_zarr(f"{folder.name}/store.zarr")[1:3].get("word").tolist()
            ['b', 'c']
        """
        from tensordict_lite.persistent import PersistentTensorDict

        return PersistentTensorDict.from_dict(self, filename, backend="zarr", allow_pickle=allow_pickle, **options)

    @classmethod
    def from_zarr(cls, filename: Any, **options: Any) -> PersistentTensorDict:
        """Open a Zarr store; see :meth:`PersistentTensorDict.from_zarr`."""
        from tensordict_lite.persistent import PersistentTensorDict

        return PersistentTensorDict.from_zarr(filename, **options)

    def to_lazystack(self, dim: int = 0) -> Any:
        """A lazy stack of the slices along a batch dimension, as views; ``self`` if it already is that stack."""
        dims = len(self._batch_size)
        if not -dims <= dim < dims:
            raise IndexError(f"to_lazystack(dim={dim}): the batch size {list(self._batch_size)} has {dims} dimensions")
        dim %= dims
        if type(self._source) is not dict and self._stack_dim == dim:
            return self
        slices = list(self.unbind(dim))
        if not slices:
            raise RuntimeError(
                f"to_lazystack(dim={dim}): items cannot be empty, but the batch size is {self._batch_size}"
            )
        return registry.stack_lazily(slices, dim)

    def densify(self, layout: torch.layout = torch.strided) -> Any:
        """The same tree with dense collections for its lazy stacks; entries of different shapes become nested tensors.

        Args:
            layout: layout of the nested tensors, ``torch.strided`` or ``torch.jagged``.
        """
        out = {}
        changed = False
        for key, value in self._entries():
            dense = value if isinstance(value, Tensor) or value._is_non_tensor else value.densify(layout)
            changed |= dense is not value
            out[key] = dense
        return self._rebuild(out, self._batch_size, self._names) if changed else self

    def as_tensor(self) -> Self:
        """The same entries with plain tensors for memory-mapped ones, without a copy."""
        return self._map_leaves(lambda leaf: leaf.as_subclass(Tensor) if type(leaf) is not Tensor else leaf)

    def to_struct_array(self) -> np.ndarray:
        """A numpy structured array with the shape of the batch and a field for each entry (copied).

        Nested collections become nested fields, strings fixed-width text of at least 10 characters.

        Example:
            >>> TensorDict({"a": torch.tensor([1, 2]), "b": torch.tensor([4.0, 5.0])}, [2]).to_struct_array()
            array([(1, 4.), (2, 5.)], dtype=[('a', '<i8'), ('b', '<f4')])
        """
        columns = _columns(self, self._batch_size)
        array = np.empty(tuple(self._batch_size), dtype=_struct_dtype(columns, len(self._batch_size)))
        _fill_struct(array, columns)
        return array

    def attrs(self, *, fields: Any = ("device", "dtype", "shape")) -> Any:
        """Device, dtype and shape of every tensor, each a ``TensorAttrs``, in the same tree.

        Args:
            fields: attributes to record.
        """
        from tensordict_lite.tensorclass.attrs import describe

        return describe(self, fields)

    # -- copies ---------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self._is_non_tensor:
            new = self.clone()
        elif type(self._source) is dict:
            entries = {key: _copied(value, memo) for key, value in self._source.items()}
            new = self._rebuild(entries, self._batch_size, None if self._names is None else list(self._names))
        else:
            new = self._with_members([copy.deepcopy(member, memo) for member in self._source])
        memo[id(self)] = new
        return new

    def __repr__(self) -> str:
        from tensordict_lite.show.printing import render

        return render(self)

    def _repr_html_(self) -> str | None:
        from tensordict_lite.show.printing import render_html

        return render_html(self)

    # -- from other values --------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(
        cls,
        input_dict: Any,
        *,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Any:
        """A TensorDict from a (nested) dict.

        Values that are containers (dicts, tuples, dataclasses...) are converted as :func:`from_any` does.

        Args:
            input_dict: mapping from (nested) keys to values; a TensorDict is returned as it is.
            auto_batch_size: use the longest leading shape that all entries share, at each level.
            batch_size: the batch size. If it is not empty, numbers stay Python numbers.
            device: device of the result.
            batch_dims: longest batch size to infer; turns ``auto_batch_size`` on.
            names: names of the batch dimensions, with ``batch_size``.

        Raises:
            ValueError: both ``batch_size`` and ``batch_dims``.
            RuntimeError: an entry does not have the batch size in front.

        Example:
            >>> data = {"a": torch.zeros(3, 4), "b": {"c": torch.zeros(3, 4, 5)}}
            >>> TensorDict.from_dict(data, auto_batch_size=True).batch_size
            torch.Size([3, 4])
        """
        if isinstance(input_dict, Kernel):
            return input_dict
        return cls._as_own(
            from_mapping(cls._plain_class(), input_dict, None, auto_batch_size, batch_size, device, batch_dims, names)
        )

    def from_dict_instance(
        self,
        input_dict: Any,
        *,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Any:
        """:meth:`from_dict`, with nested dicts in the type of the entry of ``self`` under the same key.

        A dict made by :meth:`to_dict` thus gets its tensorclasses back. The values of ``self`` are not used.
        """
        made = from_mapping(
            self._plain_class(), input_dict, self, auto_batch_size, batch_size, device, batch_dims, names
        )
        return self._as_own(made)

    @classmethod
    def from_list(
        cls,
        input: Sequence[Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
        lazy: bool | None = None,
    ) -> Any:
        """Stack a list of dicts or collections along a new first dimension.

        Args:
            input: dicts (converted with :meth:`from_dict`) or collections (taken as they are).
            auto_batch_size: infer the batch size of each element.
            batch_size: batch size of the result, the length of the list first.
            device: device of the result.
            batch_dims: longest batch size of the result to infer, the list dimension included.
            names: names of the batch dimensions of the result.
            lazy: ``True`` for a lazy stack, ``False`` for a dense one, ``None`` for a dense one where keys and shapes
                agree.

        Raises:
            ValueError: ``batch_size[0]`` is not the length of the list.
            RuntimeError: the list is empty, or its elements do not stack densely (``lazy=False``).
        """
        items = list(input)
        if not items:
            raise RuntimeError("from_list() needs at least one element: the list is empty")
        if batch_size is not None:
            batch_size = torch.Size(batch_size)
            if not batch_size or batch_size[0] != len(items):
                raise ValueError(
                    f"the batch size {list(batch_size)} does not start with the length of the list, {len(items)}"
                )
        parts: list[Any] = [
            item
            if isinstance(item, Kernel)
            else cls.from_dict(
                item,
                auto_batch_size=auto_batch_size,
                batch_size=None if batch_size is None else batch_size[1:],
                device=device,
                batch_dims=None if batch_dims is None else batch_dims - 1,
            )
            for item in items
        ]
        if lazy is None:
            stacked = cls.maybe_dense_stack(parts)
        else:
            stacked = cls.lazy_stack(parts) if lazy else torch.stack(parts)
        if names is not None:
            stacked.names = names
        return stacked

    from_namedtuple = staticmethod(from_namedtuple)
    from_tuple = staticmethod(from_tuple)

    @classmethod
    def from_any(
        cls,
        obj: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Sequence[int] | None = None,
    ) -> Any:
        """Convert containers of any kind, see :func:`from_any`."""
        made = from_any(
            obj, auto_batch_size=auto_batch_size, batch_dims=batch_dims, device=device, batch_size=batch_size
        )
        keyed = isinstance(obj, (Mapping, np.ndarray)) and not isinstance(obj, Kernel)
        return cls._as_own(made) if keyed else made

    @classmethod
    def from_dataclass(
        cls,
        dataclass: Any,
        *,
        dest_cls: Any = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        as_tensorclass: bool = False,
        device: Any = None,
        batch_size: Sequence[int] | None = None,
    ) -> Any:
        """A TensorDict with the fields of a dataclass instance, nested dataclasses included.

        Args:
            dataclass: the instance.
            dest_cls: tensorclass to build instead.
            auto_batch_size: infer the batch size.
            batch_dims: longest batch size to infer.
            as_tensorclass: build an instance of a new tensorclass with the same fields.
            device: device of the result.
            batch_size: batch size of the result.

        Raises:
            TypeError: not a dataclass instance.
        """
        options = {
            "auto_batch_size": auto_batch_size,
            "batch_dims": batch_dims,
            "device": device,
            "batch_size": batch_size,
        }
        if dest_cls is not None or as_tensorclass:
            from tensordict_lite.tensorclass.decorator import from_dataclass as to_tensorclass

            return to_tensorclass(dataclass, dest_cls=dest_cls, **options)
        if isinstance(dataclass, type) or not dataclasses.is_dataclass(dataclass):
            raise TypeError(
                f"expected an instance of a dataclass, got {dataclass!r} of type {type(dataclass).__name__}"
            )
        fields = {field.name: getattr(dataclass, field.name) for field in dataclasses.fields(dataclass)}
        return build(fields, "from_dataclass", **options)

    @classmethod
    def from_pytree(
        cls,
        pytree: Any,
        *,
        batch_size: Sequence[int] | None = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
    ) -> Any:
        """A TensorDict from nested lists, tuples, named tuples and dicts; :meth:`to_pytree` gives them back."""
        from tensordict_lite.hooks.pytree import from_pytree

        return from_pytree(pytree, batch_size=batch_size, auto_batch_size=auto_batch_size, batch_dims=batch_dims)

    @classmethod
    def from_struct_array(
        cls,
        struct_array: np.ndarray,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Sequence[int] | None = None,
    ) -> Any:
        """A TensorDict with the fields of a numpy structured array, sharing its memory."""
        made = from_struct_array(
            struct_array,
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
        )
        return cls._as_own(made)

    @classmethod
    def from_dlpack(
        cls,
        arrays: Mapping[Any, Any],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Sequence[int] | None = None,
    ) -> Any:
        """A TensorDict over arrays of other libraries (CuPy, JAX, NumPy, Arrow, ...), sharing their memory.

        Nothing is copied unless ``device`` moves it: a write to one is seen in the other. To convert back, use the
        function of the library, for example ``numpy.from_dlpack(td["x"])``; memory-mapped tensors work too.

        Args:
            arrays: (nested) mapping of keys to objects with ``__dlpack__``.
            auto_batch_size, batch_dims, device, batch_size: as :meth:`from_dict`.

        Raises:
            TypeError: a value does not support DLPack.
            ValueError: a library cannot export an array: missing values, or a dtype that the protocol lacks.

        Example:
            >>> import numpy as np
            >>> array = np.zeros((3, 2))
            >>> td = TensorDict.from_dlpack({"x": array}, batch_size=[3])
            >>> array[0] = 1.0
            >>> td["x"].sum()
            tensor(2., dtype=torch.float64)
        """
        return cls.from_dict(
            tensors_of_dlpack(arrays),
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
        )

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[Any, tuple[Sequence[int], torch.dtype]],
        *,
        batch_size: Sequence[int] | torch.Size | None = None,
        storage: str | None = None,
        device: Any = None,
        **kwargs: Any,
    ) -> Any:
        """A zero-filled TensorDict from element shapes and dtypes.

        Args:
            schema: ``{key: (element_shape, dtype)}``; entries have the shape ``[*batch_size, *element_shape]``.
            batch_size: batch size of the result.
            storage: ``None`` for ordinary memory, ``"shared"`` for shared memory, ``"memmap"`` for files in the
                directory ``prefix=``, ``"h5"`` for the HDF5 file, ``"zarr"`` for the Zarr store
                ``filename=``.
            device: device of the result (not for ``"memmap"``).
            **kwargs: arguments of :meth:`memmap_like` for ``"memmap"``.

        Raises:
            ValueError: an unknown storage.

        Example:
            >>> TensorDict.from_schema({"obs": ([84, 84], torch.uint8)}, batch_size=[10])["obs"].shape
            torch.Size([10, 84, 84])
        """
        if storage in ("h5", "zarr"):
            from tensordict_lite.persistent import PersistentTensorDict

            return PersistentTensorDict.from_schema(
                schema, batch_size=batch_size, device=device, backend=storage, **kwargs
            )
        if storage not in (None, "memmap", "shared"):
            raise ValueError(f"unknown storage {storage!r}: expected None, 'memmap', 'shared', 'h5' or 'zarr'")
        size = torch.Size(batch_size if batch_size is not None else ())
        new = registry.TensorDict({}, batch_size=size, device=None if storage == "memmap" else device)
        for key, (shape, dtype) in schema.items():
            full = (*size, *shape)
            if storage == "memmap":  # a view of one element: the files are allocated without using memory
                new.set(key, torch.zeros((), dtype=dtype).expand(full))
            else:
                new.set(key, torch.zeros(full, dtype=dtype, device=device))
        if storage == "shared":
            return new.share_memory_()
        return new.memmap_like(**kwargs) if storage == "memmap" else new

    # -- stacking, as class methods -----------------------------------------------------------------------

    @classmethod
    def stack(cls, input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        """:func:`torch.stack` of collections."""
        from tensordict_lite.dense.combine import stack

        return stack(input, dim, out=out)

    @classmethod
    def cat(cls, input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        """:func:`torch.cat` of collections."""
        from tensordict_lite.dense.combine import cat

        return cat(input, dim, out=out)

    @classmethod
    def lazy_stack(cls, input: Sequence[Any], dim: int = 0, *, out: Any = None, **kwargs: Any) -> Any:
        """A lazy stack of the collections, see :class:`LazyStackedTensorDict`."""
        return registry.lazy_stack(input, dim, out=out, **kwargs)

    @classmethod
    def maybe_dense_stack(cls, input: Sequence[Any], dim: int = 0, out: Any = None, **kwargs: Any) -> Any:
        """A dense stack where keys and shapes agree, a lazy one otherwise."""
        return registry.maybe_dense_stack(input, dim, out, **kwargs)

    # -- new_* ---------------------------------------------------------------------------------------------

    def new_zeros(self, *size: Any, dtype: torch.dtype | None = None, device: Any = MISSING, **kwargs: Any) -> Self:
        """The same entries, filled with zeros, with another batch size.

        Args:
            *size: the batch size, as ints or one sequence.
            dtype: dtype of every entry; by default each keeps its own.
            device: device of the result and its entries; by default they keep theirs.
            **kwargs: ``requires_grad``, ``layout``, ``pin_memory`` as for :meth:`torch.Tensor.new_zeros`;
                ``empty_lazy=True`` keeps lazy stacks lazy, with empty members to write into, and repeats the first
                object of a :class:`NonTensorStack`. By default lazy stacks become dense, and the rows of a
                :class:`NonTensorStack` are None.

        Example:
            >>> TensorDict({"a": torch.ones(3, 4)}, [3]).new_zeros(2)["a"].shape
            torch.Size([2, 4])
        """
        return self._new_like("new_zeros", (), _one_size(size), dtype, device, kwargs)

    def new_ones(self, *size: Any, dtype: torch.dtype | None = None, device: Any = MISSING, **kwargs: Any) -> Self:
        """:meth:`new_zeros` with ones."""
        return self._new_like("new_ones", (), _one_size(size), dtype, device, kwargs)

    def new_empty(self, *size: Any, dtype: torch.dtype | None = None, device: Any = MISSING, **kwargs: Any) -> Self:
        """:meth:`new_zeros`, without filling the memory."""
        return self._new_like("new_empty", (), _one_size(size), dtype, device, kwargs)

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, device: Any = MISSING, **kwargs: Any
    ) -> Self:
        """:meth:`new_zeros` with another value; ``size`` is one int or a sequence."""
        return self._new_like("new_full", (fill_value,), _one_size((size,)), dtype, device, kwargs)

    def _new_like(
        self, name: str, extra: tuple[Any, ...], size: torch.Size, dtype: Any, device: Any, options: dict[str, Any]
    ) -> Self:
        repeat = bool(options.get("empty_lazy"))
        if repeat and type(self._source) is not dict:
            return self._blank(size, repeat)  # type: ignore[attr-defined]
        kwargs = {key: value for key, value in options.items() if key != "empty_lazy"}
        if dtype is not None:
            kwargs["dtype"] = dtype
        if device is not MISSING:
            kwargs["device"] = device
        dims = len(self._batch_size)
        out: dict[str, Any] = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                out[key] = getattr(value, name)((*size, *value.shape[dims:]), *extra, **kwargs)
            elif type(value._source) is not dict and (value._is_non_tensor or repeat):
                out[key] = value._blank(torch.Size((*size, *value.batch_size[dims:])), repeat)
            elif value._is_non_tensor:
                out[key] = resized(value, size)
            else:
                below = torch.Size((*size, *value.batch_size[dims:]))
                out[key] = value._new_like(name, extra, below, dtype, device, options)
        new = self._rebuild(out, size, self._names if len(size) == dims else None)
        if device is not MISSING:
            new._device = None if device is None else torch.device(device)
        return new

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: torch.dtype | None = None,
        device: Any = MISSING,
        requires_grad: bool = False,
        pin_memory: bool | None = None,
    ) -> Self:
        """A copy of ``data`` under every key, in the dtype of the entry there.

        Args:
            data: tensor, array, number or sequence; or a collection that gives one value per entry.
            dtype: dtype of every entry.
            device: device of the result; by default that of ``data``.
            requires_grad: record operations on the new tensors.
            pin_memory: allocate them in pinned memory.
        """
        if isinstance(data, Kernel) or isinstance(data, Tensor):
            warnings.warn(
                "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
                "sourceTensor.detach().clone().requires_grad_(True), rather than tensor.new_tensor(sourceTensor).",
                UserWarning,
                stacklevel=2,
            )

        def copied(leaf: Tensor, source: Tensor, place: Any) -> Tensor:
            new = source.detach().to(device=place, dtype=dtype or leaf.dtype, copy=True)
            return (new.pin_memory() if pin_memory else new).requires_grad_(requires_grad)

        return self._new_tensor(data, device, copied)

    def _new_tensor(self, data: Any, device: Any, copied: Callable[[Tensor, Tensor, Any], Tensor]) -> Self:
        tree = isinstance(data, Kernel)
        data = data if tree or isinstance(data, Tensor) else tensor_of(np.asarray(data))
        target = (data.device if device is MISSING else device) if not tree or device is not MISSING else data.device
        size = data.batch_size if tree else data.shape
        out: dict[str, Any] = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                source = data._get_str(key) if tree else data
                out[key] = copied(value, source, source.device if target is None else target)
            elif value._is_non_tensor:
                out[key] = resized(value, torch.Size(size))
            else:
                below = data._get_str(key) if tree else data
                out[key] = value._new_tensor(below, device, copied)
        new = self._rebuild(out, torch.Size(size), None)
        new._device = None if target is None else torch.device(target)
        return new

    @property
    def arrow_types(self) -> dict[Any, str]:
        """The Arrow type of each int32 or int64 entry that holds dates, times or durations, by key.

        Readers of files set it; writers, formulas (``col``) and joins use it. Indexing, selecting, renaming,
        flattening keys, joining rows, saving, loading, pickling and writing into an entry keep it. Assignable: a
        dictionary by (nested) keys replaces all types.

        Raises:
            KeyError: there is no such entry.
            TypeError: an entry is not a tensor of int32 or int64, or a type is not a string.

        Example:
            >>> td = TensorDict({"day": torch.arange(3), "x": torch.zeros(3)}, [3])
            >>> td.arrow_types = {"day": "timestamp[s]"}
            >>> td[1:].exclude("x").arrow_types
            {'day': 'timestamp[s]'}
        """
        return types_of(self)

    @arrow_types.setter
    def arrow_types(self, types: Mapping[Any, str]) -> None:
        set_types(self, types)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy.

    Use `clone` for plain tensors (five times as fast as `deepcopy`), for strided nested ones and for results of a
    graph, which `deepcopy` rejects.
    """
    if isinstance(value, Tensor) and id(value) not in memo:
        plain = type(value) is Tensor and not value.requires_grad and not value.__dict__
        if plain or not value.is_leaf or (value.is_nested and value.layout is torch.strided):
            memo[id(value)] = value.clone()
            memo.setdefault(id(memo), []).append(value)  # kept, as `copy` does: the id of a freed object may be reused
    return copy.deepcopy(value, memo)


def _plain_tensor(value: Tensor, convert: bool | str) -> Any:
    if not convert:
        return value
    return value.detach().cpu().numpy() if convert == "numpy" else value.tolist()


_named_tuples: dict[tuple[str, ...], type] = {}


def _named_tuple_class(names: tuple[str, ...]) -> Any:
    cls = _named_tuples.get(names)
    if cls is None:
        bad = [name for name in names if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_")]
        if bad:
            raise ValueError(f"these keys cannot be fields of a named tuple: {bad}")
        if len(_named_tuples) >= 256:  # classes are costly to create and must not accumulate
            _named_tuples.clear()
        cls = _named_tuples[names] = collections.namedtuple("GenericDict", names)
    return cls


def _columns(td: Any, size: torch.Size) -> dict[str, Any]:
    """Arrays (or nested columns) by key, each with the batch size in front."""
    out: dict[str, Any] = {}
    for key, value in td._entries():
        if isinstance(value, Tensor):
            out[key] = value.detach().cpu().numpy()
        elif value._is_non_tensor:
            out[key] = _object_column(value, size)
        else:
            out[key] = _columns(value, size)
    return out


def _object_column(value: Any, size: torch.Size) -> np.ndarray:
    rows = np.asarray(value.tolist() if size else value._as_value())
    payload = value._as_value()
    if isinstance(payload, np.ndarray) and payload.shape == tuple(size):
        rows = payload
    if rows.dtype.kind in "US":
        width = max(10, rows.dtype.itemsize // (4 if rows.dtype.kind == "U" else 1))
        return rows.astype(f"{rows.dtype.kind}{width}")
    return rows


def _struct_dtype(columns: dict[str, Any], dims: int) -> np.dtype:
    fields: list[Any] = []
    for key, column in columns.items():
        if isinstance(column, dict):
            fields.append((key, _struct_dtype(column, dims)))
        else:
            fields.append((key, column.dtype, column.shape[dims:]) if column.shape[dims:] else (key, column.dtype))
    return np.dtype(fields)


def _fill_struct(array: np.ndarray, columns: dict[str, Any]) -> None:
    for key, column in columns.items():
        if isinstance(column, dict):
            _fill_struct(array[key], column)
        else:
            array[key] = column


def _one_size(size: tuple[Any, ...]) -> torch.Size:
    if len(size) == 1 and not isinstance(size[0], int):
        return torch.Size(size[0])
    return torch.Size(size)
