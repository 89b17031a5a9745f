"""Killed and failing saves of files and folders: the old one or the new one is found afterwards, never a part."""

import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tensordict_lite import TensorDict, from_consolidated, from_safetensors, pack_memmap, to_safetensors, unpack_memmap
from tensordict_lite.errors import DatasetNotFoundError
from tests.memmap.test_crash import STEPS, dataset, version_at
from tests.memmap.trees import leaves
from tests.processes import in_child, kill_at


def packed(version: int, path: Path) -> None:
    """Packs a folder that is there: it was saved before the children were forked."""
    pack_memmap(path.parent / "folders" / str(version), path)


def unpacked(version: int, path: Path) -> None:
    unpack_memmap(path.parent / "folders" / f"{version}.tdz", path)


SAVES: dict[str, Callable[[int, Path], Any]] = {
    "folder": lambda version, path: dataset(version).memmap(path),
    "folder, threads": lambda version, path: dataset(version).memmap(path, num_threads=4),
    "folder, in place": lambda version, path: dataset(version).memmap_(path),
    "archive": lambda version, path: dataset(version).memmap(path, archive=True),
    "compressed": lambda version, path: dataset(version).memmap(path, archive=True, compression="deflate"),
    "threads": lambda version, path: dataset(version).memmap(path, archive=True, compression="deflate", num_threads=3),
    "pack": packed,
    "unpack": unpacked,
    "consolidate": lambda version, path: dataset(version).consolidate(path),
    "buffer": lambda version, path: dataset(version).consolidate(path, use_buffer=True),
    "safetensors": lambda version, path: to_safetensors(plain(version), path),
}


def plain(version: int) -> TensorDict:
    """The tensors of the dataset, which safetensors files hold."""
    return dataset(version).exclude("lazy", "note")


def loaded(kind: str, path: Path) -> int | None:
    """The one version in a file or folder, ``None`` where there is none."""
    if kind == "unpack" or "folder" in kind:
        return version_at(path)
    load = {"consolidate": from_consolidated, "buffer": from_consolidated, "safetensors": from_safetensors}
    try:
        data = load.get(kind, TensorDict.load_memmap)(path)
    except DatasetNotFoundError:
        return None
    versions = {int(v) for leaf in leaves(data) for v in leaf.unique()}
    assert len(versions) == 1 and (kind == "safetensors" or data["note"] == str(*versions))
    return versions.pop()


def make_folders(kind: str, tmp_path: Path) -> None:
    for version in (1, 2) if kind in ("pack", "unpack") else ():
        dataset(version).memmap(tmp_path / "folders" / str(version))
        dataset(version).memmap(tmp_path / "folders" / f"{version}.tdz")


IN_TEST_EXCHANGE = {(kind, "file") for kind in ("folder", "folder, in place", "unpack")}
"""What `test_exchange.py` asks at more steps."""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 5])
@pytest.mark.parametrize(
    ("kind", "before"),
    [(kind, before) for kind in SAVES for before in ("nothing", "file") if (kind, before) not in IN_TEST_EXCHANGE],
)
def test_save_killed_at_every_step(tmp_path: Path, kind: str, before: str, every: int) -> None:
    make_folders(kind, tmp_path)
    killed, number, ended = True, 0, set()
    while killed:
        number += every
        path = tmp_path / f"f{number}"
        if before == "file":
            SAVES[kind](1, path)
        elif kind == "folder, threads":
            path.mkdir()
        killed = kill_at(number, lambda path=path: SAVES[kind](2, path), STEPS)
        version = loaded(kind, path)
        ended.add(version)
        assert version in ((None, 2) if before == "nothing" else (1, 2, None) if kind == "unpack" else (1, 2))
        assert killed or version == 2
        SAVES[kind](2, path)  # and it does not stand in the way of the next save
        assert loaded(kind, path) == 2
        assert not list(tmp_path.rglob("*tdlite*"))  # which removes what was left
    assert number >= 5 and len(ended) > 1


