"""Class folders of JPEG files, ingested once, train a small network; a run that is killed goes on in mid-epoch.

    python examples/train_images.py --files 600 --epochs 2 --workers 2

The pictures are cut-outs of photographs that come inside packages. The network is trained twice: once undisturbed, and
once by a program that kills itself in the middle of an epoch and is started again. Both end with the same weights.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from photos import load_photographs
from PIL import Image
from torch import Tensor, nn

from tdmap.datasets import images
from tensordict_lite import TensorDict

EDGE, BATCH = 32, 32
CLASSES = ("flower", "galaxies", "tissue", "motorcycle")


def make_folders(folder: Path, files: int) -> None:
    """Cut-outs of four photographs, as JPEG files in a folder each."""
    photographs = {photo.name: photo.pixels.permute(1, 2, 0).numpy() for photo in load_photographs()}
    generator = np.random.default_rng(0)
    for number in range(files):
        name = CLASSES[number % len(CLASSES)]
        pixels = photographs[name]
        y, x = (int(generator.integers(side - 96)) for side in pixels.shape[:2])
        path = folder / name / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[y : y + 96, x : x + 96]).save(path, quality=90)


def normalise(rows: TensorDict) -> TensorDict:
    """Pixels from -1 to 1, and half of the pictures mirrored."""
    pixels = rows["image"].float() / 127.5 - 1
    mirrored = torch.rand(len(pixels), 1, 1, 1) < 0.5
    return TensorDict({"x": torch.where(mirrored, pixels.flip(-1), pixels), "y": rows["label"]}, rows.batch_size)


def network() -> nn.Module:
    """A small convolutional network."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, len(CLASSES)),
    )  # fmt: skip


def train(dataset: Path, state: Path, epochs: int, workers: int, die_at: int) -> float:
    """Train, or go on with the training that `state` tells of; kills itself before step `die_at`, if that is above 0.

    Returns:
        The share of right answers in the last epoch.
    """
    data = images.Pictures.open(dataset).data
    batches = data.pipeline().map(normalise).shuffle(seed=0).batch(BATCH, drop_last=True).repeat(epochs)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loop = batches.iter(num_workers=workers)
    step, right = 0, []
    if state.exists():
        saved = torch.load(state)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loop.load_state_dict(saved["loop"])
        step, right = saved["step"], saved["right"]
        print(f"went on at step {step}")
    for batch in loop:
        logits: Tensor = model(batch["x"])
        loss = nn.functional.cross_entropy(logits, batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        right.append(float((logits.argmax(1) == batch["y"]).float().mean()))
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 5 == 0:
            values = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loop": loop.state_dict()}
            torch.save({**values, "step": step, "right": right}, f"{state}.new")
            os.replace(f"{state}.new", state)
    torch.save(model.state_dict(), state.with_suffix(".weights"))
    last = right[-(len(data) // BATCH) :]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", nargs=3, metavar=("DATASET", "STATE", "DIE_AT"), help="used by the program itself")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.resume:
        dataset, state, die_at = arguments.resume
        train(Path(dataset), Path(state), arguments.epochs, arguments.workers, int(die_at))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_folders(folder / "files", arguments.files)
        pictures = images.ingest(folder / "files", folder / "dataset", size=EDGE, num_workers=arguments.workers)
        print(f"{len(pictures):,} pictures in {len(pictures.classes)} classes")
        accuracy = train(folder / "dataset", folder / "whole", arguments.epochs, arguments.workers, 0)
        print(f"undisturbed: {accuracy:.0%} right in the last epoch")
        middle = len(pictures) // BATCH * arguments.epochs // 2 + 2
        again = [sys.executable, __file__, "--epochs", str(arguments.epochs), "--workers", str(arguments.workers)]
        for die_at in (middle, 0):
            done = subprocess.run([*again, "--resume", str(folder / "dataset"), str(folder / "killed"), str(die_at)])
            assert done.returncode == (-signal.SIGKILL if die_at else 0)
        whole, killed = (torch.load(folder / f"{name}.weights") for name in ("whole", "killed"))
        assert all(torch.equal(whole[key], killed[key]) for key in whole)
        assert accuracy > 0.6, "the network has learnt nothing"
        print("checked: the run that was killed in mid-epoch ends with the same weights")


if __name__ == "__main__":
    main()
