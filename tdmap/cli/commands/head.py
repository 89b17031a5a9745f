"""The command ``tdmap head``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer, asked
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.describe import leaves_of, listed, time_types, type_name, writer_of
from tdmap.cli.requests import open_rows, refuse, write_file

CELL = 128
"""Width and height of a picture on a sheet, in pixels."""


@app.command()
def head(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, or file of an archive.")],
    rows: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of rows.")] = 5,
    start: Annotated[int, typer.Option(help="The first row to show; a negative number counts from the end.")] = 0,
    sheet: Annotated[Path | None, typer.Option(help="Draw a sheet of the images into this file (.png).")] = None,
) -> None:
    """Show rows of a dataset, and draw its images."""
    from tdmap.data.reader import rows_of
    from tdmap.memory.hidden import printable

    end_with_reader()
    data = open_rows(path)
    times = time_types(data)
    length = len(data)
    first = max(start + length, 0) if start < 0 else start
    if first >= length > 0:
        refuse(f"{path} has {length:,} rows, and no row {start:,}")
    chosen = range(first, min(first + rows, length))
    shift = 0
    if not rows_of(data).is_view:  # only these rows are read
        data, shift = data[first : chosen.stop], first
    entries = [(key, leaf) for key, leaf, _ in leaves_of(data)]
    if asked().json:
        answer(
            {"rows": [{"row": row, **{"/".join(key): leaf[row - shift] for key, leaf in entries}} for row in chosen]}
        )
    for row in () if asked().json else chosen:
        typer.echo(f"row {row}")
        for key, leaf in entries:
            typer.echo(
                f"  {printable('/'.join(key))}  {_value(leaf[row - shift], type_name(leaf), times.get('.'.join(key)))}"
            )
    pictures = [(key, leaf) for key, leaf in entries if looks_like_pictures(leaf)]
    if sheet is not None:
        if not pictures:
            refuse(f"no entry of {path} looks like pictures, which are [rows, 3, height, width] or [..., 3]")
        _draw(pictures, range(first - shift, chosen.stop - shift), sheet)
    elif pictures and not asked().json:
        names = ", ".join("/".join(key) for key, _ in pictures)
        typer.echo(f"{printable(names)}: pictures, by their shape; --sheet sheet.png draws them")


def _value(value: Any, kind: str, time: Any) -> str:
    import torch

    from tdmap.memory.hidden import printable

    if not isinstance(value, torch.Tensor):
        return printable(repr(getattr(value, "data", value)), 200)
    written, kind = writer_of(time), kind if time is None else time.name
    if not value.dim():
        return f"{written(value.item())}  ({kind})"
    return f"{listed(value.reshape(-1), written)}  ({kind} {list(value.shape)})"


def looks_like_pictures(leaf: Any) -> bool:
    """Whether an entry has a picture in each row, by its shape.

    Example:
        >>> import torch
        >>> looks_like_pictures(torch.zeros(10, 3, 32, 32)), looks_like_pictures(torch.zeros(10, 3))
        (True, False)
    """
    import torch

    if not isinstance(leaf, torch.Tensor) or leaf.is_complex() or leaf.dim() != 4:
        return False
    _, a, b, c = leaf.shape
    return (a in (1, 3) and min(b, c) >= 8) or (c in (1, 3) and min(a, b) >= 8)


def _draw(pictures: list[tuple[tuple[str, ...], Any]], rows: range, path: Path) -> None:
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError:
        refuse("a sheet needs Pillow: pip install 'tdmap[images]'")
    across, gap, line = min(len(rows), 8), 8, 18
    deep = -(-len(rows) // across)
    height = len(pictures) * (line + gap + deep * (CELL + line + gap))
    canvas = Image.new("RGB", (gap + across * (CELL + gap), height + gap), "white")
    draw, top = ImageDraw.Draw(canvas), gap
    for key, leaf in pictures:
        draw.text((gap, top), f"{'/'.join(key)}  {type_name(leaf)} {list(leaf.shape[1:])}", "black")
        top += line
        for place, row in enumerate(rows):
            left = gap + place % across * (CELL + gap)
            down = top + place // across * (CELL + line + gap)
            canvas.paste(
                Image.fromarray(_pixels(leaf[row])).resize((CELL, CELL), Image.Resampling.NEAREST), (left, down)
            )
            draw.text((left, down + CELL + 2), f"row {row:,}", "black")
        top += deep * (CELL + line + gap) + gap
    write_file(lambda: canvas.save(path), path)


def _pixels(picture: Any) -> Any:
    """Bytes `[height, width, 3]`; other numbers than bytes are stretched from their smallest to their largest."""
    import torch

    if picture.shape[0] in (1, 3) and picture.shape[2] not in (1, 3):
        picture = picture.movedim(0, -1)
    if picture.dtype is not torch.uint8:
        values = picture.double().nan_to_num(0.0, 0.0, 0.0)
        low, high = values.min(), values.max()
        picture = ((values - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    return picture.expand(*picture.shape[:2], 3).contiguous().numpy()
