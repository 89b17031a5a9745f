"""Datasets for random programs, and their rows as plain values: the oracle knows nothing of chunks and workers."""

import json
from pathlib import Path
from typing import Any

import torch

from tensordict_lite import NonTensorData, TensorDict, is_non_tensor, is_tensor_collection, tensorclass

DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}

COLUMNS = ("vector", "picture", "scalar", "word", "thing", "nested", "record", "constant")
"""What a dataset may have beside its numbers."""

LAYOUTS = ("memory", "mapped", "strided", "slice", "locked")


@tensorclass
class Record:
    """A nested tensorclass."""

    x: torch.Tensor
    name: str


def build(spec: dict[str, Any], folder: Path) -> TensorDict:
    """The dataset that a description asks for.

    Args:
        spec: `rows`, `inner` (further batch dimensions), `columns`, `dtype` of the scalar column, `layout`.
        folder: for files.
    """
    rows, inner = spec["rows"], tuple(spec["inner"])
    total = {"strided": 2 * rows, "slice": rows + 5}.get(spec["layout"], rows)
    data = _table(max(total, 1), inner, spec)[:total]  # words of no rows at all have no shape
    if spec["layout"] == "strided":
        data = data[::2]
    elif spec["layout"] == "slice":
        data = data[3 : 3 + rows]
    elif spec["layout"] == "mapped":
        data.memmap(folder / "source")
        data = TensorDict.load_memmap(folder / "source")
    elif spec["layout"] == "locked":
        data = data.clone().lock_()
    return data


def _table(rows: int, inner: tuple[int, ...], spec: dict[str, Any]) -> TensorDict:
    shape = (rows, *inner)
    number = torch.arange(rows).view(rows, *[1] * len(inner)).expand(shape).clone()
    data = TensorDict({"id": number}, shape)
    for column in spec["columns"]:
        if column == "vector":
            data["vector"] = (number.unsqueeze(-1) * torch.tensor([1.0, -0.5, 3.0])).float()
        elif column == "picture":
            data["picture"] = (number.view(*shape, 1, 1) * 7 % 256).expand(*shape, 4, 5).to(torch.uint8)
        elif column == "scalar":
            data["scalar"] = (number % 2).to(DTYPES[spec["dtype"]])
        elif column == "word":
            data["word"] = _by_row(number, lambda i: f"w{i * 37 % 11}")
        elif column == "thing":
            data["thing"] = _by_row(number, lambda i: None if i % 4 == 3 else (i, f"{i}"))
        elif column == "nested":
            data["nested"] = TensorDict({"x": number.int() * 2, "word": _by_row(number, lambda i: f"n{i}")}, shape)
        elif column == "record":
            data["record"] = Record(x=number.float() / 4, name=_by_row(number, lambda i: f"r{i}"), batch_size=shape)
        elif column == "constant":
            data["constant"] = NonTensorData("the same", batch_size=shape)
    return data


def _by_row(number: torch.Tensor, make: Any) -> list[Any]:
    def values(part: Any) -> Any:
        return [values(item) for item in part] if isinstance(part, list) else make(part)

    return values(number.tolist())


# -- rows as plain values ----------------------------------------------------------------------------------------------

Row = dict[str, Any]


def rows_of(data: Any) -> list[Row]:
    """The rows of a dataset: a mapping of dotted keys to values that compare bit by bit."""
    if isinstance(data, torch.Tensor):
        return [{"": value_of(row)} for row in data.unbind(0)]
    return [dict(_entries(row, "")) for row in data.unbind(0)]


def _entries(node: Any, prefix: str) -> Any:
    for key in node.keys():
        value = node.get(key)
        if is_non_tensor(value):
            yield prefix + key, ("object", repr(value.tolist()))
        elif is_tensor_collection(value):
            yield from _entries(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            yield prefix + key, value_of(value)
        else:  # a field of a tensorclass, which gives the object itself
            yield prefix + key, ("object", repr(_plain(value, tuple(node.batch_size))))


def value_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor as dtype, shape and bytes."""
    plain = tensor.detach().contiguous().reshape(-1)
    data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return (str(tensor.dtype), tuple(tensor.shape), data)


def number_of(row: Row) -> int:
    """The value of the column `id`, which is the same in all of a row."""
    dtype, shape, data = row["id"]
    assert dtype == "torch.int64"
    return int.from_bytes(data[:8], "little", signed=True)


def integers(values: list[int]) -> list[tuple[Any, ...]]:
    """What `value_of` gives for int64 scalars."""
    return [value_of(torch.tensor(value)) for value in values]


def _plain(value: Any, size: tuple[int, ...]) -> Any:
    """What a field of a tensorclass gives, as lists: it may be one object for all elements of its batch size."""
    if not size:
        return value
    items = value if isinstance(value, list) else [value] * size[0]
    return [_plain(item, size[1:]) for item in items]


def describe(program: dict[str, Any]) -> str:
    """A program as one line of JSON."""
    return json.dumps(program, sort_keys=True)
