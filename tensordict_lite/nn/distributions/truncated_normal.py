"""The normal distribution truncated to an interval, also one far out in a tail.

Formulas: J. Burkardt, "The Truncated Normal Distribution" (2014). Masses are stored as logarithms: if ``loc`` is fifty
scales away from the interval, the mass of the interval is 1e-545 and its logarithm -1254.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.special import log_ndtr, ndtri

__all__ = ["TruncatedNormal", "TruncatedStandardNormal"]

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_TAIL = -12.0  # logarithm of a mass below which ndtri() of float32 is not a good start


class TruncatedStandardNormal(Distribution):
    """The standard normal distribution restricted to ``[a, b]``; samples are reparameterised.

    Args:
        a: lower bound, a number or a tensor.
        b: upper bound; the bounds are broadcast together and give the batch shape.
        validate_args: see :class:`torch.distributions.Distribution`.

    Raises:
        ValueError: the bounds have different dtypes, or ``a`` is not less than ``b`` everywhere.

    Example:
        >>> dist = TruncatedStandardNormal(torch.zeros(2), torch.tensor([1.0, 2.0]))
        >>> dist.mean, dist.auc
        (tensor([0.4599, 0.7228]), tensor([0.3413, 0.4772]))
    """

    arg_constraints: dict[str, Any] = {"a": constraints.real, "b": constraints.real}
    has_rsample = True
    eps = 1e-6

    def __init__(self, a: float | Tensor, b: float | Tensor, validate_args: bool | None = None) -> None:
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype:
            raise ValueError(f"Truncation bounds types are different: {a.dtype} and {b.dtype}")
        self.a, self.b = broadcast_all(a, b)
        if validate_args is not False and not torch.compiler.is_compiling() and bool((self.a >= self.b).any()):
            raise ValueError("Incorrect truncation range: the lower bound must be less than the upper one everywhere")
        # bounds may be infinite: every real is allowed, NaN is not
        super().__init__(self.a.shape, validate_args=False)
        self._validate_args = validate_args if validate_args is not None else Distribution._validate_args
        self._log_mass = _log_mass(self.a, self.b)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(self.a, self.b)

    @property
    def auc(self) -> Tensor:
        """Mass of the standard normal distribution within the interval."""
        return self._log_mass.exp()

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and entropy, in double precision: in the tails large terms cancel."""
        if self.a.dtype == torch.float64 or self.a.device.type == "mps":
            a, b, log_mass = self.a, self.b, self._log_mass
        else:
            a, b = self.a.double(), self.b.double()
            log_mass = _log_mass(a, b)
        low, high = (torch.exp(-0.5 * x * x - _LOG_SQRT_2PI - log_mass) for x in (a, b))
        mean = low - high
        # the square of the mean goes into the two products: 1 + a·p(a) - b·p(b) - mean²
        variance = (1 + _finite(a - mean) * low - _finite(b - mean) * high).clamp_min(0)
        entropy = 0.5 + _LOG_SQRT_2PI + log_mass + 0.5 * (_finite(a) * low - _finite(b) * high)
        return mean.to(self.a.dtype), variance.to(self.a.dtype), entropy.to(self.a.dtype)

    @property
    def mean(self) -> Tensor:
        return _within(self._moments()[0], self.a, self.b)

    @property
    def mode(self) -> Tensor:
        return _within(torch.zeros_like(self.a), self.a, self.b)

    @property
    def variance(self) -> Tensor:
        return self._moments()[1]

    def entropy(self) -> Tensor:
        return self._moments()[2]

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        inside = _within(value, self.a, self.b)
        return torch.exp(_log_mass(self.a, inside) - self._log_mass).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return _within(_quantile(self.a, self.b, value), self.a, self.b)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        out = -0.5 * value * value - _LOG_SQRT_2PI - self._log_mass
        return out.masked_fill((value < self.a) | (value > self.b), -torch.inf)

    def rsample(self, sample_shape: Sequence[int] | None = None) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape or ()))
        info = torch.finfo(self.a.dtype)
        part = torch.empty(shape, dtype=self.a.dtype, device=self.a.device).uniform_(info.tiny, 1 - info.eps)
        return self.icdf(part)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """The same distribution with another batch shape, as views."""
        batch = torch.Size(batch_shape)
        return TruncatedStandardNormal(self.a.expand(batch), self.b.expand(batch), validate_args=False)


