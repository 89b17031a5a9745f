"""From stages to a plan: which of them are arithmetic, which run in workers, which in the calling process.

    stages ──extend()──► Head   rows at random access, and all that workers do with a chunk of them, in one pass
                         Local  one more thing that is done here, in order: to what workers send, to two plans put
                                together, or to a plan that is repeated

A stage goes as deep as it can without changing the result:
- take, skip, shard and shuffle become arithmetic on row numbers as long as the rows can be numbered;
- functions of rows go to the workers, past stages that only choose or reorder rows;
- functions of batches do too, when a chunk can be a batch: nothing before has changed the number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from tdmap.data.combine import Concat, Zip
from tdmap.data.kinds import Data
from tdmap.data.reader import rows_of
from tdmap.pipeline.rows import View, call_in, is_shuffled
from tdmap.pipeline.stages import (
    ROW_WISE,
    Batch,
    Call,
    ConcatWith,
    Filter,
    FlatMap,
    Repeat,
    Shard,
    Shuffle,
    Skip,
    Stage,
    Take,
    Unbatch,
    ZipWith,
)

if TYPE_CHECKING:
    from tdmap.pipeline.pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class Head:
    """Rows, and what workers do with them."""

    view: View
    tail: tuple[Stage, ...] = ()
    """After the stages of the view: from the first one that changes the number of rows, or makes batches."""
    epochs: int = 1
    across: bool = False
    """A batch may hold rows of two epochs: `.repeat()` came before `.batch()`."""
    first: int = 0
    """Batches before this one are left out, of all epochs together."""
    stop: int | None = None
    """And those from this one on."""
    chunk: int | None = None
    """Rows of a chunk, once that is settled."""

    @property
    def batch(self) -> Batch | None:
        """The stage that makes a chunk a batch."""
        return next((stage for stage in self.tail if isinstance(stage, Batch)), None)

    @property
    def batched(self) -> bool:
        """Whether an element is a batch."""
        marks = [stage for stage in self.tail if isinstance(stage, (Batch, Unbatch))]
        return bool(marks) and isinstance(marks[-1], Batch)

    @property
    def is_counted(self) -> bool:
        """Whether as many elements come out as go in."""
        return all(isinstance(stage, (*ROW_WISE, Batch)) for stage in self.tail)

    @property
    def chunks_hold(self) -> bool:
        """Whether a chunk is a batch, and stays one."""
        return self.batched and not any(isinstance(stage, (FlatMap, Unbatch)) for stage in self.tail)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All that is done to a chunk."""
        return (*self.view.stages, *self.tail)

    @property
    def calls(self) -> bool:
        """Whether a function of the user's is called."""
        return call_in(self.view) is not None or any(isinstance(stage, Call) for stage in self.tail)

    @property
    def elements(self) -> int | None:
        """Rows or batches, of all epochs together; None when that is not known."""
        rows = self.view.length
        if rows is None or not self.is_counted:
            return None
        return self._batches(rows) if self.batched else rows * self.epochs

    def _batches(self, rows: int) -> int:
        batch = self.batch
        assert batch is not None
        times, rows = (1, rows * self.epochs) if self.across else (self.epochs, rows)
        each = rows // batch.size if batch.drop_last else -(-rows // batch.size)
        stop = each * times if self.stop is None else min(self.stop, each * times)
        return max(stop - self.first, 0)


@dataclass(frozen=True, eq=False)
class Local:
    """Something that is done in the calling process, in order."""

    sources: tuple[Plan, ...]
    """One; two, where the stage puts two together."""
    stage: Stage

    @property
    def source(self) -> Plan:
        """The only one, or the first."""
        return self.sources[0]

    @property
    def batched(self) -> bool:
        if isinstance(self.stage, (Batch, Unbatch)):
            return isinstance(self.stage, Batch)
        return self.source.batched

    @property
    def elements(self) -> int | None:
        stage, counts = self.stage, [source.elements for source in self.sources]
        known = counts[0]
        if isinstance(stage, ZipWith):
            return next((count for count in counts if count is not None), None)
        if isinstance(stage, ConcatWith):
            return None if None in counts else sum(count for count in counts if count is not None)
        if isinstance(stage, Take) and known is None:
            return 0 if stage.count == 0 else None
        if known is None or isinstance(stage, (Filter, FlatMap, Unbatch)):
            return None
        if isinstance(stage, Take):
            return min(known, stage.count)
        if isinstance(stage, Skip):
            return max(known - stage.count, 0)
        if isinstance(stage, Shard):
            return stage.share.count(known)
        if isinstance(stage, Repeat):
            return known * stage.epochs
        if isinstance(stage, Batch):
            return known // stage.size if stage.drop_last else -(-known // stage.size)
        return known


