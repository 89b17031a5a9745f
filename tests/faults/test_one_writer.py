"""One writer a folder: who comes second is told at once who writes, and nobody's rows are mixed with another's."""

import errno
import fcntl
import functools
import os
import signal
import subprocess
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap.errors import FolderInUse
from tdmap.memory import folderlock
from tdmap.memory.folderlock import FolderLock
from tdmap.memory.holder import Holder, holder_of
from tdmap.processes import forking_worker
from tdmap.run.history import History
from tdmap.run.status import read_status
from tensordict_lite import TensorDict
from tests import interpreters
from tests.processes import forked, kill_at

from .operations import IN_DATASET, OUT_OF_PLACE, RESUMABLE, Operation, make, prepare, quietly, same


def in_shards(operation: Operation) -> Operation:
    """The same, into shards."""
    return lambda data, out, **options: operation(data, out, rows_per_shard=20, **options)


EVERY = {
    **OUT_OF_PLACE,
    **{f"{name}, resumed": operation for name, operation in RESUMABLE.items()},
    **{f"{name}, in shards": in_shards(OUT_OF_PLACE[name]) for name in OUT_OF_PLACE if "cache" not in name},
    **IN_DATASET,
}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- every operation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_who_comes_second_is_told_who_writes(tmp_path, name):
    out = prepare(name, tmp_path)
    before = time.time()
    with FolderLock(out, "map(double)"):
        found = tree(out)
        with pytest.raises(FolderInUse, match=r"map\(double\), in the thread MainThread of this process") as caught:
            EVERY[name](make(), out, num_workers=0)
        assert tree(out) == found  # nothing was touched, and nothing was removed
    error = caught.value
    assert (error.pid, error.host, error.call, error.folder) == (
        os.getpid(),
        os.uname().nodename,
        "map(double)",
        str(out),
    )
    assert before - 1 <= error.since <= time.time() and isinstance(error, BlockingIOError)


class Watch(tdmap.events.Callback):
    """Who writes the folder while jobs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[object] = []

    def on_job_started(self, event):
        self.seen.append(holder_of(self.folder))


@pytest.mark.parametrize("name", [name for name in EVERY if "map without rows" not in name])
def test_every_job_of_an_operation_holds_the_folder(tmp_path, name):
    out, watch = prepare(name, tmp_path), Watch(prepare(name, tmp_path))
    EVERY[name](make(), out, num_workers=0, callbacks=[watch])
    seen = watch.seen[:1] if "cache" in name else watch.seen  # the others read what has been written
    assert seen and all(isinstance(holder, Holder) for holder in seen)
    assert all(holder.process.pid == os.getpid() for holder in seen)
    assert holder_of(out) is None
    with FolderLock(out, "another"):
        pass


@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_an_output_without_a_journal_leaves_no_hidden_folder(tmp_path, name):
    OUT_OF_PLACE[name](make(), tmp_path / "out", num_workers=0)
    hidden = tmp_path / "out" / ".tdmap"
    assert not hidden.exists() if "cache" not in name else (hidden / "pipeline.json").exists()
    TensorDict.load_memmap(tmp_path / "out")


@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_an_output_that_fails_leaves_nothing(tmp_path, name, monkeypatch):
    class Stop(tdmap.events.Callback):
        def on_job_started(self, event):
            raise ArithmeticError("stop")

    if name == "map without rows":
        monkeypatch.setattr("tdmap.output.folder.result_of_no_rows", lambda *arguments: 1 / 0)
    with pytest.raises(ArithmeticError):
        OUT_OF_PLACE[name](make(), tmp_path / "out", num_workers=0, callbacks=[Stop()])
    if name == "cache":  # it goes on
        assert os.listdir(tmp_path / "out") == [".tdmap"] and holder_of(tmp_path / "out") is None
    else:
        assert not (tmp_path / "out").exists()


# -- many at one moment ----------------------------------------------------------------------------------


WON, LOST, WRONG = 0, 1, 2
RANKS = {
    "map": lambda data, out, mark: tdmap.map(data, mark, out=out, chunksize=10, num_workers=0),
    "filter": lambda data, out, mark: tdmap.filter(mark(data), lambda c: c["x"] >= 0, out=out, num_workers=0),
    "flat_map": lambda data, out, mark: tdmap.flat_map(data, mark, out=out, chunksize=10, num_workers=0),
    "shuffle": lambda data, out, mark: tdmap.shuffle(mark(data), 0, out=out, num_workers=0),
    "write": lambda data, out, mark: tdmap.Pipeline(data).map(mark).write(out, num_workers=0),
    "write here": lambda data, out, mark: (
        tdmap.Pipeline(data).map(mark).filter(tdmap.col("x") >= 0).shuffle(0, buffer=8).write(out, num_workers=0)
    ),
}


@pytest.mark.parametrize("name", RANKS)
def test_of_many_ranks_that_start_at_once_exactly_one_wins(tmp_path, name):
    data = make(40)
    for attempt in range(2):
        out = tmp_path / f"out{attempt}"

        def rank(number: int, out: Path = out, winner: Path = tmp_path / f"winner{attempt}") -> int:
            def mark(chunk):
                return TensorDict({"x": torch.full_like(chunk["x"], number), "y": chunk["x"]}, chunk.batch_size)

            try:
                result = RANKS[name](data, out, mark)
            except (FolderInUse, FileExistsError):
                return LOST
            winner.write_text(str(number))
            whole = set(result["x"].tolist()) == {number} and sorted(result["y"].tolist()) == list(range(40))
            return WON if whole else WRONG

        assert sorted(forked(rank, 4)) == [WON, LOST, LOST, LOST]
        final = TensorDict.load_memmap(out)
        assert set(final["x"].tolist()) == {int((tmp_path / f"winner{attempt}").read_text())} and len(final) == 40
        assert sorted(os.listdir(out)) == ["meta.json", "x.memmap", "y.memmap"]


# -- whole programs that are killed ------------------------------------------------------------------------

SCRIPT = """
    import os, signal, sys, time, torch, tdmap
    from tensordict_lite import TensorDict
    out, mode = sys.argv[1:3]

    def slow(chunk):
        open(out + ".started", "w").close()
        time.sleep(0 if mode == "quick" else 600)
        return chunk.clone()

    class Fork(tdmap.events.Callback):
        # A child of the program that lives on, and knows nothing of the run.
        def on_job_started(self, event):
            if os.fork() == 0:
                for fd in (0, 1, 2):
                    os.close(fd)
                time.sleep(600)
                os._exit(0)

    data = TensorDict({"x": torch.arange(40)}, [40])
    callbacks = [Fork()] if mode == "child" else []
    tdmap.map(data, slow, out=out, chunksize=10, num_workers=2, callbacks=callbacks, resume=mode == "resume")
