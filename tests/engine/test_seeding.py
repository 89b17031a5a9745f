"""The same seed gives the same bits, for any number of workers and any executor."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
import torch

import tdmap
from tdmap.seeding import derive


def noise(x):
    return torch.stack(
        [torch.rand(len(x)), torch.from_numpy(np.random.rand(len(x))).float(), torch.full((len(x),), random.random())],
        1,
    )


def run(seed, **options):
    return tdmap.map(torch.arange(50), noise, chunksize=4, seed=seed, **{"num_workers": 2, **options})


def test_results_depend_on_the_seed_alone():
    first = run(1)
    assert torch.equal(first, run(1))
    assert torch.equal(first, run(1, num_workers=3))
    assert torch.equal(first, run(1, executor="serial"))
    assert torch.equal(first, run(1, executor="thread"))
    assert torch.equal(first, run(1, mp_start_method="forkserver"))
    assert not torch.equal(first, run(2))


def test_chunks_have_different_streams():
    columns = run(1)
    assert len(columns[::4].unique(dim=0)) == 13


def test_a_retry_draws_the_same_numbers(tmp_path):
    marker = tmp_path / "died"

    def fragile(x):
        result = noise(x)
        if 20 in x and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    result = tdmap.map(torch.arange(50), fragile, chunksize=4, seed=1, num_workers=2)
    assert marker.exists()
    assert torch.equal(result, run(1))


def test_a_generator_gives_the_seed_and_advances():
    def with_generator(generator):
        return tdmap.map(torch.arange(50), noise, chunksize=4, num_workers=2, generator=generator)

    generator = torch.Generator().manual_seed(3)
    first, second = with_generator(generator), with_generator(generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, with_generator(torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_the_callers_streams_are_left_alone(executor):
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = torch.rand(()).item(), np.random.rand(), random.random()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    run(1, executor=executor)
    assert (torch.rand(()).item(), np.random.rand(), random.random()) == expected


def test_unseeded_workers_draw_different_numbers():
    result = tdmap.map(
        torch.arange(64), lambda x: torch.rand(len(x)), num_workers=2, chunksize=1, mp_start_method="fork"
    )
    assert len(result.unique()) == 64


def test_streams_of_neighbouring_rows_and_seeds_differ():
    values = {derive(seed, row) for seed in (-1, 0, 1, 2**63) for row in range(100)}
    assert len(values) == 400
