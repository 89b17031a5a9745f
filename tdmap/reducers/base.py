"""Reductions: chunks are folded into states, and states merge.

    rows ──chunk k──► update(init(), chunk k) = s_k          (in a worker)
    s_0 s_1 s_2 s_3 ...
      \\_/     \\_/
      s_01     s_23        merge(left, right), always with the same neighbours
         \\_____/
          s_0123 ──► finish(state) = the result

States merge in a fixed binary tree over the chunk numbers. Which worker computed which chunk, and when, does not
change the shape of the tree, so the same rows give the same bits for any number of workers, any executor, any
crash and any resume. It depends on the chunk size only, which derives from the data.
"""

from __future__ import annotations

import dis
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from tdmap.data.kinds import Data, is_data
from tdmap.data.stacks import column_at
from tdmap.data.trees import tensors_in
from tdmap.errors import add_note
from tensordict_lite import TensorDict, is_tensorclass
from tensordict_lite.ragged import is_ragged

S = TypeVar("S")

A_co = TypeVar("A_co", covariant=True)

Key = str | tuple[str, ...]

Node = tuple[int, int, Any]
"""First and one-past-last chunk, and the merged state of these chunks."""


class Reducer(ABC, Generic[S]):
    """A reduction over rows. States must be picklable; :meth:`merge` must not change its arguments.

    Attributes:
        numbers_rows: whether the result depends on the ``start`` of :meth:`update`. Then a mapper must return one row
            per row, and after pipeline stages that add or drop rows, the caller folds. Default: whether the code of
            :meth:`update` reads its third argument.

    Example:
        >>> class Longest(Reducer[int]):
        ...     def init(self): return 0
        ...     def update(self, state, chunk, start=0): return max(state, int(chunk["length"].max()))
        ...     def merge(self, a, b): return max(a, b)
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> reducer = Longest()
        >>> reducer.update(reducer.init(), TensorDict({"length": torch.tensor([3, 7])}, [2]))
        7
    """

    numbers_rows = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "update" in vars(cls) and "numbers_rows" not in vars(cls):
            cls.numbers_rows = _reads_start(cls.update)

    @abstractmethod
    def init(self) -> S:
        """The state of zero rows."""

    @abstractmethod
    def update(self, state: S, chunk: Any, start: int = 0) -> S:
        """The state with the rows of ``chunk`` folded in; ``start`` is the number of its first row."""

    @abstractmethod
    def merge(self, a: S, b: S) -> S:
        """The state of the rows of ``a`` followed by those of ``b``. Neither argument changes."""

    def finish(self, state: S) -> Any:
        """The result: a tensor, a number, a collection or any object. Default: the state."""
        return state

    def serves(self, other: Reducer[Any]) -> bool:
        """Whether :meth:`finish` of ``other`` can use this reducer's states, so that both need only one fold."""
        return False


class Answers(Protocol[A_co]):
    """A :class:`Reducer`, to type checkers: the answer of a reduction has the type that its ``finish`` returns."""

    def init(self) -> Any: ...

    def finish(self, state: Any) -> A_co: ...


def _reads_start(update: Callable[..., Any]) -> bool:
    code = getattr(update, "__code__", None)
    if code is None or code.co_argcount < 4:
        return code is None
    name = code.co_varnames[3]
    return any(
        name == read.argval or (isinstance(read.argval, tuple) and name in read.argval)
        for read in dis.get_instructions(code)
    )


