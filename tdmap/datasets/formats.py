"""Files of other tools as datasets, and back: Parquet, Arrow, CSV, JSON Lines, NumPy, HDF5, Zarr, tar files
of WebDataset's.

Parquet is read by workers, a row group at a time; the others are a stream that one process reads. Memory holds some
thousand rows, or a row group a worker. A path may be any URL that fsspec knows, where that is installed.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import itertools
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tdmap.data.store import META, OutputFolder, destination, local_path
from tdmap.datasets.arrays import read_hdf5, read_numpy, read_zarr, write_hdf5, write_numpy, write_zarr
from tdmap.datasets.arrow import VALID, columns_of, pyarrow, to_arrow
from tdmap.datasets.columns import Columns, write_columns
from tdmap.datasets.extras import need, opened, require_columns, require_list
from tdmap.datasets.parquet import parquet_batches, read_parquet
from tdmap.datasets.table import Table
from tdmap.datasets.tar import read_tar, write_tar
from tdmap.errors import UnreadableFile, add_note
from tdmap.memory.hidden import SHARDS
from tdmap.memory.scratch import temporary_folder
from tdmap.operation import operation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tdmap.execution import WorkerOptions


PART_BYTES = 64 << 20
"""Bytes of a table that are written at a time."""


CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Of CSV and JSON Lines, by the last ending of a name. Binary formats compress by themselves."""


CLOSE = 0.75
"""How much of an ending is that of a format, at least, to be taken for a misspelling of it."""

DAMAGE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)
"""What readers raise on files that are cut short or of another format; an OSError of the system's has a number."""

NAN_OF_CSV = ("nan", "-nan")
"""What Arrow, NumPy and C write for NaN, which is a number. Other spellings, such as "NA", are nulls."""


class Format(NamedTuple):
    """How files of one kind are read and written."""

    suffixes: tuple[str, ...]
    read: Callable[[str, Sequence[str] | None], Generator[Any, None, None]]
    """Yields tables of Arrow's, of the file and the columns that are wanted."""
    write: Callable[[str, Iterator[Any]], None]
    """Writes parts of one table; of Arrow's, where the format is one of Arrow's."""
    is_arrow: bool = False
    """Whether columns may have nulls, and parts may be tables of Arrow's."""


@operation
def read(
    source: str | os.PathLike[str] | Sequence[str],
    out: str | os.PathLike[str] | None = None,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    nulls: str = "raise",
    resume: bool = False,
    overwrite: bool = False,
    **options: Unpack[WorkerOptions],
) -> Table:
    """Read files of another tool into a memory-mapped dataset.

    Args:
        source: a file, several files with the same columns, a pattern such as `"data/*.parquet"`, a folder of them, or
            a URL that fsspec knows.
        out: folder for the dataset. None: into memory.
        format: `"parquet"`, `"arrow"`, `"csv"`, `"tsv"`, `"jsonl"`, `"numpy"`, `"hdf5"`, `"zarr"`,
            `"tar"`. Default: by the ending of the name.
        columns: only these. Default: all.
        nulls: `"raise"`, or `"mask"`: nulls become zeros and empty rows, and each column `x` gets one of bools beside
            it, `x.valid`.
        resume: Parquet into a folder: keep a journal there, so that an interrupted call goes on when it is made again.
        overwrite: the folder may hold a dataset, which the new one replaces when it is whole.
        **options: about workers, as `tdmap.map`; only Parquet is read by several.

    Returns:
        The table. Without columns of text or lists, `TensorDict.load_memmap(out)` opens it as well.

    Raises:
        ImportError: a package is missing; says what to install.
        FileNotFoundError: there is no such file.
        UnreadableFile: one is damaged, or of another format.
        TypeError: a column is no tensor and no list of numbers; names it.
        ValueError: the format is unknown, a column has nulls, one of `columns` is not there, or there are no rows.
    """
    place, files, columns = destination(out, overwrite), find_files(source), require_list(columns)
    name = format_of(files[0], format)
    if name == "parquet" and out is not None:
        return read_parquet(files, OutputFolder.of(place), columns, nulls, resume, options)
    if resume:
        raise ValueError("resume=True needs Parquet files, whose parts can be read alone, and out=a folder.")
    with contextlib.closing(batches_of(files, name, columns, nulls)) as stream:
        if out is None:
            parts = list(stream)
            if not parts:
                raise ValueError(f"{files[0]} has no rows.")
            return Table.cat(parts)
        store = OutputFolder.of(place)
        with store.claimed(f"read({files[0]})"):  # before anything is read
            first = next(stream, None)
            if first is None:
                raise ValueError(f"{files[0]} has no rows, so nothing tells what the dataset looks like.")
            write_columns(_chain(first, stream), sorted(first.jagged), store)
    return Table.open(out)


