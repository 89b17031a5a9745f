"""A dataset may come from anybody: nothing in its hidden folder is followed, waited for, believed or run."""

import contextlib
import errno
import importlib
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap.errors import ResumeMismatch, UntrustedFile
from tdmap.output.append import SpilledRows, pack_pieces
from tdmap.pipeline.caching import NAME as NOTE
from tdmap.run import disk, history, log
from tdmap.run.status import describe, read_status
from tdmap.run.values import pack
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tests import journals
from tests.products import sampled

from .operations import IN_DATASET, OUT_OF_PLACE, RESUMABLE, make, prepare, quietly, same

PRECIOUS = b"years of work" * 100
EVERY = {**RESUMABLE, **IN_DATASET}
NAMES = ("journal", "journal.new", "lock", "skipped.jsonl")
OWN = {
    "map": ("data", "moving", "spill-objects.jsonl"),
    "write": ("data", "moving", "spill-objects.jsonl"),
    "filter": ("spill-1-mask", "data", "moving"),
    "flat_map": ("spill-0", "data", "moving"),
    "write fewer": ("spill-0", "data", "moving"),
    "cache": (NOTE, f"{NOTE}.new", "data", "moving"),
    "reduce": ("states-0", "states-0.new", "states-0.disk"),
    "reduce several": ("states-0", "states-0.new", "states-0.disk"),
    "map into": ("spill-objects.jsonl",),
    "map in place": ("spill-objects.jsonl", "done", "undo-0", "history.jsonl", "workers.lock"),
}
"""Files of each operation, besides those of all."""
KINDS = ("link", "dangling link", "link to a device", "FIFO", "socket", "folder", "hard link")


@pytest.fixture(autouse=True)
def _nothing_hangs():
    """What waits for a FIFO is an error."""

    def late(number, frame):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(300)
    yield
    disk.wait_for_disk()  # nor do the processes that wait for the disk
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Planted:
    """Something in place of a file of the hidden folder, and what it would do harm to."""

    def __init__(self, kind: str, path: Path, outside: Path) -> None:
        self.victim = outside / "victim"
        self.victim.write_bytes(PRECIOUS)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        if kind == "link":
            path.symlink_to(self.victim)
        elif kind == "dangling link":
            path.symlink_to(outside / "new")
        elif kind == "link to a device":
            path.symlink_to("/dev/zero")
        elif kind == "FIFO":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as end:
                folder = os.open(path.parent, os.O_RDONLY)
                end.bind(f"/proc/self/fd/{folder}/{path.name}")  # the whole name would be too long
                os.close(folder)
        elif kind == "folder":
            path.mkdir()
        elif kind == "hard link":
            path.hardlink_to(self.victim)
        self.outside = outside

    def has_done_no_harm(self) -> bool:
        return self.victim.read_bytes() == PRECIOUS and os.listdir(self.outside) == ["victim"]


class Stop(tdmap.events.Callback):
    """Ends a run in its middle."""

    def on_lease_done(self, event):
        raise InterruptedError("in the middle")


def begun(name: str, folder: Path) -> Path:
    """The folder of a run that was interrupted."""
    out = prepare(name, folder)
    with contextlib.suppress(InterruptedError):
        EVERY[name](make(), out, num_workers=0, callbacks=[Stop()])
    assert (out / ".tdmap" / "journal").exists()
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EVERY)
def test_nothing_planted_is_followed_or_waited_for(tmp_path, name, kind):
    """In place of every file, before the run and in the middle of it: an error that says so, or no matter.

    One in three cases: every kind meets every file and every operation, and every file every operation.
    """
    case = KINDS.index(kind) + list(EVERY).index(name)
    for number, (file, resumed) in enumerate([(f, r) for f in (*NAMES, *OWN[name]) for r in (False, True)]):
        if (case + number) % 3:
            continue
        folder, outside = tmp_path / f"f{number}", tmp_path / f"o{number}"
        folder.mkdir(), outside.mkdir()
        out = begun(name, folder) if resumed else prepare(name, folder)
        if (out / ".tdmap" / file).is_dir():
            continue
        planted = Planted(kind, out / ".tdmap" / file, outside)
        try:
            quietly(lambda out=out: EVERY[name](make(), out, num_workers=0))
        except (UntrustedFile, FileExistsError, ResumeMismatch) as error:
            told = str(error)
            assert file.removesuffix(".new") in told or "unfinished" in told
        assert planted.has_done_no_harm(), file


