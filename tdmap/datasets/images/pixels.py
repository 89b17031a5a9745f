"""One picture file to pixels: orientation, transparency, deep colours and sizes, the same for every file."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensordict_lite.packages import need

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

RESIZES = ("crop", "pad", "exact", "shorter")
RESAMPLES = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_ORIENTATION = 0x0112
_GAP = 2
"""A JPEG is decoded at a fraction of its size, as long as it stays so many times larger than what is wanted."""


class PictureError(ValueError):
    """A file that is no picture, or none that can be used.

    Attributes:
        reason: what is wrong with it.
        file: its name, relative to the folder; empty where it is not known.
    """

    def __init__(self, reason: str, file: str = "") -> None:
        super().__init__(reason, file)
        self.reason = reason
        self.file = file

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}" if self.file else self.reason


def pillow() -> Any:
    """The module `PIL.Image`.

    Raises:
        ImportError: it is not installed.
    """
    return need("PIL.Image", "images", "reading pictures")


@dataclass(frozen=True)
class Look:
    """What pictures are made to look like.

    Raises:
        ValueError: a field is out of range; says what it may be.
    """

    size: tuple[int, int] | None
    """Height and width in pixels; None: as they are."""
    resize: str = "crop"
    """`"crop"`: fill the size and cut what is too much, at both sides. `"pad"`: fit into the size, and put the
    background around. `"exact"`: stretch. `"shorter"`: the shorter side gets the smaller number of the size; the other
    follows."""
    mode: str = "RGB"
    """`"RGB"`, `"L"` (grey) or `"RGBA"`."""
    resample: str = "bilinear"
    background: tuple[int, int, int] = (255, 255, 255)
    """Behind transparent pixels, and around padded pictures."""
    max_pixels: int = 89_478_485
    """Pictures with more are refused before they are decoded, and those that would have more while they are scaled."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("resize", self.resize, RESIZES),
            ("mode", self.mode, tuple(CHANNELS)),
            ("resample", self.resample, RESAMPLES),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}: got {value!r}.")
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"size must be at least 1: got {self.size}.")

    @property
    def is_fixed(self) -> bool:
        """Whether all pictures get one size."""
        return self.size is not None and self.resize != "shorter"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width, where all get one size."""
        assert self.size is not None
        return (CHANNELS[self.mode], *self.size)


def as_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Height and width; a number is both.

    Example:
        >>> as_size(224), as_size((32, 48))
        ((224, 224), (32, 48))
    """
    if size is None or isinstance(size, (tuple, list)):
        if size is not None and len(size) != 2:
            raise ValueError(f"size is a number of pixels, or (height, width): got {size!r}.")
        return None if size is None else (int(size[0]), int(size[1]))
    if isinstance(size, bool) or not isinstance(size, int):
        raise ValueError(f"size is a number of pixels, or (height, width): got {size!r}.")
    return (size, size)


def open_file(path: str) -> Any:
    """A file that is to be a picture.

    Raises:
        PictureError: it is empty, or no file: reading a pipe or a device may never end.
    """
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise PictureError("it is a folder, a pipe or a device, not a file")
    if not info.st_size:
        raise PictureError("the file is empty (0 bytes)")
    return open(path, "rb")


@contextlib.contextmanager
def open_picture(source: str | bytes, max_pixels: int) -> Iterator[Any]:
    """Open a picture without decoding it.

    Args:
        source: path of the file, or its content.
        max_pixels: refuse it with more.

    Raises:
        PictureError: it is empty, no picture, or too large; says which.
    """
    if not source:
        raise PictureError("the file is empty (0 bytes)")
    with io.BytesIO(source) if isinstance(source, bytes) else open_file(source) as file:
        picture = _identified(file)
        width, height = picture.size
        _require_size(width, height, max_pixels)
        yield picture


