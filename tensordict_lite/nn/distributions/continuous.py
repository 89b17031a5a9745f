"""A distribution with all mass at one value, and modules that compute the parameters of a normal distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from tensordict_lite.nn.utils import mappings

__all__ = ["AddStateIndependentNormalScale", "Delta", "NormalParamExtractor"]


class NormalParamExtractor(nn.Module):
    """Split the last dimension of a tensor into location and scale of a normal distribution.

    The first half is the location; ``scale_mapping`` is applied to the second, which is at least ``scale_lb``. Further
    inputs are passed on: ``module(x, *others)`` returns ``(loc, scale, *others)``.

    Args:
        scale_mapping: name of a map onto positive numbers, see :func:`mappings`. The default
            ``"biased_softplus_1.0"`` gives 1 for 0.
        scale_lb: smallest scale.

    Example:
        >>> loc, scale = NormalParamExtractor()(torch.zeros(3, 4))
        >>> loc.shape, scale[0]
        (torch.Size([3, 2]), tensor([1., 1.]))
    """

    def __init__(self, scale_mapping: str = "biased_softplus_1.0", scale_lb: float = 1e-4) -> None:
        super().__init__()
        self.scale_mapping = mappings(scale_mapping)
        self.scale_lb = scale_lb

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        loc, scale = tensors[0].chunk(2, -1)
        return (loc, self.scale_mapping(scale).clamp_min(self.scale_lb), *tensors[1:])


class AddStateIndependentNormalScale(nn.Module):
    """Add a learnt scale that does not depend on the input: ``module(loc, *others)`` is ``(loc, scale, *others)``.

    Args:
        scale_shape: shape of the parameter: the last dimensions of ``loc``. Default: one number for all.
        scale_mapping: name of a map onto positive numbers, see :func:`mappings`.
        scale_lb: smallest scale.
        device: device of the parameter.
        make_param: make it a trainable parameter, else a buffer.
        init_value: value of the parameter before the mapping.

    Raises:
        RuntimeError: the last dimensions of ``loc`` are not ``scale_shape``.

    Example:
        >>> loc, scale = AddStateIndependentNormalScale(4)(torch.zeros(3, 4))
        >>> scale.shape, scale[0, 0].item()
        (torch.Size([3, 4]), 1.0)
    """

    def __init__(
        self,
        scale_shape: int | Sequence[int] | None = None,
        *,
        scale_mapping: str = "exp",
        scale_lb: float = 1e-4,
        device: torch.device | str | None = None,
        make_param: bool = True,
        init_value: float = 0.0,
    ) -> None:
        super().__init__()
        shape = () if scale_shape is None else (scale_shape,) if isinstance(scale_shape, int) else tuple(scale_shape)
        value = torch.full(shape, float(init_value), device=device)
        if make_param:
            self.state_independent_scale: Tensor = nn.Parameter(value)
        else:
            self.register_buffer("state_independent_scale", value)
        self.scale_mapping = mappings(scale_mapping)
        self.scale_lb = scale_lb

    def forward(self, loc: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        scale = self.state_independent_scale
        if loc.shape[loc.ndim - scale.ndim :] != scale.shape:
            raise RuntimeError(
                f"the last dimensions of loc {list(loc.shape)} must be those of the scale {list(scale.shape)}"
            )
        return (loc, self.scale_mapping(scale.expand(loc.shape)).clamp_min(self.scale_lb), *others)


class Delta(Distribution):
    """All mass at one value: every sample is ``param``.

    Args:
        param: the value, of shape ``[*batch_shape, *event_shape]``.
        atol, rtol: absolute and relative tolerance of the comparison in :meth:`log_prob`.
        batch_shape: batch shape. Without it and ``event_shape``, the last dimension of ``param`` is the event.
        event_shape: shape of one value.

    Raises:
        ValueError: the two shapes together are not the shape of ``param``.

    Example:
        >>> delta = Delta(torch.tensor([1.0, 2.0]))
        >>> delta.sample(), delta.log_prob(torch.tensor([1.0, 2.0])), delta.log_prob(torch.tensor([1.0, 3.0]))
        (tensor([1., 2.]), tensor(inf), tensor(-inf))
    """

    arg_constraints: dict[str, Any] = {}
    has_rsample = True

    def __init__(
        self,
        param: Tensor,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        batch_shape: Sequence[int] | None = None,
        event_shape: Sequence[int] | None = None,
    ) -> None:
        self.param = param
        self.atol = atol
        self.rtol = rtol
        batch, event = torch.Size(batch_shape or ()), torch.Size(event_shape or ())
        if not batch and not event:
            batch, event = param.shape[:-1], param.shape[-1:]
        if batch + event != param.shape:
            raise ValueError(
                f"the batch shape {list(batch)} and the event shape {list(event)} make {list(batch + event)}, and the "
                f"parameter has the shape {list(param.shape)}"
            )
        super().__init__(batch, event, validate_args=False)

    @property
    def support(self) -> Any:
        return torch.distributions.constraints.independent(torch.distributions.constraints.real, len(self.event_shape))

    def update(self, param: Tensor) -> None:
        """Replace ``param`` by a value of the same shape."""
        self.param = param

    def expand(self, batch_shape: Any, _instance: Any = None) -> Delta:
        """The same distribution with another batch shape, as views."""
        batch = torch.Size(batch_shape)
        param = self.param.expand(batch + self.event_shape)
        return Delta(param, self.atol, self.rtol, batch, self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Infinity where ``value`` is the parameter (in every element of the event), minus infinity elsewhere."""
        same = torch.isclose(value, self.param.expand(value.shape), rtol=self.rtol, atol=self.atol)
        for _ in self.event_shape:
            same = same.all(-1)
        out = torch.full(same.shape, -torch.inf, dtype=_floating(self.param), device=self.param.device)
        return out.masked_fill(same, torch.inf)

    def rsample(self, sample_shape: Sequence[int] | None = None) -> Tensor:
        """The parameter, expanded."""
        return self.param.expand(torch.Size(sample_shape or ()) + self.param.shape)

    sample = rsample

    @property
    def mode(self) -> Tensor:
        return self.param

    @property
    def mean(self) -> Tensor:
        return self.param

    @property
    def deterministic_sample(self) -> Tensor:
        """The parameter."""
        return self.param

    @property
    def variance(self) -> Tensor:
        return torch.zeros_like(self.param)


def _floating(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
