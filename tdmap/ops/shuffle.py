"""`shuffle`: a whole dataset in a uniformly random order, which the seed decides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tdmap.data.kinds import Data, instead_of_data, is_data
from tdmap.execution import Execution, WorkerOptions
from tdmap.memory.shm import Arena
from tdmap.output.output import Output, travels
from tdmap.output.permute import permute_known
from tdmap.run.call import options_of, run_call
from tdmap.run.operation import operation
from tdmap.runtime.commits import decide
from tdmap.seeding import checked_seed, permutation, seed_or_drawn

if TYPE_CHECKING:
    from typing import Unpack

INLINE_ROWS = 1 << 16
"""An order of more rows than these is drawn into shared memory."""


@operation
def shuffle(
    data: Data,
    seed: int | None = None,
    out: Data | str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    rows_per_shard: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    method: str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    **options: Unpack[WorkerOptions],
) -> Data:
    """Write the rows of a dataset in a random order.

    Every order is equally likely, over the whole dataset, and it depends on the number of rows and the seed alone: it
    is `torch.randperm` with a CPU generator of that seed, which `map_iter(shuffle=True, seed=seed)` draws as well. So
    reading the result in its own order gives the epoch that shuffled reading gives, without random reads.

    Args:
        data: a tensor or a collection, with rows in dimension 0. It is not changed.
        seed: decides the order. None draws one from torch's global random stream, as `torch.randperm` does.
        out: None for new shared memory; a folder for a new memory-mapped dataset; or a dataset with room for the rows,
            which must not share memory with the data.
        overwrite: replace the dataset in the folder `out`, if there is one: it stays until the new one is whole.
        rows_per_shard, storage_options: as `tdmap.map`, for an `out` of several folders or a URL. The rows are made
            in one folder first, in `out/.tdmap` or among the temporary files, and copied; `resume` covers both.
        resume: keep what is done in a hidden folder of `out`, a path, so that the same call goes on after any
            interruption, `kill -9` of every process included, and the result has the same bits.
        method, spill_dir: how rows that do not fit into memory are brought to their places; as
            `tdmap.output.permute.permute`.
        **options: about workers, as `tdmap.map`.

    Returns:
        `out`, cut to as many rows as there are; the dataset loaded from the folder; or a new one. Zero rows give zero
        rows.

    Raises:
        ValueError: `out` is, or shares memory with, the data.
        OutputMismatch: `out` is too small, or has other shapes or dtypes.
        OSError: there is no room. The order takes 8 bytes a row of memory, the result as much as the data, and the
            way over the disk 8 bytes a row meanwhile; with `resume=True` or Ray as much again as the result.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(5)}, [5])
        >>> mixed = shuffle(data, seed=1, num_workers=2)
        >>> mixed["x"].tolist() == torch.randperm(5, generator=torch.Generator().manual_seed(1)).tolist()
        True
    """
    if not is_data(data) or not len(data.shape):
        found = f"one of shape {tuple(data.shape)}." if is_data(data) else instead_of_data(data)
        raise TypeError(f"shuffle needs a tensor or a collection of tensors with its rows in dimension 0: got {found}")
    seed = checked_seed(seed)
    execution, rows = Execution.of(**options), int(data.shape[0])
    # Drawn where workers can read it: a second copy of 8 bytes a row would be a lot.
    place = Arena().empty(torch.int64, torch.Size([rows])) if travels(execution) and rows > INLINE_ROWS else None
    output = Output(out, data, execution, overwrite, rows_per_shard, storage_options)
    output.refuse_hidden_key(data)

    def work() -> Data:
        known = decide("seed", lambda: seed_or_drawn(seed))
        return permute_known(data, permutation(rows, known, place), output, execution, method, spill_dir)

    return run_call("shuffle", data, lambda: options_of(seed=seed), output, resume, work)
