"""`.write()`: into a folder or a dataset that there is, where the number of rows is known before, and where not."""

from __future__ import annotations

import os
from dataclasses import replace

from tdmap.data.join import check_rows
from tdmap.data.kinds import Data, data_length, is_data, require_writable
from tdmap.data.schema import Schema
from tdmap.data.store import OutputFolder
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch
from tdmap.memory.spill import Spill
from tdmap.operations.append import Pieces, SpillRows, append_rows, place_pieces
from tdmap.operations.output import Output, spill_folder
from tdmap.pipeline.endings.running import as_rows, check_ends, keeps_rows, no_rows, one_job, pieces_of
from tdmap.pipeline.planning import Head, Plan, is_one_pass
from tdmap.pipeline.rounds import Context
from tdmap.plan import ChunkPlan
from tdmap.resume.resumable import map_to_files, map_to_folder
from tdmap.sinks import Preallocated


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
        return append_rows(
            job.source.data,
            job.fn,
            Output(out, None),
            context.execution,
            job.plan,
            job.policy,
            order=job.source.order,
            resume=resume,
            empty=_schema(plan),
        )
    if resume:
        raise ValueError(
            "resume=True needs stages that workers can do one chunk at a time, and a stage of this pipeline depends on "
            "all rows before it (explain() shows which). Put .cache(path) before that stage: the cache is resumed."
        )
    return _write_here(plan, context, out)


def _none() -> None:
    return None


def _schema(plan: Plan) -> Schema | None:
    try:
        return Schema(no_rows(plan))
    except ValueError:
        return None


def _write_here(plan: Plan, context: Context, out: OutputFolder) -> Data:
    """Spill pieces as they come out of the pipeline, in this process."""
    assert context.execution is not None
    output = Output(out, None)
    with output.claimed("Pipeline.write"):
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
            place_pieces(kept, schema, spill, output, context.execution)
        return output.result()


def _same(rows: Data) -> Data:
    return rows
