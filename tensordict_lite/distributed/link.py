"""A process group and its errors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class CommunicationError(RuntimeError):
    """A message could not be sent or received: a rank has ended or timed out."""


class UnsendableError(RuntimeError):
    """An entry cannot be pickled or is on the meta device. The receiving ranks get the error as well."""


class Link:
    """A process group with its ranks and the device that its messages go through.

    Args:
        group: the process group; None: the default one.
        alone: the group may be one that is not registered with ``torch.distributed``.
    """

    def __init__(self, group: Any = None, alone: bool = False) -> None:
        if group is None and not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "there is no process group: call torch.distributed.init_process_group() on every rank first"
            )
        self.group = group
        self.alone = alone
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise RuntimeError(f"rank {dist.get_rank()} is not in the group that it calls: only its ranks may")
        self.rank: int = group.rank() if alone else dist.get_rank(group)
        self.size: int = group.size() if alone else dist.get_world_size(group)
        backend = group.name() if alone else dist.get_backend(group)
        self.device = torch.device("cpu")
        if "nccl" in backend and "gloo" not in backend:
            self.device = torch.device("cuda", torch.cuda.current_device())

    def place(self, rank: int) -> int:
        """Convert a global rank to a rank of this group.

        Raises:
            ValueError: the rank is not in the group.
        """
        if self.group is None:
            if not 0 <= rank < self.size:
                raise ValueError(f"there is no rank {rank} in a group of {self.size}")
            return rank
        return dist.get_group_rank(self.group, rank)

    def global_rank(self, place: int) -> int:
        """Convert a rank of this group to a global rank."""
        return place if self.group is None else dist.get_global_rank(self.group, place)

    def isend(self, tensor: Tensor, to: int, tag: int) -> Any:
        if self.alone:
            return self.group.send([tensor], to, tag)
        return dist.isend(tensor, self.global_rank(to), group=self.group, tag=tag)

    def irecv(self, tensor: Tensor, source: int, tag: int) -> Any:
        if self.alone:
            return self.group.recv([tensor], source, tag)
        return dist.irecv(tensor, self.global_rank(source), group=self.group, tag=tag)

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        self.isend(tensor, to, tag).wait()

    def recv(self, tensor: Tensor, source: int, tag: int) -> Tensor:
        """Receive from a rank of the group into ``tensor`` and return it."""
        self.irecv(tensor, source, tag).wait()
        return tensor

    def send_object(self, value: Any, to: int, tag: int) -> None:
        message = self.packed(value)
        self.send(self.numbers(len(message)), to, tag)
        self.send(message, to, tag)

    def recv_object(self, source: int, tag: int) -> Any:
        size = int(self.recv(self.numbers(0), source, tag))
        return unpacked(self.recv(self.room(size), source, tag))

    def packed(self, value: Any) -> Tensor:
        """A message with a pickle."""
        return torch.frombuffer(bytearray(pickle.dumps(value, protocol=5)), dtype=torch.uint8).to(self.device)

    def numbers(self, *values: int) -> Tensor:
        """A message of integers."""
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def room(self, count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(count, dtype=dtype, device=self.device)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Add the operation and the rank to errors of the backend."""
        try:
            yield
        except CommunicationError:
            raise
        except RuntimeError as error:
            if type(error) not in (RuntimeError, dist.DistError, dist.DistBackendError, dist.DistNetworkError):
                raise
            text = str(error).strip().splitlines()
            raise CommunicationError(
                f"{what} failed on rank {self.rank} of {self.size}: {text[0] if text else error!r}. A rank that has "
                "ended says why in its own output; one that is late, or calls something else, ends in the timeout of "
                "init_process_group()."
            ) from error


def unpacked(message: Tensor) -> Any:
    """The value of :meth:`Link.packed`."""
    return pickle.loads(message.cpu().numpy().tobytes())


class Pending:
    """A message in transit: :meth:`wait` returns when it has arrived and stores its content."""

    __slots__ = ("_done", "_finish", "_keep", "_link", "_what", "_work")

    def __init__(self, work: Any, link: Link, what: str, finish: Any = None, keep: Any = None) -> None:
        self._work = work
        self._link = link
        self._what = what
        self._finish = finish
        self._keep = keep  # keeps the sent buffer alive
        self._done = False

    def wait(self, timeout: Any = None) -> bool:
        """Return True when the message has arrived.

        Args:
            timeout: longest wait, a ``datetime.timedelta``; None: the timeout of the group.

        Raises:
            CommunicationError: the other rank has ended or timed out.
        """
        if not self._done:
            with self._link.doing(self._what):
                if timeout is None:
                    self._work.wait()
                else:
                    self._work.wait(timeout)
            if self._finish is not None:
                self._finish()
            self._done, self._finish, self._keep = True, None, None
        return True

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._done or bool(self._work.is_completed())
