"""Runs that are killed, and go on to the same bytes."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL")

import numpy as np
import torch
from PIL import Image

from tdmap.datasets import images
from tdmap.datasets.images.files import SUFFIXES
from tests.datasets.killing import contents, kill_until_done


def make_pictures(folder: Path, files: int) -> None:
    """So many pictures; every thirtieth file is spoilt."""
    generator = np.random.default_rng(0)
    small = [Image.fromarray(generator.integers(0, 256, (9, 9, 3), dtype=np.uint8)) for _ in range(20)]
    for number, picture in enumerate(small):
        picture.resize((160, 120)).save(folder / f"{number}.jpg")
    kinds = [(folder / f"{number}.jpg").read_bytes() for number in range(20)]
    for number in range(20):
        (folder / f"{number}.jpg").unlink()
    for number in range(files):
        path = folder / f"{number % 3}" / f"{number:05d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(kinds[number % 20][: 300 if number % 30 == 0 else None])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"size": 48}, {"keep": "encoded"}])
def test_a_killed_ingest_goes_on_to_the_same_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "in").mkdir()
    make_pictures(tmp_path / "in", 600)
    script = f"""
import warnings
warnings.simplefilter("ignore")
from tdmap.datasets import images
images.ingest({str(tmp_path / "in")!r}, {str(tmp_path / "out")!r}, on_error="skip", num_workers=2, **{options!r})
"""
    kills = kill_until_done(script)
    with pytest.warns(images.SkippedPictures):
        whole = images.ingest(tmp_path / "in", tmp_path / "whole", on_error="skip", num_workers=2, **options)
    assert len(whole) == 580 and len(whole.skipped) == 20
    assert kills >= 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.soak
def test_an_ingest_of_many_real_pictures_killed_five_times_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    make_pictures(tmp_path / "in", 20_000)
    packages = tmp_path / "in" / "packages"
    packages.mkdir()
    found = [path for path in Path(torch.__file__).parents[1].rglob("*") if path.suffix.lower() in SUFFIXES]
    for number, path in enumerate(sorted(found)):
        shutil.copy(path, packages / f"{number}-{path.name}")
    script = f"""
import warnings
warnings.simplefilter("ignore")
from tdmap.datasets import images
images.ingest({str(tmp_path / "in")!r}, {str(tmp_path / "out")!r}, size=64, on_error="skip", num_workers=2)
"""
    kills = kill_until_done(script, most=5)
    with pytest.warns(images.SkippedPictures):
        whole = images.ingest(tmp_path / "in", tmp_path / "whole", size=64, on_error="skip", num_workers=2)
    assert kills == 5 and len(found) > 20
    assert len(whole) + len(whole.skipped) == 20_000 + len(found) and len(whole) >= 19_333
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
