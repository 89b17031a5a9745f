"""Families of operations as mixins over the primitives of ``kernel.py``, one per file."""

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
