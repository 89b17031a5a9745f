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

from tdmap.datasets import Jagged, Table, images
from tdmap.datasets.images.files import SUFFIXES
from tensordict_lite import TensorDict
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
def test_a_killed_map_of_jagged_rows_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    Jagged.from_list([f"{number} " * (number % 23) for number in range(60_000)]).save(tmp_path / "in", num_workers=0)
    script = f"""
import warnings
warnings.simplefilter("ignore")
from tdmap.datasets import Jagged

def fn(rows):
    return [row[::-1] * (len(row) % 3) for row in rows]

Jagged.open({str(tmp_path / "in")!r}).map(fn, {str(tmp_path / "out")!r}, resume=True, num_workers=2, chunksize=100)
"""
    kills = kill_until_done(script)

    def fn(rows: Jagged) -> list[str]:
        return [row[::-1] * (len(row) % 3) for row in rows]

    whole = Jagged.open(tmp_path / "in").map(fn, tmp_path / "whole", num_workers=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert len(whole) == 60_000 and kills >= 1


@pytest.mark.slow
def test_a_killed_map_of_a_table_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    words = Jagged.from_list([f"{number} " * (number % 23) for number in range(40_000)])
    Table(TensorDict({"x": torch.arange(40_000)}, [40_000]), {"word": words}).save(tmp_path / "in")
    program = """
from tdmap.datasets import Table

def fn(rows):
    kept = rows["x"] % 3 > 0
    return {"x": rows["x"][kept], "word": [word[::-1] for word in rows["word"][kept]], "twice": rows["word"][kept]}
"""
    script = f"""
import warnings
warnings.simplefilter("ignore")
{program}
Table.open({str(tmp_path / "in")!r}).map(fn, {str(tmp_path / "out")!r}, resume=True, num_workers=2, chunksize=100)
"""
    kills = kill_until_done(script)
    names: dict[str, Any] = {}
    exec(program, names)
    whole = Table.open(tmp_path / "in").map(names["fn"], tmp_path / "whole", num_workers=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    kept = [number for number in range(40_000) if number % 3]
    assert whole.rows["x"].tolist() == kept and kills >= 1
    assert whole["word"].tolist() == [(f"{number} " * (number % 23))[::-1] for number in kept]