"""


def begin(tmp_path: Path, mode: str) -> subprocess.Popen[bytes]:
    """The program, once its function runs."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = interpreters.Program([str(script), str(tmp_path / "out"), mode])
    deadline = time.monotonic() + 300
    while not (tmp_path / "out.started").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("mode", ["plain", "resume", "child"])
def test_a_killed_writer_frees_the_folder(tmp_path, mode):
    process = begin(tmp_path, mode)
    try:
        with pytest.raises(FolderInUse, match=rf"map\(slow\), in process {process.pid}, since .*script.py") as caught:
            tdmap.map(make(), same, out=tmp_path / "out", num_workers=0)
        assert caught.value.pid == process.pid
        os.kill(process.pid, signal.SIGKILL)  # the program alone: what it has started may live on
        process.wait()
        assert read_status(tmp_path / "out") is None or read_status(tmp_path / "out").state == "interrupted"
        if mode == "resume":
            with pytest.raises(FileExistsError, match="unfinished run"):
                tdmap.map(make(), same, out=tmp_path / "out", num_workers=0)
        else:
            result = tdmap.map(make(), same, out=tmp_path / "out", num_workers=0)
            assert torch.equal(result["x"], make()["x"])
            assert not (tmp_path / "out" / ".tdmap").exists()  # what the other has left is gone
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_writer_that_is_killed_at_any_step_leaves_a_whole_dataset_or_room_for_one(tmp_path):
    """Without `resume`: in the middle of its claim, of the move to its place, of the release."""
    data, number, killed = make(), -1, True
    steps = [(os, name) for name in ("replace", "unlink", "rmdir", "mkdir", "listdir")]
    while killed:
        number += 2
        call = functools.partial(tdmap.map, data, same, out=tmp_path / str(number), chunksize=10, num_workers=0)
        killed = kill_at(number, call, steps)
        try:
            result = call()
        except FileExistsError as error:
            assert "holds a dataset already" in str(error)
            result = TensorDict.load_memmap(tmp_path / str(number))
        assert (result == data).all() and (TensorDict.load_memmap(tmp_path / str(number)) == data).all()
        left = set(os.listdir(tmp_path / str(number))) - {".tdmap"}
        assert left == {"f.memmap", "k.memmap", "meta.json", "nested", "x.memmap"}
    assert number > 5


