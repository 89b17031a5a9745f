"""The commands of operations: each takes what its operation takes, and every word becomes an argument."""

import functools
import importlib
import inspect
import operator
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tdmap.cli import app
from tdmap.cli.answers import DERIVED
from tdmap.cli.arguments import DATASET, GROUP_BY, GROUPING, NOT_SAID, Command, flag_of, kind_of
from tdmap.cli.commands import operations
from tdmap.cli.commands.operations import COMMANDS, EXTRAS, command_of
from tdmap.cli.signatures import signature_of
from tdmap.run.operation import OPERATIONS
from tdmap.run.options import options_of
from tensordict_lite import TensorDict
from tests.cells.operations import ELSEWHERE, INNER, NOT_ROWS, registered

NEW = '''
from __future__ import annotations

import os
from typing import Any, Unpack

import torch

from tdmap.types import Dataset
from tdmap.output.permute import permute_rows
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import Options


@operation
def every_nth(
    ctx: Context,
    data: Dataset[Any],
    step: int,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    *,
    start: int = 0,
    **options: Unpack[Options],
) -> Any:
    """One row of so many.

    Args:
        data: a dataset.
        step: rows from one to the next.
        out: a folder.
        start: the first row; see `step`.
    """
    return permute_rows(ctx, data, torch.arange(start, len(data), step))
'''
DOCS = Path(__file__).parents[2] / "docs" / "commands.md"
WITHOUT = {
    "describe": "tdmap stats",
    "reduce": "tdmap reduce calls map_reduce",
    "map_iter": "it gives chunks to a loop",
    "prefetch_to_device": "it gives chunks to a loop",
}
"""Operations without a command of their own, and why."""


def function_of(place: str) -> Any:
    module, _, name = place.partition(":")
    return inspect.unwrap(operator.attrgetter(name)(importlib.import_module(module)))


def parameters_of(place: str) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function_of(place)).parameters
    return {name: one for name, one in found.items() if name not in ("self", "ctx", "options")}


def taken_by(name: str) -> dict[str, Any]:
    """The parameters of a command, as typer made them."""
    of_all = {"--json", "--traceback"}  # which a command has once it was asked for its help
    return {one.name: one for one in command_of(name).params if not of_all & {*one.opts}}


@pytest.mark.parametrize("place", [*(row.place for row in COMMANDS.values()), GROUP_BY])
def test_a_signature_is_read_from_the_source_as_it_is(place: str) -> None:
    found = signature_of(place).parameters
    wanted = parameters_of(place)
    assert [*found][: len(wanted)] == [*wanted]
    assert {*found} - {*wanted} == {*options_of(function_of(place))}
    for name, one in wanted.items():
        assert found[name].annotation == str(one.annotation)
        assert (found[name].default is None) == (one.default is one.empty)
    assert not [name for name, one in found.items() if not one.help]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_every_argument_of_its_operation(name: str) -> None:
    row = COMMANDS[name]
    wanted = {*parameters_of(row.place), *options_of(function_of(row.place)), *(GROUPING if row.groups else ())}
    taken = taken_by(name)
    assert wanted - {*taken} - {*NOT_SAID} == set()
    assert {*taken} - wanted <= {*EXTRAS, "help"}
    assert not [one for one in taken.values() if one.name != "help" and not one.help]


def test_an_operation_has_a_command() -> None:
    have = {row.place.partition(":")[2] for row in COMMANDS.values()}
    known = have | set(WITHOUT) | set(NOT_ROWS) | set(INNER) | set(ELSEWHERE)
    assert {name for name in registered() if not name.startswith("Pipeline.")} - known == set()


