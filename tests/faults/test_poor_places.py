"""Folders that cannot be written, and file systems without room or inodes: clear errors, and nothing is lost."""

import contextlib
import errno
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap.memory import hidden
from tdmap.run import disk
from tdmap.run.status import describe, read_status
from tensordict_lite import DatasetWriter, Ragged, TensorDict
from tensordict_lite.ragged import ragged_in
from tests import mounts
from tests.mounts import as_nobody, in_child, needs_root

from .operations import IN_DATASET, OUT_OF_PLACE, RESUMABLE, make, quietly, same


@contextlib.contextmanager
def mounted(folder: Path, kind: str, options: str) -> Iterator[Path]:
    with mounts.mounted(folder, "-t", kind, "-o", options, kind):
        yield folder
        disk.wait_for_disk()


def fill(file: Path) -> None:
    """Leave no room."""
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def readable(folder: Path) -> Path:
    """So that somebody else may look at everything below."""
    for path in [*folder.parents, folder, *folder.rglob("*")]:
        with contextlib.suppress(PermissionError):
            path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@needs_root
@pytest.mark.parametrize("name", [*OUT_OF_PLACE, "reduce"])
def test_a_folder_that_may_only_be_read_is_named(tmp_path, name):
    (tmp_path / "place").mkdir()
    readable(tmp_path)

    def work() -> None:
        with pytest.raises(PermissionError, match=r"nothing can be written there.*Permission denied.*place/out"):
            {**OUT_OF_PLACE, **RESUMABLE}[name](make(), tmp_path / "place" / "out", num_workers=0)

    as_nobody(work)
    assert os.listdir(tmp_path / "place") == []


@needs_root
@pytest.mark.parametrize("name", IN_DATASET)
def test_a_dataset_that_may_only_be_read_is_named(tmp_path, name):
    make().memmap(tmp_path / "data")
    readable(tmp_path / "data")

    def work() -> None:
        with pytest.raises(PermissionError, match=r"nothing can be written there|read-only|writ"):
            IN_DATASET[name](make(), tmp_path / "data", num_workers=0)

    as_nobody(work)
    assert torch.equal(TensorDict.load_memmap(tmp_path / "data")["x"], make()["x"])


@needs_root
def test_a_mount_that_may_only_be_read(tmp_path):
    with mounted(tmp_path / "mount", "tmpfs", "size=8m") as mount:
        make().memmap(mount / "data")
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with pytest.raises(OSError, match=r"nothing can be written there.*Read-only file system") as caught:
            tdmap.map(make(), same, out=mount / "out", num_workers=0)
        assert caught.value.errno == errno.EROFS
        assert torch.equal(TensorDict.load_memmap(mount / "data")["x"], make()["x"])


@needs_root
@pytest.mark.parametrize(
    "name", ["map", "filter", "flat_map", "shuffle", "join", "group_by.map_groups", "write", "cache"]
)
def test_a_file_system_without_inodes(tmp_path, name):
    """From none at all on: each of them is one that the run stumbles over later."""
    operation, ended = OUT_OF_PLACE[name], []
    for free in range(1, 40):
        with mounted(tmp_path / f"m{free}", "tmpfs", f"size=8m,nr_inodes={free}") as mount:
            try:
                result = operation(make(), mount / "out", num_workers=0)
            except OSError as error:
                assert error.errno == errno.ENOSPC and str(mount) in str(error)
                assert not (mount / "out" / "meta.json").exists()
                if "inodes are used up" in str(error):
                    ended.append("said so")
                continue
            assert len(result) and len(TensorDict.load_memmap(mount / "out")) == len(result)
            break
    else:
        raise AssertionError("40 inodes are enough")
    assert ended


def shards(data: TensorDict, out: Path, **options: object) -> object:
    return tdmap.map(data, same, out=out, chunksize=10, rows_per_shard=30, **options)


def replaced(data: TensorDict, out: Path, **options: object) -> object:
    return tdmap.filter(data, lambda rows: rows["x"] >= 0, out=out, overwrite=True, **options)


