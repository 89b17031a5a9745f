"""What the site needs beyond Markdown: pages made of other files, and links that lead out of ``docs/``.

- Every program of ``examples/`` is a page, and so are CONTRIBUTING.md, SECURITY.md and CHANGELOG.md.
- A link to such a file leads to its page; one to the README leads to the start page; one to any other file of the
  repository stays as its name.
- The marks of blocks (```` ```python no-run ````, ``needs=ray``), which are for the tests, are taken off.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import checks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = {
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))},
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.ipynb"))},
    **{name: f"project/{name.lower()}" for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")},
}
"""Files of the repository that are pages, and their places in the site."""
CHARTS = sorted((ROOT / "benchmarks" / "results").glob("*.png"))
ELSEWHERE = {"README.md": "index.md"}

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(\s*`{3,})(\w+)[ \t]+[^\n`{]+$", re.MULTILINE)

log = logging.getLogger("mkdocs.hooks.tdmap")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made."""
    for name, page in MADE.items():
        files.append(File.generated(config, page, content=_page_of(name)))
    for chart in CHARTS:
        files.append(File.generated(config, f"images/{chart.name}", abs_src_path=str(chart)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Marks off, links to where their files are in the site."""
    place = page.file.src_uri
    if place.startswith(("reference/", "project/")):  # a search shows what is told before what is listed
        page.meta["search"] = {"boost": 0.3}
    source = next((ROOT / name for name, made in MADE.items() if made == place), DOCS / place)

    def lead(match: re.Match[str]) -> str:
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        file = Path(os.path.normpath(source.parent / target))
        if not file.is_relative_to(ROOT) or not file.exists():
            log.warning("%s: the link to %s leads nowhere", place, target)
            return match.group(0)
        name = file.relative_to(ROOT).as_posix()
        name = ELSEWHERE.get(name) or MADE.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else "")
        if not name or not files.get_file_from_path(name):
            return text if text.startswith("`") else f"`{target}`" if text == target else text
        return f"[{text}]({os.path.relpath(name, os.path.dirname(place) or '.')}{anchor})"

    charts = "".join(f"\n![{chart.stem}](images/{chart.name})\n" for chart in CHARTS)
    markdown = markdown.replace("<!-- charts -->", f"## Charts\n{charts}" if charts else "")
    return FENCE.sub(r"\1\2", LINK.sub(lead, markdown))


def on_post_build(config: Any) -> None:
    """What is wrong with the built site; a warning ends a strict build."""
    for problem in checks.problems(Path(config.site_dir)):
        log.warning(problem)


def _page_of(name: str) -> str:
    """The Markdown of a page that is made."""
    path = ROOT / name
    if path.suffix == ".md":
        return path.read_text()
    if path.suffix == ".ipynb":
        return _notebook(path)
    text = path.read_text()
    told, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    return f'# {path.name}\n\n{told}\n\n{rest}\n\n```python title="{name}"\n{text}```\n'


def _notebook(path: Path) -> str:
    import json

    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts)
