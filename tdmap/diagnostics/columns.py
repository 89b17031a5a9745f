"""Statistics of every entry of a dataset, in one pass: what `tdmap stats` shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tdmap.data.kinds import stored_entry
from tdmap.reducers import Quantile, Reducer
from tdmap.reducers.base import Several
from tdmap.reducers.blocks import moments
from tdmap.reducers.moments import Moments
from tdmap.times import TimeType, about_text, length_text, time_type
from tensordict_lite.ragged import is_ragged

QUANTILES = (0.05, 0.5, 0.95)
"""Those that are shown; within one percent of the true value."""

BINS = 16
"""Of the small histogram."""

BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class ColumnStats:
    """The numbers of one entry, all elements of all rows alike. Statistics are of the finite ones."""

    count: int
    nan: int
    """How many are NaN."""
    infinite: int
    min: float | None
    """None where no number is finite, as of the others."""
    max: float | None
    mean: float | None
    std: float | None
    """Of the sample: divided by count - 1."""
    quantiles: tuple[float, ...]
    """`QUANTILES`; empty where no number is finite."""
    histogram: tuple[int, ...]
    """How many in each of `BINS` equal parts from min to max, from the same sketch as the quantiles.

    Of fewer than `BINS` whole numbers, one part each.
    """
    time: str | None = None
    """What the numbers are where they are times, as Arrow has it: `timestamp[us]`."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Minimum, maximum, mean, deviation and quantiles for a table.

        Example:
            >>> ColumnStats(3, 0, 0, 19875.0, 19905.0, 19885.0, 17.3, (), (2, 0, 1), "date32[day]").texts
            ('2024-06-01', '2024-07-01', '2024-06-11', '17.3 d', '-', '-', '-')
        """
        values = (self.min, self.max, self.mean, *(self.quantiles or (None,) * len(QUANTILES)))
        kind = None if self.time is None else time_type(self.time)
        if kind is None or self.min is None or self.max is None:
            std, texts = number(self.std), [number(value) for value in values]
        else:
            span = self.max - self.min
            std = number(None) if self.std is None else length_text(self.std, kind)
            texts = [number(None) if value is None else about_text(value, kind, span) for value in values]
        return (*texts[:3], std, *texts[3:])

    @property
    def sparkline(self) -> str:
        """The histogram in one line.

        Example:
            >>> ColumnStats(3, 0, 0, 0.0, 1.0, 0.3, 0.6, (0.0, 0.0, 1.0), (2, 0, 1)).sparkline
            '█ ▄'
        """
        most = max(self.histogram, default=0)
        bars = [BARS[max(math.ceil(count / most * len(BARS)) - 1, 0)] if count else " " for count in self.histogram]
        return "".join(bars)


class ColumnReducer(Reducer[Any]):
    """Reduces an entry to `ColumnStats`.

    Args:
        key: the entry; real numbers or bools, of any shape.
        about: where they lie, as `Quantile` has it; see `about`.
        time: what the numbers are where they are times, as Arrow has it.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> import tdmap
        >>> data = TensorDict({"x": torch.tensor([1.0, 3.0, float("nan")])}, [3])
        >>> found = tdmap.reduce(data, ColumnReducer("x"), num_workers=0)
        >>> found.count, found.nan, found.mean
        (3, 1, 2.0)
    """

    def __init__(self, key: str | tuple[str, ...], about: float = 0.0, time: str | None = None) -> None:
        self.key = key
        self.time = time
        self._sketch = Quantile(None, QUANTILES, about=about)

    @classmethod
    def of(cls, key: str | tuple[str, ...], some: Any, time: str | None = None) -> ColumnReducer:
        """That of an entry of which some rows are known (`few_rows`)."""
        return cls(key, about(cls.numbers(some), time), time)

    @staticmethod
    def numbers(entry: Any) -> Tensor:
        """What is reduced of an entry, with rows (of a ragged column, elements) in dimension 0."""
        values: Tensor = entry.flat()[0] if is_ragged(entry) else entry
        return values

    def init(self) -> Any:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        return self.merge(state, self._of(self.numbers(stored_entry(chunk, self.key)).reshape(-1)))

    def _of(self, values: Tensor) -> Any:
        count, nan, infinite = values.numel(), 0, 0
        whole = not values.is_floating_point()
        if values.dtype is torch.bool:
            values = values.to(torch.uint8)
        if not whole:
            finite = values.isfinite()
            good = int(finite.sum())
            if good < count:
                nan = int(values.isnan().sum())
                infinite = count - good - nan
                values = values[finite]
        n = values.numel()
        if not n:
            return (count, nan, infinite, math.inf, -math.inf, whole, None)
        wide = values.double()
        low, high = float(wide.min()), float(wide.max())
        size = max(abs(low), abs(high))
        # Sums and squares of ordinary numbers are taken as they are, those of others in units of a power of two.
        power = _LEAST if not size else 0 if 1e-100 < size < 1e100 else math.frexp(size)[1]
        found = (n, *moments(_times(wide, -power), (0,), n))
        return (count, nan, infinite, low, high, whole, (power, found, self._sketch.of(values, (0,))))

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        counts = (a[0] + b[0], a[1] + b[1], a[2] + b[2], min(a[3], b[3]), max(a[4], b[4]), a[5])
        if a[6] is None or b[6] is None:
            return (*counts, b[6] if a[6] is None else a[6])
        power = max(a[6][0], b[6][0])
        one, other = (self._in_units(power, *state[6][:2]) for state in (a, b))
        return (*counts, (power, tuple(one.join(other)), self._sketch.join(a[6][2], b[6][2])))

    @staticmethod
    def _in_units(power: int, known: int, found: Any) -> Moments:
        n, centre, sums, m2 = found
        less = known - power
        return Moments(n, _times(centre, less), _times(sums, less), _times(m2, 2 * less))

    def finish(self, state: Any) -> ColumnStats:
        if state is None or state[6] is None:
            count, nan, infinite = (0, 0, 0) if state is None else state[:3]
            return ColumnStats(count, nan, infinite, None, None, None, None, (), (), self.time)
        count, nan, infinite, low, high, whole, (power, found, sketch) = state
        n = found[0]
        mean = _times(float(Moments(*found).mean), power)
        std = _times(math.sqrt(float(found[3]) / (n - 1)), power) if n > 1 else None
        near = self._sketch.finish(sketch).clamp(low, high)
        quantiles = tuple((near.round() if whole else near).tolist())
        parts = self._histogram(sketch, low, high, whole)
        return ColumnStats(count, nan, infinite, low, high, mean, std, quantiles, parts, self.time)

    def _histogram(self, sketch: tuple[Tensor, ...], low: float, high: float, whole: bool) -> tuple[int, ...]:
        buckets, counts, _ = sketch
        values = self._sketch._numbers_of(buckets).clamp(low, high)
        if whole:
            values = values.round()
        bins = int(high - low) + 1 if whole and high - low < BINS - 1 else BINS
        part = 1.0 if math.isfinite(high - low) else 0.5
        span = bins if bins < BINS else high * part - low * part or 1.0
        place = ((values * part - low * part) / span * bins).long().clamp(0, bins - 1)
        return tuple(torch.zeros(bins, dtype=torch.int64).index_add_(0, place, counts).tolist())


_LEAST = -1073
"""The power of two of the smallest numbers, which all zeros count as."""


def _times(value: Any, power: int) -> Any:
    """A number or tensor times a power of two, by halves: the power itself may be out of the range of float64."""
    return value * 2.0 ** (power // 2) * 2.0 ** (power - power // 2) if power else value


class LengthReducer(ColumnReducer):
    """Reduces the lengths of the rows of a `Ragged` to `ColumnStats`; None counts as NaN."""

    @staticmethod
    def numbers(entry: Any) -> Tensor:
        lengths: Tensor = entry.lengths
        if entry.has_none:
            lengths = lengths.double().masked_fill(torch.tensor([row is None for row in entry.tolist()]), torch.nan)
        return lengths


_SAMPLE, _ELEMENTS = 64, 16
"""Rows that are looked at, and elements of each of them."""


def few_rows(data: Any) -> Any:
    """Some rows of a dataset at equal distances: the same ones for every worker."""
    last = len(data) - 1
    rows = {round(part * last / (_SAMPLE - 1)) for part in range(_SAMPLE)} if last >= 0 else set()
    return data[torch.tensor(sorted(rows), dtype=torch.int64)]


def is_number(value: object) -> bool:
    """Whether an entry is a tensor or ragged column of real numbers or bools, which `ColumnReducer` reduces."""
    if is_ragged(value):
        return value.kind == "tensor" and not value.dtype.is_complex
    return isinstance(value, Tensor) and not value.is_complex() and not value.is_nested


def about(some: Tensor, time: str | None = None) -> float:
    """Where the numbers of an entry lie, if that is far from zero for how close they are; 0.0 for most entries.

    Of numbers such as moments, whose distances are a thousandth of themselves, one percent says nothing.

    Args:
        some: the entry in `few_rows` of a dataset.
        time: what its numbers are where they are times.

    Example:
        >>> about(torch.arange(1_700_000_000, 1_700_000_100)), about(torch.arange(100))
        (1700000000.0, 0.0)
    """
    if some.dtype.itemsize < 2 and time is None or not some.numel():
        return 0.0
    some = some.reshape(len(some), -1)[:, :_ELEMENTS].double()
    some = some[some.isfinite()]
    if not len(some):
        return 0.0
    low, high = some.aminmax()
    nearest = 0.0 if low <= 0 <= high else min(abs(float(low)), abs(float(high)))
    return float(low) if time is not None or float(high - low) < nearest / 8 else 0.0


class Columns(Several):
    """Several of them in one pass; the answer is a plain dict."""

    def finish(self, state: dict[str, Any]) -> dict[str, ColumnStats]:
        return {name: part.finish(state[name]) for name, part in self.parts.items()}


def number(value: float | None) -> str:
    """A number for a table.

    Example:
        >>> number(3.0), number(0.123456), number(19999.0), number(None)
        ('3', '0.1235', '19999', '-')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _ticks(kind: TimeType, span: float) -> Callable[[float, float], str]:
    return lambda value, place: about_text(value, kind, span)


