"""A rank that dies, or does not come."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tensordict_lite import TensorDict
from tests.distributed.kinds import make
from tests.distributed.ranks import Failure, Ranks


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Ranks]:
    """Ranks that wait for each other for an hour."""
    ranks = Ranks(3, tmp_path, timeout=3600, method="fork")
    yield ranks
    ranks.close()


def test_a_rank_that_is_killed_is_an_error_long_before_the_timeout(mortal: Ranks) -> None:
    def waits(rank: int) -> None:
        if rank == 2:  # in the middle of a collective: the others have sent their headers
            from tensordict_lite.distributed import trees

            trees._gathered = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        make("large", rank).all_gather()

    calls: dict[str, Any] = {
        "recv()": lambda td: td.recv(2),
        "send()": lambda td: td.send(2),
        "broadcast()": lambda td: td.broadcast(2),
        "all_reduce()": lambda td: td.all_reduce(),
        "scatter()": lambda td: TensorDict().scatter(2),
        "from_remote_init()": lambda td: TensorDict.from_remote_init(2),
        "check": lambda td: td.all_reduce(check=True),
    }

    def again(rank: int, call: Any) -> None:
        call(make("nested", rank))

    mortal.start(waits)
    for rank in (0, 1):
        failure = mortal.result(rank)
        assert isinstance(failure, Failure) and failure.kind == "CommunicationError", failure
        assert f"all_gather() failed on rank {rank} of 3" in failure.message
        assert "A rank that has ended says why in its own output" in failure.message
    mortal.processes[2].join(300)
    assert mortal.processes[2].exitcode == -signal.SIGKILL
    for name, call in calls.items():
        mortal.start(again, call)
        for rank in (0, 1):
            failure = mortal.result(rank)
            assert isinstance(failure, Failure) and failure.kind == "CommunicationError", (name, failure)


def test_a_receiver_whose_sender_dies_is_told(mortal: Ranks) -> None:
    """Messages that were begun, and a program with async."""

    def waits(rank: int) -> None:
        import asyncio

        td = make("objects", rank)
        if rank == 2:
            for peer in (0, 1):
                td.recv(peer, init_tag=900)  # both wait by now, or will at once
            os.kill(os.getpid(), signal.SIGKILL)
        td.isend(2, init_tag=900)
        if rank == 0:
            for work in td.irecv(2, return_premature=True):
                work.wait()
        else:
            asyncio.run(td.arecv(2))

    mortal.start(waits)
    for rank in (0, 1):
        failure = mortal.result(rank)
        assert isinstance(failure, Failure) and failure.kind == "CommunicationError", failure
        assert f"recv() failed on rank {rank} of 3" in failure.message


def test_a_rank_that_does_not_come_ends_in_the_timeout_of_the_group(ranks: Ranks) -> None:
    def check(rank: int) -> str:
        impatient = dist.new_group([0, 1, 2], timeout=timedelta(seconds=5))
        if rank != 0:
            return "elsewhere"
        try:
            TensorDict.from_remote_init(1, group=impatient)
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
        return "arrived"

    found = ranks(check)
    assert found[0].startswith("CommunicationError: from_remote_init() failed on rank 0 of 3")
    assert "the timeout of init_process_group()" in found[0]
