"""Saving and loading as functions, next to the methods of the same names."""

from __future__ import annotations

import os
from typing import Any

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import DatasetNotFoundError
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.memmap.disk.format import META
from tensordict_lite.memmap.load import load_collection
from tensordict_lite.memmap.writer import DatasetWriter


def append_memmap(prefix: str | os.PathLike[str], rows: TensorCollection) -> None:
    """Append rows to a saved dataset; :class:`DatasetWriter` appends many times without reopening it.

    Args:
        prefix: folder of the dataset.
        rows: rows with the keys, dtypes and shapes of the dataset.

    Raises:
        DatasetNotFoundError: there is no dataset in the folder.
        ValueError: keys, shapes or dtypes differ, ``rows`` is a single row, or ``prefix`` is not a folder.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict, append_memmap, load_memmap
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict(a=torch.arange(2), batch_size=[2]).memmap(folder.name)
        >>> append_memmap(folder.name, TensorDict(a=torch.arange(3), batch_size=[3]))
        >>> load_memmap(folder.name)["a"].tolist()
        [0, 1, 0, 1, 2]
    """
    call = f"append_memmap({os.fspath(prefix)!r})"
    if not os.path.isdir(prefix):
        raise ValueError(f"{call} takes the folder of a dataset; unpack_memmap() makes one of an archive")
    if not os.path.exists(os.path.join(prefix, META)):
        raise DatasetNotFoundError(prefix, "there is no dataset to append rows to: save() writes the first ones")
    if not isinstance(rows, TensorCollection):
        raise TypeError(f"{call} takes a collection of rows, got {rows!r}")
    if not rows.batch_dims:
        raise ValueError(f"{call} takes a batch of rows, got a single one: pass rows.unsqueeze(0)")
    with DatasetWriter(prefix) as writer:
        writer.append(rows)


def load_memmap(
    prefix: str | os.PathLike[str],
    device: DeviceLike | None = None,
    non_blocking: bool = False,
    *,
    out: Any = None,
    robust_key: bool | None = True,
    subpath: Any = None,
    mode: str | None = None,
    num_threads: int = 0,
    allow_pickle: bool | None = None,
) -> Any:
    """Open a saved dataset; the arguments are those of :meth:`TensorDict.load_memmap`.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite.memmap import load_memmap
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict({"nested": {"e": torch.zeros(2)}}, [2]).memmap(folder.name)
        >>> load_memmap(folder.name)["nested", "e"]
        MemoryMappedTensor([0., 0.])
    """
    return load_collection(**locals())


def load(prefix: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
    """:func:`load_memmap`. Same arguments."""
    return load_memmap(prefix, *args, **kwargs)


def save(data: TensorCollection, prefix: str | os.PathLike[str] | None = None, *args: Any, **kwargs: Any) -> Any:
    """``data.save(prefix, ...)``, see :meth:`TensorDict.save`."""
    return data.save(prefix, *args, **kwargs)
