"""How arguments of operations are written on a command line: which words there are, and what they stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tdmap.cli.comparisons import comparison
from tdmap.cli.places import executor_of, place_of
from tdmap.cli.reducers import parse_reducer
from tdmap.cli.requests import entry_of, find_function, refuse
from tdmap.cli.signatures import Parameter, Signature, signature_of


@dataclass(frozen=True)
class Command:
    """How an operation is called from a command line."""

    place: str
    """The module and name of its function, or of a method of groups."""
    words: str = "data out"
    """The parameters that are positional, in their order; `[out]` may be left out."""
    groups: bool = False
    """Whether it is a method of what `tdmap.group_by` makes, whose parameters it takes as well."""
    keeps: str = "rows"
    """What the result has of the dataset: its rows, its `"keys"`, or `""`; columns of times stay such."""
    help: str = ""
    """What it does, where that is said otherwise in a shell."""

    @property
    def positional(self) -> list[str]:
        """Names of the positional parameters."""
        return self.words.replace("[", "").replace("]", "").split()

    @property
    def signature(self) -> Signature:
        """What the function takes."""
        found = signature_of(self.place)
        if not self.groups:
            return found
        grouping = signature_of(GROUP_BY).parameters
        return Signature(found.help, {**{name: grouping[name] for name in GROUPING}, **found.parameters})

    @property
    def shows(self) -> bool:
        """Whether rows of the result are printed where there is no OUT."""
        return "out" in self.signature.parameters and not self.needs_out and self.place != MAP

    @property
    def needs_out(self) -> bool:
        """Whether OUT must be given."""
        return "out" in self.words.split()


MAP = "tdmap.ops.map:map"
GROUP_BY = "tdmap.ops.group_by:group_by"
GROUPING = ("data", "key", "dropna")
"""Its parameters that a command of groups has: `name` is about keys by a function, and methods have `spill_dir`."""
MAP_REDUCE = "tdmap.ops.reduce:map_reduce"

NAMES = {"key": "by", "mapper": "map", "data": "IN", "a": "LEFT", "b": "RIGHT", "out": "OUT"}
"""What parameters are called in a shell, where that is not their name."""

NOT_SAID = {
    "pool": "an object of Python",
    "callbacks": "objects of Python",
    "generator": "an object of Python: --seed says as much",
    "index_with_generator": "it has no effect",
}
"""Parameters that no command line can say, and why."""


class ArgumentKind(NamedTuple):
    """How an argument is written."""

    type: Any = str
    """Of a word, for typer."""
    metavar: str | None = None
    read: Callable[[Any, CommandLine], Any] = lambda word, call: word
    """The argument that a word stands for."""
    help: str = ""
    """Instead of what the docstring says."""
    more: str = ""
    """Besides what the docstring says."""


@dataclass
class CommandLine:
    """A command line, while its words become arguments."""

    command: Command
    words: dict[str, Any]
    """Those that were given, by parameter."""
    data: dict[str, Any] = field(default_factory=dict)
    """The datasets, by parameter."""

    def path(self, name: str) -> Path:
        """Where a dataset is."""
        found: Path = self.words[name]
        return found

    @property
    def source(self) -> Path:
        """Where the first dataset is."""
        return self.path(next(iter(self.data)))

    @property
    def rows(self) -> Any:
        """The first dataset."""
        return next(iter(self.data.values()))

    def key(self, name: str, of: str = "") -> Any:
        """The entry that `a/b` names in a dataset."""
        of = of or next(iter(self.data))
        return entry_of(name, self.data[of], self.path(of))


def _keys(names: list[str], call: CommandLine, of: str = "") -> Any:
    keys = [call.key(name, of) for name in names]
    return keys[0] if len(keys) == 1 else keys


def _pairs(names: list[str], call: CommandLine) -> Any:
    if not any("=" in name for name in names):
        _keys(names, call, "b")
        return _keys(names, call)
    sides = [(name.partition("=")[0], name.rpartition("=")[2]) for name in names]
    return {call.key(left): call.key(right, "b") for left, right in sides}


def _function(name: str, call: CommandLine) -> Any:
    return find_function(name)


def _predicate(text: str, call: CommandLine) -> Any:
    found = comparison(text, call.rows, call.source)
    if found is None and ":" not in text:
        refuse(f"{text!r} is not of the form module:function, and no comparison such as 'label == 3' either")
    return find_function(text) if found is None else found


def _reducers(texts: list[str], call: CommandLine) -> Any:
    rows = None if "mapper" in call.words else call.rows
    return {text: parse_reducer(text, rows, call.source, call.command.groups) for text in texts}


def _mapping(texts: list[str], call: CommandLine) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            refuse(f"{text!r} is not of the form KEY=VALUE")
        found[name] = _literal(value)
    return found


def _literal(text: str, call: CommandLine | None = None) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


_UNITS = ("", "k", "m", "g", "t")


def _size(text: str, call: CommandLine | None = None) -> int:
    """Bytes, of `4GiB`, `500MB` or a number.

    Example:
        >>> _size("1.5GiB"), _size("2k"), _size("100")
        (1610612736, 2000, 100)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if found is None or found[2] == "i":
        refuse(f"{text!r} is not a size: give bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(float(found[1]) * (1024 if "i" in found[2] else 1000) ** _UNITS.index(found[2].rstrip("i")))


def _rank(text: str, call: CommandLine) -> tuple[int, int]:
    """Rank and number of ranks of `0/4`, or of `auto`, which torchrun sets; or leave with why it is neither."""
    from tdmap.ranks.shard import rank_of

    rank, _, ranks = text.partition("/")
    try:
        found = rank_of("auto" if text == "auto" else (int(rank), int(ranks)))
    except ValueError as error:
        why = str(error) if text == "auto" or (rank.isdecimal() and ranks.isdecimal()) else "give RANK/RANKS, as 0/4"
        refuse(f"--shard {text}: {why}")
    return found.rank, found.world_size


def _on_error(mode: str, call: CommandLine) -> Any:
    from tdmap.rowerrors import MODES, RowErrors

    return RowErrors(mode) if mode in MODES[1:] else mode


KEY = ArgumentKind(str, "KEY", lambda name, call: call.key(name))
KEYS = ArgumentKind(list[str], "KEY", _keys, "An entry, as a/b. Repeat it for several; the first is the primary key.")
FUNCTION = ArgumentKind(
    str, "MODULE:FUNCTION", _function, more="MODULE: a module, of the working directory too, or the path of a .py file."
)
REDUCERS = ArgumentKind(list[str], "REDUCER", _reducers, "NAME, NAME:KEY or NAME:KEY:OPTION=VALUE, such as mean:image.")
DATASET = ArgumentKind(
    Path, None, lambda path, call: None, "Folder, archive or URL of a dataset; several with commas between."
)
FOLDER = ArgumentKind(Path, "FOLDER", lambda path, call: place_of(path))
OUT = FOLDER._replace(help="Folder, or URL, for the result.")
PAIRS = ArgumentKind(list[str], "KEY=VALUE", _mapping)
WHOLE = ArgumentKind(int, "N")

KINDS: dict[str, ArgumentKind] = {
    "left_on": ArgumentKind(list[str], "KEY", lambda names, call: [call.key(name) for name in names]),
    "right_on": ArgumentKind(list[str], "KEY", lambda names, call: [call.key(name, "b") for name in names]),
    "predicate": ArgumentKind(str, "PREDICATE", _predicate, "MODULE:FUNCTION, or a comparison: 'KEY OPERATOR VALUE'."),
    "keep": ArgumentKind(
        str,
        "ROW",
        lambda word, call: None if word == "none" else word,
        "The row of each key to keep: first, last, or none (only rows whose key occurs once). Default: first.",
    ),
    "stratify": KEY,
    "weights": KEY,
    "max_memory": ArgumentKind(
        str, "SIZE", _size, "Replace a worker, between leases, when it has gained so much, as 4GiB."
    ),
    "executor": ArgumentKind(
        str,
        "NAME",
        lambda name, call: executor_of(name, call.words.get("address")),
        "process, thread, serial or ray. Default: process.",
    ),
    "profile": ArgumentKind(
        str,
        "PATH",
        lambda path, call: path == "-" or path,
        "Measure where the time goes, to a file (.json, .txt, .png) or folder; -: print a summary.",
    ),
    "pbar": ArgumentKind(bool, help="No progress bar, no summary."),
    "storage_options": PAIRS._replace(help="Options of fsspec's file system, if OUT is a URL."),
    "Dataset[Any]": DATASET,
    "Dataset[R]": DATASET,
    "Any": DATASET,
    "Dataset[Any] | str | os.PathLike[str] | None": OUT,
    "str | os.PathLike[str] | None": FOLDER,
    "KeyLike": KEYS,
    "Key": KEY,
    "Keys | None": ArgumentKind(list[str], "KEY", lambda names, call: [tuple(name.split("/")) for name in names]),
    "On | None": ArgumentKind(list[str], "KEY", _pairs, "An entry of both, or LEFT=RIGHT. Several: all of them."),
    "Callable[..., Any]": FUNCTION,
    "Callable[[Any], Any]": FUNCTION,
    "Callable[[Any], Any] | None": FUNCTION,
    "Answers[Any] | Mapping[str, Reducer[Any]] | Callable[[Any, Any], Any]": REDUCERS,
    "Mapping[Any, Any]": REDUCERS,
    "Mapping[str, Any] | None": PAIRS,
    "tuple[str, str] | None": ArgumentKind(tuple[str, str], "LEFT RIGHT"),
    "bool": ArgumentKind(bool),
    "bool | None": ArgumentKind(bool),
    "bool | Sequence[bool]": ArgumentKind(
        bool, help="Sort from large to small. Rows with equal keys keep their order."
    ),
    "Resume": ArgumentKind(bool),
    "int": WHOLE,
    "int | None": WHOLE,
    "float | None": ArgumentKind(float, "X"),
    "float | int": ArgumentKind(str, "X", _literal),
    "str": ArgumentKind(str, "TEXT"),
    "str | None": ArgumentKind(str, "TEXT"),
    "OnError": ArgumentKind(
        str, "MODE", _on_error, "raise, or skip: leave out rows on which the function raises, and list them."
    ),
    "ShardLike": ArgumentKind(
        str, "RANK/RANKS", _rank, "Run one of several parts, as 0/4; other programs run the rest."
    ),
    "Devices": ArgumentKind(str, "DEVICE"),
}
"""By the name of a parameter, or by its annotation. Words of keys, functions and numbers are refused where they are
none; what is out of range is refused by the operation."""

OF_MAP = {
    "on_error": ArgumentKind(
        str, "MODE", _on_error, "raise; skip: rows that raise are zeros, and listed; drop; or mark."
    ),
    "resume": ArgumentKind(bool, help="Keep a log; the same command, or tdmap resume, resumes after any interruption."),
}


def kind_of(command: Command, parameter: Parameter) -> ArgumentKind:
    """How a parameter of a command is written.

    Raises:
        LookupError: nothing says so.
    """
    own = OF_MAP.get(parameter.name) if command.place == MAP else None
    found = own or KINDS.get(parameter.name) or KINDS.get(parameter.annotation)
    if found is None:
        raise LookupError(
            f"{command.place}: {parameter.name}: {parameter.annotation} needs a row in KINDS or NOT_SAID."
        )
    return found


def flag_of(parameter: Parameter) -> str:
    """The option of a parameter, as `--no-sort` where it is true by default.

    Example:
        >>> flag_of(signature_of("tdmap.ops.top_k:top_k").parameters["k"])
        '-k'
    """
    if parameter.name == "pbar":
        return "--quiet"
    name = NAMES.get(parameter.name, parameter.name).replace("_", "-").lower()
    if parameter.annotation == "bool" and parameter.default == "True":
        return f"--no-{name}"
    if parameter.annotation == "bool | None":
        return f"--{name}/--no-{name}"
    return f"-{name}" if len(name) == 1 else f"--{name}"
