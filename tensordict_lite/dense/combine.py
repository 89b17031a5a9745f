"""Several collections into one: stack, cat, pad_sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.joining import joined_into, stack_class
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.settings import settings


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
        >>> from tensordict_lite import TensorDict
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
            return torch.stack(items, dim, out=out)
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
        return torch.cat(items, dim, out=out)
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


def pad(
    tensordict: Any, pad_size: Sequence[int], value: float = 0.0, *, inplace: bool = False, safe: bool = True
) -> Any:
    """Function form of :meth:`TensorDict.pad`."""
    return tensordict.pad(pad_size, value, inplace=inplace, safe=safe)


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
        >>> from tensordict_lite import TensorDict
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
    for key in first._key_list():
        if key not in result.keys() and not isinstance(first._get_str(key), Tensor):
            # Non-tensor values: added rows hold None.
            if any(key not in td.keys() for td in list_of_tds):
                continue
            column = [td._get_str(key) for td in list_of_tds]
            result._set_str(key, _stack_non_tensors(column, result._batch_size, left))
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
