"""Rows of several datasets as those of one, read where they lie.

    rows      0 ......... 99 | 100 ......... 199 | 200 ..... 249
    members   shard-00000      shard-00001         shard-00002

A `ShardedDataset` has the shape, keys and rows of the datasets that it consists of, one after another, and copies
nothing: it is their names and how many rows each of them has. Rows are read when they are indexed. Within one folder
they are views of its files, mapped copy-on-write; across two they are copies.
"""

from __future__ import annotations

import bisect
import operator
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from tdmap.data.entries import row_number, row_numbers
from tdmap.data.kinds import Data
from tdmap.data.sizes import row_bytes_of
from tdmap.process_state import on_host
from tdmap.stores.members import Member, Rows
from tdmap.stores.widened import WidenedMember
from tensordict_lite import NonTensorData, TensorDict, is_non_tensor
from tensordict_lite.base import TensorCollection
from tensordict_lite.views import is_leaf_nontensor

MOST_OPEN = 64
"""Members that one process keeps open."""

SAMPLE_ROWS = 8
"""Rows that tell how many bytes the others have."""

Span = tuple[int, int, int]
"""A run of rows of one member: its number, the first row and the one past the last."""


@on_host
class ShardedDataset(TensorCollection):
    """A dataset whose rows lie in several folders, or in an object store. Made by `tdmap.open` and `tdmap.concat`.

    Every operation takes it. It is read only: chunks and rows are copies, and what is done to them
    does not reach the files. `data[rows]` is a collection of those rows; `data["key"]` is a whole column, in memory.

    Attributes:
        shards: the names of the folders, in order.
        ends: one-past-last row of each.

    Example:
        >>> import torch, tdmap
        >>> from tensordict_lite import TensorDict
        >>> parts = [TensorDict({"x": torch.arange(3) + 10 * n}, [3]) for n in range(2)]
        >>> data = tdmap.concat(parts)
        >>> len(data), data[2:5]["x"].tolist(), data[[5, 0]]["x"].tolist()
        (6, [2, 10, 11], [12, 0])
    """

    __slots__ = ("_ends", "_is_lazy", "_keys", "_members", "_none", "_opened", "_row_bytes", "_spans", "fetch_next")

    _kind_name = "dataset of several folders"
    _is_non_tensor = False
    _members: tuple[Member, ...]
    _spans: tuple[Span, ...]
    _keys: tuple[Any, ...] | None
    _is_lazy: bool

    def __init__(
        self,
        members: Sequence[Member],
        spans: Sequence[Span] | None = None,
        keys: Sequence[Any] | None = None,
        lazy: bool = False,
        none: Data | None = None,
    ) -> None:
        self._members = tuple(members)
        spans = [(number, 0, member.rows) for number, member in enumerate(members)] if spans is None else spans
        self._spans = tuple(spans)
        self._ends = list(np.cumsum([last - first for _, first, last in self._spans], dtype=np.int64).tolist())
        self._keys = None if keys is None else tuple(keys)
        self._is_lazy = lazy
        self._opened: OrderedDict[int, Rows] = OrderedDict()
        self._none = none
        self._row_bytes: int | None = None
        self._names = self._device = self._lock = None
        self._batch_size = torch.Size((self._ends[-1] if self._ends else 0, *self._no_rows.shape[1:]))

    # -- what travels ----------------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        return _rebuild, (self._members, self._spans, self._keys, self._is_lazy, self._no_rows, self._row_bytes)

    def __getstate__(self) -> NoReturn:
        raise TypeError("a dataset of several folders travels by its members")

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def shards(self) -> list[str]:
        """The names of the folders, in order; of those in memory, what messages call them."""
        return [self._members[number].name for number, _, _ in self._spans]

    @property
    def ends(self) -> list[int]:
        """One-past-last row of each folder."""
        return list(self._ends)

    @property
    def folders(self) -> list[str]:
        """The names of those that lie in folders or stores."""
        members = [self._members[number] for number, _, _ in self._spans]
        return [member.name for member in members if not hasattr(member, "data")]

    @property
    def borders(self) -> list[int]:
        """Rows at which another folder begins, without the first."""
        return self._ends[:-1]

    @property
    def _no_rows(self) -> Data:
        """Zero rows: keys, dtypes and shapes."""
        if self._none is None:
            number, first, _ = self._spans[0]
            self._none = self._chosen(self._open(number).read(first, first).clone())
        return self._none

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, objects included, as the first rows have them."""
        if self._row_bytes is None:
            first = self._load(0, min(SAMPLE_ROWS, len(self)))
            self._row_bytes = row_bytes_of(first, len(first)) if len(first) else 0
        return self._row_bytes

    @property
    def is_lazy(self) -> bool:
        """Whether its slices are names of rows, and not rows."""
        return self._is_lazy

    @property
    def is_remote(self) -> bool:
        """Whether rows are fetched from an object store."""
        return any(hasattr(self._members[number], "prefetch") for number, _, _ in self._spans)

    def member_identities(self) -> Iterator[tuple[str, Any]]:
        """For journals of runs: the name of each folder with its rows, and what tells its content from another."""
        for place, (number, first, last) in enumerate(self._spans):
            yield f"shard {place}, rows {first}:{last}", self._members[number].identity()

    def member_files(self) -> Iterator[str]:
        """A file in each folder that other machines must have to open it there."""
        for number, _, _ in self._spans:
            yield from getattr(self._members[number], "files", list)()

    def in_memory(self) -> Iterator[Data]:
        """The members that lie in memory."""
        for number, _, _ in self._spans:
            if hasattr(self._members[number], "data"):
                yield self._members[number].data  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        keys = ", ".join(repr(key) for key in entry_names(self._no_rows))
        shown = ", ".join(self.shards[:3]) + (", ..." if len(self._spans) > 3 else "")
        return (
            f"{type(self).__name__}({len(self):,} rows in {len(self._spans):,} folders: {shown}; "
            f"batch_size={list(self._batch_size)}, keys {keys})"
        )

    def _repr_html_(self) -> None:
        return None

    # -- keys ------------------------------------------------------------------------------------------------

    def keys(self, *args: Any, **kwargs: Any) -> Any:
        """The keys of all members, as `TensorDict.keys`."""
        return self._no_rows.keys(*args, **kwargs)

    def __contains__(self, key: Any) -> bool:
        return key in self._no_rows.keys(isinstance(key, tuple))

    @property
    def arrow_types(self) -> dict[Any, str]:
        """The types of dates and times, as `TensorDict.arrow_types`; those that the first member has."""
        return self._no_rows.arrow_types  # type: ignore[no-any-return]

    @arrow_types.setter
    def arrow_types(self, types: Any) -> None:
        raise TypeError("the types of a sharded dataset are those in its folders: write it anew, by map or filter.")

    def items(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, Any]]:
        """Keys and columns. Each column is loaded when it is its turn."""
        for key in list(self.keys(*args, **kwargs)):
            yield key, self.get(key)

    def values(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """The columns. Each is loaded when it is its turn."""
        for _, value in self.items(*args, **kwargs):
            yield value

    def get(self, key: Any, default: Any = ..., **kwargs: Any) -> Any:
        """A whole column, in memory. Of a part of the rows: `data[rows][key]`."""
        if key not in self:
            return self._no_rows.get(key) if default is ... else default
        return self._with_column(key).get(key)

    def _with_column(self, key: Any) -> Data:
        """A collection with a whole entry."""
        part = self.select(key)
        if part._keys:
            return part.contiguous()
        return TensorDict({key: _without_tensors(self._no_rows.get(key), len(self))}, [len(self)])

    def select(self, *keys: Any, **kwargs: Any) -> ShardedDataset:
        """The same rows with some of the entries; the others are not read."""
        chosen = self._no_rows.select(*keys, **kwargs)
        part = ShardedDataset(self._members, self._spans, entry_names(chosen), self._is_lazy, chosen)
        part._opened = self._opened
        return part

    def exclude(self, *keys: Any, **kwargs: Any) -> ShardedDataset:
        """The same rows without some of the entries, which are not read."""
        return self.select(*entry_names(self._no_rows.exclude(*keys)))

    def with_columns(self, columns: TensorDict) -> ShardedDataset:
        """The same rows with more entries, which lie in memory, or with these in the place of others.

        Args:
            columns: batch size `[rows]`.
        """
        members, start = [], 0
        for (number, first, _), end in zip(self._spans, self._ends):
            members.append(WidenedMember(self._members[number], first, columns[start:end]))
            start = end
        keys = None if self._keys is None else tuple(dict.fromkeys((*self._keys, *columns.keys())))
        return ShardedDataset(members, None, keys, self._is_lazy)

    def _chosen(self, rows: Data) -> Data:
        return rows if self._keys is None else rows.select(*self._keys)

    def outline(self) -> TensorDict:
        """What stands for all rows where names, dtypes and shapes are asked for, and takes no memory.

        Its tensors are the first row, as often as there are rows; objects are those of the first row.
        """
        return _outline(self._load(0, min(1, len(self))), len(self))

    # -- rows ------------------------------------------------------------------------------------------------

    def window(self, first: int, last: int, lazy: bool | None = None) -> ShardedDataset:
        """Rows `first..last` as a dataset of their own, of which nothing is read yet.

        Args:
            first, last: the rows.
            lazy: its slices are windows as well, and not rows.
        """
        spans = list(self._pieces(first, last)) or [(self._spans[0][0], 0, 0)]
        lazy = self._is_lazy if lazy is None else lazy
        part = ShardedDataset(self._members, spans, self._keys, lazy, self._no_rows)
        part._opened, part._row_bytes = self._opened, self._row_bytes  # a request for each window is one too many
        return part

    def _pieces(self, first: int, last: int) -> Iterator[Span]:
        """The rows `first..last` as runs of rows of members."""
        place = bisect.bisect_right(self._ends, first)
        while first < last and place < len(self._spans):
            number, begin, _ = self._spans[place]
            start = self._ends[place - 1] if place else 0
            stop = min(self._ends[place], last)
            if stop > first:
                yield number, begin + first - start, begin + stop - start
            first, place = max(first, stop), place + 1

    def aligned(self, first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
        """Chunks of `size` rows from `first` on, as runs that lie in one folder, and chunks between two by themselves.

        Example:
            >>> import torch, tdmap
            >>> from tensordict_lite import TensorDict
            >>> data = tdmap.concat([TensorDict({"x": torch.zeros(5)}, [5]), TensorDict({"x": torch.ones(5)}, [5])])
            >>> list(data.aligned(0, 10, 2))
            [(0, 4), (4, 6), (6, 10)]
        """
        while first < last:
            place = bisect.bisect_right(self._ends, first)
            border = self._ends[place]
            stop = last if border >= last else first + (border - first) // size * size
            if stop == first:  # the chunk lies across
                stop = min(first + size, last)
            yield first, stop
            first = stop

    def _open(self, number: int) -> Rows:
        rows = self._opened.get(number)
        if rows is None:
            rows = self._opened[number] = self._members[number].open()
            if len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)
        else:
            self._opened.move_to_end(number)
        return rows

    def _load(self, first: int, last: int) -> Data:
        pieces = [self._read(*piece) for piece in self._pieces(first, last)]
        if not pieces:
            return self._no_rows.clone()
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _read(self, number: int, first: int, last: int) -> Data:
        rows = self._open(number)
        if self._keys is not None and hasattr(rows, "read_keys"):
            return self._chosen(rows.read_keys(first, last, self._keys))
        return self._chosen(rows.read(first, last))

    def prefetch(self, first: int, last: int) -> None:
        """Begin to fetch rows that will be read soon, where they come from an object store."""
        for number, begin, end in self._pieces(first, last):
            ahead = getattr(self._open(number), "prefetch", None)
            if ahead is not None:
                ahead(begin, end, self._keys)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        raise TypeError(
            f"torch.{name} takes collections in memory, not datasets of several folders: use contiguous() to load "
            "one, tdmap.concat to put several one after another, or tdmap.map to change the rows."
        )

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(k, str) for k in index)):
            return (self._with_column(index) if index in self else self._no_rows)[index]
        if isinstance(index, tuple):
            return self._index_many(index)
        if isinstance(index, slice):
            return self._slice(index)
        if index is None or index is Ellipsis:
            return self.contiguous()[index]
        if _is_number(index):
            row = row_number(operator.index(index), len(self))
            return self._load(row, row + 1)[0]
        return self._take(index)

    def _index_many(self, index: tuple[Any, ...]) -> Any:
        if not index:
            return self
        rows, *rest = index
        if rows is None or rows is Ellipsis or isinstance(rows, bool):
            return self.contiguous()[index]
        found = self[rows]
        if not rest:
            return found
        if _is_number(rows):
            return found[tuple(rest)]
        paired = not isinstance(rows, slice) and any(map(_is_array, rest))
        return found[(torch.arange(len(found)) if paired else slice(None), *rest)]

    def _slice(self, index: slice) -> Any:
        first, last, step = index.indices(len(self))
        if step != 1:
            return self._take(torch.arange(first, last, step))
        if self._is_lazy:
            return self.window(first, max(last, first))
        return self._load(first, max(last, first))

    def _take(self, index: Any) -> Data:
        rows = row_numbers(index, len(self))
        if not len(rows):
            return self._no_rows.clone()
        owners = torch.bucketize(rows, torch.tensor(self._ends), right=True)
        if bool((owners == owners[0]).all()):
            return self._take_from(int(owners[0]), rows)
        order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners, minlength=len(self._spans)).tolist()
        groups = rows[order].split([count for count in counts if count])
        places = [place for place, count in enumerate(counts) if count]
        found = torch.cat([self._take_from(place, group) for place, group in zip(places, groups)])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return found[back]

    def _take_from(self, place: int, rows: Tensor) -> Data:
        number, begin, _ = self._spans[place]
        opened, local = self._open(number), rows + (begin - (self._ends[place - 1] if place else 0))
        if self._keys is not None and hasattr(opened, "take_keys"):
            return self._chosen(opened.take_keys(local, self._keys))
        return self._chosen(opened.take(local))

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> Any:
        """Rows as pieces of so many rows; as `TensorDict.split`, along dimension 0."""
        self._require_rows(dim)
        sizes = split_size if not isinstance(split_size, int) else [split_size] * (-(-len(self) // split_size))
        pieces, first = [], 0
        for size in sizes:
            pieces.append(self[first : min(first + size, len(self))])
            first += size
        return tuple(pieces)

    def unbind(self, dim: int = 0) -> Any:
        """All rows, one by one; as `TensorDict.unbind`, along dimension 0."""
        self._require_rows(dim)
        return self.contiguous().unbind(0)

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self[row]

    def _require_rows(self, dim: int) -> None:
        if dim not in (0, -len(self._batch_size)):
            raise ValueError(f"the rows of several folders lie along dimension 0: they cannot be cut along dim={dim}.")

    # -- all of it -------------------------------------------------------------------------------------------

    def contiguous(self, **kwargs: Any) -> Data:
        """All rows, in memory."""
        rows = self._load(0, len(self))
        return rows if len(self._spans) > 1 else rows.clone()

    def to_tensordict(self, **kwargs: Any) -> Any:
        """All rows, in memory, as a TensorDict."""
        return self.contiguous().to_tensordict(**kwargs)

    def clone(self, recurse: bool = True, **kwargs: Any) -> Any:
        """A copy in memory of all rows; with `recurse=False` the same dataset."""
        return self.contiguous() if recurse else self

    def lock_(self) -> ShardedDataset:
        """Nothing: it cannot be changed."""
        return self

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "a dataset of several folders is read only, and has no columns in one piece: take rows (data[10:20]), run "
            "an operation (data.map(fn, out=folder)), or load all of it into memory (data.contiguous())."
        )

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if callable(getattr(TensorDict, name, None)):
            hint = ": it is read only, and rows of it (data[10:20]) or all of them in memory (data.contiguous()) have"
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")

    _leaves = _with_leaves = _map_leaves = _get_str = _set_str = _del_str = _key_list = _nested = _refuse
    _change_batch_size = _rebuild = __setitem__ = __delitem__ = _refuse
    _source = property(_refuse)


def _without_tensors(value: Data, rows: int) -> TensorDict:
    """An entry without anything in it, of so many rows."""
    inner = {key: _without_tensors(entry, rows) for key, entry in value.items()}
    return TensorDict(inner, [rows, *value.batch_size[1:]])


def _outline(rows: Data, count: int) -> TensorDict:
    source: dict[str, Any] = {}
    for name in rows.keys():
        value = rows.get(name)
        if isinstance(value, Tensor):
            source[name] = value.expand(count, *value.shape[1:]) if count else value
        elif is_non_tensor(value):
            source[name] = NonTensorData(value.tolist()[0] if count else None, batch_size=[count])
        else:
            source[name] = _outline(value, count)
    return TensorDict(source, [count])


def _rebuild(members: Any, spans: Any, keys: Any, lazy: bool, none: Data, row_bytes: int | None) -> ShardedDataset:
    data = ShardedDataset(members, spans, keys, lazy, none)
    data._row_bytes = row_bytes
    return data


def _is_number(index: Any) -> bool:
    """Whether an index means one row."""
    if isinstance(index, (Tensor, np.ndarray)) and index.ndim:
        return False
    return hasattr(index, "__index__") and not isinstance(index, bool) and getattr(index, "dtype", None) not in _BOOLS


def _is_array(index: Any) -> bool:
    return isinstance(index, (Tensor, np.ndarray, list, tuple, range)) and not _is_number(index)


_BOOLS = (torch.bool, np.dtype(bool))


def entry_names(data: Data) -> list[Any]:
    """The nested keys of all entries, those included that are no tensors."""
    return list(data.keys(True, True, is_leaf=is_leaf_nontensor))


def is_sharded(data: Any) -> bool:
    """Whether a dataset consists of several folders, or lies in an object store."""
    return isinstance(data, ShardedDataset)
