"""Rows of a lazy stack, alike or of different lengths, through every stage that cuts and joins pieces."""

import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack

ROWS = 23


def row(number, ragged):
    return TensorDict({"x": torch.tensor(number), "v": torch.full((number % 4 + 1 if ragged else 2,), number)}, [])


def nested(number, ragged):
    return TensorDict({"x": torch.tensor(number), "inner": row(number, ragged)}, [])


def rows_of(kind):
    ragged = kind != "alike"
    if kind == "below":
        below = lazy_stack([row(number, ragged) for number in range(ROWS)])
        return TensorDict({"x": torch.arange(ROWS), "below": below}, [ROWS])
    return lazy_stack([(nested if kind == "nested" else row)(number, ragged) for number in range(ROWS)])


def numbers(pieces):
    """The number of each row, which all its entries tell."""
    found = []
    for piece in pieces:
        for one in piece.unbind(0):
            number = int(one["x"])
            for values in (one, *(one[key] for key in ("inner", "below") if key in one.keys())):
                assert int(values["x"]) == number
                if "v" in values.keys():
                    assert set(values["v"].tolist()) == {number}
            found.append(number)
    return found


def even(td):
    return td["x"] % 2 == 0


EVENS = list(range(0, ROWS, 2))
CHAINS = {
    "batches of a filter": (lambda p, d: p.filter(even).batch(4), EVENS),
    "batches again": (lambda p, d: p.batch(5).unbatch().batch(3), list(range(ROWS))),
    "row by row": (lambda p, d: p.map_rows(lambda td: td.clone()).batch(4), list(range(ROWS))),
    "several of each": (
        lambda p, d: p.flat_map(lambda td: (td[n : n + 1] for n in range(len(td)) for _ in range(2))).batch(4),
        [n for n in range(ROWS) for _ in range(2)],
    ),
    "after one another": (lambda p, d: p.concat(d).batch(4), [*range(ROWS), *range(ROWS)]),
    "an even share": (lambda p, d: p.filter(even).shard(1, 3, even="drop").batch(2), EVENS[1::3]),
    "side by side": (
        lambda p, d: p.filter(even).zip(p.filter(even).map(lambda td: TensorDict({"z": td["x"]}, [len(td)]))).batch(4),
        EVENS,
    ),
}


@pytest.mark.parametrize("kind", ["alike", "ragged", "nested", "below"])
@pytest.mark.parametrize("chain", list(CHAINS))
def test_every_row_comes_as_it_is(kind, chain):
    data = rows_of(kind)
    make, wanted = CHAINS[chain]
    for options in ({"num_workers": 0}, {"num_workers": 2}):
        assert numbers(make(data.pipeline(), data).iter(chunksize=5, **options)) == wanted
    assert numbers([make(data.pipeline(), data).collect(chunksize=5, num_workers=0)]) == wanted


@pytest.mark.parametrize("kind", ["alike", "ragged", "nested", "below"])
@pytest.mark.parametrize("buffer", [1, 6, 50])
def test_a_shuffle_buffer_gives_every_row_once(kind, buffer):
    data = rows_of(kind)
    pipeline = data.pipeline().shuffle(seed=0, buffer=buffer).batch(4)
    elements = pipeline.iter(num_workers=0, chunksize=5)
    got = [next(elements), next(elements)]
    later = pipeline.iter(num_workers=0, chunksize=5)
    later.load_state_dict(elements.state_dict())
    rest = list(elements)
    assert numbers(later) == numbers(rest)
    found = numbers([*got, *rest])
    assert sorted(found) == list(range(ROWS))
    assert numbers([data]) == list(range(ROWS)), "the rows themselves are as they were"
    assert (found != sorted(found)) is (buffer > 1)
