"""What must hold of the built site: no dead link, nothing loaded from elsewhere, and a search that finds."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

WORDS = ("on_error", "pandas", "Parquet", "JPEG", "tokenizer", "torchrun", "DataLoader", "resume")
"""What people type into the search."""


class Page(HTMLParser):
    """Links, anchors, and what a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        source = given.get("src") or (given.get("href") if tag == "link" else None)
        if source:
            self.loads.append(source)
        elif tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")


def problems(site: Path) -> Iterator[str]:
    """Everything that is wrong with the site in a folder."""
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are from the root of a server
        name = path.relative_to(site.resolve())
        for link in [*page.links, *page.loads]:
            if link in page.loads and urlsplit(link).netloc:
                yield f"{name} loads {link}"
            if urlsplit(link).scheme or link.startswith(("//", "/")):
                continue
            where, _, anchor = link.partition("#")
            target = (path.parent / unquote(where.partition("?")[0])).resolve() if where else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{name}: no such file: {link}"
            elif target in pages and unquote(anchor) not in pages[target].anchors:
                yield f"{name}: no such place: {link}"
    for style in site.rglob("*.css"):
        for url in re.findall(r"url\(['\"]?(https?:[^)'\"]+)|@import\s+['\"](https?:[^'\"]+)", style.read_text()):
            yield f"{style.relative_to(site)} loads {url}"
    for word in WORDS:
        if not shown(site, word):
            yield f"a search for {word!r} finds no page that shows code with it"


def shown(site: Path, word: str) -> list[str]:
    """The pages, best first, that a search for a word leads to and that show it in code; of those written by hand."""
    index = json.loads((site / "search.json").read_text())
    between = re.compile(index["config"]["separator"] + "|<[^>]*>")
    score: dict[str, int] = {}
    for entry in index["items"]:
        page = entry["location"].partition("#")[0]
        if page.startswith(("reference/", "project/", "examples/")):
            continue
        title, text = (between.split(unescape(entry[name]).lower()) for name in ("title", "text"))
        hits = title.count(word.lower()) * 10 + text.count(word.lower())
        if hits:
            score[page] = score.get(page, 0) + hits
    found = sorted(score, key=lambda page: -score[page])
    return [page for page in found if _is_in_code(site / page, word)]


def _is_in_code(path: Path, word: str) -> bool:
    code = re.findall(r"<code[^>]*>(.*?)</code>", path.read_text(), re.DOTALL)
    return any(word.lower() in re.sub(r"<[^>]+>", "", part).lower() for part in code)


if __name__ == "__main__":
    found = list(problems(Path(__file__).parents[2] / "site"))
    sys.exit("\n".join(found) or None)
