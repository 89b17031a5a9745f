"""Methods of `Jagged` and `Table` whose work is done by operations that are built over these classes.

Each imports the operation when it is called, and calls it: see "Imports stand at the top of a file" in docs/design.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdmap.data.store import destination
from tdmap.execution import Execution
from tdmap.process_state import on_host
from tensordict_lite import TensorDict

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.datasets.jagged import Jagged
    from tdmap.datasets.table import Table
    from tdmap.datasets.tables.groups import TableGroups
    from tdmap.datasets.tables.pipeline import TablePipeline
    from tdmap.execution import WorkerOptions


@on_host
class JaggedDoors:
    """Files of jagged rows, and operations on many of them."""

    __slots__ = ()

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Jagged:
        """Open what `save` or `map` has written; nothing is read but its metadata.

        Raises:
            DatasetError: there is something else, or it is not whole.
        """
        from tdmap.datasets.jaggedfile import open_jagged

        return open_jagged(folder)

    def save(
        self: Any, folder: str | os.PathLike[str], *, overwrite: bool = False, **options: Unpack[WorkerOptions]
    ) -> Jagged:
        """Write these rows to a new folder, in parallel, and open it there.

        Args:
            folder: it must not hold anything.
            overwrite: it may hold a dataset, which the new one replaces when it is whole.
            **options: about workers, as `tdmap.map`.

        Raises:
            FileExistsError: the folder holds something.
            FolderInUse: somebody else writes it.
        """
        from tdmap.datasets.jaggedfile import save_jagged

        return save_jagged(self, destination(folder, overwrite), **options)

    def append(self: Any, rows: Jagged | Iterable[Any]) -> Jagged:
        """Write more rows behind those of the folder that this was opened from; all of them, opened again.

        Whoever is killed meanwhile leaves the rows of before. Readers find those, or all.

        Raises:
            ValueError: this is a part, or in memory.
            TypeError: the rows are of another kind.
        """
        from tdmap.datasets.jaggedfile import append_jagged

        return append_jagged(self, rows)

    def map(self: Any, fn: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Apply a function to chunks of rows on several processes; see `tdmap.datasets.jaggedmap.map_jagged`."""
        from tdmap.datasets.jaggedmap import map_jagged

        return map_jagged(self, fn, out, **options)

    def filter(self: Any, predicate: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Jagged:
        """The rows for which a predicate of chunks is true; see `tdmap.datasets.jaggedmap.filter_jagged`."""
        from tdmap.datasets.jaggedmap import filter_jagged

        return filter_jagged(self, predicate, out, **options)

    flat_map = map

    def join(self: Any, other: Any, on: Any = "rows", how: str = "inner", out: Any = None, **options: Any) -> Table:
        """`Table.join` of the table whose column `"rows"` these are."""
        from tdmap.datasets.table import Table

        return Table.of(self).join(other, on, how, out, **options)

    def group_by(self: Any, key: Any = "rows", **options: Any) -> TableGroups:
        """`Table.group_by` of the table whose column `"rows"` these are."""
        from tdmap.datasets.table import Table

        return Table.of(self).group_by(key, **options)

    def unique(self: Any, key: Any = "rows", out: Any = None, **options: Any) -> Table:
        """`Table.unique` of the table whose column `"rows"` these are."""
        from tdmap.datasets.table import Table

        return Table.of(self).unique(key, out, **options)

    def value_counts(self: Any, key: Any = "rows", out: Any = None, **options: Any) -> Table:
        """`Table.value_counts` of the table whose column `"rows"` these are."""
        from tdmap.datasets.table import Table

        return Table.of(self).value_counts(key, out, **options)

    def shuffle(
        self: Any,
        out: str | os.PathLike[str] | None = None,
        *,
        seed: int | None = None,
        overwrite: bool = False,
        resume: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Jagged:
        """All rows in a random order: a view of these, or with `out` a copy in a new folder.

        Args:
            out, overwrite: the folder, and whether a dataset that is there is replaced.
            seed: the same seed, the same order. Default: torch's own random stream.
            resume: keep what is done in a hidden folder of `out`, so that the same call goes on after any interruption,
                to the same bytes.
            **options: about workers, as `tdmap.map`.
        """
        from tdmap.datasets.tables.picks import shuffle_jagged

        return shuffle_jagged(self, out, seed=seed, overwrite=overwrite, resume=resume, **options)

    def sort(
        self: Any,
        out: str | os.PathLike[str] | None = None,
        *,
        key: str = "length",
        descending: bool = False,
        overwrite: bool = False,
        resume: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Jagged:
        """All rows in order, equal ones as they were: a view, or with `out` a copy in a new folder.

        Args:
            out, overwrite: the folder, and whether a dataset that is there is replaced.
            key: `"length"`, or `"value"`: strings and bytes as Python orders them.
            descending: from large to small.
            resume: as `shuffle`.
            **options: about workers, as `tdmap.map`.

        Example:
            >>> from tdmap.datasets import Jagged
            >>> Jagged.from_list(["horse", "bee", "ant"]).sort(key="value").tolist()
            ['ant', 'bee', 'horse']
        """
        from tdmap.datasets.tables.picks import sort_jagged

        return sort_jagged(self, out, key=key, descending=descending, overwrite=overwrite, resume=resume, **options)

    def sample(self: Any, n: int | None = None, out: Any = None, **options: Any) -> Jagged:
        """Rows drawn at random; arguments as `tdmap.sample`."""
        from tdmap.datasets.tables.picks import sample_jagged

        return sample_jagged(self, n, out, **options)

    def pipeline(self: Any, *, seed: int | None = None) -> TablePipeline:
        """A pipeline over the rows, in the column `"rows"`, with `.pad`, `.pack` and `.bucket`."""
        from tdmap.datasets.table import Table

        return Table.of(self).pipeline(seed=seed)

    def pack(
        self: Any,
        block: int,
        out: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> TensorDict:
        """All elements in blocks of one length, each with the row that it is of and its place there.

        Args:
            block: elements of a block. Those behind the last whole block are left out.
            out: folder for the result; None for shared memory.
            overwrite, resume: as `tdmap.map`.
            **options: about workers, as `tdmap.map`.

        Returns:
            Batch size `[blocks]`: `values` `[blocks, block, ...]`, `document` int64 `[blocks, block]` (the number of
            the row), `position` int64 `[blocks, block]` (within the row).

        Raises:
            ValueError: there are fewer elements than a block.

        Example:
            >>> from tdmap.datasets import Jagged
            >>> packed = Jagged.from_list([[1, 2, 3], [4, 5]]).pack(2, num_workers=0)
            >>> packed["values"].tolist(), packed["document"].tolist(), packed["position"].tolist()
            ([[1, 2], [3, 4]], [[0, 0], [0, 1]], [[0, 1], [2, 0]])
        """
        from tdmap.datasets.jaggedmap import pack_jagged

        return pack_jagged(self, block, out, overwrite=overwrite, resume=resume, **options)


@on_host
class TableDoors:
    """Operations on tables."""

    def map(
        self: Any, fn: Any, out: str | os.PathLike[str] | None = None, *, overwrite: bool = False, **options: Any
    ) -> Table:
        """Apply a function to chunks of rows, which are tables, on several processes.

        Args:
            fn: returns rows, any number: a `Table`, a TensorDict, or a dict of columns: tensors, arrays, lists of
                numbers, `Jagged`; lists of strings, lists, or tensors become jagged.
            out: folder for the result. None: in memory.
            overwrite: the folder may hold a dataset, which the new one replaces when it is whole.
            **options: `resume`, `chunksize`, `seed`, `generator`, `retries`, `timeout`, `on_error` as `tdmap.map`, and
                those about workers.

        Example:
            >>> from tdmap.datasets import Table
            >>> table = Table.of({"x": torch.arange(2), "word": ["ant", "bee"]})
            >>> table.map(lambda rows: {"n": rows["x"] + rows["word"].lengths}, num_workers=0).rows["n"]
            tensor([3, 4])
        """
        from tdmap.datasets.tables.ops import map_table

        return map_table(self, fn, destination(out, overwrite), **options)

    flat_map = map

    def filter(
        self: Any, predicate: Any, out: str | os.PathLike[str] | None = None, *, overwrite: bool = False, **options: Any
    ) -> Table:
        """The rows for which a predicate is true.

        Args:
            predicate: called with chunks of rows, which are tables; returns a bool for each row.
            out: folder for a copy. None: in memory; jagged columns share their values.
            overwrite: as `map`.
            **options: `resume` as `map`; `chunksize`, `seed`, `generator`, `retries`, `timeout`, `on_error` as
                `tdmap.filter`, and those about workers.
        """
        from tdmap.datasets.tables.ops import filter_table

        return filter_table(self, predicate, destination(out, overwrite), **options)

    def sort(
        self: Any, key: Any, out: str | os.PathLike[str] | None = None, *, overwrite: bool = False, **options: Any
    ) -> Table:
        """The rows in the order of a column, or of several; rows with equal keys keep their order.

        Args:
            key: names of columns, of numbers, strings or bytes; or a function of a chunk of rows, as `group_by`, which
                workers call.
            out, overwrite: as `filter`.
            **options: `descending`, `resume`, `chunksize`, `spill_dir`, `retries`, `timeout` as `tdmap.sort`, and those
                about workers.
        """
        from tdmap.datasets.tables.ops import sort_table

        return sort_table(self, key, destination(out, overwrite), **options)

    def shuffle(self: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """The rows in a random order, which a seed fixes.

        Args:
            out: as `filter`.
            **options: `seed`, `overwrite`, `resume` as `tdmap.shuffle`, and those about workers.
        """
        from tdmap.datasets.tables.picks import shuffle_table

        return shuffle_table(self, out, **options)

    def take(
        self: Any, rows: Tensor, out: str | os.PathLike[str] | None = None, *, overwrite: bool = False, **options: Any
    ) -> Table:
        """The rows with these numbers, int64 `[m]`, in their order. `out`, `overwrite` and workers as `filter`."""
        from tdmap.datasets.tables.ops import take

        return take(self, torch.as_tensor(rows), destination(out, overwrite), Execution.of(**options), "take")

    def join(
        self: Any,
        other: Any,
        on: Any = None,
        how: str = "inner",
        out: Any = None,
        *,
        overwrite: bool = False,
        **options: Any,
    ) -> Table:
        """Each row beside the rows of another table with the same key.

        Args:
            other: a table, or what `Table.of` takes.
            on: a column of both, several, or a mapping of columns here to columns there.
            how: as `tdmap.join`: `"inner"`, `"left"`, `"right"`, `"outer"`, `"semi"` or `"anti"`. Rows without a
                partner have zeros and empty rows in the columns of the other table.
            out, overwrite: as `filter`.
            **options: `left_on`, `right_on`, `suffix`, `suffixes`, `indicator`, `resume`, `chunksize`, `spill_dir`,
                `retries`, `timeout` as `tdmap.join`, and those about workers.

        Example:
            >>> from tdmap.datasets import Table
            >>> people = Table.of({"name": ["Ada", "Emmy"], "born": torch.tensor([1815, 1882])})
            >>> cities = Table.of({"name": ["Emmy", "Sofia"], "city": ["Erlangen", "Moscow"]})
            >>> people.join(cities, "name", "outer", num_workers=0)["city"].tolist()
            ['', 'Erlangen', 'Moscow']
        """
        from tdmap.datasets.tables.joining import join_table

        return join_table(self, self.of(other), on, how, destination(out, overwrite), **options)

    def group_by(
        self: Any,
        key: Any,
        *,
        dropna: bool | None = None,
        name: str = "key",
        spill_dir: str | os.PathLike[str] | None = None,
    ) -> TableGroups:
        """The groups of rows with equal keys: `.reduce({...})`, `.agg({...})`, `.top_k(...)`, `.map_groups(fn)`.

        Args:
            key: a column of numbers or of text, or several; or a function of a chunk of rows, which is a table, that
                returns one value a row: a tensor, a list of strings, a `tdmap.col` formula. It is called at once, in
                the caller.
            dropna, name, spill_dir: as `tdmap.group_by`.

        Example:
            >>> from tdmap.datasets import Table
            >>> from tdmap.reducers import Count
            >>> words = Table.of({"word": ["ant", "bee", "horse"]})
            >>> groups = words.group_by(lambda rows: rows["word"].lengths, name="letters")
            >>> groups.reduce({"n": Count()}, num_workers=0).rows["letters"]
            tensor([3, 5])
        """
        from tdmap.datasets.tables.groups import TableGroups

        return TableGroups(self, key, dropna, name, spill_dir)

    def unique(self: Any, key: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """The different keys, sorted; arguments as `tdmap.unique`."""
        from tdmap.datasets.tables.picks import unique_of

        return unique_of(self, key, out, **options)

    def value_counts(self: Any, key: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """How often each key occurs, the most frequent first; arguments as `tdmap.value_counts`.

        Example:
            >>> from tdmap.datasets import Table
            >>> Table.of({"word": ["bee", "ant", "bee"]}).value_counts("word", num_workers=0)[0]
            {'word': 'bee', 'count': tensor(2)}
        """
        from tdmap.datasets.tables.picks import value_counts_of

        return value_counts_of(self, key, out, **options)

    def top_k(self: Any, key: str, k: int, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """The rows with the `k` largest values of a column, of numbers or text; arguments as `tdmap.top_k`."""
        from tdmap.datasets.tables.picks import top_of

        return top_of(self, key, k, out, **options)

    def sample(self: Any, n: int | None = None, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """Rows drawn at random, the same as `tdmap.sample` draws; its arguments."""
        from tdmap.datasets.tables.picks import sample_of

        return sample_of(self, n, out, **options)

    def pipeline(self: Any, *, seed: int | None = None) -> TablePipeline:
        """A pipeline over the rows, with `.pad`, `.pack` and `.bucket` for jagged columns."""
        from tdmap.datasets.tables.pipeline import TablePipeline

        return TablePipeline(self, seed=seed)
