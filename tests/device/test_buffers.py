"""Results go to a device through page-locked slots, and no slot is used again before it has been read."""

import os
import signal

import pytest
import torch

import tdmap
from tdmap.devices import check_device_out
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.output.device import DeviceBuffer
from tdmap.output.output import Output
from tdmap.run.context import Context
from tdmap.runtime.workers.pool import WorkerPool
from tensordict_lite import LazyStackedTensorDict, TensorDict, tensorclass
from tests.device.fakelink import FakeLink

ROWS, WIDTH = 96, 3000


@pytest.fixture
def data() -> TensorDict:
    x = torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    return TensorDict({"x": x, "meta": {"row": torch.arange(ROWS)}}, [ROWS])


def device_memory(data: TensorDict) -> TensorDict:
    return TensorDict(
        {"x": torch.full((ROWS, WIDTH), -1.0), "meta": {"row": torch.full((ROWS,), -1)}},
        [ROWS],
    )


def negate(td: TensorDict) -> TensorDict:
    return TensorDict({"x": -td["x"].float(), "meta": {"row": td["meta", "row"] * 10}}, td.batch_size)


def run(data, fn, out, link, *, dim=0, chunksize=4, policy=None, bounds=(), **options):
    if "pool" not in options:
        options.setdefault("num_workers", 2)
    plan = Context("map", Execution(), Output(None, data), {"chunksize": chunksize}).plan(data, dim, out)
    with DeviceBuffer(out, link, *bounds) as sink:
        return Execution(**options).run(Job(Source(data), plan, fn, policy or Policy()), sink)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_every_row_arrives(data, executor, seed):
    link, out = FakeLink(seed=seed), device_memory(data)
    assert run(data, negate, out, link, executor=executor) is out
    assert torch.equal(out["x"], -data["x"].float())
    assert torch.equal(out["meta", "row"], data["meta", "row"] * 10)
    assert link.copied_bytes == sum(leaf.nbytes for leaf in out.values(True, True))


def test_results_of_workers_travel_in_page_locked_slots(data):
    link = FakeLink()
    with WorkerPool(2) as pool:
        run(data, negate, device_memory(data), link, pool=pool)
    assert link.pageable == 0


def test_slots_are_locked_once_a_pool_and_unlocked_with_it(data):
    pages: dict[int, int] = {}
    with WorkerPool(2) as pool:
        links = [FakeLink(seed=seed, locked=pages) for seed in range(4)]
        for link in links:
            out = device_memory(data)
            run(data, negate, out, link, pool=pool)
            assert torch.equal(out["x"], -data["x"].float()) and link.pageable == 0
        assert links[0].locks > 0
        # Timing decides how many slots a run needs; never does a later one lock them all again.
        assert sum(link.locks for link in links) == len(pages) <= 2 * 40
    assert not pages


def test_an_ordinary_job_gives_the_locked_slots_back(data):
    pages: dict[int, int] = {}
    with WorkerPool(1) as pool:
        link = FakeLink(locked=pages)
        run(data, negate, device_memory(data), link, pool=pool)
        assert pages
        before = link.locks
        parts = 0
        for part in tdmap.map_iter(data, negate, chunksize=4, pool=pool):
            assert not pages  # from its first result on
            parts += len(part)
        assert parts == ROWS and link.locks == before


def test_results_that_grow_do_not_leave_locked_slots_behind(data):
    pages: dict[int, int] = {}
    with WorkerPool(1) as pool:
        for rows in (4, 8, 16, 32):
            out = device_memory(data)
            run(data, negate, out, FakeLink(locked=pages), pool=pool, chunksize=rows)
            assert torch.equal(out["x"], -data["x"].float())
        largest = max(pages.values())
        assert largest >= 32 * WIDTH * 4 and len(pages) <= 40


def test_without_page_locks_copies_are_made_all_the_same(data):
    link, out = FakeLink(lockable=0), device_memory(data)
    with WorkerPool(2) as pool:
        run(data, negate, out, link, pool=pool)
    assert torch.equal(out["x"], -data["x"].float()) and link.pageable > 0 and link.locks == 0


