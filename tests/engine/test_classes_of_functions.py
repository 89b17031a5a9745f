"""Classes that a function defines: what workers send back is of the same class."""

from __future__ import annotations

import collections
import dataclasses
import enum

import pytest
import torch

import tdmap
from tensordict_lite import tensorclass


def tensorclass_case():
    @tensorclass
    class Sample:
        x: torch.Tensor

    return Sample(torch.arange(40.0), batch_size=[40]), lambda c: c + 1, lambda found: isinstance(found, Sample)


def dataclass_case():
    @dataclasses.dataclass
    class Found:
        n: int

    return torch.arange(40), lambda c: Found(len(c)), lambda found: isinstance(found, Found)


def namedtuple_case():
    Pair = collections.namedtuple("Pair", "a b")
    return torch.arange(40), lambda c: Pair(1, 2), lambda found: type(found) is Pair


def enum_case():
    class Kind(enum.Enum):
        A = 1

    return torch.arange(40), lambda c: Kind.A, lambda found: found is Kind.A


CASES = [tensorclass_case, dataclass_case, namedtuple_case, enum_case]
EXECUTORS = [{"num_workers": 0}, {"num_workers": 1, "executor": "thread"}, {"num_workers": 1}]


@pytest.mark.parametrize("options", EXECUTORS)
@pytest.mark.parametrize("case", CASES)
def test_a_result_is_of_the_class_of_the_function(case, options):
    data, fn, is_right = case()
    assert all(map(is_right, tdmap.map_iter(data, fn, chunksize=10, **options)))


@pytest.mark.parametrize("options", EXECUTORS)
def test_results_of_a_tensorclass_are_joined_and_batched(options):
    data, fn, is_right = tensorclass_case()
    assert is_right(tdmap.map(data, fn, chunksize=4, **options))
    batches = list(data.pipeline().map(fn).batch(8).iter(**options))
    assert is_right(torch.cat(batches)) and len(batches) == 5


@pytest.mark.parametrize("options", EXECUTORS)
def test_an_exception_is_of_the_class_of_the_function(options):
    class Mine(Exception):
        pass

    def fails(chunk):
        raise Mine("no")

    with pytest.raises(Mine, match="no"):
        list(tdmap.map_iter(torch.arange(40), fails, **options))
