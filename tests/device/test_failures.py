"""What goes wrong on a device ends in an error that names its own rows, or in a slower way to the same bytes."""

import functools
import os

import pytest
import torch

import tdmap
from tdmap.data.reader import Reader
from tdmap.memory import links as device_module
from tdmap.plan import ChunkPlan
from tdmap.runtime import ondevice, undo
from tensordict_lite import TensorDict
from tests.device.fakelink import FakeLink, launch

FAKE = "mtia"
ROWS = 60


@pytest.fixture
def data() -> TensorDict:
    return TensorDict({"x": torch.arange(ROWS * 50.0).reshape(ROWS, 50), "row": torch.arange(ROWS)}, [ROWS])


@pytest.fixture(params=["serial", "thread", "process"])
def on_device(request, monkeypatch):
    def call(data, fn, link=FakeLink, **options):
        monkeypatch.setitem(device_module.LINKS, FAKE, link)
        if request.param == "process":
            options.setdefault("mp_start_method", "fork")
        options = {"device": FAKE, "num_workers": 2, "chunksize": 2, **options}
        return tdmap.map(data, fn, executor=request.param, **options)

    call.executor = request.param
    return call


def notes(error) -> str:
    return "\n".join(error.__notes__)


# -- threads -------------------------------------------------------------------------------------------


def test_a_function_that_raises_on_its_first_chunk_of_data_elsewhere_is_heard():
    there = torch.ones(64, 8, device="meta")
    for options in ({"executor": "thread", "num_workers": 2}, {"executor": "serial"}):
        with pytest.raises(ZeroDivisionError) as caught:
            tdmap.map(there, lambda x: 1 / 0, **options)
        assert "raised by <lambda> on row" in notes(caught.value)
        assert "could not be put back as they were" in notes(caught.value)  # nobody can, there


def test_rows_are_kept_where_they_are():
    there = TensorDict({"x": torch.ones(8, 3, device="meta"), "y": torch.ones(8)}, [8])
    room = undo.allocate_room(there, ChunkPlan(8, 2), lambda dtype, shape: torch.empty(shape, dtype=dtype))
    assert [(buffer.device.type, tuple(buffer.shape)) for buffer in room.buffers] == [("meta", (2, 3)), ("cpu", (2,))]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_whatever_ends_a_thread_is_heard(data, monkeypatch, kind):
    def fail(self):
        raise kind("the engine itself")

    monkeypatch.setattr("tdmap.runtime.chunkloop._Segments.flush", fail)
    with pytest.raises(kind, match="the engine itself") as caught:
        tdmap.map(data, lambda td: td["x"], executor="thread", num_workers=2, chunksize=2)
    assert "in thread" in notes(caught.value)


# -- whose error it is -----------------------------------------------------------------------------------


def failing(row):
    """A function whose kernel fails on a row, some time after it was given to the device."""

    def fail(rows):
        if (rows == row).any():
            raise torch.AcceleratorError("device-side assert triggered")

    def fn(td):
        rows = td["row"]
        launch(lambda: fail(rows))
        return td["x"]

    return fn


@pytest.mark.parametrize("stays", [False, True])
def test_an_error_that_comes_late_names_its_own_rows(on_device, data, monkeypatch, stays):
    monkeypatch.setattr("tdmap.devices.DevicePlan.stays", lambda self, execution: stays)
    for seed in range(3):
        with pytest.raises(torch.AcceleratorError, match="assert") as caught:
            out = torch.zeros(ROWS, 50)
            on_device(data, failing(31), functools.partial(FakeLink, seed=seed), out=out)
        assert "raised by" in notes(caught.value) and "rows 30:32 (chunk 15)" in notes(caught.value)
        assert "can be used no more in the process" in notes(caught.value)
        assert torch.equal(out[:28], data["x"][:28]) or on_device.executor != "serial"


def test_a_lost_device_ends_the_worker_and_the_pool_goes_on(data, monkeypatch):
    monkeypatch.setitem(device_module.LINKS, FAKE, FakeLink)
    with tdmap.WorkerPool(1, "fork") as pool:
        pool.warm_up()
        (before,) = pool.stats()["pids"]
        with pytest.raises(torch.AcceleratorError) as caught:
            tdmap.map(data, failing(31), device=FAKE, pool=pool, chunksize=2)
        assert "the worker is replaced" in notes(caught.value)
        where = tdmap.map(data, lambda td: torch.full(td.shape, os.getpid()), device=FAKE, pool=pool, chunksize=2)
        assert set(where.tolist()) == set(pool.stats()["pids"]) != {before}


def test_rows_after_a_lost_device_are_not_skipped_for_it(on_device, data):
    with pytest.raises(torch.AcceleratorError) as caught:
        on_device(data, failing(31), on_error="skip")
    assert "rows 30:32" in notes(caught.value) and "cannot be skipped" in notes(caught.value)


def test_a_device_that_is_lost_while_rows_are_tried_alone(on_device, data):
    lose = failing(31)

    def fn(td):
        if len(td) > 1 and (td["row"] == 31).any():
            raise ValueError("one of these")
        return lose(td)

    with pytest.raises(torch.AcceleratorError) as caught:
        on_device(data, fn, on_error="skip", num_workers=1)
    assert "rows 30:32" in notes(caught.value) and "cannot be skipped" in notes(caught.value)


def test_another_error_is_skipped_as_ever(on_device, data):
    def fn(td):
        if (td["row"] == 31).any():
            raise RuntimeError("no matter of the device")
        return td["x"]

    with pytest.warns(tdmap.errors.SkippedRows, match="1 row"):
        result = on_device(data, fn, on_error="skip")
    assert torch.equal(result[32:], data["x"][32:]) and torch.equal(result[:31], data["x"][:31])


