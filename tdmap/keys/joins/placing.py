"""Pairs of rows at their place: every byte of the result is written once.

    job 1   chunk of a ──keys──► found[row]: where its partners are                  4 or 8 bytes a row
    between prefix sum: where the pairs of each block of rows go                     the output is allocated, exactly
    job 2   block of a ──► rows of both sides ──► their place

Where no row of a has two partners, and each has one or stays without, one job does both.

Rows of b without a partner, of an outer join, follow in a job of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.columns import row_words
from tdmap.data.kinds import Data, KeyPath, signed_view
from tdmap.data.reader import rows_of, select
from tdmap.data.sizes import row_bytes_of
from tdmap.job import Job, Source
from tdmap.keys.joins.lookup import Lookup
from tdmap.keys.keys import KeyReader
from tdmap.keys.prepare import KeyedData, plan_rows
from tdmap.memory.rowfiles import RowFiles, SharedTensors
from tdmap.output.given import Preallocated
from tdmap.output.output import Step
from tdmap.output.permute import block_rows
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context
from tensordict_lite import TensorDict

AT, COUNT = "__at__", "__count__"
"""Entries that stand for what was found, beside rows of the first dataset."""


class FindRows(Step):
    """The first job: what the lookup finds for the keys of each row."""

    def __init__(self, reader: KeyReader, lookup: Lookup) -> None:
        super().__init__("join")
        self.reader = reader
        self.lookup = lookup

    def __call__(self, chunk: Data, start: int = 0) -> Data:
        values = self.reader.values(chunk, start)
        integers = self.reader.integers(values) if self.lookup.span >= 0 else None
        kept = None
        if integers is not None:
            found, counts = self.lookup.find_integers(*integers)
        else:
            words, kept = self.reader.encode(values, start)
            found, counts = self.lookup.find(words)
        if kept is not None:  # a NaN has no partner
            found = _spread(found, kept, len(chunk), -1 if counts is None else 0)
            counts = None if counts is None else _spread(counts, kept, len(chunk), 0)
        columns = {"at": torch.from_numpy(found)}
        if counts is not None:
            columns["count"] = torch.from_numpy(counts)
        return TensorDict(columns, [len(chunk)])


def _spread(values: NDArray[Any], rows: NDArray[np.int64], count: int, nothing: int) -> NDArray[Any]:
    out = np.full(count, nothing, dtype=values.dtype)
    out[rows] = values
    return out


class JoinRows(Step):
    """Both jobs in one, where every row has one pair: nothing has to be counted before.

    Args:
        find: the first job.
        place: the second one.
    """

    def __init__(self, find: FindRows, place: PlacePairs) -> None:
        super().__init__("join")
        self.find = find
        self.place = place
        self.places = place.places

    def __call__(self, chunk: Data, start: int = 0) -> int:
        found = self.find(chunk, start)
        if not self.place.keep and int(found["at"].min()) < 0:
            return 0  # what this chunk leaves is not one pair a row
        return self.place.put(found["at"], found.get("count", None), chunk, start)


class Matches(NamedTuple):
    """What was found for every row of the first dataset."""

    at: Tensor
    """The number of its partner, -1 for none; or where its partners begin in the index."""
    counts: Tensor | None
    """How many it has; None where no row has more than one."""

    @property
    def has(self) -> Tensor:
        """Whether each row has a partner."""
        if self.counts is None:
            return torch.from_numpy(self.at.numpy() >= 0)
        return torch.from_numpy(self.counts.numpy() > 0)


def find_matches(ctx: Context, keyed: KeyedData, lookup: Lookup, chunksize: int | None = None) -> Matches:
    """Look up the keys of every row, in parallel."""
    names, length = keyed.reader.spec.names, int(keyed.data.shape[0])
    source = select(keyed.data, names)
    number = torch.int64 if lookup.is_sorted else _dtype_of(lookup)
    wanted = ["at"] if lookup.is_unique else ["at", "count"]
    out = TensorDict(ctx.buffers(wanted, number, length), [length])
    if length:
        row_bytes = row_bytes_of(source, length)
        plan = plan_rows(length, row_bytes, chunksize)
        job = Job(Source(source), plan, FindRows(keyed.reader, lookup), ctx.steps)
        ctx.quick(0 if plan.num_chunks <= 1 else length * row_bytes).run(job, Preallocated(out))
    return Matches(out["at"], None if lookup.is_unique else out["count"])


def _dtype_of(lookup: Lookup) -> torch.dtype:
    return torch.int32 if lookup.num_rows < (1 << 31) - 1 else torch.int64


class ChunkColumn(NamedTuple):
    """A column of the first dataset, where its rows come with the chunks of the job."""

    path: KeyPath
    dtype: torch.dtype | None = None
    """What it is converted to."""


class OutputColumn(NamedTuple):
    """Where a column of the result comes from."""

    side: int
    """0: the first dataset, 1: the second one, 2: whether there is a partner."""
    number: int
    """Of the tensor among those of the side; of the row's bools, 0 for the first dataset and 1 for the second one."""


