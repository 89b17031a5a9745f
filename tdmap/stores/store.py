"""A file system of fsspec, asked so that a passing failure of the network is no failure of the job.

What comes back is checked for its length, because a connection that is cut may end a body early. A request that fails
is made again, `ATTEMPTS` times in all, after 0.1 s, 0.2 s and some more at random; what will not get better
(no such bucket or object, no rights, no credentials) is told at once. fsspec's own file systems try again as well, each
in its own way, below this.

Credentials come to fsspec in its usual ways (environment, files, roles of the machine, `storage_options`). They are
never written anywhere by this library, and messages name the URL alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tdmap.process.interrupts import let_through

ATTEMPTS = 3
"""How often one request is made before its failure is told."""

FIRST_WAIT = 0.1
"""Seconds before it is made again for the first time; twice as many each time after that."""

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""What the file systems of some stores are in."""

Value = TypeVar("Value")


class StoreError(OSError):
    """A store could not be read or written, as often as it was tried."""


class ShortRead(OSError):
    """Fewer bytes came than were asked for."""


class Store:
    """The file system of one kind of store.

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

    # -- one request, as often as it takes ---------------------------------------------------------------------

    def _try(self, what: str, request: Callable[[], Value]) -> Value:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return request()
            except (FileNotFoundError, PermissionError) as error:
                raise _explained(what, error) from error
            except Exception as error:
                let_through(error)
                if type(error).__name__ in _HOPELESS:
                    raise PermissionError(f"{what}: {type(error).__name__}: {error}") from error
                if attempt == ATTEMPTS:
                    raise StoreError(
                        f"{what} failed {ATTEMPTS} times; the last time by {type(error).__name__}: {error}"
                    ) from error
                time.sleep(FIRST_WAIT * 2 ** (attempt - 1) * (1 + random.random()))
        raise AssertionError

    # -- reading -----------------------------------------------------------------------------------------------

    def content(self, url: str) -> bytes:
        """All of a small object. FileNotFoundError where there is none."""
        return self._try(f"reading {url}", lambda: bytes(self.fs.cat_file(self._path(url))))

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Bytes `start..stop` of objects, all of them under way at once."""
        wanted = list(wanted)
        if not wanted:
            return []
        found: list[Any] = [None] * len(wanted)
        missing = [number for number, (_, start, stop) in enumerate(wanted) if stop > start]
        for number, (_, start, stop) in enumerate(wanted):
            if stop <= start:
                found[number] = b""

        def fetch() -> None:
            nonlocal missing
            asked = [wanted[number] for number in missing]
            paths = [self._path(url) for url, _, _ in asked]
            starts, stops = [start for _, start, _ in asked], [stop for _, _, stop in asked]
            failed: list[BaseException] = []
            got = self.fs.cat_ranges(paths, starts, stops, on_error="return")
            left = []
            for number, (url, start, stop), data in zip(missing, asked, got):
                if isinstance(data, BaseException):
                    failed.append(data)
                elif len(data) != stop - start:
                    failed.append(ShortRead(f"{len(data)} of {stop - start} bytes of {url} came"))
                else:
                    found[number] = data
                    continue
                left.append(number)
            missing = left
            if failed:
                raise failed[0]

        if missing:
            first = wanted[missing[0]]
            self._try(f"reading bytes {first[1]}:{first[2]} of {first[0]}", fetch)
        return found

    def names(self, url: str) -> list[str]:
        """The names in a folder; none where there is no such folder. FileNotFoundError where there is no bucket."""
        path = self._path(url)

        def look() -> list[str]:
            self.fs.invalidate_cache()  # others write there
            try:
                return [str(entry).rstrip("/").rpartition("/")[2] for entry in self.fs.ls(path, detail=False)]
            except FileNotFoundError:
                bucket = path.partition("/")[0]
                if self.scheme in PACKAGES and not self.fs.exists(bucket):
                    raise
                return []

        return [name for name in self._try(f"looking into {url}", look) if name]

    def find(self, url: str) -> dict[str, tuple[int, str]]:
        """All objects below a folder, by their names relative to it: bytes, and what changes when one is replaced."""
        path = self._path(url)

        def look() -> dict[str, Any]:
            self.fs.invalidate_cache()  # others write there
            found: dict[str, Any] = self.fs.find(path, detail=True)
            return found

        found = self._try(f"looking into {url}", look)
        prefix = path.strip("/") + "/"
        return {
            name.strip("/").removeprefix(prefix): (int(info["size"]), _version(info)) for name, info in found.items()
        }

    # -- writing -----------------------------------------------------------------------------------------------

    def put(self, url: str, data: bytes) -> None:
        """An object, in one step."""
        self._try(f"writing {url}", lambda: self.fs.pipe_file(self._path(url), data))

    def put_all(self, objects: Mapping[str, bytes | bytearray]) -> None:
        """Objects by their URLs, all of them under way at once."""
        if objects:
            first = next(iter(objects))
            paths = {self._path(url): data for url, data in objects.items()}
            self._try(f"writing {first}", lambda: self.fs.pipe(paths))

    def send(self, files: Mapping[str, str]) -> None:
        """Objects from local files (by URL), all of them under way at once."""
        if not files:
            return
        left = dict(files)

        def send() -> None:
            self.fs.put(list(left.values()), [self._path(url) for url in left], recursive=False)

        self._try(f"writing {next(iter(files))}", send)

    def remove(self, url: str) -> None:
        """An object, or all below a folder; nothing where there is none."""
        path = self._path(url)

        def remove() -> None:
            self.fs.invalidate_cache()
            try:
                self.fs.rm(path, recursive=True)
            except FileNotFoundError:
                pass

        self._try(f"removing {url}", remove)

    def _path(self, url: str) -> str:
        path: str = self.fs._strip_protocol(url)
        return path


