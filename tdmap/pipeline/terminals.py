"""What ends a pipeline other than iterating it: write, reduce, collect and count its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeGuard

from tdmap.data.alike import check_rows
from tdmap.data.combine import merge
from tdmap.data.kinds import Data, is_data
from tdmap.data.schema import Schema, join_pieces
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch
from tdmap.functions import plain_rows
from tdmap.job import Job
from tdmap.ops.reduce import FoldChunk
from tdmap.output.append import append_rows, append_stream, each_result
from tdmap.output.folder import fill_folder
from tdmap.output.given import Preallocated
from tdmap.output.memory import Gather
from tdmap.output.spill import placing
from tdmap.output.values import Collect, Fold
from tdmap.pipeline.epochs import EpochChunks, RunSettings, chunk_rows, chunk_sizes, head_job, is_open, open_plan
from tdmap.pipeline.iterators import count_of, open_iterator
from tdmap.pipeline.planning import Head, Plan, is_one_pass, with_chunks
from tdmap.pipeline.rows import few
from tdmap.pipeline.stages import ENDLESS, ROW_WISE, Batch, FlatMap, Map, Repeat, Stage, Take, ZipWith
from tdmap.pipeline.work import apply_stage, with_batches
from tdmap.plan import ChunkPlan
from tdmap.reducers.base import Reducer
from tdmap.run.context import Context


def check_ends(plan: Plan) -> None:
    """Raise ValueError for a pipeline without an end, of which only an iteration makes sense."""
    if isinstance(plan, Head):
        endless = plan.epochs == ENDLESS and plan.stop is None
    else:
        endless = isinstance(plan.stage, Repeat) and plan.stage.epochs == ENDLESS
    if endless:
        raise ValueError(".repeat() without a number has no end: pass a number, use .take(n) after it, or iterate.")
    if not isinstance(plan, Head) and not isinstance(plan.stage, Take):
        for source in plan.sources:
            check_ends(source)


def keeps_rows(plan: Plan) -> TypeGuard[Head]:
    """Whether one job gives one row for each row of its source, in order."""
    if not is_one_pass(plan):
        return False
    batched = [stage for stage in plan.tail if not isinstance(stage, (*ROW_WISE, Batch))]
    return not batched and not any(isinstance(stage, Map) for stage in plan.tail)


def one_job(head: Head, settings: RunSettings, gives_rows: bool = False, **ends: Any) -> Job:
    """The single job of a head with one epoch.

    Args:
        head: the rows, and what is done to them.
        settings: how to run it.
        gives_rows: its results are rows, so that the first of them may settle how large chunks are.
        **ends: see `head_job`.
    """
    asked = settings.chunk_of(head)
    job = head_job(EpochChunks(head, chunk_rows(head, asked)), 0, settings, **ends)
    if gives_rows and head.stages and is_open(head, asked):
        return replace(job, plan=open_plan(head, job.plan.length))
    return job


def pieces_of(plan: Plan, settings: RunSettings) -> Iterator[Data]:
    """All rows of a plan, piece by piece, batches among them; checked to be rows."""
    pieces = open_iterator(with_chunks(plan, iter(chunk_sizes(plan, settings))), settings)
    with contextlib.closing(pieces):
        yield from map(as_rows, pieces)


def as_rows(value: Any, start: int = 0) -> Data:
    """A batch as rows; a dict of columns, or an array, is some.

    Raises:
        TypeError: it is something else, which a function of batches may return.
    """
    value = plain_rows(value, None, "any")
    if not is_data(value) or not value.shape:
        raise TypeError(
            f"batches must be tensors or collections: got a {type(value).__name__}. Iterate such a pipeline, "
            "or leave out its last stage."
        )
    return value


# -- collect -------------------------------------------------------------------------------------------


def collect(plan: Plan, settings: RunSettings) -> Data:
    """All rows in memory."""
    check_ends(plan)
    execution = settings.execution
    if is_one_pass(plan) and execution is not None:
        job = one_job(plan, settings, True, then=as_rows, empty=_none)
        with placing(execution) as place:
            value = execution.run(job, Gather(place=place)) if job.plan.length else None
    else:
        pieces = [piece.clone() for piece in pieces_of(plan, settings)]
        value = join_pieces(pieces) if pieces else None
    return no_rows(plan) if value is None else value


def _none() -> None:
    return None


def no_rows(plan: Plan) -> Data:
    """Zero rows with the schema that the plan's rows would have, learnt from a row of the source if it has any.

    Raises:
        ValueError: a function does not work on that, so the schema is not known.
    """
    failure: Exception | None = None
    for rows in (1, 0):
        try:
            value = dry_run(plan, rows)
            if is_data(value) and value.shape:
                return value[:0]
        except Exception as error:
            failure = failure or error
    why = "" if failure is None else f": {type(failure).__name__}: {failure}"
    raise ValueError(f"the result has no rows, so its schema is unknown{why}") from failure


def dry_run(plan: Plan, rows: int) -> Any:
    """What the stages make of the first so many rows of the source, filters left out."""
    if isinstance(plan, Head):
        example = few(plan.view, rows)
        return _dry_stages(plan.tail, example.take(range(example.length or 0)))
    values = [dry_run(source, rows) for source in plan.sources]
    return merge(values) if isinstance(plan.stage, ZipWith) else _dry_stages((plan.stage,), values[0])


def _dry_stages(stages: tuple[Stage, ...], value: Any) -> Any:
    for stage, batched in with_batches(stages):
        if isinstance(stage, FlatMap):
            value = next(each_result(stage.fn(value), value))
        elif isinstance(stage, ROW_WISE):
            value = apply_stage(stage, value, batched)
    return value


# -- reduce --------------------------------------------------------------------------------------------


def reduce(plan: Plan, settings: RunSettings, reducer: Reducer[Any]) -> Any:
    """Fold all rows. Workers fold their chunks where they can."""
    check_ends(plan)
    execution = settings.execution
    if is_one_pass(plan) and execution is not None and (keeps_rows(plan) or not reducer.numbers_rows):
        job = one_job(plan, settings, then=_Fold(reducer, None), empty=reducer.init)
        state = execution.run(job, Fold(reducer)) if job.plan.length else reducer.init()
        return reducer.finish(state)
    state, start = reducer.init(), 0
    for piece in pieces_of(plan, settings):
        state = reducer.update(state, piece, start)
        start += int(piece.shape[0])
    return reducer.finish(state)


class _Fold(FoldChunk):
    def __call__(self, chunk: Data, start: int = 0) -> Any:
        return super().__call__(as_rows(chunk), start)


# -- count ---------------------------------------------------------------------------------------------


def finite(count: int) -> int:
    """A number of elements, unless it is endless.

    Raises:
        ValueError: it is.
    """
    if count >= ENDLESS:
        raise ValueError(
            ".repeat() without a number has no end, and no length: pass a number, or use .take(n) after it."
        )
    return count


def count(plan: Plan, settings: RunSettings) -> int:
    """Rows, or batches after `.batch`, by running the stages."""
    check_ends(plan)
    batched = plan.batched
    execution = settings.execution
    if is_one_pass(plan) and execution is not None:
        job = one_job(plan, settings, then=_Tally(batched), empty=int)
        counts: list[int] = execution.run(job, Collect()) if job.plan.length else []
        return sum(counts)
    with contextlib.closing(open_iterator(plan, settings)) as pieces:
        return sum(count_of(piece, batched) for piece in pieces)


class _Tally:
    def __init__(self, batched: bool) -> None:
        self.batched = batched

    def __call__(self, value: Any, start: int) -> int:
        return 1 if self.batched else int(value.shape[0])

    def join_states(self, counts: list[int]) -> int:
        """Of a chunk, from those of its parts."""
        return max(counts) if self.batched else sum(counts)


# -- write ---------------------------------------------------------------------------------------------


def write(plan: Plan, settings: RunSettings, ctx: Context) -> Data:
    """All rows into the folder of the output, or into rows that exist already."""
    check_ends(plan)
    if ctx.output.given is not None:
        return _write_into(plan, settings, ctx.output.given)
    if ctx.output.store is None:
        raise TypeError(".write() takes the path of a folder, or a dataset to write into: got None; see .collect().")
    if keeps_rows(plan) and not settings.failures.skip:
        job = one_job(plan, settings, True)
        if job.plan.length == 0:
            job = replace(job, source=replace(job.source, data=no_rows(plan), order=None))
        return fill_folder(job, ctx.output.store, ctx.execution, ctx.log, ctx.options.get("spill_dir"))
    if is_one_pass(plan):
        return append_rows(ctx, one_job(plan, settings, True, then=as_rows, empty=_none), empty=_schema(plan))
    if ctx.options.get("resume"):
        raise ValueError(
            "resume=True needs stages that workers can do one chunk at a time, and a stage of this pipeline depends on "
            "all rows before it (explain() shows which). Put .cache(path) before that stage: the cache is resumed."
        )
    return append_stream(ctx, pieces_of(plan, settings), lambda: Schema(no_rows(plan)))


def _write_into(plan: Plan, settings: RunSettings, out: Data) -> Data:
    room = int(out.shape[0])
    if keeps_rows(plan) and not settings.failures.skip:
        assert settings.execution is not None
        job = one_job(plan, settings)
        rows = job.plan.length
        if rows > room:
            raise too_small(rows, room)
        target = out if rows == room else out[:rows]
        check_rows(target, job.plan, (rows,))
        if rows == 0:
            return out
        settings.execution.run(job, Preallocated(target))
        return out
    at = 0
    for piece in pieces_of(plan, settings):
        rows = int(piece.shape[0])
        if at + rows > room:
            counted = plan.elements if not plan.batched else None
            raise too_small(counted, room)
        writer = RowWriter(out[at : at + rows], ChunkPlan(rows, rows), exact=False)
        writer.write(next(writer.rows(0, 1)), piece)
        at += rows
    return out


def too_small(rows: int | None, room: int) -> OutputMismatch:
    """The error for an output that does not hold the result."""
    needs = "more" if rows is None else f"{rows} rows"
    return OutputMismatch(
        f"out has {room} rows and the pipeline yields {needs}: allocate a larger one, use .take({room}), or "
        "write to a folder."
    )


# -- rows whose number is not known before: they wait in spill files until it is -------------------------------


def _schema(plan: Plan) -> Schema | None:
    try:
        return Schema(no_rows(plan))
    except ValueError:
        return None
