"""What an operation takes, read from the text of its module: importing the module would import torch.

tdmap.ops.sort:sort ──► def sort(ctx, data, key, ...)    parameters, annotations and defaults, as text
                    ├─► Args: ...                        what the docstring says of each
                    └─► **options: Unpack[Options]       the attributes of `Options` and of its bases
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

OPTION_TYPES = ("tdmap.run.options", "tdmap.execution")
"""Modules of the typed dictionaries of options."""


class Parameter(NamedTuple):
    """A parameter of an operation, or one of its options."""

    name: str
    annotation: str
    default: str | None
    """As it is written; None for a parameter that must be given, `"..."` for an option of a typed dictionary."""
    help: str


class Signature(NamedTuple):
    """What an operation does, and takes."""

    help: str
    """The docstring before its arguments."""
    parameters: dict[str, Parameter]


@functools.cache
def signature_of(place: str) -> Signature:
    """Read the signature of an operation.

    Args:
        place: `module:function` or `module:Class.method`.

    Example:
        >>> found = signature_of("tdmap.ops.sort:sort")
        >>> found.help.partition(".")[0]
        'Sort rows by key'
        >>> found.parameters["descending"].default, found.parameters["chunksize"].annotation
        ('False', 'int | None')
    """
    module, _, name = place.partition(":")
    node = _definition(module, name)
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    told = _told(module, name, "Args")
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    found: dict[str, Parameter] = {}
    for given, default in [*zip(positional, defaults), *zip(arguments.kwonlyargs, arguments.kw_defaults)]:
        if given.arg not in ("self", "ctx"):
            value = None if default is None else ast.unparse(default)
            annotation = ast.unparse(given.annotation) if given.annotation else ""
            found[given.arg] = Parameter(given.arg, annotation, value, told.get(given.arg, ""))
    options = arguments.kwarg and arguments.kwarg.annotation
    taken = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(options)) if options else None
    found |= {one.name: one for one in _options(taken[1])} if taken else {}
    return Signature(_sections(ast.get_docstring(node) or "")[""], found)


def _options(name: str) -> Iterator[Parameter]:
    for module in OPTION_TYPES:
        node = _definition(module, name)
        if isinstance(node, ast.ClassDef):
            told = _told(module, name, "Attributes")
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    known = line.target.id
                    yield Parameter(known, ast.unparse(line.annotation), "...", told.get(known, ""))
            for base in node.bases:
                yield from _options(ast.unparse(base))


@functools.cache
def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    text = None if spec is None or spec.loader is None else spec.loader.get_source(module)  # type: ignore[attr-defined]
    return ast.parse(text or "")


def _definition(module: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """The function, class or method of that name, which comes after its overloads."""
    body: list[ast.stmt] = _tree(module).body
    node = None
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        node = next((one for one in reversed(body) if isinstance(one, kinds) and one.name == part), None)
        if node is None:
            return None
        body = node.body
    return node


def _told(module: str, name: str, section: str) -> dict[str, str]:
    """What a docstring says of each argument; where it says "as `other`", what is said there."""
    node = _definition(module, name)
    text = _sections((ast.get_docstring(node) if node else "") or "").get(section, "")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        entry = re.match(r"([*\w]+(?:, [*\w]+)*): (.*)", line)
        if entry:
            names, line = entry[1].replace("*", "").split(", "), entry[2]
            found |= dict.fromkeys(names, "")
        for one in names:
            found[one] += f"{line}\n"
    above = name.rpartition(".")[0]
    for one, said in found.items():
        other = re.match(r"as `(\w+)`\.", said)
        if other and other[1] != name:
            found[one] = _told(module, f"{above}.{other[1]}" if above else other[1], section).get(one, said)
    return found


def _sections(text: str) -> dict[str, str]:
    """The sections of a docstring by their titles, without their indent; what comes before them has the title ""."""
    found: dict[str, list[str]] = {"": []}
    title = ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z]\w+:", line):
            title = line[:-1]
            found[title] = []
        else:
            found[title].append(line)
    return {title: inspect.cleandoc("\n".join(["", *lines])) for title, lines in found.items()}
