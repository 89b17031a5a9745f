"""The command line, its commands ``tdmap info PATH`` and ``tdmap verify PATH``; the others are in files of their own.

Commands that only read end by SIGPIPE when nobody reads on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap import _entry
from tdmap.cli_answers import DONE, FAILED, Commands, answer, asked, say
from tdmap.cli_requests import open_dataset, refuse

EXIT_CODES = """\b
Exit codes:
  0    done; rows that --skip-errors has skipped are counted and listed
  1    the run failed: a function raised, a worker was lost, bytes differ
  2    refused, and nothing was written: no such dataset or option
  130  stopped by Ctrl-C
"""

WIDEST = 1000
"""Letters of a line of `tdmap info`, at most."""

app = typer.Typer(
    name="tdmap",
    cls=Commands,
    rich_markup_mode=None,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
) -> None:
    """Show the keys of a dataset with their shapes, types and sizes."""
    end_with_reader()
    data = open_dataset(path)
    total = sum(size for _, _, size in _leaves(data))
    if asked().json:
        keys = [
            {"key": list(key), "shape": list(_shape(leaf)), "dtype": _type_name(leaf), "bytes": size}
            for key, leaf, size in _leaves(data)
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


from tdmap import (  # noqa: E402, F401  # their commands belong to `app`
    cli_bench,
    cli_cache,
    cli_completion,
    cli_convert,
    cli_datasets,
    cli_folds,
    cli_head,
    cli_map,
    cli_orders,
    cli_profile,
    cli_resume,
    cli_stats,
    cli_top,
)
