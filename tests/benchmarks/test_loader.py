"""The loader benchmark runs at a tiny size, and its check of a resumed epoch holds."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import loader
from benchmarks._pictures import CROP, Pictures, augment

pytest.importorskip("matplotlib")


def test_loaders_give_every_picture_once_and_ours_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["loader", "--rows", "300", "--batch", "32", "--rounds", "1", "--only", "tdmap|torch|^DataLoader|rows of"]
    monkeypatch.setattr("sys.argv", [*command, "--folder", str(tmp_path), "--results", str(tmp_path)])
    loader.main()
    saved = json.loads((tmp_path / "loader.json").read_text())
    assert saved["settings"]["resumes_bit_for_bit"] is True
    assert [case["error"] for case in saved["cases"]] == [None] * 15
    assert "streaming_python" not in saved["settings"] and not list(tmp_path.glob("loader-*"))


def test_augmented_pictures_are_crops_flipped_and_normalised() -> None:
    picture = torch.arange(3 * 64 * 64).remainder(251).to(torch.uint8).view(1, 3, 64, 64)
    got = augment(picture.repeat(40, 1, 1, 1))
    plain = (picture[0].float() - torch.tensor([118.0, 112, 104]).view(3, 1, 1)) / torch.tensor([58.0, 57, 57]).view(
        3, 1, 1
    )
    windows = plain.unfold(1, CROP, 1).unfold(2, CROP, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    windows = torch.cat([windows, windows.flip(-1)])
    for one in got:
        assert (windows - one).abs().flatten(1).max(1).values.min() < 1e-5
    assert len({one.numpy().tobytes() for one in got}) > 10


def test_an_epoch_with_a_missing_row_is_refused(tmp_path: Path) -> None:
    work = Pictures(tmp_path, 4, 2, 1)
    images, labels = torch.zeros(2, 3, CROP, CROP), torch.tensor([3, 1])
    with pytest.raises(AssertionError, match="missing or come twice"):
        work.check(iter([(images, labels), (images, labels)]))
