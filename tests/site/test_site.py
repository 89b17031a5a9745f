"""The site: every page is reached, every public name is in the reference, and what is built holds together."""

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))
import checks  # noqa: E402  (what `make docs` runs)
import reference  # noqa: E402

sys.path.remove(str(DOCS / "site"))
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
NAMED = re.findall(r"^::: ([\w.]+)", REFERENCE, re.MULTILINE)
PUBLIC = [
    "tdmap", "tdmap.reducers", "tdmap.datasets", "tdmap.datasets.images",
    "tensordict_lite", "tensordict_lite.nn", "tensordict_lite.utils",
]  # fmt: skip


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(pages_of(CONFIG["nav"]))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    examples = {
        f"examples/{path.stem}.md" for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")
    }
    assert pages - listed == set()
    assert {page for page in listed if page.startswith("examples/")} == examples


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    names = importlib.import_module(module).__all__
    shown = {name.rpartition(".")[2] for name in NAMED}
    told = set(re.findall(r"`(\w+)`", REFERENCE))
    assert [name for name in names if name not in shown | told] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_says_what_it_is(module: str) -> None:
    public = importlib.import_module(module)
    named = [(name, getattr(public, name)) for name in public.__all__]
    ours = [(name, value) for name, value in named if inspect.isclass(value) or inspect.isroutine(value)]
    assert [name for name, value in ours if not (value.__doc__ or "").strip()] == []


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_the_reference_describes_the_objects_that_it_names(page: Path) -> None:
    made = reference.expand(page.read_text())
    anchors = re.findall(r"^#+ \S+ \{#([\w.]+)\}$", made, re.MULTILINE)
    assert len(anchors) == len(set(anchors))
    prose = re.sub(r"^```.*?^```|`+.*?`+", "", made, flags=re.DOTALL | re.MULTILINE)
    assert [line for line in prose.splitlines() if line.startswith(":::") or "<" in line or " at 0x" in line] == []
    for path in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE):
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        described = made.partition(f" {{#{path}}}\n\n```python\n")[2]
        assert described.startswith(f"{'class' if inspect.isclass(found) else 'def'} {name}"), path
        assert described.partition("```\n\n")[2].split()[:3] == reference._prose(found.__doc__).split()[:3], path


SHOP = '''
class Base:
    def sell(self):
        """Sell."""

class Shop(Base):
    """A shop.

    Args:
        name: what the sign says,
            in one line.

    Example:
        >>> Shop("a").owner
        'b'
    """

    owner: "str | None" = None
    """Who owns it, a :class:`shop.Base` or :class:`~shop.Shop`."""

    def __init__(self, name: "str", /, *goods: "str", open: bool = False, **more) -> "None": ...

    @property
    def size(self) -> "int":
        """Metres."""

    @classmethod
    def open(cls, at: "int" = 8, *, until=object()) -> "Shop":
        """Open.

        Returns:
            A shop.
        """

    def _hidden(self):
        """Hidden."""

    def undescribed(self): ...
'''
DESCRIBED = """# Shop
## shop.Shop {#shop.Shop}
```python
class Shop(name: str, /, *goods: str, open: bool = False, **more)
```
A shop.
**Parameters**
- **`name`** – what the sign says,
    in one line.
**Example**
```pycon
>>> Shop("a").owner
'b'
```
### owner {#shop.Shop.owner}
```python
owner: 'str | None' = None
```
Who owns it, a `shop.Base` or `Shop`.
### size {#shop.Shop.size}
```python
size: int
```
Metres.
### open {#shop.Shop.open}
```python
@classmethod
def open(at: int = 8, *, until=...) -> Shop
```
Open.
**Returns**
A shop.
"""


def test_a_class_is_described_with_fields_properties_and_methods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    assert re.sub(r"\n{2,}", "\n", reference.expand("# Shop\n::: shop.Shop\n")) == DESCRIBED
    assert re.findall("{#(.*)}", reference.expand("::: shop.Shop open")) == ["shop.Shop", "shop.Shop.open"]
    with pytest.raises(AttributeError, match="members of shop.Shop .*'shut'"):
        reference.expand("::: shop.Shop open shut")
    assert "shop.Shop.sell" in re.findall("{#(.*)}", reference.expand("::: shop.Shop *"))


def test_every_test_that_a_page_names_exists() -> None:
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", pages))
    assert len(named) > 60
    assert [(file, name) for file, name in named if f"\ndef {name}(" not in (ROOT / file).read_text()] == []


def small_site(folder: Path, body: str, separator: str = " ") -> Path:
    words = " ".join(checks.WORDS)
    items = [{"location": "index.html", "title": "", "text": f"<p>{words}</p>"}]
    (folder / "search.json").write_text(json.dumps({"config": {"separator": separator}, "items": items}))
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
    assert list(checks.problems(site)) == ["a search for 'on_error' finds no page that shows code with it"]


def test_a_search_that_splits_names_is_reported(tmp_path: Path) -> None:
    site = small_site(tmp_path, "", separator="[ _]")
    assert list(checks.problems(site)) == ["a search for 'on_error' finds no page that shows code with it"]


MAKE_DOCS = re.findall(
    r"^\t\$\(BIN\)/(python docs/site/.*|zensical .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
)


def build(folder: Path) -> None:
    """Run the commands of `make docs` in a folder."""
    for command in MAKE_DOCS:
        arguments = command.removeprefix("python ").replace("zensical", "-m zensical", 1).split()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of what the site is made of."""
    pytest.importorskip("zensical", reason="needs the extra `docs`")
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("zensical.toml", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_site_builds_and_holds_together(docs: Path) -> None:
    build(docs)
    built = {page.relative_to(docs / "site").as_posix() for page in (docs / "site").rglob("*.html")}
    assert built == {page.removesuffix("md") + "html" for page in pages_of(CONFIG["nav"])} | {"404.html"}


@pytest.mark.parametrize(
    ("file", "link", "dead"),
    [
        ("docs/index.md", "(datasets.md)", "(gone.md)"),
        ("docs/index.md", "(datasets.md)", "(datasets.md#gone)"),
        ("docs/design.md", "(images/life-of-a-chunk.svg)", "(images/gone.svg)"),
        ("CONTRIBUTING.md", "(docs/design.md)", "(docs/gone.md)"),
        ("zensical.toml", '"concepts.md"', '"gone.md"'),
    ],
)
def test_a_dead_link_ends_the_build(docs: Path, file: str, link: str, dead: str) -> None:
    text = (docs / file).read_text()
    assert link in text
    (docs / file).write_text(text.replace(link, dead))
    with pytest.raises(subprocess.CalledProcessError) as failure:
        build(docs)
    assert "gone" in re.sub(r"\x1b\[[\d;]*m", "", failure.value.output)
