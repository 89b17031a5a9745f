"""Restoring checkpoints: into memory, and straight through to disk with ``state_dict(keep_vars=True)``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from tensordict_lite import MemoryMappedTensor, TensorClass, TensorDict


class Pair(TensorClass):
    x: torch.Tensor
    y: Pair | None = None


def source() -> TensorDict:
    return TensorDict({"a": torch.randn(3), "b": TensorDict({"c": torch.randn(3, 1)}, [3, 1])}, [3])


def empty_like(td: TensorDict) -> TensorDict:
    return TensorDict({"a": torch.zeros(3), "b": TensorDict({"c": torch.zeros(3, 1)}, [3, 1])}, [3])


def test_restore_into_memory(tmp_path: Path) -> None:
    td = source()
    dcp.save({"state": td.state_dict()}, checkpoint_id=tmp_path / "snapshot", no_dist=True)
    target = empty_like(td)
    state = {"state": target.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "snapshot", no_dist=True)
    target.load_state_dict(state["state"])
    assert torch.equal(target["a"], td["a"]) and torch.equal(target["b", "c"], td["b", "c"])
    assert target["b"].batch_size == (3, 1)


def test_restore_writes_through_to_disk(tmp_path: Path) -> None:
    td = source().memmap_(tmp_path / "source")
    dcp.save({"state": td.state_dict(keep_vars=True)}, checkpoint_id=tmp_path / "snapshot", no_dist=True)
    target = empty_like(td).memmap_(tmp_path / "target")
    state = target.state_dict(keep_vars=True)
    assert state["a"] is target["a"] and isinstance(state["b.c"], MemoryMappedTensor)
    dcp.load({"state": state}, checkpoint_id=tmp_path / "snapshot", no_dist=True)
    assert torch.equal(target["a"], td["a"]) and torch.equal(target["b", "c"], td["b", "c"])
    raw = np.fromfile(tmp_path / "target" / "b" / "c.memmap", dtype=np.float32)
    np.testing.assert_array_equal(raw, td["b", "c"].numpy().reshape(-1))
    assert target.is_memmap() and isinstance(target["b", "c"], MemoryMappedTensor)


def test_restore_of_a_tensorclass_writes_through_to_disk(tmp_path: Path) -> None:
    pair = Pair(torch.randn(3), Pair(torch.randn(3), batch_size=[]), batch_size=[]).memmap_(tmp_path / "a")
    dcp.save({"state": pair.state_dict(keep_vars=True)}, checkpoint_id=tmp_path / "snapshot", no_dist=True)
    target = Pair(torch.zeros(3), Pair(torch.zeros(3), batch_size=[]), batch_size=[]).memmap_(tmp_path / "b")
    dcp.load({"state": target.state_dict(keep_vars=True)}, checkpoint_id=tmp_path / "snapshot", no_dist=True)
    assert torch.equal(target.x, pair.x) and torch.equal(target.y.x, pair.y.x)
    assert torch.equal(TensorDict.load_memmap(tmp_path / "b").y.x, pair.y.x)