LINKS = ("link", "link to a device", "FIFO", "socket", "folder", "hard link")
EDITED = {
    "another file": lambda data: b"#!/bin/sh\n" * 50,
    "another beginning": lambda data: b"x" + data[1:],
    "a number out of range": lambda data: data + log.framed(history.CHUNKS.pack(b"C", 99, 0, 1, 1, 0)),
    "a frame that is too short": lambda data: data + log.framed(b"Cx"),
    "rows that were not skipped": lambda data: data + log.framed(b'K[0, "x", [[1]]]'),
    "a header of another kind": lambda data: data + log.framed(b'H{"identity": 3}'),
}
"""What makes another log of one, its checksums right."""


@pytest.mark.parametrize("name, kind", sampled(3, EVERY, [*LINKS, "another user's", *EDITED]))
def test_a_log_that_is_no_log_of_the_callers_is_refused_by_name_and_nothing_runs(tmp_path, name, kind):
    out, outside = begun(name, tmp_path), tmp_path / "outside"
    outside.mkdir()
    path = out / ".tdmap" / "journal"
    if kind in LINKS:
        Planted(kind, path, outside)
    elif kind in EDITED:
        path.write_bytes(EDITED[kind](path.read_bytes()))
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        pytest.skip("only root gives files away")
    rows = {file: file.read_bytes() for file in out.rglob("*.memmap") if file.is_file()}
    with pytest.raises(UntrustedFile, match="journal"):
        EVERY[name](make(), out, num_workers=0, callbacks=[NothingRuns()])
    assert all(file.read_bytes() == content for file, content in rows.items())


class NothingRuns(tdmap.events.Callback):
    """Fails where a job starts."""

    def on_job_started(self, event):
        raise AssertionError(f"{event.name} has run")


@pytest.mark.parametrize("content", [None, b"", b"TDM", bytes(4096)], ids=["gone", "empty", "cut", "zeros"])
def test_rows_that_are_half_changed_are_not_changed_again_without_their_log(tmp_path, content):
    out = begun("map in place", tmp_path)
    path = out / ".tdmap" / "journal"
    path.unlink() if content is None else path.write_bytes(content)
    before = TensorDict.load_memmap(out)["x"].clone()
    with pytest.raises(ResumeMismatch, match="the log of the run is gone"):
        EVERY["map in place"](make(), out, num_workers=0, callbacks=[NothingRuns()])
    assert torch.equal(TensorDict.load_memmap(out)["x"], before) and not torch.equal(before, make()["x"])


LEDGERS = ("is gone", "has 0 bytes", "has 3 bytes", "with zeros")


@pytest.mark.parametrize(
    ("found", "is_logged"),
    [*((found, is_logged) for found in LEDGERS for is_logged in (True, False)), ("lacks chunks", True)],
)
def test_rows_that_are_half_changed_are_not_changed_again_without_their_ledger(tmp_path, found, is_logged):
    out = begun("map in place", tmp_path)
    if not is_logged:  # as after a kill before the log names a chunk as done
        journals.keep(out / ".tdmap" / "journal", b"HSB")
    path = out / ".tdmap" / "done"
    content = {"is gone": None, "has 0 bytes": b"", "has 3 bytes": path.read_bytes()[:3]}
    zeros = bytes([found == "lacks chunks"]) + bytes(path.stat().st_size - 1)
    content = content.get(found, zeros)
    path.unlink() if content is None else path.write_bytes(content)
    before = TensorDict.load_memmap(out)["x"].clone()
    for _ in range(2):  # the refusal changes nothing
        with pytest.raises(ResumeMismatch, match=f"done, which says which rows are changed, .*{found}"):
            EVERY["map in place"](make(), out, num_workers=0, callbacks=[NothingRuns()])
    assert torch.equal(TensorDict.load_memmap(out)["x"], before) and not torch.equal(before, make()["x"])


