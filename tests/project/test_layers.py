"""The code follows the plan in `docs/design.md`, but for a list of exceptions that may only shrink."""

import ast
from collections.abc import Iterator

import pytest

from tests.project import layers

RECORD = "`python -m tests.project.layers --write` records what there is."


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_the_trees() -> Iterator[None]:
    """They are a million objects, which every later collection of garbage would walk over."""
    yield
    layers.sources.cache_clear()


@pytest.mark.parametrize("check", layers.CHECKS)
def test_nothing_breaks_the_plan_but_what_is_listed(check: str) -> None:
    known = [line for line in layers.known(check) if line]
    found = layers.found(check)
    new, gone = sorted(set(found) - set(known)), sorted(set(known) - set(found))
    assert not new, f"{layers.CHECKS[check].__doc__} Not in the plan, see docs/design.md: {new}"
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
        ("modules without a layer", "tdmap/x.py", "", ""),
    ],
)
def test_a_new_violation_is_noticed(
    monkeypatch: pytest.MonkeyPatch, check: str, path: str, source: str, says: str
) -> None:
    trees = {"tdmap/errors.py": ast.parse(""), path: ast.parse(source)}
    monkeypatch.setattr(layers, "sources", lambda: trees)
    assert layers.found(check) == [f"{path} {says}" if says else "tdmap.x"]


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
    monkeypatch.setattr(layers, "sources", lambda: {"tdmap/errors.py": ast.parse(source)})
    assert [line for check in layers.CHECKS for line in layers.found(check)] == []


def test_circles_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = {f"tdmap/new/m{i}.py": ast.parse(f"from tdmap.new import m{(i + 1) % 3}") for i in range(3)}
    monkeypatch.setattr(layers, "sources", lambda: trees)
    assert [line.count(" and ") for line in layers.found("circles")] == [2]
