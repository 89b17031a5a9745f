"""How every command answers: text for people or one JSON object, errors in one line, and the exit code.

tdmap map ... ──► Commands.main ──► the command ──► answer(facts, lines)      text, or the object of --json
                        │                      └──► refuse, guard ──► say     one line on standard error
                        └── whatever ended it: the exit code, and with --json an object that says why
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, TextIO

import typer
import typer.core
import typer.main

DONE, FAILED, BAD_REQUEST, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: done; the run failed; refused, and nothing was written; stopped by Ctrl-C."""

SCHEMA = 1
"""Of the objects that `--json` prints; a change that breaks readers makes it 2."""

_UsageError: Any = typer.BadParameter.__base__  # typer has classes of its own, and in older versions those of click
_ClickException: Any = _UsageError.__base__


@dataclass
class CommonOptions:
    """What a command line asks of all commands alike, and what was said so far."""

    command: str = ""
    json: bool = False
    traceback: bool = False
    messages: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    answered: bool = False
    stdout: TextIO | None = None
    """Standard output, when functions print somewhere else."""


_asked: ContextVar[CommonOptions | None] = ContextVar("asked", default=None)


def asked() -> CommonOptions:
    """What this command line asks for."""
    found = _asked.get()
    return CommonOptions() if found is None else found


# -------- what is said


def say(message: str, *, lines: bool = False) -> None:
    """A message of the command on standard error, in one line, or in the lines that it has."""
    text = message.strip() if lines else " ".join(message.split())
    asked().messages.append(text)
    _print(text, typer.colors.RED)


