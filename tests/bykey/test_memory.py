"""Rows and keys pass through memory that they do not nearly fill."""

import json
import os

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict
from tests import interpreters

SCRIPT = """
import json, sys, threading, time
import numpy as np, psutil, torch, tdmap
from tdmap.reducers import Count, Sum
from tensordict_lite import TensorDict

ROWS, KEYS, folder = 4_000_000, 400_000, sys.argv[1]
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
def test_four_million_rows_and_400_000_keys_under_400_megabytes(tmp_path):
    done = interpreters.run(["-c", SCRIPT, str(tmp_path)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["keys"] > 399_000
    assert 100 << 20 < figures["most"] < 400 << 20


LIMITED = """
import gc, resource, sys
import numpy as np, torch, tdmap
from tdmap.reducers import Sum, Var
from tensordict_lite import TensorDict

torch.set_num_threads(1)
ROWS, folder = 8_000_000, sys.argv[1]
made = TensorDict({"k": torch.zeros(ROWS, dtype=torch.int64), "v": torch.zeros(ROWS, 4)}, [ROWS])
made["v"][:, 0] = torch.arange(ROWS)
made.memmap(folder + "/in")
del made
data = TensorDict.load_memmap(folder + "/in")
tdmap.sort(data[:1000], "k", num_workers=0)  # whatever is made once, is made
tdmap.group_by(data[:1000], "k").reduce({"v": Var("v")}, num_workers=0)

def private():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))

def limited(megabytes):
    gc.collect()
    resource.setrlimit(resource.RLIMIT_DATA, (private() + (megabytes << 20), resource.RLIM_INFINITY))

# 31 bytes a row, before: 236 MiB.
limited(160)
assert torch.equal(tdmap.sort(data, "k", out=folder + "/sorted", num_workers=0)["v"][:, 0], data["v"][:, 0])
# 8 to 24 bytes a row, before, and 256 MiB for groups that were not mapped yet.
limited(160)
seen = []
def last(rows):
    seen.append(len(rows))
    return rows[-1:]
assert tdmap.group_by(data, "k").map_groups(last, num_workers=0)["v"][0, 0] == ROWS - 1 and seen == [ROWS]
limited(240)
answer = tdmap.group_by(data, "k").reduce({"s": Sum("v")}, num_workers=0)
assert int(answer["s"][0, 0]) == ROWS * (ROWS - 1) // 2 // 1
print("ok")
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_one_key_for_all_rows_takes_no_memory_that_grows_with_them(tmp_path):
    # A limit on private memory, at which one allocation too many is an error: nothing is sampled.
    done = interpreters.run(["-c", LIMITED, str(tmp_path)], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_strings_of_an_entry_are_numbered_where_they_are():
    strings = TensorDict({"s": [f"name {n % 7}" for n in range(3000)], "x": torch.arange(3000)}, [3000])
    seen = []

    class Watch(tdmap.events.Callback):
        def on_job_started(self, event):
            seen.append((event.name, event.executor))

    options = {"num_workers": 2, "callbacks": [Watch()]}
    result = tdmap.sort(strings, "s", chunksize=500, **options)
    wanted = sorted(range(3000), key=lambda n: n % 7)
    assert result["x"].tolist() == wanted
    assert seen[0] == ("NumberChunk", "serial")
