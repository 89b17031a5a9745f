"""One picture file to pixels: orientation, transparency, deep colours and sizes, the same for every file."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdmap.datasets.extras import need

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
    """Pictures with more are refused before they are decoded."""

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


def open_picture(source: str | bytes, max_pixels: int) -> Any:
    """Open a picture without decoding it.

    Args:
        source: path of the file, or its content.
        max_pixels: refuse it with more.

    Raises:
        PictureError: it is empty, no picture, or too large; says which.
    """
    image = pillow()
    empty = not source if isinstance(source, bytes) else not os.path.getsize(source)
    if empty:
        raise PictureError("the file is empty (0 bytes)")
    try:
        picture = image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except image.UnidentifiedImageError:
        raise PictureError("no picture: its format is not one that Pillow knows") from None
    except image.DecompressionBombError as error:
        raise PictureError(f"too many pixels: {error}") from None
    width, height = picture.size
    if width * height > max_pixels:
        picture.close()
        raise PictureError(f"too many pixels: {width} x {height}, and max_pixels is {max_pixels:,}")
    return picture


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
    """
    picture = open_picture(source, look.max_pixels)
    try:
        with picture:
            turn = picture.getexif().get(_ORIENTATION, 1)
            if picture.format in ("JPEG", "MPO") and look.size is not None and look.mode != "RGBA":
                _draft(picture, look, turn)
            if turn != 1:
                picture = need("PIL.ImageOps", "images", "turning pictures").exif_transpose(picture)
            picture = in_mode(picture, look)
            pixels = np.asarray(resized(picture, look))
    except PictureError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, ArithmeticError, KeyError, TypeError) as error:
        # What Pillow raises on spoilt files is any of these, from whatever reads the format.
        raise PictureError(f"cannot be decoded: {error or type(error).__name__}") from error
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _draft(picture: Any, look: Look, turn: int) -> None:
    """Let the decoder make a fraction of the picture, where that is still large enough to be scaled down well."""
    assert look.size is not None
    width, height = picture.size if turn < 5 else picture.size[::-1]
    if look.resize == "shorter":
        wanted = (min(look.size),) * 2
    elif look.resize == "pad":
        scale = min(look.size[1] / width, look.size[0] / height)
        wanted = (round(width * scale), round(height * scale))
    else:
        wanted = look.size[::-1]
    wanted = wanted if turn < 5 else wanted[::-1]
    picture.draft(None, (max(wanted[0], 1) * _GAP, max(wanted[1], 1) * _GAP))


def in_mode(picture: Any, look: Look) -> Any:
    """A picture in the mode that is wanted, transparent pixels over the background unless it has an alpha channel."""
    image = pillow()
    if picture.mode.startswith("I;16"):
        picture = image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode in ("I", "F"):
        kind = "32-bit integers" if picture.mode == "I" else "floating-point numbers"
        raise PictureError(f"its pixels are {kind}, which have no range of their own: convert it to 8 or 16 bits first")
    clear = picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info
    if clear and look.mode != "RGBA":
        picture = picture.convert("RGBA")
        behind = image.new("RGBA", picture.size, (*look.background, 255))
        picture = image.alpha_composite(behind, picture)
    return picture if picture.mode == look.mode else picture.convert(look.mode)


def resized(picture: Any, look: Look) -> Any:
    """A picture in the size that is wanted."""
    if look.size is None:
        return picture
    image = pillow()
    filter = getattr(image.Resampling, look.resample.upper())
    height, width = look.size
    old_width, old_height = picture.size
    if look.resize == "exact":
        box, new = (0.0, 0.0, old_width, old_height), (width, height)
    elif look.resize == "crop":
        scale = max(width / old_width, height / old_height)
        across, down = width / scale, height / scale  # pixels of the old picture that are seen
        left, top = (old_width - across) / 2, (old_height - down) / 2
        box = (max(left, 0.0), max(top, 0.0), min(left + across, old_width), min(top + down, old_height))
        new = (width, height)
    else:
        small = min(look.size)
        fit = min(width / old_width, height / old_height)
        scale = small / min(old_width, old_height) if look.resize == "shorter" else fit
        box = (0.0, 0.0, old_width, old_height)
        new = (max(round(old_width * scale), 1), max(round(old_height * scale), 1))
    if new != picture.size or box != (0, 0, old_width, old_height):
        picture = picture.resize(new, filter, box)
    if look.resize != "pad" or new == (width, height):
        return picture
    background: Any = look.background
    if look.mode == "L":
        background = image.new("RGB", (1, 1), look.background).convert("L").getpixel((0, 0))
    elif look.mode == "RGBA":
        background = (*look.background, 255)
    canvas = image.new(look.mode, (width, height), background)
    canvas.paste(picture, ((width - new[0]) // 2, (height - new[1]) // 2))
    return canvas
