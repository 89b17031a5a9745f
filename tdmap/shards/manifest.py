"""The manifest of a dataset of several folders: a JSON file that says which they are, and what each of them holds.

    {"format": "tdmap.shards", "version": 1, "rows": 250,
     "shards": [{"path": "shard-00000", "rows": 100, "meta": "1f2e3d4c", "bytes": 800}, ...]}

It is written last, in one step: a folder with a manifest holds the whole dataset, one without holds none. The paths are
relative to its folder and stay in it, so that the folder can be moved, and a manifest from outside opens nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from tdmap.memory.hidden import SHARDS
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.format import META, decode_json

MANIFEST = SHARDS
FORMAT = "tdmap.shards"
VERSION = 1


class ShardEntry(NamedTuple):
    """One folder."""

    path: str
    """Relative to that of the manifest, with slashes."""
    rows: int
    meta: str
    """The digest of its metadata (`tdmap.shards.sources.digest_of_bytes`)."""
    bytes: int
    """Of its tensors."""


def why_no_dataset(names: Iterable[str]) -> str:
    """What is said of a folder that is not a dataset, by the names of what it holds."""
    names = sorted(names)
    if any(name.startswith("shard-") for name in names):
        return f"holds shards and no {MANIFEST}: a run into it is unfinished (resume=True resumes it)"
    found = f"it holds {', '.join(names[:3])}" if names else "there is nothing"
    return f"is not a dataset: it has neither {META} nor {MANIFEST} ({found})"


def pack(shards: list[ShardEntry]) -> bytes:
    """The content of a manifest."""
    lines = ",\n  ".join(json.dumps(shard._asdict()) for shard in shards)
    rows = sum(shard.rows for shard in shards)
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "rows": {rows}, "shards": [\n  {lines}\n]}}\n'.encode()


def unpack(path: str, data: bytes) -> list[ShardEntry]:
    """The folders that a manifest lists.

    Args:
        path: how messages call the file.
        data: its content.

    Raises:
        DatasetError: it is no manifest, was edited, or leads out of its folder.
    """
    value: Any = decode_json(path, data)
    if type(value) is not dict or value.get("format") != FORMAT:
        raise DatasetError(path, f'is not a manifest of shards: it lacks "format": "{FORMAT}"')
    if value.get("version") != VERSION:
        raise DatasetError(path, f"version {value.get('version')!r:.40} is not known here (up to {VERSION})")
    entries = value.get("shards")
    if type(entries) is not list or not entries:
        raise DatasetError(path, "lists no shards")
    shards = [_entry(path, entry) for entry in entries]
    seen: set[str] = set()
    for shard in shards:
        if shard.path in seen:
            raise DatasetError(path, f"lists {shard.path!r} twice")
        seen.add(shard.path)
    if value.get("rows") != sum(shard.rows for shard in shards):
        raise DatasetError(path, f"lists {value.get('rows')!r:.40} rows, which differs from its shards; it was edited")
    return shards


def _entry(path: str, entry: object) -> ShardEntry:
    if type(entry) is not dict:
        raise DatasetError(path, f"a shard is an object, found {entry!r:.80}")
    name, rows, meta, size = (entry.get(key) for key in ShardEntry._fields)
    if type(name) is not str or type(meta) is not str or any(type(n) is not int or n < 0 for n in (rows, size)):
        raise DatasetError(path, f"a shard has a path, rows, bytes and a digest: found {entry!r:.80}")
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name or ":" in name:
        raise DatasetError(path, f"the path {name!r} leads out of its folder; a dataset is not followed there")
    return ShardEntry(name, int(rows or 0), meta, int(size or 0))
