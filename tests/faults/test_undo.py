"""Rows of an in-place chunk are put back when it does not come to its end, whatever instruction it had reached."""

import os
import signal
from itertools import product

import pytest
import torch

import tdmap
from tdmap.plan import ChunkPlan
from tdmap.run import ledger as ledgers
from tdmap.run.ledger import Ledger
from tdmap.runtime import undo as undos
from tdmap.runtime.undo import Undo, allocate_room
from tensordict_lite import TensorDict
from tests.processes import once

LEAVES = {"x": torch.float32, "c": torch.complex64, "b": torch.bool, "h": torch.bfloat16, "n": torch.int64}


def dataset(rows=20):
    generator = torch.Generator().manual_seed(0)
    source = {key: (torch.rand(rows, 3, generator=generator) * 100).to(dtype) for key, dtype in LEAVES.items()}
    return TensorDict({**source, "meta": {"z": torch.arange(rows)}}, [rows])


def scramble(rows):
    for leaf in rows.values(True, True):
        leaf.copy_(leaf.logical_not() if leaf.dtype is torch.bool else leaf + 1)


def bits(td):
    return {key: leaf.reshape(len(leaf), -1).view(torch.uint8).clone() for key, leaf in td.items(True, True)}


def same(a, b):
    a, b = bits(a), b if isinstance(b, dict) else bits(b)
    return all(torch.equal(a[key], b[key]) for key in b)


@pytest.mark.parametrize(("count", "chunk", "base"), [(20, 0, 0), (20, 1, 0), (20, 4, 0), (1, 0, 0), (20, 4, 8)])
@pytest.mark.parametrize("scrambled", [True, False])
def test_saved_rows_come_back_bit_by_bit(count, chunk, base, scrambled):
    data = dataset(count)
    data["x"][::3] = float("nan") if scrambled else -0.0  # NaN differs from itself
    data["x"][1::3] = -0.0
    before, plan, mine = bits(data), ChunkPlan(count, 4), data[base:]
    undo = Undo(mine, plan, allocate_room(mine, plan, lambda dtype, shape: torch.empty(shape, dtype=dtype)), base)
    rows = data[slice(*plan.rows(chunk))]
    undo.save(chunk)
    data["x"].abs_()  # -0.0 and 0.0 are equal, and differ
    if scrambled:
        scramble(rows)
    undo.restore(chunk)
    part = slice(*plan.rows(chunk))
    assert same(data[part], {key: value[part] for key, value in before.items()})


@pytest.mark.parametrize(("dim", "unbind"), [(0, False), (1, False), (1, True)])
def test_any_dimension_and_rows_one_by_one(dim, unbind):
    data = TensorDict({"x": torch.arange(24.0).reshape(4, 6)}, [4, 6])
    before = data["x"].clone()
    plan = ChunkPlan((4, 6)[dim], 1 if unbind else 4, dim, unbind)
    undo = Undo(data, plan, allocate_room(data, plan, lambda dtype, shape: torch.empty(shape, dtype=dtype)))
    start, stop = plan.rows(plan.num_chunks - 1)
    rows = data["x"].narrow(dim, start, stop - start)
    undo.save(plan.num_chunks - 1)
    rows.add_(1)
    undo.restore(plan.num_chunks - 1)
    assert torch.equal(data["x"], before)


@pytest.mark.parametrize(
    "x", [torch.arange(40.0).view(4, 10).T, torch.arange(40.0)[::4], torch.randn(10, 2, dtype=torch.complex64).conj()]
)
@pytest.mark.parametrize("others", [{}, {"y": torch.arange(10)}], ids=["alone", "beside others"])
def test_rows_that_do_not_lie_one_after_the_other(x, others):
    data, plan = TensorDict({"x": x, **others}, [10]), ChunkPlan(10, 4)
    before = x.clone()
    undo = Undo(data, plan, allocate_room(data, plan, lambda dtype, shape: torch.empty(shape, dtype=dtype)))
    for chunk in range(3):
        undo.save(chunk)
        x[slice(*plan.rows(chunk))] += 1
        undo.restore(chunk)
    assert torch.equal(x, before)


def test_rows_that_did_not_change_are_not_written(tmp_path):
    data = dataset().memmap(tmp_path / "td")
    plan = ChunkPlan(20, 4)
    undo = Undo(data, plan, allocate_room(data, plan, lambda dtype, shape: torch.empty(shape, dtype=dtype)))
    undo.save(2)
    os.utime(tmp_path / "td" / "x.memmap", ns=(1, 1))
    undo.restore(2)
    assert (tmp_path / "td" / "x.memmap").stat().st_mtime_ns == 1
    data["x"][9] += 1
    undo.restore(2)
    assert (tmp_path / "td" / "x.memmap").stat().st_mtime_ns > 1


