"""Rows to chunks, as `map_iter` hands them to a function."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tdmap
from tensordict_lite import TensorDict


def chunks_of(rows: int, **options: Any) -> list[torch.Tensor]:
    return list(tdmap.map_iter(torch.arange(rows), torch.clone, num_workers=0, **options))


def same(found: list[torch.Tensor], wanted: Any) -> bool:
    return [chunk.tolist() for chunk in found] == [part.tolist() for part in wanted]


@given(rows=st.integers(1, 500), size=st.integers(1, 600))
def test_chunks_cover_every_row_once_and_in_order(rows, size):
    assert same(chunks_of(rows, chunksize=size), torch.arange(rows).split(size))


@given(rows=st.integers(1, 500), number=st.integers(1, 600))
def test_num_chunks_cuts_as_torch_chunk_does(rows, number):
    assert same(chunks_of(rows, num_chunks=number), torch.arange(rows).chunk(number))


@pytest.mark.parametrize("options", [{"chunksize": -1}, {"chunksize": 1.5}, {"num_chunks": 0}, {"chunksize": True}])
def test_sizes_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"chunksize|num_chunks"):
        chunks_of(10, **options)


def test_chunksize_zero_unbinds():
    assert same(chunks_of(4, chunksize=0), torch.arange(4).unbind())


def test_small_data_are_cut_into_chunks_for_many_workers():
    assert len(chunks_of(1000)) > 60


@pytest.mark.parametrize("rows, row_bytes, fewest, most", [(40_000, 3072, 171, 341), (10, 4 << 20, 1, 1)])
def test_a_chunk_fills_a_mebibyte_and_not_more_or_is_one_row(rows, row_bytes, fewest, most):
    data = TensorDict({"x": torch.zeros(1, row_bytes, dtype=torch.uint8).expand(rows, -1)}, [rows])
    out, seen = TensorDict({"y": torch.zeros(rows, dtype=torch.uint8)}, [rows]), []

    def first(chunk):
        seen.append(len(chunk))
        return TensorDict({"y": chunk["x"][:, 0]}, chunk.batch_size)

    tdmap.map(data, first, out=out, num_workers=0)
    assert fewest <= max(seen) <= most
