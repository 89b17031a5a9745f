"""Sizes, shares and waits that the engine chooses: one immutable object a call.

`Execution` reads `current()` once, when a call begins, and hands the object down: to workers, to the driver, and to the
functions that workers get with a job. Readers of files and logs have no execution, and read it when they are made. What
is set later does not change a call that runs, in whichever thread its results are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tuning:
    """What decides the cost of a call. It changes no row; float states of groups may be summed in another order.

    Sizes are in bytes, times in seconds, shares between 0 and 1.
    """

    # Workers

    lease_seconds: float = 0.03
    """Work that a worker is given at a time: long beside the message, short beside the end of a job."""

    start_seconds: float = 30.0
    """With a timeout: time that a worker has to begin what it was given, besides."""

    grace_seconds: float = 0.3
    """After an error or Ctrl-C: time that workers have to end their chunk before they are killed."""

    let_go_seconds: float = 2.0
    """Time that workers have to let go of a device's memory that they were lent. Later they do it unheard."""

    turn_seconds: float = 60.0
    """Time that seeded work in this process waits for other seeded work, which may itself be waiting for it."""

    leave_seconds: float = 5.0
    """Time that an abandoned iteration waits for chunks that run in threads. They end unheard then."""

    exit_seconds: float = 10.0
    """Time that a worker on a Ray cluster has to end by itself before it is killed."""

    answer_seconds: float = 60.0
    """`tdmap doctor`: a worker that has not answered after so long does not start."""

    # Rows that move

    available_memory: int | None = None
    """Memory for the rows of a dataset. None asks the system when it matters."""

    copy_bytes: int = 32 << 20
    """Copied at a time from a file of results to its place: a worker that dies loses no more."""

    gather_bytes: int = 2 << 20
    """Of the result, fetched at a time: enough to hide what a chunk costs, and it stays in the cache."""

    near_bytes: int = 128 << 20
    """Rows of so many bytes are chosen and copied by threads of the caller."""

    bucket_bytes: int = 16 << 20
    """The least that is read and written in one piece where rows go over the disk."""

    read_bytes: int = 32 << 20
    """Of an array, or of the samples of an archive, read from a foreign file at a time."""

    text_bytes: int = 4 << 20
    """Of CSV and JSON Lines, parsed at a time; more where a row is longer. The first block tells the types."""

    # Runs that can be resumed

    log_seconds: float = 0.1
    """Time between two notes of what is done: work that a killed program loses. States that take long to save are
    saved less often."""

    sync_seconds: float = 5.0
    """Time between two waits for the disk: work that a power failure loses."""

    # Operations by key

    light_bytes: int = 4 << 20
    """Work on no more is done in the caller: workers would cost more than they save."""

    partition_bytes: int = 4 << 20
    """Of a range of keys, which is sorted in the cache of a core. With more than 256 ranges they grow."""

    heap_bytes: int = 64 << 20
    """Of a range of keys, and of an index, held in memory. Of more, a worker makes batches or maps a file."""

    combine_share: float = 0.5
    """Chunks are reduced on their own where at most this share of their keys is distinct."""

    unseen_share: float = 1 / 256
    """A sample has all frequent keys when at most this share of its rows has a key that occurs in it once."""

    kept_bytes: int = 8 << 20
    """States of all chunks that are merged in the caller, in milliseconds. More go through files to the workers."""

    lookup_bytes: int = 512 << 20
    """The largest table for a join, which would crowd out the data. A larger index stays in files and is searched."""

    lookup_here_bytes: int = 16 << 20
    """An index for a join of no more bytes is made in the caller, sooner than it would be sent."""

    join_bytes: int = 16 << 20
    """Pairs of rows that a worker makes at a time: a few times what it reads of each side."""

    # Profiles

    traced_leases: int = 100_000
    """Leases that a profile of a job keeps one by one, for pictures; of later ones it keeps the sums."""


DEFAULT = Tuning()

_CURRENT: ContextVar[Tuning] = ContextVar("tuning", default=DEFAULT)


def current() -> Tuning:
    """The values for calls that begin now, in this thread."""
    return _CURRENT.get()


@contextmanager
def use(**changes: float) -> Iterator[Tuning]:
    """Use other values for calls that begin in the block, in this thread.

    For tests, which reach with little data what takes much otherwise, and for experiments.

    Raises:
        TypeError: a field of another name.

    Example:
        >>> with use(partition_bytes=1024) as tuning:
        ...     tuning.partition_bytes, current() is tuning
        (1024, True)
    """
    token = _CURRENT.set(replace(current(), **changes))  # type: ignore[arg-type]
    try:
        yield current()
    finally:
        _CURRENT.reset(token)
