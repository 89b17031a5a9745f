"""Checks of arguments."""

from __future__ import annotations


def require_integer(name: str, value: object, least: int) -> None:
    """Raise ValueError unless the value of an argument is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}: got {value!r}.")
