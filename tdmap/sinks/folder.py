"""Results go into a new dataset in a folder, whose schema is learnt from the first of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from tdmap._data import Data, RowWriter, allocate_like, gatherable, is_dense, unlike_the_others
from tdmap.errors import OutputMismatch, describe_rows
from tdmap.plan import ChunkPlan
from tdmap.runtime.types import Kind
from tdmap.sinks.base import Allocate
from tensordict_lite import is_non_tensor


class Store(Protocol):
    """Where the dataset is made."""

    def load(self) -> Data | None:
        """The dataset that an earlier run has begun, or None."""
        ...

    def create(self, example: Data) -> Data:
        """A dataset in files with the schema of `example`, whose memory does not matter."""
        ...


def returned_none(where: str) -> OutputMismatch:
    """The error for a function that returns nothing."""
    return OutputMismatch(
        f"{where}: the function returned None, and out is a folder that results go to. "
        "Return a TensorDict; or, to change the dataset itself, pass out=data."
    )


def check_for_folder(value: Data, rows: int, plan: ChunkPlan, where: str) -> None:
    """Raise OutputMismatch unless a result of so many rows can be the first one of a dataset in a folder."""
    if isinstance(value, torch.Tensor) or not hasattr(value, "memmap_like"):
        raise OutputMismatch(
            f"{where}: out is a folder, which holds a collection, and the function returned a "
            f"{type(value).__name__}. Return TensorDict({{'result': ...}}, batch_size=chunk.batch_size)."
        )
    if not gatherable(value, rows, plan):
        raise OutputMismatch(
            f"{where}: a result for a folder must be tensors on the CPU, {_obstacle(value, rows, plan)}"
        )


def _obstacle(value: Data, rows: int, plan: ChunkPlan, path: tuple[str, ...] = ()) -> str:
    """Why a result is not `gatherable`."""
    name = "the result" if not path else f"the entry {path[0] if len(path) == 1 else path!r}"
    if len(value.shape) <= plan.dim or (not plan.unbind and value.shape[plan.dim] != rows):
        return f"with as many rows as its chunk ({rows}), and {name} has the shape {tuple(value.shape)}."
    if not isinstance(value, torch.Tensor) and is_dense(value):
        for key, entry in value._source.items():
            if not gatherable(entry, rows, plan):
                return _obstacle(entry, rows, plan, (*path, key))
    if isinstance(value, torch.Tensor):
        return f"and {name} is {value.layout} on {value.device}."
    if is_non_tensor(value):
        return (
            f"and {name} holds a Python object for each row. Encode it (strings as uint8, categories as numbers), or "
            "leave out=None and call .memmap(folder) on the result."
        )
    return f"and {name} is a {type(value).__name__}, whose rows may differ in shape. Pad them, or leave out=None."


class Folder:
    """Writes every result into files, and refuses those that do not look like the first one.

    Args:
        store: makes the files.
        created: called with the dataset once there is one.
    """

    streams = False
    sets_schema = True
    """The first result says what all others must look like."""

    def __init__(self, store: Store, created: Callable[[Data], None]) -> None:
        self._store = store
        self._created = created
        self._writer: RowWriter | None = None

    @property
    def writer(self) -> RowWriter | None:
        return self._writer

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._plan = plan
        known = self._store.load()
        if known is not None:
            self._use(known)

    def _use(self, data: Data) -> None:
        self._writer = RowWriter(data, self._plan, exact=True, strict=True)
        self._created(data)

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.NONE:
            raise returned_none(self._rows(start))
        if kind is Kind.PARCEL:
            for chunk, value in zip(range(start, stop), values):
                self._take(chunk, value)

    def _take(self, chunk: int, value: Data) -> None:
        if self._writer is None:
            self._use(self._store.create(self._example(chunk, value)))
        assert self._writer is not None
        rows = next(self._writer.rows(chunk, chunk + 1))
        if not self._writer.write(rows, value):
            raise OutputMismatch(f"{self._rows(chunk)}: {unlike_the_others(rows, value)}")

    def _example(self, chunk: int, value: Data) -> Data:
        first, last = self._plan.rows(chunk)
        check_for_folder(value, last - first, self._plan, self._rows(chunk))
        # One element stands for all of them: nothing is allocated for an example.
        return allocate_like(value, self._plan, lambda dtype, shape: torch.zeros((), dtype=dtype).expand(shape))

    def _rows(self, chunk: int) -> str:
        return describe_rows(*self._plan.rows(chunk))

    def result(self) -> Any:
        return None if self._writer is None else self._writer.out