def test_a_journal_that_is_replaced_before_the_disk_is_waited_for(tmp_path):
    """The process that waits for the disk starts late, and has the file that its run opened."""
    (tmp_path / "hidden").mkdir(), (tmp_path / "outside").mkdir()
    path, rows = tmp_path / "hidden" / "journal", tmp_path / "rows"
    rows.write_bytes(bytes(4096))
    run = log.Log(path.parent, log.begun(path.parent, IDENTITY, None))
    run.add_files([str(rows)])
    path.rename(tmp_path / "moved")
    planted = Planted("hard link", path, tmp_path / "outside")
    run.merge([], 1, 1)
    run.close()
    disk.wait_for_disk()
    assert planted.has_done_no_harm()
    assert journals.kinds(tmp_path / "moved") == [b"H", b"S", b"B", b"C", b"D"]


@pytest.mark.parametrize("name", [*OUT_OF_PLACE, *IN_DATASET])
@pytest.mark.parametrize("kind", ["link", "link to a device", "FIFO"])
def test_a_hidden_folder_that_is_none(tmp_path, name, kind):
    out, outside = prepare(name, tmp_path), tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(PRECIOUS)
    out.mkdir(exist_ok=True)
    if kind == "FIFO":
        os.mkfifo(out / ".tdmap")
    else:
        (out / ".tdmap").symlink_to(outside if kind == "link" else "/dev/zero")
    with pytest.raises(UntrustedFile, match=r"\.tdmap is a "):
        {**OUT_OF_PLACE, **IN_DATASET}[name](make(), out, num_workers=0)
    assert os.listdir(outside) == ["precious"]


# -- status -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", [*NAMES, "done", "workers.lock"])
def test_status_reads_and_nothing_else(tmp_path, file, kind):
    (tmp_path / "outside").mkdir()
    out = begun("map", tmp_path)
    planted = Planted(kind, out / ".tdmap" / file, tmp_path / "outside")
    before = looks_of(out)
    with contextlib.suppress(UntrustedFile):
        read_status(out)
    assert looks_of(out) == before and planted.has_done_no_harm()


