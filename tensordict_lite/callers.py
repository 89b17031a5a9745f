"""Warnings that point at the line of the user's program that called into the package."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn_caller(
    message: str | Warning, category: type[Warning] = UserWarning, folders: Sequence[str] = (HERE,)
) -> None:
    """``warnings.warn`` at the line that called into a package.

    Args:
        message: the text, or a warning instance.
        category: category of a text.
        folders: folders of the package, each ending in a separator; their files are not the caller.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_below(frame.f_code.co_filename, tuple(folders)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_below(file: str, folders: tuple[str, ...]) -> bool:
    return file == contextlib.__file__ or os.path.abspath(file).startswith(folders)
