"""`unique` and `value_counts`: the different keys of a dataset of any size."""

from __future__ import annotations

import os
from typing import Any, Unpack

import torch
from torch import Tensor

from tdmap.data.kinds import Dataset
from tdmap.keys.keys import KeyLike, KeySpec
from tdmap.ops.group_by import GroupBy, reduce_groups
from tdmap.output.permute import deliver
from tdmap.reducers import Count
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options


@operation
def unique(
    ctx: Context,
    data: Dataset[Any],
    key: KeyLike,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    dropna: bool = False,
    **options: Unpack[Options],
) -> Any:
    """The distinct keys of a dataset, sorted.

    Args:
        data: a tensor or collection with rows in dimension 0.
        key: an entry, a nested entry, a list of entries, or a function of a chunk, as `tdmap.group_by` takes.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
        dropna: leave out keys with a NaN, or a string that is None. If False, these are one key, the last.
        **options: see `tdmap.Options`.

    Returns:
        A TensorDict with the key columns, of batch size `[keys]`. The column of a key function is `"key"`.

    Raises:
        KeyError, TypeError, ValueError: the entry is unknown, cannot be a key, or has several values in a row.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"shop": torch.tensor([7, 3, 7])}, [3])
        >>> unique(data, "shop", num_workers=0)["shop"]
        tensor([3, 7])
    """
    groups = GroupBy(data, KeySpec.of(key, "unique"), dropna)
    return deliver(reduce_groups(ctx.inner(), groups, {_COUNT: Count()}).exclude(_COUNT), ctx.output)


@operation
def value_counts(
    ctx: Context,
    data: Dataset[Any],
    key: KeyLike,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    dropna: bool = False,
    sort: bool = True,
    name: str = "count",
    **options: Unpack[Options],
) -> Any:
    """Count the rows of each key.

    Args:
        data, key, out, dropna, **options: as `unique`.
        sort: sort by count, the most frequent key first, then by key. False sorts by key.
        name: name of the entry with the counts.

    Returns:
        A TensorDict with the key columns and the counts (int64), of batch size `[keys]`.

    Raises:
        KeyError, TypeError, ValueError: the entry is unknown, cannot be a key, or has several values in a row.
        ValueError: `name` is the name of a key.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"shop": torch.tensor([3, 7, 7])}, [3])
        >>> counts = value_counts(data, "shop", num_workers=0)
        >>> counts["shop"], counts["count"]
        (tensor([7, 3]), tensor([2, 1]))
    """
    spec = KeySpec.of(key, "value_counts")
    if any(name in (one, one[0]) for one in spec.names):
        raise ValueError(f"value_counts: the counts cannot be named {name!r}, as a key is: pass another name=.")
    groups = GroupBy(data, spec, dropna)
    found = reduce_groups(ctx.inner(), groups, {name: Count()})
    if sort:
        counts: Tensor = found[name]
        found = found[torch.argsort(counts, descending=True, stable=True)]
    return deliver(found, ctx.output)


_COUNT = "__count__"
