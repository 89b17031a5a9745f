"""Entries that are no tensors, as columns: strings, bytes and other Python objects, one a row or one for all rows.

    worker   result ──► tensors into the rows of the output
                   └──► a piece for each column of objects ──► with the report of the chunk
    driver   pieces of all chunks ──► a column (NonTensorData where all rows have one object, else NonTensorStack)

Shared memory holds bytes, so objects travel. A piece is as small as its rows allow: `One` object, `Each` row's object
in a list, or a `StackedPiece` where each of them is a stack of objects.

Rows without an object of their own (they were skipped, or the function returned None) keep what an output had before;
in a new output they hold None, or no objects at all where rows are stacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tdmap.data.kinds import Data, KeyPath, concatenated, is_dense, key_name
from tdmap.data.sizes import result_bytes
from tdmap.errors import OutputMismatch, describe_rows
from tdmap.memory.spill import Extent, Spill
from tdmap.plan import ChunkPlan
from tensordict_lite import NonTensorData, NonTensorDataBase, NonTensorStack, TensorDict, is_non_tensor, lazy_stack
from tensordict_lite.gathering import bytes_of, offsets_of
from tensordict_lite.memmap.plan import mapped_root, replaced_file
from tensordict_lite.objects.data import same_payload
from tensordict_lite.paths import paths_as_text
from tensordict_lite.ragged import Ragged, form_name, is_ragged, text_of

PACKED = 32
"""So many strings of a piece travel as their bytes."""


class One(NamedTuple):
    """One object for all rows of a piece.

    Where it is no row's but the whole collection's (:class:`MetaData`, an unbatched tensor), with its entry.
    """

    value: Any
    entry: Any = None


class Each:
    """One object a row. Strings travel as their bytes."""

    __slots__ = ("values",)

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> Any:
        text = text_of(self.values) if len(self.values) >= PACKED else None
        if text is None:
            return Each, (self.values,)
        kind, values, offsets = text
        return _packed, (kind, bytes_of(values).tobytes(), bytes_of(offsets).tobytes())


class RaggedPiece(Each):
    """Ragged rows, which stay values and offsets.

    Args:
        entry: a ragged entry.
    """

    __slots__ = ("entry",)

    def __init__(self, entry: Ragged) -> None:
        self.entry = entry

    @property
    def values(self) -> list[Any]:  # type: ignore[override]
        """The objects of the rows, in a new list."""
        return list(self.entry._payloads() or ())

    def __len__(self) -> int:
        return len(self.entry)

    def __reduce__(self) -> Any:
        values, offsets = self.entry.flat()
        shape, dtype = tuple(values.shape), values.dtype
        content = bytes_of(values.contiguous()).tobytes(), bytes_of(offsets).tobytes()
        return _unpacked, (self.entry.kind, dtype, shape, *content)


def _packed(kind: str, values: bytes, offsets: bytes) -> RaggedPiece:
    return _unpacked(kind, torch.uint8, (len(values),), values, offsets)


def _unpacked(kind: str, dtype: torch.dtype, shape: tuple[int, ...], values: bytes, offsets: bytes) -> RaggedPiece:
    content = torch.frombuffer(bytearray(values), dtype=dtype) if values else torch.empty(0, dtype=dtype)
    return RaggedPiece(Ragged(content.reshape(shape), torch.frombuffer(bytearray(offsets), dtype=torch.int64), kind))


class Spilled(NamedTuple):
    """Ragged rows that wait in a spill file: their lengths, int64, and their values."""

    kind: str
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    rows: int
    total: int
    """Values of all rows."""
    file: str
    lengths: int
    """Byte of the file at which they begin."""
    values: int

    @property
    def nbytes(self) -> int:
        """Of the values."""
        return self.total * self.dtype.itemsize * torch.Size(self.row_shape).numel()


def spilled(entry: Data, plan: ChunkPlan, spill: Spill) -> Spilled | None:
    """Ragged rows, strings or bytes, written to a spill file; None for other entries."""
    if not isinstance(entry, NonTensorStack) or entry.batch_dims != 1 or plan.dim or not len(entry):
        return None
    if plan.unbind and not is_one_row(entry):
        return None
    if is_ragged(entry):
        kind, values, offsets = entry.kind, *entry.flat()
    else:
        rows = entry._payloads() or ()
        text = text_of(rows) if len(rows) >= PACKED or are_bytes(rows) else None
        if text is None:
            return None
        kind, values, offsets = text
    lengths, content = spill.append([offsets.diff(), values.contiguous()])
    row_shape = tuple(values.shape[1:])
    return Spilled(kind, values.dtype, row_shape, len(entry), len(values), content.file, lengths.offset, content.offset)


def spill_of(place: Placer | None) -> Spill | None:
    """Where ragged rows wait; None: in memory."""
    return None if place is None else place.spill


def spill_pieces(pieces: Pieces, plan: ChunkPlan, spill: Spill | None) -> Pieces:
    """The pieces of a chunk; those of ragged rows that have come with its report are put into a spill file."""
    if spill is None:
        return pieces
    return tuple((spilled(p.entry, plan, spill) or p) if isinstance(p, RaggedPiece) else p for p in pieces)


def unspilled(piece: Spilled, spill: Spill) -> RaggedPiece:
    """The rows of a piece, in memory."""
    lengths = spill.read(Extent(piece.file, piece.lengths, piece.rows * 8), torch.int64, (piece.rows,))
    extent = Extent(piece.file, piece.values, piece.nbytes)
    values = spill.read(extent, piece.dtype, (piece.total, *piece.row_shape))
    return RaggedPiece(Ragged(values, offsets_of(lengths), piece.kind))


def is_one_row(entry: object) -> bool:
    """Whether an entry of a single row's result (`chunksize=0`) is a row of a ragged entry."""
    return is_ragged(entry) and len(entry) == 1


