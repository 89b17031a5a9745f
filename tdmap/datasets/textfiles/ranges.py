"""JSON Lines, parsed by workers, a range of whole lines at a time.

The first lines tell the types. Where others do not fit them, workers look for types that hold all lines, and read once
more. What a message has to tell with the number of its line is left to the stream of all lines (`NotAlone`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tdmap.datasets.arrow import rows_of
from tdmap.datasets.textfiles.blocks import BOM, codec_of
from tdmap.datasets.textfiles.dialects import JsonLines, Misfit, Types
from tdmap.datasets.textfiles.kinds import joined_kind, with_given
from tdmap.datasets.textfiles.reading import TextTypes
from tdmap.ops.flat_map import flat_map
from tdmap.ops.reduce import map_reduce
from tdmap.output.outputfolder import OutputFolder
from tdmap.tuning import current
from tensordict_lite import TensorDict
from tensordict_lite.packages import pyarrow
from tensordict_lite.paths import is_url

FEWEST = 8
"""Ranges that are worth starting workers for."""

_LOOKED = 1 << 16
"""Bytes that are looked at for the end of a line."""


class NotAlone(Exception):
    """Some lines cannot be read without those before."""


def can_be_cut(files: Sequence[str], format: str) -> bool:
    """Whether workers can find the lines of files, and there is work for them."""
    if format != "jsonl" or any(is_url(path) or codec_of(path) for path in files):
        return False
    return sum(map(os.path.getsize, files)) >= FEWEST * current().text_bytes


def read_ranges(
    files: Sequence[str], store: OutputFolder, columns: Sequence[str] | None, nulls: str, text: TextTypes, options: Any
) -> TensorDict:
    """Read JSON Lines into a folder, on several processes. Arguments and errors as `tdmap.datasets.read`.

    Raises:
        NotAlone: read them as a stream. Nothing was written.
    """
    found = torch.tensor(list(_ranges_of(files, current().text_bytes))).T.contiguous()
    ranges = TensorDict(dict(zip(("file", "start", "stop"), found)), found.shape[1:])
    infer = Infer(files, text.given)
    known = infer(ranges[:1])
    for _ in range(2):
        if not known or any(kind is None for kind in known.values()) or text.lacking(known):
            break
        fn: Any = ReadLines(files, columns, nulls, known, text.given)
        place: Any = store
        try:
            made: TensorDict = flat_map(ranges, fn, out=place, chunksize=1, **options)
            return made
        except Misfit:
            known = map_reduce(ranges, infer, _joined, chunksize=1, **options)
    raise NotAlone


def _ranges_of(files: Sequence[str], size: int) -> Iterator[tuple[int, int, int]]:
    """File, first byte and end of ranges of whole lines, of about so many bytes."""
    for number, path in enumerate(files):
        with open(path, "rb") as file:
            start, end = 0, os.fstat(file.fileno()).st_size
            while start < end:
                stop = _end_of_line(file.fileno(), start + size - 1, end) if end - start > size else end
                yield number, start, stop
                start = stop


def _end_of_line(fd: int, at: int, end: int) -> int:
    while at < end:
        found = os.pread(fd, _LOOKED, at)
        line = found.find(b"\n")
        if line >= 0:
            return at + line + 1
        at += len(found) or end
    return end


def _joined(one: Types, other: Types) -> Types:
    null = pyarrow().null()
    names = {**one, **other}
    if any(found.get(name, null) is None for found in (one, other) for name in names):
        raise NotAlone
    return {name: joined_kind(one.get(name, null), other.get(name, null), JsonLines.as_text) for name in names}


class _Ranges:
    def __init__(self, files: Sequence[str], given: Types) -> None:
        self.files = list(files)
        self.given = dict(given)

    def _lines_of(self, ranges: TensorDict) -> bytes:
        (number,), (start,), (stop,) = (ranges[name].tolist() for name in ("file", "start", "stop"))
        with open(self.files[number], "rb") as file:
            lines = os.pread(file.fileno(), stop - start, start)
        if len(lines) < stop - start:  # it was truncated
            raise NotAlone
        return lines if start else lines.removeprefix(BOM)


class Infer(_Ranges):
    """The types of the columns of a range."""

    def __call__(self, ranges: TensorDict) -> Types:
        lines = self._lines_of(ranges)
        try:
            found = JsonLines("", None, threads=False).infer(lines, self.given) if lines.strip() else {}
        except ValueError:
            raise NotAlone from None
        return {name: with_given(kind, name, self.given) for name, kind in found.items()}


class ReadLines(_Ranges):
    """The rows of a range, of columns whose types are known."""

    def __init__(
        self, files: Sequence[str], columns: Sequence[str] | None, nulls: str, known: Types, given: Types
    ) -> None:
        super().__init__(files, given)
        self.columns = None if columns is None else list(columns)
        self.nulls = nulls
        self.known = known

    def __call__(self, ranges: TensorDict) -> TensorDict | None:
        lines = self._lines_of(ranges)
        if not lines.strip():
            return None
        try:
            table = JsonLines("", self.columns, threads=False).parse(lines, self.known, self.given)
            return rows_of(table if self.columns is None else table.select(self.columns), self.nulls)
        except (ValueError, TypeError):
            raise NotAlone from None
