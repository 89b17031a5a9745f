"""The stages of a pipeline: what the user wrote, one frozen object each, checked when it is made.

A stage is a description. `planning` decides where it runs: as arithmetic on row numbers, in the workers, or in the
calling process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tdmap.arguments import require_integer
from tdmap.job import function_name
from tdmap.output.outputfolder import require_no_tilde
from tdmap.pipeline.shares import Share
from tensordict_lite.paths import absolute_path

if TYPE_CHECKING:
    from tdmap.pipeline.pipeline import Pipeline

Key: TypeAlias = "str | tuple[str, ...]"

ENDLESS = 1 << 62
"""Epochs of `.repeat()` without a number."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One call in the chain."""

    name: ClassVar[str] = "stage"

    def __str__(self) -> str:
        shown = (repr(getattr(self, one.name)) for one in fields(self) if one.repr)
        return f"{self.name}({', '.join(shown)})"

    def _require_integer(self, argument: str, least: int) -> None:
        require_integer(f".{self.name}(): {argument}", getattr(self, argument), least)


# -- functions of rows ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Call(Stage):
    """A stage that calls a function of the user's."""

    fn: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f".{self.name}() takes a function, a module or a transform: got {self.fn!r}.")

    def __str__(self) -> str:
        return f"{self.name}({function_name(self.fn)})"


class Map(Call):
    """Chunk to chunk with as many rows; after `.batch`, a batch to anything."""

    name = "map"


class MapRows(Call):
    """Row to row."""

    name = "map_rows"


class Filter(Call):
    """Chunk to one bool a row; after `.batch`, a batch to one bool."""

    name = "filter"


class FlatMap(Call):
    """Chunk to any number of rows."""

    name = "flat_map"


@dataclass(frozen=True, eq=False)
class Select(Stage):
    """Keeps entries."""

    name = "select"
    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError(".select() needs at least one key.")
        for key in self.keys:
            parts = key if isinstance(key, tuple) else (key,)
            if not parts or not all(isinstance(part, str) for part in parts):
                raise TypeError(f".select() takes keys, strings or tuples of strings: got {key!r}.")

    def __str__(self) -> str:
        return f"select({', '.join(map(repr, self.keys))})"


# -- which rows, in which order ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Take(Stage):
    """The first so many elements."""

    name = "take"
    count: int

    def __post_init__(self) -> None:
        self._require_integer("count", 0)


@dataclass(frozen=True, eq=False)
class Skip(Stage):
    """All but the first so many elements."""

    name = "skip"
    count: int

    def __post_init__(self) -> None:
        self._require_integer("count", 0)


@dataclass(frozen=True, eq=False)
class Shard(Stage):
    """One of several shares."""

    name = "shard"
    index: int
    count: int
    even: str | None = None

    def __post_init__(self) -> None:
        self._require_integer("count", 1)
        self._require_integer("index", 0)
        if self.even not in (None, "drop", "pad"):
            raise ValueError(f".shard(even=) must be None, 'drop' or 'pad': got {self.even!r}.")
        if self.index >= self.count:
            raise ValueError(f".shard(index, count): index must be below count: got shard({self.index}, {self.count}).")

    def __str__(self) -> str:
        return f"shard({self.index}, {self.count}{'' if self.even is None else f', even={self.even!r}'})"

    @property
    def share(self) -> Share:
        return Share(self.index, self.count, self.even)


@dataclass(frozen=True, eq=False)
class Shuffle(Stage):
    """Another order."""

    name = "shuffle"
    seed: int
    buffer: int | None
    drawn: bool = False
    """The seed was drawn, not given."""

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f".shuffle(seed) takes an integer, so that the order can be had again: got {self.seed!r}.")
        if self.buffer is not None:
            self._require_integer("buffer", 1)

    def __str__(self) -> str:
        return f"shuffle(seed={self.seed}{'' if self.buffer is None else f', buffer={self.buffer}'})"


@dataclass(frozen=True, eq=False)
class Repeat(Stage):
    """Several epochs; None: without end."""

    name = "repeat"
    count: int | None

    def __post_init__(self) -> None:
        if self.count is not None:
            self._require_integer("count", 1)

    @property
    def epochs(self) -> int:
        """How many; `ENDLESS` without a number."""
        return ENDLESS if self.count is None else self.count

    def __str__(self) -> str:
        return f"repeat({'' if self.count is None else self.count})"


# -- rows and batches ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Batch(Stage):
    """Rows to batches."""

    name = "batch"
    size: int
    drop_last: bool

    def __post_init__(self) -> None:
        self._require_integer("size", 1)
        if not isinstance(self.drop_last, bool):
            raise TypeError(f".batch(n, drop_last=): drop_last must be a bool: got {self.drop_last!r}.")

    def __str__(self) -> str:
        return f"batch({self.size}{', drop_last' if self.drop_last else ''})"


@dataclass(frozen=True, eq=False)
class Unbatch(Stage):
    """Batches to rows."""

    name = "unbatch"


# -- several pipelines ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ZipWith(Stage):
    """Entries of two pipelines side by side."""

    name = "zip"
    other: Pipeline

    def __str__(self) -> str:
        return f"zip({self.other.describe()})"


@dataclass(frozen=True, eq=False)
class ConcatWith(Stage):
    """Rows of one pipeline after those of another."""

    name = "concat"
    other: Pipeline

    def __str__(self) -> str:
        return f"concat({self.other.describe()})"


@dataclass(frozen=True, eq=False)
class Cache(Stage):
    """Rows written to a folder once, and read from there."""

    name = "cache"
    path: str
    overwrite: bool = field(default=False, repr=False)
    """The rows of another pipeline are replaced. It is not what the pipeline is."""

    @staticmethod
    def at(path: str | os.PathLike[str], overwrite: bool = False) -> Cache:
        """At a path, which later changes of the working directory do not move."""
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f".cache(path) takes the path of a folder: got {path!r}.")
        require_no_tilde(path)
        return Cache(absolute_path(path), overwrite)


KEEPING_ROWS = (Filter, Take, Skip, Shard, Shuffle, Repeat, ConcatWith)
"""What leaves rows as they are."""

ROW_WISE = (Map, MapRows, Select)
"""Stages that make one row out of each, whatever the order of the rows."""


SAME_ENTRIES = (Filter, Take, Skip, Shard, Shuffle, Repeat, Batch, Unbatch)
"""Stages after which there are the same entries as before."""


STAGES = frozenset(
    "map map_rows filter flat_map select take skip shard shuffle repeat batch unbatch zip concat cache".split()
)
"""The calls that make stages."""
