"""A first look at a dataset: its first rows, figures of its columns, and a part that is kept for testing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.diagnostics.columns import Column, Columns, is_number
from tdmap.execution import Execution
from tdmap.ops.reduce import map_reduce
from tdmap.output.permute import permute
from tdmap.output.shards import in_shards
from tdmap.run.operation import operation
from tdmap.seeding import permutation, seed_or_drawn
from tdmap.times import time_type
from tensordict_lite import TensorDict
from tensordict_lite.paths import is_url, local_path
from tensordict_lite.views import is_leaf_nontensor

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions


class Summary(dict[str, Any]):
    """Figures of each column by its name: `count`, `nan`, `infinite`, `min`, `max`, `mean`, `std`, `quantiles`,
    `histogram`, and `time`, the type of times. Printed as a table.

    Attributes:
        rows: how many there are.
        others: columns that are no real numbers, and what they are.
    """

    def __init__(self, found: dict[str, Any], rows: int, others: dict[str, str]) -> None:
        super().__init__(found)
        self.rows = rows
        self.others = others

    def __repr__(self) -> str:
        head = ("column", "count", "NaN", "min", "max", "mean", "std", "")
        lines: list[tuple[str, ...]] = [head]
        for name, one in self.items():
            lines.append((name, f"{one.count:,}", f"{one.nan:,}", *one.texts[:4], one.sparkline))
        lines += [(name, *[""] * 6, kind) for name, kind in self.others.items()]
        widths = [max(len(line[column]) for line in lines) for column in range(7)]
        text = [
            "  ".join([line[0].ljust(widths[0]), *(line[n].rjust(widths[n]) for n in range(1, 7)), line[7]]).rstrip()
            for line in lines
        ]
        return "\n".join([f"{self.rows:,} rows", *text])


@operation
def describe(data: Any, **options: Unpack[WorkerOptions]) -> Summary:
    """Count, range, mean, deviation, quantiles and a small histogram of each column, in one pass.

    All elements of a column count alike; figures are of the finite ones. Those of times of a `Table` are printed as
    times.

    Args:
        data: a collection with rows in dimension 0. Jagged columns of a `Table`, and a `Jagged`, count by the lengths
            of their rows.
        **options: about workers, as `tdmap.map`.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> found = describe(TensorDict({"x": torch.tensor([1.0, 3.0])}, [2]), num_workers=0)
        >>> found.rows, found["x"].mean, found["x"].max
        (2, 2.0, 3.0)
    """
    others: dict[str, str] = {}
    rows, times = data, getattr(data, "types", {})
    if hasattr(data, "lengths"):
        rows = TensorDict({"rows (length)": data.lengths}, [len(data)])
    elif hasattr(data, "jagged"):
        lengths = {f"{name} (length)": column.lengths for name, column in data.jagged.items()}
        rows = TensorDict({**{key: data.rows.get(key) for key in data.rows.keys()}, **lengths}, [len(data)])
    wanted: dict[str, Any] = {}
    for key in rows.keys(True, True, is_leaf_nontensor):
        leaf, name = rows.get(key), key if isinstance(key, str) else ".".join(key)
        if is_number(leaf):
            wanted[name] = key if isinstance(key, tuple) else (key,)
        else:
            others[name] = str(leaf.dtype) if isinstance(leaf, Tensor) else "no numbers"
    found: dict[str, Any] = {}
    if wanted and len(rows):
        kinds = {name: times[name] for name in wanted if time_type(times.get(name, "")) is not None}
        reducers = Columns({name: Column.of(key, rows.get(key), kinds.get(name)) for name, key in wanted.items()})
        reduced: Any = map_reduce
        found = dict(reduced(rows, None, reducers, **options))
    return Summary(found, len(rows), others)


@operation
def train_test_split(
    data: Any,
    test_size: float | int = 0.25,
    *,
    seed: int | None = None,
    stratify: Any = None,
    shuffle: bool = True,
    out: str | os.PathLike[str] | None = None,
    **options: Unpack[WorkerOptions],
) -> tuple[Any, Any]:
    """Two parts of the rows: one to train with, and one to test with.

    Args:
        data: a collection with rows in dimension 0, a `Table` or a `Jagged`.
        test_size: rows of the second part: their share, between 0 and 1, or their number.
        seed: of the choice. The same seed, the same parts, whatever the number of workers. Default: torch's own stream.
        stratify: an entry of numbers or strings, or one of them a row: each of its values has about the same share of
            both parts.
        shuffle: False: the first rows train, the last ones test.
        out: folder, or the URL of a place in a store, for two datasets, `train` and `test`. None: in memory.
        **options: about workers, as `tdmap.map`.

    Returns:
        Both parts, each in a random order.

    Raises:
        ValueError: a part would have no rows, or options do not go together.

    Example:
        >>> train, test = train_test_split(torch.arange(8), 2, seed=0, num_workers=0)
        >>> len(train), len(test), sorted([*train.tolist(), *test.tolist()])
        (6, 2, [0, 1, 2, 3, 4, 5, 6, 7])
    """
    rows = len(data)
    count = round(rows * test_size) if isinstance(test_size, float) else int(test_size)
    if isinstance(test_size, bool) or not 0 < count < rows:
        raise ValueError(f"test_size={test_size!r} of {rows:,} rows leaves a part without rows.")
    if stratify is not None and not shuffle:
        raise ValueError("stratify= chooses rows at random: it needs shuffle=True.")
    order = torch.arange(rows)
    if shuffle:
        order = permutation(rows, seed_or_drawn(seed))
    if stratify is not None:
        order = _spread(order, _labels(data, stratify), rows - count)
    parts = (order[: rows - count].contiguous(), order[rows - count :].contiguous())
    places = (None, None) if out is None else [f"{local_path(out)}/{name}" for name in ("train", "test")]
    first, second = (_take(data, part, place, options) for part, place in zip(parts, places))
    return first, second


def _labels(data: Any, stratify: Any) -> Tensor:
    """What tells the groups apart: the numbers of an entry, or one for each of its strings."""
    labels = data[stratify] if isinstance(stratify, (str, tuple)) else stratify
    if isinstance(labels, str):  # one for all rows
        labels = [labels] * len(data)
    if not isinstance(labels, Tensor):
        numbers: dict[Any, int] = {}
        with contextlib.suppress(TypeError):  # no labels at all, or lists
            values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
            labels = torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.int64)
    if not isinstance(labels, Tensor) or labels.shape != (len(data),):
        shape = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"stratify needs one number or string a row, [{len(data)}]: got {shape}.")
    return labels


def _spread(order: Tensor, labels: Tensor, train: int) -> Tensor:
    """The order with rows of each label at equal distances, so that any first part has its share of all of them."""
    groups = torch.unique(labels[order], return_inverse=True)[1].numpy()
    by_group = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    within = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = (within + 0.5) / np.repeat(sizes, sizes)
    ranked = torch.from_numpy(by_group[np.argsort(place, kind="stable")])
    # Within each part, rows are in their random order again.
    parts = [np.sort(ranked[:train].numpy()), np.sort(ranked[train:].numpy())]
    return order[torch.from_numpy(np.concatenate(parts))]


def _take(data: Any, rows: Tensor, out: str | None, options: Any) -> Any:
    take: Callable[..., Any] | None = getattr(type(data), "__tdmap_operations__", None) and data.take
    if take is None:
        execution = Execution.of(**options)
        if out is not None and is_url(out):
            return in_shards(lambda folder: permute(data, rows, folder, execution), out, None, execution)
        return permute(data, rows, out, execution)
    if hasattr(data, "jagged"):
        return take(rows, out, **options)
    chosen = take(rows)
    return chosen if out is None else chosen.save(out, **options)
