"""A module or function as a CUDA graph: recorded once, replayed by one call."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from tensordict_lite.base import TensorCollection
from tensordict_lite.keys import NestedKey
from tensordict_lite.nn.base import TensorDictModuleBase, key_list
from tensordict_lite.nn.dispatching import make_input, outputs_of
from tensordict_lite.nn.interaction import interaction_type
from tensordict_lite.nn.probabilistic import ProbabilisticTensorDictModule
from tensordict_lite.nn.tracing import named_inputs

__all__ = ["CudaGraphModule"]


class CudaGraphModule:
    """Record a function of tensors, or a module of tensordicts, as a CUDA graph and replay it.

    The first ``warmup - 1`` calls run the function on a separate stream, the next one records it, and every later call
    copies its inputs into those of the graph and replays it. The result is a copy of the outputs of the graph; a module
    that writes into its input does so in a replay as well.

    The function must do the same work every time: no control flow that depends on values, no changing shapes, no inputs
    that require grad. Non-tensor arguments must stay the same.

    It is not an ``nn.Module``, so that its parameters do not reach an optimiser by mistake. Without CUDA it warns once,
    and every call runs the function itself.

    Args:
        module: the function or module.
        warmup: number of the call that records, from 1.
        in_keys: keys that it reads, for a function of a tensordict; a module has its own. Default: it takes tensors.
        out_keys: keys that it writes, likewise.
        device: CUDA device of the streams. Default: the current one.

    Raises:
        ValueError: ``warmup`` is less than 1; in a replay, an input has another shape or a value has changed.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():  # this may run without a GPU
        ...     warnings.simplefilter("ignore")
        ...     double = CudaGraphModule(lambda x: x * 2)
        >>> device = "cuda" if torch.cuda.is_available() else "cpu"
        >>> double(torch.ones(2, device=device)).tolist()
        [2.0, 2.0]
    """

    def __init__(
        self,
        module: Callable[..., Any],
        warmup: int = 2,
        in_keys: list[NestedKey] | None = None,
        out_keys: list[NestedKey] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if warmup < 1:
            raise ValueError(f"warmup is the number of the call that records, from 1: got {warmup}")
        self.module = module
        self.in_keys = _own_keys(module, "in_keys", in_keys)
        self.out_keys = _own_keys(module, "out_keys", out_keys)
        self._takes_td = self.in_keys is not None
        if self._takes_td and self.out_keys is None:
            self.out_keys = []
        self.warmup = warmup
        self._calls = 0
        self._graph: Any = None
        self._static: Any = None
        self._kind: Any = None
        self._device = None if device is None else torch.device(device)
        self._on_cuda = torch.cuda.is_available()
        if not self._on_cuda:
            warnings.warn("CudaGraphModule: there is no CUDA device, so every call runs the function", stacklevel=2)
        functools.update_wrapper(self, module, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._takes_td:
            return self._run(args, kwargs)
        if args and isinstance(args[0], TensorCollection):
            return self._run(args, kwargs)
        if isinstance(kwargs.get("tensordict"), TensorCollection):
            return self._run((kwargs.pop("tensordict"), *args), kwargs)
        entries = named_inputs(args, kwargs, self.in_keys or [], "_")
        return outputs_of(self._run((make_input(entries, False),), kwargs), self.out_keys or [])

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._on_cuda:
            return self.module(*args, **kwargs)
        self._calls += 1
        if self._calls < self.warmup:
            stream = torch.cuda.Stream(self._device)
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                out = self.module(*args, **kwargs)
            torch.cuda.current_stream(self._device).wait_stream(stream)
            return out
        if self._graph is None:
            self._record(args, kwargs)
        else:
            self._feed(args, kwargs)
        self._graph.replay()
        return self._delivered(args)

    # -- recording -------------------------------------------------------------------------------------------

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        flat, self._spec = _pytree.tree_flatten((args, kwargs), is_leaf=_is_collection)
        for value in flat:
            leaves = value._leaves() if _is_collection(value) else [value] if isinstance(value, Tensor) else []
            if any(leaf.requires_grad for leaf in leaves):
                raise ValueError("a CUDA graph cannot read inputs that require grad: bind parameters to the function")
        self._static = [self._copied(value) for value in flat]
        given, options = _pytree.tree_unflatten(self._static_inputs(), self._spec)
        self._kind = interaction_type()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(self._device)):
            out = self.module(*given, **options)
        self._graph = graph
        self._writes_input = self._takes_td and bool(given) and out is given[0]
        self._out = out

    def _copied(self, value: Any) -> Any:
        if _is_collection(value):
            return value.select(*(self.in_keys or ()), strict=False).clone() if self._takes_td else value.clone()
        return value.clone() if isinstance(value, Tensor) else value

    def _static_inputs(self) -> list[Any]:
        """The graph's inputs; a tensordict as another one of the same tensors, which the recording may add to."""
        return [value.copy() if _is_collection(value) else value for value in self._static]

    # -- replaying -------------------------------------------------------------------------------------------

    def _feed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy the inputs of a call into the graph's."""
        flat, spec = _pytree.tree_flatten((args, kwargs), is_leaf=_is_collection)
        if spec != self._spec:
            raise ValueError("the call has other arguments than the one that was recorded")
        for own, value in zip(self._static, flat):
            if _is_collection(own):
                if own.batch_size != value.batch_size:
                    raise ValueError(
                        f"the recorded tensordict has the batch size {list(own.batch_size)}, this one "
                        f"{list(value.batch_size)}: a CUDA graph has fixed shapes"
                    )
                for key in own.keys(True, True):
                    entry = value.get(key, None)
                    if entry is None:
                        raise KeyError(f"the tensordict has no {key!r}, which the recorded graph reads")
                    _copy(own.get(key), entry, key)
            elif isinstance(own, Tensor):
                _copy(own, value, "an argument")
            elif own != value:
                raise ValueError(f"an argument was {own!r} when the graph was recorded, but is {value!r} now")
        self._check_interaction()

    def _check_interaction(self) -> None:
        modules = self.module.modules() if isinstance(self.module, torch.nn.Module) else ()
        if interaction_type() != self._kind and any(isinstance(one, ProbabilisticTensorDictModule) for one in modules):
            warnings.warn(
                f"the graph was recorded with the interaction type {self._kind}, and is replayed as such; "
                f"{interaction_type()} needs a CudaGraphModule of its own",
                stacklevel=4,
            )
            self._kind = interaction_type()

    def _delivered(self, args: tuple[Any, ...]) -> Any:
        """Copies of the graph's outputs, in the input where the module writes there."""
        if self._writes_input:
            out = self._out
            if isinstance(self.module, TensorDictModuleBase):  # it writes nothing else
                out = out.select(*(key for key in self.module.out_keys if key != "_"), strict=False)
            return args[0].update(out.clone())
        return _pytree.tree_map(
            lambda value: value.clone() if isinstance(value, (Tensor, TensorCollection)) else value,
            self._out,
            is_leaf=_is_collection,
        )

    # -- the module's own ------------------------------------------------------------------------------------

    def state_dict(self) -> Any:
        """The state dict of the module, an empty one when it has none."""
        return self.module.state_dict() if hasattr(self.module, "state_dict") else {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state dict into the module, if that can."""
        if hasattr(self.module, "load_state_dict"):
            self.module.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(module={self.module!r}, warmup={self.warmup}, in_keys={self.in_keys})"


def _is_collection(value: object) -> bool:
    return isinstance(value, TensorCollection)


def _own_keys(module: Any, name: str, given: Any) -> list[Any] | None:
    own = getattr(module, name, None)
    given = None if given is None else key_list(list(given) if isinstance(given, (set, tuple)) else given, name)
    if own is None:
        return given
    if given and given != list(own):
        warnings.warn(f"the module has {name}={own} of its own, and {given} is ignored", stacklevel=3)
    return list(own)


def _copy(own: Tensor, value: object, what: Any) -> None:
    if not isinstance(value, Tensor) or own.shape != value.shape:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{what} was recorded with the shape {list(own.shape)}, but is {got} now")
    own.copy_(value, non_blocking=True)
