"""Has no public names; it is here because the interface has a module of this name."""

from __future__ import annotations

__all__: list[str] = []