def looks_of(folder: Path) -> dict[Path, tuple[int, ...]]:
    """What a write or a new file would change."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {path: (info.st_mode, info.st_ino, info.st_size, info.st_mtime_ns) for path, info in found.items()}


IDENTITY = {
    "kind": "map",
    "name": "f",
    "function": {},
    "source": {},
    "plan": {"rows": 10, "chunk size": 10, "dim": 0, "unbind": False},
    "seed": None,
    "python": "3.11",
}


def write_journal(out: Path, *frames: bytes, **changes) -> None:
    identity = dict(IDENTITY)
    header = {"identity": identity, "began": 0, "argv": ["tdmap"]}
    for key, value in changes.items():
        target = header if key in header else identity
        target[key] = value
    (out / ".tdmap").mkdir(parents=True, exist_ok=True)
    text = b"".join(map(log.framed, [b"H" + json.dumps(header).encode(), *frames]))
    (out / ".tdmap" / "journal").write_bytes(log.MAGIC + text)


def test_a_status_has_nothing_that_a_terminal_obeys(tmp_path):
    bad = "\x1b[2J\rall rows done"
    said = {
        b"B": [0, bad, 1, 10],
        b"K": [0, 0, [[3, f"builtins.{bad}", None, bad, bad]]],
        b"F": {"time": 1, "type": bad, "error": bad, "notes": [bad]},
    }
    frames = [letter + json.dumps(content).encode() for letter, content in said.items()]
    write_journal(tmp_path, *frames, name="\x1b]0;pwned\x07f", argv=["\x1b[2J"])
    found = read_status(tmp_path)
    assert found.skipped_rows == 1 and len(found.errors) == 1
    assert all(line.isprintable() for line in describe(found)) and all(word.isprintable() for word in found.argv)


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": {"rows": -1, "chunk size": 1}},
        {"plan": {"rows": "many", "chunk size": 1}},
        {"plan": {}},
        {"plan": [1]},
        {"kind": 3},
        {"source": None},
        {"identity": [[]]},
        {"identity": "x"},
    ],
)
def test_a_journal_of_nobody_is_an_error(tmp_path, changes):
    make().memmap(tmp_path / "out")
    write_journal(tmp_path / "out", **changes)
    with pytest.raises(UntrustedFile, match="does not identify its run"):
        read_status(tmp_path / "out")
    for name in IN_DATASET:
        with pytest.raises(UntrustedFile, match="does not identify its run"):
            IN_DATASET[name](make(), tmp_path / "out", num_workers=0)


@pytest.mark.parametrize(
    "changes", [{"began": 1e300}, {"began": "now"}, {"argv": 3}, {"command": [1]}, {"argv": [{}, None]}]
)
def test_other_oddities_of_a_journal_do_no_harm(tmp_path, changes):
    write_journal(tmp_path, **changes)
    assert describe(read_status(tmp_path))


@pytest.mark.parametrize("file", ["journal", "states-0", NOTE, "lock"])
def test_files_that_are_too_large_to_be_true(tmp_path, file):
    out, name = tmp_path / "out", "reduce" if file == "states-0" else "cache" if file == NOTE else "map"
    quietly(lambda: RESUMABLE[name](make(), out, num_workers=0))
    with open(out / ".tdmap" / file, "ab") as huge:
        huge.truncate(1 << 43)
    if file == "journal":
        with pytest.raises(UntrustedFile, match="bytes, where at most"):
            read_status(out)
    with contextlib.nullcontext() if file == "lock" else pytest.raises(UntrustedFile, match="bytes, where at most"):
        quietly(lambda: RESUMABLE[name](make(), out, num_workers=0))


def rows_by_shards(data, out, **options):
    return tdmap.map(data, fails_on_some, out=out, rows_per_shard=20, resume=True, on_error="skip", **options)


def fails_on_some(chunk):
    if int(chunk["x"][0]) % 20 == 0:
        raise ValueError("some")
    return chunk.clone()


def with_objects(data, out, **options):
    return tdmap.map(data, objects_of, out=out, chunksize=10, resume=True, **options)


def objects_of(chunk):
    return chunk.clone().set("o", [{"n": value} for value in chunk["x"].tolist()])


def numbers_as(value):
    return lambda text: re.sub(rb"(?<=[\s:\[,])-?\d+(?=[,\]}\s])", value.encode(), text)


FORGED = {
    "deep": lambda text: b"[" * 300_000,
    "deep line": lambda text: text.rstrip(b"\n") + b"\n" + b'{"chunk":' * 100_000,
    **{value: numbers_as(value) for value in ("1e999", "NaN", "-1", "1180591620717411303424", "null", "[]", '"x"')},
}


@pytest.mark.parametrize("how", FORGED)
@pytest.mark.parametrize("name", ["map", "cache", "map in place", "rows by shards", "objects"])
def test_facts_that_are_forged_are_an_error_of_this_library(tmp_path, name, how):
    """Whatever JSON each file holds, by `tdmap status` and by the call that goes on."""
    run = {"rows by shards": rows_by_shards, "objects": with_objects, **EVERY}[name]
    out = prepare(name, tmp_path)
    with contextlib.suppress(InterruptedError):
        run(make(), out, num_workers=0, callbacks=[Stop()])
    hidden = [file for file in (out / ".tdmap").rglob("*") if file.is_file() and "data" not in file.parts]
    for file in (file.relative_to(out) for file in hidden):
        if file.suffix in (".json", ".jsonl") or file.name.isdecimal():
            copy = shutil.copytree(out, tmp_path / f"forged {file.name}")
            for ask in (read_status, lambda copy: quietly(lambda: run(make(), copy, num_workers=0))):
                (copy / file).write_bytes(FORGED[how]((out / file).read_bytes()))
                with contextlib.suppress(tdmap.errors.TdmapError, DatasetError, FileExistsError, FileNotFoundError):
                    ask(copy)


@pytest.mark.parametrize("value", [None, [], {"a": 1}, 0.5])
def test_a_decision_that_is_forged_is_an_error_that_names_the_journal(tmp_path, value):
    out = begun("map", tmp_path)
    with open(out / ".tdmap" / "journal", "ab") as file:
        file.write(log.framed(b"N" + json.dumps(["seed 0", value]).encode()))
    for ask in (lambda: read_status(out), lambda: quietly(lambda: RESUMABLE["map"](make(), out, num_workers=0))):
        with pytest.raises(UntrustedFile, match="journal"):
            ask()


@pytest.mark.parametrize("how", FORGED)
def test_the_header_of_a_journal_that_is_forged_is_an_error_of_this_library(tmp_path, how):
    out = begun("map", tmp_path)
    path, head = out / ".tdmap" / "journal", len(log.MAGIC)
    data = path.read_bytes()
    length = int.from_bytes(data[head : head + 4], "little")
    text = b"H" + FORGED[how](data[head + 9 : head + 8 + length])
    forged = data[:head] + log.framed(text) + data[head + 8 + length :]
    for ask in (lambda: read_status(out), lambda: quietly(lambda: RESUMABLE["map"](make(), out, num_workers=0))):
        path.write_bytes(forged)
        with contextlib.suppress(UntrustedFile, ResumeMismatch):
            try:
                ask()
            except ValueError as error:
                assert "version" in str(error)


def test_states_are_read_with_as_much_memory_as_they_have(tmp_path, monkeypatch):
    """Where the address space is limited, a buffer as large as the free memory is an error."""
    monkeypatch.setattr(history, "available_memory", lambda: 1 << 60)
    for name in ("flat_map", "reduce"):
        out = begun(name, tmp_path / name)
        RESUMABLE[name](make(), out, num_workers=0)


def times_in(folder: Path) -> None:
    (folder / "t.csv").write_text("day,x\n" + "".join(f"2024-01-{1 + n % 28:02d},{n}\n" for n in range(60)))
    tdmap.datasets.read(folder / "t.csv", folder / "src")


@pytest.mark.filterwarnings("ignore::tdmap.errors.AlreadyComplete")
def test_types_of_columns_are_not_written_through_a_link(tmp_path):
    times_in(tmp_path)

    def call() -> None:
        tdmap.filter(
            tdmap.open(tmp_path / "src"), tdmap.col("x") > 30, out=tmp_path / "out", resume=True, num_workers=0
        )

    call()
    outside = tmp_path / "outside"
    outside.mkdir()
    for kind in ("link", "dangling link"):
        planted = Planted(kind, tmp_path / "out" / "columns.json", outside)
        with contextlib.suppress(tdmap.errors.TdmapError, OSError):
            call()
        assert planted.has_done_no_harm()


# -- who owns a file ------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(("name", "file"), [("map", "journal"), ("reduce", "states-0"), ("map in place", "done")])
def test_files_of_another_user_are_looked_at_only(tmp_path, name, file):
    out = begun(name, tmp_path)
    os.chown(out / ".tdmap" / file, 12345, 12345)
    with pytest.raises(UntrustedFile, match="belongs to user 12345, and not to you"):
        EVERY[name](make(), out, num_workers=0)
    assert read_status(out).state == "interrupted"
    assert not [path for path in (out / ".tdmap").iterdir() if path.name.startswith("owner-")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_hidden_folder_of_another_user_is_not_used(tmp_path):
    (tmp_path / "out" / ".tdmap").mkdir(parents=True)
    os.chown(tmp_path / "out" / ".tdmap", 12345, 12345)
    with pytest.raises(UntrustedFile, match="belongs to user 12345"):
        tdmap.map(make(), same, out=tmp_path / "out", num_workers=0)


def test_a_file_system_whose_files_all_belong_to_somebody_is_fine(tmp_path, monkeypatch):
    """As on a share that is mounted for everybody: what counts is whom a new file belongs to."""
    out = begun("reduce", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert RESUMABLE["reduce"](make(), out, num_workers=0) == int(make()["x"].sum())


# -- what would run ---------------------------------------------------------------------------------------------


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("pickled", [pickle.dumps, pack])
@pytest.mark.parametrize("name", ["reduce", "flat_map"])
def test_a_planted_pickle_is_not_run(tmp_path, name, pickled):
    out, mark = begun(name, tmp_path), tmp_path / "pwned"
    if name == "reduce":
        (out / ".tdmap" / "states-0").write_bytes(log.framed(pickled([(0, 1, Evil(mark))])))
    else:
        with open(out / ".tdmap" / "journal", "ab") as file:
            file.write(log.framed(history.CHUNKS.pack(b"C", 0, 0, 1, 10, 0) + pickled([Evil(mark)])))
    with contextlib.suppress(UntrustedFile) if name == "reduce" else contextlib.nullcontext():
        found = RESUMABLE[name](make(), out, num_workers=0)
        assert found == int(make()["x"].sum()) if name == "reduce" else found["x"].tolist() == [*range(0, 60, 3)]
    assert not mark.exists()


@pytest.mark.parametrize("file", ["../../../outside/secret", "/etc/passwd", "spill-x/../../secret", "journal"])
def test_pieces_do_not_lie_outside_of_their_folder(tmp_path, file):
    out = begun("flat_map", tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(PRECIOUS)
    schema = TensorDict({"x": torch.zeros(0, dtype=torch.int64)}, [0])
    from tdmap.data.schema import Schema

    pieces = [(SpilledRows(2, Schema(schema).digest, file, 0, {}, Schema(schema)),)] * 6
    with open(out / ".tdmap" / "journal", "ab") as frames:
        frames.write(log.framed(history.CHUNKS.pack(b"C", 0, 0, 6, 60, 0) + pack(pack_pieces(pieces))))
    assert torch.equal(RESUMABLE["flat_map"](make(), out, num_workers=0)["x"], torch.arange(0, 60, 3))


# -- nothing leaves the folder -----------------------------------------------------------------------------------


def test_a_dataset_that_is_being_made_is_not_written_through_links(tmp_path):
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (out / ".tdmap").mkdir(parents=True)
    (out / ".tdmap" / "data").symlink_to(outside)
    assert torch.equal(tdmap.map(make(), same, out=out, num_workers=0)["x"], make()["x"])
    assert os.listdir(outside) == [] and not (out / ".tdmap").exists()


@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_a_move_that_nobody_has_begun_removes_nothing(tmp_path, name):
    """A hidden folder that says that a dataset is on its way, beside files of the user's of the same names."""
    out = tmp_path / "out"
    TensorDict({"src": {"x": torch.arange(3)}}, [3]).memmap(out / ".tdmap" / "data")
    (out / ".tdmap" / "moving").touch()
    (out / "src").mkdir()
    (out / "src" / "thesis.txt").write_bytes(PRECIOUS)
    with pytest.raises(FileExistsError, match=r"not empty \(src"):
        OUT_OF_PLACE[name](make(), out, num_workers=0)
    assert (out / "src" / "thesis.txt").read_bytes() == PRECIOUS


