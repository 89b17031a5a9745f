"""Convert images, text, data frames and files of other tools to datasets, and back.

Packages of a format are imported on first use. Images are in `tdmap.datasets.images`.
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
from tdmap.datasets.formats import SkippedLine, SkippedLines, convert, read, write
from tdmap.datasets.pairwise import PairwiseDataset, PromptData, RewardData
from tdmap.datasets.text import pack, tokenise

__all__ = [
    "PairwiseDataset",
    "PromptData",
    "RewardData",
    "SkippedLine",
    "SkippedLines",
    "convert",
    "from_arrow",
    "from_dataset",
    "from_huggingface",
    "from_pandas",
    "from_polars",
    "pack",
    "read",
    "to_arrow",
    "to_huggingface",
    "to_pandas",
    "to_polars",
    "tokenise",
    "write",
]
