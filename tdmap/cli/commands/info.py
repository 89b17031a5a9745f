"""The commands ``tdmap info`` and ``tdmap verify``.

Commands that only read end by SIGPIPE when their reader ends.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdmap.cli.answers import DONE, FAILED, answer, asked, say
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.describe import (
    is_branch,
    leaves_of,
    outline,
    shape_of,
    size_of,
    time_types,
    type_name,
)
from tdmap.cli.requests import open_dataset, refuse

if TYPE_CHECKING:
    from tdmap.data.kinds import Data

# -------- tdmap info


WIDEST = 1000
"""Letters of a line, at most."""


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, or file of an archive.")],
) -> None:
    """Show the keys of a dataset with their shapes, types and sizes."""
    end_with_reader()
    data = open_dataset(path)
    total = sum(size for _, _, size in leaves_of(data))
    if asked().json:
        keys = [
            {"key": list(key), "shape": list(shape_of(leaf)), "dtype": type_name(leaf), "bytes": size}
            for key, leaf, size in leaves_of(data)
        ]
        kind = type(data).__name__
        answer({"type": kind, "batch_size": _batch_size(data), "keys": keys, "bytes": total})
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.tree import Tree

    from tensordict_lite.show.options import bytes_text

    shape = _batch_size(data)
    rows = f"{shape[0]:,} rows" if shape else "no rows"
    tree = Tree(f"[bold]{escape(str(path))}[/bold]  {type(data).__name__} {shape}, {rows}")
    _grow(tree, outline(data), time_types(data))
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDEST)  # a narrow terminal wraps lines, which a tree would cut
    console.print(tree)
    console.print(f"total {bytes_text(total)} in {sum(1 for _ in leaves_of(data))} leaves")


def _grow(tree: Any, data: Data, times: dict[str, Any], above: str = "") -> None:
    from rich.markup import escape

    for name in sorted(data.keys()):
        value = data.get(name)
        if is_branch(value):
            branch = tree.add(f"[bold]{escape(name)}[/bold]  {type(value).__name__} {list(value.batch_size)}")
            _grow(branch, value, times, f"{above}{name}.")
        else:
            _add(tree, name, value, times.get(above + name))


def _add(tree: Any, name: str, value: Any, time: Any = None) -> None:
    from rich.markup import escape

    from tensordict_lite.show.options import bytes_text

    size = bytes_text(size_of(value)) if size_of(value) else "-"
    kind = type_name(value) if time is None else f"{type_name(value)}, {time.name}"
    tree.add(f"{escape(name)}  [cyan]{escape(kind)}[/cyan] {escape(str(list(shape_of(value))))}  {size}")


def _batch_size(data: Data) -> list[int]:
    return list(data.batch_size)


# -------- tdmap verify


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, or file of an archive.")],
    store: Annotated[bool, typer.Option("--store", help="Record the checksums of the current files.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of reading threads. Default: the usable cores.")
    ] = None,
) -> None:
    """Compare every byte of a dataset with its stored checksums."""
    from tensordict_lite import DatasetError
    from tensordict_lite.memmap import checksum
    from tensordict_lite.show.options import bytes_text

    end_with_reader()
    open_dataset(path)
    if store:
        recorded = checksum.store(path, threads)
        place = path if path.is_file() else path / checksum.CHECKSUMS
        said = f"stored the checksums of {len(recorded)} files in {place}"
        answer({"stored": len(recorded), "checksums": place}, said)
        return
    if not path.is_file() and not (path / checksum.CHECKSUMS).exists():
        refuse(
            f"{path} has no checksums to check against: store them with `tdmap verify --store {shlex.quote(str(path))}`"
        )
    try:
        report = checksum.verify(path, threads)
    except DatasetError as error:
        refuse(str(error))
    for problem in report.problems:
        say(str(problem))
    checked = f"{report.files} files, {bytes_text(report.nbytes)}"
    problems = [str(problem) for problem in report.problems]
    facts = {"files": report.files, "bytes": report.nbytes, "problems": problems}
    answer(
        facts,
        *([f"{path} matches its checksums: {checked}"] if report.ok else []),
        exit_code=DONE if report.ok else FAILED,
    )
    if not report.ok:
        count = len(report.problems)
        say(f"{path} differs from its checksums: {count} problem{'s'[: count > 1]} in {checked}")
        typer.echo(f"If it was changed on purpose since then: tdmap verify --store {shlex.quote(str(path))}", err=True)
        raise typer.Exit(FAILED)
