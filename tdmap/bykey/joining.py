"""`join`: the rows of two datasets with equal keys, side by side.

    b ──► sorted index: keys and numbers of rows, in memory that all workers map
    chunk of a ──► its distinct keys, sorted, are found in the index ──► pairs of rows ──► rows of both, in blocks

Keys of a chunk are looked up in sorted order, so the search moves through the index from its beginning to its end,
and blocks bound the memory when a key has many rows on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.bykey.index import Index, sorted_rows
from tdmap.bykey.keys import KeyReader, KeySpec
from tdmap.bykey.order import Words, equal, group_starts, search, stable_order, take
from tdmap.bykey.prepare import KeyedData, entries_of, light, plan_rows, prepare, require_rows
from tdmap.bykey.reducing import select
from tdmap.data import kinds
from tdmap.data.columns import columns_of, is_columnar, reordered, schema_of, with_columns
from tdmap.data.kinds import Data, data_row_bytes, is_dense, signed_view, with_entries
from tdmap.data.objects import ObjectColumn, object_paths
from tdmap.data.reader import narrow
from tdmap.data.schema import Schema, take_apart
from tdmap.data.store import destination
from tdmap.execution import Execution
from tdmap.memory.rowfiles import SharedTensors
from tdmap.memory.spill import Spill
from tdmap.operation import operation
from tdmap.operations.append import append_rows
from tdmap.operations.arguments import policy_for
from tdmap.operations.output import Output, spill_folder, travels
from tdmap.reducers.base import Key
from tensordict_lite import TensorDict, is_non_tensor, is_tensorclass

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tdmap.execution import WorkerOptions

On: TypeAlias = "Key | list[Key] | Mapping[Key, Key]"

METHODS = ("inner", "left")

BLOCK_BYTES = 16 << 20
"""Rows of the result that a worker makes at a time."""


@operation
def join(
    a: Data,
    b: Data,
    on: On,
    how: str = "inner",
    out: Data | str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    suffix: str = "_right",
    indicator: str = "__matched__",
    chunksize: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    retries: int = 2,
    timeout: float | None = None,
    **options: Unpack[WorkerOptions],
) -> Data:
    """The rows of `a`, each beside the rows of `b` that have the same key.

    Args:
        a, b: collections with rows in dimension 0.
        on: an entry that both have, a nested one (a tuple of strings), a list of entries, or a mapping of entries of
            `a` to entries of `b`. Of the kinds that `tdmap.group_by` takes, with the same dtypes in both. A NaN
            equals nothing, not even a NaN.
        how: `"inner"` leaves out rows of `a` without a partner; `"left"` keeps them, with zeros in the entries of `b`,
            and None where these are Python objects.
        out: None for new shared memory; a folder for a new memory-mapped dataset; or a dataset with room for the rows.
        overwrite: replace the dataset in the folder `out`, if there is one: it stays until the new one is whole.
        suffix: added to the names of entries of `b` that `a` has too.
        indicator: with `how="left"`, what the bool entry is called that is False in rows without a partner.
        chunksize: rows of `a` that are looked up at a time. Default: some hundred thousand, bounded by their bytes.
        spill_dir: folder for intermediate files. Default: the temporary folder for the index of `b`; for the rows of
            the result, within `out` when that is a path, else the temporary folder too.
        retries, timeout, options: as `tdmap.map`.

    Returns:
        A TensorDict with the entries of `a` and those of `b` but its keys: rows in the order of `a`, those with one
        row of `a` in the order of `b`. The same bits for any number of workers.

    Raises:
        KeyError: there is no such entry; names those that there are.
        TypeError: the keys have other dtypes on the two sides, or cannot be keys.
        ValueError: a name is taken even with the suffix; `how` is none of those.
        OutputMismatch: `out` is too small or has other shapes or dtypes.
        Exception: as `tdmap.map`.

    Example:
        >>> people = TensorDict({"id": torch.tensor([1, 2, 3]), "age": torch.tensor([30, 40, 50])}, [3])
        >>> visits = TensorDict({"id": torch.tensor([3, 1, 3]), "day": torch.tensor([5, 6, 7])}, [3])
        >>> both = join(people, visits, "id", num_workers=0)
        >>> both["id"], both["age"], both["day"]
        (tensor([1, 3, 3]), tensor([30, 50, 50]), tensor([6, 5, 7]))
    """
    _check(a, b, how, out)
    a, b = (entries_of(side) if is_tensorclass(side) else side for side in (a, b))
    execution = Execution.of(**options)
    policy = policy_for(None, None, retries, timeout, undo=False)
    ours, theirs = _keys(on)
    output = Output(destination(out, overwrite), a)
    output.refuse_hidden_key(a)
    with output.claimed("join"):
        left, right = _comparable(
            prepare(a, ours, "join", execution, dropna=True), prepare(b, theirs, "join", execution, dropna=True)
        )
        named = indicator if how == "left" else ""
        others = _others(a, b, theirs, suffix, named)
        with Spill(spill_folder(Output(None, a), spill_dir)) as spill:
            index = sorted_rows(right, spill, execution, policy, chunksize=None, with_words=True)
            fn = JoinChunk(tuple(a.keys()), left.reader, index, others, travels(execution), named)
            length = int(a.shape[0])
            plan = plan_rows(length, data_row_bytes(left.data, length), chunksize)
            crew = light(execution, 0) if plan.num_chunks <= 1 else execution
            empty = fn.schema_of(left.data)
            return append_rows(left.data, fn, output, crew, plan, policy, spill_dir=spill_dir, empty=empty)


def _check(a: Data, b: Data, how: str, out: Any) -> None:
    """Raise what is wrong with the arguments before anything is read."""
    if how not in METHODS:
        raise ValueError(f"how must be one of {', '.join(map(repr, METHODS))}: got {how!r}.")
    for side in (a, b):
        require_rows(side, "join")
        if isinstance(side, Tensor):
            raise TypeError("join needs collections with entries on both sides: got a tensor. Use TensorDict.")
        Output(out, side)  # neither may be written over


def _keys(on: Any) -> tuple[KeySpec, KeySpec]:
    """The keys of both sides."""
    if isinstance(on, Mapping):
        return KeySpec.of(list(on), "join"), KeySpec.of(list(on.values()), "join")
    if callable(on):
        raise TypeError("join takes entries for keys, not a function: map the function first, and join on its result.")
    spec = KeySpec.of(on, "join")
    return spec, spec


def _comparable(left: KeyedData, right: KeyedData) -> tuple[KeyedData, KeyedData]:
    """Both sides with words that mean the same.

    Raises:
        TypeError: the dtypes of keys differ.
    """
    pairs = zip(left.codec.columns, right.codec.columns, left.labels, right.labels)
    for index, (one, other, ours, theirs) in enumerate(pairs):
        kinds = [
            "strings" if labels is not None else f"{str(column.dtype).removeprefix('torch.')} {list(column.shape)}"
            for column, labels in ((one, ours), (other, theirs))
        ]
        if one.pieces != other.pieces or one.dtype is not other.dtype or (ours is None) is not (theirs is None):
            raise TypeError(
                f"join: the key {left.names[index]!r} of the first dataset is {kinds[0]}, and "
                f"{right.names[index]!r} of the second one is {kinds[1]}: they must be of one kind. Convert one."
            )
        if ours is not None and theirs is not None:
            known = {value: number for number, value in enumerate(sorted({*ours, *theirs}))}
            for keyed, labels in ((left, ours), (right, theirs)):
                column = keyed.data.get(keyed.reader.spec.names[index])
                table = torch.tensor([known[label] for label in labels], dtype=torch.int64)
                if len(column):
                    column.copy_(table[column])
    # Ranges of keys are cut by the sample, which had the old numbers.
    return left, right if all(label is None for label in right.labels) else replace(right, sample=right.resampled())


def _others(a: Data, b: Data, spec: KeySpec, suffix: str, indicator: str) -> Data:
    """The second dataset without its keys, under the names that it has in the result."""
    rest = TensorDict({key: b.get(key) for key in b.keys()}, b.shape[:1])
    for name in spec.names:
        rest = rest.exclude(name)
    taken = set(a.keys())
    found = TensorDict({}, b.shape[:1])
    names = list(rest.keys())
    for name in names:
        new = name + suffix if name in taken else name
        if new in taken or (new != name and new in names):
            raise ValueError(
                f"join: both datasets have an entry {name!r}, and there is an entry {new!r} too: pass another suffix= "
                "(and not an empty one), or rename one of them."
            )
        value = rest.get(name)
        if not (isinstance(value, Tensor) or len(list(value.keys())) or getattr(value, "_is_non_tensor", False)):
            continue  # there was nothing but a key in it
        if indicator:
            value = _dense(value)
        if indicator and not (is_columnar(value) or _is_by_row(value)):
            raise ValueError(
                f"join: rows without a partner have zeros, and of the entry {name!r} of the second dataset, whose rows "
                "differ in shape, nobody knows what zeros look like: leave it out with exclude(), or use how='inner'."
            )
        found.set(new, value)
    if indicator and (indicator in taken or indicator in found.keys()):
        raise ValueError(f"join: there is an entry {indicator!r} already: pass another indicator=.")
    return found


def _dense(value: Data) -> Data:
    """Lazy stacks as columns, also nested ones, where members look alike; anything else as it is."""
    if isinstance(value, Tensor) or is_columnar(value):
        return value
    if not is_dense(value):
        try:
            found = value.contiguous()
        except (RuntimeError, ValueError, KeyError):  # members that do not look alike
            return value
        if not is_dense(found):
            return value
        value = found
    source = {key: _dense(entry) for key, entry in kinds.entries_of(value).items()}
    return with_entries(value, source)


def _is_by_row(value: Data) -> bool:
    """Whether an entry consists of tensors and of objects by row."""
    if is_non_tensor(value):
        return True
    return is_columnar(value) or (is_dense(value) and all(map(_is_by_row, kinds.entries_of(value).values())))


def _has_columns(value: Data, left: bool) -> bool:
    """Whether an entry consists of tensors only; one object for all rows counts too, where every row has a partner."""
    return is_columnar(value) and not (left and (is_non_tensor(value) or object_paths(value)))


def _columns_of(value: Data) -> Any:
    """An entry of the second dataset, made ready to have rows taken."""
    if is_non_tensor(value):
        return ObjectColumn(value)
    if isinstance(value, Tensor) or not is_dense(value):
        return value
    return value[:0], {key: _columns_of(entry) for key, entry in kinds.entries_of(value).items()}


def _taken(value: Any, rows: NDArray[np.int64], missing: Tensor | None) -> Any:
    """Rows of an entry; zeros and None where they are missing."""
    if isinstance(value, ObjectColumn):
        return value.take(rows.tolist(), None if missing is None else missing.tolist())
    if isinstance(value, tuple):
        example, entries = value
        source = {key: _taken(entry, rows, missing) for key, entry in entries.items()}
        return with_entries(example, source, len(rows))
    if not isinstance(value, Tensor):
        return value[torch.from_numpy(rows)]
    if not len(value):
        return torch.zeros((len(rows), *value.shape[1:]), dtype=value.dtype)
    found = reordered(value, rows)
    if missing is not None:
        signed_view(found)[missing] = 0
    return found


class JoinChunk:
    """What a worker calls with each chunk of the first dataset.

    Args:
        keys: its entries.
        reader: finds its keys.
        index: rows and words of the second dataset, sorted.
        others: entries of the second dataset.
        share: workers are other processes.
        indicator: entry that tells rows that have a partner; empty to leave out those that have none.
    """

    takes_start = True

    def __init__(
        self, keys: tuple[str, ...], reader: KeyReader, index: Index, others: Data, share: bool, indicator: str
    ) -> None:
        self.__qualname__ = "join"  # of the object: a class of that name could not be found again by its own
        self.keys = keys
        self.reader = reader
        self.index = SharedTensors([index.rows, *index.words], share=share)
        self.is_unique = index.is_unique
        self.indicator = indicator
        self.block_bytes = BLOCK_BYTES
        self.row_bytes = data_row_bytes(others, len(others))
        plain = [key for key in others.keys() if _has_columns(others.get(key), bool(indicator))]
        kept = select(others, plain)
        self.example = schema_of(kept)
        self.columns = SharedTensors(columns_of(kept), share=share)
        # Objects of single rows cannot be shared: each worker has them all.
        self.objects = {key: _columns_of(others.get(key)) for key in others.keys() if key not in plain}

    def __call__(self, chunk: Data, start: int = 0) -> Iterator[Data]:
        firsts, counts = self._look_up(chunk, start)
        matched = counts > 0
        if self.indicator:
            counts = np.maximum(counts, 1)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        # The row of each pair, unless a search among the ends is needed to find it.
        single = np.flatnonzero(counts) if len(counts) and counts.max() == 1 else None
        row_bytes = data_row_bytes(chunk, max(len(chunk), 1)) + self.row_bytes
        size = max(self.block_bytes // max(row_bytes, 1), 1)
        index = self.index.tensors[0].numpy()
        for begin in range(0, total, size):
            pairs = np.arange(begin, min(begin + size, total))
            ours = np.searchsorted(ends, pairs, side="right") if single is None else single[pairs]
            theirs = firsts[ours] + pairs - (ends[ours] - counts[ours])
            has = matched[ours]
            if self.indicator and len(index):
                theirs = np.where(has, theirs, 0)
            rows = index[theirs] if len(index) else np.zeros(0 if not self.indicator else len(pairs), dtype=np.int64)
            yield self.rows_of(chunk, ours, rows, has if self.indicator else None)
        self.columns.trim()
        self.index.trim()

    def _look_up(self, chunk: Data, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each row of a chunk, where its partners begin in the index, and how many there are."""
        words, kept = self.reader.read(chunk, start)
        firsts, counts = np.zeros(len(chunk), dtype=np.int64), np.zeros(len(chunk), dtype=np.int64)
        if not len(words[0]):
            return firsts, counts
        table: Words = [word.numpy().view(np.uint64) for word in self.index.tensors[1:]]
        order, words = stable_order(words)
        starts = group_starts(words)
        distinct = take(words, starts)
        low = search(table, distinct)
        if self.is_unique:
            at = np.minimum(low, max(len(table[0]) - 1, 0))
            found = (low < len(table[0])) & equal(take(table, at), distinct) if len(table[0]) else low < 0
            high = low + found
        else:
            high = search(table, distinct, right=True)
        lengths = np.diff(starts, append=len(order))
        rows = order if kept is None else kept[order]
        firsts[rows] = np.repeat(low, lengths)
        counts[rows] = np.repeat(high - low, lengths)
        return firsts, counts

    def schema_of(self, data: Data) -> Schema:
        """What the result looks like."""
        none = np.empty(0, dtype=np.int64)
        return take_apart(self.rows_of(narrow(data, 0, 0, 0), none, none, none > 0 if self.indicator else None)).schema

    def rows_of(
        self, chunk: Data, ours: NDArray[np.int64], theirs: NDArray[np.int64], has: NDArray[np.bool_] | None
    ) -> Data:
        """Rows of both datasets side by side; `has` tells which have a partner."""
        numbers = torch.from_numpy(ours)
        joined = TensorDict({}, [len(ours)])
        for key in self.keys:
            value = chunk.get(key)
            simple = isinstance(value, Tensor) and is_columnar(value)
            joined.set(key, reordered(value.detach(), ours) if simple else value[numbers])
        missing = None if has is None else torch.from_numpy(~has)
        columns = [_taken(column, theirs, missing) for column in self.columns.tensors]
        placed = with_columns(self.example, columns, len(ours))
        for key in placed.keys():
            joined.set(key, placed.get(key))
        for key, value in self.objects.items():
            joined.set(key, _taken(value, theirs, missing))
        if has is not None:
            joined.set(self.indicator, torch.from_numpy(has))
        return joined
