"""The work of ``mapreduce --case group``: sum and count by key, of 10M rows with 1M different int64 keys.

Every contender has the columns where it likes them best, before the clock starts: this project memory-mapped files,
the others arrays, Arrow tables or frames in memory. The keys are spread over all of int64, so that nobody may index
by them. An answer is three columns sorted by key, which is checked; those who do not sort are not asked to.

The floor is one process of numpy: `numpy.sort` of plain integers is several times as fast as `argsort`, so the hash of
a key and the number of its row are sorted as one integer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks._harness import Seconds, Stopwatch
from tensordict_lite import TensorDict

SPREAD = 7_919_000_003
"""Factor between neighbouring keys."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 over the golden ratio: its multiples are well spread (Knuth, vol. 3, 6.4), and no two keys share one."""

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Keys, sums and counts."""


class Table:
    """Two columns of rows.

    Args:
        folder: scratch folder.
        rows: how many.
        keys: how many different keys at most.
        workers: processes or threads that every contender may use.
    """

    def __init__(self, folder: Path, rows: int, keys: int, workers: int) -> None:
        self.rows, self.workers, self.path = rows, workers, folder / "table"
        random = np.random.default_rng(0)
        self.key = random.integers(0, keys, rows) * SPREAD
        self.value = random.random(rows)
        data = TensorDict({"key": torch.from_numpy(self.key), "v": torch.from_numpy(self.value)}, [rows])
        data.memmap(self.path)
        self._wanted = group_plainly(self.key, self.value)

    def open(self) -> TensorDict:
        """The rows as this project opens them."""
        return TensorDict.load_memmap(self.path)

    def check(self, key: np.ndarray, total: np.ndarray, count: np.ndarray) -> None:
        """Raise AssertionError when the answer, in any order, is wrong."""
        order = np.argsort(key)
        np.testing.assert_array_equal(np.asarray(key)[order], self._wanted[0])
        np.testing.assert_allclose(np.asarray(total)[order], self._wanted[1], rtol=1e-9)
        np.testing.assert_array_equal(np.asarray(count)[order], self._wanted[2])

    def timed(
        self, group: Callable[[], object], columns: Callable[[object], Answer] | None = None
    ) -> Callable[[], Seconds]:
        """Make a case of a function that groups; ``columns`` brings what it gives into the form that is checked."""

        def run() -> Seconds:
            with Stopwatch() as watch:
                answer = group()
            self.check(*(answer if columns is None else columns(answer)))  # type: ignore[misc]
            return watch.seconds

        return run


def group_plainly(key: np.ndarray, value: np.ndarray) -> Answer:
    """Sort by key, and add up each run of equal ones."""
    order = np.argsort(key, kind="stable")
    return _add_up_runs(key[order], value[order])


def floor(table: Table, partitions: int = 16, rows: int = 1 << 18) -> Answer:
    """Rows into partitions by the hash of their key, then the groups of each partition."""
    shift = np.uint64(65 - partitions.bit_length())
    runs: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(partitions)]
    for low in range(0, table.rows, rows):
        key, value = table.key[low : low + rows], table.value[low : low + rows]
        part = (key.view(np.uint64) * GOLDEN) >> shift
        order = _order(part, len(key))
        edges = np.concatenate([[0], np.cumsum(np.bincount(part.astype(np.int64), minlength=partitions))])
        key, value = key[order], value[order]
        for number, (start, stop) in enumerate(zip(edges, edges[1:])):
            runs[number].append((key[start:stop], value[start:stop]))
    answers = [_group_partition(*(np.concatenate(column) for column in zip(*run))) for run in runs]
    key, total, count = (np.concatenate(column) for column in zip(*answers))
    order = np.argsort(key)
    return key[order], total[order], count[order]


def _group_partition(key: np.ndarray, value: np.ndarray) -> Answer:
    bits = np.uint64(max(len(key), 1).bit_length())
    order = _order((key.view(np.uint64) * GOLDEN) >> bits, len(key))
    answer = _add_up_runs(key[order], value[order])
    if len(np.unique(answer[0])) < len(answer[0]):  # two keys with the same hash have come in turns
        return group_plainly(key, value)
    return answer


def _order(small: np.ndarray, count: int) -> np.ndarray:
    """The stable order of integers that leave room for the number of their row in 64 bits."""
    bits = np.uint64(max(count, 1).bit_length())
    packed = (small << bits) | np.arange(count, dtype=np.uint64)
    packed.sort()
    return (packed & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)


def _add_up_runs(key: np.ndarray, value: np.ndarray) -> Answer:
    if not len(key):
        return key, value, np.empty(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    return key[starts], np.add.reduceat(value, starts), np.diff(starts, append=len(key))
