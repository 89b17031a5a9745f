"""Device memory is neither used again too early nor kept too long; what is short, lost or of others is told."""

import functools

import pytest
import torch

from tdmap.data.reader import Reader
from tdmap.ops.iteration.prefetch import prefetch_over, send
from tdmap.plan import ChunkPlan
from tdmap.runtime import ondevice
from tests.device.fakelink import FakeLink


def note(seen: list, address: torch.Tensor, number: int) -> None:
    seen.append((float(address[0]), number))


def read_late():
    """Prefetched values whose memory the consumer gives back while its kernels still wait to read it."""
    wrong = 0
    for seed in range(10):
        link, sums = FakeLink(seed=seed, caller_streams=True), []
        for number, value in enumerate(prefetch_over(link, iter([torch.full((99,), float(n)) for n in range(12)]), 3)):
            address = link.raw(value)
            link.current.enqueue(functools.partial(note, sums, address, number))
            del value
        link.settle()
        wrong += sum(found != number for found, number in sums)
        assert len(sums) == 12
    return wrong


def test_values_that_the_consumer_drops_are_not_used_again_too_early(monkeypatch):
    assert read_late() == 0
    hand_over = FakeLink.hand_over
    monkeypatch.setattr(FakeLink, "hand_over", lambda self, mark, tensors: hand_over(self, mark, []))
    assert read_late() > 0  # the instrument


def chunks_let_go() -> int:
    """Chunks that a function has given a kernel to read, and then lets go of; how many were overwritten first."""
    wrong = 0
    for seed in range(10):
        link, seen = FakeLink(seed=seed, caller_streams=True), []
        data = torch.arange(20.0)

        def fn(chunk, link=link, seen=seen):
            link.current.enqueue(functools.partial(note, seen, link.raw(chunk), 0))
            return torch.zeros(1)

        runner = ondevice.Runner(fn, link, stays=True)
        for chunk in runner.reader(Reader(data, ChunkPlan(20, 2))).read(0, 10):
            runner(chunk)
            del chunk
        link.settle()
        wrong += [value for value, _ in seen] != data[::2].tolist()
    return wrong


def test_chunks_that_a_function_lets_go_of_are_not_used_again_too_early(monkeypatch):
    assert chunks_let_go() == 0
    hand_over = FakeLink.hand_over
    monkeypatch.setattr(FakeLink, "hand_over", lambda self, mark, tensors: hand_over(self, mark, []))
    assert chunks_let_go() > 0  # the instrument


def test_memory_that_the_link_did_not_make_is_not_recorded():
    link = FakeLink()
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(NotImplementedError):
        link.hand_over(link.mark(), [sparse])
    sent = send(link, {"sparse": sparse, "x": torch.ones(2)})
    assert [tensor.shape for tensor in sent.tensors] == [(2,)]
    link.hand_over(sent.mark, sent.tensors)
    (found,) = prefetch_over(link, iter([sparse]), 1)
    assert torch.equal(found.to_dense(), torch.eye(3))


def test_prefetching_waits_for_room_and_says_when_there_is_none():
    values = [torch.full((25,), float(n)) for n in range(9)]
    link = FakeLink(memory=250)  # two of them
    found = []
    for value in prefetch_over(link, iter(values), 5):
        found.append(float(value[0]))
        del value
    assert found == list(range(9))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        list(prefetch_over(FakeLink(memory=250), iter(values), 5))  # the consumer holds them all
    assert (
        "a value of 100 bytes" in caught.value.__notes__[0] and "50 of 250 bytes are free" in caught.value.__notes__[0]
    )


def test_a_lost_device_does_not_keep_the_source_from_being_closed():
    closed = []

    def values():
        try:
            yield from (torch.zeros(3) for _ in range(9))
        finally:
            closed.append(True)

    link = FakeLink()
    epoch = prefetch_over(link, values(), 1)
    next(epoch)
    link._error = torch.AcceleratorError("lost")
    with pytest.raises(torch.AcceleratorError):
        next(epoch)
    assert closed
