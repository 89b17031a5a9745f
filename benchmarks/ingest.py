"""Pictures, tables and text into datasets and back, beside what one would write by hand and what other libraries do.

    python -m benchmarks.ingest --pictures 2_000 --rows 1_000_000 --texts 20_000 --workers 2 --rounds 5

Pictures: JPEG files of 500 x 375 into uint8 [3, 224, 224], against two forked processes that call the same decoder and
write into one preallocated file. Tables: Parquet with numbers and text, against pyarrow's own reading and writing.
Text: against two forked processes that call the tokenizer. Ragged entries: against a column of int64 with the same
bytes.

Prints a table of ratios, and writes ``ingest.json`` and ``.png`` into ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import itertools
import multiprocessing
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import tdmap
from benchmarks._harness import RESULTS, Benchmark, Seconds, Stopwatch
from tdmap.datasets import images, read, tokenise, write
from tdmap.datasets.images.files import list_files
from tdmap.datasets.images.pixels import Look, decode
from tensordict_lite import Ragged, TensorDict

SIZE = 224

_numbers = itertools.count()


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pictures", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="regular expression on the names of cases")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    scratch = Path(tempfile.mkdtemp(prefix="ingest-", dir=options.folder))
    bench = Benchmark("ingest", unit="rows", title=f"into datasets and back, {options.workers} workers")
    bench.settings = {name: getattr(options, name) for name in ("pictures", "rows", "texts", "workers", "rounds")}
    try:
        for add in (add_pictures, add_tables, add_text, add_ragged):
            try:
                add(bench, scratch, options)
            except ImportError as error:
                print(f"  {add.__name__} is left out: {error}", file=sys.stderr)
        bench.run(options.rounds, only=options.only)
        bench.report(options.results)
    finally:
        tdmap.close_pools()
        shutil.rmtree(scratch, ignore_errors=True)


def fresh(scratch: Path) -> Callable[[], Path]:
    """Names of new places; what was there before is removed, outside of the time that is measured."""
    last: list[Path] = []

    def place() -> Path:
        for path in last:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        last[:] = [scratch / f"out{next(_numbers)}"]
        return last[0]

    return place


def timed(place: Callable[[], Path], work: Callable[[Path], Any]) -> Callable[[], Seconds]:
    """A case that writes to a new place."""

    def run() -> Seconds:
        path = place()
        with Stopwatch() as watch:
            work(path)
        return watch.seconds

    return run


def in_processes(count: int, workers: int, job: Callable[[int, int], None]) -> None:
    """Run `job(start, stop)` for a share of the rows in each of so many forked processes."""
    context = multiprocessing.get_context("fork")
    edges = [count * k // workers for k in range(workers + 1)]
    processes = [context.Process(target=job, args=pair) for pair in zip(edges, edges[1:])]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert not process.exitcode


# -- pictures --------------------------------------------------------------------------------------------------------


def make_pictures(folder: Path, count: int) -> None:
    """JPEG files in ten class folders, of as many different pictures as do not all fit into a cache."""
    generator = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        path = folder / f"class{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)


def add_pictures(bench: Benchmark, scratch: Path, options: argparse.Namespace) -> None:
    """Folders of JPEG files into one dataset."""
    folder, count, workers = scratch / "pictures", options.pictures, options.workers
    make_pictures(folder, count)
    files, look, place = list_files(folder), Look((SIZE, SIZE)), fresh(scratch)
    row = TensorDict({"image": torch.zeros(3, SIZE, SIZE, dtype=torch.uint8), "label": torch.tensor(0)}, [])

    def by_hand(path: Path) -> None:
        out = row.expand(count).memmap_like(path)
        out["label"].copy_(torch.tensor(files.labels))

        def decode_some(start: int, stop: int) -> None:
            for number in range(start, stop):
                pixels = torch.from_numpy(decode(files.path(number), look).copy())
                out["image"][number].copy_(pixels.permute(2, 0, 1))

        in_processes(count, workers, decode_some)

    floor = "pictures: two processes"
    group: Any = {"units": count, "group": "pictures"}
    bench.add(floor, timed(place, by_hand), kind="floor", **group)
    for name, how in (("ingest", "raise"), ("ingest, bad files skipped", "skip")):
        bench.add(
            f"pictures: {name}",
            timed(place, lambda path, how=how: images.ingest(  # type: ignore[misc]
                folder, path, size=SIZE, on_error=how, num_workers=workers)),
            against=floor, wanted=0.95, **group,
        )  # fmt: skip
    ours = "pictures: ingest"
    bench.add("pictures: DataLoader, Pillow", timed(place, lambda path: _data_loader(files, row, path, workers)),
              kind="peer", against=ours, **group)  # fmt: skip
    if _imports("litdata"):
        bench.add("pictures: litdata.optimize", timed(place, lambda path: _litdata(files, path, workers)),
                  kind="peer", against=ours, **group)  # fmt: skip
    try:
        import datasets
    except ImportError:
        return
    datasets.disable_progress_bars()
    listed = datasets.Dataset.from_dict({"image": [files.path(n) for n in range(count)], "label": files.labels})
    listed = listed.cast_column("image", datasets.Image())
    bench.add("pictures: datasets.map, Image", timed(place, lambda path: _datasets_map(listed, path, workers)),
              kind="peer", against=ours, **group)  # fmt: skip


class Opened(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Pictures as training scripts read them."""

    def __init__(self, files: Any) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files.names)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(open_by_hand(self.files.path(number))), self.files.labels[number]