def test_the_page_says_which_command_takes_which_option() -> None:
    takes: dict[str, list[str]] = {}
    for name in COMMANDS:
        for one in taken_by(name).values():
            for flag in one.opts if one.param_type_name == "option" and one.name != "help" else ():
                takes.setdefault(flag, []).append(name)
    lines = []
    for flag, names in sorted(takes.items(), key=lambda one: (-len(one[1]), one[0].strip("-"))):
        missing = [name for name in COMMANDS if name not in names]
        text = ", ".join(names) if len(missing) > 4 else "all but " + ", ".join(missing) if missing else "all"
        lines.append(f"| `{flag}` | {text} |")
    table = "\n".join(["| option | commands |", "|---|---|", *lines])
    page = DOCS.read_text()
    found = re.search(r"<!-- options: begin -->\n(.*?)\n<!-- options: end -->", page, re.DOTALL)
    assert found is not None and found[1] == table, table


SAMPLES = {
    "N": ("3", 3),
    "X": ("0.5", 0.5),
    "TEXT": ("word", "word"),
    "KEY": ("label", "label"),
    "FOLDER": ("place", Path("place")),
    "KEY=VALUE": ("a=1", {"a": 1}),
    "SIZE": ("2MiB", 2 << 20),
    "NAME": ("thread", "thread"),
    "PATH": ("-", True),
    "MODE": ("raise", "raise"),
    "DEVICE": ("cpu", "cpu"),
    "LEFT RIGHT": ("_x _y", ("_x", "_y")),
    "ROW": ("last", "last"),
    "MODULE:FUNCTION": ("math:sqrt", None),
    "PREDICATE": ("label==1", None),
    "REDUCER": ("count", None),
}
"""A word of each sort, and the argument that it stands for."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_word_becomes_an_argument(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    TensorDict({"label": torch.arange(4)}, [4]).memmap(tmp_path / "data")
    called: dict[str, Any] = {}

    def record(*data: Any, **arguments: Any) -> Any:
        called.update(arguments)
        raise ValueError("recorded")

    monkeypatch.setattr(operations, "function_of", lambda command: record)
    line, wanted = [name], {}
    row = COMMANDS[name]
    for word in row.positional:
        kind = kind_of(row, row.signature.parameters[word])
        line.append({"out": "out"}.get(word) or ("data" if kind is DATASET else SAMPLES[kind.metavar or ""][0]))
    for word, parameter in row.signature.parameters.items():
        if word in row.positional or word in NOT_SAID or word in ("overwrite", "shard", "left_on", "right_on"):
            continue
        kind, flag = kind_of(row, parameter), flag_of(parameter).split("/")[0]
        if kind.type is bool:
            line.append(flag)
            wanted[word] = not flag.startswith("--no-") and word != "pbar"
        else:
            text, argument = SAMPLES[kind.metavar or ""]
            line += [flag, *text.split()]
            wanted |= {} if argument is None else {word: argument}
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 2 and done.stderr == "tdmap: recorded\n", done.stderr
    found = {word: called[word] for word in wanted}
    keys = {word: ("label",) if word.endswith("_keys") else "label" for word in wanted if wanted[word] == "label"}
    found |= {word: found[word][0] if isinstance(found[word], list) else found[word] for word in keys}
    assert found == wanted | keys


def test_a_row_makes_a_command_of_a_new_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nth_rows.py").write_text(NEW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "every-nth", Command("nth_rows:every_nth"))
    monkeypatch.setitem(DERIVED, "every-nth", functools.partial(command_of, "every-nth"))
    TensorDict({"x": torch.arange(9)}, [9]).memmap(tmp_path / "data")
    told = CliRunner().invoke(app, ["every-nth", "--help"]).stdout
    assert "One row of so many." in told and "The first row; see --step. Default: 0." in " ".join(told.split())
    line = ["every-nth", "data", "out", "--step", "4", "--start", "1", "--resume", "--num-workers", "0"]
    try:
        done = CliRunner().invoke(app, line)
    finally:
        OPERATIONS.pop("every_nth", None)
        sys.modules.pop("nth_rows", None)
    assert done.exit_code == 0 and done.stdout == "2 of 9 rows done in out\n", done.stderr
    assert TensorDict.load_memmap(tmp_path / "out")["x"].tolist() == [1, 5]
