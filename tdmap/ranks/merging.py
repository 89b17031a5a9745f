"""Completing the dataset of all ranks: done by the rank that finishes last, when every chunk is done."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

from tdmap.data.objectlog import ObjectLog
from tdmap.data.objects import ObjectColumns, with_objects
from tdmap.errors import ShardsMissing, describe_rows
from tdmap.execution import Execution
from tdmap.memory.hidden import HIDDEN
from tdmap.memory.spill import spill_beside
from tdmap.output.outputfolder import files_of, ragged_files
from tdmap.output.spill import PlaceSpilled
from tdmap.plan import ChunkPlan, Ranges, subtract_ranges
from tdmap.ranks.folder import RankFolder
from tdmap.run import disk
from tdmap.run.history import History, check_identity, plan_of
from tdmap.run.operation import entry_point
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import META


@entry_point
def merge_shards(folder: str | os.PathLike[str]) -> Any:
    """Open the dataset that the ranks of `map(shard=...)` have written, if all its rows are written.

    The last rank to finish completes the dataset. If it was killed before that, this call completes it. Any program may
    call it, repeatedly; it does not wait.

    Args:
        folder: the path that was passed as `out`, or the folder of the dataset that was.

    Returns:
        The memory-mapped dataset.

    Raises:
        FileNotFoundError: no rank has written to the folder.
        ShardsMissing: rows are missing; names the rows, and the ranks that must compute them.

    Example:
        >>> import tempfile, torch, tdmap
        >>> from tensordict_lite import TensorDict
        >>> data, out = TensorDict({"x": torch.arange(6)}, [6]), tempfile.mkdtemp() + "/doubled"
        >>> def double(chunk):
        ...     return TensorDict({"x": chunk["x"] * 2}, chunk.batch_size)
        >>> part = tdmap.map(data, double, out=out, shard=(0, 2), num_workers=0)
        >>> part["x"], tdmap.merge_shards(out)
        Traceback (most recent call last):
        ...
        tdmap.errors.ShardsMissing: ...: rows 3:6 are missing. Run rank 1 of 2 again.
        >>> part = tdmap.map(data, double, out=out, shard=(1, 2), num_workers=0)
        >>> part["x"].tolist(), tdmap.merge_shards(out)["x"].tolist()
        ([6, 8, 10], [0, 2, 4, 6, 8, 10])
    """
    shared = RankFolder(folder)
    if not is_there(shared.journal, follow=False) or shared.history() is None:
        raise FileNotFoundError(f"{shared.path} holds no run of ranks: begin one with map(..., shard=(rank, world)).")
    missing = merge(shared)
    if missing:
        raise missing
    return shared.open()


def merge(folder: RankFolder) -> ShardsMissing | None:
    """Make the result whole if every chunk is done; else say what is missing."""
    with folder.alone("merge_shards"):
        history = folder.history()
        if history is None or history.is_complete:
            return None
        plan = whole_plan(history, folder)
        missing = subtract_ranges([(0, plan.num_chunks)] if plan.num_chunks else [], folder.done(disk.boot_number()))
        if missing or (not plan.num_chunks and not folder.is_begun):
            return _missing(folder, plan, missing)
        if folder.is_begun:
            _publish(folder, plan)
        elif not is_there(folder.path / META):
            return ShardsMissing(f"{folder.path}: the function raised on every row of every rank: nothing was written.")
        files = files_of(folder.open())
        folder.finish(files, plan.num_chunks, plan.length)
        return None


def whole_plan(history: History, folder: RankFolder) -> ChunkPlan:
    """The chunks that all ranks have in common."""
    assert history.header is not None
    description = check_identity(history.header, folder.journal)["plan"]
    dim, unbind = description.get("dim"), description.get("unbind")
    return replace(plan_of(description, history.chunk_size), dim=dim if type(dim) is int else 0, unbind=unbind is True)


def _publish(folder: RankFolder, plan: ChunkPlan) -> None:
    folder.place()
    columns = folder.columns()
    if columns:
        data, objects = folder.open(), ObjectColumns(columns)
        order: tuple[tuple[str, ...], ...] = ()
        for rank, history in folder.histories(disk.boot_number()):
            log = ObjectLog(folder.home(rank) / HIDDEN)
            order = order or log.order()
            for chunk, pieces in log.load(columns, plan).items():
                if any(start <= chunk < stop for start, stop in history.ranges):
                    objects.add(chunk, pieces)
        place = PlaceSpilled(spill_beside(folder.hidden), Execution(num_workers=0), partial(ragged_files, folder.path))
        with_objects(data, objects.columns(plan, data, place=place), order).memmap_(folder.path)
    else:
        folder.publish()


def _missing(folder: RankFolder, plan: ChunkPlan, missing: Ranges) -> ShardsMissing:
    began = {rank: float((own.header or {}).get("began") or 0) for rank, own in folder.histories()}
    rows = tuple(plan.span(*span) for span in missing)
    shown = ", ".join(describe_rows(*span) for span in rows[:5]) + (", ..." if len(rows) > 5 else "")
    text = f"{folder.path}: {shown or 'nothing was written'} {'are' if shown else 'yet'} missing."
    if not shown:
        text = f"{folder.path}: no rank has done anything yet."
    if not began:
        return ShardsMissing(text, rows)
    world_size = max(began, key=lambda rank: began[rank]).world_size
    ranks = []
    for number in range(world_size):
        first, last = plan.num_chunks * number // world_size, plan.num_chunks * (number + 1) // world_size
        if any(start < last and first < stop for start, stop in missing):
            ranks.append(number)
    names = ", ".join(map(str, ranks[:20])) + (", ..." if len(ranks) > 20 else "")
    run = f" Run {'rank' if len(ranks) == 1 else 'ranks'} {names} of {world_size} again." if ranks else ""
    return ShardsMissing(text + run, rows, tuple(ranks), world_size)
