"""How fast rows reach a device: the link itself, and what `map` and `map_iter` leave of it.

    python -m benchmarks.device            where there is a CUDA device; says so and stops where there is none
    python -m benchmarks.device --fake     the same calls over a link that only pretends, to see that they run

The floor is a loop that copies two page-locked buffers to the device in turns, as fast as the link allows. Workers
hand out rows of a page-locked dataset unchanged (`map_iter`, `map` into a buffer on the device), so that what is
measured is the way, not the function; one more case normalises pictures on the way, which is what people do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

import tdmap
from benchmarks._harness import RESULTS, Benchmark
from tdmap.api import plan_for
from tdmap.devices import OUT_CHUNKS
from tdmap.execution import Execution
from tdmap.job import Job, Source
from tdmap.runtime import device as device_module
from tdmap.runtime.device import DeviceLink, open_link
from tdmap.sinks.device import DeviceBuffer
from tensordict_lite import TensorDict
from tests.device.fakelink import FakeLink

FAKE = "mtia:0"
"""A device type that torch can spell, and that nobody has here."""

CHUNK_BYTES = 8 << 20
SHAPE = (3, 64, 64)


def as_they_are(td: TensorDict) -> TensorDict:
    """Rows unchanged, in memory of their own."""
    return td.clone()


def normalise(td: TensorDict) -> TensorDict:
    """Bytes to floats between -1 and 1: four times as many bytes leave as have come."""
    return TensorDict({"image": td["image"].float().mul_(1 / 127.5).sub_(1)}, td.batch_size)


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
        self.link: DeviceLink = open_link(device)
        image = torch.randint(0, 256, (self.rows, *SHAPE), dtype=torch.uint8)
        self.data = TensorDict({"image": image}, [self.rows]).share_memory_()
        self.bytes = image.numel()
        self.chunk = max(CHUNK_BYTES // row_bytes, 1)
        here = self.link.device
        self.plain = TensorDict({"image": torch.empty_like(image, device=here)}, [self.rows])
        self.floats = TensorDict({"image": torch.empty(image.shape, device=here)}, [self.rows])

    def pinned_loop(self) -> None:
        """The floor: two page-locked buffers, in turns, and nothing else."""
        buffers = [self.link.staging(CHUNK_BYTES) for _ in range(2)]
        targets = self.link.empty_like(buffers)
        for turn in range(-(-self.bytes // CHUNK_BYTES)):
            self.link.copy([(targets[turn % 2], buffers[turn % 2])])
        self.link.synchronize()

    def map_to(self, fn: Callable[[Any], Any], out: TensorDict) -> Callable[[], Any]:
        """`map(data, fn, out=<on the device>)`; a fake device has no tensors of its own, so its sink is named."""
        if self.device.type == "cuda":
            return lambda: tdmap.map(self.data, fn, 0, self.workers, out=out)

        def run() -> None:
            plan = plan_for(self.data, fn, 0, None, None, out, OUT_CHUNKS)
            with DeviceBuffer(out, self.link) as sink:
                Execution(num_workers=self.workers).run(Job(Source(self.data), plan, fn), sink)

        return run

    def iterate(self, fn: Callable[[Any], Any]) -> Callable[[], None]:
        """`map_iter(data, fn, device=...)`, with the copies complete at the end."""

        def run() -> None:
            for _ in tdmap.map_iter(self.data, fn, 0, self.workers, chunksize=self.chunk, device=self.device):
                pass
            self.link.settle()

        return run

    def there(self) -> None:
        """`map(data, fn, device=...)`: the function runs on the device, and results come back."""
        tdmap.map(self.data, as_they_are, 0, self.workers, chunksize=self.chunk, device=self.device)


def cases(work: Workload) -> Benchmark:
    """All cases; ratios are to the copy loop, by bytes that go to the device."""
    bench = Benchmark(
        "device", unit="MB", title=f"Rows to {work.device}, {work.bytes >> 20} MB, {work.workers} workers"
    )
    once, four = work.bytes >> 20, 4 * work.bytes >> 20
    floor = "copies from page-locked memory"
    bench.add(floor, work.pinned_loop, units=once, kind="floor")
    bench.add("map(out=device)", work.map_to(as_they_are, work.plain), units=once, against=floor, wanted=0.7)
    bench.add("map_iter(device)", work.iterate(as_they_are), units=once, against=floor, wanted=0.7)
    bench.add("map(out=device), normalise", work.map_to(normalise, work.floats), units=four, against=floor)
    bench.add("map_iter(device), normalise", work.iterate(normalise), units=four, against=floor)
    bench.add("map(fn, device), and back", work.there, units=once, against=floor)
    return bench


def main(argv: list[str] | None = None) -> Benchmark | None:
    """Run from the command line; None where there is no device."""
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
    bench = cases(Workload(device, options.megabytes, workers))
    bench.settings = {"device": "fake" if options.fake else torch.cuda.get_device_name(device), "workers": workers}
    try:
        bench.run(options.rounds, only=options.only, warmup=1, quiet=options.fake)
    finally:
        device_module.LINKS.pop("mtia", None)
    if options.fake:
        print(bench.table())
    else:
        bench.report(RESULTS)
    return bench


if __name__ == "__main__":
    main()
