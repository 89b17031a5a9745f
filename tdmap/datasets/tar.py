"""WebDataset's tar files: the files of a sample have one name, and each ending is a column.

    000.jpg  000.cls  000.txt     ->    __key__ "000", jpg bytes, cls int64, txt text

Files of a sample lie side by side. `.cls` and `.id` are whole numbers, `.txt` and `.json` text, `.npy` arrays of one
shape; all others are bytes as they are. Endings are read in lower case.

A file is read whole or refused: what `tarfile` takes for the end of an archive (a damaged header, the end of the file)
is an error unless it is the block of zeros that ends every archive, with nothing but zeros behind it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.objects import objects_of
from tdmap.datasets.arrays import numpy_of
from tdmap.datasets.arrow import BATCH_ROWS, Part
from tdmap.datasets.columns import columns_in, joined
from tdmap.tuning import current
from tensordict_lite import Ragged

KEY = "__key__"
NUMBERS, TEXTS = ("cls", "id"), ("txt", "text", "json", "caption")
Open = Callable[[str, str], AbstractContextManager[Any]]
"""Opens a path for reading or writing bytes."""


def read_tar(path: str, columns: Sequence[str] | None, opened: Open) -> Generator[Any, None, None]:
    """Parts of the samples in a file.

    Raises:
        ValueError: the file is damaged, or a sample lacks a file that others have; names it.
    """
    batch: dict[str, list[bytes]] = {}
    keys: list[str] = []
    size, read_bytes = 0, current().read_bytes
    with opened(path, "rb") as source:
        for key, files in _samples(path, source):
            if batch and files.keys() != batch.keys():
                raise ValueError(
                    f"{path}: the sample {key!r} has the files {sorted(files)}, where others have {sorted(batch)}."
                )
            keys.append(key)
            for name, content in files.items():
                batch.setdefault(name, []).append(content)
            size += sum(map(len, files.values()))
            if size >= read_bytes or len(keys) >= BATCH_ROWS:
                yield _part(path, keys, batch, columns)
                keys, batch, size = [], {name: [] for name in batch}, 0
    if keys:
        yield _part(path, keys, batch, columns)


class _Member(tarfile.TarInfo):
    """A file in an archive. A header that cannot be read is an error, not the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # a block of zeros
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {archive.offset:,}") from None


