"""The entries of results that are no tensors, in a file beside the journal, until a run that can be resumed is over.

    spill-objects.jsonl    {"columns": [["name"], ["meta", "path"]], "order": [...]}   first: where they belong
                           {"chunk": 12, "pieces": [["each", [...], []], ["one", "x"]]}

A line is appended before its chunk is marked as done, by the driver or, in place, by the worker. The last line of a
chunk is the one that holds; lines of chunks that are not done do not count. Objects are kept as JSON, as the dataset
will keep them: opening the file runs no code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tdmap.data.kinds import KeyPath, key_name
from tdmap.data.objects import NO_OBJECT, Each, One, Piece, Pieces, RaggedPiece, Spilled, StackedPiece
from tdmap.errors import OutputMismatch, UntrustedFile
from tdmap.memory.hidden import append_line, lines, remove
from tdmap.memory.resources import available_memory
from tdmap.memory.spill import PREFIX
from tdmap.plan import ChunkPlan
from tensordict_lite import MetaData, NonTensorData, NonTensorStack
from tensordict_lite.memmap.disk.format import is_count
from tensordict_lite.memmap.load import DTYPES
from tensordict_lite.memmap.plan import holds_json
from tensordict_lite.ragged import KINDS

OBJECTS = f"{PREFIX}objects.jsonl"


class ObjectLog:
    """The objects of the run in a folder.

    Args:
        folder: the hidden folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / OBJECTS

    def begin(self, paths: Sequence[KeyPath], order: Sequence[KeyPath] = ()) -> None:
        """A run begins whose results have these columns, if any, among entries of this order."""
        remove(self.path)
        if paths:
            append_line(self.path, json.dumps({"columns": paths, "order": order}).encode())

    def columns(self) -> tuple[KeyPath, ...]:
        """The columns of the run that has begun; none where there is no file."""
        return self._paths("columns")

    def order(self) -> tuple[KeyPath, ...]:
        """All entries in their order, as far as they are known."""
        return self._paths("order")

    def _paths(self, name: str) -> tuple[KeyPath, ...]:
        first: dict[str, Any] = next(iter(self._lines("columns").values()), {})
        try:
            return tuple(tuple(map(str, path)) for path in first.get(name, ()))
        except TypeError:
            raise UntrustedFile(self.path, "does not say of which columns it is") from None

    def _lines(self, key: str) -> dict[Any, dict[str, Any]]:
        """The last line of each value of `key`; lines without it, and torn ones, are left out."""
        found: dict[Any, dict[str, Any]] = {}
        for line in lines(self.path, available_memory() // 2):
            if type(line) is dict and key in line:
                value = line[key]
                found[value if isinstance(value, int) else str(value)] = line
        return found

    def add(self, chunk: int, pieces: Pieces) -> None:
        """Note the objects of a chunk."""
        append(self.path, chunk, pieces)

    def load(self, paths: Sequence[KeyPath], plan: ChunkPlan) -> dict[int, Pieces]:
        """What was noted of each chunk of a plan, for these columns.

        Raises:
            UntrustedFile: it is not what a run with this plan notes.
        """
        if not paths or self.columns() != tuple(paths):
            return {}
        try:
            noted = self._lines("chunk").items()
            pieces = {int(number): tuple(map(_read, line["pieces"])) for number, line in noted}
        except (TypeError, ValueError, LookupError, RuntimeError, OverflowError) as error:
            raise UntrustedFile(self.path, f"holds no objects of rows ({type(error).__name__}: {error})") from None
        if any(len(found) != len(paths) for found in pieces.values()):
            raise UntrustedFile(self.path, "holds objects of other columns")
        for number, found in pieces.items():
            if not 0 <= number < plan.num_chunks:
                raise UntrustedFile(self.path, f"holds objects of chunk {number}, and the run has {plan.num_chunks}")
            rows = plan.count(number, number + 1)
            for piece in found:
                if _rows(piece, rows) != rows:
                    raise UntrustedFile(self.path, f"holds {_rows(piece, rows)} objects of the {rows} rows of a chunk")
        return pieces


def append(path: str | os.PathLike[str], chunk: int, pieces: Pieces) -> None:
    """Append the line of a chunk, in one write."""
    append_line(Path(path), json.dumps({"chunk": chunk, "pieces": [_noted(piece) for piece in pieces]}).encode())


def check_storable(pieces: Pieces, paths: Sequence[KeyPath], where: str) -> None:
    """Raise OutputMismatch unless the folder of a dataset can hold these objects.

    Args:
        pieces: of one chunk.
        paths: their columns.
        where: the rows, for the message.
    """
    for piece, path in zip(pieces, paths):
        for value in () if isinstance(piece, RaggedPiece) else _values(piece):
            if not holds_json(value):
                raise OutputMismatch(
                    f"{where}: the entry {key_name(path)} holds a {type(value).__name__}, and a folder holds strings, "
                    "numbers, None, lists and dicts with strings for keys. Return rows of numbers or bytes as "
                    "Ragged.from_list(rows), encode other objects, or call without out= and save the result by "
                    ".memmap(folder, allow_pickle=True)."
                )


def _values(piece: Piece) -> Sequence[Any]:
    if piece is None or isinstance(piece, Spilled):
        return ()
    if isinstance(piece, One):
        return [piece.value]
    if isinstance(piece, Each):
        return [value for value in piece.values if value is not NO_OBJECT]
    return [entry.tolist() for entry in piece.entries if entry is not NO_OBJECT]


def _rows(piece: Piece, rows: int) -> int:
    """Rows of a piece, which may be one for any number of them."""
    if piece is None or isinstance(piece, One):
        return rows
    if isinstance(piece, Spilled):
        return piece.rows
    return len(piece.entries if isinstance(piece, StackedPiece) else piece.values)


def _noted(piece: Piece) -> Any:
    if piece is None:
        return None
    if isinstance(piece, Spilled):
        return ["spilled", *describe_spilled(piece), *piece[3:]]
    if isinstance(piece, One):
        return ["one" if piece.entry is None else "whole", piece.value]
    if isinstance(piece, Each):
        gaps = [number for number, value in enumerate(piece.values) if value is NO_OBJECT]
        return ["each", [None if value is NO_OBJECT else value for value in piece.values], gaps]
    return ["rows", [None if e is NO_OBJECT else [e.batch_dims, e.tolist()] for e in piece.entries]]


def _read(noted: Any) -> Piece:
    if noted is None:
        return None
    if noted[0] == "one":
        return One(noted[1])
    if noted[0] == "spilled":
        return known_spilled(*noted[1:])
    if noted[0] == "whole":
        return One(noted[1], MetaData(noted[1]))
    if noted[0] == "each":
        values = list(noted[1])
        for number in noted[2]:
            values[number] = NO_OBJECT
        return Each(values)
    return StackedPiece([NO_OBJECT if row is None else _entry(row[1], int(row[0])) for row in noted[1]])


def describe_spilled(piece: Spilled) -> tuple[str, str, tuple[int, ...]]:
    """Kind, dtype and shape of ragged rows, as plain data."""
    return piece.kind, str(piece.dtype), piece.row_shape


def known_spilled(*fields: Any) -> Spilled:
    """Ragged rows as a log describes them: what `describe_spilled` gives, and the other fields.

    Raises:
        ValueError: it describes something else, or the file is no name in the folder.
    """
    kind, dtype, shape, rows, total, file, lengths, values = fields
    numbers = [*shape, rows, total, lengths, values]
    if kind not in KINDS or dtype not in DTYPES or not all(is_count(n, 1 << 62) for n in numbers):
        raise ValueError(f"no ragged rows: {kind!r:.60}, {dtype!r:.60}, {numbers!r:.100}")
    if type(file) is not str or not file or "/" in file or "\0" in file:
        raise ValueError(f"no name of a file: {file!r:.100}")
    return Spilled(kind, DTYPES[dtype], tuple(shape), rows, total, file, lengths, values)


def _entry(values: Any, dims: int) -> Any:
    if not dims:
        return NonTensorData(values)
    return NonTensorStack(*[_entry(value, dims - 1) for value in values])