@pytest.mark.parametrize("name", ["filter", "flat_map", "permute", "write here"])
def test_files_between_two_jobs_are_private_and_have_no_name_that_is_known(tmp_path, name):
    found = set()

    class Look(tdmap.events.Callback):
        def on_job_ended(self, event):
            paths = list((tmp_path / "out" / ".tdmap").glob("spill-*"))
            assert all(path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600) for path in paths)
            found.update(path.name[: len("spill-") + 16] for path in paths)

    for _ in range(2):
        OUT_OF_PLACE[name](make(), tmp_path / "out", num_workers=0, callbacks=[Look()])
        for path in sorted((tmp_path / "out").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert len(found) == 2 and all(re.fullmatch("spill-[0-9a-f]{16}", name) for name in found)


def test_files_of_a_run_that_can_be_gone_on_with_are_private(tmp_path):
    found = set()

    class Look(tdmap.events.Callback):
        def on_lease_done(self, event):
            for path in (tmp_path / "out" / ".tdmap").glob("spill-*"):
                assert path.stat().st_mode & 0o777 == 0o600
                found.add(path.name)

    RESUMABLE["flat_map"](make(), tmp_path / "out", num_workers=0, callbacks=[Look()])
    assert found and all(len(name.split("-")) == 4 for name in found)


# -- an entry of the same name ----------------------------------------------------------------------------------


def with_hidden_key(data: TensorDict) -> TensorDict:
    return TensorDict({**dict(data.items()), ".tdmap": {"z": data["x"]}}, data.batch_size)


@pytest.mark.parametrize("name", [*OUT_OF_PLACE, *(f"{name}, resumed" for name in RESUMABLE)])
def test_an_entry_in_place_of_the_hidden_folder_is_refused_before_the_run(tmp_path, name, monkeypatch):
    from . import operations

    plain, resumed = name.removesuffix(", resumed"), name.endswith(", resumed")
    if plain.startswith(("reduce", "unique", "value_counts", "group_by.", "Pipeline.")) and plain != "group_by.top_k":
        pytest.skip("its result has the entries that the call names")
    rows = []
    for fn in ("same", "kept"):
        real = getattr(operations, fn)

        def counted(chunk, real=real):
            rows.append(len(chunk))
            return with_hidden_key(real(chunk)) if ".tdmap" not in chunk.keys() else real(chunk)

        monkeypatch.setattr(operations, fn, counted)
    operation = (RESUMABLE if resumed else OUT_OF_PLACE)[plain]
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"'\.tdmap' has the name of the folder"):
        operation(with_hidden_key(make()), tmp_path / "out", num_workers=0)
    assert sum(rows) <= (40 if name == "cache here" else 15)  # one chunk or group; a stream is ahead by some more
    assert not (tmp_path / "out" / "meta.json").exists()


