"""What ends a pipeline other than iterating it: write, reduce, collect and count its rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tdmap.data.join import check_rows
from tdmap.data.kinds import Data, data_length, is_data, require_writable
from tdmap.data.reader import narrow
from tdmap.data.schema import Schema, join_pieces
from tdmap.data.store import OutputFolder
from tdmap.data.writer import RowWriter
from tdmap.diagnostics.progress import StageBars
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.memory.spill import Spill
from tdmap.ops.reduce import FoldChunk
from tdmap.output.append import Pieces, SpillRows, append_rows, each_result, place_pieces
from tdmap.output.output import Output, spill_folder
from tdmap.pipeline.planning import ENDLESS, Again, Both, Head, Local, Plan, is_one_pass, with_chunks
from tdmap.pipeline.rounds import Context, Rounds, chunk_rows, chunk_sizes, head_job, is_open, open_plan
from tdmap.pipeline.rows import Joined, View, Zipped, merge
from tdmap.pipeline.stages import ROW_WISE, Batch, Concat, FlatMap, Map, Stage, Unbatch
from tdmap.pipeline.streams import open_stream
from tdmap.pipeline.work import apply_stage
from tdmap.plan import ChunkPlan
from tdmap.reducers.base import Reducer
from tdmap.run.adapters import ANY, plain_rows
from tdmap.run.arguments import policy_for
from tdmap.run.call import parts_of_job, resumable_call
from tdmap.run.context import Context as Call
from tdmap.run.resumable import map_to_files, map_to_folder
from tdmap.sinks import Collect, Fold, Gather, Preallocated


def check_ends(plan: Plan) -> None:
    """Raise ValueError for a pipeline without an end, of which only an iteration makes sense."""
    endless = isinstance(plan, (Head, Again)) and plan.epochs == ENDLESS
    if isinstance(plan, Local) and plan.stage.name == "take":
        return
    if isinstance(plan, Head) and plan.stop is not None:
        return
    if endless:
        raise ValueError(".repeat() without a number has no end: give it one, use .take(n) after it, or iterate.")
    for source in plan.sources if isinstance(plan, Both) else [plan.source] if not isinstance(plan, Head) else []:
        check_ends(source)


def keeps_rows(plan: Plan) -> bool:
    """Whether one job gives one row for each row of its source, in order."""
    if not is_one_pass(plan):
        return False
    batched = [stage for stage in plan.tail if not isinstance(stage, (*ROW_WISE, Batch))]
    return not batched and not any(isinstance(stage, Map) for stage in plan.tail)


def one_job(head: Head, context: Context, gives_rows: bool = False, **ends: Any) -> Any:
    """The single job of a head with one epoch.

    Args:
        head: the rows, and what is done to them.
        context: how to run it.
        gives_rows: its results are rows, so that the first of them may settle how large chunks are.
        **ends: see `head_job`.
    """
    job = head_job(Rounds(head, chunk_rows(head, context.chunksize)), 0, context, **ends)
    if gives_rows and head.stages and is_open(head, context.chunksize):
        return replace(job, plan=open_plan(head, job.plan.length))
    return job


def pieces_of(plan: Plan, context: Context) -> Iterator[Data]:
    """All rows of a plan, piece by piece, batches among them; checked to be rows."""
    stream = open_stream(with_chunks(plan, iter(chunk_sizes(plan, context))), context)
    try:
        while True:
            try:
                piece = stream.next()
            except StopIteration:
                return
            yield as_rows(piece)
    finally:
        stream.close()


def as_rows(value: Any, start: int = 0) -> Data:
    """A batch as rows; a dict of columns, or an array, is some.

    Raises:
        TypeError: it is something else, which a function of batches may return.
    """
    value = plain_rows(value, ANY)
    if not is_data(value) or not value.shape:
        raise TypeError(
            f"rows are wanted, in tensors or collections, and a batch is a {type(value).__name__}: iterate such a "
            "pipeline, or leave out its last stage."
        )
    return value


# -- collect -------------------------------------------------------------------------------------------


def collect(plan: Plan, context: Context) -> Data:
    """All rows in memory."""
    check_ends(plan)
    execution = context.execution
    if is_one_pass(plan) and execution is not None:
        job = one_job(plan, context, True, then=as_rows, empty=_none)
        value = execution.run(job, Gather()) if job.plan.length else None
    else:
        pieces = [piece.clone() for piece in pieces_of(plan, context)]
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
    raise ValueError(f"no rows are left, and what they would look like cannot be known without one{why}") from failure


def dry_run(plan: Plan, rows: int) -> Any:
    """What the stages make of the first so many rows of the source, filters left out."""
    if isinstance(plan, Head):
        return _dry_stages(plan.tail, _dry_view(plan.view, rows))
    if isinstance(plan, Both):
        values = [dry_run(source, rows) for source in plan.sources]
        return values[0] if isinstance(plan.stage, Concat) else merge(values)
    value = dry_run(plan.source, rows)
    return value if isinstance(plan, Again) else _dry_stages((plan.stage,), value)


def _dry_view(view: View, rows: int) -> Data:
    leaf = view.leaf
    if isinstance(leaf, Joined):
        data = _dry_view(leaf.parts[0], rows)
    elif isinstance(leaf, Zipped):
        data = merge([_dry_view(part, rows) for part in leaf.parts])
    else:
        data = narrow(leaf, 0, 0, min(rows, data_length(leaf, 0))).clone()
    return _dry_stages(view.stages, data)


def _dry_stages(stages: tuple[Stage, ...], value: Any) -> Any:
    batched = False
    for stage in stages:
        if isinstance(stage, (Batch, Unbatch)):
            batched = isinstance(stage, Batch)
        elif isinstance(stage, FlatMap):
            value = next(each_result(stage.fn(value)))
        elif isinstance(stage, ROW_WISE):
            value = apply_stage(stage, value, batched)
    return value


# -- reduce --------------------------------------------------------------------------------------------


def reduce(plan: Plan, context: Context, reducer: Reducer[Any]) -> Any:
    """Fold all rows. Workers fold their chunks where they can."""
    check_ends(plan)
    execution = context.execution
    if is_one_pass(plan) and execution is not None:
        job = one_job(plan, context, then=_Fold(reducer, None), empty=reducer.init)
        state = execution.run(job, Fold(reducer)) if job.plan.length else reducer.init()
        return reducer.finish(state)
    state, start = reducer.init(), 0
    for piece in pieces_of(plan, context):
        state = reducer.update(state, piece, start)
        start += int(piece.shape[0])
    return reducer.finish(state)


class _Fold(FoldChunk):
    """The state of a chunk's rows, which may be a batch."""

    def __call__(self, chunk: Any, start: int = 0) -> Any:
        return super().__call__(as_rows(chunk), start)


