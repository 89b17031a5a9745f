"""Programs that are started or written in unusual ways: from standard input, as a zipapp, around an event loop, in a
memory group that is too small, beside a process that appends to the data."""

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
import zipapp
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tdmap
from tensordict_lite import DatasetWriter, TensorDict
from tests import interpreters

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
    import sys, torch, tdmap
    from tensordict_lite import TensorDict

    scale = 3

    def times(chunk):
        return TensorDict({"x": chunk["x"] * scale}, chunk.batch_size)

    if __name__ == "__main__":
        data = TensorDict({"x": torch.arange(10)}, [10])
        for method in sys.argv[1:]:
            options = dict(num_workers=1, mp_start_method=method, chunksize=2)
            assert tdmap.map(data, times, **options)["x"].tolist() == [*range(0, 30, 3)]
            assert tdmap.map(data, times, out=method, resume=True, **options)["x"].sum() == 135
        print("done")
"""


def run(arguments: list[str], folder: Path, stdin: str | None = None) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *arguments], input=stdin, cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_script_from_standard_input(tmp_path: Path) -> None:
    run(["-", "fork", "spawn"], tmp_path, textwrap.dedent(PROGRAM))


def test_a_zipapp(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(textwrap.dedent(PROGRAM))
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    run(["app.pyz", "fork", "forkserver"], tmp_path)


def test_inside_an_event_loop() -> None:
    data = TensorDict({"x": torch.arange(100)}, [100])
    entered, go_on = threading.Event(), threading.Event()

    def wait(chunk: TensorDict) -> TensorDict:
        entered.set()
        go_on.wait(300)
        return chunk * 2

    async def main() -> None:
        assert tdmap.map(data, lambda c: c * 2, num_workers=2)["x"].sum() == 9900
        calls = [asyncio.to_thread(tdmap.map, data, lambda c: c * 2, num_workers=1) for _ in range(3)]
        assert [int(result["x"].sum()) for result in await asyncio.gather(*calls)] == [9900] * 3

        task = asyncio.create_task(asyncio.to_thread(tdmap.map, data, wait, num_workers=1, executor="thread"))
        await asyncio.to_thread(entered.wait, 300)
        task.cancel()  # the thread goes on: its end must do no harm
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

        chunks = tdmap.map_iter(data, lambda c: c, num_workers=1, chunksize=30)
        rows = 0
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            rows += len(chunk)
        assert rows == 100

    asyncio.run(main())


def test_rows_that_another_process_appends_meanwhile_do_not_count(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", TensorDict({"x": torch.tensor(0)}, [])) as writer:
        writer.append(TensorDict({"x": torch.arange(50)}, [50]))
    data = TensorDict.load_memmap(tmp_path / "data")
    append = f"""
import itertools, os, time, torch
from tensordict_lite import DatasetWriter, TensorDict
with DatasetWriter({str(tmp_path / "data")!r}) as writer:
    for start in itertools.count(50, 50):
        if os.path.exists({str(tmp_path / "enough")!r}):
            break
        writer.append(TensorDict({{"x": torch.arange(start, start + 50)}}, [50]))
        time.sleep(0.005)
"""
    child = interpreters.Program(["-c", append])
    try:
        for _ in range(2):
            for options in ({"num_workers": 2}, {"num_workers": 2, "mp_start_method": "spawn"}, {"executor": "thread"}):
                assert tdmap.map(data, lambda c: c, **options)["x"].tolist() == [*range(50)]
            now = TensorDict.load_memmap(tmp_path / "data")  # whole appends, never a part of one
            rows = len(now)
            assert rows % 50 == 0 and tdmap.map(now, lambda c: c, num_workers=2)["x"].tolist() == [*range(rows)]
    finally:
        (tmp_path / "enough").touch()
        child.wait(300)
    assert child.returncode == 0 and len(TensorDict.load_memmap(tmp_path / "data")) >= rows


@contextlib.contextmanager
def memory_group(nbytes: int) -> Iterator[Path]:
    """A memory group of this machine; skips where none can be made."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"tdmap-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                (group / limit).write_text(str(nbytes))
                for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
                    if (group / swap).exists():
                        (group / swap).write_text(str(nbytes if "limit" in swap else 0))
            except OSError:
                continue
            yield group
            return
        finally:
            deadline = time.monotonic() + 120
            while group.exists() and time.monotonic() < deadline:
                try:
                    group.rmdir()
                except OSError:  # its last process is ending
                    time.sleep(0.02)
    pytest.skip("no memory group can be made here")


@pytest.mark.parametrize("in_place", [False, True])
def test_a_worker_that_the_kernel_kills_for_its_memory_loses_no_rows(tmp_path: Path, in_place: bool) -> None:
    with memory_group(256 << 20) as group:

        def hungry(chunk: TensorDict) -> TensorDict | None:
            if 7 in chunk["x"] or -7 in chunk["x"]:
                with contextlib.suppress(FileExistsError):
                    (tmp_path / "once").mkdir()
                    (group / "cgroup.procs").write_text(str(os.getpid()))
                    chunk["x"].neg_()
                    bytearray(b"x") * (1 << 30)
            if in_place:
                chunk["x"].add_(1)
                return None
            return TensorDict({"x": chunk["x"].abs() + 1}, chunk.batch_size)

        data = TensorDict({"x": torch.arange(20)}, [20]).memmap(tmp_path / "data")
        with tdmap.WorkerPool(2) as pool:
            result = tdmap.map(data, hungry, pool=pool, chunksize=4)
            assert pool.stats()["lost"] == 1
        assert (data if in_place else result)["x"].tolist() == [*range(1, 21)]
