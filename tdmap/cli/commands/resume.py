"""The commands about runs that can be resumed: ``tdmap status PATH`` and ``tdmap resume PATH``.

A journal says which function its run resumes with, and it may have come with the dataset. So the function is shown
before it runs, the user has to say yes, and nothing is imported from inside the dataset.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.commands.operations import RESUMED, run
from tdmap.cli.places import sources_of, url_of
from tdmap.cli.requests import files_of_module, import_module, refuse, take_apart

PathArgument = Annotated[Path, typer.Argument(help="Output folder, or dataset of an in-place run.")]


@app.command()
def status(
    path: PathArgument,
) -> None:
    """Show the progress of a run with --resume: finished rows, rate, errors."""
    from tdmap.run.status import describe

    end_with_reader()
    found = _status_of(path)
    answer({**dataclasses.asdict(found), "fraction": found.fraction}, *describe(found))


@app.command()
def resume(
    path: PathArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run the function that is shown without asking.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="After a clean shutdown in place: use the files as they are.")
    ] = False,
    redo: Annotated[
        bool,
        typer.Option(
            "--redo", help="After a power loss in place: run chunks again that may not have reached the disk."
        ),
    ] = False,
) -> None:
    """Resume a run of `tdmap map --resume`. Shows the function and asks before it runs."""
    if trust and redo:
        refuse("--trust and --redo: give one of them")
    from tdmap.run.options import REDO, TRUST

    found = _status_of(path)
    command = _Command.of(found, path)
    datasets = [path.resolve(), *command.folders]
    file = command.file_of_function(datasets)
    for line in command.describe(file):
        typer.echo(line, err=True)
    if not yes:
        _ask(path)
    os.chdir(command.cwd)  # where the function was found
    sys.path[:] = [entry for entry in sys.path if not _lies_in(Path(entry or "."), datasets)]
    sys.path.insert(0, str(file.parent) if command.function.partition(":")[0].endswith(".py") else command.cwd)
    _require_file(import_module(take_apart(command.function)[0]), file)
    out = {"in_place": True} if found.kind == "in place" else {"out": datasets[0]}
    how = TRUST if trust else REDO if redo else True
    words = {"fn": command.function, "data": Path(command.source), **out, **command.options, "resume": how}
    run("map", words | {"pbar": True} if quiet else words)


def _status_of(path: Path) -> Any:
    from tdmap.run.status import read_status

    if url_of(path) is not None:
        refuse(
            f"{url_of(path)} is in a store, where any user with the rights may have written its command: run "
            "your own command again, with --resume"
        )
    try:
        found = read_status(path)
    except (OSError, ValueError) as error:
        refuse(f"{path} cannot be read: {error}")
    if found is None and not os.path.lexists(path):
        refuse(f"{path} does not exist")
    if found is None:
        refuse(f"{path} holds no log of a run: no run with resume=True or --resume was started there")
    return found


@dataclass(frozen=True)
class _Command:
    """How a journal says that its run was called."""

    function: str
    source: str
    cwd: str
    options: dict[str, Any]

    @staticmethod
    def of(found: Any, path: Path) -> _Command:
        """The command of a run, or leave with why it cannot be called again."""
        from tdmap.errors import UntrustedFile
        from tdmap.memory.hidden import HIDDEN, open_file, printable
        from tdmap.output.store import RUN

        if found.command is None:
            program = " ".join(found.argv).strip() or "a Python session"
            refuse(f"a program started the run in {path} ({program}): run the program again to resume it")
        try:
            journal = path / HIDDEN / "journal"
            os.close(open_file(journal if journal.exists() else path / RUN))
        except UntrustedFile as error:
            refuse(f"{error} It says which function is run; use tdmap map --resume, which you say yourself.")
        texts, options = [found.command.get(key) for key in ("function", "source", "cwd")], found.command.get("options")
        known = type(options) is dict and all(type(v) in RESUMED.get(k, ()) for k, v in options.items())
        if not known or not all(type(text) is str and text == printable(text, 4096) for text in texts):
            refuse(f"the log in {path} does not record the command of its run: use tdmap map --resume")
        function, source, cwd = texts
        if not all(isinstance(one, str) or one.is_absolute() for one in sources_of(Path(source))):
            refuse(f"the journal in {path} names its source by a relative path ({source}): use tdmap map --resume")
        return _Command(function, source, cwd, options)

    @property
    def folders(self) -> list[Path]:
        """The folders that the rows come from."""
        return [one for one in sources_of(Path(self.source)) if isinstance(one, Path)]

    def file_of_function(self, datasets: list[Path]) -> Path:
        """The file of the function's module, or leave where it is not one to be imported."""
        if not os.path.isabs(self.cwd) or not os.path.isdir(self.cwd):
            refuse(
                f"the working directory of the run does not exist ({self.cwd}): use tdmap map --resume from another one"
            )
        module, _ = take_apart(self.function)
        files = files_of_module(module, self.cwd)
        if not files:
            refuse(f"no module {module!r} in {self.cwd}, the working directory of the run, or among installed modules")
        inside = [place for place in (*files, Path(self.cwd)) if _lies_in(place, datasets)]
        for place in (*inside, *_code_in(datasets)):
            refuse(
                f"{place} is inside the dataset, and tdmap imports nothing from a dataset. If you trust the "
                "function, move it elsewhere, and continue with tdmap map --resume"
            )
        if os.path.realpath(self.cwd) != self.cwd:
            refuse(f"the working directory of the run ({self.cwd}) is a link: use tdmap map --resume from another one")
        return files[-1].resolve()

    def describe(self, file: Path) -> list[str]:
        """The command that will be run, for the user to confirm."""
        _, name = take_apart(self.function)
        given = [f"{key}={value!r}" for key, value in self.options.items()]
        return [
            f"function  {name} of {file}",
            f"on        {self.source}",
            f"options   {', '.join(given) or 'none'}",
            f"from      {self.cwd}, where its other modules are looked for first",
        ]


def _lies_in(place: Path, folders: list[Path]) -> bool:
    """Whether a path, or a link on the way to where it leads, lies in one of these folders."""
    inner = [folder.resolve() for folder in folders]
    return any(folder in (step, *step.parents) for step in _way_to(place) for folder in inner)


def _way_to(path: Path) -> Iterator[Path]:
    """The path, and where each link in it leads, link by link."""
    left, at, links = list(Path.cwd().joinpath(path).parts), Path("/"), 0
    while left:
        part = left.pop(0)
        at = at.parent if part == ".." else at / part
        yield at
        if at.is_symlink() and links < 40:  # as many as Linux follows
            links += 1
            left = [*Path(os.readlink(at)).parts, *left]
            at = at.parent


def _code_in(folders: list[Path]) -> Iterator[Path]:
    endings = tuple(importlib.machinery.all_suffixes())
    for folder in folders:
        for place, _, names in os.walk(folder):
            yield from (Path(place, name) for name in names if name.endswith(endings))


def _ask(path: Path) -> None:
    if not sys.stdin.isatty():
        refuse(f"{path} names the function to run, and may be untrusted: check it, then give --yes")
    if not typer.confirm("Run it?", err=True):
        refuse("nothing was run")


def _require_file(module: Any, file: Path) -> None:
    """Leave unless the module that was imported is the one that was shown."""
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != file:
        refuse(f"{file} was to be imported, and Python has another module of that name ({found}): rename one of them")