def _text_suffixes(*suffixes: str) -> tuple[str, ...]:
    """Endings of a format of text: as it is, and compressed."""
    return (*suffixes, *(suffix + codec for suffix in suffixes for codec in CODECS))


def _codec_of(path: str) -> str | None:
    """What a file of text is compressed with."""
    return CODECS.get(os.path.splitext(path)[1].lower())


def _chain(first: Columns, rest: Iterator[Columns]) -> Iterator[Columns]:
    yield first
    yield from rest


@operation
def write(
    data: Any,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    batch_rows: int | None = None,
    nulls: str | None = None,
) -> None:
    """Write a dataset as a file of another tool.

    Args:
        data: a `Table`, a TensorDict with rows (its strings and bytes are columns too), a `Jagged`, or a dict of
            columns. Dimensions behind the first are lists of a fixed size there.
        path: the file, or a URL that fsspec knows. One that is there is replaced when the new one is whole.
        format: as `read`. Default: by the ending of the name.
        columns: only these, and with `nulls` their masks. Default: all.
        batch_rows: rows that are written at a time (a row group of Parquet's). Default: about 64 MB of them.
        nulls: `"mask"`: values are nulls where the bools in `"x.valid"` are False, as `read` makes them of nulls.
            Default: these are columns like others.

    Raises:
        ImportError: a package is missing; says what to install.
        KeyError: there is no such column; lists those that there are.
        TypeError: a column has no type there; names it.
        ValueError: the format is unknown, or has no nulls; or there are no columns.

    Example:
        >>> import torch
        >>> table = Table.of({"x": torch.arange(2), "word": ["ant", "bee"]})
        >>> write(table, "words.csv", columns=["word"])
        >>> read("words.csv").keys()
        ['word']
    """
    path = local_path(path)
    table, name = Table.of(data), format_of(path, format)
    if columns is not None:
        table = _chosen(table, columns, nulls)
    if not table.keys():
        raise ValueError(f"there are no columns, so there is nothing that {path} would hold.")
    rows = batch_rows if batch_rows is not None else _rows_at_a_time(table)
    if nulls is not None and not FORMATS[name].is_arrow:
        having = ", ".join(other for other, form in FORMATS.items() if form.is_arrow)
        raise ValueError(f"{name} has no nulls, as {having} have: leave out nulls={nulls!r}, to write the masks.")
    FORMATS[name].write(path, _parts(table.batches(rows), nulls))


def _chosen(table: Table, columns: Sequence[str], nulls: str | None) -> Table:
    """Some columns, with the masks that say where they are null."""
    names = require_list(columns) or []
    masks = [name + VALID for name in names if nulls is not None and name + VALID in table.keys()]
    return table.select(*dict.fromkeys([*names, *masks]))


def _parts(batches: Iterator[Table], nulls: str | None) -> Iterator[Any]:
    return batches if nulls is None else (to_arrow(part, nulls=nulls) for part in batches)


