"""The case format: one line of Python is one case.

A case is written exactly as a user would type it, for instance ``td.get("a")`` or ``td[0] = 1; td["b"]``.
What is compared is the value of the last expression (if the last statement is one) and, always, the final
state of every fixture that the line names, so ``td.update({"a": x})`` also checks what happened to ``td``.
Fixtures and names are those of ``namespace.py``; an indented line continues the one above. A trailing comment
relaxes a case, and nothing else may:

``#! any error``  the reference fails by accident (an error from deep inside); any exception will do.
``#! may work``   the reference refuses; this project may answer instead.
``#! close``      the reference rounds twice: floating-point values may differ in their last digits.
``#! keys only``  values are random or uninitialised: compare structure, shapes and dtypes.
"""

import ast
import dataclasses
import re

_RELAXATIONS = ("any error", "may work", "close", "keys only")


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: its source (also its name), the family it belongs to, and how strictly it is compared."""

    family: str
    source: str
    relaxation: str | None = None

    def names(self) -> set[str]:
        """The identifiers that the source mentions."""
        return {node.id for node in ast.walk(ast.parse(self.source)) if isinstance(node, ast.Name)}


def parse_cases(family: str, text: str) -> list[Case]:
    """Read one case a line; blank lines and whole-line comments separate, indented lines continue."""
    cases = []
    for line in re.sub(r"\n[ \t]+", " ", text).splitlines():
        if not line.strip() or line.startswith("# "):
            continue
        source, _, relaxation = line.partition("  #! ")
        if relaxation and relaxation not in _RELAXATIONS:
            raise ValueError(f"unknown relaxation {relaxation!r} in {line!r}; known: {_RELAXATIONS}")
        ast.parse(source)
        cases.append(Case(family, source.strip(), relaxation or None))
    return cases
