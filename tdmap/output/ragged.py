"""Ragged entries of an output in a folder: chosen rows of different lengths, gathered by workers into files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.memory.rowfiles import RowFiles, SharedTensors
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tdmap.run.log import Log, run_logged
from tensordict_lite import Ragged
from tensordict_lite.gathering import gather_rows
from tensordict_lite.memmap import text
from tensordict_lite.objects.column import numbers_of

if TYPE_CHECKING:
    from tdmap.output.spill import SpilledColumn

BLOCK_ROWS = 1 << 15
"""Rows whose lengths are looked at together."""

MOST_STEPS = 1 << 18
"""The rows are cut into at most so many steps of equal size; chunks are some of them."""


class ChosenRows:
    """Rows of a ragged entry, wherever they lie in its values."""

    def __init__(self, entry: Ragged) -> None:
        self.entry = entry
        self.kind, self.dtype = entry.kind, entry.dtype
        self.row_shape: Sequence[int] = entry.row_shape
        self._step = -(-len(entry) // MOST_STEPS)
        self._firsts = self._values_before()
        self.total = int(self._firsts[-1])
        """Values of all rows."""

    def __len__(self) -> int:
        return len(self.entry)

    def _values_before(self) -> Any:
        """int64 array: the values before each step, and their number. By NumPy: torch starts threads for so little."""
        column, sums = self.entry.column, [np.zeros(1, np.int64)]
        assert column is not None
        block = -(-BLOCK_ROWS // max(self._step, 1)) * self._step
        for first in range(0, len(self), max(block, 1)):
            starts, ends = column.spans(self.entry._rows[first : first + block])
            lengths: Any = ends.numpy() - starts.numpy()
            sums.append(np.add.reduceat(lengths, np.arange(0, len(lengths), self._step)))
        return np.concatenate(sums).cumsum()

    def fill(self, made: Ragged, execution: Execution, log: Log | None = None) -> None:
        """Write the rows into shared memory, or files, of exactly their size."""
        column, target = self.entry.column, made.column
        assert column is not None and target is not None
        values, offsets = target.values, target.offsets
        if not len(values):
            return  # offsets are 0, as new files are
        nbytes = values.nbytes + offsets.nbytes
        execution = execution.light(nbytes).near(nbytes)
        places = RowFiles.of([values, offsets])
        assert places is not None
        steps = max(len(self) * execution.tuning.gather_bytes // nbytes // self._step, 1)
        plan = ChunkPlan(len(self), steps * self._step)
        firsts = self._firsts[:-1:steps].tolist()
        numbers: Any = column.numbers(self.entry._rows)
        consecutive = type(numbers) is range and numbers.step == 1
        index = column.offsets[numbers.start : numbers.stop] if consecutive else torch.from_numpy(numbers_of(numbers))
        shared = SharedTensors([column.values, column.offsets], execution.in_processes)
        start = numbers.start if consecutive else None
        fn = GatherRagged(shared, places, plan.size, firsts, execution.tuning.gather_bytes, start)
        run_logged(log, execution, Job(Source(index), plan, fn, Policy(undo=False)), Collect())


class GatherRagged:
    """Gathers rows and writes them, and where they end, to their places. Its chunks are numbers of rows.

    Args:
        shared: values and offsets of the source.
        places: those of the output.
        step: rows of a chunk.
        firsts: values of the output that come before each chunk.
        most_bytes: values that are gathered at a time, unless a row has more.
        consecutive: the first row, where the rows are consecutive and not those that chunks name.
    """

    takes_start = True

    def __init__(
        self,
        shared: SharedTensors,
        places: RowFiles,
        step: int,
        firsts: list[int],
        most_bytes: int,
        consecutive: int | None,
    ) -> None:
        self.__qualname__ = "place_ragged"
        self.shared = shared
        self.places = places
        self.step = step
        self.firsts = firsts
        self.most_bytes = most_bytes
        self.consecutive = consecutive

    def __call__(self, index: Tensor, start: int = 0) -> int:
        values, offsets = (tensor.as_subclass(Tensor) for tensor in self.shared.tensors)
        if self.consecutive is None:
            index = index.as_subclass(Tensor)
            starts, ends = offsets.index_select(0, index), offsets.index_select(0, index + 1)
        else:
            bounds = offsets[self.consecutive + start : self.consecutive + start + len(index) + 1]
            starts, ends = bounds[:-1], bounds[1:]
        first = self.firsts[start // self.step]
        stops = torch.sub(ends, starts).cumsum(0).add_(first)
        values_file, offsets_file = self.places.descriptors  # a write through the mapping costs a fault a page
        self.places.write(1, offsets_file, start + 1, stops)
        for low, high in self._blocks(stops, first):
            at = int(stops[low - 1]) if low else first
            block = _rows(values, starts[low:high], ends[low:high], int(stops[high - 1]) - at)
            if len(block):
                self.places.write(0, values_file, at, block)
        self.shared.trim()
        return len(index)

    def _blocks(self, stops: Tensor, first: int) -> Iterator[tuple[int, int]]:
        """Runs of rows of at most so many bytes together, or one row: chunks are cut by the mean of all rows."""
        values = self.shared.tensors[0]
        most = max(self.most_bytes // max(values.itemsize * values.shape[1:].numel(), 1), 1)
        low = 0
        while low < len(stops):
            high = int(torch.searchsorted(stops, first + most, right=True))
            high = max(high, low + 1)
            yield low, high
            low, first = high, int(stops[high - 1])


def _rows(values: Tensor, starts: Tensor, ends: Tensor, total: int) -> Tensor:
    """Rows one after the other: a view of the values where they lie so."""
    if torch.equal(starts[1:], ends[:-1]):
        return values[int(starts[0]) : int(ends[-1])]
    block = values.new_empty((total, *values.shape[1:]))
    gather_rows(values, starts, ends, block)
    return block


def lies_flat(rows: ChosenRows | SpilledColumn) -> bool:
    """Whether `ChosenRows` or a `SpilledColumn` lie as values and offsets in a folder: few strings are JSON, which the
    reference opens."""
    return len(rows) > 0 and not text.is_short(rows.kind, len(rows), lambda: rows.total)
