"""Processes that begin at one moment, for tests of what happens between them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


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
