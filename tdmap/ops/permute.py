"""`permute`: rows of a dataset in any order."""

from __future__ import annotations

import os
from typing import Any, Unpack

from torch import Tensor

from tdmap.data.kinds import Dataset, R
from tdmap.output.permute import check_order, permute_rows
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options


@operation
def permute(
    ctx: Context,
    data: Dataset[R],
    order: Tensor,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    method: str | None = None,
    **options: Unpack[Options],
) -> R:
    """Rows of a dataset in a given order: row *i* of the result is row `order[i]` of the data.

    Args:
        data: a tensor or collection with rows in dimension 0.
        order: row numbers, int64 `[m]`: a permutation, a selection, or repeated rows. A memory-mapped tensor is not
            copied; any other is copied to shared memory, 8 bytes per row.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with at least *m* rows.
        method: `"gather"` or `"scatter"` (see `tdmap.output.permute`), with the same result. None chooses scatter if
            rows are small and the data do not fit into memory.
        **options: see `tdmap.Options`. Scatter writes 8 bytes per row of intermediate files, and with another library's
            workers as much as the result.

    Returns:
        The first *m* rows of `out`, the dataset loaded from the folder, or a new one.

    Raises:
        IndexError: an element of `order` is not a row number of the data.
        TypeError: `order` is not int64, or not one-dimensional.
        OutputMismatch: `out` has too few rows, or other shapes or dtypes.
        ValueError: `out` shares memory with the data.
        OSError: not enough space.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(4) * 10}, [4])
        >>> permute(data, torch.tensor([3, 0, 0]), num_workers=2)["x"]
        tensor([30,  0,  0])
    """
    return permute_rows(ctx, data, check_order(data, order), method)
