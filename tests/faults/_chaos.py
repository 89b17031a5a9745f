"""A program that is killed again and again, and whoever kills it.

The program is a template that has imported everything. On "go" it forks a driver, which leads a session of its own
and does one job; the template says the driver's number, and later its exit status. So a driver that was killed is
followed by the next one in milliseconds.
"""

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import psutil
import torch

import tdmap
from tdmap.reducers import Reducer
from tensordict_lite import TensorDict
from tests import journals

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 64
PAUSE = 0.0015
AHEAD = 60  # chunks: as far as workers go beyond a point, so that so many are seen to be done


def make(folder: Path, rows: int) -> TensorDict:
    """The dataset."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 8, generator=generator)
    return TensorDict({"x": x, "meta": {"row": torch.arange(rows)}}, [rows]).memmap(folder / "in")


# -- the jobs ----------------------------------------------------------------------------------------


def work(row: torch.Tensor) -> None:
    """Take some time; and behind the point at which the driver is to be killed, as long as it lives."""
    time.sleep(PAUSE)
    while PAUSE and int(row[0]) >= int(Path(os.environ["TDMAP_CHAOS_LIMIT"]).read_text()):
        time.sleep(0.01)


def double(td: TensorDict) -> TensorDict:
    """Out of place; draws random numbers too."""
    work(td["meta", "row"])
    noise = torch.rand(td.batch_size)
    return TensorDict({"y": td["x"] * 2, "noise": noise, "meta": {"row": td["meta", "row"] + 1}}, td.batch_size)


def advance(td: TensorDict) -> None:
    """In place, and slow in the middle, where the rows are half changed."""
    row = td["meta", "row"].clone()
    td["x"].add_(1)
    td["meta", "row"].mul_(3)
    work(row)
    td["x"].mul_(1.5)
    td["meta", "row"].add_(1)


class Total(Reducer):
    """A sum of floats, whose bits depend on the order of the additions."""

    def init(self):
        return torch.zeros(8), 0

    def update(self, state, chunk, start=0):
        return state[0] + chunk["x"].sum(0) * (1 + start * 1e-6), state[1] + len(chunk)

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


def slowly(td: TensorDict) -> TensorDict:
    """A mapper that takes its time."""
    work(td["meta", "row"])
    return td


def run(mode: str, folder: Path) -> None:
    """Do the job; called again after every death."""
    data = TensorDict.load_memmap(folder / "in")
    options = {"num_workers": 2, "chunksize": CHUNK, "retries": 1000, "seed": 5}
    if mode == "map":
        tdmap.map(data, double, out=folder / "out", resume=True, **options)
    elif mode == "in place":
        tdmap.map(data, advance, out=data, resume=True, **options)
    else:
        answer = tdmap.map_reduce(data, slowly, Total(), resume=folder / "out", **options)
        torch.save(answer, folder / "answer.pt")


def hidden(mode: str, folder: Path) -> Path:
    """Where the journal of a job is."""
    return (folder / "in" if mode == "in place" else folder / "out") / ".tdmap"


# -- killing -----------------------------------------------------------------------------------------


class Chaos:
    """Runs a job to its end while killing a random worker every `period` seconds, and the driver at set points.

    Args:
        mode: "map", "in place" or "reduce".
        folder: where the dataset and the output are.
        chunks: chunks of the job.
        driver_kills: how often the driver and all its workers are killed, spread over the progress of the job.
        period: seconds between two kills of a worker.
    """

    def __init__(self, mode: str, folder: Path, chunks: int, driver_kills: int, period: float, seed: int) -> None:
        self.mode, self.folder, self.chunks = mode, folder, chunks
        self.points = [chunks * (number + 1) // (driver_kills + 1) for number in range(driver_kills)]
        self.period = period
        self.limit = folder / "limit"
        self.random = random.Random(seed)
        self.killed_workers = self.killed_drivers = 0

    def done(self) -> int:
        return journals.chunks_done(hidden(self.mode, self.folder) / "journal")

    def run(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TDMAP_CHAOS_LIMIT": str(self.limit)}
        command = [sys.executable, __file__, self.mode, str(self.folder)]
        self.set_limit()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as template:
            try:
                while not self.one_driver(template):
                    pass
            finally:
                template.stdin.close()

    def one_driver(self, template: subprocess.Popen) -> bool:
        """Have a driver work until it is killed or has ended; whether the job is over."""
        template.stdin.write(b"go\n")
        template.stdin.flush()
        driver = int(template.stdout.readline())
        next_kill = time.monotonic() + self.period
        while not select.select([template.stdout], [], [], 0.01)[0]:
            if self.points and self.killed_workers > self.killed_drivers and self.done() >= self.points[0]:
                self.points.pop(0)
                self.set_limit()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver, signal.SIGKILL)
                    self.killed_drivers += 1
                break
            if time.monotonic() >= next_kill:
                next_kill += self.period
                self.kill_a_worker(driver)
        status = int(template.stdout.readline())
        assert status in (0, -signal.SIGKILL), f"the driver ended with {status}"
        return status == 0

    def set_limit(self) -> None:
        """No job comes to its end before every driver that is to be killed has been, however seldom this one looks."""
        row = (self.points[0] + AHEAD) * CHUNK if self.points else 1 << 62
        new = self.limit.with_suffix(".new")
        new.write_text(str(row))
        new.replace(self.limit)

    def kill_a_worker(self, driver: int) -> None:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(driver).children()
            workers = [child for child in children if "syncer" not in " ".join(child.cmdline())]
            if workers:
                self.random.choice(workers).kill()
                self.killed_workers += 1


def serve(mode: str, folder: Path) -> None:
    """The template: forks a driver for every line."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            code = 1
            try:
                run(mode, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                tdmap.close_pools()
                os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
