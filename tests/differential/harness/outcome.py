"""Evaluate a case against one library, and compare the two outcomes."""

import ast
import builtins
import dataclasses
import warnings
from typing import Any

from tests.differential.harness import namespace
from tests.differential.harness.cases import Case
from tests.differential.harness.snapshot import Leaf, NonTensor, Tree, differences, snapshot


@dataclasses.dataclass
class Outcome:
    """What a case gave: a description of its value and of the fixtures it names, or the exception."""

    value: Any = None
    fixtures: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: Exception | None = None


def evaluate(case: Case, library: str) -> Outcome:
    """Run ``case`` against ``library`` on fresh fixtures; its exceptions become part of the outcome."""
    used = case.names()
    tree = ast.parse(case.source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scope = namespace.build(library, used)
        try:
            exec(compile(tree, "<case>", "exec"), scope)
            value = eval(compile(ast.Expression(last.value), "<case>", "eval"), scope) if last else None
            # A row that asks for the truth of an object's identity is over before the fixtures are described.
            described = snapshot(value)
            fixtures = {name: snapshot(scope[name]) for name in namespace.FIXTURES if name in used}
        except Exception as error:
            return Outcome(error=error)
    return Outcome(described, fixtures)


def difference(expected: Outcome, found: Outcome, relaxation: str | None = None) -> list[str]:
    """The lines that say how ``found`` departs from ``expected``; empty when the two agree."""
    if expected.error is not None:
        return _error_difference(expected.error, found, relaxation)
    if found.error is not None:
        return [f"raised {_describe(found.error)}, the reference returned {_brief(expected.value)}"]
    if relaxation == "keys only":
        expected, found = _without_values(expected), _without_values(found)
    rtol = 1e-6 if relaxation == "close" else 0.0
    lines = differences(expected.value, found.value, rtol=rtol)
    for name in expected.fixtures:
        lines += differences(expected.fixtures[name], found.fixtures[name], name, rtol)
    return lines


def _error_difference(error: Exception, found: Outcome, relaxation: str | None) -> list[str]:
    if relaxation == "may work":
        return []
    if found.error is None:
        return [f"returned {_brief(found.value)}, the reference raised {_describe(error)}"]
    if relaxation == "any error" or isinstance(found.error, _public_bases(error)):
        return []
    return [f"raised {_describe(found.error)}, the reference raised {_describe(error)}"]


def _public_bases(error: Exception) -> type[Exception]:
    """The nearest public exception type: a caller can only catch what has a public name.

    A RecursionError counts as a RuntimeError: under Python 3.12, the reference runs into it where it refuses objects.
    """
    for cls in type(error).__mro__[isinstance(error, RecursionError) :]:
        public = getattr(builtins, cls.__name__, None) is cls or not cls.__name__.startswith("_")
        if public and cls.__module__.partition(".")[0] != namespace.REFERENCE:
            return cls
    return Exception


def _without_values(outcome: Outcome) -> Outcome:
    return Outcome(_blank(outcome.value), {k: _blank(v) for k, v in outcome.fixtures.items()})


def _blank(value: Any) -> Any:
    if isinstance(value, Leaf):
        return Leaf(value.kind, value.value.to("meta"), value.requires_grad)
    if isinstance(value, Tree):
        return Tree(value.kind, value.attributes, {k: _blank(v) for k, v in value.entries.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(_blank(item) for item in value)
    return value


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def _brief(value: Any) -> str:
    if isinstance(value, Tree):
        return f"a {value.kind} with keys {list(value.entries)}"
    if isinstance(value, (Leaf, NonTensor)):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."


def compare_case(case: Case, library: str = namespace.PROJECT) -> list[str]:
    """Run ``case`` against the reference and against ``library``; the differences, in words."""
    return difference(evaluate(case, namespace.REFERENCE), evaluate(case, library), case.relaxation)
