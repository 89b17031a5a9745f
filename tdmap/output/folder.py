"""Results go into a new dataset in a folder, whose schema is learnt from the first of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from tdmap.data.alike import unlike_the_others
from tdmap.data.join import allocate_like, gatherable, result_of_no_rows, unallocated
from tdmap.data.kinds import Data, KeyPath, entries_of, is_dense, key_name
from tdmap.data.objectlog import OBJECTS, ObjectLog, check_storable
from tdmap.data.objects import (
    Forms,
    ObjectColumns,
    Pieces,
    Placer,
    entry_paths,
    forms_of,
    object_paths,
    spill_of,
    spill_pieces,
    without_objects,
)
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch, UntrustedFile
from tdmap.execution import Execution
from tdmap.job import Job
from tdmap.output.outputfolder import OutputFolder, files_of, require_room_for_hidden
from tdmap.output.spill import PlaceSpilled
from tdmap.plan import ChunkPlan
from tdmap.run.log import Log, run_logged, spill_for
from tdmap.sink import Allocate, Demands, Kind, Sink, returned_none


class NewDataset(Protocol):
    """Where the dataset is made."""

    def load(self) -> Data | None:
        """The dataset that an earlier run has begun, or None."""
        ...

    def create(self, example: Data) -> Data:
        """A dataset in files with the schema of `example`, whose memory does not matter."""
        ...


def check_for_folder(value: Data, rows: int, plan: ChunkPlan, where: str) -> None:
    """Raise OutputMismatch unless a result of so many rows can be the first one of a dataset in a folder."""
    if isinstance(value, torch.Tensor) or not hasattr(value, "memmap_like"):
        raise OutputMismatch(
            f"{where}: out is a folder, which holds a collection, and the function returned a "
            f"{type(value).__name__}. Return TensorDict({{'result': ...}}, batch_size=chunk.batch_size)."
        )
    require_room_for_hidden(value)
    if not gatherable(value, rows, plan):
        raise OutputMismatch(
            f"{where}: a result for a folder is a collection of tensors on the CPU, {_obstacle(value, rows, plan)}"
        )


def no_rows_for_folder(job: Job) -> Data:
    """What the function of a job makes of zero rows, as the rows of a dataset in a folder.

    Raises:
        OutputMismatch: a folder cannot hold it.
    """
    rows = result_of_no_rows(job.fn, job.source.data, job.plan)
    if rows is None:
        raise returned_none("the data has no rows")
    check_for_folder(rows, 0, job.plan, "the data has no rows")
    return rows


def _obstacle(value: Data, rows: int, plan: ChunkPlan, path: tuple[str, ...] = ()) -> str:
    """Why a result is not `gatherable`."""
    name = "the result" if not path else f"the entry {key_name(path)}"
    if len(value.shape) <= plan.dim or (not plan.unbind and value.shape[plan.dim] != rows):
        return f"with as many rows as its chunk ({rows}), and {name} has the shape {tuple(value.shape)}."
    if not isinstance(value, torch.Tensor) and is_dense(value):
        for key, entry in entries_of(value).items():
            if not gatherable(entry, rows, plan):
                return _obstacle(entry, rows, plan, (*path, key))
    if isinstance(value, torch.Tensor):
        layout = "quantised" if value.is_quantized else "nested" if value.is_nested else str(value.layout)
        return f"and {name} is {layout} on {value.device}."
    return (
        f"and {name} is a {type(value).__name__}, whose rows may differ in shape. Return its .contiguous(), or "
        "rows of different lengths as a tensordict_lite.Ragged; or call without out=."
    )


class Folder(Sink[Data]):
    """Writes every result into files, and refuses those that do not look like the first one.

    Entries that are no tensors come with the reports of chunks, and are written when all of them are there.

    Args:
        store: makes the files.
        log: of a call that can be resumed.
        place: where ragged rows wait until `columns` brings them to their places; None: in memory.

    Attributes:
        order: of all entries.
    """

    def __init__(self, store: NewDataset, log: Log | None = None, place: Placer | None = None) -> None:
        self._store = store
        self._log = log
        self._kept = None if log is None else ObjectLog(log.folder)
        self._place = place
        self._objects = ObjectColumns(())
        self._data: Data = None
        self.order: tuple[KeyPath, ...] = ()

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(first_alone=True)

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._plan = plan
        known = self._store.load()
        if known is None:
            return
        paths = object_paths(known)
        if paths:  # they were complete, and only the last step was missing
            self._use(known, paths)
        else:
            self._use(known, () if self._kept is None else self._kept.columns())
            self.order = () if self._kept is None else self._kept.order()
            self._objects = ObjectColumns(self.writer.objects if self.writer is not None else ())

    def _use(self, data: Data, objects: Sequence[KeyPath], forms: Forms | None = None) -> None:
        self._data = data
        self.writer = RowWriter(data, self._plan, True, strict=True, objects=objects, place=self._place, forms=forms)
        if self._log is not None:
            self._log.add_files(files_of(data))

    def replan(self, plan: ChunkPlan) -> None:
        self._plan = plan
        if self.writer is not None:
            self.writer.plan = plan

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.NONE:
            raise returned_none(self._plan.describe(start))
        if kind is Kind.PARCEL:
            for chunk, value in zip(range(start, stop), values):
                self._take(chunk, value)
        elif kind is Kind.OBJECTS:
            for chunk, pieces in zip(range(start, stop), values):
                self._keep(chunk, pieces)

    def _take(self, chunk: int, value: Data) -> None:
        if self.writer is None:
            first, last = self._plan.rows(chunk)
            check_for_folder(value, last - first, self._plan, self._plan.describe(chunk))
            example, paths = allocate_like(without_objects(value), self._plan, unallocated), object_paths(value)
            self.order = entry_paths(value)
            if self._kept is not None:
                self._kept.begin(paths, self.order)
            self._use(self._store.create(example), paths, forms_of(value))
            self._objects = ObjectColumns(paths)
        assert self.writer is not None
        rows = next(self.writer.rows(chunk, chunk + 1))
        if not self.writer.write(rows, value):
            raise OutputMismatch(f"{self._plan.describe(chunk)}: {unlike_the_others(rows, value, self.writer.objects)}")
        pieces = self.writer.objects_of(value, *self._plan.rows(chunk))
        if pieces is not None:
            self._keep(chunk, pieces)

    def _keep(self, chunk: int, pieces: Pieces) -> None:
        if not self._objects.paths:
            return
        check_storable(pieces, self._objects.paths, self._plan.describe(chunk))
        pieces = spill_pieces(pieces, self._plan, spill_of(self._place))
        if self._kept is not None:
            self._kept.add(chunk, pieces)
        self._objects.add(chunk, pieces)

    def lasts(self, job: Job) -> bool:
        return True

    def result(self) -> Data:
        """The dataset, without `columns`."""
        return self._data

    def columns(self) -> dict[KeyPath, Any]:
        """The entries that are no tensors, in the files of the dataset where they are ragged: after the job, because
        that is another one."""
        if not self._objects.paths:
            return {}
        if self._kept is not None:
            for chunk, pieces in self._kept.load(self._objects.paths, self._plan).items():
                self._objects.add(chunk, pieces)
        return self._objects.columns(self._plan, self._data, place=self._place)


def fill_folder(
    job: Job,
    store: OutputFolder,
    execution: Execution,
    log: Log | None,
    spill_dir: str | os.PathLike[str] | None = None,
) -> Data:
    """Run a job of a call that has claimed the folder, bring ragged results to their places, and publish the dataset.

    Raises:
        OutputMismatch: a folder cannot hold the results, or they differ in schema.
        FileExistsError: another program has put files there meanwhile.
    """
    if not job.plan.length:
        return store.save(no_rows_for_folder(job))
    if log is not None and log.resumes and store.load() is None:
        log.lost("output")
    with spill_for(log, store, spill_dir) as spill:
        sink = Folder(store, log, PlaceSpilled(spill, execution, store.ragged))
        data = run_logged(log, execution, job, sink)
        try:
            columns = sink.columns()
            if columns:
                store.complete(data, columns, sink.order)
        except LookupError as error:
            if log is None:
                raise
            raise UntrustedFile(log.folder / OBJECTS, f"holds objects of other rows ({error})") from error
    return store.publish()
