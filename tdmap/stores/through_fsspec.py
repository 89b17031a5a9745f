"""Requests to a store through its file system of fsspec."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tdmap.stores.transport import Place, Range, ShortRead

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""What the file systems of some stores are in."""

_WRITES_IN_PLACE = {"local", "file", "sftp", "ssh"}
"""File systems where an object that is being written can be seen, and stays torn when its writer is killed. Their `mv`
replaces a file in one step."""

_GLOB = re.compile(r"[*?\[]")


class FsspecFiles:
    """A file system of fsspec (see `Transport`).

    Args:
        scheme: the part of a URL before `://`.
        options: what fsspec's class is made with.

    Raises:
        ImportError: fsspec, or the package of this store, is not installed; says how to get it.
        ValueError: there is no such kind of store.
    """

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        fsspec = _fsspec(scheme)
        try:
            self.fs: Any = fsspec.filesystem(scheme, **options)
        except ImportError as error:
            raise ImportError(_install(scheme, str(error))) from error
        self.scheme = scheme

    def content(self, url: str) -> bytes:
        return bytes(self.fs.cat_file(self._path(url)))

    def fill(self, places: Sequence[Place]) -> Sequence[Exception | None]:
        paths = [self._path(url) for (url, _, _), _ in places]
        starts, stops = [start for (_, start, _), _ in places], [stop for (_, _, stop), _ in places]
        return [
            found if isinstance(found, Exception) else _placed(found, *place)
            for found, place in zip(self.fs.cat_ranges(paths, starts, stops, on_error="return"), places)
        ]

    def names(self, url: str) -> list[str]:
        path = self._path(url)
        self.fs.invalidate_cache()  # others write there
        try:
            return [str(entry).rstrip("/").rpartition("/")[2] for entry in self.fs.ls(path, detail=False)]
        except FileNotFoundError:
            bucket = path.partition("/")[0]
            if self.scheme in PACKAGES and not self.fs.exists(bucket):
                raise
            return []

    def find(self, url: str) -> dict[str, tuple[int, str]]:
        path = self._path(url)
        self.fs.invalidate_cache()  # others write there
        found: dict[str, Any] = self.fs.find(path, detail=True)
        prefix = path.strip("/") + "/"
        return {
            name.strip("/").removeprefix(prefix): (int(info["size"]), _version(info))
            for name, info in found.items()
            if name.strip("/").startswith(prefix)  # not an object that stands for the folder itself
        }

    def put(self, objects: Mapping[str, bytes | bytearray]) -> None:
        paths = {self._path(url): data for url, data in objects.items()}
        if self.scheme not in _WRITES_IN_PLACE:
            self.fs.pipe(paths)
            return
        self.fs.pipe({f"{path}.new": data for path, data in paths.items()})
        for path in paths:
            self.fs.mv(f"{path}.new", path)

    def send(self, files: Mapping[str, str]) -> None:
        self.fs.put(list(files.values()), [self._path(url) for url in files], recursive=False)

    def remove(self, urls: Sequence[str]) -> None:
        self.fs.invalidate_cache()
        paths = [self._path(url) for url in urls]
        for path in [path for path in paths if _GLOB.search(path)]:  # rm() would remove what the pattern matches
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(path)
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm([path for path in paths if not _GLOB.search(path)])

    def _path(self, url: str) -> str:
        path: str = self.fs._strip_protocol(url)
        return path


def _placed(found: bytes, asked: Range, memory: memoryview) -> ShortRead | None:
    if len(found) != len(memory):
        return ShortRead(asked, len(found))
    memory[:] = found
    return None


def _version(info: Mapping[str, Any]) -> str:
    """What a store says of an object that changes when the object is replaced."""
    known = ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created", "generation")
    return " ".join(str(info[name]) for name in known if name in info)


def _fsspec(scheme: str) -> Any:
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise ImportError(_install(scheme, str(error))) from error
    if scheme not in fsspec.available_protocols():
        raise ValueError(f"fsspec does not know {scheme}://: check the URL")
    package = PACKAGES.get(scheme)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ImportError(_install(scheme, f"No module named {package!r}"))
    return fsspec


def _install(scheme: str, reason: str) -> str:
    package = PACKAGES.get(scheme)
    besides = f" {package}" if package not in (None, "s3fs") else ""
    needed = "fsspec" if package is None else f"fsspec and {package}"
    return f"{scheme}:// needs {needed}: pip install 'tdmap[stores]'{besides} ({reason})."
