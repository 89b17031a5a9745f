"""Files that are written aside: two writers of one file, and what a killed one leaves."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.datasets import images, read, write
from tdmap.memory import hidden
from tdmap.memory.spill import Spill
from tensordict_lite import TensorDict
from tests.datasets.listing import listed
from tests.processes import in_child, kill_at, meanwhile

ENDINGS = ["csv", "csv.gz", "tsv", "jsonl", "json", "parquet", "arrow", "npz", "npy", "h5", "zarr"]
NEEDS = {"h5": "h5py", "zarr": "zarr"}


def table(value: int, ending: str, rows: int = 500) -> TensorDict:
    names = ["values"] if ending == "npy" else ["n", "m"]
    return TensorDict({name: torch.full((rows,), value) for name in names}, [rows])


def values_in(path: Path) -> set[int]:
    """The numbers in all columns of a file of 500 rows."""
    found = read(path)
    assert len(found) == 500
    return {value for column in listed(found).values() for value in column}


@pytest.mark.parametrize("ending", ENDINGS)
def test_threads_that_write_one_file_leave_one_of_them_whole(ending: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(ending, "torch"))
    path, errors = tmp_path / f"f.{ending}", []

    def save(value: int) -> None:
        try:
            for _ in range(5):
                write(table(value, ending), path)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert len(values := values_in(path)) == 1 and values <= {1, 2, 3}
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_is_replaced_while_it_is_looked_at_is_replaced_again(ending: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(ending, "torch"))
    path, done = tmp_path / f"f.{ending}", 0
    others = table(2, ending)
    others = others if ending == "npy" else TensorDict({"a": others["n"]}, [500])
    write(others, path)

    def second() -> None:
        nonlocal done
        if done < 20:
            write(table(1, ending) if done % 2 else others, path)
            done += 1

    with meanwhile(second, [(os, "scandir"), (os, "rename")]):
        write(table(3, ending), path)
    assert len(values := values_in(path)) == 1 and values <= {1, 2, 3}
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_killed_write_leaves_the_old_file_and_the_next_one_removes_its_rest(ending: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(ending, "torch"))
    path = tmp_path / f"f.{ending}"
    write(table(1, ending), path)
    steps = [(os, name) for name in ("replace", "rename", "chmod", "unlink", "mkdir")]
    number, killed = 0, True
    while killed and number < 40:
        number += 1
        killed = kill_at(number, lambda: write(table(2, ending), path), steps)
        assert len(values := values_in(path)) == 1 and values <= {1, 2}
        write(table(1, ending), path)
        assert os.listdir(tmp_path) == [path.name]
    assert number > 1


def slow(values: Any) -> Any:
    """The fourth chunk kills its process."""
    if int(values["x"][0]) >= 30:
        os.kill(os.getpid(), 9)
    return values


def table_rows() -> TensorDict:
    return TensorDict({"x": torch.arange(100), "k": torch.arange(100) % 7}, [100])


def key(chunk: TensorDict) -> torch.Tensor:
    return slow(chunk)["k"]


KILLED: dict[str, Callable[[Path], Any]] = {
    "filter in shards": lambda out: tdmap.filter(
        table_rows(), lambda c: slow(c)["x"] >= 0, out=out, rows_per_shard=9, chunksize=10, num_workers=0
    ),
    "map in shards": lambda out: tdmap.map(table_rows(), slow, out=out, rows_per_shard=10, num_workers=0),
    "flat_map": lambda out: tdmap.flat_map(table_rows(), slow, chunksize=10, num_workers=0),
    "map_groups": lambda out: tdmap.group_by(table_rows(), key).map_groups(lambda g: g, chunksize=10, num_workers=0),
    "spill_dir": lambda out: tdmap.flat_map(
        table_rows(), slow, chunksize=10, num_workers=0, spill_dir=out.with_name("spill")
    ),
    "in a store": lambda out: tdmap.filter(
        table_rows(), lambda c: slow(c)["x"] >= 0, out="memory://temporary", chunksize=10, num_workers=0
    ),
    "map": lambda out: tdmap.map(table_rows(), slow, out=out, chunksize=10, num_workers=0),
    "sort": lambda out: tdmap.sort(table_rows(), key, out=out, chunksize=10, num_workers=0),
}
"""Calls that end by a kill, and come to their end where `slow` does not kill."""


@pytest.mark.parametrize("name", KILLED)
def test_the_same_call_removes_what_a_killed_one_has_left(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, mine = tmp_path / "tmp", "notes.tdlite-0-1-x"
    for folder in (temporary, tmp_path / "spill"):
        folder.mkdir()
        (folder / mine).write_text("mine")
    (tmp_path / ".out-notes").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert in_child(lambda: KILLED[name](tmp_path / "out")) == 9
    monkeypatch.setattr(f"{__name__}.slow", lambda values: values)
    KILLED[name](tmp_path / "out")
    assert os.listdir(temporary) == os.listdir(tmp_path / "spill") == [mine]
    assert set(os.listdir(tmp_path)) <= {"tmp", "spill", "out", ".out-notes"}
    assert not list(tmp_path.glob("out/.tdmap/*"))


def test_an_exception_of_a_signal_handler_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    for step in ("fdatasync", "replace"):
        with pytest.MonkeyPatch.context() as patch:

            def interrupted(*args: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr(os, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                hidden.replace_file(tmp_path / "shards.json", b"{}")
        assert os.listdir(tmp_path) == []


def test_pictures_are_written_whole(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in" / "cats").mkdir(parents=True)
    for number in range(3):
        image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "in" / "cats" / f"{number}.png")
    pictures, files = images.ingest(tmp_path / "in", tmp_path / "set", size=8, num_workers=0), tmp_path / "files"
    assert kill_at(2, lambda: pictures.to_images(files, format="png", num_workers=0), [(os, "replace")])
    for path in [path for path in files.rglob("*") if path.is_file() and ".tdlite-" not in path.name]:
        image.open(path).verify()
        path.unlink()
    pictures.to_images(files, format="png", num_workers=0)
    assert sorted(path.name for path in files.rglob("*") if path.is_file()) == ["0.png", "1.png", "2.png"]


def test_files_of_another_container_with_the_same_host_name_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes run, though their numbers are those of no process here."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = "from tdmap.memory.spill import Spill; Spill()"
    with Spill() as spill:
        done = subprocess.run([*apart, sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert spill.folder.exists()
