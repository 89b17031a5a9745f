"""`sample`: rows at random."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.kinds import Data, Dataset, R
from tdmap.data.reader import require_entry
from tdmap.data.stacks import column_at
from tdmap.output.permute import permute_rows
from tdmap.reducers.ranks import require_real
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options
from tdmap.samplers import drawn_again, drawn_once
from tdmap.seeding import checked_seed, seed_or_drawn


@operation
def sample(
    ctx: Context,
    data: Dataset[R],
    n: int | None = None,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    frac: float | None = None,
    weights: str | tuple[str, ...] | Tensor | NDArray[Any] | Sequence[float] | None = None,
    replace: bool = False,
    shuffle: bool = False,
    seed: int | None = None,
    **options: Unpack[Options],
) -> R:
    """Draw rows at random, each at most once unless `replace`.

    Args:
        data: a tensor or collection with rows in dimension 0.
        n: number of rows.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
        frac: share of the rows, instead of `n`.
        weights: sampling weight of each row: the name of an entry, or a tensor, array or list of `[rows]` non-negative
            numbers. They need not sum to one, and take 16 bytes of memory per row. Default: equal weights.
        replace: draw with replacement.
        shuffle: return rows in the order of drawing; otherwise in the order of the data, which reads faster.
        seed: the same seed draws the same rows. None draws a seed from torch's global generator.
        **options: see `tdmap.Options`.

    Raises:
        TypeError: both or neither of `n` and `frac` are given.
        ValueError: `n` exceeds the number of rows (with a positive weight); or a weight is negative or not finite.
        KeyError: unknown entry of weights.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(10), "w": (torch.arange(10) == 7).float()}, [10])
        >>> sample(data, 1, weights="w", seed=0, num_workers=0)["x"]
        tensor([7])
    """
    seed = checked_seed(seed)
    if isinstance(weights, np.ndarray) or (isinstance(weights, (list, tuple)) and not _is_key(weights)):
        weights = torch.as_tensor(weights)
    length = int(data.shape[0])
    count = _count(n, frac, length)
    odds = None if weights is None else _odds(data, weights, length)
    possible = length if odds is None else int(np.count_nonzero(odds))
    if count > possible and (not replace or not possible):
        what = "rows" if odds is None else "rows with a weight"
        raise ValueError(
            f"sample: cannot draw {count} rows from {possible} {what}: pass replace=True, or a smaller number."
        )
    known = ctx.decide("seed", lambda: seed_or_drawn(seed))
    random = np.random.Generator(np.random.Philox(known % (1 << 64)))
    rows = _drawn(random, length, count, odds, replace)
    if shuffle:
        random.shuffle(rows)
    else:
        rows.sort()
    return permute_rows(ctx, data, torch.from_numpy(rows))


def _count(n: int | None, frac: float | None, length: int) -> int:
    if (n is None) is (frac is None):
        raise TypeError(f"sample takes a number of rows n=, or their share frac=: got n={n!r}, frac={frac!r}.")
    if n is not None:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
            raise ValueError(f"n must be a number of rows: got {n!r}.")
        return int(n)
    if not isinstance(frac, (int, float)) or not 0 <= frac < float("inf"):
        raise ValueError(f"frac must be a share of the rows, as 0.1: got {frac!r}.")
    return round(frac * length)


def _is_key(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, str) for part in value)


def _odds(data: Data, weights: Any, length: int) -> NDArray[np.float64]:
    if not isinstance(weights, Tensor):
        require_entry(data, weights, "the entry of weights")
        weights = column_at(data, weights)
    if not isinstance(weights, Tensor) or weights.numel() != length or len(weights) != length:
        found = f"shape {list(weights.shape)}" if isinstance(weights, Tensor) else "rows of text, lists or objects"
        raise ValueError(f"weights must be one number a row, [{length}]: got {found}.")
    require_real(weights, "weights=")
    odds: NDArray[np.float64] = weights.detach().reshape(-1).double().numpy(force=True)
    if not np.isfinite(odds).all() or (odds < 0).any():
        row = int(np.flatnonzero(~(np.isfinite(odds) & (odds >= 0)))[0])
        raise ValueError(f"weights are finite and not negative: the one of row {row} is {odds[row]}.")
    return odds


def _drawn(
    random: np.random.Generator, length: int, count: int, odds: NDArray[np.float64] | None, replace: bool
) -> NDArray[np.int64]:
    if odds is None:
        if replace:
            return random.integers(0, max(length, 1), count)
        return random.choice(length, count, replace=False) if count else np.zeros(0, dtype=np.int64)
    if replace:
        return drawn_again(odds, random.random(count))
    return drawn_once(odds, random.standard_exponential(length), count)