def _samples(path: str, source: io.RawIOBase) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples of a tar file: their key, and the content of their files by ending."""
    key = ""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=_unpacked(source), mode="r|", tarinfo=_Member) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps all
                if member.isdir():
                    continue
                _require_plain(path, member)
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                full = f"{folder}/{stem}" if folder else stem
                if ending in ("", KEY):
                    raise ValueError(f"{path}: the file {member.name!r} has no ending that could be its column.")
                if full != key and files:
                    yield key, files
                    files = {}
                key = full
                if ending.lower() in files:
                    raise ValueError(f"{path}: two files are called {member.name!r}.")
                content = archive.extractfile(member)
                files[ending.lower()] = b"" if content is None else content.read()
            _require_end(path, archive.fileobj)
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: not a complete tar file ({error}).") from None
    if files:
        yield key, files


def _unpacked(source: io.RawIOBase) -> Any:
    """A file as it is without its compression, all members of which are read and checked."""
    file = io.BufferedReader(source)
    head = file.peek(6)
    openers: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    return next((openers[magic](file) for magic in openers if head.startswith(magic)), file)


def _require_plain(path: str, member: tarfile.TarInfo) -> None:
    """Raise for what is in an archive without its content, or with less of it than its size says."""
    if member.issparse():
        raise ValueError(f"{path}: {member.name!r} is a sparse file: pack it again without --sparse.")
    if member.issym() or member.islnk():
        raise ValueError(
            f"{path}: {member.name!r} is a link to {member.linkname!r}, without content: pack it again with "
            "--dereference --hard-dereference."
        )
    if not member.isfile():
        raise ValueError(f"{path}: {member.name!r} is a device or a pipe, not a file.")


def _require_end(path: str, rest: Any) -> None:
    """Raise where something follows the block of zeros that ends an archive."""
    while block := rest.read(1 << 20):
        if block.strip(b"\0"):
            raise ValueError(
                f"{path}: more bytes follow the end of the archive. If files were put one after the other, pass them "
                "as a list; else it is damaged."
            )


def _part(path: str, keys: list[str], batch: dict[str, list[bytes]], columns: Sequence[str] | None) -> Part:
    wanted = [*batch, KEY] if columns is None else columns
    missing = [name for name in wanted if name not in batch and name != KEY]
    if missing:
        raise ValueError(f"{path} has no files that end in {missing[0]!r}. Endings: {', '.join(sorted(batch))}.")
    found: dict[Any, Any] = {
        (name,): Ragged.from_list(keys) if name == KEY else _column(path, keys, name, batch[name]) for name in wanted
    }
    return Part(len(keys), found)


def _column(path: str, keys: list[str], name: str, contents: list[bytes]) -> Any:
    last = name.rpartition(".")[2]
    convert = _READERS.get(last)
    if convert is None:
        return Ragged.from_list(contents)
    values: list[Any] = []
    for key, content in zip(keys, contents):
        try:
            values.append(convert(content))
            if last == "npy" and (values[-1].shape, values[-1].dtype) != (values[0].shape, values[0].dtype):
                kinds = (f"{list(value.shape)} of {value.dtype}" for value in (values[-1], values[0]))
                raise ValueError("its shape is {}, where others have {}".format(*kinds))
        except (ValueError, TypeError, EOFError) as error:
            raise ValueError(f"{path}: {key}.{name} cannot be read: {error}") from None
    if last == "npy":
        return torch.stack(values)
    return torch.tensor(values, dtype=torch.int64) if last in NUMBERS else Ragged.from_list(values)


def _array(content: bytes) -> Tensor:
    file = io.BytesIO(content)
    array = np.load(file, allow_pickle=False)
    if not isinstance(array, np.ndarray) or file.read(1):
        raise ValueError("more than one array is in it")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def _whole_number(value: bytes) -> int:
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} exceeds int64")
    return number


_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(NUMBERS, _whole_number),
    **dict.fromkeys(TEXTS, bytes.decode),
    "npy": _array,
}


def write_tar(path: str, parts: Iterator[Any], opened: Open) -> None:
    """Write parts of a dataset as samples.

    Strings and bytes become files that end in the name of their column, strings with `.txt` unless their name says that
    they are text; so do whole numbers, if that is `cls` or `id`. Other tensors become `.npy` files. Samples are called
    as the column `__key__` says, or by their number.

    Raises:
        TypeError: a column has lists, or numbers that NumPy has not.
        ValueError: names of samples or columns, or values, would be others when they are read; names them.
    """
    row, last = 0, None
    with opened(path, "wb") as target, tarfile.open(fileobj=target, mode="w|") as archive:
        for rows in parts:
            part = {joined(column): values for column, values in columns_in(rows).items()}
            endings = _endings(part)
            keys = _keys(part, len(rows), row, last)
            values = {name: c.unbind(0) if isinstance(c, Tensor) else objects_of(c) for name, c in part.items()}
            for number, key in enumerate(keys):
                for name, ending in endings.items():
                    content = _content(name, ending, values[name][number], row + number)
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
                    archive.members.clear()  # type: ignore[attr-defined]  # it keeps all
            row, last = row + len(rows), keys[-1] if keys else last


def _keys(part: dict[str, Any], rows: int, row: int, last: str | None) -> list[str]:
    """The names of the samples of a part that begins with a row, behind a sample of another name."""
    if KEY not in part:
        return [f"{row + n:09d}" for n in range(rows)]
    column = part[KEY]
    if isinstance(column, Ragged) and column.kind != "str":
        raise TypeError(f"the column {KEY!r} holds {column.kind}, and samples are called by text: convert it before.")
    keys = [str(key) for key in column.tolist()]
    for number, key in enumerate(keys):
        if "." in key.rpartition("/")[2]:
            raise ValueError(f"{KEY} {key!r} of row {row + number} has a dot, where the name of a column begins.")
        if key == last:
            raise ValueError(f"the rows {row + number - 1} and {row + number} have one {KEY}, {key!r}: one sample.")
        _require_name(f"{KEY} {key!r} of row {row + number}", key)
        last = key
    return keys


def _require_name(what: str, text: str) -> None:
    if "\0" in text or not text.isascii() and text.encode("utf-8", "replace").decode() != text:
        raise ValueError(f"{what} has a character that file names cannot have: rename it first.")


def _endings(part: dict[str, Any]) -> dict[str, str]:
    """What the files of each column end in.

    Raises:
        ValueError: a column would have another name or kind when it is read, or the name of another one.
    """
    endings: dict[str, str] = {}
    for name in part:
        if name == KEY:
            continue
        column, last = part[name], name.rpartition(".")[2]
        kind = column.kind if isinstance(column, Ragged) else "numbers"
        if "/" in name:
            raise ValueError(f"the column {name!r} has a slash, which would make a folder: rename it first.")
        if name != name.lower():
            raise ValueError(
                f"the column {name!r} has upper case, and endings are read in lower case: rename it before."
            )
        if kind == "tensor":
            raise TypeError(f"the rows of {name!r} have different lengths, which no array has: pad them before.")
        if not name or kind == "bytes" and last in _READERS:
            raise ValueError(f"the column {name!r} holds {kind}, and files that end so are read otherwise: rename it.")
        _require_name(f"the column {name!r}", name)
        if kind == "str":
            ending = name if last in TEXTS else f"{name}.txt"
        elif isinstance(column, Tensor) and last in NUMBERS and column.dim() == 1 and column.dtype in _WHOLE:
            ending = name
        else:
            ending = name if kind == "bytes" or last == "npy" else f"{name}.npy"
        if ending in endings.values():
            raise ValueError(f"two columns would be files that end in {ending!r}: rename {name!r}.")
        endings[name] = ending
    if not endings:
        raise ValueError(f"the data need a column besides {KEY!r}, or samples would have no files.")
    return endings


_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)


def _content(name: str, ending: str, value: Any, row: int) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return value.encode()
        array = numpy_of(name, value)
        if ending.rpartition(".")[2] in NUMBERS:
            return str(_whole_number(array)).encode()
    except ValueError as error:
        raise ValueError(f"row {row} of the column {name!r} cannot be a file: {error}.") from None
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
