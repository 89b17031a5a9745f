"""`map` and `map_iter`: arguments in, a job out, and somebody to run it."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tdmap.data.alike import VALID
from tdmap.data.join import check_rows, result_of_no_rows
from tdmap.data.kinds import Data, data_length, is_data, is_opened_by_row
from tdmap.data.sizes import row_bytes_of
from tdmap.data.store import destination
from tdmap.devices import OUT_CHUNKS, Devices, Placement, check_no_device, check_start_method
from tdmap.errors import OutputMismatch
from tdmap.events import Callback
from tdmap.execution import Execution
from tdmap.functions import Keys, as_function, check_placement
from tdmap.job import Job, Policy, Source
from tdmap.memory.links import Device, DeviceLink, open_link, resolve_device
from tdmap.operation import operation
from tdmap.operations.habits import with_habits
from tdmap.operations.iterator import MapIterator
from tdmap.operations.keeping import map_dropping, marking, write_dropping
from tdmap.operations.prefetch import check_prefetch, prefetch_over
from tdmap.plan import CACHE_BYTES, MIN_CHUNKS, ChunkPlan, default_chunk_size, make_plan
from tdmap.process import hooks
from tdmap.ranks import running as by_ranks
from tdmap.ranks.shard import ShardLike, rank_of
from tdmap.resume.cached import map_cached
from tdmap.resume.resumable import map_in_place, map_to_files, map_to_folder
from tdmap.resume.run import Resume, check_resume
from tdmap.resume.sharding import check_rows_per_shard, map_to_shards, write_folder
from tdmap.rowerrors import MODES, OnError, mode_of
from tdmap.runtime.crews.cluster import RayCluster
from tdmap.runtime.skipping import DROP, PAD
from tdmap.seeding import base_seed, permutation
from tdmap.sinks import Gather, InPlace, Preallocated, Sink, Stream
from tdmap.stores.opening import is_url

OUTPUT_FACTOR = 4
"""Without `out`, a row's result is taken to be so many times its bytes (uint8 to float32)."""


