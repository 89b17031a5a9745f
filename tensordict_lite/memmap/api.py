"""Saving and loading as functions, next to the methods of the same names."""

from __future__ import annotations

import os
from typing import Any

from tensordict_lite.base import TensorCollection
from tensordict_lite.memmap.load import load_collection

__all__ = ["load", "load_memmap", "save"]


def load_memmap(
    prefix: str | os.PathLike[str],
    device: Any = None,
    non_blocking: bool = False,
    *,
    out: Any = None,
    robust_key: bool | None = True,
    subpath: Any = None,
    mode: str | None = None,
    num_threads: int = 0,
    allow_pickle: bool | None = None,
) -> Any:
    """Opens a saved dataset; the arguments are those of :meth:`TensorDict.load_memmap`.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict
        >>> from tensordict_lite.memmap import load_memmap
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = TensorDict({"nested": {"e": torch.zeros(2)}}, [2]).memmap(folder.name)
        >>> load_memmap(folder.name)["nested", "e"]
        MemoryMappedTensor([0., 0.])
    """
    return load_collection(
        prefix,
        device,
        non_blocking,
        out=out,
        robust_key=robust_key,
        subpath=subpath,
        mode=mode,
        num_threads=num_threads,
        allow_pickle=allow_pickle,
    )


def load(prefix: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
    """:func:`load_memmap`. Same arguments."""
    return load_memmap(prefix, *args, **kwargs)


def save(data: TensorCollection, prefix: str | os.PathLike[str] | None = None, *args: Any, **kwargs: Any) -> Any:
    """``data.save(prefix, ...)``, see :meth:`TensorDict.save`."""
    return data.save(prefix, *args, **kwargs)
