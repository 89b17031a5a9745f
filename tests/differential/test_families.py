"""Every row of every case table gives the same answer as the reference package."""

import pytest

from tests.differential.cases import ALL_CASES
from tests.differential.harness import Case, compare_case


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: f"{case.family}: {case.source}")
def test_answers_as_the_reference(case: Case) -> None:
    lines = compare_case(case)
    assert not lines, "\n".join([case.source, *lines])
