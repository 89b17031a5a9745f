"""What tensors do not tell of the columns of a table: their order, and which whole numbers are times.

    out/columns.json    {"day": "date32[day]", "name": "", "seen": "timestamp[us, tz=UTC]"}

The file is there where the order of the entries and their dtypes do not say the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tdmap.data.store import META, OutputFolder
from tdmap.memory.hidden import replace_file
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.format import RESERVED, read_json

FILE = "columns.json"

Types = Mapping[str, str]
"""Names of columns in their order, each with the name of Arrow's type where its dtype does not tell it, else `""`."""


def in_order(names: Iterable[str], types: Types) -> dict[str, str]:
    """The types of all columns, in the order of `types`; those that it does not have come last.

    Example:
        >>> in_order(["x", "day", "y"], {"day": "date32[day]", "y": "", "gone": ""})
        {'day': 'date32[day]', 'y': '', 'x': ''}
    """
    there = dict.fromkeys(names, "")
    known = {name: kind for name, kind in types.items() if name in there}
    return {**known, **there, **known}


def require_same(types: Types, others: Types, where: str) -> None:
    """Raise ValueError where a column has different types in two parts: equal numbers are different times there."""
    for name, kind in types.items():
        other = others.get(name, kind)
        if other != kind:
            told = " and ".join(one or "plain numbers" for one in (kind, other))
            raise ValueError(f"the column {name!r} is {told} in different {where}: cast it to one type before.")


def write_types(store: OutputFolder, types: Types, rows: TensorDict | None, jagged: Iterable[str]) -> None:
    """Put them beside the columns of a dataset that has been made in a folder.

    Args:
        store: the folder.
        types: of the columns; none where nothing is known.
        rows: the columns of tensors, if there are any.
        jagged: names of the others.
    """
    order = [*names_of(rows), *jagged]
    if any(types.values()) or (types and (list(types) != order or not RESERVED.isdisjoint(order))):
        store.attach(FILE, _as_json(types))


def carry_types(source: Path, out: Path, names: Iterable[str] | None = None) -> None:
    """Put what is known of the columns of a dataset beside those of another one, where both are folders.

    Args:
        source, out: their folders; the second has been made of rows of the first.
        names: of the columns that both have. None: all of them.
    """
    types = read_types(source)
    known = types if names is None else {name: types[name] for name in names if name in types}
    if known and Path(out, META).exists():
        replace_file(Path(os.path.realpath(out), FILE), _as_json(known), durable=False)


def _as_json(types: Types) -> bytes:
    return json.dumps(types, ensure_ascii=False).encode("utf-8", "surrogatepass")


def names_of(rows: TensorDict | None) -> list[str]:
    """Names of columns of tensors; those of nested ones joined by dots."""
    return [] if rows is None else [joined(key) for key in rows.keys(True, True)]


def joined(key: str | tuple[str, ...]) -> str:
    """The name of a column by its key."""
    return key if isinstance(key, str) else ".".join(key)


def read_types(folder: str | os.PathLike[str]) -> Types:
    """Those that lie in the folder of a dataset; none where there is no such file, as in an archive.

    Raises:
        DatasetError: something else is in its place.
    """
    if not os.path.isdir(folder):
        return {}
    path = os.path.join(os.fspath(folder), FILE)
    try:
        found = read_json(path, os.fspath(folder))
    except DatasetNotFoundError:
        return {}
    if not isinstance(found, dict) or not all(isinstance(kind, str) for kind in found.values()):
        raise DatasetError(path, "does not say of columns which types they have")
    return found
