"""`sort`: a dataset in the order of its keys."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdmap.bykey.index import sorted_rows
from tdmap.bykey.keys import KeyLike, KeySpec
from tdmap.bykey.prepare import prepare, require_rows
from tdmap.data.kinds import Data
from tdmap.data.store import destination
from tdmap.execution import Execution
from tdmap.memory.spill import Spill
from tdmap.operation import operation
from tdmap.operations.arguments import policy_for
from tdmap.operations.output import Output, spill_folder
from tdmap.operations.permute import permute
from tdmap.resume.inshards import or_in_shards

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tdmap.execution import WorkerOptions


@operation
@or_in_shards
def sort(
    data: Data,
    key: KeyLike,
    out: Data | str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    rows_per_shard: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    descending: bool | Sequence[bool] = False,
    chunksize: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    retries: int = 2,
    timeout: float | None = None,
    **options: Unpack[WorkerOptions],
) -> Data:
    """The rows of a dataset in the order of their keys; rows with equal keys keep their order.

    Keys are cut into ranges, each of which is sorted by itself; then the rows are brought into their order, with
    sequential passes over the disk where they are small and do not fit into memory (`tdmap.operations.permute`).

    Args:
        data: a tensor or a collection, with rows in dimension 0.
        key: an entry, a nested entry (a tuple of strings), a list of entries (the first one counts most), or a
            function of a chunk that returns one value a row; of the kinds that `tdmap.group_by` takes. NaN is larger
            than every number, as for `torch.sort`.
        out: None for new shared memory; a folder for a new memory-mapped dataset; or a dataset with room for the rows.
        overwrite: replace the dataset in the folder `out`, if there is one: it stays until the new one is whole.
        rows_per_shard, storage_options: as `tdmap.map`, for an `out` of several folders or a URL. The rows are made
            in one folder first, beside `out` or among the temporary files.
        descending: from large to small; for several keys also one bool each. Rows with equal keys keep their order
            then, too.
        chunksize: rows whose keys are read at a time. Default: some hundred thousand.
        spill_dir: folder for intermediate files, 24 bytes a row or more. Default: the temporary folder.
        retries, timeout, options: as `tdmap.map`.

    Returns:
        `out`, cut to the number of rows; the dataset loaded from the folder; or a new one. The same bits for any
        number of workers.

    Raises:
        KeyError: there is no such entry; names those that there are.
        TypeError, ValueError: an entry that cannot be a key, or an option out of range.
        OutputMismatch: `out` is too small or has other shapes or dtypes.
        Exception: as `tdmap.map`.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"age": torch.tensor([3, 1, 2]), "name": torch.tensor([30, 10, 20])}, [3])
        >>> sort(data, "age", num_workers=0)["name"], sort(data, "age", descending=True, num_workers=0)["name"]
        (tensor([10, 20, 30]), tensor([30, 20, 10]))
    """
    spec = KeySpec.of(key, "sort")
    execution = Execution.of(**options)
    policy = policy_for(None, None, retries, timeout, undo=False)
    require_rows(data, "sort")
    output, directions = Output(destination(out, overwrite), data), _directions(descending, spec)
    output.refuse_hidden_key(data)
    with output.claimed("sort"):
        keyed = prepare(data, spec, "sort", execution, dropna=False, descending=directions)
        with Spill(spill_folder(Output(None, data), spill_dir)) as spill:
            index = sorted_rows(keyed, spill, execution, policy, chunksize=chunksize, with_words=False)
            return permute(data, index.rows, output, execution, spill_dir=spill_dir)


def _directions(descending: bool | Sequence[bool], spec: KeySpec) -> tuple[bool, ...]:
    count = len(spec.names)
    if isinstance(descending, bool):
        return (descending,) * count
    if isinstance(descending, Sequence) and len(descending) == count and all(isinstance(d, bool) for d in descending):
        return tuple(descending)
    raise ValueError(f"descending must be a bool, or one for each of {count} keys: got {descending!r}.")
