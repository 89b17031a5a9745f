"""Modules of tensors as modules of tensordicts."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.fx import Proxy

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import NestedKey, unravel_key
from tensordict_lite.nn.base import TensorDictModuleBase, key_list
from tensordict_lite.nn.dispatching import dispatch
from tensordict_lite.nn.tracing import TracedEntries
from tensordict_lite.nn.utils import _SKIP, is_skipped

if TYPE_CHECKING:
    from tensordict_lite.base import TensorDictBase

__all__ = [
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictModuleWrapper",
    "WrapModule",
    "as_tensordict_module",
    "dispatch",
]

INPLACE = (None, True, False, "empty")


class TensorDictModule(TensorDictModuleBase):
    """A callable of tensors that reads its arguments from a tensordict and writes its results to it.

    Called with tensors, by position or by the names of the keys, it returns tensors: see :class:`dispatch`. Missing
    attributes are looked up on ``module``.

    Args:
        module: the callable, usually an ``nn.Module``. It returns a tensor, a tuple of tensors, or a dict or tensordict
            with all the ``out_keys``.
        in_keys: key or list of keys whose entries are the positional arguments, in this order; or a mapping of argument
            names to keys, for keyword arguments.
        out_keys: key or list of keys for the results, in order. ``"_"`` drops a result.
        out_to_in_map: direction of a mapping ``in_keys``: True (default) ``{argument: key}``, False
            ``{key: argument}``.
        inplace: where results are written: True, to the input; False and None, to a new TensorDict without batch size;
            ``"empty"``, to ``input.empty()``.
        method: name of a method of ``module`` to call instead.
        method_kwargs: keyword arguments for every call.
        strict: raise KeyError for a missing entry; otherwise pass None, and if the module fails, name the entry.
        get_kwargs: keyword arguments of :meth:`TensorDict.get` for every entry, such as ``{"as_padded_tensor": True}``.

    Raises:
        ValueError: ``module`` is not callable, or keys are invalid.

    Example:
        >>> layer = TensorDictModule(torch.nn.Linear(3, 4), in_keys=["x"], out_keys=["y"])
        >>> layer(TensorDict({"x": torch.ones(2, 3)}, [2]))["y"].shape
        torch.Size([2, 4])
        >>> layer(x=torch.ones(2, 3)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        module: Any,
        in_keys: NestedKey | list[NestedKey] | Mapping[Any, Any],
        out_keys: NestedKey | list[NestedKey],
        *,
        out_to_in_map: bool | None = None,
        inplace: bool | str = True,
        method: str | None = None,
        method_kwargs: dict[str, Any] | None = None,
        strict: bool = False,
        get_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not callable(module) and method is None:
            raise ValueError(
                f"a TensorDictModule calls its module, but {module!r} of type {type(module)} is not callable. To call "
                "one of its methods, pass method=."
            )
        self.in_keys, self._kwarg_names = _arguments(in_keys, out_to_in_map)
        self.out_keys = key_list(out_keys, "out_keys")
        if "_" in self.in_keys:
            warnings.warn('the key "_" drops an output; as an input it is an ordinary key', stacklevel=2)
        check_inplace(inplace)
        self.inplace = inplace
        self.module = module
        self.method = method
        self.method_kwargs = dict(method_kwargs or {})
        self.strict = strict
        self._get_kwargs = dict(get_kwargs or {})

    @dispatch(auto_batch_size=False)
    def forward(
        self,
        tensordict: TensorDictBase,
        args: Any = None,
        *,
        tensordict_out: TensorCollection | None = None,
        **kwargs: Any,
    ) -> Any:
        """Read the inputs, call the module, write the outputs.

        Args:
            tensordict: the input.
            args: must be empty; surplus arguments of :class:`dispatch` raise.
            tensordict_out: where to write the results, whatever ``inplace`` says.
            **kwargs: passed to the module.

        Returns:
            The tensordict with the results.

        Raises:
            KeyError: an input is missing, with ``strict`` or if the module fails without it.
            ValueError: more tensors than inputs.
            RuntimeError: the module returns more or fewer results than there are ``out_keys``.
        """
        mode = _SKIP.get()
        if mode is not False and is_skipped(mode, tensordict, self.in_keys, self.out_keys):
            return tensordict
        if args is not None:
            raise ValueError(
                f"Got a non-empty list of extra arguments: {self._title()} takes a tensordict, or a tensor for each of "
                f"{self.in_keys}, but got one more, a {type(args).__name__}"
            )
        state = self.__dict__
        values = self._read(tensordict, state["_in_keys"])
        function = state["_modules"].get("module") or state["module"]
        if state["method"] is not None:
            function = getattr(function, state["method"])
        if state["method_kwargs"]:
            kwargs = {**state["method_kwargs"], **kwargs}
        names = state["_kwarg_names"]
        try:
            if names is not None:
                result = function(**dict(zip(names, values)), **kwargs)
            else:
                result = function(*values, **kwargs)
        except Exception as error:
            self._blame_missing(tensordict, values, error)
            raise
        if tensordict_out is None:
            tensordict_out = output_of(tensordict, state["inplace"] or False)
        out_keys = state["_all_out_keys"] if "_all_out_keys" in state else state["_out_keys"]
        if isinstance(result, Tensor) and len(out_keys) == 1:
            if out_keys[0] != "_":
                tensordict_out.set(out_keys[0], result)
            return tensordict_out
        for key, value in zip(out_keys, self._results(result, out_keys, values)):
            if key != "_":
                tensordict_out.set(key, value)
        return tensordict_out

    def _read(self, tensordict: TensorDictBase, in_keys: list[Any]) -> list[Any]:
        """The inputs, None for missing ones."""
        options = self._get_kwargs
        values = []
        for key in in_keys:
            value = tensordict.get(key, None, **options) if options else tensordict.get(key, None)
            if value is None:
                if self.strict:
                    raise self._missing(tensordict, [key])
            elif not isinstance(value, Tensor) and isinstance(value, TensorCollection):
                value = value._as_value()
            values.append(value)
        return values

    def _missing(self, tensordict: TensorDictBase, keys: list[Any]) -> KeyError:
        there = sorted(tensordict.keys(True, True), key=str)
        return KeyError(
            f"Some tensors that are necessary for the module call may not have been found in the input tensordict: "
            f"{self._title()} reads {self.in_keys}, but the {type(tensordict).__name__} has no {keys}; it has {there}"
        )

    def _blame_missing(self, tensordict: Any, values: list[Any], error: Exception) -> None:
        """Raise a KeyError for a missing input instead of the error that None caused in the module."""
        missing = [key for key, value in zip(self.in_keys, values) if value is None]
        if missing and not isinstance(tensordict, TracedEntries):
            raise self._missing(tensordict, missing) from error

    def _title(self) -> str:
        module = self._modules.get("module") or self.__dict__["module"]
        name = getattr(module, "__name__", None) or type(module).__name__
        return f"{type(self).__name__}({name})"

    def _results(self, result: Any, out_keys: list[Any], values: list[Any]) -> Any:
        count = len(out_keys)
        if isinstance(result, tuple):
            results: Any = result
        elif isinstance(result, (TensorCollection, Mapping)) and not getattr(result, "_is_non_tensor", False):
            results = _by_key(result, out_keys)
            if results is None:
                if count == 1:
                    return (result,)
                raise RuntimeError(
                    f"There are more out_keys than tensors: {self._title()} returned a {type(result).__name__} with "
                    f"the keys {sorted(result.keys(), key=str)} for the out_keys {out_keys}, but needs all of them"
                )
        elif type(result) is list and count > 1:
            results = result
        elif _is_proxy(result) and count > 1:
            return [result[place] for place in range(count)]
        else:
            results = () if result is None else (result,)
        if len(results) != count:
            missing = [key for key, value in zip(self.in_keys, values) if value is None]
            hint = f" It was called with None for {missing}, which the tensordict does not have." if missing else ""
            more = "more tensors than out_keys" if len(results) > count else "more out_keys than tensors"
            raise RuntimeError(
                f"There are {more}: {self._title()} returned {len(results)} for {count}, {out_keys}.{hint}"
            )
        return results

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            own = getattr(type(self), name, None)
            if isinstance(own, property):  # a property failed with its own AttributeError: raise that one
                return own.__get__(self)
            inner = self.__dict__.get("_modules", {}).get("module") or self.__dict__.get("module")
            if inner is not None and name not in ("_in_keys", "_out_keys") and hasattr(inner, name):
                return getattr(inner, name)
            wraps = "" if inner is None else f", nor has the {type(inner).__name__} that it wraps"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{wraps}") from None

    _shown = ("module",)


class TensorDictModuleWrapper(TensorDictModuleBase):
    """A module around another one: a subclass overrides what it changes.

    Missing keys and attributes are looked up on ``td_module``.

    Args:
        td_module: a module with ``in_keys`` and ``out_keys``.

    Example:
        >>> class TimesTen(TensorDictModuleWrapper):
        ...     def forward(self, tensordict):
        ...         tensordict = self.td_module(tensordict)
        ...         return tensordict.set("y", tensordict["y"] * 10)
        >>> module = TimesTen(TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"]))
        >>> module(TensorDict(x=torch.zeros(2)))["y"]
        tensor([10., 10.])
    """

    def __init__(self, td_module: TensorDictModuleBase) -> None:
        super().__init__()
        if not self.is_tdmodule_compatible(td_module):
            raise TypeError(
                f"{type(self).__name__} wraps a module with in_keys and out_keys, but a {type(td_module).__name__} "
                "has none: wrap it in a TensorDictModule first"
            )
        self.td_module = td_module

    @property
    def in_keys(self) -> list[NestedKey]:
        return self.td_module.in_keys

    @in_keys.setter
    def in_keys(self, value: object) -> None:
        self.td_module.in_keys = value

    @property
    def out_keys(self) -> list[NestedKey]:
        return self.td_module.out_keys

    @out_keys.setter
    def out_keys(self, value: object) -> None:
        self.td_module.out_keys = value

    @property
    def out_keys_source(self) -> list[NestedKey]:
        return self.td_module.out_keys_source

    def select_out_keys(self, *out_keys: NestedKey) -> Any:
        self.td_module.select_out_keys(*out_keys)
        return self

    def reset_out_keys(self) -> Any:
        self.td_module.reset_out_keys()
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.td_module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            own = getattr(type(self), name, None)
            if isinstance(own, property):  # a property failed with its own AttributeError: raise that one
                return own.__get__(self)
            inner = self.__dict__.get("_modules", {}).get("td_module")
            if inner is None:
                raise
            return getattr(inner, name)

    _shown = ("td_module",)


class WrapModule(TensorDictModuleBase):
    """A function from tensordict to tensordict as a module, for use in a :class:`TensorDictSequential`.

    Args:
        func: the function.
        inplace: write the entries of its result into the input, and return the input.
        in_keys: the keys that it reads, not checked, but used by a sequence. Default: none.
        out_keys: the keys that it writes, likewise.

    Example:
        >>> WrapModule(lambda td: td.reshape(-1))(TensorDict({"x": torch.ones(3, 4)}, [3, 4])).batch_size
        torch.Size([12])
    """

    def __init__(
        self,
        func: Callable[[Any], Any],
        *,
        inplace: bool = False,
        in_keys: list[NestedKey] | None = None,
        out_keys: list[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        if not callable(func):
            raise TypeError(f"WrapModule calls a function of a tensordict, but {func!r} cannot be called")
        self.func = func
        self.inplace = inplace
        self.in_keys = in_keys or []
        self.out_keys = out_keys or []

    def forward(self, data: Any) -> Any:
        """Call the function with ``data``."""
        result = self.func(data)
        return data.update(result) if self.inplace and result is not data else result

    _shown = ("func",)


class as_tensordict_module:
    """Make a function or method of tensors read and write a tensordict, like a :class:`TensorDictModule`; decorator.

    Args:
        in_keys: key or list of keys of its arguments (after ``self``).
        out_keys: key or list of keys of its results.

    Example:
        >>> @as_tensordict_module(in_keys="x", out_keys="y")
        ... def double(x):
        ...     return x * 2
        >>> double(TensorDict(x=1.0))["y"], double(x=torch.ones(2))
        (tensor(2.), tensor([2., 2.]))
    """

    def __init__(self, *, in_keys: NestedKey | list[NestedKey], out_keys: NestedKey | list[NestedKey]) -> None:
        self.in_keys = key_list(in_keys, "in_keys")
        self.out_keys = key_list(out_keys, "out_keys")

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(func).parameters)
        if names[:1] in (["self"], ["cls"]):

            @functools.wraps(func)
            def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
                return TensorDictModule(functools.partial(func, owner), self.in_keys, self.out_keys)(*args, **kwargs)

            return method
        module = TensorDictModule(func, self.in_keys, self.out_keys)

        @functools.wraps(func)
        def function(*args: Any, **kwargs: Any) -> Any:
            return module(*args, **kwargs)

        return function


# -- helpers ---------------------------------------------------------------------------------------------------


def _arguments(in_keys: Any, out_to_in_map: bool | None) -> tuple[list[Any], list[str] | None]:
    """Keys, and the names of the arguments if they are given by name."""
    if not isinstance(in_keys, Mapping):
        if out_to_in_map is not None:
            warnings.warn("out_to_in_map counts for a mapping of in_keys only, and these are a list", stacklevel=3)
        return key_list(in_keys, "in_keys"), None
    if out_to_in_map is False:
        keys, names = list(in_keys.keys()), list(in_keys.values())
    else:
        names, keys = list(in_keys.keys()), list(in_keys.values())
    if not all(isinstance(name, str) for name in names):
        direction = "{argument: key}" if out_to_in_map is not False else "{key: argument}"
        raise ValueError(f"in_keys={in_keys!r} must be {direction} with names of arguments (out_to_in_map turns it)")
    return key_list(keys, "in_keys"), names


def check_inplace(inplace: Any) -> None:
    if not any(inplace is allowed or inplace == allowed for allowed in INPLACE):
        raise ValueError(
            f"The only accepted values for inplace are `None`, `True`, `False` and `'empty'`; got inplace={inplace!r}"
        )


def output_of(tensordict: Any, inplace: Any) -> Any:
    """The target of the results for an input, see ``inplace`` of :class:`TensorDictModule`."""
    if inplace is True or inplace is None:
        return tensordict
    if inplace == "empty" or isinstance(tensordict, TracedEntries):
        return tensordict.empty()
    return TensorDict({})


def _by_key(result: Any, out_keys: list[Any]) -> list[Any] | None:
    """The results by key, if all are there."""
    values = []
    for key in out_keys:
        if key == "_":
            return None
        value = result.get(key, None)
        if value is None and isinstance(key, tuple) and not isinstance(result, TensorCollection):
            value = TensorDict(result).get(unravel_key(key), None)
        if value is None:
            return None
        values.append(value)
    return values


def _is_proxy(value: object) -> bool:
    return isinstance(value, Proxy)
