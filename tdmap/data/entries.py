"""Entries that users name."""

from __future__ import annotations

import contextlib
import difflib

from tdmap.data.kinds import Data
from tensordict_lite.errors import KeyThroughLeafError
from tensordict_lite.views import is_leaf_nontensor


def require_entry(data: Data, name: str | tuple[str, ...], what: str) -> None:
    """Raise KeyError that names the entries there are, unless `name` is one."""
    with contextlib.suppress(KeyThroughLeafError):
        if data.get(name, None) is not None:
            return
    keys = [key for key, value in data.items(True, True, is_leaf=is_leaf_nontensor)]
    there = ", ".join(repr(key) for key in sorted(keys, key=str)) or "none"
    close = difflib.get_close_matches(str(name), [str(key) for key in keys], 1)
    hint = f" Did you mean {next(key for key in keys if str(key) == close[0])!r}?" if close else ""
    if isinstance(name, tuple) and all(data.get(part, None) is not None for part in name):
        hint = f" A tuple is one nested entry; for several keys pass the list {list(name)!r}."
    raise KeyError(f"{what} is {name!r}, and there is no such entry: there are {there}.{hint}")
