"""The command line: ``tdmap info PATH``, ``tdmap verify PATH`` and ``tdmap map module:function IN OUT``.

Exit codes: 0 done; 1 the run failed (the function raised, a worker was lost); 2 the request cannot be met as
it stands (not a dataset, no such function, an output in the way), and nothing was written; 130 stopped by
Ctrl-C. Commands that only read end by SIGPIPE when nobody reads on.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap import _entry
from tdmap.cli_requests import FAILED, open_dataset, refuse

app = typer.Typer(
    name="tdmap",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look at memory-mapped tensor datasets, and map functions over them on every core.",
)


def main() -> None:
    """Entry point of the ``tdmap`` command."""
    global _is_program
    _is_program = True
    _entry.ready()
    app()


_is_program = False


def end_with_reader() -> None:
    """End quietly when whoever reads our output has seen enough, as in ``tdmap info photos | head -1``.

    By the signal, like other commands of a pipe. Only for commands that read: to a run, a pipe that breaks is that of
    a worker.
    """
    if _is_program:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"tdmap {version('tdmap')}")
        except PackageNotFoundError:
            typer.echo("tdmap, from a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# -------- tdmap info


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, or file of an archive.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a tree.")] = False,
) -> None:
    """Show the keys of a dataset with their shapes, types and sizes."""
    end_with_reader()
    data = open_dataset(path)
    total = sum(size for _, _, size in _leaves(data))
    if as_json:
        keys = [
            {"key": list(key), "shape": list(_shape(leaf)), "dtype": _type_name(leaf), "bytes": size}
            for key, leaf, size in _leaves(data)
        ]
        kind = type(data).__name__
        typer.echo(json.dumps({"type": kind, "batch_size": list(data.batch_size), "keys": keys, "bytes": total}))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.tree import Tree

    rows = f"{data.batch_size[0]:,} rows" if len(data.batch_size) else "no rows"
    tree = Tree(f"[bold]{escape(str(path))}[/bold]  {type(data).__name__} {list(data.batch_size)}, {rows}")
    _grow(tree, data)
    console = Console(highlight=False, soft_wrap=True)
    console.print(tree)
    console.print(f"total {human_bytes(total)} in {sum(1 for _ in _leaves(data))} leaves")


def _grow(tree: Any, data: Any) -> None:
    from rich.markup import escape

    for name in sorted(data.keys()):
        value = data.get(name)
        if _is_branch(value):
            branch = tree.add(f"[bold]{escape(name)}[/bold]  {type(value).__name__} {list(value.batch_size)}")
            _grow(branch, value)
        else:
            size = human_bytes(_size(value)) if _size(value) else "-"
            tree.add(f"{escape(name)}  [cyan]{_type_name(value)}[/cyan] {escape(str(list(_shape(value))))}  {size}")


def _leaves(data: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    for name in sorted(data.keys()):
        value = data.get(name)
        if _is_branch(value):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value, _size(value)


def _is_branch(value: Any) -> bool:
    from tensordict_lite import is_non_tensor, is_tensor_collection

    return bool(is_tensor_collection(value)) and not is_non_tensor(value)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _size(value: Any) -> int:
    import torch

    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _type_name(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return str(dtype).removeprefix("torch.") if dtype is not None else f"{type(value).__name__} (not a tensor)"


def human_bytes(size: int) -> str:
    """Write a number of bytes for people.

    Example:
        >>> human_bytes(1_572_864)
        '1.5 MiB'
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if unit != "B" else f"{size} B"
        value /= 1024
    return f"{value:.3g} TiB"


# -------- tdmap verify


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, or file of an archive.")],
    store: Annotated[bool, typer.Option("--store", help="Record the checksums of the files as they are now.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that read; default: the usable cores.")] = None,
) -> None:
    """Check every byte of a dataset against the checksums that were stored with it."""
    from tensordict_lite import DatasetError
    from tensordict_lite.memmap import checksum

    end_with_reader()
    open_dataset(path)
    if store:
        recorded = checksum.store(path, threads)
        place = path if path.is_file() else path / checksum.CHECKSUMS
        typer.echo(f"stored the checksums of {len(recorded)} files in {place}")
        return
    if not path.is_file() and not (path / checksum.CHECKSUMS).exists():
        refuse(f"{path} has no checksums to check against: store them with `tdmap verify --store {path}`")
    try:
        report = checksum.verify(path, threads)
    except DatasetError as error:
        refuse(str(error))
    for problem in report.problems:
        typer.secho(f"tdmap: {problem}", fg=typer.colors.RED, err=True)
    checked = f"{report.files} files, {human_bytes(report.nbytes)}"
    if not report.ok:
        count = len(report.problems)
        typer.secho(f"tdmap: {path} is not as it was saved: {count} problem{'s'[: count > 1]} in {checked}", err=True)
        typer.echo(f"If it was changed on purpose since then: tdmap verify --store {path}", err=True)
        raise typer.Exit(FAILED)
    typer.echo(f"{path} is as it was saved: {checked}")


from tdmap import (  # noqa: E402, F401  # their commands belong to `app`
    cli_cache,
    cli_datasets,
    cli_head,
    cli_map,
    cli_profile,
    cli_resume,
    cli_stats,
    cli_top,
)