STEPS = ("nothing", "mark cleared", "half copied", "copied", "marked", "half changed", "changed", "done")


@pytest.mark.parametrize(("step", "again"), list(product(STEPS, [False, True])))
def test_a_death_between_any_two_stores_is_put_right(tmp_path, step, again):
    """The protocol, store by store; `again`: whoever puts the rows back dies in the middle of that too."""
    plan = ChunkPlan(20, 4)
    data = dataset().memmap(tmp_path / "td")
    ledger = Ledger(tmp_path, data, plan)
    room = ledger.room()
    undo = Undo(data, plan, room)
    for chunk in (0, 1):  # what was done before
        undo.save(chunk)
        scramble(data[4 * chunk : 4 * chunk + 4])
        undo.done[chunk] = 1
    wanted = bits(data)
    rows, number = data[8:12], STEPS.index(step)
    if number >= 1:
        undo.release()
    if number >= 2:
        undo.room.buffers[0].fill_(7)
    if number >= 3:
        undo.save(2)
        if number == 3:
            undo.release()
    if number >= 5:
        data["x"][8:10] += 1
    if number >= 6:
        data["x"][8:10] -= 1
        scramble(rows)
    if number >= 7:
        undo.done[2] = 1
        wanted = bits(data)
    del undo, room

    later = Ledger(tmp_path, TensorDict.load_memmap(tmp_path / "td"), plan)
    if again and number in (5, 6):
        data["n"][8:12] = data["n"][9]  # one leaf was about to be put back, and is neither old nor new
        data["meta", "z"][10] = 99
    assert later.recover() == (number in (4, 5, 6))
    assert same(TensorDict.load_memmap(tmp_path / "td"), wanted)
    assert later.committed() == [(0, 2 + (number == 7))]
    assert not list(tmp_path.glob("undo-*"))


def test_committed_runs_of_a_ledger(tmp_path):
    data = dataset().memmap(tmp_path / "td")
    ledger = Ledger(tmp_path, data, ChunkPlan(20, 1))
    assert ledger.committed() == []
    ledger.done[[0, 1, 5, 18, 19]] = 1
    assert Ledger(tmp_path, data, ChunkPlan(20, 1)).committed() == [(0, 2), (5, 6), (18, 20)]
    ledgers.forget(tmp_path)
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_a_chunk_that_raises_leaves_its_rows_as_they_were(executor):
    data = dataset()

    def fail(td):
        scramble(td)
        if 11 in td["meta", "z"]:
            raise ValueError

    before = bits(data)
    with pytest.raises(ValueError):
        tdmap.map(data, fail, chunksize=4, num_workers=1, executor=executor)
    assert same(data[8:], {key: value[8:] for key, value in before.items()})
    assert not same(data[:8], {key: value[:8] for key, value in before.items()})


@pytest.mark.filterwarnings("ignore:.*changed rows of the source")
def test_a_chunk_that_runs_again_finds_the_rows_as_they_were(tmp_path):
    x = torch.zeros(400)

    def count(part):
        part.add_(1)
        if int(part.numel()) and once(tmp_path / f"died-{os.getpid() % 3}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{float(part[0])}"

    # All three deaths may befall one chunk.
    values = list(tdmap.map_iter(x, count, num_workers=2, chunksize=2, retries=3))
    assert values == ["1.0"] * 200
    assert not x.any()


@pytest.mark.parametrize("too_large", [False, True])
def test_without_undo_a_death_in_place_ends_the_job(too_large, tmp_path, monkeypatch):
    x = torch.zeros(400)
    if too_large:
        monkeypatch.setattr(undos, "MAX_BYTES", 31)

    def count(part):
        part.add_(1)
        if once(tmp_path / "died"):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(tdmap.errors.WorkerLost, match="undo=False"):
        tdmap.map(x, count, num_workers=2, chunksize=8, undo=too_large, out=x)


def test_two_workers_that_die_at_once_are_both_accounted_for(tmp_path):
    x = torch.zeros(2000)

    def count(part):
        part.add_(1)
        (tmp_path / f"pid-{os.getpid()}").touch()
        if len(list(tmp_path.glob("pid-*"))) >= 2 and once(tmp_path / "died"):
            for path in tmp_path.glob("pid-*"):
                if int(path.name[4:]) != os.getpid():
                    os.kill(int(path.name[4:]), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    tdmap.map(x, count, num_workers=2, chunksize=4, out=x)
    assert torch.equal(x, torch.ones(2000))
