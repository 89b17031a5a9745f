"""`permute` and `shuffle`: rows in another order, by either way, with the same bits."""

import multiprocessing
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import tuning
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.memory import rowfiles
from tdmap.memory.rowfiles import RowFiles, SharedTensors
from tdmap.ops.permute import permute
from tdmap.output import scatter
from tdmap.output.output import Output
from tdmap.output.permute import choose_method
from tdmap.run.context import Context
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tests.descriptors import descriptors

from .conftest import WORKERS, bits, make


@pytest.fixture
def small_blocks():
    """Several chunks, buckets and blocks for small data."""
    with tuning.use(available_memory=0, bucket_bytes=1 << 10, gather_bytes=1 << 10):
        yield


ORDERS = {
    "permutation": torch.randperm(200, generator=torch.Generator().manual_seed(0)),
    "repeats": torch.randint(0, 200, (500,), generator=torch.Generator().manual_seed(0)),
    "one row": torch.full((90,), 199),
    "a part": torch.arange(199, 0, -3),
    "nothing": torch.arange(0),
}


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("method", ["gather", "scatter"])
@pytest.mark.usefixtures("small_blocks")
def test_every_order_gives_what_indexing_gives(options, method, tmp_path):
    data = make()
    for name, order in ORDERS.items():
        assert bits(permute(data, order, out=None, method=method, **options)) == bits(data[order]), name
        saved = permute(data, order, out=tmp_path / name, method=method, **options)
        assert bits(saved) == bits(data[order]) and not (tmp_path / name / ".tdmap").exists()


@given(st.data(), st.integers(1, 50), st.sampled_from(["gather", "scatter"]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_gives_what_indexing_gives(data, rows, method):
    order = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), max_size=80)), dtype=torch.int64)
    width = data.draw(st.integers(0, 9))
    source = TensorDict({"x": torch.arange(rows), "w": torch.randint(0, 9, (rows, width), dtype=torch.uint8)}, [rows])
    with tuning.use(available_memory=0, bucket_bytes=data.draw(st.integers(1, 500))):
        assert bits(permute(source, order, out=None, num_workers=0, method=method)) == bits(source[order])


@pytest.mark.usefixtures("small_blocks")
def test_files_are_read_and_an_order_in_a_file_too(tmp_path):
    data = make()
    order = TensorDict({"o": torch.randperm(200)}, [200]).memmap(tmp_path / "order")["o"]
    saved = data.memmap(tmp_path / "in")
    for method in ("gather", "scatter"):
        assert bits(permute(saved, order, out=tmp_path / method, num_workers=2, method=method)) == bits(data[order])
    out = data.select("x", "odd").memmap_like(tmp_path / "there")
    assert permute(saved, order, out=out, num_workers=2) is out and torch.equal(out["odd"], data["odd"][order])


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [
        (torch.tensor([0, 200]), IndexError, "row 200, and the data has 200 rows: use 0 to 199"),
        (torch.tensor([-1, 3]), IndexError, "row -1"),
        (torch.arange(4).int(), TypeError, "int64 tensor of shape .rows.: got torch.int32"),
        (torch.zeros(2, 2, dtype=torch.int64), TypeError, r"\(2, 2\)"),
        ([0, 1], TypeError, "got a list"),
    ],
)
def test_orders_that_cannot_be_are_named(order, error, message):
    with pytest.raises(error, match=message):
        permute(make(), order, out=None, num_workers=1)
    with pytest.raises(ValueError, match="method must be one of gather, scatter"):
        permute(make(), torch.arange(3), out=None, num_workers=1, method="magic")


def test_small_rows_that_do_not_fit_into_memory_go_over_the_disk():
    ctx = Context("permute", Execution(tuning=tuning.Tuning(available_memory=1000)), Output(None, None))
    rows = torch.zeros(100, 16, dtype=torch.uint8)
    assert choose_method([16], [rows[:20]], ctx) == "gather"
    assert choose_method([16], [rows], ctx) == "scatter"
    large = torch.zeros(1).expand(4, 1 << 18)
    assert choose_method([1 << 20], [large], ctx) == "gather"  # large rows are read one by one


