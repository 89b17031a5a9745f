"""Stacks without members: nothing but their own record tells the batch size."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, NonTensorStack, TensorDict

WAYS: dict[str, Callable[[TensorDict, Path], Any]] = {
    "folder": lambda td, path: TensorDict.load_memmap((td.save(path), path)[1]),
    "archive": lambda td, path: TensorDict.load_memmap((td.save(path, archive=True), path)[1]),
    "consolidated": lambda td, path: td.consolidate(),
    "consolidated file": lambda td, path: TensorDict.from_consolidated((td.consolidate(path), path)[1]),
    "pickled": lambda td, path: pickle.loads(pickle.dumps(td.consolidate())),
}


STACKS: dict[str, Callable[[], Any]] = {
    "objects": lambda: NonTensorStack(),
    "objects of a size": lambda: NonTensorStack(batch_size=[3]),
    "objects along the second dim": lambda: NonTensorStack(stack_dim=1, batch_size=[2, 3]),
    "rows of no objects": lambda: NonTensorStack("a", "b").expand(3, 2)[:, :0],
    "lazy": lambda: LazyStackedTensorDict(),
    "lazy along the second dim": lambda: LazyStackedTensorDict(stack_dim=1, batch_size=[2, 3]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", STACKS)
def test_stacks_without_members_keep_their_batch_size(tmp_path: Path, kind: str, way: str) -> None:
    stack = STACKS[kind]()
    out = WAYS[way](TensorDict({"x": stack, "a": torch.zeros(stack.batch_size)}, stack.batch_size[:1]), tmp_path / "x")
    found = out.get("x")
    assert type(found) is type(stack) and found.batch_size == stack.batch_size
    if kind.startswith("lazy"):
        assert found.stack_dim == stack.stack_dim
