"""A dataset of pictures, once it is made: rows, names, a decoder, files again, a contact sheet."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from tdmap.data.objects import objects_of
from tdmap.datasets.images.pixels import Look, PictureError, as_size, decode, in_mode, pillow, resized
from tdmap.datasets.images.writing import draw_sheet, write_files
from tdmap.process_state import on_host
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.format import decode_json, read_json, read_small
from tensordict_lite.paths import absolute_path

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions

ABOUT, FILES, SKIPPED = "pictures.json", "files", "skipped.jsonl"
"""Names beside the dataset."""

MAX_SKIPPED = 1 << 30
"""Bytes of the list of files that were left out which are credible."""


@on_host
class Pictures:
    """A dataset that `ingest` wrote.

    Attributes:
        data: memory-mapped rows. `image`: uint8 `[n, channels, height, width]` for images of one size, bytes with
            `keep="encoded"`, flat pixels with `shape` (int64 `[n, 3]`) if sizes differ. `label`: int64 `[n]`, if the
            dataset has classes. `file`: int64 `[n]`, index into `files`.
        classes: names of the labels; empty if labels are numbers.
        files: names of all files.
        skipped: pairs of a skipped file and the reason.
        about: the options of `ingest`.
    """

    def __init__(self, path: Path, about: dict[str, Any], data: TensorDict) -> None:
        self.path = path
        self.about = about
        self.data = data
        self.classes: list[str] = about["classes"]
        self.files = TensorDict.load_memmap(path / FILES).get("name")
        lines = read_small(str(path / SKIPPED), str(path), MAX_SKIPPED).splitlines()
        try:
            entries = [decode_json(str(path / SKIPPED), line) for line in lines]
            self.skipped = [(str(entry["file"]), str(entry["reason"])) for entry in entries]
        except (KeyError, TypeError) as error:
            raise DatasetError(str(path / SKIPPED), f"cannot be understood ({error})") from None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Pictures:
        """Open a dataset that `ingest` wrote.

        Raises:
            DatasetError: the folder holds no such dataset.
        """
        path = Path(absolute_path(path))
        try:
            about = read_json(str(path / ABOUT), str(path))
            if about["version"] != 1 or not isinstance(about["classes"], list):
                raise ValueError(about["version"])
        except DatasetNotFoundError:
            raise DatasetError(str(path), f"is not a dataset of images: it has no {ABOUT}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(str(path / ABOUT), f"cannot be understood ({error})") from None
        return cls(path, about, TensorDict.load_memmap(path))

    @property
    def kind(self) -> str:
        """`"decoded"`: pictures of one size; `"encoded"`: bytes of files; `"pixels"`: pictures of different sizes."""
        image = self.data.get("image")
        if isinstance(image, Tensor):
            return "decoded"
        return "encoded" if self.about["keep"] == "encoded" else "pixels"

    def content(self, row: int) -> Any:
        """What the row of an encoded picture holds, bytes; of others, flat pixels."""
        row = range(len(self))[row]
        return objects_of(self.data.get("image")[row : row + 1])[0]

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"Pictures({len(self):,} rows, {self.kind}, {len(self.classes)} classes, {self.path})"

    def names(self, rows: TensorDict | Tensor | slice | list[int] | int | None = None) -> list[str]:
        """Names of the files of some rows.

        Args:
            rows: a TensorDict of rows with their entry `file`, in any order; or an index. Default: all.
        """
        if isinstance(rows, TensorDict):
            numbers = rows["file"].reshape(-1)
        else:
            numbers = self.data["file"] if rows is None else self.data["file"][rows].reshape(-1)
        return [str(name) for name in objects_of(self.files[torch.as_tensor(numbers)])]

    def image(self, row: int) -> Tensor:
        """The pixels of a row, uint8 `[channels, height, width]`; of encoded pictures in their own size."""
        if self.kind == "decoded":
            return cast(Tensor, self.data["image"][row])
        content = self.content(row)
        if not isinstance(content, bytes):
            return cast(Tensor, content).reshape(tuple(self.data["shape"][row].tolist()))
        look = Look(None, mode=self.about["mode"], max_pixels=self.about["max_pixels"])
        return torch.from_numpy(decode(content, look).copy()).permute(2, 0, 1)

    def decoder(
        self, size: int | tuple[int, int], resize: str = "crop", mode: str | None = None, **look: Any
    ) -> Decoder:
        """A function for `map` and pipelines over `data` that decodes encoded images, or resizes images that differ in
        size.

        Args:
            size, resize, mode: as in `ingest`, without `"shorter"`.
            **look: `resample`, `background`, `max_pixels`, as `ingest`.

        Returns:
            A function of a chunk or row, whose result has `image` as uint8 `[rows, channels, height, width]`, without
            `shape`.

        Raises:
            ValueError: the images are decoded already, or an option is out of range.
        """
        if self.kind == "decoded":
            raise ValueError("these pictures are decoded already: data['image'].")
        mode = mode or self.about["mode"]
        wanted = Look(as_size(size), resize, mode, **{"max_pixels": self.about["max_pixels"], **look})
        if not wanted.is_fixed:
            raise ValueError("rows of one batch have one size: resize must be 'crop', 'pad' or 'exact'.")
        return Decoder(wanted)

    def to_images(
        self, folder: str | os.PathLike[str], *, format: str = "png", **options: Unpack[WorkerOptions]
    ) -> int:
        """Write the images as files, with their original names and class folders.

        Args:
            folder: output folder; existing files of the same names raise.
            format: `"png"`, `"jpg"`, `"webp"`... for pixels; encoded images are written unchanged.
            **options: about workers, as `tdmap.map`.

        Returns:
            The number of files.

        Raises:
            FileExistsError: a file exists.
        """
        return write_files(self, Path(folder), format, options)

    def preview(
        self, out: str | os.PathLike[str], rows: Sequence[int] | int = 64, *, edge: int = 96, columns: int | None = None
    ) -> None:
        """Draw a contact sheet.

        Args:
            out: image file to write (`.png`, `.jpg`...).
            rows: row numbers, or a number of rows at equal distances.
            edge: pixels of the longer side of an image.
            columns: images per line. Default: the number of lines.
        """
        numbers = list(rows) if not isinstance(rows, int) else _spread(len(self), rows)
        draw_sheet(self, Path(out), numbers, edge, columns or max(math.isqrt(max(len(numbers) - 1, 0)) + 1, 1))


def _spread(length: int, count: int) -> list[int]:
    """So many numbers below `length`, at equal distances.

    Example:
        >>> _spread(10, 4)
        [0, 3, 6, 9]
    """
    numbers = np.linspace(0, max(length - 1, 0), min(count, length)).round().astype(int)
    return [int(number) for number in np.unique(numbers)]


class Decoder:
    """Decodes encoded pictures, or brings pixels of different sizes to one. Made by `Pictures.decoder`."""

    def __init__(self, look: Look) -> None:
        self.look = look

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        return {"options": repr(self.look)}

    def __call__(self, rows: TensorDict) -> TensorDict:
        image = rows.get("image")
        contents = objects_of(image) if rows.batch_dims else [image if isinstance(image, Tensor) else image.data]
        images = torch.empty((len(contents), *self.look.shape), dtype=torch.uint8)
        shapes = rows["shape"].reshape(-1, 3).tolist() if "shape" in rows.keys() else []
        for number, content in enumerate(contents):
            try:
                if isinstance(content, bytes):
                    pixels = torch.from_numpy(decode(content, self.look).copy())
                else:
                    pixels = self._scaled(content.reshape(tuple(shapes[number])))
            except PictureError as error:
                file = f" (file {int(rows['file'].reshape(-1)[number])})" if "file" in rows.keys() else ""
                raise PictureError(f"the picture in row {number} of the chunk{file}: {error}") from error.__cause__
            images[number].copy_(pixels.permute(2, 0, 1))
        result = rows.exclude("image", "shape")
        result["image"] = images.reshape(*rows.batch_size, *images.shape[1:])
        return result

    def _scaled(self, pixels: Tensor) -> Tensor:
        array = pixels.permute(1, 2, 0).numpy()
        picture = pillow().fromarray(array[:, :, 0] if array.shape[2] == 1 else np.ascontiguousarray(array))
        found = np.asarray(resized(in_mode(picture, self.look), self.look))
        return torch.from_numpy(found.copy()).reshape(*found.shape[:2], -1)
