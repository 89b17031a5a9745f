"""Values between ranks that hold the same structure: ``send``, ``recv``, ``reduce`` and others write in place."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tensordict_lite.distributed.bundles import (
    Bundle,
    Entry,
    bundles,
    describe,
    differences,
    digest,
    entries,
    name_of,
    objects,
    tags,
)
from tensordict_lite.distributed.link import Link, Pending, unpacked

Held = tuple[tuple[str, ...], Any, Any]
"""Path of a non-tensor entry, its parent, and the entry."""


def _peer(rank: int | None, group_rank: int | None, group: Any, names: tuple[str, str]) -> tuple[Link, int]:
    if (rank is None) == (group_rank is None):
        raise ValueError(f"Exactly one of `{names[0]}` and `{names[1]}` must be provided.")
    if group_rank is None:
        link = Link(group)
        return link, link.place(rank)  # type: ignore[arg-type]
    if group is None:
        raise ValueError(f"`{names[1]}` requires `group` to be passed.")
    link = Link(group, alone=True)
    if not 0 <= group_rank < link.size:
        raise ValueError(f"{names[1]}={group_rank} is not a rank of a group of {link.size}")
    return link, group_rank


def _check(found: list[Entry], link: Link, written: bool) -> None:
    """Check that the group can transfer the tensors and, for a receiver, that they are writable.

    Raises:
        RuntimeError: NCCL moves CUDA tensors only; elements of an expanded tensor share memory.
    """
    for entry in found if written else ():
        if entry.write is None and _is_expanded(entry.tensor):
            raise RuntimeError(
                f"the entry {entry.path} is expanded, so that several of its elements are one number: nothing can be "
                "received into it, td.clone() first"
            )
    if link.device.type == "cpu":
        return
    for entry in found:
        if entry.tensor.device.type != link.device.type:
            raise RuntimeError(
                f"the entry {entry.path} is on {entry.tensor.device}, but this group moves {link.device.type} tensors: "
                f"td.to({link.device.type!r}) first"
            )


def _is_expanded(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())
    )


# -- one rank to another -----------------------------------------------------------------------------------------


def transfer(
    td: Any,
    sends: bool,
    rank: int | None,
    group: Any,
    group_rank: int | None,
    init_tag: int,
    pseudo_rand: bool,
    check: bool,
) -> tuple[list[Pending], int]:
    """Start sending or receiving the values; return the messages and the tag of the last tensor."""
    link, peer = _peer(rank, group_rank, group, ("dst", "group_dst") if sends else ("src", "group_src"))
    found, held, numbers = entries(td), objects(td), tags(init_tag, pseudo_rand)
    _check(found, link, not sends)
    with link.doing(_NAMES[sends]):
        if check:
            (_check_sent if sends else _check_received)(td, link, peer, next(numbers))
        drawn = [next(numbers) for _ in found]
        move = _sending if sends else _receiving
        works = [move(bundle, link, peer, tag) for bundle, tag in zip(bundles(found), drawn)]
        if held:
            drawn.append(next(numbers))
            works += (_sending_objects if sends else _receiving_objects)(held, link, peer, drawn[-1])
    return works, drawn[-1] if drawn else init_tag


_NAMES = ("recv()", "send()")


def _sending(bundle: Bundle, link: Link, to: int, tag: int) -> Pending:
    return _sent(bundle.buffer(link.device), link, to, tag)


def _sent(message: Tensor, link: Link, to: int, tag: int) -> Pending:
    return Pending(link.isend(message, to, tag), link, "send()", keep=message)


def _sending_objects(held: list[Held], link: Link, to: int, tag: int) -> list[Pending]:
    message = link.packed([value for *_, value in held])
    return [_sent(link.numbers(len(message)), link, to, tag), _sent(message, link, to, tag + 1)]


def _receiving(bundle: Bundle, link: Link, source: int, tag: int) -> Pending:
    message = bundle.room(link.device)
    return Pending(link.irecv(message, source, tag), link, "recv()", lambda: bundle.take(message))


def _receiving_objects(held: list[Held], link: Link, source: int, tag: int) -> list[Pending]:
    size = link.numbers(0)

    def finish() -> None:
        with link.doing("recv()"):
            message = link.recv(link.room(int(size)), source, tag + 1)
        values = unpacked(message)
        if len(values) != len(held):
            raise ValueError(
                f"{len(values)} non-tensor entries arrived, but there are {len(held)} here "
                f"({', '.join(name_of(path) for path, *_ in held)}): check=True compares the structures first"
            )
        for (path, owner, mine), value in zip(held, values):
            if mine._batch_size != value._batch_size:
                raise ValueError(
                    f"{name_of(path)} came with the batch size {list(value._batch_size)}, and has "
                    f"{list(mine._batch_size)} here: check=True compares the structures first"
                )
            replaced = mine._overwrite(value, owner)
            if replaced is not mine:
                owner._set_str(path[-1], replaced)

    return [Pending(link.irecv(size, source, tag), link, "recv()", finish)]


def _check_sent(td: Any, link: Link, to: int, tag: int) -> None:
    """Send a description of the values and wait for the answer."""
    mine = describe(td)
    link.send_object(mine, to, tag)
    if not int(link.recv(link.numbers(0), to, tag)):
        raise _mismatch(mine, link.recv_object(to, tag))


def _check_received(td: Any, link: Link, source: int, tag: int) -> None:
    theirs, mine = link.recv_object(source, tag), describe(td)
    link.send(link.numbers(int(mine == theirs)), source, tag)
    if mine != theirs:
        link.send_object(mine, source, tag)
        raise _mismatch(theirs, mine)


def _mismatch(sent: Any, received: Any) -> ValueError:
    return ValueError(
        f"the two sides hold different structures: {differences(sent, received, 'the sender', 'the receiver')}. Values "
        "go between equal ones; init_remote() and broadcast() bring the structure along."
    )


# -- all ranks -------------------------------------------------------------------------------------------------------


def check_alike(td: Any, link: Link) -> None:
    """Compare the structures of all ranks.

    Raises:
        ValueError: the structure of a rank differs; raised on every rank.
    """
    mine = describe(td)
    number = link.numbers(digest(mine))
    all_numbers = [link.numbers(0) for _ in range(link.size)]
    dist.all_gather(all_numbers, number, group=link.group)
    if len({int(one) for one in all_numbers}) == 1:
        return
    everyone: list[Any] = [None] * link.size
    dist.all_gather_object(everyone, mine, group=link.group)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise ValueError(
                f"the ranks hold different structures: {differences(everyone[0], theirs, 'rank 0', f'rank {rank}')}"
            )


def reduce(td: Any, dst: int | None, op: Any, group: Any, bucket_bytes: int | None, check: bool) -> list[Pending]:
    """Start reducing the values over all ranks, on rank ``dst`` (None: on all); return the messages."""
    link = Link(group)
    if dst is not None:
        link.place(dst)
    found = entries(td)
    _check(found, link, True)
    operation = dist.ReduceOp.SUM if op is None else op
    works = []
    what = "all_reduce()" if dst is None else "reduce()"
    with link.doing(what):
        if check:
            check_alike(td, link)
        for bundle in bundles(found, bucket_bytes):
            message = bundle.buffer(link.device)
            reduction = dist.all_reduce if dst is None else functools.partial(dist.reduce, dst=dst)
            work = reduction(message, op=operation, group=link.group, async_op=True)
            takes = dst is None or dist.get_rank() == dst
            works.append(Pending(work, link, what, _taking(bundle, message) if takes else None, message))
    return works


def _taking(bundle: Bundle, message: Tensor) -> Any:
    return lambda: bundle.take(message)


def wait_all(works: list[Pending]) -> None:
    """Wait for all messages; raise the first error afterwards."""
    first: Exception | None = None
    for work in works:
        try:
            work.wait()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