def _rows_at_a_time(table: Table) -> int:
    """Rows that have about `PART_BYTES`; no fewer than one, and no more than a million."""
    size = int(sum(column.numel() * column.element_size() for column in table.rows.values(True, True)))
    size += sum(column.total * column.values[:1].nbytes for column in table.jagged.values())
    return max(min(PART_BYTES * len(table) // max(size, 1), 1 << 20), 1)


@operation
def convert(
    source: str | os.PathLike[str] | Sequence[str],
    target: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    nulls: str = "raise",
    overwrite: bool = False,
    **options: Unpack[WorkerOptions],
) -> int:
    """Turn a dataset or a file of any format into one of another, each by the ending of its name.

    Args:
        source: a folder of a dataset, or what `read` takes.
        target: a file to write; a name without an ending is the folder of a new dataset.
        columns: as `read`.
        nulls: as `read`; with `"mask"`, they are nulls again in a file of a format that has them (see `write`).
        overwrite: a folder `target` may hold a dataset, which the new one replaces when it is whole. Files are replaced
            in any case.
        **options: about workers, as `tdmap.map`.

    Returns:
        How many rows were written.

    Raises:
        ValueError: the ending of `target` is nearly that of a format.
    """
    place = local_path(target)
    if isinstance(source, (str, os.PathLike)):
        source = local_path(source)
    known = [suffix for form in FORMATS.values() for suffix in form.suffixes]
    to_folder = not place.lower().endswith(tuple(known))
    ending = os.path.splitext(place)[1].lower()
    close = difflib.get_close_matches(ending, known, 1, CLOSE) if to_folder and ending else []
    if close and not os.path.isdir(place):
        raise ValueError(
            f"{place}: files have no ending {ending!r}; did you mean {close[0]!r}? (To write a folder of that name, "
            "make it first.)"
        )
    has_nulls = not to_folder and FORMATS[format_of(place, None)].is_arrow
    kept = "mask" if nulls == "mask" and has_nulls else None
    if isinstance(source, (str, os.PathLike)) and os.path.exists(os.path.join(os.fspath(source), META)):
        table = Table.open(source)
        if not to_folder:
            write(table, place, columns=columns, nulls=kept)
            return len(table)
        if columns is not None:
            table = _chosen(table, columns, nulls if nulls == "mask" else None)
        table.save(place, overwrite=overwrite)
        return len(table)
    if to_folder:
        return len(read(source, place, columns=columns, nulls=nulls, overwrite=overwrite, **options))
    rows = 0

    def counted(stream: Iterator[Columns]) -> Iterator[Table]:
        nonlocal rows
        for batch in stream:
            table = Table(*batch)
            rows += len(table)
            yield table

    files = find_files(source)
    with contextlib.closing(batches_of(files, format_of(files[0], None), columns, nulls)) as stream:
        FORMATS[format_of(place, None)].write(place, _parts(counted(stream), kept))
    return rows


# -- names of files ----------------------------------------------------------------------------------------------------


def find_files(source: Any) -> list[str]:
    """The files that a source stands for, sorted.

    Raises:
        FileNotFoundError: there are none.
    """
    if not isinstance(source, (str, os.PathLike)):
        files = [local_path(path) for path in source]
        if not files:
            raise FileNotFoundError("there is no file in an empty list")
    else:
        text = local_path(source)
        if "://" in text:
            return [text]
        if os.path.isdir(text) and not text.rstrip("/").endswith(".zarr"):
            suffixes = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
            names = sorted(os.listdir(text))
            files = [os.path.join(text, name) for name in names if name.lower().endswith(suffixes)]
            if not files and SHARDS in names:
                raise FileNotFoundError(
                    f"{text} is a dataset of several folders: write(tdmap.open({text!r}), file) makes one file of it, "
                    f"and convert() one of each of its shards"
                )
            if not files:
                raise FileNotFoundError(f"there is no file in the folder {text} whose ending tells a format")
        else:
            files = sorted(glob.glob(text)) if glob.has_magic(text) and not os.path.exists(text) else [text]
    missing = [path for path in files if "://" not in path and not os.path.exists(path)]
    if missing or not files:
        raise FileNotFoundError(f"there is no file {missing[0] if missing else os.fspath(source)}")
    return files


def format_of(path: str, format: str | None) -> str:
    """The name of a format.

    Raises:
        ValueError: it is none that is known; lists those.
    """
    if format is not None:
        if format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))}: got {format!r}.")
        return format
    for name, form in FORMATS.items():
        if path.lower().endswith(form.suffixes):
            return name
    endings = ", ".join(suffix for form in FORMATS.values() for suffix in form.suffixes)
    raise ValueError(f"the name of {path} does not tell its format (it may end in {endings}): pass format=.")


@contextlib.contextmanager
def read_ahead(path: str) -> Iterator[Any]:
    """A file for readers of Arrow's that read ahead in threads of theirs, which must not need Python's lock.

    They would end the process when they are asked to stop while it ends. What is behind a URL is copied first. What is
    compressed, as its name says, is read as if it were not.
    """
    codec = _codec_of(path)
    with contextlib.ExitStack() as stack:
        if "://" in path:
            copy = f"{stack.enter_context(temporary_folder('tdmap-copy'))}/copy"
            with opened(path) as source, opened(copy, "wb") as target:
                shutil.copyfileobj(source, target)
            path = copy
        file = stack.enter_context(pyarrow().OSFile(path))
        yield file if codec is None else stack.enter_context(pyarrow().CompressedInputStream(file, codec))


