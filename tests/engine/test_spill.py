"""Bytes that wait in files: what an extent names is what was appended, whoever else appends."""

import os
import pickle
import resource

import pytest
import torch

import tdmap
from tdmap.execution import Execution
from tdmap.job import Job, Source
from tdmap.memory.spill import ALIGNMENT, Extent, Spill
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tests import interpreters


def test_extents_hold_what_was_appended(tmp_path):
    spill = Spill(tmp_path / "spill")
    values = [torch.arange(5), torch.rand(3, 4), torch.zeros(0), torch.tensor([True, False]), torch.tensor(7.0)]
    extents = [*spill.append(values[:2]), *spill.append(values[2:])]
    assert all(extent.offset % ALIGNMENT == 0 for extent in extents)
    for value, extent in zip(values, extents, strict=True):
        assert torch.equal(spill.read(extent, value.dtype, value.shape), value)


def test_more_pieces_than_one_system_call_takes(tmp_path):
    values = [torch.full((number % 7,), number) for number in range(3000)]
    spill = Spill(tmp_path)
    for value, extent in zip(values, spill.append(values), strict=True):
        assert torch.equal(spill.read(extent, value.dtype, value.shape), value)


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_workers_append_to_files_of_their_own(tmp_path, executor):
    rows = torch.arange(1000)
    with Spill(tmp_path / "spill") as spill:
        job = Job(Source(rows), ChunkPlan(1000, 7), lambda chunk: spill.append([chunk * 2])[0])
        extents = Execution(2, executor=executor).run(job, Collect())
        back = torch.cat([spill.read(extent, torch.int64, [extent.nbytes // 8]) for extent in extents])
        assert torch.equal(back, rows * 2)
    assert not (tmp_path / "spill").exists()


def test_a_retried_chunk_is_read_once(tmp_path):
    spill, flag = Spill(tmp_path / "spill"), tmp_path / "died"

    def once(chunk):
        extent = spill.append([chunk])[0]
        if int(chunk[0]) == 50 and not flag.exists():
            flag.touch()
            os._exit(3)
        return extent

    job = Job(Source(torch.arange(100)), ChunkPlan(100, 10), once)
    extents = Execution(2).run(job, Collect())
    tdmap.close_pools()
    assert flag.exists()
    assert torch.cat([spill.read(extent, torch.int64, [10]) for extent in extents]).tolist() == list(range(100))


def test_reading_what_is_not_there(tmp_path):
    spill = Spill(tmp_path)
    (extent,) = spill.append([torch.arange(4)])
    with pytest.raises(ValueError, match="does not hold"):
        spill.read(extent, torch.int64, [5])
    with pytest.raises(OSError, match="ends before byte"):
        spill.read(Extent(extent.file, extent.offset, 8000), torch.int64, [1000])


def test_a_spill_travels_by_its_folder(tmp_path):
    spill = Spill(tmp_path)
    (extent,) = spill.append([torch.arange(4)])
    assert pickle.loads(pickle.dumps(spill)).read(extent, torch.int64, [4]).tolist() == [0, 1, 2, 3]


def test_a_full_disk_names_the_folder(tmp_path):
    script = f"""
import resource, signal, torch
from tdmap.memory.spill import Spill
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))
try:
    Spill({str(tmp_path)!r}).append([torch.zeros(100_000)])
except OSError as error:
    print(error.filename, error)
"""
    done = interpreters.run(["-c", script], check=True)
    assert str(tmp_path) in done.stdout and "400000 bytes of intermediate results" in done.stdout