def _identified(file: IO[bytes]) -> Any:
    """The picture in a file, by its content alone.

    `PIL.Image.open` asks formats in the order in which they were loaded, which depends on the names of files that the
    process opened before, and has a limit of its own. Formats without a magic number are asked last here.
    """
    image = pillow()
    image.init()
    start, missing = file.read(16), ""
    for name in _in_order(tuple(image.OPEN)):
        factory, accept = image.OPEN[name]
        accepted = accept is None or accept(start)
        if isinstance(accepted, str):  # it is of a format that this Pillow was built without
            missing = f" ({accepted})"
        elif accepted:
            with contextlib.suppress(SyntaxError, IndexError, TypeError, struct.error):
                file.seek(0)
                return factory(file, "")
    raise PictureError(f"not a picture: Pillow does not know its format{missing}")


@functools.lru_cache(maxsize=1)
def _in_order(formats: tuple[str, ...]) -> list[str]:
    known = pillow().OPEN
    return sorted(formats, key=lambda name: (known[name][1] is None, name))


def _require_size(width: int, height: int, most: int, when: str = "") -> None:
    if width * height > most:
        raise PictureError(f"too many pixels: {width} x {height}{when}, and max_pixels is {most:,}")


def decode(source: str | bytes, look: Look) -> npt.NDArray[np.uint8]:
    """The pixels of one picture.

    The first frame of an animation; turned as its EXIF orientation says; transparent pixels over the background;
    16-bit grey by its upper 8 bits. Colour profiles are not applied.

    Args:
        source: path of the file, or its content.
        look: what it is to look like.

    Returns:
        uint8 `[height, width, channels]`.

    Raises:
        PictureError: the file is not a picture that can be used.
        OSError: it cannot be opened.
    """
    pixels = _decoded(source, look, fraction=True)
    if pixels is None:
        pixels = _decoded(source, look, fraction=False)
    assert pixels is not None
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _decoded(source: str | bytes, look: Look, fraction: bool) -> npt.NDArray[np.uint8] | None:
    """The pixels of a picture, decoded at a fraction of its size if that will do; None: it has no fractions."""
    with spoilt(), open_picture(source, look.max_pixels) as picture:
        _mend_transparency(picture)  # before anything is decoded, as it is to find the orientation of a PNG file
        turn = picture.getexif().get(_ORIENTATION, 1)
        size = picture.size
        full = size if turn < 5 else size[::-1]
        if fraction and picture.format in ("JPEG", "MPO") and look.size is not None and look.mode != "RGBA":
            _draft(picture, look, turn, full)
        is_fraction = picture.size != size
        try:
            picture.load()
        except OSError:
            if is_fraction:  # lossless JPEG files cannot be decoded so
                return None
            raise
        if turn != 1:  # Pillow turns TIFF files when it loads them, and says so
            picture = need("PIL.ImageOps", "images", "turning pictures").exif_transpose(picture)
        if not is_fraction:
            full = picture.size  # that of an icon is known now
            _require_size(full[0], full[1], look.max_pixels)
        return np.asarray(resized(in_mode(picture, look), look, full))


