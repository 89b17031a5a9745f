"""Large arrays and tensors that a function holds: sent through shared memory, and each worker's own."""

import concurrent.futures
import gc
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tests.descriptors import descriptors

COUNT = 5 << 18  # of 8 bytes: larger than what is copied by its receiver


def record_array() -> np.ndarray:
    made = np.zeros(COUNT, dtype=[("a", "i4"), ("b", "f8")])
    made["a"] = np.arange(COUNT)
    return made


def read_only() -> np.ndarray:
    made = np.arange(COUNT)
    made.flags.writeable = False
    return made


HELD: dict[str, Callable[[], Any]] = {
    "array": lambda: np.arange(COUNT),
    "small array": lambda: np.arange(100_000),
    "tiny array": lambda: np.arange(10),
    "empty array": lambda: np.zeros((0, 5)),
    "columns first": lambda: np.asfortranarray(np.arange(COUNT).reshape(1024, -1)),
    "strided": lambda: np.arange(2 * COUNT).reshape(-1, 64)[:, ::2],
    "read-only": read_only,
    "records": record_array,
    "times": lambda: np.arange(COUNT).astype("M8[s]"),
    "texts": lambda: np.arange(COUNT // 4).astype("U8"),
    "objects": lambda: np.array([1, "two", None], dtype=object),
    "tensor": lambda: torch.arange(COUNT),
    "small tensor": lambda: torch.arange(100_000),
    "transposed tensor": lambda: torch.arange(COUNT).view(1024, -1).t(),
    "parameter": lambda: torch.nn.Parameter(torch.arange(COUNT).float()),
    "bytearray": lambda: bytearray(COUNT),
}

POOLS: dict[str, dict[str, Any]] = {
    "serial": {"num_workers": 0},
    "threads": {"num_workers": 2, "executor": "thread"},
    "fork": {"num_workers": 2, "mp_start_method": "fork"},
    "forkserver": {"num_workers": 2, "mp_start_method": "forkserver"},
    "foreign": {},
}


@pytest.fixture(scope="module", params=POOLS)
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param != "foreign":
        yield POOLS[request.param]
        return
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        yield {"pool": pool}


def described(value: Any) -> tuple[Any, ...]:
    """What a function sees of what it holds."""
    if isinstance(value, np.ndarray):
        by_columns = value.flags.f_contiguous and not value.flags.c_contiguous
        return str(value.dtype), value.shape, by_columns, value.flags.writeable, str(value.ravel()[-3:])
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.dtype, tuple(value.shape), str(value.detach().flatten()[-3:])
    return type(value).__name__, len(value), bytes(value[-3:])


@pytest.mark.parametrize("held", HELD)
def test_workers_get_what_the_function_holds(held: str, options: dict[str, Any]) -> None:
    value = HELD[held]()
    found = list(tdmap.map_iter(torch.arange(4), lambda chunk: described(value), chunksize=1, **options))
    assert set(found) == {described(value)}


def bytes_in(value: Any) -> Any:
    """The memory of a value, to read and to write."""
    if isinstance(value, np.ndarray):
        value = value.reshape(-1, order="A")
    return memoryview(value.numpy() if isinstance(value, torch.Tensor) else value).cast("B")


CHANGED = ["array", "small array", "tiny array", "columns first", "tensor", "bytearray"]


@pytest.mark.parametrize("held", CHANGED)
def test_what_was_changed_between_two_calls_arrives_changed(held: str, options: dict[str, Any]) -> None:
    value = HELD[held]()

    for number in (1, 2, 2, 1):
        bytes_in(value)[-1] = number
        seen = list(tdmap.map_iter(torch.arange(4), lambda chunk: bytes_in(value)[-1], chunksize=1, **options))
        assert seen == [number] * 4


@pytest.mark.parametrize("held", CHANGED)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_what_a_worker_writes_into_it_is_there_until_the_job_ends_and_nowhere_else(held: str, method: str) -> None:
    value = HELD[held]()
    bytes_in(value)[0] = 0

    def count(chunk: torch.Tensor) -> int:
        bytes_in(value)[0] += 1
        return int(bytes_in(value)[0])

    for _ in range(2):
        found = list(tdmap.map_iter(torch.arange(6), count, chunksize=1, num_workers=1, mp_start_method=method))
        assert found == [1, 2, 3, 4, 5, 6]
    assert bytes_in(value)[0] == 0


SHARED: dict[str, Callable[[], Any]] = {
    "array": lambda: np.ones((1024, 8192)),
    "columns first": lambda: np.ones((1024, 8192), order="F"),
    "records": lambda: np.ones(4 << 20, dtype=[("a", "i8"), ("b", "f8")])["a"].base,
    "tensor": lambda: torch.ones(8 << 20, dtype=torch.float64),
}


@pytest.mark.parametrize("held", SHARED)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_share_the_pages_that_they_only_read_and_they_go_with_the_job(held: str, method: str) -> None:
    value = SHARED[held]()

    def read(chunk: torch.Tensor) -> torch.Tensor:
        return chunk + float((value["a"] if held == "records" else value).sum())

    with tdmap.WorkerPool(2, method) as pool:
        data = torch.arange(4.0)
        tdmap.map(data, lambda chunk: chunk + 1, chunksize=1, pool=pool)
        gc.collect()
        before = descriptors()
        assert tdmap.map(data, read, chunksize=1, pool=pool)[0] in (4 << 20, 8 << 20)
        assert max(pool.stats()["memory"].values()) < 32 << 20  # of 64 MiB
        gc.collect()
        assert not descriptors() - before
