"""What a command line names: datasets and functions. What it cannot have, and why."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from tdmap.cli.answers import BAD_REQUEST, FAILED, INTERRUPTED, in_shell, one_line, say, show_traceback
from tdmap.cli.describe import leaves_of

if TYPE_CHECKING:
    from tdmap.data.kinds import Data


def refuse(message: str) -> NoReturn:
    """Say why the request cannot be met and leave with exit code 2."""
    say(message)
    raise typer.Exit(BAD_REQUEST)


def guard(run: Callable[[], Any], state: str, refusals: tuple[type[Exception], ...] = ()) -> Any:
    """Run it; end with code 1, the error and what is on disk in one line if it raises, with 130 on Ctrl-C.

    Args:
        run: called without arguments.
        state: what is on disk when it does not end well.
        refusals: exceptions that mean that the request cannot be met, and whose message says why; not where the
            user's function has raised them.
    """
    from tdmap.errors import ResumeMismatch

    try:
        return run()
    except KeyboardInterrupt:
        say(f"stopped; {state}")
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        if isinstance(error, refusals) and not _is_of_function(error):
            say(_said(error), lines=isinstance(error, ResumeMismatch))
            raise typer.Exit(BAD_REQUEST) from error
        shown = show_traceback(error)
        said = str(error) if _speaks_for_itself(error) else one_line(error)
        say(f"the run failed: {said}; {state}{'' if shown else ' (--traceback shows more)'}")
        raise typer.Exit(FAILED) from error


def _said(error: Exception) -> str:
    """What an exception says, in the words of commands; that of a KeyError would be in quotes otherwise."""
    said = str(error.args[0]) if isinstance(error, KeyError) and len(error.args) == 1 else str(error)
    return in_shell(said)


def _is_of_function(error: Exception) -> bool:
    """Whether the user's function has raised it: the engine has noted its rows then."""
    from tdmap.errors import TdmapError

    return not isinstance(error, TdmapError) and bool(getattr(error, "__notes__", None))


def _speaks_for_itself(error: Exception) -> bool:
    """Whether the engine has raised it, in words that say it all."""
    from tdmap.errors import RemoteError, TdmapError

    return isinstance(error, TdmapError) and not isinstance(error, RemoteError)


# -------- where datasets are

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


def require_free(out: Path, source: Path, overwrite: bool) -> None:
    """Leave if OUT is the source, is within it, or holds something that is not to be replaced."""
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


# -------- datasets


def open_dataset(path: Path) -> Any:
    """Open a dataset, or leave with a message that says what is wrong with it.

    Returns:
        The collection that was saved there, memory-mapped.
    """
    from tdmap.shards.opening import is_arrays
    from tensordict_lite import TensorDict

    sources = sources_of(path)
    if len(sources) > 1 or isinstance(sources[0], str) or (path / "shards.json").exists() or is_arrays(str(path)):
        return _open_sources(path, sources)
    if not path.exists():
        refuse(f"{path} does not exist")
    if path.is_dir() and not (path / "meta.json").exists():
        from tdmap.memory.hidden import HIDDEN

        if (path / HIDDEN / "journal").exists():
            refuse(
                f"{path} is not a dataset yet: a run into it is unfinished. `tdmap status {path}` shows how far "
                "it is; the same call with resume=True resumes it"
            )
        found = [str(p.parent) for p in sorted(path.glob("*/meta.json"))[:3]]
        hint = f"; did you mean {' or '.join(found)}?" if found else ""
        refuse(f"{path} is not a dataset: it has no meta.json{hint}")
    try:
        return TensorDict.load_memmap(path)
    except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
        refuse(f"{path} cannot be opened: {error}")


def open_rows(path: Path, least: int = 0) -> Any:
    """Open a dataset that has rows, at least so many, or leave with why it has none.

    Args:
        path: a folder, or several, or a URL.
        least: rows that it must have.
    """
    data = open_dataset(path)
    if not len(data.batch_size) or data.batch_size[0] < least:
        refuse(f"{path} has batch size {list(data.batch_size)}, and no rows")
    return data


def entries_named(names: Iterable[str], data: Data, path: Path) -> list[tuple[str, ...]]:
    """The entries that names such as `a/b` stand for, each once. Lists the entries, and exits, where one is missing."""
    there = {"/".join(key): key for key, _, _ in leaves_of(data)}
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in there:
            close = difflib.get_close_matches(name, there, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"its entries: {', '.join(sorted(there)[:5])}"
            refuse(f"{path} has no entry {name!r}; {hint}")
    return [there[name] for name in chosen]


def _open_sources(path: Path, sources: list[Path | str]) -> Any:
    import tdmap

    try:
        return tdmap.open(sources[0] if len(sources) == 1 else sources)
    except (RuntimeError, ValueError, TypeError, KeyError, OSError, ImportError) as error:
        refuse(f"{path} cannot be opened: {error}")


def require_writable(path: Path) -> None:
    """Leave unless the files of a dataset can be changed."""
    if not (path / "meta.json").exists() and not path.is_file():
        refuse(f"--in-place changes one folder, and {path} is several of them, or a URL: give OUT")
    if path.is_file():
        refuse(f"--in-place needs a folder, and {path} is an archive: unpack it first, or give OUT")
    blocked = [p for p in [path, *path.rglob("*.memmap")] if not os.access(p, os.W_OK)]
    if blocked:
        refuse(f"--in-place needs to write, and {blocked[0]} is read-only")


def write_file(write: Callable[[], Any], path: Path) -> None:
    """Write a picture or another file, and say so; or leave with why it could not be written."""
    try:
        write()
    except (OSError, ValueError, ModuleNotFoundError) as error:
        refuse(f"{path} was not written: {error}")
    say(f"wrote {path}")


# -------- functions


def find_function(name: str) -> Callable[[Any], Any]:
    """Find ``module:function`` or ``file.py:function``; the working directory counts as a place of modules.

    Example:
        >>> find_function("math:sqrt")
        <built-in function sqrt>
    """
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        refuse(f"{name!r} is not of the form module:function")
    found: Any = import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            refuse(f"{module_name} has no {part!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        refuse(f"{name} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def import_module(name: str) -> Any:
    """The module of that name, or in that .py file; or leave with why there is none."""
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            refuse(f"no such file: {name}")
        folder, name = str(path.parent), path.stem
    else:
        folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # worker processes get the same path, so they find the module too
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            refuse(f"no module {name!r} here ({os.getcwd()}) or among installed modules")
        _refuse_module(name, error)
    except Exception as error:
        _refuse_module(name, error)


def _refuse_module(name: str, error: Exception) -> NoReturn:
    more = "" if show_traceback(error) else "; --traceback shows more"
    refuse(f"{name} could not be imported: {one_line(error)}{more}")
