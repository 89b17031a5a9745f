"""Epochs that are set, lengths that are known, orders that are drawn, and shares of one size for every rank."""

import pytest
import torch
from torch.utils.data import DataLoader

from tensordict_lite import TensorDict

pytestmark = pytest.mark.filterwarnings("ignore:this pipeline is iterated once more")


@pytest.fixture
def rows():
    return TensorDict({"x": torch.arange(50)}, [50])


def order(elements) -> list[int]:
    return [int(x) for element in elements for x in element["x"].reshape(-1)]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_reads_columns_that_are_expanded(workers):
    x = torch.arange(5)
    data = TensorDict({"x": x, "one": torch.arange(3).expand(5, 3), "each": x[:, None].expand(5, 2)}, [5])
    found = list(data.pipeline().repeat(2).batch(5).iter(num_workers=workers))
    assert [batch["x"].tolist() for batch in found] == [[0, 1, 2, 3, 4]] * 2
    for batch in found:
        assert all(torch.equal(batch[key], data[key]) for key in data.keys())


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_changes_the_order_of_a_data_loader(rows, workers, persistent):
    pipeline = rows.pipeline().shuffle(seed=1).batch(5)
    pipeline.set_epoch(0)
    loader = DataLoader(pipeline, batch_size=None, num_workers=workers, persistent_workers=persistent and bool(workers))
    orders = []
    for epoch in (0, 1, 2, 1):
        pipeline.set_epoch(epoch)
        orders.append(order(loader))
    assert all(sorted(one) == list(range(50)) for one in orders)
    assert orders[1] == orders[3] and len({tuple(one) for one in orders}) == 3
    if not workers:
        assert orders[2] == order(pipeline.iter(epoch=2, num_workers=0))


def test_an_epoch_counts_for_all_that_was_made_from_the_pipeline(rows):
    base = rows.pipeline().shuffle(seed=1)
    batches = base.batch(5)
    base.set_epoch(3)
    assert order(batches.iter(num_workers=0)) == order(batches.iter(epoch=3, num_workers=0))
    with pytest.raises(ValueError, match="epoch must be an integer"):
        base.set_epoch(-1)


def test_an_order_is_drawn_where_no_seed_is_given(rows):
    torch.manual_seed(0)
    first, second = rows.pipeline().shuffle(), rows.pipeline().shuffle()
    orders = [order(p.iter(num_workers=0)) for p in (first, second, first)]
    assert orders[0] == orders[2] != orders[1] and sorted(orders[1]) == list(range(50))
    torch.manual_seed(0)
    assert order(rows.pipeline().shuffle().iter(num_workers=0)) == orders[0]


@pytest.mark.parametrize(
    "make, count",
    [
        (lambda p: p, 50),
        (lambda p: p.batch(8), 7),
        (lambda p: p.batch(8, drop_last=True), 6),
        (lambda p: p.take(20).batch(8), 3),
        (lambda p: p.batch(8).skip(2), 5),
        (lambda p: p.repeat(2).batch(8), 13),
        (lambda p: p.shard(1, 3).batch(4), 5),
    ],
)
def test_an_iterator_has_the_length_that_is_left(rows, make, count):
    elements = make(rows.pipeline()).iter(num_workers=0)
    assert len(elements) == count and bool(elements)
    next(elements)
    saved = elements.state_dict()
    assert len(elements) == count - 1 == len(list(elements))
    later = make(rows.pipeline()).iter(num_workers=0)
    later.load_state_dict(saved)
    assert len(later) == count - 1 == len(list(later))


def test_a_length_that_is_not_known(rows):
    for pipeline in (rows.pipeline().filter(lambda c: c["x"] > 3), rows.pipeline().repeat().batch(4)):
        with pytest.raises(TypeError, match="is unknown"):
            len(pipeline.iter(num_workers=0))


def test_a_pipeline_cannot_be_indexed(rows):
    with pytest.raises(TypeError, match=r"cannot be indexed.*take\(n\)\.collect\(\)"):
        rows.pipeline()[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 60])
