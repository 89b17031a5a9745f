"""A lock of a dataset's folder that another program holds: an error that names it, and no wait without end."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import DatasetWriter, TensorDict
from tensordict_lite.memmap import tuning

READER = 65534
"""A user who owns nothing here."""

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@contextlib.contextmanager
def locked(folder: Path, user: int | None = None) -> Iterator[int]:
    """A process that holds the lock of a folder."""
    begun, told = os.pipe()
    pid = os.fork()
    if not pid:
        fd = os.open(folder, os.O_RDONLY)
        if user is not None:
            os.setuid(user)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(told, b".")
        os.read(os.pipe()[0], 1)  # until it is killed
        os._exit(0)
    try:
        os.read(begun, 1)
        yield pid
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(begun)
        os.close(told)


def append(folder: Path) -> None:
    writer = DatasetWriter(folder)
    writer.append(TensorDict({"x": torch.tensor(1)}))
    writer.close()


CALLS: dict[str, Callable[[Path], Any]] = {
    "memmap": lambda folder: TensorDict({"x": torch.zeros(10)}, [10]).memmap(folder),
    "make_memmap": lambda folder: TensorDict.load_memmap(folder).make_memmap("y", shape=(1,), dtype=torch.int64),
    "append": append,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = DatasetWriter(tmp_path / "data", TensorDict({"x": torch.tensor(0)}))
    writer.append(TensorDict({"x": torch.tensor(1)}))
    writer.close()
    return tmp_path / "data"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("user", [None, pytest.param(READER, marks=AS_ROOT)])
def test_a_lock_that_is_not_given_back_is_an_error_that_names_the_process(
    folder: Path, name: str, user: int | None
) -> None:
    # A process that may write there is waited for, within reason.
    with locked(folder, user) as pid, tuning.use(**({"lock_seconds": 0.1} if user is None else {})):
        with pytest.raises(TimeoutError, match=f"locked.* by process {pid}") as caught:
            CALLS[name](folder)
        assert caught.value.filename == str(folder)
        assert TensorDict.load_memmap(folder)["x"].tolist() == [1]
    CALLS[name](folder)
