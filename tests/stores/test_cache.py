"""The local cache of a store: bounded, the least recently used goes first, and safe between processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap.stores.cache import Cache, cache_of

KIB = 1 << 10


def content(name: str, start: int, stop: int) -> bytes:
    """What an object holds; another one, something else."""
    return bytes((position // 7 + len(name) * 31 + ord(name[-1])) % 251 for position in range(start, stop))


def test_pieces_are_found_again_and_nothing_else(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 1 << 20)
    assert cache.read("a", 0, 10) is None
    cache.write("a", 100, content("a", 100, 200))
    cache.write("a", 200, content("a", 200, 250))
    assert cache.read("a", 150, 230) == content("a", 150, 230)
    assert cache.read("a", 90, 110) is None and cache.read("b", 100, 110) is None
    assert Cache(str(tmp_path), 1 << 20).read("a", 100, 250) == content("a", 100, 250)


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 1000 * KIB)
    for age, name in ((300, "x"), (200, "y"), (100, "z")):
        cache.write(name, 0, content(name, 0, 40 * KIB))
        os.utime(cache.entry(name), (1e9 - age, 1e9 - age))
    assert cache.read("x", 0, 10) is not None  # used now
    cache = Cache(str(tmp_path), 100 * KIB)
    cache.make_room()
    assert cache.read("y", 0, 10) is None
    assert cache.read("x", 0, 10) is not None and cache.read("z", 0, 10) is not None
    assert cache.nbytes() <= 100 * KIB


def test_it_is_bounded_while_it_is_written(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 256 * KIB)
    for number in range(64):
        cache.write(f"object {number}", 0, content("a", 0, 16 * KIB))
        assert cache.nbytes() <= 300 * KIB


def test_what_a_machine_may_have_lost_is_not_taken_for_data(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 1 << 20)
    cache.write("a", 0, b"data")
    cache.folder.rename(tmp_path / "an earlier boot")
    assert Cache(str(tmp_path), 1 << 20).read("a", 0, 4) is None
    cache.make_room()
    assert not (tmp_path / "an earlier boot").exists()


def hammer(folder: str, seed: int) -> int:
    """Read and write pieces of a few objects; how often something else than their content was found."""
    cache, wrong = Cache(folder, 64 * KIB), 0
    for step in range(300):
        name = f"object {(step * 7 + seed) % 5}"
        start = (step * 613 + seed * 101) % (20 * KIB)
        found = cache.read(name, start, start + KIB)
        if found is None:
            cache.write(name, start, content(name, start, start + KIB))
        elif found != content(name, start, start + KIB):
            wrong += 1
    return wrong


def test_processes_share_it(tmp_path: Path) -> None:
    folder = str(tmp_path)
    wrong = tdmap.map(torch.arange(4), lambda seed: hammer(folder, int(seed)) + 0 * seed, num_workers=2, chunksize=1)
    assert wrong.tolist() == [0, 0, 0, 0]


def test_a_full_disk_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(str(tmp_path), 1 << 20)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    cache.write("a", 0, b"data")
    assert cache.read("a", 0, 4) is None


def test_datasets_that_are_larger_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDMAP_STORE_CACHE", str(tmp_path))
    assert cache_of(1000, 2000) is None and cache_of(False, 1) is None
    kept = cache_of(3000, 2000)
    assert kept is not None and kept.limit == 3000 and kept.root == tmp_path
    with pytest.raises(ValueError, match="cache must be"):
        cache_of(-1, 10)
