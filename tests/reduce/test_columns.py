"""Reducers over text, ragged rows and objects: lists, columns, files and lazy stacks, in chunks of any size."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import reducers as r
from tensordict_lite import NonTensorData, Ragged, TensorDict, lazy_stack

NUMBERS = [torch.arange(n, dtype=torch.float32) for n in (3, 2, 5, 1, 0, 4, 2)]
TEXT = ["a", "", "cd", None, "ü", "a\x00", "x" * 300_000]
BYTES = [b"", b"\xff", b"ab", b"", b"c", b"d", b"ef"]
OBJECTS = ["a", None, [1, 2], {"a": 1}, 7, True, "z"]
ROWS = len(TEXT)
ENTRIES = {"x": NUMBERS, "t": TEXT, "b": BYTES, "o": OBJECTS}
COLUMNS = {
    "x": Ragged.from_list(NUMBERS),
    "t": Ragged.from_list(TEXT),
    "b": Ragged.from_list(BYTES),
    "o": Ragged.from_objects(OBJECTS),
}


def nested(entries: dict[str, Any]) -> TensorDict:
    dense = torch.arange(ROWS)
    return TensorDict({"n": entries, "y": dense}, [ROWS])


def of_kind(kind: str, folder: Path) -> Any:
    if kind == "lists":
        return nested(ENTRIES)
    if kind == "columns":
        return nested(COLUMNS)
    if kind == "files":
        return nested(COLUMNS).memmap(folder)
    rows = [{name: values[row] for name, values in ENTRIES.items()} for row in range(ROWS)]
    for row in rows:
        row["o"] = NonTensorData(row["o"])
    return lazy_stack([TensorDict({"n": row, "y": torch.tensor(number)}) for number, row in enumerate(rows)])


@pytest.mark.parametrize("chunksize", [1, 2, 5, None])
@pytest.mark.parametrize("kind", ["lists", "columns", "files", "lazy stack"])
def test_a_reduction_does_not_depend_on_how_rows_are_stored(kind: str, chunksize: int | None, tmp_path: Path) -> None:
    data = of_kind(kind, tmp_path / "data")
    reducers: dict[str, r.Reducer[Any]] = {"n": r.Count(), "sum": r.Sum("y")}
    for name in ENTRIES:
        key = ("n", name)
        reducers |= {f"first {name}": r.First(key), f"last {name}": r.Last(key), f"check {name}": r.Checksum(key)}
    for name in "tb":
        reducers |= {f"unique {name}": r.Unique(("n", name)), f"top {name}": r.TopK(("n", name), 3)}
    got = tdmap.reduce(data, reducers, num_workers=0, chunksize=chunksize)
    assert int(got["n"]) == ROWS and int(got["sum"]) == sum(range(ROWS))
    for name, values in ENTRIES.items():
        for at, found in ((0, got[f"first {name}"]), (-1, got[f"last {name}"])):
            assert torch.equal(found, values[at]) if name == "x" else found == values[at]
    assert got["unique t"] == [None, *sorted(text for text in TEXT if text is not None)]
    assert got["unique b"] == sorted(set(BYTES))
    assert got["top t", "row"].tolist() == [4, 6, 2] and got["top b", "value"] == [b"\xff", b"ef", b"d"]
    for name in ENTRIES:
        assert got[f"check {name}"] == tdmap.reduce(nested(COLUMNS), r.Checksum(("n", name)), num_workers=0)
    total = tdmap.reduce(nested(COLUMNS), r.Checksum(), num_workers=0)
    assert tdmap.reduce(data, r.Checksum(), num_workers=0, chunksize=chunksize) == total
    assert tdmap.Pipeline(data).reduce(r.Checksum(), num_workers=0, chunksize=chunksize) == total
    for refused in (r.Mean, r.Max, r.Unique, r.TopK) if kind == "lists" else (r.TopK,):
        with pytest.raises(TypeError, match=r"\('n', 'x'\).* (different lengths|Python objects)"):
            tdmap.reduce(data, refused(("n", "x")), num_workers=0, chunksize=chunksize)


@pytest.mark.parametrize("chunksize", [1, None])
@pytest.mark.parametrize("kind", ["columns", "files", "lazy stack"])
def test_reducers_read_the_elements_of_ragged_numbers(kind: str, chunksize: int | None, tmp_path: Path) -> None:
    key, flat = ("n", "x"), torch.cat(NUMBERS)
    made = (r.Mean, r.Sum, r.Std, r.Var, r.Min, r.Max, r.MinMax, r.Unique, r.ValueCounts, r.CovarianceMatrix)
    reducers: dict[str, r.Reducer[Any]] = {reducer.__name__: reducer(key) for reducer in made}
    reducers |= {"Quantile": r.Quantile(key, 0.5), "Histogram": r.Histogram(key, bins=5, range=(0, 5))}
    got = tdmap.reduce(of_kind(kind, tmp_path / "data"), reducers, num_workers=0, chunksize=chunksize)
    dense = {
        name: reducer.finish(reducer.update(reducer.init(), flat, 0))
        for name, reducer in ((one.__name__, one()) for one in made)
    }
    for name, value in dense.items():
        pairs = (
            zip(value.values(), got[name].values(), strict=True)
            if isinstance(value, TensorDict)
            else [(value, got[name])]
        )
        for mine, its in pairs:
            torch.testing.assert_close(its, mine)
    assert abs(float(got["Quantile"]) - 1.0) < 0.05
    found = tdmap.describe(of_kind("columns", tmp_path), num_workers=0)
    assert (found["n.x"].count, found["n.x"].mean, found["n.x (length)"].max) == (
        len(flat),
        float(flat.double().mean()),
        5,
    )


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("t", [*TEXT[1:], TEXT[0]]),  # other order
        ("t", ["b", *TEXT[1:]]),
        ("t", ["", "a", *TEXT[2:]]),  # the same bytes in other rows
        ("t", ["a", None, *TEXT[2:]]),
        ("t", [*TEXT[:-1], TEXT[-1] + "\x00"]),
        ("b", [b"\x00", *BYTES[1:]]),
        ("x", [*NUMBERS[:-1], NUMBERS[-1] + 1]),
        ("x", [NUMBERS[0][:2], torch.cat([NUMBERS[0][2:], NUMBERS[1]]), *NUMBERS[2:]]),
        ("o", [*OBJECTS[:3], {"a": 2}, *OBJECTS[4:]]),
    ],
)
def test_a_checksum_tells_rows_apart(name: str, rows: list[Any]) -> None:
    data, other = nested(ENTRIES), nested({**ENTRIES, name: rows})
    assert tdmap.reduce(data, r.Checksum(), num_workers=0) != tdmap.reduce(other, r.Checksum(), num_workers=0)


def test_a_checksum_counts_empty_rows() -> None:
    words = TensorDict({"t": [""] * 5}, [5])
    sums = {tdmap.reduce(words[:rows], r.Checksum(), num_workers=0) for rows in range(6)}
    assert len(sums) == 6


def test_a_checksum_of_objects_that_are_not_json_says_so() -> None:
    data = TensorDict({"o": [{1}, {2}]}, [2])
    with pytest.raises(TypeError, match="set"):
        tdmap.reduce(data, r.Checksum(), num_workers=0)


def test_reducers_of_the_caller_get_lazy_stacks_as_they_are() -> None:
    class Longest(r.Reducer[int]):
        def init(self) -> int:
            return 0

        def update(self, state: int, chunk: Any, start: int = 0) -> int:
            return max([state, *map(len, chunk.get(("n", "x"), as_list=True))])

        def merge(self, a: int, b: int) -> int:
            return max(a, b)

    assert tdmap.reduce(of_kind("lazy stack", Path()), Longest(), num_workers=0, chunksize=2) == 5


def test_entries_that_no_reducer_reads_may_differ() -> None:
    rows = lazy_stack([TensorDict({"y": torch.tensor(1.0), "z": torch.zeros(2, n)}) for n in (1, 2, 3)])
    got = tdmap.reduce(rows, {"n": r.Count(), "y": r.Sum("y")}, num_workers=0, chunksize=2)
    assert int(got["n"]) == 3 and float(got["y"]) == 3


STAGES: dict[str, Callable[[tdmap.Pipeline], tdmap.Pipeline]] = {
    "nothing": lambda rows: rows,
    "take": lambda rows: rows.take(4),
    "filter": lambda rows: rows.filter(tdmap.col("y") != 2),
    "select": lambda rows: rows.select(("n", "x"), "y"),
    "skip and shuffle": lambda rows: rows.skip(1).shuffle(seed=0),
}


@pytest.mark.parametrize("chunksize", [1, 2, None])
@pytest.mark.parametrize("name", STAGES)
def test_a_pipeline_reduces_rows_however_they_are_stored(name: str, chunksize: int | None, tmp_path: Path) -> None:
    key = ("n", "x")
    parts: dict[str, r.Reducer[Any]] = {"n": r.Count(), "check": r.Checksum(key), "y": r.Sum("y"), "max": r.Max(key)}
    if name != "skip and shuffle":
        parts |= {"first": r.First(key), "last": r.Last(key)}
    found = {}
    for kind in ("columns", "files", "lazy stack"):
        rows = STAGES[name](tdmap.Pipeline(of_kind(kind, tmp_path)))
        options: dict[str, Any] = {"num_workers": 0} | ({} if chunksize is None else {"chunksize": chunksize})
        found[kind] = rows.reduce(parts, **options)
    for other in (found["files"], found["lazy stack"]):
        for part in ("n", "check", "y", "max"):
            assert other[part] == found["columns"][part]
        assert all(torch.equal(other[part], found["columns"][part]) for part in ("first", "last") if part in parts)


@pytest.mark.parametrize("kind", [r.Sum, r.Mean, r.Var, r.Min])
@pytest.mark.parametrize("lengths", [(1, 3), (3, 1, 3), (2, 2, 5)])
def test_rows_of_a_function_that_differ_from_chunk_to_chunk_are_refused(
    kind: type[r.Reducer[Any]], lengths: tuple[int, ...]
) -> None:
    rows = lazy_stack([TensorDict({"x": torch.ones(length)}) for length in lengths])
    for call in (
        lambda: tdmap.map_reduce(rows, lambda chunk: chunk, kind("x"), num_workers=0, chunksize=1),
        lambda: tdmap.Pipeline(rows).map(lambda chunk: chunk).reduce(kind("x"), num_workers=0, chunksize=1),
    ):
        with pytest.raises(ValueError, match="in one chunk and|from chunk to chunk"):
            call()
