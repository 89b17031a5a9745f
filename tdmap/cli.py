"""The command line: ``tdmap info PATH``, ``tdmap verify PATH`` and ``tdmap map module:function IN OUT``.

Exit codes: 0 done; 1 the run failed (the function raised, a worker was lost); 2 the request cannot be met as
it stands (not a dataset, no such function, an output in the way), and nothing was written; 130 stopped by
Ctrl-C.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(
    name="tdmap",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look at memory-mapped tensor datasets, and map functions over them on every core.",
)

FAILED, BAD_REQUEST, INTERRUPTED = 1, 2, 130


def main() -> None:
    """Entry point of the ``tdmap`` command."""
    app()


def refuse(message: str) -> NoReturn:
    """Say why the request cannot be met and leave with exit code 2."""
    typer.secho(f"tdmap: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(BAD_REQUEST)


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


# -------- tdmap map


@app.command("map")
def map_command(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What to run on each chunk.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="Folder of the dataset.")],
    out: Annotated[Path | None, typer.Argument(metavar="[OUT]", help="Folder for the result.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes; as many as usable cores.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change IN itself; no OUT.")] = False,
    chunksize: Annotated[int | None, typer.Option(min=0, help="Rows the function gets at a time.")] = None,
    start_method: Annotated[str | None, typer.Option(help="fork, forkserver or spawn.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT when it is a dataset.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep a journal; go on after an interruption.")] = False,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Go on after rows on which the function raises, and list them.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")] = False,
) -> None:
    """Run a function on every row of a dataset, on several processes.

    The function gets a chunk of rows and returns the new ones, or changes the chunk and returns nothing
    (with --in-place). MODULE may be a module, the working directory included, or the path of a .py file.
    """
    if in_place == (out is not None):
        refuse("give OUT, or --in-place: exactly one of them")
    if start_method not in (None, "fork", "forkserver", "spawn"):
        refuse(f"--start-method {start_method!r}: there are fork, forkserver and spawn")
    if resume and overwrite:
        refuse("--resume goes on with what is in OUT, and --overwrite removes it: give one of them")
    fn = find_function(function)
    data = open_dataset(source)
    if not len(data.batch_size):
        refuse(f"{source} has batch size [], so there are no rows to map over")
    options: dict[str, Any] = {
        "num_workers": workers,
        "chunksize": chunksize,
        "mp_start_method": start_method,
        "pbar": not quiet,
        "on_error": "skip" if skip_errors else "raise",
    }
    if resume:
        from tdmap.cli_resume import map_resumable

        if out is None:
            _require_writable(source)
        command = {"function": function, "source": str(source.resolve()), "cwd": os.getcwd(), "options": options}
        map_resumable(data, fn, out, options, command)
        summary = f"{data.batch_size[0]:,} rows done in {out or source}"
    elif out is None:
        _require_writable(source)
        guard(lambda: data.map(fn, **options), "rows that were done stay done")
        summary = f"{data.batch_size[0]:,} rows changed in {source}"
    else:
        _map_into(data, fn, source, out, overwrite, options)
        summary = f"{data.batch_size[0]:,} rows written to {out}"
    if not quiet:
        typer.echo(summary + (_of_checksums(source) if out is None else ""))


def _of_checksums(source: Path) -> str:
    """What a run in place leaves to be said about checksums that were stored before it."""
    from tensordict_lite.memmap.checksum import CHECKSUMS

    if not (source / CHECKSUMS).exists():
        return ""
    return f"; its checksums are those of before (renew them: tdmap verify --store {source})"


def _map_into(data: Any, fn: Callable[[Any], Any], source: Path, out: Path, overwrite: bool, options: Any) -> None:
    """Write into a sibling of OUT and rename it when it is whole, so that OUT never holds half a result."""
    _require_free(out, source, overwrite)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        target = _allocate(data, fn, partial, options["chunksize"])
        guard(lambda: data.map(fn, out=target, **options), f"nothing was written to {out}")
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    except OSError as error:
        refuse(f"cannot write {out}: {error}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _allocate(data: Any, fn: Callable[[Any], Any], path: Path, chunksize: int | None) -> Any:
    """Learn what the function returns from one row of a copy, and lay out files for all of them."""
    from tensordict_lite import is_tensor_collection

    count = data.batch_size[0]
    if not count:
        refuse("the dataset has zero rows: there is nothing to learn the shape of the result from")
    first = data[:1].clone()
    sample = guard(lambda: fn(first[0] if chunksize == 0 else first), f"nothing was written to {path.parent}")
    if sample is None:
        refuse("the function returned None, so it changes its chunk: use --in-place instead of OUT")
    if not is_tensor_collection(sample):
        refuse(f"the function returned {type(sample).__name__}, which cannot be stored; return a TensorDict")
    row = sample
    if chunksize != 0:
        if not len(sample.batch_size) or sample.batch_size[0] != 1:
            refuse(f"the function got 1 row and returned batch size {list(sample.batch_size)}: rows must stay")
        row = sample[0]
    return row.expand(count, *row.batch_size).memmap_like(path)


def guard(run: Callable[[], Any], state: str, refusals: tuple[type[Exception], ...] = ()) -> Any:
    """Run it; end with code 1, the traceback and what is on disk if it raises, with 130 on Ctrl-C.

    Args:
        run: called without arguments.
        state: what is on disk when it does not end well.
        refusals: exceptions that mean that the request cannot be met, and whose message says why.
    """
    try:
        return run()
    except refusals as error:
        refuse(str(error))
    except KeyboardInterrupt:
        typer.secho(f"tdmap: stopped; {state}", fg=typer.colors.RED, err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        traceback.print_exception(type(error), error, error.__traceback__)
        typer.secho(f"tdmap: the run failed; {state}", fg=typer.colors.RED, err=True)
        raise typer.Exit(FAILED) from error


# -------- what a request names


def open_dataset(path: Path) -> Any:
    """Open a dataset, or leave with a message that says what is wrong with it.

    Returns:
        The collection that was saved there, memory-mapped.
    """
    from tensordict_lite import TensorDict

    if not path.exists():
        refuse(f"{path} does not exist")
    if path.is_dir() and not (path / "meta.json").exists():
        from tdmap.store import HIDDEN

        if (path / HIDDEN / "journal").exists():
            refuse(
                f"{path} is no dataset yet: a run into it has not come to its end. `tdmap status {path}` shows how far "
                "it is; `tdmap resume` goes on with it"
            )
        found = [str(p.parent) for p in sorted(path.glob("*/meta.json"))[:3]]
        hint = f"; did you mean {' or '.join(found)}?" if found else ""
        refuse(f"{path} is not a dataset: it has no meta.json{hint}")
    try:
        return TensorDict.load_memmap(path)
    except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
        refuse(f"{path} cannot be opened: {error}")


def find_function(name: str) -> Callable[[Any], Any]:
    """Find ``module:function`` or ``file.py:function``; the working directory counts as a place of modules.

    Example:
        >>> find_function("math:sqrt")
        <built-in function sqrt>
    """
    module_name, separator, attribute = name.rpartition(":")
    if not separator or not module_name or not attribute:
        refuse(f"{name!r} is not of the form module:function")
    found: Any = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=3)
            hint = f"; there is {', '.join(close)}" if close else ""
            refuse(f"{module_name} has no {part!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        refuse(f"{name} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _import(name: str) -> Any:
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            refuse(f"there is no file {name}")
        folder, name = str(path.parent), path.stem
    else:
        folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # worker processes get the same path, so they find the module too
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            refuse(f"there is no module {name!r} here ({os.getcwd()}) or among the installed ones")
        traceback.print_exception(type(error), error, error.__traceback__)
        refuse(f"{name} could not be imported: {error}")
    except Exception as error:
        traceback.print_exception(type(error), error, error.__traceback__)
        refuse(f"{name} could not be imported: {error}")


def _require_writable(path: Path) -> None:
    if path.is_file():
        refuse(f"--in-place needs a folder, and {path} is an archive: unpack it first, or give OUT")
    blocked = [p for p in [path, *path.rglob("*.memmap")] if not os.access(p, os.W_OK)]
    if blocked:
        refuse(f"--in-place needs to write, and {blocked[0]} is read-only")


def _require_free(out: Path, source: Path, overwrite: bool) -> None:
    if out.resolve() == source.resolve():
        refuse("OUT is IN; use --in-place to change a dataset")
    if source.resolve() in out.resolve().parents:
        refuse(f"{out} lies inside IN; choose a folder outside")
    if out.exists():
        if not overwrite:
            refuse(f"{out} exists; choose another folder, or --overwrite")
        if not (out / "meta.json").exists() and any(out.iterdir()):
            refuse(f"{out} is in the way and is not a dataset, so it is left alone")
    parent = out.resolve().parent
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        refuse(f"cannot write {out}: {parent} is read-only")


from tdmap import cli_resume  # noqa: E402, F401  # its commands belong to `app`, and use what is above