def test_status_says_who_is_at_work(tmp_path):
    process = begin(tmp_path, "resume")
    try:
        found = read_status(tmp_path / "out")
        assert found.state == "running" and found.writer["pid"] == process.pid
        assert found.writer["call"] == "map(slow)" and "script.py" in found.writer["program"]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_warm_workers_do_not_keep_the_folder(tmp_path, method):
    tdmap.close_pools()
    out = tmp_path / "out"
    tdmap.map(make(), same, out=out, chunksize=10, num_workers=2, mp_start_method=method, resume=True)
    assert holder_of(out) is None  # and they idle
    with FolderLock(out, "next"):
        pass


class Fork(tdmap.events.Callback):
    """A child of the caller, forked once a run has written to its hidden folder, that leaves by an exception."""

    def __init__(self, out: Path) -> None:
        self.hidden = out / ".tdmap"
        self.codes: list[int] = []

    def on_lease_done(self, event):
        if not self.codes and len(os.listdir(self.hidden)) > 1:
            before = self.states()
            child = os.fork()
            if child == 0:
                raise KeyboardInterrupt
            self.codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            assert self.states() == before

    def states(self) -> list[bytes]:
        return [file.read_bytes() for file in sorted(self.hidden.glob("states-*"))]


@pytest.mark.parametrize("name", ["map", "filter", "flat_map", "permute", "group_by.map_groups", "write here"])
def test_a_fork_of_the_caller_neither_releases_nor_removes(tmp_path, name):
    out, parent = tmp_path / "out", os.getpid()
    fork = Fork(out)
    try:
        result = OUT_OF_PLACE[name](make(), out, num_workers=0, callbacks=[fork])
    except KeyboardInterrupt:
        if os.getpid() != parent:  # every `finally` of the run has been passed
            os._exit(7 if holder_of(out) is not None and len(os.listdir(out / ".tdmap")) > 1 else 8)
        raise
    assert fork.codes == [7]
    assert (result == OUT_OF_PLACE[name](make(), tmp_path / "other", num_workers=0)).all()


@pytest.mark.parametrize("name", RESUMABLE)
def test_a_fork_of_the_caller_says_nothing_in_the_journal(tmp_path, name):
    fork, parent = Fork(tmp_path / "out"), os.getpid()
    try:
        RESUMABLE[name](make(), tmp_path / "out", num_workers=0, callbacks=[fork])
    except KeyboardInterrupt:
        if os.getpid() != parent:
            os._exit(7)
        raise
    assert fork.codes == [7]
    path = tmp_path / "out" / ".tdmap" / "journal"
    assert not History(path).failures and History(path).is_complete


def test_a_look_at_the_status_does_not_turn_a_writer_away(tmp_path):
    out, stop = tmp_path / "out", threading.Event()
    (out / ".tdmap").mkdir(parents=True)
    (out / ".tdmap" / "lock").touch()

    def look() -> None:
        while not stop.is_set():
            holder_of(out)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(300):
            folderlock.FolderLock(out, "writer").release()
    finally:
        stop.set()
        thread.join()


# -- what is said -----------------------------------------------------------------------------------------


def test_a_lock_that_a_process_left_to_its_child_is_explained(tmp_path):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        lock = None
        try:
            lock = folderlock.FolderLock(tmp_path, "map(gone)")
            with forking_worker():
                grandchild = os.fork()
            if grandchild == 0:
                time.sleep(600)
            os.write(write, str(grandchild).encode())
        finally:  # never on into the tests that follow
            os._exit(0 if lock else 1)
    os.waitpid(child, 0)
    grandchild = int(os.read(read, 16))
    try:
        with pytest.raises(FolderInUse, match=rf"process {child}, .*which has ended. A process that it started"):
            folderlock.FolderLock(tmp_path, "next", stray_seconds=0.05)
    finally:
        os.kill(grandchild, signal.SIGKILL)
    folderlock.FolderLock(tmp_path, "next", stray_seconds=60).release()


