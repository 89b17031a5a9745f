"""`map`: arguments in, a job out, and a target that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from tdmap.data.kinds import Data
from tdmap.devices import Devices
from tdmap.functions import Keys, as_function
from tdmap.job import Job, Source
from tdmap.ops.dropping import marking
from tdmap.ops.target import InShards, Target
from tdmap.plan import CACHE_BYTES
from tdmap.ranks.shard import ShardLike
from tdmap.rowerrors import mode_of
from tdmap.run.adapters import adapted
from tdmap.run.arguments import handler_of, plan_for
from tdmap.run.context import Context
from tdmap.run.operation import placing_operation
from tdmap.run.options import MapOptions
from tdmap.run.run import check_resume
from tensordict_lite.paths import is_url


@placing_operation
def map(
    ctx: Context,
    data: Data,
    fn: Callable[[Any], Any],
    dim: int = 0,
    *,
    out: Data | str | os.PathLike[str] | None = None,
    device: Devices = None,
    in_keys: Keys | None = None,
    out_keys: Keys | None = None,
    with_indices: bool = False,
    fn_kwargs: Mapping[str, Any] | None = None,
    shard: ShardLike = None,
    undo: bool = True,
    index_with_generator: bool = False,
    **options: Unpack[MapOptions],
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
        out: where results are written: a preallocated tensor or collection with `data`'s rows along `dim`,
            best in memory-mapped files. It is updated in place and returned. Entries of results that `out` lacks
            are ignored, and entries that results lack keep what they had. `out=data` writes back. A path is a folder
            for a new memory-mapped dataset, whose schema is that of the first result; the folder holds no dataset
            until every row is there. Tensors on a CUDA device are filled through page-locked memory while workers
            make the next rows; rows that `on_error` skips are zeros there. A collection in an HDF5 file or a Zarr store
            is refused: its rows are copies in memory.
        device: where `fn` runs: `"cuda"`, `"cuda:1"`, or a list that workers share in turns. Each spawned worker (two
            per device by default) has its own CUDA context and prefetches chunks to the device. Results are copied
            back to the CPU unless `out` is on a device. Default, and `"cpu"`: chunks stay where they are.
        in_keys, out_keys: call `fn` with these entries of a chunk, and put its results there (`out_keys`, by default
            `in_keys`); the other entries stay. See `tdmap.functions.OnKeys`.
        with_indices: call `fn` with the numbers of the rows as second argument, int64 `[rows]` (an int with
            `chunksize=0`).
        fn_kwargs: call `fn` with these keyword arguments as well.
        shard: `(rank, world_size)`: run one of so many parts of the chunks, while other programs run the others; or
            `"auto"`, the rank that torchrun or `torch.distributed` gives this program. All ranks make the same call,
            at the same time or not. With a path as `out`, they fill one folder: each keeps a journal there, so `resume`
            is implied, also after any interruption; it returns its own rows, and when the last rank is done
            the folder holds the dataset (see `tdmap.merge_shards`). With a dataset as `out`, its own rows are written,
            and with `resume` journalled; without `out`, its own results are returned. A seed gives the bits that
            one program alone gets with the same `chunksize`.
        index_with_generator: accepted for compatibility; chunks are always cut when they are needed.
        undo: keep a copy of the rows that a worker is changing in place, and put them back when it dies, raises or is
            interrupted, so that a chunk is done once or not at all. False saves a copy of each chunk; a worker
            that dies then ends the job.
        **options: see `tdmap.MapOptions`. With a path as `out`, `spill_dir` holds ragged results until their lengths
            are known. With `chunksize=0`, rows come one by one without `dim`, and results are stacked. `resume` needs
            `out`: a path, a memory-mapped dataset, or `data` itself. When the machine went down in the middle of a
            run with `out=data`, it is unknown which rows reached the disk, and `resume=True` raises. `"trust"`
            uses the files as they are: right after a clean shutdown. `"redo"` runs every chunk again that is not
            known to have reached the disk: right for functions that do no harm to rows that they have changed
            already. With `on_error="skip"`, rows that raise are zeros in the result (None, where objects are), or
            keep what they had in `out` and in place, and a bool entry `"__valid__"` of `out` becomes False for them
            and True for the others; `"mark"` adds that entry to a new result; `"drop"` leaves the rows out. A
            function of `(error, (row, row + 1))`, such as `tdmap.RowErrors(mode="drop")`, is called with each instead
            of a warning. When every row fails, the first exception is raised. With `resume`, rows that an earlier
            call skipped are reported again. A result that does not fit the others, or `out`, is an error of its rows,
            unless it happens to most rows.

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
    resume, on_error = check_resume(ctx.options.get("resume", False)), ctx.options.get("on_error", "raise")
    overwrite, rows_per_shard = ctx.options.get("overwrite", False), ctx.options.get("rows_per_shard")
    if ctx.options.get("spill_dir") is not None and (shard is not None or not isinstance(out, (str, os.PathLike))):
        raise ValueError("spill_dir= is for ragged results that wait in files: pass out=a folder, and no shard=.")
    target = Target.of(out, data, device, shard, resume, overwrite)
    if rows_per_shard is not None or is_url(out):
        storage_options = ctx.options.get("storage_options")
        target = InShards.instead_of(target, data, dim, overwrite, rows_per_shard, storage_options)
    where, given = target.placement, target.given
    plan = plan_for(
        data,
        fn,
        dim,
        ctx.chunksize,
        ctx.options.get("num_chunks"),
        given,
        where.chunk_factor,
        where.min_chunks,
        results_vary=target.cuts_by_result,
    )
    execution = where.execution(ctx.execution)
    where.check(data, given, execution, bool(resume), on_error)
    fn = adapted(as_function(fn, in_keys, out_keys), plan, with_indices, fn_kwargs)
    fn = marking(fn, given) if mode_of(on_error) == "mark" else fn
    job = Job(
        Source(data),
        plan,
        where.function(fn, execution),
        replace(ctx.function, undo=bool(undo), in_place=True),
        on_row_error=handler_of(on_error),
        chunk_bytes=CACHE_BYTES * where.chunk_factor,
        min_chunks=where.min_chunks,
    )
    return target.run(job, replace(ctx, execution=execution))
