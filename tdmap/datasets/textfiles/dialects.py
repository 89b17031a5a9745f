"""Parsers of blocks of CSV and JSON Lines, over Arrow's.

Numbers of rows in messages begin at 0 with the first row of the file, behind a header; those of lines at 1.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tdmap.datasets.arrow import TO_DO, require_utf8
from tdmap.datasets.extras import require_columns
from tdmap.datasets.jsontext import DEEPEST, is_large, parsed, too_deep
from tdmap.datasets.textfiles.blocks import LONGEST, Records, last_line, lines_in, may_begin_with_zeros
from tdmap.datasets.textfiles.kinds import exact_kind
from tensordict_lite.packages import compute, need, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

Types = Mapping[str, Any]
"""Arrow's types of columns by their names."""

Torn = dict[int, str]
"""Text of lines that are no rows, by their numbers in the file."""

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]

LONG = 1 << 22
"""Bytes of a cell that is text."""

NAN_OF_CSV = ("nan", "-nan")
"""What Arrow, NumPy and C write for NaN, which is a number. Other spellings, such as "NA", are nulls."""

_LEADING_ZERO = r"^\s*[+-]?0[0-9xX]"
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_OF_A_COLUMN = re.compile(r"In CSV column #(\d+): Row #(\d+): (.*)", re.DOTALL)
_OF_A_ROW = re.compile(r"CSV parse error: Row #(\d+): (.*)", re.DOTALL)
_OF_A_LINE = re.compile(r"(.*) in row (\d+)$", re.DOTALL)


class Misfit(Exception):
    """A block has other columns than those before, or values of other types."""


class Dialect(Protocol):
    """Parses one file, a block of whole rows at a time.

    Each method raises ValueError, with the row, and the column where there is one, for a block that no types fit.
    """

    as_text: bool
    """Whether values that have no other type in common are text."""

    def cut(self, data: bytes) -> int:
        """Where the last whole row ends."""

    def begin(self, block: bytes) -> bytes:
        """The first block without its header."""

    def require_end(self, block: bytes) -> None:
        """Raise ValueError if the last row of the last block of a file is torn, and a parser would take it."""

    def passed(self, block: bytes) -> None:
        """The block that was inferred or parsed last lies behind."""

    def infer(self, block: bytes, given: Types) -> dict[str, Any]:
        """The types of a block's columns, in their order; those in `given` are not looked at."""

    def parse(self, block: bytes, types: Types, given: Types) -> Any:
        """The block as a table with columns of these types.

        Raises:
            Misfit: it has others; not in columns of `given` alone.
        """

    def explain(self, block: bytes, types: Types) -> NoReturn:
        """Raise ValueError with the column and the row at which a block does not have these types."""

    def without_torn(self, block: bytes) -> tuple[bytes, Torn]:
        """A block without the lines that are no rows, whatever the types of columns, and these lines."""


