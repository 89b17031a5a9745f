"""The first and the last row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tdmap.data.objects import objects_of
from tdmap.reducers.base import Key, Reducer, entry_of, values_of


class First(Reducer[Any]):
    """The value of an entry in the first row: a tensor of its own dtype, a string or another object.

    Args:
        key: entry; ``None`` when rows are plain tensors.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> import tdmap
        >>> data = TensorDict({"x": torch.tensor([3, 1, 2])}, [3])
        >>> ends = tdmap.reduce(data, {"first": First("x"), "last": Last("x")}, num_workers=0)
        >>> int(ends["first"]), int(ends["last"])
        (3, 2)
    """

    at = 0

    def __init__(self, key: Key | None = None) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def init(self) -> tuple[Any, ...]:
        return ()

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        row = slice(self.at, None if self.at else 1)
        entry = None if self.key is None or isinstance(chunk, Tensor) else entry_of(chunk, self.key)
        if entry is None or isinstance(entry, Tensor):
            found = list(values_of(chunk, self.key)[row])
        else:
            found = objects_of(entry[row]) if len(entry) else []
        return self.merge(state, tuple(value.clone() if isinstance(value, Tensor) else value for value in found))

    def merge(self, a: Any, b: Any) -> Any:
        return a or b

    def finish(self, state: Any) -> Any:
        if not state:
            raise ValueError(f"{self!r} of zero rows is not defined")
        return state[0]


class Last(First):
    """The value of an entry in the last row: a tensor of its own dtype, a string or another object."""

    at = -1

    def merge(self, a: Any, b: Any) -> Any:
        return b or a
