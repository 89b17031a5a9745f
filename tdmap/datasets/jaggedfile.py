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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.store import OutputFolder
from tdmap.datasets.jagged import BLOCK_ROWS, KINDS, Jagged
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.memory.folderlock import locked
from tdmap.memory.regions import bytes_of
from tdmap.memory.rowfiles import Places, SharedTensors
from tdmap.memory.scratch import Scratch
from tdmap.output.output import Step, create_in, travels
from tdmap.plan import ChunkPlan
from tdmap.sinks import Collect
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.gathering import gather_rows
from tensordict_lite.memmap.disk import locks
from tensordict_lite.memmap.disk.files import new_file, write_all
from tensordict_lite.paths import absolute_path

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions

KEPT_ROWS = 1 << 22
"""Lengths of so many chosen rows are kept between the two times that they are needed."""

APPENDED = 1 << 16
"""Rows that are appended at a time."""


def open_jagged(folder: str | os.PathLike[str]) -> Jagged:
    """`Jagged.open`."""
    path = Path(absolute_path(folder))
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


def save_jagged(
    rows: Jagged,
    folder: str | os.PathLike[str] | OutputFolder,
    choose: Callable[[Scratch], Tensor] | None = None,
    **options: Unpack[WorkerOptions],
) -> Jagged:
    """`Jagged.save`.

    Args:
        rows: where rows come from.
        folder: for the new dataset.
        choose: gives the rows that are saved, as `Choice.which`; called when the folder is known to be free.
        **options: about workers.
    """
    execution = Execution.of(**options)
    store = OutputFolder.of(folder)
    with store.claimed("save(Jagged)", rows.folder):
        with Scratch(store.hidden) as scratch:
            chosen = Choice(rows, None if choose is None else choose(scratch))
            example = chosen.example()
            sizes = [list(example[key].shape) for key in ("values", "offsets")]
            fill_jagged(chosen, create_in(store, example, sizes), execution)
        store.publish()
    return open_jagged(store.path)


class Choice:
    """Rows of a dataset, in an order, that are to be written. Where each of them lies is never in memory as a whole.

    Args:
        rows: the dataset, of `n` rows.
        which: None: all of them; bool `[n]`: those where it is true; int64 `[m]`: those with these numbers.
    """

    def __init__(self, rows: Jagged, which: Tensor | None = None) -> None:
        self.rows = rows
        self.which = which
        self._kept: Tensor | None = None

    @property
    def extent(self) -> int:
        """What parts of it are counted in: rows of the dataset, or numbers of rows."""
        return len(self.rows if self.which is None else self.which)

    def example(self) -> TensorDict:
        """`example_of` as many rows and values."""
        rows, count, total = self.rows, 0, 0
        for lengths in self.lengths():
            count, total = count + len(lengths), total + int(lengths.sum())
        return example_of(rows.kind, rows.dtype, rows.row_shape, count, total)

    def lengths(self, step: int = BLOCK_ROWS) -> Iterator[Tensor]:
        """Lengths of the chosen rows, for parts of the choice of the extent `step`."""
        if self.which is None or self.which.dtype is torch.bool or self.extent > KEPT_ROWS:
            yield from self._looked_up(step)
            return
        if self._kept is None:  # rows in any order take long to look up, and are asked for twice
            self._kept = self._lengths_of_numbers(self.which)
        yield from self._kept.split(step) if self.extent else ()

    def _lengths_of_numbers(self, numbers: Tensor) -> Tensor:
        """int32 or int64 `[m]`."""
        starts, ends = self.rows.starts, self.rows.ends
        if len(starts) > min(4 * len(numbers), KEPT_ROWS):
            return ends.index_select(0, numbers) - starts.index_select(0, numbers)
        # Looked up once, in as little memory as will do: most of the time goes into waiting for it.
        dtype = torch.int32 if len(self.rows.values) < 1 << 31 else torch.int64
        return torch.sub(ends, starts, out=torch.empty(len(starts), dtype=dtype)).index_select(0, numbers)

    def _looked_up(self, step: int) -> Iterator[Tensor]:
        for first in range(0, self.extent, step):
            some = slice(first, first + step)
            part = some if self.which is None else self.which[some]
            starts, ends = spans_of_part(self.rows.starts, self.rows.ends, part, first)
            yield ends - starts


