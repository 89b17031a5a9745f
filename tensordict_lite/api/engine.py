"""Methods that call the engine: each imports ``tdmap`` when it is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from tdmap import Pipeline
    from tdmap.functions import Keys
    from tdmap.memory.hidden import AnyPath
    from tdmap.ops.iteration.map_iter import MapIterArguments
    from tdmap.ops.map import MapArguments
    from tdmap.reducers import Reducer
    from tdmap.reducers.base import Answers
    from tdmap.types import Dataset, MapIterator
    from tensordict_lite.dense.tensordict import TensorDict

    Rows = TypeVar("Rows")
    Out = TypeVar("Out", bound=Dataset[Any])

Result = TypeVar("Result")


def _shows_frames_of_users(method: Callable[..., Any]) -> Callable[..., Any]:
    """Leave this file out of tracebacks, as the engine does with its files."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except Exception as error:
            from tdmap.run.operation import hide_engine

            hide_engine(error)
            raise

    return call


class EngineOps:
    """Mixin of :meth:`map` and related methods, also for datasets that are not collections."""

    __slots__ = ()

    @overload
    def map(
        self,
        fn: Callable[..., Any],
        dim: int = 0,
        *,
        out: Out,
        in_keys: Keys | None = None,
        **options: Unpack[MapArguments],
    ) -> Out: ...
    @overload
    def map(
        self: Dataset[Rows],
        fn: Callable[..., Any],
        dim: int = 0,
        *,
        out: AnyPath | None = None,
        in_keys: Keys,
        **options: Unpack[MapArguments],
    ) -> Rows: ...
    @overload
    def map(
        self,
        fn: Callable[..., Result],
        dim: int = 0,
        *,
        out: AnyPath | None = None,
        in_keys: None = None,
        **options: Unpack[MapArguments],
    ) -> Result: ...
    @overload
    def map(
        self, fn: Callable[..., Any], dim: int, num_workers: int | None, /, **options: Any
    ) -> Any: ...  # what depends on the other options
    @_shows_frames_of_users
    def map(self, fn: Callable[..., Any], dim: int = 0, num_workers: int | None = None, **options: Any) -> Any:
        """Map ``fn`` over chunks of rows in several processes and join the results.

        Chunks are views of this collection along ``dim``. Results are gathered in a new collection in shared memory, or
        written to ``out``: a preallocated collection (best in memory-mapped files) or the path of a folder. ``fn`` may
        also change its chunk in place and return None. :func:`tdmap.map` explains every option and error.

        Returns:
            ``out`` if given; else the joined results, or None if every result is None.

        Example:
            >>> data = TensorDict({"x": torch.arange(6)}, batch_size=[6])
            >>> data.map(lambda chunk: chunk * 2, num_workers=2, chunksize=2)["x"]
            tensor([ 0,  2,  4,  6,  8, 10])
        """
        from tdmap import map as engine_map

        return engine_map(_dataset(self), fn, dim, **_with_workers(num_workers, options))

    @overload
    def map_iter(
        self: Dataset[Rows], fn: Callable[..., Any], dim: int = 0, *, in_keys: Keys, **options: Unpack[MapIterArguments]
    ) -> MapIterator[Rows]: ...
    @overload
    def map_iter(
        self,
        fn: Callable[..., Result],
        dim: int = 0,
        *,
        in_keys: None = None,
        **options: Unpack[MapIterArguments],
    ) -> MapIterator[Result]: ...
    @overload
    def map_iter(
        self, fn: Callable[..., Any], dim: int, num_workers: int | None, /, **options: Any
    ) -> MapIterator[Any]: ...
    @_shows_frames_of_users
    def map_iter(
        self, fn: Callable[..., Any], dim: int = 0, num_workers: int | None = None, **options: Any
    ) -> MapIterator[Any]:
        """Map ``fn`` over chunks of rows and yield the results in order: see :func:`tdmap.map_iter`.

        Example:
            >>> data = TensorDict({"x": torch.arange(6)}, batch_size=[6])
            >>> [int(total) for total in data.map_iter(lambda chunk: chunk["x"].sum(), num_workers=2, chunksize=2)]
            [1, 5, 9]
        """
        from tdmap import map_iter as engine_map_iter

        return engine_map_iter(_dataset(self), fn, dim, **_with_workers(num_workers, options))

    @overload
    def map_reduce(
        self,
        mapper: Callable[[Any], Any] | None,
        reducer: Answers[Result] | Callable[[Any, Any], Result],
        num_workers: int | None = None,
        **options: Any,
    ) -> Result: ...
    @overload
    def map_reduce(
        self,
        mapper: Callable[[Any], Any] | None,
        reducer: Mapping[str, Reducer[Any]],
        num_workers: int | None = None,
        **options: Any,
    ) -> TensorDict: ...
    def map_reduce(
        self,
        mapper: Callable[[Any], Any] | None,
        reducer: Answers[Any] | Mapping[str, Reducer[Any]] | Callable[[Any, Any], Any],
        num_workers: int | None = None,
        **options: Any,
    ) -> Any:
        """Fold ``mapper(chunk)`` over all chunks in several processes: see :func:`tdmap.map_reduce`."""
        from tdmap import map_reduce as engine_map_reduce

        return engine_map_reduce(_dataset(self), mapper, reducer, **_with_workers(num_workers, options))

    def pipeline(self, *, seed: int | None = None) -> Pipeline:
        """Start a lazy chain of stages over the rows: see :class:`tdmap.Pipeline`."""
        from tdmap import Pipeline

        return Pipeline(_dataset(self), seed=seed)


def _dataset(data: Any) -> Any:
    """What these methods are mixed into."""
    return data


def _with_workers(num_workers: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call; a number that is not given leaves the choice to ``tdmap.options`` and the engine."""
    return options if num_workers is None else {"num_workers": num_workers, **options}
