"""Files of other tools as datasets, and back: Parquet, Arrow, CSV, JSON Lines, NumPy, HDF5, Zarr, tar files
of WebDataset's.

Workers read Parquet, a row group at a time, and JSON Lines, some MB at a time; the others are a stream that one process
reads. Memory holds some thousand rows, or a part of a row group a worker. A path may be any URL that fsspec knows,
where that is installed.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from tdmap.data.entries import require_list
from tdmap.data.kinds import Data, Dataset, concatenated, tensors_of
from tdmap.data.objects import ragged_tensors
from tdmap.data.sizes import row_bytes_of
from tdmap.datasets.arrays import read_hdf5, read_numpy, read_zarr, write_hdf5, write_numpy, write_zarr
from tdmap.datasets.arrow import (
    AsArrow,
    NestedTypes,
    attempt,
    chosen_fields,
    empty_table,
    naming,
    nested_in,
    part_arrays,
    part_to_arrow,
    rows_of,
    with_values,
)
from tdmap.datasets.columns import chosen, columns_in, joined, kinds_in, require_same, rows_in
from tdmap.datasets.extras import opened, require_columns, require_file
from tdmap.datasets.jsontext import join_fields, joined_texts, json_texts, text_bytes
from tdmap.datasets.parquet import parquet_batches, read_parquet
from tdmap.datasets.tar import read_tar
from tdmap.datasets.textfiles.blocks import CODECS, codec_of
from tdmap.datasets.textfiles.dialects import Csv, Dialect, JsonArray, JsonLines
from tdmap.datasets.textfiles.ranges import NotAlone, can_be_cut, read_ranges
from tdmap.datasets.textfiles.reading import TextTypes
from tdmap.errors import UnreadableFile, add_note
from tdmap.execution import Execution
from tdmap.frames import warn_user
from tdmap.memory.hidden import SHARDS, printable
from tdmap.memory.residency import Residency
from tdmap.output.append import append_stream
from tdmap.output.output import Output
from tdmap.output.outputfolder import META, OutputFolder, destination
from tdmap.run.context import Context
from tdmap.run.operation import entry_point
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.packages import need, pyarrow
from tensordict_lite.paths import is_url, local_path

if TYPE_CHECKING:
    from typing import Unpack

    import pyarrow as pa

    from tdmap.execution import WorkerOptions


PART_BYTES = 64 << 20
"""Bytes of a table that are written at a time."""


MOST_OF_PARQUET = 1 << 31
"""Bytes of a value that Parquet does not hold."""


CLOSE = 0.75
"""How much of an ending is that of a format, at least, to be taken for a misspelling of it."""

_NULL: dict[str, None] = {"__HIVE_DEFAULT_PARTITION__": None}
"""The value of a folder `key=value` that is a null."""

DAMAGE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)
"""What readers raise on files that are cut short or of another format; an OSError of the system's has a number."""


class Format(NamedTuple):
    """How files of one kind are read and written."""

    suffixes: tuple[str, ...]
    read: Callable[[str, Sequence[str] | None], Generator[Any, None, None]] | None
    """Yields tables of Arrow's, or a `Part` each, of the file and the columns that are wanted."""
    write: Callable[[str, Iterator[Any]], None]
    """Writes parts of one table."""
    part: Callable[[Any, str | None, int, AsArrow], Any] | None = None
    """Makes a part of some rows, `nulls`, the number of the first row, and what makes arrays of JSON values. None: the
    rows are the part, and columns have no nulls."""
    dialect: Callable[[str, Sequence[str] | None, str], Dialect] | None = None
    """The parser of text, which does not say its types, of a file, the columns that are wanted, and `nulls`."""


