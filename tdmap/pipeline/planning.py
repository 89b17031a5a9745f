"""From stages to a plan: which of them are arithmetic, which run in workers, which in the calling process.

    stages ──extend()──► Head   rows at random access, and all that workers do with a chunk of them, in one pass
                         Local  one more thing that is done, in order, to what the workers send
                         Both, Again  several plans, or one several times

A stage goes as deep as it can without changing the result:
- take, skip, shard and shuffle become arithmetic on row numbers as long as the rows can be numbered;
- functions of rows go to the workers, past stages that only choose or reorder rows;
- functions of batches do too, when a chunk can be a batch: nothing before has changed the number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from tdmap.data.kinds import Data, data_length, data_row_bytes
from tdmap.pipeline.rows import Joined, View, Zipped
from tdmap.pipeline.stages import (
    ROW_WISE,
    Batch,
    Call,
    Concat,
    Filter,
    FlatMap,
    Repeat,
    Shard,
    Shuffle,
    Skip,
    Stage,
    Take,
    Unbatch,
    Zip,
)

if TYPE_CHECKING:
    from tdmap.pipeline.pipeline import Pipeline

ENDLESS = 1 << 62
"""Epochs of `.repeat()` without a number."""


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
    def elements(self) -> int | None:
        """Rows or batches, of all epochs together; None when that is not known."""
        rows = self.view.rows
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

    source: Plan
    stage: Stage

    @property
    def batched(self) -> bool:
        if isinstance(self.stage, (Batch, Unbatch)):
            return isinstance(self.stage, Batch)
        return self.source.batched

    @property
    def elements(self) -> int | None:
        stage, known = self.stage, self.source.elements
        if isinstance(stage, Take) and known is None:
            return 0 if stage.count == 0 else None
        if known is None or isinstance(stage, (Filter, FlatMap, Unbatch)):
            return None
        if isinstance(stage, Take):
            return min(known, stage.count)
        if isinstance(stage, Skip):
            return max(known - stage.count, 0)
        if isinstance(stage, Shard):
            return stage.size(known)
        if isinstance(stage, Batch):
            return known // stage.size if stage.drop_last else -(-known // stage.size)
        return known


@dataclass(frozen=True, eq=False)
class Both:
    """Two plans: one after the other, or side by side."""

    sources: tuple[Plan, Plan]
    stage: Zip | Concat

    @property
    def batched(self) -> bool:
        return self.sources[0].batched

    @property
    def elements(self) -> int | None:
        counts = [source.elements for source in self.sources]
        if isinstance(self.stage, Zip):
            return next((count for count in counts if count is not None), None)
        return None if None in counts else sum(count for count in counts if count is not None)


@dataclass(frozen=True, eq=False)
class Again:
    """A plan several times, each time as another epoch."""

    source: Plan
    epochs: int

    @property
    def batched(self) -> bool:
        return self.source.batched

    @property
    def elements(self) -> int | None:
        return None if self.source.elements is None else self.source.elements * self.epochs


Plan: TypeAlias = "Head | Local | Both | Again"


def start(data: Data) -> Plan:
    """The plan of a pipeline without stages."""
    return Head(View(data))


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
    assert isinstance(stage, (Zip, Concat)), stage
    return _both(plan, stage, open_plan(stage.other))


def _call(plan: Plan, stage: Stage) -> Plan:
    if isinstance(plan, Head):
        if not plan.tail:
            return replace(plan, view=replace(plan.view, stages=(*plan.view.stages, stage)))
        return replace(plan, tail=(*plan.tail, stage))
    # Rows are chosen and ordered without a look at them, so their function may come first, in the workers.
    if isinstance(plan, Local) and isinstance(plan.stage, (Take, Skip, Shard, Shuffle)):
        return replace(plan, source=_call(plan.source, stage))
    if isinstance(plan, Both) and isinstance(plan.stage, Concat):
        return replace(plan, sources=(_call(plan.sources[0], stage), _call(plan.sources[1], stage)))
    if isinstance(plan, Again):
        return replace(plan, source=_call(plan.source, stage))
    return Local(plan, stage)


def _change_rows(plan: Plan, stage: Stage) -> Plan:
    if isinstance(stage, FlatMap) and plan.batched:
        raise ValueError(
            ".flat_map() works on rows, and there are batches: put it before .batch(), or after .unbatch()."
        )
    if isinstance(plan, Head) and (plan.first, plan.stop) == (0, None):
        return replace(plan, tail=(*plan.tail, stage))
    if isinstance(plan, Both) and isinstance(plan.stage, Concat):
        return replace(plan, sources=(_change_rows(plan.sources[0], stage), _change_rows(plan.sources[1], stage)))
    if isinstance(plan, Again):
        return replace(plan, source=_change_rows(plan.source, stage))
    return Local(plan, stage)


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
        return replace(plan, source=_pick(plan.source, stage))
    return Local(plan, stage)


def _shuffle(plan: Plan, stage: Shuffle) -> Plan:
    if plan.batched:
        raise ValueError(".shuffle() is about rows, and there are batches: put it before .batch().")
    if stage.buffer is not None:
        return Local(plan, stage)
    if isinstance(plan, Head) and plan.epochs == 1 and all(isinstance(s, (*ROW_WISE, Filter)) for s in plan.tail):
        # Rows that are dropped leave the others in an order that is as random as before.
        return replace(plan, view=plan.view.picking(stage))
    if isinstance(plan, Again) or (isinstance(plan, Head) and plan.epochs != 1):
        raise ValueError(
            f".{stage} after .repeat() would mix the epochs: put .shuffle() first; each epoch then has an order of its "
            "own."
        )
    raise ValueError(
        f".{stage} needs rows that can be numbered, and {_culprit(plan)} makes them unknown until it has run. Put "
        ".shuffle() before it, use .cache(path) between the two, or shuffle a part at a time with "
        f".shuffle({stage.seed}, buffer=10_000)."
    )


def _culprit(plan: Plan) -> str:
    if isinstance(plan, Local):
        return f".{plan.stage}"
    if isinstance(plan, Both):
        return f".{plan.stage.name}() of pipelines that change the number of rows"
    stages = plan.tail if isinstance(plan, Head) else ()
    return next((f".{s}" for s in stages if isinstance(s, (FlatMap, Unbatch))), "a stage before it")


def _repeat(plan: Plan, stage: Repeat) -> Plan:
    epochs = ENDLESS if stage.count is None else stage.count
    if isinstance(plan, Head) and plan.epochs == 1 and (plan.first, plan.stop) == (0, None):
        return replace(plan, epochs=epochs)
    return Again(plan, epochs)


def _batch(plan: Plan, stage: Batch) -> Plan:
    if plan.batched:
        raise ValueError(f".{stage}: there are batches already: use .unbatch() first to cut them anew.")
    if isinstance(plan, Head) and not plan.tail and (plan.epochs == 1 or not _reorders_inside(plan.view)):
        return replace(plan, tail=(stage,), across=plan.epochs != 1)
    return Local(plan, stage)


def _reorders_inside(view: View) -> bool:
    """Whether the rows of the leaf, not only the numbers of the view's rows, are others in another epoch.

    A chunk is read from the leaf of one epoch, so it cannot hold rows of two then.
    """
    if not isinstance(view.leaf, (Joined, Zipped)):
        return False
    parts = view.leaf.parts
    return any(isinstance(pick, Shuffle) for part in parts for pick in part.picks) or any(map(_reorders_inside, parts))


def _unbatch(plan: Plan, stage: Unbatch) -> Plan:
    if not plan.batched:
        raise ValueError(".unbatch() makes rows of batches, and there are none: it belongs after .batch(n).")
    if isinstance(plan, Head) and (plan.first, plan.stop) == (0, None):
        return replace(plan, tail=(*plan.tail, stage))
    return Local(plan, stage)


def _both(plan: Plan, stage: Zip | Concat, other: Plan) -> Plan:
    if plan.batched is not other.batched:
        words = ["batches" if p.batched else "rows" for p in (plan, other)]
        raise ValueError(f".{stage.name}() of {words[0]} with {words[1]}: put .batch() after it, or on both sides.")
    views = [p.view for p in (plan, other) if isinstance(p, Head) and not p.tail and p.epochs == 1]
    if isinstance(stage, Zip):
        counts = (plan.elements, other.elements)
        if None not in counts and counts[0] != counts[1]:
            unit = "batches" if plan.batched else "rows"
            raise ValueError(
                f".zip() needs as many {unit} on both sides: got {counts[0]} and {counts[1]}. Use "
                f".take({_least(counts)}) on the longer one."
            )
        if len(views) == 2 and views[0].rows is not None and views[1].rows is not None:
            return Head(View(Zipped((views[0], views[1]))))
    elif len(views) == 2:
        return Head(View(Joined((views[0], views[1]))))
    return Both((plan, other), stage)


def _least(counts: tuple[int | None, int | None]) -> int:
    return min(count for count in counts if count is not None)


# -- questions about a plan ----------------------------------------------------------------------------


def heads_of(plan: Plan) -> list[Head]:
    """Where the rows of a plan come from."""
    if isinstance(plan, Head):
        return [plan]
    if isinstance(plan, Both):
        return list(itertools.chain.from_iterable(map(heads_of, plan.sources)))
    return heads_of(plan.source)


def shares_of(plan: Plan) -> tuple[int, ...]:
    """The index of each share that was taken on the way of a plan's rows."""
    if isinstance(plan, Head):
        return plan.view.shares
    if isinstance(plan, Both):
        return tuple(itertools.chain.from_iterable(map(shares_of, plan.sources)))
    own = (plan.stage.index,) if isinstance(plan, Local) and isinstance(plan.stage, Shard) else ()
    return (*own, *shares_of(plan.source))


