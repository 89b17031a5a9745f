"""The site: every page is reached, every public name is in the reference, and what was built holds together."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))
import checks  # noqa: E402  (what `make docs` runs)

sys.path.remove(str(DOCS / "site"))
CONFIG = (ROOT / "mkdocs.yml").read_text()
REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
PUBLIC = [
    "tdmap", "tdmap.reducers", "tdmap.datasets", "tdmap.datasets.images",
    "tensordict_lite", "tensordict_lite.nn", "tensordict_lite.utils",
]  # fmt: skip


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", CONFIG, re.MULTILINE))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    examples = {
        f"examples/{path.stem}.md" for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")
    }
    assert pages - listed == set()
    assert {page for page in listed if page.startswith("examples/")} == examples


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    names = importlib.import_module(module).__all__
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE)}
    told = set(re.findall(r"`(\w+)`", REFERENCE))
    assert [name for name in names if name not in shown | told] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_says_what_it_is(module: str) -> None:
    public = importlib.import_module(module)
    named = [(name, getattr(public, name)) for name in public.__all__]
    ours = [(name, value) for name, value in named if inspect.isclass(value) or inspect.isroutine(value)]
    assert [name for name, value in ours if not (value.__doc__ or "").strip()] == []


def test_the_reference_names_only_what_there_is() -> None:
    for name in re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE):
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


def test_every_test_that_a_page_names_exists() -> None:
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", pages))
    assert len(named) > 60
    assert [(file, name) for file, name in named if f"\ndef {name}(" not in (ROOT / file).read_text()] == []


def small_site(folder: Path, body: str) -> Path:
    (folder / "search").mkdir()
    words = " ".join(checks.WORDS)
    entry = f'{{"location": "index.html", "title": "", "text": "{words}"}}'
    (folder / "search" / "search_index.json").write_text(f'{{"docs": [{entry}]}}')
    (folder / "index.html").write_text(f"<h1 id='top'>x</h1><code>{words}</code>{body}")
    return folder


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<a href='#top'>x</a><a href='https://example.org'>x</a>", []),
        ("<a href='gone.html'>x</a>", ["index.html: no such file: gone.html"]),
        ("<a href='index.html#gone'>x</a>", ["index.html: no such place: index.html#gone"]),
        ("<script src='https://example.org/x.js'></script>", ["index.html loads https://example.org/x.js"]),
        ("<link rel='stylesheet' href='//example.org/x.css'>", ["index.html loads //example.org/x.css"]),
    ],
)
def test_what_is_wrong_with_a_site_is_said(tmp_path: Path, body: str, said: list[str]) -> None:
    assert list(checks.problems(small_site(tmp_path, body))) == said


def test_a_word_that_no_page_shows_is_said(tmp_path: Path) -> None:
    site = small_site(tmp_path, "")
    (site / "index.html").write_text(f"<code>{' '.join(checks.WORDS[1:])}</code>")
    assert list(checks.problems(site)) == ["a search for 'pandas' finds no page that shows code with it"]


def test_the_site_that_was_built_holds_together() -> None:
    if not (ROOT / "site" / "search").is_dir():
        pytest.skip("not built: make docs")
    assert list(checks.problems(ROOT / "site")) == []
