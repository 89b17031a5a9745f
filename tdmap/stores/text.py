"""Strings of a dataset in a store, which lie in two objects (see `tensordict_lite.memmap.text`), by ranges of rows.

offsets    8 bytes a row, and one more      fetched with the columns of numbers
values     the bytes of these rows          fetched when the offsets say which they are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.format import META, NodeMeta
from tensordict_lite.memmap.text import CLASS, text_fields
from tensordict_lite.ragged import Ragged

OFFSET_BYTES = 8
Piece = tuple[str, int, int]
"""An object, relative to the dataset, and the bytes of it that are wanted."""


@dataclass(slots=True)
class Text:
    """A column of strings, or of bytes."""

    kind: str
    values: str
    """Its object, relative to the dataset."""
    offsets: str
    rows: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, offset included, on average."""
        return OFFSET_BYTES + self.nbytes // max(self.rows, 1)

    def offsets_of(self, first: int, last: int) -> Piece:
        """Where the offsets of rows are."""
        return self.offsets, first * OFFSET_BYTES, (last + 1) * OFFSET_BYTES if last > first else first * OFFSET_BYTES

    def values_of(self, offsets: Tensor) -> Piece:
        """Where the rows themselves are.

        Raises:
            DatasetError: the offsets lead out of them.
        """
        if not len(offsets):
            return self.values, 0, 0
        first, last = int(offsets[0]), int(offsets[-1])
        if first < 0 or last > self.nbytes or bool((offsets[1:] < offsets[:-1]).any()):
            raise DatasetError(self.offsets, f"leads out of the {self.nbytes} bytes of its strings")
        return self.values, first, last

    def column(self, offsets: Sequence[Tensor], values: Tensor) -> Any:
        """The rows of some runs, from what was fetched for them: their offsets, and their bytes as uint8 `[n]`."""
        lengths = [run[1:] - run[:-1] for run in offsets if len(run)]
        bounds = torch.zeros(sum(map(len, lengths)) + 1, dtype=torch.int64)
        if lengths:
            torch.cumsum(torch.cat(lengths), 0, out=bounds[1:])
        return Ragged._over(self.kind, values, bounds, torch.device("cpu"))


def text_of_meta(url: str, folder: str, meta: NodeMeta, objects: dict[str, tuple[int, str]]) -> Text | None:
    """The strings that lie in a folder; None where something else does.

    Args:
        url: of the dataset.
        folder: relative to it, with a slash at its end.
        meta: what its metadata say.
        objects: all objects of the dataset, by their names, with their sizes.

    Raises:
        DatasetError: the metadata are not as they should be, or an object has another size.
    """
    if meta.raw.get("_class") != CLASS:
        return None
    kind, rows, nbytes, files = text_fields(f"{url}/{folder}{META}", meta.raw)
    text = Text(kind, f"{folder}{files[0]}", f"{folder}{files[1]}", rows, nbytes)
    for name, needed in ((text.values, text.nbytes), (text.offsets, (text.rows + 1) * OFFSET_BYTES)):
        found, _ = objects.get(name, (0, ""))
        if found < needed:
            raise DatasetError(f"{url}/{name}", f"has {found} bytes instead of {needed}: it is truncated")
    return text
