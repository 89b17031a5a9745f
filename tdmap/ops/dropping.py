"""What `map` keeps of rows that raise: nothing (`on_error="drop"`), or a mark (`on_error="mark"`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from tdmap.data.alike import VALID
from tdmap.data.kinds import Data, is_data, is_dense
from tdmap.data.objects import as_chunk
from tdmap.data.schema import take_apart
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.functions import Around
from tdmap.job import Job, Wrapped
from tdmap.output.append import append_rows
from tdmap.output.folder import check_for_folder, no_rows_for_folder
from tdmap.output.output import Output
from tdmap.output.outputfolder import OutputFolder
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context
from tdmap.run.identity import identify_call, parts_of_job
from tdmap.run.operation import resumable_call
from tdmap.sink import returned_none


class Marked(Around, Wrapped):
    """Adds a bool entry that is True to each result. Rows that raise are zeros, so it is False there."""

    def __call__(self, chunk: Data, start: int = 0) -> Any:
        result = self.call(chunk, start)
        if result is None:
            return None
        if not is_dense(result) or hasattr(result, "__dataclass_fields__"):
            raise OutputMismatch(
                f"on_error='mark' adds an entry {VALID!r} to results, and the function returned a "
                f"{type(result).__name__}: return a TensorDict, or pass on_error=tdmap.RowErrors() and use "
                "its mask()."
            )
        marked = result.copy()
        marked.set(VALID, torch.ones(result.batch_size, dtype=torch.bool))
        return marked


def marking(fn: Callable[..., Any], out: Data | None) -> Callable[..., Any]:
    """`fn` with marks in its results; unchanged where `out` has an entry for them, which the engine keeps.

    Raises:
        ValueError: `out` has no such entry.
    """
    if out is None:
        return Marked(fn)
    mask = out.get(VALID, None) if is_dense(out) else None
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool:
        raise ValueError(
            f"on_error='mark' needs a bool entry {VALID!r} in out: out[{VALID!r}] = torch.zeros(out.batch_size, "
            "dtype=torch.bool)."
        )
    return fn


class SameRows(Wrapped):
    """Checks that a result has the rows of its chunk, where as many as there are would be taken."""

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


def map_dropping(job: Job, path: str | os.PathLike[str] | OutputFolder, ctx: Context) -> Data:
    """Run a map into a folder that leaves out the rows that raise.

    Raises:
        ValueError: rows are not in dimension 0.
    """
    if job.plan.dim:
        raise ValueError(
            f"on_error='drop' with out='folder' needs rows in dimension 0: got dim={job.plan.dim}. Use out=None, or "
            "on_error='skip'."
        )
    assert is_data(job.source.data)
    empty = None
    if not job.plan.length:
        empty = take_apart(no_rows_for_folder(job)).schema
    job, data = job.again(SameRows(job.fn, job.plan)), job.source.data
    options = {"resume": bool(ctx.options.get("resume")), "spill_dir": ctx.options.get("spill_dir")}
    ctx = Context(f"map({job.name})", ctx.execution, Output(path, data, ctx.execution), options)

    def identity() -> dict[str, Any]:
        return identify_call(ctx.name, data, job.plan.length, parts_of_job(job))

    return resumable_call(ctx, identity, lambda: append_rows(ctx, job, empty=empty), job)


def write_dropping(job: Job, folder: str, spill_dir: str | None = None) -> Data:
    """The result of a job, in a folder that leaves out the rows that raise."""
    ctx = Context("map", Execution(num_workers=0), Output(None, None), {"spill_dir": spill_dir})
    return map_dropping(job, folder, ctx)