def test_an_error_of_data_that_live_there_says_that_it_may_be_late():
    def fn(x):
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError) as caught:
        tdmap.map(torch.ones(4, device="meta"), fn, executor="serial", chunksize=1)
    assert "meta reports errors late" in notes(caught.value)


# -- memory ----------------------------------------------------------------------------------------------


class Crowded(FakeLink):
    """A device whose memory is short at one moment."""

    short_at, seen = 5, 0

    def empty_like(self, tensors):
        self.seen += 1
        if self.seen == self.short_at:
            raise torch.OutOfMemoryError("out of memory: the chunk before still has it")
        return super().empty_like(tensors)


def test_a_chunk_that_has_no_room_beside_the_one_before_waits_for_its_turn(on_device, data):
    assert torch.equal(on_device(data, lambda td: td["x"] + 1, Crowded), data["x"] + 1)


class Full(FakeLink):
    """No room for what is larger than a row."""

    def empty_like(self, tensors):
        tensors = list(tensors)
        if sum(tensor.nbytes for tensor in tensors) > 1000 and getattr(self, "fewer", True):
            raise torch.OutOfMemoryError("out of memory")
        return super().empty_like(tensors)


class Sparing(FakeLink):
    """Counts what lives there at a time."""

    most = 0

    def empty_like(self, tensors):
        made = super().empty_like(tensors)
        Sparing.most = max(Sparing.most, sum(self._memory.values()))
        return made


def test_a_chunk_that_never_fits_is_named(on_device, data):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        on_device(data, lambda td: td["x"], Full, chunksize=10, num_workers=1)
    assert "while the chunk was copied to mtia" in notes(caught.value) and "0:10 (chunk 0)" in notes(caught.value)


def test_a_chunk_that_does_not_fit_is_cut_where_rows_may_be_skipped(on_device, data):
    assert torch.equal(on_device(data, lambda td: td["x"] * 2, Full, chunksize=10, on_error="skip"), data["x"] * 2)


def test_chunks_larger_than_the_device_are_refused_before_the_first_row(on_device, data):
    calls = []
    small = functools.partial(FakeLink, memory=5000)
    with pytest.raises(MemoryError, match=r"chunks of 30 rows take 6,240 bytes on mtia.*5,000 of 5,000.*chunksize=12"):
        on_device(data, lambda td: calls.append(1), small, chunksize=30)
    assert not calls
    assert torch.equal(on_device(data, lambda td: td["x"], small, chunksize=12), data["x"])


def test_two_chunks_are_there_at_a_time(data, monkeypatch):
    monkeypatch.setitem(device_module.LINKS, FAKE, Sparing)
    tdmap.map(data, lambda td: None, device=FAKE, executor="serial", chunksize=2)
    assert 0 < Sparing.most <= 3 * 1024  # each has some alignment


def test_a_staged_error_is_dropped_with_a_lease_that_was_cut_short(data):
    link = FakeLink()
    runner = ondevice.Runner(lambda td: td["x"], link, stays=False)
    chunks = list(Reader(data, ChunkPlan(ROWS, 10)).read(0, 3))
    monkey = link.empty_like
    link.empty_like = None  # raises, whatever it is called with
    runner.stage(chunks[0])
    link.empty_like = monkey
    runner.stage(chunks[1])
    assert torch.equal(runner(chunks[1]), data["x"][10:20])


# -- random streams ----------------------------------------------------------------------------------------


DEVICE_STREAM = torch.Generator()


@pytest.fixture
def device_stream(monkeypatch):
    monkeypatch.setattr("tdmap.seeding.generator_of", lambda device: DEVICE_STREAM if device.type == FAKE else None)
    DEVICE_STREAM.manual_seed(77)
    tdmap.close_pools()  # forks from here on know the stand-in
    yield DEVICE_STREAM
    tdmap.close_pools()


def drawn_there(td):
    return td["x"] + torch.randn(td["x"].shape, generator=DEVICE_STREAM)


def test_a_seed_gives_the_same_bits_from_the_devices_own_stream(device_stream, on_device, data):
    state = device_stream.get_state()
    first = on_device(data, drawn_there, seed=3, num_workers=2)
    assert torch.equal(on_device(data, drawn_there, seed=3, num_workers=1), first)
    assert not torch.equal(on_device(data, drawn_there, seed=4), first)
    assert torch.equal(device_stream.get_state(), state)  # the caller's stream goes on where it was


def test_rows_that_are_tried_alone_have_their_own_streams_there(device_stream, on_device, data):
    def fn(td):
        if (td["row"] == 30).any():
            raise ValueError("thirty")
        return drawn_there(td)

    results = []
    for workers in (1, 2):
        with pytest.warns(tdmap.errors.SkippedRows):
            results.append(on_device(data, fn, seed=3, num_workers=workers, on_error="skip"))
    assert torch.equal(*results)
    alone = on_device(data, drawn_there, seed=3, chunksize=1)
    assert torch.equal(results[0][31], alone[31]) and not torch.equal(results[0][32:34], alone[32:34])


# -- bytes -------------------------------------------------------------------------------------------------


def test_lazy_conjugates_and_signs_come_back_taken(on_device):
    z = torch.randn(12, 5, dtype=torch.complex64)
    assert torch.equal(on_device(z, lambda t: t.conj()), z.conj().resolve_conj())
    assert torch.equal(on_device(z, lambda t: t.conj().imag), -z.imag)
