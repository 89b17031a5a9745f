"""Where datasets are, as a command line names them: folders, several of them, and URLs; and who runs a command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.requests import refuse

EXECUTORS = ("process", "thread", "serial", "ray")
"""Who may run a function."""

ExecutorOption = Annotated[str, typer.Option(help="process, thread, serial or ray.")]
AddressOption = Annotated[str | None, typer.Option(help="With ray: the cluster, auto or host:port.")]
ShardOption = Annotated[
    int | None, typer.Option("--rows-per-shard", min=1, help="Write OUT as several folders, of so many rows each.")
]

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


def executor_options(executor: str, address: str | None) -> dict[str, Any]:
    """The options of an operation for who runs it; leaves with why they cannot be."""
    if executor not in EXECUTORS:
        refuse(f"--executor {executor!r}: there are {', '.join(EXECUTORS)}")
    if address is not None and executor != "ray":
        refuse("--address is that of a Ray cluster: use --executor ray with it")
    if executor == "process":
        return {}
    if executor == "ray":
        from tdmap.runtime.crews.cluster import RayCluster

        return {"executor": RayCluster(address=address)}
    return {"executor": executor}


def list_beside(out: Path) -> Path:
    """The file for what is told of a result besides; of one in a store, in the working directory."""
    return (Path.cwd() / out.name if url_of(out) else out).with_name(f"{out.name}.skipped.jsonl")


def output_options(out: Path, overwrite: bool, resume: bool, rows_per_shard: int | None) -> dict[str, Any]:
    """The options of an operation for where its result goes. Tables take no `rows_per_shard`, not even None."""
    options: dict[str, Any] = {"out": place_of(out), "overwrite": overwrite, "resume": resume}
    return options if rows_per_shard is None else {**options, "rows_per_shard": rows_per_shard}
