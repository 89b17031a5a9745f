"""A folder of pictures in class folders becomes one memory-mapped dataset; broken files are reported and left out.

    python examples/picture_folders.py --files 5_000 --workers 2

Writes JPEG and PNG files of cut-outs of photographs into class folders, spoils some of them in the ways that real
folders are spoilt (cut short, empty, renamed text files, zeros), and then does what a user would do: ingest the
folder, and look at what could not be read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from photos import load_photographs
from PIL import Image

from tdmap.datasets import images

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


def check(folder: Path, out: Path, spoilt: dict[str, str]) -> None:
    """Compare every row with what Pillow makes of the file of its name."""
    pictures = images.Pictures.open(out)
    assert {name for name, _ in pictures.skipped} == set(spoilt), "the files left out are those that were spoilt"
    names = pictures.names()
    kept = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == [name for name in kept if name not in spoilt], "the names go with their pictures, in their order"
    for row, name in enumerate(names):
        with Image.open(folder / name) as picture:
            wanted = np.asarray(picture.convert("RGB").resize((EDGE, EDGE), Image.Resampling.BILINEAR))
        assert np.array_equal(pictures.data["image"][row].numpy(), wanted.transpose(2, 0, 1)), name
        assert pictures.classes[int(pictures.data["label"][row])] == name.split("/")[0]


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
        with warnings.catch_warnings(record=True):  # which tell of the files that are left out
            pictures = images.ingest(
                folder, out, size=EDGE, resize="exact", on_error="skip", num_workers=arguments.workers
            )
        seconds = time.perf_counter() - began
        files = len(pictures.files)
        print(f"{files:,} files in {len(CLASSES)} folders, {len(pictures):,} pictures, {files / seconds:,.0f}/s")
        for reason, count in Counter(reason for _, reason in pictures.skipped).most_common():
            print(f"  {count:4d} files left out: {reason}")
        check(folder, out, spoilt)
        print("checked: every picture has its own name and class, and no other file is missing")


if __name__ == "__main__":
    main()
