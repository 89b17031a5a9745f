"""``TensorDict.map`` of the `tensordict` package: its own pool each call, as documented, and a kept one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensordict
import torch
from torch import multiprocessing

from benchmarks._harness import Benchmark
from benchmarks._workload import Workload

FLOOR = "floor, chunk 256"


def normalise_rows(chunk: tensordict.TensorDict) -> tensordict.TensorDict:
    """The work on a chunk."""
    return tensordict.TensorDict({"image": chunk["image"].float().div_(255)}, chunk.batch_size)


def invert_rows(chunk: tensordict.TensorDict) -> tensordict.TensorDict:
    """The in-place work."""
    chunk["image"].bitwise_not_()
    return chunk


def plus_one(chunk: tensordict.TensorDict) -> tensordict.TensorDict:
    """Next to no work."""
    return tensordict.TensorDict({"x": chunk["x"] + 1}, chunk.batch_size)


def add_cases(bench: Benchmark, work: Workload) -> None:
    """Add ``tensordict.map`` at the same settings as this project."""

    def add(name: str, run: Callable[[], float], **options: Any) -> None:
        bench.add(f"tensordict.map {name}", run, units=work.rows, kind="reference", **options)

    for chunk in (16, 256, None):
        label = f"out=memmap, chunk {chunk or 'default'}"
        against = f"floor, chunk {chunk or 'default'}"
        add(label, lambda chunk=chunk: _into_memmap(work, chunk), against=against, rounds=3)
    add("out=memmap, chunk 256, kept pool", lambda: _with_pool(work), against=FLOOR, rounds=3)
    add(
        "out=memmap, chunk 256, spawn",
        lambda: _into_memmap(work, 256, mp_start_method="spawn"),
        against=FLOOR,
        rounds=2,
    )
    add("gather, chunk 256", lambda: _gather(work), against=FLOOR, rounds=3)


def add_in_place(bench: Benchmark, work: Workload, against: str) -> None:
    """Add the in-place pass."""

    def run() -> float:
        data = tensordict.TensorDict.load_memmap(work.source)
        options = _options(work, 256, "fork")
        return work.back_to_back(lambda: data.map(invert_rows, out=data, **options))

    name = "tensordict.map in place, chunk 256"
    bench.add(name, run, units=work.rows, kind="reference", against=against, rounds=3)


def add_tiny(bench: Benchmark, work: Workload, rows: int) -> str:
    """Add a trivial function over chunks of one row; returns the name of the case."""
    data = tensordict.TensorDict({"x": torch.arange(rows)}, [rows])

    def run() -> float:
        start = time.perf_counter()
        data.map(plus_one, **_options(work, 1, "fork"))
        return time.perf_counter() - start

    name = "tensordict.map chunk 1, x + 1"
    bench.add(name, run, units=rows, kind="reference", rounds=3)
    return name


def _options(work: Workload, chunk: int | None, method: str) -> dict[str, Any]:
    return {
        "num_workers": work.workers,
        "chunksize": chunk,
        "mp_start_method": method,
        "generator": torch.Generator(),
    }


def _into_memmap(work: Workload, chunk: int | None, **options: Any) -> float:
    data = tensordict.TensorDict.load_memmap(work.source)
    options = {**_options(work, chunk, "fork"), **options}
    with work.fresh_folder() as folder:
        out = work.empty_row(tensordict.TensorDict).expand(work.rows).memmap_like(folder / "td")
        start = time.perf_counter()
        data.map(normalise_rows, out=out, **options)
        seconds = time.perf_counter() - start
        work.check(out["image"])
    return seconds


def _with_pool(work: Workload) -> float:
    with multiprocessing.get_context("fork").Pool(work.workers, torch.set_num_threads, (1,)) as pool:
        pool.map(abs, range(work.workers))
        return _into_memmap(work, 256, pool=pool, mp_start_method=None)


def _gather(work: Workload) -> float:
    data = tensordict.TensorDict.load_memmap(work.source)
    start = time.perf_counter()
    result = data.map(normalise_rows, **_options(work, 256, "fork"))
    seconds = time.perf_counter() - start
    work.check(result["image"])
    return seconds
