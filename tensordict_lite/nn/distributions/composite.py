"""Several named distributions that sample and score tensordicts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import NestedKey, unravel_key
from tensordict_lite.nn.interaction import deterministic_value
from tensordict_lite.nn.utils import composite_lp_aggregate, set_composite_lp_aggregate

__all__ = ["CompositeDistribution", "composite_lp_aggregate", "set_composite_lp_aggregate"]


class CompositeDistribution(Distribution):
    """Named distributions that sample and score a tensordict together.

    The component of a name is ``distribution_map[name](**params[name], **extra_kwargs[name])``. Samples are
    tensordicts of batch size ``sample_shape + batch_shape``, where the batch shape is the batch size of ``params``.
    It is also a mapping from the keys of the samples to the components.

    Args:
        params: parameters; the entry at each name is a tensordict of keyword arguments.
        distribution_map: distribution class, or a callable that creates one, by name.
        name_map: key of the sample, by name, if it differs from the name.
        extra_kwargs: further keyword arguments, by name.
        log_prob_key: where :meth:`log_prob_composite` writes the sum. Default ``"sample_log_prob"``.
        entropy_key: where :meth:`entropy_composite` writes the sum. Default ``"entropy"``.

    Raises:
        KeyError: ``params`` lacks a name.

    Example:
        >>> from torch.distributions import Categorical, Normal
        >>> move = {"loc": torch.zeros(3, 4), "scale": torch.ones(3, 4)}
        >>> params = TensorDict({"move": move, "kind": {"logits": torch.zeros(3, 5)}}, [3])
        >>> dist = CompositeDistribution(params, {"move": Normal, "kind": Categorical})
        >>> sample = dist.sample((2,))
        >>> sample.batch_size, sorted(dist.log_prob(sample).keys())
        (torch.Size([2, 3]), ['kind_log_prob', 'move_log_prob'])
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(
        self,
        params: Any,
        distribution_map: Mapping[Any, Callable[..., Distribution]],
        *,
        name_map: Mapping[Any, Any] | None = None,
        extra_kwargs: Mapping[Any, Any] | None = None,
        log_prob_key: NestedKey | None = None,
        entropy_key: NestedKey | None = None,
    ) -> None:
        extra = {unravel_key(name): value for name, value in (extra_kwargs or {}).items()}
        dists = {}
        for name, make in distribution_map.items():
            name = unravel_key(name)
            arguments = params.get(name, None)
            if arguments is None:
                raise KeyError(f"no param {name} found in params with keys {sorted(params.keys(True), key=str)}")
            arguments = {key: arguments[key] for key in arguments.keys()}
            dists[name] = make(**arguments, **extra.get(name, {}))
        self._set_up(params.batch_size, dists, name_map, log_prob_key, entropy_key)

    @classmethod
    def from_distributions(
        cls,
        params: Any,
        distributions: Mapping[Any, Distribution],
        *,
        name_map: Mapping[Any, Any] | None = None,
        log_prob_key: NestedKey | None = None,
        entropy_key: NestedKey | None = None,
    ) -> CompositeDistribution:
        """A composite of existing distributions.

        Args:
            params: a tensordict whose batch size is the batch shape; its entries are not read.
            distributions: distribution by name.
            name_map: see :class:`CompositeDistribution`.
            log_prob_key: see :class:`CompositeDistribution`.
            entropy_key: see :class:`CompositeDistribution`.

        Example:
            >>> from torch.distributions import Normal
            >>> dist = CompositeDistribution.from_distributions(
            ...     TensorDict(batch_size=[3]), {"a": Normal(torch.zeros(3), 1.0)}
            ... )
            >>> dist.sample()["a"].shape
            torch.Size([3])
        """
        self = object.__new__(cls)
        dists = {unravel_key(name): dist for name, dist in distributions.items()}
        self._set_up(params.batch_size, dists, name_map, log_prob_key, entropy_key)
        return self

    def _set_up(self, batch_shape: Any, dists: Any, name_map: Any, log_prob_key: Any, entropy_key: Any) -> None:
        to = {unravel_key(name): unravel_key(key) for name, key in (name_map or {}).items()}
        self.dists: dict[Any, Distribution] = {to.get(name, name): dist for name, dist in dists.items()}
        self.log_prob_key = log_prob_key
        self.entropy_key = entropy_key
        super().__init__(torch.Size(batch_shape), validate_args=False)

    # -- keys ------------------------------------------------------------------------------------------------

    @property
    def log_prob_key(self) -> NestedKey:
        """Where :meth:`log_prob_composite` writes the sum; None resets it to ``"sample_log_prob"``."""
        return self._log_prob_key

    @log_prob_key.setter
    def log_prob_key(self, key: NestedKey | None) -> None:
        self._log_prob_key = "sample_log_prob" if key is None else unravel_key(key)

    @property
    def entropy_key(self) -> NestedKey:
        """Where :meth:`entropy_composite` writes the sum; None resets it to ``"entropy"``."""
        return self._entropy_key

    @entropy_key.setter
    def entropy_key(self, key: NestedKey | None) -> None:
        self._entropy_key = "entropy" if key is None else unravel_key(key)

    def __getitem__(self, key: NestedKey) -> Distribution:
        try:
            return self.dists[unravel_key(key) if isinstance(key, tuple) else key]
        except KeyError:
            raise KeyError(f"there is no component {key!r}; there are {list(self.dists)}") from None

    def __iter__(self) -> Iterator[NestedKey]:
        return iter(self.dists)

    def __len__(self) -> int:
        return len(self.dists)

    def __contains__(self, key: Any) -> bool:
        return (unravel_key(key) if isinstance(key, tuple) else key) in self.dists

    def keys(self) -> Any:
        """The keys of the samples."""
        return self.dists.keys()

    def values(self) -> Any:
        """The components."""
        return self.dists.values()

    def items(self) -> Any:
        """The keys of the samples with their components."""
        return self.dists.items()

    def get(self, key: NestedKey, default: Any = None) -> Any:
        """The component of a key, or the default."""
        return self[key] if key in self else default

    # -- values ----------------------------------------------------------------------------------------------

    def _tree(self, values: Mapping[Any, Tensor], lead: Any = ()) -> TensorDict:
        td = TensorDict({}, batch_size=torch.Size(lead) + self.batch_shape)
        for key, value in values.items():
            td.set(key, value)
        return td

    def sample(self, sample_shape: Any = None) -> TensorDict:  # type: ignore[override]
        """A sample of each component.

        Args:
            sample_shape: leading dimensions of the samples. Default: none.
        """
        lead = torch.Size(sample_shape or ())
        with torch.no_grad():
            return self._tree({key: dist.sample(lead) for key, dist in self.dists.items()}, lead)

    def rsample(self, sample_shape: Any = None) -> TensorDict:  # type: ignore[override]
        """A reparameterised sample of each component; all must support it."""
        lead = torch.Size(sample_shape or ())
        return self._tree({key: dist.rsample(lead) for key, dist in self.dists.items()}, lead)

    @property
    def mode(self) -> TensorDict:  # type: ignore[override]
        """The mode of each component."""
        return self._tree({key: dist.mode for key, dist in self.dists.items()})

    @property
    def mean(self) -> TensorDict:  # type: ignore[override]
        """The mean of each component."""
        return self._tree({key: dist.mean for key, dist in self.dists.items()})

    @property
    def deterministic_sample(self) -> TensorDict:
        """The deterministic value of each component, see :class:`InteractionType`."""
        values = {}
        for key, dist in self.dists.items():
            try:
                values[key] = deterministic_value(dist)
            except NotImplementedError as error:
                raise NotImplementedError(
                    f"the component {key!r}, a {type(dist).__name__}, has no deterministic_sample and no mean or mode: "
                    "give its class the attribute deterministic_sample, or use another interaction type"
                ) from error
        return self._tree(values)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether every component has reparameterised samples."""
        return all(dist.has_rsample for dist in self.dists.values())

    def _draw(self, sample_shape: Any, method: str) -> tuple[TensorDict, dict[Any, Tensor]]:
        """A sample, and the log-probability of that draw for each component."""
        lead = torch.Size(sample_shape or ())
        values, scores = {}, {}
        for key, dist in self.dists.items():
            both = getattr(dist, method + "_and_log_prob", None)
            if both is not None:
                values[key], scores[key] = both(lead)
            else:
                values[key] = getattr(dist, method)(lead)
                scores[key] = dist.log_prob(values[key])
        return self._tree(values, lead), scores

    def _both(self, sample_shape: Any, method: str) -> tuple[TensorDict, Any]:
        sample, scores = self._draw(sample_shape, method)
        if composite_lp_aggregate():
            return sample, self._sum(scores.values(), sample.batch_dims)
        return sample, self._into(TensorDict({}, batch_size=sample.batch_size), scores, "_log_prob")

    def sample_and_log_prob(self, sample_shape: Any = None) -> tuple[TensorDict, Any]:
        """A sample and its log-probability, in the form of :meth:`log_prob`.

        Components that define this method compute both in one call.
        """
        return self._both(sample_shape, "sample")

    def rsample_and_log_prob(self, sample_shape: Any = None) -> tuple[TensorDict, Any]:
        """:meth:`sample_and_log_prob`, reparameterised."""
        return self._both(sample_shape, "rsample")

    # -- scores ----------------------------------------------------------------------------------------------

    def _scores(self, sample: Any) -> dict[Any, Tensor]:
        scores = {}
        for key, dist in self.dists.items():
            value = sample.get(key, None)
            if value is None:
                raise KeyError(
                    f"the sample has no entry {key!r} to score; it has {sorted(sample.keys(True, True), key=str)}"
                )
            scores[key] = dist.log_prob(value)
        return scores

    @staticmethod
    def _sum(scores: Any, batch_dims: int) -> Any:
        return sum(score.flatten(batch_dims, -1).sum(-1) if score.ndim > batch_dims else score for score in scores)

    def log_prob(self, value: Any) -> Any:
        """Log-probabilities of a sample.

        Args:
            value: a tensordict with the value of each component at its key.

        Returns:
            A new tensordict with ``<key>_log_prob`` for each component; if :func:`composite_lp_aggregate` is true one
            tensor, the sum over components and event dimensions. The batch size is that of the sample.
        """
        scores = self._scores(value)
        if composite_lp_aggregate():
            return self._sum(scores.values(), value.batch_dims)
        return self._into(TensorDict({}, batch_size=value.batch_size), scores, "_log_prob")

    @staticmethod
    def _into(td: Any, values: Mapping[Any, Tensor], suffix: str) -> Any:
        for key, value in values.items():
            td.set(suffixed(key, suffix), value)
        return td

    def log_prob_composite(self, sample: Any, *, include_sum: bool | None = None) -> Any:
        """Log-probabilities of a sample, one entry ``<key>_log_prob`` per component.

        Args:
            sample: a tensordict with the value of each component at its key.
            include_sum: also write the sum at :attr:`log_prob_key`. Default: :func:`composite_lp_aggregate`.

        Returns:
            A new tensordict; if :func:`composite_lp_aggregate` is true, ``sample`` itself with the entries.
        """
        aggregate = composite_lp_aggregate()
        scores = self._scores(sample)
        out = sample if aggregate else TensorDict({}, batch_size=sample.batch_size)
        self._into(out, scores, "_log_prob")
        if aggregate if include_sum is None else include_sum:
            out.set(self.log_prob_key, self._sum(scores.values(), sample.batch_dims))
        return out

    def _entropies(self, samples_mc: int) -> dict[Any, Tensor]:
        out = {}
        for key, dist in self.dists.items():
            try:
                out[key] = dist.entropy()
            except NotImplementedError:  # Monte Carlo
                out[key] = -dist.log_prob(dist.rsample(torch.Size((samples_mc,)))).mean(0)
        return out

    def entropy(
        self, samples_mc: int = 1, *, aggregate_probabilities: bool | None = None, include_sum: bool | None = None
    ) -> Any:
        """Entropies, one entry ``<key>_entropy`` per component, or their sum.

        Args:
            samples_mc: number of samples for an estimate, for components without a formula.
            aggregate_probabilities: deprecated and ignored.
            include_sum: see :meth:`entropy_composite`.

        Returns:
            A tensordict; if :func:`composite_lp_aggregate` is true one tensor of the batch shape.
        """
        if aggregate_probabilities is not None:
            warnings.warn(
                "entropy(aggregate_probabilities=) has no effect: use set_composite_lp_aggregate()",
                DeprecationWarning,
                stacklevel=2,
            )
        if composite_lp_aggregate():
            return self._sum(self._entropies(samples_mc).values(), len(self.batch_shape))
        return self.entropy_composite(samples_mc, include_sum=include_sum)

    def entropy_composite(self, samples_mc: int = 1, *, include_sum: bool | None = None) -> TensorDict:
        """Entropies, one entry ``<key>_entropy`` per component.

        Args:
            samples_mc: number of samples for an estimate, for components without a formula.
            include_sum: also write the sum at :attr:`entropy_key`. Default: :func:`composite_lp_aggregate`.
        """
        entropies = self._entropies(samples_mc)
        out: TensorDict = self._into(TensorDict({}, batch_size=self.batch_shape), entropies, "_entropy")
        if composite_lp_aggregate() if include_sum is None else include_sum:
            out.set(self.entropy_key, self._sum(entropies.values(), len(self.batch_shape)))
        return out

    def cdf(self, value: Any) -> Any:
        """Write the cumulative probability of each component into the sample, at ``<key>_cdf``; returns it."""
        return self._into(value, {key: dist.cdf(value[key]) for key, dist in self.dists.items()}, "_cdf")

    def icdf(self, value: Any) -> Any:
        """Write the quantile of ``<key>_cdf`` of each component at ``<key>_icdf``; returns the sample.

        If ``<key>_cdf`` is missing, the cdf of the value at ``<key>`` is used.

        Raises:
            KeyError: a component has neither.
        """
        quantiles = {}
        for key, dist in self.dists.items():
            part = value.get(suffixed(key, "_cdf"), None)
            if part is None:
                at = value.get(key, None)
                if at is None:
                    raise KeyError(
                        f"Neither {key} nor {suffixed(key, '_cdf')} could be found in the sampled tensordict, which "
                        f"has {sorted(value.keys(True, True), key=str)}"
                    )
                part = dist.cdf(at)
            quantiles[key] = dist.icdf(part)
        return self._into(value, quantiles, "_icdf")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dists})"


def suffixed(key: Any, suffix: str) -> Any:
    """The key with a suffix on its last part."""
    return key + suffix if isinstance(key, str) else (*key[:-1], key[-1] + suffix)
