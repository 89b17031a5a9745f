"""Batches on a device, by a link that delays copies as CUDA may, and on CUDA where there is one."""

import itertools

import pytest
import torch

from tdmap.memory import links as links
from tests.device.fakelink import FakeLink

pytestmark = pytest.mark.filterwarnings("ignore:this pipeline is iterated once more")


def batches_of(pipeline, **options):
    return [batch["x"].tolist() for batch in pipeline.iter(**options)]


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_arrive_on_cuda(data, num_workers):
    pipeline = data.pipeline(seed=1).shuffle(1).batch(7).map(lambda td: td.clone(False).set("y", td["image"] * 2))
    for got, wanted in zip(
        pipeline.iter(device="cuda", num_workers=num_workers), pipeline.iter(num_workers=0), strict=True
    ):
        assert got["y"].device.type == "cuda"
        assert torch.equal(got["y"].cpu(), wanted["y"])


@pytest.mark.gpu
def test_positions_on_cuda_are_those_of_the_batches_that_were_yielded(data):
    pipeline = data.pipeline().shuffle(1).batch(4)
    whole = batches_of(pipeline, num_workers=0)
    first = pipeline.iter(device="cuda", prefetch=4, num_workers=2)
    assert [batch["x"].tolist() for batch in itertools.islice(first, 3)] == whole[:3]
    later = pipeline.iter(device="cuda", num_workers=2)
    later.load_state_dict(first.state_dict())
    assert [batch["x"].tolist() for batch in later] == whole[3:]


@pytest.mark.parametrize("device", ["cuda:77", "nowhere", "meta"])
def test_a_device_that_does_not_exist_is_refused_at_once(data, device):
    with pytest.raises((ValueError, RuntimeError), match="device"):
        data.pipeline().batch(4).iter(device=device)


def test_the_cpu_is_a_device(data):
    assert batches_of(data.pipeline().batch(20), device="cpu", num_workers=0) == [
        list(range(20)),
        list(range(20, 40)),
    ]


@pytest.fixture(params=range(3))
def fake(request, monkeypatch) -> str:
    """A device that every machine has, whose link delays and reorders copies."""
    monkeypatch.setitem(links.LINKS, "mtia", lambda device: FakeLink(device, seed=request.param))
    return "mtia:0"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_arrive_whole(data, fake, num_workers):
    pipeline = data.pipeline().shuffle(1).filter(lambda td: td["x"] % 5 != 0).batch(3)
    wanted = batches_of(pipeline, num_workers=0)
    got = []
    for batch in pipeline.iter(device=fake, num_workers=num_workers, prefetch=3):
        got.append(batch["x"].tolist())
        batch["x"].zero_()  # it is the consumer's own
    assert got == wanted


def test_positions_are_those_of_the_batches_that_were_yielded(data, fake):
    for pipeline in (data.pipeline().shuffle(1).batch(4), data.pipeline().shuffle(1, buffer=6).batch(4)):
        whole = batches_of(pipeline, num_workers=0)
        for position in (0, 1, 4, 10):
            first = pipeline.iter(device=fake, prefetch=3, num_workers=0)
            assert [batch["x"].tolist() for batch in itertools.islice(first, position)] == whole[:position]
            later = pipeline.iter(num_workers=0)
            later.load_state_dict(first.state_dict())
            assert [batch["x"].tolist() for batch in later] == whole[position:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_who_goes_on_after_an_exception_misses_no_batch(data, fake, num_workers, tmp_path):
    def once(td):
        if td["x"][0] == 20 and not (tmp_path / "mended").exists():
            (tmp_path / "mended").touch()
            raise ValueError("not there yet")
        return td

    elements, got = data.pipeline().batch(5).map(once).iter(device=fake, num_workers=num_workers, prefetch=3), []
    with pytest.raises(ValueError, match="not there yet"):
        got.extend(batch["x"].tolist() for batch in elements)
    got.extend(batch["x"].tolist() for batch in elements)
    assert [value for batch in got for value in batch] == list(range(40))
