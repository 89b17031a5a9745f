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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.datasets.arrow import BATCH_ROWS, Part
from tdmap.datasets.extras import opened
from tdmap.tuning import current
from tensordict_lite import Ragged

KEY = "__key__"
NUMBERS, TEXTS = ("cls", "id"), ("txt", "text", "json", "caption")


def read_tar(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    """Parts of the samples in a file.

    Raises:
        ValueError: the file is damaged, or a sample lacks a file that others have; names it.
    """
    batch: dict[str, list[bytes]] = {}
    keys: list[str] = []
    size, read_bytes = 0, current().read_bytes
    with opened(path) as source:
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
