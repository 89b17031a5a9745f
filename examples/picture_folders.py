"""A folder of pictures in class folders becomes one memory-mapped dataset; broken files are reported and left out.

    python examples/picture_folders.py --files 5_000 --workers 2

Writes JPEG and PNG files of cut-outs of photographs into class folders, spoils some of them in the ways that real
folders are spoilt (cut short, empty, renamed text files, other numbers of channels, other sizes), and then does what a
user would do: list the files, map a function over the list, and look at what could not be read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photos import load_photographs
from PIL import Image

import tdmap
from tensordict_lite import TensorDict

EDGE = 48
CLASSES = ("temple", "flower", "cat", "street", "moon")


def make_folders(folder: Path, files: int, seed: int) -> dict[str, str]:
    """Write so many pictures into class folders, and spoil about one in forty.

    Returns:
        How each spoilt file was spoilt, by its path relative to ``folder``.
    """
    photographs = [photo.pixels.permute(1, 2, 0).numpy() for photo in load_photographs()]
    generator = np.random.default_rng(seed)
    spoilt = {}
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for number in range(files):
        photo = photographs[int(generator.integers(len(photographs)))]
        height, width, _ = photo.shape
        edge = EDGE + int(generator.integers(3)) * 16
        y, x = int(generator.integers(height - edge)), int(generator.integers(width - edge))
        picture = Image.fromarray(photo[y : y + edge, x : x + edge])
        path = folder / CLASSES[number % len(CLASSES)] / f"{number:06d}.{'png' if number % 3 == 0 else 'jpg'}"
        picture.save(path)
        if generator.random() < 0.025:
            spoilt[str(path.relative_to(folder))] = spoil(path, picture, int(generator.integers(4)))
    return spoilt


def spoil(path: Path, picture: Image.Image, way: int) -> str:
    """Damage a file as time and people do; what was done."""
    if way == 0:
        path.write_bytes(path.read_bytes()[:100])
        return "cut short"
    if way == 1:
        path.write_bytes(b"")
        return "empty"
    if way == 2:
        path.write_text("this is no picture\n")
        return "text"
    path.write_bytes(b"\x00" * 500)
    return "zeros"


def load(row: TensorDict) -> TensorDict:
    """One file: its pixels uint8 ``[3, 48, 48]``, its class and its name."""
    with Image.open(row["path"]) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((EDGE, EDGE)))
    return TensorDict(
        {
            "image": torch.from_numpy(pixels.transpose(2, 0, 1).copy()),
            "label": row["label"],
            "name": "/".join(Path(row["path"]).parts[-2:]),
        },
        [],
    )


def ingest(folder: Path, out: Path, **options: Any) -> tuple[TensorDict, tdmap.RowErrors, list[Path]]:
    """The job: a list of files, a function of one of them, a folder for the result.

    Returns:
        The dataset, the rows that could not be read, and the files in the order of the list.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    index = TensorDict(
        {
            "path": [str(path) for path in paths],
            "label": torch.tensor([CLASSES.index(path.parent.name) for path in paths]),
        },
        batch_size=[len(paths)],
    )
    errors = tdmap.RowErrors("drop")
    data = index.map(load, chunksize=0, out=out, on_error=errors, **options)
    return data, errors, paths


def check(folder: Path, data: TensorDict, errors: tdmap.RowErrors, paths: list[Path], spoilt: dict[str, str]) -> None:
    """Compare every row with what Pillow makes of the file of its name."""
    missing = {str(paths[bad.row].relative_to(folder)) for bad in errors}
    assert missing == set(spoilt), missing ^ set(spoilt)
    names = data["name"]
    kept = [str(path.relative_to(folder)) for path in paths if str(path.relative_to(folder)) not in missing]
    assert names == kept, "the names go with their pictures, in the order of the list"
    for row, name in enumerate(names):
        with Image.open(folder / name) as picture:
            wanted = np.asarray(picture.convert("RGB").resize((EDGE, EDGE))).transpose(2, 0, 1)
        assert np.array_equal(data["image"][row].numpy(), wanted), name
        assert CLASSES[int(data["label"][row])] == name.split("/")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5_000)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch) / "pictures", Path(scratch) / "dataset"
        spoilt = make_folders(folder, arguments.files, arguments.seed)
        began = time.perf_counter()
        data, errors, paths = ingest(folder, out, num_workers=arguments.workers)
        seconds = time.perf_counter() - began
        print(f"{len(paths):,} files in {len(CLASSES)} folders, {len(data):,} pictures, {len(paths) / seconds:,.0f}/s")
        for kind, count in Counter(type(bad.error).__name__ for bad in errors).most_common():
            print(f"  {count:4d} files left out: {kind}")
        for bad in errors[:3]:
            print(f"       {paths[bad.row].relative_to(folder)}: {str(bad.error)[:70]}")
        check(folder, TensorDict.load_memmap(out), errors, paths, spoilt)
        print("checked: every picture has its own name and class, and no other file is missing")


if __name__ == "__main__":
    main()
