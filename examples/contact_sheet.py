"""A contact sheet: rows of small pictures with captions, as one PNG file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

INK, PAPER, FAINT = (34, 34, 38), (250, 249, 246), (132, 130, 124)
MARGIN, GAP, CAPTION, HEADER = 28, 12, 20, 92


def write_contact_sheet(
    path: Path,
    rows: Sequence[tuple[str, Tensor]],
    captions: Sequence[str],
    *,
    title: str,
    subtitle: str,
    size: int = 128,
) -> None:
    """Write a sheet with a column per picture and a line per stage.

    Args:
        path: the PNG file to write.
        rows: for each stage its label and uint8 pictures ``[columns, 3, height, width]``.
        captions: a caption for each column.
        title: headline.
        subtitle: smaller line under the headline.
        size: edge of a picture on the sheet, in pixels.
    """
    columns = len(captions)
    label_width = 132
    width = 2 * MARGIN + label_width + columns * size + (columns - 1) * GAP
    height = HEADER + len(rows) * (size + GAP) + CAPTION + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, 22), title, INK, ImageFont.load_default(26))
    draw.text((MARGIN, 58), subtitle, FAINT, ImageFont.load_default(14))
    small, medium = ImageFont.load_default(13), ImageFont.load_default(15)
    for line, (label, pictures) in enumerate(rows):
        top = HEADER + line * (size + GAP)
        draw.multiline_text((MARGIN, top + 4), label, INK, medium, spacing=5)
        for column in range(columns):
            left = MARGIN + label_width + column * (size + GAP)
            sheet.paste(_enlarged(pictures[column], size), (left, top))
    for column, caption in enumerate(captions):
        centre = MARGIN + label_width + column * (size + GAP) + size // 2
        draw.text((centre, height - MARGIN - CAPTION + 6), caption, FAINT, small, anchor="mm")
    sheet.save(path, optimize=True)


def stretched(pictures: Tensor, low: float = -2.2, high: float = 2.7) -> Tensor:
    """Show values around zero as grey levels: ``low`` becomes black, ``high`` white, uint8."""
    return ((pictures.float() - low) / (high - low)).clamp(0, 1).mul(255).round().to(torch.uint8)


def _enlarged(picture: Tensor, size: int) -> Image.Image:
    image = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())
    return image.resize((size, size), Image.Resampling.LANCZOS)
