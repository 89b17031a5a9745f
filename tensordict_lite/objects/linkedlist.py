"""Values of a collection as a list that writes assigned items back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LinkedList(list):  # type: ignore[type-arg]
    """A list whose items are rows of a collection: ``values[0] = "z"`` writes row 0.

    ``td[key]`` returns one for objects that differ per row, ``td.tolist(as_linked_list=True)`` one for all rows. A
    method that moves items or changes their number changes only the list, and ends the link. If a write to the
    collection fails, the list is unchanged.

    Args:
        items: the values.
        td: the collection; without it this is an ordinary list.

    Example:
        >>> td = TensorDict({"names": ["a", "b", "c"]}, [3])
        >>> values = td["names"]
        >>> values[0] = "z"
        >>> td["names"], values.tolist()
        (LinkedList(['z', 'b', 'c']), ['z', 'b', 'c'])
    """

    def __init__(self, items: Any = (), *, td: Any = None) -> None:
        super().__init__(items)
        self._td = td

    def __setitem__(self, index: Any, value: object) -> None:
        if self._td is not None:
            changed = list(self)
            changed[index] = value
            if len(changed) == len(self):
                self._td[index] = value
            else:
                self._td = None
        super().__setitem__(index, value)

    def tolist(self) -> list[Any]:
        """The values as plain, unlinked lists."""
        return [value.tolist() if isinstance(value, LinkedList) else value for value in self]

    def __repr__(self) -> str:
        return f"LinkedList({super().__repr__()})"

    def __reduce__(self) -> Any:
        return type(self), (list(self),)

    def __copy__(self) -> LinkedList:
        return type(self)(self)

    def __delitem__(self, index: Any) -> None:
        self._td = None
        super().__delitem__(index)


def _unlinking(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def call(self: LinkedList, *args: Any, **kwargs: Any) -> Any:
        self._td = None
        return method(self, *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"LinkedList.{name}"
    call.__doc__ = f"As :meth:`list.{name}`; ends the link to the collection."
    return call


for _name in "append extend insert pop remove clear sort reverse __iadd__ __imul__".split():
    setattr(LinkedList, _name, _unlinking(_name))
