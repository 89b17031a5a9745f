"""Functions over collections, under the name that the reference has for them."""

from __future__ import annotations

from tensordict_lite.building.batches import collate, merge_tensordicts
from tensordict_lite.building.builders import make_tensordict
from tensordict_lite.building.functions import dense_stack_tds, group_by
from tensordict_lite.dense.combine import pad, pad_sequence, unpad_sequence

__all__ = [
    "collate",
    "dense_stack_tds",
    "group_by",
    "make_tensordict",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
    "unpad_sequence",
]
