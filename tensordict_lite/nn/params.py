"""A collection of parameters that is a module: it trains, moves and saves with the module that holds it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tensordict_lite.api.module_swap import register_params
from tensordict_lite.base import TensorCollection, TensorDictBase
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import require_path
from tensordict_lite.nn.slots import ModuleState, SlotLevel, TensorSlots
from tensordict_lite.registry import register
from tensordict_lite.settings import MISSING
from tensordict_lite.strided import UninitializedTensorMixin

__all__ = ["TensorDictParams"]

_set = object.__setattr__
_TRAINED = (torch.float16, torch.float32, torch.float64)
Hook = Callable[[Any, Tensor], Any]


class TensorDictParams(ModuleState, DenseCollection, TensorDictBase, nn.Module):  # type: ignore[misc]  # apply() is that of collections
    """The tensors of a collection as parameters (float16, float32 and float64) and buffers (others) of a module.

    It is both: entries are read and written as in a :class:`TensorDict`, and a module that holds it finds its
    parameters under dotted names, in ``parameters()``, ``state_dict()``, ``to()`` and so on. Operations return plain
    TensorDicts of ordinary tensors, except copies and moves, which keep parameters. In-place writes (``set_``,
    ``update_``, ``copy_``, ``apply_``) bypass autograd, as those of an optimiser do.

    The collection is wrapped, not copied: its tensors become parameters there as well.

    Args:
        parameters: a collection or a mapping.
        no_convert: True: tensors that are neither parameters nor buffers become buffers; ``"skip"``: they are
            unchanged.
        lock: lock the collection; writes through this object still work.
        **kwargs: entries, instead of ``parameters``.

    Raises:
        TypeError: both ``parameters`` and entries.
        RuntimeError: the collection is or holds a lazy stack, whose entries are not stored tensors.

    Example:
        >>> params = TensorDictParams(TensorDict({"w": torch.ones(3), "n": {"b": torch.zeros(2)}}))
        >>> [name for name, _ in params.named_parameters()]
        ['w', 'n.b']
        >>> type(params["w"]).__name__, type((params * 2)["w"]).__name__
        ('Parameter', 'Tensor')
    """

    __slots__ = ("_hooks", "_no_convert", "_places")

    def __init__(
        self,
        parameters: TensorCollection | Mapping[Any, Any] | None = None,
        *,
        no_convert: bool | str = False,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        if parameters is not None and kwargs:
            raise TypeError(
                "parameters cannot be passed along with extra keyword arguments: entries come either from "
                f"`parameters` or from keyword arguments, and got {sorted(kwargs)} as well"
            )
        source = kwargs if parameters is None else parameters
        if not isinstance(source, TensorCollection):
            source = TensorDict(source)
        if hasattr(source, "_stack_dim"):
            raise _stack_error()
        self._adopt(source, no_convert)
        if lock:
            source._propagate_lock(None)

    def _adopt(self, source: TensorCollection, no_convert: bool | str) -> None:
        nn.Module.__init__(self)
        _set(self, "_no_convert", no_convert)
        _set(self, "_hooks", ())
        _set(self, "_places", set())
        self._device = source._device
        self._batch_size = source._batch_size
        self._names = source._names
        self._types = None
        self._lock = None
        self._convert_tree(source)
        self._source = source._source

    def _convert_tree(self, td: Any) -> None:
        """Convert tensors to parameters and buffers in place; a lazy stack raises before anything has changed."""
        if self._no_convert == "skip":
            return
        for entries in list(_levels(td)):
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    entries[key] = self._converted(value)

    def _converted(self, value: Tensor) -> Tensor:
        if isinstance(value, (nn.Parameter, nn.Buffer, UninitializedTensorMixin)) or self._no_convert == "skip":
            return value
        if self._no_convert or value.dtype not in _TRAINED:
            return nn.Buffer(value)
        return nn.Parameter(value if value.is_leaf else value.detach().clone())

    # -- as a collection -----------------------------------------------------------------------------------

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Any:
        return TensorDict._trusted(source, batch_size, self._device, names)

    def _plain(self) -> TensorDict:
        return TensorDict._trusted(self._source, self._batch_size, self._device, self._names)

    def _wrap_params(self, td: TensorCollection, change: Any = None) -> TensorDictParams:
        """Wrap new tensors like these, with sub-modules converted by ``change``."""
        new = object.__new__(TensorDictParams)
        new._adopt(td, self._no_convert)
        _set(new, "training", self.training)
        for name, module in self.__dict__["_modules"].items():
            new.__dict__["_modules"][name] = module if change is None else change(module)
        return new

    def _fit(self, item: Any, key: str, non_blocking: bool = False) -> Any:
        return self._as_params(super()._fit(item, key, non_blocking))

    def _as_params(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            return self._converted(item)
        if not item._is_non_tensor:
            item = item.copy()  # a separate tree: that of the caller keeps its tensors
            self._convert_tree(item)
        return item

    def set(self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False) -> Any:
        """Write an entry, see :meth:`TensorDict.set`; it becomes a parameter or a buffer."""
        path = require_path(key)
        if self._lock is not None or (inplace and self._plain().get(path, None) is not None):
            with torch.no_grad():
                return super().set(key, item, inplace, non_blocking=non_blocking)
        node: Any = self
        new: Any = None  # the first level that is missing, with its key and the level above
        for depth, part in enumerate(path[:-1]):  # a lock of the wrapped collection is ignored
            child = node._source.get(part)
            if child is None:
                child = TensorDict._trusted({}, self._batch_size, self._device, self._names)
                if new is None:
                    new = (node, part, child)
                else:
                    node._source[part] = child
            elif isinstance(child, Tensor):
                raise KeyError(f"{path[: depth + 1]} is a tensor, so {path} cannot be written below it")
            node = child
        item = node._fit(item, path[-1], non_blocking)
        node._source[path[-1]] = item if node is self else self._as_params(item)
        if new is not None:  # once it holds the entry, which may not fit
            above, key, child = new
            above._source[key] = child
        return self

    # New tensors become parameters, so they are not written directly.
    _writes_directly = False

    def update(self, input_dict_or_td: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Write the entries of a mapping, see :meth:`TensorDict.update`; they become parameters or buffers."""
        if hasattr(input_dict_or_td, "_stack_dim"):
            input_dict_or_td = input_dict_or_td.contiguous()
        super().update(input_dict_or_td, *args, **kwargs)
        if type(self._source) is dict:
            self._convert_tree(self)  # including those of nested collections
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str)):
            self.set(index, value)
        else:
            with torch.no_grad():
                super().__setitem__(index, value)

    def _write_in_place(self, key: str, item: Any, non_blocking: bool = False) -> None:
        with torch.no_grad():
            super()._write_in_place(key, item, non_blocking)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            value = self._source.get(name)
            if value is not None:
                return self._nested_module(name, value) if type(value) is TensorDict else value
            modules = self.__dict__["_modules"]
            if name in modules:
                return modules[name]
        raise AttributeError(f"{type(self).__name__} has no attribute and no entry {name!r}")

    def _nested_module(self, name: str, td: Any) -> Any:
        """A nested collection as a module over the same entries: ``p.n.b`` is the parameter ``"p.n.b"``."""
        if torch.compiler.is_dynamo_compiling():  # a graph creates no modules and only reads
            return SlotLevel(td)
        new = object.__new__(TensorDictParams)
        new._adopt(td, "skip")
        _set(new, "_no_convert", self._no_convert)
        _set(new, "_hooks", self._hooks)
        _set(new, "_places", {place[len(name) + 1 :] for place in self._places if place.startswith(f"{name}.")})
        _set(new, "training", self.training)
        new._types = None
        new._lock = None if self._lock is None else td._lock
        return new

    # -- reading through hooks -----------------------------------------------------------------------------------

    def register_get_post_hook(self, hook: Hook) -> None:
        """Call ``hook(params, value)`` after each read of a leaf by key or iteration.

        Its result replaces the value, unless it is None.

        Example:
            >>> params = TensorDictParams(w=torch.ones(2))
            >>> params.register_get_post_hook(lambda params, value: value.detach() * 5)
            >>> params["w"], params.data["w"]
            (tensor([5., 5.]), tensor([1., 1.]))
        """
        _set(self, "_hooks", (*self._hooks, hook))

    def _hooked(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            for hook in self._hooks:
                new = hook(self, value)
                value = value if new is None else new
            return value
        if isinstance(value, TensorCollection) and not value._is_non_tensor:
            return value._map_leaves(self._hooked)
        return value

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        return self._hooked(value) if self._hooks and value is not self else value

    def get(self, key: Any, default: Any = MISSING, **kwargs: Any) -> Any:
        value = super().get(key, **kwargs) if default is MISSING else super().get(key, default, **kwargs)
        return self._hooked(value) if self._hooks and value is not default else value

    def items(self, *args: Any, **kwargs: Any) -> Any:
        items = self._plain().items(*args, **kwargs)
        return [(key, self._hooked(value)) for key, value in items] if self._hooks else items

    def values(self, *args: Any, **kwargs: Any) -> Any:
        values = self._plain().values(*args, **kwargs)
        return [self._hooked(value) for value in values] if self._hooks else values

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        return cls(TensorDict.from_dict(*args, **kwargs))

    # -- copies --------------------------------------------------------------------------------------------------

    def clone(self, recurse: bool = True) -> Any:
        """A copy that is a module as well; tied parameters stay tied."""
        if not recurse:
            return self._wrap_params(self._map_leaves(lambda leaf: leaf))
        copies: dict[int, Tensor] = {}

        def copied(leaf: Tensor) -> Tensor:
            new = copies.get(id(leaf))
            if new is None:
                new = copies[id(leaf)] = _like(leaf, leaf.detach().clone())
            return new

        return self._wrap_params(self._map_leaves(copied), copy.deepcopy)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        out = memo[id(self)] = self.clone()
        return out

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`TensorDict.to`; the result is a module as well, with parameters and buffers."""
        if kwargs.get("inplace") or (not args and kwargs.keys() == {"batch_size"}):
            with torch.no_grad():
                return super().to(*args, **kwargs)
        here = self._plain()
        with torch.no_grad():
            out = here.to(*args, **kwargs)
        if out is here and out._batch_size == self._batch_size:
            return self
        return self._wrap_params(self._alike(out), lambda module: copy.deepcopy(module).to(*args, **kwargs))

    def _alike(self, out: Any) -> Any:
        """``out``, which has the keys of this collection, with parameters and buffers where they are here."""
        olds = iter(self._plain()._leaves())
        known: dict[int, Any] = {}

        def converted(new: Tensor) -> Tensor:
            old = next(olds)
            found = known.get(id(old))  # tied parameters stay tied
            if found is None:
                found = known[id(old)] = new if new is old else _like(old, new)
            return found

        return out._map_leaves(converted)

    def _replace_leaves(self, leaves: Sequence[Tensor], ragged: bool = False) -> Any:
        """The parameters stay the same objects, as an optimiser that holds them needs, and their gradients follow."""
        new = dict(zip(map(id, self._leaves()), leaves))
        _apply_to(self, lambda leaf: new.get(id(leaf), leaf))
        for leaf in self._leaves():
            if leaf.grad is not None:
                leaf.grad.data = leaf.grad.data.to(leaf)
        return self

    def _become(self, out: Any) -> None:
        super()._become(self._alike(out))

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
        for key, value in self._plain().items(True, True):
            yield (key if isinstance(key, str) else ".".join(key)), value

    @property
    def _parameters(self) -> dict[str, Any]:
        return TensorSlots({name: value for name, value in self._flat() if self._is_parameter(name, value)}, self)

    @_parameters.setter
    def _parameters(self, value: Any) -> None:
        """The constructor of nn.Module sets an empty dict; the entries are used instead."""

    @property
    def _buffers(self) -> dict[str, Any]:
        return TensorSlots({name: value for name, value in self._flat() if not self._is_parameter(name, value)}, self)

    @_buffers.setter
    def _buffers(self, value: Any) -> None:
        """See the setter above."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Called on every sub-module by ``module.to()`` and related methods: tensors change in place."""
        _apply_to(self, fn)
        for module in self.__dict__["_modules"].values():
            module._apply(fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`torch.nn.Module.state_dict` with dotted names; ``flatten=False`` nests them."""
        if not kwargs.pop("flatten", True):
            plain: Any = self._plain()
            return plain.state_dict(*args, flatten=False, **kwargs)
        return nn.Module.state_dict(self, *args, **kwargs)

    def load_state_dict(  # type: ignore[override]  # that of a module
        self, state_dict: Any, strict: bool = True, assign: bool = False, **kwargs: Any
    ) -> Any:
        """:meth:`torch.nn.Module.load_state_dict`; nested state dictionaries are flattened first."""
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
        # torch reads a dotted name as that of a sub-module, so nested entries are loaded here.
        assign = local_metadata.get("assign_to_params_buffers", False)
        mine = dict(self._flat())
        for name, value in mine.items():
            new = state_dict.get(prefix + name)
            if new is None:
                missing_keys.append(prefix + name)
            elif isinstance(value, UninitializedTensorMixin):
                self.set(tuple(name.split(".")), _like(value, new.detach().clone()))
            elif new.shape != value.shape:
                error_msgs.append(f"size mismatch for {prefix + name}: {list(new.shape)} into {list(value.shape)}")
            elif assign:
                self.set(tuple(name.split(".")), nn.Parameter(new) if isinstance(value, nn.Parameter) else new)
            else:
                with torch.no_grad():
                    value.copy_(new)
        if strict:
            below = tuple(f"{prefix}{name}." for name in self.__dict__["_modules"])
            names = (key for key in state_dict if key.startswith(prefix) and not key.startswith(below))
            unexpected_keys.extend(key for key in names if key[len(prefix) :] not in mine)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("TensorDictParams holds parameters and computes nothing: it has no forward()")

    __hash__ = nn.Module.__hash__  # type: ignore[assignment]  # collections have none

    def __len__(self) -> int:
        return DenseCollection.__len__(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(params={self._plain()!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        modules = dict(self.__dict__["_modules"])
        return _restore, (type(self), self._plain(), self._no_convert, self._lock is not None, self.training, modules)


def _without_grad(name: str) -> Any:
    inherited = getattr(DenseCollection, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return inherited(self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"TensorDictParams.{name}"
    method.__doc__ = f"As :meth:`TensorDict.{name}`, past autograd."
    return method


for _name in ("set_", "set_at_", "update_", "update_at_", "apply_", "copy_", "fill_", "zero_"):
    setattr(TensorDictParams, _name, _without_grad(_name))


def _restore(
    cls: Any, inner: TensorCollection, no_convert: Any, locked: bool, training: bool, modules: Any = None
) -> Any:
    new = object.__new__(cls)
    new._adopt(inner, "skip")
    _set(new, "_no_convert", no_convert)
    new._convert_tree(new)  # buffers are pickled as plain tensors
    new.training = training
    new.__dict__["_modules"].update(modules or {})
    if locked:
        new._propagate_lock(None)
    return new


def _like(old: Tensor, new: Tensor) -> Tensor:
    if isinstance(new, UninitializedTensorMixin):
        return new
    if isinstance(old, nn.Parameter):
        if not (new.is_floating_point() or new.is_complex()):
            return nn.Buffer(new)
        return nn.Parameter(new, requires_grad=old.requires_grad)
    return nn.Buffer(new) if isinstance(old, nn.Buffer) else new


def _levels(td: TensorCollection) -> Iterator[dict[str, Any]]:
    """The entries of a collection and of each nested one."""
    if type(td._source) is not dict:
        raise _stack_error()
    yield td._source
    for value in td._source.values():
        if not isinstance(value, Tensor) and not value._is_non_tensor:
            yield from _levels(value)


def _stack_error() -> RuntimeError:
    return RuntimeError(
        "Using a LazyStackedTensorDict within a TensorDictParams isn't permitted: its entries are not stored tensors. "
        "Stack them with stack.contiguous()"
    )


def _apply_to(td: TensorCollection, fn: Any) -> None:
    for key in td._key_list():
        value = td._get_str(key)
        if not isinstance(value, Tensor):
            _apply_to(value, fn)
            continue
        with torch.no_grad():
            new = fn(value)
        trained = new.is_floating_point() or new.is_complex()
        if isinstance(value, nn.Parameter) and trained and torch._has_compatible_shallow_copy_type(value.data, new):
            value.data = new
            if value.grad is not None:
                value.grad.data = fn(value.grad)
        elif new is not value:
            td._set_str(key, _like(value, new))


def _is_nested(state: Any) -> bool:
    return any(isinstance(value, (dict, TensorCollection)) for value in state.values())


register_params(TensorDictParams)


register(TensorDictParams=TensorDictParams)
