"""The same promises on a real device: run with `make gpu`, skipped where there is none."""

import itertools
import mmap
import os

import pytest
import torch

import tdmap
from tdmap.memory.links import CudaLink
from tdmap.memory.shm import anonymous_file, map_path
from tdmap.ops.iteration.prefetch import prefetch_to_device
from tdmap.runtime.wire.lending import can_lend
from tensordict_lite import TensorDict
from tensordict_lite.memmap.disk.mapping import release

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ROWS, WIDTH = 512, 40_000


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def data() -> TensorDict:
    x = torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)
    return TensorDict({"x": x, "meta": {"row": torch.arange(ROWS)}}, [ROWS])


def keep_busy(gpu: torch.device) -> None:
    """Some milliseconds of work for the current stream, so that what does not wait for it comes too early."""
    a = torch.randn(4096, 4096, device=gpu)
    for _ in range(20):
        a = a @ a.clamp(-1e-3, 1e-3)


def plus_one(td: TensorDict) -> TensorDict:
    return TensorDict({"x": td["x"] + 1, "meta": {"row": td["meta", "row"] * 2}}, td.batch_size)


# -- the link ------------------------------------------------------------------------------------------


def test_slots_can_be_page_locked_and_unlocked(gpu):
    link, nbytes = CudaLink(gpu), 8 * mmap.PAGESIZE
    fd, path, unlink = anonymous_file(nbytes)
    mapped = map_path(path, nbytes)
    slot = torch.frombuffer(mapped, dtype=torch.uint8)
    assert not link.is_locked(slot)
    assert link.lock(slot.data_ptr(), nbytes) and link.is_locked(slot) and link.is_locked(slot[100:200])
    out = torch.zeros(nbytes, dtype=torch.uint8, device=gpu)
    slot.fill_(7)
    link.follow()
    link.copy([(out, slot)])
    mark = link.mark()
    mark.wait()
    assert mark.is_done() and bool((out == 7).all())
    link.unlock(slot.data_ptr())
    assert not link.is_locked(slot)
    release(os.getpid(), fd, unlink)


def test_a_lock_that_fails_leaves_no_error_behind(gpu):
    link = CudaLink(gpu)
    with pytest.warns(RuntimeWarning, match="page-locked"):
        assert not link.lock(mmap.PAGESIZE, 1 << 20)  # nobody's memory
    assert float(torch.ones(3, device=gpu).sum()) == 3


def test_copies_wait_for_the_callers_stream(gpu):
    link = CudaLink(gpu)
    for _ in range(5):
        out = torch.empty(1 << 20, device=gpu)
        keep_busy(gpu)
        out.zero_()
        source = torch.ones(1 << 20).pin_memory()
        link.follow()
        link.copy([(out, source)])
        link.hand_over(link.mark(), [out])
        assert bool((out == 1).all())
        link.synchronize()


def test_fetched_results_are_complete(gpu):
    link = CudaLink(gpu)
    keep_busy(gpu)
    x = torch.arange(1 << 20, device=gpu) * 2
    here, there = link.fetch([x, torch.ones(2)])
    assert here.is_pinned() and torch.equal(here, torch.arange(1 << 20) * 2) and there.tolist() == [1, 1]


# -- prefetching ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2, 6])
def test_prefetched_values_are_whole_under_load(gpu, prefetch):
    values = ({"x": torch.full((1 << 18,), float(n)), "n": n} for n in range(40))
    sums = []
    for value in prefetch_to_device(values, gpu, prefetch):
        assert value["x"].device == gpu
        keep_busy(gpu)
        sums.append((value["n"], value["x"].double().mean()))
    assert all(float(mean) == n for n, mean in sums) and len(sums) == 40


def test_memory_of_values_that_are_gone_is_not_used_too_early(gpu):
    """`record_stream`: the consumer's kernels still read a value after its tensor has gone."""
    total = torch.zeros((), dtype=torch.float64, device=gpu)
    for value in prefetch_to_device((torch.full((1 << 20,), float(n)) for n in range(60)), gpu):
        keep_busy(gpu)
        total += value.double().mean()
        del value
    assert float(total) == sum(range(60))


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_map_iter(gpu, data, executor):
    epoch = tdmap.map_iter(data, plus_one, num_workers=2, chunksize=16, executor=executor, device=gpu)
    first = [next(epoch) for _ in range(3)]
    saved = epoch.state_dict()
    rest = list(epoch)
    assert saved["position"] == 3 and all(part.device == gpu and part["x"].device == gpu for part in rest)
    assert torch.equal(torch.cat(first + rest)["x"].cpu(), data["x"] + 1)


# -- buffers -------------------------------------------------------------------------------------------


def buffer(gpu: torch.device) -> TensorDict:
    row = torch.zeros(ROWS, device=gpu, dtype=torch.float64)
    return TensorDict({"x": torch.zeros(ROWS, WIDTH, device=gpu), "meta": {"row": row}}, [ROWS])


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_results_fill_a_buffer(gpu, data, executor):
    for _ in range(3):
        keep_busy(gpu)
        out = buffer(gpu)
        assert tdmap.map(data, plus_one, out=out, num_workers=2, chunksize=8, executor=executor) is out
        assert torch.equal(out["x"].cpu(), data["x"] + 1)
        assert torch.equal(out["meta", "row"].cpu(), data["meta", "row"].double() * 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool, torch.complex64, torch.uint8])
