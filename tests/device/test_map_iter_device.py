"""`map_iter(device=...)`: results arrive on the device, and the position counts what was yielded."""

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

EXECUTORS = ["serial", "thread", "process"]


@pytest.fixture
def data() -> TensorDict:
    return TensorDict({"x": torch.arange(40 * 20_000.0).reshape(40, 20_000), "row": torch.arange(40)}, [40])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_results_arrive_whole_and_in_order(links, fake, data, executor):
    parts = [
        part.clone()
        for part in tdmap.map_iter(data, lambda td: td + 1, num_workers=2, chunksize=2, executor=executor, device=fake)
    ]
    joined = torch.cat(parts)
    assert torch.equal(joined["x"], data["x"] + 1) and torch.equal(joined["row"], data["row"] + 1)


def test_slots_of_workers_are_page_locked_and_none_is_copied_first(links, fake, data):
    values = tdmap.map_iter(data, lambda td: td["x"] * 2, num_workers=2, chunksize=1, device=fake, prefetch=3)
    held = list(values)
    assert links[0].pageable == 0
    assert all(torch.equal(part[0], data["x"][n] * 2) for n, part in enumerate(held))


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_the_position_counts_what_was_yielded(fake, data, prefetch):
    def rows():
        options = {"shuffle": True, "seed": 3, "device": fake, "prefetch": prefetch}
        return tdmap.map_iter(data, lambda td: td["row"], executor="serial", chunksize=4, **options)

    epoch = rows()
    first = [next(epoch) for _ in range(3)]
    saved = epoch.state_dict()
    assert saved["position"] == 3
    rest = list(epoch)
    assert len(first) + len(rest) == 10
    later = rows()
    later.load_state_dict(saved)
    assert torch.equal(torch.cat(list(later)), torch.cat(rest))
    assert torch.equal(torch.cat(first + rest).sort()[0], data["row"])


def test_leaving_the_loop_leaves_nothing_under_way(links, fake, data):
    epoch = tdmap.map_iter(data, lambda td: td["x"], num_workers=2, chunksize=1, device=fake)
    next(epoch)
    epoch.close()
    assert links[0].mark().is_done()
    assert len(list(tdmap.map_iter(data, lambda td: td["x"], num_workers=2, chunksize=1))) == 40


def test_an_exception_comes_in_its_turn(fake, data):
    def fail(td):
        if int(td["row"][0]) == 20:
            raise KeyError("twenty")
        return td["row"]

    got = []
    with pytest.raises(KeyError, match="twenty"):
        for value in tdmap.map_iter(data, fail, executor="serial", chunksize=1, device=fake, prefetch=4):
            got.append(int(value))
    assert got == list(range(len(got)))


@pytest.mark.parametrize(
    "options", [{"device": "cuda:99"}, {"device": "meta"}, {"device": "cpu", "prefetch": -1}, {"prefetch": "two"}]
)
def test_bad_options_are_refused_before_anything_runs(data, options):
    with pytest.raises(ValueError, match=r"cuda:99|meta|prefetch"):
        tdmap.map_iter(data, lambda td: td, **options)


def test_default_chunks_are_larger(fake):
    long = torch.zeros(40_000, 200)

    def largest(**options):
        return max(len(part) for part in tdmap.map_iter(long, lambda x: x[:, :50], executor="serial", **options))

    assert largest() == largest(device="cpu") == 40_000 // 64  # enough of them for every core
    wide = torch.zeros(200, 40_000)
    parts = [
        {len(part) for part in tdmap.map_iter(wide, lambda x: x + 1, executor="serial", **options)}
        for options in ({}, {"device": fake})
    ]
    assert max(parts[0]) == 3 and max(parts[1]) == 4  # a mebibyte; and what 64 chunks leave


def test_on_the_cpu_results_are_the_workers_own(data):
    here = list(tdmap.map_iter(data, lambda td: td["row"], executor="serial", chunksize=20, device="cpu"))
    assert torch.equal(torch.cat(here), data["row"])
