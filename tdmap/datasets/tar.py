"""WebDataset's tar files: the files of a sample have one name, and each ending is a column.

    000.jpg  000.cls  000.txt     ->    __key__ "000", jpg bytes, cls int64, txt text

Files of a sample lie side by side. `.cls` and `.id` are whole numbers, `.txt` and `.json` text, `.npy` arrays of one
shape; all others are bytes as they are.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.datasets.arrow import to_arrow
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.table import Table

KEY = "__key__"
NUMBERS, TEXTS = ("cls", "id"), ("txt", "text", "json", "caption")
BATCH_BYTES = 32 << 20
"""Contents of files that go through memory at a time."""

Open = Callable[[str, str], AbstractContextManager[Any]]
"""Opens a path for reading or writing bytes."""


def read_tar(path: str, columns: Sequence[str] | None, opened: Open) -> Generator[Any, None, None]:
    """Tables of Arrow's of the samples in a file.

    Raises:
        ValueError: the file is damaged, or a sample lacks a file that others have; names it.
    """
    batch: dict[str, list[bytes]] = {}
    keys: list[str] = []
    size = 0
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
            if size >= BATCH_BYTES:
                yield _as_arrow(path, keys, batch, columns)
                keys, batch, size = [], {name: [] for name in batch}, 0
    if keys:
        yield _as_arrow(path, keys, batch, columns)


def _samples(path: str, source: Any) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples of a tar file: their key, and the content of their files by ending."""
    key = ""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=source, mode="r|*") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                full = f"{folder}/{stem}" if folder else stem
                if not ending:
                    raise ValueError(f"{path}: the file {member.name!r} has no ending, which would be its column.")
                if full != key and files:
                    yield key, files
                    files = {}
                key = full
                if ending.lower() in files:
                    raise ValueError(f"{path}: two files are called {member.name!r}.")
                content = archive.extractfile(member)
                files[ending.lower()] = b"" if content is None else content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{path}: not a whole tar file ({error}).") from None
    if files:
        yield key, files


def _as_arrow(path: str, keys: list[str], batch: dict[str, list[bytes]], columns: Sequence[str] | None) -> Any:
    wanted = [*batch, KEY] if columns is None else columns
    missing = [name for name in wanted if name not in batch and name != KEY]
    if missing:
        raise ValueError(f"{path} has no files that end in {missing[0]!r}: there are {', '.join(sorted(batch))}.")
    found: dict[str, Any] = {
        name: Jagged.from_list(keys) if name == KEY else _column(path, keys, name, batch[name]) for name in wanted
    }
    return to_arrow(Table.of(found))


def _column(path: str, keys: list[str], name: str, contents: list[bytes]) -> Tensor | Jagged:
    last = name.rpartition(".")[2]
    convert = _READERS.get(last)
    if convert is None:
        return Jagged.from_list(contents)
    values: list[Any] = []
    for key, content in zip(keys, contents):
        try:
            values.append(convert(content))
            if last == "npy" and (values[-1].shape, values[-1].dtype) != (values[0].shape, values[0].dtype):
                raise ValueError(f"its shape is {list(values[-1].shape)}, where others have {list(values[0].shape)}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {key}.{name} cannot be read: {error}") from None
    if last == "npy":
        return torch.stack(values)
    return torch.tensor(values) if last in NUMBERS else Jagged.from_list(values)


def _array(content: bytes) -> Tensor:
    return torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False))


_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(NUMBERS, int),
    **dict.fromkeys(TEXTS, bytes.decode),
    "npy": _array,
}


def write_tar(path: str, parts: Iterator[Table], opened: Open) -> None:
    """Write parts of a table as samples.

    Strings and bytes become files that end in the name of their column; so do whole numbers, if that is `cls` or `id`.
    Other tensors become `.npy` files. Samples are called as the column `__key__` says, or by their number.

    Raises:
        ValueError: the name of a sample has a dot, or that of a column a slash: they would be others when read.
    """
    row = 0
    with opened(path, "wb") as target, tarfile.open(fileobj=target, mode="w|") as archive:
        for part in parts:
            names = [name for name in part.keys() if name != KEY]
            slashed = next((name for name in names if "/" in name), None)
            if slashed is not None:
                raise ValueError(f"the column {slashed!r} has a slash, which would be a folder: rename it before.")
            keys = part[KEY].tolist() if KEY in part.keys() else [f"{row + n:09d}" for n in range(len(part))]
            for number, key in enumerate(keys):
                if "." in str(key).rpartition("/")[2]:
                    raise ValueError(
                        f"{KEY} {key!r} of row {row + number} has a dot, where the name of a column begins."
                    )
                for name in names:
                    ending, content = _file(name, part[name][number])
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            row += len(part)


def _file(name: str, value: Any) -> tuple[str, bytes]:
    """The ending and the content of the file that holds a value."""
    if isinstance(value, bytes):
        return name, value
    if isinstance(value, str):
        return (name if name in TEXTS else f"{name}.txt"), value.encode()
    if name in NUMBERS and not value.dim() and not value.dtype.is_floating_point:
        return name, str(int(value)).encode()
    file = io.BytesIO()
    np.save(file, value.numpy())
    return (name if name.endswith("npy") else f"{name}.npy"), file.getvalue()
