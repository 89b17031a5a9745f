"""Rows copied from anywhere: against slices put together."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict_lite.gathering import gather_rows, offsets_of


def by_hand(values: torch.Tensor, starts: list[int], ends: list[int]) -> torch.Tensor:
    return torch.cat([values[a:b] for a, b in zip(starts, ends, strict=True)] or [values[:0]])


def gathered(values: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.empty((int((ends - starts).sum()), *values.shape[1:]), dtype=values.dtype)
    gather_rows(values, starts, ends, out)
    return out


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 12) | st.integers(0, 700), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
    st.sampled_from([torch.uint8, torch.int64, torch.bfloat16]),
    st.sampled_from([(), (3,), (2, 5)]),
    st.booleans(),
)
def test_any_choice_of_rows_of_any_lengths(
    lengths: list[int], random: object, dtype: torch.dtype, shape: tuple[int, ...], lie_apart: bool
) -> None:
    offsets, apart = offsets_of(torch.tensor(lengths)), 1 + lie_apart
    size = (int(offsets[-1]) * apart, *shape)
    values = torch.arange(math.prod(size)).reshape(size).to(dtype)[::apart]
    rows = torch.tensor(random.choices(range(len(lengths)), k=random.randint(0, 90)), dtype=torch.int64)  # type: ignore[attr-defined]
    starts, ends = offsets[:-1][rows], offsets[1:][rows]
    assert torch.equal(gathered(values, starts, ends), by_hand(values, starts.tolist(), ends.tolist()))


def test_the_bytes_around_the_rows_are_left_alone() -> None:
    """Windows reach beyond rows, and never beyond the room that was given."""
    values = torch.arange(100, dtype=torch.uint8)
    for length in range(1, 40):
        room = torch.full((3 * length + 200,), 255, dtype=torch.uint8)
        starts = torch.tensor([100 - length, 0, 30])
        gather_rows(values, starts, starts + length, room[100 : 100 + 3 * length])
        assert room[:100].eq(255).all() and room[100 + 3 * length :].eq(255).all()


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (9, 11)])
def test_rows_outside_of_the_values_are_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="damaged"):
        gather_rows(torch.arange(10), torch.tensor([0, start]), torch.tensor([2, end]), torch.empty(9).long())
