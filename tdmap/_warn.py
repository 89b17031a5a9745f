"""Warnings that point at the line of the user's program, however deep in the engine they are found."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

import tensordict_lite

_OURS = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in (__file__, tensordict_lite.__file__))


def warn_user(message: str | Warning, category: type[Warning] = RuntimeWarning) -> None:
    """`warnings.warn` in the name of whoever called into these packages.

    Args:
        message: the text, or a warning, whose own class is its category.
        category: of a text.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_ours(file: str) -> bool:
    return file == contextlib.__file__ or os.path.abspath(file).startswith(_OURS)
