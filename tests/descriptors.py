"""Which open files of this process are those of a test: counts of all descriptors change with what others let go."""

import os
from pathlib import Path

import pytest


def descriptors(prefix: str | Path = "/memfd:") -> set[tuple[int, int, int]]:
    """Descriptor, device and inode of each open file whose name begins with ``prefix``.

    Other tests of one process share its table of descriptors, and what they held is closed whenever garbage is
    collected, or by threads of warm pools.

    Args:
        prefix: a folder, or ``"/memfd:"`` for memory without a file.
    """
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list the descriptors of a process")
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}").startswith(os.fspath(prefix)):
                status = os.fstat(int(number))
                found.add((int(number), status.st_dev, status.st_ino))
        except OSError:  # closed since, as is the descriptor of the listing
            pass
    return found
