"""The names that a case may use: each library's public names, and the same fixtures built with either."""

import collections
import copy
import dataclasses
import importlib
import io
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

REFERENCE = "tensordict"
PROJECT = "tensordict_lite"

FIXTURES = ("td", "fl", "nm", "nt", "deep", "lz", "ds", "tall", "c", "o")

_TENSORCLASSES = """
@tensorclass
class C:
    x: torch.Tensor
    y: torch.Tensor = None
    s: str = "hi"

class D(TensorClass):
    x: torch.Tensor
    n: int = 3

class Auto(TensorClass["autocast"]):
    x: torch.Tensor
    n: int = 3
    s: str = "q"

class NoCast(TensorClass["nocast"]):
    x: torch.Tensor
    n: int = 3

class Frozen(TensorClass["frozen"]):
    x: torch.Tensor

class Only(TensorClass["tensor_only"]):
    x: torch.Tensor
    y: torch.Tensor = None

class Outer(TensorClass):
    inner: D
    label: str
    z: torch.Tensor | None = None

class State(TypedTensorDict):
    a: torch.Tensor
    n: TensorDict

class Wider(State):
    b: torch.Tensor
    c: torch.Tensor | None = None
"""
_CLASS_NAMES = {"C", "D", "Auto", "NoCast", "Frozen", "Only", "Outer", "State", "Wider", "c", "o"}


def spec(value: Any) -> Any:
    """Structure, shapes and dtypes without values, for results that are random or uninitialised."""
    return value.apply(lambda leaf: torch.zeros_like(leaf, device="meta"), device=None)


def write_through(view: Any, entries: dict[Any, Any] | None) -> None:
    """Use ``view`` as a context manager and set ``entries`` inside; None raises inside instead."""
    with view as inner:
        if entries is None:
            raise ZeroDivisionError
        for key, value in entries.items():
            inner[key] = value


def delete_through(view: Any, key: Any) -> None:
    """Use ``view`` as a context manager and delete ``key`` inside."""
    with view as inner:
        del inner[key]


def text_with(options: Any, value: Any) -> str:
    """The repr of ``value`` under a print-options context manager."""
    with options:
        return repr(value)


def locked_through(td: Any, operation: str, entries: dict[Any, Any]) -> list[bool]:
    """The lock state inside and after ``with td.lock_()`` or ``with td.unlock_()``."""
    states = []
    with getattr(td, operation)() as inner:
        states += [inner is td, td.is_locked]
        for key, value in entries.items():
            td[key] = value
    return [*states, td.is_locked]


def define(source: str) -> Callable[[dict[str, Any]], Any]:
    """``define(source)(globals())`` runs a class statement, where making the class is the point."""

    def run(scope: dict[str, Any]) -> Any:
        made = dict(scope)
        exec(compile(source, "<definition>", "exec", dont_inherit=True), made)
        return made["B"]

    return run


def within(context: Any, call: Callable[[], Any]) -> Any:
    """What ``call`` gives inside a context manager."""
    with context:
        return call()


_HELPERS = {f.__name__: f for f in (within, define, spec, write_through, delete_through, text_with, locked_through)}
_classes: dict[str, dict[str, Any]] = {}


def load(name: str) -> ModuleType:
    """Import one of the two libraries."""
    return importlib.import_module(name)