LONG = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        *((kind, 25) for kind in ("archive", "threads", "pack", "consolidate")),
        *(pytest.param(kind, 1000, marks=LONG) for kind in SAVES),
    ],
)
def test_saves_killed_at_random(tmp_path: Path, kind: str, kills: int) -> None:
    make_folders(kind, tmp_path)
    path, chance = tmp_path / "x", random.Random(kind)
    start = time.perf_counter()
    for _ in range(3):
        SAVES[kind](1, path)
    longest = time.perf_counter() - start
    for _ in range(kills):
        child = os.fork()
        if not child:
            for turn in range(10_000):
                SAVES[kind](1 + turn % 2, path)
            os._exit(0)
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert loaded(kind, path) in ((1, 2, None) if kind == "unpack" else (1, 2))
    SAVES[kind](2, path)
    if kind != "safetensors":  # whose library leaves its temporary file where it was
        assert set(os.listdir(path.parent)) - {"folders"} == {"x"}


@pytest.mark.parametrize("kind", SAVES)
def test_full_disk_leaves_the_old_file_and_no_litter(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "safetensors":
        pytest.skip("it is not ours to write")
    make_folders(kind, tmp_path)
    path = tmp_path / "x"
    SAVES[kind](1, path)
    before, real, written = sorted(tmp_path.rglob("*")), os.pwrite, 0

    def limited(fd: int, data: Any, offset: int) -> int:
        nonlocal written
        written += memoryview(data).nbytes
        if written > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", limited)
    with pytest.raises(OSError, match="bytes are needed and"):
        SAVES[kind](2, path)
    monkeypatch.setattr(os, "pwrite", real)
    assert loaded(kind, path) == 1 and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "kind", ["folder", "folder, threads", "archive", "compressed", "threads", "consolidate", "buffer"]
)
def test_limit_on_the_size_of_files_is_an_error_that_names_the_file(tmp_path: Path, kind: str) -> None:
    SAVES[kind](1, tmp_path / "x")
    before = sorted(tmp_path.rglob("*"))
    noise = torch.randint(0, 1 << 40, (4, 40_000))
    options = {"compression": "deflate"} if kind in ("compressed", "threads") else {}

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        big = TensorDict({"a": noise}, [4])
        with pytest.raises(OSError, match="too large") as caught:
            if kind in ("consolidate", "buffer"):
                big.consolidate(tmp_path / "x", use_buffer=kind == "buffer")
            else:
                archive, threads = "folder" not in kind, 3 * ("threads" in kind)
                big.memmap(tmp_path / "x", archive=archive, num_threads=threads, **options)
        assert repr(str(tmp_path / ("x/a.memmap" if "folder" in kind else "x"))) in str(caught.value)

    assert in_child(save) == 0
    assert loaded(kind, tmp_path / "x") == 1 and sorted(tmp_path.rglob("*")) == before


def test_interrupted_save_in_another_container_is_left_alone(tmp_path: Path) -> None:
    """Its process number means nothing here: that it holds its file does."""
    import re

    from tensordict_lite.memmap.disk.staging import staged_file

    with staged_file(str(tmp_path / "theirs")):
        [name] = os.listdir(tmp_path)
        elsewhere = re.sub(r"-\d+-", f"-{1 << 30}-", name)  # no process has this number
        os.link(tmp_path / name, tmp_path / elsewhere)
        dataset(1).memmap(tmp_path / "x.tdz")
        assert elsewhere in os.listdir(tmp_path)
    dataset(1).memmap(tmp_path / "x.tdz")
    assert elsewhere not in os.listdir(tmp_path)


def test_safetensors_file_is_that_of_the_package(tmp_path: Path) -> None:
    to_safetensors(plain(3), tmp_path / "x")
    assert load_file(tmp_path / "x")["b.c"].tolist() == [3] * 4
    assert oct(os.stat(tmp_path / "x").st_mode & 0o777) == oct(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