def test_an_entry_in_place_of_the_hidden_folder_of_a_dataset_in_place(tmp_path):
    data = with_hidden_key(make()).memmap(tmp_path / "data")
    for run in (
        lambda: tdmap.map(data, lambda c: None, out=data, resume=True, num_workers=0),
        lambda: tdmap.map(make(), same, out=data, resume=True, num_workers=0),
    ):
        with pytest.raises(tdmap.errors.OutputMismatch, match="has the name of the folder"):
            run()
    assert sorted(os.listdir(tmp_path / "data" / ".tdmap")) == ["meta.json", "z.memmap"]


def test_a_tensor_of_that_name_is_an_entry_like_others(tmp_path):
    data = TensorDict({".tdmap": torch.arange(9)}, [9])
    assert torch.equal(tdmap.map(data, same, out=tmp_path / "out", num_workers=0)[".tdmap"], torch.arange(9))


def test_a_cache_of_another_pipeline_says_so_in_plain_text(tmp_path):
    quietly(lambda: RESUMABLE["cache"](make(), tmp_path / "out", num_workers=0))
    note = tmp_path / "out" / ".tdmap" / NOTE
    note.write_text(json.dumps({"source 'x'": "\x1b[2J"}))
    with pytest.raises(ResumeMismatch) as caught:
        RESUMABLE["cache"](make(), tmp_path / "out", num_workers=0)
    assert "\x1b" not in str(caught.value)
    note.write_bytes(b"[" * 100_000)
    with pytest.raises(UntrustedFile, match="does not say of which pipeline it is"):
        RESUMABLE["cache"](make(), tmp_path / "out", num_workers=0)


