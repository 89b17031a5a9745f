"""Folders of pictures as datasets: every kind of file, every spoilt one, labels, and back to files."""

import contextlib
import csv
import json
import os
import re
import struct
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.errors import FolderInUse, ResumeMismatch
from tensordict_lite import DatasetError, TensorDict
from tests import interpreters
from tests.processes import meanwhile

pytest.importorskip("PIL")

from PIL import Image, ImageOps

from tdmap.datasets import images
from tdmap.datasets.images import PictureError, Pictures, SkippedPictures, ingesting
from tdmap.datasets.images.pixels import Look, decode


def noise(height: int, width: int, seed: int = 0, channels: int = 3) -> Any:
    """A picture with smooth colours, so that JPEG keeps it nearly as it is."""
    generator = np.random.default_rng(seed)
    small = Image.fromarray(generator.integers(0, 256, (4, 4, channels), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def make_folder(folder: Path, files: int = 24, edge: int = 40) -> list[str]:
    """Pictures in two class folders; their names in order."""
    names = []
    for number in range(files):
        name = f"{'ab'[number % 2]}/{number:03d}.{('png', 'jpg', 'webp')[number % 3]}"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise(edge + number % 5, edge + number % 7, number).save(path)
        names.append(name)
    return sorted(names)


def wanted(path: Path, size: tuple[int, int]) -> torch.Tensor:
    """What Pillow makes of a file that is stretched to a size."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB").resize(size[::-1], Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "mp_start_method": "forkserver"}]
)
def test_rows_are_the_files_in_the_order_of_their_names(tmp_path: Path, options: Any) -> None:
    names = make_folder(tmp_path / "in")
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=(16, 20), resize="exact", **options)
    assert pictures.names() == names
    assert pictures.classes == ["a", "b"]
    data = TensorDict.load_memmap(tmp_path / "out")
    assert data["label"].tolist() == [name.startswith("b") for name in names]
    for row, name in enumerate(names):
        assert torch.equal(data["image"][row], wanted(tmp_path / "in" / name, (16, 20))), name


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("resize", ["crop", "pad", "shorter"])
def test_exif_orientation_is_applied(tmp_path: Path, turn: int, resize: str) -> None:
    picture = noise(60, 90)
    exif = picture.getexif()
    exif[0x0112] = turn
    picture.save(tmp_path / "x.jpg", exif=exif, quality=95)
    with Image.open(tmp_path / "x.jpg") as opened:
        ImageOps.exif_transpose(opened).save(tmp_path / "plain.png")
    look = Look((24, 30), resize)
    assert np.array_equal(decode(str(tmp_path / "x.jpg"), look), decode(str(tmp_path / "plain.png"), look))


def special(folder: Path) -> dict[str, Any]:
    """Files of every mode, each with the RGB pixels that are expected of it, uint8 [h, w, 3]."""
    rgb = noise(20, 30)
    grey = rgb.convert("L")
    alpha = noise(20, 30, 1).convert("L")
    both = rgb.copy()
    both.putalpha(alpha)
    white = Image.new("RGBA", both.size, (255, 255, 255, 255))
    over_white = Image.alpha_composite(white, both).convert("RGB")
    deep = (np.asarray(grey).astype(np.uint16) << 8) | 0x7F
    palette = rgb.quantize(16)
    clear = palette.copy()
    clear.info["transparency"] = 3
    found: dict[str, Any] = {}

    def put(name: str, picture: Any, expected: Any, **options: Any) -> None:
        picture.save(folder / name, **options)
        found[name] = np.asarray(expected.convert("RGB"))

    put("rgb.png", rgb, rgb)
    put("grey.png", grey, grey)
    put("deep.png", Image.fromarray(deep), grey)
    put("deep.tif", Image.fromarray(deep), grey)
    put("alpha.png", both, over_white)
    put("alpha.tif", both, over_white)
    put("palette.png", palette, palette)
    put("palette.gif", palette, palette)
    put("bits.png", grey.convert("1"), grey.convert("1"))
    put("animated.gif", palette, palette, save_all=True, append_images=[noise(20, 30, 5).quantize(16)])
    put("animated.png", rgb, rgb, save_all=True, append_images=[noise(20, 30, 5)])
    put("pages.tif", rgb, rgb, save_all=True, append_images=[noise(20, 30, 5)])
    cmyk = rgb.convert("CMYK")
    cmyk.save(folder / "cmyk.jpg", quality=95)
    with Image.open(folder / "cmyk.jpg") as opened:
        assert opened.mode == "CMYK"
        found["cmyk.jpg"] = np.asarray(opened.convert("RGB"))
    clear.save(folder / "clear.png", transparency=3)
    with Image.open(folder / "clear.png") as opened:
        shown = opened.convert("RGBA")
        found["clear.png"] = np.asarray(Image.alpha_composite(white, shown).convert("RGB"))
    return found


def test_every_mode_of_pictures_becomes_the_right_colours(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    expected = special(tmp_path / "in")
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", num_workers=0)
    assert pictures.names() == sorted(expected)
    for row, name in enumerate(pictures.names()):
        found = pictures.image(row).permute(1, 2, 0).numpy()
        assert np.array_equal(found, expected[name]), (name, int(np.abs(found.astype(int) - expected[name]).max()))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
@pytest.mark.parametrize("resize", ["crop", "pad", "exact"])
def test_all_modes_fit_every_way_of_scaling(tmp_path: Path, mode: str, channels: int, resize: str) -> None:
    (tmp_path / "in").mkdir()
    special(tmp_path / "in")
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=(12, 10), mode=mode, resize=resize, num_workers=0)
    assert pictures.data["image"].shape == (14, channels, 12, 10)


def test_crop_and_pad_show_what_they_should() -> None:
    array = np.zeros((10, 30, 3), np.uint8)
    array[:, 10:20] = 200  # the middle third
    from io import BytesIO

    file = BytesIO()
    Image.fromarray(array).save(file, "png")
    content = file.getvalue()
    cropped = decode(content, Look((10, 10), "crop"))
    assert (cropped == 200).all()
    padded = decode(content, Look((30, 30), "pad", background=(1, 2, 3)))
    assert np.array_equal(padded[10:20], array)
    assert (padded[:10] == (1, 2, 3)).all() and (padded[20:] == (1, 2, 3)).all()


def bomb() -> bytes:
    """A PNG file of a hundred bytes that says it has four billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


def spoil(folder: Path) -> dict[str, str]:
    """Spoilt files in the first class folder, each with a word of the reason that is expected."""
    whole = (folder / "a" / "000.png").read_bytes()
    jpeg = next(folder.rglob("*.jpg")).read_bytes()
    files = {
        "a/empty.jpg": (b"", "empty"),
        "a/text.jpg": (b"this is no picture\n", "not a picture"),
        "a/short.png": (whole[: len(whole) // 2], "cannot be"),
        "a/short.jpg": (jpeg[: len(jpeg) // 2], "cannot be"),
        "a/zeros.png": (b"\0" * 500, "not a picture"),
        "a/bomb.png": (bomb(), "too many pixels"),
        "a/damaged.png": (whole[:60] + b"\xff" * 40 + whole[100:], "cannot be"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / "a/float.tif")
    return {**{name: reason for name, (_, reason) in files.items()}, "a/float.tif": "range is unknown"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [16, None])
def test_spoilt_files_are_left_out_and_listed(tmp_path: Path, workers: int, size: int | None) -> None:
    names = make_folder(tmp_path / "in", 60)
    reasons = spoil(tmp_path / "in")
    with pytest.warns(SkippedPictures, match="8 of 68 files were left out") as caught:
        pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=size, on_error="skip", num_workers=workers)
    assert dict(pictures.skipped).keys() == reasons.keys()
    for name, reason in pictures.skipped:
        assert reasons[name] in reason, (name, reason)
    assert pictures.names() == names
    lines = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [(line["file"], line["reason"]) for line in lines] == pictures.skipped
    assert sorted(caught[0].message.files) == sorted(pictures.skipped)  # type: ignore[union-attr]
    clean = tmp_path / "clean"
    for name in names:
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        (clean / name).write_bytes((tmp_path / "in" / name).read_bytes())
    other = images.ingest(clean, tmp_path / "other", size=size, num_workers=0)
    for row in range(len(names)):
        assert torch.equal(pictures.image(row), other.image(row))


def test_a_spoilt_file_ends_the_call_and_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "in")
    (tmp_path / "in" / "b" / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(PictureError, match=r"b/bad\.jpg: not a picture"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=16, num_workers=2)
    with pytest.warns(SkippedPictures):  # the same folder, going on from there
        pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=16, num_workers=2, on_error="skip")
    assert len(pictures) == 24


LARGE = 840
"""Pixels a side of a picture that is a chunk of its own: some are done when one cannot be read."""


def test_another_folder_does_not_take_the_place_of_an_unfinished_one(tmp_path: Path) -> None:
    for name in ("in", "other"):
        make_folder(tmp_path / name)
        (tmp_path / name / "b" / "bad.jpg").write_bytes(name.encode())
    with pytest.raises(PictureError):
        images.ingest(tmp_path / "in", tmp_path / "out", size=LARGE, num_workers=0)
    with pytest.raises(ResumeMismatch, match="files"):
        images.ingest(tmp_path / "other", tmp_path / "out", size=LARGE, num_workers=0, on_error="skip")


def test_a_run_goes_on_under_another_on_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(ingesting.DecodeFiles, "read", _counting(ingesting.DecodeFiles.read, read))
    make_folder(tmp_path / "in")
    (tmp_path / "in" / "b" / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(PictureError):
        images.ingest(tmp_path / "in", tmp_path / "out", size=LARGE, num_workers=0)
    before = set(read)
    read.clear()
    with pytest.warns(SkippedPictures):
        pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=LARGE, num_workers=0, on_error="skip")
    assert len(pictures) == 24
    assert len(before) > 5 and len(before & set(read)) == 1  # the spoilt one


def _counting(real: Any, read: list[int]) -> Any:
    def counts(self: Any, number: int) -> Any:
        read.append(number)
        return real(self, number)

    return counts


def test_a_call_that_dies_before_rows_are_left_out_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "in")
    (tmp_path / "in" / "b" / "bad.jpg").write_bytes(b"nothing")
    (tmp_path / "in" / "a" / "000.png").write_bytes(b"")

    def dies(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    for step in ("permute", "_write_beside", "_exchange"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ingesting, step, dies)
            images.ingest(tmp_path / "in", tmp_path / "out", size=16, num_workers=0, on_error="skip")
        with pytest.raises(DatasetError, match=r"pictures\.json"):
            images.Pictures.open(tmp_path / "out")
    with pytest.warns(SkippedPictures):
        pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=16, num_workers=0, on_error="skip")
    assert [name for name, _ in pictures.skipped] == ["a/000.png", "b/bad.jpg"]
    assert len(pictures) == 23 and int(pictures.data["file"].min()) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_folder_of_spoilt_files_becomes_no_dataset(tmp_path: Path) -> None:
    for name in ("x.png", "y.jpg"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"nothing")
    with pytest.raises(PictureError, match="none of the 2 files can be read"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=16, num_workers=0, on_error="skip")
    with pytest.raises(DatasetError):
        TensorDict.load_memmap(tmp_path / "out")


def test_encoded_pictures_are_the_bytes_of_their_files(tmp_path: Path) -> None:
    names = make_folder(tmp_path / "in")
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", keep="encoded", num_workers=2)
    assert pictures.data.get("image").kind == "bytes"
    for row, name in enumerate(names):
        assert pictures.content(row) == (tmp_path / "in" / name).read_bytes()
    decoded = images.ingest(tmp_path / "in", tmp_path / "decoded", size=16, num_workers=0)
    rows = tdmap.shuffle(pictures.data, seed=3, num_workers=2)
    for found in (
        rows.map(pictures.decoder(16), num_workers=2),
        *rows.pipeline().map(pictures.decoder(16)).batch(24).iter(),
    ):
        assert set(found.keys()) == {"file", "label", "image"}
        assert torch.equal(found["image"], decoded.data["image"][rows["file"]])


def test_pictures_of_different_sizes_are_kept_and_can_be_brought_to_one(tmp_path: Path) -> None:
    names = make_folder(tmp_path / "in")
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=20, resize="shorter", num_workers=2)
    for row, name in enumerate(names):
        with Image.open(tmp_path / "in" / name) as picture:
            width, height = picture.size
        found = pictures.image(row)
        assert min(found.shape[1:]) == 20 and found.shape[0] == 3
        assert abs(found.shape[1] / found.shape[2] - height / width) < 0.06
    batch = pictures.data.map(pictures.decoder(12), num_workers=0)
    assert batch["image"].shape == (24, 3, 12, 12)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "mapping"])
@pytest.mark.parametrize("numbers", [True, False])
def test_labels_come_from_a_file(tmp_path: Path, kind: str, numbers: bool) -> None:
    names = make_folder(tmp_path / "in")[::-1][:20]
    labels: dict[str, Any] = {name: (index % 3 if numbers else "xyz"[index % 3]) for index, name in enumerate(names)}
    source: Any = labels
    if kind == "jsonl":
        source = tmp_path / "labels.jsonl"
        source.write_text("".join(json.dumps({"path": name, "class": label}) + "\n" for name, label in labels.items()))
    elif kind != "mapping":
        source = tmp_path / f"labels.{kind}"
        with source.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
            writer.writerows([("label", "file"), *((label, name) for name, label in labels.items())])
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=8, labels=source, num_workers=0)
    assert pictures.names() == names
    assert pictures.data["label"].tolist() == [index % 3 for index in range(20)]
    assert pictures.classes == ([] if numbers else ["x", "y", "z"])
    assert pictures.about["ignored"] == 4


