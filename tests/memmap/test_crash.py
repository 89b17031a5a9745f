"""Killed and failing saves: what is found afterwards is the old dataset, the new one, or none; never a mixture."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack
from tensordict_lite.errors import DatasetNotFoundError
from tensordict_lite.memmap.disk.staging import Staging
from tests.memmap.trees import leaves
from tests.mounts import mounted, needs_root
from tests.processes import kill_at

STEPS = [
    (os, name)
    for name in (
        "open",
        "pwrite",
        "write",
        "mkdir",
        "makedirs",
        "rename",
        "replace",
        "unlink",
        "rmdir",
        "close",
        "posix_fallocate",
    )
]
"""Calls into the file system."""


def dataset(version: int) -> TensorDict:
    return TensorDict(
        {
            "a": torch.full((4, 50), version),
            "b": {"c": torch.full((4,), version), f"only{version % 2}": torch.full((4,), version)},
            "lazy": lazy_stack([TensorDict({"r": torch.full((4, i + 1), version)}, [4]) for i in range(2)], 1),
            "note": str(version),
        },
        [4],
    )


def one_value(data: TensorDict) -> int:
    """That of every element and of the text of a dataset, which is no mixture of two."""
    values = {int(value) for leaf in leaves(data) for value in leaf.unique()}
    assert len(values) == 1, f"a mixture of {values}"
    value = values.pop()
    assert data["note"] == str(value)
    return value


def version_at(path: Path) -> int | None:
    """The one version that a folder holds, ``None`` when there is no dataset."""
    try:
        data = TensorDict.load_memmap(path)
    except DatasetNotFoundError:
        return None
    version = one_value(data)
    assert f"only{version % 2}" in data["b"].keys()
    return version


def test_memmap_like_killed_at_every_fifth_step(tmp_path: Path) -> None:
    number, killed = 0, True
    while killed:
        number += 5
        path = tmp_path / f"d{number}"
        killed = kill_at(number, lambda path=path: dataset(2).memmap_like(path), STEPS)
        try:
            data = TensorDict.load_memmap(path)
        except DatasetNotFoundError:
            continue
        assert all(not leaf.any() for leaf in leaves(data)) and data["note"] == "2"
    assert number > 20


def test_save_of_a_container_with_the_same_host_name_is_left_alone(tmp_path: Path) -> None:
    """Its process number means nothing here: that it holds its folder does."""
    staging = Staging(str(tmp_path / "theirs"))
    elsewhere = re.sub(r"-\d+-", f"-{1 << 30}-", staging.root)  # no process has this number
    os.rename(staging.root, elsewhere)
    dataset(1).memmap(tmp_path / "ours")
    assert os.path.isdir(elsewhere)
    staging.abort()
    dataset(1).memmap(tmp_path / "ours too")
    assert not os.path.exists(elsewhere)


# -- errors in the middle ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pwrite", "rename", "replace", "mkdir"])
def test_failing_call_leaves_the_old_dataset_and_no_litter(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset(1).memmap(tmp_path / "old")
    real = getattr(os, name)
    for others in ([], ["notes.txt"]):  # with which files are replaced one by one
        for path in (tmp_path / "old", tmp_path / "new"):
            for file in others if path.name == "old" else []:
                (path / file).touch()
            count = 0

            def failing(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == 3 or name in ("rename", "mkdir"):
                    raise OSError(errno.EIO, "broken disk")
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, failing)
            try:
                dataset(2).memmap(path)
            except OSError as err:
                assert err.errno == errno.EIO
            monkeypatch.setattr(os, name, real)
            assert sorted(os.listdir(tmp_path)) in (["old"], ["new", "old"])
            if path.name == "old":  # the old metadata goes before files are moved one by one
                assert version_at(path) in ((None, 1, 2) if name == "replace" and others else (1, 2))
                dataset(1).memmap(path)


@needs_root
def test_full_disk_is_an_error_before_the_first_byte(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "none") as disk:
        assert_too_large_a_save_is_refused(disk)


def test_too_little_room_is_an_error_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without root: the file system says that it has 4 MB left."""
    said = list(os.statvfs(tmp_path))
    said[0:2] = [4096, 4096]  # bytes of a block, and of a fragment
    said[2:5] = [1024, 1024, 1024]  # blocks, free ones, and free ones for users
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(said))
    assert_too_large_a_save_is_refused(tmp_path)


def assert_too_large_a_save_is_refused(disk: Path) -> None:
    TensorDict({"a": torch.ones(1000)}).memmap(disk / "d")
    big = TensorDict({"a": torch.ones(100_000), "b": torch.ones(4_000_000)})
    for method in ("memmap", "memmap_like", "memmap_"):
        with pytest.raises(OSError, match=r"16,[\d,]+ bytes are needed and [\d,]+ are available") as caught:
            getattr(big, method)(disk / "d")
        assert caught.value.errno == errno.ENOSPC
    assert TensorDict.load_memmap(disk / "d")["a"].sum() == 1000
    assert os.listdir(disk) == ["d"] and sorted(os.listdir(disk / "d")) == ["a.memmap", "meta.json"]
