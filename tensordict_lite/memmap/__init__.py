"""Tensors and collections in files: memory maps, the directory format, safe loading, growing datasets.

===============  ====================================================================================
``tensor.py``    :class:`MemoryMappedTensor`, over ``disk/mapping.py`` (files and shared memory as storages)
``disk/``        files without collections: mappings, locks, staging, and ``format.py``, the directory format as data
``plan.py``      what a collection becomes on disk; ``kinds.py`` for every class but the dense ones
``save.py``      writing a plan into the folder of ``disk/staging.py``, and mapping the result
``load.py``      opening a folder
``grow.py``      new entries in a mapped collection
``writer.py``    :class:`DatasetWriter`: rows appended by one or many processes
``checksum.py``  checksums of files, stored and verified
``archive/``     the same files in one zip archive
===============  ====================================================================================
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from tensordict_lite.memmap import kinds as _kinds
from tensordict_lite.memmap.api import load, load_memmap, save
from tensordict_lite.memmap.disk import passing as _passing
from tensordict_lite.memmap.disk.mapping import Region, SharedHandle, region_of
from tensordict_lite.memmap.save import TensorDictFuture
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.memmap.writer import DatasetWriter

__all__ = [
    "DatasetWriter",
    "MemoryMappedTensor",
    "Region",
    "SharedHandle",
    "TensorDictFuture",
    "load",
    "load_memmap",
    "region_of",
    "save",
]


_kinds.register_all()
_passing.register()


class _Package(types.ModuleType):
    """This package is also the function ``memmap(data, prefix, ...)`` of the public interface."""

    def __call__(self, data: Any, prefix: str | os.PathLike[str] | None = None, *args: Any, **kwargs: Any) -> Any:
        """``data.memmap(prefix, ...)``, see :meth:`TensorDict.memmap`."""
        return data.memmap(prefix, *args, **kwargs)


sys.modules[__name__].__class__ = _Package
