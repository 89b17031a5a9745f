"""Pipelines of several parts: their orders, random streams and positions."""

from __future__ import annotations

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
