"""The commands ``tdmap info PATH`` and ``tdmap verify PATH``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli_answers import DONE, FAILED, answer, asked, say
from tdmap.cli_app import app, end_with_reader
from tdmap.cli_requests import open_dataset, refuse

WIDEST = 1000
"""Letters of a line of `tdmap info`, at most."""


# -------- tdmap info


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
            {"key": list(key), "shape": list(_shape(leaf)), "dtype": type_name(leaf), "bytes": size}
            for key, leaf, size in leaves_of(data)
        ]
        kind = type(data).__name__
        answer({"type": kind, "batch_size": list(data.batch_size), "keys": keys, "bytes": total})
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.tree import Tree

    rows = f"{data.batch_size[0]:,} rows" if len(data.batch_size) else "no rows"
    tree = Tree(f"[bold]{escape(str(path))}[/bold]  {type(data).__name__} {list(data.batch_size)}, {rows}")
    _grow(tree, data)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDEST)  # a narrow terminal wraps lines, which a tree would cut
    console.print(tree)
    console.print(f"total {human_bytes(total)} in {sum(1 for _ in leaves_of(data))} leaves")


def _grow(tree: Any, data: Any) -> None:
    from rich.markup import escape

    for name in sorted(data.keys()):
        value = data.get(name)
        if _is_branch(value):
            branch = tree.add(f"[bold]{escape(name)}[/bold]  {type(value).__name__} {list(value.batch_size)}")
            _grow(branch, value)
        else:
            size = human_bytes(_size(value)) if _size(value) else "-"
            tree.add(f"{escape(name)}  [cyan]{type_name(value)}[/cyan] {escape(str(list(_shape(value))))}  {size}")


def leaves_of(data: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    for name in sorted(data.keys()):
        value = data.get(name)
        if _is_branch(value):
            yield from leaves_of(value, (*prefix, name))
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


def type_name(value: Any) -> str:
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
        said = f"stored the checksums of {len(recorded)} files in {place}"
        answer({"stored": len(recorded), "checksums": place}, said)
        return
    if not path.is_file() and not (path / checksum.CHECKSUMS).exists():
        refuse(f"{path} has no checksums to check against: store them with `tdmap verify --store {path}`")
    try:
        report = checksum.verify(path, threads)
    except DatasetError as error:
        refuse(str(error))
    for problem in report.problems:
        say(str(problem))
    checked = f"{report.files} files, {human_bytes(report.nbytes)}"
    problems = [str(problem) for problem in report.problems]
    facts = {"files": report.files, "bytes": report.nbytes, "problems": problems}
    answer(
        facts,
        *([f"{path} is as it was saved: {checked}"] if report.ok else []),
        exit_code=DONE if report.ok else FAILED,
    )
    if not report.ok:
        count = len(report.problems)
        say(f"{path} is not as it was saved: {count} problem{'s'[: count > 1]} in {checked}")
        typer.echo(f"If it was changed on purpose since then: tdmap verify --store {path}", err=True)
        raise typer.Exit(FAILED)
