"""The commands of operations, derived from the signatures and docstrings of their functions.

    row of COMMANDS ──► signature_of(place) ──► words of a command line: positional ones, and an option for each other
         │                                      parameter and each option of `**options`
         └── tdmap sort IN OUT --by k ──► Kind.read: a word as an argument ──► the call ──► rows written, or shown

A new operation needs a row in `COMMANDS`; a parameter of a new sort needs a `ArgumentKind` in `tdmap.cli.arguments`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main

from tdmap.cli.answers import DERIVED, answer, asked, say
from tdmap.cli.arguments import (
    DATASET,
    FUNCTION,
    GROUPING,
    MAP,
    MAP_REDUCE,
    NAMES,
    NOT_SAID,
    ArgumentKind,
    Command,
    CommandLine,
    flag_of,
    kind_of,
)
from tdmap.cli.describe import time_types
from tdmap.cli.places import list_beside, require_free, text_of
from tdmap.cli.reducers import columns_of, short, table_text, writer_of
from tdmap.cli.requests import guard, open_rows, refuse, require_writable
from tdmap.cli.signatures import Parameter

if TYPE_CHECKING:
    from tdmap.data.kinds import Data

OF_REDUCERS = """
Reducers are count, sum, mean, var, std, min, max, first, last, quantile, histogram, unique, value-counts, top, checksum
and covariance; their options those of tdmap.reducers, such as dim=0,2,3, dim=all (every element), q=0.1,0.9 or k=3."""

COMMANDS = {
    "map": Command(MAP, "fn data [out]", keeps=""),
    "flat-map": Command("tdmap.ops.flat_map:flat_map", "fn data out", keeps=""),
    "filter": Command("tdmap.ops.filter:filter", "predicate data out"),
    "join": Command("tdmap.ops.join:join", "a b out"),
    "sort": Command("tdmap.ops.sort:sort"),
    "shuffle": Command("tdmap.ops.shuffle:shuffle"),
    "sample": Command("tdmap.ops.sample:sample"),
    "top-k": Command("tdmap.ops.top_k:top_k", "data [out]"),
    "unique": Command("tdmap.ops.distinct:unique", "data [out]", keeps="keys"),
    "drop-duplicates": Command("tdmap.ops.drop_duplicates:drop_duplicates"),
    "value-counts": Command("tdmap.ops.distinct:value_counts", "data [out]", keeps="keys"),
    "train-test-split": Command("tdmap.ops.train_test_split:train_test_split"),
    "reduce": Command(
        MAP_REDUCE,
        "data reducer",
        keeps="",
        help=f"Fold all rows of a dataset into statistics, in one pass.\n{OF_REDUCERS}",
    ),
    "group": Command(
        "tdmap.ops.group_by:GroupBy.agg",
        "data spec",
        groups=True,
        keeps="keys",
        help="Fold the rows of each group into statistics: one row for each key, sorted by key.\n"
        f"{OF_REDUCERS} Of groups there are median and nunique as well.",
    ),
}
"""The operations that have commands."""


# -- a command for typer -----------------------------------------------------------------------------


@functools.cache
def command_of(name: str) -> Any:
    """The command of an operation, as typer makes it."""
    command, parameters, hints = COMMANDS[name], [], {}
    for word, hint, needed in _typed(command):
        default = inspect.Parameter.empty if needed else None
        parameters.append(inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))
        hints[word] = hint

    def call(**words: Any) -> None:
        given = {word: value for word, value in words.items() if value is not None and value is not False}
        run(name, {word: value for word, value in given.items() if value not in ([], ())})

    call.__annotations__ = hints
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    probe = typer.Typer(add_completion=False, rich_markup_mode=None)
    probe.command(name, help=command.help or _shell_words(command.signature.help, command))(call)
    found = typer.main.get_command(probe)
    found.context_settings["help_option_names"] = ["-h", "--help"]
    return found


DERIVED.update({name: functools.partial(command_of, name) for name in COMMANDS})

EXTRAS: dict[str, tuple[Any, str, str]] = {
    "address": (str, "--address", "With ray: the cluster, auto or host:port."),
    "in_place": (bool, "--in-place", "Change IN itself; no OUT."),
    "show": (int, "--show", "Rows to show without OUT; 0 shows all. Default: 20."),
}
"""Options of commands that no parameter has: type, name and help."""


def extras_of(command: Command) -> list[str]:
    """Which of them a command takes."""
    wanted = {"address": "executor" in command.signature.parameters, "in_place": command.place == MAP}
    return [name for name, takes in {**wanted, "show": command.shows}.items() if takes]


def _typed(command: Command) -> Iterator[tuple[str, Any, bool]]:
    """The words of a command: their names, what typer is told of each, and whether it must be given."""
    known = command.signature.parameters
    for name in command.positional:
        kind, optional = kind_of(command, known[name]), f"[{name}]" in command.words
        metavar = NAMES.get(name) or kind.metavar
        told = typer.Argument(metavar=metavar, help=_help(command, known[name], kind))
        yield name, Annotated[kind.type | None if optional else kind.type, told], not optional
    for name, parameter in known.items():
        if name in command.positional or name in NOT_SAID:
            continue
        kind = kind_of(command, parameter)
        metavar = None if kind.type is bool else kind.metavar
        needed = parameter.default is None and "| None" not in parameter.annotation
        told = typer.Option(flag_of(parameter), metavar=metavar, help=_help(command, parameter, kind))
        yield name, Annotated[kind.type if needed else kind.type | None, told], needed
    for name in extras_of(command):
        hint, flag, said = EXTRAS[name]
        yield name, Annotated[hint | None, typer.Option(flag, help=said)], False


def _help(command: Command, parameter: Parameter, kind: ArgumentKind) -> str:
    """What is said of a parameter: as much of its docstring as is not about Python."""
    if kind.help:
        return kind.help
    text = " ".join(re.split(r"\n\s+- ", parameter.help)[0].split())
    text = re.sub(r"\bNone: .*?(\. |$)", "", text)
    if flag_of(parameter).startswith("--no-"):
        text = text.partition("False")[2].lstrip(": ") or text
    if parameter.annotation == "bool | None":
        yes, no = flag_of(parameter).split("/")
        text = text.replace("(None)", "(by default)").replace("(True)", f"({yes})").replace("(False)", f"({no})")
    shown = _shell_words(_shortened(text, parameter.help), command)
    if parameter.default is not None and not re.search(r"[Dd]efault", shown):
        with contextlib.suppress(ValueError, SyntaxError):
            default = ast.literal_eval(parameter.default)
            if isinstance(default, (str, int, float)) and not isinstance(default, bool):
                shown += f" Default: {default}."
    shown = shown if text.startswith("`") else shown[:1].upper() + shown[1:]
    return f"{shown} {kind.more}".strip()


ENOUGH = 200
"""Letters of a help text, about."""


def _shortened(text: str, whole: str) -> str:
    """The first sentences, and what the default is; of a list, what its entries are about."""
    kept: list[str] = []
    size = 0
    for sentence in re.split(r"(?<=[.;])\s+", text.rstrip(":. ") + "."):
        size += len(sentence)
        if not kept or size <= ENOUGH or sentence.startswith("Default"):
            kept.append(sentence)
    entries = ", ".join(re.findall(r"^\s+- ([^:]+):", whole, flags=re.MULTILINE))
    return " ".join(kept).rstrip(".;") + (f": {entries}." if entries else ".")


def _shell_words(text: str, command: Command) -> str:
    """A text of a docstring with the words of a command line: `--resume` for `resume=True`."""
    known = command.signature.parameters

    def word(name: str) -> str:
        if name in command.positional:
            return NAMES.get(name) or kind_of(command, known[name]).metavar or name
        return flag_of(known[name]) if len(name) > 1 else name

    def said(match: re.Match[str]) -> str:
        name, value = match[1], (match[2] or "").strip("\"'")
        if name not in known or name in NOT_SAID:
            return match[0].strip("`").replace('"', "")
        return word(name) if value in ("", "True", "None") else f"{word(name)} {value}"

    found = re.sub(r"`(\w+)(?:=([^`]*))?`", said, text)
    return re.sub(r"`([^`]*)`", lambda match: match[1].replace('"', ""), found)


# -- a call ------------------------------------------------------------------------------------------

SHOWN = 20
"""Rows of a result that are shown."""

SHOWN_SKIPPED = 5
"""Rows on which a function raised, and which are printed."""

RESUMES = "completed rows are kept, and the same command resumes from there"


def run(name: str, words: dict[str, Any]) -> None:
    """Call an operation with the words of a command line, and say what came of it."""
    command = COMMANDS[name]
    call = CommandLine(command, words)
    given = {one: kind_of(command, known) for one, known in command.signature.parameters.items() if one in words}
    check_words(command, words)
    arguments: dict[str, Any] = {one: kind.read(words[one], call) for one, kind in given.items() if kind is FUNCTION}
    for one, kind in given.items():
        if kind is DATASET:
            call.data[one] = open_rows(words[one])
    check_place(command, words, call)
    arguments |= {one: kind.read(words[one], call) for one, kind in given.items() if kind not in (FUNCTION, DATASET)}
    for one, parameter in command.signature.parameters.items():
        if one in arguments and parameter.annotation == "bool" and parameter.default == "True":
            arguments[one] = False
        elif one not in words and parameter.default is None and one not in call.data:
            arguments[one] = None
    arguments["pbar"] = "pbar" not in words and not asked().json
    seed = _drawn_seed(command, words)
    arguments |= {} if seed is None else {"seed": seed}
    if words.get("in_place"):
        arguments["out"] = call.rows
    with _told_to_resume(command, words):
        result = _called(command, call, arguments)
    _answer(call, arguments, result)


def check_words(command: Command, words: Mapping[str, Any]) -> None:
    """Refuse words that do not go together."""
    if words.get("address") and words.get("executor") != "ray":
        refuse("--address is that of a Ray cluster: use --executor ray with it")
    if words.get("resume") and words.get("overwrite"):
        refuse("--resume resumes what is in OUT, and --overwrite replaces it: give one of them")
    if command.place == MAP and bool(words.get("in_place")) == ("out" in words):
        refuse("give OUT, or --in-place: exactly one of them")
    if "shard" in words and ("out" not in words or words.get("overwrite") or words.get("resume")):
        refuse("--shard fills OUT with the other ranks, and resumes by itself: no --in-place, --overwrite or --resume")
    if "out" not in words and command.place != MAP_REDUCE:
        for one in ("resume", "rows_per_shard"):
            if one in words and not (one == "resume" and words.get("in_place")):
                give = "--out" if command.groups else "OUT"
                refuse(f"--{one.replace('_', '-')} is about the result in {give}: give {give}")


def check_place(command: Command, words: Mapping[str, Any], call: CommandLine) -> None:
    """Refuse an OUT that is in the way of what is asked for."""
    if words.get("in_place"):
        require_writable(call.source)
    out = words.get("out")
    if out is None:
        return
    if not words.get("resume") and "shard" not in words:
        for place in places_of(command, out):
            for one in call.data:
                require_free(place, call.path(one), bool(words.get("overwrite")))


def places_of(command: Command, out: Path) -> list[Path]:
    """The folders of the datasets that an operation writes."""
    return [out / "train", out / "test"] if command.place.endswith("train_test_split") else [out]


def _drawn_seed(command: Command, words: Mapping[str, Any]) -> int | None:
    """The seed of an operation that draws rows, where none was given: it is said in the answer.

    A run that is resumed keeps the one that it drew first.
    """
    import torch

    own = command.signature.parameters.get("seed")
    if own is None or own.default == "..." or command.place == MAP or "seed" in words:
        return None
    torch.seed()
    return None if words.get("resume") else int(torch.randint(1 << 62, ()))


def _called(command: Command, call: CommandLine, arguments: dict[str, Any]) -> Any:
    """Call the function; leave with why it raised."""
    from tdmap.errors import FolderInUse, OutputMismatch, ResumeMismatch, UntrustedFile
    from tdmap.job import function_name
    from tdmap.memory.folderlock import FolderLock
    from tdmap.run.identity import COMMAND

    words, out = call.words, call.words.get("out")
    in_place = bool(words.get("in_place"))
    state = f"nothing was written to {out}" if out else f"{call.source} was only read"
    if in_place:
        state = "rows that were done stay done"
    if words.get("resume") or "shard" in words:
        state = RESUMES if COMMAND.get() is None else "completed rows are kept, and `tdmap resume` resumes from there"
    refusals = (FileExistsError, FolderInUse, UntrustedFile, ResumeMismatch, OSError)
    if not in_place:
        refusals += (OutputMismatch, KeyError, TypeError, ValueError, OverflowError)  # type: ignore[assignment]

    def work() -> Any:
        if in_place and not words.get("resume"):
            name = f"tdmap map {function_name(arguments['fn'])} --in-place"
            with FolderLock(call.source.resolve(), name):
                return function_of(command)(*call.data.values(), **arguments)
        try:
            return function_of(command)(*call.data.values(), **arguments)
        except OutputMismatch as error:
            if command.place == MAP and "returned None" in str(error):
                refuse("the function returned None, so it changes its chunk: use --in-place instead of OUT")
            raise

    return guard(work, state, refusals)


def function_of(command: Command) -> Callable[..., Any]:
    """The function of an operation; of one of groups, with the arguments of `group_by` as well."""
    module, _, name = command.place.partition(":")
    if not command.groups:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found

    def grouped(data: Data, **arguments: Any) -> Any:
        from tdmap.ops.group_by import group_by

        by = {one: arguments.pop(one) for one in [*arguments] if one in GROUPING}
        return getattr(group_by(data, **by), name.rpartition(".")[2])(**arguments)

    return grouped


# -- what came of it ---------------------------------------------------------------------------------


def _answer(call: CommandLine, arguments: dict[str, Any], result: Any) -> None:
    command, words = call.command, call.words
    out, skipped = words.get("out"), arguments.get("on_error")
    skipped = () if isinstance(skipped, str) or skipped is None else skipped
    _report_skipped(call, arguments, skipped)
    rows = len(call.rows)
    facts: dict[str, Any] = {"of": rows, "skipped": len(skipped)}
    if "seed" in arguments:
        facts["seed"] = arguments["seed"]
    if out is None and not words.get("in_place"):
        _show(call, result, facts)
        return
    place = call.source if out is None else out
    if isinstance(result, tuple):
        counts = dict(zip(("train", "test"), map(len, result)))
        facts = {**counts, **facts}
        line = " and ".join(f"{count:,} rows written to {place / part}" for part, count in counts.items())
    else:
        done = 0 if result is None else len(result)
        if command.place == MAP:
            facts["in_place"] = out is None
            filled = done == rows and getattr(skipped, "mode", "") != "drop"
            done -= len(skipped) if filled else 0
        facts = {"rows": done, **facts}
        some = command.keeps == "rows" and done < rows and len(call.data) == 1
        how = "done in" if words.get("resume") else "changed in" if out is None else "written to"
        line = f"{done:,} {f'of {rows:,} ' * some}rows {how} {place}"
    if "shard" in words:
        facts["shard"], facts["whole"] = arguments["shard"], (place / "meta.json").exists()
        left = "the dataset is complete" if facts["whole"] else "other ranks are not done"
        line += f" by rank {facts['shard'][0]} of {facts['shard'][1]}; {left}"
    if out is None:
        line += _of_checksums(call.source)
    line += f", seed {facts['seed']}" if "seed" in facts else ""
    answer({**facts, "out": place}, *([] if "pbar" in words else [line]))


def _of_checksums(source: Path) -> str:
    """What a run in place leaves to be said about checksums that were stored before it."""
    from tensordict_lite.memmap.checksum import CHECKSUMS

    if not (source / CHECKSUMS).exists():
        return ""
    return f"; its checksums are out of date (renew them: tdmap verify --store {shlex.quote(str(source))})"


def _report_skipped(call: CommandLine, arguments: dict[str, Any], skipped: Any) -> None:
    """Say on which rows the function raised: how many, the first of them, and the file that lists all."""
    if not skipped:
        return
    from tdmap.data.failures import write_list

    words, out = call.words, call.words.get("out")
    fate = {"drop": "are left out", "mark": "are marked as not valid"}.get(getattr(skipped, "mode", ""))
    beside = call.source.resolve() if words.get("in_place") else Path(call.source.name)
    place = list_beside(beside if out is None else out)
    if call.command.place == MAP:
        fate = fate or ("keep what they had" if out is None else "are zeros")
        if "shard" in words:
            place = place.with_name(f"{words['out'].name}.skipped.{arguments['shard'][0]}.jsonl")
    say(f"the function raised on {len(skipped):,} of {len(call.rows):,} rows, which {fate or 'are left out'}:")
    for bad in skipped[:SHOWN_SKIPPED]:
        text = str(bad.error).partition("\n")[0][:200]
        typer.echo(f"  row {bad.row}: {type(bad.error).__name__}: {text}", err=True)
    where = f"a list could not be written to {place}"
    with contextlib.suppress(OSError):
        write_list(skipped, place.resolve())
        where = f"all of them, with tracebacks: {place}"
    more = f"  and {len(skipped) - SHOWN_SKIPPED:,} more; " if len(skipped) > SHOWN_SKIPPED else "  "
    typer.echo(more + where, err=True)


def _show(call: CommandLine, result: Any, facts: dict[str, Any]) -> None:
    command, words = call.command, call.words
    if not command.shows:
        texts = words["reducer"]
        times = {} if "mapper" in words else time_types(call.rows)
        width = max(map(len, texts))
        lines = (f"{text:<{width}}  {short(result[text], writer_of(text, times))}" for text in texts)
        answer({"rows": facts.pop("of"), **facts, "results": {text: result[text] for text in texts}}, *lines)
        return
    count, most = len(result), words.get("show", SHOWN)
    upto = count if not most else min(most, count)
    keys = [words["key"]] if isinstance(words["key"], str) else words["key"]
    columns = columns_of(result, keys, time_types(call.rows), has_rows=command.keeps == "rows")
    table = [{column.name: column.read(row) for column in columns} for row in range(upto)]
    written = [{one.name: short(row[one.name], one.written) for one in columns} for row in table]
    more = [] if upto == count else [f"... and {count - upto:,} more rows: --show 0 shows all, OUT keeps them"]
    text = table_text([one.name for one in columns], written)
    answer({"count": count, **facts, "rows": table}, text, *more)


# -- tdmap resume ------------------------------------------------------------------------------------

RESUMED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("num_workers", "chunksize", "num_chunks", "rows_per_shard", "seed", "retries", "dim"), (int,)),
    **dict.fromkeys(("worker_threads", "max_tasks_per_child"), (int,)),
    **dict.fromkeys(("mp_start_method", "on_error", "executor", "address", "max_memory"), (str,)),
    "timeout": (int, float),
}
"""Words of `tdmap map` that its journal keeps for `tdmap resume`, by parameter, and their types."""


@contextlib.contextmanager
def _told_to_resume(command: Command, words: Mapping[str, Any]) -> Iterator[None]:
    """Let the journal of `tdmap map --resume` say how to call it again, unless it has words that are not kept."""
    from tdmap.run.identity import COMMAND

    about = ("fn", "data", "out", "in_place", "resume", "pbar")
    options = {one: word for one, word in words.items() if one not in about}
    if command.place != MAP or not words.get("resume") or not options.keys() <= RESUMED.keys():
        yield
        return
    said = {"function": words["fn"], "source": text_of(words["data"]), "cwd": os.getcwd(), "options": options}
    token = COMMAND.set(said)
    try:
        yield
    finally:
        COMMAND.reset(token)
