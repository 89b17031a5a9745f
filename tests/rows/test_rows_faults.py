"""Workers that are killed while rows travel over the disk, and disks that are full; `tests/faults` has other faults."""

import multiprocessing
import os
import signal

import pytest

import tdmap
from tdmap import tuning
from tdmap.memory import rowfiles
from tdmap.output import scatter

from .conftest import Killer, bits, make


@pytest.fixture
def small_blocks():
    """Cut every job into many chunks, so that a worker can be killed in the middle of it."""
    small = {"bucket_bytes": 1 << 9, "gather_bytes": 1 << 9, "copy_bytes": 1 << 9, "near_bytes": 0}
    with tuning.use(available_memory=0, **small):
        yield


@pytest.mark.parametrize("to", ["memory", "folder", "given"])
@pytest.mark.usefixtures("small_blocks")
def test_a_bucket_that_is_half_written_is_fetched_again(to, tmp_path, monkeypatch):
    """Of the way over the disk, whose rows wait in the output itself: a worker dies within each of its writes."""
    data = make()
    del data["word"], data["same"]
    columns = sum(value[0].numel() > 0 for value in data.values(True, True))
    wanted = bits(tdmap.shuffle(data, 7, num_workers=0, method="gather"))
    write, settle = rowfiles.RowFiles.write, scatter._Settle._settle
    deadly, seen, settling = multiprocessing.Value("i", -1), multiprocessing.Value("i", 0), []

    def settled(self, bucket):
        settling.append(bucket)
        return settle(self, bucket)

    def torn(self, number, fd, row, block):
        with seen.get_lock():
            seen.value += bool(settling)
            dies = settling and seen.value == deadly.value
        write(self, number, fd, row, block[: len(block) // 2] if dies else block)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(rowfiles.RowFiles, "write", torn)
    monkeypatch.setattr(scatter._Settle, "_settle", settled)
    for number in range(1, 3 * columns + 1, 7):
        deadly.value, seen.value = number, 0
        given = tdmap.shuffle(data, 1, num_workers=0, method="gather")
        out = {"memory": None, "folder": tmp_path / str(number), "given": given}[to]
        settling.clear()
        deaths = Killer(-1)
        with tdmap.WorkerPool(2, start_method="fork") as pool:
            got = tdmap.shuffle(data, 7, out=out, method="scatter", pool=pool, callbacks=[deaths])
        assert deaths.deaths == 1 and bits(got) == wanted
