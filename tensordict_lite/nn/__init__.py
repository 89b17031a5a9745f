"""Modules that read and write tensordicts, and parameters as collections.

=================================  ===========================================================================
:class:`TensorDictModule`          a module of tensors, with the keys that it reads and writes
:class:`TensorDictSequential`      several of them in order
:class:`TensorDictParams`          a collection of parameters that is a module
:func:`dispatch`                   lets a function of a tensordict be called with tensors
=================================  ===========================================================================
"""

from __future__ import annotations

from tensordict_lite.building.builders import make_tensordict
from tensordict_lite.nn.common import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    WrapModule,
    as_tensordict_module,
    dispatch,
)
from tensordict_lite.nn.cudagraphs import CudaGraphModule
from tensordict_lite.nn.distributions import (
    AddStateIndependentNormalScale,
    CompositeDistribution,
    NormalParamExtractor,
    OneHotCategorical,
    TruncatedNormal,
    rand_one_hot,
)
from tensordict_lite.nn.ensemble import EnsembleModule
from tensordict_lite.nn.interaction import InteractionType, interaction_type, set_interaction_type
from tensordict_lite.nn.params import TensorDictParams
from tensordict_lite.nn.probabilistic import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential
from tensordict_lite.nn.sequence import TensorDictSequential
from tensordict_lite.nn.tensorclass_module import TensorClassModuleBase, TensorClassModuleWrapper
from tensordict_lite.nn.utils import (
    add_custom_mapping,
    biased_softplus,
    composite_lp_aggregate,
    inv_softplus,
    mappings,
    set_composite_lp_aggregate,
    set_skip_existing,
    skip_existing,
)

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "CudaGraphModule",
    "EnsembleModule",
    "InteractionType",
    "NormalParamExtractor",
    "OneHotCategorical",
    "ProbabilisticTensorDictModule",
    "ProbabilisticTensorDictSequential",
    "TensorClassModuleBase",
    "TensorClassModuleWrapper",
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictModuleWrapper",
    "TensorDictParams",
    "TensorDictSequential",
    "TruncatedNormal",
    "WrapModule",
    "add_custom_mapping",
    "as_tensordict_module",
    "biased_softplus",
    "composite_lp_aggregate",
    "dispatch",
    "interaction_type",
    "inv_softplus",
    "make_tensordict",
    "mappings",
    "rand_one_hot",
    "set_composite_lp_aggregate",
    "set_interaction_type",
    "set_skip_existing",
    "skip_existing",
]
