"""What rows look like, apart from how many there are: keys, dtypes and shapes, and the objects that are no tensors.

    TensorDict [n] ──take_apart──► Schema (the same tree with zero rows) + tensors [n, ...] + objects
    Schema, n, memory, objects ──build──► TensorDict [n]

Results of different chunks belong into one dataset when their schemas are equal; objects may differ.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.data.alike import RAGGED, not_alike
from tdmap.data.join import allocate_like
from tdmap.data.kinds import Data, KeyPath, is_data, is_dense, key_name, leaves_hold_rows, with_entries
from tdmap.data.objects import blank_rows, entry_at, object_paths, stack_of
from tdmap.errors import OutputMismatch
from tdmap.plan import ChunkPlan
from tensordict_lite import NonTensorData, Ragged
from tensordict_lite.ragged import is_ragged


class Field(NamedTuple):
    """One entry of a schema."""

    path: KeyPath
    kind: str
    """`"tensor"` or the type of Arrow's that its numbers stand for, `"object"`, or the name of a collection's class."""
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    """Of one row."""

    def describe(self) -> str:
        """Its kind, in words."""
        if self.dtype is None:
            return f"{self.kind} with rows of batch size {self.shape}" if self.kind != "object" else "no tensor"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype if self.kind == 'tensor' else self.kind} with rows of shape {self.shape}"


class Schema:
    """Keys, dtypes and row shapes of a dataset.

    Args:
        skeleton: the dataset with zero rows; its non-tensor entries do not matter.

    Attributes:
        fields: every entry, in the order of the tree.
        tensors: the entries that are tensors, in the order of `take_apart`.
    """

    def __init__(self, skeleton: Data) -> None:
        self.skeleton = skeleton
        self.fields: tuple[Field, ...] = tuple(_fields(skeleton, ()))
        self.tensors = tuple(field for field in self.fields if field.dtype is not None)

    @property
    def digest(self) -> int:
        """A number that equal schemas share, in every process."""
        return zlib.crc32(repr(self.fields).encode("utf-8", "surrogatepass"))

    @property
    def row_bytes(self) -> list[int]:
        """Bytes of one row of each tensor."""
        return [math.prod(field.shape) * field.dtype.itemsize for field in self.tensors if field.dtype is not None]

    def build(
        self,
        rows: int,
        allocate: Callable[[torch.dtype, torch.Size], Tensor],
        objects: Mapping[KeyPath, Any] | None = None,
    ) -> Data:
        """A dataset of `rows` rows.

        Args:
            rows: how many.
            allocate: makes the memory of one tensor.
            objects: the non-tensor entries, with as many rows. Of zero rows, those that are left out are empty columns.
        """
        data = allocate_like(self.skeleton, ChunkPlan(rows, max(rows, 1)), allocate)
        columns = dict(objects or {}) if rows else {**self._empty_columns(), **(objects or {})}
        for path, value in columns.items():
            node = data
            for key in path[:-1]:
                node = node._source[key]
            node._source[path[-1]] = value
        return data

    def _empty_columns(self) -> dict[KeyPath, Any]:
        found = {}
        for path in object_paths(self.skeleton):
            entry = entry_at(self.skeleton, path)
            one_for_all = isinstance(entry, NonTensorData) and entry._payload is not None
            found[path] = entry if one_for_all or isinstance(entry, Ragged) else stack_of([], entry.shape[1:])
        return found

    def tensors_of(self, data: Data) -> list[Tensor]:
        """The tensors of a dataset of this schema, in the order of `tensors`."""
        found: list[Tensor] = []
        for field in self.tensors:
            node: Any = data
            for key in field.path:
                node = node._source[key]
            found.append(node)
        return found

    def difference(self, other: Schema, name: str = "this one", hint: str = RAGGED) -> str:
        """What another schema, of this name, has that this one has not, or the other way round; empty when equal.

        It ends with `hint` where two entries differ in shape only, and not in the number of dimensions.
        """
        if self.fields[0].kind != other.fields[0].kind:
            return f"{name} is a {other.fields[0].kind}, where it was a {self.fields[0].kind}"
        mine, theirs = ({field.path: field for field in schema.fields} for schema in (self, other))
        extra = [key_name(path) for path in theirs if path not in mine]
        missing = [key_name(path) for path in mine if path not in theirs]
        parts = [f"{what} {', '.join(names)}" for what, names in (("has also", extra), ("lacks", missing)) if names]
        if parts:
            return f"{name} {' and '.join(parts)}"
        for path, field in theirs.items():
            if mine[path] != field:
                longer = len(field.shape) == len(mine[path].shape) > 0 and field.dtype is mine[path].dtype
                difference = f"{key_name(path)} is {field.describe()}, where it was {mine[path].describe()}"
                return difference + (hint if longer else "")
        return "" if self.fields == other.fields else "the order of its keys is another"


def _fields(node: Data, path: KeyPath, kind: str = "tensor") -> list[Field]:
    shape = tuple(node.shape[1:])
    if isinstance(node, Tensor):
        return [Field(path, kind, node.dtype, shape)]
    if not is_dense(node):
        return [Field(path, "object", None, ())]
    found = [Field(path, type(node).__qualname__, None, shape)]
    # Keys in one order: results that were built in another belong into the same dataset.
    for key in sorted(node._source):
        found += _fields(node._source[key], (*path, key), (node._types or {}).get(key, "tensor"))
    return found


class Parts(NamedTuple):
    """A dataset that has been taken apart."""

    schema: Schema
    rows: int
    tensors: list[Tensor]
    """In the order of `schema.tensors`; plain, without gradients, not always contiguous."""
    objects: dict[KeyPath, Any]
    """The entries that are no tensors, each with all rows."""


def take_apart(data: Data) -> Parts:
    """The schema, tensors and objects of a dataset with rows in dimension 0. Lazy stacks are made dense.

    Raises:
        OutputMismatch: it has no rows, or holds what cannot be written row by row (sparse, ragged, not on the CPU).
    """
    if not is_data(data) or not len(data.shape):
        found = f"one of shape {tuple(data.shape)}" if is_data(data) else f"a {type(data).__name__}"
        raise OutputMismatch(
            "a result must be a tensor or a collection of tensors with its rows in dimension 0 (or None, for no rows): "
            f"got {found}."
        )
    tensors: dict[KeyPath, Tensor] = {}
    objects: dict[KeyPath, Any] = {}
    schema = Schema(_skeleton(data, (), tensors, objects))
    return Parts(schema, int(data.shape[0]), [tensors[field.path] for field in schema.tensors], objects)


def _skeleton(node: Data, path: KeyPath, tensors: dict[KeyPath, Tensor], objects: dict[KeyPath, Any]) -> Data:
    if isinstance(node, Tensor):
        tensors[path] = plain(node, path)
        return torch.empty((0, *node.shape[1:]), dtype=node.dtype)
    if getattr(node, "_is_non_tensor", False):
        objects[path] = node
        if is_ragged(node):
            return blank_rows(node, 0)
        return NonTensorData(None, batch_size=[0, *node.shape[1:]])
    if not is_dense(node):
        try:
            node = node.contiguous()
        except (RuntimeError, TypeError, ValueError) as error:
            raise OutputMismatch(
                f"{key_name(path)}: one dataset cannot hold a {type(node).__name__} whose members differ ({error}). "
                "Return rows of different lengths as a column: Ragged.from_list(rows.get(key, as_list=True)) of "
                "tensordict_lite."
            ) from error
    source = {key: _skeleton(value, (*path, key), tensors, objects) for key, value in node._source.items()}
    return with_entries(node, source, 0)


def plain(tensor: Tensor, path: KeyPath = ()) -> Tensor:
    """`tensor` without gradient, subclass and lazy conjugation.

    Raises:
        OutputMismatch: its elements do not lie row by row in the CPU's memory.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else "ragged" if tensor.is_nested else f"of layout {tensor.layout}"
        raise OutputMismatch(f"{key_name(path)} is {kind}, and only strided tensors can be written row by row.")
    if tensor.is_meta:
        raise OutputMismatch(f"{key_name(path)} is on the meta device and has no values: return a tensor with values.")
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.requires_grad:
        tensor = tensor.detach()
    if type(tensor) is not Tensor:
        tensor = tensor.as_subclass(Tensor)
    return tensor.resolve_conj().resolve_neg()


def join_pieces(pieces: list[Any]) -> Data:
    """Rows after one another. Those of lazy stacks may differ, and stay one.

    Raises:
        OutputMismatch: they do not look alike; names the entry that differs.
    """
    if len(pieces) == 1:
        return pieces[0]
    if all(map(leaves_hold_rows, pieces)):
        for piece in pieces[1:]:
            check_alike(pieces[0], piece)
    return torch.cat(pieces)


def check_alike(first: Data, other: Data) -> None:
    """Raise OutputMismatch unless two chunks can be rows of one dataset."""
    schemas = [Schema(piece[:0]) for piece in (first, other)]
    if schemas[0].digest != schemas[1].digest:
        raise not_alike(
            schemas[0].difference(schemas[1]),
            what="rows",
            purpose="to come after one another",
            advice="Use .select(...) or .map(...) on one of the two.",
        )
