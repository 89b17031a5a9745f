"""The base of modules that read and write tensordicts: their keys, and the selection of outputs."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import NestedKey, unravel_key, unravel_key_list

__all__ = ["OutKeyNotFoundError", "TensorDictModuleBase", "key_list"]


class OutKeyNotFoundError(ValueError, RuntimeError):
    """A key was selected that the module does not write."""


class TensorDictModuleBase(nn.Module):
    """Base of the modules that read entries of a tensordict and write others: ``td = module(td)``.

    A subclass sets ``in_keys`` and ``out_keys``, as class attributes or in its constructor;
    :class:`TensorDictSequential` uses them. To wrap a module of tensors, use :class:`TensorDictModule`.

    Example:
        >>> class Statistics(TensorDictModuleBase):
        ...     in_keys = ["x"]
        ...     out_keys = ["mean", "std"]
        ...     def forward(self, tensordict):
        ...         x = tensordict["x"]
        ...         return tensordict.update({"mean": x.mean(-1), "std": x.std(-1)})
        >>> module = Statistics().select_out_keys("mean")
        >>> sorted(module(TensorDict({"x": torch.ones(2, 3)}, [2])).keys())
        ['mean', 'x']
    """

    _select_hook: Any = None
    _in_keys: list[NestedKey]
    _out_keys: list[NestedKey]
    _all_out_keys: list[NestedKey]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("in_keys", "out_keys"):
            value = cls.__dict__.get(name)
            if isinstance(value, (list, tuple, str)):  # the property of this class answers for it
                setattr(cls, "_" + name, _several(value, name))
                delattr(cls, name)

    @staticmethod
    def is_tdmodule_compatible(module: Any) -> bool:
        """Whether an object has ``in_keys`` and ``out_keys``."""
        return hasattr(module, "in_keys") and hasattr(module, "out_keys")

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys that the module reads."""
        return self._in_keys

    @in_keys.setter
    def in_keys(self, value: Any) -> None:
        self.__dict__["_in_keys"] = _several(value, "in_keys")

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys that the module writes: those that :meth:`select_out_keys` chose, or all."""
        return self._out_keys

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        self._forget_selection()
        self.__dict__["_out_keys"] = _several(value, "out_keys")

    @property
    def out_keys_source(self) -> list[NestedKey]:
        """All the keys that the module writes, selected or not."""
        return self._all_out_keys if "_all_out_keys" in self.__dict__ else self.out_keys

    def select_out_keys(self, *out_keys: NestedKey) -> Any:
        """Keep only some of the outputs: the others are computed and dropped from the result.

        Returns:
            self. :meth:`reset_out_keys` reverts the selection.

        Raises:
            ValueError: the module does not write such a key (the error is also a RuntimeError).
        """
        if type(self).out_keys is not TensorDictModuleBase.out_keys:
            raise RuntimeError(
                f"{type(self).__name__} does not support select_out_keys: it computes its out_keys itself"
            )
        chosen = unravel_key_list(list(out_keys))
        check_selected(chosen, self.out_keys, self)
        everything = self.out_keys_source
        self.out_keys = [key for key in everything if key in chosen]
        self.__dict__["_all_out_keys"] = everything
        self.__dict__["_select_hook"] = self.register_forward_hook(drop_unselected)
        return self

    def reset_out_keys(self) -> Any:
        """Revert :meth:`select_out_keys`: keep all outputs again. Returns self."""
        if "_all_out_keys" in self.__dict__:
            self.out_keys = self._all_out_keys
        return self

    def _forget_selection(self) -> None:
        hook = self.__dict__.pop("_select_hook", None)
        self.__dict__.pop("_all_out_keys", None)
        if hook is not None:
            hook.remove()

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Call ``reset_parameters()`` of every sub-module that has it.

        Args:
            parameters: a tensordict of parameters to reset instead of the module's own, which are unchanged. It has the
                structure of :meth:`TensorDict.from_module` and an empty batch size. Its tensors are written in place.

        Returns:
            None; with ``parameters`` a tensordict that shares their memory, in which parameters require grad.

        Raises:
            RuntimeError: ``parameters`` has batch dimensions.

        Warns:
            UserWarning: without ``parameters``, if no sub-module has ``reset_parameters``.
        """
        if parameters is None:
            if not _reset(self):
                warnings.warn(
                    f"reset_parameters_recursive() found nothing to reset in {type(self).__name__}: no sub-module has "
                    "reset_parameters()",
                    stacklevel=2,
                )
            return None
        if parameters.batch_dims:
            raise RuntimeError(
                "reset_parameters_recursive does not support batched TensorDicts: it resets the parameters of one "
                f"module, but these have the batch size {list(parameters.batch_size)}. Index them, parameters[i], or "
                "use EnsembleModule."
            )
        own = TensorDict.from_module(self)
        fresh = parameters.apply(_trainable, own, default=None, filter_empty=False)
        with fresh.to_module(self):
            _reset(self)
        return fresh

    _shown: tuple[str, ...] = ()
    """Attributes that ``repr`` shows besides the keys."""

    def __repr__(self) -> str:
        return _render(self, {name: getattr(self, name) for name in self._shown})


def _trainable(tensor: Any, own: Any) -> Any:
    """A tensor over the same memory, which is a parameter where the module has one."""
    return tensor.detach().requires_grad_(isinstance(own, nn.Parameter))


def _reset(module: nn.Module) -> bool:
    """Reset the children, then the parent; return whether anything was reset."""
    found = False
    for child in module.children():
        found |= _reset(child)
        reset = getattr(child, "reset_parameters", None)
        if reset is not None:
            reset()
            found = True
    return found


def drop_unselected(module: Any, args: Any, output: Any) -> None:
    """Forward hook of :meth:`select_out_keys`: inputs are kept, whether selected or not."""
    if isinstance(output, TensorCollection):
        keep = (*module.out_keys, *module.in_keys, "_")
        output.exclude(*[key for key in module.out_keys_source if key not in keep], inplace=True)


def check_selected(chosen: Any, available: Any, module: Any) -> None:
    missing = [key for key in chosen if key not in available]
    if missing:
        raise OutKeyNotFoundError(
            f"Can't select non existent key: {', '.join(map(str, missing))}. {type(module).__name__} writes {available}"
        )


def key_list(keys: Any, what: str) -> list[NestedKey]:
    """Keys as a list of canonical ones; a single key (a string, a tuple of strings) gives a list of one.

    Raises:
        ValueError: any other value.
    """
    if isinstance(keys, str):
        return [keys]
    try:
        out = [unravel_key(keys)] if isinstance(keys, tuple) else unravel_key_list(list(keys))
    except (TypeError, RuntimeError):
        out = [()]
    if not all(out):
        raise ValueError(f"{what} must be of type list, str or tuples of str (a key or a list of keys), got {keys!r}")
    return out


def _several(keys: Any, what: str) -> list[NestedKey]:
    """Keys of an attribute, where a tuple is a sequence of keys like a list."""
    return key_list(list(keys) if isinstance(keys, tuple) else keys, what)


def _render(module: Any, parts: dict[str, Any]) -> str:
    """``Name(part=..., in_keys=..., out_keys=...)`` over several lines."""
    keys = {}
    for name in ("in_keys", "out_keys"):
        try:
            keys[name] = getattr(module, name)
        except (AttributeError, RuntimeError):  # unknown at this time
            keys[name] = None
    lines = [f"{name}={value!r}".replace("\n", "\n    ") for name, value in {**parts, **keys}.items()]
    return f"{type(module).__name__}(\n    " + ",\n    ".join(lines) + ")"