@entry_point
def read(
    source: str | os.PathLike[str] | Sequence[str],
    out: str | os.PathLike[str] | None = None,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    nulls: str = "raise",
    types: Mapping[str, Any] | None = None,
    on_error: str | Callable[[SkippedLine], Any] = "raise",
    resume: bool = False,
    overwrite: bool = False,
    **options: Unpack[WorkerOptions],
) -> TensorDict:
    """Read files of another tool into a memory-mapped dataset.

    Args:
        source: a file, a list of files with the same columns, a pattern such as `"data/*.parquet"`, or a folder of
            files; each may be a URL that fsspec supports. Names that begin with a dot or `_` are left out. Folders
            `key=value` below a folder or a pattern become a column.
        out: folder for the dataset. None reads into memory.
        format: `"parquet"`, `"arrow"`, `"csv"`, `"tsv"`, `"jsonl"`, `"json"` (an array of objects), `"numpy"`,
            `"hdf5"`, `"zarr"`, `"tar"`. Default: by the ending of the name.
        columns: only these. Default: all.
        nulls: `"raise"`, or `"mask"`: nulls become zeros or empty rows, and each column `x` gets a bool column
            `x.valid`.
        types: types of CSV and JSON Lines columns by name: a torch dtype, an Arrow type or its name, `str` or `bytes`.
            Default: the type that holds all values of the column exactly.
        on_error: treatment of CSV and JSON Lines lines that cannot be parsed: `"raise"`; `"skip"` leaves them out and
            warns (`SkippedLines`); a function leaves them out and takes each `SkippedLine`. A value that does not fit
            the type of its column always raises.
        resume: for Parquet with `out`: keep a log, so that the same call resumes after an interruption.
        overwrite: replace the dataset in the folder when the new one is complete.
        **options: options about workers, as in `tdmap.map`. Workers read Parquet and local, uncompressed JSON Lines
            into a folder; one process reads other files.

    Returns:
        The dataset. Text, bytes and lists are `tensordict_lite.Ragged` entries, structs and groups nested collections.
        `arrow_types` names the integer columns that are dates and times.

    Raises:
        ImportError: a package is missing; says what to install.
        FileNotFoundError: a file does not exist.
        UnreadableFile: a file is damaged, or of another format.
        TypeError: a column has an unsupported type; names it.
        ValueError: the format or one of `columns` is unknown, a column has nulls, a value does not fit its type, or the
            files have no rows.

    Example:
        >>> import torch
        >>> with open("zip.csv", "w") as file:
        ...     _ = file.write("code,n\\n00501,1\\n02134,2\\n")
        >>> data = read("zip.csv", types={"n": torch.float32})
        >>> list(data["code"]), data["n"]
        (['00501', '02134'], tensor([1., 2.]))
    """
    store, files, columns = destination(out, overwrite), find_files(source), require_list(columns)
    first = files.paths[0]
    name = format_of(first, format)
    text = _text_types(name, files.columns_of(columns), types, on_error)
    if name == "parquet" and store is not None:
        return read_parquet(*files, store, columns, files.columns_of(columns), nulls, resume, options)
    if store is not None and not resume and not files.values[0] and can_be_cut(files.paths, name):
        with contextlib.suppress(NotAlone):
            return read_ranges(files.paths, store, columns, nulls, text, options)
    if resume:
        raise ValueError("resume=True needs Parquet files, and a folder as out=.")

    def stream() -> contextlib.closing[Generator[TensorDict, None, None]]:
        return contextlib.closing(batches_of(files, name, columns, nulls, text))

    if store is None:

        def parts() -> list[TensorDict]:
            with stream() as batches:
                return list(batches)

        found = concatenated(attempt(parts))
        _tell_skipped(text, on_error)
        return found

    def into_folder() -> Any:
        with stream() as batches:
            return append_stream(Context(f"read({first})", Execution(0), Output(store, None)), batches)

    with store.claimed(f"read({first})"):  # before anything is read
        found = attempt(into_folder)
    _tell_skipped(text, on_error)
    return found  # type: ignore[no-any-return]


class SkippedLine(NamedTuple):
    """A line that cannot be parsed."""

    file: str
    line: int
    """Its number, from 1."""
    text: str


class SkippedLines(UserWarning):
    """Lines of text files could not be parsed and were skipped.

    Attributes:
        lines: each a `SkippedLine`.
    """

    def __init__(self, lines: list[SkippedLine]) -> None:
        super().__init__(lines)
        self.lines = lines

    def __str__(self) -> str:
        shown = "".join(f"\n  {one.file}, line {one.line}: {printable(one.text, 100)}" for one in self.lines[:5])
        more = f"\n  and {len(self.lines) - 5:,} more" if len(self.lines) > 5 else ""
        return f"{len(self.lines):,} lines cannot be parsed and were left out:{shown}{more}"


def _tell_skipped(text: TextTypes, on_error: Any) -> None:
    lines = [SkippedLine(path, line, torn) for (path, line), torn in sorted(text.torn.items())]
    if callable(on_error):
        for one in lines:
            on_error(one)
    elif lines:
        warn_user(SkippedLines(lines))


