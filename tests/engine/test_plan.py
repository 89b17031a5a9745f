"""Rows to chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdmap.plan import CACHE_BYTES, MIN_CHUNKS, ChunkPlan, default_chunk_size, make_plan


@given(length=st.integers(0, 500), size=st.integers(1, 600))
def test_chunks_cover_every_row_once_and_in_order(length, size):
    plan = ChunkPlan(length, size)
    rows = [row for chunk in range(plan.num_chunks) for row in range(*plan.rows(chunk))]
    assert rows == list(range(length))
    assert all(plan.count(chunk, chunk + 1) <= size for chunk in range(plan.num_chunks))


@given(length=st.integers(1, 500), num_chunks=st.integers(1, 600))
def test_num_chunks_cuts_as_torch_chunk_does(length, num_chunks):
    import torch

    plan = make_plan(length, num_chunks=num_chunks)
    expected = [len(part) for part in torch.arange(length).chunk(num_chunks)]
    assert [plan.count(k, k + 1) for k in range(plan.num_chunks)] == expected


@pytest.mark.parametrize("options", [{"chunksize": -1}, {"chunksize": 1.5}, {"num_chunks": 0}, {"chunksize": True}])
def test_sizes_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"chunksize|num_chunks"):
        make_plan(10, **options)


def test_chunksize_zero_unbinds():
    plan = make_plan(4, chunksize=0)
    assert (plan.size, plan.unbind, plan.num_chunks) == (1, True, 4)


def test_default_size_fills_the_cache_and_not_more():
    size = default_chunk_size(10**6, row_bytes=3072 * 5)
    assert CACHE_BYTES / 2 < size * 3072 * 5 <= CACHE_BYTES


def test_default_size_of_small_data_leaves_work_for_many_workers():
    assert make_plan(1000, row_bytes=8).num_chunks >= MIN_CHUNKS - 1


def test_default_size_of_huge_rows_is_one_row():
    assert default_chunk_size(10, row_bytes=10**9) == 1