@operation
def map(
    data: Data,
    fn: Callable[[Any], Any],
    dim: int = 0,
    num_workers: int | None = None,
    *,
    out: Data | str | os.PathLike[str] | None = None,
    device: Devices = None,
    in_keys: Keys | None = None,
    out_keys: Keys | None = None,
    with_indices: bool = False,
    fn_kwargs: Mapping[str, Any] | None = None,
    resume: Resume = False,
    overwrite: bool = False,
    cache: bool | str | os.PathLike[str] = False,
    shard: ShardLike = None,
    rows_per_shard: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    pool: Any = None,
    generator: torch.Generator | None = None,
    max_tasks_per_child: int | None = None,
    max_memory: int | None = None,
    worker_threads: int = 1,
    index_with_generator: bool = False,
    pbar: bool = False,
    mp_start_method: str | None = None,
    executor: str | RayCluster = "process",
    seed: int | None = None,
    retries: int = 2,
    timeout: float | None = None,
    undo: bool = True,
    on_error: OnError = "raise",
    callbacks: Iterable[Callback] = (),
    profile: bool | str | os.PathLike[str] = False,
) -> Any:
    """Apply `fn` to chunks of `data` on several processes, and join the results.

    Chunks are views of the data, along `dim`. Workers read them from memory that they share with the caller
    (memory-mapped files are opened by name; anything else is moved to shared memory once) and write results into
    shared memory or into `out`: rows never travel between processes.

    Args:
        data: a tensor or a collection of tensors, with rows along `dim`.
        fn: called with each chunk. It returns a collection or tensor with the chunk's results, or None when it has
            changed the chunk in place. Lambdas, closures and functions of `__main__` work, under every start
            method. An `nn.Module` is called without gradients, in its own mode, and workers share its parameters; a
            torchvision transform is called with the pictures of a chunk (see `tdmap.functions`).
        dim: the dimension that is cut; negative ones count from the last batch dimension.
        num_workers: processes or threads; 0 runs in the caller. Default: the cores that this process may use.
        out: where results are written: a preallocated tensor or collection with `data`'s rows along `dim`,
            best in memory-mapped files. It is updated in place and returned. Entries of results that `out` lacks
            are ignored, and entries that results lack keep what they had. `out=data` writes back. A path is a folder
            for a new memory-mapped dataset, whose schema is that of the first result; the folder holds no dataset
            until every row is there. Tensors on a CUDA device are filled through page-locked memory while workers
            make the next rows; rows that `on_error` skips are zeros there.
        device: where `fn` runs: `"cuda"`, `"cuda:1"`, or a list that workers share in turns. Chunks are moved there
            ahead of their turn, by workers that are spawned, with a CUDA context each, by default two for a device;
            results come back, unless `out` is on a device too. Default, and `"cpu"`: chunks stay where they are.
        in_keys, out_keys: call `fn` with these entries of a chunk, and put its results there (`out_keys`, by default
            `in_keys`); the other entries stay. See `tdmap.functions.OnKeys`.
        with_indices: call `fn` with the numbers of the rows as second argument, int64 `[rows]` (an int with
            `chunksize=0`).
        fn_kwargs: call `fn` with these keyword arguments as well.
        resume: keep a journal in a hidden folder of `out`, so that the same call goes on after any interruption,
            `kill -9` of every process included, and the result has the same bits. A call that was complete does
            nothing, and warns (`tdmap.errors.AlreadyComplete`). Needs `out`: a path, a memory-mapped dataset, or
            `data` itself. When the machine itself went down in the middle of a run with `out=data`, nobody knows which
            rows reached the disk, and True is refused. `"trust"` takes the files as they are: right after a shutdown in
            order. `"redo"` runs every chunk again that is not known to have reached the disk: right for functions that
            do no harm to rows that they have changed already.
        overwrite: replace the dataset in the folder `out`, if there is one: it stays until the new one is whole.
        cache: keep the result in a folder by what made it: the same call with the same function, data and options opens
            it again. True: in `$TDMAP_CACHE` or `~/.cache/tdmap/maps`; or a folder. `tdmap cache` lists and prunes it.
        shard: `(rank, world_size)`: run one of so many parts of the chunks, while other programs run the others; or
            `"auto"`, the rank that torchrun or `torch.distributed` gives this program. All ranks make the same call,
            at the same time or not. With a path as `out`, they fill one folder: each keeps a journal there, so `resume`
            is implied, and goes on after any interruption; it returns its own rows, and when the last rank is done
            the folder holds the dataset (see `tdmap.merge_shards`). With a dataset as `out`, its own rows are written,
            and with `resume` journalled; without `out`, its own results are returned. A seed gives the bits that
            one program alone gets with the same `chunksize`.
        rows_per_shard: write `out`, a folder or a URL, as several folders and a manifest (`tdmap.open` opens them as
            one): the results of so many rows of the data in each. A worker writes a whole one, so there should be some
            for each worker; `resume` goes on with those that are not written. A URL, such as `"s3://bucket/set"`, is
            always written so, by default with the results of about 64 MiB of data in each.
        storage_options: with a URL, what fsspec's file system is made with.
        chunksize: rows in a chunk; 0 passes rows one by one without `dim`, and stacks the results.
            Default: from the bytes of a row, so that a chunk and its result stay in the processor's cache.
        num_chunks: how many chunks, instead of their size.
        pool: run there: a `tdmap.WorkerPool`, or a pool of `multiprocessing`, `torch.multiprocessing` or
            `multiprocess`. The options about workers are ignored then.
        generator: draws the seed of the job (one draw); see `seed`.
        max_tasks_per_child: replace a worker by a fresh one after so many chunks.
        max_memory: replace a worker, between leases, when it has gained more than so many bytes since it started
            (memory-mapped files and shared memory do not count).
        worker_threads: threads that torch uses in each worker.
        index_with_generator: accepted for compatibility; chunks are always cut when they are needed.
        pbar: show a progress bar.
        mp_start_method: `"fork"`, `"forkserver"` or `"spawn"`. Default: fork where that is safe (no other Python
            thread, no CUDA context, `worker_threads=1`), else forkserver.
        executor: `"process"`, `"thread"`, `"serial"`, or `"ray"`: actors on a Ray cluster, which a `tdmap.RayCluster`
            describes further.
        seed: gives each chunk its own random streams (torch, on `device` too, numpy, random), derived from the seed
            and its first row: the same results for any number of workers. Default: workers' streams are independent
            and not reproducible.
        retries: how often a chunk runs again when its worker dies.
        timeout: seconds that one chunk may run before its worker is killed and the chunk retried.
        undo: keep a copy of the rows that a worker is changing in place, and put them back when it dies, raises or is
            interrupted, so that a chunk is done once or not at all. False saves a copy of each chunk; a worker
            that dies then ends the job.
        on_error: `"raise"` ends the job with the first exception of `fn`. `"skip"` finds the rows that raise, by
            calling `fn` with parts of their chunk, then row by row, and processes all others; a `tdmap.SkippedRows`
            warning lists them. Skipped rows are zeros in the result (None, where objects are), or keep what they had
            in `out` and in place; a bool entry `"__valid__"` of `out` becomes False for them and True for the others.
            `"mark"` adds that entry to a new result. `"drop"` leaves the rows out of it. A function of
            `(error, (row, row + 1))`, such as `tdmap.RowErrors(mode="drop")`, is called here with each of them instead
            of the warning; it may raise. Results with other row counts than their chunk lack them. When every row
            fails, the first exception is raised. A result that does not fit the others, or `out`, is an error of its
            rows, unless it happens to most rows. With `resume`, rows that an earlier call skipped are done; they are
            reported again.
        callbacks: `tdmap.Callback` objects that receive the job's events.
        profile: measure where the time goes (see `tdmap.Profiler`): True prints a summary to standard error, a path
            is a file (`.json`: a trace, `.txt`: the summary, `.png`: the plot) or a folder for all of them.

    Returns:
        `out` when it is given; else the results concatenated along `dim` (stacked with `chunksize=0`), without
        those that are None, of which a warning tells; None when all are. Without rows, what the function makes of
        zero rows. With `shard` and a path, the rows of this rank as they lie in the files. With `shard`, None for a
        rank without rows.

    Raises:
        IndexError: `dim` is out of range.
        ValueError: both `chunksize` and `num_chunks` are given, or an option is out of range.
        ValueError: a device does not exist, `out` lies on two, or the options about workers rule a device out.
        OutputMismatch: a result does not fit `out`.
        FileExistsError: `out` is a path where something else is.
        FolderInUse: another call writes the folder at this moment, in this process or another; says who.
        UntrustedFile: the hidden folder of `out` holds what this library does not put there, such as a link.
        ResumeMismatch: `resume`, and the journal is of another function, source, plan or seed; names what differs.
        SerializationError: `fn` cannot be sent to workers.
        MemoryError: chunks are larger than the memory that is free on `device`; nothing was run.
        WorkerLost: workers died on the same chunk more than `retries` times.
        ChunkTimeout: a chunk exceeded `timeout` more than `retries` times.
        Exception: whatever `fn` raised, with a note that names the rows. Rows already written stay.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(6)}, batch_size=[6])
        >>> map(data, lambda td: td.apply(lambda x: x * x), num_workers=2, chunksize=2)["x"]
        tensor([ 0,  1,  4,  9, 16, 25])
    """
    if cache:
        return map_cached(map, dict(locals()))
    check_no_device(out, data)
    path = out if isinstance(out, (str, os.PathLike)) else None
    in_shards = _in_shards(path, rows_per_shard, dim, device, shard)
    target = destination(out, overwrite)
    buffer = out if path is None and is_data(out) else None
    where = Placement.of(device, buffer)
    existing = out if path is None else None
    rank = rank_of(shard)
    # Ranks must cut alike, and do not know each other's results; nor do those who write shards.
    varies = rank is None and not in_shards
    plan = plan_for(
        data, fn, dim, chunksize, num_chunks, existing, where.chunk_factor, where.min_chunks, results_vary=varies
    )
    policy = policy_for(seed, generator, retries, timeout, undo, on_error, PAD)
    check_resume(resume)
    execution = where.execution(
        Execution(
            num_workers,
            pool,
            executor,
            mp_start_method,
            worker_threads,
            max_tasks_per_child,
            max_memory,
            pbar,
            callbacks,
            profile,
        )
    )
    where.check(data, buffer, execution, bool(resume), on_error)
    fn = with_habits(as_function(fn, in_keys, out_keys), with_indices, fn_kwargs, plan.unbind)
    if mode_of(on_error) == "mark":
        fn = marking(fn, buffer)
    fn = where.function(fn, execution)
    job = Job(
        Source(data),
        plan,
        fn,
        replace(policy, in_place=True),
        on_row_error=handler_of(on_error),
        chunk_bytes=CACHE_BYTES * where.chunk_factor,
        min_chunks=where.min_chunks,
    )
    if in_shards:
        assert path is not None
        return map_to_shards(
            job,
            path,
            rows_per_shard,
            execution,
            resume=bool(resume),
            overwrite=overwrite,
            options=dict(storage_options or {}),
            write=write_dropping if policy.skip == DROP else write_folder,
        )
    if path is not None and policy.skip == DROP:
        if rank is not None:
            raise ValueError(
                "on_error='drop' leaves rows out, and ranks must know where their rows are before they begin: use "
                "on_error='mark', and tdmap.filter afterwards."
            )
        return map_dropping(job, target, bool(resume), execution)
    if path is not None and rank is not None:
        if overwrite:
            raise ValueError(
                "overwrite=True replaces the folder when one call is done, and ranks fill it together: remove it "
                "before they begin."
            )
        return by_ranks.map_to_folder(job, path, rank, resume or True, execution.run)
    if path is not None:
        return map_to_folder(job, target, resume, execution.run)
    if policy.skip == DROP and out is not None:
        raise ValueError(
            "on_error='drop' leaves rows out, and out has a place for every row: use on_error='skip', which sets a "
            f"bool entry {VALID!r} of out to False there, out='folder', or out=None."
        )
    sink: Sink
    if out is None:
        if resume:
            raise ValueError("resume=True keeps its journal beside the output: pass out=a folder, or out=data.")
        if rank is not None:
            job = by_ranks.part_of(job, rank)
            if job.plan.length == 0 < plan.length:
                return None
            data, plan = job.source.data, job.plan
        sink = Gather(job.name, policy.skip == DROP)
    else:
        check_rows(out, plan, data.shape)
        sink = InPlace(out) if out is data else Preallocated(out)
    if plan.length == 0:
        return result_of_no_rows(fn, data, plan) if out is None else out
    if resume:
        if rank is not None and not (out is data and execution.is_foreign):
            return by_ranks.map_into(job, out, rank, resume, execution.run)
        if out is not data:
            return map_to_files(job, out, execution.run, resume)
        if execution.is_foreign:
            raise ValueError("resume=True with out=data needs workers of its own: use num_workers= or a WorkerPool.")
        return map_in_place(job, execution.run, resume)
    log = None if rank is None or out is None else by_ranks.Part(rank.elsewhere(plan))
    if out is not None and out is not data:
        return where.run(job, out, execution, log)
    result = execution.run(job, sink, log)
    if result is None and is_opened_by_row(data):
        raise OutputMismatch(
            f"{job.name} returned None for every chunk. A function that changes its chunk in place has no effect on a "
            "dataset of several folders, which is read only: let it return the chunk, and pass out=."
        )
    return result


