"""What formats are read and written with: packages that only some need, and files, local or of a URL."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any


def need(module: str, extra: str, purpose: str) -> Any:
    """Import a package of an extra.

    Args:
        module: what to import.
        extra: of tdmap, that brings it.
        purpose: what it is needed for, as the beginning of a sentence.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if error.name not in (package, module):
            raise  # it is there, and something that it needs is not
        raise ImportError(
            f"{purpose} needs the package {package}: install it with `pip install 'tdmap[{extra}]'`", name=package
        ) from None


@contextlib.contextmanager
def opened(path: str, mode: str = "rb") -> Iterator[Any]:
    """A file, local or of a URL. A local one that is written takes its place when the block succeeds."""
    if "://" in path:
        with need("fsspec", "arrow", "reading and writing URLs").open(path, mode) as file:
            yield file
        return
    if mode == "rb":
        with open(path, mode) as file:
            yield file
        return
    partial = f"{path}.tdmap-{os.getpid()}"
    try:
        with open(partial, mode) as file:
            yield file
        os.replace(partial, path)
    finally:
        if os.path.lexists(partial):
            os.unlink(partial)
