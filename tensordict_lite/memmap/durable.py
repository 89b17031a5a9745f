"""Making what was written survive a power failure: data on the disk before the metadata that describes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tensordict_lite.memmap.format import META
from tensordict_lite.memmap.mapping import file_of
from tensordict_lite.memmap.staging import sync_file, sync_files, sync_folder

__all__ = ["sync_collection"]


def sync_collection(node: Any) -> None:
    """Syncs the files of every mapped tensor, then the metadata, then the folders, innermost first."""
    sync_files(dict.fromkeys(_files(node)))
    folders = list(dict.fromkeys(_folders(node)))
    metas = [meta for folder in reversed(folders) if os.path.exists(meta := os.path.join(folder, META))]
    if metas:
        sync_files(metas[:-1])
        sync_file(metas[-1])  # that of the root, which makes it a dataset
    for folder in reversed(folders):
        sync_folder(folder)
    if folders:
        sync_folder(os.path.dirname(folders[0]))


def _files(node: Any) -> Iterator[str]:
    for leaf in node._leaves():
        if leaf.device.type != "cpu":
            continue
        values = leaf._buffer if hasattr(leaf, "_buffer") else leaf.values() if leaf.is_nested else leaf
        path = file_of(values.untyped_storage())
        if path is not None and not path.startswith("/proc/"):
            yield path


def _folders(node: Any) -> Iterator[str]:
    path = getattr(node, "_memmap_path", None)
    if path:
        yield path
    else:
        yield from dict.fromkeys(os.path.dirname(file) for file in _files(node))
    for child in node._nested():
        yield from _folders(child)