@operation
def map_iter(
    data: Data,
    fn: Callable[[Any], Any],
    dim: int = 0,
    num_workers: int | None = None,
    *,
    device: Device | None = None,
    prefetch: int = 2,
    in_keys: Keys | None = None,
    out_keys: Keys | None = None,
    shuffle: bool = False,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    pool: Any = None,
    generator: torch.Generator | None = None,
    max_tasks_per_child: int | None = None,
    max_memory: int | None = None,
    worker_threads: int = 1,
    index_with_generator: bool = True,
    pbar: bool = False,
    mp_start_method: str | None = None,
    executor: str | RayCluster = "process",
    seed: int | None = None,
    retries: int = 2,
    timeout: float | None = None,
    undo: bool = True,
    on_error: OnError = "raise",
    callbacks: Iterable[Callback] = (),
    profile: bool | str | os.PathLike[str] = False,
) -> MapIterator:
    """Apply `fn` to chunks of `data` on several processes, and yield the results in order.

    A bounded number of chunks is in flight, whatever the consumer does; leaving the loop stops the workers.
    The arguments are those of `map`, and `fn` may return any value that can be pickled. Results of tensors lie in
    shared memory that is used again when the consumer lets go of them.

    Args:
        device: yield results there, copied ahead on a stream of its own; `fn` runs on the CPU, as ever.
        prefetch: with `device`, how many results to copy ahead of the one that is yielded.
        on_error: as `map`; results lack the rows that were skipped, and are None where none is left.
        shuffle: chunks take their rows from a random permutation, drawn with `seed`, `generator` or torch's own
            random stream.
        index_with_generator: accepted for compatibility; must be True with `shuffle`.

    Returns:
        An iterator over the result of each chunk, None included. Its `state_dict()` says how far it is, and
        `load_state_dict()` goes on there, in the middle of a shuffled epoch too.

    Raises:
        RuntimeError: `shuffle` without `index_with_generator`.
        ValueError: at once, as `map`: the device does not exist, or an option is out of range.
        Exception: as `map`, at the first step of the iteration or when it occurs.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(6)}, batch_size=[6])
        >>> [int(total) for total in map_iter(data, lambda td: td["x"].sum(), num_workers=2, chunksize=2)]
        [1, 5, 9]
    """
    if shuffle and not index_with_generator:
        raise RuntimeError("map_iter(shuffle=True) needs index_with_generator=True, its default: drop that argument.")
    execution = Execution(
        num_workers,
        pool,
        executor,
        mp_start_method,
        worker_threads,
        max_tasks_per_child,
        max_memory,
        pbar,
        callbacks,
        profile,
    )
    target = _target(device, prefetch, execution)
    factor = 1 if target is None else OUT_CHUNKS
    plan = plan_for(data, fn, dim, chunksize, num_chunks, None, factor, results_vary=True)
    policy = policy_for(seed, generator, retries, timeout, undo, on_error, DROP)
    fn = as_function(fn, in_keys, out_keys)
    check_placement(fn, execution.in_processes, None)

    def begin(position: int, seed: int | None, order_seed: int | None, plan: ChunkPlan, settled: Any) -> Iterator[Any]:
        order = None if order_seed is None else permutation(plan.length, order_seed)
        # A job of its own each time: what a worker still says about the last one must not count.
        job = Job(
            Source(data, order),
            plan,
            fn,
            replace(policy, seed=seed),
            on_row_error=handler_of(on_error),
            chunk_bytes=CACHE_BYTES * factor,
            on_settled=settled,
        )
        if target is None:
            return stream_values(job, execution, position)
        link = open_link(target)
        return prefetch_over(link, stream_values(job, execution, position, link=link), prefetch)

    order_seed = policy.seed
    if shuffle and order_seed is None:
        order_seed = int(torch.empty((), dtype=torch.int64).random_().item())
    return MapIterator(begin, plan, policy.seed, order_seed if shuffle else None)


