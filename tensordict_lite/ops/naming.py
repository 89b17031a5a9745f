"""Names of batch dimensions: given, changed, and in a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict_lite.kernel import Kernel

if TYPE_CHECKING:
    from typing import Self

__all__ = ["NameOps"]


class NameOps(Kernel):
    """Mixin of the operations on names."""

    __slots__ = ()

    def refine_names(self, *names: Any) -> Self:
        """Names for unnamed batch dimensions, in place; ``...`` stands for the ones to leave alone.

        Raises:
            RuntimeError: a dimension already has another name.
        """
        current: list[str | None] = self.names
        wanted = list(names)
        if Ellipsis in wanted:
            at = wanted.index(Ellipsis)
            fill = len(current) - (len(wanted) - 1)
            wanted[at : at + 1] = current[at : at + fill]
        if len(wanted) != len(current):
            raise RuntimeError(f"refine_names: got {len(wanted)} names for {len(current)} batch dimensions")
        for old, new in zip(current, wanted):
            if old is not None and new != old:
                raise RuntimeError(
                    f"refine_names: cannot coerce TensorDict names {current} with {list(names)}: {old!r} is already set"
                )
        self._assign_names(wanted)
        return self._unchanged()

    def _renamed(self, names: tuple[Any, ...], rename_map: dict[str, str]) -> list[str | None]:
        current: list[str | None] = self.names
        if rename_map:
            if names:
                raise ValueError("rename() takes either positional names or a mapping, not both")
            missing = [name for name in rename_map if name not in current]
            if missing:
                raise ValueError(
                    f"Some names to be renamed were not part of the tensordict names: {list(rename_map)} vs {current}."
                )
            return [rename_map.get(name, name) if name is not None else None for name in current]
        if len(names) == 1 and names[0] is None:
            return [None] * len(current)
        return list(names)

    def rename(self, *names: Any, **rename_map: str) -> Self:
        """A shallow copy with other dimension names, positional or as ``old="new"``."""
        out = self.clone(recurse=False)
        out._assign_names(self._renamed(names, rename_map))
        return out

    def rename_(self, *names: Any, **rename_map: str) -> Self:
        """Other dimension names, in place."""
        self._assign_names(self._renamed(names, rename_map))
        return self._unchanged()