@pytest.mark.parametrize("leads_to", ["a dataset", "a file", "nothing"])
@pytest.mark.parametrize("name", [*OUT_OF_PLACE, "ingest"])
def test_a_link_in_place_of_the_replacement_is_not_followed(tmp_path, name, leads_to):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    run = pictures_into(tmp_path) if name == "ingest" else OUT_OF_PLACE[name]
    if "cache" in name:
        run = lambda data, out, **o: tdmap.Pipeline(data).map(same).cache(out, overwrite=True).collect(num_workers=0)  # noqa: E731
    run(make(), out, num_workers=0)
    if leads_to == "a dataset":
        make().memmap(elsewhere)
        (elsewhere / "notes.txt").write_bytes(PRECIOUS)
    elif leads_to == "a file":
        elsewhere.write_bytes(PRECIOUS)
    (tmp_path / ".out.tdmap-new").symlink_to(elsewhere)
    before = looks_of(elsewhere) if leads_to != "nothing" else {}
    with pytest.raises(UntrustedFile, match=r"\.out\.tdmap-new is a symbolic link"):
        run(make()[:30], out, num_workers=0, **({} if "cache" in name else {"overwrite": True}))
    assert (looks_of(elsewhere) if os.path.lexists(elsewhere) else {}) == before
    assert out.is_dir() and not out.is_symlink()


