"""Datasets in an object store, read by ranges.

    open       one listing of the folder, its meta.json, and that of each nested collection
    read       one request for each column: the bytes of the rows, and nothing else
    prefetch   the same in a thread, for the rows that come next

The format is that of a folder: `meta.json` and one `.memmap` object a column, two for many strings (see
`tdmap.stores.text`). What else is no plain tensor (few strings, objects, rows of different shapes) is fetched whole,
once for each folder, by the first read of a row of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tdmap.data.entries import path_of
from tdmap.data.kinds import Data
from tdmap.memory.scratch import temporary_folder
from tdmap.processes import Owner
from tdmap.shards.manifest import MANIFEST, unpack, why_no_dataset
from tdmap.shards.sources import OpenRows, RowSource, digest_of_bytes, state_of
from tdmap.stores.store import Store, require_reachable, store_of
from tdmap.stores.text import Piece, Text, text_of_meta
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.format import META, SUFFIX, NodeMeta, decode_json, encode_key, parse_meta
from tensordict_lite.memmap.load import DTYPES
from tensordict_lite.ops.arrow_types import pruned

GAP_BYTES = 64 << 10
"""Rows that are no further apart than so many bytes are fetched in one request."""

FETCHED_BYTES = 64 << 20
"""Bytes of rows that are fetched in one go, unless a chunk has more."""

AHEAD = 2
"""Runs of rows that are fetched ahead, at most."""

Run = tuple[int, int]
Path = tuple[str, ...]


def members_at(url: str, options: dict[str, Any]) -> list[StoreSource]:
    """The datasets at a URL: those of its manifest, or the one that is there.

    Raises:
        DatasetNotFoundError: there is neither.
        PermissionError: the store refuses to show it.
    """
    url = url.rstrip("/")
    store = store_of(url, options)
    listed = store.content_if_any(f"{url}/{MANIFEST}")
    if listed is not None:
        shards = unpack(f"{url}/{MANIFEST}", listed)
        return [StoreSource(f"{url}/{shard.path}", shard.rows, shard.meta, options) for shard in shards]
    meta = store.content_if_any(f"{url}/{META}")
    if meta is None:
        raise DatasetNotFoundError(url, _why_nothing(store, url))
    member = StoreSource(url, -1, digest_of_bytes(meta), options)
    member.rows = member.open().rows
    return [member]


def _why_nothing(store: Store, url: str) -> str:
    try:
        names = store.names(url)
    except FileNotFoundError:
        return "there is no such bucket"
    return why_no_dataset(names)


class StoreSource(RowSource):
    """A dataset at a URL."""

    is_remote = True
    read_bytes = FETCHED_BYTES

    def __init__(self, url: str, rows: int, digest: str, options: dict[str, Any]) -> None:
        super().__init__(url, rows)
        self.digest = digest
        self.options = options

    def __getstate__(self) -> dict[str, Any]:
        require_reachable(self.name)
        return self.__dict__

    def open(self) -> RemoteRows:
        return RemoteRows(self, store_of(self.name, self.options))

    def identity(self) -> str:
        objects = store_of(self.name, self.options).find(self.name)
        return f"{self.name}, {self.rows} rows, metadata {self.digest}, {state_of(objects)}"


@dataclass(slots=True)
class _Leaf:
    file: str
    """Its object, relative to the dataset."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of a row."""
    row_bytes: int


@dataclass(slots=True)
class _Node:
    """A collection whose columns are fetched by rows."""

    meta: NodeMeta
    entries: dict[str, Any] = field(default_factory=dict)
    """`_Leaf`, `Text`, `_Node`, or `_Whole`, in the order of the dataset."""


@dataclass(slots=True)
class _Whole:
    """A collection that is fetched at once."""

    folder: str
    data: Data = None


