"""What every source of rows must do: the tests that folders, object stores, Zarr stores and HDF5 files pass.

@pytest.mark.parametrize("case", CASES)
def test_my_source(case):
    CASES[case](MySource("x.bin"), wanted)          # `wanted`: the rows as a TensorDict in memory, at least 10
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import tdmap
from tdmap.data.kinds import Data
from tdmap.shards import RowSource, ShardedDataset
from tensordict_lite import TensorDict, is_tensor_collection
from tensordict_lite.views import is_leaf_nontensor

Case = Callable[[RowSource, TensorDict], None]
CASES: dict[str, Case] = {}
"""The tests by name. Each takes a source and its rows, and raises AssertionError."""


def _case(fn: Case) -> Case:
    CASES[fn.__name__] = fn
    return fn


def _opened(source: RowSource) -> ShardedDataset:
    data = tdmap.open(source)
    assert isinstance(data, ShardedDataset)
    return data


def _same(found: Data, wanted: Data) -> None:
    if isinstance(wanted, Tensor):
        assert isinstance(found, Tensor) and found.dtype == wanted.dtype, (found, wanted)
        assert torch.equal(found, wanted), (found, wanted)
    elif is_tensor_collection(wanted) and not getattr(wanted, "_is_non_tensor", False):
        assert found.batch_size == wanted.batch_size, (found, wanted)
        assert set(found.keys()) == set(wanted.keys()), (found, wanted)
        for key in wanted.keys():
            _same(found.get(key), wanted.get(key))
    else:
        assert list(found.tolist()) == list(wanted.tolist()), (found, wanted)


def _keys(data: TensorDict) -> list[Any]:
    return list(data.keys(True, True, is_leaf=is_leaf_nontensor))


def _unchanged(chunk: Data) -> Data:
    return chunk


@_case
def rows_are_read_by_slices_numbers_and_masks(source: RowSource, wanted: TensorDict) -> None:
    """In any order, more than once, none of them; one row has no dimension of rows."""
    data, rows = _opened(source), len(wanted)
    assert len(data) == rows == source.rows and set(_keys(data[:1])) == set(_keys(wanted))
    for index in (slice(None), slice(3, 7), slice(rows - 1, rows), slice(4, 4), slice(0, rows, 3)):
        _same(data[index], wanted[index])
    for numbers in ([rows - 1, 0, 3, 3], [-1], [], list(range(rows - 1, -1, -1))):
        _same(data[numbers], wanted[torch.tensor(numbers, dtype=torch.int64)])
    mask = torch.arange(rows) % 3 == 1
    _same(data[mask], wanted[mask])
    _same(data[rows // 2], wanted[rows // 2])
    _same(data.contiguous(), wanted)


@_case
def entries_are_selected(source: RowSource, wanted: TensorDict) -> None:
    """Each by itself, as a column and in rows."""
    for key in _keys(wanted):
        some = _opened(source).select(key)
        _same(some[2:8], wanted.select(key)[2:8])
        _same(some[[5, 0]], wanted.select(key)[torch.tensor([5, 0])])


@_case
def rows_belong_to_the_caller(source: RowSource, wanted: TensorDict) -> None:
    """What is written into them does not come back, whichever rows are read next."""
    data = _opened(source)
    for first in range(0, len(wanted) - 3, 2):
        chunk = data[first : first + 3]
        for key in _keys(wanted):
            value = chunk.get(key)
            if isinstance(value, Tensor):
                value.zero_()
    _same(data[:], wanted)
    _same(tdmap.map(data, _emptied, chunksize=3, num_workers=0), torch.ones(len(wanted)))
    _same(_opened(source)[:], wanted)


def _emptied(chunk: TensorDict) -> Tensor:
    for value in chunk.values(True, True):
        if isinstance(value, Tensor):
            value.zero_()
    return torch.ones(len(chunk))


@_case
def a_source_travels_without_its_rows(source: RowSource, wanted: TensorDict) -> None:
    """Also when it has been read."""
    data = _opened(source)
    data[:]
    for value in (data, source):
        again = pickle.loads(pickle.dumps(value))
        _same((again if isinstance(again, ShardedDataset) else _opened(again))[:], wanted)
    for column in wanted.values(True, True):
        assert column.nbytes < 64 or column.contiguous().numpy(force=True).tobytes() not in pickle.dumps(source)


@_case
def its_identity_is_that_of_its_rows(source: RowSource, wanted: TensorDict) -> None:
    """Equal in another process, for `resume`."""
    found = source.identity()
    assert isinstance(found, str) and found == pickle.loads(pickle.dumps(source)).identity(), found


@_case
def workers_read_it(source: RowSource, wanted: TensorDict) -> None:
    """In processes and threads, with chunks of any size."""
    for size in (1, 3, 1000, None):
        _same(tdmap.map(_opened(source), _unchanged, chunksize=size, num_workers=2), wanted)
    _same(tdmap.map(_opened(source), _unchanged, chunksize=2, num_workers=2, executor="thread"), wanted)
    _same(torch.stack(list(tdmap.map_iter(_opened(source), _one, chunksize=0, num_workers=0))), torch.ones(len(wanted)))


def _one(row: TensorDict) -> Tensor:
    assert not row.batch_size
    return torch.ones(())


@_case
def operations_take_it(source: RowSource, wanted: TensorDict) -> None:
    """Into memory and into a folder."""
    data = _opened(source)
    _same(tdmap.filter(data, _every_other, chunksize=4, num_workers=0), wanted[::2])
    _same(tdmap.shuffle(data, seed=1, num_workers=0), tdmap.shuffle(wanted, seed=1, num_workers=0))
    both = tdmap.concat([data, wanted])
    _same(both[: len(wanted)], wanted)
    _same(both[[len(wanted) - 1, len(wanted)]], wanted[torch.tensor([len(wanted) - 1, 0])])
    with tempfile.TemporaryDirectory() as folder:
        _same(tdmap.map(data, _unchanged, out=f"{folder}/out", chunksize=4, num_workers=2, resume=True)[:], wanted)


def _every_other(chunk: TensorDict) -> Tensor:
    return torch.arange(len(chunk)) % 2 == 0


@_case
def pipelines_and_loaders_read_it(source: RowSource, wanted: TensorDict) -> None:
    """Rows in order, and in a shuffled one."""
    data = _opened(source)
    _same(torch.cat(list(data.pipeline().batch(4).iter(num_workers=0))), wanted)
    shuffled, other = data.pipeline().shuffle(seed=2).batch(4), wanted.pipeline().shuffle(seed=2).batch(4)
    for mine, theirs in zip(shuffled.iter(num_workers=2), other.iter(num_workers=0), strict=True):
        _same(mine, theirs)
    loader: Any = DataLoader(data, batch_size=4, collate_fn=_unchanged)  # type: ignore[arg-type]
    _same(torch.cat(list(loader)), wanted)
