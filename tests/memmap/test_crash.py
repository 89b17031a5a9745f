"""Killed and failing saves: what is found afterwards is the old dataset, the new one, or none; never a mixture."""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack
from tensordict_lite.errors import DatasetNotFoundError
from tensordict_lite.memmap.disk.staging import Staging
from tests.memmap.trees import leaves
from tests.processes import in_child, kill_at

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


SAVES: dict[str, Callable[[Path], Any]] = {
    "new": lambda path: dataset(2).memmap(path),
    "threads": lambda path: dataset(2).memmap(path, num_threads=4),
    "in place": lambda path: dataset(2).memmap_(path),
}


CASES = [
    ("new", "nothing"), ("threads", "empty folder"), ("threads", "dataset"), ("in place", "dataset"),
]  # fmt: skip


@pytest.mark.parametrize(("save", "before"), CASES)
def test_save_killed_at_every_fifth_step(tmp_path: Path, save: str, before: str) -> None:
    kill_steps(tmp_path, save, before, 5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("save", "before"), CASES)
def test_save_killed_at_every_step(tmp_path: Path, save: str, before: str) -> None:
    kill_steps(tmp_path, save, before, 1)


def kill_steps(tmp_path: Path, save: str, before: str, stride: int) -> None:
    ended: dict[int | None, int] = {None: 0, 1: 0, 2: 0}
    number = 1 - stride
    killed = True
    while killed:
        number += stride
        path = tmp_path / f"d{number}"
        if before == "empty folder":
            path.mkdir()
        elif before == "dataset":
            dataset(1).memmap(path)
        killed = kill_at(number, lambda path=path: SAVES[save](path), STEPS)
        version = version_at(path)
        ended[version] += 1
        if before != "dataset":
            assert version in (None, 2)
        else:
            assert version is not None  # exchanged in one step
        if not killed:
            assert version == 2
        SAVES[save](path)  # and it does not stand in the way of the next save
        assert version_at(path) == 2
        assert not [name for name in os.listdir(path) if "tdlite" in name]
    assert number > 20 and ended[2] > 0
    assert not [name for name in os.listdir(tmp_path) if "tdlite" in name]  # what was left has been removed


def test_memmap_like_killed_at_every_third_step(tmp_path: Path) -> None:
    number, killed = 0, True
    while killed:
        number += 3
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


def kill_saves(path: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    last, kill, longest = None, -1, 0.0
    while kill + 1 < kills or last is None:  # until one save has come to its end, however slow it is by now
        kill += 1
        if kill % 50 == 0:  # how long a save takes now: a busy machine must not end them all at their beginning
            start = time.perf_counter()
            child = os.fork()  # which takes long where the tests of before have left much in memory
            if child == 0:
                for _ in range(3):
                    dataset(0).memmap(path.with_name("timed"))
                os._exit(0)
            os.waitpid(child, 0)
            longest = time.perf_counter() - start
        child = os.fork()
        if child == 0:
            for version in range(kill * 100 + 1, kill * 100 + 100):
                dataset(version).memmap(path, num_threads=version % 3)
            os._exit(0)
        time.sleep(chance.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        version = version_at(path)
        if version is not None or last is not None:
            assert last is None or version >= last
            last = version
    assert last is not None


def test_saves_killed_at_random(tmp_path: Path) -> None:
    kill_saves(tmp_path / "d", kills=60, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_five_thousand_killed_saves(tmp_path: Path) -> None:
    kill_saves(tmp_path / "d", kills=5000, seed=1)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_full_disk_is_an_error_before_the_first_byte(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount here")
    try:
        assert_too_large_a_save_is_refused(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


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


@pytest.mark.parametrize("options", [{}, {"num_threads": 4}], ids=str)
def test_limit_on_the_size_of_files_is_an_error_that_names_the_file(tmp_path: Path, options: dict[str, Any]) -> None:
    dataset(1).memmap(tmp_path / "d")
    big = dataset(2).set("a", torch.zeros(4, 20_000))

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(OSError, match=r"too large.*a\.memmap"):
            big.memmap(tmp_path / "d", **options)

    assert in_child(save) == 0
    assert version_at(tmp_path / "d") == 1
    assert os.listdir(tmp_path) == ["d"]
    assert sorted(os.listdir(tmp_path / "d")) == ["a.memmap", "b", "lazy", "meta.json", "note"]


def test_disk_that_fills_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset(1).memmap(tmp_path / "d")
    real = os.pwrite
    written = 0

    def limited(fd: int, data: Any, offset: int) -> int:
        nonlocal written
        written += memoryview(data).nbytes
        if written > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", limited)
    with pytest.raises(OSError, match="bytes are needed and"):
        dataset(2).memmap(tmp_path / "d")
    assert version_at(tmp_path / "d") == 1
    assert sorted(os.listdir(tmp_path / "d")) == ["a.memmap", "b", "lazy", "meta.json", "note"]
