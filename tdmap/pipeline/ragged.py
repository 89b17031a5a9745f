"""What pipelines do with ragged columns: padding, packing, and batches of rows of about one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tdmap.data.kinds import Data, has_members
from tdmap.data.objects import objects_of
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.ragged import is_ragged, require_fill

BLOCK_COLUMNS = ("document", "position")
"""What `pack` can write beside the elements."""


def require_block_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that `pack` is to write beside the elements.

    Raises:
        ValueError: it does not have one of them.
    """
    if isinstance(columns, str) or not set(columns) <= set(BLOCK_COLUMNS):
        raise ValueError(f"columns is a list of {' and '.join(map(repr, BLOCK_COLUMNS))}, or empty: got {columns!r}.")
    return tuple(columns)


def ragged_in(rows: Data, key: str | tuple[str, ...]) -> Ragged:
    """The ragged column of some rows; of a lazy stack, an entry whose rows may differ in length.

    Raises:
        KeyError: unknown entry.
        TypeError: it holds no strings, bytes or lists of numbers.
    """
    entry = rows.get(key, None, as_list=True) if has_members(rows) else rows.get(key, None)
    if is_ragged(entry):
        return entry
    if isinstance(entry, list):
        return Ragged.from_list(entry)  # type: ignore[no-any-return]
    if entry is None:
        raise KeyError(f"unknown entry {key!r}. Entries: {', '.join(map(repr, rows.keys())) or 'none'}")
    if not getattr(entry, "_is_non_tensor", False):
        shape = getattr(entry, "shape", None)
        what = type(entry).__name__ if shape is None else f"{type(entry).__name__} of shape {list(shape)}"
        raise TypeError(f"{key!r} must be a Ragged: got a {what}")
    return Ragged.from_list(objects_of(entry))  # type: ignore[no-any-return]


class PadRows:
    """See `Pipeline.pad`."""

    def __init__(self, key: str, to: int | None, value: float, left: bool) -> None:
        self.key = key
        self.to = to
        self.value = value
        self.left = left
        self.__qualname__ = f"pad({key})"

    def __call__(self, rows: Data) -> Any:
        padded, mask = ragged_in(rows, self.key).pad(self.to, self.value, self.left)
        result: Any = rows.exclude(self.key)
        result[self.key], result[f"{self.key}_mask"] = padded, mask
        return result


class PackRows:
    """See `Pipeline.pack`."""

    def __init__(self, key: str, n: int, value: float, columns: tuple[str, ...]) -> None:
        self.key = key
        self.n = n
        self.value = value
        self.columns = columns
        self.__qualname__ = f"pack({key})"

    def __call__(self, rows: Data) -> TensorDict:
        flat, offsets = ragged_in(rows, self.key).flat()
        require_fill(self.value, flat.dtype)
        total, lengths = len(flat), offsets.diff()
        blocks = -(-total // self.n)

        def in_blocks(elements: torch.Tensor, rest: float) -> torch.Tensor:
            out = elements.new_full((blocks * self.n, *elements.shape[1:]), rest)
            out[:total] = elements
            return out.reshape(blocks, self.n, *elements.shape[1:])

        found = TensorDict({self.key: in_blocks(flat, self.value)}, [blocks])
        document = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), lengths)
        for name in self.columns:
            if name == "document":
                found[name] = in_blocks(document, -1)
            else:
                first = torch.repeat_interleave(offsets[:-1], lengths)
                found[name] = in_blocks((torch.arange(total) - first).to(torch.int32), 0)
        return found


class SortByLength:
    """See `Pipeline.bucket`."""

    def __init__(self, key: str, n: int, shuffle: bool) -> None:
        self.key = key
        self.n = n
        self.shuffle = shuffle
        self.__qualname__ = f"bucket({key})"

    def __call__(self, rows: Data) -> Any:
        batches = list(torch.sort(ragged_in(rows, self.key).lengths, stable=True).indices.split(self.n))
        full = sum(len(batch) == self.n for batch in batches)
        picks = torch.randperm(full).tolist() if self.shuffle else range(full)
        return rows[torch.cat([*(batches[pick] for pick in picks), *batches[full:]])]