Plan: TypeAlias = "Head | Local"


def start(data: Data) -> Plan:
    """The plan of a pipeline without stages."""
    return Head(View(rows_of(data)))


def extend(plan: Plan, stage: Stage, open_plan: Callable[[Pipeline], Plan]) -> Plan:
    """The plan with one more stage.

    Args:
        plan: what there is.
        stage: what comes after it; a `Cache` is no matter of this function.
        open_plan: the plan of another pipeline.

    Raises:
        ValueError: the stage makes no sense there, or has no exact meaning; says what to do instead.
    """
    if isinstance(stage, ROW_WISE):
        return _call(plan, stage)
    if isinstance(stage, (Filter, FlatMap)):
        return _change_rows(plan, stage)
    if isinstance(stage, (Take, Skip, Shard)):
        return _pick(plan, stage)
    if isinstance(stage, Shuffle):
        return _shuffle(plan, stage)
    if isinstance(stage, Repeat):
        return _repeat(plan, stage)
    if isinstance(stage, Batch):
        return _batch(plan, stage)
    if isinstance(stage, Unbatch):
        return _unbatch(plan, stage)
    assert isinstance(stage, (ZipWith, ConcatWith)), stage
    return _together(plan, stage, open_plan(stage.other))


def _call(plan: Plan, stage: Stage) -> Plan:
    if isinstance(plan, Head):
        if not plan.tail:
            return replace(plan, view=replace(plan.view, stages=(*plan.view.stages, stage)))
        return replace(plan, tail=(*plan.tail, stage))
    # Rows are chosen and ordered without a look at them, so their function may come first, in the workers.
    if isinstance(plan.stage, (Take, Skip, Shard, Shuffle, ConcatWith, Repeat)):
        return _below(plan, lambda source: _call(source, stage))
    return Local((plan,), stage)


def _below(plan: Local, change: Callable[[Plan], Plan]) -> Local:
    return replace(plan, sources=tuple(map(change, plan.sources)))


def _change_rows(plan: Plan, stage: Stage) -> Plan:
    if isinstance(stage, FlatMap) and plan.batched:
        raise ValueError(".flat_map() takes rows, not batches: put it before .batch(), or after .unbatch().")
    if isinstance(plan, Head) and (plan.first, plan.stop) == (0, None):
        return replace(plan, tail=(*plan.tail, stage))
    if isinstance(plan, Local) and isinstance(plan.stage, (ConcatWith, Repeat)):
        return _below(plan, lambda source: _change_rows(source, stage))
    return Local((plan,), stage)


def _pick(plan: Plan, stage: Stage) -> Plan:
    if isinstance(plan, Head):
        # Shares of rows that a filter has yet to see cannot be made even.
        shares = isinstance(stage, Shard) and stage.even is None
        shares = shares and not any(isinstance(s, (Batch, Unbatch)) for s in plan.tail)
        if (not plan.tail or shares) and plan.epochs == 1:
            return replace(plan, view=plan.view.picking(stage))
        if plan.batched and plan.is_counted and isinstance(stage, (Take, Skip)):
            if isinstance(stage, Skip):
                return replace(plan, first=plan.first + stage.count)
            stop = plan.first + stage.count
            return replace(plan, stop=stop if plan.stop is None else min(stop, plan.stop))
    movable = ROW_WISE if isinstance(stage, Shard) and stage.even is not None else (*ROW_WISE, Filter)
    if isinstance(stage, Shard) and isinstance(plan, Local) and isinstance(plan.stage, movable):
        return _below(plan, lambda source: _pick(source, stage))
    return Local((plan,), stage)


def _shuffle(plan: Plan, stage: Shuffle) -> Plan:
    if plan.batched:
        raise ValueError(".shuffle() takes rows, not batches: put it before .batch().")
    if stage.buffer is not None:
        return Local((plan,), stage)
    if isinstance(plan, Head) and plan.epochs == 1 and all(isinstance(s, (*ROW_WISE, Filter)) for s in plan.tail):
        # Rows that are dropped leave the others in an order that is as random as before.
        return replace(plan, view=plan.view.picking(stage))
    if plan.epochs != 1 if isinstance(plan, Head) else isinstance(plan.stage, Repeat):
        raise ValueError(
            f".{stage} after .repeat() would mix the epochs: put .shuffle() first, and each epoch has its own order."
        )
    raise ValueError(
        f".{stage} needs the number of rows, which is unknown after {_blocker(plan)}. Put .shuffle() before "
        f"it, use .cache(path) between the two, or shuffle approximately with .shuffle({stage.seed}, "
        "buffer=10_000)."
    )


