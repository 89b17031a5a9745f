"""Pipelines of several parts: their orders, random streams and positions."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from tdmap import Pipeline
from tensordict_lite import TensorDict


@pytest.mark.parametrize("batch", [3, 7, 13])
def test_batches_across_epochs_have_the_order_that_each_part_has_in_its_epoch(batch, workers):
    def numbered(name: str, first: int) -> Pipeline:
        return TensorDict({name: torch.arange(first, first + 5)}, [5]).pipeline()

    part = numbered("x", 0).shuffle(1)
    for pipeline in (part.concat(numbered("x", 5)), part.zip(numbered("y", 0)), part.concat(part).concat(part).take(9)):
        epochs = [pipeline.iter(num_workers=0, epoch=epoch) for epoch in range(3)]
        wanted = [int(row["x"]) for epoch in epochs for row in epoch]
        batches = [b["x"].tolist() for b in pipeline.repeat(3).batch(batch).iter(**workers)]
        assert sum(batches, []) == wanted
        assert {len(b) for b in batches[:-1]} <= {batch}
        assert len(pipeline.repeat(3).batch(batch)) == len(batches)


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
