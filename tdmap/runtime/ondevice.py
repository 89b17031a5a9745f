"""A function that runs on a device, inside a worker: chunks go there ahead of their turn, results come back.

    chunk k+1 ──► staging, page-locked ──copy──► device memory        while      fn(chunk k)
                  two of them, in turns

The function of a job is wrapped once (`OnDevice`) and opened by each worker (`Runner`), which has a link, staging
memory and, for a module, parameters of its own. To the inner loop a runner is a function from chunks of the source to
results in ordinary memory, so that undo, skipping, retries and every sink work as they do for any function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.data.kinds import Data, tensor_bytes
from tdmap.data.reader import Reader
from tdmap.data.trees import rebuild, tensors_in
from tdmap.errors import add_note
from tdmap.functions import moved
from tdmap.job import function_name, takes_start
from tdmap.memory.links import NO_FORKS, CudaLink, CudaMark, is_copied
from tdmap.memory.shm import align
from tdmap.plan import ChunkPlan

DEPTH = 2
"""Chunks that are staged at a time: the one that runs and the next."""


class OnDevice:
    """A function whose chunks are moved to a device first.

    Args:
        fn: the function, as `tdmap.functions.as_function` gives it.
        devices: where; workers take turns.
        links: for each device, what opens a link to it.
        stays: results stay on the device, because the output is on one.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        devices: tuple[torch.device, ...],
        links: tuple[Callable[[], CudaLink], ...],
        stays: bool,
    ) -> None:
        self.fn = fn
        self.devices = devices
        self.links = links
        self.stays = stays
        self.forks = not any(device.type in NO_FORKS for device in devices)
        self.__qualname__ = function_name(fn)

    @property
    def takes_start(self) -> bool:
        """Whether the function wants the number of the first row of its chunk."""
        return takes_start(self.fn)

    def __call__(self, chunk: Data, *start: int) -> Any:
        """Run one chunk in this process without a loop, as for data without rows."""
        return self.open(rank=0, own=False)(chunk, *start)

    def coming_back(self) -> OnDevice:
        """The same function, with results copied back into this machine's memory."""
        return OnDevice(self.fn, self.devices, self.links, stays=False)

    def open(self, rank: int, own: bool) -> Runner:
        """The function that the worker with this rank calls.

        Args:
            rank: of the worker, from 0.
            own: the function belongs to this worker alone, as it does in a process of its own.
        """
        turn = rank % len(self.devices)
        link = self.links[turn]()
        return Runner(moved(self.fn, link.device, own), link, self.stays, self.devices[turn])


class _Staged(NamedTuple):
    """A chunk that is being copied to the device."""

    chunk: Data
    value: Data
    """The chunk on the device."""
    tensors: list[Tensor]
    """The tensors of the chunk on the device, each with its own version counter."""
    block: Tensor | None
    """The block of device memory that the tensors share."""
    mark: CudaMark | None
    error: Exception | None = None
    """An error of the copy. It is raised when the chunk has its turn."""