@pytest.mark.parametrize("name", [*OUT_OF_PLACE, "resumed map", "shards", "replaced"])
def test_a_file_that_is_too_large_is_an_error_that_names_the_folder(tmp_path, name):
    """Whichever file it is: of the result, of the run, or of what waits elsewhere."""
    operations = {**OUT_OF_PLACE, "resumed map": RESUMABLE["map"], "shards": shards, "replaced": replaced}

    def work() -> None:
        said = []
        for limit in [*range(0, 400, 80), *(1 << power for power in range(9, 20, 2))]:
            out = tmp_path / f"out-{limit}"
            if name == "replaced":
                make().memmap(out)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                operations[name](make(), out, num_workers=0)
            except OSError as error:
                said.append(str(error))
                assert error.errno in (errno.EFBIG, errno.ENOSPC)  # of a log: no room for another line
                assert str(out) in said[-1] or "intermediate results" in said[-1] or "shared memory" in said[-1]
                assert f"{out}/.tdmap" not in said[-1] and f".{out.name}" not in said[-1]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert said

    assert in_child(work) == 0


@pytest.mark.parametrize("call", [tdmap.flat_map, tdmap.map])
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "executor": "thread"}])
def test_a_file_of_intermediate_results_that_is_too_large_is_no_error_of_rows(tmp_path, call, workers):
    make().memmap(tmp_path / "data")

    def work() -> None:
        data = TensorDict.load_memmap(tmp_path / "data")
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="intermediate results") as caught:
            call(data, same, out=tmp_path / "out", chunksize=1, on_error="drop", **workers)
        assert caught.value.filename == str(tmp_path / "out")

    assert in_child(work) == 0
    assert not (tmp_path / "out").exists()


@needs_root
@pytest.mark.parametrize("name", ["map", "map into", "map in place", "flat_map", "filter", "reduce"])
def test_a_run_goes_on_when_there_is_room_again(tmp_path, name):
    """A file system that fills up in the middle of a run that keeps a journal."""
    wanted = {**RESUMABLE, **IN_DATASET}
    with mounted(tmp_path / "mount", "tmpfs", "size=6m") as mount:
        out, filler = mount / "out", mount / "filler"
        if name in IN_DATASET:
            make().memmap(out)

        class Fill(tdmap.events.Callback):
            def on_lease_done(self, event):
                fill(filler)

        try:
            wanted[name](make(), out, num_workers=0, callbacks=[Fill()])
        except OSError as error:
            assert error.errno == errno.ENOSPC and str(out) in str(error)
        filler.unlink()
        found = quietly(lambda: wanted[name](make(), out, num_workers=0))
        quiet = tmp_path / "quiet"
        if name in IN_DATASET:
            make().memmap(quiet)
        undisturbed = wanted[name](make(), quiet, num_workers=0)
        assert (found == undisturbed).all() if hasattr(found, "all") else found == undisturbed


@needs_root
@pytest.mark.parametrize("name", ["map", "map in place", "flat_map", "reduce"])
def test_a_full_disk_does_not_hide_the_error_of_a_function(tmp_path, name):
    with mounted(tmp_path / "mount", "tmpfs", "size=6m") as mount:
        if name in IN_DATASET:
            make().memmap(mount / "out")

        class Fill(tdmap.events.Callback):
            def on_lease_done(self, event):
                fill(mount / "filler")
                raise ArithmeticError("mine")

        with pytest.raises(ArithmeticError, match="mine"):
            {**RESUMABLE, **IN_DATASET}[name](make(), mount / "out", num_workers=0, callbacks=[Fill()])


@needs_root
def test_a_full_disk_tells_no_lies_about_who_writes(tmp_path):
    """The lock is taken, though there is no room to say by whom."""
    with mounted(tmp_path / "mount", "tmpfs", "size=64k") as mount:
        (mount / "out" / ".tdmap").mkdir(parents=True)
        (mount / "out" / ".tdmap" / "lock").touch()
        fill(mount / "filler")
        from tdmap.memory import folderlock

        lock = folderlock.FolderLock(mount / "out", "map(f)")
        with pytest.raises(tdmap.errors.FolderInUse, match="by another call"):
            folderlock.FolderLock(mount / "out", "map(g)")
        lock.release()
        folderlock.FolderLock(mount / "out", "map(g)").release()