def _text_types(
    format: str, columns: Sequence[str] | None, types: Mapping[str, Any] | None, on_error: Any
) -> TextTypes:
    if on_error != "raise" and (FORMATS[format].dialect is None or not (on_error == "skip" or callable(on_error))):
        raise ValueError(
            f"on_error={on_error!r}: 'skip' and a function are for lines of CSV and JSON Lines, and this is {format}."
        )
    if types and FORMATS[format].dialect is None:
        having = ", ".join(name for name, form in FORMATS.items() if form.dialect is not None)
        raise ValueError(f"types= applies to columns of {having}: files of {format} store their types.")
    return TextTypes(columns, types, on_error != "raise")


def _text_suffixes(*suffixes: str) -> tuple[str, ...]:
    return (*suffixes, *(suffix + codec for suffix in suffixes for codec in CODECS))


@entry_point
def write(
    data: Dataset[Any],
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    batch_rows: int | None = None,
    nulls: str | None = None,
) -> None:
    """Write a dataset as a file of another tool.

    Args:
        data: a TensorDict with rows, any other collection with rows, a dict of columns, or a `Ragged`. Further
            dimensions become lists of a fixed size, nested collections structs or groups.
        path: the file, or a URL that fsspec supports. An existing file is replaced when the new one is complete.
        format: as `read`. Default: by the ending of the name.
        columns: columns to write, with their masks if `nulls`. Default: all.
        batch_rows: rows that are written at once (a row group of Parquet). Default: about 64 MB.
        nulls: `"mask"` writes nulls for values that are False in the bool column `"x.valid"`. Default: write such
            columns like others.

    Raises:
        ImportError: a package is missing; says what to install.
        KeyError: unknown column; lists the columns.
        TypeError: the format does not support a column; names it.
        ValueError: the format is unknown, only read (`"tar"`) or has no nulls, or `data` has no columns.

    Example:
        >>> import torch
        >>> data = TensorDict({"x": torch.arange(2), "word": ["ant", "bee"]}, [2])
        >>> write(data, "words.csv", columns=["word"])
        >>> list(read("words.csv")["word"])
        ['ant', 'bee']
    """
    path = local_path(path)
    rows, name = rows_in(data), format_of(path, format)
    if columns is not None:
        rows = chosen(rows, require_list(columns) or [], nulls is not None)
    if not len(list(rows.keys())):
        raise ValueError(f"the data have no columns to write to {path}.")
    size = batch_rows if batch_rows is not None else _rows_at_a_time(rows)
    form = FORMATS[name]
    if nulls is not None and form.part is None:
        having = ", ".join(other for other, form in FORMATS.items() if form.part is not None)
        raise ValueError(f"{name} has no nulls, as {having} have: leave out nulls={nulls!r}, to write the masks.")
    types = NestedTypes()
    with naming(path):
        attempt(lambda: form.write(path, _parts(path, _batches(rows, size), form, nulls, types)))


def _batches(rows: Data, size: int) -> Iterator[Any]:
    residency = Residency()
    residency.watch([*tensors_of(rows), *ragged_tensors(rows)])
    for start in range(0, len(rows) or 1, size):
        yield rows[start : start + size]
        residency.trim()


def _parts(path: str, batches: Iterator[Any], format: Format, nulls: str | None, types: NestedTypes) -> Iterator[Any]:
    """Parts of a dataset as a format takes them. Errors name the file.

    Raises:
        TypesGrew: begin anew with the same `types`, which hold all rows by now.
    """
    start, types.grew = 0, False
    for rows in batches:
        with naming(path):
            part = _without_gaps(rows, start) if format.part is None else format.part(rows, nulls, start, types)
        if not types.grew:
            yield part
        start += len(rows)
    types.finish()


def _without_gaps(rows: Data, start: int) -> Any:
    """Rows for a format of arrays or files, which has neither nulls nor JSON values.

    Raises:
        TypeError, ValueError: a column has some; names it.
    """
    for path, column in columns_in(rows).items():
        if not isinstance(column, Ragged):
            continue
        what = f"the column {joined(path)!r}"
        if column.kind == "json":
            raise TypeError(f"{what} holds JSON values, which this format does not support: use Parquet or JSON Lines.")
        if column.has_none:
            row = start + column.tolist().index(None)
            raise ValueError(f"{what} is None in row {row}, which this format does not support: fill it first.")
    return rows


