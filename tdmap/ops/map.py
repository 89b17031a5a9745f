"""`map`: arguments in, a job out, which runs as the kind of its output asks for.

out=None           results are joined into a new value            `_gathered`
out="folder"       a new memory-mapped dataset                    `_to_folder`
rows_per_shard=, or out="s3://..."    one of several folders      `_to_shards`
out=dataset        rows of it; those of the data with out=data    `_into_rows`, `_onto_device`
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

import torch

from tdmap.data.alike import check_rows
from tdmap.data.join import result_of_no_rows
from tdmap.data.kinds import Data, Dataset, R, is_read_anew
from tdmap.data.objects import forms_of, object_paths
from tdmap.data.reader import rows_of
from tdmap.devices import DevicePlan, Devices
from tdmap.errors import OutputMismatch, add_note
from tdmap.frames import warn_user
from tdmap.functions import Keys, adapted, as_function
from tdmap.job import Job, Source
from tdmap.memory import links
from tdmap.memory.hidden import AnyPath
from tdmap.ops.dropping import map_dropping
from tdmap.output.device import DeviceBuffer
from tdmap.output.folder import fill_folder
from tdmap.output.given import InPlace, Preallocated, map_into
from tdmap.output.memory import Gather
from tdmap.output.spill import placing
from tdmap.ranks import running as by_ranks
from tdmap.ranks.rank import Rank
from tdmap.ranks.shard import ShardLike, rank_of
from tdmap.run.context import Context
from tdmap.run.history import MAP
from tdmap.run.identity import identify
from tdmap.run.operation import placing_operation, resumable_call
from tdmap.run.options import MapOptions
from tdmap.runtime.commits import KnownChunks
from tdmap.runtime.ondevice import OnDevice
from tdmap.runtime.skipping import DROP
from tdmap.runtime.wire.lending import NotLent, cannot_lend

Result = TypeVar("Result")
Out = TypeVar("Out", bound=Dataset[Any])


class MapArguments(MapOptions, total=False):
    """What `map` takes besides `out` and `in_keys`, on which its result depends."""

    device: Devices
    out_keys: Keys | None
    with_indices: bool
    fn_kwargs: Mapping[str, Any] | None
    shard: ShardLike
    undo: bool
    index_with_generator: bool


@overload
def map(
    data: Dataset[Any],
    fn: Callable[..., Any],
    dim: int = 0,
    *,
    out: Out,
    in_keys: Keys | None = None,
    **options: Unpack[MapArguments],
) -> Out: ...
@overload
def map(
    data: Dataset[R],
    fn: Callable[..., Any],
    dim: int = 0,
    *,
    out: AnyPath | None = None,
    in_keys: Keys,
    **options: Unpack[MapArguments],
) -> R: ...
@overload
def map(
    data: Dataset[Any],
    fn: Callable[..., Result],
    dim: int = 0,
    *,
    out: AnyPath | None = None,
    in_keys: None = None,
    **options: Unpack[MapArguments],
) -> Result: ...
@placing_operation
def map(
    ctx: Context,
    data: Dataset[Any],
    fn: Callable[..., Any],
    dim: int = 0,
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
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
    """Apply `fn` to chunks of `data` on several processes, and concatenate the results.

    Chunks are views of the data along `dim`. Workers open memory-mapped files by name; other data are copied to shared
    memory once. They write results into shared memory or `out`. Processes do not send rows to each other.

    Args:
        data: a tensor or a collection of tensors, with rows along `dim`.
        fn: takes a chunk. Returns a collection, a tensor or a dict of columns (a folder takes no plain tensor), or None
            after changing the chunk in place. If it changes the chunk and returns a result, the source changes, with a
            warning. Lambdas, closures and functions of `__main__` work with every start method. An `nn.Module` runs
            without gradients in its current train or eval mode, and workers share its parameters. A torchvision
            transform takes the images of a chunk (see `tdmap.functions`).
        dim: the dimension of the rows; a negative number counts from the last batch dimension.
        out: destination of results. A path: a folder for a new memory-mapped dataset with the schema of the first
            result; it holds no dataset until all rows are written. A tensor or collection with as many rows along `dim`
            as `data`, preferably memory-mapped: it is updated in place and returned. Entries of results that `out`
            lacks are ignored; entries that results lack do not change. `out=data` writes into the source. Tensors on a
            CUDA device are filled through page-locked memory while workers compute the next rows; rows that `on_error`
            skips become zeros. A collection in an HDF5 file or Zarr store raises.
        device: the device on which `fn` runs: `"cuda"`, `"cuda:1"`, or a list of devices that workers use in turn. Each
            spawned worker (two per device by default) has its own CUDA context and prefetches chunks to the device.
            Results are copied back to the CPU unless `out` is on a device. None and `"cpu"` do not move chunks.
        in_keys, out_keys: call `fn` with the entries `in_keys` of a chunk, and store its results as `out_keys`
            (default: `in_keys`); other entries stay. See `tdmap.functions.OnKeys`.
        with_indices: pass the row numbers as second argument, int64 `[rows]` (an int with `chunksize=0`).
        fn_kwargs: further keyword arguments of `fn`.
        shard: `(rank, world_size)`: process only the chunks of one rank; or `"auto"`: the rank of this program under
            torchrun or `torch.distributed`. Every rank makes the same call, at the same time or one after the other.
            With a path as `out`, all ranks fill one folder; each returns its own rows and keeps a log (`resume` is
            implied). The folder holds the dataset when the last rank is done (see `tdmap.merge_shards`). With a dataset
            as `out`, each rank writes its own rows, with `resume` also a log. Without `out`, it returns its own
            results. With a seed and the same `chunksize`, results have the same bits as without `shard`.
        index_with_generator: accepted for compatibility, without effect.
        undo: copy the rows of a chunk before a worker changes them in place, and restore them if the worker dies,
            raises or is interrupted. So a chunk is changed once or not at all. False makes no copy; the death of a
            worker then ends the job.
        **options: see `tdmap.MapOptions`. For `map`:

            - `chunksize=0` calls `fn` with single rows, without `dim`, and stacks the results; collections that differ
              only in shape become a lazy stack. Entries that are ragged in `data` stay ragged; for a new ragged entry,
              return a `Ragged` of one row.
            - `spill_dir`: with a path as `out`, the folder for temporary files of ragged results.
            - `resume` needs `out`: a path, a memory-mapped dataset, or `data` itself. It warns again about rows that an
              earlier call skipped. After a power loss during a run with `out=data`, it is unknown which rows reached
              the disk, and `resume=True` raises. `"trust"` uses the files as they are: pass it if the machine was shut
              down cleanly. `"redo"` runs every chunk again that may not have reached the disk: pass it if running `fn`
              twice on a row does no harm.
            - `on_error="skip"`: failing rows are zeros in a new result (None for objects), and keep their values in
              `out` and in place. `"drop"` leaves the rows out; shards are then written by way of one folder. A
              `tdmap.RowErrors()` collects the errors, and its `mask(n)` tells the rows apart;
              `tdmap.RowErrors(mode="drop")` collects and drops. Any function is called with `(error, (row, row + 1))`.
              If every row fails, the first exception is raised. Rows whose results do not fit the other results or
              `out` fail too, unless most rows do not fit.

    Returns:
        `out` if given; otherwise the results, concatenated along `dim` (stacked with `chunksize=0`). Results that are
        None are left out with a warning; if all are None, so is the return value, with a warning if no row has changed
        either. Results with more or fewer rows than their chunks are concatenated, with a warning that names
        `flat_map`. For data without rows, the result of `fn` for zero rows. With `shard` and a path, the rows of this
        rank; with `shard`, None for a rank without rows.

    Raises:
        IndexError: `dim` is out of range.
        ValueError: both `chunksize` and `num_chunks` are given, or an option is out of range.
        ValueError: a device does not exist, `out` is on two devices, or `device` is combined with an option about
            workers.
        OutputMismatch: a result does not fit `out`.
        FileExistsError: `out` is the path of a dataset, a file or a non-empty folder.
        FolderInUse: another call, in this or another process, is writing the folder; names it.
        UntrustedFile: the hidden folder of `out` holds a file that tdmap did not write, such as a link.
        ResumeMismatch: with `resume`, the log is of another function, source, chunk size or seed; names the difference.
        SerializationError: `fn` cannot be sent to workers.
        MemoryError: chunks are larger than the free memory of `device`; raised before any chunk runs.
        WorkerLost: workers died on the same chunk more than `retries` times.
        ChunkTimeout: a chunk exceeded `timeout` more than `retries` times.
        Exception: the exception of `fn`, with a note that names the rows. Rows that are already written remain.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(6)}, batch_size=[6])
        >>> map(data, lambda td: td.apply(lambda x: x * x), num_workers=2, chunksize=2)["x"]
        tensor([ 0,  1,  4,  9, 16, 25])
    """
    resume = ctx.resume
    if ctx.options.get("spill_dir") is not None and (shard is not None or ctx.output.store is None):
        raise ValueError(
            "spill_dir= is for ragged results in a folder: pass the path of a folder as out=, and no shard=."
        )
    given, shards = ctx.output.given, ctx.output.shards
    where, rank = DevicePlan.of(device, given), None if shard is None else rank_of(shard)
    if shards is not None and (dim or rank is not None or where.devices):
        what = "rows_per_shard=" if shards.rows_per_shard is not None else f"out={out!r}"
        raise ValueError(
            f"{what} writes shards along dimension 0, and cannot be combined with dim=, device= or shard=."
        )
    factor, min_chunks = where.chunks
    plan = ctx.plan(
        data,
        dim,
        given,
        factor,
        min_chunks,
        results_vary=rank is None and shards is None,  # ranks and shards are cut alike, and know no results
    )
    execution = where.execution(ctx.execution)
    where.check(data, given, execution, bool(resume))
    forms = forms_of(rows_of(data if given is None else given).like) if plan.unbind and not plan.dim else None
    fn = adapted(as_function(fn, in_keys, out_keys), plan, with_indices, fn_kwargs, forms)
    job = Job(
        Source(data),
        plan,
        where.function(fn, execution),
        replace(ctx.function, undo=bool(undo), in_place=True, needs_results=ctx.output.store is not None),
        on_row_error=ctx.on_row_error,
    )
    ctx = replace(ctx, execution=execution)
    if job.policy.skip == DROP and plan.length and given is None and out is not None:
        if rank is not None:
            raise ValueError(
                "on_error='drop' leaves rows out, and ranks must know where their rows are before they begin: pass "
                "on_error=tdmap.RowErrors(), and filter by its mask() afterwards."
            )
        return map_dropping(job, out, ctx)
    if shards is not None:
        return _to_shards(job, ctx)
    if ctx.output.store is not None:
        return _to_folder(job, ctx, rank)
    if given is not None:
        return _into_rows(job, ctx, where, rank)
    return _gathered(job, ctx, rank)


def _gathered(job: Job, ctx: Context, rank: Rank | None) -> Any:
    if ctx.resume:
        raise ValueError(
            "resume=True keeps its log in the output folder: pass the path of a folder as out=, or out=data to change "
            "the data in place."
        )
    if rank is not None:
        whole, job = job, by_ranks.part_of(job, rank)
        if job.plan.length == 0 < whole.plan.length:
            return None
    data = job.source.data
    if job.plan.length == 0:
        return result_of_no_rows(job.fn, data, job.plan)
    with placing(ctx.execution) as place:
        result = ctx.run(job, Gather(job.name, job.policy.skip == DROP, place))
    if result is None and (is_read_anew(data) or not rows_of(data).is_view):
        what = "PersistentTensorDict" if is_read_anew(data) else "sharded dataset, which is read-only"
        raise OutputMismatch(
            f"{job.name} returned None for every chunk. Changing a chunk in place has no effect on a {what}: "
            "return the chunk, and pass out=."
        )
    return result


def _to_folder(job: Job, ctx: Context, rank: Rank | None) -> Any:
    store = ctx.output.store
    assert store is not None
    if rank is not None:
        if ctx.options.get("overwrite"):
            raise ValueError(
                "overwrite=True replaces the folder when one call is done, and ranks fill it together: remove it "
                "before they begin."
            )
        return by_ranks.map_to_folder(job, store.path, rank, ctx.resume or True, ctx.execution)

    def work() -> Data:
        return fill_folder(job, store, ctx.execution, ctx.log, ctx.options.get("spill_dir"))

    return resumable_call(ctx, lambda: identify(job, MAP), work, job)


def _to_shards(job: Job, ctx: Context) -> Data:
    assert ctx.output.shards is not None
    spill_dir = ctx.options.get("spill_dir")
    return ctx.output.shards.map(job, bool(ctx.resume), None if spill_dir is None else os.fspath(spill_dir))


def _into_rows(job: Job, ctx: Context, where: DevicePlan, rank: Rank | None) -> Any:
    """Write into a given dataset, in memory, in files or on a device, or into the source itself."""
    out, execution, resume = ctx.output.given, ctx.execution, ctx.resume
    in_place = out is job.source.data
    if job.policy.skip == DROP:
        raise ValueError(
            "on_error='drop' leaves rows out, and out has a place for every row: pass on_error=tdmap.RowErrors() and "
            "use its mask(), or out='folder', or out=None."
        )
    check_rows(out, job.plan, job.source.data.shape)
    if job.plan.length == 0:
        return out
    if resume:
        if in_place and execution.is_foreign:
            raise ValueError("resume=True with out=data needs workers of tdmap: use num_workers= or a WorkerPool.")
        if rank is not None:
            return by_ranks.map_into(job, out, rank, resume, execution)
        return map_into(job, out, execution, resume)
    log = None if rank is None else KnownChunks(elsewhere=rank.elsewhere(job.plan))
    with placing(execution) if object_paths(out) else contextlib.nullcontext() as place:
        if in_place:
            return execution.run(job, InPlace(out, None, place), log)
        sink = Preallocated(out, None, place)
        if where.out_device is None:
            return execution.run(job, sink, log)
        return _onto_device(job, ctx, where.out_device, sink if where.stays(execution) else None, log)


def _onto_device(
    job: Job, ctx: Context, device: torch.device, sink: Preallocated | None, log: KnownChunks | None
) -> Any:
    """Rows of `device`, which workers write through `sink`.

    Without a sink, and where workers cannot open memory that they were lent, results come to this process and go on
    from here.
    """
    if sink is not None:
        try:
            with _lending(device):
                return ctx.execution.run(job, sink, log)
        except NotLent as error:
            if not isinstance(job.fn, OnDevice):
                raise
            cannot_lend(device)
            if error.begun:  # a function that changes its rows in place must not meet them twice
                add_note(error, "other workers had run some chunks: call it again, and results will go another way")
                raise
            warn_user(
                f"worker processes cannot open memory of {device} that this one lends ({error.__cause__}): "
                "results come back to this process and go there by its own copies, which is slower.",
                RuntimeWarning,
            )
        job = job.again(job.fn.coming_back())
    with DeviceBuffer(ctx.output.given, links.open_link(device)) as buffer:
        return ctx.execution.run(job, buffer, log)


@contextlib.contextmanager
def _lending(device: torch.device) -> Iterator[None]:
    """Around a job whose workers write into memory of `device` themselves."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.current_stream(device).synchronize()  # what the caller does to `out` comes before what workers do
    try:
        yield
    finally:
        torch.cuda.ipc_collect()
