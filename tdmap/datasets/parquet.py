"""Parquet files, read by workers, a row group at a time."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Unpack

import torch

from tdmap.data.schema import Schema, take_apart
from tdmap.datasets.arrow import BATCH_ROWS, chosen_fields, empty_table, naming, rows_of, with_values
from tdmap.datasets.columns import kinds_in, require_same
from tdmap.datasets.extras import opened, require_columns
from tdmap.errors import ResumeMismatch, add_note
from tdmap.output.append import append_known
from tdmap.output.outputfolder import OutputFolder
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import MapOptions
from tensordict_lite import TensorDict
from tensordict_lite.packages import need, pyarrow
from tensordict_lite.paths import is_url

OF_FILE = "the file "
"""Begins the name of a part of the identity, and so the sentence about a change."""

ORDER = "fn: order of files"
"""How a sentence about a change names this part."""

DECODED_ROWS = 1 << 17
"""Rows of a row group that a worker holds at a time: for fewer, what is done once for each takes long."""


def read_parquet(
    files: Sequence[str],
    values: Sequence[Mapping[str, Any]],
    store: OutputFolder,
    columns: Sequence[str] | None,
    own: Sequence[str] | None,
    nulls: str,
    resume: bool,
    options: Any,
) -> TensorDict:
    """Read Parquet files into a folder, on several processes. Arguments and errors as `tdmap.datasets.read`.

    Args:
        files: their paths.
        values: scalars of Arrow's for each, which are columns of its rows.
        store, columns, nulls, resume, options: as `tdmap.datasets.read`.
        own: those of `columns` that are in the files.
    """
    numbers: list[tuple[int, int]] = []
    firsts = [0]
    schema: Any = None
    empty: Any = None
    known: Any = None
    for number, path in enumerate(files):
        with opened(path) as source:
            file = _opened(path, source)
            found = file.schema_arrow
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        require_columns(path, own, found.names)
        with naming(path):
            found = with_values(empty_table(chosen_fields(found, own)), values[number], columns).schema
        if schema is None or not found.equals(schema):
            with naming(path):
                rows = rows_of(empty_table(found), nulls)  # tells the columns, or refuses them
            kinds = kinds_in(rows)
            schema, empty, known = found, rows if empty is None else empty, known or (kinds, path)
            require_same(kinds, path, *known)
        numbers += [(number, group) for group, size in enumerate(sizes) if size]
        firsts += [firsts[-1] + total for total in itertools.accumulate(size for size in sizes if size)]
    if not numbers:
        made: TensorDict = store.save(empty)
        return made
    index = TensorDict(dict(zip(("file", "group"), torch.tensor(numbers).T.contiguous())), [len(numbers)])
    fn = ReadGroup(files, values, columns, own, nulls)
    try:
        made = read_groups(index, fn, take_apart(empty).schema, firsts, store, chunksize=1, resume=resume, **options)
    except ResumeMismatch as error:
        if not any(line.startswith(OF_FILE) for line in error.changes):
            raise
        follows = ("the source's ", "the plan's ", "the argument firsts ")  # from changes of files
        changes = [line for line in error.changes if not line.startswith(follows) and not line.endswith(f"in: {ORDER}")]
        head, *_, advice = str(error).split("\n")
        more = [f"  - and {len(changes) - 10:,} changes more"] if len(changes) > 10 else []
        text = "\n".join([head, *(f"  - {line}" for line in changes[:10]), *more, advice])
        raise ResumeMismatch(text, tuple(changes)) from None
    return made


@operation
def read_groups(
    ctx: Context,
    groups: TensorDict,
    fn: ReadGroup,
    schema: Schema,
    firsts: list[int],
    out: OutputFolder,
    **options: Unpack[MapOptions],
) -> Any:
    """Read row groups, one a chunk, whose rows are known from the footers: each group is written to its place.

    Args:
        groups: number of the file, and of the group in it.
        fn: reads them.
        schema: of the rows.
        firsts: the number of the first row of each group, and of all rows.
        out: folder for the dataset.
        **options: see `tdmap.MapOptions`.
    """
    return append_known(ctx, ctx.job(groups, ctx.plan(groups), fn), schema, firsts)


def parquet_batches(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    """The tables of a file, some thousand rows at a time."""
    with opened(path) as source:
        file = _opened(path, source)
        require_columns(path, columns, file.schema_arrow.names)
        yield empty_table(chosen_fields(file.schema_arrow, columns))  # tells the columns of a file without rows
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            yield pyarrow().Table.from_batches([batch])


def _opened(path: str, source: Any) -> Any:
    """A Parquet file; a ValueError that names it where it is none."""
    try:
        return need("pyarrow.parquet", "arrow", "reading Parquet").ParquetFile(source)
    except pyarrow().ArrowInvalid as error:
        raise ValueError(f"{path}: {error}") from None


class ReadGroup:
    """Reads row groups of Parquet files, in workers.

    A worker maps the file, which spares a copy of its bytes. The caller's process does not: a file that is truncated
    meanwhile ends the process that maps it, and a worker that ends is an error that is reported.

    Args:
        files, values, columns, own, nulls: as `read_parquet`.
    """

    def __init__(
        self,
        files: Sequence[str],
        values: Sequence[Mapping[str, Any]],
        columns: Sequence[str] | None,
        own: Sequence[str] | None,
        nulls: str,
    ) -> None:
        self.files, self.values = list(files), list(values)
        self.columns, self.own = columns, own
        self.nulls = nulls
        self._maps = False
        self._opened: tuple[int, _Groups] | None = None  # the file that was read last: its footer may be long

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": True, "_opened": None}

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        parts = {ORDER.removeprefix("fn: "): repr(self.files), "columns": repr(self.columns), "nulls": self.nulls}
        for path in self.files:
            info = None if is_url(path) else os.stat(path)
            parts[OF_FILE + path] = f"{info.st_size:,} bytes, written at {info.st_mtime_ns}" if info else "there"
        return parts

    def _groups(self, number: int) -> _Groups:
        if self._opened is None or self._opened[0] != number:
            path = self.files[number]
            self._opened = number, _Groups(path, self.own, maps=self._maps and not is_url(path))
        return self._opened[1]

    def __call__(self, groups: TensorDict) -> Generator[TensorDict, None, None]:
        for file, group in zip(groups["file"].tolist(), groups["group"].tolist()):
            start = 0
            for batch in self._groups(file).batches(group):
                try:
                    if self.values[file]:
                        batch = with_values(pyarrow().Table.from_batches([batch]), self.values[file], self.columns)
                    rows = rows_of(batch, self.nulls, start)
                except (TypeError, ValueError) as error:
                    where = f"rows are counted from row group {group} of {self.files[file]}"
                    raise type(error)(f"{error} ({where})") from None
                start += len(rows)
                yield rows


class _Groups:
    """The row groups of one file.

    Args:
        path: the file.
        columns: only these; None: all.
        maps: map it.
    """

    def __init__(self, path: str, columns: Sequence[str] | None, maps: bool) -> None:
        self._path, self._columns = path, columns
        self._mapped: mmap.mmap | None = None
        self._open = contextlib.ExitStack()
        source = self._open.enter_context(opened(path))
        if maps:
            self._mapped = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
            source = pyarrow().BufferReader(self._mapped)
        self._file = _opened(path, source)

    def batches(self, group: int) -> Generator[Any, None, None]:
        """The rows of one of them, some at a time."""
        try:
            yield from self._file.iter_batches(DECODED_ROWS, [group], self._columns, use_threads=False)
        except Exception as error:
            add_note(error, f"while row group {group} of {self._path} was read")
            raise
        finally:
            if self._mapped is not None:  # or in the end all of the file would count as memory of this process
                self._mapped.madvise(mmap.MADV_DONTNEED)