class Runner:
    """The function of one worker.

    Args:
        fn: called with chunks on the device.
        link: the way there and back.
        stays: leave results on the device.
        device: the device to show; None: that of the link. Fake links of tests have another one than their tensors.
    """

    def __init__(
        self, fn: Callable[[Any], Any], link: CudaLink, stays: bool, device: torch.device | None = None
    ) -> None:
        self.link = link
        self.device = link.device if device is None else device
        self._fn = fn
        self.takes_start = takes_start(fn)
        self.name = function_name(fn)
        self._stays = stays
        self._staging = [_Staging(link) for _ in range(DEPTH)]
        self._turn = 0
        self._staged: deque[_Staged] = deque()
        self.before_change: Callable[[], None] | None = None
        """Called once before rows of the source are written."""
        self.sent = self.fetched = 0
        """Bytes that went to the device, and came back."""

    def reader(self, reader: Reader) -> Reader:
        """A reader whose next chunk is on its way while the one that it gave is used.

        Raises:
            MemoryError: no chunk fits on the device.
        """
        plan = reader.plan
        rows = reader.rows
        nbytes = (tensor_bytes(reader.data, plan.length) if rows.is_view else rows.row_bytes) * plan.most_rows
        free, total = self.link.memory()
        if nbytes > free:
            fit = max(free * plan.most_rows // max(nbytes, 1) // DEPTH, 1)
            raise MemoryError(
                f"chunks of {plan.most_rows} rows take {nbytes:,} bytes on {self.device}, plus the results of "
                f"{self.name}, and {free:,} of {total:,} are free: use chunksize={fit} or less, or fewer "
                "workers."
            )
        return _AheadReader(reader, self)

    def stage(self, chunk: Data) -> None:
        """Begin to copy a chunk. An error waits for its turn."""
        try:
            self._staged.append(self._send(chunk))
        except Exception as error:
            self._staged.append(_Staged(chunk, chunk, [], None, None, error))

    @torch.no_grad()
    def _send(self, chunk: Data) -> _Staged:
        leaves = tensors_in(chunk)
        staging, self._turn = self._staging[self._turn], (self._turn + 1) % DEPTH
        block, views = staging.send([leaf for leaf in leaves if is_copied(leaf)])
        self.sent += sum(view.nbytes for view in views)
        arrived = iter(views)
        # `data`: a version counter of its own, which tells later whether the function has changed it in place.
        there = [next(arrived).data if is_copied(leaf) else leaf.to(self.link.device) for leaf in leaves]
        mark = staging.mark = self.link.mark()
        return _Staged(chunk, rebuild(chunk, iter(there)), there, block, mark)

    def _take(self, chunk: Data) -> _Staged:
        """Take the staged copy of a chunk."""
        while self._staged and self._staged[0].chunk is not chunk:
            self._staged.popleft()  # left over from a lease that was shortened
        staged = self._staged.popleft() if self._staged else None
        if staged is None or staged.error is not None:
            # Not staged: a part of a chunk in the search for bad rows, or a chunk without room beside the last one.
            staged = None
            try:
                staged = self._send(chunk)
            except Exception as error:
                add_note(error, f"while the chunk was copied to {self.device}, before {self.name} was called")
                raise
        return staged

    def __call__(self, chunk: Data, *start: int) -> Any:
        staged = self._take(chunk)
        assert staged.block is not None and staged.mark is not None
        self.link.hand_over(staged.mark, [staged.block])
        versions = [tensor._version for tensor in staged.tensors]
        with self.link.context():
            result = self._fn(staged.value, *start)
            if result is None:
                changed = [n for n, tensor in enumerate(staged.tensors) if tensor._version != versions[n]]
                self._change(chunk, staged.tensors, changed)
                return None
            return result if self._stays else self._fetch(result)

    @torch.no_grad()
    def _change(self, chunk: Data, tensors: list[Tensor], changed: list[int]) -> None:
        """The function has changed tensors of its chunk in place: so are the rows of the source."""
        rows = tensors_in(chunk)
        self.fetched += sum(tensors[n].nbytes for n in changed)
        if changed and self.before_change is not None:
            save, self.before_change = self.before_change, None
            save()
        for number, new in zip(changed, self.link.fetch([tensors[n] for n in changed])):
            if rows[number] is not tensors[number]:
                rows[number].copy_(new)

    @torch.no_grad()
    def _fetch(self, result: object) -> Any:
        # Bytes are copied as they are, so lazy conjugates and negatives must be resolved first.
        found = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors_in(result)]
        self.fetched += sum(tensor.nbytes for tensor in found)
        return rebuild(result, iter(self.link.fetch(found)))

    def settle(self) -> None:
        """Wait for all work on the device that the function, or the writer of its result, has started."""
        if self._stays:
            self.link.settle()


class _Staging:
    """Page-locked memory for one chunk, used again when its copy is done."""

    def __init__(self, link: CudaLink) -> None:
        self._link = link
        self._buffer: Tensor | None = None
        self.mark: CudaMark | None = None

    def send(self, tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Begin one copy for all tensors: their block on the device, and each of them in it."""
        places, size = [], 0
        for tensor in tensors:
            places.append(size)
            size = align(size + tensor.numel() * tensor.element_size())
        buffer = self._room(size)[:size]
        for place, tensor in zip(places, tensors):
            _view(buffer, place, tensor).copy_(tensor)
        (block,) = self._link.empty_like([buffer])
        self._link.copy([(block, buffer)])
        self._sent = buffer  # kept alive until the copy is done
        return block, [_view(block, place, tensor) for place, tensor in zip(places, tensors)]

    def _room(self, nbytes: int) -> Tensor:
        if self.mark is not None:
            self.mark.wait()
        if self._buffer is None or self._buffer.numel() < nbytes:
            self._buffer = None
            self._buffer = self._link.staging(max(nbytes, 1))
        return self._buffer


def _view(block: Tensor, place: int, like: Tensor) -> Tensor:
    nbytes = like.numel() * like.element_size()
    return block[place : place + nbytes].view(like.dtype).view(like.shape)


class _AheadReader(Reader):
    def __init__(self, reader: Reader, runner: Runner) -> None:
        super().__init__(reader.data, reader.plan, reader.order, reader.base)
        self.private, self.exposed = reader.private, reader.exposed
        self._reader = reader
        self._runner = runner

    def renew(self) -> None:
        self._reader.renew()
        self.data, self.exposed = self._reader.data, self._reader.exposed

    def replan(self, plan: ChunkPlan) -> None:
        super().replan(plan)
        self._reader.replan(plan)

    def read(self, start: int, stop: int) -> Iterator[Data]:
        runner = self._runner
        self._reader.follow = self.follow
        chunks = self._reader.read(start, stop)
        chunk = next(chunks, None)
        if chunk is None:
            return
        runner.stage(chunk)
        for following in chunks:
            runner.stage(following)
            yield chunk
            chunk = following
        yield chunk
