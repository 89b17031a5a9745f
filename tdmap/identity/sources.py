"""What a function imports while it runs, told from the source of the module.

Such a module may not be loaded here, and to load it is not for us to do: the import may stand inside the function for
a reason. So its source is read, never run, and always, whether it is loaded or not: the answer must not depend on what
else a program does. Of a module, the statements count that what is used there is made of, without their layout.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from tdmap.identity.references import Attributes, Import
from tdmap.user_code import OWN_PACKAGES, is_installed_file, is_users_own


class Sources:
    """Collects parts of modules.

    Args:
        parts: gets a digest for each name of a module that is reached, as `imported module.name`.
        packages: gets the versions of the installed packages that are reached.
    """

    def __init__(self, parts: dict[str, str], packages: dict[str, str]) -> None:
        self.parts = parts
        self.packages = packages
        self._met: set[tuple[str, str, Attributes]] = set()

    def add(self, wanted: Import, package: str | None) -> None:
        """Follow an import of a module that belongs to `package`."""
        name = wanted.module
        if wanted.level:
            above = (package or "").split(".")
            above = above[: len(above) - wanted.level + 1]
            name = ".".join([*above, *([name] if name else [])])
        self._follow(name, wanted.attributes)

    def _follow(self, name: str, attributes: Attributes) -> None:
        if not is_users_own(name):
            self._note(name)
            return
        spec = _find(name)
        if spec is None:
            self.parts.setdefault(f"imported {name}", "there is no such module")
        elif spec.origin is not None and is_installed_file(spec.origin):
            self._note(name)
        else:
            self._follow_own(name, spec, attributes)

    def _note(self, name: str) -> None:
        package = package_of(name)
        if package is not None:
            self.packages[package[0]] = package[1]

    def _follow_own(self, name: str, spec: ModuleSpec, attributes: Attributes) -> None:
        text = _source(name, spec)
        statements = None if text is None else _statements(text)
        if statements is not None and attributes and attributes[0] in statements:
            self._take(name, spec, statements, attributes[0], attributes[1:])
        elif attributes and _find(f"{name}.{attributes[0]}") is not None:
            self._follow(f"{name}.{attributes[0]}", attributes[1:])
        elif statements is not None:  # all of it, or something that is made while it runs
            for used in statements:
                self._take(name, spec, statements, used, ())
        elif f"imported {name}" not in self.parts:  # no Python: a module in C, or a namespace
            self.parts[f"imported {name}"] = _digest_file(spec.origin)

    def _take(
        self, name: str, spec: ModuleSpec, statements: dict[str, list[ast.stmt]], used: str, attributes: Attributes
    ) -> None:
        """Add the statements that give a module a name, and what they use in turn."""
        if (name, used, attributes) in self._met:
            return
        self._met.add((name, used, attributes))
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        for imported in _imports_of(statements[used], used):
            self.add(imported._replace(attributes=imported.attributes + attributes), package)
        key = f"imported {name}.{used}"
        if key in self.parts:
            return
        self.parts[key] = _digest(" ".join(ast.dump(statement) for statement in statements[used]))
        for statement in statements[used]:
            for other, chains in _chains(statement).items():
                if other in statements and other != used:
                    for chain in chains:
                        self._take(name, spec, statements, other, chain)


def _find(name: str) -> ModuleSpec | None:
    """Where a module is, found without importing those above it."""
    path: Any = None
    spec = None
    done = ""
    for part in name.split("."):
        done = f"{done}.{part}" if done else part
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = (finder(done, path) for finder in finders if finder is not None)
        try:
            spec = next((one for one in found if one is not None), None)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and done != name:
            return None
    return spec


def _source(name: str, spec: ModuleSpec) -> str | None:
    read = getattr(spec.loader, "get_source", None)
    try:
        text: str | None = None if read is None else read(name)
    except (ImportError, OSError, SyntaxError, UnicodeDecodeError):
        return None
    return text


@functools.lru_cache(maxsize=64)
def _statements(text: str) -> dict[str, list[ast.stmt]] | None:
    """The statements of a module by the names that they give; under `""` those that give none."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    found: dict[str, list[ast.stmt]] = {}
    for number, statement in enumerate(tree.body):
        if number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # the docstring
        for name in set(_given(statement)) or {""}:
            found.setdefault(name, []).append(statement)
    return found


def _given(statement: ast.AST) -> Iterator[str]:
    """The names that a statement gives to the namespace that it stands in."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    if isinstance(statement, ast.Name) and not isinstance(statement.ctx, ast.Load):
        yield statement.id
    if not isinstance(statement, ast.Lambda):
        for child in ast.iter_child_nodes(statement):
            yield from _given(child)


def _chains(node: ast.AST) -> dict[str, set[Attributes]]:
    """The names that are used anywhere in a node, each with the attributes that are asked of it, one after another."""
    found: dict[str, set[Attributes]] = {}

    def visit(node: ast.AST, attributes: Attributes) -> None:
        if isinstance(node, ast.Name):
            found.setdefault(node.id, set()).add(attributes)
        elif isinstance(node, ast.Attribute):
            visit(node.value, (node.attr, *attributes))
        else:
            for child in ast.iter_child_nodes(node):
                visit(child, ())

    visit(node, ())
    return found


def _imports_of(statements: list[ast.stmt], name: str) -> Iterator[Import]:
    """The modules that statements import under a name."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        yield Import(alias.name if alias.asname else name, 0, ())
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) in (name, "*"):
                        taken = () if alias.name == "*" else (alias.name,)
                        yield Import(node.module or "", node.level, taken)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _digest_file(path: str | None) -> str:
    if path is None:
        return "a namespace"
    try:
        with open(path, "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return "cannot be read"


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
