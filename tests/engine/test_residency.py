"""What a worker keeps mapped of a dataset: nothing that it has passed over, all that it reads at random."""

import itertools
import mmap
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict

ROWS = 160
ROW_BYTES = 1 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("to_files", [True, False], ids=["memmap", "shared memory"])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", tdmap.RowErrors()], ids=["raise", "skip"])
def test_pages_that_were_passed_are_let_go_of(tmp_path: Path, to_files: bool, num_workers: int, on_error: Any) -> None:
    row = TensorDict({"x": torch.zeros(ROW_BYTES, dtype=torch.uint8), "row": torch.tensor(0)}, [])
    data = row.expand(ROWS).memmap_like(tmp_path / "data") if to_files else row.expand(ROWS).clone().memmap_()
    data["row"].copy_(torch.arange(ROWS))

    def touch(chunk: TensorDict) -> torch.Tensor:
        chunk["x"].numpy()[...] += 1  # each page becomes memory of this process
        if on_error != "raise" and bool((chunk["row"] % 20 == 19).any()):
            raise ValueError("its rows are put back")
        return torch.stack([chunk["x"][:, 0].long(), torch.full_like(chunk["row"], resident_bytes())], 1)

    parts = tdmap.map_iter(data, touch, num_workers=num_workers, chunksize=2, on_error=on_error)
    found = torch.cat([part[part[:, 0] > 0] for part in parts])  # without rows that were skipped
    assert len(found) == (ROWS if on_error == "raise" else ROWS - ROWS // 20) and found[:, 0].eq(1).all()
    seen = found[:, 1].tolist()
    # A process that has run other tests may give their memory back meanwhile: only what is gained counts.
    gained = [now - lowest for now, lowest in zip(seen, itertools.accumulate(seen, min), strict=True)]
    assert max(gained) < ROWS * ROW_BYTES // 2
    assert not data["x"].any()


def faults(chunk: TensorDict) -> torch.Tensor:
    return torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_minflt])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux maps pages around a fault")
@pytest.mark.parametrize("loader", ["pipeline", "map_iter", "threads"])
@pytest.mark.parametrize("kind", ["numbers", "text"])
@pytest.mark.parametrize("shard_rows", [None, 1 << 15], ids=["folder", "shards"])
def test_a_shuffled_epoch_maps_a_page_once(tmp_path: Path, shard_rows: int | None, kind: str, loader: str) -> None:
    """Written in small pieces, which the page cache keeps in small pieces, and more than a worker keeps of others."""
    rows, batch = 1 << 17, 1024
    source = TensorDict({"n": torch.arange(rows)}, [rows])

    def wide(chunk: TensorDict) -> TensorDict:
        n = chunk["n"]
        if kind == "text":
            text = Ragged(torch.full((len(n) * 400,), 65, dtype=torch.uint8), torch.arange(len(n) + 1) * 400, "str")
            return TensorDict({"n": n, "text": text}, [len(n)])
        return TensorDict({"n": n, "x": n[:, None].expand(-1, 50).contiguous()}, [len(n)])

    data: Any = tdmap.map(source, wide, out=tmp_path / "out", chunksize=256, num_workers=1, rows_per_shard=shard_rows)
    seen: Any
    if loader == "threads":  # no function of the user's is called
        batches = tdmap.Pipeline(data).shuffle(seed=0).batch(batch).iter(num_workers=2)
        seen = map(faults, batches)
    elif loader == "map_iter":
        seen = tdmap.map_iter(data, faults, shuffle=True, seed=0, chunksize=batch, num_workers=1)
    else:
        seen = tdmap.Pipeline(data, seed=0).shuffle(seed=0).batch(batch).map(faults).iter(num_workers=1)
    counts = torch.cat([part.reshape(-1) for part in seen]).tolist()
    half = len(counts) // 2
    # Each batch touches 1024 of some 13000 pages: by the second half nearly all of them are mapped.
    assert (counts[-1] - counts[half]) / (len(counts) - 1 - half) < 30
