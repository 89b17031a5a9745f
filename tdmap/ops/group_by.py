"""`group_by`: rows with equal keys, reduced to one row or handed to a function.

    job 1   chunk ──► sorted by key, reduced to one state a key where that pays ──► run, cut into ranges of keys
    job 2   partition (one range of keys, from every run, in the order of the chunks) ──► groups ──► answers
    job 3   answers of the partitions ──► their place in the output

Ranges come from a sample, so partitions are about as large as each other, and the answers of one partition follow
those of the last: the result is sorted by key without another pass. Everything between the jobs is in files; a worker
holds a chunk or a partition at a time, and a partition that is large, because many rows share a key, is folded
batch by batch. Neither the chunks nor the batches depend on the workers, so neither do the bits of the answers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from tdmap.arguments import require_integer
from tdmap.data.kinds import Data, Dataset, has_members, is_data, stored_entry
from tdmap.data.reader import require_entry, rows_of, select
from tdmap.data.schema import Schema
from tdmap.data.stacks import columns_read
from tdmap.functions import user_function
from tdmap.keys.aggregates import GroupedEnd, grouped_form
from tdmap.keys.group_jobs import map_each_group, payload_of, reduce_each_group
from tdmap.keys.keys import KeyLike, KeySpec
from tdmap.keys.named_aggregates import OrderedGroups, parse
from tdmap.keys.prepare import KeyedData, prepare
from tdmap.memory.shm import anonymous_tensor
from tdmap.memory.spill import Spill
from tdmap.output.append import CollectPieces, place_pieces
from tdmap.output.permute import deliver, permute_rows
from tdmap.reducers import Count, Reducer
from tdmap.reducers.base import Key
from tdmap.run.context import Context
from tdmap.run.operation import entry_point, operation_method
from tdmap.run.options import MapGroupsOptions, Options
from tdmap.shards.sharded import entry_names
from tensordict_lite import TensorDict, is_non_tensor

ROW_NUMBER = "__row__"
"""Entry that stands for one that is no tensor."""


@entry_point
def group_by(
    data: Dataset[Any],
    key: KeyLike,
    *,
    dropna: bool | None = None,
    name: str = "key",
    spill_dir: str | os.PathLike[str] | None = None,
) -> GroupBy:
    """Group rows by key. `.reduce({...})` returns one row per group, `.map_groups(fn)` any number of rows.

    Args:
        data: a tensor or collection with rows in dimension 0.
        key: an entry, a nested entry (a tuple of strings), a list of entries, or a function of a chunk that returns one
            value per row. Values are bools, integers, floating point numbers (-0.0 equals 0.0), rows of bytes (uint8
            `[rows, bytes]`) or strings (non-tensor entries; lists or arrays that a function returns).
        dropna: rows with a NaN key, or a string that is None, raise ValueError (None), are left out (True), or are the
            last group (False).
        name: name of the column of a key function in the result.
        spill_dir: folder for intermediate files. Default: `out` if it is a path, otherwise the temporary folder; for
            `reduce` with string keys, always the temporary folder.

    Returns:
        A `GroupBy`, whose methods read the data.

    Raises:
        TypeError: `key` is of another type.
        KeyError: unknown entry; lists the entries.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> from tdmap.reducers import Count, Sum
        >>> data = TensorDict({"shop": torch.tensor([7, 3, 7]), "sold": torch.tensor([1.0, 2.0, 3.0])}, [3])
        >>> result = group_by(data, "shop").reduce({"total": Sum("sold"), "n": Count()}, num_workers=0)
        >>> result["shop"], result["total"], result["n"]
        (tensor([3, 7]), tensor([2., 4.], dtype=torch.float64), tensor([1, 2]))
    """
    spec = KeySpec.of(key, "group_by", name)
    if dropna not in (None, True, False):
        raise ValueError(f"dropna must be None, True or False: got {dropna!r}.")
    if is_data(data):
        spec.require(data, "group_by")
    return GroupBy(data, spec, dropna, spill_dir)


@dataclass(frozen=True, repr=False)
class GroupBy:
    """The groups of a dataset; made by `group_by`."""

    data: Data
    spec: KeySpec
    dropna: bool | None = None
    spill_dir: str | os.PathLike[str] | None = None

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.spec.names))
        return f"GroupBy({type(self.data).__name__} of {self.data.shape[0]} rows, key={names})"

    def identity_parts(self) -> dict[str, str]:
        """What a resumed call must find unchanged, beside the data."""
        return self.spec.identity_parts() | {"the option dropna": repr(self.dropna)}

    @operation_method
    def reduce(
        self,
        ctx: Context,
        reducers: Mapping[Any, Reducer[Any]] | Reducer[Any],
        *,
        out: Dataset[Any] | str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> Any:
        """One row per key: the result of `tdmap.reduce` for the rows of its group.

        `Count`, `Sum`, `Mean`, `Var`, `Std`, `Min`, `Max`, `MinMax`, `First` and `Last` are vectorised over groups, and
        so are reducers with a method `grouped()` (`tdmap.keys.Grouped`). Other reducers run group by group, in Python.
        `First` and `Last` take entries of every kind, the others tensors.

        Args:
            reducers: reducers by the names of their entries in the result (a tuple for a nested entry). A single
                reducer makes the entry `"result"`.
            out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with at least a row per
                key.
            **options: see `tdmap.Options`. `group_by(spill_dir=)` sets the folder of intermediate files.

        Returns:
            A TensorDict with the key columns and an entry for each reducer, sorted by key (NaN and None last), of batch
            size `[keys]`. The same bits for any number of workers, because floating-point sums have a fixed order.

        Raises:
            KeyError: unknown entry; lists the entries.
            ValueError: a key is NaN or None; `reducers` is empty or has the name of a key; results of a reducer differ
                in shape.
            TypeError: a value of `reducers` is not a reducer.
            OutputMismatch: `out` has too few rows or other dtypes.
            ResumeMismatch: with `resume`, the folder holds another run; names the difference.
            Exception: as `tdmap.map`.
        """
        return reduce_groups(ctx, self, reducers)

    @operation_method
    def map_groups(
        self,
        ctx: Context,
        fn: Callable[[Any], Any],
        *,
        out: Dataset[Any] | str | os.PathLike[str] | None = None,
        **options: Unpack[MapGroupsOptions],
    ) -> Any:
        """Apply a function to each group, and concatenate its results in the order of the keys.

        Workers write rows to files by range of keys. A group of more than 64 MiB is memory-mapped from its file, so it
        need not fit into memory.

        Args:
            fn: takes all rows of a group, in the order of the dataset, as a collection that it may change. It returns
                any number of rows (the same entries in each call), one row (a collection of batch size `[]`, whose
                ragged entries stay ragged), a dict of columns or of single values, or None.
            out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
            **options: see `tdmap.MapGroupsOptions`. To leave out a group on which `fn` fails, catch the exception in
                `fn` and return None.

        Returns:
            The rows that the function returned, sorted by key.

        Raises:
            KeyError: unknown entry; lists the entries.
            ValueError: a key is NaN or None; or no call returned rows, so the schema of the result is unknown.
            OutputMismatch: results differ in entries, dtypes or shapes.
            Exception: the exception of `fn`, with a note that names the key.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> data = TensorDict({"shop": torch.tensor([7, 3, 7]), "sold": torch.tensor([1.0, 2.0, 3.0])}, [3])
            >>> group_by(data, "shop").map_groups(lambda rows: rows[rows["sold"].argmax()], num_workers=0)["sold"]
            tensor([2., 3.])
        """
        fn = user_function(fn)
        keyed = prepare(ctx, self.data, self.spec, "group_by", dropna=self.dropna)

        def run(spill: Spill) -> tuple[CollectPieces, Callable[[], Schema] | None]:
            return map_each_group(ctx, keyed, self.data, fn, spill)

        return _to_output(ctx, self, run)

    @operation_method
    def agg(
        self,
        ctx: Context,
        spec: Mapping[Any, Any],
        *,
        out: Dataset[Any] | str | os.PathLike[str] | None = None,
        skipna: bool = False,
        **options: Unpack[Options],
    ) -> Any:
        """One row per key, with statistics given by name, in one pass if possible.

        Args:
            spec: entries of the result:

                - `{"price": "mean"}`: the mean of the entry `"price"`;
                - `{"price": ["mean", "max"]}`: a collection of both, `result["price", "mean"]`;
                - `{"most": ("price", "max")}`: the maximum of `"price"`, as `"most"`;
                - `{"most": tdmap.reducers.Max("price")}`: any reducer.

                Names are `"count"`, `"sum"`, `"mean"`, `"var"`, `"std"`, `"min"`, `"max"`, `"minmax"`, `"first"`,
                `"last"`, `"median"`, `"nunique"` (number of distinct values), and `("quantile", q)` for a number or a
                list of numbers from 0 to 1. Quantiles and `"nunique"` are exact and ignore NaN and None. They sort the
                entry, with 16 bytes of memory per row. `"count"`, `"first"`, `"last"` and `"nunique"` take strings and
                bytes; `"first"` and `"last"` take ragged rows and objects as well.
            skipna: leave NaN out of `"sum"`, `"mean"`, `"var"`, `"std"`, `"min"`, `"max"` and `"minmax"`. Otherwise the
                result of a group with a NaN is NaN.
            out, **options: as `reduce`.

        Returns:
            As `reduce`.

        Raises:
            ValueError: unknown statistic.
            TypeError: a value has another form, or quantiles are requested with a key function.
            Exception: as `reduce`.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> data = TensorDict({"shop": torch.tensor([7, 3, 7]), "sold": torch.tensor([1.0, 2.0, 4.0])}, [3])
            >>> result = group_by(data, "shop").agg({"sold": ["sum", "median"]}, num_workers=0)
            >>> result["sold", "sum"], result["sold", "median"]
            (tensor([2., 5.], dtype=torch.float64), tensor([2.0000, 2.5000], dtype=torch.float64))
        """
        asked = parse(spec, skipna)
        _parts(self, {**asked.reducers, **dict.fromkeys(asked.ordered)})
        for path, key in asked.counted.items():
            require_entry(self.data, key, f"the entry of {path!r}")
        if not asked.ordered:
            return reduce_groups(ctx, self, asked.reducers)
        result = reduce_groups(ctx.inner(), self, asked.reducers or {"__count__": Count()})
        if not asked.reducers:
            result = result.exclude("__count__")
        with self._spill(ctx) as spill:
            for key in dict.fromkeys(one.key for one in asked.ordered.values()):
                wanted = {path: one.q for path, one in asked.ordered.items() if one.key == key}
                text = all(q is None for q in wanted.values())
                groups = OrderedGroups(ctx, self.data, self.spec, key, self.dropna, spill, text=text)
                for path, q in wanted.items():
                    result.set(path, groups.distinct() if q is None else groups.quantiles(q))
        return deliver(result, ctx.output)

    @operation_method
    def top_k(
        self,
        ctx: Context,
        key: Key,
        k: int,
        *,
        out: Dataset[Any] | str | os.PathLike[str] | None = None,
        largest: bool = True,
        **options: Unpack[Options],
    ) -> Any:
        """The `k` rows of each group with the largest values of an entry, group by group, largest first.

        Args:
            key: an entry with one number, string or bytes per row. NaN come last; among ties the earlier row comes
                first.
            k: maximum number of rows per group.
            largest: False selects the smallest values, smallest first.
            out, **options: as `reduce`.

        Returns:
            The rows, with all their entries.

        Raises:
            KeyError: unknown entry.
            TypeError: the key is a function, or the entry does not have one value per row.
            ValueError: `k` is less than 1.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> data = TensorDict({"shop": torch.tensor([7, 3, 7]), "sold": torch.tensor([1.0, 2.0, 4.0])}, [3])
            >>> group_by(data, "shop").top_k("sold", 1, num_workers=0)["sold"]
            tensor([2., 4.])
        """
        require_integer("k", k, 1)
        with self._spill(ctx) as spill:
            groups = OrderedGroups(
                ctx, self.data, self.spec, key, self.dropna, spill, largest, text=True, with_rows=True
            )
            return permute_rows(ctx, self.data, groups.first_rows(k))

    def _spill(self, ctx: Context) -> Spill:
        return _with_spill_dir(ctx.inner(), self).spill()


def reduce_groups(ctx: Context, groups: GroupBy, reducers: Mapping[Any, Reducer[Any]] | Reducer[Any]) -> Data:
    """`GroupBy.reduce` as a part of any operation."""
    forms = {name: grouped_form(part, name) for name, part in _parts(groups, reducers).items()}
    for name, form in forms.items():
        if form.key is not None and not isinstance(groups.data, Tensor):
            require_entry(groups.data, form.key, f"the entry of the reducer {name!r}")
    read = [form.key for form in forms.values() if form.key is not None or form.reads_rows]
    data = columns_read(groups.data, read + [*groups.spec.names] if groups.spec.fn is None else [None])
    if None in read and has_members(data):
        data = select(data, entry_names(data))
    ends = {
        name: form for name, form in forms.items() if isinstance(form, GroupedEnd) and _holds_objects(data, form.key)
    }
    if ends:  # the numbers of the rows are reduced, and stand for the entry until all is done
        numbers = anonymous_tensor(8 * data.shape[0]).view(torch.int64)
        torch.arange(len(numbers), out=numbers)
        data = rows_of(data).with_columns(TensorDict({ROW_NUMBER: numbers}, [len(numbers)]))
        forms |= {name: GroupedEnd(ROW_NUMBER, form.last) for name, form in ends.items()}
    keyed = prepare(ctx, data, groups.spec, "group_by", dropna=groups.dropna)
    payload = payload_of(data, keyed, forms)
    run = functools.partial(reduce_each_group, ctx, keyed, forms, payload=payload)
    restore: list[Callable[[Data], None]] = []
    if any(label is not None for label in keyed.labels):
        restore.append(functools.partial(_set_strings, keyed=keyed))
    if ends:
        restore.append(functools.partial(_set_rows, data=data, keys={name: form.key for name, form in ends.items()}))
    return _to_output(ctx, groups, run, restore)


def _holds_objects(data: Data, key: Key | None) -> bool:
    # Of several folders, no column is loaded for its kind.
    return key is not None and not isinstance(data, Tensor) and is_non_tensor(stored_entry(rows_of(data).like, key))


def _set_rows(result: Data, data: Data, keys: Mapping[Any, Any]) -> None:
    """Put the rows of entries in place of their numbers."""
    for name, key in keys.items():
        entry = rows_of(rows_of(data).select(key))
        result.set(name, stored_entry(entry.take(result.get(name)), key))


def _parts(groups: GroupBy, reducers: Mapping[Any, Any] | Reducer[Any]) -> dict[Any, Any]:
    parts = reducers if isinstance(reducers, Mapping) else {"result": reducers}
    if not parts:
        raise ValueError('reduce needs at least one reducer, such as {"n": tdmap.reducers.Count()}.')
    for name in parts:
        path = (name,) if isinstance(name, str) else name
        if not (isinstance(path, tuple) and path and all(isinstance(part, str) for part in path)):
            raise TypeError(f"the names of reducers are strings, or tuples of them: got {name!r}.")
        if path[0] in [one if isinstance(one, str) else one[0] for one in groups.spec.names]:
            raise ValueError(f"the reducer {name!r} has the name of a key: give it another one.")
    return dict(parts)


def _with_spill_dir(ctx: Context, groups: GroupBy) -> Context:
    """The call with the folder of `group_by` for intermediate files, unless it names one itself."""
    if groups.spill_dir is None or ctx.options.get("spill_dir") is not None:
        return ctx
    return replace(ctx, options={**ctx.options, "spill_dir": groups.spill_dir})


def _to_output(
    ctx: Context,
    groups: GroupBy,
    run: Callable[[Spill], tuple[CollectPieces | Data, Callable[[], Schema] | None]],
    restore: Sequence[Callable[[Data], None]] = (),
) -> Data:
    """The result where the caller wants it. `restore` puts entries in place of the numbers that stand for them."""
    if restore and ctx.output.given is not None:
        raise ValueError("strings cannot be written into an existing dataset: pass out=None, or a folder.")
    target, where = ctx.output, _with_spill_dir(ctx.inner() if restore else ctx, groups)
    with where.spill(later=True) as spill:
        pieces, empty = run(spill)
        if isinstance(pieces, CollectPieces):
            _place(where, pieces, empty, spill)
    # The files of the spill are gone before the folder that they lie in is published.
    result = where.output.result() if isinstance(pieces, CollectPieces) else deliver(pieces, where.output)
    if not restore:
        return result
    result = result.copy() if result.is_locked else result
    for put in restore:
        put(result)
    return result if target.store is None else deliver(result, target)


def _place(ctx: Context, pieces: CollectPieces, empty: Callable[[], Schema] | None, spill: Spill) -> None:
    """Bring answers from files to their place.

    Raises:
        ValueError: the result has no rows and its schema is unknown.
    """
    schema = pieces.schema or (None if empty is None else empty())
    if schema is None:
        raise ValueError(
            "map_groups: the function returned no rows for any group, so the schema of the result is "
            "unknown. Return an empty TensorDict with its entries instead of None."
        )
    found = pieces.all
    nbytes = sum(piece.rows for piece in found) * sum(schema.row_bytes)
    place_pieces(ctx.light(nbytes // 8), found, schema, spill)


def _set_strings(result: Data, keyed: KeyedData) -> None:
    """Put strings in place of the numbers of key columns that stand for them."""
    for name, labels in zip(keyed.names, keyed.labels):
        numbers = result.get(name, None) if labels is not None else None
        if labels is not None and isinstance(numbers, Tensor):
            result.set(name, labels[numbers.reshape(-1)])
