"""Which rows a loader takes: by weight, the same number of each class, or of several datasets by ratio.

An order is a function of the seed and the epoch alone: it is the same for any number of workers, and the number of rows
that were taken is enough to resume.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from tdmap.arguments import require_integer
from tdmap.process_state import on_host
from tdmap.seeding import derive


@on_host
class RowSampler(Sampler[int]):
    """Row numbers, in another order in each epoch; for `DataLoader(sampler=)`, or `for rows in sampler.batches(n)`.

    Args:
        num_samples: row numbers per epoch.
        seed: seed of the orders.

    Attributes:
        epoch: the current epoch; see `set_epoch`.
        position: how many numbers of the epoch were taken. A `DataLoader` with workers takes some ahead.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        require_integer("num_samples", num_samples, 1)
        self.num_samples = num_samples
        self.seed = int(seed)
        self.epoch = 0
        self.position = 0

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Tensor:
        """int64 `[num_samples]`, drawn with a generator."""

    def order(self, epoch: int | None = None) -> Tensor:
        """int64 `[num_samples]`: the rows of an epoch, by default of the current one: an order for `permute`."""
        epoch = self.epoch if epoch is None else epoch
        return self.draw(torch.Generator().manual_seed(derive(self.seed, epoch)))

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.epoch, self.position = int(epoch), 0

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        for rows in self.batches(1024, one_by_one=True):
            for row in rows.tolist():
                self.position += 1
                yield row

    def batches(self, batch_size: int, *, one_by_one: bool = False) -> Iterator[Tensor]:
        """int64 `[batch_size]`, as in `data[rows]`; the last batch may be shorter. After the last number of an epoch,
        the next epoch begins, also with another iterator or after `load_state_dict`.

        Args:
            batch_size: rows per batch.
            one_by_one: the caller counts what it takes, in `position`.
        """
        if self.position >= self.num_samples:
            self.set_epoch(self.epoch + 1)
        order = self.order()
        while self.position < len(order):
            rows = order[self.position : self.position + batch_size]
            if not one_by_one:
                self.position += len(rows)
            yield rows
        self.set_epoch(self.epoch + 1)

    def state_dict(self) -> dict[str, int]:
        """The position: plain numbers."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position, "num_samples": self.num_samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position of another sampler.

        Raises:
            ValueError: the other sampler has another seed or number of samples.
        """
        mine = self.state_dict()
        for name in ("seed", "num_samples"):
            if state[name] != mine[name]:
                raise ValueError(f"this sampler has {name}={mine[name]}, and the state is of one with {state[name]}.")
        self.epoch, self.position = int(state["epoch"]), int(state["position"])


@on_host
class WeightedSampler(RowSampler):
    """Draw rows with probabilities proportional to their weights.

    Args:
        weights: `[n]` non-negative numbers.
        num_samples: row numbers per epoch. Default: the number of weights.
        replacement: draw with replacement. Without, rows of large weight come early. Rows of weight 0 are never drawn.
        seed: of the orders.

    Example:
        >>> WeightedSampler([0.0, 1.0, 0.0], 4, seed=0).order().tolist()
        [1, 1, 1, 1]
    """

    def __init__(
        self,
        weights: Tensor | Sequence[float] | NDArray[Any],
        num_samples: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
    ) -> None:
        found = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach()
        if found.dim() != 1 or not len(found) or not bool(torch.isfinite(found).all()) or bool((found < 0).any()):
            raise ValueError("weights must be finite and not negative, one for each row.")
        able = int((found > 0).sum())
        super().__init__(len(found) if num_samples is None else num_samples, seed)
        if not able or (not replacement and able < self.num_samples):
            raise ValueError(f"cannot draw {self.num_samples} rows from {able} rows with a weight above 0.")
        self.weights = found
        self.replacement = replacement

    def draw(self, generator: torch.Generator) -> Tensor:
        weights = self.weights.numpy()
        if self.replacement:
            places = torch.rand(self.num_samples, dtype=torch.float64, generator=generator)
            return torch.from_numpy(drawn_again(weights, places.numpy()))
        times = torch.empty(len(weights), dtype=torch.float64).exponential_(generator=generator)
        return torch.from_numpy(drawn_once(weights, times.numpy(), self.num_samples))


@on_host
class BalancedSampler(RowSampler):
    """Draw the same number of rows (±1) of each class. A small class repeats rows after all of its rows were used.

    Args:
        labels: int64 `[n]`.
        num_samples: row numbers per epoch. Default: the number of labels.
        seed: of the orders.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 1])
        >>> labels[BalancedSampler(labels, 6, seed=0).order()].bincount().tolist()
        [3, 3]
    """

    def __init__(
        self, labels: Tensor | Sequence[int] | NDArray[Any], num_samples: int | None = None, *, seed: int = 0
    ) -> None:
        found = torch.as_tensor(labels)
        if found.dim() != 1 or not len(found) or found.is_floating_point():
            raise ValueError("labels must be integers, one for each row.")
        super().__init__(len(found) if num_samples is None else num_samples, seed)
        self.groups = [(found == label).nonzero()[:, 0] for label in found.unique()]

    def draw(self, generator: torch.Generator) -> Tensor:
        return _mixed(self.groups, [1.0] * len(self.groups), self.num_samples, generator)