_HOPELESS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError"}
"""Exceptions of libraries of stores that will not get better by waiting."""

_stores: dict[str, Store] = {}


def store_of(url: str, options: Mapping[str, Any]) -> Store:
    """The store of a URL; one for each kind of store and its options in a process."""
    scheme = url.partition("://")[0]
    key = f"{os.getpid()} {scheme} {sorted(options.items(), key=str)!r}"  # none outlives a fork
    if key not in _stores:
        _stores[key] = Store(scheme, options)
    return _stores[key]


def require_reachable(url: str) -> None:
    """Raise TypeError for a store that other processes do not see."""
    if url.startswith("memory://"):
        raise TypeError(
            f"{url} is in the memory of this process, and workers are other ones: use num_workers=0 or "
            "executor='thread' with it"
        )


def _version(info: Mapping[str, Any]) -> str:
    """What a store says of an object that changes when the object is replaced."""
    known = ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created", "generation")
    return " ".join(str(info[name]) for name in known if name in info)


def _explained(what: str, error: OSError) -> OSError:
    """The same error, in words that say what was asked for."""
    if isinstance(error, PermissionError):
        return PermissionError(
            f"{what}: the store refuses it ({error}). Are there credentials that fsspec finds, and do they allow it?"
        )
    return FileNotFoundError(f"{what}: there is no such object, or no such bucket ({error})")


def _fsspec(scheme: str) -> Any:
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ImportError as error:
        raise ImportError(_install(scheme, str(error))) from error
    if scheme not in fsspec.available_protocols():
        raise ValueError(f"{scheme}:// is no store that fsspec knows: is the URL right?")
    package = PACKAGES.get(scheme)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ImportError(_install(scheme, f"No module named {package!r}"))
    return fsspec


def _install(scheme: str, reason: str) -> str:
    package = PACKAGES.get(scheme)
    besides = f" {package}" if package not in (None, "s3fs") else ""
    needed = "fsspec" if package is None else f"fsspec and {package}"
    return f"{scheme}:// needs {needed}: pip install 'tdmap[stores]'{besides} ({reason})."