# -- count ---------------------------------------------------------------------------------------------


def finite(count: int) -> int:
    """A number of elements, unless it is endless.

    Raises:
        ValueError: it is.
    """
    if count >= ENDLESS:
        raise ValueError(".repeat() without a number has no end, and no length: give it one, or use .take(n) after it.")
    return count


def count(plan: Plan, context: Context) -> int:
    """Rows, or batches after `.batch`, by running the stages."""
    check_ends(plan)
    batched = plan.batched
    execution = context.execution
    if is_one_pass(plan) and execution is not None:
        job = one_job(plan, context, then=_one if batched else _rows, empty=int)
        return sum(execution.run(job, Collect())) if job.plan.length else 0
    stream = open_stream(plan, context)
    total = 0
    try:
        while True:
            try:
                piece = stream.next()
            except StopIteration:
                return total
            total += 1 if batched else int(piece.shape[0])
    finally:
        stream.close()


def _one(value: Any, start: int) -> int:
    return 1


def _rows(value: Any, start: int) -> int:
    return int(value.shape[0])


def make_context(
    options: dict[str, Any],
    seed: int | None,
    epoch: int,
    prefetch: int | None = None,
    chunksize: int | None = None,
    retries: int = 2,
    timeout: float | None = None,
) -> Context:
    """The context of a terminal, checked."""
    if chunksize is not None and (isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1):
        raise ValueError(f"chunksize must be a number of rows, at least 1: got {chunksize!r}.")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise ValueError(f"epoch must be an integer of at least 0: got {epoch!r}.")
    policy_for(seed, None, retries, timeout)
    if options.get("pbar") is True:
        options = {**options, "pbar": False, "callbacks": (*options.get("callbacks", ()), StageBars())}
    return Context(Execution.of(**options), seed, epoch, prefetch, chunksize, retries=retries, timeout=timeout)