def ragged_rows(values: Sequence[Any], kind: str) -> Ragged:
    """Objects as ragged rows of a kind.

    Raises:
        TypeError: they are of another kind.
    """
    found: Ragged
    if kind == "json":
        found = Ragged.from_objects(values)
    else:  # a text beside them says what None is
        found = Ragged.from_list([*values, ""])[: len(values)] if kind == "str" else Ragged.from_list(values)
    if found.kind != kind:
        raise TypeError(f"rows of {found.kind}, where others are {kind}")
    return found


Form: TypeAlias = "tuple[Any, ...]"
"""Kind, dtype and shape of ragged rows."""

Forms: TypeAlias = "dict[KeyPath, Form | None]"
"""Those of the entries that are no tensors; None where their rows are not ragged."""


def forms_of(data: Data) -> Forms:
    """The forms of the entries of a dense collection that are no tensors."""
    return {path: form_of(entry_at(data, path)) for path in object_paths(data)}


def with_ragged_rows(result: Data, forms: Forms) -> Data:
    """A single row as a result, each value of a ragged entry as a `Ragged` of one row.

    Values of another kind or row shape stay as they are.
    """
    columns = {}
    for path, form in forms.items():
        if form is None:
            continue
        (kind, _, shape), value = form, entry_at(result, path)
        if isinstance(value, NonTensorData):
            value = value._payload
        elif kind != "tensor" or not isinstance(value, Tensor) or not value.dim() or value.shape[1:] != shape:
            continue
        with contextlib.suppress(TypeError):
            columns[path] = ragged_rows([value], kind)
    return with_objects(result, columns) if columns else result


def has_ragged_row(result: Data) -> bool:
    """Whether the result of a single row has a row of a ragged entry."""
    return any(is_one_row(entry_at(result, path)) for path in object_paths(result))


def as_chunk(result: Data, dim: int) -> Data:
    """The result of a single row as that of a chunk of one row."""
    if not has_ragged_row(result):
        return result.unsqueeze(dim)
    entries = {path: entry_at(result, path) for path in object_paths(result)}
    columns = {path: entry if is_one_row(entry) else entry.unsqueeze(dim) for path, entry in entries.items()}
    return with_objects(without_objects(result).unsqueeze(dim), columns, entry_paths(result))