class Csv:
    """Fields between delimiters, below a header."""

    as_text = True

    def __init__(self, path: str, delimiter: str, columns: Sequence[str] | None, nulls: str) -> None:
        self._csv = need("pyarrow.csv", "arrow", "reading CSV")
        self._path, self._delimiter, self._columns = path, delimiter, columns
        self._records = Records(delimiter)
        self._masked = nulls == "mask"
        self._names: list[str] = []
        self._counts = Counter[str]()
        self._row = self._rows = 0
        self._line = 1
        self._given: Types = {}

    def cut(self, data: bytes) -> int:
        end = self._records.last(data)
        if not end and len(data) >= LONGEST:
            self.require_end(data)  # names the line of a quote that has no end
        return end

    def begin(self, block: bytes) -> bytes:
        block = block.lstrip(b"\r\n")
        end = self._records.first(block)
        self.require_end(block[:end])
        try:
            self._names = self._read(block[:end], {}).schema.names if block else []
        except pyarrow().ArrowInvalid as error:
            raise ValueError(f"{self._path}: {error}") from None
        self._counts = Counter(self._names)
        require_columns(self._path, self._columns, self._names)
        self._line += block[:end].count(b"\n")
        return block[end:]

    def require_end(self, block: bytes) -> None:
        start = self._records.unclosed(block)  # Arrow adds all lines behind an open quote to its text
        if start is not None:
            line = self._line + block[:start].count(b"\n")
            raise ValueError(f"{self._path}: the row that begins in line {line} has a quote that is not closed")

    def passed(self, block: bytes) -> None:
        self._row += self._rows
        self._line += lines_in(block)

    def infer(self, block: bytes, given: Types) -> dict[str, Any]:
        require_columns(self._path, list(given), self._names)
        self._given = given
        pa, long = pyarrow(), {}
        if len(block) > 2 * LONG:  # Arrow quotes a value in the error of each type that it tries
            texts = self._read(block, dict.fromkeys(self._names, pa.binary()))
            lengths = {
                name: compute().max(compute().binary_length(texts[name])).as_py()
                for name in set(texts.schema.names)
                if self._counts[name] == 1
            }
            long = {name: given.get(name, pa.string()) for name, length in lengths.items() if (length or 0) > LONG}
        try:
            table = self._read(block, long)
        except pyarrow().ArrowInvalid as error:
            self._raise(error)
        found = {field.name: field.type for field in table.schema}
        for name, kind in found.items():
            if pyarrow().types.is_binary(kind) and name not in given:
                require_utf8(table[name], f"{self._path}: the column {name!r}", self._row)
        return found | self._in_full(table, block, given, is_known=False)

    def parse(self, block: bytes, types: Types, given: Types) -> Any:
        try:
            table = self._read(block, types)
        except pyarrow().ArrowInvalid as error:
            if _OF_A_COLUMN.match(str(error)) is None:
                self._raise(error)
            raise Misfit from error
        if any(types[name] != kind for name, kind in self._in_full(table, block, given, is_known=True).items()):
            raise Misfit
        return self._with_null_text(table, block) if self._masked else table

    def explain(self, block: bytes, types: Types) -> NoReturn:
        try:
            self._read(block, types)
        except pyarrow().ArrowInvalid as error:
            self._raise(error)
        raise AssertionError("a block that was refused is parsed")

    def without_torn(self, block: bytes) -> tuple[bytes, Torn]:
        found: list[bytes] = []

        def skip(row: Any) -> str:
            found.append(row.text.encode())
            return "skip"

        torn: Torn = {}
        unclosed = self._records.unclosed(block)
        if unclosed is not None:
            block, rest = block[:unclosed], block[unclosed:]
            torn[self._line + block.count(b"\n")] = rest.rstrip(b"\r\n").decode(errors="replace")
        text = dict.fromkeys(self._names, pyarrow().string())
        if block.strip():
            self._read(block, text, invalid_row=skip)
        at = 0
        for row in found:
            start = block.find(row, at)
            if start < 0:
                continue
            at = start + len(row)
            torn[self._line + block[:start].count(b"\n")] = row.decode(errors="replace")
            block = block[:start] + b"\n" * row.count(b"\n") + block[at:]
            at = start
        return block, torn

    def _raise(self, error: Exception) -> NoReturn:
        text = str(error)
        if (found := _OF_A_COLUMN.match(text)) is not None:
            what = f"the column {self._names[int(found[1])]!r}"
            text = f"{what} in row {self._row + int(found[2]) - 1}: {found[3]}"
            if "invalid UTF8" in found[3]:
                text = f"{what} has text in row {self._row + int(found[2]) - 1} that is not UTF-8: {TO_DO}."
        elif (found := _OF_A_ROW.match(text)) is not None:
            text = f"row {self._row + int(found[1]) - 1}: {found[2]}"
        raise ValueError(f"{self._path}: {text}") from None

    def _in_full(self, table: pa.Table, block: bytes, given: Types, is_known: bool) -> dict[str, Any]:
        """The types of columns of numbers and nulls that lack a part of their text."""
        pa, found = pyarrow(), dict[str, Any]()
        kinds = {
            field.name: field.type
            for field in table.schema
            if field.name not in given and self._counts[field.name] == 1
        }
        empty = [name for name, kind in kinds.items() if pa.types.is_null(kind)]
        if empty and b'"' in block:  # around what is null without quotes
            texts = self._read(block, dict.fromkeys(empty, pa.string()), empty, unquoted_nulls=True)
            found |= {name: pa.string() for name in empty if texts[name].null_count < len(texts)}
        numbers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
        large = [name for name in numbers if is_large(table[name])]
        looked = numbers if numbers and may_begin_with_zeros(block) else large
        if not looked:
            return found
        texts = self._read(block, dict.fromkeys(looked, pa.string()), looked)
        for name in looked:
            text = texts[name]
            if compute().any(compute().match_substring_regex(text, _LEADING_ZERO)).as_py():
                found[name] = pa.string()
            elif name in large:
                values = enumerate(map(_number, text.to_pylist(), table[name].to_pylist()), self._row)
                found[name] = exact_kind(kinds[name], values, f"{self._path}: the column {name!r}", is_known)
        return found

    def _with_null_text(self, table: pa.Table, block: bytes) -> Any:
        """A table whose empty text is null where it has no quotes."""
        pa = pyarrow()
        empty = [
            number
            for number, field in enumerate(table.schema)
            if (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
            and compute().any(compute().equal(compute().binary_length(table.column(number)), 0)).as_py()
            and self._counts[field.name] == 1
        ]
        if empty:
            types = {table.schema.names[number]: table.schema.types[number] for number in empty}
            again = self._read(block, types, list(types), nulls=[""], unquoted_nulls=True)
            for number, name in zip(empty, types):
                table = table.set_column(number, name, again[name])
        return table

    def _read(
        self,
        block: bytes,
        types: Types,
        columns: Sequence[str] | None = None,
        nulls: Sequence[str] | None = None,
        unquoted_nulls: bool = False,
        invalid_row: Any = None,
    ) -> Any:
        csv, pa = self._csv, pyarrow()
        columns = self._columns if columns is None else columns
        has_digits = any(pa.types.is_boolean(kind) for kind in self._given.values())
        nulls = nulls or [text for text in csv.ConvertOptions().null_values if text not in NAN_OF_CSV]
        table = csv.read_csv(
            pa.BufferReader(block),
            # Threads would leave the row out of messages.
            csv.ReadOptions(column_names=self._names or None, use_threads=False, block_size=len(block) + 16),
            csv.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=True,
                ignore_empty_lines=len(self._names) != 1,  # of one column, an empty line is a row
                invalid_row_handler=invalid_row,
            ),
            csv.ConvertOptions(
                # 0 and 1 are bools in a column that is declared so: beside true and false they are text.
                true_values=_TRUE + ["1"] * has_digits,
                false_values=_FALSE + ["0"] * has_digits,
                include_columns=list(columns) if columns is not None and self._names else None,
                null_values=nulls,
                strings_can_be_null=unquoted_nulls,
                quoted_strings_can_be_null=not unquoted_nulls,
                column_types=types,
            ),
        )
        self._rows = table.num_rows
        return table


