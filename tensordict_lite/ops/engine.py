"""The engine's entry points: one-line methods that import ``tdmap`` when they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["EngineOps"]


class EngineOps:
    """Mixin of :meth:`map` and its relatives."""

    __slots__ = ()

    def map(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        out: Any = None,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: Any = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
        executor: str = "process",
        **policy: Any,
    ) -> Any:
        """Maps ``fn`` over chunks of rows, on several processes: see :func:`tdmap.map`."""
        from tdmap import map as engine_map

        return engine_map(
            self,
            fn,
            dim,
            num_workers,
            out=out,
            chunksize=chunksize,
            num_chunks=num_chunks,
            pool=pool,
            generator=generator,
            max_tasks_per_child=max_tasks_per_child,
            worker_threads=worker_threads,
            index_with_generator=index_with_generator,
            pbar=pbar,
            mp_start_method=mp_start_method,
            executor=executor,
            **policy,
        )

    def map_iter(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        shuffle: bool = False,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: Any = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = True,
        pbar: bool = False,
        mp_start_method: str | None = None,
        executor: str = "process",
        **policy: Any,
    ) -> Iterator[Any]:
        """Maps ``fn`` over chunks and yields the results in order: see :func:`tdmap.map_iter`."""
        from tdmap import map_iter as engine_map_iter

        return engine_map_iter(
            self,
            fn,
            dim,
            num_workers,
            shuffle=shuffle,
            chunksize=chunksize,
            num_chunks=num_chunks,
            pool=pool,
            generator=generator,
            max_tasks_per_child=max_tasks_per_child,
            worker_threads=worker_threads,
            index_with_generator=index_with_generator,
            pbar=pbar,
            mp_start_method=mp_start_method,
            executor=executor,
            **policy,
        )

    def map_reduce(
        self, mapper: Callable[[Any], Any] | None, reducer: Any, num_workers: int | None = None, **options: Any
    ) -> Any:
        """Folds ``mapper(chunk)`` over all chunks, on several processes: see :func:`tdmap.map_reduce`."""
        from tdmap import map_reduce as engine_map_reduce

        return engine_map_reduce(self, mapper, reducer, num_workers, **options)

    def pipeline(self, *, seed: int | None = None) -> Any:
        """Begins a lazy chain of stages over the rows: see :class:`tdmap.Pipeline`."""
        from tdmap import Pipeline

        return Pipeline(self, seed=seed)