BLANKS = {"str": b"\xff", "json": b"null"}
"""The bytes of None."""


def blank_rows(like: Ragged, rows: int) -> Ragged:
    """Ragged rows without content: None among strings and JSON values, otherwise empty."""
    blank = BLANKS.get(like.kind, b"")
    values = torch.tensor([*blank] * rows, dtype=like.dtype).reshape(len(blank) * rows, *like.row_shape)
    return Ragged(values, torch.arange(rows + 1) * len(blank), like.kind)


class StackedPiece(NamedTuple):
    """One non-tensor entry a row: rows that are stacks of objects themselves, or `NO_OBJECT`."""

    entries: list[Any]


class _NoObject:
    """Stands for the object of a row that has none."""

    def __reduce__(self) -> str:
        return "NO_OBJECT"

    __repr__ = __reduce__


NO_OBJECT = _NoObject()


Piece: TypeAlias = "One | Each | StackedPiece | Spilled | None"
"""The objects of some consecutive rows in one column; None where there are none."""

Pieces: TypeAlias = "tuple[Piece, ...]"
"""One for each column."""


class Placer(Protocol):
    """Brings ragged rows that wait in spill files to their places in an output."""

    spill: Spill
    """Where they wait."""
    shares: bool
    """Whether workers write into it; else the driver does."""

    def __call__(self, path: KeyPath, data: Data, pieces: list[tuple[int, Piece]]) -> Any:
        """The column of some pieces, of which one or more are `Spilled`."""
        ...


def piece_bytes(piece: Piece) -> int:
    """Bytes of the rows of a piece, roughly."""
    if piece is None:
        return 0
    if isinstance(piece, Spilled):
        return piece.rows * 8 + piece.nbytes
    return result_bytes(piece.entry if isinstance(piece, RaggedPiece) else contents(piece))


def contents(piece: One | Each | StackedPiece) -> Any:
    """The object of all rows, or the list of what the rows have."""
    return piece.values if isinstance(piece, Each) else piece[0]


# -- columns of a collection ---------------------------------------------------------------------------------------


def object_paths(data: Data, above: KeyPath = ()) -> tuple[KeyPath, ...]:
    """Where a dense collection has entries that are no tensors, in the order of its keys."""
    found: list[KeyPath] = []
    for key, value in data._source.items() if is_dense(data) else ():
        if is_non_tensor(value):
            found.append((*above, key))
        elif is_dense(value):
            found += object_paths(value, (*above, key))
    return tuple(found)


def entry_paths(data: Data, above: KeyPath = ()) -> tuple[KeyPath, ...]:
    """All entries of a dense collection that are none themselves, in their order."""
    found: list[KeyPath] = []
    for key, value in data._source.items() if is_dense(data) else ():
        found += entry_paths(value, (*above, key)) if is_dense(value) else [(*above, key)]
    return tuple(found)


def ragged_tensors(data: Data) -> Iterator[Tensor]:
    """Values and offsets of the ragged entries of a dense collection."""
    for path in object_paths(data):
        entry = entry_at(data, path)
        if isinstance(entry, Ragged) and (column := entry.column) is not None:
            yield column.values
            yield column.offsets


def without_objects(data: Data) -> Data:
    """The same collection without its entries that are no tensors; itself where it has none."""
    if not object_paths(data):
        return data
    kept = {key: without_objects(value) for key, value in data._source.items() if not is_non_tensor(value)}
    new = data._rebuild(kept, data._batch_size, data._names)
    if data._lock is not None:
        new.lock_()
    return new


def without_paths(data: Data, paths: Iterable[KeyPath]) -> Data:
    """A dense collection, which is changed, without these entries."""
    for path in paths:
        del entry_at(data, path[:-1])._source[path[-1]]
    return data