@on_host
class MixedSampler(RowSampler):
    """Draw rows of several datasets by ratio. Numbers index the concatenation of the datasets, as in `ConcatDataset`.

    Args:
        lengths: number of rows of each dataset, or the datasets.
        ratios: `[datasets]`, the share of each dataset.
        num_samples: row numbers per epoch. Default: the number of all rows.
        seed: seed of the orders. A dataset repeats rows after all of its rows were used.

    Example:
        >>> order = MixedSampler([100, 10], [3, 1], 8, seed=0).order()
        >>> int((order < 100).sum()), int((order >= 100).sum())
        (6, 2)
    """

    def __init__(
        self, lengths: Sequence[Any], ratios: Sequence[float], num_samples: int | None = None, *, seed: int = 0
    ) -> None:
        counts = [int(length) if isinstance(length, Integral) else len(length) for length in lengths]
        found = [float(ratio) for ratio in ratios]
        if len(counts) != len(found) or not all(0 <= one < inf for one in found) or not any(found):
            raise ValueError(
                f"ratios must be {len(counts)} non-negative, finite numbers, one per dataset, not all 0: got {ratios}."
            )
        empty = next((n for n, (count, ratio) in enumerate(zip(counts, ratios)) if ratio and not count), None)
        if empty is not None:
            raise ValueError(f"dataset {empty} has no rows, and the ratio {ratios[empty]}.")
        super().__init__(sum(counts) if num_samples is None else num_samples, seed)
        self.groups = list(torch.arange(sum(counts)).split(counts))
        self.ratios = found

    def draw(self, generator: torch.Generator) -> Tensor:
        return _mixed(self.groups, self.ratios, self.num_samples, generator)


_SMALLEST, _LARGEST = 1e-200, 1e200
"""Weights are added as they are when the largest one lies between."""


def drawn_again(weights: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rows drawn with replacement: for each of some uniform random numbers, the row whose share of the sum it is in."""
    likely = np.flatnonzero(weights)
    if not len(likely):
        return likely
    if not _SMALLEST < weights.max() < _LARGEST:  # sums of such would be infinite, or lack most of their bits
        with np.errstate(all="ignore"):
            weights = weights / weights.max()
    ends = np.cumsum(weights)
    found = np.searchsorted(ends, places * ends[-1], side="right")
    drawn: NDArray[np.int64] = np.minimum(found, likely[-1])  # a product may be rounded up to the sum
    return drawn


def drawn_once(weights: NDArray[np.float64], times: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The first `count` rows of those drawn without replacement, by a standard exponential time of each row.

    The smallest of exponential times with these rates (Efraimidis and Spirakis, "Weighted random sampling with a
    reservoir", 2006).
    """
    with np.errstate(all="ignore"):
        # By their logarithms: the time of a weight near the least number would be infinite, as that of no weight.
        keys = np.log(times) - np.log(weights)
    rows = len(weights)
    order = np.argpartition(keys, count - 1)[:count] if 0 < count < rows else np.arange(rows)[:count]
    return order[np.argsort(keys[order], kind="stable")]


def shares(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """How many of `count` rows each of several groups gets by its weight, rounded up or down; int64 `[groups]`."""
    weights = weights / weights.max()  # their sum is finite
    wanted = weights / weights.sum() * count
    whole = wanted.floor().to(torch.int64)
    # What is left over goes to those who lost most, equal ones at random.
    lost = (
        torch.where(wanted > 0, wanted - whole, -1.0)
        + torch.rand(len(weights), generator=generator, dtype=torch.float32) * 1e-9
    )
    whole[torch.topk(lost, count - int(whole.sum())).indices] += 1
    return whole


def _mixed(groups: list[Tensor], ratios: list[float], count: int, generator: torch.Generator) -> Tensor:
    """`count` rows, shared among groups by `ratios`. A row of a group repeats only after all its rows were drawn."""
    parts = []
    for group, share in zip(groups, shares(torch.tensor(ratios, dtype=torch.float64), count, generator).tolist()):
        rounds = [torch.randperm(len(group), generator=generator) for _ in range(-(-share // max(len(group), 1)))]
        if rounds:
            parts.append(group[torch.cat(rounds)[:share]])
    rows = torch.cat(parts)
    return rows[torch.randperm(len(rows), generator=generator)]
