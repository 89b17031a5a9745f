"""`train_test_split`: a part of the rows to train with, and one to test with."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from tdmap.data.kinds import Data, Dataset, R
from tdmap.data.reader import require_entry
from tdmap.data.stacks import column_at, ragged_columns
from tdmap.devices import check_no_device
from tdmap.functions import Key
from tdmap.ops.permute import permute
from tdmap.reducers.ranks import ranked
from tdmap.run.operation import entry_point
from tdmap.run.options import Options
from tdmap.samplers import shares
from tdmap.seeding import permutation, seed_or_drawn
from tensordict_lite.paths import local_path


@entry_point
def train_test_split(
    data: Dataset[R],
    test_size: float | int = 0.25,
    *,
    out: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    stratify: Key | Tensor | Sequence[Any] | None = None,
    shuffle: bool = True,
    **options: Unpack[Options],
) -> tuple[R, R]:
    """Split the rows into a training part and a test part.

    Args:
        data: a collection with rows in dimension 0.
        test_size: size of the test part: a share between 0 and 1, or a number of rows.
        seed: the same seed gives the same parts, for any number of workers. None draws a seed from torch's global
            generator.
        stratify: an entry of numbers or strings, or one value per row. Each value has its share of the test part,
            rounded up or down to a whole row.
        shuffle: False takes the last rows as the test part, without shuffling.
        out: a folder or URL for the two datasets `train` and `test`. None returns them in memory.
        **options: see `tdmap.Options`. `resume=True` needs a seed.

    Returns:
        Both parts, each in random order.

    Raises:
        TypeError: `test_size` is not a number.
        ValueError: a part would have no rows, or options exclude each other.

    Example:
        >>> train, test = train_test_split(torch.arange(8), 2, seed=0, num_workers=0)
        >>> len(train), len(test), sorted([*train.tolist(), *test.tolist()])
        (6, 2, [0, 1, 2, 3, 4, 5, 6, 7])
    """
    check_no_device(out, data)
    rows = len(data)
    given: object = test_size
    if not isinstance(given, numbers.Real):
        raise TypeError(
            f"test_size must be a share or a number of rows: got {test_size!r}. For a third part, split the test part "
            "again."
        )
    share = float(given)
    count = int(given) if isinstance(given, numbers.Integral) else round(rows * share) if math.isfinite(share) else 0
    if isinstance(test_size, bool) or not 0 < count < rows:
        raise ValueError(f"test_size={test_size!r} of {rows:,} rows leaves a part without rows.")
    if stratify is not None and not shuffle:
        raise ValueError("stratify= chooses rows at random: it needs shuffle=True.")
    if options.get("resume") and shuffle and seed is None:
        raise ValueError("resume=True needs the same parts in each session: pass seed=.")
    order = torch.arange(rows)
    if shuffle:
        known = seed_or_drawn(seed)
        order = permutation(rows, known)
        if stratify is not None:
            order = _spread(order, _labels(data, stratify), count, torch.Generator().manual_seed(known % (1 << 63)))
    parts = (order[: rows - count].contiguous(), order[rows - count :].contiguous())
    places = (None, None) if out is None else [f"{local_path(out)}/{name}" for name in ("train", "test")]
    columns: Any = ragged_columns(data)  # once for both
    first, second = (permute(columns, part, out=place, **options) for part, place in zip(parts, places))
    return first, second


def _labels(data: Data, stratify: Key | Tensor | Sequence[Any]) -> Tensor:
    """What tells the groups apart: the numbers of an entry, or one for each of its strings."""
    labels: Any = stratify
    if isinstance(stratify, (str, tuple)):
        require_entry(data, stratify, "the entry of stratify")
        labels = column_at(data, stratify)
    if not isinstance(labels, Tensor):
        numbers: dict[Any, int] = {}
        with contextlib.suppress(TypeError):  # no labels at all, or lists
            values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
            labels = torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.int64)
    if not isinstance(labels, Tensor) or labels.shape != (len(data),):
        shape = list(labels.shape) if isinstance(labels, Tensor) else "lists or other objects"
        raise ValueError(f"stratify needs one number or string a row, [{len(data)}]: got {shape}.")
    return ranked(labels, "stratify=")


def _spread(order: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The order with the share of each label among its last `count` rows."""
    groups, sizes = torch.unique(labels[order], return_inverse=True, return_counts=True)[1:]
    by_group = groups.argsort(stable=True)
    within = torch.arange(len(order)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    tested = torch.empty(len(order), dtype=torch.bool)
    tested[by_group] = within < shares(sizes.double(), count, generator).repeat_interleave(sizes)
    return torch.cat([order[~tested], order[tested]])  # within each part, rows are in their random order
