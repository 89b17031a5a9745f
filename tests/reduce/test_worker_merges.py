"""Workers merge the states of their own chunks, in the tree that fixes the bits."""

import operator
from collections import Counter
from typing import Any

import pytest
import torch

import tdmap
from tdmap import reducers as r
from tdmap import tuning
from tdmap.output.values import Fold
from tensordict_lite import TensorDict


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many states each report of a worker brings."""
    counts: list[int] = []
    accept = Fold.accept

    def counting(self: Fold, start: int, stop: int, kind: Any, values: tuple[Any, ...]) -> None:
        counts.append(len(values))
        accept(self, start, stop, kind, values)

    monkeypatch.setattr(Fold, "accept", counting)
    return counts


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
@tuning.use(lease_seconds=3600.0)  # a lease holds few chunks on a busy machine, and so a state for each of them
def test_few_states_travel_for_many_chunks_and_the_bits_stay(executor: str, arrivals: list[int]) -> None:
    x = torch.randn(3001, 3, generator=torch.Generator().manual_seed(0))
    tree = r.MergeTree(3001, r.Var().merge)
    for row in range(3001):
        tree.add(row, row + 1, r.Var().update(None, x[row : row + 1], row))
    answer = tdmap.reduce(x, r.Var(), num_workers=2, chunksize=1, executor=executor)
    assert torch.equal(answer, r.Var().finish(tree.result()))
    assert sum(arrivals) < 3001 / 4


def test_chunks_without_a_state_lie_between_those_with_one() -> None:
    def kept(chunk: torch.Tensor) -> Counter[int] | None:
        return None if int(chunk[0]) % 3 == 0 else Counter(chunk.tolist())

    got = tdmap.map_reduce(torch.arange(400), kept, _Adding(), num_workers=2, chunksize=1)
    assert got == Counter({n: 1 for n in range(400) if n % 3})


class _Adding(r.Reducer[Any]):
    def init(self) -> Any:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        return chunk

    def merge(self, a: Any, b: Any) -> Any:
        return a + b if a is not None and b is not None else a or b


class _Picky(_Adding):
    def merge(self, a: Any, b: Any) -> Any:
        if 77 in (*a, *b):
            raise ArithmeticError("not that one")
        return a + b


@pytest.mark.parametrize("executor", ["process", "serial"])
def test_a_merge_that_raises_is_the_error_of_the_call(executor: str) -> None:
    with pytest.raises(ArithmeticError, match="not that one"):
        tdmap.map_reduce(
            torch.arange(200), lambda c: c.tolist(), _Picky(), num_workers=2, chunksize=1, executor=executor
        )


def test_a_state_that_cannot_travel_is_an_error_and_the_pool_lives_on() -> None:
    def opened(chunk: torch.Tensor) -> Any:
        return [(n for n in range(3))]  # nothing can pickle a generator

    with pytest.raises(tdmap.errors.SerializationError):
        tdmap.map_reduce(torch.arange(10), opened, operator.add, num_workers=2, chunksize=1)
    assert int(tdmap.reduce(TensorDict({"x": torch.zeros(5)}, [5]), r.Count(), num_workers=2)) == 5
