"""A device's memory that other processes write into, and how it is had back from those that have died.

    driver ── lend() ──► handle, counter = 1 ──► worker: opens the handle, lets go of it ──► counter = 0
       ▲                                              │
       └──── take_back(): counter -= 1 ◄──────────────┘ has died with it

torch gives memory that it has lent back to its allocator when its counter is 0, and the counter falls in the process
that has opened the handle, when its tensor goes. A process that is killed never comes to that: without `take_back` the
memory would be lost to the driver for as long as it lives.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Callable, Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
import torch.multiprocessing  # teaches ForkingPickler about tensors
import torch.multiprocessing.reductions as reductions
from torch import Tensor


class NotLent(RuntimeError):
    """A worker could not open memory of a device that it was lent.

    Attributes:
        begun: a chunk has been run, perhaps, by another worker that could.
    """

    begun = False


class Loan(NamedTuple):
    """What one receiver was lent."""

    device: Any
    handle: Any
    """Of the file that holds the counter."""
    offset: Any
    """Where in it."""


def lend(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...], Loan]:
    """What opens a tensor in one other process, its arguments, and the loan.

    Raises:
        RuntimeError: this system, or the allocator that torch was told to use, cannot lend memory.
    """
    build, fields = reductions.reduce_tensor(tensor.detach())
    names = inspect.signature(build).bind(*fields).arguments
    loan = Loan(names["storage_device"], names["ref_counter_handle"], names["ref_counter_offset"])
    return open_lent, (bytes(ForkingPickler.dumps((build, fields))),), loan


def open_lent(data: bytes) -> Tensor:
    """The tensor, in the process that it was lent to."""
    build, fields = pickle.loads(data)
    tensor: Tensor = build(*fields)
    return tensor


def take_back(loans: Iterable[Loan]) -> None:
    """These receivers are dead, or never got their handle: they will not let go of it themselves."""
    for loan in loans:
        if not loan.handle:  # of no bytes
            continue
        with contextlib.suppress(RuntimeError):  # no receiver is left, and nothing else depends on it
            torch.UntypedStorage._release_ipc_counter(loan.handle, loan.offset, device=loan.device)


_can_lend: dict[torch.device, bool] = {}


def can_lend(device: torch.device) -> bool:
    """Whether memory of `device` can be lent, as far as is known; some systems (WSL, Jetson) cannot.

    What can be lent may still be refused where it is opened, as in a container that keeps processes from looking at
    each other; `cannot_lend` notes that.
    """
    if device.type != "cuda":
        return False
    if device not in _can_lend:
        try:
            _, _, loan = lend(torch.zeros(1, device=device))
            take_back([loan])
            _can_lend[device] = True
        except RuntimeError:
            _can_lend[device] = False
    return _can_lend[device]


def cannot_lend(device: torch.device) -> None:
    """Memory of `device` was lent, and could not be opened."""
    _can_lend[device] = False
