"""`top_k`: the rows with the largest values."""

from __future__ import annotations

import os
from typing import Any, Unpack

from tdmap.data.kinds import Data, Dataset, R
from tdmap.data.reader import require_entry
from tdmap.ops.reduce import fold
from tdmap.output.permute import permute_rows
from tdmap.reducers import TopK
from tdmap.reducers.base import Key
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options


@operation
def top_k(
    ctx: Context,
    data: Dataset[R],
    key: Key,
    k: int,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    largest: bool = True,
    **options: Unpack[Options],
) -> R:
    """The `k` rows with the largest values of an entry, largest first. Among ties the earlier row comes first.

    Args:
        data: a collection with rows in dimension 0.
        key: an entry with one value per row: numbers (NaN come last) or strings (None is ignored).
        k: maximum number of rows.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
        largest: False selects the smallest values, smallest first.
        **options: see `tdmap.Options`.

    Raises:
        KeyError: unknown entry.
        ValueError: `k` is less than 1, or a row has several values.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.tensor([3, 9, 5]), "id": torch.arange(3)}, [3])
        >>> top_k(data, "x", 2, num_workers=0)["id"]
        tensor([1, 2])
    """
    require_entry(data, key, "the entry of top_k")
    rows: Data = data
    best = fold(ctx, rows.select(key), TopK(key, k, largest))["row"]
    return permute_rows(ctx, data, best)
