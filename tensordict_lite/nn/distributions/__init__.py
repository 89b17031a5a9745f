"""Distributions that read and write tensordicts, and modules that compute their parameters."""

from __future__ import annotations

from tensordict_lite.nn.distributions import continuous, discrete
from tensordict_lite.nn.distributions.composite import CompositeDistribution
from tensordict_lite.nn.distributions.continuous import AddStateIndependentNormalScale, Delta, NormalParamExtractor
from tensordict_lite.nn.distributions.discrete import OneHotCategorical, rand_one_hot
from tensordict_lite.nn.distributions.truncated_normal import TruncatedNormal
from tensordict_lite.nn.interaction import InteractionType, set_interaction_type
from tensordict_lite.nn.utils import add_custom_mapping, mappings

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "Delta",
    "InteractionType",
    "NormalParamExtractor",
    "OneHotCategorical",
    "TruncatedNormal",
    "add_custom_mapping",
    "continuous",
    "discrete",
    "mappings",
    "rand_one_hot",
    "set_interaction_type",
]
