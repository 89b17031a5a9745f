"""All leaves of a collection as the columns of one tensor, and back."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import require_path

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PackLayout:
    """Positions of the leaves in the tensor of :meth:`TensorDict.pack`.

    Hashable, and equal to a layout of the same content.

    Args:
        keys: keys of the leaves, in the order of their columns.
        shapes: shape of each leaf after the batch dimensions.
        dim: dimension of the columns in the packed tensor, counted from the end.
        nested: key, batch size after that of the root, and tensorclass or None, of each nested collection.
        device: of the collection.
        cls: tensorclass of the collection, or None.

    Example:
        >>> flat, layout = TensorDict({"p": torch.zeros(5), "v": torch.ones(5, 3)}, [5]).pack()
        >>> layout.keys, layout.offsets, layout.numel
        (('p', 'v'), (0, 1), 4)
        >>> layout.unpack(flat[:2])["v"].shape
        torch.Size([2, 3])
    """

    keys: tuple[Any, ...]
    shapes: tuple[torch.Size, ...]
    dim: int = -1
    nested: tuple[tuple[Any, torch.Size, type | None], ...] = ()
    device: torch.device | None = None
    cls: type | None = None
    offsets: tuple[int, ...] = dataclasses.field(init=False)
    numel: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        shapes = tuple(torch.Size(shape) for shape in self.shapes)
        if len(shapes) != len(self.keys):
            raise ValueError(f"a layout has one shape a key: got {len(self.keys)} keys and {len(shapes)} shapes.")
        ends = (0, *itertools.accumulate(shape.numel() for shape in shapes))
        nested = tuple((key, torch.Size(size), cls) for key, size, cls in self.nested)
        fields = {"shapes": shapes, "nested": nested, "offsets": ends[:-1], "numel": ends[-1]}
        for name, value in {**fields, "keys": tuple(self.keys)}.items():
            object.__setattr__(self, name, value)

    def unpack(self, flat: Tensor) -> Any:
        """The collection whose leaves are views of a packed tensor. Its batch size is taken from that tensor.

        Args:
            flat: ``[*batch_size, numel]``, for ``dim=-1``.

        Raises:
            IndexError: it has too few dimensions.
            ValueError: the number of columns is not :attr:`numel`.
        """
        if not -flat.ndim <= self.dim < flat.ndim:
            raise IndexError(f"dim {self.dim} is out of range for a tensor with {flat.ndim} dimensions.")
        flat = flat.movedim(self.dim, -1)
        if flat.shape[-1] != self.numel:
            raise ValueError(
                f"Expected {self.numel} entries along dim {self.dim} of the packed tensor, got {flat.shape[-1]}."
            )
        size = flat.shape[:-1]
        kinds: dict[Path, Any] = {(): (torch.Size(()), self.cls)}
        kinds.update((require_path(key), (inner, cls)) for key, inner, cls in self.nested)
        levels: dict[Path, dict[str, Any]] = {path: {} for path in kinds}
        for key, shape, first in zip(self.keys, self.shapes, self.offsets):
            path = require_path(key)
            for depth in range(len(path)):
                levels.setdefault(path[:depth], {})
            levels[path[:-1]][path[-1]] = flat[..., first : first + shape.numel()].reshape((*size, *shape))
        made: Any = None
        for path in sorted(levels, key=len, reverse=True):
            inner, cls = kinds.get(path, (torch.Size(()), None))
            device = None if self.device is None else flat.device
            made = TensorDict(levels[path], batch_size=(*size, *inner), device=device)
            made = made if cls is None else cls.from_tensordict(made)
            if path:
                levels[path[:-1]][path[-1]] = made
        return made


def pack(td: Any, dim: int = -1, *, layout: PackLayout | None = None) -> tuple[Tensor, PackLayout]:
    """See :meth:`TensorDict.pack`."""
    dims = len(td.batch_size)
    if not -dims - 1 <= dim <= dims:
        raise IndexError(f"dim {dim} is out of range for packing a tensordict with {dims} batch dimensions.")
    from_end = dim if dim < 0 else dim - dims - 1
    if layout is not None and layout.dim != from_end:
        raise ValueError(f"Cannot pack along dim {dim} with a layout packed along dim {layout.dim}.")
    leaves: dict[Path, Tensor] = {}
    nested: dict[Path, Any] = {}
    _gather(td, (), leaves, nested)
    paths = sorted(leaves)
    if layout is not None:
        wanted = [require_path(key) for key in layout.keys]
        if sorted(wanted) != paths:
            raise KeyError(
                f"The leaves of the tensordict differ from the keys of the layout: {_keys(paths)} vs {_keys(wanted)}."
            )
        paths = wanted
    made = PackLayout(
        keys=tuple(_keys(paths)),
        shapes=tuple(leaves[path].shape[dims:] for path in paths),
        dim=from_end,
        nested=tuple(
            (*_keys([path]), nested[path].batch_size[dims:], _class_of(nested[path])) for path in sorted(nested)
        ),
        device=td.device,
        cls=_class_of(td),
    )
    if layout is not None and made.shapes != layout.shapes:
        raise ValueError(
            f"The feature shapes of the leaves differ from those of the layout: {made.shapes} vs {layout.shapes}."
        )
    parts = [leaves[path].flatten(dims) if leaves[path].ndim > dims else leaves[path][..., None] for path in paths]
    for path, part in zip(paths, parts):
        if part.dtype != parts[0].dtype:
            raise TypeError(
                f"Cannot pack leaves of different dtypes: {parts[0].dtype} and {part.dtype} at {_keys([path])[0]!r}. "
                "Cast the tensordict first, e.g. with float()."
            )
        if part.device != parts[0].device:
            raise RuntimeError(
                f"Cannot pack leaves on different devices: {parts[0].device} and {part.device} at {_keys([path])[0]!r}."
            )
    flat = torch.cat(parts, -1) if parts else torch.zeros(*td.batch_size, 0, device=td.device)
    return flat.movedim(-1, dim).contiguous(), made


def _keys(paths: list[Path]) -> list[Any]:
    return [path[0] if len(path) == 1 else path for path in paths]


def _class_of(td: TensorCollection) -> type | None:
    return type(td) if hasattr(type(td), "__dataclass_fields__") else None


def _gather(td: TensorCollection, above: Path, leaves: dict[Path, Tensor], nested: dict[Path, Any]) -> None:
    members: Sequence[Any] = () if td._is_non_tensor else getattr(td, "tensordicts", ())
    if any(set(member.keys(True, True)) != set(members[0].keys(True, True)) for member in members):
        raise RuntimeError("Cannot pack a lazy stack whose members have different keys.")
    for key, value in td._entries():
        path = (*above, key)
        if isinstance(value, Tensor):
            if value.is_nested:
                raise RuntimeError(f"Cannot pack the nested tensor {_keys([path])[0]!r}: its rows have many shapes.")
            leaves[path] = value
        elif value._is_unbatched:
            raise RuntimeError(f"Cannot pack {_keys([path])[0]!r}, a tensor that all rows share: exclude it first.")
        elif value._is_non_tensor:
            raise TypeError(
                f"Cannot pack the non-tensor entry {_keys([path])[0]!r}. Drop the non-tensor entries with "
                "filter_non_tensor_data() first."
            )
        else:
            nested[path] = value
            _gather(value, path, leaves, nested)
