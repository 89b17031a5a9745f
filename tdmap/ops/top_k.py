"""`top_k`: the rows with the largest values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tdmap.data.entries import require_entry
from tdmap.data.kinds import Data
from tdmap.execution import Execution
from tdmap.ops.reduce import reduce
from tdmap.output.output import Output
from tdmap.output.permute import permute
from tdmap.reducers import TopK
from tdmap.reducers.base import Key
from tdmap.run.call import options_of, run_call
from tdmap.run.operation import operation

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions


@operation
def top_k(
    data: Data,
    key: Key,
    k: int,
    out: Data | str | os.PathLike[str] | None = None,
    *,
    largest: bool = True,
    overwrite: bool = False,
    rows_per_shard: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> Data:
    """The rows with the `k` largest values of an entry, largest first; ties go to the earlier row.

    Args:
        data: a collection, with rows in dimension 0.
        key: an entry with one value a row: numbers, of which NaN rank last, or strings.
        k: how many rows; all of them where there are fewer.
        out: None for new shared memory; a folder for a new memory-mapped dataset; or a dataset with room for the rows.
        largest: False: the smallest values, smallest first.
        overwrite: replace the dataset in the folder `out`, if there is one.
        rows_per_shard, storage_options: as `tdmap.map`, for an `out` of several folders or a URL. The rows are made
            in one folder first, in `out/.tdmap` or among the temporary files, and copied; `resume` covers both.
        resume: keep what is done in a hidden folder of `out`, a path, so that the same call goes on after any
            interruption, `kill -9` of every process included, and the result has the same bits.
        options: as `tdmap.map`.

    Raises:
        KeyError: there is no such entry.
        ValueError: `k` is less than 1, or a row has several values.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.tensor([3, 9, 5]), "id": torch.arange(3)}, [3])
        >>> top_k(data, "x", 2, num_workers=0)["id"]
        tensor([1, 2])
    """
    require_entry(data, key, "the entry of top_k")
    execution = Execution.of(**options)
    output = Output(out, data, execution, overwrite, rows_per_shard, storage_options)

    def work() -> Data:
        best = reduce(data.select(key), TopK(key, k, largest), **options)["row"]
        return permute(data, best, output, execution)

    return run_call("top_k", data, lambda: options_of(key=key, k=k, largest=largest), output, resume, work)
