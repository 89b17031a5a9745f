"""What ends a pipeline: writing, folding, collecting and counting its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tdmap.data.kinds import Data, data_length, is_data
from tdmap.data.reader import narrow
from tdmap.data.schema import join_pieces
from tdmap.diagnostics.progress import StageBars
from tdmap.execution import Execution
from tdmap.operations.append import each_result
from tdmap.operations.arguments import policy_for
from tdmap.operations.habits import ANY, plain_rows
from tdmap.operations.reduce import FoldChunk
from tdmap.pipeline.planning import ENDLESS, Again, Both, Head, Local, Plan, is_one_pass, with_chunks
from tdmap.pipeline.rounds import Context, Rounds, chunk_rows, chunk_sizes, head_job, is_open, open_plan
from tdmap.pipeline.rows import Joined, View, Zipped, merge
from tdmap.pipeline.stages import ROW_WISE, Batch, Concat, FlatMap, Map, Stage, Unbatch
from tdmap.pipeline.streams import open_stream
from tdmap.pipeline.work import apply_stage
from tdmap.reducers.base import Reducer
from tdmap.sinks import Collect, Fold, Gather


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
