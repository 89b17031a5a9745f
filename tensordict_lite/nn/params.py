"""A collection of parameters that is a module: it trains, moves and saves with the module that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tensordict_lite.base import TensorCollection, TensorDictBase
from tensordict_lite.dense import DenseCollection
from tensordict_lite.tensordict import TensorDict

__all__ = ["TensorDictParams"]

_set = object.__setattr__


class TensorDictParams(DenseCollection, TensorDictBase, nn.Module):
    """The tensors of a collection as parameters (floating point) and buffers (the rest) of a module.

    It is both: entries are read and written as in a :class:`TensorDict`, and a module that holds it finds
    its parameters under dotted names, in ``parameters()``, ``state_dict()``, ``to()`` and all the others.
    Operations give plain TensorDicts of ordinary tensors, except copies and moves, which stay parameters.

    Args:
        parameters: a collection or a mapping.
        no_convert: leave tensors as they are; ``"skip"`` is accepted for the same.
        lock: lock the result.
        **kwargs: entries, instead of ``parameters``.

    Example:
        >>> params = TensorDictParams(TensorDict({"w": torch.ones(3), "n": {"b": torch.zeros(2)}}))
        >>> [name for name, _ in params.named_parameters()]
        ['w', 'n.b']
        >>> type(params["w"]).__name__, type((params * 2)["w"]).__name__
        ('Parameter', 'Tensor')
    """

    __slots__ = ("_no_convert",)
    # nn.Module intercepts attributes to find parameters; here the entries are the parameters.
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(
        self,
        parameters: TensorCollection | Mapping[Any, Any] | None = None,
        *,
        no_convert: bool | str = False,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        if parameters is not None and kwargs:
            raise ValueError("entries come either from `parameters` or from keyword arguments, not from both")
        source = kwargs if parameters is None else parameters
        if not isinstance(source, TensorCollection):
            source = TensorDict(source)
        self._adopt(source, bool(no_convert))
        if lock:
            self._propagate_lock(None)

    def _adopt(self, source: TensorCollection, no_convert: bool) -> None:
        nn.Module.__init__(self)
        _set(self, "_no_convert", no_convert)
        converted = source if no_convert else source._map_leaves(_parameter)
        self._source = {key: converted._get_str(key) for key in converted._key_list()}
        self._batch_size = source._batch_size
        self._device = source._device
        self._names = source._names
        self._lock = None

    # -- as a collection -----------------------------------------------------------------------------------

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Any:
        return TensorDict._trusted(source, batch_size, self._device, names)

    def _wrap_params(self, td: TensorCollection) -> TensorDictParams:
        new = object.__new__(TensorDictParams)
        new._adopt(td, self._no_convert)
        return new

    def _fit(self, item: Any, key: str, non_blocking: bool = False) -> Any:
        item = super()._fit(item, key, non_blocking)
        if self._no_convert:
            return item
        return _parameter(item) if isinstance(item, Tensor) else item._map_leaves(_parameter)

    def set(self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False) -> Any:
        if not inplace and isinstance(item, Tensor) and not self._no_convert:
            item = _parameter(item)
        return super().set(key, item, inplace, non_blocking=non_blocking)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            self.set(index, value)
        else:
            with torch.no_grad():
                super().__setitem__(index, value)

    def _write_in_place(self, key: str, item: Any, non_blocking: bool = False) -> None:
        with torch.no_grad():
            super()._write_in_place(key, item, non_blocking)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            try:
                return self._source[name]
            except KeyError:
                pass
        raise AttributeError(f"{type(self).__name__} has no attribute and no entry {name!r}")

    def clone(self, recurse: bool = True) -> Any:
        """A copy that is a module too."""
        copy = self._map_leaves(lambda leaf: leaf.detach().clone() if recurse else leaf)
        out = self._wrap_params(copy)
        for new, old in zip(out._leaves(), self._leaves()):
            if new.is_leaf and new.dtype.is_floating_point:
                new.requires_grad_(old.requires_grad)
        return out

    def copy(self) -> Any:
        return self.clone(False)

    def __copy__(self) -> Any:
        return self.clone(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        out = memo[id(self)] = self.clone()
        return out

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`TensorDict.to`; the result is a module too."""
        moved = TensorDict._trusted(self._source, self._batch_size, self._device, self._names)
        out = moved.to(*args, **kwargs)
        return self if out is moved else self._wrap_params(out)

    @property
    def data(self) -> Any:
        """The tensors without their gradients, sharing memory."""
        return self._map_leaves(lambda leaf: leaf.data)

    def zero_(self) -> Any:
        with torch.no_grad():
            for leaf in self._leaves():
                leaf.zero_()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        for leaf in self._leaves():
            if leaf.dtype.is_floating_point or leaf.dtype.is_complex:
                leaf.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> Any:
        nn.Module.zero_grad(self, set_to_none)
        return self

    # -- as a module -----------------------------------------------------------------------------------------

    def _flat(self) -> Iterator[tuple[str, Tensor]]:
        for key, value in self.items(True, True):
            yield (key if isinstance(key, str) else ".".join(key)), value

    @property
    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self._flat() if isinstance(value, nn.Parameter)}

    @_parameters.setter
    def _parameters(self, value: Any) -> None:
        """nn.Module's constructor sets an empty one; the entries answer instead."""

    @property
    def _buffers(self) -> dict[str, Any]:
        return {name: value for name, value in self._flat() if not isinstance(value, nn.Parameter)}

    @_buffers.setter
    def _buffers(self, value: Any) -> None:
        """See the setter above."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter(self._parameters.values())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What ``module.to()`` and its relatives call on every sub-module: tensors change in place."""
        _apply_to(self, fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`torch.nn.Module.state_dict`, under dotted names."""
        kwargs.pop("flatten", None)
        return nn.Module.state_dict(self, *args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False, **kwargs: Any) -> Any:
        """As :meth:`torch.nn.Module.load_state_dict`; nested state dictionaries are flattened first."""
        flat = TensorDict(state_dict).flatten_keys(".").to_dict() if _is_nested(state_dict) else state_dict
        nn.Module.load_state_dict(self, flat, strict=strict, assign=assign)
        return self

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # torch's own takes a dotted name for that of a sub-module, so nested entries are loaded here.
        assign = local_metadata.get("assign_to_params_buffers", False)
        mine = dict(self._flat())
        for name, value in mine.items():
            new = state_dict.get(prefix + name)
            if new is None:
                missing_keys.append(prefix + name)
            elif new.shape != value.shape:
                error_msgs.append(f"size mismatch for {prefix + name}: {list(new.shape)} into {list(value.shape)}")
            elif assign:
                self.set(tuple(name.split(".")), nn.Parameter(new) if isinstance(value, nn.Parameter) else new)
            else:
                with torch.no_grad():
                    value.copy_(new)
        if strict:
            names = (key for key in state_dict if key.startswith(prefix))
            unexpected_keys.extend(key for key in names if key[len(prefix) :] not in mine)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("TensorDictParams holds parameters and computes nothing: it cannot be called")

    __hash__ = nn.Module.__hash__

    def __len__(self) -> int:
        return DenseCollection.__len__(self)

    def __repr__(self) -> str:
        inner = TensorDict._trusted(self._source, self._batch_size, self._device, self._names)
        return f"{type(self).__name__}(params={inner!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        inner = TensorDict._trusted(self._source, self._batch_size, self._device, self._names)
        return _restore, (type(self), inner, self._no_convert, self._lock is not None, self.training)


def _restore(cls: Any, inner: TensorCollection, no_convert: bool, locked: bool, training: bool) -> Any:
    new = object.__new__(cls)
    new._adopt(inner, True)
    _set(new, "_no_convert", no_convert)
    new.training = training
    if locked:
        new._propagate_lock(None)
    return new


def _parameter(value: Tensor) -> Tensor:
    if isinstance(value, (nn.Parameter, nn.Buffer)):
        return value
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return nn.Parameter(value if value.is_leaf else value.detach().clone())
    return value


def _apply_to(td: TensorCollection, fn: Any) -> None:
    for key in td._key_list():
        value = td._get_str(key)
        if not isinstance(value, Tensor):
            _apply_to(value, fn)
            continue
        with torch.no_grad():
            new = fn(value)
        if isinstance(value, nn.Parameter):
            if torch._has_compatible_shallow_copy_type(value.data, new):
                value.data = new
                if value.grad is not None:
                    value.grad.data = fn(value.grad)
                continue
            new = nn.Parameter(new, value.requires_grad)
        td._set_str(key, new)


def _is_nested(state: Any) -> bool:
    return any(isinstance(value, (dict, TensorCollection)) for value in state.values())
