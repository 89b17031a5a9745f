"""Decode, augment, filter and batch real photographs, and go on in the middle of an epoch.

    python examples/pipeline.py --rows 4_000 --workers 2

Cuts patches out of photographs and keeps them as JPEG files in a memory-mapped dataset, as a picture dataset on a disk
would. The pipeline decodes them, drops those without contrast, crops and flips at random, and makes batches. Every
pixel of every batch is then checked against plain numpy and Pillow.
"""

from __future__ import annotations

import argparse
import io
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photos import load_photographs
from PIL import Image
from torch import Tensor

from tdmap import Pipeline
from tensordict_lite import TensorDict

EDGE, CROP = 64, 56
CONTRAST = 30.0


def encode_patches(folder: Path, rows: int, seed: int) -> TensorDict:
    """A dataset of ``rows`` JPEG files: ``file`` uint8 ``[longest]``, ``nbytes`` int64, ``photo`` int64."""
    photographs = [photo.pixels.permute(1, 2, 0).numpy() for photo in load_photographs()]
    generator = np.random.default_rng(seed)
    files, photos = [], []
    for _ in range(rows):
        number = int(generator.integers(len(photographs)))
        height, width, _ = photographs[number].shape
        y, x = int(generator.integers(height - EDGE)), int(generator.integers(width - EDGE))
        buffer = io.BytesIO()
        Image.fromarray(photographs[number][y : y + EDGE, x : x + EDGE]).save(buffer, "JPEG", quality=90)
        files.append(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))
        photos.append(number)
    nbytes = torch.tensor([len(file) for file in files])
    padded = torch.nn.utils.rnn.pad_sequence(files, batch_first=True)
    data = TensorDict(
        {"file": padded, "nbytes": nbytes, "photo": torch.tensor(photos), "row": torch.arange(rows)}, [rows]
    )
    return data.memmap(folder)


def decode(row: TensorDict) -> TensorDict:
    """One JPEG file to uint8 ``[3, 64, 64]``."""
    with Image.open(io.BytesIO(row["file"][: row["nbytes"]].numpy().tobytes())) as picture:
        pixels = torch.from_numpy(np.asarray(picture).transpose(2, 0, 1).copy())
    return TensorDict({"image": pixels, "photo": row["photo"], "row": row["row"]}, [])


def has_contrast(chunk: TensorDict) -> Tensor:
    """One bool a picture: drops sky, out-of-focus background and black corners."""
    spread: Tensor = chunk["image"].float().flatten(1).std(1)
    return spread > CONTRAST


def augment(batch: TensorDict) -> TensorDict:
    """A random crop and flip of each picture, and where it was taken."""
    rows = len(batch)
    top, left = torch.randint(0, EDGE - CROP + 1, (2, rows))
    flip = torch.rand(rows) < 0.5
    image = torch.empty(rows, 3, CROP, CROP)
    for number, (y, x, flipped) in enumerate(zip(top.tolist(), left.tolist(), flip.tolist())):
        crop = batch["image"][number, :, y : y + CROP, x : x + CROP]
        image[number] = crop.flip(-1) if flipped else crop
    entries = {"image": image.div_(255), "top": top, "left": left, "flip": flip}
    return TensorDict({**entries, "photo": batch["photo"], "row": batch["row"]}, [rows])


def build(data: TensorDict, batch: int, seed: int) -> Pipeline:
    """The pipeline. `augment` treats rows one by one, so it stands before `batch`, and runs in the workers."""
    pipeline: Pipeline = data.pipeline(seed=seed)
    return pipeline.shuffle(seed).map_rows(decode).filter(has_contrast).map(augment).batch(batch)


def check(batches: list[TensorDict], data: TensorDict, size: int) -> None:
    """Raise AssertionError unless numpy and Pillow make the same batches of the same files."""
    kept: list[int] = []
    files: Any = data["file"].numpy()
    pictures = {}
    for row, nbytes in enumerate(data["nbytes"].tolist()):
        picture = np.asarray(Image.open(io.BytesIO(files[row, :nbytes].tobytes())))
        if picture.astype(np.float32).std(ddof=1) > CONTRAST:
            kept.append(row)
            pictures[row] = picture
    rows = [row for batch in batches for row in batch["row"].tolist()]
    assert sorted(rows) == kept and rows != kept, "every picture with contrast once, in another order"
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    for batch in batches:
        for number, row in enumerate(batch["row"].tolist()):
            y, x = int(batch["top"][number]), int(batch["left"][number])
            crop = pictures[row][y : y + CROP, x : x + CROP].transpose(2, 0, 1)
            crop = crop[..., ::-1] if batch["flip"][number] else crop
            np.testing.assert_array_equal(batch["image"][number].numpy(), crop.astype(np.float32) / 255)


def main() -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tdmap-pipeline-") as folder:
        data = encode_patches(Path(folder) / "jpeg", options.rows, options.seed)
        pipeline = build(data, options.batch, options.seed)
        print(pipeline.explain(num_workers=options.workers), end="\n\n")
        began = time.perf_counter()
        batches = [batch.clone() for batch in pipeline.iter(num_workers=options.workers)]
        seconds = time.perf_counter() - began
        check(batches, data, options.batch)

        half = len(batches) // 2
        first = pipeline.iter(num_workers=options.workers)
        for _ in itertools.islice(first, half):
            pass
        saved = first.state_dict()
        first.close()
        later = pipeline.iter(num_workers=1)  # another program, say, with other workers
        later.load_state_dict(saved)
        for batch, wanted in itertools.zip_longest(later, batches[half:]):
            assert bool((batch == wanted).all())
    kept = sum(len(batch) for batch in batches)
    print(f"{options.rows:,} files, {kept:,} pictures with contrast, {len(batches)} batches in {seconds:.1f} s")
    print(f"went on after batch {half} with the same bits: {saved['position']}")
    print("checked: numpy and Pillow make the same batches")


if __name__ == "__main__":
    main()
