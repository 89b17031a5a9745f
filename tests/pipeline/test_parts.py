"""Pipelines of several parts: their orders, random streams and positions."""

import itertools
import json

import pytest
import torch

from tensordict_lite import TensorDict

pytestmark = pytest.mark.filterwarnings("ignore:this pipeline is iterated once more")


POSITIONED = {
    "filtered": lambda p: p.filter(lambda td: td["x"] % 2 == 0).batch(3),
    "rows": lambda p: p.filter(lambda td: td["x"] % 2 == 0),
    "copied": lambda p: p.flat_map(lambda td: torch.cat([td, td])).take(33).batch(4),
    "concat": lambda p: p.filter(lambda td: td["x"] > 4).concat(p.shuffle(2)).filter(lambda td: td["x"] < 33).batch(7),
    "epochs": lambda p: p.filter(lambda td: td["x"] > 30).repeat(3).batch(4),
    "buffered": lambda p: p.filter(lambda td: td["x"] > 20).shuffle(0, buffer=6).batch(4),
}


@pytest.mark.parametrize("chain", list(POSITIONED))
def test_a_position_holds_for_any_chunksize(data, chain):
    pipeline = POSITIONED[chain](data.pipeline(seed=1).map(noise))

    def values(elements) -> list[list[float]]:
        return [[*row["x"].reshape(-1).tolist(), *row["noise"].reshape(-1).tolist()] for row in elements]

    for saving in (1, 4, None):
        whole = values(pipeline.iter(num_workers=0, chunksize=saving))
        for position in range(0, len(whole) + 1, 3):
            first = pipeline.iter(num_workers=0, chunksize=saving)
            assert len(list(itertools.islice(first, position))) == position
            saved = first.state_dict()
            if chain != "buffered":
                saved = json.loads(json.dumps(saved))
            for chunksize in (10, 3, None):
                later = pipeline.iter(num_workers=0, chunksize=chunksize)
                list(itertools.islice(later, 2))
                later.load_state_dict(saved)
                assert later.state_dict()["chunks"] == saved["chunks"]
                assert values(later) == whole[position:]


def noise(td):
    """Another number for each row, which depends on the chunk that it is in."""
    return td.clone(False).set("noise", torch.rand(td.shape[0]))


PARTS = {
    "concat": lambda plain, part: plain.concat(part),
    "streams": lambda plain, part: plain.filter(lambda td: td["x"] >= 0).concat(part.filter(lambda td: td["x"] >= 0)),
    "zip": lambda plain, part: plain.map(lambda td: TensorDict({"z": td["x"]}, td.batch_size)).zip(part),
    "within": lambda plain, part: plain.concat(plain.concat(part)),
}


def drawn(td):
    """Rows that are random numbers."""
    return TensorDict({"x": torch.randint(0, 1 << 40, td.batch_size)}, td.batch_size)


@pytest.mark.parametrize("chain", list(PARTS))
def test_a_part_that_draws_goes_on_with_the_same_bits(data, chain):
    pipeline = PARTS[chain](data.pipeline().select("x"), data.pipeline().map(drawn)).batch(7)
    first = pipeline.iter(num_workers=0)
    next(first)
    saved = first.state_dict()
    rest = [batch["x"].tolist() for batch in first]
    later = pipeline.iter(num_workers=0)
    later.load_state_dict(saved)
    assert [batch["x"].tolist() for batch in later] == rest
    assert saved["seed"] is not None
    assert data.pipeline().concat(data).iter(num_workers=0).state_dict()["seed"] is None


@pytest.mark.parametrize("chain", list(PARTS))
def test_the_seed_of_a_part_is_used_where_the_pipeline_has_none(data, chain, workers):
    def values(seed: int | None, of_part: int | None) -> list[int]:
        plain = data.pipeline(seed=seed).select("x")
        pipeline = PARTS[chain](plain, data.pipeline(seed=of_part).map(drawn))
        collected = pipeline.collect(num_workers=0, chunksize=16)["x"].tolist()
        batches = pipeline.iter(**workers, chunksize=16)
        assert [int(row["x"]) for row in batches] == collected
        return collected

    assert values(None, 3) == values(3, None) == values(3, 4) != values(None, 4)
