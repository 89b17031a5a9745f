"""The value that a probabilistic module takes from a distribution."""

from __future__ import annotations

import warnings
from enum import Enum
from typing import Any

import torch
from torch import distributions as D

from tensordict_lite.nn.modes import Mode, Setting

__all__ = ["InteractionType", "deterministic_value", "interaction_type", "set_interaction_type"]


class InteractionType(str, Enum):  # noqa: UP042  (str() of a member names the class, as in the reference)
    """How a probabilistic module takes a value from a distribution.

    ``RANDOM`` is a sample (``rsample`` if available); ``MODE``, ``MEDIAN`` and ``MEAN`` are the attribute of that name;
    without a mean, ``MEAN`` averages samples. ``DETERMINISTIC`` is the attribute ``deterministic_sample``, else the
    mode of distributions over finitely many values and the mean of the others. Strings in any case are accepted.

    Example:
        >>> InteractionType("RANDOM"), InteractionType.from_str("Mode") is InteractionType.MODE
        (<InteractionType.RANDOM: 'random'>, True)
    """

    MODE = "mode"
    MEDIAN = "median"
    MEAN = "mean"
    RANDOM = "random"
    DETERMINISTIC = "deterministic"

    @classmethod
    def _missing_(cls, value: object) -> InteractionType | None:
        wanted = value.lower() if isinstance(value, str) else None
        return next((one for one in cls if one.value == wanted), None)

    @classmethod
    def from_str(cls, type_str: str) -> InteractionType:
        """The type of a name, in any case; ValueError if it is unknown."""
        return cls(type_str)

    def __str__(self) -> str:
        return self.value


_TYPE = Setting(None)


def interaction_type() -> InteractionType | None:
    """The type set by the innermost :class:`set_interaction_type`; None if each module uses its own default.

    Example:
        >>> with set_interaction_type("mean"):
        ...     interaction_type().name
        'MEAN'
    """
    return _TYPE.get()


class set_interaction_type(Mode):
    """Set the interaction type of all probabilistic modules inside a block or a decorated function.

    Args:
        type: an :class:`InteractionType` or its name; None: each module uses its ``default_interaction_type``.
        thread_local: the block affects only the thread that entered it.

    Raises:
        ValueError: the type is unknown.

    Example:
        >>> with set_interaction_type("mode"):
        ...     interaction_type()
        <InteractionType.MODE: 'mode'>
    """

    _setting = _TYPE

    def __init__(
        self, type: InteractionType | str | None = InteractionType.DETERMINISTIC, *, thread_local: bool = False
    ) -> None:
        super().__init__(None if type is None else InteractionType(type), thread_local)


# -- deterministic values ----------------------------------------------------------------------------------------


def _relaxed_mode(dist: Any) -> torch.Tensor:
    return torch.nn.functional.one_hot(dist.logits.argmax(-1), dist.logits.shape[-1]).to(dist.logits.dtype)


def _transformed_mean(dist: Any) -> torch.Tensor:
    value = dist.base_dist.mean
    for transform in dist.transforms:
        value = transform(value)
    return value


# Continuous distributions of torch without a mean, and the attribute used instead.
_SPECIAL: list[tuple[type, Any]] = [
    (D.RelaxedBernoulli, lambda dist: D.Bernoulli(logits=dist.logits).mode),
    (D.RelaxedOneHotCategorical, _relaxed_mode),
    (D.LogisticNormal, _transformed_mean),
]


def deterministic_value(dist: Any) -> torch.Tensor:
    """The deterministic value of a distribution.

    Raises:
        NotImplementedError: the distribution has neither ``deterministic_sample`` nor the mean or mode.
    """
    try:
        return dist.deterministic_sample
    except AttributeError:
        pass
    for kind, value in _SPECIAL:
        if isinstance(dist, kind):
            return value(dist)
    inner = dist
    while isinstance(inner, D.Independent):
        inner = inner.base_dist
    name = "mode" if inner.has_enumerate_support else "mean"
    if not type(inner).__module__.startswith(("torch.distributions", "tensordict_lite")):
        warnings.warn(
            f"deterministic_sample wasn't found when queried on {type(inner)}: its {name} is taken, by its support. "
            "Give the class an attribute deterministic_sample.",
            stacklevel=2,
        )
    return getattr(dist, name)
