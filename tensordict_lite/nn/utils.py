"""Mappings onto positive numbers, and process-wide settings of modules."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from tensordict_lite.keys import NestedKey, unravel_key_list
from tensordict_lite.nn.modes import Mode, Setting
from tensordict_lite.settings import F

if TYPE_CHECKING:
    from tensordict_lite.base import TensorDictBase

__all__ = [
    "add_custom_mapping",
    "biased_softplus",
    "composite_lp_aggregate",
    "expln",
    "inv_softplus",
    "mappings",
    "set_composite_lp_aggregate",
    "set_skip_existing",
    "skip_existing",
]


# -- maps ----------------------------------------------------------------------------------------------------


@overload
def inv_softplus(bias: float) -> float: ...
@overload
def inv_softplus(bias: Tensor) -> Tensor: ...
def inv_softplus(bias: float | Tensor) -> float | Tensor:
    """The inverse of softplus, ``log(exp(bias) - 1)``, finite for ``bias <= 0`` as well.

    Args:
        bias: a number or a tensor; ``exp(bias) - 1`` is clamped to at least 1e-6.

    Returns:
        A float for a number, a tensor for a tensor.

    Example:
        >>> torch.nn.functional.softplus(inv_softplus(torch.tensor([1.0, 2.0])))
        tensor([1., 2.])
    """
    if not isinstance(bias, Tensor):
        # log(exp(b) - 1) = b + log(1 - exp(-b)), which does not overflow
        return bias + math.log1p(-math.exp(-bias)) if bias > 1 else math.log(max(math.expm1(bias), 1e-6))
    large = bias + torch.log1p(-torch.exp(-bias.clamp_min(1)))
    return torch.where(bias > 1, large, bias.clamp_max(1).expm1().clamp_min(1e-6).log())


class biased_softplus(nn.Module):
    """A softplus that equals ``bias`` at zero and stays above ``min_val``.

    Args:
        bias: value at zero; must be greater than ``min_val``.
        min_val: lower bound. Default 0.01.

    Example:
        >>> biased_softplus(1.0)(torch.zeros(2))
        tensor([1., 1.])
    """

    def __init__(self, bias: float, min_val: float = 0.01) -> None:
        super().__init__()
        self.bias = inv_softplus(bias - min_val)
        self.min_val = min_val

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x + self.bias) + self.min_val


def expln(x: Tensor) -> Tensor:
    """``exp(x)`` up to zero and ``log1p(x) + 1`` above: positive, smooth, and slowly growing.

    From Rückstieß et al., "State-Dependent Exploration for Policy Gradient Methods", 2008.

    Example:
        >>> expln(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.3679, 1.0000, 1.6931])
    """
    # each branch sees only numbers of its side, so that no gradient becomes NaN through an infinity of the other
    return torch.where(x > 0, x.clamp_min(0).log1p() + 1, x.clamp_max(0).exp())


def _identity(x: Tensor) -> Tensor:
    return x


_MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": nn.functional.softplus,
    "exp": torch.exp,
    "relu": torch.relu,
    "biased_softplus": biased_softplus(1.0),
    "expln": expln,
    "none": _identity,
}


def mappings(key: str) -> Callable[[Tensor], Tensor]:
    """The mapping of a name, from any number to a positive one (``"none"``: the identity).

    Args:
        key: ``"softplus"``, ``"exp"``, ``"relu"``, ``"expln"``, ``"biased_softplus"``, ``"none"``, a name given to
            :func:`add_custom_mapping`, or ``"biased_softplus_{bias}"`` and ``"biased_softplus_{bias}_{min_val}"``.

    Raises:
        NotImplementedError: the name is unknown.
        ValueError: ``"biased_softplus_"`` is not followed by one or two numbers.

    Example:
        >>> mappings("biased_softplus_2.0_0.1")(torch.zeros(2))
        tensor([2., 2.])
    """
    known = _MAPPINGS.get(key)
    if known is not None:
        return known
    if key.startswith("biased_softplus_"):
        try:
            numbers = [float(part) for part in key.split("_")[2:]]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 2:
            raise ValueError(
                f'{key!r} is not "biased_softplus_{{bias}}" or "biased_softplus_{{bias}}_{{min_val}}" with numbers, '
                'as in "biased_softplus_1.0_0.01"'
            )
        return biased_softplus(*numbers)
    raise NotImplementedError(
        f"there is no mapping {key!r}; there are {sorted(_MAPPINGS)} and 'biased_softplus_<bias>[_<min_val>]'. "
        "add_custom_mapping() makes a new one."
    )


def add_custom_mapping(name: str, mapping: Callable[[Tensor], Tensor]) -> None:
    """Register a mapping under a name for :func:`mappings` and the modules; an existing name is replaced.

    Example:
        >>> add_custom_mapping("half_exp", lambda x: x.exp() / 2)
        >>> mappings("half_exp")(torch.zeros(1))
        tensor([0.5000])
    """
    _MAPPINGS[name] = mapping


# -- whether outputs that exist are computed again -------------------------------------------------------------

_SKIP = Setting(False)


def skip_existing() -> bool | list[NestedKey]:
    """The mode of the innermost :class:`set_skip_existing`: False (default), True, or a list of keys.

    Example:
        >>> with set_skip_existing(["value"]):
        ...     skip_existing()
        ['value']
    """
    return _SKIP.get()


def is_skipped(mode: Any, tensordict: TensorDictBase, in_keys: Sequence[Any], out_keys: Sequence[Any]) -> bool:
    """Whether a module with these keys can be skipped on ``tensordict`` under a mode other than False."""
    if isinstance(mode, list) and not all(key in mode for key in out_keys):
        return False
    if any(key in out_keys for key in in_keys):  # it overwrites an input
        return False
    return all(tensordict.get(key, None) is not None for key in out_keys)


class set_skip_existing(Mode):
    """Skip modules whose outputs are all in the tensordict.

    As a context manager it affects every module that runs inside. As a decorator of a method
    ``forward(self, tensordict, ...)`` it affects that method only. A module that writes one of its inputs always runs.

    Args:
        mode: True; False: nothing is skipped; a list of keys: only modules whose outputs are all in it are skipped;
            None (decorator only): the method follows the block that it is called in.
        in_key_attr: for the decorator: attribute with the keys that the module reads. Default ``"in_keys"``.
        out_key_attr: for the decorator: attribute with the keys that it writes. Default ``"out_keys"``.
        thread_local: the block affects only the thread that entered it.

    Raises:
        RuntimeError: a block with the mode None.

    Example:
        >>> from tensordict_lite.nn import TensorDictModule
        >>> module = TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"])
        >>> td = TensorDict(x=torch.zeros(()), y=torch.zeros(()))
        >>> with set_skip_existing():
        ...     module(td)["y"]
        tensor(0.)
        >>> module(td)["y"]
        tensor(1.)
    """

    _setting = _SKIP

    def __init__(
        self,
        mode: bool | list[NestedKey] | None = True,
        in_key_attr: str = "in_keys",
        out_key_attr: str = "out_keys",
        *,
        thread_local: bool = False,
    ) -> None:
        super().__init__(unravel_key_list(mode) if isinstance(mode, (list, tuple)) else mode, thread_local)
        self._attrs = (in_key_attr, out_key_attr)

    def __enter__(self) -> None:
        if self._value is None:
            raise RuntimeError("set_skip_existing(None) is for methods, as a decorator: a block needs a mode")
        super().__enter__()

    def __call__(self, func: F) -> F:
        in_keys, out_keys = self._attrs
        own = self._value

        @functools.wraps(func)
        def forward(module: nn.Module, tensordict: TensorDictBase, *args: Any, **kwargs: Any) -> Any:
            mode = _SKIP.get() if own is None else own
            if mode is not False:
                reads, writes = getattr(module, in_keys), getattr(module, out_keys)
                if is_skipped(mode, tensordict, reads, writes):
                    return tensordict
            return func(module, tensordict, *args, **kwargs)

        return forward  # type: ignore[return-value]


# -- how a composite distribution gives its log-probabilities ----------------------------------------------------

_AGGREGATE = Setting(os.environ.get("COMPOSITE_LP_AGGREGATE", "0").lower() in ("1", "true", "yes", "on"))


def composite_lp_aggregate(nowarn: bool = False) -> bool:
    """Whether composite distributions sum log-probabilities and entropies into one tensor. Default False.

    Args:
        nowarn: ignored, accepted for compatibility.

    Example:
        >>> with set_composite_lp_aggregate(True):
        ...     composite_lp_aggregate()
        True
    """
    return _AGGREGATE.get()


class set_composite_lp_aggregate(Mode):
    """Set whether composite distributions sum their log-probabilities into one tensor.

    A context manager, a decorator, and with :meth:`set` and :meth:`unset` a switch. The environment variable
    ``COMPOSITE_LP_AGGREGATE`` sets the initial value. Modules keep the value at their creation, because it decides the
    keys that they write: set it before.

    Args:
        mode: True: one tensor of the batch shape; False: a tensordict with an entry ``<key>_log_prob`` per component.
        thread_local: the block affects only the thread that entered it.

    Example:
        >>> with set_composite_lp_aggregate(True):
        ...     composite_lp_aggregate()
        True
    """

    _setting = _AGGREGATE

    def __init__(self, mode: bool = True, *, thread_local: bool = False) -> None:
        super().__init__(bool(mode), thread_local)
