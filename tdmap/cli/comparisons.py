"""Comparisons of an entry with a value, as `tdmap filter` takes them: `'label == 3'`, `'day >= 2024-06-01'`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdmap.cli.describe import time_types
from tdmap.cli.requests import entry_of, refuse

if TYPE_CHECKING:
    from tdmap.data.kinds import Data

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>|\bin\b")


def comparison(text: str, data: Data, path: Path) -> Any:
    """The formula of `KEY OPERATOR VALUE`; None if the text says something else. Leaves with why it cannot be met."""
    import torch

    import tdmap

    whole = text.strip()
    found = _OPERATOR.search(whole, 1)
    if found is None or found.end() == len(whole):
        return None
    name, sign, said = whole[: found.start()].strip(), found[0], whole[found.end() :].strip()
    key = entry_of(name, data, path)
    kind = time_types(data).get(".".join(key) if isinstance(key, tuple) else key)
    try:
        value = ast.literal_eval(said)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if kind is None:
            also = "; a combination of comparisons is a function" if re.search(r"\band\b|\bor\b|[&|]", said) else ""
            refuse(f"{said!r} in {text!r} must be a number, a text in quotes, or a list of these{also}")
        value = said
    if sign == "in" and not isinstance(value, (list, tuple, set)):
        refuse(f"{text!r}: `in` needs a list, such as [1, 2]")
    leaf = data.get(key)
    if getattr(leaf, "kind", None) == "tensor":
        refuse(f"{name} has rows of different lengths: a comparison needs one value a row")
    if kind is not None:
        try:
            sign, value = _of_times(sign, value, kind, said)
        except TypeError as error:
            refuse(f"{text!r}: of {name}, {error}")
    if isinstance(leaf, torch.Tensor):
        if leaf.dim() != 1:
            refuse(f"{name} has rows of shape {list(leaf.shape[1:])}: a comparison needs one value a row")
        if any(isinstance(one, str) for one in (value if sign == "in" else [value])):
            refuse(f"{name} is {str(leaf.dtype).removeprefix('torch.')}, and {said} is a text")
    text_of = {"str": str, "bytes": bytes}.get(getattr(leaf, "kind", ""))
    if text_of is not None and not all(isinstance(one, text_of) for one in (value if sign == "in" else [value])):
        refuse(f"{name} is {leaf.kind}, and {said} is not {'text' if text_of is str else 'bytes'}")
    column = tdmap.col(key)
    return column.isin(value) if sign == "in" else _OPERATORS[sign](column, value)


def _of_times(sign: str, value: Any, kind: Any, said: str) -> tuple[str, Any]:
    """A comparison with times as one with the numbers of a column.

    Raises:
        TypeError: a value is no such time, or no row can be equal to it.
    """
    from tdmap.times import beside

    several = isinstance(value, (list, tuple, set))
    found = [
        beside("==" if several else sign, one, kind) if isinstance(one, str) else (sign, one)
        for one in (value if several else [value])
    ]
    numbers = [one[1] for one in found if one is not None]
    if several:
        return sign, numbers
    if found[0] is None:
        raise TypeError(f"its numbers are {kind.name}, and none of them is {said}: compare with < or >")
    return found[0]
