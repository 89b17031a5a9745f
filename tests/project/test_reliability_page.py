"""The page about faults names a test of each."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    page = (ROOT / "docs" / "reliability.md").read_text()
    return [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "| circ"))]


def test_every_row_names_a_test() -> None:
    assert len(rows()) > 30
    assert [row for row in rows() if not NAMED.search(row)] == []
