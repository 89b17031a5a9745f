"""Children for tests: that begin at one moment, that die at a step of their work."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterable
from typing import Any


def in_child(work: Callable[[], Any]) -> int:
    """Run `work` in a fork; its wait status: 0 when it came to its end, else the signal that killed it, or 256."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1]


def kill_at(number: int, work: Callable[[], Any], steps: Iterable[tuple[Any, str]]) -> bool:
    """Run `work` in a fork that kills itself before its n-th step. False: it came to its end.

    Args:
        number: of the step, counted from 1.
        work: what to do.
        steps: what counts as one: functions, as the object that has them and their name.
    """

    def counted_work() -> None:
        count = 0

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        for owner, name in steps:
            setattr(owner, name, counted(getattr(owner, name)))
        work()

    status = in_child(counted_work)
    assert status in (0, signal.SIGKILL)
    return status != 0


def forked(work: Callable[[int], int], count: int) -> list[int]:
    """Run `work(number)` in so many children, which begin at one moment.

    Returns:
        Their exit codes: what `work` returned, 9 where it raised, the negative signal where they were killed.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            code = 9
            try:
                os.close(go_write)
                os.write(ready_write, b".")
                os.read(go_read, 1)  # until the other end is closed
                code = work(number)
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        children.append(child)
    os.close(go_read)
    for _ in children:
        os.read(ready_read, 1)
    os.close(go_write)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(ready_read)
    os.close(ready_write)
    return codes
