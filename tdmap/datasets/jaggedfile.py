"""Jagged rows in a folder: an ordinary dataset without batch dimensions, so that whatever opens those opens it too.

    folder/values.memmap     [total, ...]
    folder/offsets.memmap    int64 [n + 1]
    folder/kind/             "tensor", "str" or "bytes"

Saving gathers rows from wherever they lie, in parallel: their lengths are known, and so is the place of each.
Appending writes behind the end, where nobody looks, and then replaces the metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdmap.data.store import OutputFolder
from tdmap.datasets.flat.gathering import gather_rows
from tdmap.datasets.jagged import KINDS, Jagged
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.memory.folderlock import locked
from tdmap.memory.regions import bytes_of
from tdmap.memory.rowfiles import Places, SharedTensors
from tdmap.operations.output import Step, travels
from tdmap.plan import ChunkPlan
from tdmap.sinks import Collect
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.files import new_file, write_all

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tdmap.execution import WorkerOptions

TASK_BYTES = 4 << 20
"""Bytes that a worker gathers between two looks at its messages."""

APPENDED = 1 << 16
"""Rows that are appended at a time."""


def open_jagged(folder: str | os.PathLike[str]) -> Jagged:
    """`Jagged.open`."""
    path = Path(os.path.abspath(os.fspath(folder)))
    return jagged_of(TensorDict.load_memmap(path), path)


def jagged_of(data: Any, path: Path) -> Jagged:
    """The rows of a dataset that was loaded from their folder.

    Raises:
        DatasetError: it is something else, or its parts do not fit each other.
    """
    values, offsets, kind = (data[key] if key in data.keys() else None for key in ("values", "offsets", "kind"))
    if not isinstance(values, Tensor) or not isinstance(offsets, Tensor) or kind not in KINDS:
        raise DatasetError(str(path), "holds no jagged rows: they are the entries values, offsets and kind")
    try:
        jagged = Jagged(values, offsets, kind, check=False)  # which would read all offsets
    except (ValueError, TypeError) as error:
        raise DatasetError(str(path), str(error)) from None
    jagged.folder = path
    return jagged


def example_of(kind: str, dtype: torch.dtype, row_shape: torch.Size, rows: int, total: int) -> TensorDict:
    """What stands for a folder of so many rows, without memory for them."""
    return TensorDict(
        {
            "values": torch.zeros((), dtype=dtype).expand(total, *row_shape),
            "offsets": torch.zeros((), dtype=torch.int64).expand(rows + 1),
            "kind": kind,
        },
        [],
    )


def save_jagged(rows: Jagged, folder: str | os.PathLike[str], **options: Unpack[WorkerOptions]) -> Jagged:
    """`Jagged.save`."""
    execution = Execution.of(**options)
    store = OutputFolder(folder)
    with store.claimed("save(Jagged)", rows.folder):
        total = rows.total
        made = store.create(example_of(rows.kind, rows.dtype, rows.row_shape, len(rows), total))
        fill_jagged(rows, made, execution)
        store.publish()
    return open_jagged(folder)


def fill_jagged(rows: Jagged, made: Any, execution: Execution) -> None:
    """Write rows, wherever they lie, into the files of an `example_of` as many rows and values."""
    ends = Places.of([made["offsets"]])
    assert ends is not None
    with ends.opened() as opened:  # not through the mapping, which costs a fault a page
        ends.write(0, opened[0], 0, rows.offsets)
    places, total = Places.of([made["values"]]), len(made["values"])
    if not total or places is None:
        return
    item = rows.values.element_size() * rows.row_shape.numel()
    plan = ChunkPlan(len(rows), max(len(rows) * TASK_BYTES // max(total * item, 1), 1))
    shared = SharedTensors([rows.values, made["offsets"]], travels(execution))
    execution.run(Job(Source(rows.starts), plan, PlaceSpans(shared, places), Policy(undo=False)), Collect())


class PlaceSpans(Step):
    """Gathers rows of the values and writes them to their place in the output."""

    def __init__(self, shared: SharedTensors, places: Places) -> None:
        super().__init__("save")
        self.shared = shared
        self.places = places

    def __call__(self, starts: Any, start: int = 0) -> int:
        values, offsets = (tensor.as_subclass(Tensor) for tensor in self.shared.tensors)
        places = offsets[start : start + len(starts) + 1]
        first, count = int(places[0]), int(places[-1] - places[0])
        if count:
            block = values.new_empty((count, *values.shape[1:]))
            gather_rows(values, starts, starts + places.diff(), block)
            with self.places.opened() as opened:
                self.places.write(0, opened[0], first, block)
        self.shared.trim()
        return len(starts)


def append_jagged(jagged: Jagged, rows: Jagged | Iterable[Any]) -> Jagged:
    """`Jagged.append`."""
    rows = rows if isinstance(rows, Jagged) else Jagged.from_list(rows)
    folder = jagged.folder
    if folder is None:
        raise ValueError("only rows that were opened from a folder can be appended to: save(folder), then append.")
    if (rows.kind, rows.dtype, rows.row_shape) != (jagged.kind, jagged.dtype, jagged.row_shape):
        raise TypeError(f"{folder} holds {jagged!r}, and the new rows are {rows!r}.")
    with locked(folder, "append(Jagged)"):
        now = open_jagged(folder)  # somebody may have appended before
        if TensorDict.load_memmap(folder).get("rows", None) is not None:
            raise ValueError(f"{folder} has other columns beside these rows: append to all of them by map.")
        total, count, item = len(now.values), len(now), rows.values.element_size() * rows.row_shape.numel()
        behind = {"values": total + rows.total, "offsets": count + len(rows) + 1}
        present = {"values": total, "offsets": count + 1}
        for key, bytes_each in (("values", item), ("offsets", 8)):  # what a killed call has left behind the end
            if (folder / f"{key}.memmap").exists():
                os.truncate(folder / f"{key}.memmap", present[key] * bytes_each)
        _set_sizes(folder, present, behind)
        for at in range(0, len(rows), APPENDED):
            part = rows[at : at + APPENDED]
            flat = part.flat().contiguous()
            _write(folder / "values.memmap", flat, total * item)
            _write(folder / "offsets.memmap", part.offsets[1:] + total, (count + 1 + at) * 8)
            total += len(flat)
        _set_sizes(folder, behind, None)
    return open_jagged(folder)


def _set_sizes(folder: Path, sizes: dict[str, int], room: dict[str, int] | None) -> None:
    """Replace the metadata: so many elements count, and files may be longer up to `room`."""

    def change(entry: dict[str, Any], key: str) -> None:
        entry["shape"] = [sizes[key], *entry["shape"][1:]]
        entry.pop("capacity", None)
        if room is not None:
            entry["capacity"] = room[key]

    _change_meta(folder, sizes, change)


def _change_meta(folder: Path, keys: dict[str, int], change: Callable[[dict[str, Any], str], None]) -> None:
    path = folder / "meta.json"
    meta = json.loads(path.read_bytes())
    for key in keys:
        change(meta[key], key)
    with new_file(str(path)) as fd:
        write_all(fd, json.dumps(meta).encode(), 0, str(path))


def _write(path: Path, block: Tensor, at: int) -> None:
    if not block.numel():
        return
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        write_all(fd, bytes_of(block), at, str(path))
    finally:
        os.close(fd)
