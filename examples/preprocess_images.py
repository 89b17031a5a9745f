"""Preprocess a dataset of photographs that need not fit in memory, on every core.

    python examples/preprocess_images.py --rows 50_000 --dir demo-output

The steps, each a `data.map(...)` over chunks of memory-mapped rows:

1. *cut* random 64×64 crops out of real photographs, straight into the files of a new dataset;
2. *normalise*: flip each crop and bring it to zero mean and unit variance, into a preallocated dataset;
3. *negative*: an in-place pass over a copy of the first.

Then it proves the result against plain torch on a random sample of rows, and draws a contact sheet.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from contact_sheet import stretched, write_contact_sheet
from memory_watch import MemoryWatch
from photos import Photograph, load_photographs
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tensordict_lite import TensorDict

EDGE = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
console = Console(highlight=False)


class Precision(StrEnum):
    """What the normalised pictures are stored as."""

    float16 = "float16"
    float32 = "float32"


# -------- the three functions that the workers run


def make_cutter(photographs: list[Photograph]) -> Callable[[TensorDict], None]:
    """A function that fills the ``image`` of each row from its ``("meta", "photo")`` and ``xy``."""
    pictures = [photograph.pixels for photograph in photographs]
    edge = EDGE

    def cut(chunk: TensorDict) -> None:
        photo, corner = chunk["meta", "photo"].tolist(), chunk["meta", "xy"].tolist()
        for image, number, (x, y) in zip(chunk["image"].unbind(), photo, corner):
            image.copy_(pictures[number][:, y : y + edge, x : x + edge])

    return cut


def make_normaliser(dtype: torch.dtype) -> Callable[[TensorDict], TensorDict]:
    """A function that flips each picture left to right and normalises its channels."""
    scale = 1 / (255 * torch.tensor(STD)).view(3, 1, 1)
    shift = -(torch.tensor(MEAN) / torch.tensor(STD)).view(3, 1, 1)

    def normalise(chunk: TensorDict) -> TensorDict:
        image = chunk["image"].flip(-1).float().mul_(scale).add_(shift).to(dtype)
        return chunk.select("label").set("image", image)

    return normalise


def negative(chunk: TensorDict) -> None:
    """Invert the pictures where they are."""
    chunk["image"].bitwise_not_()


# -------- the main program


def main(
    rows: Annotated[str, typer.Option(help="How many crops to cut; 1_000_000 is fine.")] = "50_000",
    workers: Annotated[int, typer.Option(help="Processes; 0 means one for each usable core.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    dir: Annotated[Path | None, typer.Option(help="Where to write; a temporary folder if not given.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep the three datasets, not only the picture.")] = False,
    dtype: Annotated[Precision, typer.Option(help="Type of the normalised pictures.")] = Precision.float16,
    pbar: Annotated[bool, typer.Option(help="Show progress bars.")] = True,
) -> None:
    """Cut, normalise and invert random crops of real photographs with several processes."""
    count = _whole_number(rows)
    workers = workers or _usable_cores()
    folder = dir or Path(tempfile.mkdtemp(prefix="tdmap-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / name for name in ("photos", "normalised", "negatives")}
    for path in paths.values():
        _clear(path)
    _require_space(folder, count, dtype)

    with MemoryWatch(interval=0.2) as watch:
        timings = run(count, workers, seed, paths, getattr(torch, dtype.value), pbar)
    _print_timings(timings, workers)
    peak = watch.peak
    each = max(peak.workers, default=0)
    console.print(
        f"peak memory (uss): main {_mebibytes(peak.main)}, largest worker {_mebibytes(each)}, "
        f"all together {_mebibytes(peak.total)}"
    )
    verify(paths, seed, getattr(torch, dtype.value))
    draw(paths, folder / "before_after.png", count)
    for name, digest in digests(paths).items():
        console.print(f"sha256 {digest}  {name}", soft_wrap=True)
    if keep:
        _print_next(folder)
    else:
        for path in paths.values():
            shutil.rmtree(path)


def _print_next(folder: Path) -> None:
    """Commands that look at what was written."""
    console.print("The datasets stay. To look at them:")
    photos, normalised = shlex.quote(str(folder / "photos")), shlex.quote(str(folder / "normalised"))
    sheet = shlex.quote(str(folder / "sheet.png"))
    for command in (f"info {photos}", f"head {photos} -n 24 --sheet {sheet}", f"stats {normalised}"):
        # The command of this Python, whose folder is seldom on the path of a shell.
        console.print(f"  {shlex.quote(sys.executable)} -m tdmap {command}", soft_wrap=True, markup=False)


def run(
    count: int, workers: int, seed: int, paths: dict[str, Path], dtype: torch.dtype, pbar: bool
) -> list[tuple[str, float, int, int]]:
    """Do the three passes.

    Returns:
        For each pass its name, seconds, rows, and bytes read and written.
    """
    timings: list[tuple[str, float, int, int]] = []
    photographs = load_photographs()

    @contextmanager
    def timed(name: str, bytes_a_row: int) -> Iterator[None]:
        console.print(f"[bold]{name}[/bold]: {count:,} rows, {workers} workers")
        start = time.perf_counter()
        yield
        timings.append((name, time.perf_counter() - start, count, bytes_a_row * count))

    pixels = 3 * EDGE * EDGE
    data = plan_crops(count, photographs, seed, paths["photos"])
    with timed("cut", pixels):
        data.map(make_cutter(photographs), num_workers=workers, pbar=pbar)

    data = TensorDict.load_memmap(paths["photos"])
    row = TensorDict({"image": torch.zeros(3, EDGE, EDGE, dtype=dtype), "label": torch.tensor(0)}, [])
    out = row.expand(count).memmap_like(paths["normalised"])
    with timed("normalise", pixels + pixels * dtype.itemsize):
        data.map(make_normaliser(dtype), num_workers=workers, out=out, pbar=pbar)

    shutil.copytree(paths["photos"], paths["negatives"])  # a dataset is a folder
    copy = TensorDict.load_memmap(paths["negatives"])
    with timed("negative, in place", 2 * pixels):
        copy.map(negative, num_workers=workers, pbar=pbar)
    return timings


def plan_crops(count: int, photographs: list[Photograph], seed: int, path: Path) -> TensorDict:
    """Lay out the dataset on disk, and choose where each crop comes from; the pictures are still empty."""
    generator = torch.Generator().manual_seed(seed)
    photo = torch.randint(len(photographs), (count,), generator=generator)
    room = torch.tensor([[p.pixels.shape[2] - EDGE, p.pixels.shape[1] - EDGE] for p in photographs])
    xy = (torch.rand(count, 2, generator=generator) * (room + 1)[photo]).long()
    xy = xy.minimum(room[photo]).to(torch.int16)  # float32 may round up to the end
    row = TensorDict(
        {
            "image": torch.zeros(3, EDGE, EDGE, dtype=torch.uint8),
            "label": torch.tensor(0),
            "meta": {"photo": torch.tensor(0, dtype=torch.uint8), "xy": torch.zeros(2, dtype=torch.int16)},
        },
        [],
    )
    data = row.expand(count).memmap_like(path)
    data["label"].copy_(photo)
    data["meta", "photo"].copy_(photo)
    data["meta", "xy"].copy_(xy)
    return data


# -------- proof and pictures


def verify(paths: dict[str, Path], seed: int, dtype: torch.dtype, sample: int = 1000) -> None:
    """Recompute a random sample of rows from the photographs with plain torch; raise if one bit differs."""
    stored = {name: TensorDict.load_memmap(path) for name, path in paths.items()}
    count = stored["photos"].shape[0]
    chosen = torch.randint(count, (min(sample, count),), generator=torch.Generator().manual_seed(seed + 1))
    photographs = load_photographs()
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    for row in chosen.tolist():
        before = stored["photos"][row]
        x, y = before["meta", "xy"].tolist()
        crop = photographs[before["label"].item()].pixels[:, y : y + EDGE, x : x + EDGE]
        after = crop.flip(-1).float() * (1 / (255 * std)) + -(mean / std)
        _same(row, "photos", before["image"], crop)
        _same(row, "normalised", stored["normalised"]["image"][row], after.to(dtype))
        _same(row, "negatives", stored["negatives"]["image"][row], 255 - crop)
    console.print(f"[green]verified[/green]: {len(chosen):,} random rows equal the plain-torch answer, bit for bit")


def draw(paths: dict[str, Path], path: Path, count: int) -> None:
    """Write the contact sheet: for each photograph its liveliest crop among the first rows, at each stage."""
    stored = {name: TensorDict.load_memmap(folder) for name, folder in paths.items()}
    photographs = load_photographs()
    head = stored["photos"][: min(count, 3000)]
    liveliness = head["image"].float().mean(1).flatten(1).std(1)
    best = []
    for number in range(len(photographs)):
        (rows,) = torch.where(head["label"] == number)
        if len(rows):
            best.append(int(rows[liveliness[rows].argmax()]))
    stages = [
        ("before\nuint8", stored["photos"]["image"][best]),
        ("after\nflip, normalise", stretched(stored["normalised"]["image"][best])),
        ("negative\nin place", stored["negatives"]["image"][best]),
    ]
    captions = [photographs[int(head["label"][row])].name for row in best]
    subtitle = f"{count:,} random {EDGE} x {EDGE} crops of {len(photographs)} photographs"
    write_contact_sheet(path, stages, captions, title="data.map", subtitle=subtitle)
    console.print(f"contact sheet: {path}")


def digests(paths: dict[str, Path]) -> dict[str, str]:
    """SHA-256 of each dataset: its files in the order of their names."""
    with ThreadPoolExecutor() as threads:
        return dict(zip(paths, threads.map(_digest, paths.values())))


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        total.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            while block := file.read(8 << 20):
                total.update(block)
    return total.hexdigest()


def _same(row: int, name: str, got: Tensor, wanted: Tensor) -> None:
    if not torch.equal(got, wanted):
        worst = (got.float() - wanted.float()).abs().max().item()
        raise SystemExit(f"row {row} of {name} differs from the plain-torch answer, by up to {worst:g}")


# -------- small print


def _print_timings(timings: list[tuple[str, float, int, int]], workers: int) -> None:
    table = Table("pass", "seconds", "rows/s", "GB/s", "workers", title=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, seconds, rows, size in timings:
        table.add_row(name, f"{seconds:.2f}", f"{rows / seconds:,.0f}", f"{size / seconds / 1e9:.2f}", str(workers))
    console.print(table)


def _whole_number(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise typer.BadParameter(f"{text!r} is not a positive whole number", param_hint="--rows")
    return count


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _clear(path: Path) -> None:
    """Remove what an earlier run left; never anything else."""
    if not path.exists():
        return
    if not (path / "meta.json").exists():
        raise SystemExit(f"{path} is in the way and is not a dataset; choose another --dir")
    shutil.rmtree(path)


def _require_space(folder: Path, count: int, dtype: Precision) -> None:
    needed = count * 3 * EDGE * EDGE * (2 + getattr(torch, dtype.value).itemsize)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SystemExit(f"{count:,} rows need {needed / 1e9:.1f} GB in {folder}, {free / 1e9:.1f} GB are free")


if __name__ == "__main__":
    sys.exit(typer.run(main))
