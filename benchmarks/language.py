"""The language job of `examples/language_data.py`, step by step, beside the `datasets` library.

    python -m benchmarks.language --megabytes 320 --workers 2 --rounds 3

Each step reads what the step before it has written, and writes a new dataset: a folder here, a file of Arrow there. The
functions are the same on both sides. `--memory` runs the whole job once with each library, in a process of its own, and
prints the peak of the memory that all its processes together hold for themselves.

Writes ``language.json`` and ``.png`` into ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tdmap
from benchmarks._harness import RESULTS, Benchmark, Seconds, Stopwatch
from examples.language_data import Words, cleaned, has_text, make_lines
from tdmap.datasets import pack, read, tokenise, write

BLOCK = 1024
STEPS = ("read", "filter", "clean", "drop duplicates", "tokenise", "pack", "shuffle", "statistics", "write Parquet")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=float, default=320)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="regular expression on the names of cases")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--memory", action="store_true", help="measure peaks of memory instead of times")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.one:
        print(json.dumps(peak_of(*options.one, workers=options.workers)))
        return
    scratch = Path(tempfile.mkdtemp(prefix="language-", dir=options.folder))
    try:
        lines = scratch / "lines.jsonl"
        rows = make_whole_lines(lines, options.megabytes)
        if options.memory:
            for who in ("tdmap", "datasets"):
                command = [sys.executable, "-m", "benchmarks.language", "--workers", str(options.workers)]
                answer = subprocess.run(
                    [*command, "--one", who, str(lines)], check=True, stdout=subprocess.PIPE, text=True
                ).stdout
                print(f"{who:9}", answer.splitlines()[-1])
            return
        measure(lines, rows, options, scratch)
    finally:
        tdmap.close_pools()
        shutil.rmtree(scratch, ignore_errors=True)


def make_whole_lines(path: Path, megabytes: float) -> int:
    """Write the lines of the example but those that are torn, which `datasets` cannot read. The number of lines."""
    every = path.with_suffix(".torn")
    make_lines(every, megabytes, seed=0)
    rows = 0
    with every.open() as source, path.open("w") as target:
        for line in source:
            if line.endswith("}\n"):
                target.write(line)
                rows += 1
    every.unlink()
    return rows


def measure(lines: Path, rows: int, options: argparse.Namespace, scratch: Path) -> None:
    """All steps of both libraries in turns."""
    bench = Benchmark("language", title=f"JSON Lines to blocks of tokens, {options.workers} workers")
    bench.settings = {name: getattr(options, name) for name in ("megabytes", "workers", "rounds")}
    ours, theirs = Ours(lines, scratch / "tdmap", options.workers), Theirs(lines, scratch / "hf", options.workers)
    for step in STEPS:
        ours.prepare(step)
        theirs.prepare(step)
    for step in STEPS:
        name = f"{step}: datasets"
        bench.add(name, lambda step=step: theirs.time(step), units=rows, kind="peer", group=step)  # type: ignore[misc]
        bench.add(f"{step}: tdmap", lambda step=step: ours.time(step), units=rows, group=step,  # type: ignore[misc]
                  against=name, wanted=1.0)  # fmt: skip
    bench.run(options.rounds, only=options.only)
    bench.report(options.results)


class Side:
    """The steps of one library. A step takes the results of those before it, and a new place."""

    def __init__(self, lines: Path, folder: Path, workers: int) -> None:
        self.lines = lines
        self.folder = folder
        self.workers = workers
        self.made: dict[str, Any] = {}
        self._numbers = itertools.count()
        folder.mkdir()

    def prepare(self, step: str) -> None:
        """Keep the result of a step for the ones after it."""
        self.made[step] = self.step(step)(self.folder / step.replace(" ", "-"))

    def time(self, step: str) -> Seconds:
        """Do a step once more, into a new place that is removed again."""
        place = self.folder / f"again{next(self._numbers)}"
        with Stopwatch() as watch:
            result = self.step(step)(place)
        del result
        gc.collect()
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        return watch.seconds

    def step(self, name: str) -> Callable[[Path], Any]:
        """The method of a step."""
        method: Callable[[Path], Any] = getattr(self, name.replace(" ", "_").lower())
        return method


class Ours(Side):
    """The steps as the example has them."""

    def read(self, out: Path) -> Any:
        return read(self.lines, out, num_workers=self.workers)

    def filter(self, out: Path) -> Any:
        return tdmap.filter(self.made["read"], has_text, out=out, num_workers=self.workers)

    def clean(self, out: Path) -> Any:
        return tdmap.map(self.made["filter"], cleaned, out=out, num_workers=self.workers)

    def drop_duplicates(self, out: Path) -> Any:
        return tdmap.drop_duplicates(self.made["clean"], "text", out=out, num_workers=self.workers)

    def tokenise(self, out: Path) -> Any:
        data = self.made["drop duplicates"]
        return tokenise(data, Words(), "text", out=out, eos=0, dtype=torch.int32, num_workers=self.workers)

    def pack(self, out: Path) -> Any:
        return pack(self.made["tokenise"], "input_ids", BLOCK, out=out, num_workers=self.workers)

    def shuffle(self, out: Path) -> Any:
        return tdmap.shuffle(self.made["pack"], seed=0, out=out, num_workers=self.workers)

    def statistics(self, out: Path) -> Any:
        return tdmap.value_counts(self.made["read"], "source", num_workers=self.workers)

    def write_parquet(self, out: Path) -> Any:
        write(self.made["drop duplicates"], out, format="parquet")


class Theirs(Side):
    """The steps as the documentation of `datasets` shows them; nothing is taken from its cache."""

    def __init__(self, lines: Path, folder: Path, workers: int) -> None:
        import datasets

        super().__init__(lines, folder, workers)
        datasets.disable_progress_bars()
        datasets.disable_caching()
        self.datasets = datasets

    def _map(self, data: Any, fn: Callable[..., Any], out: Path, **options: Any) -> Any:
        out.mkdir()
        return data.map(fn, batched=True, num_proc=self.workers, cache_file_name=str(out / "rows.arrow"), **options)

    def read(self, out: Path) -> Any:
        return self.datasets.load_dataset("json", data_files=str(self.lines), split="train", cache_dir=str(out))

    def filter(self, out: Path) -> Any:
        out.mkdir()
        return self.made["read"].filter(
            lambda batch: [bool(text.strip()) for text in batch["text"]],
            batched=True, num_proc=self.workers, cache_file_name=str(out / "rows.arrow"),
        )  # fmt: skip

    def clean(self, out: Path) -> Any:
        def clean(batch: Any) -> Any:
            texts = [text.strip().lower() for text in batch["text"]]
            return {"text": texts, "letters": [len(text) for text in texts]}

        return self._map(self.made["filter"], clean, out)

    def drop_duplicates(self, out: Path) -> Any:
        seen: set[str] = set()

        def is_new(batch: Any) -> list[bool]:
            answers = []
            for text in batch["text"]:
                answers.append(text not in seen)
                seen.add(text)
            return answers

        out.mkdir()
        data = self.made["clean"].filter(is_new, batched=True, cache_file_name=str(out / "rows.arrow"))
        return self._map(data, lambda batch: batch, out / "whole")  # rows, as the other side writes them

    def tokenise(self, out: Path) -> Any:
        data, words = self.made["drop duplicates"], Words()
        features = self.datasets.Features({"input_ids": self.datasets.Sequence(self.datasets.Value("int32"))})
        return self._map(
            data, lambda batch: {"input_ids": [[*tokens, 0] for tokens in words(batch["text"])]}, out,
            remove_columns=data.column_names, features=features,
        )  # fmt: skip

    def pack(self, out: Path) -> Any:
        def block(batch: Any) -> Any:
            tokens = list(itertools.chain.from_iterable(batch["input_ids"]))
            whole = len(tokens) // BLOCK * BLOCK  # the rest of each batch is lost, as in its documentation
            return {"input_ids": [tokens[at : at + BLOCK] for at in range(0, whole, BLOCK)]}

        return self._map(self.made["tokenise"], block, out)

    def shuffle(self, out: Path) -> Any:
        data = self.made["pack"].shuffle(seed=0)
        out.mkdir()
        return data.flatten_indices(num_proc=self.workers, cache_file_name=str(out / "rows.arrow"))

    def statistics(self, out: Path) -> Any:
        return Counter(self.made["read"]["source"])

    def write_parquet(self, out: Path) -> Any:
        self.made["drop duplicates"].to_parquet(str(out))


def peak_of(who: str, lines: str, workers: int) -> dict[str, float]:
    """Run the whole job in this process; MB of its processes together, and of this one, at their peak."""
    from examples.memory_watch import MemoryWatch

    with tempfile.TemporaryDirectory() as folder:
        side = (Ours if who == "tdmap" else Theirs)(Path(lines), Path(folder) / "job", workers)
        with MemoryWatch(interval=0.05) as watch, Stopwatch() as stopwatch:
            for step in STEPS:
                side.prepare(step)
        tdmap.close_pools()
    peak = watch.peak
    return {
        "main_mb": round(peak.main / 1e6), "workers_mb": round(sum(peak.workers) / 1e6),
        "seconds": round(float(stopwatch.seconds), 1), "cpu_seconds": round(stopwatch.seconds.cpu, 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
