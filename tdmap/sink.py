"""A sink: where the results of a job go, seen from the driver. `tdmap/output/` has one for each kind of output."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from tdmap.data.sizes import result_bytes
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch
from tdmap.job import Job
from tdmap.memory.links import PageLocker
from tdmap.plan import ChunkPlan


class Kind(enum.IntEnum):
    """What became of the result of a chunk."""

    WRITTEN = 0
    """It was copied into the output."""
    NONE = 1
    """The function returned None."""
    PARCEL = 2
    """It travels to the driver."""
    FAILED = 3
    """There is none: the function raised on every row, and rows that raise are skipped."""
    OBJECTS = 4
    """Its tensors were copied into the output; its entries that are no tensors travel to the driver."""

    @property
    def travels(self) -> bool:
        """Whether a value of each chunk goes to the driver: a chunk is not safe before it is there."""
        return self in (Kind.PARCEL, Kind.OBJECTS)


def returned_none(where: str) -> OutputMismatch:
    """The error for a function that returns nothing."""
    return OutputMismatch(
        f"{where}: the function returned None, and out is a folder that results go to. "
        "Return a TensorDict; or, to change the dataset itself, pass out=data."
    )


T = TypeVar("T")

Allocate: TypeAlias = Callable[[torch.dtype, torch.Size], torch.Tensor]
"""Makes a tensor that the workers of a job can write into."""


class Taken(Protocol):
    """Hands results on."""

    def take(self, chunk: int) -> Any:
        """The result of `chunk`, which is not kept any longer."""
        ...


class Demands(NamedTuple):
    """What a sink asks of those who run its job."""

    ordered: Taken | None = None
    """Results are handed to a consumer in order, taken from here, instead of being kept."""
    ahead: int | None = None
    """Then: chunks that may be under way or done before they are wanted; None leaves it to the engine."""
    max_lease: int | None = None
    """Chunks that a worker may be given at once: results that travel take memory until they are used."""
    first_alone: bool = False
    """The first result says what all others must look like."""
    in_place: bool = False
    """Results go back into the rows that they came from."""
    locker: PageLocker | None = None
    """Page-locks the slots of results, which go on to a device."""


class Sink(Generic[T]):
    """Takes the results of a job, chunk by chunk, in any order.

    A worker writes into the sink's memory through `writer`; what it could not write reaches `accept` as a value.

    Attributes:
        writer: how workers write results; None as long as (or if) they send them instead.
    """

    writer: RowWriter | None = None

    def demands(self, plan: ChunkPlan) -> Demands:
        """What the sink asks of those who run its job."""
        return Demands()

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        """Called once, before the first chunk."""

    @abstractmethod
    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        """The chunks `start..stop` are safe; `values` holds one result each when they travelled."""

    @abstractmethod
    def result(self) -> T:
        """What the job gives; called once, after the last chunk."""

    def abandon(self) -> None:
        """Called instead of `result` when the job fails: what was accepted, and has no place yet, gets there or not."""

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled, by a result that comes next."""

    def value_bytes(self, value: object) -> int:
        """Bytes of a result that travels."""
        return result_bytes(value)

    def lasts(self, job: Job) -> bool:
        """Whether another session of the call finds what the job has left."""
        return False
