"""The page about the architecture is held to the code: layers, glossary, the state of a process."""

import importlib
import re
from pathlib import Path

import pytest

from tests.project import layers

PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
GLOSSARY = PAGE[PAGE.index("## Glossary") :]
NOUNS = re.findall(r"^\| \*?`(\w+)`\*? \| `([\w.]+)` \| ", GLOSSARY, re.MULTILINE)


def test_the_glossary_is_there() -> None:
    rows = GLOSSARY.count("\n| ") - 1  # its head
    assert len(NOUNS) == rows >= 35


@pytest.mark.parametrize(("noun", "module"), NOUNS, ids=[f"{module}.{noun}" for noun, module in NOUNS])
def test_every_noun_of_the_glossary_lives_where_it_says(noun: str, module: str) -> None:
    assert hasattr(importlib.import_module(module), noun)


def test_every_file_that_keeps_state_for_its_process_is_listed() -> None:
    texts = {path: path.read_text() for path in (layers.ROOT / "tdmap").rglob("*.py")}
    hooks = {path for path, text in texts.items() if re.search(r"register_at_fork\(|atexit\.register\(", text)}
    hooked = {path.relative_to(layers.ROOT).as_posix() for path in hooks}
    section = PAGE[PAGE.index("## State of the process") : PAGE.index("## Glossary")]
    assert set(re.findall(r"^\| `(tdmap/[\w/]+\.py)` \|", section, re.MULTILINE)) == hooked


def test_every_module_is_drawn_in_its_layer() -> None:
    drawing = PAGE[PAGE.index("## Layers of tdmap") : PAGE.index("**Imports stand at the top")]
    named = set(re.findall(r"\w+", drawing))
    in_layers = {name.rsplit(".", 1)[1] for name in layers.placed() if "." in name}
    hidden = {name for name in in_layers - named if not name.startswith("cli")}
    workers = {name.rsplit(".", 1)[1] for name in layers.placed() if name.startswith("tdmap.runtime.")}
    assert hidden - workers == set(), "of the workers, the drawing names some; all others are there"


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_every_path_on_the_page_leads_to_a_file(page: str) -> None:
    paths = re.findall(r"[\w/]+/\w+\.py\b", (layers.ROOT / page).read_text())
    roots = [layers.ROOT / name for name in ("", "tdmap", "tensordict_lite")]
    assert paths and [path for path in paths if not any((root / path).exists() for root in roots)] == []
