"""Every Python block of the README and the docs runs, top to bottom, one file a namespace.

A block marked ``python no-run`` is left out: it needs a cluster or a GPU. One marked ``python needs=joblib,ray`` runs
where these packages can be imported.
"""

import functools
import importlib
import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python([^\n`]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Line number and code of each block that runs here."""
    return [
        (text.count("\n", 0, m.start(2)), m.group(2)) for m in BLOCK.finditer(text) if runs_here(m.group(1).split())
    ]


def runs_here(marks: list[str]) -> bool:
    """Whether a block with these marks runs here.

    Raises:
        ValueError: there is no such mark.
    """
    needed = [name for mark in marks if mark.startswith("needs=") for name in mark.removeprefix("needs=").split(",")]
    odd = [mark for mark in marks if mark != "no-run" and not mark.startswith("needs=")]
    if odd:
        raise ValueError(f"a block is marked {odd[0]!r}: there are no-run and needs=package,package")
    return "no-run" not in marks and all(map(importable, needed))


@functools.cache
def importable(name: str) -> bool:
    """Whether a package is there and works."""
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):  # torchvision raises the second where it was built for another torch
        return False
    return True


PAGES_WITH_CODE = [page for page in PAGES if "\n```python" in page.read_text()]


@pytest.fixture
def forks() -> Iterator[None]:
    """Workers of a DataLoader are forked: what a page defines is in no module that another process could import."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=[str(p.relative_to(ROOT)) for p in PAGES_WITH_CODE])
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in python_blocks(page.read_text()):
        padded = "\n" * line + code  # so that a traceback has the line of the page
        exec(compile(padded, str(page), "exec"), namespace)


def test_a_mark_that_does_not_exist_is_an_error() -> None:
    assert [code for _, code in python_blocks("```python needs=no_such_package\n1\n```\n```python\n2\n```\n")] == [
        "2\n"
    ]
    with pytest.raises(ValueError, match="no-run and needs="):
        python_blocks("```python norun\n1\n```\n")


def test_readme_opens_with_demo_and_test() -> None:
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    assert "make demo" in first_block
    assert "make test" in first_block


def test_local_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())]
    assert {page.name for page, _ in links} >= {"README.md", "CONTRIBUTING.md", "design.md"}
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def headings(page: Path) -> set[str]:
    """The places in a page that a link may name."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", word).strip().lower()) for word in words}


def test_links_to_a_heading_lead_to_one() -> None:
    wrong = []
    for page in PAGES:
        for link, place in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
            target = (page.parent / link).resolve() if link else page
            made = f"\n::: {place}\n" in target.read_text()  # by the reference
            if not made and place not in headings(target):
                wrong.append((page.name, f"{link}#{place}"))
    assert wrong == []


NAMED = re.compile(r"`((?:tdmap|tensordict_lite|tests|benchmarks|examples|docs|harness)/[\w/.]*\w)`")
"""A file or folder that prose names by its path."""


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_files_that_a_page_names_are_there(page: Path) -> None:
    places = (ROOT, ROOT / "tests" / "differential")
    named = {name for name in NAMED.findall(page.read_text()) if not name.startswith("benchmarks/results")}  # written
    assert sorted(name for name in named if not any((place / name).exists() for place in places)) == []
