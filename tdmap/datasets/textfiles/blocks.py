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
                raise ValueError(
                    f"{path}: the row that begins at byte {rows_end} has no end for 1 GiB: close its quotes, or cut it."
                )
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
        self._opening = re.compile(b"[\r\n" + re.escape(self._delimiter) + b']"')

    def last(self, data: bytes) -> int:
        """Where the last whole record ends; 0: none does."""
        if b'"' not in data and b"\n" in data:
            return last_line(data)
        ends = self._ends(data, b"\n")
        if not len(ends):  # before macOS, and a \r at the end may be the first half of \r\n
            ends = self._ends(data[:-1], b"\r")
        return int(ends[-1]) if len(ends) else 0

    def first(self, data: bytes) -> int:
        """Where the first record ends."""
        ends = self._ends(data, b"\r\n")
        end = int(ends[0]) if len(ends) else len(data)
        return end + (data[end - 1 : end + 1] == b"\r\n")

    def unclosed(self, data: bytes) -> int | None:
        """Where the record begins whose quoted text has no end; None: all quotes are closed."""
        ends = [0, *self._ends(data + b"\n", b"\r\n")]
        return None if ends[-1] > len(data) else int(ends[-1])

    def _ends(self, data: bytes, marks: bytes) -> np.ndarray:
        """Behind which of these bytes a record ends."""
        letters = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(np.isin(letters, list(marks)) if len(marks) > 1 else letters == marks[0])
        quotes = np.flatnonzero(letters == 34)
        before = letters[np.maximum(quotes[::2] - 1, 0)]
        at_start = np.isin(before, np.frombuffer(b'\r\n"' + self._delimiter, np.uint8)) | (quotes[::2] == 0)
        if at_start.all():  # every other quote opens a field, or is the second half of a quote within one
            inside = np.searchsorted(quotes, ends) % 2 == 1
        else:
            inside = self._inside(data, ends)
        return np.asarray(ends[~inside] + 1)

    def _inside(self, data: bytes, ends: np.ndarray) -> np.ndarray:
        inside, at = np.zeros(len(ends), np.bool_), 0
        text = b"\n" + data  # a field begins at the beginning
        while (opening := self._opening.search(text, at)) is not None:
            closing = _REST_OF_QUOTED.match(text, opening.end())
            at = len(text) if closing is None else closing.end()
            first, last = np.searchsorted(ends, [opening.end() - 1, at - 1])
            inside[first:last] = True
        return inside


def may_begin_with_zeros(data: bytes) -> bool:
    """Whether a field of CSV may begin with a zero and another digit or an x, as dates within fields do not."""
    letters = np.frombuffer(b"\n\n" + data, np.uint8)
    zeros = np.flatnonzero(letters[2:-1] == 48) + 2
    before, behind = letters[zeros - 1], letters[zeros + 1]
    before = np.where((before == 43) | (before == 45), letters[zeros - 2], before)
    return bool((_BEFORE_FIELDS[before] & ((behind - 48 < 10) | (behind | 32 == 120))).any())
