"""A job as bytes for workers, the memory that these bytes refer to, and the loop that a worker makes of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tdmap.data.kinds import Data, tensors_of
from tdmap.data.writer import RowWriter
from tdmap.errors import SerializationError
from tdmap.job import Job, Policy, Source, reader_of
from tdmap.memory.mapped import check_mapped_files
from tdmap.memory.shm import Arena, unexpanded
from tdmap.plan import ChunkPlan
from tdmap.runtime.chunkloop import ChunkLoop
from tdmap.runtime.undo import Room, Undo
from tdmap.runtime.wire.lending import Loan, take_back
from tdmap.runtime.wire.packing import Packer, is_of_pickling, unpack
from tdmap.runtime.wire.pickle_errors import explain_unpicklable
from tdmap.runtime.workers.control import Control
from tdmap.runtime.workers.surroundings import Surroundings


class Payload(NamedTuple):
    """What a worker needs to know about a job; `fn` is packed on its own, so that errors can name it."""

    source: bytes
    """The data and their order."""
    plan: ChunkPlan
    policy: Policy
    writer: bytes
    """A RowWriter, or None."""
    fn: bytes


class JobPacker:
    """Packs one job; keep it as long as workers run it.

    Attributes:
        arena: memory for workers to write to.
        packer: packs what they need besides: a writer, once there is one, or room for the rows of a chunk.
    """

    def __init__(self) -> None:
        self.arena = Arena()
        self.packer = Packer()
        self._fn_packer = Packer(private=True)
        self._num_source = 0
        self._source = b""

    def pack(self, job: Job, writer: RowWriter | None) -> bytes:
        """The payload of a job, and of its writer where results have a place already that all workers can open.

        Raises:
            SerializationError: the function or the data cannot be sent; names the part that cannot.
            DatasetError: a file of the data was truncated.
        """
        try:
            fn = self._fn_packer.dumps(job.fn)
        except Exception as error:
            if not is_of_pickling(error):
                raise
            raise SerializationError(explain_unpicklable(job.fn, error)) from error
        try:
            source = self._source = self.packer.dumps((job.source.data, job.source.order))
            self._num_source = len(self.packer.staged)
            place = self.packer.dumps(writer)
        except Exception as error:
            if isinstance(error, OSError) or not is_of_pickling(error):
                raise
            raise SerializationError(
                f"the data cannot be sent to the workers: {type(error).__name__}: {error}"
            ) from error
        payload = Payload(source, job.plan, job.policy, place, fn)
        return self.packer.dumps((Surroundings.here(), payload))

    def shared_source(self) -> Data:
        """The dataset, as workers see it: copies stand for what lies in ordinary memory."""
        return unpack(self._source)[0]

    def lend_writer(self, writer: RowWriter) -> tuple[bytes, list[Loan]]:
        """A writer into a device's memory, for one worker, and what it is lent."""
        try:
            return self.packer.dumps(writer), self.packer.take_loans()
        except BaseException:
            take_back(self.packer.take_loans())
            raise

    def restore(self, job: Job, room: Room, chunk: int) -> None:
        """Put the rows of a chunk back into the memory that the workers see.

        Raises:
            DatasetError: a file of the data was truncated: writing to its missing pages would end this process.
        """
        check_mapped_files(tensors_of(job.source.data))
        undo = Undo(self.shared_source(), job.plan, room)
        with torch.no_grad():
            undo.restore(chunk)
        undo.release()

    def write_back(self, changed: bool) -> None:
        """Bring what workers wrote into copies of ordinary memory back to where it belongs."""
        for tensor, copy in self.packer.staged[0 if changed else self._num_source :]:
            unexpanded(tensor).copy_(unexpanded(copy))


def load_loop(
    job: int,
    data: bytes,
    control: Control,
    pack: Callable[[Any], Any],
    emit: Any,
    own_process: bool = True,
) -> ChunkLoop:
    """The loop of a job from its payload, which brings the driver's surroundings to a process of our own."""
    payload: Payload
    surroundings, payload = pickle.loads(data)
    surroundings.enter(own_process)
    fn = unpack(payload.fn)
    reader = reader_of(Source(*unpack(payload.source)), payload.plan, payload.policy)
    loop = ChunkLoop(job, reader, fn, payload.policy, control, pack, emit, own_fn=True)
    writer: RowWriter | None = unpack(payload.writer)
    if writer is not None:
        writer.prepare()
        loop.writer = writer
    loop.inference = own_process and surroundings.thread.inference
    return loop