def build(library: str, used: set[str]) -> dict[str, Any]:
    """A fresh namespace with the library's names and only those fixtures that ``used`` mentions."""
    lib = load(library)
    scope: dict[str, Any] = {name: getattr(lib, name) for name in dir(lib) if not name.startswith("_")}
    modules = scope.get("nn")  # an edge, which may be deleted
    scope.update(
        lib=lib, TD=lib.TensorDict, torch=torch, np=np, copy=copy, pickle=pickle, io=io,
        dataclasses=dataclasses, collections=collections, F=torch.nn.functional, __name__="differential",
        Mask=torch.tensor([True, False, True]), nn=torch.nn, mods=modules, dist=torch.distributions,
        Mod=getattr(modules, "TensorDictModule", None), Seq=getattr(modules, "TensorDictSequential", None),
        Params=scope.get("TensorDictParams"),
    )  # fmt: skip
    scope.update(_HELPERS)
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` formats its stack each time
    if used & _CLASS_NAMES:
        scope.update(_tensorclasses(library, scope))
    for name in FIXTURES:
        if name in used:
            scope[name] = _FIXTURES[name](scope)
    return scope


def _tensorclasses(library: str, scope: dict[str, Any]) -> dict[str, Any]:
    """The tensorclasses of ``library``, made once: making one takes the reference a tenth of a second."""
    if library not in _classes:
        made = dict(scope)
        # dont_inherit: this file's annotations import must not turn the classes' annotations into strings.
        exec(compile(_TENSORCLASSES, "<tensorclasses>", "exec", dont_inherit=True), made)
        _classes[library] = {name: made[name] for name in _CLASS_NAMES if name[0].isupper()}
    return _classes[library]


def _td(s: dict[str, Any]) -> Any:
    nested = s["TD"]({"c": torch.ones(3, 2)}, [3])
    return s["TD"]({"a": torch.arange(12.0).view(3, 4), "b": torch.arange(3), "n": nested}, [3])


def _fl(s: dict[str, Any]) -> Any:
    nested = s["TD"]({"c": torch.tensor([[0.5, -1.5], [2.5, 0.25], [-0.75, 4.0]])}, [3])
    leaves = {"a": torch.linspace(-2, 3, 12).view(3, 4), "b": torch.tensor([0.25, 1.0, 2.0])}
    return s["TD"]({**leaves, "n": nested}, [3])


def _nm(s: dict[str, Any]) -> Any:
    nested = s["TD"]({"c": torch.ones(2, 3, 5)}, [2, 3, 5])
    return s["TD"]({"a": torch.arange(24.0).view(2, 3, 4), "n": nested}, [2, 3], names=["x", "y"])


def _nt(s: dict[str, Any]) -> Any:
    return s["TD"]({"a": torch.ones(3), "s": "hello", "o": {1, 2}}, [3])


def _deep(s: dict[str, Any]) -> Any:
    nested = {"q": {"r": torch.arange(4).view(2, 2)}, "e": {}}
    return s["TD"]({"p": nested, "z": torch.zeros(2, dtype=torch.bool)}, [2])


def _lz(s: dict[str, Any]) -> Any:
    def row(i: int) -> Any:
        return s["TD"]({"a": torch.ones(2, i + 1), "b": torch.ones(2) * i, f"k{i}": torch.zeros(2)}, [2])

    return s["lazy_stack"]([row(i) for i in range(3)], 0)


def _ds(s: dict[str, Any]) -> Any:
    def row(i: int) -> Any:
        return s["TD"]({"a": torch.ones(2) * i, "n": s["TD"]({"c": torch.ones(2, 4)}, [2])}, [2])

    return s["lazy_stack"]([row(i) for i in range(3)], 0)


def _tall(s: dict[str, Any]) -> Any:
    return s["lazy_stack"]([s["TD"]({"a": torch.arange(2 * n).view(n, 2)}, [n]) for n in (2, 4)], 0)


def _c(s: dict[str, Any]) -> Any:
    return s["C"](torch.ones(3, 4), batch_size=[3])


def _o(s: dict[str, Any]) -> Any:
    return s["Outer"](s["D"](torch.ones(3, 4), 5, batch_size=[3]), "label", batch_size=[3])


_FIXTURES = {
    "td": _td, "fl": _fl, "nm": _nm, "nt": _nt, "deep": _deep, "lz": _lz, "ds": _ds, "tall": _tall,
    "c": _c, "o": _o,
}  # fmt: skip