def test_what_is_in_flight_is_bounded(data):
    class Lazy(FakeLink):
        """Nothing is ever done before somebody waits."""

        most = 0

        def wander(self):
            self.most = max(self.most, len(self._copies.operations))

    link, out = Lazy(), device_memory(data)
    run(data, negate, out, link, executor="serial", bounds=(100_000, 1))
    assert torch.equal(out["x"], -data["x"].float())
    assert link.most <= 2 * (100_000 // (4 * WIDTH * 4) + 2)  # two leaves a chunk


def test_small_results_share_a_mark(data, monkeypatch):
    class Counting(FakeLink):
        marks = 0

        def mark(self):
            self.marks += 1
            return super().mark()

    link, out = Counting(), device_memory(data)
    run(data, negate, out, link, chunksize=1)
    assert torch.equal(out["x"], -data["x"].float()) and link.marks <= ROWS // 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.bool, torch.complex64, torch.uint8, torch.int64]
)
def test_every_dtype_arrives_in_its_own_and_in_another(data, dtype, seed):
    wider = torch.complex128 if dtype.is_complex else torch.float32 if dtype.is_floating_point else torch.int64

    def fn(td):
        x = td["x"] % 2 == 0 if dtype is torch.bool else (td["x"] % 100).to(dtype)
        return TensorDict({"same": x, "wider": x}, td.batch_size)

    out = TensorDict(
        {"same": torch.zeros(ROWS, WIDTH, dtype=dtype), "wider": torch.zeros(ROWS, WIDTH, dtype=wider)}, [ROWS]
    )
    run(data, fn, out, FakeLink(seed=seed), executor="thread", chunksize=16)
    want = fn(data)["same"]
    assert torch.equal(out["same"], want) and torch.equal(out["wider"], want.to(wider))


def test_outputs_that_are_views_of_others(data):
    """Columns of a wider tensor, every second row, a transposed one: what lies between is left alone."""
    wide, sparse, turned = (
        torch.full((ROWS, 2 * WIDTH), -1.0),
        torch.full((2 * ROWS, WIDTH), -1.0),
        torch.zeros(WIDTH, ROWS),
    )
    out = TensorDict({"a": wide[:, WIDTH:], "deep": {"b": sparse[::2], "c": turned.T}}, [ROWS])

    def fn(td):
        x = td["x"].float()
        return TensorDict({"a": x, "deep": {"b": x + 1, "c": x.T.contiguous().T * 2}}, td.batch_size)

    for seed in range(4):
        run(data, fn, out, FakeLink(seed=seed), executor="process" if seed % 2 else "serial")
        x = data["x"].float()
        assert torch.equal(wide[:, WIDTH:], x) and torch.equal(sparse[::2], x + 1) and torch.equal(turned, x.T * 2)
        assert (wide[:, :WIDTH] == -1).all() and (sparse[1::2] == -1).all()
        out.zero_()


def test_a_device_that_is_full_casts_here(data):
    link = FakeLink(memory=0)
    out = TensorDict({"x": torch.zeros(ROWS, WIDTH, dtype=torch.float64)}, [ROWS])
    run(data, lambda td: TensorDict({"x": td["x"].float()}, td.batch_size), out, link)
    assert torch.equal(out["x"], data["x"].double())
    assert link.copied_bytes == ROWS * WIDTH * 8  # once, wider


def test_a_device_that_fails_under_the_copies_names_rows_and_itself(data):
    class Failing(FakeLink):
        def mark(self):
            if self.copied_bytes > ROWS * WIDTH * 2:
                raise torch.AcceleratorError("an illegal memory access was encountered")
            return super().mark()

    with pytest.raises(torch.AcceleratorError) as caught:
        run(data, negate, device_memory(data), Failing(), executor="serial")
    assert (
        "while the results of rows" in caught.value.__notes__[0] and "were copied to cpu" in caught.value.__notes__[0]
    )


def test_copies_wait_for_what_the_caller_does_to_the_output(data):
    for seed in range(10):
        link, out = FakeLink(seed=seed), device_memory(data)
        link.current.enqueue(lambda out=out: out["x"].zero_())  # as `torch.zeros(..., device="cuda")` leaves it
        run(data, negate, out, link, executor="serial")
        link.settle()
        assert torch.equal(out["x"], -data["x"].float())


def test_a_cast_happens_over_there(data):
    link = FakeLink(seed=3)
    out = TensorDict({"x": torch.zeros(ROWS, WIDTH, dtype=torch.float64)}, [ROWS])
    run(data, lambda td: TensorDict({"x": (td["x"] % 200).to(torch.uint8)}, td.batch_size), out, link)
    assert torch.equal(out["x"], (data["x"] % 200).double())
    assert link.copied_bytes == ROWS * WIDTH * (1 + 1)  # a byte each over the link, and again from there


def test_entries_that_either_side_lacks_and_none_results_are_left_alone(data):
    link, out = FakeLink(), device_memory(data)

    def odd(td):
        if int(td["meta", "row"][0]) % 8 == 0:
            return None
        return TensorDict({"x": td["x"].float(), "extra": td["x"]}, td.batch_size)

    run(data, odd, out, link)
    chunks = out["x"].reshape(-1, 4, WIDTH)
    assert torch.equal(chunks[1::2], data["x"].float().reshape(-1, 4, WIDTH)[1::2]) and (chunks[::2] == -1).all()
    assert (out["meta", "row"] == -1).all()


