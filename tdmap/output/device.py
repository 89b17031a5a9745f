"""Results go into an output on a device, copied there while workers make the next ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.data.alike import check_leaf, not_a_collection
from tdmap.data.kinds import Data, entries_of, is_data, is_dense, tensor_bytes, tensors_of
from tdmap.data.writer import RowWriter
from tdmap.errors import OutputMismatch, add_note
from tdmap.memory.links import CudaLink, CudaMark
from tdmap.plan import ChunkPlan
from tdmap.sink import Allocate, Demands, Kind, Sink

LEASE_BYTES = 16 << 20
"""Output bytes of a lease: a worker fills the slots of one while those of another are copied."""


class _Copying(NamedTuple):
    mark: CudaMark
    sources: list[Tensor]
    nbytes: int
    start: int
    """The first chunk whose results they are."""
    stop: int


class DeviceBuffer(Sink[Data]):
    """Copies each result that travels into the rows of `out` that its chunk has; a None result leaves them as they are.

        worker ──► slot, page-locked ──copy()──► out
                     ▲                  │
                     └── used again ── its mark is done

    Use it as a context: on entry its copies are put behind what the caller's stream is doing to `out`; at the end,
    and after an error too, they have all ended.

    Args:
        out: a tensor or a collection whose tensors are on the device of `link`.
        link: the way there.
        in_flight_bytes: results whose copies have begun and not ended, beyond the last chunk's.
        group_bytes: small results share their copies' mark until they are so many bytes.
    """

    def __init__(
        self,
        out: Data,
        link: CudaLink,
        in_flight_bytes: int = 32 << 20,
        group_bytes: int = 4 << 20,
    ) -> None:
        self.out = out
        self.link = link
        self._in_flight_bytes = in_flight_bytes
        self._group_bytes = group_bytes
        self._copying: deque[_Copying] = deque()
        self._bytes = 0

    def __enter__(self) -> DeviceBuffer:
        self.link.follow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tail: TracebackType | None
    ) -> None:
        try:
            self.link.synchronize()
        except RuntimeError:
            if error is None:  # else the device is lost, and the error of the job tells more
                raise
        finally:
            self._copying.clear()
            self._bytes = 0

    def demands(self, plan: ChunkPlan) -> Demands:
        chunk_bytes = tensor_bytes(self.out, plan.length) * plan.size  # each chunk of a lease takes a slot
        return Demands(max_lease=min(max(LEASE_BYTES // max(chunk_bytes, 1), 1), 16), locker=self.link)

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._rows = RowWriter(self.out, plan, exact=False)

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.PARCEL:
            pairs: list[tuple[Tensor, Tensor]] = []
            nbytes, first = 0, start
            for chunk, value in zip(range(start, stop), values):
                new = self._pairs(chunk, value)
                pairs += new
                nbytes += sum(source.nbytes for _, source in new)
                if nbytes >= self._group_bytes:
                    self._send(pairs, first, chunk + 1)
                    pairs, nbytes, first = [], 0, chunk + 1
            if pairs:
                self._send(pairs, first, stop)
        elif kind is Kind.FAILED:  # every row raised, and is skipped: zeros, as for single rows
            for chunk in range(start, stop):
                rows = next(self._rows.rows(chunk, chunk + 1))
                zeros = [(leaf, torch.zeros(leaf.shape, dtype=leaf.dtype)) for leaf in tensors_of(rows)]
                self._send(zeros, chunk, chunk + 1)

    def _pairs(self, chunk: int, value: Data) -> list[tuple[Tensor, Tensor]]:
        rows = next(self._rows.rows(chunk, chunk + 1))
        try:
            if isinstance(rows, Tensor) and not isinstance(value, Tensor):
                raise not_a_collection(rows, value)
            return list(pairs_of(rows, value, ()))
        except OutputMismatch as error:
            raise OutputMismatch(f"{self._rows.plan.describe(chunk)}: {error}") from None

    def _send(self, pairs: list[tuple[Tensor, Tensor]], start: int, stop: int) -> None:
        """Begin the copies of the results of the chunks `start..stop`."""
        try:
            with torch.no_grad():
                sources = self._copy(pairs)
            nbytes = sum(source.nbytes for source in sources)
            self._copying.append(_Copying(self.link.mark(), sources, nbytes, start, stop))
            self._bytes += nbytes
            self._retire()
        except RuntimeError as error:
            begun = self._copying[0].start if self._copying else start
            rows = self._rows.plan.describe(begun, stop)
            add_note(error, f"while the results of {rows} were copied to {self.link.device}")
            raise

    def _copy(self, pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        if any(source.device.type != "cpu" for _, source in pairs):
            self.link.follow()  # a function in this process has computed it there, on the caller's stream
        casts = [source for row, source in pairs if row.dtype is not source.dtype]
        try:
            # As they are, and cast over there: the processor here has other things to do.
            arrived = self.link.empty_like(casts)
        except torch.OutOfMemoryError:  # the output has taken all there is: cast here, and copy without a detour
            pairs = [(row, source.to(row.dtype)) for row, source in pairs]
            self.link.copy(pairs)
            return [source for _, source in pairs]
        landed = iter(arrived)
        through = [(next(landed) if row.dtype is not source.dtype else row, source) for row, source in pairs]
        self.link.copy(through)
        self.link.copy((row, first) for (row, source), (first, _) in zip(pairs, through) if row is not first)
        return [source for _, source in pairs] + arrived

    def _retire(self) -> None:
        """Let go of what has been read, and wait for the oldest copies where too much is under way."""
        while self._copying:
            oldest = self._copying[0]
            if not oldest.mark.is_done():
                if self._bytes <= self._in_flight_bytes or len(self._copying) == 1:
                    return
                oldest.mark.wait()
            self._copying.popleft()
            self._bytes -= oldest.nbytes
            del oldest

    def result(self) -> Data:
        return self.out


def pairs_of(rows: Data, result: Data, path: tuple[str, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors of `rows`, each with the one of `result` that goes there. A result need not have every entry.

    Raises:
        OutputMismatch: one does not fit; names the key.
    """
    if isinstance(rows, Tensor):
        leaf = check_leaf(rows, result, path)
        yield rows, leaf.detach() if leaf.requires_grad else leaf
        return
    if not is_dense(rows):
        return  # no tensors in it, or `devices.check_device_out` would have refused it
    if isinstance(result, Tensor) or not is_data(result):
        raise not_a_collection(rows, result)
    theirs = entries_of(result) if is_dense(result) else None
    for key, row in entries_of(rows).items():
        entry = theirs.get(key) if theirs is not None else result.get(key, None)
        if entry is not None:
            yield from pairs_of(row, entry, (*path, key))
