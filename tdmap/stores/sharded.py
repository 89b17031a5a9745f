"""Rows of several datasets as those of one, read where they lie.

    rows      0 ......... 99 | 100 ......... 199 | 200 ..... 249
    members   shard-00000      shard-00001         shard-00002

A `ShardedDataset` has the shape, keys and rows of the datasets that it consists of, one after another, and copies
nothing: it is their names and how many rows each of them has. Rows are read when they are indexed. Within one folder
they are views of its files, mapped copy-on-write; across two they are copies.
"""

from __future__ import annotations

import bisect
import functools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from tdmap.data.combine import take_from_parts
from tdmap.data.entries import row_number, row_numbers
from tdmap.data.kinds import Ahead, Data, Picks, Rows
from tdmap.data.reader import cut, narrow, row_bytes_of, rows_of
from tdmap.process_state import on_host
from tdmap.stores.sources import OpenRows, RowSource
from tensordict_lite import NonTensorData, TensorDict, is_non_tensor
from tensordict_lite.api.engine import EngineOps
from tensordict_lite.views import is_leaf_nontensor

MOST_OPEN = 64
"""Members that one process keeps open."""

MOST_BLOCKS = 100_000
"""Of a source with more blocks, several count as one."""

SAMPLE_ROWS = 8
"""Rows that tell how many bytes the others have."""

Span = tuple[int, int, int]
"""A run of rows of one member: its number, the first row and the one past the last."""


