"""Saving and loading models and datasets, beside the `tensordict` package, torch.save and safetensors, in one run.

    python -m benchmarks.serialization
    python -m benchmarks.serialization --only 'load small'

Two models (a 250 MB transformer, 2 000 small tensors in 100 modules) and a dataset of a million rows; our models as a
folder, as one consolidated file and as one archive. A load counts when the first element of every tensor has been
read. Prints a table of ratios, and writes `serialization.json` and `.png` into `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensordict as reference
import torch
from safetensors.torch import load_file, save_file

from benchmarks._harness import RESULTS, Benchmark, per_call
from tensordict_lite import TensorDict

THREADS = (0, 2, 4, 16)
ROWS = 1_000_000


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="regular expression on the names of cases")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    torch.set_num_threads(1)
    scratch = options.folder or Path(tempfile.mkdtemp(prefix="serialization-"))
    scratch.mkdir(parents=True, exist_ok=True)
    spread(scratch)
    bench = Benchmark("serialization", unit="MB", title="saving and loading")
    try:
        for name, state in (("transformer", transformer_state()), ("small", small_state())):
            model = Model(name, state, scratch)
            model.choose_threads()
            threads = [model.best[label] for label in ("ours", "theirs", "archive")]
            bench.settings[f"{name}: tensors, MB, threads"] = [len(state), round(model.nbytes / 1e6), *threads]
            add_saves(bench, model)
            add_loads(bench, model)
        add_random_access(bench, scratch)
        bench.run(options.rounds, only=options.only)
        bench.report(options.results)
    finally:
        if options.folder is None:
            shutil.rmtree(scratch, ignore_errors=True)


def spread(folder: Path) -> None:
    """Lets the file system place every folder in here on its own (ext4; others do as they please).

    ext4 puts a new folder next to its parent and does not hand out inodes that were deleted in the last half
    minute. Where other programs delete many files nearby, making one then takes 200 microseconds instead of 5, and
    whoever writes many files looks bad.
    """
    get_flags, set_flags, top_folder = 0x80086601, 0x40086602, 0x20000
    fd = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        flags = int.from_bytes(fcntl.ioctl(fd, get_flags, bytes(8)), "little")
        fcntl.ioctl(fd, set_flags, (flags | top_folder).to_bytes(8, "little"))
    os.close(fd)


def transformer_state() -> dict[str, torch.Tensor]:
    """About 250 MB in 350 tensors."""
    model = torch.nn.Transformer(512, num_encoder_layers=9, num_decoder_layers=8)
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


def small_state() -> dict[str, torch.Tensor]:
    """2 000 tensors of 64 numbers in 100 modules."""
    return {f"{i}.p{j}": torch.randn(64) for i in range(100) for j in range(20)}


class Model:
    """One state, in the form that each library takes, with a fresh place for every save."""

    def __init__(self, name: str, state: dict[str, torch.Tensor], scratch: Path) -> None:
        self.name = name
        self.state = state
        self.scratch = scratch
        self.flat = torch.cat([t.reshape(-1).view(torch.uint8) for t in state.values()]).numpy()
        self.nbytes = self.flat.nbytes
        self.ours = TensorDict(nested(state), [])
        self.theirs = reference.TensorDict(nested(state), [])
        self.best: dict[str, int] = {}
        self.saves = 0

    @property
    def units(self) -> int:
        """Megabytes, so that a rate is MB/s."""
        return max(1, self.nbytes // 1_000_000)

    def fresh(self) -> Path:
        """A path where nothing is and nothing was: a file system is slow to give out what it has just taken back."""
        self.saves += 1
        return self.scratch / f"{self.name}-save-{self.saves}"

    def discard(self, path: Path) -> None:
        """Frees the bytes of a save and keeps its files, for the same reason."""
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                os.truncate(file, 0)

    def choose_threads(self) -> None:
        """Find the number of threads that is best for each of the ways that have the choice."""
        for label, data in (("ours", self.ours), ("theirs", self.theirs), ("archive", self.ours)):
            times = {n: statistics.median(self.timed_save(label, data, n) for _ in range(3)) for n in THREADS}
            self.best[label] = min(times, key=times.__getitem__)

    def timed_save(self, label: str, data: Any, threads: int) -> float:
        """Seconds of one save to a new place."""
        path = self.fresh()
        start = time.perf_counter()
        data.memmap(path, num_threads=threads, archive=label == "archive")
        seconds = time.perf_counter() - start
        self.discard(path)
        return seconds


def nested(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """``{"a.b": x}`` as ``{"a": {"b": x}}``."""
    out: dict[str, Any] = {}
    for name, tensor in state.items():
        node = out
        *path, leaf = name.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = tensor
    return out


def bare_files(state: dict[str, torch.Tensor], path: Path) -> None:
    """Only the kernel's part of a save in this format, in one thread: folders, and each tensor in its file."""
    os.mkdir(path)
    made = set()
    for name, tensor in state.items():
        folder, _, leaf = name.replace(".", "/").rpartition("/")
        if folder not in made:
            os.makedirs(f"{path}/{folder}", exist_ok=True)
            made.add(folder)
        fd = os.open(f"{path}/{folder}/{leaf}.memmap", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.pwrite(fd, tensor.numpy(), 0)
        os.close(fd)


def one_write(data: np.ndarray, path: Path) -> None:
    """Only the kernel's part of a save to one file: all bytes, in one call."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.pwrite(fd, data, 0)
    os.close(fd)


def sync_tree(path: Path) -> None:
    """What a careful program does after a save: every file, then the folders."""
    files = [path] if path.is_file() else [*path.rglob("*"), path]
    for file in sorted(files, key=Path.is_dir):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def add_saves(bench: Benchmark, model: Model) -> None:
    """Saving, without and with waiting for the disk."""

    def timed(save: Callable[[Path], Any], durable: Callable[[Path, Any], Any] | None) -> Callable[[], float]:
        def run() -> float:
            path = model.fresh()
            start = time.perf_counter()
            result = save(path)
            if durable is not None:
                durable(path, result)
            seconds = time.perf_counter() - start
            del result
            model.discard(path)
            return seconds

        return run

    ways: dict[str, tuple[Callable[[Path], Any], Callable[[Path, Any], Any], str]] = {
        "torch.save": (lambda p: torch.save(model.state, p), lambda p, _: sync_tree(p), "peer"),
        "tensordict": (
            lambda p: model.theirs.memmap(p, num_threads=model.best["theirs"]), lambda p, _: sync_tree(p), "reference",
        ),
        "safetensors": (lambda p: save_file(model.state, p), lambda p, _: sync_tree(p), "peer"),
        "bare files": (lambda p: bare_files(model.state, p), lambda p, _: sync_tree(p), "floor"),
        "one write": (lambda p: one_write(model.flat, p), lambda p, _: sync_tree(p), "floor"),
        "ours": (lambda p: model.ours.memmap(p, num_threads=model.best["ours"]), lambda _, out: out.sync(), "ours"),
        "ours, consolidated": (lambda p: model.ours.consolidate(p), lambda _, out: out.sync(), "ours"),
        "ours, archive": (
            lambda p: model.ours.memmap(p, archive=True, num_threads=model.best["archive"]), lambda _, out: out.sync(),
            "ours",
        ),
    }  # fmt: skip
    for fsync in (False, True):
        group = f"save {model.name}" + (", fsync" if fsync else "")
        for label, (save, durable, kind) in ways.items():
            run = timed(save, durable if fsync else None)
            wanted: dict[str, Any] = {}
            if kind == "ours":
                wanted = {"against": f"{group}: torch.save", "measure": "time", "wanted": None if fsync else 0.5}
            bench.add(f"{group}: {label}", run, units=model.units, kind=kind, group=group, **wanted)
        again = timed(ways["ours"][0], ways["ours"][1] if fsync else None)
        bench.add(
            f"{group}: ours (again)", again, units=model.units, kind="ours", group=group,
            against=f"{group}: tensordict", measure="time", wanted=None if fsync else 0.7,
        )  # fmt: skip


def add_loads(bench: Benchmark, model: Model) -> None:
    """Loading, with the first element of every tensor read; and loading one of many sub-modules."""
    folder = model.scratch / f"{model.name}-ours"
    single = {label: model.scratch / f"{model.name}.{label}" for label in ("pt", "safetensors", "bin", "tdz")}
    model.ours.memmap(folder)
    model.ours.consolidate(single["bin"])
    model.ours.memmap(single["tdz"])
    torch.save(model.state, single["pt"])
    save_file(model.state, single["safetensors"])

    def touch(tensors: Any) -> None:
        for tensor in tensors:
            tensor.view(-1)[0].item()

    def leaves(data: Any) -> list[torch.Tensor]:
        return list(data.values(True, True))

    group = f"load {model.name}"
    common = {"units": model.units, "group": group}
    bench.add(
        f"{group}: torch.load(mmap)", lambda: touch(torch.load(single["pt"], mmap=True).values()), kind="peer", **common
    )
    bench.add(f"{group}: safetensors", lambda: touch(load_file(single["safetensors"]).values()), kind="peer", **common)
    bench.add(
        f"{group}: tensordict", lambda: touch(leaves(reference.TensorDict.load_memmap(folder))), kind="reference",
        **common,
    )  # fmt: skip

    def ours() -> None:
        touch(leaves(TensorDict.load_memmap(folder)))

    contests = (
        ("ours", "tensordict", 0.5),
        ("ours (again)", "torch.load(mmap)", 1.0),
        ("ours (once more)", "safetensors", 2.0),
    )
    for label, other, wanted in contests:
        bench.add(
            f"{group}: {label}", ours, kind="ours", against=f"{group}: {other}", measure="time", wanted=wanted, **common
        )
    one_file = (
        ("consolidated", lambda: touch(leaves(TensorDict.from_consolidated(single["bin"])))),
        ("archive", lambda: touch(leaves(TensorDict.load_memmap(single["tdz"])))),
    )
    for label, load in one_file:
        bench.add(
            f"{group}: ours, {label}", load, kind="ours", against=f"{group}: safetensors", measure="time", wanted=1.0,
            **common,
        )  # fmt: skip
    if model.name == "small":
        bench.add(
            f"{group}: 1 of 100 modules", per_call(lambda: touch(leaves(TensorDict.load_memmap(folder / "37")))),
            kind="ours", against=f"{group}: ours", measure="time", wanted=0.015, **common,
        )  # fmt: skip


def add_random_access(bench: Benchmark, scratch: Path) -> None:
    """256 random rows of a million, and opening the dataset."""
    folder = scratch / "rows"
    row = TensorDict({"image": torch.zeros(3, 16, 16, dtype=torch.uint8), "label": torch.tensor(0)}, [])
    data = row.expand(ROWS).memmap_like(folder)
    data["label"].copy_(torch.arange(ROWS))
    data["image"].fill_(1)  # every page is in memory: what is timed is the indexing, not the disk
    ours, theirs = TensorDict.load_memmap(folder), reference.TensorDict.load_memmap(folder)
    raw = np.memmap(folder / "image.memmap", np.uint8, "r+", shape=(ROWS, 3, 16, 16))
    rows = [torch.randint(ROWS, (256,)) for _ in range(64)]
    arrays = [index.numpy() for index in rows]
    turn = iter(range(1 << 62))
    common: dict[str, Any] = {"units": 1, "group": "rows"}

    def image(tensor: torch.Tensor) -> Callable[[], Any]:
        return lambda: tensor[rows[next(turn) % 64]]

    bench.add("rows: numpy memmap[idx]", per_call(lambda: raw[arrays[next(turn) % 64]]), kind="floor", **common)
    bench.add("rows: tensordict", per_call(lambda: theirs[rows[next(turn) % 64]]), kind="reference", **common)
    bench.add(
        "rows: ours, image[idx]", per_call(image(ours["image"])), kind="ours", against="rows: numpy memmap[idx]",
        measure="time", wanted=1.2, **common,
    )  # fmt: skip
    bench.add(
        "rows: ours, data[idx]", per_call(lambda: ours[rows[next(turn) % 64]]), kind="ours", against="rows: tensordict",
        measure="time", wanted=0.8, **common,
    )  # fmt: skip
    bench.add(
        "open: tensordict", per_call(lambda: reference.TensorDict.load_memmap(folder)), kind="reference", **common
    )
    bench.add(
        "open: ours", per_call(lambda: TensorDict.load_memmap(folder)), kind="ours", against="open: tensordict",
        measure="time", wanted=0.5, **common,
    )  # fmt: skip


if __name__ == "__main__":
    main()
