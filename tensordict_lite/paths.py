"""Local paths: strings, ``PathLike`` objects and ``file://`` URLs, as opposed to URLs of object stores."""

from __future__ import annotations

import os
from typing import Any


def is_url(path: Any) -> bool:
    """Whether a path is the URL of an object store.

    Example:
        >>> is_url("s3://bucket/set"), is_url("/data/set"), is_url("file:///data/set")
        (True, False, False)
    """
    if not isinstance(path, str) or path.startswith("file://"):
        return False
    scheme, found, _ = path.partition("://")
    return bool(found) and scheme.replace("+", "").replace("::", "").replace("-", "").isalnum()


def local_path(path: str | os.PathLike[str]) -> str:
    """The path of a file or folder, which may be a ``file://`` URL; other URLs are returned unchanged.

    Raises:
        ValueError: a ``file://`` URL without an absolute path.

    Example:
        >>> local_path("file:///data/set"), local_path("data/set"), local_path("s3://bucket/set")
        ('/data/set', 'data/set', 's3://bucket/set')
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text.startswith("file://"):
        return text
    text = text.removeprefix("file://").removeprefix("localhost")
    if not text.startswith("/"):
        raise ValueError(f"a file:// URL names an absolute path, as file:///data/set does: got {os.fspath(path)!r}.")
    return text


def absolute_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a file or folder of this machine.

    Raises:
        ValueError: a URL of an object store, which would be read as a folder below the working directory.

    Example:
        >>> absolute_path("file:///data/set")
        '/data/set'
    """
    text = local_path(path)
    if is_url(text):
        raise ValueError(
            f"a local path is needed, but {text!r} is the URL of a store: tdmap.open() reads datasets there, "
            "and tdmap.map(data, fn, out=URL) writes them."
        )
    return os.path.abspath(text)


def paths_as_text(rows: list[Any]) -> list[Any]:
    """Objects of rows, with strings in place of paths of ``pathlib``: text is what files hold of them."""
    if not any(issubclass(kind, os.PathLike) for kind in set(map(type, rows))):
        return rows
    return [os.fspath(row) if isinstance(row, os.PathLike) else row for row in rows]
