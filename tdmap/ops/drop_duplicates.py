"""`drop_duplicates`: the rows of a dataset whose key is not that of another row, in their order.

job 1      keys ──► (key, number of row), cut into ranges of keys; one row a key and chunk where keys repeat
job 2      range of keys ──► the number of the row that is kept of each      see `tdmap.keys.group_jobs`
between    numbers ──► mask, a byte a row
job 3      rows that are kept ──► their place                                as `tdmap.filter`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from tdmap.data.kinds import Data, Dataset, R
from tdmap.keys.aggregates import GroupedEnd, Starts, States
from tdmap.keys.group_jobs import reduce_each_group
from tdmap.keys.keys import KeyLike, KeySpec
from tdmap.keys.prepare import prepare
from tdmap.keys.slots import Slotted
from tdmap.memory.spill import Extent, Spill
from tdmap.ops.filter import MASK, copy_selected
from tdmap.output.append import CollectPieces
from tdmap.output.output import SourceRows
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options


@operation
def drop_duplicates(
    ctx: Context,
    data: Dataset[R],
    key: KeyLike,
    keep: Literal["first", "last"] | None = "first",
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> R:
    """Keep one row per key, with all entries, in the order of the dataset.

    Args:
        data: a tensor or collection with rows in dimension 0. It is not changed.
        key: an entry, a nested entry, a list of entries, or a function of a chunk, as `tdmap.group_by` takes. Rows are
            duplicates if all entries of the key are equal. NaN equals NaN, None equals None, and -0.0 equals 0.0.
        keep: the row of each key to keep: `"first"` or `"last"`. None keeps only rows whose key occurs once.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
        **options: see `tdmap.Options`. `chunksize` is the number of rows whose keys are read at a time. Intermediate
            files take at most 17 bytes per row, and 8 for each 8 bytes of its key. Distinct strings are held in memory.

    Returns:
        The kept rows: the first rows of `out`, the dataset loaded from the folder, or a new one. The same bits for any
        number of workers.

    Raises:
        KeyError, TypeError, ValueError: the entry is unknown, cannot be a key, or has several values in a row.
        ValueError: `keep` is another value; or `out` is the data or shares memory with it.
        OutputMismatch: `out` has too few rows, or other shapes or dtypes.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> visits = TensorDict({"user": torch.tensor([7, 3, 7]), "page": torch.tensor([1, 2, 3])}, [3])
        >>> drop_duplicates(visits, "user", num_workers=0)["page"]
        tensor([1, 2])
        >>> drop_duplicates(visits, "user", keep=None, num_workers=0)["page"]
        tensor([2])
    """
    if keep not in ("first", "last", None):
        raise ValueError(f"keep must be 'first', 'last', or None (only rows whose key occurs once): got {keep!r}.")
    keyed = prepare(ctx, data, KeySpec.of(key, "drop_duplicates"), "drop_duplicates", dropna=False)
    source = SourceRows(data)
    source.check(ctx.output)
    kept = GroupedEnd(None, keep == "last") if keep is not None else _OnlyRow()
    with ctx.spill() as spill:
        mask = spill.mapped(MASK, int(data.shape[0])).view(torch.bool)
        marks = mask.numpy()
        found, _ = reduce_each_group(ctx, replace(keyed, names=()), {_ROW: kept}, spill, by_number=True)
        for rows in _rows_of(found, spill):
            marks[rows if keep is not None else rows[rows >= 0]] = True
        copy_selected(ctx, data, source, mask)
    rest: R = ctx.output.result()
    return rest


_ROW = "row"


def _rows_of(found: CollectPieces | Data, spill: Spill) -> Iterator[NDArray[np.int64]]:
    """The number of the row of each key, a range of keys at a time."""
    if not isinstance(found, CollectPieces):
        yield found[_ROW].numpy()
        return
    for piece in found.all:
        yield spill.read(Extent(piece.file, piece.offset, 8 * piece.rows), torch.int64, [piece.rows]).numpy()


class _OnlyRow(GroupedEnd):
    """The number of the row of a group that has one; -1 for others."""

    def __init__(self) -> None:
        super().__init__(None, last=False)

    def update(self, rows: Data, starts: Starts) -> States:
        return self._only(super().update(rows, starts), np.diff(starts, append=rows.shape[0]))

    def update_slots(self, chunk: Slotted) -> States:
        return self._only(super().update_slots(chunk), chunk.slots.sizes[chunk.slots.used])

    def merge(self, a: States, b: States) -> States:
        return (torch.full_like(a[0], -1),)

    def fold(self, states: States, starts: Starts) -> States:
        return self._only(super().fold(states, starts), np.diff(starts, append=len(states[0])))

    @staticmethod
    def _only(states: States, counts: Starts) -> States:
        states[0].numpy()[counts > 1] = -1
        return states