def test_a_holder_of_another_machine_is_named(tmp_path):
    own = Holder.own("map(far)")
    far = own._replace(process=own.process._replace(host="node7", boot=1, pid=11))
    with FolderLock(tmp_path, "map(far)"):
        (tmp_path / ".tdmap" / "lock").write_bytes(far.pack())
        with pytest.raises(FolderInUse, match=r"map\(far\), in process 11 on node7, since") as caught:
            folderlock.FolderLock(tmp_path, "next")
    assert (caught.value.host, caught.value.pid) == ("node7", 11)


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 5000, b"[1, 2]", b"\xff" * 100, b"[1e999,1,1,1,1,1,1,1,1]"])
def test_a_lock_that_says_nothing_is_a_lock(tmp_path, text):
    with FolderLock(tmp_path, "map(f)"):
        (tmp_path / ".tdmap" / "lock").write_bytes(text)
        with pytest.raises(FolderInUse, match="by another call"):
            folderlock.FolderLock(tmp_path, "next")


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    out = tmp_path / "out"
    with FolderLock(out, "map(first)"):
        assert holder_of(out) is None
    assert not out.exists()
    assert torch.equal(tdmap.map(make(), same, out=out, num_workers=0, resume=True)["x"], make()["x"])


class AddsWithoutLocks:
    """Adds one to rows, in workers where files cannot be locked."""

    def __init__(self, error: int) -> None:
        self.error = error

    def __setstate__(self, state: dict[str, int]) -> None:
        def refuse(descriptor: int, operation: int) -> None:
            raise OSError(state["error"], "no lock")

        fcntl.flock = refuse

    def __call__(self, rows: TensorDict) -> None:
        rows["x"].add_(1)


def test_workers_that_cannot_lock_write_in_place_only_where_there_are_no_locks(tmp_path):
    data = make().memmap(tmp_path / "d")
    options = {"out": data, "resume": True}
    with tdmap.WorkerPool(1) as pool, pytest.raises(OSError, match="no lock"):
        tdmap.map(data, AddsWithoutLocks(errno.EIO), pool=pool, **options)
    assert (data == make()).all()
    with tdmap.WorkerPool(1) as pool:
        tdmap.map(data, AddsWithoutLocks(errno.ENOLCK), pool=pool, **options)
    assert torch.equal(TensorDict.load_memmap(tmp_path / "d")["x"], make()["x"] + 1)


# -- what is in the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_a_file_in_place_of_the_folder(tmp_path, name):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file, and a dataset is a folder"):
        OUT_OF_PLACE[name](make(), tmp_path / "out", num_workers=0)
    assert (tmp_path / "out").read_text() == "mine" and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_a_home_folder_is_not_made_in_the_working_directory(tmp_path, monkeypatch, name):
    """Nobody shall have to remove a folder of the name ~."""
    monkeypatch.chdir(tmp_path)
    for out in ("~", "~/ready", Path("~/ready")):
        with pytest.raises(ValueError, match=r"os.path.expanduser\('~"):
            OUT_OF_PLACE[name](make(), out, num_workers=0)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["map", "flat_map", "shuffle"])
def test_what_somebody_puts_into_the_folder_meanwhile_is_left_alone(tmp_path, name):
    out = tmp_path / "out"

    class Intrude(tdmap.events.Callback):
        def on_job_started(self, event):
            out.mkdir(exist_ok=True)
            (out / "x.memmap").write_text("mine")

    with pytest.raises(FileExistsError, match="was empty when the run began"):
        OUT_OF_PLACE[name](make(), out, num_workers=0, callbacks=[Intrude()])
    assert (out / "x.memmap").read_text() == "mine"
    whole = TensorDict.load_memmap(out / ".tdmap" / "data")  # nothing is lost
    assert len(whole) == len(OUT_OF_PLACE[name](make(), tmp_path / "other", num_workers=0))
    with pytest.raises(FileExistsError, match="not empty"):
        OUT_OF_PLACE[name](make(), out, num_workers=0)
    assert len(TensorDict.load_memmap(out / ".tdmap" / "data")) == len(whole)


def test_two_sessions_of_one_cache_do_not_mix(tmp_path):
    pipeline = tdmap.Pipeline(make()).map(same).cache(tmp_path / "cache")
    with FolderLock(tmp_path / "cache", "Pipeline.cache"), pytest.raises(FolderInUse):
        pipeline.collect(num_workers=0)
    assert torch.equal(pipeline.collect(num_workers=0)["x"], make()["x"])
    assert torch.equal(pipeline.collect(num_workers=0)["x"], make()["x"])


def test_a_cache_whose_writer_was_killed_before_it_said_so_is_used(tmp_path):
    pipeline = tdmap.Pipeline(make()).map(same).cache(tmp_path / "cache")
    pipeline.collect(num_workers=0)
    (tmp_path / "cache" / ".tdmap" / "pipeline.json").unlink()
    assert torch.equal(quietly(lambda: pipeline.collect(num_workers=0))["x"], make()["x"])
    assert (tmp_path / "cache" / ".tdmap" / "pipeline.json").exists()
