"""Ranks that train together: every batch once, as many on each, and a position that any number of them can load."""

import json

import pytest
import torch
from torch.utils.data import DataLoader

from tensordict_lite import TensorDict
from tests.products import sampled

ROWS = 53


@pytest.fixture
def rows():
    return TensorDict({"x": torch.arange(ROWS)}, [ROWS])


def noisy(chunk: TensorDict) -> TensorDict:
    return chunk.copy().set("noise", torch.rand(chunk.batch_size))


def plain(p):
    return p.batch(4)


def shuffled(p):
    return p.shuffle(seed=3).map(noisy).batch(4)


def filtered(p):
    return p.shuffle(seed=3).filter(lambda c: c["x"] % 3 > 0).map(noisy).batch(4)


def buffered(p):
    return p.shuffle(seed=3, buffer=16).batch(4)


def repeated(p):
    return p.shuffle(seed=3).repeat(2).map(noisy).batch(4)


def each_epoch(p):
    return p.shuffle(seed=3).batch(4).repeat(2)


def skipped(p):
    return p.map(noisy).batch(4).skip(3)


def filtered_batches(p):
    return p.map(noisy).batch(4).filter(lambda b: bool(b["x"][0] % 8))


CHAINS = [plain, shuffled, filtered, buffered, repeated, each_epoch, skipped, filtered_batches]
named = pytest.mark.parametrize("make", CHAINS, ids=lambda make: make.__name__)


def listed(batches) -> list[dict[str, list[float]]]:
    return [{key: batch[key].tolist() for key in sorted(batch.keys())} for batch in batches]


def in_rounds(ranks: list[list[object]]) -> list[object]:
    """What all ranks have, in the order in which they train on it."""
    return [rank[step] for step in range(max(map(len, ranks))) for rank in ranks if step < len(rank)]


@named
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [3])
def test_ranks_share_the_batches_of_one_program(rows, make, workers, world):
    pipeline = make(rows.pipeline(seed=5))
    whole = listed(pipeline.iter(num_workers=0))
    ranks = [listed(pipeline.iter(shard=(rank, world), num_workers=workers)) for rank in range(world)]
    assert in_rounds(ranks) == whole, "with the same augmentations"


