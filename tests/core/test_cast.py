"""Casts and moves: the memory of the origin, shared memory in another process, devices that are not there."""

import gc
import pickle
import weakref
from multiprocessing.pool import Pool
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack


def make() -> TensorDict:
    return TensorDict({"a": torch.rand(2, 3), "b": torch.arange(2), "n": {"c": torch.ones(2, 2)}}, [2], names=["x"])


def leaves(td: Any) -> dict[Any, torch.Tensor]:
    return dict(td.items(True, True))


def test_a_cast_does_not_keep_its_origin_alive() -> None:
    td = make()
    ref = weakref.ref(td)
    new = td.to(torch.float64)
    del td
    gc.collect()
    assert ref() is None and new["a"].dtype == torch.float64


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without an accelerator")
def test_pinning_needs_an_accelerator() -> None:
    for pin in (make().pin_memory, make().pin_memory_, lambda: make().pin_memory(num_threads=2)):
        with pytest.raises(RuntimeError):
            pin()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_tree_without_entries_does_not_go_to_a_device_that_is_not_there() -> None:
    for move in (lambda td: td.cuda(), lambda td: td.to("cuda")):
        with pytest.raises((AssertionError, RuntimeError)):
            move(TensorDict({}, [3]))


def test_a_shared_tree_is_shared_in_the_process_that_receives_it(spawned: Pool) -> None:
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3]).share_memory_()
    for tree in (td, lazy_stack([td, td])):
        assert spawned.apply(_whether_shared, (tree,)) == (True, True)
    assert not pickle.loads(pickle.dumps(td)).is_shared()  # a copy, in the memory of this process


def _whether_shared(td: Any) -> tuple[bool, bool]:
    return td.is_shared(), td.get("n").is_shared()
