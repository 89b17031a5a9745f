"""Warm workers hold nothing of the caller's that the caller may want to close."""

import os
import select
import socket

import pytest
import torch

import tdmap
from tests.processes import comes_true


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_let_go_of_the_callers_pipes_and_sockets(method: str) -> None:
    read, write = os.pipe()
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    workers = 1 if method == "spawn" else 2
    out = tdmap.map(torch.arange(8), lambda x: x + 1, num_workers=workers, chunksize=1, mp_start_method=method)
    assert out.tolist() == list(range(1, 9))
    os.close(write)
    # One worker may have done everything while the other is coming up.
    assert select.select([read], [], [], 300.0)[0], "a worker keeps the pipe open"
    assert os.read(read, 1) == b""
    os.close(read)
    server.close()
    assert comes_true(lambda: is_free(port)), "a worker keeps the port"


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
