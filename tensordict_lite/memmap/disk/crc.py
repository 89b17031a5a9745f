"""CRC-32 of data in parts.

Appending bytes to a message multiplies its CRC, a polynomial over GF(2), by a power of x. A multiplication takes 32
steps and the power is found by squaring, so the cost does not depend on the length (Mark Adler's ``crc32_combine`` of
zlib, which Python does not expose).
"""

from __future__ import annotations

import functools

_POLYNOMIAL = 0xEDB88320  # polynomial of CRC-32, lowest power in the highest bit
_ONE = 1 << 31


def combine(first: int, second: int, second_length: int) -> int:
    """The CRC of two consecutive messages.

    Args:
        first: CRC of the first.
        second: CRC of the second.
        second_length: bytes of the second.

    Example:
        >>> import zlib
        >>> combine(zlib.crc32(b"tensor"), zlib.crc32(b"dict"), 4) == zlib.crc32(b"tensordict")
        True
    """
    return _times(_power_of_byte(second_length), first) ^ second


def of_zeros(length: int) -> int:
    """The CRC of this many zero bytes.

    Example:
        >>> import zlib
        >>> of_zeros(1000) == zlib.crc32(bytes(1000))
        True
    """
    return _times(_power_of_byte(length), 0xFFFFFFFF) ^ 0xFFFFFFFF


def _times(a: int, b: int) -> int:
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@functools.lru_cache(256)
def _power_of_byte(count: int) -> int:
    power, square = _ONE, _ONE >> 8
    while count:
        if count & 1:
            power = _times(square, power)
        square = _times(square, square)
        count >>= 1
    return power
