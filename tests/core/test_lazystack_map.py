"""Lazy stacks and objects as inputs and results of ``map``."""

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict, lazy_stack


def add_one(chunk: TensorDict) -> TensorDict:
    return chunk + 1


def summarise(chunk: TensorDict) -> TensorDict:
    sums = torch.stack([row["ragged"].sum() for row in chunk.unbind(0)])
    return TensorDict({"sum": sums, "text": chunk["text"]}, [len(chunk)])


def ragged(chunk: TensorDict) -> LazyStackedTensorDict:
    return lazy_stack([TensorDict({"z": torch.ones(int(row["number"]) + 1)}) for row in chunk.unbind(0)])


def label(chunk: TensorDict) -> TensorDict:
    return TensorDict({"label": f"from {int(chunk['number'][0])}"}, [len(chunk)])


def stack() -> LazyStackedTensorDict:
    return lazy_stack(
        [TensorDict({"number": torch.tensor(k), "ragged": torch.ones(k % 3 + 1), "text": f"t{k}"}) for k in range(7)]
    )


@pytest.mark.parametrize("size", [1, 3])
def test_map_takes_ragged_stacks_and_gives_them_back(size: int) -> None:
    out = stack().map(add_one, dim=0, num_workers=2, chunksize=size)
    assert type(out) is LazyStackedTensorDict
    assert out["number"].tolist() == list(range(1, 8))
    assert [len(value) for value in out.get("ragged", as_list=True)] == [k % 3 + 1 for k in range(7)]


@pytest.mark.parametrize("size", [1, 3])
def test_map_turns_ragged_rows_into_dense_ones_with_their_texts(size: int) -> None:
    out = stack().map(summarise, dim=0, num_workers=2, chunksize=size)
    assert type(out) is TensorDict
    assert out["sum"].tolist() == [k % 3 + 1 for k in range(7)]
    assert out["text"] == [f"t{k}" for k in range(7)]
