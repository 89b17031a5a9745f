"""Rows and values picked from a dataset: distinct ones, the largest ones, some at random."""

from __future__ import annotations

from tdmap.bykey.picks.distinct import unique, value_counts
from tdmap.bykey.picks.draw import sample
from tdmap.bykey.picks.top import top_k

__all__ = ["sample", "top_k", "unique", "value_counts"]
