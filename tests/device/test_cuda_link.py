"""The calls that a `CudaLink` makes, in their order, on a machine without CUDA: torch.cuda is played by stand-ins."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from tdmap.data.kinds import Data
from tdmap.execution import Execution
from tdmap.job import Job, Source
from tdmap.memory.links import CudaLink
from tdmap.ops.iteration.prefetch import prefetch_over
from tdmap.output.device import DeviceBuffer
from tdmap.plan import ChunkPlan

HERE = torch.device("cpu")


class Calls(list):
    """What was asked of CUDA, and the streams that were current."""

    inside: tuple[str, ...] = ()
    code = 0

    def note(self, *call):
        self.append((*call, *self.inside))

    @contextlib.contextmanager
    def within(self, name):
        before, self.inside = self.inside, (*self.inside, name)
        yield
        self.inside = before


@pytest.fixture
def calls(monkeypatch) -> Calls:
    calls = Calls()

    class Stream:
        def __init__(self, device=None, name="side"):
            self.name = name

        def wait_stream(self, other):
            calls.note(f"{self.name} waits for {other.name}")

        def wait_event(self, event):
            calls.note(f"{self.name} waits for an event of {event.stream.name}")

        def synchronize(self):
            calls.note(f"host waits for {self.name}")

    class Event:
        def __init__(self, enable_timing=False, blocking=False):
            assert blocking  # the host sleeps: workers need the cores

        def record(self, stream):
            self.stream = stream
            calls.note(f"event on {stream.name}")

        def query(self):
            return True

        def synchronize(self):
            calls.note("host waits for an event")

    def register(address, nbytes, flags):
        assert type(address) is int and type(nbytes) is int and flags == 1
        calls.note("register")
        return calls.code

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda address: calls.note("unregister"))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(name="current"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: calls.within(stream.name))
    monkeypatch.setattr(torch.cuda, "device", lambda device: calls.within("device"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, s: calls.note(f"memory used by {s.name}"))
    copy_ = torch.Tensor.copy_

    def noted_copy(self, source, non_blocking=False):
        if non_blocking:
            calls.note("copy")
        return copy_(self, source)

    monkeypatch.setattr(torch.Tensor, "copy_", noted_copy)
    return calls


def test_copies_go_to_the_side_stream_and_are_handed_over(calls):
    link = CudaLink(HERE)
    source = torch.arange(3.0)
    link.follow()
    (there,) = link.empty_like([source])
    link.copy([(there, source)])
    mark = link.mark()
    link.hand_over(mark, [there])
    assert mark.is_done() and torch.equal(there, source)
    mark.wait()
    link.synchronize()
    link.settle()
    assert calls == [
        ("side waits for current",),
        ("copy", "side"),
        ("event on side",),
        ("current waits for an event of side",),
        ("memory used by current",),
        ("host waits for an event",),
        ("event on side",),
        ("host waits for an event",),
        ("event on current",),
        ("host waits for an event",),
    ]


def test_page_locks_are_made_for_the_device_and_failures_are_survived(calls):
    link = CudaLink(HERE)
    assert link.lock(4096, 8192) is True
    link.unlock(4096)
    assert calls == [("register", "device"), ("unregister", "device")]
    calls.code = 1
    with pytest.warns(RuntimeWarning, match=r"8,192 bytes could not be page-locked \(cudaHostRegister: error 1\)"):
        assert link.lock(4096, 8192) is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="page-locked memory is there on this machine")
def test_without_page_locked_memory_staging_is_ordinary(calls):
    with pytest.warns(RuntimeWarning, match="page-locked"):
        assert CudaLink(HERE).staging(100).shape == (100,)


def test_what_is_here_already_is_not_fetched(calls):
    here = torch.ones(2)
    (same,) = CudaLink(HERE).fetch([here])
    assert same is here and calls == [("event on current",), ("host waits for an event",)]


def double(x: Data) -> Data:
    return x * 2


def test_a_buffer_over_it(calls):
    data, out = torch.arange(12.0), torch.zeros(12, dtype=torch.float64)
    with DeviceBuffer(out, CudaLink(HERE)) as sink:
        Execution(executor="serial").run(Job(Source(data), ChunkPlan(12, 4), double), sink)
    assert torch.equal(out, data.double() * 2)
    assert calls[0] == ("side waits for current",) and calls[-2:] == [("event on side",), ("host waits for an event",)]
    assert all("side" in call for call in calls if call[0] == "copy")
    assert sum(call[0] == "copy" for call in calls) == 3 * 2  # over the link, and the cast


def test_prefetching_over_it(calls, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    values = list(prefetch_over(CudaLink(HERE), iter([torch.ones(2), torch.zeros(2)]), 1))
    assert [float(x[0]) for x in values] == [1, 0]
    names = [call[0] for call in calls]
    assert names.count("copy") == names.count("current waits for an event of side") == 2
    assert names[-2:] == ["event on side", "host waits for an event"]