class PlacePairs(Step):
    """The second job. Its chunks are rows of what was found.

    Args:
        sides: the tensors of both datasets.
        columns: of the result.
        places: of the result.
        index: numbers of rows of the second dataset, which `count` is about; empty where nothing has two partners.
        offsets: where the pairs of each chunk begin.
        size: rows of a chunk.
        keep: rows without a partner stay.
        streamed: the columns of the first dataset whose rows are in the chunks, beside what was found; None where they
            are those of `sides`.
        block_bytes: of pairs, made at a time.
    """

    def __init__(
        self,
        sides: tuple[SharedTensors, SharedTensors],
        columns: Sequence[OutputColumn],
        places: RowFiles,
        index: SharedTensors,
        offsets: NDArray[np.int64],
        size: int,
        keep: bool,
        streamed: Sequence[ChunkColumn] | None,
        block_bytes: int,
    ) -> None:
        super().__init__("join")
        self.streamed = streamed
        self.sides = sides
        self.columns = list(columns)
        self.places = places
        self.index = index
        self.offsets = offsets
        self.size = size
        self.keep = keep
        widths = [place.row_bytes for place in places.files if place is not None]
        self.block = max(block_bytes // max(sum(widths), 1), 1)

    def __call__(self, found: Data, start: int = 0) -> int:
        return self.put(found[AT], found.get(COUNT, None), found, start)

    def put(self, found: Tensor, counts: Tensor | None, chunk: Data, start: int) -> int:
        """Write the pairs of a chunk; `found` and `counts` as in `Matches`."""
        at = int(self.offsets[start // self.size])
        rows = len(found)
        mine = self._rows_of(chunk, start, rows)
        files = self.places.descriptors
        for ours, theirs, has in self._pairs(found.numpy(), counts):
            count = len(theirs)
            for number, (column, file) in enumerate(zip(self.columns, files)):
                if file >= 0:
                    self.places.write(number, file, at, self._block(column, mine, ours, theirs, has))
            at += count
        for side in self.sides:
            side.trim()
        return rows

    def _rows_of(self, chunk: Data, start: int, rows: int) -> list[Tensor]:
        if self.streamed is None:
            return [tensor[start : start + rows] for tensor in self.sides[0].tensors]
        found = [chunk.get(column.path) for column in self.streamed]
        return [value if c.dtype is None else value.to(c.dtype) for value, c in zip(found, self.streamed)]

    def _pairs(
        self, at: NDArray[Any], counts: Tensor | None
    ) -> Iterator[tuple[NDArray[np.int64] | None, NDArray[Any], NDArray[np.bool_] | None]]:
        """Rows of the chunk, None for all, rows of the second dataset, and whether these are there, None for all."""
        if counts is None:
            has = at >= 0
            if has.all():
                yield None, at, None
            elif self.keep:
                yield None, np.maximum(at, 0), has
            else:
                ours = np.flatnonzero(has)
                yield ours, at.take(ours), None
            return
        index, number = self.index.tensors[0].numpy(), counts.numpy().astype(np.int64)
        wanted = np.maximum(number, 1) if self.keep else number
        ends = np.cumsum(wanted)
        total = int(ends[-1]) if len(ends) else 0
        for begin in range(0, total, self.block):
            pairs = np.arange(begin, min(begin + self.block, total))
            first, last = np.searchsorted(ends, [begin, pairs[-1]], side="right")
            each = wanted[first : last + 1].copy()
            each[-1] = len(pairs) + begin - (ends[last] - wanted[last])  # as far as the block goes
            each[0] -= begin - (ends[first] - wanted[first])
            ours = np.repeat(np.arange(first, last + 1), each)
            has = number[ours] > 0
            theirs = at[ours] + pairs - (ends - wanted)[ours]
            # An index without rows, as of a dataset of which no row has a partner, has not even a row 0.
            theirs = index.take(np.where(has, theirs, 0)) if len(index) else np.zeros(len(ours), dtype=np.int64)
            yield ours, theirs, None if has.all() else has

    def _block(
        self,
        column: OutputColumn,
        mine: list[Tensor],
        ours: NDArray[np.int64] | None,
        theirs: NDArray[Any],
        has: NDArray[np.bool_] | None,
    ) -> Tensor:
        if column.side == 2:
            there = has is None or column.number == 0  # the row of the chunk itself is there
            return torch.ones(len(theirs), dtype=torch.bool) if there or has is None else torch.from_numpy(has)
        if column.side == 0:
            part = mine[column.number]
            return row_words(part) if ours is None else take_rows(part, torch.from_numpy(ours))
        tensor = self.sides[1].tensors[column.number]
        if not len(tensor):  # then nothing has a partner
            return torch.zeros((len(theirs), *tensor.shape[1:]), dtype=tensor.dtype)
        block = take_rows(tensor, torch.from_numpy(theirs))
        if has is not None:
            block[torch.from_numpy(~has)] = 0
        return block


def take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Some rows, as words of any type."""
    if not tensor.is_contiguous():
        return signed_view(tensor).index_select(0, rows)
    return row_words(tensor).index_select(0, rows)


def place_pairs(
    ctx: Context,
    matches: Matches,
    keep: bool,
    sides: tuple[SharedTensors, SharedTensors],
    columns: Sequence[OutputColumn],
    lookup: Lookup,
    row_bytes: Sequence[int],
    extra: int,
    allocate: Callable[[int], RowFiles],
    streamed: tuple[Data, Sequence[ChunkColumn]] | None,
) -> tuple[RowFiles, int]:
    """Write all pairs.

    Args:
        matches: what was found.
        keep: rows without a partner stay.
        sides: the tensors of both datasets.
        columns, row_bytes: of the result.
        lookup: that matches come from.
        extra: rows that follow.
        allocate: called with the number of rows; gives the places.
        streamed: the first dataset and its columns, where its rows come with the chunks.

    Returns:
        The places, and how many rows have been written.
    """
    length = len(matches.at)
    size = block_rows(length, [*row_bytes, 1], ctx)
    sums = _pairs_of_blocks(matches, keep, size)
    total = int(sums.sum())
    places: RowFiles = allocate(total + extra)
    if not total or not any(row_bytes):
        return places, total
    rows: Data = TensorDict({AT: matches.at}, [length])
    if matches.counts is not None:
        rows.set(COUNT, matches.counts)
    data, mine = (None, None) if streamed is None else streamed
    if data is not None:
        rows = rows_of(data).with_columns(rows)
    index = lookup.tables if matches.counts is not None else SharedTensors([torch.zeros(0)], False)
    block_bytes = ctx.tuning.join_bytes
    fn = PlacePairs(sides, columns, places, index, np.cumsum(sums) - sums, size, keep, mine, block_bytes)
    ctx.light(total * sum(row_bytes)).step(rows, ChunkPlan(length, size), fn)
    return places, total


def place_each(
    ctx: Context,
    keyed: KeyedData,
    keep: bool,
    sides: tuple[SharedTensors, SharedTensors],
    columns: Sequence[OutputColumn],
    lookup: Lookup,
    row_bytes: Sequence[int],
    allocate: Callable[[int], RowFiles],
    streamed: tuple[Data, Sequence[ChunkColumn]] | None,
) -> bool:
    """Find and write the pairs of all rows in one job, as if each had exactly one; whether that was so.

    Args:
        keyed: the first dataset.
        keep: rows without a partner stay.
        sides, columns, lookup, row_bytes: as `place_pairs`.
        allocate, streamed: as `place_pairs`.
    """
    names, length = keyed.reader.spec.names, int(keyed.data.shape[0])
    source, mine = (select(keyed.data, names), None) if streamed is None else streamed
    read_bytes = row_bytes_of(source, length)
    plan = ChunkPlan(length, block_rows(length, [*row_bytes, read_bytes], ctx))
    if ctx.options.get("chunksize") is not None:
        plan = plan_rows(length, read_bytes, ctx.options.get("chunksize"))
    offsets = np.arange(plan.num_chunks) * plan.size
    nothing = SharedTensors([torch.zeros(0)], False)
    block_bytes = ctx.tuning.join_bytes
    place = PlacePairs(sides, columns, allocate(length), nothing, offsets, plan.size, keep, mine, block_bytes)
    step = JoinRows(FindRows(keyed.reader, lookup), place)
    written: list[int] = ctx.light(length * sum(row_bytes)).step(source, plan, step)
    return sum(written) == length


def _pairs_of_blocks(matches: Matches, keep: bool, size: int) -> NDArray[np.int64]:
    sums = []
    for first in range(0, len(matches.at), size):
        if matches.counts is not None:
            counts = matches.counts.numpy()[first : first + size]
            sums.append(int((np.maximum(counts, 1) if keep else counts).sum(dtype=np.int64)))
        elif keep:
            sums.append(min(size, len(matches.at) - first))
        else:
            sums.append(int(np.count_nonzero(matches.at.numpy()[first : first + size] >= 0)))
    return np.array(sums, dtype=np.int64)


def rows_without_partner(matches: Matches, lookup: Lookup, others: int) -> Tensor:
    """The rows of the second dataset that nothing was found for, in order."""
    has = np.zeros(others, dtype=bool)
    at = matches.at.numpy()
    if matches.counts is None:
        has[at[at >= 0]] = True
    else:
        edges = np.zeros(len(lookup.index) + 1, dtype=np.int64)
        counts = matches.counts.numpy()
        used = counts > 0
        np.add.at(edges, at[used], 1)
        np.add.at(edges, at[used] + counts[used], -1)
        has[lookup.index[np.cumsum(edges[:-1]) > 0]] = True
    return torch.from_numpy(np.flatnonzero(~has))


class PlaceOthers(Step):
    """Rows of the second dataset that have no partner. Its chunks are their numbers.

    Args:
        tensors: of the second dataset.
        sources: for each column of the result the number of its tensor, None for zeros, or a bool.
        places: of the result.
        first: where these rows begin.
    """

    def __init__(
        self, tensors: SharedTensors, sources: Sequence[int | bool | None], places: RowFiles, first: int
    ) -> None:
        super().__init__("join")
        self.tensors = tensors
        self.sources = list(sources)
        self.places = places
        self.first = first

    def __call__(self, rows: Tensor, start: int = 0) -> int:
        for number, (source, file) in enumerate(zip(self.sources, self.places.descriptors)):
            place = self.places.files[number]
            if file < 0 or place is None:
                continue
            if isinstance(source, bool):
                block = torch.full((len(rows),), source)
            elif source is None:
                block = torch.zeros(len(rows) * place.row_bytes, dtype=torch.uint8)
            else:
                block = take_rows(self.tensors.tensors[source], rows)
            self.places.write(number, file, self.first + start, block)
        self.tensors.trim()
        return len(rows)
