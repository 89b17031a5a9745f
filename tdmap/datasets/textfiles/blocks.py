"""Text as blocks of whole rows, however long a row is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator

import numpy as np

from tdmap.datasets.extras import opened
from tensordict_lite.packages import pyarrow

LONGEST = 1 << 30
"""Bytes of the longest row. Arrow counts the bytes of a column in 32 bits."""

PIECE = 1 << 20
"""Bytes of a block that are looked at in one step: arrays about them take several times as many."""

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""By the last ending of a name. Binary formats compress by themselves."""

BOM = b"\xef\xbb\xbf"
_REST_OF_QUOTED = re.compile(rb'[^"]*(?:""[^"]*)*"(?!")')
_BEFORE_FIELDS = np.isin(np.arange(256), list(b'\r\n", \t'))


def codec_of(path: str) -> str | None:
    """What a file of text is compressed with."""
    return CODECS.get(os.path.splitext(path)[1].lower())


def blocks_of(
    path: str, cut: Callable[[bytes], int], size: int, longest: int = LONGEST
) -> Generator[tuple[bytes, bool], None, None]:
    """The content of a file, local or of a URL, as it is before compression, without its byte order mark.

    Each block comes with whether its last row ends in it. The last block of a file may lack this end.

    Args:
        path: the file.
        cut: the number of bytes that whole rows take at the beginning of some content.
        size: bytes of a block; more where a row is longer.
        longest: bytes of the longest row.

    Raises:
        ValueError: a row has no end for 1 GiB.
    """
    codec, held, wanted, rows_end = codec_of(path), b"", size, 0
    with opened(path) as source:
        file = source if codec is None else pyarrow().CompressedInputStream(source, codec)
        while found := file.read(wanted):
            held += found if held or rows_end else found.removeprefix(BOM)
            end = cut(held)
            if end:
                yield held[:end], True
                held, wanted, rows_end = held[end:], size, rows_end + end
            elif len(held) >= longest:
                raise ValueError(f"{path}: the row that begins at byte {rows_end} has no end for 1 GiB: cut it.")
            else:
                wanted = len(held)
    if held:
        yield held, False


def last_line(data: bytes) -> int:
    """Where the last whole line ends."""
    return data.rfind(b"\n") + 1


def lines_in(data: bytes) -> int:
    """How many lines end in some content. `bytes.count` takes three times as long."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))


class Records:
    """Where records of CSV end: at ends of lines that are not quoted.

    As in Arrow's parser, a quote begins quoted text at the beginning of a field only, and is a letter elsewhere.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter.encode()
        self._opening = re.compile(rb"(?:\A|[\r\n" + re.escape(self._delimiter) + rb'])"')

    def last(self, data: bytes) -> int:
        """Where the last whole record ends; 0: none does."""
        if b'"' not in data and b"\n" in data:
            return last_line(data)
        # A \r ends records before macOS, and one at the end may be the first half of \r\n.
        return self._last(data, b"\n") or self._last(data[:-1], b"\r")

    def first(self, data: bytes) -> int:
        """Where the first record ends."""
        end = next((int(ends[0]) for ends in self._ends(data, b"\r\n") if len(ends)), len(data))
        return end + (data[end - 1 : end + 1] == b"\r\n")

    def unclosed(self, data: bytes) -> int | None:
        """Where the record begins whose quoted text has no end; None: all quotes are closed."""
        if self._last(data + b"\n", b"\n") > len(data):
            return None
        return self._last(data, b"\r\n")

    def _last(self, data: bytes, marks: bytes) -> int:
        last = 0
        for ends in self._ends(data, marks):
            last = int(ends[-1]) if len(ends) else last
        return last

    def _ends(self, data: bytes, marks: bytes) -> Generator[np.ndarray, None, None]:
        """Behind which of these bytes a record ends, for a piece of the data at a time: a row may be all of it."""
        letters, quotes = np.frombuffer(data, np.uint8), 0
        for at in range(0, len(data), PIECE):
            piece = letters[at : at + PIECE]
            here = np.flatnonzero(piece == 34)
            opening = here[quotes % 2 :: 2] + at
            before = letters[np.maximum(opening - 1, 0)]
            at_start = np.isin(before, np.frombuffer(b'\r\n"' + self._delimiter, np.uint8)) | (opening == 0)
            if not at_start.all():
                yield from self._ends_between(data, letters, marks, at)
                return
            # Every other quote opens a field, or is the second half of a quote within one.
            ends = _found(piece, marks)
            yield ends[(np.searchsorted(here, ends) + quotes) % 2 == 0] + at + 1
            quotes += len(here)

    def _ends_between(
        self, data: bytes, letters: np.ndarray, marks: bytes, start: int
    ) -> Generator[np.ndarray, None, None]:
        """As `_ends`, of data with quotes that are letters; those behind `start`."""
        at = 0
        while at < len(data):
            opening = self._opening.search(data, at)
            stop = len(data) if opening is None else opening.end()
            for begin in range(max(at, start), stop, PIECE):
                yield _found(letters[begin : min(begin + PIECE, stop)], marks) + begin + 1
            closing = None if opening is None else _REST_OF_QUOTED.match(data, stop)
            at = len(data) if closing is None else closing.end()


def _found(letters: np.ndarray, marks: bytes) -> np.ndarray:
    is_mark = letters == marks[0]
    for mark in marks[1:]:
        is_mark |= letters == mark
    return np.flatnonzero(is_mark)


def may_begin_with_zeros(data: bytes) -> bool:
    """Whether a field of CSV may begin with a zero and another digit or an x, as dates within fields do not."""
    return any(
        _has_zeros((data[at - 2 : at] if at else b"\n\n") + data[at : at + PIECE + 1])
        for at in range(0, len(data), PIECE)
    )


def _has_zeros(data: bytes) -> bool:
    letters = np.frombuffer(data, np.uint8)
    zeros = np.flatnonzero(letters[2:-1] == 48) + 2
    before, behind = letters[zeros - 1], letters[zeros + 1]
    before = np.where((before == 43) | (before == 45), letters[zeros - 2], before)
    return bool((_BEFORE_FIELDS[before] & ((behind - 48 < 10) | (behind | 32 == 120))).any())