@contextlib.contextmanager
def _text_file(path: str) -> Iterator[Any]:
    """A file of text that is written, compressed as its name says."""
    codec = _codec_of(path)
    with opened(path, "wb") as file:
        if codec is None:
            yield file
            return
        with pyarrow().CompressedOutputStream(file, codec) as packed:
            yield packed


def batches_of(
    files: Sequence[str], format: str, columns: Sequence[str] | None, nulls: str
) -> Generator[Columns, None, None]:
    """The columns of files, some thousand rows at a time."""
    start, empty = 0, None
    for path in files:
        with contextlib.closing(_tables_of(path, format, columns)) as tables:
            for table in tables:
                if table.num_rows:
                    yield columns_of(table, nulls, start)
                    start += table.num_rows
                else:
                    empty = table
    if not start and empty is not None and not any(pyarrow().types.is_null(field.type) for field in empty.schema):
        yield columns_of(empty, nulls)  # the types are known: a dataset without rows


def _tables_of(path: str, format: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    """The tables of a file; errors of its reader, which may come from any package, say which file it is.

    Raises:
        UnreadableFile: the file is damaged, or of another format.
    """
    try:
        with contextlib.closing(FORMATS[format].read(path, columns)) as tables:
            yield from tables
    except Exception as error:
        if path not in str(error):
            if isinstance(error, DAMAGE) and getattr(error, "errno", None) is None:
                raise UnreadableFile(f"{path} cannot be read as {format}: {error}") from error
            add_note(error, f"while {path} was read as {format}")
        raise


# -- Parquet ---------------------------------------------------------------------------------------------------------


def _write_parquet(path: str, parts: Iterator[Table]) -> None:
    parquet = need("pyarrow.parquet", "arrow", "writing Parquet")
    _write_with(path, parts, lambda file, schema: parquet.ParquetWriter(file, schema))


def _write_with(path: str, parts: Iterator[Table], make: Callable[[Any, Any], Any]) -> None:
    writer = None
    with _text_file(path) as file, contextlib.ExitStack() as stack:
        for part in parts:
            table = to_arrow(part)
            if writer is None:
                writer = stack.enter_context(make(file, table.schema))
            writer.write_table(table)


# -- Arrow, CSV, JSON Lines --------------------------------------------------------------------------------------------


def _arrow_batches(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    ipc = need("pyarrow.ipc", "arrow", "reading Arrow files")
    pa = pyarrow()
    with opened(path) as source:
        head = source.read(6)
        source.seek(0)
        if head == b"ARROW1":
            reader = ipc.open_file(source)
            found = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            reader = ipc.open_stream(source)
            found = iter(reader)
        require_columns(path, columns, reader.schema.names)
        tables = (pa.Table.from_batches([batch]) for batch in found)
        for table in itertools.chain([reader.schema.empty_table()], tables):
            yield table if columns is None else table.select(list(columns))


def _write_arrow(path: str, parts: Iterator[Table]) -> None:
    ipc = need("pyarrow.ipc", "arrow", "writing Arrow files")
    _write_with(path, parts, lambda file, schema: ipc.new_file(file, schema))


def _csv_batches(delimiter: str) -> Callable[[str, Sequence[str] | None], Generator[Any, None, None]]:
    def batches(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
        csv = need("pyarrow.csv", "arrow", "reading CSV")
        pa = pyarrow()

        def tables(types: dict[str, Any]) -> Generator[Any, None, None]:
            options = csv.ConvertOptions(
                include_columns=list(columns) if columns is not None else None,
                null_values=[text for text in csv.ConvertOptions().null_values if text not in NAN_OF_CSV],
                column_types=types,
            )
            parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            with read_ahead(path) as source:
                try:
                    with csv.open_csv(source, parse_options=parse, convert_options=options) as reader:  # it reads ahead
                        for batch in reader:
                            yield pa.Table.from_batches([batch])
                except pa.ArrowKeyError:  # the reader tells the names of the columns as little as it does here
                    with read_ahead(path) as again, csv.open_csv(again, parse_options=parse) as reader:
                        require_columns(path, columns, reader.schema.names)
                    raise
                except pa.ArrowInvalid as error:
                    raise ValueError(f"{path}: {error}") from None

        return _with_large_numbers(tables)

    return batches


def _with_large_numbers(tables: Callable[[dict[str, Any]], Generator[Any, None, None]]) -> Generator[Any, None, None]:
    """Tables of text, with whole numbers of 2^63 and more as uint64: Arrow takes them for floats, which lack digits.

    Args:
        tables: reads the text from its beginning, with types for some columns. As everywhere, the first one says what
            the types are.
    """
    stream = tables({})
    first = next(stream, None)
    large = [] if first is None else _large_numbers(first)
    if first is not None and large:
        names = first.schema.names
        stream.close()
        try:
            # The reader of JSON begins with the columns whose types it is told.
            stream = (table.select(names) for table in tables(dict.fromkeys(large, pyarrow().uint64())))
            first = next(stream, None)
        except ValueError:  # they are written as floats are
            stream = tables({})
            first = next(stream, None)
    with contextlib.closing(stream):
        if first is not None:
            yield first
            yield from stream


def _large_numbers(table: Any) -> list[str]:
    """Columns of floats that are uint64, as far as their values tell; not where a name stands for two columns."""
    found = []
    for field, column in zip(table.schema, table.columns):
        if pyarrow().types.is_float64(field.type) and table.schema.names.count(field.name) == 1:
            values = column.drop_null().to_numpy()
            if len(values) and 2.0**63 <= values.max() <= 2.0**64 and not values.min() < 0:
                if np.array_equal(values, np.floor(values)):
                    found.append(field.name)
    return found


def _write_csv(delimiter: str) -> Callable[[str, Iterator[Table]], None]:
    def write_parts(path: str, parts: Iterator[Table]) -> None:
        csv = need("pyarrow.csv", "arrow", "writing CSV")
        pa = pyarrow()

        def make(file: Any, schema: Any) -> Any:
            for field in schema:
                if pa.types.is_nested(field.type) or pa.types.is_large_binary(field.type):
                    raise TypeError(f"the column {field.name!r} is {field.type}, which CSV does not have: use Parquet.")
            return csv.CSVWriter(file, schema, write_options=csv.WriteOptions(delimiter=delimiter))

        _write_with(path, parts, make)

    return write_parts


def _json_batches(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    pa = pyarrow()
    reader = need("pyarrow.json", "arrow", "reading JSON Lines")

    def tables(types: dict[str, Any]) -> Generator[Any, None, None]:
        parse = reader.ParseOptions(explicit_schema=pa.schema(list(types.items())) if types else None)
        with read_ahead(path) as source:
            try:
                with reader.open_json(source, parse_options=parse) as found:  # it reads ahead
                    for batch in found:
                        table = pa.Table.from_batches([batch])
                        require_columns(path, columns, table.column_names)
                        yield table if columns is None else table.select(list(columns))
            except pa.ArrowInvalid as error:
                raise ValueError(f"{path}: {error}") from None

    return _with_large_numbers(tables)


def _write_json(path: str, parts: Iterator[Table]) -> None:
    with _text_file(path) as file:
        for part in parts:
            for row in _with_times_as_text(to_arrow(part)).to_pylist():
                try:
                    file.write(json.dumps(row).encode() + b"\n")
                except TypeError as error:
                    raise TypeError(f"a row cannot be JSON ({error}): use Parquet.") from None


def _with_times_as_text(table: Any) -> Any:
    """A table whose times are as CSV has them: JSON has none."""
    pa = pyarrow()
    for number, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(pa.string()))
    return table


FORMATS: dict[str, Format] = {
    "parquet": Format((".parquet", ".pq"), parquet_batches, _write_parquet, is_arrow=True),
    "arrow": Format((".arrow", ".feather", ".ipc"), _arrow_batches, _write_arrow, is_arrow=True),
    "csv": Format(_text_suffixes(".csv"), _csv_batches(","), _write_csv(","), is_arrow=True),
    "tsv": Format(_text_suffixes(".tsv"), _csv_batches("\t"), _write_csv("\t"), is_arrow=True),
    "jsonl": Format(_text_suffixes(".jsonl", ".ndjson"), _json_batches, _write_json, is_arrow=True),
    "numpy": Format((".npz", ".npy"), read_numpy, write_numpy),
    "hdf5": Format((".h5", ".hdf5"), read_hdf5, write_hdf5),
    "zarr": Format((".zarr",), read_zarr, write_zarr),
    "tar": Format(
        (".tar", ".tar.gz", ".tgz"),
        lambda path, columns: read_tar(path, columns, opened),
        lambda path, parts: write_tar(path, parts, opened),
    ),
}
