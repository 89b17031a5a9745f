"""Runs that are killed, and go on to the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL")

import numpy as np
import torch
from PIL import Image

import tdmap
from tdmap.datasets import images
from tdmap.datasets.images.files import SUFFIXES
from tensordict_lite import Ragged, TensorDict
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
@pytest.mark.parametrize("options", [{"size": 96}, {"keep": "encoded"}, {"size": 48, "resize": "shorter"}])
def test_a_killed_ingest_goes_on_to_the_same_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "in").mkdir()
    make_pictures(tmp_path / "in", 1500)
    script = f"""
import warnings
warnings.simplefilter("ignore")
from tdmap.datasets import images
images.ingest({str(tmp_path / "in")!r}, {str(tmp_path / "out")!r}, on_error="skip", num_workers=2, **{options!r})
"""
    kills = kill_until_done(script)
    with pytest.warns(images.SkippedPictures):
        whole = images.ingest(tmp_path / "in", tmp_path / "whole", on_error="skip", num_workers=2, **options)
    assert len(whole) == 1500 - 50 and len(whole.skipped) == 50
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


@pytest.mark.slow
def test_a_killed_run_over_text_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    words = [f"{number} " * (number % 23) for number in range(40_000)]
    TensorDict({"x": torch.arange(40_000), "word": Ragged.from_list(words)}, [40_000]).memmap(tmp_path / "in")
    program = """
import tdmap
from tensordict_lite import Ragged, TensorDict

def fn(rows):
    kept = rows[rows["x"] % 3 > 0]
    backwards = Ragged.from_list([word[::-1] for word in kept["word"]])
    return TensorDict({"x": kept["x"], "word": backwards, "twice": kept.get("word")}, [len(kept)])
"""
    script = f"""
import warnings
warnings.simplefilter("ignore")
{program}
data = TensorDict.load_memmap({str(tmp_path / "in")!r})
tdmap.flat_map(data, fn, out={str(tmp_path / "out")!r}, resume=True, num_workers=2, chunksize=100)
"""
    kills = kill_until_done(script)
    names: dict[str, Any] = {}
    exec(program, names)
    data = TensorDict.load_memmap(tmp_path / "in")
    whole = tdmap.flat_map(data, names["fn"], out=tmp_path / "whole", chunksize=100, num_workers=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    kept = [number for number in range(40_000) if number % 3]
    assert whole["x"].tolist() == kept and kills >= 1
    assert whole["word"] == [words[number][::-1] for number in kept]
