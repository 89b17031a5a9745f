"""A worker's memory does not grow with the dataset that it passes over."""

import itertools
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

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