class RemoteRows(OpenRows):
    """The rows of one dataset in a store.

    Args:
        member: the dataset.
        store: where it is.

    Raises:
        DatasetError: it is missing, is not what was opened, or an object of it has another length than it should.
    """

    def __init__(self, member: StoreSource, store: Store) -> None:
        self.url = member.name
        self.rows = member.rows
        self.store = store
        self.objects = store.find(self.url)
        if META not in self.objects:
            raise DatasetNotFoundError(self.url, f"is missing: it has no {META}")
        self._ahead: dict[tuple[int, int, Any], Future[Data]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._owner = Owner()
        meta = store.content(f"{self.url}/{META}")
        if digest_of_bytes(meta) != member.digest:
            raise DatasetError(self.url, "is not the shard that was listed: it has been replaced")
        tree = self._look("", meta)
        if isinstance(tree, Text):
            raise DatasetError(self.url, "is a column of strings, not a dataset")
        self.tree = tree
        shape = self.tree.meta.shape if isinstance(self.tree, _Node) else self._whole(self.tree).shape
        if not shape:
            raise DatasetError(self.url, "has no rows: its batch size is []")
        if self.rows not in (-1, shape[0]):
            raise DatasetError(self.url, f"has {shape[0]} rows, and had {self.rows} when it was listed")
        self.rows = int(shape[0])

    # -- the tree ----------------------------------------------------------------------------------------------

    def _look(self, folder: str, content: bytes | None = None) -> _Node | _Whole | Text:
        path = f"{self.url}/{folder}{META}"
        content = self.store.content(path) if content is None else content
        meta = parse_meta(path, f"{self.url}/{folder}".rstrip("/"), decode_json(path, content))
        text = text_of_meta(self.url, folder, meta, self.objects)
        if text is not None:
            return text
        ragged = any(leaf.is_nested or leaf.dtype not in DTYPES for leaf in meta.leaves.values())
        if meta.kind != "tensordict" or meta.is_foreign or ragged or not meta.lists_children:
            return _Whole(folder)
        node = _Node(meta)
        for key in meta.raw if "_entries" not in meta.raw else (*meta.leaves, *meta.children):
            if key in meta.leaves:
                node.entries[key] = self._leaf(folder, key, meta)
            elif key in meta.children:
                node.entries[key] = self._look(f"{folder}{encode_key(key)}/")
        return node

    def _leaf(self, folder: str, key: str, meta: NodeMeta) -> _Leaf:
        leaf = meta.leaves[key]
        file = f"{folder}{key if key.isidentifier() else encode_key(key)}{SUFFIX}"
        shape, dtype = leaf.shape[1:], DTYPES[leaf.dtype]
        row_bytes = torch.Size(shape).numel() * dtype.itemsize
        needed, (found, _) = row_bytes * leaf.shape[0], self.objects.get(file, (-1, ""))
        if needed and found < needed:
            what = "is missing" if found < 0 else f"has {found} bytes instead of {needed}: it is truncated"
            raise DatasetError(f"{self.url}/{file}", what)
        return _Leaf(file, dtype, shape, row_bytes)

    # -- rows --------------------------------------------------------------------------------------------------

    def read(self, first: int, last: int, keys: Sequence[Any] | None = None) -> Data:
        self._forget_if_forked()
        for (begin, end, wanted), future in list(self._ahead.items()):
            if wanted == keys and begin <= first and last <= end:
                if last == end:
                    del self._ahead[begin, end, wanted]
                rows = future.result()
                return rows if (begin, end) == (first, last) else rows[first - begin : last - begin]
        return self._rows([(first, last)], keys)

    def prefetch(self, first: int, last: int, keys: Sequence[Any] | None = None) -> None:
        self._forget_if_forked()
        known = any(begin <= first and last <= end and wanted == keys for begin, end, wanted in self._ahead)
        if first >= last or known:
            return
        while len(self._ahead) >= AHEAD:
            self._ahead.pop(next(iter(self._ahead))).cancel()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tdmap-fetch")
        self._ahead[first, last, keys] = self._thread.submit(self._rows, [(first, last)], keys)

    def _forget_if_forked(self) -> None:
        """A fork has no thread that would bring what its parent has asked for."""
        if not self._owner.is_here:
            self._ahead, self._thread, self._owner = {}, None, Owner()

    def take(self, rows: Tensor, keys: Sequence[Any] | None = None) -> Data:
        wanted = torch.unique(rows)
        chosen = None if keys is None else {path_of(key) for key in keys}
        leaves = _leaves(self.tree, (), (_Leaf, Text))
        width = sum(leaf.row_bytes for path, leaf in leaves if chosen is None or path in chosen)
        apart = (wanted[1:] - wanted[:-1]) > max(GAP_BYTES // max(width, 1), 1)
        bounds = [0, *(apart.nonzero()[:, 0] + 1).tolist(), len(wanted)]
        runs = [(int(wanted[a]), int(wanted[b - 1]) + 1) for a, b in zip(bounds, bounds[1:])]
        found = self._rows(runs, keys)
        starts = torch.tensor([first for first, _ in runs])
        offsets = torch.tensor([0, *(last - first for first, last in runs)]).cumsum(0)
        run = torch.bucketize(rows, starts, right=True) - 1
        return found[rows - starts[run] + offsets[run]]

    def like(self) -> Data:
        if isinstance(self.tree, _Whole):
            return self._whole(self.tree)
        return self._rows([(0, 0)], None, cut=False)

    def _rows(self, runs: list[Run], keys: Sequence[Any] | None, cut: bool = True) -> Data:
        chosen = None if keys is None else {path_of(key) for key in keys}
        leaves = [(path, leaf) for path, leaf in _leaves(self.tree, ()) if chosen is None or path in chosen]
        texts = [(path, text) for path, text in _leaves(self.tree, (), Text) if chosen is None or path in chosen]
        wanted = [
            [(leaf.file, first * leaf.row_bytes, last * leaf.row_bytes) for first, last in runs] for _, leaf in leaves
        ]
        wanted += [[text.offsets_of(*run)] for _, text in texts for run in runs]
        found = iter(self._fetch(wanted))
        count = sum(last - first for first, last in runs)
        columns: dict[Path, Any] = {
            path: next(found).view(leaf.dtype).view(count, *leaf.shape) for path, leaf in leaves
        }
        columns |= self._strings(texts, [[next(found).view(torch.int64) for _ in runs] for _ in texts])
        return self._build(self.tree, (), runs if cut else None, columns, chosen)

    def _strings(self, texts: list[tuple[Path, Text]], offsets: list[list[Tensor]]) -> dict[Path, Any]:
        """Columns of strings, by the offsets of their rows in each run."""
        wanted = [[text.values_of(run) for run in runs] for (_, text), runs in zip(texts, offsets)]
        found = self._fetch(wanted) if wanted else ()
        return {path: text.column(runs, content) for (path, text), runs, content in zip(texts, offsets, found)}

    def _build(
        self, node: Any, path: Path, runs: list[Run] | None, columns: dict[Path, Any], chosen: set[Path] | None
    ) -> Data:
        if isinstance(node, _Whole):
            whole = self._whole(node)
            return whole if runs is None else _pick(whole, runs)
        source: dict[str, Any] = {}
        for key, entry in node.entries.items():
            below = (*path, key)
            if isinstance(entry, (_Leaf, Text)):
                if below in columns:
                    source[key] = columns[below]
            elif chosen is None or any(one[: len(below)] == below or below[: len(one)] == one for one in chosen):
                source[key] = self._build(entry, below, runs, columns, chosen)
        count = sum(last - first for first, last in runs or ())
        device = None if node.meta.device is None else torch.device("cpu")
        found = TensorDict._trusted(source, torch.Size((count, *node.meta.shape[1:])), device, node.meta.names)
        found._types = pruned(node.meta.types or None, source)
        return found

    def _whole(self, node: _Whole) -> Data:
        """A collection that is fetched at once, mapped from files that have no name any more."""
        if node.data is None:
            names = [name for name in self.objects if name.startswith(node.folder)]
            with temporary_folder("tdmap-fetch") as scratch:
                for name, content in zip(names, self._fetch([[(name, 0, self.objects[name][0])] for name in names])):
                    place = f"{scratch}/{name.removeprefix(node.folder)}"
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    with open(place, "wb") as file:
                        file.write(content.numpy().data)
                node.data = TensorDict.load_memmap(scratch, mode="r")
        return node.data

    # -- bytes -------------------------------------------------------------------------------------------------

    def _fetch(self, wanted: list[list[Piece]]) -> list[Tensor]:
        """Bytes of objects of this dataset: those of each group one after the other, as uint8 `[n]`."""
        return self.store.fetch(
            [[(f"{self.url}/{name}", start, stop) for name, start, stop in group] for group in wanted]
        )


def _leaves(node: Any, path: Path, kind: Any = _Leaf) -> Iterator[tuple[Path, Any]]:
    """Entries of a kind, of a collection and of those in it."""
    if isinstance(node, _Node):
        for key, entry in node.entries.items():
            if isinstance(entry, kind):
                yield (*path, key), entry
            else:
                yield from _leaves(entry, (*path, key), kind)


def _pick(data: Data, runs: list[Run]) -> Data:
    parts = [data[first:last] for first, last in runs]
    return parts[0].clone() if len(parts) == 1 else torch.cat(parts)