# -- write ---------------------------------------------------------------------------------------------


def write(plan: Plan, context: Context, out: Data | str | os.PathLike[str] | OutputFolder, resume: bool) -> Data:
    """All rows into a folder, or into rows that exist already."""
    check_ends(plan)
    require_writable(out)
    if is_data(out):
        return _write_into(plan, context, out, resume)
    if not isinstance(out, (str, os.PathLike, OutputFolder)):
        raise TypeError(f".write() takes the path of a folder, or a dataset to write into: got a {type(out).__name__}.")
    store = OutputFolder.of(out)
    if keeps_rows(plan):
        assert isinstance(plan, Head) and context.execution is not None
        job = one_job(plan, context, True)
        if job.plan.length == 0:
            job = replace(job, source=replace(job.source, data=no_rows(plan), order=None))
        return map_to_folder(job, store, resume, context.execution)
    return write_growing(plan, context, store, resume)


def _write_into(plan: Plan, context: Context, out: Data, resume: bool) -> Data:
    room = data_length(out, 0)
    if keeps_rows(plan):
        assert isinstance(plan, Head) and context.execution is not None
        job = one_job(plan, context)
        rows = job.plan.length
        if rows > room:
            raise too_small(rows, room)
        target = out if rows == room else out[:rows]
        check_rows(target, job.plan, (rows,))
        if rows == 0:
            return out
        if resume:
            if rows != room:
                raise ValueError(f"resume=True needs an out of exactly {rows} rows: got {room}.")
            map_to_files(job, out, context.execution)
        else:
            context.execution.run(job, Preallocated(target))
        return out
    if resume:
        raise ValueError(
            "resume=True needs a number of rows that is known before: write to a folder (a path), which can be resumed."
        )
    at = 0
    for piece in pieces_of(plan, context):
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
        f"out has {room} rows and the pipeline gives {needs}: allocate a larger one, use .take({room}), or write to a "
        "folder, which gets as many rows as there are."
    )


# -- rows whose number is not known before: they wait in spill files until it is -------------------------------


def write_growing(plan: Plan, context: Context, out: OutputFolder, resume: bool) -> Data:
    """All rows of a plan into a new dataset in a folder."""
    assert context.execution is not None
    if is_one_pass(plan):
        job = one_job(plan, context, True, then=as_rows, empty=_none)
        data, empty = job.source.data, _schema(plan)
        call = Call(f"Pipeline.write({job.name})", context.execution, Output(out, None), {"resume": resume})
        return resumable_call(
            call, data, lambda: parts_of_job(job), lambda call: append_rows(call, job, empty=empty), job
        )
    if resume:
        raise ValueError(
            "resume=True needs stages that workers can do one chunk at a time, and a stage of this pipeline depends on "
            "all rows before it (explain() shows which). Put .cache(path) before that stage: the cache is resumed."
        )
    return _write_here(plan, context, out)


def _schema(plan: Plan) -> Schema | None:
    try:
        return Schema(no_rows(plan))
    except ValueError:
        return None


def _write_here(plan: Plan, context: Context, out: OutputFolder) -> Data:
    """Spill pieces as they come out of the pipeline, in this process."""
    assert context.execution is not None
    call = Call("Pipeline.write", context.execution, Output(out, None))
    output = call.output
    with output.claimed(call.name):
        with Spill(spill_folder(output, None)) as spill:
            pieces, row = Pieces(output), 0
            pieces.open(ChunkPlan(0, 1), None)
            spilling, kept = SpillRows(_same, spill), []
            for number, rows in enumerate(pieces_of(plan, context)):
                found = spilling(rows)
                pieces.learn(number, found)
                kept += [piece for piece in found if piece.rows]
                row += sum(piece.rows for piece in found)
            schema = pieces.schemas[kept[0].digest] if kept else Schema(no_rows(plan))
            place_pieces(call, kept, schema, spill)
        return output.result()


def _same(rows: Data) -> Data:
    return rows