def test_labels_of_missing_files_are_refused_or_listed(tmp_path: Path) -> None:
    names = make_folder(tmp_path / "in")
    labels = dict.fromkeys([*names, "a/nowhere.png"], 1)
    with pytest.raises(ValueError, match=r"1 files that are not in .*a/nowhere\.png"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=8, labels=labels, num_workers=0)
    with pytest.warns(SkippedPictures, match="No such file"):
        pictures = images.ingest(
            tmp_path / "in", tmp_path / "out", size=8, labels=labels, on_error="skip", num_workers=0
        )
    assert pictures.names() == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,label\na/000.png,x\na/000.png,y\n", "two labels"),
        ("file,label\n../up.png,x\n", "is not in"),
        ("file,colour\na/000.png,x\n", "columns file, colour, and none of label"),
        ("file,label\na/000.png,\n", "entry 1: .* is missing"),
        ("file,label\n", "no lines"),
    ],
)
def test_labels_that_cannot_be_used_are_told(tmp_path: Path, content: str, message: str) -> None:
    make_folder(tmp_path / "in", 2)
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        images.ingest(tmp_path / "in", tmp_path / "out", size=8, labels=tmp_path / "labels.csv")


def test_folders_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        images.ingest(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match="no pictures among 1 files"):
        images.ingest(tmp_path / "in", tmp_path / "out")
    make_folder(tmp_path / "in", 2)
    noise(8, 8).save(tmp_path / "in" / "loose.png")
    with pytest.raises(ValueError, match=r"1 images without a class \(loose\.png"):
        images.ingest(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    "options",
    [{"resize": "squash"}, {"mode": "CMYK"}, {"keep": "both"}, {"on_error": "ignore"}, {"size": 0}, {"size": (1, 2, 3)},
     {"size": "224"}, {"resample": "best"}, {"keep": "encoded", "size": 8}],
)  # fmt: skip
def test_options_out_of_range_are_told_before_anything_is_written(tmp_path: Path, options: Any) -> None:
    make_folder(tmp_path / "in", 2)
    with pytest.raises(ValueError):
        images.ingest(tmp_path / "in", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_second_call_opens_what_is_there(tmp_path: Path) -> None:
    make_folder(tmp_path / "in")
    first = images.ingest(tmp_path / "in", tmp_path / "out", size=8, num_workers=0)
    written = (tmp_path / "out" / "image.memmap").stat().st_mtime_ns
    again = images.ingest(tmp_path / "in", tmp_path / "out", size=8, num_workers=0)
    assert again.names() == first.names()
    assert (tmp_path / "out" / "image.memmap").stat().st_mtime_ns == written
    with pytest.raises(FileExistsError, match="size"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=9)
    with pytest.raises(FileExistsError, match="already"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=8, resume=False)
    assert Pictures.open(tmp_path / "out").classes == ["a", "b"]


@pytest.mark.parametrize("options", [{"size": 4}, {"keep": "encoded"}, {"size": 4, "resize": "shorter"}], ids=str)
def test_a_dataset_stays_until_the_pictures_that_replace_it_are_whole(tmp_path: Path, options: Any) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for n in range(4):
        Image.new("RGB", (9, 7), (n, 0, 0)).save(tmp_path / "in" / "a" / f"{n}.png")
    out = tmp_path / "out"
    TensorDict({"old": torch.arange(3)}, [3]).memmap(out)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        images.ingest(tmp_path / "in", out, num_workers=0, **options)
    with pytest.raises(ValueError, match="resume=True continues .* and overwrite=True replaces it: pass one"):
        images.ingest(tmp_path / "in", out, resume=True, overwrite=True, num_workers=0, **options)
    (tmp_path / "in" / "a" / "9.png").write_bytes(b"spoilt")
    with pytest.raises(images.PictureError, match=r"a/9.png"):
        images.ingest(tmp_path / "in", out, overwrite=True, num_workers=2, **options)
    assert TensorDict.load_memmap(out)["old"].tolist() == [0, 1, 2]
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]
    with pytest.warns(images.SkippedPictures, match=re.escape(str(out / "skipped.jsonl"))):
        found = images.ingest(tmp_path / "in", out, overwrite=True, on_error="skip", num_workers=2, **options)
    assert len(found) == 4 and found.path == out and [name for name, _ in found.skipped] == ["a/9.png"]
    with pytest.raises(FileExistsError, match="other options.*pass overwrite=True"):
        images.ingest(tmp_path / "in", out, num_workers=0, **{**options, "mode": "L"})
    (tmp_path / "in" / "a" / "9.png").unlink()
    grey = images.ingest(tmp_path / "in", out, overwrite=True, num_workers=0, **{**options, "mode": "L"})
    assert grey.about["mode"] == "L" and len(images.Pictures.open(out)) == 4
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