def test_buffers_of_every_dtype_and_layout(gpu, dtype):
    x = torch.randint(0, 2, (64, 3000)).to(dtype)
    wide = torch.zeros(64, 6000, dtype=dtype, device=gpu)
    wider = torch.complex128 if dtype.is_complex else torch.float64
    out = TensorDict({"same": wide[:, ::2], "deep": {"wider": torch.zeros(3000, 64, dtype=wider, device=gpu).T}}, [64])

    def fn(part):
        return TensorDict({"same": part, "deep": {"wider": part}}, part.shape[:1])

    for device in (None, gpu):
        tdmap.map(x, fn, out=out, device=device, num_workers=2, chunksize=8)
        assert torch.equal(out["same"].cpu(), x) and torch.equal(out["deep", "wider"].cpu(), x.to(wider))
        assert not wide[:, 1::2].any()
        out.zero_()


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_rows_that_raise_are_skipped_there(gpu, data, executor):
    def fail(td):
        if (td["meta", "row"] == 37).any():
            raise ValueError("thirty-seven")
        return plus_one(td)

    for device in (None, gpu):
        out = buffer(gpu)
        with pytest.warns(tdmap.errors.SkippedRows, match="row 37"):
            tdmap.map(
                data, fail, out=out, device=device, num_workers=2, chunksize=8, executor=executor, on_error="skip"
            )
        want = data["x"] + 1
        want[37] = 0
        assert torch.equal(out["x"].cpu(), want)


def test_a_seed_gives_the_same_bits_there(gpu):
    x = torch.zeros(64, 100)
    results = [
        tdmap.map(x, torch.randn_like, device=gpu, seed=1, chunksize=4, executor=executor, num_workers=workers)
        for executor, workers in (("process", 1), ("process", 2), ("thread", 2), ("serial", 0))
    ]
    assert all(torch.equal(result, results[0]) for result in results[1:])


# -- functions on the device -----------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_a_function_runs_there_and_results_come_back(gpu, data, executor, tmp_path):
    def there(td):
        assert td["x"].is_cuda and td.device == td["x"].device
        return plus_one(td)

    result = tdmap.map(data, there, device="cuda", num_workers=2, chunksize=8, executor=executor)
    assert result["x"].device.type == "cpu" and torch.equal(result["x"], data["x"] + 1)
    saved = tdmap.map(data, there, device=gpu, num_workers=2, chunksize=8, executor=executor, out=tmp_path / "out")
    assert torch.equal(saved["x"], data["x"] + 1)


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_a_function_in_place_changes_the_source(gpu, data, executor):
    want = -data["x"]
    tdmap.map(data, lambda td: td["x"].neg_() is None or None, device=gpu, num_workers=2, executor=executor)
    assert torch.equal(data["x"], want)


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_a_module_runs_there(gpu, data, executor):
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.BatchNorm1d(8)).eval()
    result = tdmap.map(
        data / data["x"].max(), model, in_keys="x", out_keys="z", device=gpu, executor=executor, num_workers=2
    )
    assert torch.allclose(result["z"], model(data["x"] / data["x"].max()).detach(), atol=1e-3)
    assert all(p.device.type == "cpu" and not p.is_shared() for p in model.parameters())


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_results_stay_in_a_buffer_there(gpu, data, executor):
    if executor == "process" and not can_lend(gpu):
        pytest.skip("this system cannot lend device memory to another process")
    out = buffer(gpu)
    keep_busy(gpu)
    tdmap.map(data, plus_one, device=gpu, out=out, num_workers=2, chunksize=8, executor=executor)
    assert torch.equal(out["x"].cpu(), data["x"] + 1)


def test_a_killed_worker_loses_no_rows_of_a_buffer(gpu, data, tmp_path):
    flag = str(tmp_path / "killed")

    def kill_once(td):
        import os
        import signal

        if int(td["meta", "row"][0]) >= 256 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return plus_one(td)

    for device in (None, gpu):
        out = buffer(gpu)
        tdmap.map(data, kill_once, out=out, device=device, num_workers=2, chunksize=8)
        assert torch.equal(out["x"].cpu(), data["x"] + 1)
        (tmp_path / "killed").unlink()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_workers_take_devices_in_turns(data):
    devices = [f"cuda:{n}" for n in range(torch.cuda.device_count())]
    found = tdmap.map(
        data,
        lambda td: torch.full(td.shape, td["x"].device.index),
        device=devices,
        num_workers=len(devices),
        chunksize=1,
    )
    assert set(found.tolist()) == set(range(len(devices)))


def test_many_epochs_leave_no_page_locks(gpu, data):
    with tdmap.WorkerPool(2) as pool:
        for _ in itertools.repeat(None, 5):
            for part in tdmap.map_iter(data, plus_one, chunksize=8, pool=pool, device=gpu):
                last = part
        assert torch.equal(last["x"].cpu(), data["x"][-8:] + 1)
        locked = [len(member.reader._locked) for member in pool.members.values()]
        assert all(0 < count <= 64 for count in locked)