def open_by_hand(source: Any) -> Any:
    """The middle of a picture, uint8 [3, 224, 224]."""
    with source if hasattr(source, "convert") else Image.open(source) as picture:
        picture = picture.convert("RGB")
        scale = SIZE / min(picture.size)
        picture = picture.resize(
            (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BILINEAR
        )
        left, top = (picture.width - SIZE) // 2, (picture.height - SIZE) // 2
        return np.asarray(picture.crop((left, top, left + SIZE, top + SIZE))).transpose(2, 0, 1).copy()


def _data_loader(files: Any, row: TensorDict, path: Path, workers: int) -> None:
    out = row.expand(len(files.names)).memmap_like(path)
    start = 0
    for pixels, labels in torch.utils.data.DataLoader(Opened(files), batch_size=32, num_workers=workers):
        out["image"][start : start + len(pixels)] = pixels
        out["label"][start : start + len(pixels)] = labels
        start += len(pixels)


def _imports(name: str) -> bool:
    """Whether a package can be used here."""
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        print(f"  {name} is left out: {error}", file=sys.stderr)
        return False
    return True


def _sample(files: Any, number: int) -> dict[str, Any]:
    return {"image": open_by_hand(files.path(number)), "label": int(files.labels[number])}


def _litdata(files: Any, path: Path, workers: int) -> None:
    import litdata

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        litdata.optimize(functools.partial(_sample, files), inputs=list(range(len(files.names))), output_dir=str(path),
                         chunk_bytes="64MB", num_workers=workers)  # fmt: skip


def _datasets_map(listed: Any, path: Path, workers: int) -> None:
    mapped = listed.map(
        lambda row: {"pixels": open_by_hand(row["image"])}, num_proc=workers, remove_columns=["image"],
        load_from_cache_file=False, new_fingerprint=path.name, writer_batch_size=64,
    )  # fmt: skip
    mapped.save_to_disk(str(path))
    listed.cleanup_cache_files()


# -- tables ----------------------------------------------------------------------------------------------------------


def add_tables(bench: Benchmark, scratch: Path, options: argparse.Namespace) -> None:
    """Parquet into a dataset, and back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, workers, place = options.rows, options.workers, fresh(scratch)
    generator = np.random.default_rng(0)
    columns = {f"x{n}": generator.standard_normal(rows).astype(np.float32) for n in range(8)}
    columns |= {f"n{n}": generator.integers(0, 1 << 40, rows) for n in range(4)}
    words = pa.array([f"user {number % 99_991}" for number in range(rows)])
    table = pa.table({**columns, "user": words})
    source = scratch / "table.parquet"
    pq.write_table(table, source, row_group_size=rows // 16)
    data = read(source, scratch / "table", num_workers=workers)
    group: Any = {"units": rows, "group": "tables"}
    bench.add("Parquet: pyarrow reads", timed(place, lambda _: pq.read_table(source)), kind="floor", **group)
    bench.add("Parquet into a dataset", timed(place, lambda path: read(source, path, num_workers=workers)),
              against="Parquet: pyarrow reads", wanted=0.7, **group)  # fmt: skip
    bench.add("Parquet: pyarrow writes", timed(place, lambda path: pq.write_table(table, path)), kind="floor", **group)
    bench.add("dataset into Parquet", timed(place, lambda path: write(data, path, format="parquet")),
              against="Parquet: pyarrow writes", wanted=0.7, **group)  # fmt: skip


# -- text ------------------------------------------------------------------------------------------------------------


def add_text(bench: Benchmark, scratch: Path, options: argparse.Namespace) -> None:
    """Texts into tokens."""
    import tokenizers

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    generator = np.random.default_rng(0)
    words = np.array([f"{'abcdefghij'[n % 10] * (n % 4)}word{n}" for n in range(5000)])
    texts = [" ".join(words[generator.zipf(1.3, 120) % 5000]) for _ in range(options.texts)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts[:2000], tokenizers.trainers.BpeTrainer(vocab_size=8000, show_progress=False))
    saved = TensorDict({"text": Ragged.from_list(texts)}, [len(texts)]).memmap(scratch / "texts")
    place, workers = fresh(scratch), options.workers

    def by_hand(path: Path) -> None:
        def some(start: int, stop: int) -> None:
            for low in range(start, stop, 256):
                tokenizer.encode_batch(texts[low : min(low + 256, stop)])

        in_processes(len(texts), workers, some)

    group: Any = {"units": len(texts), "group": "text"}
    bench.add("text: encode_batch, two processes", timed(place, by_hand), kind="floor", **group)
    bench.add(
        "text: tokenise",
        timed(place, lambda path: tokenise(saved, tokenizer, out=path, dtype=torch.int32, num_workers=workers)),
        against="text: encode_batch, two processes", wanted=0.95, **group,
    )  # fmt: skip


# -- ragged entries ----------------------------------------------------------------------------------------------------


def add_ragged(bench: Benchmark, scratch: Path, options: argparse.Namespace) -> None:
    """Strings of 0 to 48 bytes, and rows of three int64."""
    rows, workers, place = options.rows, options.workers, fresh(scratch)
    lengths = torch.randint(0, 49, (rows,), generator=torch.Generator().manual_seed(0))
    offsets = torch.zeros(rows + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    text = Ragged(torch.randint(97, 123, (int(offsets[-1]),), dtype=torch.uint8), offsets, "str")
    strings = TensorDict({"s": text}, [rows]).memmap(scratch / "strings")
    column = TensorDict({"x": torch.randint(1 << 40, (rows, 3))}, [rows]).memmap(scratch / "column")
    options_of: Any = {"num_workers": workers}
    cases: list[tuple[str, Callable[[Path], Any], Callable[[Path], Any]]] = [
        ("map", lambda path: tdmap.map(column, _same, out=path, **options_of),
         lambda path: tdmap.map(strings, _same, out=path, **options_of)),
        ("filter", lambda path: tdmap.filter(column, lambda chunk: chunk["x"][:, 0] % 2 == 0, out=path, **options_of),
         lambda path: tdmap.filter(strings, lambda chunk: chunk.get("s").lengths % 2 == 0, out=path, **options_of)),
        ("shuffle", lambda path: tdmap.shuffle(column, out=path, seed=0, **options_of),
         lambda path: tdmap.shuffle(strings, out=path, seed=0, **options_of)),
    ]  # fmt: skip
    group: Any = {"units": rows, "group": "ragged"}
    for name, plain, ours in cases:
        bench.add(f"{name}: int64 [3]", timed(place, plain), kind="floor", **group)
        bench.add(f"{name}: strings", timed(place, ours), against=f"{name}: int64 [3]", wanted=0.5, **group)
    bench.add("open: strings, 100 times", lambda: _open(scratch / "strings"), units=100, group="ragged")


def _same(chunk: Any) -> Any:
    return chunk


def _open(path: Path) -> Seconds:
    with Stopwatch() as watch:
        for _ in range(100):
            TensorDict.load_memmap(path)[5]["s"]
    return watch.seconds


if __name__ == "__main__":
    main()
