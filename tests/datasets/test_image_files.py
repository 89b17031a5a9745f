"""Files and folders of pictures as others make them: each is a row, or named with the reason why it is none."""

import os
import random
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordict_lite import DatasetError
from tests import interpreters

pytest.importorskip("PIL")

from PIL import Image

from tdmap.datasets import images
from tdmap.datasets.images import PictureError, Pictures, SkippedPictures
from tdmap.datasets.images.pixels import Look, decode

HOW: list[dict[str, Any]] = [{"size": 8}, {}, {"keep": "encoded"}]


def plain(path: Path, grey: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (12, 8), grey).save(path, "PNG")


# -- files and folders that are none -----------------------------------------------------------------------------------


def spoil(folder: Path, what: str) -> str:
    """Add something to a folder that holds `a/0.png` and `c/0.png`; the name that must be told."""
    (folder / "b").mkdir()
    outside = folder.parent / "outside"
    plain(outside / "x.png")
    if what == "fifo":
        os.mkfifo(folder / "b" / "x.png")
    elif what == "device":
        (folder / "b" / "x.png").symlink_to("/dev/zero")
    elif what == "folder":
        (folder / "b" / "x.png").mkdir()
        plain(folder / "b" / "y.png")
        return ""
    elif what == "empty":
        (folder / "b" / "x.png").touch()
    elif what == "link out":
        (folder / "b" / "x.png").symlink_to(outside / "x.png")
    elif what == "link within":
        (folder / "b" / "x.png").symlink_to(folder / "a" / "0.png")
        return ""
    elif what == "broken link":
        (folder / "b" / "x.png").symlink_to("nowhere")
    elif what == "loop":
        (folder / "b" / "x.png").symlink_to("x.png")
    elif what == "empty class":
        return "b/"
    elif what == "class of other files":
        (folder / "b" / "x.heic").write_bytes(b"x")
        return "b/"
    else:
        (folder / "b").rmdir()
        targets = {"linked class": outside, "linked class within": folder / "a", "class that leads nowhere": "nowhere"}
        if what in targets:
            (folder / "b").symlink_to(targets[what])
            return "b/"
        plain(folder / "b" / "0.png")
        (folder / "b" / "more").symlink_to(outside)
        return "b/more/"
    return "b/x.png"