@pytest.mark.parametrize("name", [*RESUMABLE, *IN_DATASET])
def test_a_clock_that_jumps_does_not_matter(tmp_path, name, monkeypatch):
    if name in IN_DATASET:
        make().memmap(tmp_path / "out")
        make().memmap(tmp_path / "quiet")
    operation, jumps, real = {**RESUMABLE, **IN_DATASET}[name], [0], time.time

    class Jump(tdmap.events.Callback):
        leases = 0

        def on_lease_done(self, event):
            self.leases += 1
            jumps[0] = (-1) ** self.leases * 10 ** (self.leases + 6)
            if self.leases == 4:
                raise InterruptedError

    monkeypatch.setattr(time, "time", lambda: max(real() + jumps[0], 0))
    with pytest.raises(InterruptedError):
        operation(make(), tmp_path / "out", num_workers=0, callbacks=[Jump()])
    assert describe(read_status(tmp_path / "out"))
    jumps[0] = -real()  # as on a machine whose clock has no battery
    found = operation(make(), tmp_path / "out", num_workers=0)
    wanted = operation(make(), tmp_path / "quiet", num_workers=0)
    assert (found == wanted).all() if hasattr(found, "all") else found == wanted


@needs_root
@pytest.mark.parametrize("name", [*OUT_OF_PLACE, *IN_DATASET])
def test_an_overlay_file_system(tmp_path, name):
    """As containers have them: what is below may only be read, and is copied when it is changed."""
    for part in ("lower", "upper", "work"):
        (tmp_path / part).mkdir()
    make().memmap(tmp_path / "lower" / "in")
    if name in IN_DATASET:
        make().memmap(tmp_path / "lower" / "out")
    options = ",".join(f"{part}dir={tmp_path / part}" for part in ("lower", "upper", "work"))
    with mounted(tmp_path / "merged", "overlay", options) as merged:
        data, out = TensorDict.load_memmap(merged / "in"), merged / "out"
        result = {**OUT_OF_PLACE, **IN_DATASET}[name](data, out, num_workers=0)
        assert len(result) == len(TensorDict.load_memmap(out)) if name != "map without rows" else True
        from tdmap.memory.folderlock import FolderLock

        with FolderLock(out, "another"), pytest.raises(tdmap.errors.FolderInUse), FolderLock(out, "second"):
            pass
    if name in IN_DATASET:
        assert torch.equal(TensorDict.load_memmap(tmp_path / "lower" / "out")["x"], make()["x"])


def test_lines_that_find_no_room_are_errors_that_name_the_file(tmp_path, monkeypatch):
    real = os.write

    def full(descriptor, data):
        return real(descriptor, bytes(data)[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=r"no space left.*skipped\.jsonl") as caught:
        hidden.append_line(tmp_path / "skipped.jsonl", b"x" * 100)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    hidden.append_line(tmp_path / "skipped.jsonl", b'"whole"')
    assert list(hidden.lines(tmp_path / "skipped.jsonl")) == ["whole"]


def appended(data: TensorDict, out: Path, **options: object) -> TensorDict:
    with DatasetWriter(out, data[:1] if ragged_in(data) else data[0]) as writer:
        for part in data.split(25):
            writer.append(part)
            writer.flush()
    return TensorDict.load_memmap(out)


def read_table(data: TensorDict, out: Path, **options: object) -> TensorDict:
    columns = [key for key in data.keys() if key != "nested"]
    lines = [columns, *zip(*(data[key].tolist() for key in columns), strict=True)]
    out.parent.mkdir()
    out.with_name("wide.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))
    return tdmap.datasets.read(out.with_name("wide.csv"), out, num_workers=0)


WIDE = {
    **{name: OUT_OF_PLACE[name] for name in ("map", "filter", "flat_map", "sort", "shuffle", "permute", "write fewer")},
    "join": lambda data, out, **o: tdmap.join(data, data.select("x"), "x", out=out, **o),
    "shards": lambda data, out, **o: tdmap.filter(data, same_rows, out=out, rows_per_shard=30, **o),
    "read": read_table,
    "append": appended,
}


def same_rows(chunk: TensorDict) -> torch.Tensor:
    return chunk["x"] >= 0


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "numbers") for name in WIDE), *((name, "text") for name in ("map", "flat_map", "sort"))]
)
def test_more_columns_than_files_may_be_open(tmp_path, name, kind):
    data = make()
    for number in range(210):
        data[f"c{number}"] = data["x"] + number
    if kind == "text":
        for number in range(50):
            data[f"t{number}"] = Ragged.from_list([f"{number} {row}" for row in range(len(data))])
    wanted = WIDE[name](data, tmp_path / "wanted" / "out", num_workers=0)
    before, (soft, hard) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 200, hard))
    try:
        found = WIDE[name](data, tmp_path / "found" / "out", num_workers=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for key in ("x", "c209", *(("t49",) if kind == "text" else ())):
        assert [*found[:][key]] == [*wanted[:][key]] and len(found) == len(wanted)
