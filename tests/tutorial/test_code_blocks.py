"""The tutorial's code blocks run in order, and every ``# -> shown`` comment is what the line shows."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tensordict.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"  # -> (.*)$")


def _blocks(page: Path) -> list[tuple[int, str]]:
    """Every Python block of ``page`` with the line it starts on."""
    text = page.read_text()
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in _BLOCK.finditer(text)]


def _run(source: str, first_line: int, scope: dict[str, Any]) -> list[str]:
    """Run a block statement by statement; the lines that show something else than they say."""
    wrong, lines = [], source.splitlines()
    for node in ast.parse(source).body:
        expected = _SHOWN.search(lines[(node.end_lineno or node.lineno) - 1])
        if not isinstance(node, ast.Expr) or expected is None:
            exec(compile(ast.Module([node], []), str(PAGE), "exec", dont_inherit=True), scope)
            continue
        shown = repr(eval(compile(ast.Expression(node.value), str(PAGE), "eval", dont_inherit=True), scope))
        if shown != expected.group(1):
            line = first_line + node.lineno - 1
            wrong.append(f"{PAGE.name}:{line}: the page says {expected.group(1)}, the library shows {shown}")
    return wrong


def test_the_page_does_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scope: dict[str, Any] = {"__name__": "tutorial"}
    blocks = _blocks(PAGE)
    assert len(blocks) > 12
    wrong = [line for number, source in blocks for line in _run(source, number, scope)]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_comment_is_noticed() -> None:
    assert _run("1 + 1  # -> 3\n", 1, {})
    assert not _run("1 + 1  # -> 2\n", 1, {})
