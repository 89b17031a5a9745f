"""What a piece of bytecode refers to: globals, attributes of modules, and what it imports while it runs.

    helper.tools.scale(x)          LOAD_GLOBAL helper; LOAD_ATTR tools; LOAD_ATTR scale      chains["helper"]
    from helper import scale       IMPORT_NAME helper; IMPORT_FROM scale; STORE_FAST scale   imports
    import helper; helper.scale    IMPORT_NAME helper; STORE_FAST helper; LOAD_FAST helper; LOAD_ATTR scale

Names of variables are taken for the same in a function and in those inside it, which see each other's.
"""

from __future__ import annotations

import dis
import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

Attributes = tuple[str, ...]

_IMPORT = dis.opmap["IMPORT_NAME"]
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOCALS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT")
_SILENT = ("EXTENDED_ARG", "PUSH_NULL", "NOP", "CACHE", "RESUME", "PRECALL", "NOT_TAKEN")


class Import(NamedTuple):
    """A module that is imported while the code runs."""

    module: str
    """Its name; relative to the package of the code when `level` is above 0."""
    level: int
    attributes: Attributes
    """What of it is used; empty for all of it."""


class References(NamedTuple):
    """What a code object, and those inside it, refer to."""

    chains: dict[str, frozenset[Attributes]]
    """For each global name or variable of an outer function, the attributes that are asked of it, one after another."""
    imports: tuple[Import, ...]


def global_names(code: types.CodeType) -> set[str]:
    """Global names (and attributes, which do no harm) that a function and those inside it mention."""
    found = set(code.co_names)
    for inner in inner_codes(code):
        found |= global_names(inner)
    return found


def inner_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The functions, comprehensions and classes inside."""
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def imports_anything(code: types.CodeType) -> bool:
    """Whether the code, or one inside it, has an import statement; far cheaper to know than which."""
    return _IMPORT in code.co_code[::2] or any(map(imports_anything, inner_codes(code)))


@functools.lru_cache(maxsize=1024)
def references(code: types.CodeType) -> References:
    """What a code object refers to.

    Example:
        >>> def fn(x):
        ...     from math import floor
        ...     return floor(dis.opmap["NOP"] * x)
        >>> references(fn.__code__).imports, references(fn.__code__).chains["dis"]
        ((Import(module='math', level=0, attributes=('floor',)),), frozenset({('opmap',)}))
    """
    reader = _Reader()
    reader.read(code)
    chains = {name: frozenset(used) for name, used in reader.used.items() if name not in reader.bound}
    imports = {
        target._replace(attributes=(*target.attributes, *more))
        for name, targets in reader.bound.items()
        for target in targets
        for more in reader.used.get(name, {()})
    }
    return References(chains, tuple(sorted(imports)))


class _Reader:
    """Goes through the instructions of a code object and of those inside it."""

    def __init__(self) -> None:
        self.used: dict[str, set[Attributes]] = {}
        """Attributes that are asked of a name; `()` where it is used as it is."""
        self.bound: dict[str, set[Import]] = {}
        """Names that import statements give."""
        self._chain: list[str] = []
        self._importing: Import | None = None
        self._listed = False
        self._taken: Import | None = None

    def read(self, code: types.CodeType) -> None:
        """Add what a code object refers to."""
        constants: deque[Any] = deque((0, None), maxlen=2)
        for instruction in dis.get_instructions(code):
            name, argument = instruction.opname, instruction.argval
            if name in _SILENT:
                continue
            if name in _ATTRIBUTES and self._chain:
                self._chain.append(argument)
                continue
            self._end_chain()
            if name.startswith(_CONSTANTS):
                constants.append(argument)
            elif name == "IMPORT_NAME":
                level, listed = constants
                self._importing, self._listed = Import(argument, level, ()), bool(listed)
            elif name == "IMPORT_FROM" and self._importing is not None:
                # `import a.b as c` takes b from a, too: then c is the whole of a.b.
                taken = (argument,) if self._listed else ()
                self._taken = self._importing._replace(attributes=taken)
            else:
                self._step(name, argument if isinstance(argument, tuple) else (argument,))
        self._end_chain()
        for inner in inner_codes(code):
            self.read(inner)

    def _end_chain(self) -> None:
        if self._chain:
            self.used.setdefault(self._chain[0], set()).add(tuple(self._chain[1:]))
            self._chain = []

    def _step(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A load or a store; newer interpreters have instructions for two of them at once."""
        if name.startswith("STORE_"):
            self._store(str(arguments[0]))
            arguments = arguments[1:] if "LOAD" in name else ()
        elif not (name in _GLOBALS or name.startswith(_LOCALS)):
            if name == "POP_TOP" and self._listed:
                self._importing = None
            return
        for argument in arguments:
            self._end_chain()
            self._chain = [str(argument)]

    def _store(self, name: str) -> None:
        target = self._taken
        if target is None and self._importing is not None and not self._listed:  # `import a.b` gives a
            target = self._importing._replace(module=self._importing.module.partition(".")[0])
        if target is not None:
            self.bound.setdefault(name, set()).add(target)
            self._taken = None
            self._importing = self._importing if self._listed else None
