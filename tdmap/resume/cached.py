"""Results of `map(..., cache=True)`: kept by what made them, and opened instead of computed the next time.

    ~/.cache/tdmap/maps/normalise-0f3a.../           a dataset, as `map(out=folder, resume=True)` writes it
    ~/.cache/tdmap/maps/normalise-0f3a.../.tdmap/used   when it was last asked for

The name ends in a digest of the function, the data and the options, as resume knows them (see `fingerprint`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdmap.data.kinds import Data
from tdmap.errors import AlreadyComplete, FolderInUse
from tdmap.frames import without_warnings
from tdmap.job import function_name
from tdmap.memory.folderlock import locked
from tdmap.memory.hidden import HIDDEN, remove_tree
from tdmap.resume.fingerprint import function_parts, source_parts
from tensordict_lite import TensorDict

VARIABLE, DEFAULT = "TDMAP_CACHE", "~/.cache/tdmap/maps"
"""Where results are kept."""

COUNTS = ("dim", "in_keys", "out_keys", "with_indices", "chunksize", "num_chunks", "seed")
"""Options that results depend on."""

REFUSED = ("out", "device", "resume", "overwrite", "shard", "rows_per_shard", "storage_options", "generator")
"""Options that make no sense beside it."""

_USED = "used"
_NAME = re.compile(r"[\w.-]+-[0-9a-f]{24}")


def cache_folder(cache: bool | str | os.PathLike[str] = True) -> Path:
    """Where results are kept: the path that was given, `$TDMAP_CACHE`, or `~/.cache/tdmap/maps`."""
    given = os.environ.get(VARIABLE) or DEFAULT if isinstance(cache, bool) else os.fspath(cache)
    return Path(os.path.abspath(os.path.expanduser(given)))


def map_cached(run: Callable[..., Any], given: dict[str, Any]) -> Data:
    """What `map` does with `cache`.

    Args:
        run: `map`.
        given: all of its arguments.

    Raises:
        ValueError: an option makes no sense beside it.
    """
    data, fn, cache = (given.pop(name) for name in ("data", "fn", "cache"))
    for name in REFUSED:
        if given[name] not in (None, False):
            raise ValueError(f"cache= keeps the result in a folder of its own, and {name}= has no place there.")
    if not isinstance(given["on_error"], str) or given["on_error"] != "raise":
        raise ValueError("cache= keeps results without errors only: leave on_error= out, or pass out=a folder.")
    called = functools.partial(fn, **given["fn_kwargs"]) if given["fn_kwargs"] else fn
    parts = {
        "function": function_parts(called),
        "data": source_parts(data),
        "options": {name: repr(given[name]) for name in COUNTS},
    }
    digest = hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=12).hexdigest()
    name = re.sub(r"[^\w.-]", "", function_name(fn).rpartition(".")[2])[:40] or "function"
    folder = cache_folder(cache) / f"{name}-{digest}"
    if not (folder / "meta.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with without_warnings(AlreadyComplete):
            run(data, fn, **{**given, "out": folder, "resume": True})
    (folder / HIDDEN / _USED).touch()
    found: Data = TensorDict.load_memmap(folder)
    return found


@dataclass(frozen=True)
class Kept:
    """A result that is kept."""

    path: Path
    nbytes: int
    """On the disk."""
    used: float
    """When it was last asked for, as `time.time()`."""
    is_whole: bool
    """False: a run that was interrupted."""


def kept_results(root: Path) -> list[Kept]:
    """The results in a cache, those that were used last at the end."""
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        if not _NAME.fullmatch(path.name) or path.is_symlink() or not (path / HIDDEN).is_dir():
            continue
        files = [entry for entry in path.rglob("*") if entry.is_file() and not entry.is_symlink()]
        used = path / HIDDEN / _USED
        stamp = (used if used.exists() else path).stat().st_mtime
        found.append(Kept(path, sum(file.stat().st_blocks * 512 for file in files), stamp, used.exists()))
    return sorted(found, key=lambda kept: (kept.used, kept.path))


def prune(root: Path, max_bytes: int | None = None, older_than: float | None = None) -> list[Kept]:
    """Remove results from a cache, those first that have not been used for longest; not those that are being written.

    Args:
        root: the cache.
        max_bytes: until those that are left have no more bytes.
        older_than: those that have not been used for so many seconds.

    Returns:
        What was removed.
    """
    results, removed = kept_results(root), []
    total = sum(kept.nbytes for kept in results)
    for kept in results:
        too_old = older_than is not None and time.time() - kept.used > older_than
        too_much = max_bytes is not None and total > max_bytes
        if not too_old and not too_much:
            continue
        try:
            with locked(kept.path, "tdmap cache prune"):
                remove_tree(kept.path)
        except FolderInUse:
            continue
        total -= kept.nbytes
        removed.append(kept)
    return removed
