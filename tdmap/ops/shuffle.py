"""`shuffle`: a whole dataset in a uniformly random order, which the seed decides."""

from __future__ import annotations

import os
from typing import Any, Unpack

import torch

from tdmap.data.kinds import Dataset, R
from tdmap.memory.shm import Arena
from tdmap.output.permute import permute_rows
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options
from tdmap.seeding import checked_seed, permutation, seed_or_drawn

INLINE_ROWS = 1 << 16
"""An order of more rows than these is drawn into shared memory."""


@operation
def shuffle(
    ctx: Context,
    data: Dataset[R],
    seed: int | None = None,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    method: str | None = None,
    **options: Unpack[Options],
) -> R:
    """Write the rows of a dataset in random order.

    The order is `torch.randperm` with a CPU generator of the seed, so it depends only on the number of rows and the
    seed. `map_iter(shuffle=True, seed=seed)` draws the same order: reading the result from beginning to end gives the
    same epoch without random reads.

    Args:
        data: a tensor or collection with rows in dimension 0. It is not changed.
        seed: seed of the order. None draws a seed from torch's global generator.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows, which must
            not share memory with the data.
        method: method for data larger than memory, see `tdmap.ops.permute.permute`.
        **options: see `tdmap.Options`.

    Returns:
        The first rows of `out`, the dataset loaded from the folder, or a new one.

    Raises:
        ValueError: `out` is the data or shares memory with it.
        OutputMismatch: `out` has too few rows, or other shapes or dtypes.
        OSError: not enough space. The order takes 8 bytes of memory per row. The result takes as much space as the
            data; shuffling on disk takes 8 bytes more per row during the run, and with `resume=True` or Ray the size of
            the result again. Data that are stored in blocks (HDF5, Zarr) are copied to temporary files first.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(5)}, [5])
        >>> mixed = shuffle(data, seed=1, num_workers=2)
        >>> mixed["x"].tolist() == torch.randperm(5, generator=torch.Generator().manual_seed(1)).tolist()
        True
    """
    seed, rows = checked_seed(seed), int(data.shape[0])
    # Drawn where workers can read it: a second copy of 8 bytes a row would be a lot.
    shared = ctx.execution.in_processes and rows > INLINE_ROWS
    place = Arena().empty(torch.int64, torch.Size([rows])) if shared else None
    known = ctx.decide("seed", lambda: seed_or_drawn(seed))
    return permute_rows(ctx, data, permutation(rows, known, place), method)