def entry_at(data: Data, path: KeyPath) -> Any:
    """An entry of a dense collection; None where there is none."""
    for key in path:
        if not is_dense(data):
            return None
        data = data._source.get(key)
    return data


def with_objects(data: Data, columns: dict[KeyPath, Any], order: Sequence[KeyPath] = ()) -> Data:
    """A copy of a dense collection, sharing its tensors, with these entries; all of them in this order."""
    source = dict(data._source)
    below: dict[str, dict[KeyPath, Any]] = {}
    for path, column in columns.items():
        if len(path) == 1:
            source[path[0]] = column
        else:
            below.setdefault(path[0], {})[path[1:]] = column
    for key, inner in below.items():
        source[key] = with_objects(source[key], inner, [path[1:] for path in order if path[0] == key and path[1:]])
    if order:
        source = {key: source[key] for key in {**{path[0]: None for path in order}, **source} if key in source}
    return data._rebuild(source, data._batch_size, data._names)


# -- pieces --------------------------------------------------------------------------------------------------------


def piece_of(entry: Any, plan: ChunkPlan) -> Piece:
    """What travels for an entry of a chunk's result."""
    if entry is None:
        return None
    if isinstance(entry, NonTensorData):
        return One(entry._payload)
    if isinstance(entry, NonTensorDataBase):
        return One(entry._payload, entry)
    if plan.unbind:
        return RaggedPiece(entry) if is_one_row(entry) else StackedPiece([entry])
    if is_ragged(entry) and not plan.dim:
        return RaggedPiece(entry)
    if entry._stack_dim == plan.dim and (values := entry._payloads()) is not None:
        return Each(values)
    rows = entry.unbind(plan.dim)
    if all(isinstance(row, NonTensorData) for row in rows):
        return Each([row._payload for row in rows])
    return StackedPiece(list(rows))


def piece_for(entry: Any, plan: ChunkPlan) -> Piece:
    """`piece_of` for an entry of a result: bytes, one object a row, are ragged rows, and paths are strings."""
    piece = piece_of(entry, plan)
    if type(piece) is Each:
        piece.values = paths_as_text(piece.values)
    if type(piece) is One and piece.entry is None:
        piece = piece._replace(value=paths_as_text([piece.value])[0])
    values: list[Any] = []
    if plan.unbind and isinstance(piece, One) and piece.entry is None:
        values = [piece.value]
    elif not plan.dim and type(piece) is Each:
        values = piece.values
    return RaggedPiece(Ragged.from_list(values)) if are_bytes(values) else piece


def are_bytes(values: Sequence[Any]) -> bool:
    """Whether there are values, all of them bytes."""
    return bool(values) and type(values[0]) is bytes and set(map(type, values)) == {bytes}


def concat_pieces(parts: Iterable[tuple[int, Piece]]) -> Piece:
    """One piece for consecutive rows, from parts of them and how many rows each part has."""
    parts = list(parts)
    if all(piece is None for _, piece in parts):
        return None
    column = _joined([piece for rows, piece in parts if rows])
    if column is not None:
        return column
    ones = [piece for _, piece in parts if isinstance(piece, One)]
    given = [piece for _, piece in parts if piece is not None]
    if len(ones) == len(given) and all(piece.entry is not None for piece in ones):
        if all(same_payload(one.value, ones[0].value) for one in ones[1:]):
            return ones[0]
        joined = type(ones[0].entry)._stack_entries([_flat(piece.entry) for piece in ones], 0)
        if isinstance(joined, NonTensorDataBase):  # an unbatched tensor has said that it is the first one's
            return One(joined._payload, joined)
    if len(ones) == len(parts) and all(same_payload(one.value, ones[0].value) for one in ones[1:]):
        return ones[0]
    stacked = any(isinstance(piece, StackedPiece) for _, piece in parts)
    values: list[Any] = []
    for rows, piece in parts:
        values += _entries(piece, rows) if stacked else _payloads(piece, rows)
    return StackedPiece(values) if stacked else Each(values)


