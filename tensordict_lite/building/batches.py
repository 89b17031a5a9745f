"""Batches from samples, and one collection from several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.keys import unravel_key
from tensordict_lite.views import entry_of, leaf_items


def merge_tensordicts(*tensordicts: Any, callback_exist: Any = None) -> Any:
    """One collection with the entries of several, not copied; of equal keys the first collection wins.

    Args:
        *tensordicts: two or more; the batch size is that of the first.
        callback_exist: ``fn(*values)`` for tensors that are in all of them, or a dict of such functions by key.

    Raises:
        RuntimeError: fewer than two.

    Example:
        >>> a, b = TensorDict(x=torch.tensor(0), n={"y": 1}), TensorDict(x=torch.tensor(1), n={"z": 2})
        >>> sorted(merge_tensordicts(a, b).keys(True, True), key=str), merge_tensordicts(a, b)["x"]
        ([('n', 'y'), ('n', 'z'), 'x'], tensor(0))
    """
    if len(tensordicts) < 2:
        raise RuntimeError(f"merge_tensordicts() needs at least two collections, got {len(tensordicts)}")
    merged = tensordicts[-1].copy()
    first = tensordicts[0]
    if merged.batch_size != first.batch_size:
        merged = first._plain_class()({}, batch_size=first.batch_size, device=first.device).update(
            {key: merged._get_str(key) for key in merged._key_list()}
        )
    for td in reversed(tensordicts[:-1]):
        merged.update(td.copy())
    if callback_exist is None:
        return merged
    leaves = [dict(leaf_items(td, (), [])) for td in tensordicts]
    callbacks: Mapping[Any, Callable[..., Any]] = (
        {unravel_key(key): fn for key, fn in callback_exist.items()}
        if isinstance(callback_exist, Mapping)
        else dict.fromkeys(leaves[0], callback_exist)
    )
    for key, fn in callbacks.items():
        if all(key in known for known in leaves):
            merged.set(key, fn(*(known[key] for known in leaves)))
    return merged


def collate(
    batch: Any,
    *,
    pad_keys: Mapping[Any, float] | None = None,
    nested_keys: Sequence[Any] | None = None,
    mask_key: Any = None,
) -> Any:
    """Batch of a list of samples, for the ``collate_fn`` of a :class:`torch.utils.data.DataLoader`.

    Collections are stacked (densely where keys and shapes agree), tensors too; mappings and tuples are collated entry
    by entry; other values go to torch's ``default_collate``. A collection, or anything that is not a non-empty list,
    counts as a batch: it is returned unchanged, or padded and nested as the options ask.

    Args:
        batch: the samples, or a batch of them.
        pad_keys: entries of varying length with their padding values; padded along the first dimension.
        nested_keys: entries to stack into nested (jagged) tensors.
        mask_key: key of the masks of the padded entries: a collection with a bool tensor for each.

    Raises:
        KeyError: a sample lacks one of the keys.
        ValueError: the options contradict each other or the samples.
    """
    ragged = bool(pad_keys or nested_keys or mask_key is not None)
    if ragged and isinstance(batch, TensorCollection) and batch.batch_dims:
        batch = list(batch.unbind(0))
    if not isinstance(batch, list) or not batch:
        return batch
    first = batch[0]
    if isinstance(first, TensorCollection):
        if ragged:
            return _collate_ragged(batch, pad_keys or {}, nested_keys or (), mask_key)
        return _stack(batch)
    if isinstance(first, Tensor):
        return torch.stack(batch)
    options = {"pad_keys": pad_keys, "nested_keys": nested_keys, "mask_key": mask_key}
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in batch], **options) for key in first}
    if isinstance(first, tuple):
        columns = [collate(list(column), **options) for column in zip(*batch)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return default_collate(batch)


def _stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, TensorCollection):  # the result of __getitems__()
        return batch
    return registry.maybe_dense_stack(list(batch))


default_collate_fn_map[TensorCollection] = _stack  # as a DataLoader without a collate_fn does


def _collate_ragged(batch: list[Any], pad: Mapping[Any, float], nested: Sequence[Any], mask_key: Any) -> Any:
    pad = {unravel_key(key): value for key, value in pad.items()}
    nested = [unravel_key(key) for key in nested]
    _check_ragged(batch, pad, nested, mask_key)
    special = [*pad, *nested]
    result = _stack([sample.exclude(*special) for sample in batch])
    if nested and isinstance(result._source, list):
        raise ValueError(
            f"collate(nested_keys={nested}): the other entries differ in shape from sample to sample. Name every entry "
            "that varies in length in pad_keys or nested_keys."
        )
    masks = {}
    for key, value in pad.items():
        columns = [sample.get(key) for sample in batch]
        longest = max(column.shape[0] for column in columns)
        padded = columns[0].new_full((len(batch), longest, *columns[0].shape[1:]), value)
        masks[key] = torch.zeros(len(batch), longest, dtype=torch.bool, device=padded.device)
        for row, column in enumerate(columns):
            padded[row, : column.shape[0]] = column
            masks[key][row, : column.shape[0]] = True
        result.set(key, padded)
    for key in nested:
        result.set(key, torch.nested.nested_tensor([sample.get(key) for sample in batch], layout=torch.jagged))
    if mask_key is not None:
        result.set(mask_key, masks)
    return result


def _check_ragged(batch: list[Any], pad: Mapping[Any, float], nested: Sequence[Any], mask_key: Any) -> None:
    both = [key for key in nested if key in pad]
    if both:
        raise ValueError(f"collate(): the keys {both} are in both pad_keys and nested_keys")
    if mask_key is not None:
        mask_path = (mask_key,) if isinstance(mask_key, str) else tuple(mask_key)
        if not pad:
            raise ValueError(f"collate(mask_key={mask_key!r}) without pad_keys: there is nothing to mask")
        if any(entry_of(sample, mask_path) is not None for sample in batch):
            raise ValueError(f"collate(mask_key={mask_key!r}): that is an entry of a sample, choose another key")
    for key in (*pad, *nested):
        path = (key,) if isinstance(key, str) else key
        if any(entry_of(sample, path) is None for sample in batch):
            raise KeyError(f"collate(): a sample has no entry {key!r}")
    if pad and batch[0].batch_size:
        raise ValueError(
            "collate(pad_keys=...) pads the first dimension of the entries, which is a batch dimension of these "
            f"samples (batch size {list(batch[0].batch_size)}): give the samples an empty batch size, or use "
            "pad_sequence()"
        )
