"""`drop_duplicates`: the rows of a dataset whose key is not that of another row, in their order.

job 1, 2   keys ──► (key, number of row), sorted        see `tdmap.keys.index`
between    the first or last row of each key ──► mask, a byte a row
job 3      rows that are kept ──► their place           as `tdmap.filter`
"""

from __future__ import annotations

import os
from typing import Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import Data
from tdmap.keys.index import Index, sorted_rows
from tdmap.keys.keys import KeyLike, KeySpec
from tdmap.keys.order import equal, take
from tdmap.keys.prepare import prepare
from tdmap.ops.filter import MASK, copy_selected
from tdmap.output.output import SourceRows
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options

BLOCK_ROWS = 1 << 20
"""Rows that are marked at a time: the index of more rows than memory holds is in files."""


@operation
def drop_duplicates(
    ctx: Context,
    data: Data,
    key: KeyLike,
    keep: Literal["first", "last"] | None = "first",
    out: Data | str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Data:
    """The rows of a dataset without those whose key another row has, in their order, with all their entries.

    Args:
        data: a tensor or a collection, with rows in dimension 0. It is not changed.
        key: an entry, a nested entry, a list of entries, or a function of a chunk, as `tdmap.group_by` takes. Rows are
            duplicates if all entries of the key are equal. NaN equals NaN, and -0.0 equals 0.0.
        keep: which row of each key is kept: the `"first"`, or the `"last"`; None: only rows whose key occurs once.
        out: None for new shared memory; a folder for a new memory-mapped dataset; or a dataset with room for the rows.
        **options: see `tdmap.Options`. `chunksize` is the number of rows whose keys are read at a time. Intermediate
            files take 17 bytes a row, and 16 more for every 8 bytes of its key. Distinct strings are kept in memory.

    Returns:
        `out`, cut to the rows that were kept; the dataset loaded from the folder; or a new one. The same bits for any
        number of workers.

    Raises:
        KeyError, TypeError: there is no such entry, or it cannot be a key.
        ValueError: `keep` is something else; or `out` is, or shares memory with, the data.
        OutputMismatch: `out` is too small or has other shapes or dtypes.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> visits = TensorDict({"user": torch.tensor([7, 3, 7]), "page": torch.tensor([1, 2, 3])}, [3])
        >>> drop_duplicates(visits, "user", num_workers=0)["page"]
        tensor([1, 2])
        >>> drop_duplicates(visits, "user", keep=None, num_workers=0)["page"]
        tensor([2])
    """
    if keep not in ("first", "last", None):
        raise ValueError(f"keep must be 'first', 'last', or None for rows whose key occurs once: got {keep!r}.")
    keyed = prepare(ctx, data, KeySpec.of(key, "drop_duplicates"), "drop_duplicates", dropna=False)
    source = SourceRows(data)
    source.check(ctx.output)
    with ctx.spill() as spill:
        index = sorted_rows(ctx, keyed, spill, with_words=True, chunksize=ctx.chunksize)
        mask = spill.mapped(MASK, len(index.rows)).view(torch.bool)
        _mark(mask, index, keep)
        copy_selected(ctx, data, source, mask)
    return ctx.output.result()


def _mark(mask: Tensor, index: Index, keep: str | None) -> None:
    """Set the mask of the rows that are kept; rows with equal keys are neighbours in the index, in their order."""
    length = len(index.rows)
    words = [word.numpy().view(np.uint64) for word in index.words]
    for start in range(0, length, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, length)
        changes = np.ones(stop - start + 1, dtype=np.bool_)  # before each row, and behind the last one
        first, last = max(start, 1), min(stop + 1, length)
        same = equal(take(words, slice(first, last)), take(words, slice(first - 1, last - 1)))
        changes[first - start : last - start] = ~same
        kept = {"first": changes[:-1], "last": changes[1:], None: changes[:-1] & changes[1:]}[keep]
        mask[index.rows[start:stop]] = torch.from_numpy(kept)
