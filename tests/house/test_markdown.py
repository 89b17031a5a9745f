"""Every Python block of the README and the docs runs, top to bottom, one file a namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
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


def test_local_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
