"""Families of operations as mixins over the primitives of ``kernel.py``. Where to find a method:

======================  =====================================================================================
``keys/mapping.py``     keys, items, pop, setdefault, entry_class
``keys/update.py``      update, update_, update_at_, replace
``keys/select.py``      select, exclude, rename_key_, split_keys
``keys/nesting.py``     flatten_keys, unflatten_keys, empty, filter_empty_
``keys/join.py``        cat_tensors, stack_tensors, auto_batch_size_
``keys/state.py``       state_dict, load_state_dict
``shape.py``            view, reshape, permute, expand, flip, roll, names
``rows.py``             split, unbind, gather, masked_select, where, pad
``apply.py``            apply, named_apply
``values/``             arithmetic, comparisons, reductions
``cast.py``             clone, to, float, contiguous
``memory.py``           share_memory_, pin_memory, bytes
``autograd.py``         detach, grad, backward
``arrow_types.py``      arrow_types
``../api/``             construct (from_dict, new_zeros), convert (to_dict, numpy), storage (memmap, consolidate),
                        frames (to_pandas), module (from_module, to_module), distributed (send, all_gather),
                        engine (map)
======================  =====================================================================================
"""

from __future__ import annotations

from tensordict_lite.api.construct import ConstructOps
from tensordict_lite.api.convert import ConvertOps
from tensordict_lite.api.distributed import DistributedOps
from tensordict_lite.api.engine import EngineOps
from tensordict_lite.api.frames import FrameOps
from tensordict_lite.api.module import ModuleOps
from tensordict_lite.api.storage import StorageOps
from tensordict_lite.ops.apply import ApplyOps
from tensordict_lite.ops.arrow_types import ArrowTypeOps
from tensordict_lite.ops.autograd import AutogradOps
from tensordict_lite.ops.cast import CastOps
from tensordict_lite.ops.keys.mapping import MappingOps
from tensordict_lite.ops.memory import MemoryOps
from tensordict_lite.ops.rows import RowOps
from tensordict_lite.ops.shape import ShapeOps
from tensordict_lite.ops.values.comparison import ComparisonOps
from tensordict_lite.ops.values.pointwise import PointwiseOps
from tensordict_lite.ops.values.reduction import ReductionOps

__all__ = ["Families"]


class Families(
    MappingOps,
    ShapeOps,
    ArrowTypeOps,
    RowOps,
    ApplyOps,
    PointwiseOps,
    ComparisonOps,
    ReductionOps,
    CastOps,
    MemoryOps,
    AutogradOps,
    ConstructOps,
    ConvertOps,
    StorageOps,
    ModuleOps,
    DistributedOps,
    EngineOps,
    FrameOps,
):
    """All families, listed explicitly, so that a type checker sees the bases."""

    __slots__ = ()
