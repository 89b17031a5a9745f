"""Steps of the operations by key, of datasets of any size, in bounded memory.

A key becomes *words*, unsigned integers that compare as the keys do (`codec`, `order`). Rows are cut into ranges of
keys (`splits`) and go through files (`spilling`); each range is then small enough to be sorted in the cache.
"""

from __future__ import annotations

from tdmap.keys.aggregates import Grouped

__all__ = ["Grouped"]