class Associative(Reducer[Any]):
    """A plain function ``fn(a, b)`` as a reducer: chunks are states, and states are chunks.

    Args:
        fn: associative; called with the results of chunks, in row order.
        of: makes the first state out of a chunk. The chunk itself by default.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], of: Callable[[Any], Any] | None = None) -> None:
        self.fn = fn
        self.of = of

    def init(self) -> Any:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        value = chunk if self.of is None else self.of(chunk)
        if state is not None:
            return self.fn(state, value)
        # A state is not a view of rows: a function that changes it must not reach the dataset.
        return value.clone() if is_data(value) else value

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        try:
            return self.fn(a, b)
        except Exception as error:
            if self.of is None:
                add_note(
                    error,
                    "reduce calls the function with the chunks themselves, which need not have equally many rows. To "
                    "make something of each chunk first, use tdmap.map_reduce(data, mapper, reducer).",
                )
            raise

    def finish(self, state: Any) -> Any:
        if state is None:
            raise ValueError(
                "reducing zero rows with a plain function has no result: use a Reducer, whose init() defines it"
            )
        return state


class Several(Reducer[dict[str, Any]]):
    """Several named reductions in one pass over the rows. The result is a TensorDict if all parts fit into one."""

    numbers_rows = False  # of an instance: whether a part does

    def __init__(self, parts: Mapping[str, Reducer[Any]]) -> None:
        if not parts:
            raise ValueError("a mapping of reducers needs at least one entry")
        for name, part in parts.items():
            if isinstance(part, type) and issubclass(part, Reducer):
                raise TypeError(f"the reducer {name!r} is a class: pass an instance, {part.__name__}(...)")
            if not isinstance(part, Reducer):
                raise TypeError(f"the reducer {name!r} is a {type(part).__name__}, not a tdmap.reducers.Reducer")
        self.parts = dict(parts)
        self.numbers_rows = any(part.numbers_rows for part in parts.values())
        # A mean beside a variance of the same entry costs nothing: the state of the variance has it.
        self._folded = {name: self._folded_by(name) for name in self.parts}
        self._folds = {name: self.parts[name] for name in dict.fromkeys(self._folded.values())}

    def _folded_by(self, name: str) -> str:
        """The name of the part whose state serves the part ``name``: the most useful one, itself for want of any."""
        part = self.parts[name]
        able = [at for at, other in self.parts.items() if at == name or other.serves(part)]
        return max(able, key=lambda at: sum(self.parts[at].serves(other) for other in self.parts.values()))

    def init(self) -> dict[str, Any]:
        return {name: part.init() for name, part in self._folds.items()}

    def update(self, state: dict[str, Any], chunk: Any, start: int = 0) -> dict[str, Any]:
        return {name: part.update(state[name], chunk, start) for name, part in self._folds.items()}

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return {name: merged(part, a[name], b[name]) for name, part in self._folds.items()}

    def finish(self, state: dict[str, Any]) -> Any:
        return TensorDict({name: part.finish(state[self._folded[name]]) for name, part in self.parts.items()}, [])


def as_reducer(value: object) -> Reducer[Any]:
    """A reducer from what a user may pass: a reducer, a mapping of them, or a plain associative function."""
    if isinstance(value, Reducer):
        return value
    if isinstance(value, Mapping):
        return Several(value)
    if isinstance(value, type) and issubclass(value, Reducer):
        raise TypeError(f"pass an instance: {value.__name__}(...), not the class")
    if callable(value):
        if not takes_two(value):
            name = getattr(value, "__qualname__", type(value).__qualname__)
            raise TypeError(
                f"reduce merges two states at a time, and {name} does not take two arguments. To call it with each "
                "chunk first, use tdmap.map_reduce(data, mapper, reducer); for ready-made statistics see "
                "tdmap.reducers."
            )
        return Associative(value)
    raise TypeError(f"a reducer is a Reducer, a mapping of them, or a function of two states; got {value!r}")


def takes_two(fn: Callable[..., Any]) -> bool:
    """Whether a function can be called with two arguments, as far as that can be told."""
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def merged(reducer: Reducer[S], a: S, b: S) -> S:
    """``reducer.merge(a, b)``, refused when it changes what it was given.

    Raises:
        ValueError: a tensor in ``a`` or ``b`` was changed in place.
    """
    if type(reducer).__module__.startswith(__package__) and not isinstance(reducer, Associative):
        return reducer.merge(a, b)
    tensors = [tensor for tensor in tensors_in((a, b)) if not tensor.is_inference()]
    before = [tensor._version for tensor in tensors]
    state = reducer.merge(a, b)
    if any(tensor._version != version for tensor, version in zip(tensors, before)):
        what = getattr(reducer, "fn", None) or type(reducer)
        raise ValueError(
            f"merging with {getattr(what, '__qualname__', what)!s} changed one of its two arguments, which "
            "may be needed again. Return a new value, as in `a + b` instead of `a.add_(b)`."
        )
    return state


class MergeTree:
    """Merges the states of chunks ``0..n`` in a fixed binary tree, whatever order they arrive in.

    Node ``(level, i)`` covers the chunks ``[i * 2**level, (i + 1) * 2**level)``; its children are nodes
    ``2 * i`` and ``2 * i + 1`` of the level below. A node at the right edge without a right sibling stands for
    itself. At most one state a level waits in the usual, nearly ordered, arrival.

    Example:
        >>> tree = MergeTree(3, lambda a, b: f"({a}{b})")
        >>> for chunk in (2, 0, 1):
        ...     tree.add(chunk, chunk + 1, str(chunk))
        >>> tree.result()
        '((01)2)'
    """

    def __init__(self, num_chunks: int, merge: Callable[[Any, Any], Any]) -> None:
        self.num_chunks = num_chunks
        self.merge = merge
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, start: int, stop: int, state: Any) -> None:
        """Add the state of the chunks ``start..stop``, which must be one node of the tree (see :func:`nodes`)."""
        level = (stop - start - 1).bit_length()
        index = start >> level
        if index << level != start or stop != min((index + 1) << level, self.num_chunks):
            raise ValueError(
                f"the chunks {start}..{stop} are not a node of the merge tree over {self.num_chunks} chunks"
            )
        while True:
            sibling = index ^ 1
            if index & 1:
                left = self._waiting.pop((level, sibling), _MISSING)
                if left is _MISSING:
                    break
                state = self.merge(left, state)
            elif sibling << level < self.num_chunks:
                right = self._waiting.pop((level, sibling), _MISSING)
                if right is _MISSING:
                    break
                state = self.merge(state, right)
            elif index == 0:
                break
            level, index = level + 1, index >> 1
        self._waiting[level, index] = state

    def nodes(self) -> list[Node]:
        """The states that wait for a neighbour, each of which `add` takes again."""
        return [
            (index << level, min((index + 1) << level, self.num_chunks), state)
            for (level, index), state in self._waiting.items()
        ]

    def result(self) -> Any:
        """The state of all chunks. Raises RuntimeError when some are missing."""
        if len(self._waiting) != 1 or next(iter(self._waiting))[1] != 0:
            raise RuntimeError(f"the merge tree over {self.num_chunks} chunks is not complete")
        return next(iter(self._waiting.values()))


_MISSING = object()


def nodes(start: int, stop: int, num_chunks: int) -> list[tuple[int, int]]:
    """The fewest nodes of the merge tree over ``num_chunks`` chunks that make up the run ``start..stop``.

    Example:
        >>> nodes(1, 7, 100)
        [(1, 2), (2, 4), (4, 6), (6, 7)]
    """
    out = []
    while start < stop:
        level = (start & -start).bit_length() - 1 if start else stop.bit_length()
        while start + (1 << level) > stop and not (start + (1 << level) > num_chunks and stop == num_chunks):
            level -= 1
        end = min(start + (1 << level), num_chunks)
        out.append((start, end))
        start = end
    return out


def fold(reducer: Reducer[Any], states: list[Any]) -> Any:
    """The states of one node, in chunk order, merged as the tree would."""
    tree = MergeTree(len(states), reducer.merge)
    for at, state in enumerate(states):
        tree.add(at, at + 1, state)
    return tree.result()


@functools.lru_cache(maxsize=256)
def reduced_dims(dim: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Dimensions to reduce as non-negative numbers; rows (dimension 0) must be among them."""
    if dim is None:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    out = []
    for d in dims:
        if not -ndim <= d < ndim:
            raise IndexError(f"dim={d} is out of range for entries of {ndim} dimension(s)")
        out.append(d % ndim)
    if 0 not in out:
        raise ValueError(f"dim={dim} leaves out dimension 0, the rows: a reduction is over rows. Add 0 to dim.")
    return tuple(sorted(set(out)))


