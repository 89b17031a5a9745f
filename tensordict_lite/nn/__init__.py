"""Parameters of modules as collections."""

from __future__ import annotations

__all__: list[str] = []
