"""Key columns as words, and back: unsigned integers that compare as the keys do.

    bool, uint8..uint64   the number itself
    int8..int64           the number, counted from the smallest one of its dtype
    float16..float64      the bits, with the sign flipped, and all of them where it was set; -0.0 is 0.0, NaN comes last
    uint8 rows of m bytes big-endian, eight bytes a word
    descending            the number subtracted from a constant, modulo its bits, by which NaN and None still come last

Columns of a composite key share a word as long as their bits fit into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.keys.order import Words

_UNSIGNED = {torch.bool: 1, torch.uint8: 8, torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}
_SIGNED = {torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}
_FLOATS = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}
_INTEGER_VIEW = {16: torch.int16, 32: torch.int32, 64: torch.int64}
_BITS = {**_UNSIGNED, **_SIGNED, **_FLOATS}

Array = NDArray[Any]


def distances(integers: Array, low: int, out: NDArray[np.uint64]) -> None:
    """How far integers are from one of their dtype; of smaller ones, a number of almost 2**64."""
    if integers.dtype.itemsize == 8:  # right whatever the sign, and modulo 2**64
        np.subtract(integers.view(np.uint64), np.uint64(low % (1 << 64)), out=out)
    else:
        np.subtract(integers, low, out=out.view(np.int64), dtype=np.int64)


@dataclass(frozen=True)
class KeyColumn:
    """One column of a key: dtype and shape of one row, `()`, `(1,)` or, for uint8, `(bytes,)`.

    Raises:
        TypeError: the dtype has no order.
        ValueError: more than one value a row.
    """

    name: str
    """How messages call it."""
    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    none: int | None = None
    """The largest value, which stands for a string that is None."""

    def __post_init__(self) -> None:
        if self.dtype not in _BITS:
            raise TypeError(
                f"{self.name} has dtype {str(self.dtype).removeprefix('torch.')}, which cannot be a key: use bool, an "
                "integer or a floating point dtype of 16 bits or more, uint8 rows, or strings."
            )
        if self.shape not in ((), (1,)) and not (self.dtype is torch.uint8 and len(self.shape) == 1 and self.shape[0]):
            raise ValueError(
                f"{self.name} has rows of shape {list(self.shape)}, and a key has one value a row: shape [rows] or "
                "[rows, 1], or [rows, bytes] of dtype uint8. Pass a list of keys to use several, or a function of a "
                "chunk that computes one value a row."
            )

    @property
    def is_float(self) -> bool:
        """Whether there may be NaN."""
        return self.dtype in _FLOATS

    @property
    def offset(self) -> int | None:
        """What makes a word of an integer, if it is added; None for what becomes one in another way."""
        if len(self.shape) and self.shape[0] > 1:
            return None
        return 0 if self.dtype in _UNSIGNED else 1 << (_BITS[self.dtype] - 1) if self.dtype in _SIGNED else None

    @property
    def pieces(self) -> list[int]:
        """Bits of each of its numbers."""
        if len(self.shape) and self.shape[0] > 1:
            full, rest = divmod(self.shape[0], 8)
            return [64] * full + ([8 * rest] if rest else [])
        return [_BITS[self.dtype]]

    def encode(self, values: Tensor) -> list[Array]:
        """The numbers of some rows, of dtype uint64."""
        if len(self.shape) and self.shape[0] > 1:
            return self._encode_bytes(values)
        flat = values.detach().reshape(-1)
        bits = _BITS[self.dtype]
        if self.dtype in _UNSIGNED:
            return [flat.numpy(force=True).astype(np.uint64)]
        sign = np.uint64(1 << (bits - 1))
        if self.dtype in _SIGNED:
            return [flat.numpy(force=True).astype(np.int64, copy=False).view(np.uint64) + sign]
        flat = flat + 0.0  # -0.0 becomes 0.0; and a copy of our own
        flat[flat.isnan()] = torch.nan
        raw = flat.view(_INTEGER_VIEW[bits]).numpy(force=True)
        negative = raw < 0
        word = raw.astype(np.int64).view(np.uint64) & np.uint64((1 << bits) - 1)
        word ^= np.where(negative, np.uint64((1 << bits) - 1), sign)
        return [word]

    def turned(self, number: Array, bits: int) -> Array:
        """One of its numbers in descending order, with NaN and None last all the same; and back."""
        last = 0
        if self.is_float or self.none is not None:
            value = torch.nan if self.none is None else self.none
            last = int(self.encode(torch.tensor([value], dtype=self.dtype))[0][0])
        return (np.uint64((last - 1) % (1 << 64)) - number) & np.uint64((1 << bits) - 1)

    def _encode_bytes(self, values: Tensor) -> list[Array]:
        rows, width = values.shape
        padded = np.zeros((rows, -(-width // 8) * 8), dtype=np.uint8)
        padded[:, :width] = values.numpy(force=True)
        numbers = padded.view(">u8").astype(np.uint64)
        out = []
        for number, bits in enumerate(self.pieces):
            out.append(np.ascontiguousarray(numbers[:, number]) >> np.uint64(64 - bits))
        return out

    def decode(self, numbers: Sequence[Array]) -> Tensor:
        """The rows that `encode` made these numbers from, -0.0 and the bits of NaN excepted."""
        rows = len(numbers[0])
        if len(self.shape) and self.shape[0] > 1:
            words = [number << np.uint64(64 - bits) for number, bits in zip(numbers, self.pieces)]
            packed = np.stack(words, axis=1).astype(">u8").view(np.uint8).reshape(rows, len(words) * 8)
            return torch.from_numpy(np.ascontiguousarray(packed[:, : self.shape[0]]))
        word, bits = numbers[0], _BITS[self.dtype]
        if self.dtype in _UNSIGNED:
            kind = np.dtype(np.bool_) if self.dtype is torch.bool else np.dtype(f"u{bits // 8}")
            return torch.from_numpy(word.astype(kind)).reshape(rows, *self.shape)
        sign, full = np.uint64(1 << (bits - 1)), np.uint64((1 << bits) - 1)
        if self.dtype in _SIGNED:
            raw = (word - sign).view(np.int64).astype(f"i{bits // 8}")
            return torch.from_numpy(raw).reshape(rows, *self.shape)
        raw = word ^ np.where(word & sign != 0, sign, full)
        integers = torch.from_numpy(raw.astype(f"u{bits // 8}").view(f"i{bits // 8}"))
        return integers.view(self.dtype).reshape(rows, *self.shape)


@dataclass(frozen=True)
class KeyCodec:
    """Several columns as words.

    Args:
        columns: the most significant first.
        descending: which of them sort from large to small.
    """

    columns: tuple[KeyColumn, ...]
    descending: tuple[bool, ...] = ()
    _layout: tuple[tuple[tuple[int, int], ...], ...] = field(default=(), init=False)
    """For each word its pieces as (bits, shift)."""

    def __post_init__(self) -> None:
        layout: list[list[tuple[int, int]]] = []
        room = 0
        for bits in (bits for column in self.columns for bits in column.pieces):
            if bits > room:
                layout.append([])
                room = 64
            room -= bits
            layout[-1].append((bits, room))
        # Keys begin at the lowest bit, so that small ones stay small numbers.
        low = [word[-1][1] for word in layout]
        packed = tuple(tuple((bits, shift - at) for bits, shift in word) for word, at in zip(layout, low))
        object.__setattr__(self, "_layout", packed)
        if not self.descending:
            object.__setattr__(self, "descending", (False,) * len(self.columns))

    @property
    def num_words(self) -> int:
        """Words of a key."""
        return len(self._layout)

    def integers(self, values: Sequence[Tensor]) -> tuple[Array, int] | None:
        """The only column as it is, and what makes words of its integers, if it is added; None for other keys."""
        offset = self.columns[0].offset
        if offset is None or len(self.columns) > 1 or self.descending[0]:
            return None
        flat = values[0].detach().reshape(-1)
        return (flat.view(torch.uint8) if flat.dtype is torch.bool else flat).numpy(force=True), offset

    def encode(self, values: Sequence[Tensor]) -> Words:
        """The words of rows."""
        numbers = []
        for column, value, down in zip(self.columns, values, self.descending):
            for number, bits in zip(column.encode(value), column.pieces):
                numbers.append(column.turned(number, bits) if down else number)
        words, pieces = [], iter(numbers)
        for layout in self._layout:
            word = next(pieces)
            if layout[0][1]:
                word = word << np.uint64(layout[0][1])
            for _, shift in layout[1:]:
                word = word | (next(pieces) << np.uint64(shift))
            words.append(word)
        return words

    def decode(self, words: Words) -> list[Tensor]:
        """The columns that words were made from."""
        numbers = [
            (word >> np.uint64(shift)) & np.uint64((1 << bits) - 1)
            for word, layout in zip(words, self._layout)
            for bits, shift in layout
        ]
        out, at = [], 0
        for column, down in zip(self.columns, self.descending):
            pieces = column.pieces
            mine = numbers[at : at + len(pieces)]
            if down:
                mine = [column.turned(number, bits) for number, bits in zip(mine, pieces)]
            out.append(column.decode(mine))
            at += len(pieces)
        return out
