"""What is left unfinished, and ended by the garbage collector, in whatever order that does it."""

import gc

import torch

import tdmap


def test_an_iteration_that_the_collector_ends_spoils_no_pool(data):
    for _ in range(2):
        tdmap.close_pools()  # so that the pool is a new one, younger than what refers to it
        elements = data.pipeline().batch(2).iter(num_workers=2)
        next(elements)
        cycle = [elements]
        cycle.append(cycle)
        del elements, cycle
        gc.collect()
        rows = torch.cat([batch["x"] for batch in data.pipeline().batch(2).iter(num_workers=2)])
        assert rows.tolist() == list(range(40))