def entry_of(chunk: Data, key: Key) -> Any:
    """The entry at ``key`` of a chunk as it is stored (see `column_at`).

    Raises:
        KeyError: there is none.
    """
    entry = column_at(chunk, key)
    if entry is None:
        return chunk.get(key) if is_tensorclass(chunk) else chunk[key]  # raises a KeyError that lists the entries
    return entry


def values_of(chunk: Data, key: Key | None, elements: bool = False) -> Tensor:
    """The tensor at ``key`` of a chunk, or the chunk itself when it is one; no view that negates or conjugates, which
    NumPy has not. With ``elements``, the flat values of a ragged column of numbers."""
    if isinstance(chunk, Tensor):
        return chunk.resolve_conj().resolve_neg()
    if key is None:
        raise ValueError("this reducer needs a key: the rows are a collection, not a tensor")
    value = entry_of(chunk, key)
    if is_ragged(value) and value.kind == "tensor":
        if elements:
            return value.flat()[0].as_subclass(Tensor).resolve_conj().resolve_neg()
        raise TypeError(
            f"the rows of the entry {key!r} have different lengths, and this reducer needs a tensor. Reduce the "
            f"elements of all rows in a function, chunk.get({key!r}).flat()[0], or pad the rows first."
        )
    if not isinstance(value, Tensor):
        raise TypeError(
            f"the entry {key!r} holds Python objects (such as strings), and this reducer needs tensors. "
            "Checksum, Count, First, Last, Unique, ValueCounts and TopK take objects, and so does tdmap.group_by as a "
            "key."
        )
    return value.resolve_conj().resolve_neg()