def pictures_into(folder: Path):
    """An operation that writes a folder of pictures into `out`."""
    image = pytest.importorskip("PIL.Image")
    (folder / "pictures").mkdir()
    image.new("RGB", (8, 8)).save(folder / "pictures" / "1.png")
    images = importlib.import_module("tdmap.datasets.images")
    return lambda data, out, **o: images.ingest(folder / "pictures", out, size=8, **o)


@pytest.mark.parametrize("name", ["map", "write"])
def test_a_link_in_place_of_the_unfinished_dataset_is_not_followed(tmp_path, name):
    out, elsewhere = begun(name, tmp_path), tmp_path / "elsewhere"
    (out / ".tdmap" / "data").rename(elsewhere)
    (out / ".tdmap" / "data").symlink_to(elsewhere)
    before = looks_of(elsewhere)
    with pytest.raises(UntrustedFile, match="data is a symbolic link"):
        EVERY[name](make(), out, num_workers=0)
    assert looks_of(elsewhere) == before


LOOKS = ("stat", "lstat", "fstat", "listdir", "scandir", "open")


@pytest.mark.parametrize("name", ["map", "filter", "write", "reduce", "map in place"])
def test_one_error_of_the_disk_does_not_forget_a_complete_run(tmp_path, name):
    """A call that looks at a file fails once, each in turn: afterwards the run is still complete."""
    out = prepare(name, tmp_path)
    EVERY[name](make(), out, num_workers=0)
    at, reached = 0, True
    while reached:
        with pytest.MonkeyPatch.context() as patch:
            counter = itertools.count()
            for look in LOOKS:
                patch.setattr(os, look, failing(getattr(os, look), tmp_path, counter, at))
            with contextlib.suppress(OSError, DatasetError):
                quietly(lambda: EVERY[name](make(), out, num_workers=0))
            reached = next(counter) > at
        quietly(lambda: EVERY[name](make(), out, num_workers=0, callbacks=[NothingRuns()]))
        at += 1
    assert at > 10


def failing(call, folder: Path, counter, at: int):
    """The function, whose call number `at` about a file of a folder fails."""

    def wrapped(path, *args, **kwargs):
        is_within = "dir_fd" in kwargs or (isinstance(path, (str, Path)) and str(path).startswith(str(folder)))
        if is_within and next(counter) == at:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return call(path, *args, **kwargs)

    return wrapped
