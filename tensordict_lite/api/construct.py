"""Collections from other things: dicts, lists, tuples, dataclasses, arrays, schemas, and ``new_*``."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.building.builders import (
    build,
    from_any,
    from_mapping,
    from_namedtuple,
    from_struct_array,
    from_tuple,
    tensors_of_dlpack,
)
from tensordict_lite.hooks.pytree import resized
from tensordict_lite.kernel import Kernel
from tensordict_lite.settings import MISSING


class ConstructOps(Kernel):
    """Class methods that build a TensorDict, and the ``new_*`` methods."""

    __slots__ = ()

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
            batch_size: the batch size. Plain numbers are kept as non-tensor data when it is not empty.
            device: device of the result.
            batch_dims: longest batch size to infer; turns ``auto_batch_size`` on.
            names: names of the batch dimensions, with ``batch_size``.

        Raises:
            ValueError: both ``batch_size`` and ``batch_dims``.
            RuntimeError: an entry does not have the batch size in front.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        return from_mapping(
            self._plain_class(), input_dict, self, auto_batch_size, batch_size, device, batch_dims, names
        )

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
            >>> from tensordict_lite import TensorDict
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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        from tensordict_lite.dense.tensordict import TensorDict

        new = TensorDict({}, batch_size=size, device=None if storage == "memmap" else device)
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
        from tensordict_lite.lazy.functions import LazyStackedTensorDict

        return LazyStackedTensorDict.lazy_stack(input, dim, out=out, **kwargs)

    @classmethod
    def maybe_dense_stack(cls, input: Sequence[Any], dim: int = 0, *, out: Any = None, **kwargs: Any) -> Any:
        """A dense stack where keys and shapes agree, a lazy one otherwise."""
        from tensordict_lite.lazy.functions import LazyStackedTensorDict

        return LazyStackedTensorDict.maybe_dense_stack(input, dim, out=out, **kwargs)

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        return self._new_tensor(data, dtype, device, requires_grad, pin_memory)

    def _new_tensor(self, data: Any, dtype: Any, device: Any, requires_grad: bool, pin_memory: bool | None) -> Self:
        kwargs: dict[str, Any] = {"requires_grad": requires_grad}
        if dtype is not None:
            kwargs["dtype"] = dtype
        if pin_memory:
            kwargs["pin_memory"] = pin_memory
        tree = isinstance(data, Kernel)
        data = data if tree or isinstance(data, Tensor) else torch.as_tensor(np.asarray(data))
        target = (data.device if device is MISSING else device) if not tree or device is not MISSING else data.device

        def copied(leaf: Tensor, source: Tensor) -> Tensor:
            place = source.device if target is None else target
            return source.detach().to(device=place, dtype=dtype or leaf.dtype, copy=True).requires_grad_(requires_grad)

        size = data.batch_size if tree else data.shape
        out: dict[str, Any] = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                out[key] = copied(value, data._get_str(key) if tree else data)
            elif value._is_non_tensor:
                out[key] = resized(value, torch.Size(size))
            else:
                below = data._get_str(key) if tree else data
                out[key] = value._new_tensor(below, dtype, device, requires_grad, pin_memory)
        new = self._rebuild(out, torch.Size(size), None)
        new._device = None if target is None else torch.device(target)
        return new


def _one_size(size: tuple[Any, ...]) -> torch.Size:
    if len(size) == 1 and not isinstance(size[0], int):
        return torch.Size(size[0])
    return torch.Size(size)
