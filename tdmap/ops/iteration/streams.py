"""The results of a job in order, while it runs; streams that are open when the program ends are closed."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any

from tdmap.execution import Execution
from tdmap.job import Job
from tdmap.memory.links import CudaLink
from tdmap.output.values import Stream
from tdmap.runtime.commits import KnownChunks

_open_streams: weakref.WeakSet[Any] = weakref.WeakSet()


def _close_streams() -> None:
    for stream in list(_open_streams):
        with contextlib.suppress(ValueError):  # it is running: the program exits from inside the loop
            stream.close()


atexit.register(_close_streams)  # before the workers of `pool` are ended: it was imported first
os.register_at_fork(after_in_child=_open_streams.clear)


def stream_values(
    job: Job, execution: Execution, position: int = 0, ahead: int | None = None, link: CudaLink | None = None
) -> Iterator[Any]:
    """The results of a job's chunks from `position` on, in order. Closing it stops the work.

    Args:
        job: what to run.
        execution: who runs it.
        position: the first chunk that is wanted.
        ahead: chunks that may be under way or done before they are wanted. Default: a few megabytes a worker.
        link: results go on over this link: the slots in which they travel are page-locked for it.
    """

    def values() -> Iterator[Any]:
        if position < job.plan.num_chunks:
            for _, value in execution.stream(
                job, Stream(ahead, link), KnownChunks(committed=[(0, position)]) if position else None
            ):
                yield value

    stream = values()
    _open_streams.add(stream)
    return stream
