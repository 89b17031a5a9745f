"""`Pipeline`: the chain that users write."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar, Unpack, overload

from tdmap.arguments import require_integer
from tdmap.data.alike import describe_difference, fits
from tdmap.data.kinds import Data, Dataset, is_data
from tdmap.devices import check_start_method
from tdmap.errors import OutputMismatch
from tdmap.expressions import Expression
from tdmap.frames import warn_user
from tdmap.functions import Keys, as_function
from tdmap.memory.links import Device, resolve_device
from tdmap.ops.reduce import columns_for
from tdmap.pipeline import terminals
from tdmap.pipeline.chain import Chain
from tdmap.pipeline.epochs import RunSettings
from tdmap.pipeline.explain import Explanation
from tdmap.pipeline.loader import PipelineIterator
from tdmap.pipeline.ragged import PackRows, PadRows, SortByLength, require_block_columns
from tdmap.pipeline.stages import (
    Batch,
    Cache,
    Call,
    ConcatWith,
    Filter,
    FlatMap,
    Key,
    Map,
    MapRows,
    Repeat,
    Select,
    Shard,
    Shuffle,
    Skip,
    Take,
    Unbatch,
    ZipWith,
)
from tdmap.pipeline.torchloader import MappedIterator, for_loader, sendable, worker_place
from tdmap.process_state import on_host
from tdmap.ranks.shard import ShardLike, rank_of
from tdmap.reducers import Reducer, as_reducer
from tdmap.reducers.base import Answers
from tdmap.run.context import Context
from tdmap.run.operation import operation_method
from tdmap.run.options import FunctionOptions, MapOptions
from tdmap.seeding import drawn_seed
from tensordict_lite import TensorDict

A = TypeVar("A")


@on_host
class Pipeline(Chain):
    """A lazy chain of stages over the rows of a dataset. Each method returns a new pipeline; nothing runs until you
    iterate, collect, write or reduce it.

    Args:
        data: a tensor or a collection of tensors with rows in dimension 0.
        seed: seed of the functions' random streams (torch, numpy, random, and generators that the functions hold). Each
            chunk has its own streams, derived from (seed, epoch, number of its first row): augmentations are the same
            for any number of workers and after a resume. None: each `iter` draws a seed from torch's global generator
            and stores it in its `state_dict`; `collect`, `write` and `reduce` do not seed.

    Raises:
        TypeError: `data` has no rows.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(10)}, batch_size=[10])
        >>> even = Pipeline(data).filter(lambda td: td["x"] % 2 == 0).map(lambda td: td.set("y", td["x"] * 10))
        >>> [batch["y"].tolist() for batch in even.batch(2).iter(num_workers=0)]
        [[0, 20], [40, 60], [80]]
        >>> even.collect(num_workers=0)["x"]
        tensor([0, 2, 4, 6, 8])
    """

    # -- functions -------------------------------------------------------------------------------------

    def map(self, fn: Callable[..., Any], in_keys: Keys | None = None, out_keys: Keys | None = None) -> Pipeline:
        """Apply `fn` to chunks of rows.

        Before `.batch`, a chunk is a collection of some consecutive rows, and the result must have the same number of
        rows. tdmap chooses chunk boundaries for speed, so `fn` must treat rows independently. After `.batch(n)`, `fn`
        takes a batch and may return anything.

        Args:
            fn: a function, an `nn.Module` (called without gradients) or a torchvision transform (called with the
                images). It must not change the dataset's tensors in place.
            in_keys, out_keys: call `fn` with the entries `in_keys`, and store its results as `out_keys` (default:
                `in_keys`); other entries stay. See `tdmap.functions.OnKeys`.
        """
        return self._then(Map(as_function(fn, in_keys, out_keys)))

    def map_rows(self, fn: Callable[..., Any], in_keys: Keys | None = None, out_keys: Keys | None = None) -> Pipeline:
        """Apply `fn` to single rows, without the row dimension, and stack the results. Arguments as `map`."""
        return self._then(MapRows(as_function(fn, in_keys, out_keys)))

    def filter(self, predicate: Callable[[Any], Any]) -> Pipeline:
        """Keep rows. `predicate` takes a chunk and returns one bool per row; after `.batch`, one bool for the batch.

        Raises:
            KeyError: an expression (`tdmap.col`) names an unknown entry; raised at once if no function precedes the
                filter.
        """
        for key in sorted(predicate.keys, key=str) if isinstance(predicate, Expression) else ():
            self._require_entry(key, "a column of the predicate", predicate)
        return self._then(Filter(as_function(predicate)))

    def flat_map(self, fn: Callable[[Any], Any]) -> Pipeline:
        """Apply `fn` to chunks of rows. It returns any number of rows, in order, or None."""
        return self._then(FlatMap(as_function(fn)))

    def select(self, *keys: Key | list[Key]) -> Pipeline:
        """Keep some entries. Keys are strings, or tuples of strings for nested entries.

        Raises:
            KeyError: unknown entry; raised at once if no function precedes `select`, otherwise when rows are read.
        """
        flat: list[Any] = []
        for key in keys:
            flat.extend(key) if isinstance(key, (list, set)) else flat.append(key)
        selected = self._then(Select(tuple(flat)))
        for key in flat:
            self._require_entry(key, "the key of .select()")
        return selected

    # -- rows ------------------------------------------------------------------------------------------

    def take(self, n: int) -> Pipeline:
        """The first `n` rows that earlier filters keep; after `.batch`, batches."""
        return self._then(Take(n))

    def skip(self, n: int) -> Pipeline:
        """All but the first `n` rows; after `.batch`, batches."""
        return self._then(Skip(n))

    def shard(self, index: int | str, count: int | None = None, even: str | None = None) -> Pipeline:
        """Part `index` of `count` disjoint parts, which together have every row.

        Ranks that train together need the same number of batches (`even=`), otherwise some wait forever. End their
        chain with `.batch(n).shard("auto", even="drop")`: each rank computes only its own batches, and another number
        of ranks can resume from the `state_dict` of any rank.

        Args:
            index: number of the part, from 0; or `"auto"`: the rank of this program under torchrun or
                `torch.distributed`.
            count: number of parts; omit it with `"auto"`.
            even: None: sizes may differ by one. `"drop"`: the last few rows are in no part. `"pad"`: the first few rows
                are in two parts. After `.batch`, or if the row count is unknown (after `flat_map`, or `take` or `skip`
                behind a filter), both apply to the last few elements.

        Raises:
            ValueError: an argument is out of range; with `"auto"`, the rank is unknown or a shuffle has no `seed`.

        A part consists of consecutive rows of the source; after a filter, each part filters its own rows. After
        `.batch`, or if the row count is unknown, a part has every `count`-th element.
        """
        if count is None and isinstance(index, str):
            index, count = rank_of(index)
            self._require_common_order(count)
        return self._then(Shard(index, count, even))  # type: ignore[arg-type]

    def shuffle(self, seed: int | None = None, buffer: int | None = None) -> Pipeline:
        """Shuffle rows, in another order in each epoch.

        Without `buffer`: an exact permutation of all rows, drawn from the seed, the same as that of
        `map_iter(shuffle=True, seed=seed)`. Workers read rows in this order; no data are copied. Functions of rows and
        filters may precede it.

        Args:
            seed: seed of the order in the first epoch. Later epochs derive theirs from it and the number of the epoch
                (see `set_epoch`). None draws a seed now from torch's global generator.
            buffer: shuffle approximately, in a buffer of this many rows. Needed if the number of rows is unknown (after
                `flat_map`, or after `take` or `skip` behind a filter).
        """
        drawn = drawn_seed() if seed is None else seed
        return self._then(Shuffle(drawn, buffer, drawn=seed is None))

    def repeat(self, n: int | None = None) -> Pipeline:
        """`n` epochs, or infinitely many. Each epoch has its own order and random streams."""
        return self._then(Repeat(n))

    # -- batches ---------------------------------------------------------------------------------------

    def batch(self, n: int, drop_last: bool = False) -> Pipeline:
        """Batches of `n` rows. The last batch may have fewer; `drop_last` drops it then."""
        return self._then(Batch(n, drop_last))

    def unbatch(self) -> Pipeline:
        """Split batches into rows along dimension 0."""
        return self._then(Unbatch())

    # -- ragged columns --------------------------------------------------------------------------------

    def pad(self, key: str, to: int | None = None, *, value: float = 0, left: bool = False) -> Pipeline:
        """Pad a ragged column to a tensor, and add a mask.

        Args:
            key: the column. It becomes `[n, to, ...]`; the bool entry `f"{key}_mask"` `[n, to]` is True for elements of
                the row and False for padding. Strings become bytes.
            to: length to pad to; longer rows are truncated. None, after `.batch`: the length of the longest row of the
                batch.
            value, left: as `Ragged.pad`.

        Raises:
            KeyError: there is no such column.
            ValueError: `to` is None before `.batch`.
        """
        if to is None and not self._has_batches:
            raise ValueError(f"rows of {key!r} need one length before .batch(n): pass to=, or call .pad after it.")
        if to is not None and to < 1:
            raise ValueError(f"to must be at least 1: got {to}.")
        self._require_entry(key, "the column of .pad()")
        return self.map(PadRows(key, to, value, left))

    def pack(self, key: str, n: int, *, window: int = 1024, value: float = 0, columns: Sequence[str] = ()) -> Pipeline:
        """Concatenate the rows of a ragged column and cut them into blocks of `n` elements.

        Each `window` rows are packed together; `value` fills up their last block. `tdmap.datasets.pack` packs all rows
        of a dataset together, in order.

        Args:
            key: the column. It becomes `[blocks, n, ...]`; other columns are left out.
            n: elements per block.
            window: number of rows that are packed together.
            value: fill value after the last element.
            columns: further columns, int32 `[n]` per block: `"document"`, the number of each element's row within the
                window, -1 for fill values; and `"position"`, the position of each element in its row.

        Raises:
            KeyError: there is no such column.
            ValueError: a size is out of range, or there are batches already.
        """
        if n < 1 or window < 1:
            raise ValueError(f"n and window must be at least 1: got {n} and {window}.")
        stage = PackRows(key, n, value, require_block_columns(columns))
        self._require_entry(key, "the column of .pack()")
        self._require_no_batches("pack")
        return self.batch(window).map(stage).unbatch()

    def bucket(self, key: str, n: int, *, window: int = 100, shuffle: bool = True) -> Pipeline:
        """Batches of `n` rows with similar lengths in a ragged column, so that `.pad(key)` adds little.

        Args:
            key: the ragged column.
            n: rows per batch; the last batch may have fewer.
            window: number of batches that are sorted together.
            shuffle: shuffle the batches of a window, in another order in each epoch.

        Raises:
            KeyError: there is no such column.
            ValueError: a size is out of range, or there are batches already.
        """
        if n < 1 or window < 1:
            raise ValueError(f"n and window must be at least 1: got {n} and {window}.")
        self._require_entry(key, "the column of .bucket()")
        self._require_no_batches("bucket")
        return self.batch(n * window).map(SortByLength(key, n, shuffle)).unbatch().batch(n)

    @property
    def _has_batches(self) -> bool:
        return any(isinstance(stage, Batch) for stage in self._stages)

    def _require_no_batches(self, stage: str) -> None:
        if self._has_batches:
            raise ValueError(f".{stage} makes batches of rows: leave out the .batch before it.")

    # -- several datasets ------------------------------------------------------------------------------

    def zip(self, other: Pipeline | Dataset[Any]) -> Pipeline:
        """Entries of both pipelines, row by row. Both must have the same number of rows, and no common entry. Seeds:
        see `concat`."""
        return self._then(ZipWith(_pipeline(other, "zip")))

    def concat(self, other: Pipeline | Dataset[Any]) -> Pipeline:
        """The rows of `other` after these. Both must have the same entries, dtypes and row shapes.

        All parts use one seed: this pipeline's `seed=`, or the first `seed=` of a part.

        Raises:
            OutputMismatch: entries, dtypes or row shapes differ. If functions make the rows, this is raised when a
                batch has rows of both.
        """
        other = _pipeline(other, "concat")
        mine, theirs = self._example(), other._example()
        if mine is not None and theirs is not None and not fits(mine, theirs):
            difference = describe_difference(mine, theirs).replace("this one", "the second one", 1)
            raise OutputMismatch(
                f"concat: both pipelines must have the same entries, dtypes and row shapes: {difference}."
            )
        return self._then(ConcatWith(other))

    def cache(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Pipeline:
        """Write the rows to a folder when they are first needed, and read them from the folder afterwards.

        An interrupted write resumes.

        Args:
            path: the folder.
            overwrite: replace the cache of another pipeline when the new one is complete.

        Raises:
            ResumeMismatch: (when the rows are read) the folder is the cache of a pipeline with another source, function
                or earlier stage, and `overwrite` is False.
            FileExistsError: (when the rows are read) the folder holds another dataset.
        """
        return self._then(Cache.at(path, overwrite))

    # -- the end ---------------------------------------------------------------------------------------

    @operation_method
    def iter(
        self,
        ctx: Context,
        *,
        device: Device | None = None,
        prefetch: int | None = None,
        epoch: int | None = None,
        shard: ShardLike = None,
        even: str | None = None,
        **options: Unpack[FunctionOptions],
    ) -> PipelineIterator:
        """Yield rows, or batches after `.batch`, in order.

        Args:
            device: copy tensors to this device while you compute. None does not copy them.
            prefetch: how many batches workers may compute ahead, at least 1. Default: three per worker, or a few
                megabytes of small batches.
            epoch: number of the epoch; each epoch has its own order and augmentations. Default: the number of
                `set_epoch`.
            shard: `(rank, world_size)` or `"auto"`: the part of one rank, as `.shard()` at the end of the chain.
            even: as in `.shard()`: `"drop"` or `"pad"` gives every rank the same number of elements.
            **options: see `tdmap.FunctionOptions`. `chunksize` and `num_chunks` apply if workers do not build the
                batches. `seed` overrides the pipeline's seed. With `on_error="skip"` or a function, failing rows are
                left out of their batch, and functions of batches take the other rows.

        Returns:
            An iterator with `state_dict()` and `load_state_dict()`, and with a length if it is known. The length
            includes rows that `on_error` leaves out.

        Raises:
            ValueError: an option is out of range; or with `on_error`, a function does not run on chunks of rows in
                workers.
        """
        rank = None if shard is None else rank_of(shard)
        if rank is None and even is not None:
            raise ValueError("even= is about shares: pass shard=(rank, world_size) or shard='auto' with it.")
        pipeline = self
        if rank is not None:
            if isinstance(shard, str):
                self._require_common_order(rank.world_size)
            pipeline = self.shard(*rank, even=even)
        numbered = epoch is not None
        epoch = self._epochs.number if epoch is None else epoch
        if prefetch is not None:
            require_integer("prefetch", prefetch, 1)
        target = None if device is None else resolve_device(device)
        settings = RunSettings.of(ctx, self._used_seed, epoch, prefetch)
        if settings.seed is None and self._calls:
            settings = replace(settings, seed=drawn_seed())
        if target is not None and target.type == "cpu":
            target = None
        if target is not None:
            check_start_method(ctx.execution, target)
        chain, share = pipeline._without_share()
        plan = chain._opened(settings)
        ahead = min(prefetch or 2, 2)
        elements = PipelineIterator(plan, settings, chain.describe(), target, ahead, share, plan.elements)
        if not numbered:
            elements.at_first = functools.partial(pipeline._warn_of_repeated, epoch)
        return elements

    def _warn_of_repeated(self, epoch: int) -> None:
        """Warn where the epoch that begins now is the one that began last, and it makes a difference."""
        again = self._begun == (epoch, self._epochs.times_set)
        self._begun = (epoch, self._epochs.times_set)
        if again and (self._shuffles or self._used_seed is not None):
            warn_user(
                "this pipeline is iterated once more with the order and the random streams of the same epoch. Call "
                "pipeline.set_epoch(n) before each, use .iter(epoch=n), or .repeat(n) for all of them in one go.",
                UserWarning,
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; each epoch has its own order and augmentations.

        It also applies to pipelines derived from this one, and to the workers of a torch DataLoader. Call it before
        persistent workers start.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> rows = TensorDict({"x": torch.arange(4)}, [4]).pipeline().shuffle(seed=0)
            >>> orders = []
            >>> for epoch in range(2):
            ...     rows.set_epoch(epoch)
            ...     orders.append([int(row["x"]) for row in rows.iter(num_workers=0)])
            >>> orders[0] != orders[1], sorted(orders[1])
            (True, [0, 1, 2, 3])
        """
        require_integer("epoch", epoch, 0)
        self._epochs.set(epoch)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            "a pipeline cannot be indexed, because its stages run in order: iterate it, call "
            "take(n).collect() or skip(n).take(1).collect(), or index its dataset."
        )

    def __iter__(self) -> Iterator[Any]:
        """As `.iter()`; in a worker of torch's DataLoader, its share of the elements."""
        place = worker_place()
        if place is None:
            elements: Iterator[Any] = self.iter()
        else:
            settings = RunSettings(None, self._used_seed, self._epochs.number)
            chain, share = self._without_share()
            share = share._replace(worker=place[0], workers=place[1])
            elements = MappedIterator(
                PipelineIterator(chain._opened(settings), settings, chain.describe(), share=share), sendable
            )
        return for_loader(elements, sys._getframe(1))

    @operation_method
    def write(self, ctx: Context, out: Dataset[Any] | str | os.PathLike[str], **options: Unpack[MapOptions]) -> Any:
        """Write all rows; batches are concatenated.

        Args:
            out: a folder for a new memory-mapped dataset, which appears when it is complete; or a dataset with enough
                rows, which must not share memory with the pipeline's dataset.
            **options: see `tdmap.MapOptions`, and `iter`. With `resume`, workers must be able to run all stages chunk
                by chunk; otherwise put `.cache(path)` before the stage that the error names.

        Returns:
            The dataset.

        Raises:
            OutputMismatch: `out` has too few rows, or rows that differ from the pipeline's.
            ResumeMismatch: with `resume`, the folder holds another run; names the difference.
        """
        settings = RunSettings.of(ctx, self._used_seed)
        return terminals.write(self._opened(settings), settings, ctx)

    @overload
    def reduce(self, /, reducer: Answers[A] | Callable[[Any, Any], A], **options: Unpack[FunctionOptions]) -> A: ...
    @overload
    def reduce(self, /, reducer: Mapping[str, Reducer[Any]], **options: Unpack[FunctionOptions]) -> TensorDict: ...
    @operation_method
    def reduce(
        self,
        ctx: Context,
        reducer: Answers[Any] | Mapping[str, Reducer[Any]] | Callable[[Any, Any], Any],
        **options: Unpack[FunctionOptions],
    ) -> Any:
        """Reduce all rows in one pass, with the same bits as `tdmap.reduce` for the same chunks."""
        settings, folds = RunSettings.of(ctx, self._used_seed), as_reducer(reducer)
        return terminals.reduce(self._as_columns(folds)._opened(settings), settings, folds)

    def _as_columns(self, reducer: Reducer[Any]) -> Pipeline:
        """The same rows as columns (`columns_for`), where no function of the caller gets them."""
        read: set[Any] = set()
        for stage in self._stages:
            if isinstance(stage, Filter) and isinstance(stage.fn, Expression):
                read |= stage.fn.keys
            elif isinstance(stage, (Call, Cache, ZipWith, ConcatWith)):
                return self
            elif isinstance(stage, Select):
                read.update(stage.keys)
        new = self._with_stages(self._stages)
        new.data = columns_for(reducer, self.data, read)
        return new

    @operation_method
    def collect(self, ctx: Context, **options: Unpack[FunctionOptions]) -> Any:
        """Return all rows in memory; batches are concatenated. Options as `iter`.

        Raises:
            ValueError: the result has no rows, and its schema is unknown because a function fails on zero rows.
        """
        settings = RunSettings.of(ctx, self._used_seed)
        return terminals.collect(self._opened(settings), settings)

    @operation_method
    def count(self, ctx: Context, **options: Unpack[FunctionOptions]) -> int:
        """Number of rows, or of batches after `.batch`. Runs the stages only if the number is unknown.

        With `on_error="skip"` or a function, rows that raise do not count.
        """
        settings = RunSettings.of(ctx, self._used_seed)
        known = self._plan(Chain._pending).elements
        if known is not None and not (settings.failures.skip and self._calls):
            return terminals.finite(known)
        return terminals.count(self._opened(settings), settings)

    def __len__(self) -> int:
        known = self._plan(Chain._pending).elements
        if known is None:
            raise TypeError(f"the length of {self!r} is unknown: count() runs the pipeline to count its elements.")
        return terminals.finite(known)

    # -- showing ---------------------------------------------------------------------------------------

    def explain(
        self, *, num_workers: int | None = None, prefetch: int | None = None, probe: bool = True
    ) -> Explanation:
        """The plan of the stages: passes, fused stages, bytes and memory. It prints as text and displays as a picture
        (`explain().svg`) in notebooks.

        Args:
            num_workers: number of worker processes. Default: the cores that this process may use.
            prefetch: batches ahead, as `iter`.
            probe: call the functions on the first row, to measure the bytes of a result.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> data = TensorDict({"x": torch.zeros(1000, 256)}, batch_size=[1000])
            >>> print(data.pipeline().shuffle(0).map(torch.exp).batch(100).explain(num_workers=2, prefetch=4))
            Pipeline(TensorDict [1000]).shuffle(seed=0).map(exp).batch(100)
            rows     TensorDict, 1,000 rows of 1.0 KiB
                       shuffle(seed=0)
                       - row numbers only: nothing is moved
            workers  one pass, 2 workers
                       map(exp)
                       batch(100)
                       - 10 chunks of 100 rows, 100.0 KiB each
                       - reads 1000.0 KiB
            result   10 batches
                     1.0 KiB a row
                     memory about 807.8 KiB: 400.0 KiB in workers, 400.0 KiB ahead, 7.8 KiB of order
        """
        return Explanation(self, num_workers, prefetch, probe)

    @property
    def svg(self) -> str:
        """The plan as a picture."""
        return self.explain(probe=False).svg

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return self.svg


def _pipeline(other: Data, name: str) -> Pipeline:
    if isinstance(other, Pipeline):
        return other
    if is_data(other):
        return Pipeline(other)
    raise TypeError(f".{name}() takes a pipeline or a dataset: got a {type(other).__name__}.")
