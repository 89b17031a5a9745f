"""Describe the objects that a page names.

A line ``::: package.name`` becomes a heading, the signature, the docstring and the documented members of a class.
``::: package.Class a b`` shows these members only (``__init__``: the signature of the class), ``::: package.Class *``
inherited ones as well.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from inspect import Parameter
from itertools import pairwise
from typing import Any

WIDTH = 90
"""Characters of a signature on one line."""

_LINE = re.compile(r"^(#+) .*$|^::: ([\w.]+)(?: (.+))?$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Example|Raises|Returns|Warns|Yields):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
_ITEM = re.compile(r"^([*\w][^:\n]*): ", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj):`(?:~(?:[^`]*\.)?)?([^`]+)`")


def expand(page: str) -> str:
    """Replace the lines ``:::`` of a page by Markdown, each with a heading one level below the heading above it.

    Raises:
        AttributeError: an object or a member that the page names does not exist.
    """
    level = 1

    def describe(line: re.Match[str]) -> str:
        nonlocal level
        heading, path, members = line.groups()
        if heading:
            level = len(heading)
            return line.group(0)
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        return "\n\n".join(_described(found, path, level + 1, (members or "").split()))

    return _LINE.sub(describe, page)


def _described(found: Any, path: str, level: int, wanted: list[str]) -> Iterator[str]:
    name = path.rpartition(".")[2]
    yield _heading(path, path, level)
    if not inspect.isclass(found):
        yield _code(f"def {_call(name, found)}")
        yield _prose(found.__doc__)
        return
    everything = not wanted or wanted == ["*"]
    yield _code(f"class {_call(name, found) if everything or '__init__' in wanted else name}")
    yield _prose(found.__doc__)
    members = {**_fields(found), **_methods(found, sorted(dir(found)) if wanted == ["*"] else list(vars(found)))}
    if missing := {*wanted} - {*members, "__init__", "*"}:
        raise AttributeError(f"the reference asks for members of {path} that it does not define: {sorted(missing)}")
    for member, (signature, text) in members.items():
        if text and not member.startswith("_") if everything else member in wanted and member != "__init__":
            yield _heading(member, f"{path}.{member}", level + 1)
            yield _code(signature)
            yield _prose(text)


def _heading(title: str, anchor: str, level: int) -> str:
    return f"{'#' * level} {title} {{#{anchor}}}"


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def _fields(cls: type) -> dict[str, tuple[str, str | None]]:
    """Signature and text of class attributes: a string that follows one in the source describes it."""
    try:
        body = getattr(ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0], "body", [])
    except OSError:  # the class has no source: a function made it
        return {}
    found: dict[str, tuple[str, str | None]] = {}
    for node, after in pairwise(body):
        match node, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = (ast.unparse(node), text)
    return found


def _methods(cls: type, names: list[str]) -> dict[str, tuple[str, str | None]]:
    """Signature and text of methods and properties."""
    found: dict[str, tuple[str, str | None]] = {}
    for name in names:
        value = inspect.getattr_static(cls, name)
        if isinstance(value, property):
            kind = getattr(value.fget, "__annotations__", {}).get("return")
            found[name] = (f"{name}: {kind}" if kind else name, value.__doc__)
        elif isinstance(value, classmethod | staticmethod):
            found[name] = (f"@{type(value).__name__}\ndef {_call(name, getattr(cls, name))}", value.__doc__)
        elif inspect.isroutine(value):
            found[name] = (f"def {_call(name, value, skip=1)}", value.__doc__)
    return found


def _call(name: str, fn: Callable[..., Any], skip: int = 0) -> str:
    """The signature without its first parameters; one parameter a line where it is long."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # the constructor of a builtin
        return name
    parameters = [*signature.parameters.values()][skip:]
    kinds = [parameter.kind for parameter in parameters]
    shown = [str(_as_written(parameter)) for parameter in parameters]
    if Parameter.KEYWORD_ONLY in kinds and Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(Parameter.KEYWORD_ONLY), "*")
    if Parameter.POSITIONAL_ONLY in kinds:
        shown.insert(kinds.count(Parameter.POSITIONAL_ONLY), "/")
    result = signature.return_annotation
    end = ")" if result is Parameter.empty or inspect.isclass(fn) else f") -> {_text(result)}"
    line = f"{name}({', '.join(shown)}{end}"
    return line if len(line) <= WIDTH else f"{name}(\n    " + ",\n    ".join(shown) + f",\n{end}"


class _Source:
    """Text that ``inspect`` shows as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _as_written(parameter: Parameter) -> Parameter:
    default, annotation = parameter.default, parameter.annotation
    if default is not Parameter.empty:
        default = _Source("..." if repr(default).startswith("<") else repr(default))  # sentinels show an address
    if annotation is not Parameter.empty:
        annotation = _Source(_text(annotation))
    return parameter.replace(default=default, annotation=annotation)


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _prose(docstring: str | None) -> str:
    return _SECTION.sub(_section, _ROLE.sub(r"`\1`", inspect.cleandoc(docstring or "")) + "\n")


def _section(match: re.Match[str]) -> str:
    title, body = match.group(1), textwrap.dedent(match.group(2)).strip()
    if title == "Example":
        body = _code(body, "pycon")
    elif title not in ("Returns", "Yields"):
        body = _ITEM.sub(r"- **`\1`** – ", body)
    return f"**{'Parameters' if title == 'Args' else title}**\n\n{body}\n\n"
