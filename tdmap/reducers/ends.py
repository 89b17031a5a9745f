"""The first and the last row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tdmap.reducers.base import Key, Reducer, values_of


class First(Reducer[Any]):
    """The value of an entry in the first row, in its own dtype.

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

    def init(self) -> Tensor | None:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        values = values_of(chunk, self.key)
        return self.merge(state, values[self.at].clone() if values.shape[0] else None)

    def merge(self, a: Any, b: Any) -> Any:
        return b if a is None else a

    def finish(self, state: Any) -> Tensor:
        if state is None:
            raise ValueError(f"{self!r} of zero rows is not defined")
        value: Tensor = state
        return value


class Last(First):
    """The value of an entry in the last row, in its own dtype."""

    at = -1

    def merge(self, a: Any, b: Any) -> Any:
        return a if b is None else b
