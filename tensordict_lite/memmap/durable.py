"""Writing data to the disk before the metadata that describes it, so that it survives a power failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import META, PICKLES
from tensordict_lite.memmap.disk.mapping import file_of, is_anonymous
from tensordict_lite.memmap.disk.staging import sync_file, sync_files, sync_folder
from tensordict_lite.memmap.nested import shape_file
from tensordict_lite.memmap.text import files_in


def sync_collection(node: Any) -> None:
    """Sync data (tensors, strings, pickled objects), then metadata, then folders, innermost first."""
    folders = list(dict.fromkeys(_folders(node)))
    pickles = [path for folder in folders for name in PICKLES if is_there(path := os.path.join(folder, name))]
    texts = [os.path.join(folder, name) for folder in folders for name in files_in(folder)]
    sync_files(dict.fromkeys([*_files(node), *texts, *pickles]))
    metas = [meta for folder in reversed(folders) if is_there(meta := os.path.join(folder, META))]
    if metas:
        sync_files(metas[:-1])
        sync_file(metas[-1])  # the root's, which makes it a dataset
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
        if path is not None and not is_anonymous(path):
            yield path
            if leaf.is_nested and is_there(table := shape_file(path)):
                yield table


def _folders(node: Any) -> Iterator[str]:
    path = getattr(node, "_memmap_path", None)
    if path:
        yield path
        if is_there(os.path.join(path, "_tensordict", META)):  # the fields of a tensorclass
            yield os.path.join(path, "_tensordict")
    else:
        yield from dict.fromkeys(os.path.dirname(file) for file in _files(node))
    for child in node._nested():
        yield from _folders(child)
