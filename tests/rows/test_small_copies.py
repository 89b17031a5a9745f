"""Rows of few bytes are chosen and copied by threads of the caller; those of more, by the workers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tdmap
from tdmap import col, tuning
from tensordict_lite import TensorDict

from .conftest import bits, make

CALLS: dict[str, Callable[..., Any]] = {
    "filter by formula": lambda data, **options: tdmap.filter(data, col("x") % 3 == 0, **options),
    "filter by function": lambda data, **options: tdmap.filter(data, lambda td: td["x"] % 3 == 0, **options),
    "shuffle": lambda data, **options: tdmap.shuffle(data, 7, **options),
    "drop_duplicates": lambda data, **options: tdmap.drop_duplicates(data, "x", **options),
}


class LastKind(tdmap.events.Callback):
    def on_job_started(self, event: Any) -> None:
        self.executor = event.executor


def run(name: str, data: TensorDict, **options: Any) -> tuple[str, Any]:
    last = LastKind()
    return bits(CALLS[name](data, callbacks=[last], **options)), last.executor


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_who_copies_changes_no_row(name: str, kind: str, tmp_path: Any) -> None:
    data = make(5000) if kind == "memory" else make(5000).memmap(tmp_path / "data")
    with tuning.use(gather_bytes=1 << 12, light_bytes=0, near_bytes=0):
        wanted = run(name, data, num_workers=2)
    with tuning.use(gather_bytes=1 << 12, light_bytes=0):
        assert run(name, data, num_workers=2) == (wanted[0], "thread")
        assert run(name, data, num_workers=5) == (wanted[0], "process")
        with tdmap.WorkerPool(2) as pool:
            assert run(name, data, pool=pool) == (wanted[0], "thread")
    assert wanted[1] == "process"


def test_a_worker_starts_no_threads() -> None:
    def inner(chunk: TensorDict) -> torch.Tensor:
        last = LastKind()
        tdmap.shuffle(TensorDict({"x": torch.arange(50_000)}, [50_000]), 1, num_workers=2, callbacks=[last])
        return torch.full((len(chunk),), last.executor != "thread")

    found = tdmap.map(torch.arange(2), inner, num_workers=1, chunksize=1)
    assert found.all()
