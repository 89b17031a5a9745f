"""DatasetWriter: rows appended by one or many processes, seen when committed, kept through crashes."""

import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import (
    DatasetError,
    DatasetWriter,
    NonTensorData,
    NonTensorStack,
    Ragged,
    TensorClass,
    TensorDict,
    load_memmap,
    tensorclass,
)
from tensordict_lite.memmap import tuning
from tensordict_lite.memmap import writer as writer_module
from tests.descriptors import descriptors
from tests.mounts import mounted, needs_root
from tests.processes import kill_at

SCHEMA = {
    "x": ((3,), torch.float32),
    "pairs": Ragged(torch.empty((0, 2), dtype=torch.int32), torch.zeros(1, dtype=torch.int64)),
    "n": {"id": ((), torch.int64), "flag": ((2,), torch.bool), "text": str, "raw": bytes},
    "chat": Ragged.from_objects([[]]),
}


def rows(start: int, count: int) -> TensorDict:
    """Rows whose content follows from their number, so that a mixed-up one shows."""
    ids = torch.arange(start, start + count)
    x = ids[:, None] * torch.ones(3)
    inner = {"id": ids, "flag": (ids % 2 == 0)[:, None].expand(-1, 2)}
    entries = {name: ragged(name, ids.tolist()) for name in ("pairs", "chat")}
    inner.update({name: ragged(name, ids.tolist()) for name in ("text", "raw")})
    return TensorDict({"x": x, **entries, "n": inner}, [count])


def ragged(name: str, ids: list[int]) -> Ragged:
    if name == "pairs":
        return Ragged.from_list([torch.full((i % 4, 2), i, dtype=torch.int32) for i in ids])
    if name == "raw":
        return Ragged.from_list([bytes([i % 256]) * (i % 3) for i in ids])
    if name == "text":
        return Ragged.from_list(["", *(None if i % 5 == 3 else "\u00e9" * (i % 3) + str(i) for i in ids)])[1:]
    return Ragged.from_objects([{"id": i, "said": [None, "x"] * (i % 3)} for i in ids])


def check_rows(data: TensorDict) -> list[int]:
    ids = data["n", "id"]
    assert torch.equal(data["x"], ids[:, None] * torch.ones(3))
    assert torch.equal(data["n", "flag"], (ids % 2 == 0)[:, None].expand(-1, 2))
    for key in ("pairs", "chat", ("n", "text"), ("n", "raw")) if len(ids) else ():
        column = data.get(key)
        expected = ragged(key if isinstance(key, str) else key[-1], ids.tolist())
        assert column.kind == expected.kind and column.tolist() == expected.tolist(), key
    return ids.tolist()


