"""Memory that a function has freed is there for its next chunk."""

import resource
import sys

import pytest
import torch

import tdmap

MEBIBYTE = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_temporaries_cost_no_new_pages_chunk_after_chunk(monkeypatch):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)

    def faults(row):
        size = 4 * MEBIBYTE + int(row) * (MEBIBYTE >> 4)  # a little more each time, which malloc has not seen yet
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [torch.ones(size, dtype=torch.uint8) for _ in range(2)]
        del parts
        return torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before])

    with tdmap.WorkerPool(1) as pool:
        found = tdmap.map(torch.arange(40), faults, pool=pool, chunksize=1)
    pages = 8 * MEBIBYTE // resource.getpagesize()
    assert int(found[20:].median()) < pages // 8
