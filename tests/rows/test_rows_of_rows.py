"""Rows that are made of others answer what the others answer: where they lie, how they are stored, what comes next."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tdmap
from tdmap.data.combine import Combined, Concat, Index, Zip
from tdmap.data.kinds import Rows
from tdmap.data.reader import rows_of
from tdmap.pipeline.rows import View
from tdmap.types import OpenRows, RowSource
from tensordict_lite import TensorDict

OPENED: list[str] = []
READ: list[tuple[int, int]] = []
AHEAD: list[tuple[int, int]] = []


class Numbers(RowSource):
    """Rows that count up; `remote`: they are fetched by requests."""

    def __init__(self, name: str, rows: int, block: int = 5, remote: bool = True) -> None:
        super().__init__(name, rows)
        self.block, self.is_remote = block, remote

    def open(self) -> OpenRows:
        OPENED.append(self.name)
        return OpenNumbers(self.name)

    def identity(self) -> str:
        return self.name

    def files(self) -> list[str]:
        return [f"/{self.name}/file"]


class OpenNumbers(OpenRows):
    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, first: int, last: int, keys: Sequence[Any] | None = None) -> TensorDict:
        READ.append((first, last))
        return TensorDict({self.name: torch.arange(first, last)}, [last - first])

    def prefetch(self, first: int, last: int, keys: Sequence[Any] | None = None) -> None:
        AHEAD.append((first, last))


def numbers(name: str = "x", rows: int = 20, block: int = 5, remote: bool = True) -> Any:
    return tdmap.open(Numbers(name, rows, block, remote))


@pytest.fixture(autouse=True)
def forget() -> None:
    for noted in (OPENED, READ, AHEAD):
        noted.clear()


def doubled() -> Concat:
    return Concat((numbers(), numbers(rows=10)))


MADE: dict[str, tuple[Callable[[], Combined], list[int], list[int], list[int]]] = {
    "concat": (doubled, [*range(20), *range(10)], [20], [5, 10, 15, 25]),
    "concat of concat": (
        lambda: Concat((doubled(), numbers())),
        [*range(20), *range(10), *range(20)],
        [20, 30],
        [5, 10, 15, 25, 35, 40, 45],
    ),
    "zip": (lambda: Zip((numbers(), numbers("y", block=8))), [*range(20)], [], [5, 8, 10, 15, 16]),
    "index of all": (lambda: Index(doubled()), [*range(20), *range(10)], [20], [5, 10, 15, 25]),
    "index of a run": (lambda: Index(doubled(), range(12, 28)), [*range(12, 20), *range(8)], [8], [3, 13]),
    "index of any": (lambda: Index(numbers(), torch.tensor([7, 3, 3])), [7, 3, 3], [], []),
    "view": (lambda: View(doubled(), range(12, 28)), [*range(12, 20), *range(8)], [8], [3, 13]),
    "seeded view": (lambda: View(doubled(), range(12, 28), seed=3), [*range(12, 20), *range(8)], [8], [3, 13]),
    "window": (lambda: doubled().window(12, 28), [*range(12, 20), *range(8)], [8], [3, 13]),
}
"""Rows, the number that each holds, and where another part and another block begin."""


@pytest.mark.parametrize("name", MADE)
def test_they_say_where_their_rows_lie(name: str) -> None:
    make, held, borders, blocks = MADE[name]
    made = make()
    assert made.is_remote and made.length == len(held)
    assert list(made.borders) == borders and list(made.blocks) == blocks
    names = {"x", "y"} if name == "zip" else {"x"}
    assert set(made.folders) == names and set(made.files) == {f"/{one}/file" for one in names}
    assert not made.in_memory and not made.is_view


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_chunks_are_announced_before_they_are_read(name: str, size: int) -> None:
    make, held, _, _ = MADE[name]
    made, found = make(), []
    for chunk in made.chunks(0, len(held), size, lambda first, last: None):
        found.append(chunk["x"].tolist())
        assert len(found[-1]) <= size
    assert sum(found, []) == held
    if size == 1 and name != "index of any":
        announced = {row for first, last in AHEAD for row in range(first, last)}
        assert announced >= set(held[1:]) or len(READ) <= len(make().borders) + 1  # or all are read at once


@pytest.mark.parametrize("name", MADE)
def test_the_lease_that_comes_next_is_announced(name: str) -> None:
    make, held, _, _ = MADE[name]
    list(make().chunks(0, 1, 4, lambda first, last: (last, min(last + 2, len(held)))))
    wanted = [] if name == "index of any" else held[1:3]
    assert sorted({row for first, last in AHEAD for row in range(first, last)}) == wanted


def over(made: Combined, part: Callable[[str, int], Any]) -> Rows:
    """The same rows of other parts, made of the name and the number of rows of each."""
    names = "xy" if isinstance(made, Zip) else "xx"
    return made.with_parts(tuple(part(name, one.length or 0) for name, one in zip(names, made.parts, strict=False)))


@pytest.mark.parametrize("name", MADE)
def test_private_rows_are_opened_anew_and_those_of_an_epoch_are_kept(name: str) -> None:
    make, held, _, _ = MADE[name]
    near = over(make(), lambda name, rows: numbers(name, rows, remote=False))
    assert not near.is_remote and near.take(range(len(held)))["x"].shape == (len(held),)
    OPENED.clear()
    own, exposed = near.private()
    assert own.take(range(len(held)))["x"].shape == (len(held),) and OPENED and not exposed
    kept: list[Any] = []
    inner = over(make(), lambda name, rows: rows_of(TensorDict({name: torch.arange(rows)}, [rows])))
    inner.at(0, lambda one: kept.append(one) or one)
    assert len(kept) == len(make().parts)


def plus_one(rows: TensorDict) -> TensorDict:
    return TensorDict({"x": rows["x"] + 1}, rows.batch_size)


PIPELINES: dict[str, Callable[[], Any]] = {
    "after one another": lambda: numbers().pipeline().concat(numbers(rows=10).pipeline()),
    "side by side": lambda: numbers().pipeline().zip(numbers("y").pipeline()),
    "functions below": lambda: numbers().pipeline().map(plus_one).concat(numbers(rows=10).pipeline()),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_pipeline_over_rows_of_a_store_fetches_ahead(name: str, seed: int | None) -> None:
    result = PIPELINES[name]().map(plus_one).collect(num_workers=0, chunksize=4, seed=seed)
    held = [*range(20)] if name == "side by side" else [*range(20), *range(10)]
    below = name == "functions below"
    assert result["x"].tolist() == [n + 1 + (below and row < 20) for row, n in enumerate(held)]
    announced = {row for first, last in AHEAD for row in range(first, last)}
    assert announced >= set(range(4, 20))
