"""What a dataset may be, and what it consists of.

Everything else in the engine treats a dataset and a result as opaque values. The files of this package are the only
ones that look into the collections of `tensordict_lite`. Dense ones go through the trusted constructor, because a chunk
of a valid collection is valid; other kinds (lazy stacks, non-tensor data) go through their public interface.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, TypeVar

import numpy as np
import torch
from torch import Tensor

from tdmap.memory.mapped import read_only_file
from tdmap.plan import default_chunk_bytes
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.ops.put import signed_view as signed_view

if TYPE_CHECKING:
    from tensordict_lite import LazyStackedTensorDict

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Rows:
    """What the engine asks of a dataset.

        tensors, collections   `InMemory`, which `rows_of` puts around them; chunks are views
        `ShardedDataset`       itself; rows are read from folders, object stores and other sources
        parts of a pipeline    themselves; rows are put together

    What a class leaves out is as it is for rows that are read.
    """

    __slots__ = ()

    @property
    def is_view(self) -> bool:
        """Chunks are views of the dataset, so a function may change it in place, and any dimension can be cut."""
        return False

    @property
    def is_mapped(self) -> bool:
        """Rows are copied out of memory or mapped files: threads do that while the interpreter lock is free."""
        return False

    @property
    def selects(self) -> bool:
        """`select` neither reads nor copies a column."""
        return True

    @property
    def is_remote(self) -> bool:
        """Each read is a request over a network: reads are large, and the next one is announced by `prefetch`."""
        return False

    @property
    def borders(self) -> Sequence[int]:
        """Rows at which another part begins, without the first. A lease ends where a part ends."""
        return ()

    @property
    def blocks(self) -> Sequence[int]:
        """Rows at which another unit of storage begins, without the first; a part of one costs as much as all of it."""
        return ()

    @property
    def in_memory(self) -> Sequence[Data]:
        """What of the dataset is in memory or memory-mapped, and travels to workers as such."""
        return ()

    @property
    def folders(self) -> Collection[str]:
        """Folders and URLs whose rows are opened by the worker that reads them."""
        return ()

    @property
    def files(self) -> Sequence[str]:
        """A file of each such folder: a machine that has the file can open the folder."""
        return ()

    @property
    def shape(self) -> torch.Size:
        """Batch size; rows are in dimension 0."""
        raise NotImplementedError

    @property
    def length(self) -> int | None:
        """Number of rows; None while it is not known."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, objects included."""
        raise NotImplementedError

    @property
    def chunk_bytes(self) -> int:
        """Input and output bytes of a default chunk; more where rows have many entries."""
        return default_chunk_bytes(_count_entries(self.like))

    @property
    def like(self) -> Data:
        """A collection with the entries, dtypes and row shapes of the dataset, of any number of rows."""
        raise NotImplementedError

    def sample(self) -> Data:
        """Rows that show what all are like: the first one, or all where nothing is read for that."""
        raise NotImplementedError

    def outline(self) -> Data:
        """A collection of as many rows that stands for the dataset where keys, dtypes and shapes are asked for."""
        raise NotImplementedError

    def load(self) -> Data:
        """All rows in memory."""
        raise NotImplementedError

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        """Rows `first..last` in chunks of `size`; each row without its dimension if `size` is 0.

        Called for a block of chunks, never for each.

        Args:
            first, last, size: the rows.
            ahead: gives the rows that are read after some others, for `prefetch`.
        """
        raise NotImplementedError

    def take(self, index: Picks) -> Data:
        """Rows in any order, in memory that no other rows are given in."""
        raise NotImplementedError

    def window(self, first: int, last: int) -> Data:
        """Rows `first..last` as a dataset. Nothing is read."""
        raise NotImplementedError

    def prefetch(self, first: int, last: int) -> None:
        """Begin to fetch rows that are read next, where they come from an object store."""

    def at(self, epoch: int, keep: Callable[[Data], Data]) -> Rows:
        """The rows of an epoch of a pipeline; `keep` gives what is in memory a place where workers can read it."""
        return self

    def select(self, *keys: str | tuple[str, ...]) -> Data:
        """The same rows with some of the entries. Nothing is read."""
        raise NotImplementedError

    def with_columns(self, columns: TensorCollection) -> Data:
        """The same rows with more entries, or with these in place of others.

        Args:
            columns: a TensorDict of batch size `[rows]`.
        """
        raise NotImplementedError

    def private(self) -> tuple[Data, list[Tensor]]:
        """The dataset with memory of its own for what functions write into chunks, and the tensors without it."""
        return self, []

    def identities(self) -> Iterator[tuple[str, Any]]:
        """For logs of calls: names, and a string, or a collection, that tells the content from another."""
        raise NotImplementedError

    def _leaves(self) -> list[Tensor]:
        return []


