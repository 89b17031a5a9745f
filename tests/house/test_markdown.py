"""Every Python block of the README and the docs runs, top to bottom, one file a namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Line number and code of each ```` ```python ```` block; one marked ``python no-run`` is left out."""
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in BLOCK.finditer(text)]


PAGES_WITH_CODE = [page for page in PAGES if python_blocks(page.read_text())]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=[str(p.relative_to(ROOT)) for p in PAGES_WITH_CODE])
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in python_blocks(page.read_text()):
        padded = "\n" * line + code  # so that a traceback has the line of the page
        exec(compile(padded, str(page), "exec"), namespace)


def test_readme_opens_with_demo_and_test() -> None:
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    assert "make demo" in first_block
    assert "make test" in first_block


def test_local_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())]
    assert {page.name for page, _ in links} >= {"README.md", "CONTRIBUTING.md", "design.md"}
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


NAMED = re.compile(r"`((?:tdmap|tensordict_lite|tests|benchmarks|examples|docs|harness)/[\w/.]*\w)`")
"""A file or folder that prose names by its path."""


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_files_that_a_page_names_are_there(page: Path) -> None:
    places = (ROOT, ROOT / "tests" / "differential")
    named = {name for name in NAMED.findall(page.read_text()) if not name.startswith("benchmarks/results")}  # written
    assert sorted(name for name in named if not any((place / name).exists() for place in places)) == []