def without_gaps(parts: Sequence[tuple[int, Piece]]) -> list[tuple[int, Piece]]:
    """The pieces of a column, with blank rows where ragged ones are missing; the others are as they were."""
    like = next((piece.entry for _, piece in parts if isinstance(piece, RaggedPiece)), None)
    if like is None:
        return list(parts)
    return [(rows, RaggedPiece(blank_rows(like, rows)) if piece is None and rows else piece) for rows, piece in parts]


def _joined(pieces: list[Piece]) -> RaggedPiece | None:
    """Ragged rows, and strings beside them, as one column; None where there are none such."""
    if not any(isinstance(piece, RaggedPiece) for piece in pieces):
        return None
    entries: list[Any] = []
    for piece in pieces:
        if isinstance(piece, RaggedPiece):
            entries.append(piece.entry)
        elif isinstance(piece, Each) and not any(value is NO_OBJECT for value in piece.values):
            entries.append(NonTensorStack._of_objects(piece.values))
        else:
            return None
    joined = concatenated(entries)
    return RaggedPiece(joined) if type(joined) is Ragged else None


def _flat(entry: Data) -> Any:
    return entry._rebuild({}, torch.Size(()))


def _payloads(piece: Piece, rows: int) -> list[Any]:
    if piece is None:
        return [NO_OBJECT] * rows
    return piece.values if isinstance(piece, Each) else [piece[0]] * rows


def _entries(piece: Piece, rows: int) -> list[Any]:
    if isinstance(piece, StackedPiece):
        return piece.entries
    return [value if value is NO_OBJECT else NonTensorData(value) for value in _payloads(piece, rows)]


def unchanged(entry: Data, before: Data, plan: ChunkPlan) -> bool:
    """Whether an entry of a result says what an entry of the same rows holds already."""
    if entry is None:
        return True
    if isinstance(entry, Ragged) and isinstance(before, Ragged) and entry.column and before.column:
        return _equal_rows(entry, before)
    piece, old = piece_of(entry, plan), piece_of(before, plan)
    if isinstance(piece, StackedPiece) or isinstance(old, StackedPiece) or old is None:
        return False
    if isinstance(piece, One) and isinstance(old, One):
        return same_payload(piece.value, old.value)
    count = len(piece) if isinstance(piece, Each) else len(old) if isinstance(old, Each) else 0
    pairs = zip(_payloads(piece, count), _payloads(old, count))
    return all(new is past or same_payload(new, past) for new, past in pairs)


def _equal_rows(one: Ragged, other: Ragged) -> bool:
    alike = form_of(one) == form_of(other) and torch.equal(one.lengths, other.lengths)
    return alike and torch.equal(one.flat()[0], other.flat()[0])


# -- the driver's side -----------------------------------------------------------------------------------------------


