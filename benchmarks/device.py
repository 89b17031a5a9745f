"""How fast rows reach a device: the link itself, and what `map`, `map_iter` and a function there leave of it.

    python -m benchmarks.device            where there is a CUDA device; says so and stops where there is none
    python -m benchmarks.device --fake     the same calls over a link that only pretends, to see that they run

The floor is a loop that copies two page-locked buffers to the device in turns, as fast as the link allows. Workers
hand out rows of a dataset unchanged (`map_iter`, `map` into a buffer on the device), so that what is measured is the
way, not the function. Three more comparisons are what people write by hand: copies from slots that are page-locked as
`map` locks them, a loop of two streams around a module, and torch's DataLoader with `pin_memory` under an augmentation.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import tdmap
from benchmarks._harness import RESULTS, Benchmark
from benchmarks._pictures import augment
from tdmap.devices import OUT_CHUNKS
from tdmap.execution import Execution
from tdmap.functions import OnKeys
from tdmap.job import Job, Source
from tdmap.memory import links as device_module
from tdmap.memory.links import CudaLink, open_link
from tdmap.memory.shm import anonymous_file, map_path
from tdmap.output.device import DeviceBuffer
from tdmap.output.output import Output
from tdmap.run.context import Context
from tensordict_lite import TensorDict
from tensordict_lite.memmap.disk.mapping import release
from tests.device.fakelink import FakeLink

FAKE = "mtia:0"
"""A device type that torch can spell, and that nobody has here."""

CHUNK_BYTES = 8 << 20
SHAPE = (3, 64, 64)
BATCH = 256

FLOOR = "copies from page-locked memory"
HERE = "map(out=shared memory)"
THERE = "map(out=device)"


def as_they_are(td: TensorDict) -> TensorDict:
    """Rows unchanged, in memory of their own."""
    return td.clone()


def normalise(td: TensorDict) -> TensorDict:
    """Bytes to floats between -1 and 1: four times as many bytes leave as have come."""
    return TensorDict({"image": td["image"].float().mul_(1 / 127.5).sub_(1)}, td.batch_size)


def augmented(td: TensorDict) -> TensorDict:
    """Random crops, flipped and normalised, as in `benchmarks.loader`."""
    return TensorDict({"image": augment(td["image"])}, td.batch_size)


class Scores(torch.nn.Module):
    """A small network over bytes."""

    def __init__(self) -> None:
        super().__init__()
        pixels = SHAPE[0] * SHAPE[1] * SHAPE[2]
        self.layers = torch.nn.Sequential(torch.nn.Linear(pixels, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.layers(image.flatten(1).float() / 255)
        return scores


class Batches(Dataset[Tensor]):
    """Augmented batches for a DataLoader; each is gathered and augmented in one go."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, rows: list[int]) -> Tensor:
        return augment(self.images[torch.tensor(rows)])


def as_it_is(batch: Tensor) -> Tensor:
    """What `Batches` gives is a batch already."""
    return batch


