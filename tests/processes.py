"""Children for tests: that begin at one moment, that die at a step of their work; and what they leave behind."""

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil


def collapse_memory() -> None:
    """Have huge pages below what this process has allocated: a fork of it copies two hundred entries, not 100 000.

    With all tests collected, a fork costs 18 ms of a processor then, instead of 48. Kernels before Linux 6.1, and those
    without huge pages, refuse, and nothing changes.
    """
    collapse, size = 25, 2 << 20  # MADV_COLLAPSE, for any memory; mmap.madvise is for objects of its own
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        limits, mode, _, _, inode, *path = line.split()
        if mode == "rw-p" and inode == "0" and path in ([], ["[heap]"]):
            start, stop = (int(limit, 16) for limit in limits.split("-"))
            for address in range(-(-start // size) * size, stop - size + 1, size):
                madvise(address, size, collapse)


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
    """Run `work` in a fork that kills itself before its n-th step, which a fork of its own does not. False: it ended.

    Args:
        number: of the step, counted from 1.
        work: what to do.
        steps: what counts as one: functions, as the object that has them and their name.
    """

    def killed_work() -> None:
        process = os.getpid()

        def kill(count: int) -> None:
            if count == number and os.getpid() == process:
                os.kill(process, signal.SIGKILL)

        before_each(steps, kill)
        work()

    status = in_child(killed_work)
    assert status in (0, signal.SIGKILL)
    return status != 0


def steps_of(work: Callable[[], Any], steps: Iterable[tuple[Any, str]]) -> int:
    """How many steps `work` takes in a fork. Arguments as `kill_at`."""
    read, write = os.pipe()
    last, end = 0, os.write

    def counted_work() -> None:
        def count(number: int) -> None:
            nonlocal last
            last = number

        before_each(steps, count)
        work()
        end(write, str(last).encode())

    try:
        assert in_child(counted_work) == 0
        return int(os.read(read, 20))
    finally:
        os.close(read)
        os.close(write)


def before_each(steps: Iterable[tuple[Any, str]], do: Callable[[int], None]) -> None:
    """Have this process call `do` with the number of each step, from 1, before it takes the step."""
    numbers = itertools.count(1)

    def numbered(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            do(next(numbers))
            return real(*args, **kwargs)

        return call

    for owner, name in steps:
        setattr(owner, name, numbered(getattr(owner, name)))


@contextlib.contextmanager
def meanwhile(do: Callable[[], Any], steps: Iterable[tuple[Any, str]]) -> Iterator[None]:
    """Before each step of this thread within the block, `do` is called, as another program would at that moment.

    Args:
        do: what the other program does; its own steps do not count.
        steps: as for `kill_at`.
    """
    steps, thread, is_other = list(steps), threading.current_thread(), False
    real = [getattr(owner, name) for owner, name in steps]

    def other(_: int) -> None:
        nonlocal is_other
        if not is_other and threading.current_thread() is thread:
            is_other = True
            try:
                do()
            finally:
                is_other = False

    before_each(steps, other)
    try:
        yield
    finally:
        for (owner, name), function in zip(steps, real, strict=True):
            setattr(owner, name, function)


def call_at(number: int, do: Callable[[], Any], work: Callable[[], Any], steps: Iterable[tuple[Any, str]]) -> bool:
    """Run `work`, and `do` once, before the n-th step, as another program would at that moment. False: it has fewer.

    Arguments as `kill_at` and `meanwhile`.
    """
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            do()

    with meanwhile(count, steps):
        work()
    return left <= 0


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


@contextlib.contextmanager
def beside(ended: Path, steps: Iterable[Callable[[], Any]]) -> Iterator[None]:
    """Forks that take one step after another, each its own, while the block runs; none of them may fail or be killed.

    Args:
        ended: where to put the file that ends them.
        steps: of each fork.
    """

    def work(step: Callable[[], Any]) -> None:
        while not ended.exists():
            step()

    workers = [multiprocessing.get_context("fork").Process(target=work, args=(step,)) for step in steps]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        ended.touch()
        for worker in workers:
            worker.join()
    assert [worker.exitcode for worker in workers] == [0] * len(workers)


def seen_by(look: Callable[[], Any], times: int, kinds: int) -> set[Any]:
    """What a look finds: so many times, and until it has found so many things, however busy the machine is."""
    seen = {look() for _ in range(times)}
    while len(seen) < kinds:  # pytest's limit of time ends this
        seen.add(look())
    return seen


def once(path: str | Path) -> bool:
    """True the first time, in whatever process."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def comes_true(condition: Callable[[], Any], seconds: float = 300.0) -> bool:
    """Whether a condition holds by then; so late that no busy machine or slow disk makes a test fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def left_behind(session: int) -> list[int]:
    """Processes of a session that go on and on."""

    def alive() -> list[int]:
        left = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process.pid)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return left

    return [] if comes_true(lambda: not alive(), 120) else alive()


def left_in_shared_memory(before: Iterable[str]) -> set[str]:
    """Files of ours in /dev/shm that were not there before, and stay. Those of tests beside this one go."""

    def found() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "tdmap" in name} - set(before)

    return set() if comes_true(lambda: not found(), 120) else found()
