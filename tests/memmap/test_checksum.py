"""Checksums: what has changed on disk is found, with its file and rows."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import DatasetError, TensorDict
from tensordict_lite.memmap import tuning
from tensordict_lite.memmap.checksum import store, verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    td = TensorDict(
        {
            "a": torch.randn(1000, 5),
            "b": {"weird/key": torch.arange(1000)},
            "s": "note",
            ".x": {".y": torch.ones(1000)},
        },
        [1000],
    )
    with tuning.use(checksum_bytes=1000):
        td.memmap(tmp_path / "d").checksum()
    return tmp_path / "d"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(bytes(content))


def test_an_untouched_dataset_is_whole(folder: Path) -> None:
    report = verify(folder)
    assert report.ok and report.files == 7 and report.nbytes > 28_000
    report.raise_if_corrupt()
    assert TensorDict.load_memmap(folder)["a"].shape == (1000, 5)


@pytest.mark.parametrize("at", [0, 999, 1000, 10_500, 19_999])
def test_a_flipped_bit_is_found_with_its_rows(folder: Path, at: int) -> None:
    flip(folder / "a.memmap", at)
    [problem] = verify(folder, num_threads=1).problems
    assert problem.file == "a.memmap"
    first, last = problem.rows
    assert first <= at // 20 < last and last - first <= 51
    assert f"rows {first} to {last - 1}" in str(problem)


def test_several_places_and_nested_files(folder: Path) -> None:
    flip(folder / "b" / "weird%2Fkey.memmap", 100)
    flip(folder / "b" / "weird%2Fkey.memmap", 1100)
    flip(folder / "b" / "weird%2Fkey.memmap", 7900)
    rows = [(p.file, p.rows) for p in verify(folder).problems]
    assert rows == [("b/weird%2Fkey.memmap", (0, 250)), ("b/weird%2Fkey.memmap", (875, 1000))]
    with pytest.raises(DatasetError, match=r"rows 0 to 249.*rows 875 to 999"):
        verify(folder).raise_if_corrupt()


def test_sizes_missing_and_new_files(folder: Path) -> None:
    content = (folder / "a.memmap").read_bytes()
    (folder / "a.memmap").write_bytes(content[:-1500])
    (folder / "b" / "weird%2Fkey.memmap").unlink()
    (folder / "new.memmap").write_bytes(b"x")
    flip(folder / "s" / "meta.json", 5)
    found = {problem.file: problem.reason for problem in verify(folder).problems}
    assert "18,500 bytes instead of 20,000" in found["a.memmap"]
    assert "cannot be read" in found["b/weird%2Fkey.memmap"]
    assert "was not there" in found["new.memmap"]
    assert "s/meta.json" in found


def test_checksums_follow_a_rewrite(folder: Path) -> None:
    TensorDict.load_memmap(folder)["a"].fill_(0)
    assert not verify(folder).ok
    TensorDict.load_memmap(folder).checksum()
    assert verify(folder).ok


def test_damaged_or_missing_checksums(folder: Path, tmp_path: Path) -> None:
    flip(folder / "checksums.json", 60)
    with pytest.raises(DatasetError, match=r"checksums\.json"):
        verify(folder)
    (folder / "checksums.json").unlink()
    with pytest.raises(DatasetError, match="no checksums"):
        verify(folder)
    with pytest.raises(DatasetError):
        store(tmp_path / "none")
    with pytest.raises(RuntimeError, match="memmap"):
        TensorDict({"a": torch.ones(2)}).checksum()


def restore_sums(folder: Path, **files: Any) -> None:
    """Edited checksums whose own checksum is right: whoever writes datasets can do that too."""
    path = folder / "checksums.json"
    body = json.loads(path.read_text())
    body.pop("self")
    body["files"].update(files)
    path.write_text(json.dumps({**body, "self": zlib.crc32(json.dumps(body).encode())}))


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("a.memmap", {"size": "x", "crc32": []}), ("a.memmap", {"size": 1, "crc32": 5}), ("a.memmap", [1]),
        ("a.memmap", {"size": 1, "crc32": [-1]}), ("../x", {"size": 1, "crc32": []}), ("a\0", {"size": 1, "crc32": []}),
    ],
    ids=str,
)  # fmt: skip
def test_edited_checksums_are_an_error(folder: Path, name: str, entry: Any) -> None:
    restore_sums(folder, **{name: entry})
    with pytest.raises(DatasetError, match=r"checksums\.json"):
        verify(folder)


@pytest.mark.parametrize("what", ["fifo", "link", "linked folder"])
def test_what_took_the_place_of_a_file_is_reported_and_not_read(folder: Path, tmp_path: Path, what: str) -> None:
    target = folder / ("b" if what == "linked folder" else "a.memmap")
    os.rename(target, tmp_path / "outside")
    os.mkfifo(target) if what == "fifo" else os.symlink(tmp_path / "outside", target)
    problems = verify(folder).problems
    assert problems and all(problem.file.startswith(target.name) for problem in problems)
    assert all("link" in problem.reason or "regular" in problem.reason for problem in problems)


def test_special_files_beside_the_data_are_left_alone(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert "pipe" not in store(folder)
    for name in ("fifo", "endless"):
        os.unlink(folder / "checksums.json")
        os.mkfifo(folder / "checksums.json") if name == "fifo" else os.symlink("/dev/zero", folder / "checksums.json")
        with pytest.raises(DatasetError, match=r"checksums\.json"):
            verify(folder)
