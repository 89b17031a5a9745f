"""What code refers to: of a code object by its instructions, of a module by its source.

    helper.tools.scale(x)          LOAD_GLOBAL helper; LOAD_ATTR tools; LOAD_ATTR scale      names["helper"]
    from helper import scale       IMPORT_NAME helper                                        imports
    self.rate                      LOAD_ATTR rate                                            reads

A module is read and never run: an import may stand inside a function for a reason.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import importlib.metadata
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

from tdmap.user_code import OWN_PACKAGES

EVERYTHING = "*"
"""Stands among the attributes that code reads where it may read any."""

_DYNAMIC = {"getattr", "vars", "eval", "exec", "__dict__", "asdict", "astuple", "deepcopy", "attrgetter"}
"""Names by which code reads attributes that it does not name."""

_NAMES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
_NAMES |= {"LOAD_FROM_DICT_OR_DEREF"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_SILENT = {"EXTENDED_ARG", "PUSH_NULL", "NOP", "CACHE", "RESUME", "PRECALL", "NOT_TAKEN"}
HAS_DOCSTRING = 0x4000000
"""A flag of code objects since Python 3.14."""


class Import(NamedTuple):
    """An import statement."""

    module: str
    level: int
    """Above 0, the module is relative to the package of the code."""
    names: tuple[str, ...]
    """What is taken from it, submodules perhaps."""

    def modules(self, package: str) -> Iterator[str]:
        """The modules that it may import, for code of a package."""
        above = package.split(".")[: package.count(".") + 2 - self.level] if self.level else []
        name = ".".join([*above, *([self.module] if self.module else [])])
        yield name
        yield from (f"{name}.{taken}" for taken in self.names if taken != "*")


class References(NamedTuple):
    """What a code object, and those inside it, refer to."""

    names: Mapping[str, frozenset[tuple[str, ...]]]
    """Global names and variables of outer functions; for each, chains of attributes that are asked of it."""
    reads: frozenset[str]
    """Names of attributes that are read of anything."""
    imports: frozenset[Import]


def inner_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The functions, comprehensions and classes inside."""
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def constants_of(code: types.CodeType) -> tuple[Any, ...]:
    """The constants of a code object, with None for a docstring."""
    found = code.co_consts
    if sys.version_info >= (3, 14):
        has = bool(code.co_flags & HAS_DOCSTRING)
    else:  # the first constant of a function is its docstring or None
        has = bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name[0] != "<" and isinstance(found[0], str)
    return (None, *found[1:]) if has else found


@functools.lru_cache(maxsize=1024)
def references(code: types.CodeType) -> References:
    """What a code object refers to.

    Example:
        >>> def fn(x):
        ...     from math import floor
        ...     return floor(dis.opmap["NOP"] * x.size)
        >>> found = references(fn.__code__)
        >>> found.imports, found.names["dis"], sorted(found.reads)
        (frozenset({Import(module='math', level=0, names=('floor',))}), frozenset({('opmap',)}), ['opmap', 'size'])
    """
    names: dict[str, set[tuple[str, ...]]] = {}
    reads: set[str] = set()
    imports: set[Import] = set()
    chain: list[str] = []
    last: deque[Any] = deque((0, None), maxlen=2)
    for step in (*dis.get_instructions(code), None):
        if step is not None and step.opname in _SILENT:
            continue
        if step is not None and step.opname in _ATTRIBUTES:
            reads.add(step.argval)
            chain += [step.argval] if chain else []
            continue
        if chain:
            names.setdefault(chain[0], set()).add(tuple(chain[1:]))
            chain = []
        if step is not None:
            if step.opname in _NAMES:
                chain = [step.argval]
            elif step.opname == "IMPORT_NAME":
                level, listed = last
                imports.add(Import(step.argval, level or 0, tuple(listed or ())))
            last.append(step.argval)
    for inner in map(references, inner_codes(code)):
        reads |= inner.reads
        imports |= inner.imports
        for name, chains in inner.names.items():
            names.setdefault(name, set()).update(chains)
    reads |= {EVERYTHING} if _DYNAMIC & (reads | names.keys()) else set()
    return References({name: frozenset(chains) for name, chains in names.items()}, frozenset(reads), frozenset(imports))