def _rows_at_a_time(rows: Data) -> int:
    """Rows that have about `PART_BYTES`; no fewer than one, and no more than a million."""
    return max(min(PART_BYTES // max(row_bytes_of(rows, len(rows)), 1), 1 << 20), 1)


@entry_point
def convert(
    source: str | os.PathLike[str] | Sequence[str],
    target: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    nulls: str = "raise",
    types: Mapping[str, Any] | None = None,
    on_error: str | Callable[[SkippedLine], Any] = "raise",
    overwrite: bool = False,
    **options: Unpack[WorkerOptions],
) -> int:
    """Convert a dataset or file to another format. Formats are chosen by the endings of names.

    Args:
        source: the folder of a dataset, or any source of `read`.
        target: a file to write; a name without an ending is the folder of a new dataset.
        columns: as `read`.
        nulls: as `read`; `"mask"` writes masked values as nulls again if the format has them (see `write`).
        types, on_error: as `read`.
        overwrite: replace the dataset in the folder `target` when the new one is complete. Files are always replaced.
        **options: about workers, as `tdmap.map`.

    Returns:
        The number of rows written.

    Raises:
        ValueError: the ending of `target` is nearly that of a format, or the format is only read.
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
    has_nulls = not to_folder and FORMATS[format_of(place, None)].part is not None
    kept = "mask" if nulls == "mask" and has_nulls else None
    if isinstance(source, (str, os.PathLike)) and os.path.exists(os.path.join(os.fspath(source), META)):
        if types or on_error != "raise":
            given = f"types={types!r}" if types else f"on_error={on_error!r}"
            raise ValueError(f"{given} is for lines of CSV and JSON Lines, and {os.fspath(source)} is a dataset.")
        data = TensorDict.load_memmap(source)
        if columns is not None:
            data = chosen(data, require_list(columns) or [], nulls == "mask")
        if not to_folder:
            write(data, place, nulls=kept)
        else:
            OutputFolder(place, overwrite).save(data)
        return len(data)
    into: Any = {"columns": columns, "nulls": nulls, "types": types, "on_error": on_error, **options}
    if to_folder:
        return len(read(source, place, overwrite=overwrite, **into))
    rows = 0

    def counted(stream: Iterator[TensorDict]) -> Iterator[TensorDict]:
        nonlocal rows
        for batch in stream:
            rows += len(batch)
            yield batch

    files, columns = find_files(source), require_list(columns)
    name, form = format_of(files.paths[0], None), FORMATS[format_of(place, None)]
    text, nested = _text_types(name, files.columns_of(columns), types, on_error), NestedTypes()

    def into_file() -> None:
        nonlocal rows
        rows = 0
        with contextlib.closing(batches_of(files, name, columns, nulls, text)) as stream:
            form.write(place, _parts(place, counted(stream), form, kept, nested))

    attempt(into_file)
    _tell_skipped(text, on_error)
    return rows


# -- names of files ----------------------------------------------------------------------------------------------------


class SourceFiles(NamedTuple):
    """The files of a source."""

    paths: list[str]
    values: list[dict[str, Any]]
    """Of each file, what the names of its folders `key=value` tell: scalars of Arrow's by the names of columns."""

    def columns_of(self, columns: list[str] | None) -> list[str] | None:
        """The columns that files are asked for; None: all."""
        return None if columns is None else [name for name in columns if name not in self.values[0]] or None


def find_files(source: Any) -> SourceFiles:
    """The files that a source stands for, sorted.

    Raises:
        FileNotFoundError: there are none.
        ValueError: one is a pipe or a device, or some files are in folders `key=value` and others are not.
    """
    if not isinstance(source, (str, os.PathLike)):
        paths, fixed = [local_path(path) for path in source], None
        if not paths:
            raise FileNotFoundError("the list of files is empty")
    else:
        paths, fixed = _found(local_path(source))
    missing = [path for path in paths if not is_url(path) and not os.path.exists(path)]
    if missing or not paths:
        raise FileNotFoundError(f"no such file: {missing[0] if missing else os.fspath(source)}")
    for path in paths:
        require_file(path)
    return SourceFiles(paths, [{} for _ in paths] if fixed is None else _partitions(paths, fixed))


def _found(source: str) -> tuple[list[str], str | None]:
    """The files that one string stands for, and what begins their names; None: it is the name of a file."""
    if glob.has_magic(source) and (is_url(source) or not os.path.exists(source)):
        fixed = os.path.dirname(source[: next(at for at, letter in enumerate(source) if letter in "*?[")])
        if is_url(source):
            store, path, url = _store(source)
            names = list(map(url, store.glob(path)))
        else:
            names = glob.glob(source)
        asked = os.path.basename(source.rstrip("/"))[:1]
        names = [name for name in names if not _is_hidden(name) or asked == os.path.basename(name)[0]]
        return [path for name in sorted(names) for path in (_tables_in(name) if _is_folder(name) else [name])], fixed
    if not _is_folder(source):
        return [source], None
    paths = _tables_in(source)
    if not paths and any(name == SHARDS for name, _, _ in _listing(source)):
        raise FileNotFoundError(
            f"{source} is a sharded dataset: write(tdmap.open({source!r}), file) writes it to one file, "
            "and convert() converts each of its shards"
        )
    if not paths:
        raise FileNotFoundError(
            f"the folder {source} has no file with the ending of a known format, but for hidden ones (._)"
        )
    return paths, source


def _is_hidden(path: str) -> bool:
    """Whether other tools keep notes of their own in a file: `._a.csv` of macOS, `_metadata` of Spark."""
    return os.path.basename(path).startswith((".", "_"))


def _is_folder(path: str) -> bool:
    if path.rstrip("/").endswith(".zarr"):
        return False
    if not is_url(path):
        return os.path.isdir(path)
    if path.startswith(("http://", "https://")) and not path.endswith("/"):
        return False  # to ask would load the file
    store, below, _ = _store(path)
    return bool(store.isdir(below))


def _tables_in(folder: str) -> list[str]:
    """The files of tables in a folder, and in the folders `key=value` below it; `.json` is mostly metadata there."""
    suffixes = tuple(suffix for name, form in FORMATS.items() if name != "json" for suffix in form.suffixes)
    found = []
    for name, path, is_folder in sorted(_listing(folder)):
        if _is_hidden(name):
            continue
        if not is_folder or name.endswith(".zarr"):
            found += [path] if name.lower().endswith(suffixes) else []
        elif "=" in name:
            found += _tables_in(path)
    return found


def _listing(folder: str) -> list[tuple[str, str, bool]]:
    """Name, path, and whether it is a folder, of all that a folder contains."""
    if not is_url(folder):
        with os.scandir(folder) as entries:
            return [(entry.name, entry.path, entry.is_dir()) for entry in entries]
    store, path, url = _store(folder)
    found = ((info["name"].rstrip("/"), info["type"] == "directory") for info in store.ls(path, detail=True))
    return [(os.path.basename(name), url(name), is_folder) for name, is_folder in found if name != path.rstrip("/")]


def _store(url: str) -> tuple[Any, str, Callable[[str], str]]:
    """The file system of a URL, the path there, and what makes URLs of such paths."""
    store, path = need("fsspec.core", "arrow", "reading and writing URLs").url_to_fs(url)
    links = url.split("::")  # as in simplecache::s3://bucket/x
    at = next(number for number, link in enumerate(links) if "://" in link)
    link, below = links[at].rstrip("/"), path.strip("/")
    head = link.removesuffix(below) if link.endswith(below) else link.partition("://")[0] + "://"
    return store, path, lambda name: "::".join([*links[:at], head + name.lstrip("/"), *links[at + 1 :]])


def _partitions(paths: list[str], fixed: str) -> list[dict[str, Any]]:
    """The values that the folders `key=value` of files tell, as whole numbers where all of a key are.

    Args:
        paths: the files.
        fixed: what begins all of their names, without such folders.

    Raises:
        ValueError: files have different keys.
    """
    folders = [[part.partition("=") for part in path[len(fixed) :].split("/")[:-1] if "=" in part] for path in paths]
    found = [{key: _NULL.get(value, unquote(value)) for key, _, value in parts} for parts in folders]
    other = next((number for number, values in enumerate(found) if list(values) != list(found[0])), None)
    if other is not None:
        raise ValueError(
            f"{paths[0]} is in folders of the keys {list(found[0])}, and {paths[other]} of {list(found[other])}: "
            "all files of a table need the same ones. Read them one by one, or pass a pattern."
        )
    whole = {
        key
        for key in found[0]
        if {row[key] for row in found} != {None}
        and all(row[key] is None or re.fullmatch("-?[0-9]{1,18}", str(row[key])) for row in found)
    }
    kinds = {True: pyarrow().int64(), False: pyarrow().string()}
    return [
        {
            key: pyarrow().scalar(int(value) if key in whole and value is not None else value, kinds[key in whole])
            for key, value in row.items()
        }
        for row in found
    ]


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
def _text_file(path: str) -> Iterator[Any]:
    codec = codec_of(path)
    with opened(path, "wb") as file:
        if codec is None:
            yield file
            return
        with pyarrow().CompressedOutputStream(file, codec) as packed:
            yield packed


def batches_of(
    files: SourceFiles, format: str, columns: list[str] | None, nulls: str, text: TextTypes
) -> Generator[TensorDict, None, None]:
    """The rows of files, some thousand at a time.

    Raises:
        TypesGrew: call it again with the same `text`, which holds all rows by now.
        ValueError: there are no rows, and nothing tells the columns; or a file has other columns than the first one.
    """
    has_rows, empty, known = False, None, None
    first = files.paths[0]
    for path, values in zip(*files):
        start = 0
        with contextlib.closing(_tables_of(path, format, files.columns_of(columns), nulls, text)) as tables:
            for table in tables:
                if values:
                    with naming(path):
                        table = with_values(table, values, columns)
                if table.num_rows:
                    with naming(path):
                        rows = rows_of(table, nulls, start)
                    kinds = kinds_in(rows)
                    known = known or (kinds, path)
                    require_same(kinds, path, *known)
                    yield rows
                    has_rows, start = True, start + table.num_rows
                else:
                    empty = table
    text.finish(first)
    if not has_rows:
        if empty is None:
            raise ValueError(f"{first} has no rows, so the schema of the dataset is unknown.")
        with naming(first):
            rows = rows_of(empty, nulls)  # the types are known: a dataset without rows
        yield rows


def _tables_of(
    path: str, format: str, columns: Sequence[str] | None, nulls: str, text: TextTypes
) -> Generator[Any, None, None]:
    """The tables of a file; errors of its reader, which may come from any package, say which file it is.

    Raises:
        UnreadableFile: the file is damaged, or of another format.
    """
    form = FORMATS[format]
    try:
        if form.dialect is not None:
            found = text.tables(path, form.dialect(path, columns, nulls))
        else:
            assert form.read is not None
            found = form.read(path, columns)
        with contextlib.closing(found) as tables:
            yield from tables
    except Exception as error:
        if path not in str(error):
            if isinstance(error, DAMAGE) and getattr(error, "errno", None) is None:
                if isinstance(error, UnicodeDecodeError):
                    shown = error.object[max(error.start - 20, 0) : error.end + 20]
                    error = ValueError(f"the name of a column is not UTF-8 ({shown!r}): encode the file as UTF-8.")
                raise UnreadableFile(f"{path} cannot be read as {format}: {error}") from error
            add_note(error, f"while {path} was read as {format}")
        raise


# -- Parquet ---------------------------------------------------------------------------------------------------------


def _write_parquet(path: str, parts: Iterator[Any]) -> None:
    parquet = need("pyarrow.parquet", "arrow", "writing Parquet")
    _write_with(path, map(_require_short, parts), lambda file, schema: parquet.ParquetWriter(file, schema))


def _require_short(table: pa.Table) -> pa.Table:
    """A table whose values have fewer bytes than Parquet refuses.

    Raises:
        ValueError: one has more; names the column.
    """
    if table.nbytes >= MOST_OF_PARQUET:
        pa, compute = pyarrow(), need("pyarrow.compute", "arrow", "writing Parquet")
        for field in table.schema:
            if pa.types.is_large_string(field.type) or pa.types.is_large_binary(field.type):
                most = compute.max(compute.binary_length(table[field.name])).as_py() or 0
                if most >= MOST_OF_PARQUET:
                    raise ValueError(
                        f"the column {field.name!r} has a value of {most:,} bytes, and Parquet allows less "
                        "than 2 GiB: write Arrow or CSV, or truncate it."
                    )
    return table


def _write_with(path: str, parts: Iterator[Any], make: Callable[[Any, Any], Any]) -> None:
    writer = None
    with _text_file(path) as file, contextlib.ExitStack() as stack:
        for table in parts:
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
        yield empty_table(chosen_fields(reader.schema, columns))
        for batch in found:
            table = pa.Table.from_batches([batch])
            yield table if columns is None else table.select(list(columns))


def _write_arrow(path: str, parts: Iterator[Any]) -> None:
    ipc = need("pyarrow.ipc", "arrow", "writing Arrow files")
    _write_with(path, parts, lambda file, schema: ipc.new_file(file, schema))


def _write_csv(delimiter: str) -> Callable[[str, Iterator[Any]], None]:
    def write_parts(path: str, parts: Iterator[Any]) -> None:
        csv = need("pyarrow.csv", "arrow", "writing CSV")
        pa = pyarrow()

        def without_structs(tables: Iterator[Any]) -> Iterator[Any]:
            for table in tables:
                while any(pa.types.is_struct(field.type) for field in table.schema):
                    table = table.flatten()
                yield table

        def make(file: Any, schema: Any) -> Any:
            for field in schema:
                if pa.types.is_nested(field.type) or pa.types.is_large_binary(field.type):
                    raise TypeError(
                        f"the column {field.name!r} is {field.type}, which CSV does not support: use Parquet."
                    )
            return csv.CSVWriter(file, schema, write_options=csv.WriteOptions(delimiter=delimiter))

        _write_with(path, without_structs(parts), make)

    return write_parts


def _json_lines(rows: Data, nulls: str | None, start: int, _nested: AsArrow) -> Any:
    """Rows as objects of JSON, a line each: JSON values as they are, times as CSV has them."""
    pa, objects = pyarrow(), set[Any]()

    def as_they_are(path: Any, texts: Any) -> Any:
        objects.add(path)
        return texts

    lines: dict[Any, Any] = {}
    for path, array in part_arrays(rows, nulls, start, as_they_are).items():
        if pa.types.is_large_binary(array.type):
            raise TypeError(f"the column {joined(path)!r} is bytes, which JSON does not support: use Parquet.")
        array = array.cast(pa.string()) if pa.types.is_temporal(array.type) else array
        lines[path] = array.fill_null("null") if path in objects else json_texts(array)
    return joined_texts(join_fields(*nested_in(lines, join_fields)), "\n")


def _write_json(path: str, parts: Iterator[Any]) -> None:
    with _text_file(path) as file:
        for lines in parts:
            file.write(text_bytes(lines))


def _write_array(path: str, parts: Iterator[Any]) -> None:
    with _text_file(path) as file:
        for number, lines in enumerate(parts):
            file.write(b",\n" if number else b"[")
            file.write(bytes(text_bytes(lines)).rstrip(b"\n").replace(b"\n", b",\n"))
        file.write(b"]\n")


def _write_tar(path: str, parts: Iterator[Any]) -> None:
    raise ValueError(
        f"{path}: tdmap reads tar files and does not write them: write Parquet, or pack the samples with TarWriter of "
        "the webdataset package."
    )


FORMATS: dict[str, Format] = {
    "parquet": Format((".parquet", ".pq"), parquet_batches, _write_parquet, part_to_arrow),
    "arrow": Format((".arrow", ".feather", ".ipc"), _arrow_batches, _write_arrow, part_to_arrow),
    **{
        name: Format(
            _text_suffixes(f".{name}"),
            None,
            _write_csv(delimiter),
            part_to_arrow,
            lambda path, columns, nulls, delimiter=delimiter: Csv(path, delimiter, columns, nulls),  # type: ignore[misc]
        )
        for name, delimiter in (("csv", ","), ("tsv", "\t"))
    },
    "jsonl": Format(
        _text_suffixes(".jsonl", ".ndjson"),
        None,
        _write_json,
        _json_lines,
        lambda path, columns, nulls: JsonLines(path, columns),
    ),
    "json": Format(
        _text_suffixes(".json"), None, _write_array, _json_lines, lambda path, columns, nulls: JsonArray(path, columns)
    ),
    "numpy": Format((".npz", ".npy"), read_numpy, write_numpy),
    "hdf5": Format((".h5", ".hdf5", ".nc", ".nc4", ".netcdf"), read_hdf5, write_hdf5),
    "zarr": Format((".zarr",), read_zarr, write_zarr),
    "tar": Format((".tar", ".tar.gz", ".tgz"), read_tar, _write_tar),
}
