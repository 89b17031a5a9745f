"""mosaicml-streaming: its shards on disk, its shuffle, a DataLoader around it.

The package needs another huggingface-hub than `datasets`, so it may live in an interpreter of its own: this module is
also the program that runs there, which answers each line on its input with the seconds of an epoch.

    path/to/bin/python -m benchmarks.peers.loader_streaming FOLDER ROWS BATCH WORKERS
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks._harness import Benchmark, Seconds
from benchmarks._pictures import SIDE, Pictures, augment

ROOT = Path(__file__).parents[2]


def add_cases(bench: Benchmark, work: Pictures, against: str) -> Callable[[], None]:
    """Add one case.

    Raises:
        ImportError: the interpreter of the setting ``streaming_python`` has no mosaicml-streaming.
    """
    python = bench.settings.get("streaming_python", sys.executable)
    if subprocess.run([python, "-c", "import streaming"], cwd=ROOT, capture_output=True).returncode:
        raise ImportError("no mosaicml-streaming; --streaming-python names an interpreter that has it")
    command = [python, "-m", __name__, str(work.folder), str(work.rows), str(work.batch), str(work.workers)]
    started: list[subprocess.Popen[str]] = []

    def run() -> Seconds:
        if not started:
            started.append(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        process = started[0]
        assert process.stdin is not None and process.stdout is not None
        print("epoch", file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the interpreter of mosaicml-streaming ended with {process.wait()}")
        return Seconds(*json.loads(answer))

    bench.add("mosaicml-streaming in a DataLoader", run, units=work.batches, kind="peer", against=against, rounds=3)

    def close() -> None:
        for process in started:
            process.communicate(timeout=60)

    return close


def main() -> None:
    """Write the shards, then measure an epoch for each line of input."""
    import torch
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    from benchmarks._harness import Stopwatch

    torch.set_num_threads(1)
    work = Pictures(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
    shards = work.folder.parent / "shards"
    shutil.rmtree(shards, ignore_errors=True)
    columns = {"image": f"ndarray:uint8:3,{SIDE},{SIDE}", "label": "int"}
    with MDSWriter(out=str(shards), columns=columns, size_limit=1 << 24) as writer:
        for image, label in zip(work.images(), work.labels()):
            writer.write({"image": image, "label": int(label)})

    def as_batch(samples: list[dict[str, object]]) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.stack([torch.from_numpy(sample["image"]) for sample in samples])
        return augment(images), torch.tensor([sample["label"] for sample in samples])

    # Pictures are augmented by the batch, in the workers: faster than one by one in `__getitem__`.
    rows = StreamingDataset(local=str(shards), shuffle=True, batch_size=work.batch)
    loader = DataLoader(
        rows,
        batch_size=work.batch,
        num_workers=work.workers,
        persistent_workers=True,
        prefetch_factor=4,
        collate_fn=as_batch,
    )
    for _ in sys.stdin:
        with Stopwatch() as watch:
            work.check(iter(loader), exact=False)
        print(json.dumps([watch.seconds, watch.seconds.cpu]), flush=True)


if __name__ == "__main__":
    main()
