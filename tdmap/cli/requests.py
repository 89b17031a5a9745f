"""What a command line names: datasets and functions. What it cannot have, and why."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import os
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


# -------- datasets


def open_dataset(path: Path) -> Any:
    """Open a dataset, or leave with a message that says what is wrong with it.

    Returns:
        The collection that was saved there, memory-mapped.
    """
    from tdmap.cli.places import sources_of
    from tdmap.stores.arrays import is_arrays
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
                "it is; `tdmap resume` resumes it"
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


def entry_of(name: str, data: Data, path: Path) -> str | tuple[str, ...]:
    """The entry that `a/b` names, as reducers take it. Lists the entries, and exits, where it is missing."""
    (key,) = entries_named([name], data, path)
    return key if len(key) > 1 else key[0]


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
    module_name, attribute = take_apart(name)
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


def take_apart(name: str) -> tuple[str, str]:
    """Module and function of ``module:function``."""
    module_name, separator, attribute = name.rpartition(":")
    if not separator or not module_name or not attribute:
        refuse(f"{name!r} is not of the form module:function")
    return module_name, attribute


def files_of_module(name: str, folder: str) -> list[Path]:
    """Where a module and the packages above it would be imported from, the module's file last; links are not followed.

    Nothing is imported. Empty when there is no such module, or it has no file.

    Args:
        name: of a module, or the path of a .py file.
        folder: where relative paths begin, and where modules are looked for first.
    """
    if name.endswith(".py"):
        path = Path(folder, name)
        return [path] if path.is_file() else []
    places = [folder, *sys.path]
    found: list[Path] = []
    spec = None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None:
            return []
        if spec.origin and spec.has_location:
            found.append(Path(spec.origin))
            places = list(spec.submodule_search_locations or [])
        else:  # a namespace
            places = [place for one in places if os.path.isdir(place := os.path.join(one, part))]
            found += [Path(place) for place in places]
    return found if spec is not None and spec.has_location else []


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
