"""`map(shard=...)`: ranks fill one folder, in any order, killed or not, and the result is that of one program."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.errors import FolderInUse, OutputMismatch, ResumeMismatch, ShardsMissing, UntrustedFile
from tdmap.memory.folderlock import FolderLock
from tdmap.output.outputfolder import OutputFolder
from tdmap.run.status import describe, read_status
from tensordict_lite import TensorDict, is_leaf_nontensor, tensorclass
from tests import interpreters
from tests.processes import forked

ROOT = Path(__file__).resolve().parents[2]
ROWS = 103


@pytest.fixture
def data():
    x = torch.arange(ROWS)
    return TensorDict({"x": x, "nested": {"y": torch.arange(ROWS * 2.0).view(ROWS, 2)}}, [ROWS])


@tensorclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor


def nested(chunk):
    return TensorDict({"a": chunk["x"] * 2, "n": {"b": chunk["nested", "y"] + 1}}, chunk.batch_size)


def noisy(chunk):
    return TensorDict({"a": torch.rand(chunk.batch_size)}, chunk.batch_size)


def words(chunk):
    return TensorDict({"a": chunk["x"], "n": {"s": [f"row {i}" for i in chunk["x"].tolist()]}}, chunk.batch_size)


def pairs(chunk):
    return Pair(chunk["x"], chunk["nested", "y"], batch_size=chunk.batch_size)


def doubled(chunk):
    return TensorDict({"a": chunk["x"] * 2}, chunk.batch_size)


def increment(chunk):
    chunk["x"].add_(1)


KINDS = {"nested": nested, "noisy": noisy, "words": words, "tensorclass": pairs}


def same(a: Any, b: Any) -> bool:
    """Whether two collections have the same type, shape, keys and values."""
    if type(a) is not type(b) or a.batch_size != b.batch_size:
        return False
    mine, theirs = ({key: x.get(key) for key in x.keys(True, True, is_leaf=is_leaf_nontensor)} for x in (a, b))
    return mine.keys() == theirs.keys() and all(_equal(value, theirs[key]) for key, value in mine.items())


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a.tolist() == b.tolist()


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".tdmap" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# -- what comes out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_is_that_of_one_program(data, tmp_path, kind, order):
    fn, out = KINDS[kind], tmp_path / "out"
    alone = tdmap.map(data, fn, out=tmp_path / "alone", chunksize=10, seed=1, num_workers=0)
    for rank in order:
        assert not (out / "meta.json").exists()
        part = tdmap.map(data, fn, out=out, chunksize=10, seed=1, num_workers=2, shard=(rank, 3))
        first = 10 * (11 * rank // 3)
        if kind != "words":  # strings come with the last rank
            assert same(part, alone[first : first + part.shape[0]])
    assert tree(out) == tree(tmp_path / "alone")
    assert same(tdmap.merge_shards(out), alone) and same(TensorDict.load_memmap(out), alone)
    assert not list((out / ".tdmap").glob("rank-*")) and not (out / ".tdmap" / "shared").exists()


@pytest.mark.parametrize(
    "rows, chunksize, dim", [(0, 10, 0), (1, 10, 0), (2, 1, 0), (103, 0, 0), (6, 2, 1), (103, None, 0)]
)
def test_few_rows_single_rows_and_other_dimensions(tmp_path, rows, chunksize, dim):
    shape = (rows,) if dim == 0 else (2, rows)
    data = TensorDict({"x": torch.arange(2 * rows + 2)[: torch.Size(shape).numel()].view(shape)}, shape)

    def fn(chunk):
        return TensorDict({"a": chunk["x"] * 3}, chunk.batch_size)

    out = tmp_path / "out"
    for rank in (3, 1, 0, 2):
        tdmap.map(data, fn, dim, out=out, chunksize=chunksize, num_workers=0, shard=(rank, 4))
    whole = tdmap.merge_shards(out)
    assert whole.batch_size == data.batch_size and torch.equal(whole["a"], data["x"] * 3)


def test_without_out_a_rank_gets_its_own_results(data):
    alone = tdmap.map(data, noisy, chunksize=10, seed=1, num_workers=0)
    parts = [tdmap.map(data.lock_(), noisy, chunksize=10, seed=1, num_workers=2, shard=(r, 3)) for r in range(3)]
    assert torch.equal(torch.cat([part["a"] for part in parts]), alone["a"])
    assert data.map(doubled, num_chunks=2, num_workers=0, shard=(0, 4)) is None  # without rows
    with pytest.raises(ZeroDivisionError) as caught:
        data.map(lambda c: 1 // int((c["x"] != 77).all()), chunksize=10, num_workers=0, shard=(2, 3))
    assert "rows 70:80" in str(caught.value.__notes__)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("resume", [False, True])
def test_ranks_fill_a_dataset_that_there_is(data, tmp_path, in_place, resume):
    data = data.memmap(tmp_path / "data")
    out = data if in_place else TensorDict({"a": torch.zeros(ROWS, dtype=torch.int64)}, [ROWS]).memmap(tmp_path / "out")
    fn, key = (increment, "x") if in_place else (doubled, "a")
    wanted = torch.arange(ROWS) + 1 if in_place else torch.arange(ROWS) * 2
    for rank in (2, 0, 1):
        first, stop = 10 * (11 * rank // 3), min(10 * (11 * (rank + 1) // 3), ROWS)
        before = out[key].clone()
        assert data.map(fn, out=out, chunksize=10, num_workers=2, resume=resume, shard=(rank, 3)) is out
        changed = (out[key] != before).nonzero().flatten().tolist()
        assert set(changed) <= set(range(first, stop)) and len(changed) >= stop - first - 1
    assert torch.equal(out[key], wanted)
    if resume:
        with pytest.warns(tdmap.errors.AlreadyComplete):
            data.map(fn, out=out, chunksize=10, num_workers=0, resume=True, shard=(1, 3))
        with pytest.warns(tdmap.errors.AlreadyComplete):
            data.map(fn, out=out, chunksize=10, num_workers=0, resume=True)
        assert torch.equal(out[key], wanted)


def test_a_part_can_be_mapped_after_the_whole_was_published(data, tmp_path):
    part = data.map(doubled, out=tmp_path / "out", chunksize=10, num_workers=0, shard=(0, 2))
    data.map(doubled, out=tmp_path / "out", chunksize=10, num_workers=0, shard=(1, 2))
    again = part.map(lambda c: c + 1, num_workers=2, chunksize=10)
    assert torch.equal(again["a"], torch.arange(50) * 2 + 1)


# -- what is missing -------------------------------------------------------------------------------------


def test_a_merge_names_what_is_missing(data, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="no run of ranks"):
        tdmap.merge_shards(out)
    assert not out.exists()
    data.map(doubled, out=out, chunksize=10, num_workers=0, shard=(1, 3))
    with pytest.raises(ShardsMissing, match=r"rows 0:30, rows 70:103 are missing. Run ranks 0, 2 of 3 again") as caught:
        tdmap.merge_shards(out)
    assert (caught.value.rows, caught.value.ranks, caught.value.world_size) == (((0, 30), (70, 103)), (0, 2), 3)
    status = read_status(out)
    assert (status.rows_done, status.state) == (40, "interrupted")
    assert status.ranks == [{"rank": 1, "world_size": 3, "state": "complete"}] and status.sessions == 1
    assert "complete: rank 1" in describe(status)
    data.map(doubled, out=out, chunksize=10, num_workers=0, shard=(0, 3))
    data.map(doubled, out=out, chunksize=10, num_workers=0, shard=(2, 3))
    assert read_status(out).state == "complete" and read_status(out).rows_done == ROWS


def test_who_dies_between_the_last_row_and_the_merge_leaves_it_to_others(data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    data.map(words, out=out, chunksize=10, num_workers=0, shard=(0, 2))
    monkeypatch.setattr("tdmap.ranks.running.merge", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        data.map(words, out=out, chunksize=10, num_workers=0, shard=(1, 2))
    assert not (out / "meta.json").exists()
    assert same(tdmap.merge_shards(out), data.map(words, chunksize=10, num_workers=0))


# -- ranks at one moment, killed ranks -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nested", "words"])
def test_ranks_that_begin_at_one_moment(data, tmp_path, kind):
    out = tmp_path / "out"

    def work(rank: int) -> int:
        data.map(KINDS[kind], out=out, chunksize=3, num_workers=0, shard=(rank, 4))
        return 0

    assert forked(work, 4) == [0] * 4
    alone = data.map(KINDS[kind], out=tmp_path / "alone", chunksize=3, num_workers=0)
    assert same(tdmap.merge_shards(out), alone) and tree(out) == tree(tmp_path / "alone")


def _noted(notes: Path) -> list[int]:
    return sorted(int(line) for path in notes.glob("rows-*") for line in path.read_text().split())


@pytest.mark.parametrize("in_place", [False, True])
def test_a_killed_rank_goes_on_and_each_row_is_done_once(data, tmp_path, in_place):
    if in_place:
        data = data.memmap(tmp_path / "data")
    notes = tmp_path / "notes"
    notes.mkdir()

    def fn(chunk):
        rows = chunk["x"].tolist()
        if 55 in rows and not (notes / "killed").exists():
            (notes / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(notes / f"rows-{os.getpid()}", "a") as file:
            file.write("".join(f"{row}\n" for row in rows))
        return TensorDict({"x": chunk["x"] * 1000 + 7}, chunk.batch_size)

    def work(rank: int) -> int:
        out = data if in_place else tmp_path / "out"
        data.map(fn, out=out, resume=True, chunksize=5, num_workers=0, shard=(rank, 3))
        return 0

    codes = forked(work, 3)
    assert codes == [0, -signal.SIGKILL, 0]
    done = _noted(notes)
    assert forked(lambda _: work(1), 1) == [0]
    out = data if in_place else tdmap.merge_shards(tmp_path / "out")
    assert torch.equal(out["x"], torch.arange(ROWS) * 1000 + 7)
    assert set(_noted(notes)) == set(range(ROWS)) > set(done)
    if in_place:  # out of place, what had not been journalled is done again
        assert _noted(notes) == list(range(ROWS))


@pytest.mark.parametrize("looks", range(3))
def test_a_run_that_another_rank_begins_during_a_look_is_gone_on_with(tmp_path, monkeypatch, looks):
    store = OutputFolder(tmp_path / "out")
    store.hidden.mkdir(parents=True)
    seen = []

    def appears(store):
        seen.append(store)
        return len(seen) > looks

    monkeypatch.setattr(OutputFolder, "has_journal", property(appears))
    store.require_free(resume=True)


def test_ranks_of_another_world_size_go_on_with_what_is_done(data, tmp_path):
    out, notes = tmp_path / "out", tmp_path / "notes"

    def fn(chunk):
        with open(notes, "a") as file:
            file.write("".join(f"{row}\n" for row in chunk["x"].tolist()))
        return doubled(chunk)

    for rank in (0, 2):
        data.map(fn, out=out, chunksize=5, num_workers=0, shard=(rank, 4))
    for rank in range(3):
        data.map(fn, out=out, chunksize=5, num_workers=0, shard=(rank, 3))
    assert torch.equal(tdmap.merge_shards(out)["a"], torch.arange(ROWS) * 2)
    assert sorted(map(int, notes.read_text().split())) == list(range(ROWS))


def test_another_world_size_is_refused_while_ranks_are_at_work_and_in_place(data, tmp_path):
    out = tmp_path / "out"
    data.map(doubled, out=out, chunksize=5, num_workers=0, shard=(0, 4))
    with FolderLock(out / ".tdmap" / "rank-2-of-4", "map(doubled)"):
        with pytest.raises(FolderInUse, match=r"being written by rank 2 of 4.*end it before you start rank 0 of 3"):
            data.map(doubled, out=out, chunksize=5, num_workers=0, shard=(0, 3))
        with pytest.raises(FolderInUse, match="rank-2-of-4 is being written"):
            data.map(doubled, out=out, chunksize=5, num_workers=0, shard=(2, 4))
    data = data.memmap(tmp_path / "data")
    data.map(increment, out=data, resume=True, chunksize=5, num_workers=0, shard=(0, 4))
    with pytest.raises(ResumeMismatch, match="4 ranks began.*finish it with world size 4"):
        data.map(increment, out=data, resume=True, chunksize=5, num_workers=0, shard=(0, 3))


TORCHRUN = """
import os, signal
import torch
import tdmap
from tensordict_lite import TensorDict

