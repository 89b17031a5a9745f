"""`unique` and `value_counts`: the different keys of a dataset of any size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdmap.data.kinds import Data
from tdmap.execution import Execution
from tdmap.keys.keys import KeyLike, KeySpec
from tdmap.ops.group_by import group_by
from tdmap.output.output import Output
from tdmap.output.permute import deliver
from tdmap.reducers import Count
from tdmap.run.call import options_of, run_call
from tdmap.run.operation import operation

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions


@operation
def unique(
    data: Data,
    key: KeyLike,
    out: Data | str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    rows_per_shard: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    dropna: bool = False,
    **options: Unpack[WorkerOptions],
) -> Data:
    """The different keys of a dataset, sorted.

    Args:
        data: a tensor or a collection, with rows in dimension 0.
        key: an entry, a nested entry, a list of entries, or a function of a chunk, as `tdmap.group_by` takes.
        out: None for new shared memory; a folder for a new memory-mapped dataset; or a dataset with room for the keys.
        overwrite: replace the dataset in the folder `out`, if there is one.
        rows_per_shard, storage_options: as `tdmap.map`, for an `out` of several folders or a URL. The rows are made
            in one folder first, in `out/.tdmap` or among the temporary files, and copied; `resume` covers both.
        resume: keep what is done in a hidden folder of `out`, a path, so that the same call goes on after any
            interruption, `kill -9` of every process included, and the result has the same bits.
        dropna: leave out keys with a NaN. Otherwise NaN is one key, the last one.
        options: as `tdmap.map`.

    Returns:
        A TensorDict with the key columns (a function's is called `"key"`), of batch size `[keys]`.

    Raises:
        KeyError, TypeError: there is no such entry, or it cannot be a key.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"shop": torch.tensor([7, 3, 7])}, [3])
        >>> unique(data, "shop", num_workers=0)["shop"]
        tensor([3, 7])
    """
    output = Output(out, data, Execution.of(**options), overwrite, rows_per_shard, storage_options)
    spec = KeySpec.of(key, "unique")

    def work() -> Data:
        found = group_by(data, key, dropna=dropna).reduce({_COUNT: Count()}, **options)
        return deliver(found.exclude(_COUNT), output)

    def parts() -> dict[str, str]:
        return spec.identity_parts() | options_of(dropna=dropna)

    return run_call("unique", data, parts, output, resume, work)


@operation
def value_counts(
    data: Data,
    key: KeyLike,
    out: Data | str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    rows_per_shard: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    dropna: bool = False,
    sort: bool = True,
    name: str = "count",
    **options: Unpack[WorkerOptions],
) -> Data:
    """How often each key occurs.

    Args:
        data, key, out, overwrite, resume, dropna, options: as `unique`.
        sort: the most frequent first, those that are as frequent by key; False: all by key.
        name: of the entry with the counts.

    Returns:
        A TensorDict with the key columns and the counts (int64), of batch size `[keys]`.

    Raises:
        KeyError, TypeError: there is no such entry, or it cannot be a key.
        ValueError: a key has the name of the counts.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"shop": torch.tensor([3, 7, 7])}, [3])
        >>> counts = value_counts(data, "shop", num_workers=0)
        >>> counts["shop"], counts["count"]
        (tensor([7, 3]), tensor([2, 1]))
    """
    output = Output(out, data, Execution.of(**options), overwrite, rows_per_shard, storage_options)
    spec = KeySpec.of(key, "value_counts")

    def work() -> Data:
        found = group_by(data, key, dropna=dropna).reduce({name: Count()}, **options)
        if sort:
            counts: Tensor = found[name]
            found = found[torch.argsort(counts, descending=True, stable=True)]
        return deliver(found, output)

    def parts() -> dict[str, str]:
        return spec.identity_parts() | options_of(dropna=dropna, sort=sort, name=name)

    return run_call("value_counts", data, parts, output, resume, work)


_COUNT = "__count__"
