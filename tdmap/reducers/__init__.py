"""Ready-made reductions: per key, per channel, several in one pass.

Sums of integers, counts, extrema, histograms, quantile sketches, distinct values and checksums do not round, so they
have the same bits for every chunk size. Floating-point sums and moments are computed in float64 and merged in a fixed
tree over the chunks. They have the same bits for any number of workers; other chunk sizes round differently.
"""

from __future__ import annotations

from tdmap.reducers.base import Associative, MergeTree, Reducer, Several, as_reducer, fold, nodes
from tdmap.reducers.counting import Checksum, Histogram, Quantile, TopK, Unique, ValueCounts
from tdmap.reducers.ends import First, Last
from tdmap.reducers.moments import Count, CovarianceMatrix, Max, Mean, Min, MinMax, Std, Sum, Var

__all__ = [
    "Associative",
    "Checksum",
    "Count",
    "CovarianceMatrix",
    "First",
    "Histogram",
    "Last",
    "Max",
    "Mean",
    "MergeTree",
    "Min",
    "MinMax",
    "Quantile",
    "Reducer",
    "Several",
    "Std",
    "Sum",
    "TopK",
    "Unique",
    "ValueCounts",
    "Var",
    "as_reducer",
    "fold",
    "nodes",
]
