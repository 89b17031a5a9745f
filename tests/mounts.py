"""File systems of their own, and a user who owns nothing: what only root can give a test."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import in_child

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems and changes its user")


@contextlib.contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    """What `mount` mounts there with these arguments, as long as the block runs."""
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *arguments, str(folder)], capture_output=True).returncode:
        pytest.skip("cannot mount here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def as_nobody(work: Callable[[], Any]) -> None:
    """Run it in a child that has no rights of root's."""

    def without_rights() -> None:
        os.setgid(65534)
        os.setuid(65534)
        work()

    assert in_child(without_rights) == 0
