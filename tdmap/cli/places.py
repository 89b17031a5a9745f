"""Where datasets are, as a command line names them: folders, several of them, and URLs; and who runs a command."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tdmap.cli.requests import refuse

EXECUTORS = ("process", "thread", "serial", "ray")
"""Who may run a function."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+-]+):/+(?=[^/])")


def url_of(path: Path | str) -> str | None:
    """The URL that a path of the command line is, whose slashes `Path` has taken for one; None for a folder.

    Example:
        >>> url_of(Path("s3://bucket/set")), url_of(Path("folder/set"))
        ('s3://bucket/set', None)
    """
    found = _URL.match(str(path))
    if found is None or Path(path).exists():
        return None
    return f"{found[1]}://{str(path)[found.end() :]}"


def place_of(path: Path) -> Path | str:
    """A folder, or a URL, as operations take it for `out`."""
    return url_of(path) or path


def sources_of(path: Path) -> list[Path | str]:
    """The folders and URLs that one argument names: several are separated by commas.

    Example:
        >>> [str(source) for source in sources_of(Path("a,s3://bucket/b"))]
        ['a', 's3://bucket/b']
    """
    if Path(path).exists() or "," not in str(path):
        return [place_of(path)]
    return [place_of(Path(one)) for one in str(path).split(",") if one]


def text_of(path: Path) -> str:
    """How a command that is called again elsewhere names these sources."""
    return ",".join(one if isinstance(one, str) else str(one.resolve()) for one in sources_of(path))


def executor_of(name: str, address: str | None) -> Any:
    """The `executor` of an operation; that of a cluster, where its address is given."""
    if name not in EXECUTORS:
        refuse(f"--executor {name!r}: choose one of {', '.join(EXECUTORS)}")
    if address is None:
        return name
    from tdmap.runtime.executors.raycluster import RayCluster

    return RayCluster(address=address)


def list_beside(out: Path) -> Path:
    """The file for what is told of a result besides; of one in a store, in the working directory."""
    return (Path.cwd() / out.name if url_of(out) else out).with_name(f"{out.name}.skipped.jsonl")


def require_free(out: Path, source: Path, overwrite: bool) -> None:
    """Leave where OUT is in the way: the source, something within it, or what is not to be replaced."""
    if url_of(out) is not None:
        return  # the operation says what is there
    from tdmap.memory.hidden import HIDDEN

    folders = [one.resolve() for one in sources_of(source) if isinstance(one, Path)]
    if out.resolve() in folders:
        refuse("OUT is IN; use --in-place to change a dataset")
    if set(folders) & set(out.resolve().parents):
        refuse(f"{out} is inside IN; choose another folder")
    if os.path.lexists(out) and not out.is_dir():
        refuse(f"{out} exists, and is a file; choose another path")
    if out.exists():
        is_dataset = (out / "meta.json").exists() or (out / "shards.json").exists()
        if is_dataset and not overwrite:
            refuse(f"{out} exists; choose another folder, or --overwrite")
        names = os.listdir(out)
        if not is_dataset and names and HIDDEN not in names:  # else of a run: the engine says which
            refuse(f"{out} exists and is not a dataset: choose another folder, or remove it")
