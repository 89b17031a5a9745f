"""`Pipeline`: the chain that users write."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Unpack

from tdmap.data.alike import describe_difference, fits
from tdmap.data.kinds import Data, Dataset, is_data
from tdmap.devices import check_start_method
from tdmap.errors import OutputMismatch
from tdmap.expressions import Expression
from tdmap.frames import warn_user
from tdmap.functions import Keys, as_function
from tdmap.memory.links import Device, resolve_device
from tdmap.pipeline import terminals
from tdmap.pipeline.chain import Chain
from tdmap.pipeline.epochs import RunSettings
from tdmap.pipeline.explain import Explanation
from tdmap.pipeline.loader import PipelineIterator
from tdmap.pipeline.ragged import PackRows, PadRows, SortByLength, require_block_columns
from tdmap.pipeline.stages import (
    Batch,
    Cache,
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
from tdmap.pipeline.torchloader import Sendable, for_loader, worker_place
from tdmap.process_state import on_host
from tdmap.ranks.shard import ShardLike, rank_of
from tdmap.reducers import Reducer, as_reducer
from tdmap.run.context import Context
from tdmap.run.operation import operation_method
from tdmap.run.options import FunctionOptions, MapOptions
from tdmap.seeding import drawn_seed


@on_host
class Pipeline(Chain):
    """A lazy chain of stages over the rows of a dataset. Each call returns a new pipeline; nothing runs before the end.

    Args:
        data: a tensor or a collection of tensors, with rows in dimension 0.
        seed: of the random streams of functions (torch, numpy, random, and generators that they hold): each chunk has
            its own, derived from (seed, epoch, number of its first row), so that augmentations are the same for any
            number of workers and after a resume. None: each `iter` draws one from torch's random stream, and its
            `state_dict` keeps it; other endings leave the streams of workers alone.

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

        Before `.batch`, a chunk is a collection of some consecutive rows, and the result must have as many: where
        chunks are cut is a matter of speed, so `fn` must treat rows independently. After `.batch(n)`, `fn` gets the
        batches, and may return anything.

        Args:
            fn: a function, an `nn.Module` (called without gradients) or a torchvision transform (called with the
                pictures). It must not change its argument's tensors in place.
            in_keys, out_keys: call `fn` with these entries, and put its results there (`out_keys`, by default
                `in_keys`); the other entries stay. See `tdmap.functions.OnKeys`.
        """
        return self._then(Map(as_function(fn, in_keys, out_keys)))

    def map_rows(self, fn: Callable[..., Any], in_keys: Keys | None = None, out_keys: Keys | None = None) -> Pipeline:
        """Apply `fn` to single rows, without the row dimension; results are stacked again. Arguments as `map`."""
        return self._then(MapRows(as_function(fn, in_keys, out_keys)))

    def filter(self, predicate: Callable[[Any], Any]) -> Pipeline:
        """Keep rows. `predicate` gets a chunk and returns one bool a row; after `.batch`, one bool for the batch.

        Raises:
            KeyError: a formula (`tdmap.col`) names no entry; at once where no function comes before.
        """
        for key in sorted(predicate.keys, key=str) if isinstance(predicate, Expression) else ():
            self._require_entry(key, f"a column of the predicate {predicate!r}")
        return self._then(Filter(as_function(predicate)))

    def flat_map(self, fn: Callable[[Any], Any]) -> Pipeline:
        """Apply `fn` to chunks of rows; it returns any number of rows, in order, or None for none."""
        return self._then(FlatMap(as_function(fn)))

    def select(self, *keys: Key | list[Key]) -> Pipeline:
        """Keep some entries. Keys are strings, or tuples of strings for nested entries.

        Raises:
            KeyError: there is no such entry; at once where no function comes before, else when rows are asked for.
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
        """The first `n` rows; after `.batch`, batches. Rows that a filter dropped do not count."""
        return self._then(Take(n))

    def skip(self, n: int) -> Pipeline:
        """All but the first `n` rows; after `.batch`, batches."""
        return self._then(Skip(n))

    def shard(self, index: int | str, count: int | None = None, even: str | None = None) -> Pipeline:
        """One of `count` shares that together have every row once.

        Ranks that train together need the same number of batches, or some wait forever: `even=` ensures it. For them,
        end the chain with `.batch(n).shard("auto", even="drop")`: each rank computes its own batches only, and another
        number of ranks can resume from the `state_dict` of any rank.

        Args:
            index: which share, from 0; or `"auto"`: the rank that torchrun or `torch.distributed` gives this program.
            count: how many there are; left out with `"auto"`.
            even: None: sizes may differ by one. `"drop"`: the last few rows belong to no share. `"pad"`: the first few
                rows are in two shares. After `.batch`, or where counting has begun, the last few elements are dropped,
                or given to several shares.

        Raises:
            ValueError: an argument is out of range; with `"auto"`, nothing tells the rank, or a shuffle has no `seed`.

        Shares are runs of consecutive rows of the source as long as these can be numbered (a filter may have come
        before: then each share filters its own rows). After `.batch`, or where counting has begun, a share is every
        `count`-th element.
        """
        if count is None and isinstance(index, str):
            index, count = rank_of(index)
            self._require_common_order(count)
        return self._then(Shard(index, count, even))  # type: ignore[arg-type]

    def shuffle(self, seed: int | None = None, buffer: int | None = None) -> Pipeline:
        """Another order, and another one in each epoch.

        Without `buffer`: an exact permutation of all rows, drawn from the seed. It is done by reading rows in another
        order, so nothing is moved, and it is the same as that of `map_iter(shuffle=True, seed=seed)`. Stages before it
        may be functions of rows and filters.

        Args:
            seed: of the order. The first epoch has this seed, later ones have seeds derived from it and their number
                (see `set_epoch`). None draws one from torch's random stream, now.
            buffer: shuffle rows as they come, with so many of them in memory; needed where rows cannot be numbered.
        """
        drawn = drawn_seed() if seed is None else seed
        return self._then(Shuffle(drawn, buffer, drawn=seed is None))

    def repeat(self, n: int | None = None) -> Pipeline:
        """`n` epochs, or epochs without end. Each one has its own order and its own random streams."""
        return self._then(Repeat(n))

    # -- batches ---------------------------------------------------------------------------------------

    def batch(self, n: int, drop_last: bool = False) -> Pipeline:
        """Batches of `n` rows; the last one may be shorter, or is left out with `drop_last`."""
        return self._then(Batch(n, drop_last))

    def unbatch(self) -> Pipeline:
        """Rows again: dimension 0 of each batch."""
        return self._then(Unbatch())

    # -- ragged columns --------------------------------------------------------------------------------

    def pad(self, key: str, to: int | None = None, *, value: float = 0, left: bool = False) -> Pipeline:
        """Make a tensor of a ragged column, and a mask.

        Args:
            key: the column. It becomes `[n, to, ...]`, and the bool entry `f"{key}_mask"` `[n, to]` is True where
                elements are. Strings are their bytes.
            to: that length: longer rows lose their end. None, after `.batch`: that of the longest row of a batch.
            value, left: as `Ragged.pad`.

        Raises:
            KeyError: there is no such column.
            ValueError: `to` is missing where there are no batches.
        """
        if to is None and not self._has_batches:
            raise ValueError(f"rows of {key!r} need one length before .batch(n): pass to=, or call .pad after it.")
        if to is not None and to < 1:
            raise ValueError(f"to must be at least 1: got {to}.")
        self._require_entry(key, "the column of .pad()")
        return self.map(PadRows(key, to, value, left))

    def pack(self, key: str, n: int, *, window: int = 1024, value: float = 0, columns: Sequence[str] = ()) -> Pipeline:
        """Make blocks of `n` elements of a ragged column, whose rows lie in them one after the other.

        So many rows at a time, `window`, are packed together, and what is left of them fills up a last block with
        `value`. `tdmap.datasets.pack` packs all rows of a dataset together, in the order that they have.

        Args:
            key: the column. It becomes `[blocks, n, ...]`; other columns are left out.
            n: elements of a block.
            window: rows that are packed together.
            value: behind the last element.
            columns: what else a block has, int32 `[n]` each: `"document"`, the number within the window of the row that
                an element is of, -1 behind the last one; and `"position"`, its place in that row.

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
        """Batches of `n` rows that are of about one length in a ragged column, so that `.pad(key)` adds little.

        Args:
            key: the column whose lengths count.
            n: rows in a batch; the last one may have fewer.
            window: number of batches that are sorted together.
            shuffle: put the batches of a window into a random order, another one in each epoch.

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
            raise ValueError(f".{stage} makes batches of rows, and there is .batch before it: leave that out.")

    # -- several datasets ------------------------------------------------------------------------------

    def zip(self, other: Pipeline | Dataset[Any]) -> Pipeline:
        """Entries of both, row by row. Both must have as many rows, and no entry in common. Seeds: see `concat`."""
        return self._then(ZipWith(_pipeline(other, "zip")))

    def concat(self, other: Pipeline | Dataset[Any]) -> Pipeline:
        """The rows of `other` after these. Both must have the same entries, dtypes and row shapes.

        All parts draw from one seed: this pipeline's `seed=`, or if it has none, that of the first part which has one.

        Raises:
            OutputMismatch: rows of the two do not look alike; where functions make them, that is found out when rows
                of both are in one batch.
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
        """Write the rows to a folder the first time that they are needed, and read them there from then on.

        The writing can be interrupted and is resumed. Another source, function or stage before it makes another
        pipeline (see `tdmap.map`, `resume`), whose folder is refused.

        Args:
            path: the folder.
            overwrite: a cache of another pipeline is replaced instead, when the new one is whole; any other dataset
                is refused all the same.
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
            device: where the tensors should be; copies run while you compute. None leaves them where they are.
            prefetch: batches that workers may be ahead of you; at least 1. Default: three a worker, or a few megabytes
                of small ones.
            epoch: number of the epoch: another one shuffles and augments differently. Default: that of `set_epoch`.
            shard: `(rank, world_size)` or `"auto"`: one of so many shares, as `.shard()` at the end of the chain.
            even: as `.shard()`: `"drop"` or `"pad"` gives every rank as many elements.
            **options: see `tdmap.FunctionOptions`. `chunksize` and `num_chunks` count where no batch decides; `seed`
                takes the place of the pipeline's. With `on_error="skip"` or a function, a batch lacks the rows that
                raise, and its function is called with the others.

        Returns:
            An iterator with `state_dict()` and `load_state_dict()`, and a length where it is known: rows that
            `on_error` leaves out count.

        Raises:
            ValueError: an option is out of range; or `on_error`, and a function is not called with chunks of rows by
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
        if prefetch is not None and (isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1):
            raise ValueError(f"prefetch must be an integer of at least 1: got {prefetch!r}.")
        target = None if device is None else resolve_device(device)
        settings = RunSettings.of(ctx, self._used_seed, epoch, prefetch)
        if settings.seed is None and self._calls:
            settings = settings.starting(drawn_seed(), epoch)
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
        """Number the epoch that the next iteration has: another one shuffles and augments differently.

        It applies to every pipeline that was made from this one, and to the workers of a torch DataLoader. Call it
        before persistent workers start.

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
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch must be an integer of at least 0: got {epoch!r}.")
        self._epochs.set(epoch)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            "a pipeline has no rows to index, because its stages run in order: iterate it, take(n).collect(), or "
            "skip(n).take(1).collect(). The dataset that it began with can be indexed."
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
            elements = Sendable(PipelineIterator(chain._opened(settings), settings, chain.describe(), share=share))
        return for_loader(elements, sys._getframe(1))

    @operation_method
    def write(self, ctx: Context, out: Dataset[Any] | str | os.PathLike[str], **options: Unpack[MapOptions]) -> Any:
        """Write all rows; batches are joined.

        Args:
            out: a folder for a new memory-mapped dataset, which appears there when it is whole; or a dataset with room
                for the rows, which is written into, and must not share memory with the pipeline's.
            **options: see `tdmap.MapOptions`, and `iter`. With `resume`, stages must be such that workers do them one
                chunk at a time; else put `.cache(path)` before the stage that is not.

        Returns:
            The dataset.

        Raises:
            OutputMismatch: `out` has too few rows, or others than the pipeline's.
            ResumeMismatch: with `resume`, the folder holds another run; names the difference.
        """
        settings = RunSettings.of(ctx, self._used_seed)
        return terminals.write(self._opened(settings), settings, ctx)

    @operation_method
    def reduce(
        self,
        ctx: Context,
        reducer: Reducer[Any] | Mapping[str, Reducer[Any]] | Callable[[Any, Any], Any],
        **options: Unpack[FunctionOptions],
    ) -> Any:
        """Fold all rows in one pass; see `tdmap.reduce`, whose answers these are, bit for bit, for the same chunks."""
        settings = RunSettings.of(ctx, self._used_seed)
        return terminals.reduce(self._opened(settings), settings, as_reducer(reducer))

    @operation_method
    def collect(self, ctx: Context, **options: Unpack[FunctionOptions]) -> Any:
        """All rows in memory; batches are joined. Options as `iter`.

        Raises:
            ValueError: no row is left, and a function does not work on zero rows, so their schema is not known.
        """
        settings = RunSettings.of(ctx, self._used_seed)
        return terminals.collect(self._opened(settings), settings)

    @operation_method
    def count(self, ctx: Context, **options: Unpack[FunctionOptions]) -> int:
        """Number of rows, or of batches after `.batch`. Runs the stages only where the number cannot be known.

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
            raise TypeError(f"{self!r} has a length that only count() can tell, by running it.")
        return terminals.finite(known)

    # -- showing ---------------------------------------------------------------------------------------

    def explain(
        self, *, num_workers: int | None = None, prefetch: int | None = None, probe: bool = True
    ) -> Explanation:
        """How the stages will run: passes, fused stages, bytes and memory. It prints as text, and is a picture in
        notebooks; `explain().svg` is the picture.

        Args:
            num_workers: processes that will run it. Default: the cores that this process may use.
            prefetch: batches ahead, as `iter`.
            probe: call the functions on the first row, to know the bytes of a result.

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
