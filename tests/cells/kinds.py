"""Kinds of datasets: the same rows, held in every way that an operation must accept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tdmap
from tensordict_lite import LazyStackedTensorDict, Ragged, TensorDict, is_non_tensor, lazy_stack, tensorclass
from tensordict_lite.base import TensorCollection

ROWS = 24

Row = dict[str, Any]
"""One row as plain Python: values by their key, nested keys joined by dots."""


@tensorclass
class Sample:
    x: torch.Tensor
    k: torch.Tensor
    f: torch.Tensor


def plain(rows: int = ROWS) -> TensorDict:
    """`x` is unique and out of order, `k` repeats."""
    x = torch.arange(rows) * 7 % max(rows, 1)
    return TensorDict({"x": x, "k": x % 3, "f": x.double() / 4}, [rows])


def _with(data: TensorDict, **entries: Any) -> TensorDict:
    return data.update(entries)


def _sharded(folder: Path) -> Any:
    third = ROWS // 3
    for number in range(3):
        plain()[number * third : (number + 1) * third].memmap(folder / f"part{number}")
    return tdmap.open([folder / f"part{number}" for number in range(3)])


def _ragged(folder: Path) -> TensorDict:
    """Text, bytes, and numbers, some rows of which are empty."""
    rows = plain()["x"].tolist()
    return _with(
        plain(),
        w=Ragged.from_list([f"w{row}" for row in rows]),
        b=Ragged.from_list([bytes([row]) * (row % 3) for row in rows]),
        v=Ragged.from_list([torch.arange(row % 4) + row for row in rows]),
    )


def _uneven(folder: Path) -> Any:
    """A lazy stack of members of different lengths, some of which are empty."""
    return lazy_stack([_with(row, v=torch.arange(int(row["x"]) % 4) + row["x"]) for row in plain().unbind(0)])


def _tensorclass(folder: Path) -> Any:
    data = plain()
    return Sample(x=data["x"], k=data["k"], f=data["f"], batch_size=[ROWS])


KINDS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: plain(),
    "mapped": lambda folder: plain().memmap(folder / "mapped"),
    "text": lambda folder: _with(plain(), w=[f"w{row}" for row in plain()["x"].tolist()]),
    "ragged": _ragged,
    "nested": lambda folder: _with(plain(), n=TensorDict({"y": plain()["x"] * 2, "z": {"u": plain()["f"]}}, [ROWS])),
    "tensorclass": _tensorclass,
    "lazy": lambda folder: lazy_stack([plain()[row] for row in range(ROWS)]),
    "uneven": _uneven,
    "sharded": _sharded,
    "no rows": lambda folder: plain(0),
    "one row": lambda folder: plain(1),
}
"""Each makes its dataset, with files below a folder of its own where it has any."""


def rows_of(data: Any) -> list[Row]:
    """The rows of a dataset, in order, with every entry."""
    if isinstance(data, LazyStackedTensorDict):
        return [{key: values[0] for key, values in columns_of(row.unsqueeze(0)).items()} for row in data.unbind(0)]
    columns = columns_of(data)
    return [{key: values[row] for key, values in columns.items()} for row in range(len(data))]


def columns_of(data: Any) -> dict[str, list[Any]]:
    """The values of each entry, as lists."""
    if not isinstance(data, TensorCollection):
        data = data.to_tensordict()
    found = {}
    for key in data.keys():
        entry = data.get(key)
        if isinstance(entry, TensorCollection) and not is_non_tensor(entry):
            found |= {f"{key}.{inner}": values for inner, values in columns_of(entry).items()}
        else:
            found[key] = _values(entry)
    return found


def _values(column: Any) -> list[Any]:
    values = column if isinstance(column, list) else column.tolist()
    return [value.tolist() if isinstance(value, torch.Tensor) else value for value in values]
