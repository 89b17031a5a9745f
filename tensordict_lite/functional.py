"""Functions over collections, under the name that the reference has for them."""

from __future__ import annotations

from tensordict_lite.batches import collate, merge_tensordicts
from tensordict_lite.builders import make_tensordict
from tensordict_lite.combine import pad, pad_sequence, unpad_sequence
from tensordict_lite.functions import dense_stack_tds, group_by

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