SPOILT = (
    "fifo,device,folder,empty,link out,link within,broken link,loop,empty class,class of other files,linked class,"
    "linked class within,class that leads nowhere,linked folder in a class"
).split(",")


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("how", HOW, ids=str)
def test_what_is_no_row_is_named_or_listed(tmp_path: Path, what: str, how: dict[str, Any]) -> None:
    for name in "ac":
        plain(tmp_path / "in" / name / "0.png")
    name = spoil(tmp_path / "in", what)
    if not name:
        assert len(images.ingest(tmp_path / "in", tmp_path / "out", num_workers=0, **how)) == 3
        return
    with pytest.raises(PictureError) as caught:
        images.ingest(tmp_path / "in", tmp_path / "out", num_workers=0, **how)
    assert caught.value.file == name
    with pytest.warns(SkippedPictures, match=name):
        found = images.ingest(tmp_path / "in", tmp_path / "other", num_workers=0, on_error="skip", **how)
    assert [file for file, _ in found.skipped] == [name]
    assert found.classes == ["a", "b", "c"]  # labels do not depend on what can be read
    assert [(file[0], label) for file, label in zip(found.names(), found.data["label"].tolist(), strict=True)] == [
        (name, "abc".index(name)) for name in ("abc" if what == "linked folder in a class" else "ac")
    ]
    again = images.ingest(tmp_path / "in", tmp_path / "other", num_workers=0, on_error="skip", **how)
    assert again.skipped == found.skipped


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes a user who may not list the folder")
@pytest.mark.parametrize("inner", ["b", "b/deep"])
def test_a_folder_that_cannot_be_listed_is_named_or_listed(inner: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's are root's alone
        Path(place).chmod(0o755)
        for name in ("a/0.png", "b/0.png", "b/deep/1.png"):
            plain(Path(place, "in", name))
        Path(place, "in", inner).chmod(0)
        require_unlisted(Path(place, "in"), inner)


def require_unlisted(folder: Path, inner: str) -> None:
    script = (
        "import os, sys\n"
        "from tdmap.datasets.images.files import list_files\n"
        "os.setgid(65534), os.setuid(65534)\n"
        "try: list_files(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "found = list_files(sys.argv[1], strict=False)\n"
        "print(found.left_out, found.classes)\n"
    )
    run = interpreters.run(["-c", script, str(folder)])
    reason = "the folder cannot be listed (Permission denied)"
    assert run.stdout.splitlines() == [f"{inner}/: {reason}", f"{((f'{inner}/', reason),)} ['a', 'b']"], run.stderr


def test_the_command_says_what_it_left_out_without_control_characters(tmp_path: Path) -> None:
    plain(tmp_path / "in" / "a" / "0.png")
    (tmp_path / "in" / "b").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in" / "a" / "x\x1b[31m\rred.jpg").write_bytes(b"x")
    command = ["-m", "tdmap", "ingest", "images", str(tmp_path / "in"), str(tmp_path / "out")]
    run = interpreters.run([*command, "--size", "8", "--num-workers", "0"])
    assert run.returncode == 1 and "b/: it is a link" in run.stderr and "\x1b" not in run.stderr
    run = interpreters.run([*command, "--size", "8", "--num-workers", "0", "--on-error", "skip"])
    assert run.returncode == 0 and "b/" in run.stderr and "red.jpg" in run.stderr
    assert not set(run.stderr) & {"\x1b", "\r"}
    (tmp_path / "in" / "b").unlink()
    with pytest.warns(SkippedPictures) as caught:
        images.ingest(tmp_path / "in", tmp_path / "again", size=8, num_workers=0, on_error="skip")
    assert "\x1b" not in str(caught[0].message)


@pytest.mark.parametrize("name", ["pictures.json", "skipped.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"[" * 200_000, b'{"a": 1}', b"\xff", b"[1]"])
def test_planted_files_beside_a_dataset_are_refused_by_name(tmp_path: Path, name: str, content: bytes | None) -> None:
    plain(tmp_path / "in" / "a" / "0.png")
    images.ingest(tmp_path / "in", tmp_path / "out", size=8, num_workers=0)
    (tmp_path / "out" / name).unlink()
    if content is None:
        os.mkfifo(tmp_path / "out" / name)
    else:
        (tmp_path / "out" / name).write_bytes(content)
    if name == "skipped.jsonl" and content == b"":
        assert not Pictures.open(tmp_path / "out").skipped
        return
    with pytest.raises(DatasetError, match=name):
        Pictures.open(tmp_path / "out")


def test_names_may_be_as_long_as_files_may_have_them(tmp_path: Path) -> None:
    plain(tmp_path / "in" / "a" / f"{'x' * 251}.png")
    for how in ({"size": 8}, {"keep": "encoded"}):
        found = images.ingest(tmp_path / "in", tmp_path / f"out{len(how)}{next(iter(how))}", num_workers=0, **how)  # type: ignore[arg-type]
        assert found.to_images(tmp_path / f"copy{next(iter(how))}", num_workers=0) == 1
        assert [path.name for path in tmp_path.glob(f"copy{next(iter(how))}/a/*")] == [f"{'x' * 251}.png"]


# -- what is in files --------------------------------------------------------------------------------------------------


def png(kind: int, bits: int, rows: Any, clear: tuple[int, ...] | None = None) -> bytes:
    """A PNG file of whole numbers `[height, width, channels]`, with a transparent colour."""
    rows = np.asarray(rows).astype(int)
    lines = b""
    for row in rows.reshape(len(rows), -1):
        if bits == 16:
            lines += b"\0" + row.astype(">u2").tobytes()
        else:
            lines += b"\0" + np.packbits(np.unpackbits(row.astype("u1")[:, None], axis=1)[:, 8 - bits :]).tobytes()

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], bits, kind, 0, 0, 0)
    keys = b"" if clear is None else chunk(b"tRNS", struct.pack(f">{len(clear)}H", *clear))
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + keys
    return start + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_the_transparent_grey_of_a_png_file_is_that_of_its_depth(bits: int, mode: str) -> None:
    most = (1 << bits) - 1
    for key in {0, 1, most // 2, most - 1, most}:
        values = np.array([[0, key, most, key ^ 1, max(key - 1, 0), most // 3]])
        pixels = decode(png(0, bits, values, (key,)), Look(None, mode=mode, background=(7, 7, 7)))[0]
        grey = values[0] >> 8 if bits == 16 else values[0] * 255 // most
        is_clear = values[0] == key
        if mode == "RGBA":
            assert pixels[:, 3].tolist() == np.where(is_clear, 0, 255).tolist(), key
            assert pixels[:, 0].tolist() == grey.tolist()
        else:
            assert pixels[:, 0].tolist() == np.where(is_clear, 7, grey).tolist(), key


def test_a_transparent_colour_that_is_not_read_whole_is_refused() -> None:
    colours = np.array([[[1, 2, 3], [4, 5, 6]]])
    assert decode(png(2, 8, colours, (1, 2, 3)), Look(None, mode="RGBA"))[0, :, 3].tolist() == [0, 255]
    assert decode(png(2, 16, colours * 257), Look(None, mode="RGBA"))[0, 1].tolist() == [4, 5, 6, 255]
    with pytest.raises(PictureError, match="transparent colour has 16 bits"):
        decode(png(2, 16, colours * 257, (257, 514, 771)), Look(None, mode="RGBA"))


@pytest.mark.parametrize("most", [1, 100, 255, 256, 1023, 4095, 65535])
@pytest.mark.parametrize("kind", ["P2", "P5"])
def test_portable_greymaps_of_any_depth_are_read(kind: str, most: int) -> None:
    values = np.array([0, 1, most // 2, most])
    data = (
        values.astype(">u2" if most > 255 else "u1").tobytes() if kind == "P5" else " ".join(map(str, values)).encode()
    )
    pixels = decode(f"{kind}\n4 1\n{most}\n".encode() + data, Look(None, mode="L"))[0, :, 0]
    assert np.abs(pixels.astype(int) - values * 255 / most).max() <= 1 and pixels[0] == 0 and pixels[-1] == 255


def lossless_jpeg(edge: int = 64) -> bytes:
    """Written by hand: SOF3, one component of 8 bits, predictor 1, all differences 0."""

    def segment(marker: int, data: bytes) -> bytes:
        return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data

    table, head = bytes([0, 1] + [0] * 15 + [0]), struct.pack(">BHHB", 8, edge, edge, 1) + bytes([1, 0x11, 0])
    scan = segment(0xDA, bytes([1, 1, 0, 1, 0, 0])) + bytes(edge * edge // 8)
    return b"\xff\xd8" + segment(0xC4, table) + segment(0xC3, head) + scan + b"\xff\xd9"


@pytest.mark.parametrize("resize", ["crop", "pad", "exact", "shorter"])
@pytest.mark.parametrize("size", [4, 8, 64, 100])
def test_a_jpeg_file_without_fractions_is_decoded_whole(resize: str, size: int) -> None:
    try:
        whole = decode(lossless_jpeg(), Look(None, mode="L"))
    except PictureError:
        pytest.skip("this Pillow has no lossless JPEG")
    pixels = decode(lossless_jpeg(), Look((size, size), resize, "L"))
    assert pixels.shape == (size, size, 1) and (pixels == whole[0, 0]).all()
    with pytest.raises(PictureError):
        decode(lossless_jpeg()[:-100], Look((size, size), resize, "L"))


@pytest.mark.parametrize("resize", ["pad", "shorter"])
@pytest.mark.parametrize("turn", [1, 6])
def test_sizes_do_not_depend_on_the_format(tmp_path: Path, resize: str, turn: int) -> None:
    generator = random.Random(0)
    for _ in range(8):
        edges = (generator.randrange(200, 1200), generator.randrange(200, 1200))
        exif = Image.Exif()
        exif[0x0112] = turn
        picture = Image.new("RGB", edges, (10, 20, 30))
        size = (generator.randrange(5, 80), generator.randrange(5, 80))
        found = []
        for ending in ("png", "tif", "jpg"):
            picture.save(tmp_path / f"x.{ending}", exif=exif)
            pixels = decode(str(tmp_path / f"x.{ending}"), Look(size, resize))
            found.append((pixels.shape, (pixels[..., 0] < 128).sum(0).tolist(), (pixels[..., 0] < 128).sum(1).tolist()))
        assert found[0] == found[1] == found[2], (edges, size)


def icon(edge: int) -> bytes:
    """An icon that says it has 16 x 16 pixels, and holds a picture of another size."""
    data = png(0, 8, np.zeros((edge, edge)))
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 8, len(data), 22) + data


@pytest.mark.parametrize(
    ("content", "look"),
    [
        (png(0, 1, np.zeros((1, 30_000))), Look((224, 224), "shorter", max_pixels=1_000_000)),
        (png(0, 1, np.zeros((30_000, 1))), Look((224, 224), "shorter", max_pixels=1_000_000)),
        (png(0, 1, np.zeros((30_000, 1))), Look((224, 224), "exact", max_pixels=1_000_000)),
        (png(0, 1, np.zeros((1000, 1001))), Look((224, 224), max_pixels=1_000_000)),
        (png(0, 1, np.zeros((1000, 1001))), Look(None, max_pixels=1_000_000)),
        (icon(1001), Look(None, max_pixels=1_000_000)),
    ],
)
def test_no_picture_has_more_pixels_than_are_allowed_at_any_time(content: bytes, look: Look) -> None:
    with pytest.raises(PictureError, match=r"too many pixels: .* max_pixels is 1,000,000"):
        decode(content, look)


@pytest.mark.filterwarnings("error")
def test_more_pixels_than_pillow_allows_are_those_that_are_asked_for(tmp_path: Path) -> None:
    Image.new("1", (20_000, 10_000)).save(tmp_path / "x.png")
    assert Image.MAX_IMAGE_PIXELS is not None
    look = Look((8, 8), "crop", "L", "nearest", max_pixels=200_000_000)
    assert decode(str(tmp_path / "x.png"), look).shape == (8, 8, 1)
    for most in (199_999_999, 100_000_000, 10):
        with pytest.raises(PictureError, match="too many pixels"):
            decode(str(tmp_path / "x.png"), Look((8, 8), max_pixels=most))


def test_a_picture_does_not_depend_on_those_that_the_process_has_seen(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    picture = Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    endings = ["tga", "ico", "png", "im", "bmp", "gif", "pcx", "ppm", "sgi", "tif", "jpg", "webp"]
    for ending in endings:
        picture.save(tmp_path / f"x.{ending}")
    script = (
        "import hashlib, sys\n"
        "from PIL import Image\n"
        "from tdmap.datasets.images.pixels import Look, decode\n"
        "Image.open(sys.argv[1]).load()\n"
        "for path in sys.argv[2:]: print(hashlib.sha256(decode(path, Look(None)).tobytes()).hexdigest())\n"
    )
    paths = [str(tmp_path / f"x.{ending}") for ending in endings]
    outputs = {
        interpreters.run(["-c", script, str(tmp_path / f"x.{first}"), *paths], check=True).stdout
        for first in ("tga", "ico", "im")
    }
    assert len(outputs) == 1
    lossless = [ending for ending in endings if ending not in ("gif", "jpg", "webp")]
    for ending in lossless:
        assert np.array_equal(decode(str(tmp_path / f"x.{ending}"), Look(None)), np.asarray(picture)), ending


@pytest.mark.parametrize("raises", [struct.error, RuntimeError, AttributeError, OverflowError, UserWarning])
def test_any_error_of_a_decoder_names_the_file(tmp_path: Path, raises: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import PngImagePlugin

    plain(tmp_path / "in" / "a" / "0.png")
    plain(tmp_path / "in" / "a" / "1.bmp")

    def load(self: Any) -> None:
        raise raises("of the decoder")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", load)
    with pytest.raises(PictureError, match=r"a/0\.png: cannot be decoded: of the decoder"):
        images.ingest(tmp_path / "in", tmp_path / "out", size=8, num_workers=0)