def draw_columns(columns: Sequence[tuple[str, ColumnStats]], path: str) -> None:
    """The histograms of entries as a picture.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a picture needs matplotlib: pip install matplotlib", name=error.name) from None
    shown = [(name, stats) for name, stats in columns if stats.histogram]
    if not shown:
        raise ValueError("nothing to draw: no entry holds a finite number")
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(4.2 * across, 2.6 * down), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, stats) in enumerate(shown):
        axes = figure.add_subplot(down, across, place + 1)
        assert stats.min is not None and stats.max is not None
        bins = len(stats.histogram)
        width = stats.max / BINS - stats.min / BINS or 1.0
        left = stats.min
        if bins < BINS:  # a number each
            width, left = 1.0, stats.min - 0.5
        edges = [left + width * edge for edge in range(bins + 1)]
        axes.stairs(stats.histogram, edges, fill=True, color="#4c78a8")
        axes.axvline(stats.mean or 0.0, color="#f58518", linewidth=1)
        nan = f", {stats.nan:,} NaN" if stats.nan else ""
        mean, std = stats.texts[2:4]
        axes.set_title(f"{name}\nmean {mean}, std {std}{nan}", fontsize=9)
        axes.tick_params(labelsize=7)
        kind = None if stats.time is None else time_type(stats.time)
        if kind is not None:
            axes.locator_params(axis="x", nbins=3)
            axes.xaxis.set_major_formatter(_ticks(kind, stats.max - stats.min))
    figure.savefig(path, dpi=110)
