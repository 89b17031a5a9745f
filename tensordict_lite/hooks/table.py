"""The table of torch functions on collections: the kernel looks them up, ``torch_function.py`` fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HANDLED: dict[Callable[..., Any], Callable[..., Any]] = {}


def implements(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the meaning of torch functions on collections."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            HANDLED[function] = handler
        return handler

    return register
