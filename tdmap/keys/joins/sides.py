"""Both sides of a join: keys that compare, and the names that entries have in the result."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tdmap.data import kinds
from tdmap.data.columns import is_columnar
from tdmap.data.entries import as_tensordict, with_types
from tdmap.data.kinds import Data, is_dense, stored_entry, with_entries
from tdmap.data.reader import rows_of
from tdmap.job import Source
from tdmap.keys.codec import KeyCodec
from tdmap.keys.keys import KeySpec
from tdmap.keys.prepare import KeyedData
from tdmap.keys.ranks import ranks_of
from tdmap.memory.rowfiles import RowFiles
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.output.output import SourceRows
from tdmap.output.permute import PlaceRows, run_blocks
from tdmap.reducers.base import Key
from tdmap.run.context import Context
from tensordict_lite import Ragged, TensorDict, is_non_tensor

On: TypeAlias = "Key | list[Key] | Mapping[Key, Key]"

_WIDTHS = {
    torch.uint8: 8, torch.uint16: 16, torch.uint32: 32, torch.uint64: 64,
    torch.int8: -8, torch.int16: -16, torch.int32: -32, torch.int64: -64,
}  # fmt: skip
"""Bits of integers; negative with a sign."""


def keys_of(on: On | None, left_on: Any, right_on: Any) -> tuple[KeySpec, KeySpec]:
    """The keys of both sides.

    Raises:
        TypeError: none of the options, too many of them, or something that is no entry.
        ValueError: not as many keys on both sides.
    """
    if (on is None) is (left_on is None and right_on is None) or (left_on is None) is not (right_on is None):
        raise TypeError(
            "join needs on=, entries that both datasets have, or both left_on= and right_on=: got "
            f"on={on!r}, left_on={left_on!r}, right_on={right_on!r}."
        )
    if any(callable(one) for one in (on, left_on, right_on)):
        raise TypeError("join takes entries for keys, not a function: map the function first, and join on its result.")
    if isinstance(on, Mapping):
        return KeySpec.of(list(on), "join"), KeySpec.of(list(on.values()), "join")
    if on is not None:
        spec = KeySpec.of(on, "join")
        return spec, spec
    ours, theirs = KeySpec.of(left_on, "join"), KeySpec.of(right_on, "join")
    if len(ours.names) != len(theirs.names):
        raise ValueError(f"join: left_on has {len(ours.names)} keys and right_on {len(theirs.names)}: pair them up.")
    return ours, theirs


def common_integer(one: torch.dtype, other: torch.dtype) -> torch.dtype | None:
    """The dtype that holds integers of both; None where there is none, or one is no integer.

    Example:
        >>> common_integer(torch.int32, torch.int64), common_integer(torch.uint64, torch.int8)
        (torch.int64, None)
    """
    if one is other:
        return one
    bits = [_WIDTHS.get(dtype) for dtype in (one, other)]
    if None in bits:
        return None
    if all(bit > 0 for bit in bits if bit is not None):
        return max((one, other), key=lambda dtype: _WIDTHS[dtype])
    return None if torch.uint64 in (one, other) else torch.int64


def comparable(left: KeyedData, right: KeyedData) -> tuple[KeyedData, KeyedData]:
    """Both sides with words that mean the same.

    Raises:
        TypeError: the dtypes of keys differ.
    """
    labels = [_of_one_kind(ours, theirs) for ours, theirs in zip(left.labels, right.labels)]
    left, right = (replace(side, labels=tuple(own)) for side, own in zip((left, right), zip(*labels)))
    pairs = zip(left.codec.columns, right.codec.columns, left.labels, right.labels)
    times = zip(*(map(side.data.arrow_types.get, side.reader.spec.names) for side in (left, right)))
    for index, (mine, yours) in enumerate(times):
        if mine is not None and yours is not None and mine != yours:
            raise TypeError(
                f"join: the keys {left.names[index]!r} and {right.names[index]!r} are {mine} and {yours}: "
                "cast one to the type of the other."
            )
    commons = []
    for index, (one, other, ours, theirs) in enumerate(pairs):
        kinds = [
            {"str": "strings"}.get(labels.kind, labels.kind)
            if labels is not None
            else f"{str(column.dtype).removeprefix('torch.')} {list(column.shape)}"
            for column, labels in ((one, ours), (other, theirs))
        ]
        common: torch.dtype | None = None
        if one.dtype is other.dtype and one.pieces == other.pieces:
            common = one.dtype
        elif one.shape == other.shape == ():
            common = common_integer(one.dtype, other.dtype)
        if common is None or (ours is None) is not (theirs is None) or {"strings", "bytes"} == set(kinds):
            raise TypeError(
                f"join: the key {left.names[index]!r} of the first dataset is {kinds[0]}, and "
                f"{right.names[index]!r} of the second one is {kinds[1]}: they must be of one kind. Convert one."
            )
        commons.append(common)
        if ours is not None and theirs is not None:
            numbers = ranks_of([ours, theirs])
            left, right = _renumbered(left, index, numbers[0]), _renumbered(right, index, numbers[1])
    left, right = _widened(left, tuple(commons)), _widened(right, tuple(commons))
    # Ranges of keys are cut by the sample, which had the old numbers.
    return left, right if all(label is None for label in right.labels) else right.resampled()


def _of_one_kind(ours: Ragged | None, theirs: Ragged | None) -> tuple[Ragged | None, Ragged | None]:
    """Labels of two columns; a list without rows, which is no more text than bytes, is what the other one is."""
    if ours is None or theirs is None or ours.kind == theirs.kind:
        return ours, theirs
    return ours if len(ours) else theirs[:0], theirs if len(theirs) else ours[:0]


def _renumbered(keyed: KeyedData, index: int, ranks: Tensor) -> KeyedData:
    """A side whose strings have other numbers: `ranks` by those that they had."""
    name = keyed.reader.spec.names[index]
    column = keyed.data.get(name)
    if not len(column):
        return keyed
    numbers = ranks[column]
    none = list(keyed.reader.none)
    if none[index] is not None:
        none[index] = int(ranks[none[index]])
        keyed = replace(keyed, reader=replace(keyed.reader, none=tuple(none)))
    if is_dense(keyed.data):
        column.copy_(numbers)  # what workers map already
        return keyed
    return replace(keyed, data=rows_of(keyed.data).with_columns(TensorDict({name: numbers}, [len(numbers)])))


def _widened(keyed: KeyedData, dtypes: tuple[torch.dtype, ...]) -> KeyedData:
    """Keys that are read as integers of other dtypes."""
    columns = keyed.codec.columns
    if all(column.dtype is dtype for column, dtype in zip(columns, dtypes)):
        return keyed
    codec = KeyCodec(tuple(replace(column, dtype=dtype) for column, dtype in zip(columns, dtypes)))
    spec = replace(keyed.reader.spec, casts=dtypes)
    wider = replace(keyed, reader=replace(keyed.reader, spec=spec, codec=codec))
    return wider.resampled()


class Names(NamedTuple):
    """Both datasets with the names of the result."""

    left: TensorDict
    """The first one."""
    right: TensorDict
    """The second one without its keys."""
    mine: dict[str, str]
    """What entries of the first one are called in the result."""
    theirs: dict[str, str]
    """And those of the second one."""

    @property
    def sides(self) -> tuple[TensorDict, TensorDict]:
        """Both of them."""
        return self.left, self.right


def renamed(
    a: Data, b: Data, spec: KeySpec, suffixes: tuple[str, str], ours: KeySpec, gaps: tuple[bool, bool]
) -> Names:
    """Both datasets under the names that they have in the result.

    Args:
        a, b: the datasets.
        spec: the keys of the second one, which are left out.
        suffixes: for names that both have.
        ours: the keys of the first one, which keep their names.
        gaps: whether rows without a partner leave gaps in the entries of the first, and of the second dataset.

    Raises:
        ValueError: a name is taken even with the suffix, or no value is known for a gap.
    """
    rest = as_tensordict(b)
    for name in spec.names:
        rest = rest.exclude(name)
    names: list[str] = [name for name in rest.keys() if _has_entries(rest.get(name))]
    kept = {name if isinstance(name, str) else name[0] for name in ours.names}
    both = set(a.keys()) & set(names)
    mine = {name: name + suffixes[0] if name in both - kept else name for name in a.keys()}
    theirs = {name: name + suffixes[1] if name in both else name for name in names}
    taken = [*mine.values(), *theirs.values()]
    for name in names:
        if taken.count(theirs[name]) > 1:
            raise ValueError(
                f"join: both datasets have an entry {name!r}, and the name {theirs[name]!r} exists too: pass "
                "another non-empty suffix=, or suffixes=, or rename an entry."
            )
    left = TensorDict({new: _filled(a, name, gaps[0], "first") for name, new in mine.items()}, a.shape[:1])
    right = TensorDict({new: _filled(rest, name, gaps[1], "second") for name, new in theirs.items()}, b.shape[:1])
    with_types(left, a, mine)
    with_types(right, rest, theirs)
    return Names(left, right, mine, theirs)


LOADED_SHARE = 1 / 8
"""Of the available memory, that columns of a dataset of several folders may take."""


def read_by_chunk(data: Data) -> Data | None:
    """What stands for a dataset of several folders whose rows come with the chunks of a job.

    None for other datasets, and where entries are neither tensors nor objects by row.
    """
    rows = rows_of(data)
    if rows.is_view or not _is_by_row(rows.sample()):
        return None
    return rows.outline()


def in_one_piece(ctx: Context, data: Data, spill: Spill) -> Data:
    """A dataset of several folders with columns of which any row can be had: in shared memory, or in files when large.

    Args:
        data: any dataset; others are returned as they are.
        spill: folder for files of as many bytes.
    """
    if rows_of(data).is_view:
        return data
    if not _is_by_row(rows_of(data).sample()):
        return as_tensordict(rows_of(data).load())
    source = SourceRows(data)
    rows, schema = len(data), source.schema
    nbytes = rows * sum(schema.row_bytes)
    large = ctx.decide("in one piece", lambda: int(nbytes > LOADED_SHARE * ctx.execution.available_memory()))
    if large:
        spill.make()
    arena, numbers = Arena(), itertools.count()

    def allocate(dtype: torch.dtype, shape: torch.Size) -> Tensor:
        nbytes = shape.numel() * dtype.itemsize
        if not large or not nbytes:
            return arena.empty(dtype, shape)
        return spill.mapped(f"side-{next(numbers)}", nbytes).view(dtype).view(shape)

    made = schema.build(rows, allocate, source.objects_at(slice(None)))
    places = RowFiles.of(schema.tensors_of(made))
    assert places is not None
    run_blocks(ctx.light(nbytes), Source(data), PlaceRows(places, schema), schema.row_bytes)
    return as_tensordict(made)


def _has_entries(value: Data) -> bool:
    return isinstance(value, Tensor) or bool(len(list(value.keys()))) or bool(getattr(value, "_is_non_tensor", False))


def _filled(data: Data, name: str, gaps: bool, which: str) -> Any:
    value = stored_entry(data, name)
    if not gaps:
        return value
    value = _dense(value)
    if not (is_columnar(value) or _is_by_row(value)):
        raise ValueError(
            f"join: unmatched rows are filled with zeros of one shape, and rows of the entry {name!r} of the "
            f"{which} dataset differ in shape: leave it out with exclude(), or use how='inner'."
        )
    return value


def _dense(value: Data) -> Data:
    """Lazy stacks as columns, also nested ones, where members look alike; anything else as it is."""
    if isinstance(value, Tensor) or is_columnar(value):
        return value
    if not is_dense(value):
        try:
            found = value.contiguous()
        except (RuntimeError, ValueError, KeyError):  # members that do not look alike
            return value
        if not is_dense(found):
            return value
        value = found
    source = {key: _dense(entry) for key, entry in kinds.entries_of(value).items()}
    return with_entries(value, source)


def _is_by_row(value: Data) -> bool:
    """Whether an entry consists of tensors and of objects by row."""
    if is_non_tensor(value):
        return True
    return is_columnar(value) or (is_dense(value) and all(map(_is_by_row, kinds.entries_of(value).values())))