def test_blocks_are_a_share_of_the_memory_that_there_is():
    def size(available: int, workers: int) -> int:
        execution = Execution(workers, tuning=tuning.Tuning(available_memory=available))
        return scatter.block_bytes(10 << 40, Context("permute", execution, Output(None, None)))

    assert size(1 << 40, 2) == scatter.LARGEST
    assert size(256 << 20, 2) == 16 << 20
    assert size(256 << 20, 4) == 8 << 20
    assert size(256 << 20, 999) == scatter.LEAST


def test_a_file_that_is_cut_while_its_rows_are_moved_is_named(tmp_path):
    TensorDict({"x": torch.arange(40_000).view(10_000, 4)}, [10_000]).memmap(tmp_path)
    source = SharedTensors([TensorDict.load_memmap(tmp_path)["x"][100:]], share=False)
    source = pickle.loads(pickle.dumps(source))  # as a worker has it
    out = torch.empty(32 * 50, dtype=torch.uint8)
    source.read(0, 10, 60, out)
    assert out.view(torch.int64).tolist() == list(range(440, 640))
    os.truncate(tmp_path / "x.memmap", 32 * 150)
    with pytest.raises(DatasetError, match="x.memmap.*it was truncated"):
        source.read(0, 10, 60, out)


@pytest.mark.parametrize("method", ["gather", "scatter"])
@pytest.mark.usefixtures("small_blocks")
def test_entries_of_an_output_that_are_one_tensor(method):
    """Rows of both go there, and those of the second stay: none is put into order twice."""
    data = TensorDict({"a": torch.arange(200), "b": torch.arange(200) + 1000}, [200])
    both = torch.zeros(200, dtype=torch.int64).share_memory_()
    tdmap.shuffle(data, 1, out=TensorDict({"a": both, "b": both}, [200]), num_workers=2, method=method)
    assert both.tolist() == tdmap.shuffle(data["b"], 1, num_workers=0).tolist()


def test_places_that_overlap_are_not_apart():
    rows = torch.zeros(300, dtype=torch.int64).share_memory_()
    places = RowFiles.of([rows[:200], None, rows[100:]])
    assert places.are_apart(100) and not places.are_apart(101)


def test_descriptors_of_an_output_are_closed_with_it(tmp_path):
    TensorDict({"x": torch.zeros(10), "y": torch.zeros(10)}, [10]).memmap(tmp_path)
    found = TensorDict.load_memmap(tmp_path)
    before = descriptors(tmp_path)
    places = RowFiles.of([found["x"], None, found["y"]])
    assert [*places.descriptors][1] == -1 and len(descriptors(tmp_path) - before) == 2
    again = pickle.loads(pickle.dumps(places))  # as a worker has it
    again.write(2, [*again.descriptors][2], 8, torch.ones(2))
    assert found["y"][7:].tolist() == [0, 1, 1]
    del places, again
    assert descriptors(tmp_path) == before


def test_threads_share_the_descriptors_of_an_output(tmp_path, monkeypatch):
    """Also on a concurrent first access: a second list would close its files when it is freed."""
    both = threading.Barrier(2)

    class Slow(rowfiles.OpenFiles):
        def __init__(self, files):
            super().__init__(files)
            both.wait(60)

    monkeypatch.setattr(rowfiles, "OpenFiles", Slow)
    places = RowFiles.of([TensorDict({"x": torch.zeros(10)}, [10]).memmap(tmp_path)["x"]])
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: places.descriptors, range(2))
    assert first is second and os.fstat(next(iter(first))).st_size == 40


def test_the_caller_reads_a_file_that_was_removed(tmp_path):
    TensorDict({"x": torch.arange(4000)}, [4000]).memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    order = torch.arange(4000).flip(0)
    assert permute(data, order, num_workers=0, method="scatter")["x"].equal(order)


@pytest.mark.parametrize("workers", [0, 2])
def test_sort_and_shuffle_of_a_mapping_whose_files_were_removed(tmp_path, workers):
    TensorDict({"x": torch.arange(4000) % 70}, [4000]).memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    copy = data.clone()
    shutil.rmtree(tmp_path / "data")
    assert bits(tdmap.sort(data, "x", num_workers=workers)) == bits(tdmap.sort(copy, "x", num_workers=0))
    assert bits(tdmap.shuffle(data, 1, num_workers=workers)) == bits(tdmap.shuffle(copy, 1, num_workers=0))


