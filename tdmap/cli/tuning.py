"""Which chunk size and how many workers suit a function and a dataset: tried in turns, beside the defaults.

    default ──► how many workers?  0, 1, 2, 4, ... of the usable cores, at the default chunk size
            ──► which chunk size?  the default × 1/16, 1/4, 4, 16, at so many workers
            ──► the best beside the default, again, and more often

Every case runs once a round, in a random order, and a gain is the median of the ratios within the rounds: what slows
the whole machine for a while slows both sides.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tdmap.events import Callback, JobStarted
from tdmap.memory.resources import usable_cores

if TYPE_CHECKING:
    from tdmap.data.kinds import Data

AS_GOOD = 1.03
"""Fewer workers that are slower by less than this are taken, and a gain below it is none."""

SHORTEST = 0.2
"""Seconds that a run of the default shall take at least, where there are rows for it."""


class Trial(NamedTuple):
    """What is tried."""

    num_workers: int | None = None
    """None: the default."""
    chunksize: int | None = None


@dataclass
class Tuned:
    """What was found."""

    rows: int
    """Rows of a run."""
    default: Trial
    """The defaults, as numbers."""
    best: Trial
    gain: float = 1.0
    """Rate of the best over that of the default."""
    spread: tuple[float, float] = (1.0, 1.0)
    """The smallest and the largest of the rounds' ratios."""
    rate: float = 0.0
    """Rows a second of the best."""
    tried: dict[Trial, list[float]] = field(default_factory=dict)
    """Seconds of each run."""

    @property
    def pays(self) -> bool:
        """Whether the gain is more than what the rounds differ by."""
        return self.best != self.default and self.gain >= AS_GOOD and self.spread[0] > 1.0

    @property
    def advice(self) -> str:
        """One line."""
        low, high = self.spread
        if not self.pays:
            return (
                f"leave num_workers and chunksize to the default ({self.default.num_workers} workers, chunks of "
                f"{self.default.chunksize} rows): nothing that was tried is faster by more than the runs differ"
            )
        changed = [
            f"{name}={getattr(self.best, name)}"
            for name in Trial._fields
            if getattr(self.best, name) != getattr(self.default, name)
        ]
        return (
            f"set {', '.join(changed)}: {self.gain:.2f} × as fast as the default ({low:.2f} to {high:.2f} in the "
            f"rounds), {self.rate:,.0f} rows/s"
        )


class _ChunkRows(Callback):
    rows = 0

    def on_job_started(self, event: JobStarted) -> None:
        self.rows = event.chunk_rows


def tune(run: Callable[[Any, dict[str, Any]], Any], data: Data, rounds: int) -> Tuned:
    """Find what is fastest.

    Args:
        run: called with rows and the options of an operation.
        data: the rows to try it on.
        rounds: how often the best is compared with the default; what is tried on the way gets fewer.
    """
    sample = _long_enough(run, data)
    trial, rows = _Trial(run, sample, random.Random(0)), int(sample.shape[0])
    seen = _ChunkRows()
    run(sample, {"callbacks": [seen]})
    default = Trial(min(usable_cores(), -(-rows // max(seen.rows, 1))), max(seen.rows, 1))
    few = max(rounds // 2, 1)
    counts = sorted({default.num_workers or 1, *_powers(usable_cores())})
    trial.rounds([Trial(), *(Trial(count) for count in counts if count != default.num_workers)], few)
    count = trial.best_count(counts, default.num_workers or 1)
    own = None if count == default.num_workers else count
    most = max(rows // max(count, 1), 1)
    around = (default.chunksize * 4**n // 16 for n in range(5))
    sizes = sorted({min(max(size, 1), most) for size in around} - {default.chunksize})
    trial.rounds([Trial(), *(Trial(own, size) for size in sizes)], few)
    best = min(trial.seconds, key=lambda one: statistics.median(trial.ratios(one)))
    if best != Trial():
        trial.seconds[best].clear()
        trial.seconds[Trial()].clear()
        trial.together.clear()
        trial.rounds([Trial(), best], rounds)
    ratios = [1 / ratio for ratio in trial.ratios(best)]
    told = {_told(one, default): trial.all[one] for one in trial.all}
    rate = rows / statistics.median(trial.seconds[best])
    spread = (min(ratios), max(ratios))
    return Tuned(rows, default, _told(best, default), statistics.median(ratios), spread, rate, told)


def _told(setting: Trial, default: Trial) -> Trial:
    return Trial(*(mine if mine is not None else its for mine, its in zip(setting, default)))


def _powers(most: int) -> list[int]:
    return [0, *(1 << n for n in range(most.bit_length()) if 1 << n <= most), most]


def _long_enough(run: Callable[[Any, dict[str, Any]], Any], data: Data) -> Any:
    """As many of the rows as a run of `SHORTEST` seconds takes."""
    rows, length = min(64, int(data.shape[0])), int(data.shape[0])
    while True:
        run(data[:rows], {})  # workers start, and import what the function needs
        began = time.perf_counter()
        run(data[:rows], {})
        seconds = time.perf_counter() - began
        if seconds >= SHORTEST or rows == length:
            return data[:rows]
        rows = min(max(int(rows * min(SHORTEST / max(seconds, 1e-6) * 1.5, 16)), rows + 1), length)


class _Trial:
    def __init__(self, run: Callable[[Any, dict[str, Any]], Any], sample: Any, order: random.Random) -> None:
        self._run, self._sample, self._order = run, sample, order
        self.seconds: dict[Trial, list[float]] = {}
        self.all: dict[Trial, list[float]] = {}
        self.together: list[dict[Trial, float]] = []
        """Seconds of each round."""

    def rounds(self, settings: list[Trial], count: int) -> None:
        """Run each so often, after once that does not count."""
        for number in range(-1, count):
            seconds: dict[Trial, float] = {}
            for one in self._order.sample(settings, len(settings)):
                options = {name: value for name, value in one._asdict().items() if value is not None}
                began = time.perf_counter()
                self._run(self._sample, options)
                seconds[one] = time.perf_counter() - began
            if number >= 0:
                self.together.append(seconds)
                for one, value in seconds.items():
                    self.seconds.setdefault(one, []).append(value)
                    self.all.setdefault(one, []).append(value)

    def ratios(self, setting: Trial) -> list[float]:
        """Seconds of it over those of the default, round by round."""
        return [one[setting] / one[Trial()] for one in self.together if setting in one] or [float("inf")]

    def best_count(self, counts: list[int], default: int) -> int:
        """The fewest workers that are as fast as any, about."""
        slow = {n: statistics.median(self.ratios(Trial(None if n == default else n))) for n in counts}
        return min(n for n in counts if slow[n] <= min(slow.values()) * AS_GOOD)
