"""`sync()`: every file and folder of a dataset is on the disk afterwards, data before what describes it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import NonTensorData, NonTensorStack, TensorDict, lazy_stack, tensorclass


@tensorclass
class Frame:
    pixels: torch.Tensor
    extra: TensorDict


def frame() -> Frame:
    return Frame(torch.ones(2, 3), TensorDict({"z": torch.ones(2)}, [2]), batch_size=[2])


def plain() -> TensorDict:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    return TensorDict(
        {
            "a": torch.ones(2),
            "b": {"c": torch.ones(2), "empty": torch.ones(2, 0)},
            "set": NonTensorData({1}, batch_size=[2]),
            "note": "text",
            "words": NonTensorStack("x", {2}),
            "strided": torch.nested.nested_tensor(parts),
            "jagged": torch.nested.nested_tensor(parts, layout=torch.jagged),
            "lazy": lazy_stack([TensorDict({"r": torch.ones(i + 1)}) for i in range(2)]),
            "frame": frame(),
        },
        [2],
    )


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced, in their order."""
    real, paths = os.fsync, []

    def fsync(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


@pytest.mark.parametrize("make", [plain, frame, lambda: lazy_stack([frame(), frame()])], ids=["plain", "class", "lazy"])
def test_everything_is_synced_and_data_comes_first(tmp_path: Path, synced: list[str], make: Callable[[], Any]) -> None:
    root = tmp_path / "d"
    make().memmap(root, allow_pickle=True).sync()
    files = {str(path) for path in root.rglob("*") if path.is_file()}
    folders = {str(path) for path in [root, *root.rglob("*")] if path.is_dir()}
    assert set(synced) == files | folders | {str(tmp_path)}
    kinds = [1 if path.endswith("meta.json") else 0 if path in files else 2 for path in synced]
    assert kinds == sorted(kinds)
    assert [path for path in synced if path.endswith("meta.json")][-1] == str(root / "meta.json")
    assert synced[-2:] == [str(root), str(tmp_path)]


def test_one_file_is_synced_with_its_folder(tmp_path: Path, synced: list[str]) -> None:
    data = TensorDict({"a": torch.ones(2), "b": {"c": torch.ones(2)}}, [2])
    (tmp_path / "d").mkdir()
    data.memmap(tmp_path / "d" / "x.tdz")
    for mode in (None, "r+"):
        synced.clear()
        TensorDict.load_memmap(tmp_path / "d" / "x.tdz", mode=mode).sync()
        assert synced == [str(tmp_path / "d" / "x.tdz"), str(tmp_path / "d"), str(tmp_path)]
    synced.clear()
    data.consolidate(tmp_path / "d" / "x.bin").sync()
    assert synced == [str(tmp_path / "d" / "x.bin"), str(tmp_path / "d"), str(tmp_path)]