def _number(text: str | None, value: object) -> Any:
    """A value of CSV; as a whole number where it is written as one."""
    return int(text) if value is not None and text is not None and _WHOLE.fullmatch(text) else value


def _with_advice(text: str) -> str:
    if "Column() changed" in text:
        return f"{text}: each line must be an object"
    if "changed from" in text:
        return f"{text}. A column has one type: change these values, or cast them in pandas and call from_pandas"
    return text


class JsonLines:
    """An object a line.

    Args:
        path: the file, for messages.
        columns: that are wanted; None: all.
        threads: parse pieces of a block on several threads.
    """

    as_text = False

    def __init__(self, path: str, columns: Sequence[str] | None, threads: bool = True) -> None:
        self._path, self._columns, self._threads = path, columns, threads
        self._row = self._rows = self._line = 0

    def cut(self, data: bytes) -> int:
        return last_line(data)

    def begin(self, block: bytes) -> bytes:
        return block

    def require_end(self, block: bytes) -> None:
        pass  # the parser refuses a torn line

    def passed(self, block: bytes) -> None:
        self._row += self._rows
        self._line += lines_in(block)

    def infer(self, block: bytes, given: Types) -> dict[str, Any]:
        self._require_shallow(block)
        try:
            table = self._read(block, {}, "infer")
        except pyarrow().ArrowInvalid as error:
            self._raise(error, block)
        return {field.name: field.type for field in table.schema} | self._in_full(table, block, given, is_known=False)

    def parse(self, block: bytes, types: Types, given: Types) -> Any:
        self._require_shallow(block)
        try:
            table = self._read(block, types, "error")
        except pyarrow().ArrowInvalid as error:
            raise Misfit from error
        self._in_full(table, block, given, is_known=True)
        return table

    def explain(self, block: bytes, types: Types) -> NoReturn:
        lines = [line for line in block.split(b"\n") if line.strip()]
        first, last = 0, len(lines)  # so many are right, and so many are not
        while last - first > 1:
            half = (first + last) // 2
            first, last = (first, half) if self._refusal(lines[first:half], types) else (half, last)
        name = next((name for name in types if self._refusal(lines[first:last], {name: types[name]})), None)
        text = _OF_A_LINE.sub(r"\1", str(self._refusal(lines[first:last], types)))
        told = "" if name is None else f"the column {name!r}, which is {types[name]} before or by types=: "
        raise ValueError(_with_advice(f"{self._path}: {told}{text} in {self._place(block, first)}"))

    def without_torn(self, block: bytes) -> tuple[bytes, Torn]:
        lines = block.split(b"\n")

        def among(first: int, last: int) -> list[int]:
            part = [line for line in lines[first:last] if line.strip()]
            if not part or self._refusal(part, {}) is None:
                return []
            if last - first == 1:
                return [first]
            half = (first + last) // 2
            return among(first, half) + among(half, last)

        numbers = among(0, len(lines))
        torn = {self._line + number + 1: lines[number].decode(errors="replace") for number in numbers}
        for number in numbers:
            lines[number] = b""
        return b"\n".join(lines), torn

    def _refusal(self, lines: list[bytes], types: Types) -> Exception | None:
        block = b"\n".join(lines)
        if too_deep(block) is not None:  # the parser would not survive it
            return ValueError(f"lists and objects are nested more than {DEEPEST} levels deep")
        try:
            self._read(block, types, "infer")
        except pyarrow().ArrowInvalid as error:
            refused: Exception = error
            return refused
        return None

    def _raise(self, error: Exception, block: bytes) -> NoReturn:
        found = _OF_A_LINE.match(str(error))
        text = str(error) if found is None else f"{found[1]} in {self._place(block, int(found[2]))}"
        raise ValueError(_with_advice(f"{self._path}: {text}")) from None

    def _place(self, block: bytes, number: int) -> str:
        lines = [line for line, text in enumerate(block.split(b"\n"), self._line + 1) if text.strip()]
        return f"row {self._row + number} (line {lines[min(number, len(lines) - 1)]})"

    def _require_shallow(self, block: bytes) -> None:
        number = too_deep(block)
        if number is not None:
            raise ValueError(
                f"{self._path}: lists and objects may be nested {DEEPEST} levels deep: "
                f"{self._place(block, number)} is deeper."
            )

    def _in_full(self, table: pa.Table, block: bytes, given: Types, is_known: bool) -> dict[str, Any]:
        """The types of columns whose whole numbers are rounded."""
        large = [
            field.name
            for field in table.schema
            if field.name not in given
            and (self._columns is None or field.name in self._columns)
            and is_large(table[field.name])
        ]
        if not large:
            return {}
        rows, text, at, decode = [], block.decode(errors="replace"), 0, json.JSONDecoder().raw_decode
        while start := re.compile(r"\S").search(text, at):
            value, at = decode(text, start.start())
            rows.append(value)
        return {
            name: exact_kind(
                table.schema.field(name).type,
                ((row, value.get(name)) for row, value in enumerate(rows, self._row)),
                f"{self._path}: the column {name!r}",
                is_known,
            )
            for name in large
        }

    def _read(self, block: bytes, types: Types, unexpected: str) -> Any:
        table = parsed(block, types, unexpected, self._threads)
        self._rows = table.num_rows
        return table


class JsonArray(JsonLines):
    """An array of objects, which is one block. Arguments as `JsonLines`."""

    def cut(self, data: bytes) -> int:
        return 0  # until the end of the file

    def begin(self, block: bytes) -> bytes:
        """The objects, one a line.

        Raises:
            ValueError: the file is not a JSON array of objects.
        """
        try:
            rows = json.loads(block)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{error}. An object a line is format='jsonl'.") from None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("it is not an array of objects: convert it with json and TensorDict.from_dict.")
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