class Dataset(Protocol[R_co]):
    """What operations take: a tensor, a collection of tensors, or a dataset that is read by rows, as `open` gives it.

    `R` is what its rows are in memory: the type of the tensor or the collection.
    """

    @property
    def shape(self) -> torch.Size: ...

    def clone(self) -> R_co: ...

    def __len__(self) -> int: ...


Data: TypeAlias = "TensorCollection | Any"
"""A tensor, a collection of `tensordict_lite`, or `Rows`. To type checkers it is a collection that anything may stand
for: they know its methods, and `isinstance` tells the other two."""

KeyPath: TypeAlias = "tuple[str, ...]"
"""Where an entry is in a collection; empty for a dataset that is a tensor."""

Picks: TypeAlias = "range | Tensor"
"""Row numbers: a run of them, or int64 in any order."""

Ahead: TypeAlias = Callable[[int, int], "tuple[int, int] | None"]


def is_data(value: object) -> bool:
    """Whether `value` is a tensor, a collection of tensors or another dataset."""
    return isinstance(value, (Tensor, TensorCollection, Rows))


def is_dense(value: object) -> TypeGuard[DenseCollection]:
    """A collection whose entries are in a plain dict: `TensorDict` and tensorclasses."""
    return isinstance(value, DenseCollection) and type(value._source) is dict and not value._is_non_tensor


def _count_entries(node: Data) -> int:
    """Tensors that a chunk has a view of. A lazy stack counts as one: its chunks have whole members."""
    return sum(map(_count_entries, node._source.values())) if is_dense(node) else 1


def has_members(value: object) -> TypeGuard[LazyStackedTensorDict]:
    """A lazy stack of collections, along its `stack_dim`."""
    if not isinstance(value, TensorCollection) or value._is_non_tensor:
        return False
    return getattr(value, "stack_dim", None) is not None


def is_read_anew(value: object) -> bool:
    """Whether entries and rows are copies in memory of what a file holds: a `PersistentTensorDict`."""
    return hasattr(type(value), "_loaded")


