"""Writing rows whose number is not known before: they wait in spill files until it is."""

from __future__ import annotations

from tdmap.data.kinds import Data
from tdmap.data.schema import Schema
from tdmap.data.store import OutputFolder
from tdmap.memory.spill import Spill
from tdmap.operations.append import Pieces, SpillRows, append_rows, place_pieces
from tdmap.operations.output import Output, spill_folder
from tdmap.pipeline.planning import Plan, is_one_pass
from tdmap.pipeline.rounds import Context
from tdmap.pipeline.running import as_rows, no_rows, one_job, pieces_of
from tdmap.plan import ChunkPlan


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