class Workload:
    """Pictures in shared memory, and buffers on the device for their results.

    Args:
        device: where to.
        megabytes: size of the dataset.
        workers: processes.
    """

    def __init__(self, device: torch.device, megabytes: int, workers: int) -> None:
        row_bytes = SHAPE[0] * SHAPE[1] * SHAPE[2]
        self.rows = max((megabytes << 20) // row_bytes, 1)
        self.workers = workers
        self.device = device
        self.link: CudaLink = open_link(device)
        image = torch.randint(0, 256, (self.rows, *SHAPE), dtype=torch.uint8)
        self.data = TensorDict({"image": image}, [self.rows]).share_memory_()
        self.few = self.data[: max(self.rows // 8, 1)]
        self.bytes = image.numel()
        self.chunk = max(CHUNK_BYTES // row_bytes, 1)
        here = self.link.device
        self.shared = TensorDict({"image": torch.empty_like(image)}, [self.rows]).share_memory_()
        self.plain = TensorDict({"image": torch.empty_like(image, device=here)}, [self.rows])
        self.floats = TensorDict({"image": torch.empty(image.shape, device=here)}, [self.rows])
        self.model = Scores().eval()
        self.loader: DataLoader[Tensor] | None = None

    def copies(self, buffers: list[Tensor]) -> Callable[[], None]:
        """The same buffers to the device, in turns, until as many bytes have gone there as the dataset has."""
        targets = self.link.empty_like(buffers)

        def run() -> None:
            for turn in range(-(-self.bytes // CHUNK_BYTES)):
                self.link.copy([(targets[turn % 2], buffers[turn % 2])])
            self.link.synchronize()

        return run

    def pinned(self) -> Callable[[], None]:
        """The floor: two buffers of torch's page-locked memory, and nothing else."""
        return self.copies([self.link.staging(CHUNK_BYTES) for _ in range(2)])

    def slots(self, close: contextlib.ExitStack) -> Callable[[], None]:
        """The same from two slots that are page-locked as those of workers are."""
        size = -(-CHUNK_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        buffers = []
        for _ in range(2):
            fd, path, unlink = anonymous_file(size)
            close.callback(release, os.getpid(), fd, unlink)
            buffer = torch.frombuffer(map_path(path, size), dtype=torch.uint8)
            if self.link.lock(buffer.data_ptr(), size):
                close.callback(self.link.unlock, buffer.data_ptr())
            buffers.append(buffer[:CHUNK_BYTES])
        return self.copies(buffers)

    def map_to(self, fn: Callable[[Any], Any], out: TensorDict) -> Callable[[], Any]:
        """`map(data, fn, out=<on the device>)`; a fake device has no tensors of its own, so its sink is named."""
        if self.device.type == "cuda" or out is self.shared:
            return lambda: tdmap.map(self.data, fn, num_workers=self.workers, out=out)

        def run() -> None:
            execution = Execution(num_workers=self.workers)
            plan = Context("map", execution, Output(None, self.data)).plan(self.data, 0, out, OUT_CHUNKS)
            with DeviceBuffer(out, self.link) as sink:
                execution.run(Job(Source(self.data), plan, fn), sink)

        return run

    def iterate(self, fn: Callable[[Any], Any]) -> Callable[[], None]:
        """`map_iter(data, fn, device=...)`, with the copies complete at the end."""

        def run() -> None:
            for _ in tdmap.map_iter(self.data, fn, num_workers=self.workers, chunksize=self.chunk, device=self.device):
                pass
            self.link.settle()

        return run

    def our_batches(self) -> None:
        """An epoch of augmented, shuffled batches on the device."""
        options: dict[str, Any] = {"shuffle": True, "seed": 0, "chunksize": BATCH, "device": self.device}
        for _ in tdmap.map_iter(self.few, augmented, num_workers=self.workers, **options):
            pass
        self.link.settle()

    def loader_batches(self) -> None:
        """The same epoch by torch's DataLoader, its workers kept between epochs."""
        if self.loader is None:
            self.loader = DataLoader(
                Batches(self.few["image"]),
                batch_size=BATCH,
                shuffle=True,
                num_workers=self.workers,
                persistent_workers=True,
                prefetch_factor=4,
                collate_fn=as_it_is,
                pin_memory=self.device.type == "cuda",
            )
        for batch in self.loader:
            batch.to(self.link.device, non_blocking=True)
        self.link.settle()

    def there(self) -> None:
        """`map(data, fn, device=...)`: the function runs on the device, and results come back."""
        scores = OnKeys(self.model, "image", "scores", keep=False)
        tdmap.map(self.data, scores, device=self.device, chunksize=self.chunk)

    def there_by_hand(self) -> None:
        """The same by a loop with two streams and page-locked buffers of its own."""
        images, scores = self.data["image"], torch.empty(self.rows, 10)
        if self.device.type != "cuda":
            with torch.no_grad():
                torch.cat([self.model(part) for part in images.split(self.chunk)], out=scores)
            return
        model, copies = Scores().eval().to(self.device), torch.cuda.Stream(self.device)
        model.load_state_dict(self.model.state_dict())
        staging = [torch.empty(self.chunk, *SHAPE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        read = [torch.cuda.Event(), torch.cuda.Event()]
        back = torch.empty(self.rows, 10, pin_memory=True)
        place = 0
        with torch.no_grad():
            for part, there in self._sent(images.split(self.chunk), staging, read, copies):
                back[place : place + len(part)].copy_(model(there), non_blocking=True)
                place += len(part)
        torch.cuda.synchronize(self.device)
        scores.copy_(back)

    def _sent(
        self, parts: tuple[Tensor, ...], staging: list[Tensor], read: list[torch.cuda.Event], copies: torch.cuda.Stream
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Each part with its copy on the device, which was begun while the one before was computed with."""
        current = torch.cuda.current_stream(self.device)
        ahead: list[tuple[Tensor, Tensor, torch.cuda.Event]] = []
        for part, buffer, event in zip(parts, itertools.cycle(staging), itertools.cycle(read)):
            event.synchronize()
            buffer[: len(part)].copy_(part)
            with torch.cuda.stream(copies):
                there = buffer[: len(part)].to(self.device, non_blocking=True)
                event.record(copies)
            ahead.append((part, there, event))
            if len(ahead) == 2:
                yield self._arrived(*ahead.pop(0), current)
        for sent in ahead:
            yield self._arrived(*sent, current)

    @staticmethod
    def _arrived(
        part: Tensor, there: Tensor, event: torch.cuda.Event, current: torch.cuda.Stream
    ) -> tuple[Tensor, Tensor]:
        current.wait_event(event)
        there.record_stream(current)
        return part, there

    def close(self) -> None:
        """End the DataLoader's workers."""
        if self.loader is not None:
            self.loader._iterator = None
            self.loader = None


def cases(work: Workload, close: contextlib.ExitStack) -> Benchmark:
    """All cases; ratios are by bytes that go to the device, or by rows."""
    bench = Benchmark(
        "device", unit="MB", title=f"Rows to {work.device}, {work.bytes >> 20} MB, {work.workers} workers"
    )
    once, four, few = work.bytes >> 20, 4 * work.bytes >> 20, max(work.few["image"].numel() >> 20, 1)
    bench.add(FLOOR, work.pinned(), units=once, kind="floor")
    bench.add("copies from locked slots", work.slots(close), units=once, against=FLOOR, wanted=0.9)
    bench.add(HERE, work.map_to(as_they_are, work.shared), units=once, kind="floor", against=FLOOR)
    bench.add(THERE, work.map_to(as_they_are, work.plain), units=once, against=FLOOR)
    bench.add("map_iter(device)", work.iterate(as_they_are), units=once, against=FLOOR)
    bench.add("map(out=device), normalise", work.map_to(normalise, work.floats), units=four, against=FLOOR)
    bench.add("map_iter(device), normalise", work.iterate(normalise), units=four, against=FLOOR)
    loader, by_hand = "DataLoader, pin_memory, augment", "a module, a loop with two streams"
    bench.add(loader, work.loader_batches, units=few, kind="peer")
    bench.add("map_iter(device), augment", work.our_batches, units=few, against=loader, wanted=1.5)
    bench.add(by_hand, work.there_by_hand, units=once, kind="peer")
    bench.add("map(module, device), and back", work.there, units=once, against=by_hand, wanted=0.9)
    return bench


def slower_of(bench: Benchmark) -> dict[str, Any]:
    """`map` into a buffer there, beside the slower of its two sides: the link, and workers that write here."""
    rates = {name: bench.results[name].rate for name in (FLOOR, HERE, THERE) if name in bench.results}
    if len(rates) < 3:
        return {}
    ratio = rates[THERE] / min(rates[FLOOR], rates[HERE])
    return {"map(out=device) beside the slower of link and workers": {"ratio": ratio, "wanted": 0.85}}


def main(argv: list[str] | None = None, checks: dict[str, Any] | None = None) -> Benchmark | None:
    """Run from the command line; None where there is no device. `checks` go into the file with the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="over a link that only pretends; nothing is saved")
    parser.add_argument("--megabytes", type=int, default=2048, help="size of the dataset (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=None, help="default: the cores that may be used, at most 8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="a regular expression: run these cases")
    options = parser.parse_args(argv)
    if not options.fake and not torch.cuda.is_available():
        print("benchmarks.device: skipped, because torch sees no CUDA device here. --fake runs it without one.")
        return None
    if options.fake:
        device_module.LINKS["mtia"] = FakeLink
    device = torch.device(FAKE if options.fake else f"cuda:{torch.cuda.current_device()}")
    workers = options.workers or min(Execution().workers, 8)
    with contextlib.ExitStack() as close:
        close.callback(device_module.LINKS.pop, "mtia", None)
        work = Workload(device, options.megabytes, workers)
        close.callback(work.close)
        bench = cases(work, close)
        name = "fake" if options.fake else torch.cuda.get_device_name(device)
        bench.settings = {"device": name, "workers": workers, "checks": checks or {}}
        bench.run(options.rounds, only=options.only, warmup=1, quiet=options.fake)
    bench.settings["targets"] = slower_of(bench)
    if options.fake:
        print(bench.table())
    else:
        bench.report(RESULTS)
    for target, found in bench.settings["targets"].items():
        met = "" if options.fake else "yes" if found["ratio"] >= found["wanted"] else "NO"
        print(f"{target}: {found['ratio']:.2f} (wanted {found['wanted']}) {met}")
    return bench


if __name__ == "__main__":
    main()
