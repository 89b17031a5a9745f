"""Operations that write rows whose place is known by number: `filter`, `flat_map`, `permute`, `sort`, `join`...

    SourceRows      what is known of the rows that are read
    Step            what workers call
    Output          what `out=` stands for, allocated once the number of rows is known

Workers write through `RowFiles` (`tdmap.memory.rowfiles`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tdmap.data.alike import check_dtype, not_a_collection, wrong_shape
from tdmap.data.join import unallocated
from tdmap.data.kinds import (
    Data,
    KeyPath,
    entries_of,
    is_data,
    is_dense,
    key_name,
    require_writable,
    stored_entry,
    tensors_of,
)
from tdmap.data.objectlog import check_storable
from tdmap.data.objects import (
    RaggedPiece,
    Spilled,
    assign_objects,
    check_ragged,
    entry_at,
    entry_paths,
    form_of,
    piece_for,
    without_paths,
)
from tdmap.data.reader import narrow
from tdmap.data.schema import Field, Schema, take_apart
from tdmap.data.stacks import ragged_columns
from tdmap.data.writer import RowWriter
from tdmap.devices import check_no_device
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.memory.mapped import check_mapped_files
from tdmap.memory.rowfiles import RowFiles
from tdmap.memory.shm import Arena
from tdmap.output.given import require_apart
from tdmap.output.outputfolder import OutputFolder, destination, files_of, folder_of, require_room_for_hidden
from tdmap.output.ragged import ChosenRows, lies_flat
from tdmap.output.shards import Shards
from tdmap.output.spill import SpilledColumn
from tdmap.plan import ChunkPlan
from tdmap.run.log import Log
from tensordict_lite import TensorDict
from tensordict_lite.paths import is_url


class Step:
    """What a worker calls in a job that no function of the user's takes part in.

    Args:
        name: how messages and progress bars call it.
    """

    takes_start = True

    def __init__(self, name: str) -> None:
        self.__qualname__ = name  # of the object: a class of that name could not be found again by its own


class Output:
    """Where the rows of an operation go: new shared memory, a new folder, or an existing dataset.

    Args:
        out: None, a folder or its path, or a tensor or collection.
        source: the dataset that is read.
        execution: who copies ragged rows, and rows into shards; None: this process, and there are no shards.
        overwrite, rows_per_shard, storage_options: as the operations take them.
        in_place: `out` may be, or share memory with, the source.

    Attributes:
        log: of a call that can be resumed.

    Raises:
        FileExistsError: the folder is in use.
        ValueError: `out` is, or shares memory with, the source; or it is a sharded dataset, or the name of a device;
            or an option does not apply to it.
        TypeError: `out` is none of these.
    """

    def __init__(
        self,
        out: Data | str | os.PathLike[str] | OutputFolder | None,
        source: Data,
        execution: Execution | None = None,
        overwrite: bool = False,
        rows_per_shard: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        in_place: bool = False,
    ) -> None:
        is_name = isinstance(out, (str, os.PathLike, torch.device))
        if is_name:
            check_no_device(out, source)
        self.shards: Shards | None = None
        if execution is not None and (rows_per_shard is not None or (is_name and is_url(out))):
            self.shards = Shards(out, rows_per_shard, execution, overwrite, storage_options)
        self._named = destination(out, overwrite)
        self.store: OutputFolder | None = None
        self.given: Data | None = None
        self._made: Data | None = None
        self.log: Log | None = None
        self._execution = execution or Execution(num_workers=0)
        self._ragged: Mapping[KeyPath, Any] = {}
        self._staged = False
        self._rows = 0
        self._objects: Mapping[KeyPath, Any] = {}
        self._order: tuple[KeyPath, ...] = ()
        if self._named is not None:
            self.refuse(folder_of(source))
            self.store = self._named if self.shards is None else OutputFolder(self.shards.folder)
        elif out is not None:
            if not is_data(out):
                raise TypeError(
                    f"out must be a tensor, a collection or the path of a folder: got a {type(out).__name__}."
                )
            require_writable(out)
            self.given = out
            if not in_place:
                self.require_apart(source)

    def refuse(self, folder: str | os.PathLike[str] | None) -> None:
        """Raise FileExistsError where rows would go to a folder that is read, or its folder be removed."""
        if self._named is not None and folder is not None:
            self._named.refuse_source(folder)

    def require_apart(self, source: Data) -> None:
        """Raise ValueError where rows would be written over rows of this dataset before they are read."""
        if self.given is not None:
            require_apart(source, self.given)

    @contextlib.contextmanager
    def claimed(self, call: str, resume: bool = False) -> Iterator[None]:
        """Be the only one who writes the folder, if it is one (see `OutputFolder.claimed`)."""
        with contextlib.ExitStack() as stack:
            if self.shards is not None:
                stack.enter_context(self.shards.claimed(call, resume))
            if self.store is not None:
                stack.enter_context(self.store.claimed(call, resume))
            yield

    def check(self, schema: Schema, rows: int) -> None:
        """Raise OutputMismatch unless results of this schema, and so many rows, fit the output."""
        out = self.given
        if self.store is not None:
            if isinstance(schema.skeleton, Tensor):
                raise OutputMismatch(
                    "out is a folder, which holds a collection, and the rows are a tensor: use TensorDict({'x': ...}), "
                    "or pass a tensor as out."
                )
            require_room_for_hidden(schema.skeleton)
        if out is None:
            return
        if isinstance(out, Tensor) is not isinstance(schema.skeleton, Tensor):
            raise not_a_collection(out, schema.skeleton)
        if not len(out.shape) or out.shape[0] < rows:
            found = out.shape[0] if len(out.shape) else "no"
            raise OutputMismatch(
                f"out has {found} rows and the result has {rows}: pass an out with {rows} rows or more."
            )
        entries = [field for field in schema.fields if field.dtype is not None or field.kind == "object"]
        found = False
        for field in entries:
            target = stored_entry(out, field.path)
            if target is not None:
                found = True
                _check_entry(target, field)
        if not found:
            keys = ", ".join(key_name(field.path) for field in entries)
            raise OutputMismatch(f"out has none of the entries of the result ({keys}): nothing would be written.")

    def check_objects(self, objects: Mapping[KeyPath, Any], where: str) -> None:
        """Raise OutputMismatch unless the output can hold these entries, which are no tensors, of some rows.

        Args:
            objects: the entries.
            where: how messages call the rows.
        """
        if self.store is not None:
            plan = ChunkPlan(0, 1)
            pieces = [x if isinstance(x, Spilled) else piece_for(x, plan) for x in objects.values()]
            check_storable(tuple(pieces), list(objects), where)
        elif self.given is not None:
            for path, entry in objects.items():
                check_ragged(path, form_of(stored_entry(self.given, path)), entry)

    @property
    def is_memory(self) -> bool:
        """Whether the rows go to new shared memory."""
        return self.given is None and self.store is None

    def open(self, schema: Schema, rows: int, objects: Mapping[KeyPath, Any] | None = None) -> RowFiles:
        """Memory for `rows` rows, each of which is to be written once.

        Args:
            schema: of the rows.
            rows: how many.
            objects: the entries that are no tensors, or their `SpilledColumn`: ragged rows are copied now, as a job.

        Raises:
            OutputMismatch: a given output is too small, or does not fit.
            OSError: there is no room.
        """
        self.check(schema, rows)
        self._rows = rows
        self._objects = {path: self._room_for(entry) for path, entry in (objects or {}).items()}
        files = None if self.given is None else self._given_files(schema)
        if files is not None:
            return files
        self._staged = self.given is not None
        if self.store is None:
            self._made = schema.build(rows, Arena().empty, self._objects)
        else:
            self._make_files(self.store, schema, rows)
        files = RowFiles.of(schema.tensors_of(self._made))
        assert files is not None
        return files

    def _room_for(self, entry: Data) -> Data:
        """An entry; of ragged rows in spill files a copy in memory, and of those for a folder what is to be copied."""
        if self.store is not None:
            if isinstance(entry, SpilledColumn):
                return entry if lies_flat(entry) else entry.loaded()
            piece = piece_for(entry, ChunkPlan(1, 1))
            if isinstance(piece, RaggedPiece):
                chosen, entry = ChosenRows(piece.entry), piece.entry
                return chosen if lies_flat(chosen) else entry
        elif isinstance(entry, SpilledColumn):
            made = entry.allocate()
            entry.fill(made, self._execution, self.log)
            return made
        return entry

    def _make_files(self, store: OutputFolder, schema: Schema, rows: int) -> None:
        columns = {path: x for path, x in self._objects.items() if isinstance(x, (ChosenRows, SpilledColumn))}
        self._order = entry_paths(schema.skeleton)
        example = without_paths(schema.build(rows, unallocated, self._objects), columns)  # `result` adds them
        what = [schema.digest, rows]
        self._made = store.create(example) if self.log is None else self.log.create(store, example, what)
        self._fill(store, columns)

    def _fill(self, store: OutputFolder, columns: Mapping[KeyPath, ChosenRows | SpilledColumn]) -> None:
        """Copy ragged rows to files, which `result` adds to the dataset."""
        found = {path: store.ragged(self._made, path, x) for path, x in columns.items()}
        if self.log is not None and columns:
            made_of = TensorDict({str(number): made for number, made in enumerate(found.values())}, [self._rows])
            self.log.add_files(files_of(made_of))
        for path, x in columns.items():
            x.fill(found[path], self._execution, self.log)
        self._ragged = {**self._ragged, **found}

    def add(self, objects: Mapping[KeyPath, Any]) -> None:
        """The entries that are no tensors, of a folder that was opened before they were known."""
        assert self.store is not None
        found = {path: self._room_for(entry) for path, entry in objects.items()}
        columns = {path: x for path, x in found.items() if isinstance(x, (ChosenRows, SpilledColumn))}
        self._ragged = {path: x for path, x in found.items() if path not in columns}
        self._fill(self.store, columns)

    def _given_files(self, schema: Schema) -> RowFiles | None:
        """Rows of the given output itself; None when rows have to be brought there by a copy."""
        targets: list[Tensor | None] = []
        if not is_data(self.given) or not (isinstance(self.given, Tensor) or is_dense(self.given)):
            return None
        for field in schema.tensors:
            target = stored_entry(self.given, field.path)
            if target is not None and target.dtype is not field.dtype:
                return None
            targets.append(target)
        return RowFiles.of(targets)

    def result(self) -> Any:
        """The output, with every row in its place; a larger one than was needed is cut."""
        if self.store is not None:
            if self._ragged:
                self.store.complete(self._made, dict(self._ragged), self._order)
            return self.store.publish()
        if self.given is None:
            return self._made
        if self._staged and self._rows:
            rows = narrow(self.given, 0, 0, self._rows)
            RowWriter(self.given, ChunkPlan(self._rows, self._rows), exact=False).write(rows, self._made)
        self._assign_objects()
        given: Data = self.given
        return given if given.shape[0] == self._rows else narrow(given, 0, 0, self._rows)

    def _assign_objects(self) -> None:
        """Put the entries that are no tensors into the first rows of a given output."""
        given: Data = self.given
        columns = {}
        for path, entry in self._objects.items():
            old = entry_at(given, path)
            if old is not None and self._rows:
                columns[path] = entry if given.shape[0] == self._rows else torch.cat([entry, old[self._rows :]])
        assign_objects(given, columns)


def _check_entry(target: object, field: Field) -> None:
    """Raise OutputMismatch unless rows of a tensor can go into an entry of the output."""
    key = key_name(field.path)
    if not isinstance(target, Tensor) or field.dtype is None:
        if isinstance(target, Tensor) is not (field.dtype is not None):
            kinds = ("a tensor", "Python objects") if isinstance(target, Tensor) else ("Python objects", "a tensor")
            raise OutputMismatch(f"{key}: out holds {kinds[0]}, and the result {kinds[1]}.")
        return
    if tuple(target.shape[1:]) != field.shape:
        raise wrong_shape(key, target.shape[1:], field.shape, "a row, and the result has")
    check_dtype(key, target.dtype, field.dtype, "the result has")


class SourceRows:
    """What is known of a dataset before its rows are read.

    Attributes:
        schema: of its rows.
        tensors: its tensors in the order of the schema; None when rows have to be asked for through the public
            interface (lazy stacks of rows of one shape, lazily conjugated tensors).

    Raises:
        DatasetError: one of its files has been cut.
        OutputMismatch: its rows cannot be written one by one.
    """

    def __init__(self, data: Data) -> None:
        check_mapped_files(tensors_of(data))
        data = ragged_columns(data)
        dense = (isinstance(data, Tensor) or is_dense(data)) and _is_plain(data)
        # Not all rows: what is no tensor in a file is made dense to be taken apart.
        parts = take_apart(data if dense else narrow(data, 0, 0, min(int(data.shape[0]), 1)))
        self.schema = parts.schema
        self.tensors = parts.tensors if dense else None
        self._objects: dict[KeyPath, Any] = (
            parts.objects if dense else {path: stored_entry(data, path) for path in parts.objects}
        )

    def check(self, output: Output) -> None:
        """Raise OutputMismatch unless rows of this dataset can go into an output."""
        output.check(self.schema, 0)
        output.check_objects(self._objects, "the data")

    def objects_at(self, rows: Tensor | slice) -> dict[KeyPath, Any]:
        """The entries that are no tensors, at the given rows."""
        return {path: value[rows] for path, value in self._objects.items()}


def _is_plain(data: Data) -> bool:
    """Whether every tensor can be read where it lies."""
    if isinstance(data, Tensor):
        return data.device.type == "cpu" and not data.is_conj() and not data.is_neg()
    if not is_dense(data):
        return bool(getattr(data, "_is_non_tensor", False))
    return all(_is_plain(value) for value in entries_of(data).values())
