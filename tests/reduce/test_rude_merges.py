"""Merges that change what they are given, and merges out of order: refused, and the dataset stays as it was."""

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict


class InPlace(tdmap.reducers.Reducer):
    def init(self):
        return {"sum": torch.zeros(())}

    def update(self, state, chunk, start=0):
        return {"sum": state["sum"] + chunk["x"].sum()}

    def merge(self, a, b):
        a["sum"] += b["sum"]
        return a


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_adds_in_place_reaches_no_row_and_is_refused(tmp_path, workers):
    data = TensorDict({"x": torch.ones(12, 3)}, [12]).memmap(tmp_path)
    runs = [
        lambda: tdmap.reduce(data, lambda a, b: a.apply_(torch.Tensor.add_, b), num_workers=workers, chunksize=1),
        lambda: tdmap.map_reduce(data, lambda td: td["x"], lambda a, b: a.add_(b), num_workers=workers, chunksize=1),
        lambda: data.pipeline().reduce(lambda a, b: a.apply_(torch.Tensor.add_, b), num_workers=workers),
    ]
    for run in runs[:2]:
        with pytest.raises(ValueError, match="changed one of its two arguments"):
            run()
        assert TensorDict.load_memmap(tmp_path)["x"].eq(1).all()
    try:
        runs[2]()
    except ValueError as error:
        assert "changed one of its two arguments" in str(error)
    assert TensorDict.load_memmap(tmp_path)["x"].eq(1).all()


def test_a_reducer_whose_merge_changes_its_arguments_is_named():
    data = TensorDict({"x": torch.ones(8)}, [8])
    with pytest.raises(ValueError, match="merging with InPlace changed"):
        tdmap.reduce(data, InPlace(), num_workers=0, chunksize=1)
    with pytest.raises(ValueError, match="merging with InPlace changed"):
        tdmap.reduce(data, {"s": InPlace()}, num_workers=0, chunksize=1)


def test_out_of_order_is_refused_and_order_is_kept():
    data = torch.arange(40)
    with pytest.raises(TypeError, match="no option 'ordered'.*associative"):
        tdmap.reduce(data, lambda a, b: torch.cat([a, b]), num_workers=2, chunksize=1, ordered=False)
    assert tdmap.reduce(data, lambda a, b: torch.cat([a, b]), num_workers=2, chunksize=1).tolist() == list(range(40))
