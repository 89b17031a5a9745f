"""Checksums of saved datasets, to detect corruption.

``checksums.json`` in the root of a dataset lists every file with its size and the CRC-32 of each block of a few
megabytes, so that corruption is reported as a range of rows, not only as a file. It is written on request, has a
checksum of its own, and describes the dataset at that moment: after later writes it must be computed again. Metadata
files are included. An archive always has a checksum for each of its entries.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tensordict_lite import registry
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.contents import complete_files
from tensordict_lite.memmap.disk.files import open_at_once, replace_file
from tensordict_lite.memmap.disk.format import (
    META,
    SUFFIX,
    LeafMeta,
    encode_key,
    is_count,
    is_encodable,
    read_json,
    read_meta,
)
from tensordict_lite.memmap.tuning import current
from tensordict_lite.paths import absolute_path

CHECKSUMS = "checksums.json"
_READ = 256 << 10  # fits the second-level cache


@dataclass(frozen=True, slots=True)
class Corruption:
    """One difference from the stored checksums."""

    file: str
    """Path relative to the dataset."""
    reason: str
    """Description of the difference."""
    rows: tuple[int, int] | None = None
    """First and last-plus-one affected row, if the file is a tensor."""

    def __str__(self) -> str:
        where = "" if self.rows is None else f", rows {self.rows[0]} to {self.rows[1] - 1}"
        return f"{self.file}{where}: {self.reason}"


@dataclass(slots=True)
class Report:
    """The result of :func:`verify`."""

    path: str
    files: int = 0
    """Number of files read."""
    nbytes: int = 0
    """Number of bytes read."""
    problems: list[Corruption] = field(default_factory=list)
    """Problems in the order of the files; empty for an intact dataset."""

    @property
    def ok(self) -> bool:
        """Whether the dataset is intact."""
        return not self.problems

    def raise_if_corrupt(self) -> None:
        """Raise :class:`DatasetError` with the problems, if there are any."""
        if self.problems:
            shown = "; ".join(map(str, self.problems[:5]))
            more = f" and {len(self.problems) - 5} more" if len(self.problems) > 5 else ""
            raise DatasetError(self.path, f"is corrupt: {shown}{more}")


def store(path: str | os.PathLike[str], num_threads: int | None = None) -> dict[str, list[int]]:
    """Compute and store the checksums of a dataset.

    Args:
        path: folder of the dataset, or the file of an archive, which is changed in place.
        num_threads: number of reader threads; by default one per core.

    Returns:
        CRC-32 of the blocks of each file; for an archive, of each uncompressed entry.

    Raises:
        DatasetError: there is no dataset.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite.memmap.checksum import store, verify
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict({"a": torch.arange(1000)}).memmap(folder.name)
        >>> sorted(store(folder.name))
        ['a.memmap', 'meta.json']
        >>> verify(folder.name).ok
        True
    """
    root = absolute_path(path)
    if os.path.isfile(root):
        return registry.store_archive_checksums(root, num_threads)
    read_meta(root)
    names, block = list(_files(root)), current().checksum_bytes
    entries: dict[str, dict[str, object]] = {}
    with ThreadPoolExecutor(threads(num_threads)) as pool:
        for name, (size, crcs) in zip(names, pool.map(lambda name: _crcs(os.path.join(root, name), block), names)):
            entries[name] = {"size": size, "crc32": crcs}
    body = {"algorithm": "crc32", "block": block, "files": entries}
    content = json.dumps({**body, "self": zlib.crc32(json.dumps(body).encode())})
    replace_file(os.path.join(root, CHECKSUMS), content.encode())
    return {name: list(entry["crc32"]) for name, entry in entries.items()}  # type: ignore[call-overload]


def verify(path: str | os.PathLike[str], num_threads: int | None = None) -> Report:
    """Compare a dataset with its stored checksums, reading every byte, in parallel.

    Args:
        path: folder of the dataset, or the file of an archive.
        num_threads: number of reader threads; by default one per core.

    Returns:
        A :class:`Report`: each problem with its file and, for a tensor, the range of rows.

    Raises:
        DatasetError: there is no dataset, no ``checksums.json``, or that file itself is damaged.
    """
    root = absolute_path(path)
    report = Report(root)
    if os.path.isfile(root):
        return registry.verify_archive(root, report, num_threads)
    block, expected = _stored(root)
    found = set(_files(root))
    for name in sorted(found - expected.keys()):
        report.problems.append(Corruption(name, "was not there when the checksums were stored"))
    names = sorted(expected)
    tensors = {**_tensor_files(root)} if META in expected else {}
    with ThreadPoolExecutor(threads(num_threads)) as pool:
        results = pool.map(lambda name: _check(root, name, expected[name], block, tensors.get(name)), names)
        for size, problems in results:
            report.files += 1
            report.nbytes += size
            report.problems += problems
    return report


def threads(wanted: int | None) -> int:
    return max(1, wanted or len(os.sched_getaffinity(0)))


def _files(root: str) -> Iterator[str]:
    """Regular files of a dataset, relative to it, without links and the checksums themselves."""
    return (name for name in complete_files(root) if name != CHECKSUMS and _is_regular(f"{root}/{name}"))


def _is_regular(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.lstat(path).st_mode)
    return False


def _crcs(path: str, block: int, limit: int | None = None) -> tuple[int, list[int]]:
    """Size of a file and the CRC-32 of each block, or of the blocks of its first ``limit`` bytes."""
    out: list[int] = []
    at, total, filled = 0, 0, 0
    with open(open_at_once(path), "rb", buffering=0) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        end = info.st_size if limit is None else min(limit, info.st_size)
        buffer = memoryview(bytearray(_READ))
        while count := file.readinto(buffer[: min(_READ, block - filled, end - at)]):
            total = zlib.crc32(buffer[:count], total)
            at += count
            filled += count
            if filled == block:
                out.append(total)
                total, filled = 0, 0
    if filled or not out:
        out.append(total)
    return info.st_size, out


def _check(
    root: str, name: str, expected: tuple[int, list[int]], block: int, leaf: LeafMeta | None
) -> tuple[int, list[Corruption]]:
    path = os.path.join(root, name)
    wanted_size, wanted = expected
    if os.path.dirname(os.path.realpath(path)) != os.path.join(os.path.realpath(root), os.path.dirname(name)).rstrip(
        "/"
    ):
        return 0, [Corruption(name, "is reached by a symbolic link; a dataset is not followed out of its folder")]
    try:
        size, crcs = _crcs(path, block, wanted_size)  # bytes after the end are wrong without being read
    except OSError as err:
        return 0, [Corruption(name, f"cannot be read ({err.strerror})")]
    problems = []
    if size != wanted_size:
        problems.append(Corruption(name, f"has {size:,} bytes instead of {wanted_size:,}"))
    bad = [
        n for n, (a, b) in enumerate(zip(crcs, wanted)) if a != b and not (size < wanted_size and n == len(crcs) - 1)
    ]
    for first, last in _runs(bad):
        start, stop = first * block, min((last + 1) * block, size)
        reason = f"bytes {start:,} to {stop - 1:,} are not what was saved"
        problems.append(Corruption(name, reason, _rows(leaf, start, stop)))
    return min(size, wanted_size), problems


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as (first, last)."""
    start = previous = None
    for n in numbers:
        if previous is None or n != previous + 1:
            if start is not None and previous is not None:
                yield start, previous
            start = n
        previous = n
    if start is not None and previous is not None:
        yield start, previous


