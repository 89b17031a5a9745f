"""Every public method over every kind of collection answers as the reference, or a rule says why not."""

from pathlib import Path

import pytest

from tests.differential.harness.namespace import PROJECT
from tests.differential.interface.departures import explained
from tests.differential.interface.drawing import parts
from tests.differential.interface.expressions import EXPRESSIONS, Expression
from tests.differential.interface.kinds import KINDS
from tests.differential.interface.methods import ELSEWHERE, FORMATS, absent, public, undrawn

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda expression: expression.source)
def test_answers_as_the_reference_for_every_kind(expression: Expression) -> None:
    found = {kind: parts(expression, kind) for kind in KINDS}
    odd = {kind: lines for kind, lines in found.items() if lines and explained(expression.source, kind, lines) is None}
    assert not odd, "\n".join([expression.source, *(f"{kind}: {lines}" for kind, lines in odd.items())])


def test_every_public_method_is_drawn() -> None:
    assert not undrawn(), "give each a line in tests/differential/interface/expressions.py"


def test_what_is_left_out_is_not_there() -> None:
    assert not absent() & public(PROJECT)


@pytest.mark.parametrize(("folder", "names"), ELSEWHERE.items())
def test_methods_drawn_elsewhere_are_drawn_there(folder: str, names: str) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / folder).rglob("*.py") if path.parent.name != "interface")
    assert not [name for name in names.split() if f".{name}(" not in text]


def test_formats_are_drawn_by_their_names() -> None:
    text = (ROOT / "tests/core/test_frames.py").read_text()
    assert 'f"to_{name}"' in text
    assert all(f'"{kind}"' in text for kind in FORMATS)
