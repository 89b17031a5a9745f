"""Reductions through the engine: the same bits for any number of workers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import reducers as r
from tensordict_lite import TensorDict, lazy_stack


@pytest.fixture(scope="module")
def data() -> TensorDict:
    generator = torch.Generator().manual_seed(3)
    return TensorDict(
        {"x": torch.randn(1000, 4, generator=generator), "k": torch.randint(0, 9, (1000,), generator=generator)}, [1000]
    )


ALL = {
    "mean": r.Mean("x"),
    "var": r.Var("x"),
    "sum": r.Sum("x"),
    "n": r.Count(),
    "top": r.TopK("k", 5),
    "hist": r.Histogram("x", bins=8, range=(-3, 3)),
}


def bits(answer: TensorDict) -> dict[Any, bytes]:
    return {key: value.numpy().tobytes() for key, value in answer.items(True, True)}


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 3, "executor": "thread"}, {"num_workers": 0}])
def test_the_answer_has_the_same_bits_for_any_workers_and_executor(data: TensorDict, options: dict[str, Any]) -> None:
    wanted = tdmap.reduce(data, ALL, num_workers=1, chunksize=7)
    assert bits(tdmap.reduce(data, ALL, chunksize=7, **options)) == bits(wanted)
    torch.testing.assert_close(wanted["var"], data["x"].double().var(0))
    assert int(wanted["n"]) == 1000


def test_a_plain_function_folds_in_row_order() -> None:
    words = torch.arange(20)
    got = tdmap.map_reduce(
        words, lambda c: "".join(map(str, c.tolist())), lambda a, b: a + b, num_workers=2, chunksize=3
    )
    assert got == "".join(map(str, range(20)))


def test_zero_rows_give_what_init_says_or_a_clear_error() -> None:
    empty = TensorDict({"x": torch.zeros(0, 2)}, [0])
    assert int(tdmap.reduce(empty, r.Count())) == 0
    assert tdmap.reduce(empty, r.Checksum()) == 0
    with pytest.raises(ValueError, match="zero rows"):
        tdmap.reduce(empty, r.Mean("x"))
    with pytest.raises(ValueError, match="zero rows"):
        tdmap.reduce(empty, lambda a, b: a)


def test_an_error_names_the_rows(data: TensorDict) -> None:
    with pytest.raises(KeyError, match="nope") as caught:
        tdmap.map_reduce(data, same, r.Mean("nope"), num_workers=2, chunksize=100)
    assert any("same" in note and "rows" in note for note in caught.value.__notes__)
    with pytest.raises(tdmap.errors.SerializationError) as error:  # when the last chunk of a lease has been run
        tdmap.map_reduce(data, NotPacked, NotPacked.first, num_workers=1, chunksize=500)
    assert "rows 0:500 (chunk 0)" in error.value.__notes__[0]


class NotPacked:
    """A state that cannot be sent."""

    def __init__(self, rows: TensorDict) -> None:
        pass

    def __reduce__(self) -> Any:
        raise ValueError

    def first(self, other: NotPacked) -> NotPacked:
        return self


def same(chunk: TensorDict) -> TensorDict:
    return chunk


@pytest.mark.parametrize("kind", ["plain", "lazy", "folders"])
def test_an_entry_that_is_not_there_is_said_before_anything_runs(data: TensorDict, kind: str, tmp_path: Path) -> None:
    rows: Any = data
    if kind == "lazy":
        rows = lazy_stack(list(data[:20].unbind(0)))
    elif kind == "folders":
        rows = tdmap.open(
            [data[part].memmap(tmp_path / str(part.start)).saved_path for part in (slice(5), slice(5, 9))]
        )
    with pytest.raises(KeyError, match=r"the entry of Mean\('X', dim=0\) is 'X'.* Entries: 'k', 'x'"):
        tdmap.reduce(rows, r.Mean("X"), num_workers=0, callbacks=[Refuses()])
    with pytest.raises(KeyError, match=r"the entry of the reducer 'low' is \('k', 'x'\)"):
        tdmap.reduce(rows, {"n": r.Count(), "low": r.Min(("k", "x"))}, num_workers=0, callbacks=[Refuses()])
    found = tdmap.reduce(rows, {"own": Own("nope"), "mean": r.Mean("k")}, num_workers=0)
    assert int(found["own"]) == len(rows)  # the key of one's own reducer may be anything


class Refuses(tdmap.events.Callback):
    def on_job_started(self, event: Any) -> None:
        raise AssertionError("it began")


class Own(r.Reducer[int]):
    def __init__(self, key: str) -> None:
        self.key = key

    def init(self) -> int:
        return 0

    def update(self, state: int, chunk: Any, start: int = 0) -> int:
        return state + len(chunk)

    def merge(self, a: int, b: int) -> int:
        return a + b


@pytest.mark.parametrize("dim", [1, -1])
def test_rows_along_another_dimension_are_folded_as_rows(dim: int) -> None:
    x = torch.arange(24.0).view(2, 12)
    answer = tdmap.reduce(
        TensorDict({"x": x}, [2, 12]), {"sum": r.Sum("x"), "n": r.Count()}, num_workers=2, dim=dim, chunksize=5
    )
    assert answer["sum"].tolist() == x.sum(1).tolist() and int(answer["n"]) == 12


def test_rows_passed_one_by_one_are_folded_as_rows(data: TensorDict) -> None:
    answer = tdmap.reduce(data[:20], {"sum": r.Sum("k"), "n": r.Count()}, num_workers=2, chunksize=0)
    assert int(answer["sum"]) == int(data["k"][:20].sum()) and int(answer["n"]) == 20


def picked(rows: TensorDict, key: str) -> Any:
    return rows[key]


def test_an_error_names_the_mapper_within_a_partial(data: TensorDict) -> None:
    with pytest.raises(KeyError) as caught:
        tdmap.map_reduce(data, functools.partial(picked, key="nope"), r.Sum(), num_workers=0)
    assert any(note.startswith("raised by picked on rows 0:") for note in caught.value.__notes__)


def test_an_error_names_the_reducers_of_a_mapping() -> None:
    data = TensorDict({"x": torch.arange(3.0), "word": ["a", "b", "c"]}, [3])
    with pytest.raises(TypeError) as caught:
        tdmap.reduce(data, {"mean": r.Mean("x"), "most": r.Max("word")}, num_workers=0)
    assert any(note.startswith("raised by reduce(mean, most) on row 0") for note in caught.value.__notes__)
