"""Batches a second for training, with augmentation, beside the data loaders that people use.

    python -m benchmarks.loader --rows 40_000 --batch 128 --workers 2 --rounds 5
    python -m benchmarks.loader --streaming-python path/to/bin/python    # where mosaicml-streaming is installed

An epoch of shuffled batches: random crop, flip and normalisation of uint8 pictures [3, 64, 64], two processes each.
All loaders keep their workers between epochs where they can. Beside them, torch's own DataLoader over narrow rows in
memory, in batches of 256 without workers, with the package tensordict: what a batch costs. Plain shuffled batches of
narrow and of wide rows that a map wrote, beside the same bytes from `memmap`, indexing in one process, and torch's
DataLoader, are compared in seconds of the processors; the settings hold their page faults. A last check is of this
project alone: an iteration that is saved in mid-epoch and resumed gives the very same batches, bit for bit.

Prints a table of ratios, and writes ``loader.json`` and ``.png`` into ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import tdmap
from benchmarks._harness import RESULTS, Benchmark, Seconds, Stopwatch
from benchmarks._pictures import SIDE, Pictures, augment
from tensordict_lite import TensorDict

PEERS = ("loader_torch", "loader_grain", "loader_datasets", "loader_streaming", "loader_tensordict")
OURS = "tdmap pipeline.iter"
EPOCHS = 4
"""Of plain rows in a round."""


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="regular expression on the names of cases")
    parser.add_argument("--streaming-python", default=sys.executable, help="interpreter that has mosaicml-streaming")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    torch.set_num_threads(1)
    scratch = Path(tempfile.mkdtemp(prefix="loader-", dir=options.folder))
    try:
        run(options, scratch)
    finally:
        tdmap.close_pools()
        shutil.rmtree(scratch, ignore_errors=True)


def run(options: argparse.Namespace, scratch: Path) -> None:
    """Measure all loaders, then check that ours resumes."""
    data = make_pictures(scratch / "pictures", options.rows)
    work = Pictures(scratch / "pictures", options.rows, options.batch, options.workers)
    title = f"epochs of {options.rows:,} augmented pictures, batches of {options.batch}, {options.workers} workers"
    bench = Benchmark("loader", unit="batches", title=title)
    bench.settings = {name: getattr(options, name) for name in ("rows", "batch", "workers", "rounds")}
    bench.settings["streaming_python"] = options.streaming_python
    bench.add(OURS, epochs(work, data), units=work.batches)
    closing: list[Callable[[], None]] = []
    for name in PEERS:
        try:
            peer = importlib.import_module(f"benchmarks.peers.{name}")
            closing.append(peer.add_cases(bench, work, OURS))
        except ImportError as error:
            print(f"  {name} is left out: {error}", file=sys.stderr)
    bench.settings["page_faults_a_batch"] = add_plain_rows(bench, scratch, options.rows, options.workers)
    del bench.settings["streaming_python"]  # a path of this machine
    try:
        bench.run(options.rounds, only=options.only)
    finally:
        for close in closing:
            close()
    slower = {name: r.ratio < 1 for name, r in bench.results.items() if r.ratio and r.case.against == OURS}
    bench.settings["slower_than_tdmap"] = slower
    bench.settings["resumes_bit_for_bit"] = resumes(data, options.batch, options.workers)
    bench.report(options.results)
    for name, verdict in slower.items():
        print(f"tdmap is faster than {name}: {'yes' if verdict else 'NO'}")
    print(
        f"an epoch resumed in the middle has the same bits: {'yes' if bench.settings['resumes_bit_for_bit'] else 'NO'}"
    )


def make_pictures(folder: Path, rows: int) -> TensorDict:
    """Random pictures with their row number for a label, in files."""
    row = TensorDict({"image": torch.zeros(3, SIDE, SIDE, dtype=torch.uint8), "label": torch.tensor(0)}, [])
    data = row.expand(rows).memmap_like(folder)
    generator = torch.Generator().manual_seed(0)
    for part in data["image"].split(5000):
        part.copy_(torch.randint(256, part.shape, dtype=torch.uint8, generator=generator))
    data["label"].copy_(torch.arange(rows))
    return data


def augment_rows(batch: TensorDict) -> TensorDict:
    """The work on a batch."""
    return TensorDict({"image": augment(batch["image"]), "label": batch["label"]}, batch.batch_size)


def pipeline(data: TensorDict, batch: int) -> tdmap.Pipeline:
    """The loader that is measured."""
    return tdmap.Pipeline(data, seed=0).shuffle(seed=0).batch(batch).map(augment_rows)


def epochs(work: Pictures, data: TensorDict) -> Callable[[], Seconds]:
    """One epoch more with each call."""
    batches, numbers = pipeline(data, work.batch), itertools.count()

    def loaded() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches.iter(num_workers=work.workers, epoch=next(numbers)):
            yield batch["image"], batch["label"]

    def run() -> Seconds:
        with Stopwatch() as watch:
            work.check(loaded())
        return watch.seconds

    return run


def add_plain_rows(bench: Benchmark, scratch: Path, rows: int, workers: int) -> dict[str, float]:
    """Add shuffled epochs without work on a batch. Returns where their page faults will be."""
    faults: dict[str, float] = {}
    for width, count, batch in ((48, 50 * rows, 4096), (3072, rows, 128)):
        memmap, mapped = (scratch / f"{name}-{width}" for name in ("memmap", "map"))
        made = TensorDict({"x": torch.randint(256, (count, width), dtype=torch.uint8)}, [count]).memmap(memmap)
        tdmap.map(made, as_it_is, out=mapped, chunksize=1000, num_workers=workers)
        data = {name: TensorDict.load_memmap(folder) for name, folder in (("memmap", memmap), ("a map", mapped))}
        cases: dict[str, Callable[[], Any]] = {
            f"indexing, rows of {width} bytes": functools.partial(indexed, data["a map"], batch),
            f"torch DataLoader, rows of {width} bytes": lambda data=data["a map"], batch=batch: DataLoader(
                Rows(data), batch, shuffle=True, num_workers=workers, collate_fn=as_it_is
            ),
            **{
                f"loader over the result of {name}, rows of {width} bytes": functools.partial(
                    tdmap.Pipeline(each, seed=0).shuffle(seed=0).batch(batch).iter, num_workers=workers
                )
                for name, each in data.items()
            },
        }
        for name, batches in cases.items():

            def run(name: str = name, batches: Callable[[], Any] = batches) -> Seconds:
                before = page_faults()
                with Stopwatch() as watch:
                    number = sum(1 for _ in range(EPOCHS) for _ in batches())
                faults[name] = round((page_faults() - before) / number, 1)
                cpu = max(watch.seconds.cpu, 0.01)  # a tick of the clock; other programs change the wall time
                return Seconds(cpu, cpu)

            ours = f"loader over the result of memmap, rows of {width} bytes"
            options: dict[str, Any] = {"kind": "floor"} if name.startswith("indexing") else {"kind": "peer"}
            if name.startswith("loader"):
                options = {"kind": "ours", "against": f"indexing, rows of {width} bytes"}
                if name != ours:
                    options |= {"against": ours, "wanted": 0.95}
            bench.add(name, run, units=EPOCHS * -(-count // batch), **options)
    return faults


def indexed(data: TensorDict, batch: int) -> Iterator[TensorDict]:
    """Batches of a permutation, in this process."""
    return (data[rows] for rows in torch.randperm(len(data)).split(batch))


def as_it_is(batch: TensorDict) -> TensorDict:
    """No work."""
    return batch


class Rows(Dataset[TensorDict]):
    """Whole batches for torch's DataLoader."""

    def __init__(self, data: TensorDict) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: list[int]) -> TensorDict:
        return self.data[torch.tensor(rows)]


def page_faults() -> int:
    """Those of this process and its workers, ended ones included."""
    import psutil

    this = psutil.Process()
    stats = [Path(f"/proc/{each.pid}/stat").read_text() for each in (this, *this.children(recursive=True))]
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    return sum(int(each[7]) for each in fields) + int(fields[0][8])


def resumes(data: TensorDict, batch: int, workers: int) -> bool:
    """Whether the second half of an epoch has the same bits when another iterator goes on with it."""

    def rest(batches: Iterator[Any]) -> Iterator[Tensor]:
        return (leaf for each in batches for leaf in (each["image"].clone(), each["label"].clone()))

    epoch = pipeline(data, batch).iter(num_workers=workers)
    for _ in range(-(-data.shape[0] // batch) // 2):
        next(epoch)
    saved = json.loads(json.dumps(epoch.state_dict()))
    later = pipeline(data, batch).iter(num_workers=1)
    later.load_state_dict(saved)
    missing = object()
    pairs = itertools.zip_longest(rest(epoch), rest(later), fillvalue=missing)
    return all(a is not missing and b is not missing and torch.equal(a, b) for a, b in pairs)


if __name__ == "__main__":
    main()
