"""Writes ``generated.pyi``, the stub for type checkers and editors of the generated methods.

``python -m tensordict_lite.ops.stubs`` rewrites the file; ``--check`` only compares it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensordict_lite.ops.generated import BINARY, DTYPES, OPERATORS, PREDICATES, UNARY, GeneratedOps

STUB = Path(__file__).with_name("generated.pyi")

_HEADER = """# Written by `python -m tensordict_lite.ops.stubs`: change the tables in generated.py instead.
# fmt: off
# ruff: noqa: E501

import builtins
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.kernel import Kernel

UNARY: dict[str, tuple[str, str]]
PREDICATES: dict[str, str]
BINARY: dict[str, tuple[str, Callable[..., Tensor], bool, bool, bool]]
OPERATORS: dict[str, tuple[str, ...]]
DTYPES: dict[str, torch.dtype]

def inplace(
    foreach: Callable[..., Any] | None, each: Callable[..., Any], leaves: list[Tensor], *args: Any
) -> None: ...
def any_requires_grad() -> Callable[..., bool]: ...

class GeneratedOps(Kernel):
"""


def _method(name: str, function: Callable[..., Any]) -> str:
    signature = str(inspect.signature(function)).replace("'", "")
    # Inside the class these names are methods: float() and int() cast.
    signature = re.sub(r"\b(float|int|bool)\b", r"builtins.\1", signature)
    summary = (function.__doc__ or "").strip().splitlines()[0]
    return f'    def {name}{signature}:\n        """{summary}"""\n'


def render() -> str:
    """The text of the stub file."""
    names = [*UNARY, *(f"{name}_" for name in UNARY), *PREDICATES]
    names += [*BINARY, *(f"{name}_" for name, row in BINARY.items() if row[4])]
    names += DTYPES
    parts = [_method(name, getattr(GeneratedOps, name)) for name in names]
    for method, operators in OPERATORS.items():
        other = "" if method in UNARY else ", other: TensorCollection | Tensor | builtins.float"
        parts += [f"    def {name}(self{other}) -> Self: ...\n" for name in operators]
    return _HEADER + "".join(parts)


def main(arguments: list[str]) -> int:
    """Write the file, or compare it with ``--check``: returns 1 if it is out of date."""
    text = render()
    if "--check" in arguments:
        current = STUB.read_text() if STUB.exists() else ""
        if current != text:
            print(f"{STUB.name} is out of date: run `python -m {__spec__.name}`")
            return 1
        return 0
    STUB.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
