"""What is to be done: data, plan, function and policy, without a word about who does it."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor, strided

from tdmap.data.kinds import Data, key_name, stored_leaves, tensors_of
from tdmap.data.reader import Reader, rows_of
from tdmap.events import Measures
from tdmap.plan import ChunkPlan

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from."""

    data: Data
    """The dataset."""
    order: Tensor | None = None
    """int64 permutation of its rows along the plan's dimension, or None."""

    def __post_init__(self) -> None:
        require_rows_apart(self.data)


def require_rows_apart(data: Data) -> None:
    """Raise TypeError for tensors that torch cannot cut into rows."""
    for leaf in tensors_of(data):
        if leaf.is_nested:
            raise TypeError(
                f"{_named(data, lambda leaf: leaf.is_nested)} is a nested tensor, which torch cannot cut into rows. "
                "Make it a ragged column: tensordict_lite.Ragged.from_nested(tensor)."
            )
        if leaf.layout is not strided:
            raise TypeError(
                f"{_named(data, lambda leaf: leaf.layout is not strided)} is sparse, and torch cannot split "
                "it into rows. Make it dense (tensor.to_dense()), or store indices and values as separate "
                "columns."
            )


def _named(data: Data, wanted: Callable[[Tensor], bool]) -> str:
    """How messages name the first tensor that is wanted."""
    for path, leaf in stored_leaves(data):
        if isinstance(leaf, Tensor) and wanted(leaf):
            return f"the entry {key_name(path)}" if path else "the data"
    return "an entry"


class LeaseMeter(Protocol):
    """Measures the leases of a loop in a worker."""

    def begin(self) -> None:
        """A lease begins."""
        ...

    def end(self, start: int, stop: int) -> Measures:
        """The lease is over: the chunks `start..stop` were run."""
        ...


class UndoRooms(Protocol):
    """Gives workers room in files for rows, to put them back when all processes have died."""

    def room(self) -> Any:
        """Room for one worker (`tdmap.runtime.undo.Room`)."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """How failures, time and randomness are handled."""

    seed: int | None = None
    """Each chunk gets its own random stream derived from (seed, first row); None: streams are left alone."""
    retries: int = 2
    """How often a chunk runs again after its worker died."""
    timeout: float | None = None
    """Seconds that one chunk may run, or None."""
    undo: bool = True
    """Keep the rows that an in-place function changes, to put them back when it does not come to its end."""
    skip: str = ""
    """Go on after rows on which the function raises: `"pad"` or `"drop"` says what results have for them."""
    part_of_call: bool = False
    """With `skip`: these are some of the rows of a call, which judges by all of them whether to go on."""
    in_place: bool = False
    """A result of None means that the function has changed its chunk in place."""
    needs_results: bool = False
    """A result of None is an error: results go to a new folder."""
    meter: Callable[[Any], LeaseMeter] | None = None
    """Called by each worker with its loop: makes what measures leases there; None: nothing is measured."""

    @property
    def may_write(self) -> bool:
        """Whether the function may change the source: by a result of None, which it cannot return for a folder."""
        return self.in_place and not self.needs_results


@dataclass(frozen=True, slots=True)
class Job:
    """One map over a dataset."""

    source: Source
    plan: ChunkPlan
    fn: Callable[[Any], Any]
    policy: Policy = field(default_factory=Policy)
    ledger: UndoRooms | None = None
    """Of an in-place run that can be resumed: where workers note what is done."""
    on_row_error: Callable[[BaseException, tuple[int, int]], Any] | None = None
    """With `policy.skip`: called by the driver with each exception and its rows; None: a warning at the end."""
    on_settled: Callable[[ChunkPlan], Any] | None = None
    """Called with the plan once it is settled, before anything but the first chunks is begun."""
    number: int = field(default_factory=_numbers.__next__)

    def again(self, fn: Callable[[Any], Any]) -> Job:
        """A new job with another function and everything else as it is."""
        return replace(self, fn=fn, number=next(_numbers))

    @property
    def name(self) -> str:
        """How messages and progress bars call the function."""
        return function_name(self.fn)

    def reader(self) -> Reader:
        """Its rows, in this process."""
        return reader_of(self.source, self.plan, self.policy)


def reader_of(source: Source, plan: ChunkPlan, policy: Policy) -> Reader:
    """The rows of a job: views of the source where the function may write into it, private ones elsewhere."""
    gives_copies = source.order is not None and not plan.unbind
    private = not rows_of(source.data).is_view or not (policy.may_write or gives_copies)
    return Reader(source.data, plan, source.order, private=private)


def function_name(fn: object) -> str:
    """A readable name of a function, method, partial or callable object.

    Example:
        >>> function_name(functools.partial(len))
        'len'
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, types.BuiltinFunctionType):  # whose qualified name may be that of an inner class
        return fn.__name__
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name).rpartition("<locals>.")[2]


def takes_start(fn: object) -> bool:
    """Whether a function wants the number of the first row of its chunk as a second argument."""
    return bool(getattr(fn, "takes_start", False))


class FirstRow(int):
    """The number of the first row of a chunk that lacks some rows.

    Attributes:
        rows: the numbers of all rows that the chunk has, int64.
    """

    rows: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> FirstRow:
        """That of the rows with these numbers."""
        first = cls(rows[0])
        first.rows = rows
        return first


class Wrapped:
    """A function of the engine's around one of the user's: messages and progress bars name what the user wrote.

    Args:
        fn: the user's function.
    """

    takes_start = True

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self._positional = takes_start(fn)
        self.__qualname__ = function_name(fn)

    @property
    def takes_whole(self) -> bool:
        """Whether the function takes its chunk as a whole: its results of parts only tell which rows raise."""
        return bool(getattr(self.fn, "takes_whole", False))

    def call(self, chunk: Data, start: int) -> Any:
        """What the user's function returns."""
        return self.fn(chunk, start) if self._positional else self.fn(chunk)
