"""Write the pages of the site into a folder: those of ``docs/``, and those that are made of other files.

- Every program of ``examples/`` is a page, and so are CONTRIBUTING.md, SECURITY.md and CHANGELOG.md.
- A link to such a file leads to its page, one to the README to the start page. Of other links the text stays.
- The marks of blocks (```` ```python no-run ````, ``needs=ray``) are for the tests, and are taken off.
- Lines ``::: name`` become the reference.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from pathlib import Path

import reference

ROOT = Path(__file__).parents[2]
EXAMPLES = [path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
PAGES = {
    **{path: path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")},
    **{path: f"examples/{path.stem}.md" for path in EXAMPLES},
    **{ROOT / name: f"project/{name.lower()}" for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")},
}
"""Sources of pages, and their places in the site."""
CHARTS = sorted((ROOT / "benchmarks" / "results").glob("*.png"))

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
MARKS = re.compile(r"^(```python)(?: (?:no-run|needs=\S+))+$", re.MULTILINE)


def write(folder: Path) -> None:
    """Fill a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md", "*.py", "__pycache__"))
    for chart in CHARTS:
        shutil.copy(chart, folder / "images")
    for source, place in PAGES.items():
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(page(source))


def page(source: Path) -> str:
    """The Markdown that the site has for a file."""
    place = PAGES[source]

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        file = Path(os.path.normpath(source.parent / target))
        if not file.exists():
            return match.group(0)  # a dead link, which the build finds
        to = "index.md" if file == ROOT / "README.md" else PAGES.get(file)
        if to is None:
            return text if text.startswith("`") else f"`{target}`" if text == target else text
        return f"[{text}]({os.path.relpath(to, os.path.dirname(place) or '.')}{anchor})"

    charts = "".join(f"\n![{chart.stem}](images/{chart.name})\n" for chart in CHARTS)
    markdown = _markdown(source).replace("<!-- charts -->", f"## Charts\n{charts}" if charts else "")
    return LINK.sub(link, MARKS.sub(r"\1", reference.expand(markdown)))


def _markdown(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(cell if kind == "markdown" else f"```python\n{cell}\n```" for kind, cell in cells)
    docstring = ast.get_docstring(ast.parse(text))
    return f'# {path.name}\n\n{docstring}\n\n```python title="examples/{path.name}"\n{text}```\n'


if __name__ == "__main__":
    write(ROOT / "build" / "pages")
