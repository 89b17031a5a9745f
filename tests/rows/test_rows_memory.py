"""Memory does not grow with the number of rows."""

import json
import textwrap
from pathlib import Path

import pytest

from tests import interpreters

SCRIPT = """
    import json, os, resource, sys, psutil, torch, tdmap, tdmap.datasets, tdmap.tuning
    from tensordict_lite import Ragged, TensorDict
    torch.set_num_threads(1)

    class Watch(tdmap.events.Callback):
        worker = main = 0
        def on_lease_done(self, event):
            self.worker = max(self.worker, psutil.Process(event.worker).memory_full_info().uss)
            self.main = max(self.main, psutil.Process().memory_full_info().uss)

    def half(td):
        return td["n"] % 2 == 0

    def dataset(rows, kind):
        if kind:
            dtype, length = (torch.uint8, 1024) if kind == "str" else (torch.int64, 128)
            if not os.fork():  # it has all of it in memory
                offsets = torch.arange(rows + 1) * length
                ragged = Ragged(torch.full((rows * length,), 65, dtype=dtype), offsets, kind)
                TensorDict({"n": torch.arange(rows), "w": ragged}, [rows]).memmap(f"in-{rows}")
                os._exit(0)
            os.wait()
            return TensorDict.load_memmap(f"in-{rows}")
        one = TensorDict({"x": torch.zeros(1024, dtype=torch.uint8), "n": torch.tensor(0)}, [])
        data = one.expand(rows).memmap_like(f"in-{rows}")
        data["n"].copy_(torch.arange(rows))
        return data

    def lengths(td):
        return TensorDict({"n": torch.tensor([len(row) for row in td["w"]])}, td.batch_size)

    def run(rows):
        operation, _, kind = sys.argv[1].partition(" of ")
        kind = {"text": "str", "numbers": "tensor"}.get(kind)
        data, out, watch = dataset(rows, kind), f"out-{rows}", Watch()
        options = dict(num_workers=1, callbacks=[watch])
        if operation == "write":
            tdmap.datasets.write(data, f"{out}.arrow")
            watch.main = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        elif operation == "map":
            tdmap.map(data, lengths, out=out, **options)
        elif operation == "filter":
            with tdmap.tuning.use(near_bytes=8 << 20):  # fewer rows than either of these
                tdmap.filter(data, half, out=out, **options)
        elif operation == "flat_map":
            tdmap.flat_map(data, lambda td: td[half(td)], out=out, **options)
        else:
            with tdmap.tuning.use(available_memory=0, bucket_bytes=1 << 20):
                tdmap.shuffle(data, 1, out=out, method="scatter", **options)
        tdmap.close_pools()
        return watch.worker, watch.main

    print(json.dumps([run(100_000), run(200_000)]))  # MB, both more than workers keep mapped
"""


RAGGED = [f"{operation} of {kind}" for operation in ("map", "write") for kind in ("text", "numbers")]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
@pytest.mark.parametrize("operation", ["filter", "flat_map", "shuffle over the disk", *RAGGED])
def test_memory_does_not_grow_with_the_rows(operation, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = interpreters.run([str(script), operation], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (worker, main), (worker_of_more, main_of_more) = json.loads(done.stdout.splitlines()[-1])
    # A worker has mapped anything between nothing and 24 MiB and a lease when a lease ends; the rows are 100 MB more.
    assert worker_of_more - worker < 48 << 20, (worker, worker_of_more)
    assert main_of_more - main < 20 << 20, (main, main_of_more)
