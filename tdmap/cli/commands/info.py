"""The commands ``tdmap info`` and ``tdmap verify``.

Commands that only read end by SIGPIPE when their reader ends.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import DONE, FAILED, answer, asked, say
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.outline import Outline, bytes_text, outline_of, read_outline
from tdmap.cli.requests import open_dataset, refuse
from tdmap.memory.hidden import printable

# -------- tdmap info


WIDEST = 1000
"""Letters of a line, at most."""


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, or file of an archive.")],
) -> None:
    """Show the keys of a dataset with their shapes, types and sizes."""
    end_with_reader()
    found = read_outline(path) or outline_of(open_dataset(path))
    leaves = list(found.leaves())
    total = sum(leaf.bytes for _, leaf in leaves)
    if asked().json:
        keys = [
            {"key": list(key), "shape": leaf.shape, "dtype": leaf.kind, "bytes": leaf.bytes} for key, leaf in leaves
        ]
        answer({"type": found.kind, "batch_size": found.shape, "keys": keys, "bytes": total})
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.tree import Tree

    rows = f"{found.shape[0]:,} rows" if found.shape else "no rows"
    tree = Tree(f"[bold]{escape(str(path))}[/bold]  {found.kind} {found.shape}, {rows}")
    _grow(tree, found)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDEST)  # a narrow terminal wraps lines, which a tree would cut
    console.print(tree)
    console.print(f"total {bytes_text(total)} in {len(leaves)} leaves")


def _grow(tree: Any, above: Outline) -> None:
    from rich.markup import escape

    for key, entry in (above.entries or {}).items():
        name = escape(printable(key))
        if entry.entries is not None:
            _grow(tree.add(f"[bold]{name}[/bold]  {entry.kind} {entry.shape}"), entry)
            continue
        kind = entry.kind if entry.time is None else f"{entry.kind}, {entry.time}"
        size = bytes_text(entry.bytes) if entry.bytes else "-"
        tree.add(f"{name}  [cyan]{escape(printable(kind))}[/cyan] {escape(str(entry.shape))}  {size}")


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