_open_streams: weakref.WeakSet[Any] = weakref.WeakSet()


def _close_streams() -> None:
    for stream in list(_open_streams):
        with contextlib.suppress(ValueError):  # it is running: somebody exits from inside the loop
            stream.close()


hooks.at_exit(hooks.STREAMS, _close_streams)
hooks.in_child(hooks.STREAMS, _open_streams.clear)  # those of the parent are not ours to close


class _Yielded:
    """The commit log of an iteration that goes on: chunks below `position` have been yielded."""

    def __init__(self, position: int) -> None:
        self.committed = [(0, position)]
        self.elsewhere: list[tuple[int, int]] = []
        self.skips = None

    def add(self, start: int, stop: int) -> None:
        pass

    def tick(self, now: float) -> None:
        pass


def _target(device: Device | None, prefetch: int, execution: Execution) -> torch.device | None:
    """The device that results go to, once it has been checked; None: they stay."""
    check_prefetch(prefetch)
    target = None if device is None else resolve_device(device)
    if target is None or target.type == "cpu":
        return None
    check_start_method(execution, target)
    return target


def stream_values(
    job: Job, execution: Execution, position: int = 0, ahead: int | None = None, link: DeviceLink | None = None
) -> Iterator[Any]:
    """The results of a job's chunks from `position` on, in order. Closing it stops the work.

    Args:
        job: what to run.
        execution: who runs it.
        position: the first chunk that is wanted.
        ahead: chunks that may be under way or done before they are wanted. Default: a few megabytes a worker.
        link: results go on over this link: the slots in which they travel are page-locked for it.
    """

    def values() -> Iterator[Any]:
        if position < job.plan.num_chunks:
            for _, value in execution.stream(job, Stream(ahead, link), _Yielded(position) if position else None):
                yield value

    stream = values()
    _open_streams.add(stream)
    return stream


