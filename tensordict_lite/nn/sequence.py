"""Modules run one after the other on the same tensordict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from tensordict_lite.base import TensorCollection
from tensordict_lite.keys import NestedKey, unravel_key_list
from tensordict_lite.lazy.functions import LazyStackedTensorDict
from tensordict_lite.nn.base import TensorDictModuleBase, check_selected
from tensordict_lite.nn.common import WrapModule, check_inplace, output_of
from tensordict_lite.nn.dispatching import dispatch
from tensordict_lite.nn.utils import _SKIP, is_skipped

__all__ = ["TensorDictSequential"]


class TensorDictSequential(TensorDictModuleBase):
    """Run modules in order; each gets the tensordict returned by the one before it.

    Its ``in_keys`` are those that a module reads and no earlier one writes, its ``out_keys`` all that are written.
    ``seq[i]`` and ``seq["name"]`` are modules, a slice is a sequence; assignment and deletion edit the sequence.

    Args:
        *modules: modules with keys, or functions from tensordict to tensordict (see :class:`WrapModule`); or one list
            of them, or one mapping of names to them.
        partial_tolerant: skip a module whose inputs are missing. In a lazy stack it runs on the members that have them.
        selected_out_keys: outputs to keep, see :meth:`select_out_keys`.
        inplace: where the outputs are written at the end: True, into the input; False, into a new TensorDict;
            ``"empty"``, into ``input.empty()``; None (default), as the modules decide. With False and ``"empty"`` the
            input is not changed.

    Example:
        >>> from tensordict_lite.nn import TensorDictModule
        >>> seq = TensorDictSequential(
        ...     TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"]),
        ...     TensorDictModule(lambda y: y * 2, in_keys=["y"], out_keys=["z"]),
        ... )
        >>> seq.in_keys, seq.out_keys
        (['x'], ['y', 'z'])
        >>> seq(TensorDict(x=torch.zeros(())))["z"]
        tensor(2.)
        >>> seq(x=torch.zeros(()))
        (tensor(1.), tensor(2.))
    """

    def __init__(
        self,
        *modules: Any,
        partial_tolerant: bool = False,
        selected_out_keys: list[NestedKey] | None = None,
        inplace: bool | str | None = None,
    ) -> None:
        super().__init__()
        check_inplace(inplace)
        self.partial_tolerant = partial_tolerant
        self.inplace = inplace
        self._selected: list[NestedKey] | None = None
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            self.module: Any = nn.ModuleDict({name: _as_module(one) for name, one in modules[0].items()})
        else:
            if len(modules) == 1 and isinstance(modules[0], (list, tuple, nn.ModuleList)):
                modules = tuple(modules[0])
            self.module = nn.ModuleList([_as_module(one) for one in modules])
        self._compute_keys()
        if selected_out_keys is not None:
            self.select_out_keys(*selected_out_keys)

    # -- keys ------------------------------------------------------------------------------------------------

    def _compute_keys(self) -> None:
        self.__dict__["_in_keys"], self.__dict__["_all_out_keys"] = keys_of(self._children())
        if self._selected is not None:
            self._selected = [key for key in self._selected if key in self._all_out_keys]

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys that the sequence reads and no earlier module of it writes."""
        return self._in_keys

    @in_keys.setter
    def in_keys(self, value: Any) -> None:
        raise AttributeError("the in_keys of a sequence are those of its modules: change these")

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys that the sequence writes, each once: the selected ones, or all."""
        return self._all_out_keys if self._selected is None else self._selected

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        raise AttributeError("the out_keys of a sequence are those of its modules: select_out_keys() chooses from them")

    @property
    def out_keys_source(self) -> list[NestedKey]:
        return self._all_out_keys

    def select_out_keys(self, *selected_out_keys: NestedKey) -> Any:
        """Keep only some of the outputs, in addition to the input. Returns self.

        Raises:
            ValueError: no module writes such a key.
        """
        chosen = unravel_key_list(list(selected_out_keys))
        check_selected(chosen, self.out_keys, self)
        self._selected = [key for key in self._all_out_keys if key in chosen]
        return self

    def reset_out_keys(self) -> Any:
        self._selected = None
        return self

    # -- as a container ----------------------------------------------------------------------------------------

    def _children(self) -> Any:
        container: Any = self._modules["module"]
        return container._modules.values()

    def _is_named(self) -> bool:
        return isinstance(self.module, nn.ModuleDict)

    def _name_at(self, index: Any) -> str:
        """The name of a module in the container, for a position or a name."""
        names = list(self.module._modules)
        if isinstance(index, str):
            if not self._is_named():
                raise KeyError(f"the modules of this {type(self).__name__} have no names: index them by position")
            if index not in names:
                raise KeyError(f"there is no module {index!r}; there are {names}")
            return index
        try:
            return names[index]
        except IndexError:
            raise IndexError(f"there is no module {index}: this {type(self).__name__} has {len(names)}") from None

    def __len__(self) -> int:
        return len(self._children())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._children())

    def __getitem__(self, index: int | slice | str) -> Any:
        if isinstance(index, slice):
            return self._like(list(self.module._modules.items())[index])
        return self.module._modules[self._name_at(index)]

    def __setitem__(self, index: int | str, module: Callable[[Any], Any]) -> None:
        name = index if isinstance(index, str) and self._is_named() else self._name_at(index)
        self.module._modules[name] = _as_module(module)
        self._compute_keys()

    def __delitem__(self, index: int | slice | str) -> None:
        if self._is_named() and isinstance(index, slice):
            for name in list(self.module._modules)[index]:
                del self.module[name]
        elif self._is_named():
            del self.module[self._name_at(index)]
        else:
            del self.module[index]
        self._compute_keys()

    def append(self, module: Callable[[Any], Any]) -> Any:
        """Add a module at the end. Returns self."""
        if self._is_named():
            raise TypeError('the modules of this sequence have names: write seq["name"] = module')
        self.module.append(_as_module(module))
        self._compute_keys()
        return self

    def insert(self, index: int, module: Callable[[Any], Any]) -> Any:
        """Add a module before the one at ``index``. Returns self."""
        if self._is_named():
            raise TypeError("the modules of this sequence have names: make a new sequence in the wanted order")
        self.module.insert(index, _as_module(module))
        self._compute_keys()
        return self

    def _like(self, named: list[tuple[str, Any]]) -> Any:
        modules = (dict(named),) if self._is_named() else tuple(module for _, module in named)
        return type(self)(*modules, **self._options())

    def _options(self) -> dict[str, Any]:
        return {"partial_tolerant": self.partial_tolerant, "inplace": self.inplace}

    def select_subsequence(
        self, in_keys: Iterable[NestedKey] | None = None, out_keys: Iterable[NestedKey] | None = None
    ) -> Any:
        """A sequence of the modules that can run from ``in_keys`` and that ``out_keys`` need.

        The modules are the same objects; nested sequences are reduced likewise.

        Args:
            in_keys: available keys. Default: the ``in_keys`` of the sequence.
            out_keys: wanted keys. Default: the ``out_keys`` of the sequence.

        Raises:
            ValueError: no module is left.
        """
        starts = self.in_keys if in_keys is None else unravel_key_list(list(in_keys))
        wanted = self.out_keys if out_keys is None else unravel_key_list(list(out_keys))
        named = _needed(_runnable(list(self.module._modules.items()), set(starts)), set(wanted))
        if not named:
            raise ValueError(
                f"No modules left after selection: none runs from {list(starts)} and is needed for {list(wanted)}. The "
                f"sequence goes from {self.in_keys} to {self.out_keys}"
            )
        return self._like(named)

    # -- running -----------------------------------------------------------------------------------------------

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, tensordict_out: TensorCollection | None = None, **kwargs: Any) -> Any:
        """Run the modules in order.

        Args:
            tensordict: the input.
            tensordict_out: where to write the outputs, whatever ``inplace`` says; the input is not changed.

        Raises:
            RuntimeError: other keyword arguments.
        """
        mode = _SKIP.get()
        if mode is not False and is_skipped(mode, tensordict, self.in_keys, self.out_keys):
            return tensordict
        if kwargs:
            raise RuntimeError(
                f"{type(self).__name__} does not support keyword arguments other than 'tensordict_out' or its in_keys "
                f"{self.in_keys}: got {sorted(kwargs)}"
            )
        return self._deliver(tensordict, tensordict_out, self._run_modules)

    def _deliver(self, tensordict: Any, tensordict_out: Any, run: Callable[[Any], Any]) -> Any:
        """Run the modules and write the outputs to their target."""
        inplace = self.inplace
        if tensordict_out is None and inplace is None and self._selected is None:
            return run(tensordict)
        if tensordict_out is None and inplace is True and self._selected is None:
            result = run(tensordict)
            return tensordict if result is tensordict else tensordict.update(self._kept(result))
        result = run(tensordict.copy())
        if tensordict_out is None:
            tensordict_out = output_of(tensordict, inplace)
        return tensordict_out.update(self._kept(result))

    def _kept(self, result: Any) -> Any:
        return result.select(*[key for key in self.out_keys if key != "_"], strict=False)

    def _run_modules(self, tensordict: Any) -> Any:
        if self.partial_tolerant:
            for module in self._children():
                tensordict = run_where_possible(module, tensordict)
            return tensordict
        for module in self._children():
            tensordict = module(tensordict)
        return tensordict

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            container = self.__dict__.get("_modules", {}).get("module")
            if container is not None and name in container._modules:
                return container._modules[name]
            raise

    _shown = ("module",)


# -- helpers ---------------------------------------------------------------------------------------------------


def _as_module(module: Any) -> Any:
    if TensorDictModuleBase.is_tdmodule_compatible(module) and isinstance(module, nn.Module):
        return module
    if isinstance(module, nn.Module) or callable(module):
        return WrapModule(module)
    raise TypeError(
        f"a sequence is made of modules and functions of tensordicts, but {module!r} of type "
        f"{type(module).__name__} cannot be called"
    )


def keys_of(modules: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The keys that a sequence of modules reads from outside, and those that it writes, ordered by last write."""
    reads: list[Any] = []
    writes: list[Any] = []
    for module in modules:
        for key in module.in_keys:
            if key not in writes and key not in reads:
                reads.append(key)
        writes = [key for key in writes if key not in module.out_keys]
        writes.extend(dict.fromkeys(module.out_keys))
    return reads, writes


