"""Operations by key: group, sort and join datasets of any size, in bounded memory.

A key becomes *words*, unsigned integers that compare as the keys do (`codec`, `order`). Rows are cut into ranges of
keys (`splits`) and go through files (`spilling`); each range is then small enough to be sorted in the cache.
"""

from __future__ import annotations

from tdmap.bykey.aggregates import Grouped
from tdmap.bykey.distinct import unique, value_counts
from tdmap.bykey.grouping import GroupBy, group_by
from tdmap.bykey.joining import join
from tdmap.bykey.sampling import sample
from tdmap.bykey.sorting import sort
from tdmap.bykey.top import top_k

__all__ = ["GroupBy", "Grouped", "group_by", "join", "sample", "sort", "top_k", "unique", "value_counts"]
