"""The tensors of a module as a tree, and a tree of tensors swapped into a module.

::

    read(module)              the parameters and buffers, keyed by the names of the sub-modules
    Swap(...).run(td, module) replaces them by others and returns the replaced ones in the same tree
    put_back(td, module)      the end of ``with td.to_module(module)``: restores what was replaced

A module that occurs twice in a model is one node of the tree. A :class:`TensorDictParams` is a module, too; its tensors
are its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tensordict_lite import registry
from tensordict_lite.strided import UninitializedTensorMixin

_SCALAR = torch.Size(())
_SHOWN_NAMES = 12
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_make_subclass = torch.Tensor._make_subclass
_Parameter = nn.Parameter


def read(cls: Any, module: nn.Module, filter_empty: bool, memo: dict[int, Any]) -> Any:
    """Parameters and buffers of a module and its children, not copied; shared children stay shared."""
    known = memo.get(id(module))
    if known is not None:
        return known
    if _is_params(module):
        return _copied(cls, module)
    source: dict[str, Any] = {}
    for slots in (module._parameters, module._buffers):
        for name, tensor in slots.items():
            if tensor is not None:
                source[name] = tensor
    if module._modules:
        for name, child in module._modules.items():
            if child is None:
                continue
            entry = read(cls, child, filter_empty, memo)
            if entry._source or not filter_empty:
                source[name] = entry
    out = memo[id(module)] = cls._trusted(source, _SCALAR)
    return out


def _is_params(module: Any) -> bool:
    return isinstance(module, _params_class)


_params_class: Any = ()


def register_params(cls: type) -> None:
    """Register the class of modules that are collections; it is defined in a file that imports this one."""
    global _params_class
    _params_class = cls


def _copied(cls: Any, td: Any) -> Any:
    """The tree of a :class:`TensorDictParams`: new nodes, same tensors."""
    source = {key: value if isinstance(value, Tensor) else _copied(cls, value) for key, value in td._entries()}
    return cls._trusted(source, td._batch_size, td._device, td._names)


def read_state_dict(cls: Any, module: nn.Module) -> Any:
    """The tensors of ``module.state_dict()``, hooks included, under nested keys."""
    out = cls._trusted({}, _SCALAR)
    for name, value in module.state_dict().items():
        *path, key = name.split(".")
        node = out
        for part in path:
            node = node._source.setdefault(part, cls._trusted({}, _SCALAR))
        if isinstance(value, Tensor):
            node._source[key] = value
        else:  # the extra state of a module
            node.set_non_tensor(key, value)
    return out


class Swap:
    """One call of ``to_module``: how tensors are put in, and what they replaced."""

    def __init__(
        self, cls: Any, inplace: bool = False, non_blocking: bool = False, preserve: bool = True, strict: bool = False
    ) -> None:
        self._cls = cls
        self._inplace = inplace
        self._non_blocking = non_blocking
        self._preserve = preserve
        self._strict = strict
        self._swaps = not inplace and preserve and not torch.compiler.is_compiling()
        self._memo: dict[int, Any] = {}

    def run(self, params: Any, module: nn.Module) -> Any:
        """Put ``params`` in and return a tree of what they replaced. On an error the module is restored."""
        swapped = self._cls._trusted({}, _SCALAR)
        try:
            self._level(params, module, swapped, ())
        except BaseException:
            put_back(swapped, module, self._inplace, self._non_blocking)
            raise
        return swapped

    def _level(self, params: Any, module: nn.Module, swapped: Any, path: tuple[str, ...]) -> None:
        self._memo[id(module)] = swapped
        if _is_params(module):
            self._into_params(params, module, swapped, path, module, ())
            return
        slots, buffers, children = module._parameters, module._buffers, module._modules
        old = swapped._source
        by_reference, swaps = not self._inplace, self._swaps
        for key, value in params._entries():
            kind = type(value)
            if kind is _Parameter and by_reference:  # the common case: one parameter for another
                current = slots.get(key)
                if value is current:
                    old[key] = current
                    continue
                if type(current) is _Parameter and current.shape == value.shape:
                    old[key] = current
                    slots[key] = value
                    continue
            elif kind is Tensor and swaps:  # a new tensor in place of a parameter becomes a parameter
                current = slots.get(key)
                if type(current) is _Parameter and current.shape == value.shape:
                    old[key] = current
                    if not (value.requires_grad or _is_wrapped(value)):
                        trainable = current.requires_grad and (current.dtype is value.dtype or _takes_grad(value))
                        value = _make_subclass(_Parameter, value, trainable)
                    slots[key] = value
                    continue
            if kind is not Tensor and not isinstance(value, Tensor):
                if value._is_non_tensor:
                    self._take_out(key, value, old, slots if key in slots else buffers)
                    continue
                child = children.get(key)
                if child is None:
                    raise self._surplus(key, path, module, "sub-module", _names_in(module))
                known = self._memo.get(id(child))
                if known is None:
                    below = old[key] = self._cls._trusted({}, _SCALAR)  # set before the entries, which may fail
                    self._level(value, child, below, (*path, key))
                else:
                    old[key] = known
            elif key in slots:
                self._into_parameter(module, key, value, old, path)
            elif key in buffers:
                self._into_buffer(module, key, value, old, path)
            elif isinstance(module.__dict__.get(key), Tensor):  # a tensor that is not registered
                old[key] = module.__dict__[key]
                module.__dict__[key] = value
            else:
                raise self._surplus(key, path, module, "parameter or buffer", _names_in(module))
        if self._strict:
            _check_complete(params, module, path)

    def _into_parameter(self, module: nn.Module, key: str, value: Tensor, old: Any, path: tuple[str, ...]) -> None:
        slots: Any = module._parameters
        current = slots[key]
        if current is None:
            if isinstance(module.__dict__.get(key), Tensor):
                self._replace_attribute(module, slots, key, value, old)
            else:
                self._fill(module, slots, key, _as_parameter(value, value), old, path)
            return
        if not _fits(current, value, slots, key):
            raise _misfit(path, key, current, value)
        if self._inplace:
            old[key] = self._copy(current, value)
            return
        old[key] = current
        if self._preserve:
            slots[key] = _as_parameter(value, current)
        else:
            self._set_attribute(module, slots, key, value)

    def _into_buffer(self, module: nn.Module, key: str, value: Tensor, old: Any, path: tuple[str, ...]) -> None:
        buffers: Any = module._buffers
        current = buffers[key]
        if current is None:
            self._fill(module, buffers, key, value, old, path)
            return
        if not _fits(current, value, buffers, key):
            raise _misfit(path, key, current, value)
        if self._inplace:
            old[key] = self._copy(current, value)
        else:
            old[key] = current
            self._set_buffer(module._parameters, buffers, key, value)

    def _copy(self, current: Tensor, value: Tensor) -> Tensor:
        before = current.detach().clone()
        with torch.no_grad():
            current.detach().copy_(value, non_blocking=self._non_blocking)
        return before

    def _fill(self, module: nn.Module, slots: Any, key: str, value: object, old: Any, path: tuple[str, ...]) -> None:
        """Fill a registered, empty slot, such as the bias of ``Linear(bias=False)``; the entry None stands for it."""
        if self._strict or self._inplace:
            raise KeyError(f"{_name(path, key)}: {type(module).__name__} is without {key!r} (it is None)")
        old[key] = registry.NonTensorData(None)
        slots[key] = value

    @staticmethod
    def _take_out(key: str, value: Any, old: Any, slots: Any) -> None:
        """Empty what :meth:`_fill` has filled. Other objects, such as extra state, need the state dict."""
        if value._as_value() is None and isinstance(slots.get(key), Tensor):
            old[key] = slots[key]
            slots[key] = None

    @staticmethod
    def _replace_attribute(module: nn.Module, slots: Any, key: str, value: Tensor, old: Any) -> None:
        """Replace a plain attribute that stands for a parameter (``preserve_module_state=False``)."""
        current = module.__dict__[key]
        old[key] = current
        if isinstance(value, nn.Parameter):
            slots[key] = value
            del module.__dict__[key]
        else:
            module.__dict__[key] = value

    @staticmethod
    def _set_attribute(module: nn.Module, slots: Any, key: str, value: Tensor) -> None:
        if isinstance(value, nn.Parameter):
            slots[key] = value
        else:  # a plain attribute; remember its position among the parameters for the way back
            slots[key] = None
            module.__dict__[key] = value

    def _set_buffer(self, slots: Any, buffers: Any, key: str, value: Tensor) -> None:
        if not isinstance(value, nn.Parameter):
            buffers[key] = value
        elif self._preserve:
            buffers[key] = value.as_subclass(Tensor)
        else:
            buffers[key] = None
            slots[key] = value

    def _into_params(
        self, params: Any, target: Any, swapped: Any, path: tuple[str, ...], root: Any, inner: tuple[str, ...]
    ) -> None:
        """Swap the entries of ``root``, a :class:`TensorDictParams` whose level ``inner`` is ``target``."""
        old = swapped._source
        for key, value in params._entries():
            current = target._source.get(key)
            if current is None or isinstance(current, Tensor) != isinstance(value, Tensor):
                raise self._surplus(key, path, target, "entry", _names_of(target))
            if not isinstance(value, Tensor):
                below = old[key] = self._cls._trusted({}, _SCALAR)
                self._into_params(value, current, below, (*path, key), root, (*inner, key))
            elif not _fits(current, value, target._source, key):
                raise _misfit(path, key, current, value)
            elif self._inplace:
                old[key] = self._copy(current, value)
            else:
                old[key] = current
                target._source[key] = _in_place_of(current, value, root, ".".join((*inner, key)))

    @staticmethod
    def _surplus(key: str, path: tuple[str, ...], module: Any, what: str, there: Iterable[str]) -> KeyError:
        where = f" at {'.'.join(path)!r}" if path else ""
        names = sorted(there)
        more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) or "no parameters and no buffers"
        return KeyError(f"{type(module).__name__}{where} has no {what} {key!r}; it has {shown}{more}")


def _names_in(module: nn.Module) -> Iterator[str]:
    for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
        yield name


def _names_of(params: Any) -> Iterator[str]:
    """The names of the parameters in a collection."""
    return (key if isinstance(key, str) else ".".join(key) for key in params.keys(True, True))


def _as_parameter(value: Tensor, old: Tensor) -> Any:
    """A Parameter where possible; the tensor itself where gradients or a transform pass through it."""
    if torch.compiler.is_compiling():  # a graph creates no parameters and has no attribute to store them in
        return value
    if type(value) is Tensor:
        if value.requires_grad or _is_wrapped(value):
            return value
        return _make_subclass(_Parameter, value, old.requires_grad and _takes_grad(value))
    if isinstance(value, nn.Parameter) or value.requires_grad or _is_wrapped(value):
        return value
    if isinstance(value, registry.MemoryMappedTensor):
        value = value.as_subclass(Tensor)  # shares memory: training writes through to the file
    return nn.Parameter(value, requires_grad=old.requires_grad and _takes_grad(value))


def _in_place_of(current: Tensor, value: Tensor, root: Any, name: str) -> Any:
    """A tensor to replace another one of a :class:`TensorDictParams`; a parameter is replaced by a parameter."""
    if not root._is_parameter(name, current):
        return value
    new = _as_parameter(value, current)
    if not isinstance(new, nn.Parameter) and not torch.compiler.is_compiling():
        root._places.add(name)
    return new


def _takes_grad(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _fits(current: Tensor, value: Tensor, slots: Any, key: str) -> bool:
    """Whether the known parts of the shapes agree."""
    if isinstance(value, UninitializedTensorMixin):
        registry.tell_slot(value, slots, key)
        return True
    return isinstance(current, UninitializedTensorMixin) or current.shape == value.shape


def _name(path: tuple[str, ...], key: str) -> str:
    return repr(".".join((*path, key)))


def _misfit(path: tuple[str, ...], key: str, current: Tensor, value: Tensor) -> RuntimeError:
    return RuntimeError(
        f"{_name(path, key)} has the shape {list(current.shape)} in the module and {list(value.shape)} in the "
        "collection: to_module() needs the same. Stacked parameters go through torch.vmap, or by index, params[i]."
    )


def _check_complete(params: Any, module: nn.Module, path: tuple[str, ...]) -> None:
    have = set(params._key_list())
    tensors = [key for key, value in (*module._parameters.items(), *module._buffers.items()) if value is not None]
    modules = [key for key, child in module._modules.items() if child is not None and _has_tensors(child)]
    missing = [".".join((*path, key)) for key in (*tensors, *modules) if key not in have]
    if missing:
        raise KeyError(f"to_module(strict=True): the collection lacks {missing} of {type(module).__name__}")


def _has_tensors(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def restore(swapped: Any, module_ref: Callable[[], nn.Module | None], taken: Any, *options: Any) -> None:
    """:func:`put_back` at the end of a ``with`` block, unless the module was deleted."""
    module = module_ref()
    if module is not None:
        put_back(swapped if taken is None else taken, module, *options)


def put_back(swapped: Any, module: nn.Module, inplace: bool, non_blocking: bool = False, params: Any = None) -> None:
    """Restore what a :class:`Swap` replaced: parameters, buffers, plain attributes, and their order.

    Values that the module assigned meanwhile (for example a recomputed buffer) go into ``params``.
    """
    given = None if params is None or type(params._source) is not dict else params._source
    if _is_params(module):
        _put_back_params(swapped, module, inplace, non_blocking)
        return
    slots, buffers, children = module._parameters, module._buffers, module._modules
    attributes = module.__dict__
    for key, value in swapped._source.items():
        if type(value) is _Parameter and not inplace:
            current: Tensor | None = slots.get(key)
            if current is value:
                continue
            if type(current) is _Parameter and (given is None or current is given.get(key)):
                slots[key] = value
                continue
        if not isinstance(value, Tensor):
            if value._is_non_tensor:  # the slot was empty
                (buffers if key in buffers else slots)[key] = None
                continue
            below = None if given is None else given.get(key)
            put_back(value, children[key], inplace, non_blocking, below)  # type: ignore[arg-type]
        elif inplace:
            current = slots[key] if key in slots else buffers[key]
            with torch.no_grad():
                current.detach().copy_(value, non_blocking=non_blocking)  # type: ignore[union-attr]
        elif key in buffers:
            if given is not None and buffers[key] is not given[key] and type(given[key]) is Tensor:
                _keep(given, key, buffers[key])
            buffers[key] = value
            if key in slots:
                del slots[key]
        elif key not in slots or (slots[key] is None and not isinstance(value, nn.Parameter)):
            attributes[key] = value
        else:
            if given is not None and isinstance(given[key], nn.Parameter) and slots[key] is not given[key]:
                _keep(given, key, slots[key])
            slots[key] = value  # type: ignore[assignment]
            if key in attributes:
                del attributes[key]


def _keep(given: dict[str, Any], key: str, assigned: Any) -> None:
    if isinstance(assigned, Tensor):
        given[key] = assigned


def _put_back_params(swapped: Any, target: Any, inplace: bool, non_blocking: bool) -> None:
    for key, value in swapped._source.items():
        if not isinstance(value, Tensor):
            _put_back_params(value, target._source[key], inplace, non_blocking)
        elif inplace:
            with torch.no_grad():
                target._source[key].detach().copy_(value, non_blocking=non_blocking)
        else:
            target._source[key] = value
