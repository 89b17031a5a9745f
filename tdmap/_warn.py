"""Warnings that point at the line of the user's program, however deep in the engine they are found."""

from __future__ import annotations

import os

from tensordict_lite.callers import HERE, warn_caller

_OURS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, HERE)


def warn_user(message: str | Warning, category: type[Warning] = RuntimeWarning) -> None:
    """`warnings.warn` in the name of whoever called into these packages.

    Args:
        message: the text, or a warning, whose own class is its category.
        category: of a text.
    """
    warn_caller(message, category, _OURS)
