"""Every operation on files that do not fit into memory, beside hand-written loops over the same files.

    python -m benchmarks.larger_than_memory                                  # 2.6 GB, in a memory group of a fifth
    python -m benchmarks.larger_than_memory --bytes 4_000_000_000 --case map

Each run is a process of its own in a memory group (cgroup v1 or v2), where what it reads and writes in files counts;
its workers are warm, the files are not, and it ends when every byte is on the disk. Where no group can be made, the
bytes must be more than the machine has. Floors are two processes that read and `pwrite` blocks of 4 MiB. Sort and
shuffle move every byte twice, so half of the floor that copies them once is their limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import tdmap
from benchmarks._harness import RESULTS, Benchmark
from benchmarks._memory_group import join_group, memory_group
from tdmap.reducers import Mean, Sum
from tensordict_lite import TensorDict

BLOCK = 4 << 20
LEAST = 512 << 20
"""Of a group: three processes and their libraries take a part of that themselves, and thrash with less."""

COLUMNS = 3072
"""Bytes of a row of the wide dataset: a picture of 32 by 32."""

FLOORS = {"copy": "two processes that copy", "widen": "two processes that widen", "inplace": "two processes in place",
          "read": "two processes that read"}  # fmt: skip

CASES: dict[str, tuple[str, float | None]] = {
    "map": ("widen", 0.9),
    "map in place": ("inplace", None),
    "reduce": ("read", None),
    "loader": ("read", None),
    "filter": ("copy", None),
    "group-by": ("read", None),
    "sort": ("copy", None),
    "shuffle": ("copy", 0.42),
}
"""Of each operation the floor that it is beside, and what is wanted."""


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bytes", type=int, default=2_600_000_000)
    parser.add_argument("--share", type=float, default=0.2, help="memory of the group, as a share of the bytes")
    parser.add_argument("--case", choices=(*CASES, "all"), default="all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="scratch folder on a disk; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one, options.folder, options.workers, options.group)))
        return
    scratch = Path(tempfile.mkdtemp(prefix="larger-", dir=options.folder))
    try:
        compare(options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def compare(options: argparse.Namespace, scratch: Path) -> None:
    """All cases in turns."""
    make_data(scratch, options.bytes)
    limit = max(int(options.bytes * options.share), LEAST)
    with memory_group(limit) as group:
        if group is None and options.bytes < psutil.virtual_memory().total:
            raise SystemExit(
                "no memory group can be made here (it takes the rights to write into /sys/fs/cgroup), and "
                f"{options.bytes} bytes fit into the memory of this machine: pass a larger --bytes."
            )
    title = f"{options.bytes / 1e9:g} GB in {limit / 1e9:.2g} GB of memory, {options.workers} workers"
    bench = Benchmark("larger_than_memory", unit="MB", title=title)
    bench.settings = {"bytes": options.bytes, "memory": limit, "workers": options.workers, "rounds": options.rounds}
    chosen = [name for name in CASES if options.case in (name, "all")]
    units = options.bytes // 1_000_000
    for floor in dict.fromkeys(CASES[name][0] for name in chosen):
        bench.add(FLOORS[floor], runner(f"floor {floor}", scratch, options, limit), units=units, kind="floor")
    for name in chosen:
        floor, wanted = CASES[name]
        run = runner(name, scratch, options, limit)
        bench.add(f"tdmap, {name}", run, units=units, against=FLOORS[floor], wanted=wanted)
    bench.run(options.rounds, warmup=0)
    bench.report(options.results)


def make_data(folder: Path, nbytes: int) -> None:
    """Wide rows of bytes, and narrow rows of three columns; written block by block."""
    rows = max(nbytes // COLUMNS, 64)
    wide = TensorDict({"x": torch.zeros((), dtype=torch.uint8).expand(rows, COLUMNS)}, [rows]).memmap_like(
        folder / "wide"
    )
    count = max(nbytes // 20, 64)
    like = {"key": torch.zeros((), dtype=torch.int64), "v": torch.zeros(()), "id": torch.zeros((), dtype=torch.int64)}
    narrow = TensorDict({name: one.expand(count) for name, one in like.items()}, [count]).memmap_like(folder / "narrow")
    random = np.random.default_rng(0)
    for start in range(0, rows, 10_000):
        part = wide["x"][start : start + 10_000]
        part.copy_(torch.from_numpy(random.integers(0, 255, tuple(part.shape), dtype=np.uint8)))
    for start in range(0, count, 1 << 20):
        stop = min(start + (1 << 20), count)
        narrow["key"][start:stop] = torch.from_numpy(random.integers(0, 1_000_000, stop - start))
        narrow["v"][start:stop] = torch.from_numpy(random.standard_normal(stop - start, dtype=np.float32))
        narrow["id"][start:stop] = torch.arange(start, stop)


def runner(case: str, scratch: Path, options: argparse.Namespace, limit: int) -> Callable[[], float]:
    """A case: one process in a memory group of its own."""

    def run() -> float:
        out = scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        forget(scratch)
        with memory_group(limit) as group:
            command = [sys.executable, "-m", "benchmarks.larger_than_memory", "--one", case, "--folder", str(scratch)]
            command += ["--workers", str(options.workers), *(["--group", str(group)] if group else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        shutil.rmtree(out, ignore_errors=True)
        if done.returncode:
            raise RuntimeError(f"{case}: {(done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1]}")
        return float(json.loads(done.stdout.splitlines()[-1]))

    return run


def forget(folder: Path) -> None:
    """Write files to the disk and have the kernel forget their pages."""
    sync(folder)
    for path in folder.rglob("*.memmap"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def sync(folder: Path) -> None:
    """Write files to the disk; only ours, whatever others on this machine write."""
    for path in folder.rglob("*.memmap"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def run_one(case: str, folder: Path, workers: int, group: str | None) -> float:
    """Do the work of a case in this process; its seconds."""
    from time import perf_counter

    torch.set_num_threads(1)
    if group:
        join_group(group)
    tdmap.map(TensorDict({"x": torch.zeros(64, 1)}, [64]), widen, num_workers=workers)  # workers are there
    data = {name: TensorDict.load_memmap(folder / name) for name in ("wide", "narrow")}
    work = floor_of(case.removeprefix("floor "), folder, workers) if case.startswith("floor ") else None
    start = perf_counter()
    if work is not None:
        work()
    else:
        OPERATIONS[case](data, folder / "out", workers)
    sync(folder)
    seconds = perf_counter() - start
    tdmap.close_pools()
    return seconds


def widen(rows: TensorDict) -> TensorDict:
    """The function of the map: four bytes for each."""
    return TensorDict({"x": rows["x"].float() / 255}, rows.batch_size)


def turn(rows: TensorDict) -> None:
    """The function in place."""
    rows["x"].bitwise_xor_(1)


def read_all(data: dict[str, TensorDict], out: Path, workers: int) -> None:
    """An epoch."""
    for rows in tdmap.map_iter(data["wide"], sum_of, num_workers=workers):
        del rows


def sum_of(rows: TensorDict) -> torch.Tensor:
    """What is left of a chunk."""
    return rows["x"].sum(1, dtype=torch.int32)


OPERATIONS: dict[str, Callable[[dict[str, TensorDict], Path, int], Any]] = {
    "map": lambda data, out, n: tdmap.map(data["wide"], widen, out=out, num_workers=n),
    "map in place": lambda data, out, n: tdmap.map(data["wide"], turn, out=data["wide"], num_workers=n),
    "reduce": lambda data, out, n: tdmap.reduce(data["wide"], Mean("x"), num_workers=n),
    "loader": read_all,
    "filter": lambda data, out, n: tdmap.filter(data["narrow"], tdmap.col("v") > -3, out=out, num_workers=n),
    "group-by": lambda data, out, n: tdmap.group_by(data["narrow"], "key").reduce({"v": Sum("v")}, num_workers=n),
    "sort": lambda data, out, n: tdmap.sort(data["narrow"], "key", out=out, num_workers=n),
    "shuffle": lambda data, out, n: tdmap.shuffle(data["wide"], 0, out=out, num_workers=n),
}


def floor_of(kind: str, folder: Path, workers: int) -> Callable[[], None]:
    """Processes with a share of the file each, and nothing but reads and writes."""
    source = folder / "wide" / "x.memmap"
    nbytes = source.stat().st_size
    target = source if kind == "inplace" else folder / "out" / "x.memmap"
    if kind in ("copy", "widen"):
        target.parent.mkdir()
        with open(target, "wb") as file:
            file.truncate(nbytes * (4 if kind == "widen" else 1))
    edges = [nbytes * part // workers // COLUMNS * COLUMNS for part in range(workers)] + [nbytes]
    context = get_context("fork")

    def work() -> None:
        children = [
            context.Process(target=_floor_part, args=(kind, source, target, begin, end))
            for begin, end in zip(edges, edges[1:])
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
            if child.exitcode:
                raise RuntimeError(f"a process of the floor ended with {child.exitcode}")

    return work


def _floor_part(kind: str, source: Path, target: Path, begin: int, end: int) -> None:
    block = np.empty(BLOCK // (4 if kind == "widen" else 1), dtype=np.uint8)
    reads = os.open(source, os.O_RDONLY)
    writes = -1 if kind == "read" else os.open(target, os.O_RDWR)
    while begin < end:
        part = block[: min(len(block), end - begin)]
        got = os.preadv(reads, [part], begin)
        part = part[:got]
        if kind == "read":
            part.sum(dtype=np.int64)
        elif kind == "widen":
            os.pwrite(writes, part.astype(np.float32) / np.float32(255), begin * 4)
        else:
            os.pwrite(writes, part ^ 1 if kind == "inplace" else part, begin)
        begin += got


if __name__ == "__main__":
    main()
