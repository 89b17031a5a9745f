"""Blocks of rows written through a file's descriptor are the rows that a store into the mapping would have left."""

import gc
import os
import resource
import signal

import pytest
import torch

import tdmap
from tdmap.data.writer import RowWriter
from tdmap.memory import filecolumn
from tdmap.memory.filecolumn import LATE, PROBE, RUN, SOON, FileColumn, columns_behind
from tdmap.plan import ChunkPlan
from tensordict_lite import MemoryMappedTensor, TensorDict
from tests.descriptors import descriptors

DTYPES = [
    torch.uint8, torch.bool, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex32, torch.float8_e4m3fn,
]  # fmt: skip


def mapped(path, shape, dtype=torch.float32):
    return MemoryMappedTensor.zeros(shape, dtype=dtype, filename=path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path, dtype):
    out = mapped(tmp_path / "out.memmap", (12, 40_000), dtype)
    values = torch.randint(0, 2, (12, 40_000)).to(dtype)
    columns = columns_behind([out], 4)
    assert len(columns) == 1
    (column,) = columns.values()
    for start in range(0, 12, 4):
        column.write(out[start : start + 4], values[start : start + 4])
    assert torch.equal(out.view(torch.uint8), values.view(torch.uint8))


def test_small_strided_and_private_tensors_have_no_column(tmp_path):
    big = mapped(tmp_path / "a", (100, 5000))
    assert columns_behind([big], 100)
    assert not columns_behind([mapped(tmp_path / "b", (100, 3))], 4)
    assert not columns_behind([big.t(), big[:, ::2], torch.zeros(100, 5000), torch.zeros(())], 100)


def test_a_file_that_was_replaced_is_not_written(tmp_path):
    path = tmp_path / "out.memmap"
    out = mapped(path, (100, 5000))
    path.rename(tmp_path / "elsewhere")
    mapped(path, (100, 5000))
    assert not columns_behind([out], 100)


def test_the_way_changes_when_the_other_one_becomes_faster(tmp_path, monkeypatch):
    out, ways = mapped(tmp_path / "out", (8, 8192)), []
    (column,) = columns_behind([out], 8).values()
    clock, seconds = iter(range(10**9)), {"file": 5, "map": 1}

    def passes(way):
        waits = 100 if len(ways) % 3 == 1 else 0  # for a processor, now and then
        ways.append(way)
        for _ in range(seconds[way] + waits):
            next(clock)

    class Rows(torch.Tensor):
        def copy_(self, other):
            passes("map")

    monkeypatch.setattr(FileColumn, "_pwrite", lambda self, rows, values: passes("file"))
    monkeypatch.setattr(filecolumn.time, "perf_counter", lambda: next(clock))
    rows = out.as_subclass(Rows)

    def written(blocks):
        ways.clear()
        for _ in range(blocks):
            column.write(rows, out)
        return ways

    assert written(PROBE + RUN)[PROBE:] == ["map"] * RUN
    assert written(200).count("file") <= 5 * PROBE
    seconds["map"] = 20  # others write as well: the next run sees it
    assert written(200)[2 * RUN :].count("map") <= 5 * PROBE
    seconds["map"] = 1  # and go: seen when that is tried again
    assert written(4 * RUN * LATE)[-RUN * SOON // 2 :] == ["map"] * (RUN * SOON // 2)


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_nested_outputs_and_results_that_need_a_copy(tmp_path, executor):
    data = TensorDict({"x": torch.rand(64, 80, 60)}, [64]).memmap(tmp_path / "data")
    example = TensorDict({"a": {"b": torch.zeros(60, 80)}, "c": torch.zeros(80, 60, dtype=torch.float64)}, [])
    out = example.expand(64).memmap_like(tmp_path / "out")

    def fn(chunk):
        x = chunk["x"]
        return TensorDict({"a": {"b": x.transpose(1, 2)}, "c": x + 1}, chunk.batch_size)

    tdmap.map(data, fn, num_workers=2, out=out, chunksize=8, executor=executor)
    assert torch.equal(out["a", "b"], data["x"].transpose(1, 2))
    assert torch.equal(out["c"], (data["x"] + 1).double())
    again = TensorDict.load_memmap(tmp_path / "out")
    assert torch.equal(again["a", "b"], data["x"].transpose(1, 2))


def test_conjugated_values_are_resolved(tmp_path):
    data = torch.randn(16, 4000, dtype=torch.complex64)
    out = TensorDict({"z": torch.zeros(4000, dtype=torch.complex64)}, []).expand(16).memmap_like(tmp_path)
    tdmap.map(data, lambda x: TensorDict({"z": x.conj()}, [len(x)]), num_workers=1, out=out, chunksize=4)
    assert torch.equal(out["z"], data.conj().resolve_conj())


def test_views_of_a_dataset_are_written_where_they_lie(tmp_path):
    whole = TensorDict({"x": torch.zeros(100, 5000)}, [100]).memmap_(tmp_path)
    part = whole[40:60]
    tdmap.map(torch.arange(20), lambda n: TensorDict({"x": n[:, None].expand(-1, 5000) + 1.0}, [len(n)]),
              num_workers=2, out=part, chunksize=5)  # fmt: skip
    assert torch.equal(whole["x"][40:60, 0], torch.arange(1.0, 21.0))
    assert not whole["x"][:40].any() and not whole["x"][60:].any()


def test_a_disk_error_names_the_file(tmp_path):
    path = tmp_path / "out.memmap"
    out = mapped(path, (4, 100_000))
    (column,) = columns_behind([out], 4).values()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="out.memmap"):
            column.write(out, torch.ones(4, 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_descriptors_are_closed_with_the_writer(tmp_path):
    out = TensorDict({"x": torch.zeros(64, 5000), "y": torch.zeros(64, 5000)}, [64]).memmap_(tmp_path)
    held = descriptors(tmp_path)
    writer = RowWriter(out, ChunkPlan(64, 8), exact=False)
    writer.prepare()
    assert len(descriptors(tmp_path) - held) == 2
    del writer
    gc.collect()
    assert descriptors(tmp_path) == held


def test_an_output_that_may_not_be_opened_is_written_through_its_mapping(tmp_path):
    out = TensorDict({"x": torch.zeros(64, 5000)}, [64]).memmap_(tmp_path)
    os.chmod(tmp_path / "x.memmap", 0o400)
    result = tdmap.map(torch.ones(64, 5000), lambda x: TensorDict({"x": x}, [len(x)]), executor="serial", out=out)
    assert result["x"].all()
