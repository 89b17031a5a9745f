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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.process_state import comes_from_handler, installed_handlers
from tdmap.stores.through_fsspec import FsspecFiles
from tdmap.stores.through_obstore import ObstoreFiles
from tdmap.stores.transport import CannotServe, Place, Range, Transport, leads_out
from tensordict_lite.errors import DatasetError

ATTEMPTS = 3
"""How often one request is made before its failure is told."""

PART_BYTES = 32 << 20
"""A longer run of bytes is fetched as several requests at once."""

FIRST_WAIT = 0.1
"""Seconds before it is made again for the first time; twice as many each time after that."""

VARIABLE = "TDMAP_STORE_TRANSPORT"
"""The environment variable that rules obstore out, as `fsspec`. Default: obstore where it can serve, else fsspec."""

Value = TypeVar("Value")


class StoreError(OSError):
    """A store could not be read or written, as often as it was tried."""


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

    def content_if_any(self, url: str) -> bytes | None:
        """As `content`; None where there is no such object."""
        try:
            return self.content(url)
        except FileNotFoundError:
            return None

    def fetch(self, groups: Sequence[Sequence[Range]]) -> list[Tensor]:
        """Bytes of objects, all of them at once: those of each group one after the other, as uint8 `[n]`."""
        found = [_empty(sum(stop - start for _, start, stop in group)) for group in groups]
        missing = [part for group, place in zip(groups, found) for part in _parts(group, place.numpy().data)]

        def fill(files: Transport) -> None:
            nonlocal missing
            errors = files.fill(missing)
            missing = [part for part, error in zip(missing, errors) if error is not None]
            for error in errors:
                if error is not None:
                    raise error

        if missing:
            url, start, stop = missing[0][0]
            self._try(f"reading bytes {start}:{stop} of {url}", fill)
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


def _empty(nbytes: int) -> Tensor:
    """Memory for bytes. NumPy asks for huge pages, which the kernel clears several times as fast as small ones."""
    content: NDArray[np.uint8] = np.empty(nbytes, dtype=np.uint8)
    return torch.from_numpy(content) if nbytes else torch.empty(0, dtype=torch.uint8)  # which can be viewed as int64


def _parts(group: Sequence[Range], place: memoryview) -> Iterator[Place]:
    """The requests for a group of ranges, and where in its memory the bytes of each go."""
    at = 0
    for url, first, last in group:
        for start in range(first, last, PART_BYTES):
            stop = min(start + PART_BYTES, last)
            yield (url, start, stop), place[at : at + stop - start]
            at += stop - start


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
    if isinstance(error, PermissionError):
        return PermissionError(
            f"{what}: the store refuses it ({error}). Are there credentials (in the environment, in a configuration "
            "file, in storage_options), and do they allow it?"
        )
    return FileNotFoundError(f"{what}: there is no such object, or no such bucket ({error})")
