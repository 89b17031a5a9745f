"""The files of a folder or bucket that belong to its dataset: only these are ever replaced or removed.

    meta.json             lists the tensors and the nested collections of its folder
    shards.json           lists folders, each with a ``meta.json``
    .tdmap/               state of runs; its data/meta.json lists a dataset that is being moved into place
    checksums.json, columns.json, pictures.json (and files/, skipped.jsonl)    written next to a dataset

Other files belong to the user. A call that replaces a dataset fails if such a file exists (:func:`require_only`),
before any work is done. A file that appears later is kept (:func:`put_away`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.files import is_there, refuse_link
from tensordict_lite.memmap.disk.format import (
    META,
    PICKLES,
    SUFFIX,
    TEXTS,
    NodeMeta,
    decode_json,
    encode_key,
    parse_content,
    raw_key,
    read_small,
)

STALE = re.compile(r"\.tdlite-([0-9a-f]{8})-(\d+)-[0-9a-f]{8}$")
"""Suffix of a file or folder that a save writes: its machine and process."""
_UNFINISHED = re.compile(r"\..*\.[0-9a-f]{12}\.tmp")

SHARDS, HIDDEN, PICTURES = "shards.json", ".tdmap/", "pictures.json"
MOVING = f"{HIDDEN}data/"
CHECKSUMS = "checksums.json"
_OF_FORMATS = ("columns.json", PICTURES)
BESIDE = (CHECKSUMS, *_OF_FORMATS)

_MOST = 1 << 28  # maximum bytes of a manifest


def is_temporary(name: str) -> bool:
    """Whether a save (possibly a killed one) wrote this file or folder and has not renamed it."""
    return bool(STALE.search(name) or _UNFINISHED.fullmatch(name))


def owned(names: Iterable[str], read: Callable[[list[str]], list[bytes]]) -> set[str]:
    """The files of a folder that belong to its dataset.

    Args:
        names: paths of all files in the folder, relative to it, with slashes.
        read: returns the contents of some of these files.

    Raises:
        DatasetError: metadata are damaged.
    """
    names = set(names)
    found = {name for name in names if name.startswith(HIDDEN) or any(map(is_temporary, name.split("/")))}
    level = [""]
    if not names.isdisjoint((META, SHARDS, MOVING + META)):
        found.update((SHARDS, f"{SHARDS}.new", *BESIDE))
    if SHARDS in names:
        level += [f"{path}/" for path in _shards(read([SHARDS])[0])]
    if PICTURES in names:
        found.add("skipped.jsonl")
        level.append("files/")
    while level:
        metas = [path for folder in level for path in (f"{folder}{META}", f"{MOVING}{folder}{META}") if path in names]
        level = []
        for path, content in zip(metas, read(metas)):
            folder = path.removeprefix(MOVING).removesuffix(META)
            meta = parse_content(path, folder.rstrip("/"), content)
            found.add(f"{folder}{META}")
            found.update(f"{folder}{file}" for file in _files(meta))
            level += [f"{folder}{child}/" for child in _children(meta, folder, names)]
        gone = tuple(folder for folder in level if f"{folder}{META}" not in names)
        # Killed while it was removed.
        found.update(name for name in names if name.endswith("/") and name.startswith(gone))
    return found & names


def _shards(content: bytes) -> list[str]:
    value = decode_json(SHARDS, content)
    entries = value.get("shards") if type(value) is dict else None
    paths = [entry.get("path") for entry in entries if type(entry) is dict] if type(entries) is list else []
    return [path for path in paths if type(path) is str]


def _files(meta: NodeMeta) -> Iterator[str]:
    for key in meta.leaves:
        for stem in filter(None, (encode_key(key), raw_key(key))):
            yield f"{stem}{SUFFIX}"
            yield f"{stem}.shape{SUFFIX}"
            yield f"{stem}.offsets{SUFFIX}"
    if meta.kind == "text":
        listed = meta.raw.get("files")
        yield from map(str, listed if type(listed) is list else ())
    if meta.kind.startswith("nontensor"):
        yield from PICKLES
        yield from TEXTS


def _children(meta: NodeMeta, folder: str, names: set[str]) -> Iterator[str]:
    if meta.kind == "tensorclass":
        yield "_tensordict"
    elif meta.kind == "lazystack":
        length = meta.raw.get("_length")
        for number in range(length) if type(length) is int and length <= len(names) else _inner(folder, names):
            yield str(number)
    elif not meta.lists_children:
        yield from _inner(folder, names)
    for key in meta.children:
        yield from filter(None, {encode_key(key), raw_key(key)})


def _inner(folder: str, names: set[str]) -> set[str]:
    """Names of the folders in a folder: early versions of tensordict do not list them in the metadata."""
    below = (name[len(folder) :] for name in names if name.startswith(folder))
    return {name.partition("/")[0] for name in below if "/" in name and not name.startswith(HIDDEN)}


def files_below(folder: str) -> list[str]:
    """Relative paths of all files in a folder, including links, which are not followed, and empty folders."""
    found: list[str] = []
    pending = [""]
    while pending:
        inner = pending.pop()
        try:
            with os.scandir(f"{folder}/{inner}") as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            if not inner:
                raise
            continue  # such as the hidden folder of a call that has just ended
        if inner and not listed:
            found.append(inner)  # with a trailing slash
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{inner}{entry.name}/")
            else:
                found.append(f"{inner}{entry.name}")
    return found


def complete_files(folder: str) -> list[str]:
    """:func:`files_below` without folders, and without what saves have not renamed."""
    names = files_below(folder)
    return [name for name in names if name[-1] != "/" and not any(map(is_temporary, name.split("/")))]


def reader_of(folder: str) -> Callable[[list[str]], list[bytes]]:
    """A function that reads files of a folder for :func:`owned`."""
    return lambda paths: [read_small(f"{folder}/{path}", folder, _MOST) for path in paths]


def others_in(folder: str, find: Callable[[list[str]], set[str]] | None = None) -> list[str]:
    """Files and empty folders in a folder that do not belong to its dataset.

    Other calls may be replacing the dataset, so that a look finds a part of the old and of the new one: where it finds
    something or fails, it is repeated until it does that twice in the same way.

    Args:
        folder: its path.
        find: as for :func:`put_away`.

    Raises:
        DatasetError: its metadata are damaged.
        OSError: it cannot be listed.
    """
    before: object = None
    while True:
        try:
            names = files_below(folder)
            ours = owned(names, reader_of(folder)) if find is None else find(names)
        except (OSError, DatasetError) as error:
            if str(error) == before:
                raise
            before = str(error)
        else:
            found = sorted(set(names) - ours)
            if not found or found == before:
                return found
            before = found


def left_by(folder: str, new: set[str]) -> tuple[set[str], bool]:
    """Files of the dataset in a folder that a new one lacks, and whether the folder holds other files.

    Args:
        folder: its path.
        new: paths of the files of the new dataset, relative to it.
    """
    listed = set(os.listdir(folder))
    if not listed.isdisjoint((SHARDS, *_OF_FORMATS)):  # may hold millions of files
        return listed & {CHECKSUMS}, True
    names = set(files_below(folder))
    rest = names - new
    if not rest:
        return set(), False
    try:
        ours = owned(names, reader_of(folder))
    except DatasetError:
        return set(), True
    return rest & ours, not rest <= ours


def require_only(folder: str) -> None:
    """Raise FileExistsError unless a folder holds a dataset and no other files."""
    refuse_others(folder, lambda: others_in(folder))
    refuse_part(folder)


def refuse_part(folder: str) -> None:
    """Raise FileExistsError if a folder belongs to the dataset in its parent."""
    parent, name = os.path.split(os.path.realpath(folder))
    if not is_there(f"{parent}/{META}", follow=False) and not is_there(f"{parent}/{SHARDS}", follow=False):
        return
    metas = [path for path in (META, SHARDS, f"{name}/{META}") if is_there(f"{parent}/{path}", follow=False)]
    is_part = False
    with contextlib.suppress(DatasetError, OSError):
        is_part = f"{name}/{META}" in owned(metas, reader_of(parent))
    if is_part:
        raise FileExistsError(f"{folder} is a part of the dataset in {parent}, which would lose it: choose another.")


def refuse_others(where: str, find: Callable[[], list[str]]) -> None:
    """Raise FileExistsError if there are files other than those of the dataset to be replaced."""
    try:
        others = find()
    except DatasetError as error:
        raise FileExistsError(
            f"{where} cannot be replaced, because its metadata do not tell which files are its own ({error}): remove "
            "what you do not need, or choose another place."
        ) from error
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3:,} more" if len(others) > 3 else "")
        raise FileExistsError(
            f"{where} holds {shown} beside the files that the metadata of its dataset list, and only these are "
            "replaced: nothing was changed. Move the others away, or choose another place."
        )


def put_away(old: str, place: str, find: Callable[[list[str]], set[str]] | None = None) -> None:
    """Remove a replaced dataset; files that do not belong to it are moved to the new one.

    If the new dataset has a file of the same name, the old folder is kept with that file.

    Args:
        old: the folder.
        place: folder of the new dataset.
        find: selects the files of the dataset; by default :func:`owned`.

    Raises:
        DatasetError: the old folder is a symbolic link.
    """
    refuse_link(old)
    try:
        names = files_below(old)
    except FileNotFoundError:
        return
    ours = owned(names, reader_of(old)) if find is None else find(names)
    if all(name.endswith("/") for name in names):  # a process was killed after removing the files
        ours = set(names)
    for name in set(names) - ours:
        target = f"{place}/{name}".rstrip("/")
        within = os.path.join(os.path.realpath(place), os.path.dirname(name.rstrip("/"))).rstrip("/")
        if not is_there(target, follow=False) and os.path.realpath(os.path.dirname(target)) == within:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(f"{old}/{name}".rstrip("/"), target)
    for name in sorted(ours, key=_rank):
        with contextlib.suppress(FileNotFoundError):  # a save that started in the old folder removes its own files
            os.rmdir(f"{old}/{name}") if name.endswith("/") else os.unlink(f"{old}/{name}")
    for folder, _, _ in os.walk(old, topdown=False):
        with contextlib.suppress(OSError):  # not empty: kept
            os.rmdir(folder)


def remove_emptied(root: str, files: Iterable[str], keep: Iterable[str] = ()) -> None:
    """Remove the folders below ``root`` that removed files lay in, where nothing else is in them."""
    folders: set[str] = set()
    for file in files:
        while file := file.rpartition("/")[0]:
            folders.add(file)
    for folder in sorted(folders.difference(keep), key=len, reverse=True):
        with contextlib.suppress(OSError):  # not empty: it stays
            os.rmdir(f"{root}/{folder}")


def _rank(name: str) -> tuple[bool, bool, int]:
    """The order of removal: after a kill, the metadata that list the remaining files are still there."""
    is_list = name.rpartition("/")[2] in (META, SHARDS, PICTURES)
    return is_list, name.startswith(HIDDEN), -name.count("/") - (name == PICTURES)
