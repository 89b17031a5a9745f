"""Families of operations, one mixin a file, all written over the primitives of ``base.py``."""

from __future__ import annotations

from tensordict_lite.ops.apply import ApplyOps
from tensordict_lite.ops.autograd import AutogradOps
from tensordict_lite.ops.cast import CastOps
from tensordict_lite.ops.comparison import ComparisonOps
from tensordict_lite.ops.consolidation import ConsolidationOps
from tensordict_lite.ops.construct import ConstructOps
from tensordict_lite.ops.convert import ConvertOps
from tensordict_lite.ops.distributed import DistributedOps
from tensordict_lite.ops.engine import EngineOps
from tensordict_lite.ops.frames import FrameOps
from tensordict_lite.ops.mapping import MappingOps
from tensordict_lite.ops.module import ModuleOps
from tensordict_lite.ops.naming import NameOps
from tensordict_lite.ops.pointwise import PointwiseOps
from tensordict_lite.ops.reduction import ReductionOps
from tensordict_lite.ops.rows import RowOps
from tensordict_lite.ops.shape import ShapeOps
from tensordict_lite.ops.storage import StorageOps

__all__ = ["Families"]


class Families(
    MappingOps,
    ShapeOps,
    NameOps,
    RowOps,
    ApplyOps,
    PointwiseOps,
    ComparisonOps,
    ReductionOps,
    CastOps,
    AutogradOps,
    ConstructOps,
    ConvertOps,
    StorageOps,
    ConsolidationOps,
    ModuleOps,
    DistributedOps,
    EngineOps,
    FrameOps,
):
    """All of them. Named one by one, so that a type checker follows the bases."""

    __slots__ = ()