# -- arguments ---------------------------------------------------------------------------------------


def plan_for(
    data: Data,
    fn: Callable[[Any], Any],
    dim: int,
    chunksize: int | None,
    num_chunks: int | None,
    out: Data | None,
    factor: int = 1,
    min_chunks: int = MIN_CHUNKS,
    results_vary: bool = False,
) -> ChunkPlan:
    """How the rows are cut, once the arguments have been checked.

    Args:
        data, fn, dim, chunksize, num_chunks, out: as `map`; `out` where it exists already.
        factor: default chunks are so many times larger.
        min_chunks: there are at least so many, rows permitting.
        results_vary: the function returns rows that may be of any size, so that default chunks wait for the first one.

    Raises:
        TypeError: `data`, `fn` or `out` is of no use.
        IndexError: `dim` is out of range.
        ValueError: both sizes are given, or one is out of range.
    """
    if not is_data(data):
        raise TypeError(f"map needs a tensor or a collection of tensors, got {instead_of_data(data)}")
    if not callable(fn):
        raise TypeError(f"map needs a function, got {fn!r}.")
    if out is not None and not is_data(out):
        raise TypeError(
            f"out must be a tensor, a collection of tensors or the path of a folder, got a {type(out).__name__}."
        )
    dims = len(data.shape)
    if not isinstance(dim, int) or not -dims <= dim < dims:
        raise IndexError(
            f"dim={dim} is out of range for data of shape {tuple(data.shape)}: "
            + (f"use {-dims} to {dims - 1}." if dims else "it has no dimension to cut.")
        )
    dim %= dims
    if is_opened_by_row(data):
        factor *= _check_sharded(data, dim, out)
    length = data_length(data, dim)
    own = max(row_bytes_of(data, length) // factor, 1)
    result = own * OUTPUT_FACTOR if out is None or out is data else row_bytes_of(out, length) // factor
    most = default_chunk_size(length, own, min_chunks=min_chunks) if out is None and results_vary else 0
    return make_plan(
        length,
        dim=dim,
        chunksize=chunksize,
        num_chunks=num_chunks,
        row_bytes=own + result,
        most=most,
        min_chunks=min_chunks,
    )


def _in_shards(path: Any, rows_per_shard: int | None, dim: int, device: Devices, shard: ShardLike) -> bool:
    """Whether the result is written as several folders.

    Raises:
        ValueError: that cannot be, for the other arguments.
    """
    check_rows_per_shard(rows_per_shard)
    if rows_per_shard is None and not is_url(path):
        return False
    what = "rows_per_shard=" if rows_per_shard is not None else f"out={path!r}"
    if path is None:
        raise ValueError("rows_per_shard= writes a folder of shards: pass out=its path, or a URL.")
    if dim or device is not None or shard is not None:
        raise ValueError(f"{what} writes whole shards of rows of dimension 0: dim=, device= and shard= rule that out.")
    return True


REMOTE_CHUNKS = 32
"""Default chunks of rows that are fetched from a store are so many times larger: a request for each takes its time."""


def _check_sharded(data: Data, dim: int, out: Data | None) -> int:
    """How many times larger its default chunks are.

    Raises:
        ValueError: it is cut along another dimension, or is to be written to.
    """
    if dim:
        raise ValueError(f"the rows of several folders lie along dimension 0: they cannot be cut along dim={dim}.")
    if out is not None and is_opened_by_row(out):
        raise ValueError("a dataset of several folders is read only: pass out=a folder of its own, or out=None.")
    return REMOTE_CHUNKS if data.is_remote else 1


def instead_of_data(value: Any) -> str:
    """What was passed where a dataset is needed, and how to make one of it."""
    if isinstance(value, np.ndarray):
        return "a numpy array: use torch.from_numpy(array)."
    if isinstance(value, Mapping):
        return "a mapping: use TensorDict(mapping, batch_size=[rows])."
    if isinstance(value, (str, os.PathLike)):
        return f"the path {os.fspath(value)!r}: use TensorDict.load_memmap(path)."
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__}: use torch.tensor(values), or TensorDict({{'value': values}}, [len(values)])."
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return f"a {type(value).__name__}: use TensorDict({{name: table[name] for name in table}}, [len(table)])."
    return f"a {type(value).__name__}: use a torch.Tensor, a TensorDict or a tensorclass."


def policy_for(
    seed: int | None,
    generator: torch.Generator | None,
    retries: int,
    timeout: float | None,
    undo: bool = True,
    on_error: OnError = "raise",
    skip: str = PAD,
) -> Policy:
    """How failures and randomness are handled; `skip` says what results have for rows that raise.

    Raises:
        ValueError: an option is out of range.
    """
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries must be an integer of at least 0: got {retries!r}.")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, or None: got {timeout!r}.")
    mode = mode_of(on_error, MODES if skip == PAD else LEAVING_OUT)
    skip = "" if mode == "raise" else DROP if mode == "drop" else skip
    return Policy(base_seed(seed, generator), retries, timeout, bool(undo), skip)


LEAVING_OUT = ("raise", "skip", "drop")
"""What `on_error` may be where results lack the rows that raise: "skip" and "drop" are the same there."""


def handler_of(on_error: OnError) -> Callable[[BaseException, tuple[int, int]], Any] | None:
    """The function that is told of each row that raises, if there is one."""
    return None if isinstance(on_error, str) else on_error
