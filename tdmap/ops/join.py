"""`join`: the rows of two datasets with equal keys, side by side.

    b ──► lookup: where the rows with a key are, in memory that all workers map          joins/lookup
    a ──► what is found for each row ──► pairs of rows ──► their place in the output     joins/placing

The other way round where `a` is much the smaller one                                    joins/swapping


Every byte of the result is written once. Where an entry is more than a plain column, as strings are, pairs are made
chunk by chunk and wait in files instead (joins/chunks).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.entries import as_tensordict, path_of, with_types
from tdmap.data.kinds import Data, Dataset
from tdmap.data.objects import entry_at, object_paths
from tdmap.data.reader import narrow
from tdmap.data.schema import Schema, take_apart
from tdmap.data.sizes import row_bytes_of
from tdmap.data.stacks import ragged_columns
from tdmap.job import Job, Source
from tdmap.keys.joins import chunks
from tdmap.keys.joins.chunks import JoinChunk
from tdmap.keys.joins.lookup import Lookup, lookup_of
from tdmap.keys.joins.placing import (
    ChunkColumn,
    FindRows,
    Matches,
    OutputColumn,
    PlaceOthers,
    find_matches,
    place_each,
    place_pairs,
    rows_without_partner,
)
from tdmap.keys.joins.sides import Names, On, comparable, in_one_piece, keys_of, read_by_chunk, renamed
from tdmap.keys.joins.swapping import as_matches, rows_of_first, with_partner
from tdmap.keys.keys import KeySpec
from tdmap.keys.prepare import KeyedData, plan_rows, prepare
from tdmap.memory.rowfiles import RowFiles, SharedTensors
from tdmap.memory.spill import Spill
from tdmap.ops.filter import copy_selected
from tdmap.output.append import append_rows
from tdmap.output.output import Output, SourceRows
from tdmap.output.permute import block_rows, deliver
from tdmap.plan import ChunkPlan
from tdmap.reducers.base import Key
from tdmap.run.context import Context, require_rows
from tdmap.run.operation import operation
from tdmap.run.options import Options
from tensordict_lite import TensorDict, is_tensorclass

KEY = "__join_key_{}__"
"""Entry of a chunk that is read as a key."""

METHODS = ("inner", "left", "right", "outer", "semi", "anti")


@operation
def join(
    ctx: Context,
    a: Dataset[Any],
    b: Dataset[Any],
    on: On | None = None,
    how: str = "inner",
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    left_on: Key | list[Key] | None = None,
    right_on: Key | list[Key] | None = None,
    suffix: str = "_right",
    suffixes: tuple[str, str] | None = None,
    indicator: str = "__matched__",
    **options: Unpack[Options],
) -> Any:
    """Join two datasets by key: each row of `a` with each row of `b` that has the same key.

    Args:
        a, b: collections with rows in dimension 0.
        on: an entry of both, a nested entry (a tuple of strings), a list of entries, or a mapping of entries of `a` to
            entries of `b`. `tdmap.group_by` lists the types. Dtypes must be equal; integers may have different widths.
            NaN and None equal no key, themselves included.
        how: the type of join.

            - `"inner"`: pairs of rows with equal keys.
            - `"left"`: these pairs, and unmatched rows of `a`, whose entries of `b` are zeros, None (strings and
              Python objects) or empty (ragged rows of numbers or bytes).
            - `"right"`: these pairs, and unmatched rows of `b`, in the order of `b`.
            - `"outer"`: the rows of `"left"`, and then unmatched rows of `b`, with their own keys.
            - `"semi"`: rows of `a` with a match, once each, without entries of `b`.
            - `"anti"`: rows of `a` without a match.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
        left_on, right_on: the keys of `a` and of `b`, instead of `on`. The result has the names of `left_on`.
        suffix: suffix for entries of `b` with a name that `a` has too.
        suffixes: suffixes for such entries of `a` and of `b`, instead of `suffix`.
        indicator: with `how="left"` and `"right"`, the name of a bool entry that is True for matched rows. With
            `"outer"`, the name of a collection of two bools, `"left"` and `"right"`: whether `a`, and `b`, has the row.
        **options: see `tdmap.Options`. `chunksize` is the number of rows of `a` that are looked up at a time.

    Returns:
        A TensorDict with the entries of `a` and the entries of `b` except its keys. Rows are in the order of `a`; rows
        with the same row of `a` are in the order of `b`. The same bits for any number of workers.

    Raises:
        KeyError: unknown entry; lists the entries.
        TypeError: the keys of `a` and `b` have different dtypes, or cannot be keys.
        ValueError: a name with its suffix exists already; or `how` is unknown.
        OutputMismatch: `out` has too few rows, or other shapes or dtypes.
        ResumeMismatch: with `resume`, the folder holds another run; names the difference.
        Exception: as `tdmap.map`.

    Example:
        >>> people = TensorDict({"id": torch.tensor([1, 2, 3]), "age": torch.tensor([30, 40, 50])}, [3])
        >>> visits = TensorDict({"id": torch.tensor([3, 1, 3]), "day": torch.tensor([5, 6, 7])}, [3])
        >>> both = join(people, visits, "id", num_workers=0)
        >>> both["id"], both["age"], both["day"]
        (tensor([1, 3, 3]), tensor([30, 50, 50]), tensor([6, 5, 7]))
        >>> join(people, visits, "id", "anti", num_workers=0)["id"]
        tensor([2])
    """
    ours, theirs = keys_of(on, left_on, right_on)
    named = _check(a, b, how, out, suffix, suffixes)
    if how not in ("semi", "anti"):  # those have rows of the first dataset as they are
        a, b = ragged_columns(a), ragged_columns(b)
        a = as_tensordict(a) if is_tensorclass(a) else a
    b = as_tensordict(b) if is_tensorclass(b) else b
    sides = prepare(ctx, a, ours, "join", dropna=True), prepare(ctx, b, theirs, "join", dropna=True)
    with ctx.inner().spill(later=True) as spill:
        task = _Join(ctx, a, b, ours, theirs, *comparable(*sides), how, indicator, spill)
        if how in ("semi", "anti"):
            return task.select()
        task.open_sides()
        gaps = (how in ("right", "outer"), how in ("left", "outer"))
        task.names = renamed(task.first, task.second, theirs, named, ours, gaps)
        task.check_indicator()
        if task.is_plain:
            return task.place()
        return task.outer_of_objects() if how == "outer" else task.append(ctx)


def _check(a: Data, b: Data, how: str, out: object, suffix: str, suffixes: tuple[str, str] | None) -> tuple[str, str]:
    """Raise what is wrong with the arguments before anything is read; returns the suffixes of both sides."""
    if how not in METHODS:
        raise ValueError(f"how must be one of {', '.join(map(repr, METHODS))}: got {how!r}.")
    for side in (a, b):
        require_rows(side, "join")
        if isinstance(side, Tensor):
            raise TypeError("join needs collections with entries on both sides: got a tensor. Use TensorDict.")
        Output(out, side)  # neither may be written over
    if suffixes is None:
        return "", suffix
    if suffix != "_right":
        raise TypeError("join takes suffix=, for names of the second dataset, or suffixes=, for both: not the two.")
    if not isinstance(suffixes, (tuple, list)) or len(suffixes) != 2 or not all(isinstance(s, str) for s in suffixes):
        raise TypeError(f"suffixes are two strings, as in ('_x', '_y'): got {suffixes!r}.")
    return suffixes[0], suffixes[1]


@dataclass
class _Join:
    ctx: Context
    a: Data
    b: Data
    ours: KeySpec
    theirs: KeySpec
    left: KeyedData
    right: KeyedData
    how: str
    indicator: str
    spill: Spill
    names: Names | None = None
    first: Data = None
    """The first dataset with all its columns; or what stands for it, where its rows come with the chunks of jobs."""
    second: Data = None
    """The second one."""
    streamed: bool = False
    """Whether the rows that pairs are made for come with the chunks."""

    def open_sides(self) -> None:
        """Find out how the rows of both datasets are read."""
        main, other = (self.b, self.a) if self.how == "right" else (self.a, self.b)
        outline = read_by_chunk(main)
        self.streamed = outline is not None
        main = in_one_piece(self.ctx, main, self.spill) if outline is None else outline
        other = in_one_piece(self.ctx, other, self.spill)
        self.first, self.second = (other, main) if self.how == "right" else (main, other)

    @property
    def share(self) -> bool:
        """Whether workers are other processes."""
        return self.ctx.execution.in_processes

    def check_indicator(self) -> None:
        """Raise ValueError when its name is taken."""
        assert self.names is not None
        if self.how == "inner":
            self.indicator = ""
        elif any(self.indicator in side.keys() for side in self.names.sides):
            raise ValueError(f"join: the entry {self.indicator!r} exists already: pass another indicator=.")

    # -- semi and anti

    def select(self) -> Data:
        """Rows of the first dataset that have a partner, or have none."""
        source = SourceRows(self.a)
        source.check(self.ctx.output)
        owners = self._owners(self.left, self.right)
        if owners is not None:
            has = with_partner(owners, int(self.a.shape[0]))
        else:
            has = self._matches(self._lookup(self.right), self.left).has
        copy_selected(self.ctx, self.a, source, has if self.how == "semi" else ~has)
        return self.ctx.output.result()

    def _lookup(self, keyed: KeyedData) -> Lookup:
        return lookup_of(self.ctx, keyed, self.spill)

    def _matches(self, lookup: Lookup, keyed: KeyedData) -> Matches:
        return find_matches(self.ctx, keyed, lookup, self.ctx.options.get("chunksize"))

    def _owners(self, first: KeyedData, second: KeyedData) -> NDArray[Any] | None:
        return rows_of_first(self.ctx, first, second, self.spill)

    # -- plain columns

    @property
    def is_plain(self) -> bool:
        """Whether both sides are tensors that can be read where they lie."""
        assert self.names is not None
        return not any(object_paths(side) for side in self.names.sides) and all(
            SourceRows(side).tensors is not None for side in self.names.sides
        )

    def place(self) -> Data:
        """Write pairs of rows to their place."""
        assert self.names is not None
        output = self.ctx.output
        mains = self.how == "right"
        keyed, other = (self.right, self.left) if mains else (self.left, self.right)
        owners = self._owners(keyed, other)
        lookup = self._lookup(other) if owners is None else None
        example = self._example()
        schema = take_apart(example).schema
        columns, tensors, chunk_columns = self._columns(schema)
        streamed = (keyed.data, chunk_columns) if self.streamed else None
        shared = tuple(SharedTensors(side, self.share) for side in tensors)
        sides = (shared[1], shared[0]) if mains else (shared[0], shared[1])
        if mains:
            columns = [column._replace(side=(1, 0, 2)[column.side]) for column in columns]
        keep = self.how != "inner"
        if lookup is not None and self._has_one_each(keyed, lookup) and place_each(
            self.ctx, keyed, keep, sides, columns, lookup, schema.row_bytes,
            lambda total: output.open(schema, total), streamed,
        ):  # fmt: skip
            return output.result()
        if owners is not None:
            lookup, matches = as_matches(owners, int(keyed.data.shape[0]), self.share)
        else:
            assert lookup is not None
            matches = self._matches(lookup, keyed)
        alone = (
            rows_without_partner(matches, lookup, int(self.b.shape[0]))
            if self.how == "outer"
            else torch.zeros(0, dtype=torch.int64)
        )
        places, rows = place_pairs(
            self.ctx, matches, keep, sides, columns, lookup, schema.row_bytes, len(alone),
            lambda total: output.open(schema, total), streamed,
        )  # fmt: skip
        if len(alone):
            self._place_alone(alone, schema, shared[1], columns, places, rows)
        return output.result()

    def _has_one_each(self, keyed: KeyedData, lookup: Lookup) -> bool:
        """Whether every row of a dataset has one pair; as far as a sample tells, where rows have to have a partner."""
        if not lookup.is_unique or self.how == "outer" or not keyed.data.shape[0]:
            return False
        if self.how != "inner":
            return True
        # If it turns out otherwise, memory is made anew; a folder or an existing dataset is not written twice.
        return (
            self.ctx.output.is_memory and len(keyed.sample[0]) > 0 and bool((lookup.find(keyed.sample)[0] >= 0).all())
        )

    def _example(self) -> TensorDict:
        assert self.names is not None
        found = TensorDict({}, [0])
        for side in self.names.sides:
            for key in side.keys():
                found.set(key, narrow(side, 0, 0, 0).get(key))
            with_types(found, side)
        if self.how in ("right", "outer"):  # keys come from either side
            for name, value in self._keys_of_b(narrow(self.second, 0, 0, 0)):
                old = found.get(name)
                if old.dtype is not value.dtype:
                    types = found.arrow_types
                    found = found.exclude(name)
                    found.set(name, value[:0].reshape(0, *old.shape[1:]))
                    found.arrow_types = types
        if self.indicator:
            none = torch.zeros(0, dtype=torch.bool)
            found.set(self.indicator, TensorDict({"left": none, "right": none}, [0]) if self.how == "outer" else none)
        return found

    def _keys_of_b(self, second: Data) -> list[tuple[Key, Tensor]]:
        """The keys of the second dataset, under the names of the first one, in a dtype that holds both."""
        casts = self.right.reader.spec.casts
        keys = []
        for number, (name, other) in enumerate(zip(self.ours.names, self.theirs.names)):
            value = second.get(other)
            keys.append((name, value.to(casts[number]) if casts and isinstance(value, Tensor) else value))
        return keys

    def _forms_of_keys(self) -> dict[Key, tuple[torch.dtype, tuple[int, ...]]]:
        """The dtype that holds keys of either side, and their shape in a row, where rows of both are in the result."""
        columns = zip(self.ours.names, self.left.codec.columns, self.left.labels)
        return {name: (column.dtype, column.shape) for name, column, strings in columns if strings is None}

    def _columns(
        self, schema: Schema
    ) -> tuple[list[OutputColumn], tuple[list[Tensor], list[Tensor]], list[ChunkColumn]]:
        """Where each column of the result comes from; the tensors of both sides, and the ones that come with chunks."""
        assert self.names is not None
        found: dict[tuple[str, ...], OutputColumn] = {}
        tensors: tuple[list[Tensor], list[Tensor]] = ([], [])
        chunks: list[ChunkColumn] = []
        main = int(self.how == "right")
        for side, (data, names) in enumerate(zip(self.names.sides, (self.names.mine, self.names.theirs))):
            source = SourceRows(data)
            assert source.tensors is not None
            old = {new: name for name, new in names.items()}
            for field, tensor in zip(source.schema.tensors, source.tensors):
                found[field.path] = OutputColumn(side, len(tensors[side]))
                tensors[side].append(tensor)
                if side == main:
                    chunks.append(ChunkColumn((old[field.path[0]], *field.path[1:])))
        if self.how == "outer":
            casts = self.left.reader.spec.casts
            for name, dtype in zip(self.ours.names, casts):
                number = found[path_of(name)].number
                tensors[0][number] = entry_at(self.first, path_of(name)).to(dtype)
                chunks[number] = chunks[number]._replace(dtype=dtype)
        if self.how in ("right", "outer"):
            casts = self.right.reader.spec.casts
            for number, (name, value) in enumerate(self._keys_of_b(self.second)):
                if self.how == "right":
                    found[path_of(name)] = OutputColumn(1, len(tensors[1]))
                    chunks.append(ChunkColumn(path_of(self.theirs.names[number]), casts[number] if casts else None))
                tensors[1].append(value.detach().contiguous())
        if self.streamed:
            tensors[main].clear()
        if self.indicator:
            mine = (self.indicator,)
            found |= {
                mine: OutputColumn(2, 1),
                (*mine, "left"): OutputColumn(2, 0),
                (*mine, "right"): OutputColumn(2, 1),
            }
        return [found[field.path] for field in schema.tensors], tensors, chunks

    def _place_alone(
        self,
        rows: Tensor,
        schema: Schema,
        theirs: SharedTensors,
        columns: list[OutputColumn],
        places: RowFiles,
        at: int,
    ) -> None:
        """Write rows of the second dataset that have no partner after all others."""
        keys = {path_of(name): number for number, name in enumerate(self.ours.names)}
        first = len(theirs.tensors) - len(keys)
        sources: list[int | bool | None] = []
        for field, column in zip(schema.tensors, columns):
            if field.path in keys:
                sources.append(first + keys[field.path])
            else:
                sources.append(column.number if column.side == 1 else bool(column.number) if column.side == 2 else None)
        fn = PlaceOthers(theirs, sources, places, at)
        plan = ChunkPlan(len(rows), block_rows(len(rows), schema.row_bytes, self.ctx))
        self.ctx.light(len(rows) * sum(schema.row_bytes)).step(rows, plan, fn)

    # -- anything else

    def append(self, ctx: Context) -> Data:
        """Pairs of rows as collections."""
        assert self.names is not None
        data: Data
        main, other, keyed, table = self.names.left, self.names.right, self.left, self.right
        chunk_names: dict[Key, Key] = {new: name for name, new in self.names.mine.items()}
        if self.how == "right":
            main, other = self._turned()
            keyed, table = self.right, self.left
            chunk_names = {new: name for name, new in self.names.theirs.items()}
            chunk_names |= dict(zip(self.ours.names, self.theirs.names))
        data, reader = main, keyed.reader
        if self.streamed:
            data = keyed.data
        else:
            chunk_names = {key: key for key in main.keys()}
            # Under names of their own: what a key of the second dataset is called may be a key of the first one.
            data, names = main.copy(), tuple(map(KEY.format, range(len(reader.spec.names))))
            for new, name in zip(names, reader.spec.names):
                data.set(new, keyed.data.get(name))
            reader = replace(reader, spec=replace(reader.spec, names=names))
        forms = self._forms_of_keys() if self.how in ("right", "outer") else {}
        fn = JoinChunk(
            chunk_names, FindRows(reader, self._lookup(table)), other, self.share, self.indicator, forms,
            self.ctx.tuning.join_bytes,
        )  # fmt: skip
        length = int(data.shape[0])
        plan = plan_rows(length, row_bytes_of(data, length), self.ctx.options.get("chunksize"))
        empty = fn.schema_of(data)
        where = ctx.light(0) if plan.num_chunks <= 1 else ctx
        return append_rows(where, Job(Source(data), plan, fn, ctx.steps), empty=empty)

    def _turned(self) -> tuple[TensorDict, TensorDict]:
        """The second dataset with its keys under the names of the first one, and what is left of that."""
        assert self.names is not None
        main, other = self.names.right.copy(), self.names.left
        for name, value in zip(self.ours.names, self.theirs.names):
            if not isinstance(name, str):
                raise ValueError(
                    f"join: how='right' with non-tensor entries does not support the nested key {name!r}: "
                    "swap the datasets and use how='left'."
                )
            main.set(name, self.second.get(value))
            other = other.exclude(name)
        return main, other

    def outer_of_objects(self) -> Data:
        """A left join in memory, and the rows of the second dataset that have no partner."""
        assert self.names is not None
        lookup = self._lookup(self.right)
        alone = rows_without_partner(self._matches(lookup, self.left), lookup, int(self.b.shape[0]))
        name = self.indicator
        pairs = self.append(self.ctx.inner())
        has = pairs.get(name)
        pairs = pairs.exclude(name)
        pairs.set(name, TensorDict({"left": torch.ones_like(has), "right": has}, [len(has)]))
        missing, zeros = torch.ones(len(alone), dtype=torch.bool), torch.zeros(len(alone), dtype=torch.int64).numpy()
        rest = TensorDict({}, [len(alone)])
        for key in self.names.left.keys():
            rest.set(key, chunks.rows_of_entry(chunks.object_columns(self.names.left.get(key), False), zeros, missing))
        forms = self._forms_of_keys()
        for key, value in self._keys_of_b(self.second):
            rest.set(key, value[alone].reshape(-1, *forms[key][1]) if key in forms else value[alone])
        for key in self.names.right.keys():
            rest.set(key, self.names.right.get(key)[alone])
        for side in self.names.sides:
            with_types(rest, side)
        rest.set(name, TensorDict({"left": ~missing, "right": missing}, [len(alone)]))
        if not len(alone):
            whole = pairs
        else:
            whole = torch.cat([pairs, rest]) if len(pairs) else rest  # type: ignore[list-item]
        return deliver(whole, self.ctx.output)