class ObjectColumns:
    """The pieces of all chunks, until the output is complete.

    Args:
        paths: the columns.
    """

    def __init__(self, paths: Sequence[KeyPath]) -> None:
        self.paths = tuple(paths)
        self._pieces: dict[int, Pieces] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no chunk has brought any."""
        return not self._pieces

    def add(self, chunk: int, pieces: Pieces) -> None:
        """Keep those of a chunk."""
        self._pieces[chunk] = pieces

    def columns(
        self, plan: ChunkPlan, data: Data, before: Data | None = None, place: Placer | None = None
    ) -> dict[KeyPath, Any]:
        """The columns with all rows of a plan.

        Args:
            plan: whose chunks the pieces are of.
            data: the collection that they belong to, whose batch sizes they get.
            before: a collection that holds what rows without an object of their own keep; None: they hold None.
            place: for columns some of whose rows are `Spilled`.
        """
        found = {}
        for number, path in enumerate(self.paths):
            parent = entry_at(data, path[:-1])
            pieces = self._of(number, plan)
            if before is not None:
                old = entry_at(before, path)
                if all(piece is None for _, piece in pieces):
                    found[path] = old
                    continue
                if place is not None and not is_ragged(old):  # the column stays one of objects
                    pieces = [(n, unspilled(p, place.spill) if isinstance(p, Spilled) else p) for n, p in pieces]
                pieces = _over(pieces, old, plan)
            require_one_form(path, pieces)
            if place is not None and any(isinstance(piece, Spilled) for _, piece in pieces):
                found[path] = place(path, data, pieces)
            else:
                found[path] = column_of(pieces, plan, parent._batch_size)
        return found

    def _of(self, number: int, plan: ChunkPlan) -> list[tuple[int, Piece]]:
        """The pieces of a column in the order of the chunks, each with its number of rows."""
        parts: list[tuple[int, Piece]] = []
        position = 0
        for chunk in sorted(self._pieces):
            if chunk > position:
                parts.append((plan.count(position, chunk), None))
            parts.append((plan.count(chunk, chunk + 1), self._pieces[chunk][number]))
            position = chunk + 1
        if position < plan.num_chunks:
            parts.append((plan.count(position, plan.num_chunks), None))
        return parts


def _over(parts: list[tuple[int, Piece]], old: Data, plan: ChunkPlan) -> list[tuple[int, Piece]]:
    """The pieces, with what a column held before in rows that have no object of their own."""
    if is_ragged(old) and not plan.dim:
        found, row = [], 0
        for rows, piece in parts:
            found.append((rows, _over_ragged(piece, old[row : row + rows])))
            row += rows
        return found
    whole = concat_pieces(parts)
    rows = sum(count for count, _ in parts)
    stacked = isinstance(whole, StackedPiece)
    past = piece_of(old, ChunkPlan(plan.length, plan.size, plan.dim))
    stacked |= isinstance(past, StackedPiece)
    new, kept = (_entries(p, rows) if stacked else _payloads(p, rows) for p in (whole, past))
    merged = [past if value is NO_OBJECT else value for value, past in zip(new, kept)]
    return [(rows, StackedPiece(merged) if stacked else Each(merged))]


def _over_ragged(piece: Piece, old: Ragged) -> Piece:
    """A piece that lacks no row, ragged like those before where its objects allow it."""
    if piece is None:
        return RaggedPiece(old)
    if isinstance(piece, (RaggedPiece, Spilled, StackedPiece)) or not len(old):
        return piece
    values = _payloads(piece, len(old))
    if any(value is NO_OBJECT for value in values):
        values = [past if value is NO_OBJECT else value for value, past in zip(values, old._payloads() or ())]
    try:
        return RaggedPiece(ragged_rows(values, old.kind))
    except TypeError:
        return Each(values)


def without_gaps_over(pieces: Pieces, paths: Sequence[KeyPath], out: Data, rows: slice) -> Pieces:
    """The pieces of some rows, those of ragged entries with what the output holds in rows that have no object."""
    found = list(pieces)
    for number, (piece, path) in enumerate(zip(pieces, paths)):
        old = entry_at(out, path)
        if type(piece) is Each and is_ragged(old):
            found[number] = _over_ragged(piece, old[rows])
    return tuple(found)


def require_one_form(path: KeyPath, pieces: Sequence[tuple[int, Piece]]) -> None:
    """Raise OutputMismatch where ragged rows of numbers are of several dtypes or shapes."""
    row, first = 0, None
    for count, piece in pieces:
        form = form_of(piece.entry if isinstance(piece, RaggedPiece) else piece) if count else None
        first = first or form
        wrong = None if form is None else two_forms(path, form, first)
        if wrong is not None:
            raise OutputMismatch(f"{describe_rows(row, row + count)}: {wrong}")
        row += count


def two_forms(path: KeyPath, found: Form | None, others: Form | None) -> str | None:
    """Why rows of two forms (None: not ragged) cannot be in one entry; None where they can."""
    if found == others or not any(form is not None and form[0] == "tensor" for form in (found, others)):
        return None
    what, elsewhere = ("no ragged column" if form is None else describe_form(form) for form in (found, others))
    return (
        f"{key_name(path)} is {what}, and {elsewhere} elsewhere: results of all chunks must be of one dtype and shape."
    )


def unlike_forms(result: Data, forms: Forms) -> str | None:
    """Which ragged entry of a result cannot be beside rows of these forms; None where all can."""
    found = (two_forms(path, form_of(entry_at(result, path)), form) for path, form in forms.items())
    return next(filter(None, found), None)


def column_of(parts: list[tuple[int, Piece]], plan: ChunkPlan, size: torch.Size) -> Any:
    """A column of a collection of batch size `size` from its pieces."""
    whole = concat_pieces(without_gaps(parts))
    rest = torch.Size((*size[: plan.dim], *size[plan.dim + 1 :]))
    if isinstance(whole, One) and whole.entry is not None:
        return whole.entry._rebuild({}, size)
    if isinstance(whole, One) and not plan.unbind:
        return NonTensorData(whole.value, batch_size=size)
    rows = size[plan.dim]
    if isinstance(whole, StackedPiece):
        return NonTensorStack(*_filled(whole.entries, rest), stack_dim=plan.dim)
    if isinstance(whole, RaggedPiece) and not rest:
        return whole.entry
    return stack_of(_payloads(whole, rows), rest, plan.dim)


def stack_of(payloads: Sequence[Any], rest: Sequence[int] = (), dim: int = 0) -> NonTensorStack:
    """A column with one object a row; None where it is `NO_OBJECT`."""
    stack: NonTensorStack = NonTensorStack._of_objects(
        [None if value is NO_OBJECT else value for value in payloads], dim, torch.Size(rest)
    )
    return stack


def _filled(entries: list[Any], rest: torch.Size) -> list[Any]:
    """Rows of which some are stacks, all with the batch size `rest` in front; what is missing is None, or no object."""
    example = next(entry for entry in entries if entry is not NO_OBJECT and len(entry._batch_size) >= len(rest))
    blank = NonTensorData(None, batch_size=rest)
    if len(example._batch_size) > len(rest):
        blank = example[(slice(None),) * len(rest) + (slice(0, 0),)]
    return [_unplaced(blank if entry is NO_OBJECT else _expanded(entry, rest)) for entry in entries]


def _expanded(entry: Data, rest: torch.Size) -> Any:
    if isinstance(entry, NonTensorData) and not entry._batch_size and rest:
        return NonTensorData(entry._payload, batch_size=rest)
    return entry


def _unplaced(entry: Data) -> Any:
    """A row without the device and the names of the tree it came from: rows of many trees become one column.

    One chunk may answer with rows of a mapped dataset, which are on the CPU, and another with rows that are nowhere.
    """
    if entry._device is None and entry._names is None:
        return entry
    entry = entry.clone(False)
    entry._set_device(None)
    entry.names = None
    return entry


class ObjectColumn:
    """An entry that is no tensor, of which rows are wanted in any order.

    Args:
        entry: with its rows in dimension 0.
    """

    def __init__(self, entry: Data) -> None:
        self.entry = entry
        self._piece: Piece = None

    def __getstate__(self) -> Any:
        return self.entry

    def __setstate__(self, entry: Data) -> None:
        self.__init__(entry)  # type: ignore[misc]

    def take(self, rows: Sequence[int], missing: Sequence[bool] | None) -> Any:
        """These rows, as a column; None, or no objects, where `missing` is true.

        Args:
            rows: numbers of rows of the entry; those of missing ones do not matter.
            missing: a bool a row; None where all are there.
        """
        size = torch.Size((len(rows), *self.entry._batch_size[1:]))
        if isinstance(self.entry, NonTensorDataBase) and (
            missing is None or not any(missing) or not isinstance(self.entry, NonTensorData)
        ):
            return self.entry._rebuild({}, size)
        if self._piece is None:
            self._piece = piece_of(self.entry, ChunkPlan(0, 1))
        whole = self._piece
        count = int(self.entry._batch_size[0])
        stacked = isinstance(whole, StackedPiece)
        values = _entries(whole, count) if stacked else _payloads(whole, count)
        gaps = missing if missing is not None else [False] * len(rows)
        taken = [NO_OBJECT if gap else values[row] for row, gap in zip(rows, gaps)]
        if stacked and all(gaps):
            stacked = False
        piece = StackedPiece(taken) if stacked else Each(taken)
        return column_of([(len(rows), piece)], ChunkPlan(len(rows), max(len(rows), 1)), size)


# -- writing columns into an output that there is ------------------------------------------------------------------


def assign_objects(data: Data, columns: dict[KeyPath, Any]) -> None:
    """Give a collection, which may be locked, other objects in these entries.

    Where it is a memory-mapped dataset, or some entries of one, the metadata, which hold the objects, are replaced
    once. Entries that the folder has besides stay there, and those that it has not are not written.
    """
    for path, column in columns.items():
        parent = entry_at(data, path[:-1])
        old = parent._source[path[-1]]
        if column is old:
            continue
        if isinstance(old, NonTensorData) and not isinstance(column, NonTensorData):
            parent._source[path[-1]] = old._assign_rows((slice(None),) * len(old._batch_size), column)
        elif is_ragged(old) and form_of(old) == form_of(column):
            old._ragged().replace(old._rows, *column.flat())  # the files of a whole dataset are replaced below
            home = old._saved_by()
            if home is not None and home is not old:
                home._save()
        else:
            old.update_(column)
    root = mapped_root(data) if columns else None
    if root is not None and replaced_file(data) is None:  # else the folder is that of another dataset by now
        there = TensorDict.load_memmap(root)  # another tree of the same files: the caller's keeps its lock
        known = {path: entry_at(data, path) for path in columns if is_non_tensor(entry_at(there, path))}
        if known:
            with_objects(there, known).memmap_(root)


def check_ragged(path: KeyPath, wanted: Form | None, entry: Data) -> None:
    """Raise OutputMismatch for ragged rows, or `Spilled` ones, of another form than those of the output."""
    found = form_of(entry)
    if wanted is not None and found is not None and wanted != found:
        raise OutputMismatch(
            f"{key_name(path)}: rows of out are {describe_form(wanted)}, and rows of the result are "
            f"{describe_form(found)}: convert the result, or give out an entry of its type."
        )


def form_of(entry: Data) -> Form | None:
    """Kind, dtype and shape of ragged rows; None for other entries."""
    if isinstance(entry, Spilled):
        return entry[:3]
    if is_ragged(entry):
        return entry.kind, entry.dtype, tuple(entry.row_shape)
    return None


def objects_of(entry: Data) -> list[Any]:
    """The rows of a non-tensor entry: strings, bytes, JSON values, tensors or other objects, one a row."""
    if is_ragged(entry):
        return entry._ragged().objects(entry._rows)
    found = entry.tolist()
    return list(found) if isinstance(found, list) else [found] * len(entry)


def text_column(strings: Sequence[str | None]) -> Ragged:
    """Strings as a column, also of no rows or of None alone, which do not tell that they are text."""
    found: Ragged = Ragged.from_list(["", *strings])[1:]
    return found


def describe_form(form: Form) -> str:
    """What such rows are, in words."""
    return form_name(*form[:3])


def blank_like(rows: Any) -> Data:
    """As many rows without content: zeros, empty rows, and None for every object."""
    if isinstance(rows, torch.Tensor):
        return torch.zeros_like(rows)
    if is_ragged(rows):
        return blank_rows(rows, len(rows))
    if is_non_tensor(rows):
        return NonTensorData(None, batch_size=rows._batch_size)
    if is_dense(rows):
        source = {key: blank_like(value) for key, value in rows._source.items()}
        return rows._rebuild(source, rows._batch_size, rows._names)
    dim = rows.stack_dim
    return lazy_stack([blank_like(member) for member in rows.unbind(dim)], dim)
