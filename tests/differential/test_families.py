"""Every row of every case table gives the same answer as the reference package."""

import pytest

from tests.differential.cases import ALL_CASES
from tests.differential.harness import compare_case


@pytest.mark.parametrize("family", dict.fromkeys(case.family for case in ALL_CASES))
def test_answers_as_the_reference(family: str) -> None:
    found = {case.source: compare_case(case) for case in ALL_CASES if case.family == family}
    assert not any(found.values()), "\n".join(
        "\n    ".join([source, *lines]) for source, lines in found.items() if lines
    )
