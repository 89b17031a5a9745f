"""Ranks of a gloo group in processes of their own, which run functions that a test sends them."""

import contextlib
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import multiprocess
from multiprocess.connection import wait

__all__ = ["Failure", "Ranks"]

PATIENCE = 300.0
"""Seconds until a test gives up waiting for a rank: less than the timeout of a test."""


class Failure:
    """What a rank raised, as far as it travels: the name of the class, the message, the traceback."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        self.message = str(error)
        self.text = "".join(traceback.format_exception(error))

    def __repr__(self) -> str:
        return f"{self.kind}: {self.message}"


class Ranks:
    """``size`` processes in one group; ``ranks(function, *args)`` runs ``function(rank, *args)`` on each.

    Args:
        size: number of ranks.
        folder: where the ranks find each other.
        timeout: of the group, in seconds.
        method: how they start; forks know what the tests have imported.
    """

    def __init__(self, size: int, folder: Path, timeout: float = 200.0, method: str = "spawn") -> None:
        context = multiprocess.get_context(method)
        self.size = size
        self.broken = False
        self.pipes = []
        self.processes = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, str(folder / "group"), timeout))
            process.daemon = True
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Sends a function to all ranks."""
        task = cloudpickle.dumps((function, args))
        for pipe in self.pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send_bytes(task)

    def result(self, rank: int) -> Any:
        """What the function returned on a rank, or a :class:`Failure`; EOFError when the rank has ended."""
        if not self.pipes[rank].poll(PATIENCE):
            raise TimeoutError(f"rank {rank} has not answered for {PATIENCE} s")
        return cloudpickle.loads(self.pipes[rank].recv_bytes())

    def __call__(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The results of all ranks; raises as soon as one failed, for others may wait for it."""
        self.broken = True  # until all have answered: the group is of no use otherwise
        self.start(function, *args)
        results: dict[int, Any] = {}
        while len(results) < self.size:
            late = [rank for rank in range(self.size) if rank not in results]
            ready = wait([self.pipes[rank] for rank in late], PATIENCE)
            if not ready:
                raise TimeoutError(f"ranks {late} have not answered for {PATIENCE} s")
            for rank in (rank for rank in late if self.pipes[rank] in ready):
                results[rank] = self.result(rank)
                if isinstance(results[rank], Failure):
                    raise AssertionError(f"rank {rank}: {results[rank].text}")
        self.broken = False
        return [results[rank] for rank in range(self.size)]

    def outcomes(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The results of all ranks, a :class:`Failure` where one failed."""
        self.broken = True
        self.start(function, *args)
        outcomes = [self.result(rank) for rank in range(self.size)]
        self.broken = False
        return outcomes

    def close(self) -> None:
        """Kill the ranks: they may wait for each other, and forks hold the pipes of others open."""
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Any, rank: int, size: int, meeting: str, timeout: float) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    while True:
        try:
            function, args = cloudpickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            answer = cloudpickle.dumps(function(rank, *args))
        except BaseException as error:
            answer = cloudpickle.dumps(Failure(error))
        pipe.send_bytes(answer)
