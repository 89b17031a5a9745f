"""A join whose first dataset is much the smaller one: its keys make the lookup, and rows of the second one stream by.

    a ──► lookup ◄── keys of b ──► which row of a each row of b belongs to
                                   sorted by that: the index that a lookup of b would have been, without its keys

Sorting numbers of rows costs a fraction of sorting keys through files. Pairs come in the same order either way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.keys.joins.lookup import Lookup, lookup_of
from tdmap.keys.joins.placing import Matches, find_matches
from tdmap.keys.prepare import KeyedData
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.run.context import Context

FACTOR = 4
"""The second dataset has at least so many times as many rows."""

ROW_BYTES = 32
"""Memory that this takes for a row of the second dataset."""


def rows_of_first(ctx: Context, first: KeyedData, second: KeyedData, spill: Spill) -> NDArray[Any] | None:
    """For each row of the second dataset its row of the first one, -1 for none.

    None where that does not pay, or the first dataset has a key twice.
    """
    rows, others = (int(side.data.shape[0]) for side in (first, second))
    if not rows or rows * FACTOR > others or others * ROW_BYTES > ctx.tuning.lookup_bytes:
        return None
    lookup = lookup_of(ctx, first, spill)
    if not lookup.is_unique:
        return None
    found: NDArray[Any] = find_matches(ctx, second, lookup).at.numpy()
    return found


def with_partner(owners: NDArray[Any], rows: int) -> Tensor:
    """Whether each of so many rows of the first dataset is the row of any of the second one."""
    has = np.zeros(rows, dtype=bool)
    has[owners[owners >= 0]] = True
    return torch.from_numpy(has)


def as_matches(owners: NDArray[Any], rows: int, share: bool) -> tuple[Lookup, Matches]:
    """What a lookup of the second dataset would have found for so many rows of the first one."""
    partners = np.flatnonzero(owners >= 0)
    if len(partners) < len(owners):
        owners = owners.take(partners)
    counts = np.bincount(owners, minlength=rows)
    # Owner and row in one number, in the memory that the workers will read.
    shape = torch.Size([len(partners)])
    index = (Arena().empty(torch.int64, shape) if share else torch.empty(shape, dtype=torch.int64)).numpy()
    bits = int(partners[-1]).bit_length() if len(partners) else 0
    np.left_shift(owners, bits, out=index, dtype=np.int64)  # rows of few bits would be cut otherwise
    index |= partners
    index.sort()
    index &= (1 << bits) - 1
    starts = np.cumsum(counts) - counts
    found = Matches(torch.from_numpy(starts), torch.from_numpy(counts.astype(np.int64)))
    return Lookup.of_rows(index, share), found