def concatenated(parts: Sequence[R]) -> R:
    """The rows of parts, one after the other; of one part, the part itself."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))  # type: ignore[arg-type, return-value]


def key_name(path: KeyPath, root: str = "the result") -> str:
    """How messages name a key."""
    return repr(path[0] if len(path) == 1 else path) if path else root


def require_writable(out: object) -> None:
    """Raise an error for an output that would lose what is written into it.

    Raises:
        ValueError: its rows are copies.
        PermissionError: it lies in files that are mapped copy-on-write.
    """
    if isinstance(out, Rows):
        raise ValueError(
            "out cannot be a sharded dataset, which is read-only: pass the path of a new folder (with "
            "rows_per_shard= for several), None, or a dataset that TensorDict.load_memmap opened."
        )
    if isinstance(out, TensorCollection):
        _require_views(out, ())
    file = read_only_file(tensors_of(out))
    if file is not None:
        raise PermissionError(
            f"out is mapped from {file}, which is read-only: load the dataset with mode='r+' from writable "
            "files, or pass the path of a new folder as out=."
        )


def _require_views(out: Data, path: tuple[str, ...]) -> None:
    if is_read_anew(out):
        where = f"the entry {key_name(path)} of out" if path else "out"
        raise ValueError(
            f"{where} is a {type(out).__name__}, whose rows are copies in memory, so results would not reach "
            "its file: pass the path of a new folder as out=, or out=None and assign the result, as in "
            "data[:] = result."
        )
    if is_dense(out):
        for key, entry in out._source.items():
            if isinstance(entry, TensorCollection):
                _require_views(entry, (*path, key))
    elif has_members(out):
        for member in out.tensordicts:
            _require_views(member, path)


def instead_of_data(value: object) -> str:
    """What was passed where a dataset is needed, and how to make one of it."""
    if isinstance(value, np.ndarray):
        return "a numpy array: use torch.from_numpy(array)."
    if isinstance(value, Mapping):
        return f"a {type(value).__name__}: use TensorDict(mapping, batch_size=[rows])."
    if isinstance(value, (str, os.PathLike)):
        return f"the path {os.fspath(value)!r}: use TensorDict.load_memmap(path)."
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__}: use torch.tensor(values), or TensorDict({{'value': values}}, [len(values)])."
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return f"a {type(value).__name__}: use TensorDict({{name: table[name] for name in table}}, [len(table)])."
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        return f"the function {name}: pass the data first, and the function second."
    return f"a {type(value).__name__}: use a torch.Tensor, a TensorDict or a tensorclass."


def tensors_of(data: Data) -> list[Tensor]:
    """The tensors in `data`, as a flat list. Of a sharded dataset none: its folders are not open."""
    return [data] if isinstance(data, Tensor) else list(data._leaves())


def stored_leaves(data: Data, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Path and value of each entry that is no collection; those of a lazy stack by member, with its number in the path.

    Of a tensor, itself with an empty path.
    """
    if isinstance(data, Tensor) or data._is_non_tensor:
        yield path, data
    elif has_members(data):
        for number, member in enumerate(data.unbind(data.stack_dim)):
            yield from stored_leaves(member, (*path, str(number)))
    else:
        for key in data.keys():
            yield from stored_leaves(data._get_str(key), (*path, key))


def with_tensors(data: Data, tensors: Sequence[Tensor]) -> Data:
    """The same tree around other tensors of the same batch size, in the order of `tensors_of`."""
    return tensors[0] if isinstance(data, Tensor) else data._with_leaves(iter(tensors))


def entries_of(data: Data) -> Mapping[str, Any]:
    """The entries of a dense collection as they are: what `items()` would unwrap is not."""
    entries: Mapping[str, Any] = data._source
    return entries


def stored_entry(data: Data, key: str | tuple[str, ...]) -> Any:
    """An entry as it is stored, where `get` of a tensorclass gives objects; None where there is none."""
    for name in (key,) if isinstance(key, str) else key:
        if isinstance(data, Tensor):
            return None
        if not isinstance(data, TensorCollection):  # rows of several folders
            data = data.get(name, None)
        elif name in data.keys():
            data = data._get_str(name)
        else:
            return None
    return data


def with_entries(example: Data, entries: dict[str, Any], rows: int | None = None) -> Data:
    """A dense collection like `example` with other entries, and another number of rows, if that is given."""
    shape = example._batch_size
    return example._rebuild(entries, shape if rows is None else torch.Size((rows, *shape[1:])), example._names)


def device_of(data: Data) -> torch.device | None:
    """The device of a tensor of `data` that is not in memory; None where all are."""
    for tensor in tensors_of(data):
        if tensor.device.type != "cpu":
            return tensor.device
    return None


def leaves_hold_rows(data: Data) -> bool:
    """Whether every tensor in `data` has the rows along the same dim; the members of a lazy stack need not."""
    if isinstance(data, Tensor):
        return True
    if is_dense(data):
        return all(leaves_hold_rows(value) for value in data._source.values())
    return isinstance(data, TensorCollection) and not data._leaves()


def tensor_bytes(data: Data, length: int) -> int:
    """Bytes that the tensors of `data` take in one of its `length` rows; see `row_bytes_of` for all of a row."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(data)) // max(length, 1)
