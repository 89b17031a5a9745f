"""A real Ray cluster of two nodes on this machine, for the tests of this folder."""

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

_kept: list[Any] = []


@contextlib.contextmanager
def _keep_exit_handlers() -> Iterator[None]:
    """Keep those of Ray, which hold the nodes of a cluster that has ended.

    A child that `multiprocessing` forks drops all handlers, since Python 3.13. The client of a node that ends there
    crashes the child, or waits for threads that are not there.
    """

    def register(handler: Any, *arguments: Any, **options: Any) -> Any:
        _kept.append((handler, arguments, options))
        return before(handler, *arguments, **options)

    before, atexit.register = atexit.register, register
    try:
        yield
    finally:
        atexit.register = before


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The cluster, with this process connected to it; every process of it is ended afterwards.

    So is the handler of SIGTERM that Ray leaves behind: a fork that inherits it may not end when it is asked to.
    """
    pytest.importorskip("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="tdr-")  # short: it holds sockets, whose names may not be long
    # Ray notes the cluster's address in its usual folder, which it does not make, wherever the cluster's own one is.
    os.makedirs(os.path.join(tempfile.gettempdir(), "ray"), exist_ok=True)
    small = {"object_store_memory": 100 << 20, "include_dashboard": False}
    made, handler = None, signal.getsignal(signal.SIGTERM)
    try:
        with _keep_exit_handlers():
            head = {"num_cpus": 2, "resources": {"mortal": 1}, "temp_dir": folder, **small}
            made = Cluster(initialize_head=True, head_node_args=head)
            made.add_node(num_cpus=2, **small)
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
    finally:
        import tdmap

        tdmap.close_pools()
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)
        if made is not None:
            made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
