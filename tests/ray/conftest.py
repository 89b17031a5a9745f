"""A real Ray cluster of two nodes on this machine, for the tests of this folder."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

# Ray's atexit handlers hold the nodes of a cluster that has ended. `multiprocessing` of Python 3.13 clears them
# in a forked child; a node whose last reference is dropped there ends its gRPC client, which crashes the child.
_ended_nodes: list[Any] = []


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
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "temp_dir": folder, **small})
        made.add_node(num_cpus=2, **small)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        import tdmap

        tdmap.close_pools()
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)
        if made is not None:
            _ended_nodes.extend(made.list_all_nodes())
            made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
