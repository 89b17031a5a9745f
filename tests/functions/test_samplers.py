"""Samplers: shares, orders by seed and epoch, and going on in mid-epoch."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import tdmap
from tdmap.samplers import BalancedSampler, MixedSampler, WeightedSampler
from tensordict_lite import TensorDict

WEIGHTS = torch.tensor([0.0, 1.0, 3.0, 0.0, 6.0])
LABELS = torch.tensor([7] * 90 + [2] * 9 + [5])


def test_weights_are_probabilities() -> None:
    order = WeightedSampler(WEIGHTS, 20_000, seed=1).order()
    shares = order.bincount(minlength=5) / len(order)
    assert shares[0] == shares[3] == 0
    assert torch.allclose(shares, (WEIGHTS / 10).float(), atol=0.02)
    once = WeightedSampler(WEIGHTS, 3, replacement=False, seed=2)
    assert sorted(once.order().tolist()) == [1, 2, 4]
    first = [int(once.order(epoch)[0]) for epoch in range(300)]
    assert first.count(4) > first.count(2) > first.count(1)


@pytest.mark.parametrize("unit", [1.0, 1.7e308, 1e-308, 5e-324])
@pytest.mark.parametrize("replacement", [True, False])
def test_weights_of_any_size_are_probabilities(unit: float, replacement: bool) -> None:
    parts = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0]) if unit > 1e300 else torch.tensor([0.0, 2.0, 1.0, 2.0, 0.0])
    weights = parts.double() * unit
    rows = 4000
    sampler = WeightedSampler(weights, rows if replacement else 1, replacement=replacement, seed=1)
    order = sampler.order() if replacement else torch.cat([sampler.order(epoch) for epoch in range(rows)])
    wanted = torch.tensor([0.0, 0.4, 0.2, 0.4, 0.0])
    assert torch.allclose(order.bincount(minlength=5) / rows, wanted, atol=0.03)
    assert not order.bincount(minlength=5)[[0, 4]].any()
    data = TensorDict({"x": torch.arange(5), "w": weights}, [5])
    if replacement:
        drawn = tdmap.sample(data, rows, weights="w", replace=True, seed=1, num_workers=0)["x"]
        assert torch.allclose(drawn.bincount(minlength=5) / rows, wanted, atol=0.03)
    else:
        every = WeightedSampler(weights, 3, replacement=False, seed=1)
        assert all(sorted(every.order(epoch).tolist()) == [1, 2, 3] for epoch in range(200))
        assert tdmap.sample(data, 3, weights="w", seed=1, num_workers=0)["x"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("unit", [1.0, 1e308, 5e-324])
def test_numbers_of_numpy_mix_datasets(unit: float) -> None:
    ratios, lengths = np.array([1.0, 0.0, 1.0]) * unit, np.array([50, 7, 100])
    order = MixedSampler(lengths, ratios, 40, seed=3).order()
    assert int((order < 50).sum()) == int((order >= 57).sum()) == 20


def test_classes_come_equally_often_and_every_row_before_any_comes_again() -> None:
    order = BalancedSampler(LABELS, 300, seed=0).order()
    assert LABELS[order].bincount().tolist() == [0, 0, 100, 0, 0, 100, 0, 100]
    large = order[order < 90].bincount(minlength=90)
    assert large.min() == 1 and large.max() == 2
    assert BalancedSampler(LABELS, 10, seed=0).order().numel() == 10


def test_datasets_are_mixed_by_ratio() -> None:
    sampler = MixedSampler([50, torch.zeros(7), 100], [0.5, 0.5, 0.0], 40, seed=3)
    order = sampler.order()
    assert int((order < 50).sum()) == int(((order >= 50) & (order < 57)).sum()) == 20
    assert order[order < 50].unique().numel() == 20


@pytest.mark.parametrize("kind", ["weighted", "balanced", "mixed"])
def test_a_sampler_goes_on_where_it_was(kind: str) -> None:
    def make(seed: int = 5) -> Any:
        return {
            "weighted": lambda: WeightedSampler(WEIGHTS, 57, seed=seed),
            "balanced": lambda: BalancedSampler(LABELS, 57, seed=seed),
            "mixed": lambda: MixedSampler([30, 27], [2, 1], seed=seed),
        }[kind]()

    whole = [list(make()), make().order(1).tolist()]
    assert whole[0] == make().order(0).tolist() != whole[1] and make(6).order().tolist() != whole[0]
    sampler = make()
    assert [list(sampler), list(sampler)] == whole  # the next epoch begins by itself
    started = make()
    numbers = iter(started)
    head = [next(numbers) for _ in range(20)]
    state = json.loads(json.dumps(started.state_dict()))
    rest = make()
    rest.load_state_dict(state)
    assert head + list(rest) == whole[0] and list(rest) == whole[1]
    rest.load_state_dict(state)
    assert torch.cat(list(rest.batches(8))).tolist() == whole[0][20:]
    with pytest.raises(ValueError, match="seed=6"):
        make(6).load_state_dict(state)
    for take in (iter, lambda sampler: sampler.batches(57), lambda sampler: sampler.batches(8)):
        sampler = make()
        taken = take(sampler)
        while sampler.position < 57:  # an epoch to its last number, and no further
            next(taken)
        assert torch.cat(list(sampler.batches(8))).tolist() == whole[1]
    for workers in (0, 2):
        loaded = DataLoader(torch.arange(200), batch_size=8, sampler=make(), num_workers=workers)
        assert torch.cat(list(loaded)).tolist() == whole[0]


def test_what_cannot_be_drawn_is_told() -> None:
    for weights in ([], [-1.0, 2.0], [float("nan")], [[1.0]]):
        with pytest.raises(ValueError, match="finite and not negative"):
            WeightedSampler(weights)
    with pytest.raises(ValueError, match="cannot draw 3 rows from 2"):
        WeightedSampler([1, 1, 0], 3, replacement=False)
    with pytest.raises(ValueError, match="must be integers"):
        BalancedSampler(torch.rand(3))
    with pytest.raises(ValueError, match="ratios must be"):
        MixedSampler([3], [1, 2])
    for ratios in ([math.nan, 1], [math.inf, 1], [0, 0], [-1, 2]):
        with pytest.raises(ValueError, match="ratios must be 2 non-negative, finite numbers"):
            MixedSampler([3, 4], ratios)
    with pytest.raises(ValueError, match="dataset 1 has no rows"):
        MixedSampler([3, 0], [1, 2])
    with pytest.raises(ValueError, match="at least 1"):
        BalancedSampler(LABELS, 0)