folder = os.environ["FOLDER"]
data = TensorDict.load_memmap(folder + "/data")

def fn(chunk):
    if 70 in chunk["x"].tolist() and not os.path.exists(folder + "/killed"):
        open(folder + "/killed", "w").close()
        os.kill(os.getppid(), signal.SIGKILL)  # the rank, whose worker this is
    with open(f"{folder}/rows-{os.getpid()}", "a") as file:
        file.write("".join(f"{row}\\n" for row in chunk["x"].tolist()))
    return TensorDict({"a": chunk["x"] * 2, "noise": torch.rand(chunk.batch_size)}, chunk.batch_size)

part = data.map(fn, out=folder + "/out", chunksize=5, seed=1, num_workers=2, mp_start_method="fork", shard="auto")
with open(f"{folder}/rank-{os.environ['RANK']}", "w") as file:
    file.write(str(part.shape[0]))
"""


def test_torchrun_with_a_rank_that_is_killed_and_resumed(data, tmp_path):
    data.memmap(tmp_path / "data")
    (tmp_path / "script.py").write_text(textwrap.dedent(TORCHRUN))

    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "FOLDER": str(tmp_path), "PYTHONPATH": paths}
    ranks = [
        interpreters.Program(["script.py"], cwd=tmp_path, env={**env, "WORLD_SIZE": "2", "RANK": f"{rank}"})
        for rank in range(2)
    ]
    assert [rank.wait(300) for rank in ranks] == [0, -signal.SIGKILL], [rank.communicate() for rank in ranks]
    assert not (tmp_path / "out" / "meta.json").exists()
    with pytest.raises(ShardsMissing):
        tdmap.merge_shards(tmp_path / "out")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    second = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert second.returncode == 0, second.stderr
    whole = tdmap.merge_shards(tmp_path / "out")

    def alone(chunk):
        return TensorDict({"a": chunk["x"] * 2, "noise": torch.rand(chunk.batch_size)}, chunk.batch_size)

    assert same(whole, data.map(alone, chunksize=5, seed=1, num_workers=0))
    assert [int((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)] == [50, 53]


# -- bad input -------------------------------------------------------------------------------------------


def test_another_run_is_refused_with_what_differs(data, tmp_path):
    out = tmp_path / "out"
    data.map(doubled, out=out, chunksize=10, num_workers=0, shard=(0, 3))
    before = tree(out)
    rank = {"out": out, "num_workers": 0, "shard": (1, 3)}
    with pytest.raises(ResumeMismatch, match="function nested, which was doubled, differs in"):
        data.map(nested, chunksize=10, **rank)
    with pytest.raises(ResumeMismatch, match="chunk size was 10, and is 7"):
        data.map(doubled, chunksize=7, **rank)
    with pytest.raises(ResumeMismatch, match="seed was None, and is 3"):
        data.map(doubled, chunksize=10, seed=3, **rank)
    with pytest.raises(ResumeMismatch, match="source's 'x'"):
        data.clone().apply_(lambda x: x + 1).map(doubled, chunksize=10, **rank)
    with pytest.raises(ResumeMismatch, match="it was a run of ranks.*and is one of one program"):
        data.map(doubled, out=out, chunksize=10, num_workers=0, resume=True)
    with pytest.raises(FileExistsError, match="unfinished run"):
        data.map(doubled, out=out, chunksize=10, num_workers=0)
    with pytest.raises(FileExistsError, match="unfinished run"):
        tdmap.filter(data, lambda c: c["x"] > 3, out=out, num_workers=0)
    assert tree(out) == before
    other = tmp_path / "other"
    with pytest.raises(ZeroDivisionError):
        data.map(lambda c: 1 // 0, out=other, chunksize=10, num_workers=0, resume=True)
    with pytest.raises(ResumeMismatch, match="it was a run of one program, and is one of ranks"):
        data.map(lambda c: 1 // 0, out=other, chunksize=10, num_workers=0, shard=(0, 2))


def test_a_run_in_place_is_not_taken_over_by_one_program(data, tmp_path):
    data = data.memmap(tmp_path / "data")
    data.map(increment, out=data, resume=True, chunksize=10, num_workers=0, shard=(0, 2))
    for fn in (increment, lambda c: c["x"].add_(2)):
        with pytest.raises(ResumeMismatch, match="run of ranks"):
            data.map(fn, out=data, resume=True, chunksize=10, num_workers=0)
    assert data["x"][:50].tolist() == list(range(1, 51))
    data.map(increment, out=data, resume=True, chunksize=10, num_workers=0, shard=(1, 2))
    assert data["x"].tolist() == list(range(1, ROWS + 1))


def test_folders_of_others_and_odd_options(data, tmp_path):
    taken = tmp_path / "taken"
    data.memmap(taken)
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        data.map(doubled, out=taken, num_workers=0, shard=(0, 2))
    with pytest.raises(FileExistsError, match="folder of the data"):
        TensorDict.load_memmap(taken).map(doubled, out=taken, num_workers=0, shard=(0, 2))
    assert not (taken / ".tdmap").exists()
    with FolderLock(tmp_path / "held", "map(other)"), pytest.raises(FolderInUse, match=r"map\(other\)"):
        data.map(doubled, out=tmp_path / "held", num_workers=0, shard=(0, 2))
    with pytest.raises(ValueError, match="on_error='drop'"):
        data.map(doubled, out=tmp_path / "out", num_workers=0, shard=(0, 2), on_error="drop")
    for shard in ((2, 2), (0, 0), (0,), (True, 2), 3, "each", (0.5, 2)):
        with pytest.raises(ValueError, match="shard must"):
            data.map(doubled, out=tmp_path / "out", num_workers=0, shard=shard)
    with pytest.raises(ValueError, match="start the program with torchrun"):
        data.map(doubled, out=tmp_path / "out", num_workers=0, shard="auto")
    assert not (tmp_path / "out").exists()


def test_ranks_whose_results_differ_are_told(data, tmp_path):
    def fn(chunk):
        value = chunk["x"] if int(chunk["x"][0]) < 50 else chunk["x"].float()
        return TensorDict({"a": value}, chunk.batch_size)

    def named(chunk):
        extra = {"s": ["x"] * len(chunk)} if int(chunk["x"][0]) >= 50 else {}
        return TensorDict({"a": chunk["x"], **extra}, chunk.batch_size)

    for number, bad in enumerate((fn, named)):
        out = tmp_path / str(number)
        data.map(bad, out=out, chunksize=10, num_workers=0, shard=(0, 2))
        with pytest.raises(OutputMismatch):
            data.map(bad, out=out, chunksize=10, num_workers=0, shard=(1, 2))
        with pytest.raises(ShardsMissing):
            tdmap.merge_shards(out)


def test_strings_into_a_dataset_that_there_is_are_refused(data, tmp_path):
    out = data.map(words, out=tmp_path / "out", num_workers=0)
    with pytest.raises(OutputMismatch, match="non-tensor entries.*out='folder'"):
        data.map(words, out=out, num_workers=0, resume=True, shard=(0, 2))


def test_skipped_rows_of_all_ranks_are_told(data, tmp_path):
    def fn(chunk):
        if chunk["x"].remainder(20).eq(3).any():
            raise ValueError("three")
        return doubled(chunk)

    out = tmp_path / "out"
    for rank in range(2):
        with pytest.warns(tdmap.errors.SkippedRows):
            data.map(fn, out=out, chunksize=10, num_workers=0, shard=(rank, 2), on_error="skip")
    assert [bad["row"] for bad in read_status(out).skipped] == [3, 23, 43, 63, 83]
    assert torch.equal(TensorDict.load_memmap(out)["a"][[2, 3, 63, 64]], torch.tensor([4, 0, 0, 128]))


@pytest.mark.parametrize("first", [0, 50])
def test_a_rank_on_which_every_row_fails_is_an_error(data, tmp_path, first):
    def fn(chunk):
        if int(chunk["x"][0]) >= first:
            raise ValueError("late")
        return doubled(chunk)

    for rank in range(2):
        with contextlib.nullcontext() if first and not rank else pytest.raises(ValueError, match="late"):
            data.map(fn, out=tmp_path / "out", chunksize=10, num_workers=0, shard=(rank, 2), on_error="skip")
    if not first:
        with pytest.raises(ShardsMissing, match="raised on every row of every rank"):
            tdmap.merge_shards(tmp_path / "out")


@pytest.mark.parametrize("name", ["rank-1-of-2", "ranks.lock", "shared", "columns.json"])
def test_links_in_the_hidden_folder_are_not_followed(data, tmp_path, name):
    out, target = tmp_path / "out", tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("{}")
    data.map(doubled, out=out, chunksize=10, num_workers=0, shard=(0, 2))
    path = out / ".tdmap" / name
    if path.is_dir():
        path.rename(tmp_path / "moved")
    elif path.exists():
        path.unlink()
    path.symlink_to(target if name in ("rank-1-of-2", "shared") else target / "file")
    with pytest.raises((UntrustedFile, ShardsMissing, OSError)):
        data.map(doubled, out=out, chunksize=10, num_workers=0, shard=(1, 2))
        tdmap.merge_shards(out)
    assert sorted(os.listdir(target)) == ["file"] and (target / "file").read_text() == "{}"


class Appears:
    """Makes a folder right after the program has found, for the ``number``-th time, that it is not there."""

    def __init__(self, folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.left = folder, number
        for name in ("stat", "lstat", "listdir", "open"):
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name)))

    def wrapped(self, call):
        def looked(path, *args, **kwargs):
            try:
                return call(path, *args, **kwargs)
            except FileNotFoundError:
                if self.left and isinstance(path, (str, Path)) and Path(path) == self.folder:
                    self.left -= 1
                    if not self.left:
                        self.folder.mkdir()
                raise

        return looked


@pytest.mark.parametrize("shard", [None, (0, 1)], ids=["one program", "ranks"])
def test_another_program_makes_the_folder_at_any_moment(tmp_path, data, shard):
    for number in range(1, 100):
        with pytest.MonkeyPatch.context() as patches:
            appears = Appears(tmp_path / str(number), number, patches)
            tdmap.map(data, doubled, out=appears.folder, shard=shard, num_workers=0)
        assert TensorDict.load_memmap(appears.folder)["a"].tolist() == (data["x"] * 2).tolist()
        if appears.left:
            break
    assert 1 < number < 99