class TruncatedNormal(TruncatedStandardNormal):
    """A normal distribution restricted to ``[a, b]``; samples are reparameterised.

    Args:
        loc: mean before the truncation.
        scale: standard deviation before the truncation, at least 1e-6.
        a: lower bound, in the units of ``loc``.
        b: upper bound.
        validate_args: see :class:`torch.distributions.Distribution`.

    ``dist.a`` and ``dist.b`` are the bounds relative to ``loc``, in units of the scale.

    Raises:
        ValueError: ``a`` is not less than ``b`` everywhere.

    Example:
        >>> TruncatedNormal(loc=5.0, scale=1.0, a=4.0, b=6.0).mean
        tensor(5.)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        a: float | Tensor,
        b: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        scale = scale.clamp_min(self.eps) if isinstance(scale, Tensor) else max(scale, self.eps)
        self.loc, self.scale, low, high = broadcast_all(loc, scale, a, b)
        self._bounds = (low, high)
        super().__init__((low - self.loc) / self.scale, (high - self.loc) / self.scale, validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(*self._bounds)

    def _standard(self, value: Tensor) -> Tensor:
        return (value - self.loc) / self.scale

    def _scaled(self, value: Tensor) -> Tensor:
        return _within(value * self.scale + self.loc, *self._bounds)

    @property
    def mean(self) -> Tensor:
        return self._scaled(super().mean)

    @property
    def mode(self) -> Tensor:
        return _within(self.loc, *self._bounds)

    @property
    def variance(self) -> Tensor:
        return super().variance * self.scale**2

    def entropy(self) -> Tensor:
        return super().entropy() + self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        inside = _within(self._standard(value), self.a, self.b)
        return torch.exp(_log_mass(self.a, inside) - self._log_mass).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return self._scaled(super().icdf(value))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        x = self._standard(value)
        out = -0.5 * x * x - _LOG_SQRT_2PI - self._log_mass - self.scale.log()
        low, high = self._bounds
        return out.masked_fill((value < low) | (value > high), -torch.inf)

    def expand(self, batch_shape: Any, _instance: Any = None) -> TruncatedNormal:
        """The same distribution with another batch shape, as views."""
        parts: list[Any] = [part.expand(torch.Size(batch_shape)) for part in (self.loc, self.scale, *self._bounds)]
        loc, scale, low, high = parts
        return TruncatedNormal(loc, scale, low, high, validate_args=False)


# -- helpers ---------------------------------------------------------------------------------------------------


def _within(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(value, low), high)


def _finite(value: Tensor) -> Tensor:
    """Zero for infinities, which are multiplied by a density of zero."""
    return torch.where(value.isinf(), torch.zeros_like(value), value)


def _log_mass(a: Tensor, b: Tensor) -> Tensor:
    """Logarithm of the standard normal mass of ``[a, b]``, ``a <= b``."""
    # An interval on the right is mirrored to the left, where the two terms differ in scale, not in digits.
    right = a > 0
    low, high = torch.where(right, -b, a), torch.where(right, -a, b)
    upper, lower = log_ndtr(high), log_ndtr(low)
    tail = upper + torch.log1p(-torch.exp((lower - upper).clamp_max(0)))
    # An interval around zero: one minus the mass outside.
    outside = torch.exp(log_ndtr(torch.minimum(low, torch.zeros_like(low)))) + torch.exp(
        log_ndtr(torch.minimum(-high, torch.zeros_like(high)))
    )
    middle = torch.log1p(-outside.clamp_max(1))
    return torch.where((low < 0) & (high > 0) & (outside < 0.9), middle, tail)


def _quantile(a: Tensor, b: Tensor, part: Tensor) -> Tensor:
    """The point below which ``part`` of the mass of ``[a, b]`` lies; differentiable in the bounds."""
    mirrored = (a + b) > 0
    low, high = torch.where(mirrored, -b, a), torch.where(mirrored, -a, b)
    part = torch.where(mirrored, 1 - part, part)
    target = torch.logaddexp(log_ndtr(low) + torch.log1p(-part), log_ndtr(high) + torch.log(part))
    with torch.no_grad():
        point = _start(target)
        for _ in range(3):
            point = _newton(point, target)
    point = _newton(point, target)  # the last step carries the gradient (implicit function theorem)
    point = torch.where(torch.isfinite(point), point, torch.where(part > 0.5, high, low))
    return torch.where(mirrored, -point, point)


def _start(target: Tensor) -> Tensor:
    """A point whose log-cdf is about ``target``."""
    deep = torch.sqrt((-2 * target).clamp_min(1))
    deep = -torch.sqrt((-2 * (target + _LOG_SQRT_2PI + torch.log(deep))).clamp_min(0))
    near = ndtri(torch.exp(target.clamp_min(2 * _TAIL)).clamp_max(1 - torch.finfo(target.dtype).eps / 2))
    return torch.where(target < _TAIL, deep, near)


def _newton(point: Tensor, target: Tensor) -> Tensor:
    """One step towards ``log_ndtr(point) == target``, a concave and increasing function of the point."""
    log_cdf = log_ndtr(point)
    slope = torch.exp(-0.5 * point * point - _LOG_SQRT_2PI - log_cdf)
    return point - (log_cdf - target) / slope
