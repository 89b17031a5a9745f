"""Collections with their structure: ``broadcast``, ``all_gather``, ``scatter`` and others create new collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from tensordict_lite.distributed.link import CommunicationError, Link
from tensordict_lite.distributed.parcels import Letter, PackedTree, open_files, pack, unpack
from tensordict_lite.distributed.values import check_alike

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tensordict_lite.base import TensorCollection

_HEADER = 3  # bytes of the body, bytes of its meta part (-1: the body is an error message), number of files
_TAG = 1 << 29
"""First of the reserved tags; counted tags of users do not reach it."""


class _Failed:
    """Replaces a parcel that could not be made: the other ranks receive it and raise as well."""

    def __init__(self, error: Exception, link: Link) -> None:
        text = bytearray(f"{error}".encode()[:10_000] or b"unknown")
        self.error = error
        self.body = torch.frombuffer(text, dtype=torch.uint8).to(link.device)
        self.direct: list[Tensor] = []
        self.files: list[Tensor] = []


def _packed(td: TensorCollection, link: Link, *, split: bool) -> Any:
    try:
        return pack(td, link.device, split=split)
    except Exception as error:
        return _Failed(error, link)


def _header(parcel: Any, link: Link) -> Tensor:
    meta = -1 if isinstance(parcel, _Failed) else parcel.meta_size
    return link.numbers(parcel.body.shape[0], meta, len(parcel.files))


def _read(body: Tensor, header: Tensor, source: int, what: str) -> Letter:
    size, meta, _ = header.tolist()
    if meta < 0:
        raise CommunicationError(
            f"{what}: rank {source} could not send: {body[:size].cpu().numpy().tobytes().decode()}"
        )
    return Letter(body[:size], meta)


# -- one to all --------------------------------------------------------------------------------------------------


def broadcast(td: Any, src: int, group: ProcessGroup | None, device: Any) -> Any:
    link = Link(group)
    root = link.place(src)
    with link.doing("broadcast()"):
        parcel = _packed(td, link, split=True) if link.rank == root else None
        header = link.numbers(*[0] * _HEADER) if parcel is None else _header(parcel, link)
        dist.broadcast(header, src, group=link.group)
        body = link.room(int(header[0])) if parcel is None else parcel.body
        dist.broadcast(body, src, group=link.group)
        if parcel is not None:
            if isinstance(parcel, _Failed):
                raise parcel.error
            seen = not len(parcel.files) or _all_agree(True, link)
            for message in [*parcel.direct, *([] if seen else _contents(parcel, link))]:
                dist.broadcast(message, src, group=link.group)
            return td if device is None else td.to(device)
        letter = _read(body, header, src, "broadcast()")
        seen = not letter.files or _all_agree(letter.sees_files(), link)
        direct = letter.room(link.device)
        files: list[Any] = open_files(letter) if seen else letter.file_room(link.device)
        for message in [*direct, *([] if seen else files)]:
            dist.broadcast(message, src, group=link.group)
    return unpack(letter, direct, files, device)


def _all_agree(mine: bool, link: Link) -> bool:
    vote = link.numbers(int(mine))
    dist.all_reduce(vote, op=dist.ReduceOp.MIN, group=link.group)
    return bool(int(vote))


def _contents(parcel: PackedTree, link: Link) -> list[Tensor]:
    """The content of the memory-mapped tensors, for ranks that do not see their files."""
    return [leaf.as_subclass(Tensor).detach().to(link.device).contiguous() for leaf in parcel.files]


# -- all to all ----------------------------------------------------------------------------------------------------


def all_gather(td: Any, group: ProcessGroup | None) -> list[Any]:
    link = Link(group)
    with link.doing("all_gather()"):
        parcel = _packed(td, link, split=False)
        headers = [link.numbers(*[0] * _HEADER) for _ in range(link.size)]
        dist.all_gather(headers, _header(parcel, link), group=link.group)
        bodies = _gathered(parcel.body, [int(header[0]) for header in headers], link)
        if isinstance(parcel, _Failed):
            raise parcel.error
        letters = [
            _read(body, header, rank, "all_gather()") for rank, (body, header) in enumerate(zip(bodies, headers))
        ]
        files: list[list[Any]] = [[] for _ in letters]
        if any(letter.files for letter in letters):
            seen = _all_agree(all(letter.sees_files() for letter in letters), link)
            files = [open_files(letter) if seen else letter.file_room(link.device) for letter in letters]
            if not seen:
                own = _contents(parcel, link)
                files[link.rank] = own
                for rank, contents in enumerate(files):
                    for content in contents:
                        dist.broadcast(content, link.global_rank(rank), group=link.group)
    return [unpack(letter, [], found) for letter, found in zip(letters, files)]


def _gathered(mine: Tensor, sizes: list[int], link: Link) -> list[Tensor]:
    """The bodies of all ranks: in one call, padded to the same size, unless most of it would be padding."""
    most = max(sizes)
    if most * link.size > 4 * sum(sizes):
        bodies = [mine if rank == link.rank else link.room(size) for rank, size in enumerate(sizes)]
        for rank, body in enumerate(bodies):
            dist.broadcast(body, link.global_rank(rank), group=link.group)
        return bodies
    if mine.shape[0] < most:
        filled = link.room(most)
        filled[: mine.shape[0]] = mine
        mine = filled
    bodies = [link.room(most) for _ in sizes]
    dist.all_gather(bodies, mine, group=link.group)
    return bodies


# -- one to each, each to one ------------------------------------------------------------------------------------------


def scatter(tds: Any, src: int, group: ProcessGroup | None, device: Any) -> Any:
    link = Link(group)
    root = link.place(src)
    with link.doing("scatter()"):
        header = link.numbers(*[0] * _HEADER)
        if link.rank != root:
            dist.scatter(header, src=src, group=link.group)
            return _receive(link, root, header, device, "scatter()")
        tds = None if tds is None else list(tds)
        if tds is not None and len(tds) == link.size:
            parcels = [_packed(one, link, split=True) for one in tds]
        else:
            got = "none" if tds is None else f"{len(tds)}"
            wrong = ValueError(f"rank {src} scatters a tensordict to each of {link.size} ranks, and got {got}")
            parcels = [_Failed(wrong, link)] * link.size
        dist.scatter(header, [_header(parcel, link) for parcel in parcels], src=src, group=link.group)
        for rank, parcel in enumerate(parcels):
            if rank != root:
                _deliver(parcel, link, rank)
        failed = next((parcel for parcel in parcels if isinstance(parcel, _Failed)), None)
        if failed is not None:
            raise failed.error
        mine = parcels[root]
        letter = Letter(mine.body, mine.meta_size)
        return unpack(letter, [message.clone() for message in mine.direct], open_files(letter), device)


def gather_and_stack(td: Any, dst: int, group: ProcessGroup | None, check: bool) -> Any:
    link = Link(group)
    root = link.place(dst)
    with link.doing("gather_and_stack()"):
        if check:
            check_alike(td[0] if link.rank == root and td.batch_dims and len(td) else td, link)
        if link.rank != root:
            parcel = _packed(td, link, split=True)
            dist.gather(_header(parcel, link), dst=dst, group=link.group)
            _deliver(parcel, link, root)
            if isinstance(parcel, _Failed):
                raise parcel.error
            return None
        headers = [link.numbers(*[0] * _HEADER) for _ in range(link.size)]
        dist.gather(link.numbers(*[0] * _HEADER), headers, dst=dst, group=link.group)
        rows = _all_received(link, [(rank, header) for rank, header in enumerate(headers) if rank != root])
    if not td.batch_dims or len(td) != len(rows):
        raise RuntimeError(
            f"gather_and_stack() puts a row of each of {len(rows)} other ranks into the tensordict of rank {dst}, "
            f"whose batch size is {list(td.batch_size)}: its first dimension must be {len(rows)}"
        )
    td.update(torch.stack(rows, 0), inplace=True)
    return td


def _all_received(link: Link, headers: list[tuple[int, Tensor]]) -> list[Any]:
    """One collection from each rank; a rank that could not send raises an error after the others are received."""
    rows: list[Any] = []
    first: CommunicationError | None = None
    for rank, header in headers:
        try:
            rows.append(_receive(link, rank, header, None, "gather_and_stack()"))
        except CommunicationError as error:
            first = first or error
    if first is not None:
        raise first
    return rows


def init_remote(td: Any, dst: int, group: ProcessGroup | None) -> None:
    link = Link(group)
    to = link.place(dst)
    with link.doing("init_remote()"):
        parcel = _packed(td, link, split=True)
        link.send(_header(parcel, link), to, _TAG)
        _deliver(parcel, link, to)
    if isinstance(parcel, _Failed):
        raise parcel.error


def from_remote_init(src: int, group: ProcessGroup | None, device: Any) -> Any:
    link = Link(group)
    source = link.place(src)
    with link.doing("from_remote_init()"):
        header = link.recv(link.numbers(*[0] * _HEADER), source, _TAG)
        return _receive(link, source, header, device, "from_remote_init()")


def _deliver(parcel: Any, link: Link, to: int) -> None:
    """Send a parcel to one rank, which already has its header."""
    link.send(parcel.body, to, _TAG + 1)
    if isinstance(parcel, _Failed):
        return
    messages = parcel.direct
    if len(parcel.files) and not int(link.recv(link.numbers(0), to, _TAG + 2)):
        messages = [*messages, *_contents(parcel, link)]
    for work in [link.isend(message, to, _TAG + 3 + place) for place, message in enumerate(messages)]:
        work.wait()


def _receive(link: Link, source: int, header: Tensor, device: Any, what: str) -> Any:
    body = link.recv(link.room(int(header[0])), source, _TAG + 1)
    letter = _read(body, header, source, what)
    seen = True
    if letter.files:
        seen = letter.sees_files()
        link.send(link.numbers(int(seen)), source, _TAG + 2)
    direct = letter.room(link.device)
    files: list[Any] = open_files(letter) if seen else letter.file_room(link.device)
    messages = [*direct, *([] if seen else files)]
    for work in [link.irecv(message, source, _TAG + 3 + place) for place, message in enumerate(messages)]:
        work.wait()
    return unpack(letter, direct, files, device)