@pytest.mark.parametrize("spoilt", [False, True], ids=["whole", "spoilt"])
@pytest.mark.parametrize("options", [{"size": 4}, {"keep": "encoded"}, {"resize": "shorter"}], ids=str)
def test_two_calls_that_replace_one_folder_do_not_disturb_each_other(
    tmp_path: Path, options: Any, spoilt: bool
) -> None:
    make_folder(tmp_path / "in", 4)
    if spoilt:
        (tmp_path / "in" / "a" / "9.png").write_bytes(b"spoilt")
    done, options = 0, {"on_error": "skip", "num_workers": 0, "overwrite": True, **options}
    TensorDict({"old": torch.arange(3)}, [3]).memmap(tmp_path / "out")

    def second() -> None:
        nonlocal done
        with contextlib.suppress(FolderInUse):
            images.ingest(tmp_path / "in", tmp_path / "out", **options)
            done += 1

    with warnings.catch_warnings(), meanwhile(second, [(os, "unlink"), (os, "rmdir"), (os, "replace")]):
        warnings.simplefilter("ignore", SkippedPictures)
        found = images.ingest(tmp_path / "in", tmp_path / "out", **options)
    assert done <= 1  # when the first one has let go of the folder
    assert len(found) == len(Pictures.open(tmp_path / "out")) == 4
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_files_that_changed_meanwhile_are_another_run(tmp_path: Path) -> None:
    make_folder(tmp_path / "in", 200)
    (tmp_path / "in" / "b" / "zz.jpg").write_bytes(b"nothing")
    with pytest.raises(PictureError):
        images.ingest(tmp_path / "in", tmp_path / "out", size=8, num_workers=1)
    noise(8, 8).save(tmp_path / "in" / "b" / "zz.jpg")
    with pytest.raises(ResumeMismatch, match="files"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=8, num_workers=1)


