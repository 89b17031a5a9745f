"""How collections are stacked and joined: ``stack``, ``cat``, ``pad_sequence``.

Each storage class combines its own kind in ``_stack_entries(items, dim)`` and ``_cat_entries(items, dim)``; among
several kinds, the one with the highest ``_stack_priority`` is used. With an ``out`` of the same tree,
:func:`joined_into` needs no intermediate result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.kernel import DeviceLike, stacked_names
from tensordict_lite.keys import path_of
from tensordict_lite.ops.arrow_types import joined_types
from tensordict_lite.settings import settings
from tensordict_lite.views import is_leaf_nontensor


def stack(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Collections of one batch size stacked along a new dimension, densely.

    Args:
        input: non-empty sequence of collections with the same keys and shapes.
        dim: position of the new dimension, ``-batch_dims - 1`` to ``batch_dims``.
        out: collection of the stacked batch size to write into.

    Raises:
        RuntimeError: an empty sequence, different batch sizes, keys or shapes.
        IndexError: ``dim`` is out of range.

    Example:
        >>> tds = [TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)]
        >>> stack(tds, 1)["a"].shape
        torch.Size([3, 2])
    """
    items = input if type(input) is list else list(input)
    if not items:
        raise RuntimeError("stack expects a non-empty TensorList")
    first = items[0]
    if not isinstance(first, TensorCollection):
        if isinstance(first, Tensor):
            return _join_tensors(torch.stack, items, dim, out)
        raise TypeError(f"stack expects tensors or tensor collections, got a {type(first).__name__} at position 0")
    ndim = len(first._batch_size)
    at = dim + ndim + 1 if dim < 0 else dim
    if not 0 <= at <= ndim:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim - 1}, {ndim}], but got {dim})")
    if settings.lazy_legacy and out is None and not first._is_non_tensor:
        return registry.lazy_stack(items, at)
    if out is not None and joined_into(torch.stack, items, at, out):
        return out
    result = stack_class(items)._stack_entries(items, at)
    return result if out is None else _write_out(out, result)


def _join_tensors(join: Callable[..., Tensor], items: Sequence[Any], dim: int, out: Any) -> Tensor:
    for item in items:  # torch would call stack() or cat() for a collection again
        if isinstance(item, TensorCollection):
            raise RuntimeError(f"cannot combine {_kind_name(items[0])} with {_kind_name(item)}")
    return join(items, dim, out=out)


def _write_out(out: Any, result: Any) -> Any:
    if out._batch_size != result._batch_size:
        raise RuntimeError(f"out has batch size {list(out._batch_size)}, the result has {list(result._batch_size)}")
    return out.update_(result) if out._lock is not None else out.update(result, inplace=True)


