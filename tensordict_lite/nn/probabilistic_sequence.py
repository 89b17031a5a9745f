"""Sequences that contain probabilistic modules and return their distribution."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.distributions import Distribution

from tensordict_lite.base import TensorCollection
from tensordict_lite.keys import NestedKey
from tensordict_lite.nn.dispatching import dispatch
from tensordict_lite.nn.distributions.composite import CompositeDistribution
from tensordict_lite.nn.interaction import interaction_type, set_interaction_type
from tensordict_lite.nn.sequence import TensorDictSequential
from tensordict_lite.nn.utils import _SKIP, is_skipped

if TYPE_CHECKING:
    from tensordict_lite.base import TensorDictBase

__all__ = ["ProbabilisticTensorDictSequential"]


class ProbabilisticTensorDictSequential(TensorDictSequential):
    """A :class:`TensorDictSequential` with probabilistic modules, which returns its distribution and log-probabilities.

    Usually the last module is a :class:`ProbabilisticTensorDictModule`, and those before it compute its parameters. If
    the parameters of a module depend on a sample of an earlier one, its distribution is conditional on that sample.

    Args:
        *modules: see :class:`TensorDictSequential`.
        partial_tolerant: stored, without effect; for that, put this sequence into a :class:`TensorDictSequential` with
            it.
        return_composite: make :meth:`get_dist` return a :class:`CompositeDistribution` of all probabilistic modules;
            else the distribution of the last module, which must be probabilistic. Default: True with more than one
            probabilistic module, or if the last one is not probabilistic.
        selected_out_keys: see :class:`TensorDictSequential`.
        inplace: see :class:`TensorDictSequential`.

    Raises:
        ValueError: there is no module.
        TypeError: ``return_composite=False``, and the last module is not probabilistic.

    Example:
        >>> from tensordict_lite.nn import ProbabilisticTensorDictModule, TensorDictModule
        >>> policy = ProbabilisticTensorDictSequential(
        ...     TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["loc"]),
        ...     ProbabilisticTensorDictModule(
        ...         in_keys=["loc"], out_keys=["action"], distribution_class=torch.distributions.Normal,
        ...         distribution_kwargs={"scale": 1.0},
        ...     ),
        ... )
        >>> td = policy(TensorDict(x=torch.ones(2)))
        >>> td["action"], policy.log_prob(td)
        (tensor([2., 2.]), tensor([-0.9189, -0.9189]))
    """

    def __init__(
        self,
        *modules: Any,
        partial_tolerant: bool = False,
        return_composite: bool | None = None,
        selected_out_keys: list[NestedKey] | None = None,
        inplace: bool | str | None = None,
    ) -> None:
        if not modules or (len(modules) == 1 and not callable(modules[0]) and not len(modules[0])):
            raise ValueError(f"{type(self).__name__} must consist of at least one module")
        super().__init__(
            *modules, partial_tolerant=partial_tolerant, selected_out_keys=selected_out_keys, inplace=inplace
        )
        last = self[len(self) - 1]
        probabilistic = sum(_is_probabilistic(module) for module in self)
        ends = _is_probabilistic(last) or isinstance(last, ProbabilisticTensorDictSequential)
        if return_composite is None:
            return_composite = probabilistic > 1 or not ends
        if not return_composite and not ends:
            raise TypeError(
                f"The final module passed to {type(self).__name__} must be an instance of "
                "ProbabilisticTensorDictModule or another ProbabilisticTensorDictSequential (unless return_composite "
                f"is set to True); it is a {type(last).__name__}"
            )
        self.return_composite = return_composite

    # -- keys ------------------------------------------------------------------------------------------------

    def _probabilistic(self) -> list[Any]:
        """The probabilistic modules, including those of nested sequences, last one first."""
        out: list[Any] = []
        for module in reversed(list(self)):
            if _is_probabilistic(module):
                out.append(module)
            elif isinstance(module, ProbabilisticTensorDictSequential):
                out.extend(module._probabilistic())
        return out

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """The log-probability keys of all probabilistic modules, last one first."""
        return [key for module in self._probabilistic() for key in module.log_prob_keys]

    @property
    def log_prob_key(self) -> NestedKey:
        """The log-probability key; AttributeError unless there is exactly one, see :attr:`log_prob_keys`."""
        keys = self.log_prob_keys
        if len(keys) != 1:
            raise AttributeError(f"there are {len(keys)} log-probability keys, {keys}: use log_prob_keys")
        return keys[0]

    @property
    def dist_params_keys(self) -> list[NestedKey]:
        """The keys of the parameters of all probabilistic modules, last one first."""
        return [key for module in self._probabilistic() for key in module.dist_params_keys]

    @property
    def dist_sample_keys(self) -> list[NestedKey]:
        """The keys of the values of all probabilistic modules, last one first."""
        return [key for module in self._probabilistic() for key in module.dist_sample_keys]

    @property
    def num_samples(self) -> torch.Size:
        """The leading dimensions that the probabilistic modules add, last one first."""
        return torch.Size([size for module in self._probabilistic() for size in module.num_samples])

    @property
    def default_interaction_type(self) -> Any:
        """That of the last module that has one; else the result of :func:`interaction_type`."""
        for module in self._probabilistic():
            return module.default_interaction_type
        return interaction_type()

    # -- running -----------------------------------------------------------------------------------------------

    @dispatch(auto_batch_size=False)
    def forward(
        self,
        tensordict: TensorDictBase,
        tensordict_out: TensorCollection | None = None,
        _requires_sample: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the modules in order.

        The last module does not sample if an earlier one writes its values.

        Args:
            tensordict: the input.
            tensordict_out: where to write the outputs; the input is not changed.
            **kwargs: passed to the modules that are not probabilistic.
        """
        mode = _SKIP.get()
        if mode is not False and is_skipped(mode, tensordict, self.in_keys, self.out_keys):
            return tensordict
        modules = list(self._children())
        if _requires_sample is None:
            _requires_sample = not _writes_all(modules[:-1], modules[-1])

        def run(td: Any) -> Any:
            td = _run(modules[:-1], td, kwargs)
            if _is_probabilistic(modules[-1]):
                return modules[-1](td, _requires_sample=_requires_sample)
            return _run(modules[-1:], td, kwargs)

        return self._deliver(tensordict, tensordict_out, run)

    def get_dist_params(
        self, tensordict: TensorDictBase, tensordict_out: TensorCollection | None = None, **kwargs: Any
    ) -> Any:
        """Run all modules but the last: the result has the parameters of its distribution.

        They run with the current interaction type, else with :attr:`default_interaction_type`.

        Args:
            tensordict: the input, which gets the parameters unless ``tensordict_out`` is given.
            tensordict_out: where to write the parameters instead.
            **kwargs: passed to the modules that are not probabilistic.
        """
        modules = list(self._children())[:-1]
        with self._interaction():
            if tensordict_out is None:
                return _run(modules, tensordict, kwargs)
            result = _run(modules, tensordict.copy(), kwargs)
        written = list(dict.fromkeys(key for module in modules for key in module.out_keys))
        return tensordict_out.update(result.select(*written, strict=False))

    def _interaction(self) -> Any:
        kind = interaction_type() or self.default_interaction_type
        return contextlib.nullcontext() if kind is None else set_interaction_type(kind)

    # -- distribution ------------------------------------------------------------------------------------------

    def get_dist(
        self, tensordict: TensorDictBase, tensordict_out: TensorCollection | None = None, **kwargs: Any
    ) -> Distribution:
        """The distribution that the sequence samples from.

        With ``return_composite``, that of all probabilistic modules, each conditional on the values drawn by those
        before it; the input is unchanged. Else that of the last module, and the outputs of the modules before it are
        written to the input (or ``tensordict_out``).

        Raises:
            RuntimeError: no module is probabilistic.
        """
        if not self.return_composite:
            last = self[len(self) - 1]
            return last.get_dist(self.get_dist_params(tensordict, tensordict_out, **kwargs))
        td = tensordict.copy()
        dists: dict[Any, Distribution] = {}
        with self._interaction():
            self._collect(td, dists, True, False, {})
        if not dists:
            raise RuntimeError(f"No distribution module found in {self}.")
        return CompositeDistribution.from_distributions(tensordict, dists)

    def _collect(self, td: Any, dists: dict[Any, Distribution], last: bool, given: bool, kwargs: dict[str, Any]) -> Any:
        """Run the modules on ``td`` and collect their distributions; the last value is not drawn.

        With ``given``, use the values in ``td`` and draw only the others.
        """
        modules = list(self._children())
        for place, module in enumerate(modules):
            ends = last and place == len(modules) - 1
            if isinstance(module, ProbabilisticTensorDictSequential):
                td = module._collect(td, dists, ends, given, kwargs)
            elif _is_probabilistic(module):
                dist = module.get_dist(td)
                found = (
                    dist.items() if isinstance(dist, CompositeDistribution) else [(module.dist_sample_keys[0], dist)]
                )
                dists.update(found)
                known = given and all(td.get(key, None) is not None for key in module.dist_sample_keys)
                if not ends and not known:
                    td = module(td)
            else:
                td = module(td, **kwargs)
        return td

    def build_dist_from_params(self, tensordict: TensorDictBase) -> Distribution:
        """The distribution of the last probabilistic module from its parameters, without running other modules.

        Raises:
            RuntimeError: no module is probabilistic.
        """
        for module in self._probabilistic():
            return module.get_dist(tensordict)
        raise RuntimeError(f"Could not find any ProbabilisticTensorDictModule in {self}.")

    def log_prob(
        self,
        tensordict: Any,
        tensordict_out: TensorCollection | None = None,
        *,
        dist: Distribution | None = None,
        **kwargs: Any,
    ) -> Any:
        """The log-probability of the values in ``tensordict``, each given those before it.

        Args:
            tensordict: the input, with the values. Missing values before the last module are drawn.
            tensordict_out: if given, the input gets no new entries.
            dist: the distribution, if already known.
            **kwargs: for :meth:`get_dist`.

        Returns:
            With ``return_composite`` a tensordict with an entry for each value, at the key that a call of the sequence
            writes; if :func:`composite_lp_aggregate` is true their sum. Else the log-probability of the last module.
        """
        if tensordict_out is not None:
            tensordict = tensordict.copy()
        last = self[len(self) - 1]
        if not self.return_composite:
            if dist is None:
                with self._interaction():
                    tensordict = self._run_given(tensordict, kwargs)
            return last.log_prob(tensordict, dist=dist)
        if dist is None:
            dists: dict[Any, Distribution] = {}
            with self._interaction():
                self._collect(tensordict.copy(), dists, True, True, kwargs)
            dist = CompositeDistribution.from_distributions(tensordict, dists)
        scores: Any = dist.log_prob(tensordict)
        if isinstance(scores, TensorCollection):
            for module in self._probabilistic():
                module._renamed(scores)
        return scores

    def _run_given(self, td: Any, kwargs: dict[str, Any]) -> Any:
        """Run all modules but the last with the existing values."""
        before = list(self._children())[:-1]
        if not before:
            return td
        return type(self)(*before, return_composite=True)._collect(td, {}, False, True, kwargs)


def _is_probabilistic(module: Any) -> bool:
    return getattr(module, "_is_probabilistic", False)


def _run(modules: list[Any], tensordict: TensorDictBase, kwargs: dict[str, Any]) -> Any:
    for module in modules:
        tensordict = module(tensordict) if _is_probabilistic(module) or not kwargs else module(tensordict, **kwargs)
    return tensordict


def _writes_all(modules: list[Any], last: Any) -> bool:
    """Whether the modules write every value that the last one would draw."""
    if not _is_probabilistic(last):
        return False
    written = {key for module in modules for key in module.out_keys}
    return all(key in written for key in last.dist_sample_keys)
