"""Classes that a function defines: what workers send back is of the same class."""

import collections
import dataclasses
import enum

import pytest
import torch

import tdmap
from tensordict_lite import tensorclass

EXECUTORS = [{"num_workers": 0}, {"num_workers": 1, "executor": "thread"}, {"num_workers": 1}]


@pytest.mark.parametrize("options", EXECUTORS)
def test_a_result_is_of_the_class_of_the_function(options):
    @tensorclass
    class Sample:
        x: torch.Tensor

    @dataclasses.dataclass
    class Found:
        n: int

    class Kind(enum.Enum):
        A = 1

    class Mine(Exception):
        pass

    Pair = collections.namedtuple("Pair", "a b")
    data = Sample(torch.arange(40.0), batch_size=[40])
    for result in tdmap.map_iter(data, lambda c: (c + 1, Found(len(c)), Pair(1, 2), Kind.A), chunksize=10, **options):
        assert list(map(type, result)) == [Sample, Found, Pair, Kind] and result[3] is Kind.A

    assert type(tdmap.map(data, lambda c: c + 1, chunksize=4, **options)) is Sample
    batches = list(data.pipeline().map(lambda c: c + 1).batch(8).iter(**options))
    assert type(torch.cat(batches)) is Sample and len(batches) == 5

    def fails(chunk):
        raise Mine("no")

    with pytest.raises(Mine, match="no"):
        list(tdmap.map_iter(data, fails, **options))
