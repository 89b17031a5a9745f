"""Products of parameters, of which `make test` runs a part."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

with_soak = False
"""Whether tests that are marked `soak` run; set by conftest.py. Without it, cases that would not run are not made."""


def sampled(one_in: int, *axes: Iterable[Any]) -> list[Any]:
    """Every combination of some values for `parametrize`; `make test` runs one in so many, `make soak` all others.

    Of three axes or more, none shorter than `one_in`, every two values of two axes meet in a test of `make test`; of
    two axes, every value meets one in so many of the other.
    """
    made = []
    for case in product(*map(enumerate, axes)):
        numbers, values = zip(*case, strict=True)
        left_out = sum(numbers) % one_in
        if with_soak or not left_out:
            made.append(pytest.param(*values, marks=[pytest.mark.soak] if left_out else []))
    return made
