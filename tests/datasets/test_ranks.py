"""Ranks of strings: against Python's own order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdmap.keys.ranks import ranks_of
from tensordict_lite import Ragged

texts = st.text(alphabet="ab\0é", max_size=20) | st.text(max_size=5) | st.sampled_from(["a" * 8, "a" * 16, "a" * 17])


@settings(max_examples=200, deadline=None)
@given(st.lists(texts, min_size=1, max_size=40), st.lists(texts, min_size=1, max_size=20), st.booleans())
def test_ranks_are_those_of_sorted_python_values(a: list[str], b: list[str], as_bytes: bool) -> None:
    rows = [[text.encode() for text in part] if as_bytes else part for part in (a, b)]
    numbers = {value: number for number, value in enumerate(sorted({*rows[0], *rows[1]}))}
    found = ranks_of([Ragged.from_list(part) for part in rows])
    assert [part.tolist() for part in found] == [[numbers[value] for value in part] for part in rows]


def test_parts_and_columns_without_rows() -> None:
    words = Ragged.from_list(["c", "a", "b", "a"])
    assert [part.tolist() for part in ranks_of([words[[3, 0]], words[:0]])] == [[0, 1], []]
    for other in (Ragged.from_list([[1]]), Ragged.from_list([b"a"])):
        with pytest.raises(TypeError, match="strings, or bytes"):
            ranks_of([words, other])
