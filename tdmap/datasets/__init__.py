"""Datasets out of what people have, and back: jagged rows, pictures, text, tables and other formats.

Packages that a format needs are imported when it is asked for. Pictures are in `tdmap.datasets.images`.
"""

from __future__ import annotations

from tdmap.datasets.arrow import to_arrow
from tdmap.datasets.bridges import (
    from_arrow,
    from_dataset,
    from_huggingface,
    from_pandas,
    from_polars,
    to_huggingface,
    to_pandas,
    to_polars,
)
from tdmap.datasets.formats import convert, read, write
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.pairwise import PairwiseDataset, PromptData, RewardData
from tdmap.datasets.table import Table
from tdmap.datasets.text import tokenise

__all__ = [
    "Jagged",
    "PairwiseDataset",
    "PromptData",
    "RewardData",
    "Table",
    "convert",
    "from_arrow",
    "from_dataset",
    "from_huggingface",
    "from_pandas",
    "from_polars",
    "read",
    "to_arrow",
    "to_huggingface",
    "to_pandas",
    "to_polars",
    "tokenise",
    "write",
]
