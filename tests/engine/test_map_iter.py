"""`map_iter`: order, back-pressure, leaving early."""

import gc
import itertools
import os
import time

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

EXECUTORS = ["serial", "thread", "process"]


@pytest.fixture(params=EXECUTORS)
def iterate(request):
    def call(data, fn, *args, **options):
        options.setdefault("num_workers", 2)
        return tdmap.map_iter(data, fn, *args, executor=request.param, **options)

    return call


def test_results_come_in_order(iterate, data):
    def uneven(td):
        time.sleep(0.002 * float(td["x"][0, 0] % 4))
        return td["x"] * 2

    parts = list(iterate(data, uneven, chunksize=3))
    assert [len(part) for part in parts] == [3] * 13 + [1]
    assert torch.equal(torch.cat(parts), data["x"] * 2)


def test_any_value_may_be_yielded(iterate, data):
    values = list(iterate(data, lambda td: {"sum": td["x"].sum().item(), "n": (td.shape[0], "rows")}, chunksize=15))
    assert [v["n"] for v in values] == [(15, "rows"), (15, "rows"), (10, "rows")]
    assert sum(v["sum"] for v in values) == data["x"].sum().item()


def test_collections_of_large_tensors(iterate):
    data = TensorDict({"x": torch.arange(16 * 20_000.0).reshape(16, 20_000)}, [16])
    parts = list(iterate(data, lambda td: td.apply(lambda x: x + 1), chunksize=2))
    assert all(type(part) is TensorDict and part.batch_size == torch.Size([2]) for part in parts)
    assert torch.equal(torch.cat(parts)["x"], data["x"] + 1)


def test_results_stay_valid_while_they_are_held_and_after_the_loop(iterate):
    data = torch.arange(64 * 20_000.0).reshape(64, 20_000)
    held = []
    for number, part in enumerate(iterate(data, lambda x: x * 2, chunksize=1)):
        if number % 3 == 0:
            held.append((number, part))
    gc.collect()
    for number, part in held:
        assert torch.equal(part, data[number : number + 1] * 2)


def test_unbound_rows(iterate, data):
    rows = list(iterate(data, lambda td: td["x"].sum(), chunksize=0))
    assert torch.equal(torch.stack(rows), data["x"].sum(1))


def test_shuffle_is_a_permutation_that_the_seed_decides(iterate, data):
    def rows(**options):
        return torch.cat(list(iterate(data, lambda td: td["meta", "row"], shuffle=True, chunksize=7, **options)))

    first = rows(seed=5)
    assert not torch.equal(first, torch.arange(40))
    assert torch.equal(first.sort()[0], torch.arange(40))
    assert torch.equal(first, rows(seed=5, num_workers=3))
    assert not torch.equal(first, rows(seed=6))


def test_shuffle_with_unbound_rows_and_with_other_dimensions(iterate):
    data = TensorDict({"x": torch.arange(20).reshape(2, 10)}, [2, 10])
    parts = list(iterate(data, lambda td: td["x"], 1, shuffle=True, chunksize=4, seed=1))
    joined = torch.cat(parts, 1)
    assert torch.equal(joined.sort(1)[0], data["x"])
    assert torch.equal(joined[1] - joined[0], torch.full((10,), 10))
    rows = list(iterate(data, lambda td: td["x"], 1, shuffle=True, chunksize=0, seed=1))
    assert torch.equal(torch.stack(rows, 1), joined)


def test_shuffle_without_index_with_generator_is_refused(data):
    with pytest.raises(RuntimeError, match="index_with_generator"):
        tdmap.map_iter(data, lambda td: td, shuffle=True, index_with_generator=False)


@pytest.mark.parametrize("chunksize", [0, 1, 4])
def test_an_exception_comes_after_the_results_before_it(iterate, chunksize):
    def fail(rows):
        time.sleep(0.002 * float(rows.sum() % 3))
        if ((rows == 20) | (rows >= 24)).any():
            raise ValueError(f"from row {int(rows.reshape(-1)[0])} on")
        return rows.reshape(-1).tolist()

    got = []
    with pytest.raises(ValueError, match="from row 20 on"):
        for values in iterate(torch.arange(60), fail, chunksize=chunksize):
            got += values
    assert got == list(range(20))


def test_a_lost_worker_is_told_of_after_the_results_before_it():
    def leave(rows):
        if rows[0] == 20:
            os._exit(1)
        time.sleep(0.002 * float(rows[0] % 3))
        return int(rows[0])

    got = []
    with pytest.raises(tdmap.errors.WorkerLost, match="row 20"):
        for value in tdmap.map_iter(torch.arange(60), leave, chunksize=1, num_workers=2, retries=1):
            got.append(value)
    assert got == list(range(20))


def test_leaving_the_loop_stops_the_work(iterate, tmp_path):
    log = tmp_path / "log"
    data = torch.arange(10_000)

    def note(x):
        with open(log, "a") as file:
            file.write("x")
        return x

    for _ in itertools.islice(iterate(data, note, chunksize=1), 3):
        pass
    gc.collect()
    ran = []
    for _ in range(2):  # the pool is free again, and once it has been used nobody goes on in the background
        assert torch.equal(torch.cat(list(iterate(data[:100], lambda x: x, chunksize=10))), data[:100])
        ran.append(log.stat().st_size)
    assert ran[0] == ran[1] and 3 <= ran[0] < 5_000


def test_two_loops_at_once(data):
    a = tdmap.map_iter(data, lambda td: td["x"].sum().item(), num_workers=2, chunksize=5)
    b = tdmap.map_iter(data, lambda td: td["x"].sum().item() + 1, num_workers=2, chunksize=5)
    assert [y - x for x, y in zip(a, b, strict=True)] == [1] * 8


def test_map_inside_the_loop(data):
    for part in tdmap.map_iter(data, lambda td: td["x"], num_workers=2, chunksize=20):
        assert torch.equal(tdmap.map(part, lambda x: x + 1, num_workers=2, chunksize=5), part + 1)