def test_members_of_a_lazy_stack_that_differ_are_named():
    stack = TensorDict.lazy_stack([TensorDict({"x": torch.zeros(3, number % 2 + 1)}) for number in range(6)])
    for call in (
        lambda: tdmap.shuffle(stack, 1, num_workers=2),
        lambda: tdmap.filter(stack, lambda td: [True] * len(td)),
    ):
        with pytest.raises(OutputMismatch, match=r"row 1, unlike row 0: .*'x' is float32 with rows of shape \(2,\)"):
            call()


def test_expanded_and_read_only_data(tmp_path):
    data = TensorDict({"c": torch.arange(3).expand(50, 3), "x": torch.arange(50)}, [50])
    saved = data.contiguous().memmap(tmp_path / "in")
    locked = TensorDict.load_memmap(tmp_path / "in", mode="r")
    wanted = bits(data[torch.randperm(50, generator=torch.Generator().manual_seed(1))])
    for source in (data, saved, locked):
        for method in ("gather", "scatter"):
            assert bits(tdmap.shuffle(source, 1, num_workers=2, method=method)) == wanted
        assert torch.equal(tdmap.filter(source, lambda td: td["x"] < 7, num_workers=2)["c"], data["c"][:7])
    with pytest.raises(PermissionError, match="is read-only"):
        tdmap.shuffle(data, 1, out=locked, num_workers=2)


def test_other_pools_do_the_work():
    data = make()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert bits(tdmap.shuffle(data, 3, pool=pool, method="scatter")) == bits(tdmap.shuffle(data, 3, num_workers=0))
        assert tdmap.filter(data, lambda td: td["x"] < 9, pool=pool)["x"].tolist() == list(range(9))
        assert tdmap.flat_map(data, lambda td: td["x"], pool=pool).tolist() == list(range(200))


# -- shuffle -------------------------------------------------------------------------------------------


def test_a_shuffle_is_the_epoch_that_map_iter_draws(tmp_path):
    data = make()
    epoch = torch.cat(list(tdmap.map_iter(data, lambda td: td, num_workers=2, shuffle=True, seed=11, chunksize=16)))
    for method in ("gather", "scatter", None):
        assert bits(tdmap.shuffle(data, 11, num_workers=2, method=method)) == bits(epoch)
    saved = tdmap.shuffle(data, seed=11, out=tmp_path / "out", num_workers=2)
    batches = tdmap.map_iter(saved, lambda td: td, num_workers=2, chunksize=16)
    again = tdmap.map_iter(data, lambda td: td, num_workers=2, shuffle=True, seed=11, chunksize=16)
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(batches, again, strict=True))


def test_an_order_in_shared_memory_is_the_same_order():
    x = torch.arange(1 << 17)
    wanted = tdmap.shuffle(x, 2**63 + 5, num_workers=0)
    for method in ("gather", "scatter"):
        assert torch.equal(tdmap.shuffle(x, 2**63 + 5, num_workers=2, method=method), wanted)


def test_every_order_is_equally_likely():
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(300):
        order = tuple(tdmap.shuffle(torch.arange(3), seed, num_workers=0).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert sum((count - 50) ** 2 / 50 for count in seen.values()) < 20.5  # chi-squared, 5 degrees, p = 0.001


def test_no_seed_draws_one_from_torch():
    x = torch.arange(100)
    torch.manual_seed(4)
    first, second = tdmap.shuffle(x, num_workers=0), tdmap.shuffle(x, num_workers=0)
    torch.manual_seed(4)
    assert torch.equal(tdmap.shuffle(x, num_workers=0), first) and not torch.equal(first, second)
    assert torch.equal(first.sort().values, x)


def test_what_cannot_be_shuffled_is_named(tmp_path):
    data = make()
    with pytest.raises(TypeError, match="rows in dimension 0"):
        tdmap.shuffle(torch.tensor(3.0), 1)
    assert tdmap.shuffle(data[:0], 1).batch_size == (0,)
    assert tdmap.shuffle(data[:0], 1, out=tmp_path / "none")["half"].shape == (0, 3)
