"""Files that are read through mappings, and may have been cut by somebody else since they were opened.

To read a mapped page beyond the end of its file ends the process with SIGBUS. A worker that ends so is replaced, and
the new one finds the file too short: an error. In the caller, sizes are looked at before rows are read outside of
chunks; for chunks see `cuts`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from torch import Tensor

from tdmap.memory.regions import region_of
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.placed import inodes_of_mappings


class MappedFiles:
    """The files that some tensors lie in.

    Args:
        tensors: any tensors; those in memory do not matter.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._files: dict[str, tuple[int, int]] = {}
        for tensor in tensors:
            region = region_of(tensor)
            if region is not None and not region.handle.anonymous:
                found = region.handle.nbytes, tensor.untyped_storage().data_ptr()
                self._files[region.handle.path] = max(found, self._files.get(region.handle.path, found))

    def check(self) -> None:
        """Raise DatasetError, with its name, when a file has become shorter than what is mapped of it."""
        for path, (nbytes, address) in self._files.items():
            try:
                info = os.stat(path)
            except OSError:  # removed, or its folder: the mapping keeps the bytes
                continue
            # A shorter file that has taken the name of the mapped one does no harm.
            if info.st_size < nbytes and inodes_of_mappings().get(address, info.st_ino) == info.st_ino:
                raise DatasetError(
                    path,
                    f"{nbytes:,} bytes are mapped and the file has {info.st_size:,}: somebody has cut it since it was "
                    "opened. Load the dataset again",
                )
