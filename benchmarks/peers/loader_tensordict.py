"""torch's DataLoader over a collection of narrow rows: this project's beside the package tensordict's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks._harness import Benchmark, Seconds, Stopwatch
from benchmarks._pictures import Pictures

BATCH = 256


def as_it_is(batch: Any) -> Any:
    """What `__getitems__` gives is a batch already."""
    return batch


def add_cases(bench: Benchmark, work: Pictures, against: str) -> Callable[[], None]:
    """Add both libraries, with the identity for a collate function and with torch's default."""
    for library in ("tensordict_lite", "tensordict"):
        entries = {"x": torch.randn(work.rows, 16), "label": torch.arange(work.rows)}
        data = importlib.import_module(library).TensorDict(entries, [work.rows])
        for name, collate_fn in (("identity", as_it_is), ("default", None)):
            loader: DataLoader[Any] = DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=collate_fn)

            def run(loader: DataLoader[Any] = loader) -> Seconds:
                rows = 0
                with Stopwatch() as watch:
                    for batch in loader:
                        rows += len(batch["label"])
                assert rows == work.rows
                return watch.seconds

            options: dict[str, Any] = {}
            if library == "tensordict":
                options = {"kind": "peer", "against": f"DataLoader(tensordict_lite), {name} collate"}
            bench.add(f"DataLoader({library}), {name} collate", run, units=-(-work.rows // BATCH), **options)
    return lambda: None
