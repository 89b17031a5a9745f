"""Fixtures: a dataset with columns that are no tensors, and its rows as plain tuples, which are the oracle."""

import pytest
import torch

from tensordict_lite import TensorDict

ROWS = 13


def table(rows: int = ROWS) -> TensorDict:
    """An integer, strings of which some are equal, and nested ones that differ: all of it fits a folder."""
    return TensorDict(
        {
            "x": torch.arange(rows),
            "name": [f"n{i % 5}" for i in range(rows)],
            "meta": {"word": [f"w{i}" for i in range(rows)]},
        },
        [rows],
    )


def full_table(rows: int = ROWS) -> TensorDict:
    """The same with bytes and mutable objects, which only memory holds."""
    data = table(rows)
    data["blob"] = [bytes([i]) for i in range(rows)]
    data["thing"] = [{"i": i} for i in range(rows)]
    return data


def rows_of(data: TensorDict) -> list[tuple]:
    """The rows as tuples of plain values."""
    keys = ["x", "name", ("meta", "word"), "blob", "thing"]
    known = data.keys(True, True)
    found = []
    for row in data.unbind(0):
        values = [row[key] if key in known else None for key in keys]
        found.append((int(values[0]), *values[1:]))
    return found


@pytest.fixture(params=[0, 2], ids=["serial", "process"])
def workers(request) -> int:
    return request.param


@pytest.fixture(params=[3, 0, None], ids=["chunks", "rows", "default"])
def chunksize(request):
    return request.param
