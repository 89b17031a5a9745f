"""The plan of the house holds but for a list of exceptions that may only shrink; `docs/design.md` draws the plan."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house import floors

RECORD = "`python -m tests.house.floors --write` records what there is."


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_the_trees() -> Iterator[None]:
    """They are a million objects, which every later collection of garbage would walk over."""
    yield
    floors.sources.cache_clear()


@pytest.mark.parametrize("check", floors.CHECKS)
def test_nothing_breaks_the_plan_but_what_is_listed(check: str) -> None:
    known = [line for line in floors.known(check) if line]
    found = floors.found(check)
    new, gone = sorted(set(found) - set(known)), sorted(set(known) - set(found))
    assert not new, f"{floors.CHECKS[check].__doc__} Not in the plan, see docs/design.md: {new}"
    assert not gone, f"Mended, so take it off the list: {gone}. {RECORD}"
    assert known == found, f"The list is sorted, each line once. {RECORD}"


@pytest.mark.parametrize(
    ("check", "path", "source", "says"),
    [
        (
            "imports inside functions",
            "tdmap/x.py",
            "def f():\n    if 1: from tdmap import errors",
            "imports tdmap.errors",
        ),
        ("imports inside functions", "tdmap/x.py", "class A:\n    def f(self): import os.path", "imports os.path"),
        ("private slots", "tdmap/x.py", "def f(td):\n    return td._source", "reads _source"),
        ("private slots", "tdmap/x.py", "for a in b: print(a.b._names)", "reads _names"),
        ("patched classes", "tdmap/x.py", "from a import B\nB.method = 1", "sets B.method"),
        ("patched classes", "tdmap/x.py", "import a\nfor n in 'xy':\n    setattr(a.B, n, 1)", "sets a.B.<any>"),
        ("doors that do more", "tdmap/doors.py", "class A:\n    def f(self): return self.g() + 1", "does more in f"),
        ("modules without a floor", "tdmap/x.py", "", ""),
    ],
)
def test_a_new_violation_is_noticed(
    monkeypatch: pytest.MonkeyPatch, check: str, path: str, source: str, says: str
) -> None:
    trees = {"tdmap/errors.py": ast.parse(""), path: ast.parse(source)}
    monkeypatch.setattr(floors, "sources", lambda: trees)
    assert floors.found(check) == [f"{path} {says}" if says else "tdmap.x"]


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tdmap import errors",
        "def f():\n    import psutil",
        "class A:\n    def f(self):\n        return self._source",
        "def f():\n    import matplotlib.figure",
        "class A: pass\nA.x = 1",
        "from a import B\ndef f():\n    B.x = 1",
    ],
)
def test_what_the_plan_allows_is_not_noticed(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(floors, "sources", lambda: {"tdmap/errors.py": ast.parse(source)})
    assert [line for check in floors.CHECKS for line in floors.found(check)] == []


def test_circles_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = {f"tdmap/new/m{i}.py": ast.parse(f"from tdmap.new import m{(i + 1) % 3}") for i in range(3)}
    monkeypatch.setattr(floors, "sources", lambda: trees)
    assert [line.count(" and ") for line in floors.found("circles")] == [2]
