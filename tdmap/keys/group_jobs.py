"""The jobs behind the methods of groups: chunks are cut by ranges of keys, and answers made of each range."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tdmap.data.columns import Shape, columns_of, is_columnar, schema_of
from tdmap.data.kinds import Data
from tdmap.data.reader import narrow, rows_of, select
from tdmap.data.schema import Schema, take_apart
from tdmap.data.sizes import row_bytes_of
from tdmap.data.stacks import column_at
from tdmap.job import Job, Source
from tdmap.keys.aggregates import Grouped
from tdmap.keys.mapping import MapPartition
from tdmap.keys.prepare import KeyedData, count_partitions, plan_rows
from tdmap.keys.reducing import (
    CutChunk,
    ReducePartition,
    answer_of,
    empty_answer,
    fold_kept,
    key_entries,
    one_row,
    try_forms,
    types_of_answer,
)
from tdmap.keys.slots import FEW, KeyTable, distinct
from tdmap.keys.spilling import Kept, Partitions, write_run
from tdmap.keys.splits import KEY_RANGE, Splits
from tdmap.memory.spill import Spill
from tdmap.output.append import CollectPieces, SpillRows
from tdmap.output.output import Output
from tdmap.plan import ChunkPlan, make_plan
from tdmap.reducers.base import Key
from tdmap.run.context import Context
from tdmap.shards.sharded import entry_names
from tensordict_lite import is_non_tensor
from tensordict_lite.ragged import is_ragged


def payload_of(data: Data, keyed: KeyedData, forms: Mapping[str, Grouped]) -> tuple[Key, ...] | None:
    """The entries of a dataset that reducers read; None for all of `keyed`.

    Raises:
        TypeError: one of them has no tensor; names the reducer.
    """
    if isinstance(data, Tensor):
        return None
    names: list[Key] = []
    for name, form in forms.items():
        if form.key is not None:
            entry = column_at(rows_of(data).like, form.key)
            if is_non_tensor(entry):
                lists = is_ragged(entry) and entry.kind == "tensor"
                advice = "use map_groups(fn)" if lists else "use map_groups(fn), or make it a part of the key"
                raise TypeError(
                    f"the reducer {name!r} reads {form.key!r}, which holds "
                    f"{'rows of different lengths' if lists else 'Python objects'}. Of groups, First and Last reduce "
                    f"these, other reducers tensors: {advice}."
                )
            names.append(form.key)
        elif form.reads_rows:
            if not is_columnar(rows_of(data).sample()):
                raise TypeError(
                    f"the reducer {name!r} reads whole rows, and not all entries are tensors of one length: call "
                    "group_by(data.select(...)) with the entries that it needs, or use map_groups(fn)."
                )
            return None if keyed.data is data else tuple(data.keys())  # without the numbers of strings
    return tuple(dict.fromkeys(names))


def reduce_each_group(
    ctx: Context,
    keyed: KeyedData,
    forms: dict[str, Grouped],
    spill: Spill,
    payload: tuple[Key, ...] | None = (),
    by_number: bool = False,
) -> tuple[CollectPieces | Data, Callable[[], Schema]]:
    """The answers, of few keys as they are and of many as pieces in files, and what they look like for none.

    Args:
        ctx: the call.
        keyed: the dataset.
        forms: the reducers.
        spill: for rows on their way to their partitions, and for the answers.
        payload: entries that the reducers read; None for all.
        by_number: they read the numbers of rows, and no entries.
    """
    codec, tuning = keyed.codec, ctx.tuning
    source = _source(keyed, payload)
    some = min(int(source.shape[0]), 1)
    # Selected from the rows, as workers do: a sharded dataset has added columns behind its own.
    rows = torch.arange(some) if by_number else select(narrow(source, 0, 0, some), payload)
    row = one_row(rows)
    trial = try_forms(forms, row)
    length = int(source.shape[0])
    plan = plan_rows(length, row_bytes_of(source, length), ctx.options.get("chunksize"))
    spec = keyed.reader.spec
    names = {} if spec.fn is not None else dict(zip(keyed.names, spec.names))
    types = types_of_answer(keyed.data, names, forms)

    def empty() -> Schema:
        return take_apart(empty_answer(keyed.names, codec, forms, one_row(schema_of(rows)), types)).schema

    if not plan.length:
        return CollectPieces(), empty
    one_by_one = any(form.objects for form in forms.values())
    seen = distinct(keyed.sample) if len(keyed.sample[0]) else []
    few = bool(seen) and len(seen[0]) <= FEW and keyed.unseen_share() <= tuning.unseen_share
    share, groups = (0.0, len(seen[0])) if few else keyed.distinct_share(plan)
    combine = share <= tuning.combine_share and not one_by_one
    shapes = [Shape.of(c) for c in ([c for state in trial for c in state] if combine else columns_of(row))]
    rows_left = plan.length
    if combine:  # keys that repeat within a chunk, in one chunk and all over the data
        rows_left = min(max(plan.num_chunks * groups, int(plan.length * keyed.unseen_share())), plan.length)
    row_bytes = 8 * codec.num_words + sum(shape.nbytes for shape in shapes)
    splits = keyed.splits(count_partitions(ctx, rows_left * row_bytes))
    cut = CutChunk(keyed.reader, spill, splits, payload, by_number)
    widths = [len(state) for state in trial] if combine else None
    if combine:
        cut.forms, cut.table = forms, KeyTable.of_sample(seen) if few else KeyTable()
        kept_bytes = tuning.kept_bytes
        cut.most = kept_bytes // (row_bytes * plan.num_chunks) if rows_left * row_bytes <= kept_bytes else 0
    runs = _run_cut(ctx, source, plan, cut)
    kept = [run for run in runs if isinstance(run, Kept)]
    if widths is not None and kept:
        if len(kept) == sum(run is not None for run in runs):
            words, states = fold_kept(kept, codec.num_words, shapes, forms, widths)
            keys = key_entries(keyed.names, codec, words)
            return answer_of(keys, forms, states, len(words[0]), types), empty
        # The sample has not told it all: some chunks had too many keys.
        for number, run in enumerate(runs):
            if isinstance(run, Kept):
                runs[number] = write_run(spill, splits, *run.read(codec.num_words, shapes))
    partitions = Partitions(spill, runs, codec.num_words, shapes)
    reduce = ReducePartition(keyed.names, codec, partitions, forms, schema_of(rows), widths, tuning.heap_bytes, types)
    where = ctx if one_by_one else ctx.light(partitions.nbytes)
    return _each_partition(where, splits, reduce, spill), empty


def _source(keyed: KeyedData, payload: tuple[Key, ...] | None) -> Data:
    """What chunks are cut from: the entries that matter, as far as that is known."""
    data = keyed.data
    spec = keyed.reader.spec
    if payload is not None and spec.fn is None:
        return select(data, [*spec.names, *(name for name in payload if name not in spec.names)])
    rows = rows_of(data)
    # The entries of all folders in one order.
    return data if rows.is_view else rows.select(*entry_names(rows.sample()))


def _run_cut(ctx: Context, source: Data, plan: ChunkPlan, cut: CutChunk) -> list[Any]:
    forms = (cut.forms or {}).values()
    ours = cut.reader.spec.fn is None and all(type(form).__module__.startswith("tdmap.") for form in forms)
    # The user's code runs in workers, which may die of it.
    nbytes = plan.length * row_bytes_of(source, plan.length) if ours else sys.maxsize
    nbytes = 0 if plan.num_chunks == 1 else nbytes
    is_quick = cut.table is not None and cut.most  # what is sorted and written takes longer
    where = ctx.quick(nbytes) if is_quick else ctx.light(nbytes)
    if not cut.most or ctx.execution.is_foreign:  # whose workers may go on when the folder has been deleted
        cut.spill.make()
    runs: list[Any] = where.step(source, plan, cut)
    return runs


def _each_partition(
    ctx: Context, splits: Splits, fn: Callable[..., Any], spill: Spill, output: Output | None = None
) -> CollectPieces:
    pieces = CollectPieces(output)
    numbers = torch.arange(splits.count)
    plan = ChunkPlan(splits.count, 1, unit=KEY_RANGE)
    ctx.run(Job(Source(numbers), plan, SpillRows(fn, spill), ctx.steps), pieces)
    return pieces


# -- map_groups --------------------------------------------------------------------------------------


def map_each_group(
    ctx: Context,
    keyed: KeyedData,
    data: Data,
    fn: Callable[[Any], Any],
    spill: Spill,
) -> tuple[CollectPieces, Callable[[], Schema] | None]:
    """What a function returns for the groups, as pieces in files, and what it looks like where there are no rows."""
    length = int(data.shape[0])
    if not length:
        return CollectPieces(), lambda: take_apart(narrow(data, 0, 0, 0)).schema
    whole = is_columnar(data)
    row_bytes = row_bytes_of(data, length)
    nbytes = length * row_bytes
    source = keyed.data
    if not whole and not rows_of(source).is_view and keyed.reader.spec.fn is None:
        source = select(source, keyed.reader.spec.names)
        row_bytes = row_bytes_of(source, length)
    chunksize, num_chunks = ctx.options.get("chunksize"), ctx.options.get("num_chunks")
    if num_chunks is None:
        plan = plan_rows(length, row_bytes, chunksize)
    else:
        plan = make_plan(length, chunksize=chunksize, num_chunks=num_chunks)
    # A key of many rows has a range of its own, so that no range of several keys is much larger than it should be.
    heap_bytes = ctx.tuning.heap_bytes
    parts = count_partitions(ctx, nbytes, at_least=64)
    splits = keyed.splits(parts, alone=min(heap_bytes / max(nbytes, 1), 1.0))
    # The rows themselves are the user's, without the numbers of strings.
    payload = None if keyed.data is data else tuple(data.keys())
    cut = CutChunk(keyed.reader, spill, splits, payload, by_number=not whole)
    runs = _run_cut(ctx, source, plan, cut)
    example = schema_of(data) if whole else None
    shapes = [Shape.of(column) for column in columns_of(example)] if whole else [Shape(torch.int64, ())]
    partitions = Partitions(spill, runs, keyed.codec.num_words, shapes)
    rows = example if whole else data
    work = MapPartition(fn, keyed.codec, keyed.labels, partitions, rows, whole, heap_bytes)
    seeded = replace(ctx, steps=replace(ctx.steps, seed=ctx.function.seed))
    return _each_partition(seeded, splits, work, spill, ctx.output), None
