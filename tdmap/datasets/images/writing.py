"""Pictures of a dataset as files again, and on a contact sheet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.datasets.extras import opened
from tdmap.datasets.images.pixels import pillow
from tdmap.ops.map import map as map_chunks
from tensordict_lite import TensorDict
from tensordict_lite.memmap.disk.files import is_there

if TYPE_CHECKING:
    from tdmap.datasets.images.pictures import Pictures

CHUNK = 16
"""Pictures that a worker writes at a time."""


def write_files(pictures: Pictures, folder: Path, format: str, options: Mapping[str, Any]) -> int:
    """`Pictures.to_images`."""
    image = pillow()
    image.init()
    suffix = f".{format.lower().removeprefix('.')}"
    if suffix not in image.registered_extensions() or image.registered_extensions()[suffix] not in image.SAVE:
        raise ValueError(f"format={format!r} is not one that Pillow writes: 'png', 'jpg', 'webp'...")
    if not len(pictures):
        return 0
    encoded = pictures.kind == "encoded"
    targets = _targets(pictures.names(), None if encoded else suffix)
    for parent in sorted({str((folder / target).parent) for target in targets}):
        os.makedirs(parent, exist_ok=True)
    there = next((target for target in targets if is_there(folder / target)), None)
    if there is not None:
        raise FileExistsError(f"{folder / there} exists: choose another folder, or remove it.")
    rows = TensorDict({"row": torch.arange(len(pictures))}, [len(pictures)])
    written = map_chunks(rows, WriteFiles(pictures, str(folder), targets), chunksize=CHUNK, **options)
    return int(written.sum())


def _targets(names: list[str], suffix: str | None) -> list[str]:
    """Where each picture goes: its name, with the suffix of the new format. Two of one name get numbers."""
    taken: set[str] = set()
    found = []
    for name in names:
        path = PurePosixPath(name)
        target = path if suffix is None else path.with_suffix(suffix)
        number = 1
        while str(target) in taken:
            target = path.with_name(f"{path.stem}_{number}{suffix or path.suffix}")
            number += 1
        taken.add(str(target))
        found.append(str(target))
    return found


class WriteFiles:
    """Writes the pictures of some rows; each file is whole or not there."""

    def __init__(self, pictures: Pictures, folder: str, targets: list[str]) -> None:
        self.open = type(pictures).open
        self.source = str(pictures.path)
        self.folder = folder
        self.targets = targets
        self._pictures: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pictures": None}

    def __call__(self, chunk: TensorDict) -> Tensor:
        if self._pictures is None:
            self._pictures = self.open(self.source)
        for row in chunk["row"].tolist():
            self._write(row, os.path.join(self.folder, self.targets[row]))
        return torch.ones(len(chunk["row"]), dtype=torch.int64)

    def _write(self, row: int, path: str) -> None:
        pictures = self._pictures
        suffix = os.path.splitext(path)[1]
        with opened(path, "wb") as file:
            if pictures.kind == "encoded":
                file.write(pictures.content(row))
            else:
                picture = as_picture(pictures.image(row))
                mode = "RGB" if suffix in (".jpg", ".jpeg") and picture.mode == "RGBA" else picture.mode
                picture.convert(mode).save(file, format=pillow().registered_extensions()[suffix])


def as_picture(pixels: Tensor) -> Any:
    """A picture of Pillow's of uint8 `[channels, height, width]`."""
    array = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
    return pillow().fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def draw_sheet(pictures: Pictures, out: Path, rows: Sequence[int], edge: int, columns: int) -> None:
    """`Pictures.preview`."""
    image = pillow()
    gap = max(edge // 24, 1)
    lines = max(-(-len(rows) // columns), 1)
    step = edge + gap
    sheet = image.new("RGB", (columns * step + gap, lines * step + gap), (32, 32, 32))
    for number, row in enumerate(rows):
        picture = as_picture(pictures.image(row)).convert("RGB")
        scale = edge / max(picture.size)
        picture = picture.resize((max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)))
        left, top = gap + number % columns * step, gap + number // columns * step
        sheet.paste(picture, (left + (edge - picture.width) // 2, top + (edge - picture.height) // 2))
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out)
