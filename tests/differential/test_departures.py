"""Every departure is one, answers as its row says, and stands on the page for those who come from the reference."""

import pytest

from tests.differential.departures import DEPARTURES, PAGE, written
from tests.differential.harness import Case, Outcome, difference, evaluate
from tests.differential.harness.namespace import PROJECT, REFERENCE


def test_every_departure_is_listed_once() -> None:
    sources = [source for source, _, _ in DEPARTURES]
    assert sorted(sources) == sorted(set(sources))


@pytest.mark.parametrize(("source", "same_as", "reason"), DEPARTURES, ids=[row[0] for row in DEPARTURES])
def test_departs_on_purpose(source: str, same_as: str, reason: str) -> None:
    ours, wanted = _value(source, PROJECT), _value(same_as, PROJECT)
    assert not difference(wanted, ours), f"{source} no longer equals {same_as} ({reason})"
    assert difference(_value(source, REFERENCE), ours), "the reference agrees now: drop the row"


def test_the_page_shows_the_list() -> None:
    page = PAGE.read_text()
    assert page == written(page), "write it anew: python -m tests.differential.departures"


def _value(source: str, library: str) -> Outcome:
    outcome = evaluate(Case("departure", source), library)
    return Outcome(outcome.value, error=outcome.error)
