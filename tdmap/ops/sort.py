"""`sort`: a dataset in the order of its keys.

Two ways, with the same result:

    by index   keys and numbers of rows are sorted; then rows are gathered, each from where it lies
    by rows    chunk ──rows, cut into ranges of keys──► run        for data that does not fit into memory: every byte
               range of keys ──rows, sorted──► its place in `out`  is read and written twice, from beginning to end
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from tdmap.data.columns import Shape, reordered
from tdmap.data.entries import path_of
from tdmap.data.kinds import Data, Dataset, R
from tdmap.data.schema import take_apart
from tdmap.data.stacks import ragged_columns
from tdmap.keys.codec import KeyCodec
from tdmap.keys.index import PartitionWork, sorted_rows
from tdmap.keys.keys import KeyLike, KeyReader, KeySpec
from tdmap.keys.order import Words, is_sorted, stable_order
from tdmap.keys.prepare import KeyedData, plan_rows, prepare
from tdmap.keys.spilling import RUNS, Partitions, Run, write_run
from tdmap.keys.splits import KEY_RANGE, Splits
from tdmap.memory.rowfiles import RowFiles
from tdmap.memory.spill import Spill
from tdmap.output.output import SourceRows, Step
from tdmap.output.permute import choose_method, permute_rows
from tdmap.output.scatter import block_bytes
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options


@operation
def sort(
    ctx: Context,
    data: Dataset[R],
    key: KeyLike,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    descending: bool | Sequence[bool] = False,
    **options: Unpack[Options],
) -> R:
    """Sort rows by key. The sort is stable.

    Workers sort ranges of keys and then gather the rows in this order. Small rows that do not fit into memory are moved
    with their keys, in two sequential passes over the disk.

    Args:
        data: a tensor or collection with rows in dimension 0.
        key: an entry, a nested entry (a tuple of strings), a list of entries (the first is the primary key), or a
            function of a chunk that returns one value per row. `tdmap.group_by` lists the types. Rows with NaN, or with
            a string that is None, come last, also with `descending`.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
        descending: sort from large to small; with several keys also a list of bools. Stable too.
        **options: see `tdmap.Options`. `chunksize` is the number of rows whose keys are read at a time, by default some
            hundred thousand. Intermediate files of keys take 24 bytes per row, in `spill_dir` or the temporary folder.
            Rows that do not fit into memory take their size and 8 bytes each within `out`. Rows that are stored in
            blocks (HDF5, Zarr) are copied to temporary files first.

    Returns:
        The first rows of `out`, the dataset loaded from the folder, or a new one. The same bits for any number of
        workers.

    Raises:
        KeyError: unknown entry; lists the entries.
        TypeError, ValueError: an entry cannot be a key, or an option is out of range.
        ResumeMismatch: with `resume`, the folder holds another run; names the difference.
        OutputMismatch: `out` has too few rows, or other shapes or dtypes.
        Exception: as `tdmap.map`.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"age": torch.tensor([3, 1, 2]), "name": torch.tensor([30, 10, 20])}, [3])
        >>> sort(data, "age", num_workers=0)["name"], sort(data, "age", descending=True, num_workers=0)["name"]
        (tensor([10, 20, 30]), tensor([30, 20, 10]))
    """
    spec = KeySpec.of(key, "sort")
    directions = _directions(descending, spec)
    keyed = prepare(ctx, data, spec, "sort", dropna=False, descending=directions)
    columns: Any = ragged_columns(data)  # keys are read from the rows as they were given
    rows = SourceRows(columns)
    rows.check(ctx.output)
    if ctx.decide("rows travel", lambda: _sorts_rows(ctx, keyed, columns, rows)):
        with ctx.spill() as spill:
            sort_rows(ctx, keyed, rows, spill)
        in_order: R = ctx.output.result()
        return in_order
    with ctx.inner().spill() as spill:
        index = sorted_rows(ctx, keyed, spill, with_words=False, chunksize=ctx.options.get("chunksize"))
        in_order = permute_rows(ctx, columns, index.rows)
    return in_order


def _directions(descending: bool | Sequence[bool], spec: KeySpec) -> tuple[bool, ...]:
    count = len(spec.names)
    if isinstance(descending, bool):
        return (descending,) * count
    if isinstance(descending, Sequence) and len(descending) == count and all(isinstance(d, bool) for d in descending):
        return tuple(descending)
    raise ValueError(f"descending must be a bool, or a list of {count} bools, one per key: got {descending!r}.")


# -- by rows -----------------------------------------------------------------------------------------


class CutRows(Step):
    """What a worker calls with each chunk: its rows, cut into ranges of keys.

    Args:
        reader: finds the keys.
        spill: where the run goes.
        splits: the ranges of keys.
        keys: as `SortRows`.
    """

    value_codec = RUNS

    def __init__(self, reader: KeyReader, spill: Spill, splits: Splits, keys: Mapping[int, int]) -> None:
        super().__init__("sort")
        self.reader = reader
        self.spill = spill
        self.splits = splits
        self.keys = keys

    def __call__(self, chunk: Data, start: int = 0) -> Run | None:
        words, _ = self.reader.read(chunk, start)
        if not len(words[0]):
            return None
        columns = [column for number, column in enumerate(take_apart(chunk).tensors) if number not in self.keys]
        return write_run(self.spill, self.splits, words, columns)


class SortRows(PartitionWork):
    """What a worker calls with the number of a partition: its rows are sorted, column by column, and written.

    Args:
        partitions, firsts, places, name, whole_bytes: as `PartitionWork`.
        codec: of the keys.
        keys: the columns that do not travel, because words tell them: their numbers, and which column of the key each
            of them is.
    """

    def __init__(
        self,
        partitions: Partitions,
        firsts: list[int],
        places: RowFiles,
        name: str,
        whole_bytes: int,
        codec: KeyCodec,
        keys: Mapping[int, int],
    ) -> None:
        super().__init__(partitions, firsts, places, name, whole_bytes)
        self.codec = codec
        self.keys = keys
        travelling = (number for number in range(len(places.files)) if number not in keys)
        self.place_of = {number: place for place, number in enumerate(travelling)}

    def sort(self, partition: int, first: int, count: int) -> int:
        if count * self.partitions.row_bytes > self.whole_bytes and self._copied(partition, first):
            return 0
        words, order = self.partitions.read_words(partition), None
        if not is_sorted(words):
            order, words = stable_order(words)
        keys = self._keys(words)
        del words
        for number, file in enumerate(self.places.descriptors):
            if file < 0:
                continue
            if number in self.keys:
                column = keys[self.keys[number]]
            else:
                column = self.partitions.read_column(partition, self.place_of[number])
                column = column if order is None else reordered(column, order)
            self.places.write(number, file, first, column)
        return 0

    def _keys(self, words: Words) -> list[Tensor]:
        return self.codec.decode(words) if self.keys else []

    def _copied(self, partition: int, first: int) -> bool:
        """Whether all rows have one key; they are in their order then, and have been copied piece by piece."""
        if self.partitions.only_key(partition, self.whole_bytes) is None:
            return False
        files = self.places.descriptors
        for begin, end in self.partitions.batches(partition, self.whole_bytes):
            words, columns = self.partitions.read(partition, begin, end)
            keys = self._keys(words)
            for number, file in enumerate(files):
                column = keys[self.keys[number]] if number in self.keys else columns[self.place_of[number]]
                self.places.write(number, file, first, column)
            first += len(words[0])
        return True


def _sorts_rows(ctx: Context, keyed: KeyedData, data: Data, rows: SourceRows) -> bool:
    """Whether rows travel with their keys."""
    if keyed.data is not data:  # it has columns besides, of numbers that stand for strings
        return False
    if rows.tensors is None or any(field.kind == "object" for field in rows.schema.fields):
        return False
    return choose_method(rows.schema.row_bytes, rows.tensors, ctx) == "scatter"


def _told_by_words(keyed: KeyedData, source: SourceRows) -> dict[int, int]:
    """Columns of rows of which words have every bit: the number of each, and which column of the key it is."""
    if keyed.reader.spec.fn is not None:
        return {}
    numbers = {field.path: number for number, field in enumerate(source.schema.tensors)}
    columns = enumerate(zip(keyed.reader.spec.names, keyed.codec.columns))
    # 0.0 and -0.0 have one word, and so have all NaN.
    return {numbers[path_of(name)]: index for index, (name, column) in columns if not column.is_float}


def sort_rows(ctx: Context, keyed: KeyedData, source: SourceRows, spill: Spill) -> None:
    """Write the rows of a dataset to the output in the order of their keys."""
    length, words = int(keyed.data.shape[0]), keyed.codec.num_words
    keys = _told_by_words(keyed, source)
    shapes = [Shape.of(tensor) for number, tensor in enumerate(source.tensors or ()) if number not in keys]
    nbytes = length * (sum(shape.nbytes for shape in shapes) + 8 * words)
    size = ctx.decide("block", lambda: block_bytes(nbytes, ctx))
    places = ctx.output.open(source.schema, length)
    splits = keyed.splits(-(-nbytes // size), alone=min(size / nbytes, 1.0))
    cut = CutRows(keyed.reader, spill, splits, keys)
    row_bytes = max(sum(source.schema.row_bytes), 1)
    plan = plan_rows(length, row_bytes, ctx.options.get("chunksize") or max(size // row_bytes, 1))
    partitions = Partitions(spill, ctx.step(keyed.data, plan, cut), words, shapes)
    counts = partitions.rows
    firsts = (counts.cumsum() - counts).tolist()
    work = SortRows(partitions, firsts, places, "sort", size, keyed.codec, keys)
    ctx.step(torch.arange(len(counts)), ChunkPlan(len(counts), 1, unit=KEY_RANGE), work)