def _blocker(plan: Plan) -> str:
    if isinstance(plan, Head):
        return next((f".{s}" for s in plan.tail if isinstance(s, (FlatMap, Unbatch))), "a stage before it")
    if len(plan.sources) > 1:
        return f".{plan.stage.name}() of pipelines that change the number of rows"
    return f".{plan.stage}"


def _repeat(plan: Plan, stage: Repeat) -> Plan:
    if isinstance(plan, Head) and plan.epochs == 1 and (plan.first, plan.stop) == (0, None):
        return replace(plan, epochs=stage.epochs)
    return Local((plan,), stage)


def _batch(plan: Plan, stage: Batch) -> Plan:
    if plan.batched:
        raise ValueError(f".{stage} takes rows, not batches: use .unbatch() first.")
    # A chunk is read from the rows of one epoch, so it cannot hold those of two where they are others in each.
    if isinstance(plan, Head) and not plan.tail and (plan.epochs == 1 or not is_shuffled(plan.view.over)):
        return replace(plan, tail=(stage,), across=plan.epochs != 1)
    return Local((plan,), stage)


def _unbatch(plan: Plan, stage: Unbatch) -> Plan:
    if not plan.batched:
        raise ValueError(".unbatch() takes batches: put it after .batch(n).")
    if isinstance(plan, Head) and (plan.first, plan.stop) == (0, None):
        return replace(plan, tail=(*plan.tail, stage))
    return Local((plan,), stage)


def _together(plan: Plan, stage: ZipWith | ConcatWith, other: Plan) -> Plan:
    if plan.batched is not other.batched:
        words = ["batches" if p.batched else "rows" for p in (plan, other)]
        raise ValueError(f".{stage.name}() of {words[0]} with {words[1]}: put .batch() after it, or on both sides.")
    views = [p.view for p in (plan, other) if isinstance(p, Head) and not p.tail and p.epochs == 1]
    if isinstance(stage, ZipWith):
        counts = (plan.elements, other.elements)
        if None not in counts and counts[0] != counts[1]:
            unit = "batches" if plan.batched else "rows"
            raise ValueError(
                f".zip() needs the same number of {unit} on both sides: got {counts[0]} and {counts[1]}. Use "
                f".take({_least(counts)}) on the longer one."
            )
        if len(views) == 2 and views[0].length is not None and views[1].length is not None:
            return Head(View(Zip(tuple(views))))
    elif len(views) == 2:
        return Head(View(Concat(tuple(views))))
    return Local((plan, other), stage)


def _least(counts: tuple[int | None, int | None]) -> int:
    return min(count for count in counts if count is not None)


# -- questions about a plan ----------------------------------------------------------------------------


def heads_of(plan: Plan) -> list[Head]:
    """Where the rows of a plan come from."""
    if isinstance(plan, Head):
        return [plan]
    return list(itertools.chain.from_iterable(map(heads_of, plan.sources)))


def shares_of(plan: Plan) -> tuple[int, ...]:
    """The index of each share that was taken on the way of a plan's rows."""
    if isinstance(plan, Head):
        return plan.view.shares
    own = (plan.stage.index,) if isinstance(plan.stage, Shard) else ()
    return (*own, *itertools.chain.from_iterable(map(shares_of, plan.sources)))


def with_chunks(plan: Plan, sizes: Iterator[int]) -> Plan:
    """The plan with settled chunks; `sizes` are in the order of `heads_of`."""
    if isinstance(plan, Head):
        return replace(plan, chunk=next(sizes))
    return _below(plan, lambda source: with_chunks(source, sizes))


def uncounted_call(plan: Plan, zipped: bool = False) -> Stage | None:
    """A stage of whose function no row can be left out: no worker calls it with chunks, or rows are `zipped` later."""
    if isinstance(plan, Head):
        own = (stage for stage in plan.stages if zipped and isinstance(stage, Call))
        return call_in(plan.view.over) or next(own, None)
    if isinstance(plan.stage, Call):
        return plan.stage
    found = (uncounted_call(source, zipped or isinstance(plan.stage, ZipWith)) for source in plan.sources)
    return next((stage for stage in found if stage is not None), None)


def is_one_pass(plan: Plan) -> TypeGuard[Head]:
    """Whether one job does everything, so that its results need only to be put in order."""
    return isinstance(plan, Head) and plan.epochs == 1 and (plan.first, plan.stop) == (0, None)