def cat(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Collections joined along an existing batch dimension.

    Args:
        input: non-empty sequence of collections with the same keys, and shapes that differ along ``dim`` only.
        dim: batch dimension, negative counts from the end.
        out: collection of the joined batch size to write into.

    Raises:
        RuntimeError: ``dim`` is not a batch dimension, or shapes do not fit.
        KeyError: the keys differ.
    """
    items = input if type(input) is list else list(input)
    if not items:
        raise RuntimeError("cat expects a non-empty TensorList")
    first = items[0]
    if not isinstance(first, TensorCollection):
        return _join_tensors(torch.cat, items, dim, out)
    ndim = len(first._batch_size)
    at = dim + ndim if dim < 0 else dim
    if not 0 <= at < ndim:
        raise RuntimeError(
            f"dim must be in the range 0 <= dim < len(batch_size), got dim={dim} and "
            f"batch_size={list(first._batch_size)}"
        )
    if out is not None and joined_into(torch.cat, items, at, out):
        return out
    result = stack_class(items)._cat_entries(items, at)
    return result if out is None else _write_out(out, result)


def pad(tensordict: Any, pad_size: Sequence[int], value: float = 0.0, *, inplace: bool = False) -> Any:
    """Function form of :meth:`TensorDict.pad`."""
    return tensordict.pad(pad_size, value, inplace=inplace)


def pad_sequence(
    list_of_tds: Sequence[Any],
    pad_dim: int = 0,
    padding_value: float = 0.0,
    out: Any = None,
    device: DeviceLike | None = None,
    return_mask: bool | Any = False,
    padding_side: str = "right",
) -> Any:
    """Pad collections whose entries differ in length to the longest, and stack them along a new first dimension.

    Args:
        list_of_tds: non-empty sequence of collections with the same keys.
        pad_dim: dimension of the entries (without the new one) to pad; may be negative.
        padding_value: value of the missing elements.
        out: collection to write into.
        device: device of the result.
        return_mask: add masks of the real elements, one per leaf, under ``"masks"`` or the given key.
        padding_side: ``"right"`` (default) or ``"left"``.

    Raises:
        KeyError: the keys differ.
        IndexError: an entry has no dimension ``pad_dim``.

    Example:
        >>> tds = [TensorDict({"a": torch.ones(n, 2)}, [n]) for n in (2, 3)]
        >>> pad_sequence(tds).batch_size
        torch.Size([2, 3])
    """
    if not list_of_tds:
        raise RuntimeError("list_of_tds cannot be empty")
    if padding_side not in ("left", "right"):
        raise ValueError(f"padding_side is 'left' or 'right', got {padding_side!r}")
    mask_key = "masks" if return_mask is True else return_mask or None
    first = list_of_tds[0]
    for key, value in first.items(True, True):
        if not -value.ndim <= pad_dim < value.ndim:
            raise IndexError(f"pad_dim={pad_dim} is out of range for the key {key} of shape {list(value.shape)}")
    result = first.empty(batch_size=_padded_size(list_of_tds, pad_dim), names=None)
    for path in sorted(map(path_of, first.keys(True)), key=len):  # from the outside
        if not is_leaf_nontensor(type(first._get_path(path))):
            result.create_nested(path)
    masks: dict[Any, Tensor] = {}
    for key in first.keys(True, True):
        column = [td.get(key) for td in list_of_tds]
        if any(value is None for value in column):  # entries that one of them lacks are dropped
            continue
        axis = pad_dim if pad_dim >= 0 else pad_dim + column[0].ndim
        lengths = torch.tensor([value.shape[axis] for value in column])
        longest = int(lengths.max())
        left = padding_side == "left"
        result.set(key, torch.stack([_grow(value, axis, longest, padding_value, left) for value in column]))
        steps = torch.arange(longest)
        real = steps >= (longest - lengths[:, None]) if left else steps < lengths[:, None]
        masks[key] = real
    left = padding_side == "left"
    for key in first.keys(True, True, is_leaf=is_leaf_nontensor):
        if isinstance(first._get_path(path_of(key)), Tensor):
            continue
        if all(key in td.keys(True, True, is_leaf=is_leaf_nontensor) for td in list_of_tds):
            column = [td._get_path(path_of(key)) for td in list_of_tds]
            result.set(key, _stack_non_tensors(column, result._batch_size, left))  # added rows hold None
    if mask_key is not None:
        for key, value in masks.items():
            result.set((mask_key, *((key,) if isinstance(key, str) else key)), value)
    if device is not None:
        result = result.to(device)
    return result if out is None else _write_out(out, result)


def _padded_size(items: Sequence[Any], pad_dim: int) -> torch.Size:
    size = list(items[0]._batch_size)
    if 0 <= pad_dim < len(size):
        size[pad_dim] = max(td._batch_size[pad_dim] for td in items)
    return torch.Size((len(items), *size))


def _stack_non_tensors(column: Sequence[Any], size: torch.Size, left: bool) -> Any:
    rows = []
    for value in column:
        missing = [longest - n for longest, n in zip(size[1:], value._batch_size)]
        rows.append(value.pad([n for m in missing for n in ((m, 0) if left else (0, m))]))
    return stack_class(rows)._stack_entries(rows, 0)


def _grow(value: Tensor, axis: int, length: int, padding_value: float, left: bool) -> Tensor:
    missing = length - value.shape[axis]
    if not missing:
        return value
    spec = [0, 0] * (value.ndim - axis - 1) + ([missing, 0] if left else [0, missing])
    return torch.nn.functional.pad(value, spec, value=padding_value)


def unpad_sequence(td: Any, *, mask: Tensor | None = None, mask_key: Any = "masks") -> list[Any]:
    """The inverse of ``pad_sequence(..., return_mask=True)``: a list of collections of their own lengths."""
    if mask is None:
        mask = td.get(mask_key)
    if mask is None:
        raise KeyError(f"unpad_sequence needs the mask that pad_sequence(return_mask=True) stores; no key {mask_key!r}")
    rows = td.exclude(mask_key).unbind(0)
    if isinstance(mask, TensorCollection):
        mask = mask._leaves()[0]
    return [row[m.reshape(m.shape[-1]) if m.ndim == 1 else m] for row, m in zip(rows, mask.unbind(0))]


_torch_stack, _torch_cat, _Size = torch.stack, torch.cat, torch.Size


def stack_entries(cls: Any, items: Sequence[Any], dim: int) -> Any:
    """Stack dense collections entry by entry; ``dim`` is non-negative."""
    first = items[0]
    size = first._batch_size
    source = first._source
    count = len(source)
    sources = []
    for item in items:
        entries = item._source
        if item._batch_size != size or len(entries) != count:
            raise _not_congruent(items)
        sources.append(entries)
    out = {}
    key = ""
    column: list[Any] = []
    try:
        for key, value in source.items():
            column = [entries[key] for entries in sources]
            if type(value) is Tensor or isinstance(value, Tensor):
                out[key] = _torch_stack(column, dim)
            else:
                out[key] = stack_class(column)._stack_entries(column, dim)
    except KeyError:
        raise _not_congruent(items) from None
    except (RuntimeError, TypeError) as err:
        raise _bad_column(column, key, err) from err
    names = None if first._names is None else stacked_names(items, dim)
    rows = len(items)
    return first._rebuild(out, _Size((*size[:dim], rows, *size[dim:]) if dim else (rows, *size)), names)


def cat_entries(cls: Any, items: Sequence[Any], dim: int) -> Any:
    """Concatenate dense collections entry by entry; ``dim`` is non-negative."""
    first = items[0]
    size = first._batch_size
    source = first._source
    count = len(source)
    length, rows, typed = 0, size[dim], False
    sources = []
    for item in items:
        entries = item._source
        length += rows if item._batch_size == size else _joined_rows(items, item, dim)
        typed = typed or item._types is not None
        if len(entries) != count:
            raise _other_keys(items)
        sources.append(entries)
    out = {}
    key = ""
    column: list[Any] = []
    try:
        for key, value in source.items():
            column = [entries[key] for entries in sources]
            if type(value) is Tensor:
                out[key] = _torch_cat(column, dim)
            elif isinstance(value, Tensor):
                out[key] = _cat_of_a_class(column, dim)
            else:
                out[key] = stack_class(column)._cat_entries(column, dim)
    except KeyError:
        if any(key not in entries for entries in sources):
            raise _other_keys(items) from None
        raise  # raised by a nested collection
    except (RuntimeError, TypeError) as err:
        if not isinstance(column[0], Tensor):
            raise
        raise _bad_kind(column, key) or RuntimeError(f"{err} (for key {key})") from err
    own = (*size[:dim], length, *size[dim + 1 :]) if dim else (length, *size[1:])
    new = first._rebuild(out, _Size(own), first._names)
    if typed:
        new._types = joined_types(items)
    return new


def _cat_of_a_class(column: list[Any], dim: int) -> Tensor:
    """Tensors of a subclass; the rows of jagged ones, which torch does not concatenate."""
    if dim or not all(isinstance(tensor, Tensor) and tensor.layout is torch.jagged for tensor in column):
        return _torch_cat(column, dim)
    rows = [row for tensor in column for row in tensor.unbind()]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _joined_rows(items: Sequence[Any], item: Any, dim: int) -> int:
    """Length along ``dim`` of an item whose batch size differs from that of the first; they may differ there only."""
    size, other = items[0]._batch_size, item._batch_size
    if other[:dim] != size[:dim] or other[dim + 1 :] != size[dim + 1 :] or len(other) != len(size):
        at = next(at for at, one in enumerate(items) if one is item)
        raise RuntimeError(
            f"cat: batch sizes may differ along dim {dim} only, got {list(other)} at position {at} and "
            f"{list(size)} at position 0"
        )
    return int(other[dim])


def stack_class(items: Sequence[Any]) -> Any:
    """The class that combines these items: a lazy or non-tensor class wins over a dense one."""
    first = type(items[0])
    mixed = False
    for item in items:
        kind = type(item)
        if kind is not first:
            if not isinstance(item, TensorCollection):
                raise RuntimeError(f"cannot combine {_kind_name(items[0])} with {_kind_name(item)}")
            mixed = True
            if kind._stack_priority > first._stack_priority:
                first = kind
    if mixed:
        first._check_kinds(items)
    return first


def joined_into(join: Callable[..., Tensor], items: Sequence[Any], dim: int, out: Any) -> bool:
    """Stack or join trees of tensors directly into the tensors of ``out``. Return whether it succeeded.

    False, possibly after some entries, if ``out`` lacks an entry or has another shape, if there are objects or
    gradients, or if items share memory with ``out``. The caller then makes the result first and copies it.

    Args:
        join: ``torch.stack`` or ``torch.cat``.
        items: collections.
        dim: dimension, not negative.
        out: the destination.
    """
    if torch.compiler.is_compiling():
        return False
    columns: list[list[Tensor]] = []
    targets: list[Tensor] = []
    count = len(items)
    sizes: dict[torch.Size, tuple[int, ...]] = {}  # of results, by the sizes of what is joined: a tree has few
    levels: list[tuple[Sequence[Any], Any]] = [(items, out)]
    try:
        while levels:
            items, out = levels.pop()
            kind, size, length = type(out), items[0]._batch_size, len(items[0]._source)
            if kind._is_non_tensor or kind._is_unbatched or out._batch_size != _joined(join, size, dim, count):
                return False
            sources = []
            for item in items:
                source = item._source
                if type(item) is not kind or item._batch_size != size or len(source) != length:
                    return False
                sources.append(source)
            entries = out._source
            for key, value in sources[0].items():
                target, column = entries[key], [one[key] for one in sources]
                if type(value) is not Tensor and not isinstance(value, Tensor):
                    levels.append((column, target))
                    continue
                shape = value.shape
                if shape not in sizes:
                    sizes[shape] = _joined(join, shape, dim, count)
                if target.shape != sizes[shape]:
                    return False
                columns.append(column)
                targets.append(target)
        if not _share_memory(columns, targets):
            for column, target in zip(columns, targets):
                join(column, dim, out=target)
            return True
    except (KeyError, RuntimeError, TypeError, AttributeError):
        pass
    return False


def _joined(join: Callable[..., Tensor], size: torch.Size, dim: int, count: int) -> tuple[int, ...]:
    """The size of the result for tensors of the same size."""
    out = list(size)
    if join is _torch_stack:
        out.insert(dim, count)
    else:
        out[dim] *= count
    return tuple(out)


def _share_memory(columns: list[list[Tensor]], targets: list[Tensor]) -> bool:
    """Whether a tensor of the columns shares its storage with a target, which torch misses for strided views."""
    uses, shared = torch._C._storage_Use_Count, set()
    for target in targets:
        storage = target.untyped_storage()
        # One reference is the tensor, one the object here: without others, no tensor shares the target's storage.
        if uses(storage._cdata) > 2:
            shared.add(storage._cdata)
    return bool(shared) and any(one.untyped_storage()._cdata in shared for column in columns for one in column)


def stacked(items: Sequence[Any], dim: int) -> Any:
    """:func:`stack` for a dim that is known to be valid."""
    return stack_class(items)._stack_entries(items, dim)


def _not_congruent(items: Sequence[Any]) -> RuntimeError:
    """The error for items that do not stack: the first batch size or set of keys that differs."""
    first = items[0]
    for at, item in enumerate(items):
        if item._batch_size != first._batch_size:
            return RuntimeError(
                "stacking tensordicts requires them to have congruent batch sizes, got "
                f"td[{at}].batch_size={item._batch_size} and td[0].batch_size={first._batch_size}"
            )
        odd = sorted(set(first._key_list()) ^ set(item._key_list()))
        if odd:
            return RuntimeError(
                f"The sets of keys in the tensordicts to stack are exclusive: {odd} are in one of items 0 and {at} "
                "only. Consider using `LazyStackedTensorDict.maybe_dense_stack` instead."
            )
    return RuntimeError("the tensordicts to stack do not have the same keys at every level")


def _other_keys(items: Sequence[Any]) -> KeyError:
    """The error for items that cannot be joined: the first with other keys."""
    keys = sorted(items[0]._source)
    at = next(at for at, item in enumerate(items) if sorted(item._source) != keys)
    return KeyError(
        f"tensordict {at} has keys {sorted(items[at]._source)} but tensordict 0 has keys {keys}; all "
        "tensordicts must have the same keys"
    )


def _bad_column(column: Sequence[Any], key: str, err: Exception) -> Exception:
    if not all(isinstance(value, Tensor) for value in column[:1]):
        return err  # raised below, with the key path
    mixed = _bad_kind(column, key)
    if mixed is not None:
        return mixed
    for value in column:
        if value.shape != column[0].shape:
            return RuntimeError(
                f"The shapes of the tensors to stack is incompatible: {value.shape} vs {column[0].shape} for key "
                f"{key}. LazyStackedTensorDict.lazy_stack keeps entries of different shapes."
            )
    return RuntimeError(f"{err} (for key {key})")


def _bad_kind(column: Sequence[Any], key: str) -> RuntimeError | None:
    for value in column:
        if not isinstance(value, Tensor):
            return RuntimeError(f"cannot combine a tensor with {_kind_name(value)} (for key {key})")
    return None


def _kind_name(value: object) -> str:
    if isinstance(value, TensorCollection):
        return "an unbatched tensor" if value._is_unbatched else f"a {type(value).__name__}"
    return "a tensor" if isinstance(value, Tensor) else f"an object of type {type(value).__name__}"
