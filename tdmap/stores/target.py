"""A place in an object store, where a dataset of shards is written (see `Target` in `tdmap.output.store`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tdmap.data.kinds import Data
from tdmap.memory.hidden import HIDDEN
from tdmap.memory.scratch import temporary_folder
from tdmap.stores.store import Store, require_reachable, store_of
from tensordict_lite.memmap.disk.format import META
from tensordict_lite.memmap.plan import SaveOptions, plan_for


class StoreTarget:
    """A place in an object store. A shard is made in the worker's memory, or in its temporary folder, and sent."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.name = url.rstrip("/")
        self.options = options

    def __getstate__(self) -> dict[str, Any]:
        require_reachable(self.name)
        return self.__dict__

    def _store(self) -> Store:
        return store_of(self.name, self.options)

    def names(self) -> set[str]:
        return set(self._store().names(self.name))

    def listing(self) -> tuple[list[str], Callable[[list[str]], list[bytes]]]:
        store, name = self._store(), self.name
        found = store.find(name)
        return list(found), lambda paths: [
            content.numpy().tobytes()
            for content in store.fetch([[(f"{name}/{path}", 0, found[path][0])] for path in paths])
        ]

    def read(self, path: str) -> bytes | None:
        return self._store().content_if_any(f"{self.name}/{path}")

    def notes(self, run: str) -> dict[int, bytes]:
        store, folder = self._store(), f"{self.name}/{HIDDEN}/{run}"
        names = [name for name in store.names(folder) if name.isdecimal()]
        return {int(name): store.content(f"{folder}/{name}") for name in names}

    def write(self, path: str, data: bytes) -> None:
        self._store().put(f"{self.name}/{path}", data)

    def write_shard(self, path: str, make: Callable[[str], Data]) -> bytes:
        with temporary_folder("tdmap-shard") as scratch:
            folder = f"{scratch}/shard"
            make(folder)
            files = [os.path.join(root, file) for root, _, found in os.walk(folder) for file in found]
            names = [os.path.relpath(file, folder) for file in files]
            pairs = [(file, name) for file, name in zip(files, names) if not name.startswith(HIDDEN)]
            store = self._store()
            store.send({f"{self.name}/{path}/{name}": file for file, name in pairs if name != META})
            meta = Path(folder, META).read_bytes()
            store.put(f"{self.name}/{path}/{META}", meta)
        return meta

    def write_rows(self, path: str, rows: Data, buffers: dict[int, bytearray]) -> bytes:
        plan, where, store = plan_for(rows, SaveOptions()), f"{self.name}/{path}", self._store()
        small: dict[str, bytes] = {}
        objects = {leaf.file: buffers[leaf.tensor.data_ptr()] for leaf in plan.leaves if leaf.nbytes}
        for folder in plan.folders:
            small.update({folder.join(name): bytes(content) for name, content in folder.contents().items()})
        meta = small.pop(META)
        store.put_all({f"{where}/{name}": data for name, data in (objects | small).items()})
        store.put(f"{where}/{META}", meta)
        return meta

    def turn(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def remove(self, files: Iterable[str]) -> None:
        self._store().remove([f"{self.name}/{file}" for file in files])

    def remove_state(self, *paths: str) -> None:
        known = [f"{HIDDEN}/{name}" for name in self._store().find(f"{self.name}/{HIDDEN}")]
        folders = tuple(f"{path}/" for path in paths)
        self.remove([name for name in known if name in paths or name.startswith(folders)])