# -- modules -------------------------------------------------------------------------------------------


class ModuleSource(NamedTuple):
    """What the source of a module says."""

    digest: str
    """Of its statements, without layout, comments and docstrings."""
    reads: Mapping[str, frozenset[str]]
    """Names of attributes that are read: by classes of the module, and elsewhere (`""`)."""
    imports: frozenset[Import]


@functools.lru_cache(maxsize=1024)
def source_of(text: str) -> ModuleSource:
    """What the text of a module says.

    Raises:
        SyntaxError, ValueError: it is not Python.
    """
    tree = ast.parse(text)
    imports: set[Import] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                del node.body[0]
        elif isinstance(node, ast.Import):
            imports |= {Import(alias.name, 0, ()) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports.add(Import(node.module or "", node.level, tuple(alias.name for alias in node.names)))
    reads: dict[str, frozenset[str]] = {}
    for statement in tree.body:
        name = statement.name if isinstance(statement, ast.ClassDef) else ""
        reads[name] = reads.get(name, frozenset()) | _reads(statement)
    digest = hashlib.blake2b(ast.dump(tree).encode("utf-8", "surrogatepass"), digest_size=16)
    return ModuleSource(digest.hexdigest(), reads, frozenset(imports))


def _reads(statement: ast.stmt) -> frozenset[str]:
    """The names of attributes that a statement reads."""
    found = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and node.id in _DYNAMIC:
            found.add(EVERYTHING)
    return frozenset(found | ({EVERYTHING} if _DYNAMIC & found else set()))


def find_module(name: str) -> ModuleSpec | None:
    """Where a module is, found without importing those above it."""
    spec, path, done = None, None, ""
    for part in name.split("."):
        done = f"{done}.{part}" if done else part
        try:
            found = (finder.find_spec(done, path) for finder in sys.meta_path)
            spec = next((one for one in found if one is not None), None)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec


def text_of(name: str, spec: ModuleSpec) -> str | None:
    """The source of a module; None where there is none."""
    read = getattr(spec.loader, "get_source", None)
    try:
        text: str | None = None if read is None else read(name)
    except (ImportError, OSError, SyntaxError, UnicodeDecodeError):
        return None
    return text


def is_outdated(module: types.ModuleType, text: str) -> bool:
    """Whether a module was loaded before its source was changed: it has functions that the source has not."""
    known = _compiled(text)
    return any(_key(code) not in known for code in _loaded(module, module))


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> frozenset[Any]:
    try:
        waiting = [compile(text, "<module>", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return frozenset()
    known = set()
    while waiting:
        known.add(_key(code := waiting.pop()))
        waiting += inner_codes(code)
    return frozenset(known)


def _key(code: types.CodeType) -> Any:
    constants = [_key(one) if isinstance(one, types.CodeType) else type(one).__name__ for one in constants_of(code)]
    plain = [repr(one) for one in constants_of(code) if isinstance(one, (str, int, float, bytes, tuple))]
    return code.co_name, code.co_code, code.co_names, code.co_varnames, *constants, *plain


def _loaded(module: types.ModuleType, place: types.ModuleType | type) -> Iterator[types.CodeType]:
    """The code of the functions and methods of a module, as they are loaded."""
    for value in vars(place).values():
        if isinstance(value, types.FunctionType) and value.__code__.co_filename == getattr(module, "__file__", None):
            yield value.__code__
        elif isinstance(value, type) and value.__module__ == module.__name__ and place is module:
            yield from _loaded(module, value)


def package_of(module: str | None) -> tuple[str, str] | None:
    """Name and version of the installed package that a module belongs to; None for the standard library and our own."""
    top = (module or "").partition(".")[0]
    if not top or top in OWN_PACKAGES or top in sys.stdlib_module_names:
        return None
    return top, _version(top)


@functools.lru_cache(maxsize=256)
def _version(top: str) -> str:
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:  # it goes by another name
        pass
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    names = importlib.metadata.packages_distributions().get(top, ())
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names))) or "unknown"