def _rows(leaf: LeafMeta | None, start: int, stop: int) -> tuple[int, int] | None:
    if leaf is None or leaf.is_nested or not leaf.shape or not leaf.shape[0]:
        return None
    row = max(1, leaf.nbytes // leaf.shape[0])
    return min(start // row, leaf.shape[0] - 1), min(-(-stop // row), leaf.shape[0])


def _tensor_files(root: str) -> dict[str, LeafMeta]:
    """Metadata of each tensor by file, as far as the metadata can be read."""
    out: dict[str, LeafMeta] = {}
    for folder, _, names in os.walk(root):
        if META not in names:
            continue
        try:
            meta = read_meta(folder)
        except DatasetError:
            continue  # damaged metadata is reported through its own checksum
        for key, leaf in meta.leaves.items():
            for name in (encode_key(key), key):
                out.setdefault(os.path.relpath(os.path.join(folder, name + SUFFIX), root), leaf)
    return out


def _stored(root: str) -> tuple[int, dict[str, tuple[int, list[int]]]]:
    path = os.path.join(root, CHECKSUMS)
    try:
        data = read_json(path, root)
    except DatasetNotFoundError:
        raise DatasetError(
            root, "has no checksums: store them with td.checksum() when the dataset is known to be good"
        ) from None
    if type(data) is not dict or data.pop("self", None) != zlib.crc32(json.dumps(data).encode()):
        raise DatasetError(path, "is damaged itself, so there is nothing to compare with")
    try:
        block = data["block"]
        files = {name: (entry["size"], entry["crc32"]) for name, entry in data["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise DatasetError(path, "is not a list of checksums") from None
    if not is_count(block, 1 << 40) or block < 1:
        raise DatasetError(path, f"has an impossible block size {block!r}")
    for name, (size, sums) in files.items():
        if os.path.isabs(name) or ".." in name.split("/") or "\0" in name or not is_encodable(name):
            raise DatasetError(path, f"lists a file outside of the dataset: {name!r}")
        if not is_count(size, 1 << 62) or type(sums) is not list or not all(is_count(crc, 1 << 32) for crc in sums):
            raise DatasetError(path, f"has no checksums for {name!r}")
    return block, files
