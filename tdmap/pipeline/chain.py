"""What a pipeline is before it runs: a dataset, stages, a seed, and the plan that they make."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdmap.data.kinds import Data, Dataset, Rows, instead_of_data, is_data, is_dense
from tdmap.data.objects import without_objects
from tdmap.data.reader import narrow, require_entry, rows_of
from tdmap.output.output import Output
from tdmap.pipeline.caching import dataset_of, identity
from tdmap.pipeline.epochs import RunSettings
from tdmap.pipeline.planning import Head, Plan, extend, heads_of, start, uncounted_call
from tdmap.pipeline.rows import UnwrittenCache, View
from tdmap.pipeline.shares import EpochNumber, Share
from tdmap.pipeline.stages import (
    KEEPING_ROWS,
    SAME_ENTRIES,
    Cache,
    Call,
    ConcatWith,
    Key,
    Shard,
    Shuffle,
    Stage,
    ZipWith,
)
from tdmap.runtime.wire import byvalue
from tdmap.seeding import checked_seed

if TYPE_CHECKING:
    from typing import Self


class Chain(torch.utils.data.IterableDataset[Any]):
    """A dataset and stages. A chain is immutable: each further stage makes a new one.

    Args:
        data: a tensor or a collection of tensors, with rows in dimension 0.
        seed: of the random streams of functions.

    Attributes:
        data: the dataset.

    Raises:
        TypeError: `data` has no rows.
    """

    def __init__(self, data: Dataset[Any], *, seed: int | None = None) -> None:
        if not is_data(data):
            raise TypeError(f"a pipeline needs a tensor or a collection of tensors, got {instead_of_data(data)}")
        if not data.shape:
            raise TypeError(f"a pipeline needs rows in dimension 0, and the {type(data).__name__} has no dimension.")
        self.data = data
        self._seed = checked_seed(seed)
        self._epochs = EpochNumber()
        self._begun: tuple[int, int] | None = None
        self._stages: tuple[Stage, ...] = ()

    def _then(self, stage: Stage) -> Self:
        new = self._with_stages((*self._stages, stage))
        new._begun = None
        new._plan(Chain._pending)  # a stage that makes no sense here is an error here
        return new

    def _with_stages(self, stages: tuple[Stage, ...]) -> Self:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._stages = stages
        return new

    def __getstate__(self) -> dict[str, Any]:
        # By value: chains hold lambdas and closures.
        return {**self.__dict__, "_stages": byvalue.dumps(self._stages)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stages = pickle.loads(state["_stages"])

    def describe(self) -> str:
        """The chain as it was written."""
        rows = int(self.data.shape[0])
        seed = "" if self._seed is None else f", seed={self._seed}"
        return ".".join([f"Pipeline({type(self.data).__name__} [{rows}]{seed})", *map(str, self._stages)])

    def __repr__(self) -> str:
        return self.describe()

    def __bool__(self) -> bool:
        return True

    # -- questions ---------------------------------------------------------------------------------------

    @property
    def _others(self) -> list[Chain]:
        return [stage.other for stage in self._stages if isinstance(stage, (ZipWith, ConcatWith))]

    @property
    def _calls(self) -> bool:
        """Whether a function of the user's is called, which may draw random numbers, in any part."""
        own = any(isinstance(stage, Call) for stage in self._stages)
        return own or any(other._calls for other in self._others)

    @property
    def _shuffles(self) -> bool:
        """Whether rows come in an order that depends on the epoch."""
        own = any(isinstance(stage, Shuffle) for stage in self._stages)
        return own or any(other._shuffles for other in self._others)

    @property
    def _draws_orders(self) -> bool:
        """Whether a shuffle, in any part, has a seed that was drawn, not given."""
        own = any(isinstance(stage, Shuffle) and stage.drawn for stage in self._stages)
        return own or any(other._draws_orders for other in self._others)

    @property
    def _used_seed(self) -> int | None:
        """The seed of all random streams: the pipeline's own, or that of the first part which has one."""
        if self._seed is not None:
            return self._seed
        return next((seed for other in self._others if (seed := other._used_seed) is not None), None)

    def _require_entry(self, key: Key, what: str, of: object = None) -> None:
        """Raise KeyError if there is no such entry, where it is known which there are."""
        if all(isinstance(stage, SAME_ENTRIES) for stage in self._stages) and not isinstance(self.data, Tensor):
            require_entry(self.data, key, what, of)

    def _require_common_order(self, count: int) -> None:
        """Raise ValueError where each of several ranks would put the rows into an order of its own."""
        if count > 1 and self._draws_orders:
            raise ValueError(
                "each rank would draw another seed for .shuffle(), and rows would be in several parts or in "
                "none: pass the same .shuffle(seed=...) on all ranks."
            )

    def _example(self) -> Data | None:
        """No rows, which look like those of the pipeline, without objects; None where functions make the rows."""
        if not all(isinstance(stage, KEEPING_ROWS) for stage in self._stages):
            return None
        rows = narrow(self.data, 0, 0, 0)
        return without_objects(rows) if is_dense(rows) or isinstance(rows, Tensor) else None

    # -- the plan ----------------------------------------------------------------------------------------

    def _without_share(self) -> tuple[Self, Share]:
        """The chain without the share of batches that it ends with, if it does, and that share."""
        last = self._stages[-1] if self._stages else None
        if isinstance(last, Shard):
            chain = self._with_stages(self._stages[:-1])
            if chain._plan(Chain._pending).batched:
                return chain, last.share
        return self, Share()

    def _plan(self, cached: Callable[[Chain, Cache, Plan], Rows]) -> Plan:
        """The plan; `cached` gives the rows of a cache and the pipeline before it."""
        plan = start(self.data)
        for number, stage in enumerate(self._stages):
            if isinstance(stage, Cache):
                plan = Head(View(cached(self._with_stages(self._stages[:number]), stage, plan)))
            else:
                plan = extend(plan, stage, lambda other: other._plan(cached))
        return plan

    def _pending(self, cache: Cache, plan: Plan) -> UnwrittenCache:
        if plan.batched:
            raise ValueError(".cache() stores rows, not batches: put it before .batch(), or after .unbatch().")
        return UnwrittenCache(cache.path, plan.elements, heads_of(plan)[0].view.row_bytes)

    def _opened(self, settings: RunSettings) -> Plan:
        """The plan with every cache written.

        Raises:
            ValueError: rows that raise are to be skipped, and a function is called where that cannot be.
        """
        plan = self._plan(lambda before, cache, plan: rows_of(dataset_of(before, cache, plan, settings)))
        stage = uncounted_call(plan) if settings.failures.skip else None
        if stage is not None:
            raise ValueError(
                f"on_error= needs functions that workers call with chunks of rows, and .{stage} is called "
                "elsewhere (see explain()). Put it before stages that count filtered rows, such as .batch(), "
                "and after .concat() and .zip(); or put .cache(path) before it."
            )
        return plan

    def check_output(self, output: Output) -> None:
        """Raise where rows would go to a folder or memory that is read."""
        for head in heads_of(self._plan(Chain._pending)):
            for folder in head.view.read_folders:
                output.refuse(folder)
        for other in self._others:
            output.require_apart(other.data)
            other.check_output(output)

    def identity_parts(self) -> dict[str, str]:
        """What the pipeline is beside its data, part by part: the same in every process."""
        return identity(self)