@pytest.mark.parametrize("keep", ["decoded", "encoded"])
def test_pictures_become_files_again(tmp_path: Path, keep: str) -> None:
    names = make_folder(tmp_path / "in")
    options: Any = {"size": 16} if keep == "decoded" else {"keep": keep}
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", num_workers=0, **options)
    assert pictures.to_images(tmp_path / "files", num_workers=2) == len(names)
    again = images.ingest(tmp_path / "files", tmp_path / "again", num_workers=0, **options)
    assert again.classes == pictures.classes
    for row in range(len(names)):
        assert torch.equal(again.image(row), pictures.image(row))
    with pytest.raises(FileExistsError, match="exists: choose"):
        pictures.to_images(tmp_path / "files", num_workers=0)


def test_two_files_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for suffix in ("png", "webp", "bmp"):
        (tmp_path / "in" / "a").mkdir(parents=True, exist_ok=True)
        noise(8, 8, len(suffix)).save(tmp_path / "in" / "a" / f"x.{suffix}")
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=8, num_workers=0)
    pictures.to_images(tmp_path / "files", num_workers=0)
    assert sorted(path.name for path in (tmp_path / "files" / "a").iterdir()) == ["x.png", "x_1.png", "x_2.png"]


def test_preview_draws_a_contact_sheet(tmp_path: Path) -> None:
    make_folder(tmp_path / "in")
    pictures = images.ingest(tmp_path / "in", tmp_path / "out", size=24, num_workers=0)
    pictures.preview(tmp_path / "sheet.png", [0, 1, 2, 3, 4], edge=24, columns=3)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (3 * 25 + 1, 2 * 25 + 1)
        cell = np.asarray(sheet.crop((1, 1, 25, 25)))
    assert np.array_equal(cell, pictures.image(0).permute(1, 2, 0).numpy())


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "in", 2)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'tdmap\[images\]'"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=8)


def test_the_command_ingests_and_lists_what_it_left_out(tmp_path: Path) -> None:
    make_folder(tmp_path / "in")
    (tmp_path / "in" / "b" / "bad.jpg").write_bytes(b"nothing")
    command = ["-m", "tdmap", "ingest", "images", str(tmp_path / "in"), str(tmp_path / "out")]

    def run(*options: str) -> Any:
        return interpreters.run([*command, *options, "--num-workers", "1"])

    failed = run("--size", "16x12")
    assert failed.returncode == 1
    assert "b/bad.jpg: not a picture" in failed.stderr and "Traceback" not in failed.stderr
    done = run("--size", "16x12", "--on-error", "skip", "--preview", str(tmp_path / "sheet.png"))
    assert done.returncode == 0
    assert "24 pictures in 2 classes written to" in done.stdout
    assert "b/bad.jpg" in done.stderr and "skipped.jsonl" in done.stderr
    assert Pictures.open(tmp_path / "out").data["image"].shape == (24, 3, 16, 12)
    assert (tmp_path / "sheet.png").exists()
    refused = run("--size", "99x99", "--on-error", "skip")
    assert refused.returncode == 2 and "other options" in refused.stderr
