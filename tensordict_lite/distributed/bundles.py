"""The tensors of a collection in few messages, for ranks that hold the same structure.

Both sides sort the entries by key, so insertion order does not matter. Small tensors of the same dtype share a buffer;
large ones are sent without a copy.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from tensordict_lite.base import TensorCollection

SMALL = 1 << 16
"""Tensors of at most this many bytes are copied into a shared buffer."""
BUCKET = 1 << 22
"""Default maximum size of a buffer in bytes."""


class Entry:
    """A tensor, its path, and a function that stores another value for it."""

    __slots__ = ("path", "tensor", "write")

    def __init__(self, path: tuple[str, ...], tensor: Tensor, write: Callable[[Tensor], Any] | None = None) -> None:
        self.path = path
        self.tensor = tensor
        self.write = write


def entries(td: TensorCollection, path: tuple[str, ...] = ()) -> list[Entry]:
    """The tensors, sorted by key. For a lazy stack: stacked ones, or those of the members if shapes differ."""
    out: list[Entry] = []
    for key in sorted(td._key_list()):
        try:
            value = td._get_str(key)
        except RuntimeError:  # of different shapes in the members of a lazy stack
            for place, member in enumerate(td._source):
                out.extend(entries(member.select(key), (*path, str(place))))
            continue
        if isinstance(value, Tensor):
            write = _writer(td, key) if hasattr(td, "_stack_dim") else None
            out.append(Entry((*path, key), value, write))
        elif not value._is_non_tensor:
            out.extend(entries(value, (*path, key)))
    return out


def _writer(td: TensorCollection, key: str) -> Callable[[Tensor], Any]:
    return lambda value: td.set_(key, value)


def objects(td: TensorCollection, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any, Any]]:
    """The non-tensor entries, sorted by key: path, parent collection and entry."""
    out: list[tuple[tuple[str, ...], Any, Any]] = []
    for key in sorted(td._key_list()):
        try:
            value = td._get_str(key)
        except RuntimeError:
            continue
        if isinstance(value, TensorCollection):
            below = (*path, key)
            out.extend([(below, td, value)] if value._is_non_tensor else objects(value, below))
    return out


# -- messages ------------------------------------------------------------------------------------------------------


class Bundle:
    """Tensors sent in one message."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries

    def buffer(self, device: torch.device) -> Tensor:
        """The message with the values: the tensor itself if possible, else a copy."""
        tensors = [entry.tensor.detach() for entry in self.entries]
        if len(tensors) == 1:
            only = tensors[0]
            return (only if only.device == device else only.to(device)).contiguous()
        if any(tensor.device != device for tensor in tensors):
            tensors = [tensor.to(device) for tensor in tensors]
        return _flatten_dense_tensors([tensor.contiguous() for tensor in tensors])

    def room(self, device: torch.device) -> Tensor:
        """An empty message: the tensor itself if possible."""
        if len(self.entries) == 1 and self.entries[0].write is None:
            only = self.entries[0].tensor.detach()
            if only.device == device and only.is_contiguous():
                return only
        count = sum(entry.tensor.numel() for entry in self.entries)
        out = torch.empty(count, dtype=self.entries[0].tensor.dtype, device=device)
        return out.view(self.entries[0].tensor.shape) if len(self.entries) == 1 else out

    def take(self, message: Tensor) -> None:
        """Copy the values of a message into the tensors, unless they were received in place."""
        with torch.no_grad():
            if len(self.entries) == 1:
                entry = self.entries[0]
                if entry.write is not None:
                    entry.write(message.view(entry.tensor.shape))
                elif message.data_ptr() != entry.tensor.data_ptr() or message.device != entry.tensor.device:
                    entry.tensor.detach().copy_(message.view(entry.tensor.shape))
                return
            mine = [entry for entry in self.entries if entry.write is None]
            parts = _unflatten_dense_tensors(message, [entry.tensor for entry in self.entries])
            if len(mine) == len(self.entries):
                torch._foreach_copy_([entry.tensor.detach() for entry in mine], list(parts))
                return
            for entry, part in zip(self.entries, parts):
                if entry.write is None:
                    entry.tensor.detach().copy_(part)
                else:
                    entry.write(part)


def bundles(found: list[Entry], bucket_bytes: int | None = None) -> list[Bundle]:
    """Group entries into messages; the result is the same on every rank with the same keys, shapes and dtypes.

    Raises:
        RuntimeError: a tensor is on the meta device.
    """
    small = SMALL if bucket_bytes is None else bucket_bytes
    most = BUCKET if bucket_bytes is None else bucket_bytes
    alone: list[Bundle] = []
    together: dict[str, list[Entry]] = {}
    for entry in found:
        tensor = entry.tensor
        if tensor.device.type == "meta":
            raise RuntimeError(f"the entry {entry.path} is on the meta device: it has no values")
        if tensor.layout is not torch.strided or tensor.nbytes > small:
            alone.append(Bundle([entry]))
        else:
            together.setdefault(str(tensor.dtype), []).append(entry)
    return [*_filled(together, most), *alone]


def _filled(together: dict[str, list[Entry]], most: int) -> Iterator[Bundle]:
    for dtype in sorted(together):
        bundle: list[Entry] = []
        size = 0
        for entry in together[dtype]:
            if bundle and size + entry.tensor.nbytes > most:
                yield Bundle(bundle)
                bundle, size = [], 0
            bundle.append(entry)
            size += entry.tensor.nbytes
        yield Bundle(bundle)


def tags(init_tag: int, pseudo_rand: bool) -> Iterator[int]:
    """The tags of messages: consecutive numbers, or pseudo-random ones with this seed."""
    if not pseudo_rand:
        while True:
            yield init_tag
            init_tag += 1
    chance = random.Random(init_tag)
    while True:
        yield chance.randrange(1, 1 << 24)


# -- structures ------------------------------------------------------------------------------------------------------


def describe(td: TensorCollection) -> dict[str, Any]:
    """What two ranks must have in common to exchange values in place."""
    out: dict[str, Any] = {
        name_of(entry.path): (str(entry.tensor.dtype), tuple(entry.tensor.shape)) for entry in entries(td)
    }
    out.update((name_of(path), "non-tensor data") for path, _, _ in objects(td))
    return out


def name_of(path: tuple[str, ...]) -> str:
    return repr(path[0] if len(path) == 1 else path)


def digest(description: dict[str, Any]) -> int:
    """A hash of a description."""
    text = pickle.dumps(sorted(description.items()), protocol=4)
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


def differences(mine: dict[str, Any], theirs: dict[str, Any], who: str, whom: str) -> str:
    """A text that lists what one side has and the other lacks."""
    parts = []
    for name in sorted({*mine, *theirs}):
        if name not in theirs:
            parts.append(f"{name} is on {who} only")
        elif name not in mine:
            parts.append(f"{name} is on {whom} only")
        elif mine[name] != theirs[name]:
            parts.append(f"{name} is {_shown(mine[name])} on {who} and {_shown(theirs[name])} on {whom}")
    shown = "; ".join(parts[:8])
    return shown + (f"; and {len(parts) - 8} more" if len(parts) > 8 else "")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value[0][6:]}{list(value[1])}"
