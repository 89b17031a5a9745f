"""Values of an iterator on a device, copied there ahead of their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.arguments import require_integer
from tdmap.data.trees import rebuild, tensors_in
from tdmap.errors import add_note
from tdmap.memory.links import CudaLink, CudaMark, Device, is_copied, open_link, resolve_device


def prefetch_to_device(values: Iterable[Any], device: Device, prefetch: int = 2) -> Iterator[Any]:
    """Yield `values` with their tensors on `device`, and copy the next values meanwhile.

    Copies run on a separate stream, from page-locked memory. The consumer's current stream waits for the copy of its
    value; its Python code does not. The first value is yielded as soon as it is copied; the number of values ahead then
    grows to `prefetch`. An exception of `values` is raised after the earlier values.

    Args:
        values: tensors, collections of tensors, and tuples, lists and dicts of them. Other objects are passed
            unchanged. Source memory is not used after its copy is complete.
        device: target device; `"cpu"` yields values unchanged.
        prefetch: number of values to copy ahead.

    Returns:
        An iterator; closing it closes `values`.

    Raises:
        ValueError: raised by the call itself: the device does not exist, or `prefetch` is negative.

    Example:
        >>> import torch
        >>> batches = [{"x": torch.ones(2), "n": 1}, {"x": torch.zeros(2), "n": 2}]
        >>> [batch["n"] for batch in prefetch_to_device(batches, "cpu")]
        [1, 2]
    """
    target = resolve_device(device)
    require_integer("prefetch", prefetch, 0)
    if target.type == "cpu":
        return iter(values)
    return prefetch_over(open_link(target), iter(values), prefetch)


class _Sent(NamedTuple):
    value: object
    tensors: list[Tensor]
    """Those of its tensors on the device whose memory is the link's."""
    sources: list[Tensor]
    """What the copies read."""
    mark: CudaMark


def prefetch_over(link: CudaLink, values: Iterator[Any], prefetch: int) -> Iterator[Any]:
    """`prefetch_to_device` over a link that is open."""
    ahead: deque[_Sent] = deque()
    read: deque[tuple[CudaMark, list[Tensor]]] = deque()
    coming: list[Any] = []
    """The next value, as long as the device has no room for it."""
    depth, failure, ended = 0, None, False
    try:
        while True:
            while not ended and len(ahead) <= depth:
                try:
                    if not coming:
                        coming.append(next(values))
                    try:
                        ahead.append(send(link, coming[0]))
                    except torch.OutOfMemoryError as error:
                        if ahead:  # there will be room when the consumer has used up those before it
                            break
                        add_note(error, _no_room(link, coming[0]))
                        raise
                    coming.clear()
                except StopIteration:
                    ended = True
                except Exception as error:
                    ended, failure = True, error
            if not ahead:
                break
            sent = ahead.popleft()
            link.hand_over(sent.mark, sent.tensors)
            read.append((sent.mark, sent.sources))
            while read and read[0][0].is_done():
                read.popleft()
            turn = [sent.value]
            del sent
            yield turn.pop()  # the consumer alone decides how long the value lives
            depth = min(depth + 1, prefetch)
        if failure is not None:
            raise failure
    finally:
        try:
            link.synchronize()  # before anything that is read is given back
        finally:
            close = getattr(values, "close", None)
            if close is not None:
                close()


def _no_room(link: CudaLink, value: object) -> str:
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))
    free, total = link.memory()
    return (
        f"while a value of {nbytes:,} bytes was copied to {link.device}, where {free:,} of {total:,} bytes are free. "
        "Nothing else was copied ahead: hold fewer of the values before it, or use a smaller chunksize."
    )


def send(link: CudaLink, value: object) -> _Sent:
    """Begin to copy a value; the sources are kept with it."""
    tensors = tensors_in(value)
    with torch.no_grad():
        sources = [_plain(tensor) for tensor in tensors]
        copied = [is_copied(tensor) for tensor in sources]
        sources = [_locked(link, tensor) if copy else tensor for tensor, copy in zip(sources, copied)]
        made = link.empty_like([tensor for tensor, copy in zip(sources, copied) if copy])
        arrived = iter(made)
        moved = [next(arrived) if copy else tensor.to(link.device) for tensor, copy in zip(sources, copied)]
        pairs = [(moved[n], sources[n]) for n, copy in enumerate(copied) if copy]
        link.copy(pairs)
    for old, new in zip(tensors, moved):
        if old.requires_grad and not new.requires_grad:
            new.requires_grad_()
    return _Sent(rebuild(value, iter(moved)), made, [source for _, source in pairs], link.mark())


def _plain(tensor: Tensor) -> Tensor:
    """Without its subclass (memory-mapped tensors, parameters) and its history."""
    plain = tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)
    return plain.detach() if plain.requires_grad else plain


def _locked(link: CudaLink, tensor: Tensor) -> Tensor:
    """A tensor in page-locked memory: itself, or a copy."""
    if tensor.numel() == 0 or link.is_locked(tensor):
        return tensor
    staged = link.staging(tensor.numel() * tensor.element_size()).view(tensor.dtype).view(tensor.shape)
    return staged.copy_(tensor)