@on_host
class ShardedDataset(Rows, EngineOps):
    """A dataset whose rows are read where they lie: in several folders, in an object store, in arrays of Zarr.

    Made by `tdmap.open` and `tdmap.concat`. Every operation takes it, and it has the methods `map`, `map_iter`,
    `map_reduce` and `pipeline` of a TensorDict. It is read only, and no collection: `data[rows]` is a collection of
    these rows, which the caller may change without an effect on the files; `data["key"]` is a whole column, in memory.

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

    fetch_next: Callable[[], None]
    """Of a lazy window: fetches the next one."""

    def __init__(
        self,
        sources: Sequence[RowSource],
        spans: Sequence[Span] | None = None,
        keys: Sequence[Any] | None = None,
        lazy: bool = False,
        none: Data | None = None,
        columns: TensorDict | None = None,
    ) -> None:
        self._sources = tuple(sources)
        spans = [(number, 0, source.rows) for number, source in enumerate(sources)] if spans is None else spans
        self._spans = tuple(spans)
        self._ends = list(np.cumsum([last - first for _, first, last in self._spans], dtype=np.int64).tolist())
        self._keys = None if keys is None else tuple(keys)
        self._columns = columns
        self._is_lazy = lazy
        self._opened: OrderedDict[int, OpenRows] = OrderedDict()
        self._none = none
        self._row_bytes: int | None = None
        limits = [source.read_bytes for source in self._sources if source.read_bytes is not None]
        self._read_bytes = min(limits, default=None)
        self._batch_size = torch.Size((self._ends[-1] if self._ends else 0, *self.like.shape[1:]))

    def __reduce__(self) -> Any:
        parts = self._sources, self._spans, self._keys, self._is_lazy, self.like, self._columns
        return _rebuild, (*parts, self._row_bytes)

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def shards(self) -> list[str]:
        """The names of the folders, in order; of those in memory, what messages call them."""
        return [source.name for source in self._spanned()]

    @property
    def ends(self) -> list[int]:
        """One-past-last row of each folder."""
        return list(self._ends)

    def _spanned(self) -> Iterator[RowSource]:
        """The source of each span."""
        return (self._sources[number] for number, _, _ in self._spans)

    @property
    def batch_size(self) -> torch.Size:
        """Rows, and the other batch dimensions of each folder."""
        return self._batch_size

    shape = batch_size

    def __len__(self) -> int:
        return self._batch_size[0]

    @property
    def folders(self) -> list[str]:
        """The names of those that lie in folders or stores."""
        return [source.name for source in self._spanned() if source.data is None]

    @property
    def files(self) -> list[str]:
        return [file for source in self._spanned() for file in source.files()]

    @property
    def in_memory(self) -> list[Data]:
        found = [source.data for source in self._spanned() if source.data is not None]
        return found if self._columns is None else [*found, self._columns]

    @property
    def borders(self) -> list[int]:
        """Rows at which another folder begins, without the first."""
        return self._ends[:-1]

    @property
    def blocks(self) -> list[int]:
        found, start = [], 0
        for (number, first, last), end in zip(self._spans, self._ends):
            block = self._sources[number].block
            if block > 1:
                block *= -(-(last - first) // (block * MOST_BLOCKS)) or 1
                found += [start + row - first for row in range((first // block + 1) * block, last, block)]
            start = end
        return found

    @property
    def is_remote(self) -> bool:
        """Whether rows are fetched from an object store."""
        return any(source.is_remote for source in self._spanned())

    @property
    def like(self) -> Data:
        if self._none is None:
            number, first, _ = self._spans[0]
            self._none = self._chosen(self._open(number).read(first, first, self._keys).clone())
        return self._none

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, objects included, as the first rows have them."""
        if self._row_bytes is None:
            first = self._load(0, min(SAMPLE_ROWS, len(self)))
            self._row_bytes = row_bytes_of(first, len(first)) if len(first) else 0
        return self._row_bytes

    def identities(self) -> Iterator[tuple[str, Any]]:
        yield "entries", ", ".join(sorted(map(str, self.keys(True, True))))
        for place, (number, first, last) in enumerate(self._spans):
            yield f"shard {place}, rows {first}:{last}", self._sources[number].identity()

    def private(self) -> tuple[Data, list[Tensor]]:
        if self.is_remote:
            return self, []
        rebuild, parts = self.__reduce__()  # with mappings of its own, as in another process
        return rebuild(*parts), []

    def __repr__(self) -> str:
        keys = ", ".join(repr(key) for key in entry_names(self.like))
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
        return self.like.keys(*args, **kwargs)

    def __contains__(self, key: Any) -> bool:
        return key in self.like.keys(isinstance(key, tuple))

    @property
    def arrow_types(self) -> dict[Any, str]:
        """The types of dates and times, as `TensorDict.arrow_types`; those that the first member has."""
        return self.like.arrow_types  # type: ignore[no-any-return]

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
            return self.like.get(key) if default is ... else default
        return self._with_column(key).get(key)

    def _with_column(self, key: Any) -> Data:
        """A collection with a whole entry."""
        part = self.select(key)
        if part._keys or part._columns is not None:
            return part.contiguous()
        return TensorDict({key: _without_tensors(self.like.get(key), len(self))}, [len(self)])

    def select(self, *keys: Any, **kwargs: Any) -> ShardedDataset:
        """The same rows with some of the entries; the others are not read."""
        chosen = self.like.select(*keys, **kwargs)
        names, columns = entry_names(chosen), self._columns
        if columns is not None:
            kept = [name for name in names if name in columns.keys()]
            names = [name for name in names if name not in kept]
            columns = columns.select(*kept) if kept else None
        return self._part(self._spans, names, none=chosen, columns=columns)

    def exclude(self, *keys: Any, **kwargs: Any) -> ShardedDataset:
        """The same rows without some of the entries, which are not read."""
        return self.select(*entry_names(self.like.exclude(*keys)))

    def with_columns(self, columns: TensorDict) -> ShardedDataset:
        mine = {} if self._columns is None else dict(self._columns.items())
        wider = TensorDict({**mine, **columns}, [len(self)])
        theirs = entry_names(self.like.exclude(*mine))
        keys = self._keys
        if any(name in theirs for name in wider.keys()):
            keys = tuple(name for name in theirs if name not in wider.keys())
        return self._part(self._spans, keys, none=rows_of(self.like).with_columns(columns[:0]), columns=wider)

    def _part(
        self,
        spans: Sequence[Span],
        keys: Sequence[Any] | None,
        lazy: bool | None = None,
        none: Data | None = None,
        columns: TensorDict | None = None,
    ) -> ShardedDataset:
        """Another dataset of the same sources, which it has open as well."""
        part = ShardedDataset(self._sources, spans, keys, self._is_lazy if lazy is None else lazy, none, columns)
        part._opened = self._opened
        return part

    @property
    def _is_of_columns(self) -> bool:
        """Whether nothing is read of the sources."""
        return self._keys == () and self._columns is not None

    def _chosen(self, rows: Data) -> Data:
        return rows if self._keys is None else rows.select(*self._keys)

    def _wide(self, rows: Data, first: int, last: int) -> Data:
        """Rows `first..last` of the sources with those of the columns in memory."""
        if self._columns is None:
            return rows
        return rows_of(rows).with_columns(narrow(self._columns, 0, first, last))

    def sample(self) -> Data:
        return self._load(0, min(1, len(self)))

    def outline(self) -> TensorDict:
        """A TensorDict whose tensors are those of the first row, as often as there are rows; they take no memory."""
        return _outline(self.sample(), len(self))

    # -- rows ------------------------------------------------------------------------------------------------

    def window(self, first: int, last: int, lazy: bool | None = None) -> ShardedDataset:
        """Rows `first..last` as a dataset of their own, of which nothing is read yet.

        Args:
            first, last: the rows.
            lazy: its slices are windows as well, and not rows.
        """
        spans = list(self._pieces(first, last)) or [(self._spans[0][0], 0, 0)]
        columns = None if self._columns is None else narrow(self._columns, 0, first, last)
        part = self._part(spans, self._keys, lazy, self.like, columns)
        part._row_bytes = self._row_bytes  # a request for each window is one too many
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

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        if self._is_lazy:
            yield from self._windows(first, last, size, ahead)
            return
        runs = list(self._runs(first, last, max(size, 1)))
        for number, (begin, end) in enumerate(runs, 1):
            rows = self._load(begin, end)
            if ahead is not None:
                following = runs[number] if number < len(runs) else ahead(begin, end)
                if following is not None:
                    self.prefetch(*following)
            yield from cut(rows, 0, 0, end - begin, size) if size else rows.unbind(0)

    def _runs(self, first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
        """Runs of chunks that are read in one go: of one folder, and of no more bytes than its source reads."""
        most = self._read_bytes
        step = last - first if most is None else max(most // max(self.row_bytes * size, 1), 1) * size
        for begin, end in self.aligned(first, last, size):
            for start in range(begin, end, step):
                yield start, min(start + step, end)

    def _windows(self, first: int, last: int, size: int, ahead: Ahead | None) -> Iterator[Data]:
        """Chunks that are names of rows, which know how to fetch those of the next one."""
        for begin in range(first, last, size):
            end = min(begin + size, last)
            rows = self.window(begin, end)
            following = None
            if ahead is not None:
                following = (end, min(end + size, last)) if end < last else ahead(begin, end)
            if following is not None:
                rows.fetch_next = functools.partial(self.prefetch, *following)
            yield rows

    def _open(self, number: int) -> OpenRows:
        rows = self._opened.get(number)
        if rows is None:
            rows = self._opened[number] = self._sources[number].open()
            if len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)
        else:
            self._opened.move_to_end(number)
        return rows

    def _load(self, first: int, last: int) -> Data:
        pieces = [self._read(*piece) for piece in self._pieces(first, last)]
        if not pieces:
            return self.like.clone()
        return self._wide(pieces[0] if len(pieces) == 1 else torch.cat(pieces), first, last)

    def _read(self, number: int, first: int, last: int) -> Data:
        if self._is_of_columns:
            return TensorDict({}, [last - first])
        return self._chosen(self._open(number).read(first, last, self._keys))

    def prefetch(self, first: int, last: int) -> None:
        """Begin to fetch rows that will be read soon, where they come from an object store."""
        for number, begin, end in self._pieces(first, last):
            if self._sources[number].is_remote and not self._is_of_columns:
                self._open(number).prefetch(begin, end, self._keys)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        raise TypeError(
            f"torch.{name} takes collections in memory, not datasets of several folders: use contiguous() to load "
            "one, tdmap.concat to put several one after another, or tdmap.map to change the rows."
        )

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(k, str) for k in index)):
            return (self._with_column(index) if index in self else self.like)[index]
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

    def take(self, index: Picks) -> Data:
        return self._load(index.start, index.stop) if isinstance(index, range) else self._take(index)

    def _take(self, index: Any) -> Data:
        rows = row_numbers(index, len(self))
        if not len(rows):
            return self.like.clone()
        found = self._take_theirs(rows)
        return found if self._columns is None else rows_of(found).with_columns(self._columns[rows])

    def _take_theirs(self, rows: Tensor) -> Data:
        """Rows of the sources."""
        return take_from_parts(rows, self._ends, self._take_from)

    def _take_from(self, place: int, rows: Tensor) -> Data:
        number, begin, _ = self._spans[place]
        if self._is_of_columns:
            return TensorDict({}, [len(rows)])
        return self._chosen(self._open(number).take(rows + begin, self._keys))

    def __getitems__(self, rows: Any) -> Any:
        """The rows of a batch, for the `DataLoader` of torch."""
        return self[list(rows)]

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> Any:
        """Rows as pieces of so many rows; as `TensorDict.split`, along dimension 0."""
        if dim not in (0, -len(self._batch_size)):
            raise ValueError(f"the rows of several folders lie along dimension 0: they cannot be cut along dim={dim}.")
        sizes = split_size if not isinstance(split_size, int) else [split_size] * (-(-len(self) // split_size))
        pieces, first = [], 0
        for size in sizes:
            pieces.append(self[first : min(first + size, len(self))])
            first += size
        return tuple(pieces)

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self[row]

    # -- all of it -------------------------------------------------------------------------------------------

    def contiguous(self) -> Data:
        """All rows, in memory."""
        rows = self._load(0, len(self))
        return rows if len(self._spans) > 1 else rows.clone()

    load = contiguous

    def to_tensordict(self, **kwargs: Any) -> Any:
        """All rows, in memory, as a TensorDict."""
        return self.contiguous().to_tensordict(**kwargs)

    def clone(self, recurse: bool = True, **kwargs: Any) -> Any:
        """A copy in memory of all rows; with `recurse=False` the same dataset."""
        return self.contiguous() if recurse else self

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError(
            "a dataset of several folders is read only: take rows (data[10:20]), run an operation (data.map(fn, "
            "out=folder)), or load all of it into memory (data.contiguous())."
        )

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if callable(getattr(TensorDict, name, None)):
            hint = ": it is read only, and rows of it (data[10:20]) or all of them in memory (data.contiguous()) have"
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")


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


def _rebuild(
    sources: Any, spans: Any, keys: Any, lazy: bool, none: Data, columns: TensorDict | None, row_bytes: int | None
) -> ShardedDataset:
    data = ShardedDataset(sources, spans, keys, lazy, none, columns)
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
