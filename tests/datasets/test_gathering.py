"""Rows copied from anywhere: against slices put together."""

import numpy as np
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
)
def test_any_choice_of_rows_of_any_lengths(lengths: list[int], random: object, dtype: torch.dtype) -> None:
    offsets = offsets_of(torch.tensor(lengths))
    values = torch.arange(int(offsets[-1])).to(dtype)
    rows = torch.tensor(random.choices(range(len(lengths)), k=random.randint(0, 90)), dtype=torch.int64)  # type: ignore[attr-defined]
    starts, ends = offsets[:-1][rows], offsets[1:][rows]
    assert torch.equal(gathered(values, starts, ends), by_hand(values, starts.tolist(), ends.tolist()))


@pytest.mark.parametrize("width", [0, 1, 7, 40, 300, 6000])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
@pytest.mark.parametrize("order", ["as they lie", "backwards", "random", "every second", "overlapping"])
def test_many_rows_in_every_order(width: int, shape: tuple[int, ...], order: str) -> None:
    generator = torch.Generator().manual_seed(width)
    count = 200 if width > 1000 else 9000
    offsets = offsets_of(torch.randint(0, width + 1, (count,), generator=generator))
    values = torch.randint(0, 1 << 15, (int(offsets[-1]), *shape), generator=generator, dtype=torch.int16)
    rows = {
        "as they lie": torch.arange(count),
        "backwards": torch.arange(count).flip(0),
        "random": torch.randperm(count, generator=generator),
        "every second": torch.arange(0, count, 2),
        "overlapping": torch.arange(count),
    }[order]
    starts, ends = offsets[:-1][rows], offsets[1:][rows]
    if order == "overlapping":
        starts = starts // 2
        ends = starts + torch.randint(0, width + 1, (count,), generator=generator)
        ends = torch.maximum(ends.clamp(max=len(values)), starts)
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


def test_values_that_may_only_be_read_and_are_not_contiguous() -> None:
    array = np.arange(20, dtype=np.int32)
    values = torch.from_numpy(array.copy()).reshape(4, 5).T
    starts, ends = torch.tensor([3, 0]), torch.tensor([5, 2])
    assert torch.equal(gathered(values, starts, ends), by_hand(values, [3, 0], [5, 2]))
