"""What the tests of row-changing operations share: data of every kind, and ways to compare and to disturb."""

import os
import signal
from typing import Any

import torch

import tdmap
from tensordict_lite import TensorDict, tensorclass
from tensordict_lite.views import is_leaf_nontensor

ROWS = 200

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2},
    {"num_workers": 3},
    {"num_workers": 2, "executor": "thread"},
    {"num_workers": 1, "mp_start_method": "forkserver"},
]


@tensorclass
class Sample:
    """Rows with a type of their own."""

    x: torch.Tensor
    label: torch.Tensor


def make(rows: int = ROWS) -> TensorDict:
    """Every dtype and shape that makes a difference: odd widths, no bytes at all, nesting, objects."""
    generator = torch.Generator().manual_seed(3)
    data = TensorDict(
        {
            "x": torch.arange(rows),
            "odd": torch.randint(0, 255, (rows, 7), generator=generator, dtype=torch.uint8),
            "half": torch.randn(rows, 3, generator=generator).half(),
            "flag": torch.rand(rows, generator=generator) > 0.5,
            "complex": torch.randn(rows, 2, generator=generator, dtype=torch.complex64),
            "nothing": torch.zeros(rows, 0),
            "nested": {"y": torch.randn(rows, 2, 3, generator=generator)},
            "same": "for all",
        },
        [rows],
    )
    data["word"] = [f"row {number}" for number in range(rows)]
    return data


def bits(data: Any) -> dict[Any, Any]:
    """Everything that a dataset holds, as plain values."""
    if isinstance(data, torch.Tensor):
        return {(): (data.dtype, tuple(data.shape), data.resolve_conj().contiguous().view(torch.uint8).tolist())}
    found: dict[Any, Any] = {}
    for key, value in data.items(True, True, is_leaf_nontensor):
        if isinstance(value, torch.Tensor):
            raw = value.detach().as_subclass(torch.Tensor).resolve_conj().contiguous().reshape(-1).view(torch.uint8)
            found[key] = (value.dtype, tuple(value.shape), raw.numpy().tobytes())
        else:
            found[key] = value.tolist() if hasattr(value, "tolist") and value.batch_size else value.data
    return found


class Killer(tdmap.events.Callback):
    """Sends SIGKILL to a worker, or to this very process, once the n-th job of an operation has got going."""

    def __init__(self, job: int, driver: bool = False) -> None:
        self.job = job
        self.driver = driver
        self.seen: list[int] = []
        self.killed = False
        self.deaths = 0

    def on_job_started(self, event: tdmap.events.JobStarted) -> None:
        self.seen.append(event.job)

    def on_lease_done(self, event: tdmap.events.LeaseDone) -> None:
        if not self.killed and len(self.seen) == self.job + 1:
            self.killed = True
            assert self.driver or event.worker > 0, "the job runs in the caller: 0 would end its process group"
            os.kill(os.getpid() if self.driver else event.worker, signal.SIGKILL)

    def on_worker_died(self, event: tdmap.events.WorkerDied) -> None:
        self.deaths += event.signal == signal.SIGKILL
