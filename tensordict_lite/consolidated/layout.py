"""Positions of the tensors of a tree in its storage.

A dense tensor has one place. A jagged one has a place for its values, one for its offsets and optionally one for its
lengths; tensors that share their offsets (so that torch treats their shapes as equal) share that place as well.
Values and offsets of ragged entries follow the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from tensordict_lite.memmap.disk.pieces import Pieces, Place
from tensordict_lite.memmap.plan import check_savable
from tensordict_lite.memmap.tensor import MemoryMappedTensor

_LARGE, _SMALL = 64, 16  # alignment of tensors of at least a cache line, and of smaller ones (the load size of a GPU)


class JaggedSpot(NamedTuple):
    """The places of a nested tensor of the jagged layout."""

    values: Place
    offsets: Place
    lengths: Place | None
    ragged_idx: int
    """The dimension in which the elements differ; the batch is dimension 0."""
    extremes: tuple[int | None, int | None] = (None, None)
    """Shortest and longest element, if known."""


class RaggedSpot(NamedTuple):
    """The places of a ragged entry."""

    kind: str
    values: Place
    offsets: Place


Spot = Place | JaggedSpot | RaggedSpot | None
"""Position of one tensor or ragged entry; None: a ragged entry outside the storage."""


class Layout(NamedTuple):
    """Positions of all tensors of a tree, in its order, followed by all ragged entries."""

    spots: list[Spot]
    sources: list[tuple[Place, Tensor]]
    """The places, from the first byte to the last, with the data to copy there."""
    nbytes: int
    """Size of the storage in bytes."""


def nbytes_of(place: Place) -> int:
    """Size of a place in bytes."""
    _, dtype, shape = place
    total = dtype.itemsize
    for n in shape:
        total *= n
    return total


def lay_out(
    leaves: Sequence[Tensor], paths: Callable[[], Sequence[tuple[str, ...]]], ragged: Sequence[Any] = ()
) -> Layout:
    """Assign consecutive places to the tensors of a tree.

    Args:
        leaves: the tensors.
        paths: returns their paths, for messages.
        ragged: the ragged entries; None for those outside the storage.

    Raises:
        NotImplementedError: a nested tensor of the strided layout, or an entry that cannot be consolidated.
        TypeError: a tensor is sparse or quantized.
    """
    sources: list[tuple[Place, Tensor]] = []
    known: dict[int, Place] = {}
    at = 0

    def place(tensor: Tensor) -> Place:
        nonlocal at
        nbytes = tensor.numel() * tensor.element_size()
        at += -at % (_LARGE if nbytes >= _LARGE else _SMALL)
        made = (at, tensor.dtype, tuple(tensor.shape))
        sources.append((made, tensor))
        at += nbytes
        return made

    def shared(tensor: Tensor) -> Place:
        found = known.get(id(tensor))
        if found is None:
            found = known[id(tensor)] = place(tensor)
        return found

    spots: list[Spot] = []
    for number, leaf in enumerate(leaves):
        if not leaf.is_nested:
            if type(leaf) is not Tensor or leaf.layout is not torch.strided or leaf.is_quantized:
                _check(leaf, paths()[number])
            spots.append(place(leaf))
            continue
        if leaf.layout is not torch.jagged:
            raise NotImplementedError(
                f"the entry {paths()[number]} is a nested tensor of the strided layout, which cannot be consolidated: "
                "build it with layout=torch.jagged"
            )
        jagged: Any = leaf
        values, offsets, lengths = jagged._values, jagged._offsets, jagged._lengths
        spots.append(
            JaggedSpot(
                place(values),
                shared(offsets),
                None if lengths is None else shared(lengths),
                jagged._ragged_idx,
                (getattr(leaf, "_maybe_min_seqlen", None), getattr(leaf, "_maybe_max_seqlen", None)),
            )
        )
    for column in ragged:
        spots.append(None if column is None else RaggedSpot(column.kind, *map(place, column.flat())))
    return Layout(spots, sources, at)


def _check(leaf: Tensor, path: tuple[str, ...]) -> None:
    if leaf.device.type != "meta":
        check_savable(leaf, path)
    kind = type(leaf)
    if kind.__module__.startswith("tensordict_lite.") and kind is not MemoryMappedTensor:
        raise NotImplementedError(f"the entry {path} is a {kind.__name__}, which cannot be consolidated: exclude it")


def with_parts(spots: Iterable[Spot]) -> Iterator[Place]:
    """All places, with the parts of jagged tensors and ragged entries listed separately."""
    for spot in spots:
        if isinstance(spot, (JaggedSpot, RaggedSpot)):
            yield spot.values
            yield spot.offsets
            if type(spot) is JaggedSpot and spot.lengths is not None:
                yield spot.lengths
        elif spot is not None:
            yield spot


def leaves_of(
    storage: UntypedStorage, spots: Sequence[Spot], kind: type[Tensor] | None = None, copy_tables: bool = False
) -> list[Any]:
    """The tensors of a tree as views of its storage, and the values and offsets of its ragged entries.

    Args:
        storage: the memory.
        spots: their positions.
        kind: subclass of Tensor for the dense ones.
        copy_tables: copy offsets and lengths of jagged tensors out of the storage, which other processes may change.
    """
    if all(type(spot) is tuple for spot in spots):
        return Pieces(storage, kind).at(spots)  # type: ignore[arg-type]
    places = list(dict.fromkeys(with_parts(spots)))
    found = dict(zip(places, Pieces(storage).at(places)))
    out: list[Any] = []
    if copy_tables:
        tables = [place for spot in spots if type(spot) is JaggedSpot for place in spot[1:3] if place is not None]
        found.update({place: found[place].clone() for place in tables})
    for spot in spots:
        if type(spot) is JaggedSpot:
            lengths = None if spot.lengths is None else found[spot.lengths]
            low, high = spot.extremes
            piece: Any = torch.nested.nested_tensor_from_jagged(
                found[spot.values], found[spot.offsets], lengths, spot.ragged_idx, low, high
            )
        else:
            parts = [found[place] for place in with_parts([spot])]
            if kind is not None:
                for part in parts:
                    part.__class__ = kind
            piece = parts[0] if type(spot) is tuple else tuple(parts) or None
        out.append(piece)
    return out
