"""What must not change: bits of results, public names, and folders that earlier code has written.

`python -m tests.frozen` records all of it anew. A changed record is a changed promise: its commit says why.
"""

import hashlib
import importlib
import inspect
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import numpy as np
import torch

import tdmap
from tensordict_lite import TensorDict
from tests.cells.kinds import KINDS
from tests.cells.operations import Operation, all_operations, doubled, entry, only_ones

HERE = Path(__file__).parent
DIGESTS = HERE / "digests.json"
PUBLIC = HERE / "public.txt"
FOLDERS = HERE / "folders"

WORKERS = (1, 3)

MODULES = ("tdmap", "tdmap.errors", "tdmap.events", "tdmap.reducers", "tdmap.datasets", "tensordict_lite")
"""Modules whose names are public."""

WRITTEN = ("memory", "text", "nested", "tensorclass", "lazy", "no rows", "one row")
"""Kinds of datasets that a folder holds,"""

ROWS = 3
"""and how many rows of each."""


def noisy(chunk: Any) -> TensorDict:
    """Numbers from each of the global random streams."""
    x = entry(chunk, "x")
    numpy = torch.from_numpy(np.random.rand(len(x)))
    python = torch.tensor([random.random() for _ in range(len(x))], dtype=torch.float64)
    return doubled(chunk).update({"t": torch.rand(len(x)), "n": numpy, "p": python})


def heads(chunk: Any) -> Any:
    return torch.rand(len(entry(chunk, "x"))) < 0.5


def drawn(chunk: Any) -> Any:
    return only_ones(chunk)[: int(torch.randint(1, 3, ()))]


SEEDED: dict[str, Callable[..., Any]] = {
    "map, seed": lambda d, **o: tdmap.map(d, noisy, seed=5, chunksize=4, **o),
    "filter, seed": lambda d, **o: tdmap.filter(d, heads, seed=5, chunksize=4, **o),
    "flat_map, seed": lambda d, **o: tdmap.flat_map(d, drawn, seed=5, chunksize=4, **o),
    "map_iter, seed": lambda d, **o: torch.cat([*tdmap.map_iter(d, noisy, seed=5, chunksize=4, **o)]),
    "pipeline, seed": lambda d, **o: torch.cat(
        [*tdmap.Pipeline(d, seed=5).shuffle(1).map(noisy).shuffle(2, buffer=7).batch(4).iter(epoch=2, **o)]
    ),
}
"""Operations that draw random numbers."""


def frozen_operations() -> dict[str, Operation]:
    return {**all_operations(), **{name: Operation(call, list) for name, call in SEEDED.items()}}


def digest(operation: Operation, kind: str, workers: int, folder: Path) -> str:
    """The result of an operation, values and order, as a few letters; or the type of its error."""
    try:
        result = operation.read(operation.call(KINDS[kind](folder), num_workers=workers))
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return hashlib.sha256(repr(result).encode()).hexdigest()[:16]


def public_names() -> str:
    """A line for each public name, with its signature."""
    lines = []
    for module in map(importlib.import_module, MODULES):
        for name in sorted(getattr(module, "__all__", None) or _own_names(module)):
            value = getattr(module, name)
            lines.append(f"{module.__name__}.{name}{_signature(value)}")
            if inspect.isclass(value) and module.__name__.startswith("tdmap"):
                methods = sorted(m for m, v in vars(value).items() if callable(v) and not m.startswith("_"))
                lines += [f"{module.__name__}.{name}.{m}{_signature(getattr(value, m))}" for m in methods]
    return "\n".join(lines) + "\n"


def _own_names(module: ModuleType) -> list[str]:
    values = vars(module).items()
    return [n for n, v in values if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__]


def _signature(value: Any) -> str:
    """The signature, in the same words under every Python; none of the alias of a type."""
    try:
        signature = "" if get_origin(value) is not None else str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    return re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", re.sub(r" at 0x[0-9a-f]+", "", signature))


def load_digests() -> dict[str, str]:
    return json.loads(DIGESTS.read_text())  # type: ignore[no-any-return]