def test_tensors_other_dimensions_single_rows_and_tensorclasses(data):
    x = torch.arange(24.0).reshape(4, 6)
    out = torch.zeros(4, 6)
    run(x, lambda part: part * 2, out, FakeLink(), dim=1, chunksize=4)
    assert torch.equal(out, x * 2)
    out = torch.zeros(4, 6)
    run(x, lambda row: row + 1, out, FakeLink(), chunksize=0)
    assert torch.equal(out, x + 1)

    @tensorclass
    class Item:
        x: torch.Tensor

    items = Item(x=x, batch_size=[4])
    out = Item(x=torch.zeros(4, 6), batch_size=[4])
    run(items, lambda item: item * 3, out, FakeLink(), chunksize=2, executor="serial")
    assert torch.equal(out.x, x * 3)


def test_a_killed_worker_loses_no_rows(data, tmp_path):
    flag = str(tmp_path / "killed")

    def kill_once(td):
        import os
        import signal

        if int(td["meta", "row"][0]) == 40 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return negate(td)

    for seed in range(3):
        link, out = FakeLink(seed=seed), device_memory(data)
        run(data, kill_once, out, link)
        assert torch.equal(out["x"], -data["x"].float())
        (tmp_path / "killed").unlink()


def test_slots_of_a_killed_worker_are_read_before_they_are_unlocked(data, tmp_path):
    class Lazy(FakeLink):
        """Nothing is ever done before somebody waits."""

        def wander(self):
            pass

    flag = tmp_path / "killed"

    def kill_once(td):
        if int(td["meta", "row"][0]) == 48 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return negate(td)

    link, out = Lazy(), device_memory(data)
    run(data, kill_once, out, link, num_workers=1)
    assert flag.exists() and torch.equal(out["x"], -data["x"].float()) and link.locks > 1


def test_after_an_error_nothing_is_under_way_and_the_pool_goes_on(data):
    def fail(td):
        if int(td["meta", "row"][0]) == 60:
            raise KeyError("sixty")
        return negate(td)

    pages: dict[int, int] = {}
    with WorkerPool(2) as pool:
        link, out = FakeLink(locked=pages), device_memory(data)
        with pytest.raises(KeyError, match="sixty"):
            run(data, fail, out, link, pool=pool)
        assert link.mark().is_done()
        rows = out["x"].reshape(-1, 4, WIDTH)
        whole = [
            bool((part == -1).all()) or torch.equal(part, want) for part, want in zip(rows, expected(data), strict=True)
        ]
        assert all(whole)
        assert pages
        tdmap.map(data, lambda td: td["x"][:, 0], pool=pool)  # nobody knows any more which slots are in use
        assert not pages
        out = device_memory(data)
        run(data, negate, out, FakeLink(locked=pages), pool=pool)
        assert torch.equal(out["x"], -data["x"].float())
    assert not pages


def expected(data):
    return -data["x"].float().reshape(-1, 4, WIDTH)


def test_rows_that_raise_are_zeros_in_a_device_buffer(data):
    def fail(td):
        row = td["meta", "row"]
        if (row == 7).any() or ((row >= 40) & (row < 48)).any():
            raise ValueError("seven, and two whole chunks")
        return negate(td)

    out = device_memory(data)
    with pytest.warns(tdmap.errors.SkippedRows):
        run(data, fail, out, FakeLink(), policy=Policy(skip="pad"))
    want = -data["x"].float()
    want[7] = want[40:48] = 0
    assert torch.equal(out["x"], want)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda td: TensorDict({"x": td["x"][:, :5].float()}, td.batch_size), r"rows 0:4.*'x'.*\(4, 5\)"),
        (lambda td: TensorDict({"meta": {"row": td["x"][:, 0] + 1j}}, td.batch_size), "'row'.*complex"),
        (lambda td: td["x"], "TensorDict"),
        (lambda td: TensorDict({"meta": td["x"]}, td.batch_size), "Tensor"),
        (lambda td: 3, "int"),
    ],
)
def test_a_result_that_does_not_fit_is_named(data, fn, message):
    with pytest.raises(tdmap.errors.OutputMismatch, match=message):
        run(data, fn, device_memory(data), FakeLink(), num_workers=1)


def test_outputs_that_no_link_can_serve():
    cpu = TensorDict({"x": torch.zeros(2), "y": {"z": torch.zeros(2)}}, [2])
    assert check_device_out(cpu) is None and check_device_out(torch.zeros(2)) is None
    meta = TensorDict({"x": torch.zeros(2, device="meta"), "y": {"z": torch.zeros(2)}}, [2])
    with pytest.raises(ValueError, match=r"one device.*'x' on meta.*'z'\) on cpu"):
        check_device_out(meta)
    stack = LazyStackedTensorDict(TensorDict({"x": torch.zeros(2, device="meta")}), stack_dim=0)
    with pytest.raises(TypeError, match="LazyStackedTensorDict"):
        check_device_out(stack)
