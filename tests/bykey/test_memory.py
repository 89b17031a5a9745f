"""Ten million rows and a million keys pass through a gigabyte that they do not nearly fill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys, threading, time
import numpy as np, psutil, torch, tdmap
from tdmap.reducers import Count, Sum
from tensordict_lite import TensorDict

ROWS, KEYS, folder = 10_000_000, 1_000_000, sys.argv[1]
made = TensorDict({"k": torch.zeros(ROWS, dtype=torch.int64), "v": torch.zeros(ROWS, dtype=torch.float64)}, [ROWS])
made = made.memmap_like(folder + "/in")
rng = np.random.default_rng(0)
for start in range(0, ROWS, 1_000_000):
    made["k"][start : start + 1_000_000] = torch.from_numpy(rng.integers(0, KEYS, 1_000_000) << 40)
    made["v"][start : start + 1_000_000] = torch.from_numpy(rng.integers(0, 100, 1_000_000) / 4)
del made
data = TensorDict.load_memmap(folder + "/in")
me, most, over = psutil.Process(), 0, threading.Event()

def watch():
    global most
    while not over.wait(0.03):
        total = 0
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_full_info().uss
            except psutil.Error:
                pass
        most = max(most, total)

watcher = threading.Thread(target=watch)
watcher.start()
result = tdmap.group_by(data, "k").reduce({"total": Sum("v"), "n": Count()}, out=folder + "/out", num_workers=2)
over.set()
watcher.join()
order = np.argsort(data["k"].numpy(), kind="stable")
keys, starts = np.unique(data["k"].numpy()[order], return_index=True)
assert np.array_equal(result["k"].numpy(), keys)
assert np.array_equal(result["total"].numpy(), np.add.reduceat(data["v"].numpy()[order], starts))
assert np.array_equal(result["n"].numpy(), np.diff(starts, append=ROWS))
print(json.dumps({"most": most, "keys": len(keys)}))
"""


@pytest.mark.slow
def test_ten_million_rows_and_a_million_keys_under_a_gigabyte(tmp_path):
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["keys"] > 990_000
    assert 100 << 20 < figures["most"] < 1 << 30
