"""An operation as one call that can be resumed: what tells it from other calls, and its log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tdmap.data.kinds import Data, is_data
from tdmap.data.store import OutputFolder, files_of
from tdmap.execution import Execution
from tdmap.job import Job
from tdmap.memory.folderlock import locked
from tdmap.memory.hidden import HIDDEN
from tdmap.output.values import Fold
from tdmap.plan import ChunkPlan
from tdmap.reducers import Reducer
from tdmap.run.context import Context
from tdmap.run.fingerprint import function_parts, source_parts
from tdmap.run.identity import STEPWISE, describe_plan, identity_of
from tdmap.run.log import STATES, History, changes_of, clean, read_states
from tdmap.run.run import OVERWRITE, open_run
from tdmap.run.values import modules_of
from tensordict_lite.paths import absolute_path


def parts_of(name: str, value: Any) -> dict[str, str]:
    """The parts of something that a call was given: of a function, a reducer, another dataset.

    Example:
        >>> list(parts_of("reducer 'n'", max))
        ["reducer 'n': its version", "reducer 'n': its callable"]
    """
    found = source_parts(value) if is_data(value) else function_parts(value)
    return {f"{name}: {part}": digest for part, digest in found.items()}


def parts_of_job(job: Job) -> dict[str, str]:
    """The parts of a job with a function of the user's: the function, how rows are cut, the seed, their order."""
    plan = {f"the plan's {key}": str(value) for key, value in describe_plan(job.plan).items()}
    order = {} if job.source.order is None else parts_of("order", job.source.order)
    return parts_of("function", job.fn) | order | plan | {"the seed": str(job.policy.seed)}


def identify_call(name: str, data: Data, length: int, parts: Mapping[str, str]) -> dict[str, Any]:
    """What tells a call from others: the operation, its dataset, and the parts that its result depends on."""
    return identity_of(STEPWISE, name, parts, source_parts(data), ChunkPlan(length, max(length, 1)))


def resumable_call(
    ctx: Context,
    identity: Callable[[], dict[str, Any]],
    work: Callable[[Context], Data],
    job: Job | None = None,
) -> Data:
    """Do what an operation does; with the option `resume`, from where an earlier session of the same call was.

    Args:
        ctx: the call. With `resume`, `work` is called with its log.
        identity: what tells the call from others; called with `resume` alone.
        work: runs the jobs, the same each time as long as nothing else is decided, and returns the result.
        job: the one whose function may skip rows.

    Raises:
        ValueError: `resume`, and the output is no folder.
        ResumeMismatch: the folder holds another run; names what differs.
        FileExistsError: it holds something else.
    """
    name, output, resume = ctx.name, ctx.output, ctx.resume
    shards = output.shards
    if not resume:
        is_part = shards is not None and shards.is_claimed  # of an operation that copies the rows itself
        with output.claimed(name):
            made = work(ctx)
            return made if shards is None or is_part else shards.write(made)
    if output.store is None:
        raise ValueError("resume=True keeps its journal in the folder of the result: pass out=a folder.")
    known = identity()
    output.known_by(known)
    store = output.store
    with output.claimed(name, resume=True):
        whole = None if shards is None else shards.complete(known, name)
        if whole is not None:
            return whole
        if _is_gone(store, known):
            store.begin_anew()
        again = OVERWRITE if shards is None else ""  # the rows were complete, and not the shards
        with open_run(store.hidden, known, job, resume, lists=shards is None, again=again) as log:
            if log is None:
                result = store.publish()
            else:
                output.log = log
                result = work(replace(ctx, log=log))
                log.finish(known["plan"]["rows"], files_of(result))  # whose names have changed
        clean(store.hidden)  # also of a session that was killed before it did
        return result if shards is None else shards.write(result, known)


def _is_gone(store: OutputFolder, identity: dict[str, Any]) -> bool:
    """Whether the call was complete before, and its dataset has been removed since."""
    if not store.has_journal or store.load() is not None:
        return False
    path = store.hidden / "journal"
    history = History(path)
    return history.is_complete and not changes_of(history, identity, False, path)


def fold_call(job: Job, folder: str | os.PathLike[str], reducer: Reducer[Any], execution: Execution) -> Any:
    """Run a reduction that keeps its log in a folder, and return its merged state.

    Raises:
        ResumeMismatch: the folder holds another run; names what differs.
        FileNotFoundError: the run was complete before, and the file of its answer is gone.
    """
    path, name, length = Path(absolute_path(folder)), f"map_reduce({job.name})", job.plan.length
    identity = identify_call(name, job.source.data, length, parts_of_job(job))
    again = "remove the folder to run it again"
    with locked(path, name), open_run(path / HIDDEN, identity, job, files=None, lists=False, again=again) as log:
        if log is not None:
            state = log.run(job, Fold(reducer), execution)
            log.finish(length, [])
            return state
        states = read_states(path / HIDDEN, 0, modules_of(reducer))
        if len(states) != 1:
            raise FileNotFoundError(
                errno.ENOENT,
                "the answer of this reduction was here, and is gone; remove the folder to run anew",
                str(path / HIDDEN / f"{STATES}0"),
            )
        return states[0][2]
