"""`map`: arguments in, a job out, and somebody to run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tdmap.data.kinds import Data
from tdmap.devices import Devices
from tdmap.events import Callback
from tdmap.execution import Execution
from tdmap.functions import Keys, as_function
from tdmap.job import Job, Source
from tdmap.ops.dropping import marking
from tdmap.ops.target import InShards, Target
from tdmap.plan import CACHE_BYTES
from tdmap.ranks.shard import ShardLike
from tdmap.rowerrors import OnError, mode_of
from tdmap.run.adapters import adapted
from tdmap.run.arguments import handler_of, plan_for, policy_for
from tdmap.run.operation import entry_point
from tdmap.run.run import Resume, check_resume
from tdmap.runtime.crews.cluster import RayCluster
from tdmap.runtime.skipping import PAD
from tensordict_lite.paths import is_url


@entry_point
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
            changed the chunk in place; where it does both, the source is changed, with a warning. Lambdas, closures and
            functions of `__main__` work, under every start method. An `nn.Module` is called without gradients, in its
            own mode, and workers share its parameters; a torchvision transform is called with the pictures of a chunk
            (see `tdmap.functions`).
        dim: the dimension that is cut; negative ones count from the last batch dimension.
        num_workers: processes or threads; 0 runs in the caller. Default: the cores that this process may use.
        out: where results are written: a preallocated tensor or collection with `data`'s rows along `dim`,
            best in memory-mapped files. It is updated in place and returned. Entries of results that `out` lacks
            are ignored, and entries that results lack keep what they had. `out=data` writes back. A path is a folder
            for a new memory-mapped dataset, whose schema is that of the first result; the folder holds no dataset
            until every row is there. Tensors on a CUDA device are filled through page-locked memory while workers
            make the next rows; rows that `on_error` skips are zeros there. A collection in an HDF5 file or a Zarr store
            is refused: its rows are copies in memory.
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
        seed: gives each chunk its own random streams (torch, on `device` too, numpy, random, and generators that `fn`
            holds), derived from the seed and its first row: the same results for any number of workers. A process
            has one set of streams, so `executor="thread"` runs such chunks in the calling thread, one after the
            other. Default: workers' streams are independent and not reproducible.
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
    target = Target.of(out, data, device, shard, resume, overwrite)
    if rows_per_shard is not None or is_url(out):
        target = InShards.instead_of(target, data, dim, overwrite, rows_per_shard, storage_options)
    where, given = target.placement, target.given
    plan = plan_for(
        data,
        fn,
        dim,
        chunksize,
        num_chunks,
        given,
        where.chunk_factor,
        where.min_chunks,
        results_vary=target.cuts_by_result,
    )
    policy = policy_for(seed, generator, retries, timeout, undo, on_error, PAD)
    check_resume(resume)
    workers = Execution(
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
    execution = where.execution(workers)
    where.check(data, given, execution, bool(resume), on_error)
    fn = adapted(as_function(fn, in_keys, out_keys), plan, with_indices, fn_kwargs)
    fn = marking(fn, given) if mode_of(on_error) == "mark" else fn
    job = Job(
        Source(data),
        plan,
        where.function(fn, execution),
        replace(policy, in_place=True),
        on_row_error=handler_of(on_error),
        chunk_bytes=CACHE_BYTES * where.chunk_factor,
        min_chunks=where.min_chunks,
    )
    return target.run(job, execution)