def _runnable(named: list[tuple[str, Any]], have: set[Any]) -> list[tuple[str, Any]]:
    """The modules whose inputs are available or written by an earlier runnable one."""
    out = []
    for name, module in named:
        if isinstance(module, TensorDictSequential):
            kept = _runnable(list(module.module._modules.items()), set(have))
            if not kept:
                continue
            module = module if len(kept) == len(module) and _same(kept, module) else module._like(kept)
        elif not all(key in have for key in module.in_keys):
            continue
        have.update(module.out_keys)
        out.append((name, module))
    return out


def _needed(named: list[tuple[str, Any]], wanted: set[Any]) -> list[tuple[str, Any]]:
    """The modules that write a wanted key, or an input of a needed module after them."""
    out: list[tuple[str, Any]] = []
    for name, module in reversed(named):
        if not any(key in wanted for key in module.out_keys):
            continue
        if isinstance(module, TensorDictSequential):
            kept = _needed(list(module.module._modules.items()), set(wanted))
            module = module if len(kept) == len(module) and _same(kept, module) else module._like(kept)
        wanted.update(module.in_keys)
        out.append((name, module))
    return out[::-1]


def _same(named: list[tuple[str, Any]], module: Any) -> bool:
    return all(one is other for (_, one), other in zip(named, module))


def run_where_possible(module: Any, tensordict: Any) -> Any:
    """Run a module whose inputs are all there; in a lazy stack, on the members that have them."""
    if all(_has(tensordict, key) for key in module.in_keys):
        return module(tensordict)
    if isinstance(tensordict, LazyStackedTensorDict):
        for member in tensordict.tensordicts:
            if all(_has(member, key) for key in module.in_keys):
                result = module(member)
                if result is not member:
                    member.update(result.select(*module.out_keys, strict=False))
    return tensordict


def _has(tensordict: Any, key: Any) -> bool:
    return tensordict.get(key, None) is not None
