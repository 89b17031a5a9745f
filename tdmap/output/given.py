"""Results go into a dataset that exists already, or back into the rows that they came from (`out=data`).

`map_into` is the call that can be resumed. `require_apart` keeps operations that read rows in another order from
writing over them.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdmap.data.kinds import Data, key_name, leaves_hold_rows, stored_leaves, tensors_of
from tdmap.data.objectlog import ObjectLog
from tdmap.data.objects import (
    ObjectColumns,
    Pieces,
    Placer,
    assign_objects,
    object_paths,
    spill_of,
    spill_pieces,
    without_gaps_over,
)
from tdmap.data.reader import rows_of
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.job import Job
from tdmap.memory.folderlock import FolderLock
from tdmap.memory.hidden import HIDDEN
from tdmap.memory.shm import shared_region
from tdmap.output.outputfolder import files_of, folder_of, require_room_for_hidden
from tdmap.output.spill import PlaceSpilled
from tdmap.plan import ChunkPlan
from tdmap.run.history import IN_PLACE, MAP
from tdmap.run.identity import identify
from tdmap.run.log import clean
from tdmap.run.options import Resume
from tdmap.run.run import ONCE_MORE, open_run
from tdmap.sink import Allocate, Demands, Kind, Sink
from tensordict_lite.memmap.disk.mapping import region_of
from tensordict_lite.memmap.plan import replaced_file


class Preallocated(Sink[Data]):
    """Writes each result into the rows of `out` that its chunk has; a None result leaves them as they are.

    Args:
        out: the output.
        log: of a run that can be resumed: keeps the results' entries that are no tensors.
        place: as of `Gather`.
    """

    aliased = False

    def __init__(self, out: Data, log: ObjectLog | None = None, place: Placer | None = None) -> None:
        self.out = out
        self._log = log
        self._place = place

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self.writer = RowWriter(self.out, plan, exact=False, aliased=self.aliased, place=self._place)
        self._objects = ObjectColumns(self.writer.objects)

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.PARCEL:
            assert self.writer is not None
            raise OutputMismatch(f"the results of {self.writer.plan.describe(start, stop)} did not fit out.")
        if kind is Kind.OBJECTS:
            assert self.writer is not None
            for chunk, pieces in zip(range(start, stop), values):
                pieces = self._complete(chunk, pieces)
                if self._log is not None:
                    self._log.add(chunk, pieces)
                self._objects.add(chunk, pieces)

    def _complete(self, chunk: int, pieces: Pieces) -> Pieces:
        assert self.writer is not None
        plan = self.writer.plan
        if not plan.dim and not plan.unbind:
            pieces = without_gaps_over(pieces, self._objects.paths, self.out, slice(*plan.rows(chunk)))
        return spill_pieces(pieces, plan, spill_of(self._place))

    def lasts(self, job: Job) -> bool:
        regions = [region_of(leaf) for leaf in tensors_of(self.out)]
        return all(region is not None and not region.handle.anonymous for region in regions)

    def result(self) -> Data:
        self._assign()
        return self.out

    def abandon(self) -> None:
        """The job has failed: what is done stays done, as for tensors; with a log, it waits there."""
        if self._log is None:
            self._assign()

    def _assign(self) -> None:
        if self.writer is None or not self._objects.paths:
            return
        if self._log is not None:
            for chunk, pieces in self._log.load(self._objects.paths, self.writer.plan).items():
                self._objects.add(chunk, pieces)
        if not self._objects.is_empty:
            columns = self._objects.columns(self.writer.plan, self.out, before=self.out, place=self._place)
            assign_objects(self.out, columns)


class InPlace(Preallocated):
    """A `Preallocated` sink whose output is the source: what the function changed in place is not copied again."""

    aliased = True

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(in_place=True)


# -- calls that can be resumed --------------------------------------------------------------------------


def map_into(job: Job, out: Data, execution: Execution, resume: Resume = True) -> Data:
    """Run a job whose results go into the memory-mapped dataset `out`, which may be its source, so that it can be
    resumed. Entries that are no tensors wait in a file until the run is over.

    Raises:
        ValueError: `out` does not lie in a folder of its own, or its rows cannot be put back.
        ResumeMismatch: the folder holds another run.
    """
    in_place = out is job.source.data
    if in_place:
        require_undo(job)
    folder, files = own_folder(out, "data" if in_place else "out"), files_of(out)
    known = identify(job, IN_PLACE if in_place else MAP)
    again = ONCE_MORE if in_place else f"remove {folder / HIDDEN / 'journal'} to run it again"
    with (
        FolderLock(folder, f"map({job.name})" + " in place" * in_place),
        open_run(folder / HIDDEN, known, job, resume, files=files, again=again) as log,
    ):
        if log is None:
            return out
        paths, objects = object_paths(out), ObjectLog(log.folder)
        if paths and not objects.columns():
            objects.begin(paths)
        sink = InPlace if in_place else Preallocated
        place = PlaceSpilled(log.spill(), execution)
        log.run(job, sink(out, objects, place), execution)
        log.finish(job.plan.length)
        clean(log.folder)
    return out


def require_undo(job: Job) -> None:
    """Raise ValueError unless the rows that a job changes can be put back by another session."""
    data = job.source.data
    if not job.policy.undo:
        raise ValueError("resume= and shard= with out=data need undo=True, which puts back rows that were interrupted.")
    if not leaves_hold_rows(data):
        raise ValueError(
            f"resume= and shard= with out=data keep copies of the rows that are being changed, and the tensors of a "
            f"{type(data).__name__} do not have the rows along one dimension. Run in place without these options, or "
            "save the rows as columns first, and map that dataset: data.contiguous().memmap(folder), with "
            "Ragged.from_list(data.get(key, as_list=True)) for rows of different lengths."
        )


def own_folder(data: Data, name: str) -> Path:
    """The folder of a dataset that is mapped whole; ValueError when it has none."""
    folder = folder_of(data)
    if folder is None:
        raise ValueError(
            f"resume=True needs {name} to be a complete memory-mapped dataset, because it keeps its log in "
            f"the folder: got a {type(data).__name__} in memory, or a part of a dataset. Save it with "
            "memmap(folder), or pass out='folder'."
        )
    replaced = replaced_file(data)
    if replaced is not None:
        raise ValueError(
            f"{name} was opened before a later save replaced {replaced}, so writes into it do not reach "
            f"{folder}: load the dataset again."
        )
    require_room_for_hidden(data)
    return folder


# -- memory of the source ------------------------------------------------------------------------------


def require_apart(source: Data, out: Data) -> None:
    """Raise ValueError when two datasets share memory: rows would be overwritten before they are read."""
    rows = rows_of(source)
    if rows.folders:
        _require_elsewhere(rows.folders, out)
    ours = [span for part in rows.in_memory for span in _spans(part).values()]
    for name, (key, start, stop) in _spans(out).items():
        for other_key, other_start, other_stop in ours:
            if key == other_key and start < other_stop and other_start < stop:
                raise _shares_memory(name)


def _require_elsewhere(folders: Collection[str], out: Data) -> None:
    """Raise ValueError when a dataset lies in files of one of these folders."""
    places = [os.path.realpath(folder) + os.sep for folder in folders]
    for tensor in tensors_of(out):
        region = shared_region(tensor.detach()) if tensor.device.type == "cpu" and tensor.numel() else None
        if region is not None and os.path.realpath(region.handle.path).startswith(tuple(places)):
            raise _shares_memory(region.handle.path)


def _shares_memory(name: str) -> ValueError:
    return ValueError(
        f"out ({name}) shares memory with the data, so rows would be overwritten before they are read. Pass "
        "out=None, a folder, or another dataset."
    )


def _spans(data: Data) -> dict[str, tuple[Any, int, int]]:
    spans: dict[str, tuple[Any, int, int]] = {}
    for path, tensor in stored_leaves(data):
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or not tensor.numel():
            continue
        reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride())) + 1
        region = shared_region(tensor.detach()) if tensor.device.type == "cpu" else None
        key: str | tuple[int, int]
        if region is None:
            key, start = str(tensor.device), tensor.data_ptr()
        else:
            info = os.stat(region.handle.path)
            key, start = (info.st_dev, info.st_ino), region.offset * tensor.element_size()
        spans[key_name(path) if path else "a tensor"] = (key, start, start + reach * tensor.element_size())
    return spans
