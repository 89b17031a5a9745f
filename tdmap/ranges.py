"""Runs of chunks, as pairs of a first one and the one after the last."""

from __future__ import annotations

from collections.abc import Iterable


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted runs that neither touch nor overlap.

    Example:
        >>> merge_ranges([(4, 6), (0, 2), (2, 3), (5, 8)])
        [(0, 3), (4, 8)]
    """
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif stop > start:
            merged.append((start, stop))
    return merged


def subtract_ranges(ranges: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is in `ranges` and not in `others`; both as `merge_ranges` gives them.

    Example:
        >>> subtract_ranges([(0, 10), (12, 14)], [(2, 4), (9, 13)])
        [(0, 2), (4, 9), (13, 14)]
    """
    left = []
    for start, stop in ranges:
        for first, last in others:
            if last > start and first < stop:
                if first > start:
                    left.append((start, first))
                start = last
        if start < stop:
            left.append((start, stop))
    return left
