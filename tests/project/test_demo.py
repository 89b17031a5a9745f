"""The demo on few rows: it proves its own result, and the same seed gives the same bytes."""

import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("skimage")
pytest.importorskip("PIL")

from PIL import Image
from typer import BadParameter

from tests import interpreters

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def demo() -> Iterator[ModuleType]:
    """The example as a module of this process: its imports take longer than its work on few rows."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        yield importlib.import_module("preprocess_images")
    finally:
        sys.path.remove(str(ROOT / "examples"))


def digests(output: str) -> list[tuple[str, str]]:
    """Name and SHA-256 of each dataset that the demo printed."""
    return [(name, digest) for digest, name in re.findall(r"sha256 ([0-9a-f]{64})  (\w+)", output)]


def test_same_seed_gives_the_same_bytes_for_any_number_of_workers(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160"}
    options = ["--rows", "300", "--workers", "1", "--seed", "5", "--dir", str(tmp_path / "one")]
    alone = interpreters.run(["examples/preprocess_images.py", *options], cwd=ROOT, env=env)
    assert alone.returncode == 0, alone.stderr
    assert "300 random rows equal the plain-torch answer" in alone.stdout
    with Image.open(tmp_path / "one" / "before_after.png") as sheet:
        assert sheet.width > 1000
    assert [p.name for p in (tmp_path / "one").iterdir()] == ["before_after.png"]

    demo.main(rows="300", workers=3, seed=5, dir=tmp_path / "three", pbar=False)
    assert [name for name, _ in digests(alone.stdout)] == ["photos", "normalised", "negatives"]
    assert digests(capsys.readouterr().out) == digests(alone.stdout)


def test_keep_leaves_the_datasets_and_names_commands_that_look_at_them(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.main(rows="50", workers=1, dir=tmp_path, keep=True, dtype=demo.Precision.float32, pbar=False)
    size = (tmp_path / "normalised" / "image.memmap").stat().st_size
    assert size == 50 * 3 * 64 * 64 * 4
    assert {p.name for p in tmp_path.iterdir()} == {"before_after.png", "photos", "normalised", "negatives"}
    commands = re.findall(r"^  (.+ -m tdmap .+)$", capsys.readouterr().out, re.MULTILINE)
    assert [command.split(" -m tdmap ")[1].split()[0] for command in commands] == ["info", "head", "stats"]
    for command in commands:
        ran = interpreters.run(shlex.split(command)[1:], cwd=ROOT)
        assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "sheet.png").exists()


def test_a_wrong_row_is_found(demo: ModuleType, tmp_path: Path) -> None:
    demo.main(rows="50", workers=1, dir=tmp_path, keep=True, pbar=False)
    with (tmp_path / "normalised" / "image.memmap").open("r+b") as file:
        file.write(bytes(50 * 3 * 64 * 64 * 2))
    paths = {name: tmp_path / name for name in ("photos", "normalised", "negatives")}
    with pytest.raises(SystemExit, match="normalised differs"):
        demo.verify(paths, 0, demo.torch.float16)


def test_a_count_that_is_no_count_is_refused(demo: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="positive whole number"):
        demo.main(rows="0", dir=tmp_path)


def test_a_disk_that_is_too_small_is_found_before_the_first_row(demo: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="are free"):
        demo.main(rows="9" * 12, dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_left_alone(demo: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "wedding.txt").write_text("precious")
    with pytest.raises(SystemExit, match="in the way"):
        demo.main(rows="50", dir=tmp_path)
    assert (tmp_path / "photos" / "wedding.txt").read_text() == "precious"
