"""`map(on_error="drop")` into a folder or shards: a flat map whose function returns the rows of its chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdmap.data.kinds import Data
from tdmap.data.objects import as_chunk
from tdmap.job import Job, Wrapped
from tdmap.ops.flat_map import flat_map
from tdmap.output.folder import check_for_folder
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context
from tdmap.run.options import worker_options
from tdmap.sink import returned_none


class SameRows(Wrapped):
    """Checks that a result has the rows of its chunk, as a flat map would take any number of rows."""

    def __init__(self, fn: Callable[..., Any], plan: ChunkPlan) -> None:
        super().__init__(fn)
        self.plan = plan

    def __call__(self, chunk: Data, start: int = 0) -> Any:
        result = self.call(chunk, start)
        rows = 1 if self.plan.unbind else int(chunk.shape[0])
        if result is None:
            raise returned_none("on_error='drop'")
        check_for_folder(result, rows, self.plan, "on_error='drop'")
        return as_chunk(result, 0) if self.plan.unbind else result


def map_dropping(job: Job, out: Any, ctx: Context) -> Any:
    """Run a map that leaves out the rows that raise.

    Raises:
        ValueError: rows are not in dimension 0.
    """
    if job.plan.dim:
        raise ValueError(
            f"on_error='drop' with out='folder' needs rows in dimension 0: got dim={job.plan.dim}. Use out=None, or "
            "on_error='skip'."
        )
    workers = {name: getattr(ctx.execution, name) for name in worker_options()}
    return flat_map(job.source.data, SameRows(job.fn, job.plan), out=out, **{**ctx.options, **workers})