@named
@pytest.mark.parametrize("world", [1, 2, 3, 5, 40])
def test_every_rank_has_as_many_batches(rows, make, world):
    pipeline = make(rows.pipeline(seed=5))
    whole = listed(pipeline.iter(num_workers=0))
    full = len(whole) // world * world
    dropped = [listed(pipeline.shard(rank, world, even="drop").iter(num_workers=0)) for rank in range(world)]
    assert {len(rank) for rank in dropped} == {len(whole) // world} and in_rounds(dropped) == whole[:full]
    padded = [listed(pipeline.shard(rank, world, even="pad").iter(num_workers=0)) for rank in range(world)]
    assert {len(rank) for rank in padded} == {-(-len(whole) // world)}
    assert in_rounds(padded)[: len(whole)] == whole
    rest = whole[full:]
    assert all(batch in rest for batch in in_rounds(padded)[len(whole) :])


@pytest.mark.parametrize("even", [None, "drop", "pad"])
@named
def test_a_share_is_the_same_whatever_ends_the_chain(rows, make, even):
    share = make(rows.pipeline(seed=5)).shard(1, 3, even=even)
    batches = [batch["x"] for batch in share.iter(num_workers=0)]
    assert torch.cat(batches).tolist() == share.collect(num_workers=0)["x"].tolist()
    assert share.count() == len(batches)


@named
@pytest.mark.parametrize("before, after", [(2, 3), (3, 2), (4, 1), (1, 4)])
def test_a_position_survives_another_world_size(rows, make, before, after):
    pipeline = make(rows.pipeline(seed=5))
    whole = listed(pipeline.iter(num_workers=0, epoch=2))
    steps = 1 if make is filtered_batches else 2
    states = []
    for rank in range(before):
        elements = pipeline.iter(shard=(rank, before), even="drop", num_workers=0, epoch=2)
        assert [next(elements) for _ in range(steps)]
        states.append(elements.state_dict())
    for rank, state in enumerate(states[:1] if make is buffered else states):  # of any rank
        state = state if make is buffered else json.loads(json.dumps(state))
        later = [pipeline.iter(shard=(other, after), even="pad", num_workers=0) for other in range(after)]
        for elements in later:
            elements.load_state_dict(state)
        rest = whole[steps * before :]
        found = [listed(elements) for elements in later]
        assert in_rounds(found)[: len(rest)] == rest, rank
        assert len({len(one) for one in found}) == 1


@named
@pytest.mark.parametrize("even", [None, "drop", "pad"])
@pytest.mark.parametrize("before, after", [(3, 2), (5, 1)])
def test_after_any_round_the_states_of_all_ranks_are_one(rows, make, even, before, after):
    pipeline = make(rows.pipeline(seed=5))
    whole = listed(pipeline.iter(num_workers=0))
    ranks = [pipeline.iter(shard=(rank, before), even=even, num_workers=0) for rank in range(before)]
    for step in range(-(-len(whole) // before) + 1):  # the last time, all have ended
        ended = [next(elements, None) is None for elements in ranks]
        used = len(whole) if all(ended) or step * before >= len(whole) else (step + 1) * before
        for rank, elements in enumerate(ranks):
            later = [pipeline.iter(shard=(other, after), num_workers=0) for other in range(after)]
            for other in later:
                other.load_state_dict(elements.state_dict())
            if make not in (filtered, filtered_batches):
                assert sum(map(len, later)) == len(whole[used:]), (step, rank)
            assert in_rounds([listed(other) for other in later]) == whole[used:], (step, rank)


def test_an_iterator_of_a_rank_has_the_length_that_is_left(rows):
    for even, count in ((None, [5, 5, 4]), ("drop", [4, 4, 4]), ("pad", [5, 5, 5])):
        for rank, length in enumerate(count):
            elements = rows.pipeline().batch(4).shard(rank, 3, even=even).iter(num_workers=0)
            assert len(elements) == length
            next(elements)
            state = elements.state_dict()
            assert len(elements) == length - 1 == len(list(elements))
            other = rows.pipeline().batch(4).shard(0, 2, even="drop").iter(num_workers=0)
            other.load_state_dict(state)  # 14 batches, of which 3 are used up
            assert len(other) == 5 == len(list(other))


@pytest.mark.parametrize("make, even, workers", sampled(2, CHAINS, ["drop", "pad"], [1, 2]))
def test_workers_of_a_data_loader_divide_the_share_of_their_rank(rows, make, workers, even):
    pipeline = make(rows.pipeline(seed=5))
    for rank in range(2):
        share = pipeline.shard(rank, 2, even=even)
        loader = DataLoader(share, batch_size=None, num_workers=workers)
        assert listed(loader) == listed(share.iter(num_workers=0))


def test_ranks_without_batches_of_their_own_draw_other_numbers_than_the_first(rows):
    parts = [rows.pipeline(seed=5).shard(rank, 2, even="drop").map(noisy).batch(4) for rank in range(2)]
    first, second = (torch.cat([batch["noise"] for batch in part.iter(num_workers=0)]) for part in parts)
    assert not bool((first == second).any())


def test_a_rank_computes_its_own_batches_only(rows, tmp_path):
    def noted(batch):
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        return batch

    assert len(list(rows.pipeline().batch(4).map(noted).shard(1, 4, even="drop").iter(num_workers=0))) == 3
    assert len((tmp_path / "calls").read_text()) == 3


def test_the_rank_of_torchrun(rows, monkeypatch):
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE are not set: start the program with torchrun"):
        rows.pipeline().batch(4).shard("auto")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="and WORLD_SIZE is not set"):
        rows.pipeline().iter(shard="auto")
    monkeypatch.setenv("WORLD_SIZE", "3")
    batches = rows.pipeline().batch(4)
    wanted = listed(batches.shard(1, 3, even="drop").iter(num_workers=0))
    assert listed(batches.shard("auto", even="drop").iter(num_workers=0)) == wanted
    assert listed(batches.iter(shard="auto", even="drop", num_workers=0)) == wanted
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="RANK must be below WORLD_SIZE"):
        batches.shard("auto")


def test_ranks_must_not_draw_an_order_each(rows, monkeypatch):
    drawn = rows.pipeline().shuffle().batch(4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for share in (lambda: drawn.shard("auto"), lambda: drawn.iter(shard="auto")):
        with pytest.raises(ValueError, match=r"each rank would draw another seed.*shuffle\(seed=\.\.\.\)"):
            share()
    both = [drawn.shard(rank, 2) for rank in range(2)]  # of one program, which has drawn once
    assert sorted(x for one in both for batch in one.iter(num_workers=0) for x in batch["x"].tolist()) == list(
        range(ROWS)
    )
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert drawn.shard("auto").count() == 14


def test_bad_shares_are_named(rows):
    batches = rows.pipeline().batch(4)
    with pytest.raises(ValueError, match="index must be below count"):
        batches.shard(3, 3)
    with pytest.raises(ValueError, match="0 <= rank < world_size"):
        batches.iter(shard=(3, 3))
    with pytest.raises(ValueError, match=r"even= is about shares"):
        batches.iter(even="pad")
    with pytest.raises(ValueError, match="'drop' or 'pad'"):
        batches.iter(shard=(0, 2), even="both")
    with pytest.raises(ValueError, match="'auto' or None"):
        batches.iter(shard="all")


class _States(torch.utils.data.IterableDataset):
    def __init__(self, share, state=None):
        self.share, self.state = share, state

    def __iter__(self):
        elements = iter(self.share)
        if torch.utils.data.get_worker_info().id:
            yield None
            return
        if self.state is not None:
            elements.load_state_dict(self.state)
        next(elements)
        yield elements.state_dict()


def test_a_state_of_workers_cannot_be_loaded_by_other_ranks(rows):
    batches = rows.pipeline().batch(4)

    def state_of(rank: int, world: int) -> dict[str, object]:
        share = batches.shard(rank, world, even="drop")
        (state,) = {json.dumps(s) for s in DataLoader(_States(share), batch_size=None, num_workers=2)} - {"null"}
        return json.loads(state)

    state = state_of(0, 2)
    list(DataLoader(_States(batches.shard(1, 2, even="drop"), state), batch_size=None, num_workers=2))
    with pytest.raises(ValueError, match="of 2 ranks with 2 workers.*by 3 ranks"):
        list(DataLoader(_States(batches.shard(1, 3, even="drop"), state), batch_size=None, num_workers=2))
