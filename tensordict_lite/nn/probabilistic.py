"""Modules that build a distribution from entries and write a value from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from tensordict_lite.base import TensorCollection
from tensordict_lite.keys import NestedKey, unravel_key, unravel_key_list
from tensordict_lite.nn.base import TensorDictModuleBase, _render, key_list
from tensordict_lite.nn.dispatching import dispatch
from tensordict_lite.nn.distributions.composite import CompositeDistribution, suffixed
from tensordict_lite.nn.distributions.continuous import Delta
from tensordict_lite.nn.interaction import (
    InteractionType,
    deterministic_value,
    interaction_type,
    set_interaction_type,
)
from tensordict_lite.nn.probabilistic_sequence import ProbabilisticTensorDictSequential
from tensordict_lite.nn.randomness import Randomness
from tensordict_lite.nn.utils import _SKIP, composite_lp_aggregate, is_skipped

__all__ = [
    "InteractionType",
    "ProbabilisticTensorDictModule",
    "ProbabilisticTensorDictSequential",
    "interaction_type",
    "set_interaction_type",
]


class ProbabilisticTensorDictModule(TensorDictModuleBase):
    """Reads the parameters of a distribution and writes a value taken from it.

    It has no parameters of its own: a preceding :class:`TensorDictModule`, usually in a
    :class:`ProbabilisticTensorDictSequential`, computes those of the distribution. The interaction type selects the
    value: that of the innermost :class:`set_interaction_type`, else ``default_interaction_type``.

    With ``return_log_prob`` it also writes the log-probability of the value: for ``"action"`` at ``"action_log_prob"``,
    for ``("agent", "action")`` at ``("agent", "action_log_prob")``, one per component for a
    :class:`CompositeDistribution`. If :func:`composite_lp_aggregate` is true, their sum is written to
    ``"sample_log_prob"``. A distribution with ``rsample_and_log_prob`` (or ``sample_and_log_prob``) computes both in
    one call.

    Args:
        in_keys: key or keys of the parameters, whose last parts are the keyword arguments of the distribution; or a
            mapping of keyword arguments to keys.
        out_keys: key or keys of the values. Default: those of a composite distribution, else ``"_"``.
        default_interaction_type: an :class:`InteractionType` or its name. Default: ``DETERMINISTIC``.
        distribution_class: distribution, or a callable that creates one. Default :class:`Delta`, which copies.
        distribution_kwargs: further keyword arguments for it.
        return_log_prob: write log-probabilities.
        log_prob_keys: their keys, one for each value.
        log_prob_key: key of the log-probability of a single value, or of the sum.
        cache_dist: deprecated and ignored.
        n_empirical_estimate: number of samples that estimate the mean of a distribution without one.
        num_samples: leading dimensions of the values; the result is a new tensordict, expanded to
            ``[*num_samples, *batch_size]``.
        generator: source of randomness: None, the global generator; a ``torch.Generator``, whose state advances; an
            int, the seed of a new one; a key whose entry is a generator or a seed (an integer; the next seed is written
            back). The global generator is unchanged. Not supported under ``torch.compile``.

    Raises:
        RuntimeError: keys of log-probabilities that conflict with :func:`composite_lp_aggregate`.
        ValueError: a log-probability would overwrite a value.

    Example:
        >>> module = ProbabilisticTensorDictModule(
        ...     in_keys=["loc", "scale"], out_keys=["action"], distribution_class=torch.distributions.Normal
        ... )
        >>> module(TensorDict(loc=torch.zeros(3), scale=torch.ones(3)))["action"]
        tensor([0., 0., 0.])
    """

    _is_probabilistic = True

    def __init__(
        self,
        in_keys: NestedKey | list[NestedKey] | Mapping[str, NestedKey],
        out_keys: NestedKey | list[NestedKey] | None = None,
        *,
        default_interaction_type: InteractionType | str = InteractionType.DETERMINISTIC,
        distribution_class: Callable[..., Distribution] = Delta,
        distribution_kwargs: dict[str, Any] | None = None,
        return_log_prob: bool = False,
        log_prob_keys: list[NestedKey] | None = None,
        log_prob_key: NestedKey | None = None,
        cache_dist: bool = False,
        n_empirical_estimate: int = 1000,
        num_samples: int | torch.Size | None = None,
        generator: torch.Generator | int | NestedKey | None = None,
    ) -> None:
        super().__init__()
        if cache_dist:
            warnings.warn("cache_dist=True has no effect: leave it out", DeprecationWarning, stacklevel=2)
        if isinstance(in_keys, Mapping):
            self._arguments = list(in_keys)
            self.in_keys = key_list(list(in_keys.values()), "in_keys")
        else:
            self.in_keys = key_list(in_keys, "in_keys")
            self._arguments = [key if isinstance(key, str) else key[-1] for key in self.in_keys]
        self.default_interaction_type = InteractionType(default_interaction_type)
        self.distribution_class = distribution_class
        self.distribution_kwargs = {} if distribution_kwargs is None else distribution_kwargs
        self.return_log_prob = return_log_prob
        self.n_empirical_estimate = n_empirical_estimate
        self.num_samples = _sample_shape(num_samples)
        self._randomness = Randomness(generator)
        # the samples; the log-probabilities follow in `out_keys`
        self.__dict__["_out_keys"] = self._sample_keys(out_keys)
        self._aggregates = composite_lp_aggregate()
        self._log_prob_keys = self._choose_log_prob_keys(log_prob_key, log_prob_keys)

    # -- keys ------------------------------------------------------------------------------------------------

    def _is_composite(self) -> bool:
        made = self.distribution_class
        return isinstance(made, type) and issubclass(made, CompositeDistribution)

    def _sample_keys(self, out_keys: Any) -> list[Any]:
        if out_keys is not None:
            return key_list(out_keys, "out_keys")
        if self._is_composite() and "distribution_map" in self.distribution_kwargs:
            names = unravel_key_list(list(self.distribution_kwargs["distribution_map"]))
            name_map = self.distribution_kwargs.get("name_map") or {}
            if name_map:
                to = {unravel_key(name): unravel_key(key) for name, key in name_map.items()}
                left = [name for name in names if name not in to]
                if left:
                    warnings.warn(
                        f"name_map leaves out {left}: these are written, and are not in out_keys. Pass out_keys.",
                        FutureWarning,
                        stacklevel=4,
                    )
                return [to[name] for name in names if name in to]
            return names
        warnings.warn(
            "ProbabilisticTensorDictModule got no out_keys and writes its sample at '_': pass out_keys",
            FutureWarning,
            stacklevel=4,
        )
        return ["_"]

    def _choose_log_prob_keys(self, key: Any, keys: Any) -> list[Any]:
        samples = self._out_keys
        if self._aggregates:
            if keys is not None:
                raise RuntimeError(
                    "composite_lp_aggregate is set to True but log_prob_keys were passed: there is one sum, whose key "
                    "is log_prob_key"
                )
            chosen = ["sample_log_prob" if key is None else unravel_key(key)]
        elif keys is not None:
            chosen = unravel_key_list(list(keys))
            if len(chosen) != len(samples):
                raise ValueError(f"log_prob_keys={chosen} must be one for each of the values {samples}")
        elif key is not None:
            if len(samples) != 1:
                raise RuntimeError(
                    "composite_lp_aggregate is set to `False` but a `log_prob_key` was passed for several values "
                    f"{samples}: pass log_prob_keys, one for each"
                )
            chosen = [unravel_key(key)]
        else:
            return [suffixed(one, "_log_prob") for one in samples]
        if self.return_log_prob:
            for one in chosen:
                clash = next((sample for sample in samples if _overlap(one, sample)), None)
                if clash is not None:
                    raise ValueError(
                        "A custom log-probability key cannot be a sample key, lie inside one or hold one: writing the "
                        f"log-probability at {one!r} would overwrite the sample at {clash!r}"
                    )
        return chosen

    def _check_aggregation(self) -> None:
        now = composite_lp_aggregate()
        if now != self._aggregates:
            raise RuntimeError(
                f"composite_lp_aggregate is set to `{now}`, but the class was instantiated with `{self._aggregates}`, "
                "which decides the keys of log-probabilities: set it before the modules are made"
            )

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys of the values, then those of the log-probabilities, if they are written."""
        if not self.return_log_prob:
            return self._out_keys
        return [*self._out_keys, *self.log_prob_keys]

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        raise AttributeError(f"the out_keys of a {type(self).__name__} are decided when it is made")

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """The keys of the log-probabilities.

        Raises:
            RuntimeError: :func:`composite_lp_aggregate` has changed since the module was made.
        """
        self._check_aggregation()
        return self._log_prob_keys

    @property
    def log_prob_key(self) -> NestedKey:
        """The key of the single log-probability.

        Raises:
            RuntimeError: there are several (see :attr:`log_prob_keys`), or :func:`composite_lp_aggregate` has changed.
        """
        keys = self.log_prob_keys
        if len(keys) != 1:
            raise RuntimeError(f"there is more than one log-probability, {keys}: use log_prob_keys instead")
        return keys[0]

    @property
    def dist_params_keys(self) -> list[NestedKey]:
        """The keys of the parameters: ``in_keys``."""
        return self.in_keys

    @property
    def dist_sample_keys(self) -> list[NestedKey]:
        """The keys of the values."""
        return self._out_keys

    # -- distribution ------------------------------------------------------------------------------------------

    def get_dist(self, tensordict: Any) -> Distribution:
        """The distribution for the parameters in ``tensordict``.

        Raises:
            KeyError: a parameter is missing.
            TypeError: the distribution does not take these arguments.
        """
        arguments = {}
        for name, key in zip(self._arguments, self.in_keys):
            value = tensordict.get(key, None)
            if value is None:
                raise KeyError(
                    f"{type(self).__name__} reads the parameters {self.in_keys} of "
                    f"{_name_of(self.distribution_class)}, and the {type(tensordict).__name__} has no {key!r}; it has "
                    f"{sorted(tensordict.keys(True, True), key=str)}"
                )
            if not isinstance(value, Tensor) and isinstance(value, TensorCollection):
                value = value._as_value()
            arguments[name] = value
        try:
            return self.distribution_class(**arguments, **self.distribution_kwargs)
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise TypeError(
                "distribution keywords and tensordict keys indicated by ProbabilisticTensorDictModule.dist_keys must "
                f"match: {_name_of(self.distribution_class)} was called with {sorted(arguments)} and "
                f"{sorted(self.distribution_kwargs)}: {error}"
            ) from error

    build_dist_from_params = get_dist

    def log_prob(self, tensordict: Any, *, dist: Distribution | None = None) -> Any:
        """The log-probability of the value in ``tensordict``.

        Args:
            tensordict: parameters and value.
            dist: the distribution, if already known.

        Returns:
            A tensor. For a composite distribution, a tensordict with an entry per component; if
            :func:`composite_lp_aggregate` is true, their sum, and the entries are written into ``tensordict`` as well.
        """
        if dist is None:
            dist = self.get_dist(tensordict)
        if not isinstance(dist, CompositeDistribution):
            return dist.log_prob(tensordict.get(self._out_keys[0]))
        self._check_aggregation()
        dist.log_prob_key = self._log_prob_keys[0]
        out = dist.log_prob_composite(tensordict, include_sum=self._aggregates)
        if self._aggregates:
            return out.get(dist.log_prob_key)
        return self._renamed(out)

    def _renamed(self, scores: Any) -> Any:
        """Log-probabilities under the configured keys."""
        for sample, key in zip(self._out_keys, self._log_prob_keys):
            default = suffixed(sample, "_log_prob")
            if key != default and scores.get(default, None) is not None:
                scores.rename_key_(default, key)
        return scores

    # -- value -------------------------------------------------------------------------------------------------

    @dispatch(auto_batch_size=False)
    def forward(
        self, tensordict: Any, tensordict_out: TensorCollection | None = None, _requires_sample: bool = True
    ) -> Any:
        """Build the distribution and write a value from it.

        Args:
            tensordict: the parameters.
            tensordict_out: where to write the results. Default: ``tensordict``.

        Returns:
            The tensordict with the results; with ``num_samples`` a new one.
        """
        mode = _SKIP.get()
        if mode is not False and is_skipped(mode, tensordict, self.in_keys, self.out_keys):
            return tensordict
        if tensordict_out is None:
            tensordict_out = tensordict
        if self.return_log_prob:
            self._check_aggregation()
        elif not _requires_sample:
            return tensordict_out
        dist = self.get_dist(tensordict)
        if not _requires_sample:
            return self._score(dist, tensordict, tensordict_out)
        value, scores = self._value(dist, tensordict)
        if self.num_samples:
            tensordict_out = tensordict_out.expand(self.num_samples + tensordict_out.batch_size)
        if isinstance(value, TensorCollection):
            tensordict_out.update(value)
            if scores is not None:
                self._write_scores(tensordict_out, dist, scores)
            return tensordict_out
        values = value if isinstance(value, (tuple, list)) else (value,)
        if len(values) != len(self._out_keys):
            raise ValueError(
                f"{_name_of(self.distribution_class)} gives {len(values)} value(s) for the out_keys {self._out_keys}"
            )
        for key, one in zip(self._out_keys, values):
            tensordict_out.set(key, one)
        if scores is not None:
            tensordict_out.set(self._log_prob_keys[0], scores)
        return tensordict_out

    def _score(self, dist: Distribution, tensordict: Any, tensordict_out: Any) -> Any:
        if isinstance(dist, CompositeDistribution):
            self._write_scores(tensordict_out, dist, dist._scores(tensordict))
        else:
            tensordict_out.set(self._log_prob_keys[0], dist.log_prob(tensordict.get(self._out_keys[0])))
        return tensordict_out

    def _value(self, dist: Distribution, tensordict: Any) -> tuple[Any, Any]:
        """A value of the interaction type, and if requested its log-probability (by key for a composite)."""
        kind = interaction_type() or self.default_interaction_type
        if kind is InteractionType.RANDOM:
            with self._randomness.of(tensordict):
                return self._draw(dist)
        value = self._fixed(dist, kind, tensordict)
        if self.num_samples:
            value = value.expand(self.num_samples + value.shape)
        if not self.return_log_prob:
            return value, None
        return value, dist._scores(value) if isinstance(dist, CompositeDistribution) else dist.log_prob(value)

    def _draw(self, dist: Distribution) -> tuple[Any, Any]:
        method = "rsample" if dist.has_rsample else "sample"
        if not self.return_log_prob:
            return getattr(dist, method)(self.num_samples), None
        if isinstance(dist, CompositeDistribution):
            return dist._draw(self.num_samples, method)
        both = getattr(dist, method + "_and_log_prob", None)
        if both is not None:
            return both(self.num_samples)
        value = getattr(dist, method)(self.num_samples)
        return value, dist.log_prob(value)

    def _fixed(self, dist: Distribution, kind: InteractionType, tensordict: Any) -> Any:
        """The mode, median, mean or deterministic value."""
        try:
            if kind is InteractionType.DETERMINISTIC:
                return deterministic_value(dist)
            return getattr(dist, kind.value)
        except (AttributeError, NotImplementedError) as error:
            if kind in (InteractionType.MODE, InteractionType.MEDIAN):
                raise NotImplementedError(f"method {type(dist)}.{kind.value} is not implemented") from error
        draw = dist.rsample if dist.has_rsample else dist.sample
        with self._randomness.of(tensordict):
            return draw(torch.Size((self.n_empirical_estimate,))).mean(0)

    def _write_scores(self, tensordict: Any, dist: Any, scores: dict[Any, Tensor]) -> None:
        """Write the log-probabilities of the components, or also their sum."""
        renamed = {} if self._aggregates else dict(zip(self._out_keys, self._log_prob_keys))
        for key, score in scores.items():
            tensordict.set(renamed.get(key, suffixed(key, "_log_prob")), score)
        if self._aggregates:
            tensordict.set(self._log_prob_keys[0], dist._sum(scores.values(), tensordict.batch_dims))

    def __repr__(self) -> str:
        return _render(
            self,
            {
                "distribution_class": self.distribution_class,
                "distribution_kwargs": self.distribution_kwargs,
                "default_interaction_type": str(self.default_interaction_type),
                "num_samples": self.num_samples or None,
            },
        )


def _name_of(made: Any) -> str:
    return getattr(made, "__name__", repr(made))


def _sample_shape(num_samples: Any) -> torch.Size:
    if num_samples is None:
        return torch.Size(())
    return torch.Size((num_samples,) if isinstance(num_samples, int) else tuple(num_samples))


def _overlap(key: Any, sample: Any) -> bool:
    """Whether one key equals, contains or lies within the other."""
    one = (key,) if isinstance(key, str) else key
    two = (sample,) if isinstance(sample, str) else sample
    count = min(len(one), len(two))
    return one[:count] == two[:count]
