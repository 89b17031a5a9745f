"""Functions over the leaves: ``apply``, ``apply_`` and ``named_apply``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class ApplyOps:
    """Functions over the leaves of one or several trees."""

    __slots__ = ()

    def apply(self, fn: Callable[..., Any], *others: Any, **kwargs: Any) -> Self | None:
        """Maps the leaves."""
        if not others and not kwargs:
            return self._map_leaves(fn)
        raise NotImplementedError("landing")
