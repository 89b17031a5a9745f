"""`tdmap map` has the options of `tdmap.map`, by their names."""

import inspect
import typing

import typer.main

import tdmap
from tdmap.cli import app
from tdmap.cli.commands.map import OF_THE_SHELL
from tdmap.run.options import MapOptions
from tests.project.test_markdown import ROOT

OF_PYTHON = {
    "pool": "an object",
    "callbacks": "objects",
    "generator": "an object: --seed says as much",
    "fn_kwargs": "a function of the module binds them",
    "storage_options": "variables of the environment and files of the store's library say them",
    "index_with_generator": "it has no effect",
}
"""Arguments that only Python can say, and why."""


def test_map_has_the_options_of_the_function() -> None:
    arguments = {*inspect.signature(tdmap.map).parameters, *typing.get_type_hints(MapOptions)}
    arguments -= {"data", "fn", "options"}
    command = typer.main.get_command(app).commands["map"]  # type: ignore[attr-defined]
    words = {parameter.name for parameter in command.params} - {*OF_THE_SHELL, "json_of_all", "traceback_of_all"}
    words |= {"pbar"}  # by --quiet
    assert words == arguments - {*OF_PYTHON}


def test_the_page_lists_the_commands() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"| `tdmap {name}" in page
