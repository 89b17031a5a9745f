"""Functions that refer to themselves, or to each other in a circle, as bytes.

dill looks for the globals of a function in the functions that it refers to, and in theirs, and does not come back from
a circle. Here each function is made first, empty, and gets what it refers to afterwards, when the pickle knows it
already. Functions of one module share one namespace, as they do where they come from.
"""

from __future__ import annotations

import dis
import marshal
import sys
import types
from collections.abc import Iterator
from typing import Any

import dill

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")


class Namespaces:
    """The globals of the functions in one pickle: a dictionary for each module, filled when it is read."""

    def __init__(self) -> None:
        self._made: dict[int, dict[str, Any]] = {}

    def reduce(self, fn: types.FunctionType) -> Any:
        """How to pack a function; NotImplemented for those that the reader can import."""
        if _is_importable(fn):
            return NotImplemented
        space = self._made.setdefault(id(fn.__globals__), {"__name__": fn.__globals__.get("__name__", "__main__")})
        cells = fn.__closure__ or ()
        contents = []
        for cell in cells:
            try:
                contents.append((cell.cell_contents,))
            except ValueError:  # not assigned yet
                contents.append(())  # type: ignore[arg-type]
        names = {name: fn.__globals__[name] for name in _global_names(fn.__code__) if name in fn.__globals__}
        state = (
            names,
            contents,
            fn.__defaults__,
            fn.__kwdefaults__,
            fn.__dict__,
            (fn.__qualname__, fn.__module__, fn.__doc__),
        )
        return make_function, (fn.__code__, space, fn.__name__, len(cells)), state, None, None, fill_function


def make_function(code: types.CodeType, space: dict[str, Any], name: str, cells: int) -> types.FunctionType:
    """A function that knows nothing yet."""
    return types.FunctionType(code, space, name, None, tuple(types.CellType() for _ in range(cells)))


def fill_function(fn: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give it what it refers to."""
    names, contents, defaults, kwdefaults, attributes, (qualname, module, doc) = state
    fn.__globals__.update(names)
    for cell, content in zip(fn.__closure__ or (), contents):
        if content:
            cell.cell_contents = content[0]
    fn.__defaults__, fn.__kwdefaults__ = defaults, kwdefaults
    fn.__dict__.update(attributes)
    fn.__qualname__, fn.__module__, fn.__doc__ = qualname, module, doc


def _is_importable(fn: types.FunctionType) -> bool:
    found: Any = sys.modules.get(fn.__module__ or "") if fn.__module__ != "__main__" else None
    for part in fn.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is fn


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


if not hasattr(types.CodeType, "co_lnotab"):  # Python 3.15: dill up to 0.4.1 reads it from every code object

    @dill.register(types.CodeType)  # type: ignore[untyped-decorator]
    def _pack_code(pickler: Any, code: types.CodeType) -> None:
        pickler.save_reduce(marshal.loads, (marshal.dumps(code),), obj=code)
