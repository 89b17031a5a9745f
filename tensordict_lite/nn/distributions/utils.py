"""Without public names; the module exists because the interface has one of this name."""

from __future__ import annotations

__all__: list[str] = []
