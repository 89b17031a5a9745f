"""What every test area shares: quiet threads, a GPU gate, and a fixed seed."""

import gc
import multiprocessing
import sys
from collections.abc import Iterator
from multiprocessing.pool import Pool
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import interpreters, processes, products

# The same examples every time, however long one of them takes on a busy machine: a change that breaks nothing is never
# refused. `make soak` draws others.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# The suite runs on a few cores with several pytest workers; one torch thread each keeps timings and order sane.
torch.set_num_threads(1)

gc.disable()  # until all tests are known: none of them is garbage, and each collection would walk over all


def pytest_configure(config: pytest.Config) -> None:
    products.with_soak = config.getoption("markexpr") != "not soak"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests and groups first, so that no worker waits at the end; skip ``gpu`` ones without a CUDA device."""
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("slow", "xdist_group"))))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave torch and thousands of tests out of every later collection of garbage: each would walk over all of them."""
    gc.collect()
    gc.freeze()
    gc.enable()
    if len(session.items) > 1000 and sys.platform == "linux":
        processes.collapse_memory()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests by the file, unless they name a group: xdist's work for each unit grows with their number."""
    from xdist.scheduler import LoadGroupScheduling

    gc.enable()  # this process collects no tests

    class LoadFileOrGroup(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).split("::")[0]

    return LoadFileOrGroup(config, log)


@pytest.fixture(scope="module", autouse=True)
def _leave_out_what_came_before() -> None:
    """Collections of garbage in this module walk over what it makes, and forks of it copy no more than that."""
    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _end_workers_at_the_end() -> Iterator[None]:
    """No process is left behind: pools stay warm between tests, and end with the session."""
    yield
    if "tdmap" in sys.modules:  # many areas never import the engine
        sys.modules["tdmap"].close_pools()
    interpreters.close()


@pytest.fixture(scope="session")
def spawned() -> Iterator[Pool]:
    """A pool of the standard library whose one process inherits nothing of this one."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """Random inputs in a test are the same in every run and under any pytest worker.

    Without a device, `torch.manual_seed` would note each call, with its formatted stack, for devices that never come:
    half of the time of small tests.
    """
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