@pytest.mark.parametrize("shuffled", [False, True])
def test_shares_of_rows_are_even(rows, count, shuffled):
    pipeline = rows.pipeline().shuffle(seed=4) if shuffled else rows.pipeline()
    whole = order(pipeline.iter(num_workers=0))
    dropped = [order(pipeline.shard(i, count, even="drop").iter(num_workers=0)) for i in range(count)]
    assert sum(dropped, []) == whole[: 50 // count * count] and {len(part) for part in dropped} == {50 // count}
    padded = [order(pipeline.shard(i, count, even="pad").iter(num_workers=0)) for i in range(count)]
    assert sum(padded, []) == [*whole, *whole, *whole][: -(-50 // count) * count]


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p, share: share(p).batch(4),
        lambda p, share: share(p.batch(4)),
        lambda p, share: share(p.filter(lambda c: c["x"] % 3 > 0)).batch(4),
        lambda p, share: share(p.filter(lambda c: c["x"] % 3 > 0).batch(4)),
        lambda p, share: share(p.flat_map(lambda c: torch.cat([c, c]))).batch(4),
    ],
    ids=["rows", "batches", "filtered rows", "filtered batches", "new rows"],
)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_rank_has_as_many_batches(rows, make, even, count):
    ranks = [
        list(make(rows.pipeline(), lambda p, i=i: p.shard(i, count, even=even)).iter(num_workers=0))
        for i in range(count)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [x for batches in ranks for x in order(batches)]
    whole = order(make(rows.pipeline(), lambda p: p).iter(num_workers=0))
    if even == "pad":
        assert set(seen) == set(whole)
    else:
        assert len(seen) <= len(whole) and set(seen) <= set(whole)


def test_a_round_that_is_not_full_is_padded_with_its_elements_in_turn(rows):
    kept = rows.pipeline().filter(lambda c: c["x"] % 3 > 0)  # 33 rows: three are left for five ranks
    whole = order(kept.iter(num_workers=0))
    padded = [order(kept.shard(rank, 5, even="pad").iter(num_workers=0)) for rank in range(5)]
    assert [share[-1] for share in padded] == [*whole[30:], *whole[30:32]]


def test_an_order_that_a_part_has_drawn_is_refused_for_ranks(rows, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    drawn = rows.pipeline().shuffle()
    for chain in (rows.pipeline().concat(drawn), rows.pipeline().zip(drawn.map(lambda td: td.select()))):
        with pytest.raises(ValueError, match="each rank would draw another seed"):
            chain.shard("auto")
        with pytest.raises(ValueError, match="each rank would draw another seed"):
            chain.iter(shard="auto", num_workers=0)


def with_noise(td):
    return td.clone(False).set("noise", torch.rand(td.shape[0]))


def third(td):
    return td["x"] % 3 != 0


SHARES = {
    "rows": lambda p, share: share(p).map(with_noise),
    "batches in workers": lambda p, share: share(p).batch(4).map(with_noise),
    "batches here": lambda p, share: share(p.filter(third)).batch(4).map(with_noise),
    "counted": lambda p, share: share(p.filter(third).take(16)).batch(4).map(with_noise),
    "even batches": lambda p, share: share(p.filter(third).batch(4).map(with_noise)).take(9),
    "parts": lambda p, share: share(p).map(with_noise).concat(share(p).map(with_noise)),
    "side by side": lambda p, share: share(p).map(with_noise).zip(share(p).select("x").map(lambda td: td.select())),
    "of parts": lambda p, share: share(p.map(with_noise).concat(p.map(with_noise))),
}


@pytest.mark.parametrize("chain", list(SHARES))
def test_ranks_with_rows_of_their_own_do_not_draw_alike(chain):
    rows = TensorDict({"x": torch.arange(40)}, [40]).pipeline(seed=3)
    drawn = []
    for rank in range(3):
        elements = SHARES[chain](rows, lambda p, rank=rank: p.shard(rank, 3)).iter(num_workers=0, chunksize=4)
        drawn.append([value for element in elements for value in element["noise"].reshape(-1).tolist()])
    alike = [value for value in drawn[0] if value in drawn[1] or value in drawn[2]]
    assert drawn[0]
    assert not alike
    assert not set(drawn[1]) & set(drawn[2])