def with_chunks(plan: Plan, sizes: Iterator[int]) -> Plan:
    """The plan with settled chunks; `sizes` are in the order of `heads_of`."""
    if isinstance(plan, Head):
        return replace(plan, chunk=next(sizes))
    if isinstance(plan, Both):
        return replace(plan, sources=(with_chunks(plan.sources[0], sizes), with_chunks(plan.sources[1], sizes)))
    return replace(plan, source=with_chunks(plan.source, sizes))


def leaf_row_bytes(view: View) -> int:
    """Bytes that are read for one row of a view."""
    leaf: Any = view.leaf
    if isinstance(leaf, Zipped):
        return sum(map(leaf_row_bytes, leaf.parts))
    if isinstance(leaf, Joined):
        return max(map(leaf_row_bytes, leaf.parts))
    if hasattr(leaf, "row_bytes"):
        return int(leaf.row_bytes)
    return data_row_bytes(leaf, data_length(leaf, 0))


def uncounted_call(plan: Plan, zipped: bool = False) -> Stage | None:
    """A stage of whose function no row can be left out: no worker calls it with chunks, or rows are `zipped` later."""
    if isinstance(plan, Head):
        own = (stage for stage in plan.stages if zipped and isinstance(stage, Call))
        return plan.view.part_call or next(own, None)
    if isinstance(plan, Local) and isinstance(plan.stage, Call):
        return plan.stage
    zipped = zipped or (isinstance(plan, Both) and isinstance(plan.stage, Zip))
    found = (uncounted_call(one, zipped) for one in (plan.sources if isinstance(plan, Both) else [plan.source]))
    return next((stage for stage in found if stage is not None), None)


def is_one_pass(plan: Plan) -> TypeGuard[Head]:
    """Whether one job does everything, so that its results need only to be put in order."""
    return isinstance(plan, Head) and plan.epochs == 1 and (plan.first, plan.stop) == (0, None)