@contextlib.contextmanager
def spoilt() -> Iterator[None]:
    """Make a PictureError of what Pillow raises on spoilt files: anything, from whatever reads the format."""
    try:
        yield
    except (PictureError, MemoryError, ImportError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system
            raise
        raise PictureError(f"cannot be decoded: {error or type(error).__name__}") from error


def _draft(picture: Image, look: Look, turn: int, full: tuple[int, int]) -> None:
    """Let the decoder make a fraction of the picture, where that is still large enough to be scaled down well."""
    assert look.size is not None
    if look.resize == "shorter":
        wanted = (min(look.size),) * 2
    elif look.resize == "pad":
        wanted = _fitted(full, look)
    else:
        wanted = look.size[::-1]
    wanted = wanted if turn < 5 else wanted[::-1]
    picture.draft(None, (max(wanted[0], 1) * _GAP, max(wanted[1], 1) * _GAP))


def _fitted(full: tuple[int, int], look: Look) -> tuple[int, int]:
    assert look.size is not None
    height, width = look.size
    fit = min(width / full[0], height / full[1])
    scale = min(look.size) / min(full) if look.resize == "shorter" else fit
    return max(round(full[0] * scale), 1), max(round(full[1] * scale), 1)


def _mend_transparency(picture: ImageFile) -> None:
    """Let the transparent colour of a PNG file be one of the 8-bit colours that Pillow makes.

    Raises:
        PictureError: there is none.
    """
    depth = picture.tile[0][3] if picture.format == "PNG" and picture.tile else ""
    if "transparency" not in picture.info:
        return
    if depth == "RGB;16B":
        raise PictureError("its transparent colour has 16 bits, and Pillow reads 8 of them: convert it to 8 bits first")
    if depth in ("L;2", "L;4"):
        picture.info["transparency"] *= 255 // ((1 << int(depth[2])) - 1)


def in_mode(picture: Image, look: Look) -> Image:
    """A picture in the mode that is wanted, transparent pixels over the background unless it has an alpha channel."""
    image = pillow()
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):  # 16 bits in 32
        deep, clear_value = np.asarray(picture), picture.info.get("transparency")
        picture = image.fromarray((deep >> 8).astype(np.uint8))
        if clear_value is not None:
            picture.putalpha(image.fromarray(np.where(deep == clear_value, 0, 255).astype(np.uint8)))
    elif picture.mode in ("I", "F"):
        kind = "32-bit integers" if picture.mode == "I" else "floating-point numbers"
        raise PictureError(f"its pixels are {kind}, whose range is unknown: convert it to 8 or 16 bits first")
    clear = picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info
    if clear and look.mode != "RGBA":
        picture = picture.convert("RGBA")
        behind = image.new("RGBA", picture.size, (*look.background, 255))
        picture = image.alpha_composite(behind, picture)
    return picture if picture.mode == look.mode else picture.convert(look.mode)


def resized(picture: Image, look: Look, full: tuple[int, int] | None = None) -> Image:
    """A picture in the size that is wanted.

    Args:
        picture: the picture.
        look: says the size.
        full: its width and height, where it was decoded at a fraction of them.

    Raises:
        PictureError: it would have more than `max_pixels` in between.
    """
    if look.size is None:
        return picture
    image = pillow()
    filter = getattr(image.Resampling, look.resample.upper())
    height, width = look.size
    old_width, old_height = picture.size
    box: tuple[float, float, float, float] = (0, 0, old_width, old_height)
    if look.resize == "exact":
        new = (width, height)
    elif look.resize == "crop":
        scale = max(width / old_width, height / old_height)
        across, down = width / scale, height / scale  # pixels of the old picture that are seen
        left, top = (old_width - across) / 2, (old_height - down) / 2
        box = (max(left, 0.0), max(top, 0.0), min(left + across, old_width), min(top + down, old_height))
        new = (width, height)
    else:
        new = _fitted(full or picture.size, look)
    if new != picture.size or box != (0, 0, old_width, old_height):
        # Rows are scaled first, all that are seen.
        most, rows = max(look.max_pixels, width * height), max(new[1], math.ceil(box[3]) - math.floor(box[1]))
        _require_size(new[0], rows, most, " while it is scaled")
        picture = picture.resize(new, filter, box)
    if look.resize != "pad" or new == (width, height):
        return picture
    background: float | tuple[int, ...] | None = look.background
    if look.mode == "L":
        background = image.new("RGB", (1, 1), look.background).convert("L").getpixel((0, 0))
    elif look.mode == "RGBA":
        background = (*look.background, 255)
    canvas: Image = image.new(look.mode, (width, height), background)
    canvas.paste(picture, ((width - new[0]) // 2, (height - new[1]) // 2))
    return canvas
