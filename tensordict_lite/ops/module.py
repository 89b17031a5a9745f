"""Functional parameters: the weights of a module as a collection, and back."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ModuleOps"]


def _read(cls: Any, module: nn.Module, filter_empty: bool, memo: dict[int, Any], use_state_dict: bool) -> Any:
    """The parameters and buffers of ``module`` and its children, as they are; shared children stay shared."""
    known = memo.get(id(module))
    if known is not None:
        return known
    source: dict[str, Any] = {k: v for k, v in module._parameters.items() if v is not None}
    hidden = module._non_persistent_buffers_set if use_state_dict else ()
    source.update((k, v) for k, v in module._buffers.items() if v is not None and k not in hidden)
    if use_state_dict:
        source = {key: value.detach() for key, value in source.items()}
    for name, child in module._modules.items():
        if child is None:
            continue
        entry = _read(cls, child, filter_empty, memo, use_state_dict)
        if entry._source or not filter_empty:
            source[name] = entry
    out = memo[id(module)] = cls._trusted(source, torch.Size(()))
    return out


def _as_parameter(value: Tensor, old: Tensor | None) -> Tensor:
    """What to put in a parameter slot: a Parameter where that is possible, the tensor itself under transforms."""
    if isinstance(value, nn.Parameter) or value.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return value
    trainable = old.requires_grad if old is not None and value.dtype.is_floating_point else False
    from tensordict_lite.memmap.tensor import MemoryMappedTensor

    if isinstance(value, MemoryMappedTensor):
        value = value.as_subclass(Tensor)  # the same memory: training writes through to the file
    return nn.Parameter(value, requires_grad=trainable)


def _swap(params: Any, module: nn.Module, inplace: bool, non_blocking: bool, memo: dict[int, Any]) -> Any:
    """Puts the entries of ``params`` into ``module``; the collection of what they replaced."""
    known = memo.get(id(module))
    if known is not None:
        return known
    old: dict[str, Any] = {}
    memo[id(module)] = swapped = params._plain_class()._trusted(old, torch.Size(()))
    slots, buffers, children = module._parameters, module._buffers, module._modules
    for key in params._key_list():
        value = params._get_str(key)
        if not isinstance(value, Tensor):
            child = children.get(key)
            if child is None:
                raise KeyError(f"{type(module).__name__} has no sub-module {key!r}; it has {sorted(children)}")
            old[key] = _swap(value, child, inplace, non_blocking, memo)
            continue
        if key in slots:
            current = slots[key]
            old[key] = current
            if inplace and current is not None:
                old[key] = current.detach().clone()
                current.data.copy_(value.detach(), non_blocking=non_blocking)
            else:
                slots[key] = _as_parameter(value, current)  # type: ignore[assignment]
        elif key in buffers:
            current = buffers[key]
            old[key] = current
            if inplace and current is not None:
                old[key] = current.clone()
                current.copy_(value, non_blocking=non_blocking)
            else:
                buffers[key] = value
        else:
            raise KeyError(
                f"{type(module).__name__} has no parameter or buffer {key!r}; it has {sorted([*slots, *buffers])}"
            )
    return swapped


def _finish(out: Any, as_module: bool, lock: bool) -> Any:
    if as_module:
        from tensordict_lite.nn import TensorDictParams

        out = TensorDictParams(out, no_convert=True)
    if lock:
        out._propagate_lock(None)
    return out


class ModuleOps:
    """Mixin of :meth:`from_module` and :meth:`to_module`."""

    __slots__ = ()

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_module: bool = False,
        lock: bool = False,
        use_state_dict: bool = False,
        filter_empty: bool = True,
    ) -> Self:
        """The parameters and buffers of a module, under the names of its sub-modules; nothing is copied.

        Args:
            module: any module.
            as_module: return a :class:`TensorDictParams`, a module around them.
            lock: lock the result.
            use_state_dict: detached tensors of what ``state_dict()`` holds, instead of the parameters.
            filter_empty: leave out sub-modules without parameters.

        Example:
            >>> from tensordict_lite import TensorDict
            >>> params = TensorDict.from_module(torch.nn.Sequential(torch.nn.Linear(3, 4)))
            >>> params["0", "weight"].shape
            torch.Size([4, 3])
        """
        from tensordict_lite.tensordict import TensorDict

        if not isinstance(module, nn.Module):
            raise TypeError(f"from_module() needs a torch.nn.Module, got a {type(module).__name__}")
        return _finish(_read(TensorDict, module, filter_empty, {}, use_state_dict), as_module, lock)

    @classmethod
    def from_modules(
        cls,
        *modules: nn.Module,
        as_module: bool = False,
        lock: bool = True,
        use_state_dict: bool = False,
        lazy_stack: bool = False,
        expand_identical: bool = False,
    ) -> Self:
        """The parameters of several modules of one architecture, stacked: an ensemble for :func:`torch.vmap`.

        Stacked parameters are new parameters where the originals require grad. With ``lazy_stack`` nothing is
        copied; with ``expand_identical`` a parameter that all modules share is expanded instead of stacked.
        """
        if not modules:
            raise ValueError("from_modules() needs at least one module")
        parts = [cls.from_module(module, use_state_dict=use_state_dict) for module in modules]
        if lazy_stack:
            out = type(parts[0]).lazy_stack(parts)  # type: ignore[attr-defined]
        else:

            def combine(*leaves: Tensor) -> Tensor:
                if expand_identical and all(leaf is leaves[0] for leaf in leaves):
                    return leaves[0].expand(len(leaves), *leaves[0].shape)
                stacked = torch.stack([leaf.detach() for leaf in leaves])
                return nn.Parameter(stacked) if any(leaf.requires_grad for leaf in leaves) else stacked

            out = parts[0].apply(combine, *parts[1:], batch_size=[len(parts)])  # type: ignore[attr-defined]
        return _finish(out, as_module, lock)

    def to_module(
        self,
        module: nn.Module,
        *,
        inplace: bool | None = None,
        return_swap: bool = True,
        swap_dest: Any = None,
        use_state_dict: bool = False,
        non_blocking: bool = False,
        preserve_module_state: bool = True,
        memo: Any = None,
    ) -> Any:
        """Puts these tensors into a module; as a context manager, the old ones come back at the end.

        Args:
            module: a module with parameters or buffers under the same names.
            inplace: copy into the existing tensors instead of replacing them.
            return_swap: return what was replaced (which :meth:`to_module` puts back).
            swap_dest: collection to write the replaced tensors into.
            use_state_dict: load through ``module.load_state_dict`` (hooks run), copying.
            non_blocking: for copies.

        Raises:
            KeyError: the module has no such parameter, buffer or sub-module.

        Example:
            >>> from tensordict_lite import TensorDict
            >>> layer = torch.nn.Linear(2, 2)
            >>> zeros = TensorDict.from_module(layer).data.clone().zero_()
            >>> with zeros.to_module(layer):
            ...     layer(torch.ones(1, 2)).sum().item()
            0.0
        """
        if use_state_dict:
            flat = self.flatten_keys(".")  # type: ignore[attr-defined]
            swap = _read(self._plain_class(), module, True, {}, True).clone()  # type: ignore[attr-defined]
            module.load_state_dict({key: flat._get_str(key) for key in flat._key_list()}, strict=False)
        else:
            swap = _swap(self, module, bool(inplace), non_blocking, {})
        if swap_dest is not None:
            swap_dest.update(swap)
            swap = swap_dest
        if not return_swap:
            return None
        swap._last_op = ("module", (weakref.ref(module), bool(inplace) or use_state_dict, non_blocking))
        return swap