def _print(text: str, colour: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error is full or closed
        shown = colour if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else None
        typer.secho(f"tdmap: {text}", fg=shown, err=True)


def _warned(message: Warning | str, *where: object, **how: object) -> None:
    """What `warnings.showwarning` does during a command: the text in one line, without a place in the library."""
    text = in_shell(" ".join(str(message).split()))
    asked().warnings.append(text)
    _print(text, typer.colors.YELLOW)


def in_shell(text: str) -> str:
    """A message of the library with the options of commands for arguments.

    Example:
        >>> in_shell("pass overwrite=True instead of resume=True, or rows_per_shard=.")
        'pass --overwrite instead of --resume, or --rows-per-shard.'
        >>> in_shell("mp_start_method must be 'fork'.")
        "--mp-start-method must be 'fork'."
    """

    def said(match: re.Match[str]) -> str:
        value = (match[2] or "").strip("'\"")
        flag = f"--{match[1].replace('_', '-')}"
        return flag if value in ("", "True") else f"{flag} {value}"

    text = re.sub(r"^(?!out\b)([a-z]\w+)(?= must be\b)", lambda match: f"--{match[1].replace('_', '-')}", text)
    return re.sub(r"\b([a-z]\w+)=(True\b|'\w+'|\"\w+\"|(?=[\s,.:;)]|$))", said, text)


def answer(facts: Mapping[str, Any], *lines: str, exit_code: int = DONE) -> None:
    """The answer of a command.

    Args:
        facts: the entries of the object of `--json`.
        *lines: the same for people; not printed with `--json`.
        exit_code: what the command ends with.
    """
    known = asked()
    known.answered = True
    if not known.json:
        for line in lines:
            typer.echo(line)
        return
    head = {"schema": SCHEMA, "command": known.command, "ok": exit_code == DONE, "exit_code": exit_code}
    warned = {"warnings": known.warnings} if known.warnings else {}
    typer.echo(json.dumps({**head, **plain(facts), **warned}, allow_nan=False), known.stdout)


def plain(value: object) -> Any:
    """A value for JSON: tensors as lists, paths and other objects as texts. JSON knows no NaN: that is a text.

    Example:
        >>> import torch
        >>> plain({"mean": torch.tensor([0.5, float("nan")]), "at": float("inf")})
        {'mean': [0.5, 'nan'], 'at': 'inf'}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {"/".join(key) if isinstance(key, tuple) else str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return _plain_tensor(value)


def _plain_tensor(value: Any) -> Any:
    import numpy as np
    import torch

    from tensordict_lite import is_tensor_collection

    if isinstance(value, torch.Tensor):
        return plain((torch.view_as_real(value) if value.is_complex() else value).tolist())
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, (set, frozenset)):
        return [plain(one) for one in sorted(value, key=str)]
    found = getattr(value, "data", value)
    if is_tensor_collection(value) and (found is value or is_tensor_collection(found)):
        return {name: plain(value.get(name)) for name in sorted(value.keys())}
    return str(value) if found is value else plain(found)


# -------- errors


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def one_line(error: BaseException) -> str:
    """An exception in one line: its type, what it says, where it was raised, and what the engine has noted about it."""
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = [note for note in getattr(error, "__notes__", ()) if note and note not in text]
    where = _place(error)
    details = "; ".join([*notes, *([where] if where else [])])
    return f"{said} ({details})" if details else said


def _place(error: BaseException) -> str:
    """File and line of the innermost frame, in a worker where it was raised there; nothing if it is unknown."""
    from tdmap.errors import RemoteTraceback

    if isinstance(error.__cause__, RemoteTraceback):
        frames = [match.group(1, 2) for match in _FRAME.finditer(str(error.__cause__))]
    else:
        frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    return f"{os.path.basename(frames[-1][0])}:{frames[-1][1]}" if frames else ""


def show_traceback(error: BaseException) -> bool:
    """Print it if `--traceback` asks for it; whether it does."""
    if asked().traceback:
        traceback.print_exception(type(error), error, error.__traceback__)
    return asked().traceback


# -------- the commands


_FILE_URL = re.compile(r"(^(?:--[\w-]+=)?|,)file://(?:localhost)?(?=/)")
"""What stands before the path in a word of the command line: `Path` would make a relative path of it."""


class Commands(typer.core.TyperGroup):
    """A group whose commands all have `--json` and `--traceback`, and examples in their help."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, with what all of them have."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _complete(command, f"{_path_of(ctx)} {cmd_name}".strip())
        return command

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands, in the order in which users need them."""
        from tdmap.cli.examples import EXAMPLES

        places = {name.split()[0]: place for place, name in enumerate(EXAMPLES)}
        return sorted(super().list_commands(ctx), key=lambda name: (places.get(name, len(places)), name))

    def main(self, args: Any = None, prog_name: Any = None, *others: Any, **how: Any) -> Any:
        """Run a command line, and leave with its exit code."""
        words = [_FILE_URL.sub(r"\1", word) for word in (sys.argv[1:] if args is None else args)]
        _complete(self, "")
        with _asking(words):
            how["standalone_mode"] = False
            code = _ended(lambda: super(Commands, self).main(words, prog_name or "tdmap", *others, **how))
            known = asked()
            if code != DONE and known.json and not known.answered:
                answer({"error": "; ".join(known.messages)}, exit_code=code)
        sys.exit(code)


@contextlib.contextmanager
def _asking(words: list[str]) -> Iterator[None]:
    options = words[: words.index("--")] if "--" in words else words
    command = next((word for word in options if not word.startswith("-")), "")
    known = CommonOptions(command, "--json" in options, "--traceback" in options)
    token = _asked.set(known)
    try:
        with warnings.catch_warnings(), _alone_on_stdout(known) if known.json else contextlib.nullcontext():
            warnings.showwarning = _warned
            yield
    finally:
        _asked.reset(token)


@contextlib.contextmanager
def _alone_on_stdout(known: CommonOptions) -> Iterator[None]:
    """Keep standard output for the answer: what functions print, also in workers, goes to standard error."""
    known.stdout = stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        if stdout is not sys.__stdout__ or stdout is None:  # in a test or another program
            yield
            return
        with contextlib.suppress(OSError):  # a reader that has gone is told of when the answer is printed
            stdout.flush()
        known.stdout = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(known.stdout.fileno(), 1)
            with contextlib.suppress(OSError):  # the answer was flushed, or has failed and said so
                known.stdout.close()


def _ended(run: Callable[[], Any]) -> int:
    """Run it, and say how it ended; the exit code."""
    try:
        code = run()
        if code == INTERRUPTED and not asked().messages:  # typer's own answer to Ctrl-C
            say("stopped")
        return code if isinstance(code, int) else DONE
    except _UsageError as error:
        return _misused(error)
    except _ClickException as error:
        say(error.format_message())
        return BAD_REQUEST
    except (typer.Abort, KeyboardInterrupt):
        say("stopped")
        return INTERRUPTED
    except Exception as error:
        shown = show_traceback(error)
        if isinstance(error, OSError) and error.strerror:  # before anything ran: a run has its own words for it
            place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes, os.PathLike)) else ""
            say(f"{place}{error.strerror}")
            return BAD_REQUEST
        say(one_line(error) + ("" if shown else "; --traceback shows more"))
        return FAILED


def _misused(error: Any) -> int:
    message = error.format_message()
    if not message or message.startswith("Usage:") or type(error).__name__.startswith("NoArgs"):
        typer.echo(message or error.ctx.get_help(), err=True)
        return BAD_REQUEST
    help_of = f"tdmap {_path_of(error.ctx)}".strip()
    say(f"{message} (see {help_of} --help)")
    return BAD_REQUEST


def _path_of(ctx: Any) -> str:
    names: list[str] = []
    while ctx is not None and ctx.parent is not None:
        names.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(names)


def _complete(command: Any, path: str) -> None:
    """Give a command what all of them have, once."""
    from tdmap.cli.examples import EXAMPLES

    known = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in _options_of_all() if not known.intersection(option.opts)]
    if command.help and command.short_help is None:  # else cut after 45 letters
        command.short_help = " ".join(command.help.split("\n\n")[0].split())
    if command.epilog is None and path in EXAMPLES:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])


@functools.cache
def _options_of_all() -> list[Any]:
    """Made by typer itself, whose classes differ from version to version. What they say is read by `_asking`."""
    probe = typer.Typer(add_completion=False)

    @probe.command()
    def _(
        json_of_all: Annotated[
            bool, typer.Option("--json", help="One JSON object on standard output.", expose_value=False)
        ] = False,
        traceback_of_all: Annotated[
            bool, typer.Option("--traceback", help="Show the traceback of an error.", expose_value=False)
        ] = False,
    ) -> None:
        pass

    return [one for one in typer.main.get_command(probe).params if {"--json", "--traceback"} & set(one.opts)]
