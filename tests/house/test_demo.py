"""The demo on few rows: it proves its own result, and the same seed gives the same bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("skimage")
pytest.importorskip("PIL")

from PIL import Image

ROOT = Path(__file__).parents[2]


def run_demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "examples/preprocess_images.py", "--dir", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)


def test_same_seed_gives_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    digests = []
    for workers in ("1", "3"):
        ran = run_demo(tmp_path / workers, "--rows", "1_500", "--workers", workers, "--seed", "5")
        assert ran.returncode == 0, ran.stderr
        assert "1,000 random rows equal the plain-torch answer" in ran.stdout
        digests.append(re.findall(r"sha256 ([0-9a-f]{64})  (\w+)", ran.stdout))
    assert [name for _, name in digests[0]] == ["photos", "normalised", "negatives"]
    assert digests[0] == digests[1]
    with Image.open(tmp_path / "3" / "before_after.png") as sheet:
        assert sheet.width > 1000
    assert [p.name for p in (tmp_path / "3").iterdir()] == ["before_after.png"]


def test_keep_leaves_the_datasets(tmp_path: Path) -> None:
    ran = run_demo(tmp_path, "--rows", "50", "--workers", "1", "--keep", "--dtype", "float32", "--no-pbar")
    assert ran.returncode == 0, ran.stderr
    size = (tmp_path / "normalised" / "image.memmap").stat().st_size
    assert size == 50 * 3 * 64 * 64 * 4
    assert {p.name for p in tmp_path.iterdir()} == {"before_after.png", "photos", "normalised", "negatives"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--rows", "0"], "positive whole number"), (["--rows", "9" * 12], "are free")],
)
def test_bad_options_are_refused(tmp_path: Path, options: list[str], reason: str) -> None:
    ran = run_demo(tmp_path, *options)
    assert ran.returncode != 0
    assert reason in ran.stderr + ran.stdout


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "wedding.txt").write_text("precious")
    ran = run_demo(tmp_path, "--rows", "50")
    assert ran.returncode != 0
    assert (tmp_path / "photos" / "wedding.txt").read_text() == "precious"