def test_readers_see_committed_rows_only(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        assert TensorDict.load_memmap(tmp_path / "d").batch_size == (0,)
        assert writer.append(rows(0, 5)) == 5 and len(writer) == 0
        assert writer.flush() == 5
        early = TensorDict.load_memmap(tmp_path / "d")
        writer.append(rows(5, 1)[0])
        writer.flush()
        assert check_rows(early) == [0, 1, 2, 3, 4]
        assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == [0, 1, 2, 3, 4, 5]
        assert TensorDict.load_memmap(tmp_path / "d" / "n").batch_size == (6,)
        writer.append(rows(6, 1))
    assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == list(range(7))


def test_finalize_gives_an_ordinary_dataset(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "d", rows(0, 1), capacity=1000)
    writer.append(rows(0, 10))
    inode = os.stat(tmp_path / "d" / "x.memmap").st_ino
    assert os.path.getsize(tmp_path / "d" / "x.memmap") == 12_000
    done = writer.finalize()
    assert check_rows(done) == list(range(10))
    assert os.path.getsize(tmp_path / "d" / "x.memmap") == 120
    assert os.stat(tmp_path / "d" / "x.memmap").st_ino == inode  # no copy
    with tuning.use(text_rows=1):
        rows(0, 10).memmap(tmp_path / "plain")
    for file in (tmp_path / "plain").rglob("*"):
        if file.is_file():
            assert file.read_bytes() == (tmp_path / "d" / file.relative_to(tmp_path / "plain")).read_bytes()
    names, plain = ({str(p.relative_to(tmp_path / d)) for p in (tmp_path / d).rglob("*")} for d in ("d", "plain"))
    assert names == plain
    with pytest.raises(ValueError, match="closed"):
        writer.append(rows(0, 1))
    with DatasetWriter(tmp_path / "d") as again:
        again.append(rows(10, 2))
    assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == list(range(12))


def test_growth_beyond_the_capacity(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", SCHEMA, capacity=4) as writer:
        total = 0
        for count in (3, 1, 700, 1, 5000, 2):
            writer.append(rows(total, count))
            total += count
            assert writer.flush() == total
    assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == list(range(total))


def test_large_batches_are_not_kept_in_memory(tmp_path: Path) -> None:
    with tuning.use(buffer_bytes=1000), DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        assert writer.append(rows(0, 3)) == 3
        assert writer.append(rows(3, 500)) == 0 and len(writer) == 503
        for i in range(503, 600):
            writer.append(rows(i, 1)[0])
        assert len(writer) > 503
    assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == list(range(600))


def test_rows_may_be_changed_after_append(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        row = rows(0, 1)[0]
        writer.append(row)
        row["x"].fill_(9)
    assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == [0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda r: r.exclude("x"), r"no entry \('x',\)"),
        (lambda r: TensorDict({**dict(r.items()), "more": torch.zeros(2)}, [2]), r"lacks: \[\('more',\)\]"),
        (lambda r: TensorDict({**dict(r.items()), "x": torch.zeros(2, 4)}, [2]), r"\('x',\).*shape \[2, 3\].*\[2, 4\]"),
        (lambda r: TensorDict({**dict(r.items()), "x": torch.zeros(2, 3).double()}, [2]), "float32.*float64"),
        (lambda r: r.unsqueeze(0), r"got \[1, 2\]"),
        (lambda r: {"x": 1}, "got a dict"),
        (lambda r: r.set("pairs", Ragged.from_list([[1], [2]])), r"rows of int32 \[\*, 2\], got rows of int64 \[\*\]"),
        (lambda r: r.set("pairs", torch.ones(2, 2)), r"\('pairs',\) should be .*, got a tensor of torch.float32"),
        (lambda r: r.exclude("pairs"), r"no entry \('pairs',\)"),
        (lambda r: r.set(("n", "text"), Ragged.from_list([b"a", b"b"])), "rows of str, got rows of bytes"),
        (lambda r: r.set(("n", "raw"), ["a", "b"]), r"\('n', 'raw'\) should be rows of bytes, got"),
        (lambda r: r.set(("n", "text"), NonTensorStack(1, 2)), "rows of str, got a NonTensorStack of other objects"),
        (lambda r: r.set("chat", NonTensorStack({1}, {2})), "rows of json: JSON cannot represent row 0"),
        (lambda r: r.set("more", Ragged.from_list(["a", "b"])), r"non-tensor entry \('more',\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_the_rest_stays(tmp_path: Path, bad: Any, message: str) -> None:
    with DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        writer.append(rows(0, 2))
        with pytest.raises(ValueError, match=message):
            writer.append(bad(rows(2, 2)))
        writer.append(rows(2, 2))
    assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == [0, 1, 2, 3]


def test_object_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    def row(**objects: Any) -> TensorDict:
        return TensorDict({"x": torch.ones(2), **objects})

    with DatasetWriter(tmp_path / "d", row(note="a", more={"k": NonTensorData((1, 2))})) as writer:
        for good in (row(), row(note="a"), row(more={"k": NonTensorData((1, 2))}), row(note="a").expand(3)):
            writer.append(good)
        with pytest.raises(ValueError, match="one object for all rows.*'a'.*'b'.*tensor"):
            writer.append(row(note="b"))
        with pytest.raises(ValueError, match="one object for all rows"):
            writer.append(TensorDict({"x": torch.ones(2, 2), "note": NonTensorStack("a", "b")}, [2]))
        with pytest.raises(ValueError, match=r"non-tensor entry \('other',\)"):
            writer.append(row(other="a"))
    data = TensorDict.load_memmap(tmp_path / "d")
    assert tuple(data.batch_size) == (6,) and data["note"] == "a"


def test_opening_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="example"):
        DatasetWriter(tmp_path / "none")
    DatasetWriter(tmp_path / "d", SCHEMA).close()
    with pytest.raises(ValueError, match="does not fit the example"):
        DatasetWriter(tmp_path / "d", {"y": ((), torch.int8)})
    with pytest.raises(ValueError, match=r"\(shape, dtype\)"):
        DatasetWriter(tmp_path / "e", {"y": 3})
    with pytest.raises(OSError, match="bytes are needed"):
        DatasetWriter(tmp_path / "f", SCHEMA, capacity=1 << 45)
    assert not (tmp_path / "f").exists()
    with pytest.raises(ValueError, match="'y' should be .*, str, bytes or a Ragged, got <class 'int'>"):
        DatasetWriter(tmp_path / "e", {"x": str, "y": int})


class Sample(TensorClass):
    x: torch.Tensor
    label: torch.Tensor


def test_tensorclass_rows(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", Sample(torch.zeros(2), torch.tensor(0))) as writer:
        for i in range(3):
            writer.append(Sample(torch.full((2,), float(i)), torch.tensor(i)))
    out = DatasetWriter(tmp_path / "d").finalize()
    assert type(out) is Sample and out.label.tolist() == [0, 1, 2] and out.x[2].tolist() == [2, 2]


def test_an_error_in_the_block_commits_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        writer.append(rows(0, 2))
        raise KeyError
    assert TensorDict.load_memmap(tmp_path / "d").batch_size == (0,)


def fork(work: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return child


def test_many_processes_append_while_others_read(tmp_path: Path) -> None:
    path = tmp_path / "d"

    def write(number: int) -> None:
        writer = DatasetWriter(path, SCHEMA)
        for k in range(25):
            writer.append(rows(number * 1000 + k * 4, 4))
            writer.flush()

    children = [fork(lambda n=n: write(n)) for n in range(4)]
    seen = 0
    while children:
        try:
            data = TensorDict.load_memmap(path)
        except FileNotFoundError:
            data = None
        if data is not None:
            ids = check_rows(data)
            assert len(ids) >= seen and len(set(ids)) == len(ids)
            seen = len(ids)
        for child in list(children):  # by number: workers of other tests may end meanwhile
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                assert status == 0
                children.remove(pid)
    ids = check_rows(TensorDict.load_memmap(path))
    assert sorted(ids) == sorted(n * 1000 + i for n in range(4) for i in range(100))
    for n in range(4):  # rows of one writer keep their order, and a flush stays together
        own = [i for i in ids if i // 1000 == n]
        assert own == sorted(own)
    assert all(ids[k + 1] == ids[k] + 1 for k in range(0, 400, 4))


@needs_root
def test_full_disk_keeps_what_was_committed_and_what_waits(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "none") as disk:
        (disk / "ballast").write_bytes(bytes(500_000))
        writer = DatasetWriter(disk / "d", SCHEMA)
        count = 0
        with pytest.raises(OSError, match=r"[\d,]+ bytes are needed and [\d,]+ are available.*disk/d/.*memmap"):
            for count in range(0, 100_000, 1000):
                writer.append(rows(count, 1000))
                writer.flush()
        assert count > 3000  # room for what is needed, where there is none for twice as much
        assert check_rows(TensorDict.load_memmap(disk / "d")) == list(range(count))
        os.unlink(disk / "ballast")
        assert writer.flush() == count + 1000
        assert check_rows(writer.finalize()) == list(range(count + 1000))


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", SCHEMA) as writer, ThreadPoolExecutor(8) as pool:

        def add(number: int) -> None:
            writer.append(rows(number * 10, 10))
            if number % 3 == 0:
                writer.flush()

        list(pool.map(add, range(100)))
    assert sorted(check_rows(TensorDict.load_memmap(tmp_path / "d"))) == list(range(1000))


def test_dropped_writer_gives_its_files_back(tmp_path: Path) -> None:
    gc.collect()
    writer = DatasetWriter(tmp_path / "d", SCHEMA)
    writer.append(rows(0, 5))
    writer.flush()
    assert descriptors(tmp_path)
    del writer
    gc.collect()
    assert not descriptors(tmp_path)


def test_a_writer_travels_as_its_path_and_forks_without_its_rows(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "d", SCHEMA)
    writer.append(rows(0, 2))
    other = pickle.loads(pickle.dumps(writer))
    other.append(rows(10, 1))
    other.close()
    child = fork(lambda: (writer.append(rows(20, 1)), writer.close()))
    assert os.waitpid(child, 0)[1] == 0
    writer.close()
    assert check_rows(TensorDict.load_memmap(tmp_path / "d")) == [10, 20, 0, 1]


LONG = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("kills", "seed"), [(60, 0), pytest.param(5000, 1, marks=LONG)])
def test_writers_killed_at_random_lose_uncommitted_rows_only(tmp_path: Path, kills: int, seed: int) -> None:
    """After each kill, the dataset must be a prefix-closed log of whole flushes."""
    path, chance = tmp_path / "d", random.Random(seed)
    committed: list[int] = []
    for kill in range(kills):
        report_read, report_write = os.pipe()

        def write(start: int = kill * 1000, out: int = report_write) -> None:
            writer = DatasetWriter(path, SCHEMA)
            for k in range(500):
                writer.append(rows(start + k * 3, 3))
                writer.flush()
                os.write(out, b"x")  # three more rows are promised to survive

        child = fork(write)
        os.close(report_write)
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        promised = 0
        while chunk := os.read(report_read, 4096):
            promised += 3 * len(chunk)
        os.close(report_read)
        try:
            ids = check_rows(TensorDict.load_memmap(path))
        except FileNotFoundError:
            assert not committed and not promised
            continue
        assert ids[: len(committed)] == committed
        new = ids[len(committed) :]
        assert len(new) in (promised, promised + 3)
        assert new == list(range(kill * 1000, kill * 1000 + len(new)))
        committed = ids


KINDS: dict[str, Callable[[int, int], Any]] = {
    "flat": lambda first, count: TensorDict({"x": torch.arange(first, first + count)}, [count]),
    "deep": lambda first, count: TensorDict(
        {"a": {"b": {"x": torch.arange(first, first + count)}, "y": torch.ones(count, 5)}}, [count]
    ),
    "ragged": lambda first, count: TensorDict(
        {"x": torch.arange(first, first + count), "in": {"t": ragged("text", [*range(first, first + count)])}}, [count]
    ),
    "tensorclass": lambda first, count: Grown(
        x=torch.arange(first, first + count), inner=TensorDict({"y": torch.ones(count, 5)}, [count]), batch_size=[count]
    ),
}


@tensorclass
class Grown:
    x: torch.Tensor
    inner: TensorDict


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stay_after_a_killed_finalize_and_a_killed_append(kind: str, tmp_path: Path) -> None:
    """Each step of metadata of the first, and the last step but one of the second: its rows lie in the files."""
    make, steps = KINDS[kind], [(writer_module, "_replace_json")]

    def append(path: Path) -> None:
        writer = DatasetWriter(path)
        writer.append(make(10, 3))
        writer.flush()

    number, killed = 0, True
    while killed:
        number += 1
        path = tmp_path / f"{number}"
        with DatasetWriter(path, make(0, 1) if kind == "ragged" else make(0, 1)[0]) as writer:
            writer.append(make(0, 10))
        killed = kill_at(number, lambda path=path: DatasetWriter(path).finalize(), steps)
        assert len(load_memmap(path)) == 10
        for at in range(1, 9):
            if not kill_at(at, lambda path=path: append(path), steps):
                break
            assert len(load_memmap(path)) in (10, 13) and len(DatasetWriter(path)) == len(load_memmap(path))
        rows = load_memmap(path)
        assert DatasetWriter(path).finalize().batch_size == rows.batch_size
        assert (rows == make(0, len(rows))).all()


def test_a_writer_that_nobody_closed_is_quiet_at_exit(tmp_path):
    script = (
        "import sys, torch\n"
        "from tensordict_lite import DatasetWriter, TensorDict\n"
        "writer = DatasetWriter(sys.argv[1], TensorDict({'x': torch.zeros(3)}, []))\n"
        "writer.append(TensorDict({'x': torch.ones(3)}, []))\n"
        "writer.itself = writer\n"  # a cycle, so that it is collected when modules are gone
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stderr) == (0, "")
