"""A store, asked so that a passing failure of the network is no failure of the job.

What comes back is checked for its length, because a connection that is cut may end a body early. A request that fails
is made again, `ATTEMPTS` times in all, after 0.1 s, 0.2 s and some more at random; what will not get better
(no such bucket or object, no rights, no credentials) is told at once. The libraries below try again as well, each
in its own way.

Credentials are found in the usual ways (environment, files, roles of the machine, `storage_options`). They are
never written anywhere by this library, and messages name the URL alone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tdmap.process_state import comes_from_handler, installed_handlers
from tdmap.stores.through_fsspec import FsspecFiles
from tdmap.stores.through_obstore import ObstoreFiles
from tdmap.stores.transport import CannotServe, Range, Transport, leads_out
from tensordict_lite.errors import DatasetError

ATTEMPTS = 3
"""How often one request is made before its failure is told."""

FIRST_WAIT = 0.1
"""Seconds before it is made again for the first time; twice as many each time after that."""

VARIABLE = "TDMAP_STORE_TRANSPORT"
"""The environment variable that rules obstore out, as `fsspec`. Default: obstore where it can serve, else fsspec."""

Value = TypeVar("Value")


class StoreError(OSError):
    """A store could not be read or written, as often as it was tried."""


class ShortRead(OSError):
    """Fewer bytes came than were asked for."""


class Store:
    """One kind of store, with its options.

    Args:
        scheme: the part of a URL before `://`.
        options: `storage_options`, as fsspec's class takes them.

    Raises:
        ImportError: the package of this store is not installed; says how to get it.
        ValueError: there is no such kind of store.
    """

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        self.scheme = scheme
        self.options = options
        self._files = self._transport()
        self._process = os.getpid()

    def _transport(self) -> Transport:
        if os.environ.get(VARIABLE) != "fsspec":
            try:
                return ObstoreFiles(self.scheme, self.options)
            except CannotServe:
                pass
        return FsspecFiles(self.scheme, self.options)

    @property
    def files(self) -> Transport:
        """Who makes the requests; another one in a fork."""
        if self._process != os.getpid():
            self._files, self._process = self._transport(), os.getpid()
        return self._files

    # -- one request, as often as it takes ---------------------------------------------------------------------

    def _try(self, what: str, request: Callable[[Transport], Value]) -> Value:
        attempt = 1
        while True:
            try:
                return request(self.files)
            except CannotServe:
                self._files = FsspecFiles(self.scheme, self.options)
                continue
            except DatasetError:
                raise
            except (FileNotFoundError, PermissionError) as error:
                raise _explained(what, error) from error
            except Exception as error:  # each library has its own
                if comes_from_handler(error, installed_handlers()):
                    raise
                if type(error).__name__ in _HOPELESS:
                    raise PermissionError(f"{what}: {type(error).__name__}: {error}") from error
                if attempt == ATTEMPTS:
                    raise StoreError(
                        f"{what} failed {ATTEMPTS} times; the last time by {type(error).__name__}: {error}"
                    ) from error
                time.sleep(FIRST_WAIT * 2 ** (attempt - 1) * (1 + random.random()))
                attempt += 1

    # -- reading -----------------------------------------------------------------------------------------------

    def content(self, url: str) -> bytes:
        """All of a small object. FileNotFoundError where there is none."""
        return self._try(f"reading {url}", lambda files: files.content(url))

    def ranges(self, wanted: Sequence[Range]) -> list[Any]:
        """Bytes `start..stop` of objects, all of them under way at once: a buffer for each."""
        wanted = list(wanted)
        found: list[Any] = [b""] * len(wanted)
        missing = [number for number, (_, start, stop) in enumerate(wanted) if stop > start]

        def fetch(files: Transport) -> None:
            nonlocal missing
            failed: list[BaseException] = []
            left = []
            for number, data in zip(missing, files.ranges([wanted[number] for number in missing])):
                url, start, stop = wanted[number]
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
        found = [name for name in self._try(f"looking into {url}", lambda files: files.names(url)) if name]
        _require_inside(url, found)
        return found

    def find(self, url: str) -> dict[str, tuple[int, str]]:
        """All objects below a folder, by their names relative to it: bytes, and what changes when one is replaced."""
        found = self._try(f"looking into {url}", lambda files: files.find(url))
        _require_inside(url, found)
        return found

    # -- writing -----------------------------------------------------------------------------------------------

    def put(self, url: str, data: bytes) -> None:
        """An object, in one step."""
        self.put_all({url: data})

    def put_all(self, objects: Mapping[str, bytes | bytearray]) -> None:
        """Objects by their URLs, all of them under way at once."""
        if objects:
            self._try(f"writing {next(iter(objects))}", lambda files: files.put(objects))

    def send(self, files: Mapping[str, str]) -> None:
        """Objects from local files (by URL), all of them under way at once."""
        if files:
            self._try(f"writing {next(iter(files))}", lambda transport: transport.send(files))

    def remove(self, urls: Sequence[str]) -> None:
        """Objects; nothing where there are none."""
        if urls:
            self._try(f"removing {urls[0]}", lambda files: files.remove(urls))


def _require_inside(url: str, names: Iterable[str]) -> None:
    """Raise DatasetError for names of objects that would be paths out of the folder of the dataset."""
    for name in names:
        if not {"", ".", ".."}.isdisjoint(name.rstrip("/").split("/")) or "\\" in name or "\0" in name:
            raise leads_out(url, name)


_HOPELESS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError"}
"""Exceptions of libraries of stores that will not get better by waiting."""

_stores: dict[str, Store] = {}


def store_of(url: str, options: Mapping[str, Any]) -> Store:
    """The store of a URL; one for each kind of store and its options in a process."""
    scheme = url.partition("://")[0]
    # None outlives a fork.
    key = f"{os.getpid()} {os.environ.get(VARIABLE)} {scheme} {sorted(options.items(), key=str)!r}"
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


def _explained(what: str, error: OSError) -> OSError:
    """The same error, in words that say what was asked for."""
    if isinstance(error, PermissionError):
        return PermissionError(
            f"{what}: the store refuses it ({error}). Are there credentials (in the environment, in a configuration "
            "file, in storage_options), and do they allow it?"
        )
    return FileNotFoundError(f"{what}: there is no such object, or no such bucket ({error})")
