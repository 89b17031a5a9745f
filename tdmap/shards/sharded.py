"""Rows of several datasets as those of one, read where they lie.

    rows      0 ......... 99 | 100 ......... 199 | 200 ..... 249
    members   shard-00000      shard-00001         shard-00002

A `ShardedDataset` has the shape, keys and rows of the datasets that it consists of, one after another, and copies
nothing: it is their names and how many rows each of them has. Rows are read when they are indexed. Within one folder
they are views of its files, mapped copy-on-write; across two they are copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from tdmap.data.combine import Concat, Zip
from tdmap.data.entries import MASKS, row_number, row_numbers
from tdmap.data.kinds import Ahead, Data, Picks, Rows
from tdmap.data.reader import InMemory, cut, rows_of
from tdmap.data.sizes import row_bytes_of
from tdmap.process_state import on_host
from tdmap.shards.sources import SourceSpan, spans_of
from tensordict_lite import NonTensorData, TensorDict, is_non_tensor
from tensordict_lite.api.engine import EngineOps
from tensordict_lite.base import TensorCollection
from tensordict_lite.indexing import index_part
from tensordict_lite.views import is_leaf_nontensor

SAMPLE_ROWS = 8
"""Rows that tell how many bytes the others have."""


@on_host
class ShardedDataset(Rows, EngineOps):
    """A read-only dataset over several folders, an object store, a Zarr store or an HDF5 file.

    `tdmap.open` and `tdmap.concat` return it. Every operation takes it, and it has the methods `map`, `map_iter`,
    `map_reduce` and `pipeline` of a TensorDict. `data[rows]` is a collection of these rows; changes to it do not reach
    the files. `data["key"]` loads a whole column into memory.

    Attributes:
        shards: the names of the folders, in order.
        ends: one-past-last row of each folder.

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
        spans: Sequence[SourceSpan],
        lazy: bool = False,
        none: Data | None = None,
        columns: TensorDict | None = None,
        row_bytes: int | None = None,
    ) -> None:
        self._spans = tuple(spans)
        self._parts = Concat(self._spans, torch.cat)  # which have been found to be alike
        self._columns = columns
        self._is_lazy = lazy
        self._none = none
        self._row_bytes = row_bytes
        limits = [span.source.read_bytes for span in self._spans if span.source.read_bytes is not None]
        self._read_bytes = min(limits, default=None)
        self._batch_size = torch.Size((self._parts.ends[-1], *self.like.shape[1:]))
        self._rows: Rows = self._parts
        if columns is not None:
            self._rows = InMemory(columns) if self._keys == () else Zip((self._parts, InMemory(columns)))

    def __reduce__(self) -> Any:
        return ShardedDataset, (self._spans, self._is_lazy, self.like, self._columns, self._row_bytes)

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def shards(self) -> list[str]:
        """The names of the folders, in order; of those in memory, what messages call them."""
        return [span.source.name for span in self._spans]

    @property
    def ends(self) -> list[int]:
        """One-past-last row of each folder."""
        return list(self._parts.ends)

    @property
    def _keys(self) -> tuple[Any, ...] | None:
        """The entries that are read of the sources; None for all."""
        return self._spans[0].keys

    @property
    def batch_size(self) -> torch.Size:
        """Rows, and the other batch dimensions of each folder."""
        return self._batch_size

    shape = batch_size

    def __len__(self) -> int:
        return self._batch_size[0]

    @property
    def folders(self) -> Collection[str]:
        """The names of those that lie in folders or stores."""
        return self._parts.folders

    @property
    def files(self) -> Sequence[str]:
        return self._parts.files

    @property
    def in_memory(self) -> Sequence[Data]:
        return self._parts.in_memory if self._columns is None else [*self._parts.in_memory, self._columns]

    @property
    def borders(self) -> list[int]:
        """Rows at which another folder begins, without the first."""
        return self._parts.borders

    @property
    def blocks(self) -> list[int]:
        return self._parts.blocks

    @property
    def is_remote(self) -> bool:
        """Whether rows are fetched from an object store."""
        return self._parts.is_remote

    @property
    def is_mapped(self) -> bool:
        return self._read_bytes is None

    @property
    def like(self) -> Data:
        if self._none is None:
            self._none = self._spans[0].like
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
        for place, span in enumerate(self._spans):
            for name, identity in span.identities():
                yield f"shard {place}, {name}", identity

    def private(self) -> tuple[Data, list[Tensor]]:
        if self.is_remote:
            return self, []
        spans = spans_of(span.run for span in self._spans)  # mapped anew, as in another process
        return ShardedDataset(spans, self._is_lazy, self.like, self._columns, self._row_bytes), []

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

    def __contains__(self, key: object) -> bool:
        return key in self.like.keys(isinstance(key, tuple))

    @property
    def arrow_types(self) -> dict[Any, str]:
        """The types of dates and times, as `TensorDict.arrow_types`; those that the first member has."""
        return self.like.arrow_types

    @arrow_types.setter
    def arrow_types(self, types: object) -> None:
        raise TypeError(
            "the types of a sharded dataset are fixed by its folders: write a new dataset, by map or filter."
        )

    def items(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, Any]]:
        """Keys and columns. The iterator loads one column at a time."""
        for key in list(self.keys(*args, **kwargs)):
            yield key, self.get(key)

    def values(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """The columns. The iterator loads one column at a time."""
        for _, value in self.items(*args, **kwargs):
            yield value

    def get(self, key: Any, default: Any = ..., **kwargs: Any) -> Any:
        """Load a whole column into memory. For some rows use `data[rows][key]`."""
        if key not in self:
            return self.like.get(key) if default is ... else default
        return self._with_column(key).get(key)

    def _with_column(self, key: str | tuple[str, ...]) -> Data:
        part = self.select(key)
        if part._keys or part._columns is not None:
            return part.contiguous()
        return TensorDict({key: _without_tensors(self.like.get(key), len(self))}, [len(self)])

    def select(self, *keys: Any, **kwargs: Any) -> ShardedDataset:
        """The same rows with some of the entries; other entries are not read."""
        chosen = self.like.select(*keys, **kwargs)
        names, columns = entry_names(chosen), self._columns
        if columns is not None:
            kept = [name for name in names if name in columns.keys()]
            names = [name for name in names if name not in kept]
            columns = columns.select(*kept) if kept else None
        return ShardedDataset(self._reading(names), self._is_lazy, chosen, columns)

    def exclude(self, *keys: Any, **kwargs: Any) -> ShardedDataset:
        """The same rows without some of the entries, which are not read."""
        return self.select(*entry_names(self.like.exclude(*keys)))

    def with_columns(self, columns: TensorCollection) -> ShardedDataset:
        mine = {} if self._columns is None else dict(self._columns.items())
        wider = TensorDict({**mine, **columns}, [len(self)])
        theirs = entry_names(self.like.exclude(*mine))
        clash = any(name in theirs for name in wider.keys())
        spans = self._reading([name for name in theirs if name not in wider.keys()]) if clash else self._spans
        return ShardedDataset(spans, self._is_lazy, rows_of(self.like).with_columns(columns[:0]), wider)

    def _reading(self, keys: Sequence[Any]) -> list[SourceSpan]:
        """The same rows, with some of the entries that are read."""
        return [replace(span, keys=tuple(keys)) for span in self._spans]

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
        spans = cast("tuple[SourceSpan, ...]", self._parts.window(first, last).parts)
        columns = None if self._columns is None else self._columns[first:last]
        lazy = self._is_lazy if lazy is None else lazy
        return ShardedDataset(spans, lazy, self.like, columns, self._row_bytes)

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
        for begin, end in self._parts.aligned(first, last, size):
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

    def _load(self, first: int, last: int) -> Data:
        return self._rows.take(range(first, last)) if first < last else self.like.clone()

    def prefetch(self, first: int, last: int) -> None:
        """Begin to fetch rows that will be read soon, where they come from an object store."""
        self._rows.prefetch(first, last)

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
        part = index_part(index)
        if isinstance(part, slice):
            return self._slice(part)
        if _is_row(part):
            row = row_number(int(part), len(self))
            return self._load(row, row + 1)[0]
        if isinstance(part, Tensor) and part.ndim:
            found = self._take(part)
            return found if part.ndim == 1 else found[torch.arange(len(found)).view(part.shape)]
        return self.contiguous()[part]  # None, an ellipsis or one bool

    def _index_many(self, index: tuple[Any, ...]) -> Any:
        if not index:
            return self
        rows, *rest = map(index_part, index)
        if not (_is_row(rows) or isinstance(rows, slice) or (isinstance(rows, Tensor) and rows.ndim)):
            return self.contiguous()[index]
        found = self[rows]
        if not rest or _is_row(rows):
            return found[tuple(rest)] if rest else found
        paired = isinstance(rows, Tensor) and any(isinstance(part, Tensor) and part.ndim for part in rest)
        return found[(torch.arange(len(found)) if paired else slice(None), *rest)]

    def _slice(self, index: slice) -> Any:
        first, last, step = index.indices(len(self))
        if step < 0:
            raise ValueError("step must be greater than zero")
        if step != 1:
            return self._take(torch.arange(first, last, step))
        if self._is_lazy:
            return self.window(first, max(last, first))
        return self._load(first, max(last, first))

    def take(self, index: Picks) -> Data:
        return self._load(index.start, index.stop) if isinstance(index, range) else self._take(index)

    def _take(self, index: Tensor) -> Data:
        rows = row_numbers(index, len(self))
        if not len(rows):
            return self.like.clone()
        return self._rows.take(rows)

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """The rows of a batch, for the `DataLoader` of torch."""
        return self[list(rows)]

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> Any:
        """Split the rows into pieces, as `TensorDict.split` along dimension 0."""
        if dim not in (0, -len(self._batch_size)):
            raise ValueError(f"the rows of a sharded dataset are in dimension 0: dim={dim} is not supported.")
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

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            "a sharded dataset is read-only: take rows (data[10:20]), run an operation (data.map(fn, "
            "out=folder)), or load it into memory (data.contiguous())."
        )

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if callable(getattr(TensorDict, name, None)):
            hint = ": it is read-only. Use rows of it (data[10:20]), or a copy in memory (data.contiguous())"
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


def _is_row(part: object) -> bool:
    return type(part) is int or (isinstance(part, Tensor) and not part.ndim and part.dtype not in MASKS)


def entry_names(data: Data) -> list[Any]:
    """The nested keys of all entries, those included that are no tensors."""
    return list(data.keys(True, True, is_leaf=is_leaf_nontensor))
