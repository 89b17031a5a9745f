"""A worker's memory does not grow with the dataset that it passes over."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

ROWS = 160
ROW_BYTES = 1 << 20


def mapped_bytes(_: Any = None) -> int:
    """Bytes of file and shared pages in this process."""
    return int(Path("/proc/self/statm").read_bytes().split()[2]) * mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("to_files", [True, False], ids=["memmap", "shared memory"])
@pytest.mark.filterwarnings("ignore:.*changed rows of the source")
def test_a_worker_lets_go_of_the_pages_that_it_has_passed(tmp_path: Path, to_files: bool) -> None:
    row = TensorDict({"x": torch.zeros(ROW_BYTES, dtype=torch.uint8)}, [])
    if to_files:
        data = row.expand(ROWS).memmap_like(tmp_path / "data")
    else:
        data = row.expand(ROWS).clone().share_memory_()

    def touch(chunk: TensorDict) -> int:
        chunk["x"].add_(1)
        return mapped_bytes()

    seen = list(tdmap.map_iter(data, touch, num_workers=1, chunksize=1))
    assert max(seen) - min(seen) < ROWS * ROW_BYTES // 2
    assert bool((data["x"] == 1).all())