def spans_of_part(starts: Tensor, ends: Tensor, part: Tensor | slice, first: int) -> tuple[Tensor, Tensor]:
    """Where the rows of a part of a choice start and end.

    Args:
        starts, ends: int64 `[n]`: of all rows.
        part: a slice of them, their numbers, or a bool for each of those from `first` on.
        first: where the part begins.
    """
    if isinstance(part, slice):
        return starts[part], ends[part]
    if part.dtype is torch.bool:
        starts, ends = starts[first : first + len(part)], ends[first : first + len(part)]
        part = torch.from_numpy(np.flatnonzero(part.numpy()))  # several times as fast as torch's
    return starts.index_select(0, part), ends.index_select(0, part)  # several times as fast as indexing


def fill_jagged(chosen: Choice, made: Any, execution: Execution) -> None:
    """Write rows, wherever they lie, into the files of their `Choice.example`, which are new."""
    rows, which = chosen.rows, chosen.which
    total = len(made["values"])
    if not total:
        return  # offsets are 0, as new files are
    item = rows.values.element_size() * rows.row_shape.numel()
    plan = ChunkPlan(chosen.extent, max(chosen.extent * execution.tuning.gather_bytes // max(total * item, 1), 1))
    places = Places.of([made["values"], made["offsets"]])
    assert places is not None
    firsts, at, first = [], 0, 0
    for lengths in chosen.lengths(plan.size):
        firsts.append((at, first))
        at, first = at + len(lengths), first + int(lengths.sum())
    shared = SharedTensors([rows.values, rows.starts, rows.ends], travels(execution))
    fn = PlaceRows(shared, places, plan.size, firsts, which is None)
    source = Source(rows.starts if which is None else which)
    execution.run(Job(source, plan, fn, Policy(undo=False)), Collect())


class PlaceRows(Step):
    """Gathers rows of the values, and writes them and where they end to their places in the output. Its chunks are
    parts of a choice.

    Args:
        shared: the values, and where their rows start and end.
        places: of the values and the offsets of the output.
        step: extent of a chunk.
        firsts: how many rows, and values, of the output come before each chunk.
        whole: all rows are chosen.
    """

    def __init__(
        self, shared: SharedTensors, places: Places, step: int, firsts: list[tuple[int, int]], whole: bool
    ) -> None:
        super().__init__("save")
        self.shared = shared
        self.places = places
        self.step = step
        self.firsts = firsts
        self.whole = whole

    def __call__(self, part: Any, start: int = 0) -> int:
        values, starts, ends = (tensor.as_subclass(Tensor) for tensor in self.shared.tensors)
        starts, ends = spans_of_part(starts, ends, slice(start, start + len(part)) if self.whole else part, start)
        if len(starts):
            at, first = self.firsts[start // self.step]
            stops = torch.sub(ends, starts).cumsum(0).add_(first)
            block = values.new_empty((int(stops[-1]) - first, *values.shape[1:]))
            gather_rows(values, starts, ends, block)
            with self.places.opened() as opened:  # not through the mapping, which costs a fault a page
                self.places.write(1, opened[1], at + 1, stops)
                self.places.write(0, opened[0], first, block)
        self.shared.trim()
        return len(part)


def append_jagged(jagged: Jagged, rows: Jagged | Iterable[Any]) -> Jagged:
    """`Jagged.append`."""
    rows = rows if isinstance(rows, Jagged) else Jagged.from_list(rows)
    folder = jagged.folder
    if folder is None:
        raise ValueError("only rows that were opened from a folder can be appended to: save(folder), then append.")
    if (rows.kind, rows.dtype, rows.row_shape) != (jagged.kind, jagged.dtype, jagged.row_shape):
        raise TypeError(f"{folder} holds {jagged!r}, and the new rows are {rows!r}.")
    with locked(folder, "append(Jagged)"):
        now = open_jagged(folder)  # somebody may have appended before, or saved others there
        if (rows.kind, rows.dtype, rows.row_shape) != (now.kind, now.dtype, now.row_shape):
            raise TypeError(f"{folder} holds {now!r} by now, and the new rows are {rows!r}.")
        if TensorDict.load_memmap(folder).get("rows", None) is not None:
            raise ValueError(f"{folder} has other columns beside these rows: append to all of them by map.")
        total, count, item = len(now.values), len(now), rows.values.element_size() * rows.row_shape.numel()
        behind = {"values": total + rows.total, "offsets": count + len(rows) + 1}
        present = {"values": total, "offsets": count + 1}
        with locks.locked(str(folder)):  # a reader finds these rows or those before
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
