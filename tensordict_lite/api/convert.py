"""Collections as other things: dicts, lists, numpy, named tuples, pytrees, state dicts, text."""

from __future__ import annotations

import collections
import copy
import keyword
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.hooks import pytree
from tensordict_lite.objects.linkedlist import LinkedList
from tensordict_lite.ops.keys.state import StateOps

if TYPE_CHECKING:
    import os

    from tensordict_lite.building.packing import PackLayout
    from tensordict_lite.persistent import PersistentTensorDict


class ConvertOps(StateOps):
    """Conversions: ``to_dict``, ``tolist``, ``numpy`` and others."""

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
                out[key] = _unlinked(value._as_value())
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
        as_linked_list: bool = False,
    ) -> Any:
        """The elements of the batch as nested lists of dicts, one level per batch dimension.

        Args:
            convert_nodes: convert elements to dicts; ``False`` keeps them as collections.
            convert_tensors: as for :meth:`to_dict`.
            tolist_first: as for :meth:`to_dict`.
            as_linked_list: return a list whose assignments write back into this collection.

        Raises:
            TypeError: ``convert_tensors`` with ``convert_nodes=False``.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        rows = [
            row.tolist(convert_nodes=convert_nodes, convert_tensors=convert_tensors, tolist_first=tolist_first)
            for row in self.unbind(0)
        ]
        return LinkedList(rows, td=self) if as_linked_list else rows

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
                held = _unlinked(value._as_value())
                if held is not None:
                    out[key] = held
            else:
                out[key] = value.numpy()
        return out

    def to_namedtuple(self, dest_cls: Any = None) -> Any:
        """The entries as a named tuple, nested collections too. At the top a tensorclass gives a plain tuple.

        Args:
            dest_cls: named tuple class to use wherever its fields match; elsewhere a class named ``GenericDict`` is
                made.
        """
        named = self._named(dest_cls)
        return tuple(named) if hasattr(type(self), "__dataclass_fields__") else named

    def _named(self, dest_cls: Any) -> Any:
        data = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                data[key] = value
            elif value._is_non_tensor:
                data[key] = _unlinked(value._as_value())
            else:
                data[key] = value._named(dest_cls)
        if dest_cls is not None:
            try:
                return dest_cls(**data)
            except TypeError:  # other fields: this level gets a generic class
                pass
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

    def pack(self, dim: int = -1, *, layout: PackLayout | None = None) -> tuple[Tensor, PackLayout]:
        """All leaves as columns of one contiguous tensor, and the layout that :meth:`PackLayout.unpack` needs.

        Args:
            dim: dimension of the columns in the result, as in :func:`torch.stack`.
            layout: the order of the columns. Default: that of the sorted keys.

        Returns:
            A tensor ``[*batch_size, columns]``, for ``dim=-1``, and its layout.

        Raises:
            IndexError: ``dim`` is out of range.
            KeyError: the keys are not those of ``layout``.
            RuntimeError: leaves are on several devices, or rows have different shapes or keys.
            TypeError: leaves have different dtypes, or an entry is not a tensor.
            ValueError: the shapes or the dim are not those of ``layout``.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> flat, layout = TensorDict({"p": torch.zeros(5), "n": {"v": torch.ones(5, 3)}}, [5]).pack()
            >>> flat.shape, layout.keys
            (torch.Size([5, 4]), (('n', 'v'), 'p'))
        """
        from tensordict_lite.building import packing

        return packing.pack(self, dim, layout=layout)

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
            >>> from tensordict_lite import TensorDict
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
        from tensordict_lite.lazy.functions import LazyStackedTensorDict

        dims = len(self._batch_size)
        if not -dims <= dim < dims:
            raise IndexError(f"to_lazystack(dim={dim}): the batch size {list(self._batch_size)} has {dims} dimensions")
        dim %= dims
        if type(self._source) is not dict and self._stack_dim == dim:
            return self
        return LazyStackedTensorDict.lazy_stack(list(self.unbind(dim)), dim)

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> TensorDict({"a": torch.tensor([1, 2]), "b": torch.tensor([4.0, 5.0])}, [2]).to_struct_array()
            array([(1, 4.), (2, 5.)], dtype=[('a', '<i8'), ('b', '<f4')])
        """
        columns = _columns(self, self._batch_size)
        array = np.empty(tuple(self._batch_size), dtype=_struct_dtype(columns, len(self._batch_size)))
        _fill_struct(array, columns)
        return array

    def attrs(self, *, fields: Any = ("device", "dtype", "shape"), num_threads: int | None = None) -> Any:
        """Device, dtype and shape of every tensor, each a ``TensorAttrs``, in the same tree.

        Args:
            fields: attributes to record.
            num_threads: ignored, accepted for compatibility.
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


def _unlinked(held: Any) -> Any:
    """Copies of the lists in an entry, so that changing the result does not change the collection."""
    return held.tolist() if isinstance(held, LinkedList) else held


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
