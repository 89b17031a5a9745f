"""torch functions on collections: the table behind ``torch.stack(tds)`` and others.

Most functions call the method of the same name and are listed by name. The others are written below and registered with
:func:`implements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.base import HANDLED, TensorCollection
from tensordict_lite.dense import combine
from tensordict_lite.kernel import Kernel, normalise_device

# torch functions whose first argument is the collection, implemented by the method of the same name
METHODS = """
    abs acos add addcdiv addcmul all amax amin any asin atan atleast_1d atleast_2d atleast_3d bitwise_and broadcast_to
    ceil chunk clamp clamp_max clamp_min clone cos cosh cummax cummin detach div erf erfc exp expm1 flatten flip fliplr
    flipud floor frac gather isfinite isnan isneginf isposinf isreal lerp lgamma log log10 log1p log2 logical_and
    logsumexp masked_select max maximum mean min minimum moveaxis movedim mul nanmean nansum narrow neg permute pow prod
    quantile reciprocal repeat_interleave reshape roll rot90 round sigmoid sign sin sinh softmax split sqrt squeeze std
    sub sum swapaxes swapdims tan tanh tensor_split tile transpose trunc unbind unflatten unsqueeze var
""".split()


def implements(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the meaning of torch functions on collections."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        HANDLED.update(dict.fromkeys(functions, handler))
        return handler

    return register


def _method(name: str) -> Callable[..., Any]:
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(input, TensorCollection):
            return getattr(input, name)(*args, **kwargs)
        # torch.add(tensor, td): the collection decides, through its reflected operator
        other = args[0]
        reflected = {"add": "__radd__", "sub": "__rsub__", "mul": "__rmul__", "div": "__rtruediv__", "pow": "__rpow__"}
        if name in reflected and isinstance(other, TensorCollection):
            return getattr(other, reflected[name])(input)
        if name in ("maximum", "minimum", "bitwise_and", "logical_and"):
            return getattr(other, name)(input)
        raise TypeError(f"torch.{name} of a {type(input).__name__} and a {type(other).__name__} has no meaning")

    call.__name__ = call.__qualname__ = name
    return call


for _name in METHODS:
    _function = getattr(torch, _name, None)
    if _function is not None:
        HANDLED[_function] = _method(_name)
for _alias, _name in (("multiply", "mul"), ("subtract", "sub"), ("divide", "div"), ("true_divide", "div")):
    HANDLED[getattr(torch, _alias)] = _method(_name)


@implements(torch.stack)
def _stack(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    return combine.stack(tensors, dim, out=out) if out is not None else combine.stack(tensors, dim)


@implements(torch.cat, torch.concat, torch.concatenate)
def _cat(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    return combine.cat(tensors, dim, out=out) if out is not None else combine.cat(tensors, dim)


@implements(torch.where)
def _where(condition: Tensor, input: Any, other: Any, *, out: Any = None) -> Any:
    if isinstance(input, TensorCollection):
        return input.where(condition, other, out=out)
    return other.where(~condition, input, out=out)


@implements(torch.autograd.grad)
def _grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Gradients of the leaves of ``outputs`` with respect to those of ``inputs``, in the form of ``inputs``."""
    wanted = _as_tuple(inputs)
    weights = None if grad_outputs is None else _flat_leaves(grad_outputs)
    grads = iter(torch.autograd.grad(_flat_leaves(outputs), _flat_leaves(inputs), weights, *args, **kwargs))
    out = tuple(one._with_leaves(grads) if isinstance(one, TensorCollection) else next(grads) for one in wanted)
    return out[0] if len(out) == 1 else out


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _flat_leaves(value: object) -> list[Any]:
    out: list[Any] = []
    for one in _as_tuple(value):
        out.extend(one._leaves() if isinstance(one, TensorCollection) else [one])
    return out


def _like(name: str) -> None:
    function = getattr(torch, name)

    def make(input: Any, *args: Any, **kwargs: Any) -> Any:
        fill: Any = function
        if kwargs or len(args) > 1:
            fill = lambda leaf: function(leaf, *args, **kwargs)  # noqa: E731
        elif args:
            value = args[0]  # passing it alone takes half the time
            fill = lambda leaf: function(leaf, value)  # noqa: E731
        out = input._keep_lock(input._map_leaves(fill, True))
        if kwargs and kwargs.get("device") is not None:
            _set_device(out, normalise_device(kwargs["device"]))
        return out

    HANDLED[function] = make


def _set_device(td: Kernel, device: torch.device) -> None:
    td._device = device
    for sub in td._nested():
        _set_device(sub, device)


for _name in ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"):
    _like(_name)


def _loss(function: Callable[..., Any]) -> None:
    def loss(input: Any, target: Any, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
        if not isinstance(input, TensorCollection) or not isinstance(target, TensorCollection):
            raise TypeError(
                f"{function.__name__} needs two tensor collections, got {type(input).__name__} and "
                f"{type(target).__name__}"
            )
        call = lambda a, b: function(a, b, *args, reduction=reduction, **kwargs)  # noqa: E731
        size = input.batch_size if reduction == "none" else torch.Size(())
        return input.apply(call, target, batch_size=size)

    HANDLED[function] = loss


for _function in (torch.nn.functional.mse_loss, torch.nn.functional.l1_loss, torch.nn.functional.smooth_l1_loss):
    _loss(_function)
