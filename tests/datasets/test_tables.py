"""Operations on tables with jagged columns: against plain lists of Python's."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.datasets import Jagged, Table
from tdmap.errors import OutputMismatch
from tdmap.reducers import Count, Sum
from tensordict_lite import TensorDict, lazy_stack
from tensordict_lite.errors import DatasetError

WORDS = ["ant", "", "bee", "größer", "日本", "a" * 30, "z", "a" * 31]


def plain(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows as dicts: a number, a key, a text, some numbers, a nested matrix."""
    choose = random.Random(seed)
    return [
        {
            "x": number,
            "key": choose.randrange(5),
            "word": choose.choice(WORDS),
            "ids": [choose.randrange(100) for _ in range(choose.randrange(6))],
            "deep.m": [[number, 1], [2, choose.randrange(9)]],
        }
        for number in range(count)
    ]


def table_of(rows: list[dict[str, Any]]) -> Table:
    tensors = {
        "x": torch.tensor([row["x"] for row in rows]),
        "key": torch.tensor([row["key"] for row in rows], dtype=torch.int32),
        ("deep", "m"): torch.tensor([row["deep.m"] for row in rows], dtype=torch.float32),
    }
    ids = Jagged.from_list([torch.tensor(row["ids"], dtype=torch.int64) for row in rows])
    return Table(
        TensorDict(tensors, [len(rows)]), {"word": Jagged.from_list([row["word"] for row in rows]), "ids": ids}
    )


def listed(table: Table) -> list[dict[str, Any]]:
    names = table.keys()
    columns = [table[name].tolist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


@pytest.fixture(params=["memory", "folder"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The data in memory or mapped, and the result too."""
    numbers = itertools.count()

    def place(rows: list[dict[str, Any]]) -> tuple[Table, Any]:
        table = table_of(rows)
        if request.param == "memory":
            return table, None
        number = next(numbers)
        return table.save(tmp_path / f"in{number}", batch_rows=37), tmp_path / f"out{number}"

    return place


@pytest.mark.parametrize("count", [0, 1, 101])
@pytest.mark.parametrize("workers", [0, 2])
def test_filter_sort_and_shuffle(where: Any, count: int, workers: int) -> None:
    rows = plain(count) or plain(1)
    kept = [row for row in rows if row["word"] > "b" and row["x"] % 3] if count else []
    table, out = where(rows)
    options: Any = {"num_workers": workers}
    step: Any = lambda name: None if out is None else out.with_name(f"{out.name}{name}")  # noqa: E731

    def predicate(part: Table) -> list[bool]:
        return [bool(count and word > "b" and x % 3) for word, x in zip(part["word"], part["x"].tolist(), strict=True)]

    assert listed(table.filter(predicate, step("f"), chunksize=10, **options)) == kept
    assert listed(tdmap.filter(table, predicate, step("g"), **options)) == kept
    for key in ("word", ["key", "word"], "x"):
        keys = [key] if isinstance(key, str) else key
        expected = sorted(rows, key=lambda row: [row[name] for name in keys])
        name = "".join(keys)
        assert listed(table.sort(key, step(name), **options)) == expected
        down = sorted(rows, key=lambda row: [row[name] for name in keys], reverse=True)
        found = listed(tdmap.sort(table, key, step(f"{name}d"), descending=True, **options))
        assert [[row[name] for name in keys] for row in found] == [[row[name] for name in keys] for row in down]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(5)).tolist()
    assert listed(table.shuffle(step("s"), seed=5, **options)) == [rows[number] for number in order]


EMPTY = {"x": 0, "key": 0, "word": "", "ids": [], "deep.m": [[0, 0], [0, 0]]}


def joined_rows(left: list[dict[str, Any]], right: list[dict[str, Any]], keys: list[str], how: str) -> Any:
    """What a join of lists of rows gives, row by row."""

    def row(one: dict[str, Any] | None, two: dict[str, Any] | None) -> dict[str, Any]:
        mine = {**(one or EMPTY), **{key: (one or two or EMPTY)[key] for key in keys}}
        marks = {"left": one is not None, "right": two is not None}
        told: dict[str, Any] = {f"__matched__.{side}": there for side, there in marks.items()} if how == "outer" else {}
        if how in ("left", "right"):
            told = {"__matched__": all(marks.values())}
        return {**mine, **{f"{name}_right": v for name, v in (two or EMPTY).items() if name not in keys}, **told}

    def partners(one: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [other for other in rows if all(one[key] == other[key] for key in keys)]

    if how in ("semi", "anti"):
        return [one for one in left if bool(partners(one, right)) is (how == "semi")]
    if how == "right":
        return [row(one, two) for two in right for one in partners(two, left) or [None]]
    alone: list[None] = [] if how == "inner" else [None]
    found = [row(one, two) for one in left for two in partners(one, right) or alone]
    return found + [row(None, two) for two in right if how == "outer" and not partners(two, left)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
@pytest.mark.parametrize("on", ["word", ["key", "word"]])
def test_join(where: Any, workers: int, how: str, on: Any) -> None:
    left = [row for row in plain(60, 1) if row["word"] != "bee"]
    right = [row for row in plain(40, 2) if row["word"] != "z"]
    table, out = where(left)
    other, _ = where(right)
    keys = [on] if isinstance(on, str) else on
    found = listed(table.join(other, on, how, out, num_workers=workers))
    assert found == joined_rows(left, right, keys, how)


@pytest.mark.parametrize("how", ["left", "right", "outer"])
def test_join_with_a_table_without_rows(tmp_path: Path, how: str) -> None:
    rows, none = plain(5), plain(0)
    table, empty = table_of(rows), table_of(rows)[:0]
    for left, right, one, two in ((table, empty, rows, none), (empty, table, none, rows)):
        for out in (None, tmp_path / f"{len(one)}"):
            assert listed(left.join(right, "word", how, out, num_workers=0)) == joined_rows(one, two, ["word"], how)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2, torch.bool])
def test_rows_without_a_partner_have_zeros_of_every_kind(tmp_path: Path, dtype: torch.dtype) -> None:
    one = Table.of({"x": torch.arange(3), "word": ["a", "b", "c"]})
    two = Table.of({"x": torch.tensor([2, 9]), "value": torch.tensor([1, 1]).to(dtype)})
    for out in (None, tmp_path / "out"):
        found = one.join(two, "x", "left", out, num_workers=0)
        assert found["value"].dtype is dtype and found["value"].to(torch.int64).tolist() == [0, 0, 1]


def test_join_by_a_nested_column() -> None:
    one = Table(TensorDict({("meta", "id"): torch.tensor([1, 2]), ("meta", "a"): torch.tensor([5, 6])}, [2]))
    two = Table(TensorDict({("meta", "id"): torch.tensor([2, 3]), ("meta", "b"): torch.tensor([7, 8])}, [2]))
    found = one.join(two, "meta.id", "outer", num_workers=0)
    assert found["meta.id"].tolist() == [1, 2, 3]
    assert found["meta.a"].tolist() == [5, 6, 0] and found["meta.b"].tolist() == [0, 7, 8]


def test_join_takes_the_options_of_datasets() -> None:
    people = Table.of({"name": ["Ada", "Emmy"], "year": torch.tensor([1815, 1882])})
    deaths = Table.of({"who": ["Emmy"], "year": torch.tensor([1935])})
    found = tdmap.join(people, deaths, left_on="name", right_on="who", suffixes=("_born", "_died"), num_workers=0)
    assert listed(found) == [{"name": "Emmy", "year_born": 1882, "year_died": 1935}]
    marked = people.join(deaths, {"name": "who"}, "left", suffix="_2", indicator="known", num_workers=0)
    assert marked["known"].tolist() == [False, True] and marked["year_2"].tolist() == [0, 1935]


@pytest.mark.parametrize("key", ["word", ["key", "word"], "key"])
def test_group_by(where: Any, key: Any) -> None:
    rows = plain(90)
    table, _ = where(rows)
    keys = [key] if isinstance(key, str) else key
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in keys), []).append(row)
    found = listed(tdmap.group_by(table, key).reduce({"n": Count(), "total": Sum("x")}, num_workers=2))
    expected = [
        {**dict(zip(keys, values, strict=True)), "n": len(group), "total": sum(row["x"] for row in group)}
        for values, group in sorted(groups.items())
    ]
    assert found == expected

    def longest(group: Table) -> TensorDict:
        return TensorDict({"letters": group["word"].lengths.sum()[None], "ids": group["ids"].lengths.max()[None]}, [1])

    each = table.group_by(key).map_groups(longest, num_workers=2)
    assert each["ids"].tolist() == [max(len(row["ids"]) for row in group) for _, group in sorted(groups.items())]
    assert each["letters"].tolist() == [
        sum(len(row["word"].encode()) for row in group) for _, group in sorted(groups.items())
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_map_and_flat_map_return_any_columns(where: Any, workers: int) -> None:
    rows = plain(100)
    table, out = where(rows)

    def words(part: Table) -> dict[str, Any]:
        pairs = [(x, letter) for x, word in zip(part["x"].tolist(), part["word"], strict=True) for letter in word]
        letters: Any = [letter for _, letter in pairs] or Jagged.from_list([""])[:0]
        return {"x": torch.tensor([x for x, _ in pairs], dtype=torch.int64), "letter": letters}

    expected = [{"x": row["x"], "letter": letter} for row in rows for letter in row["word"]]
    found = tdmap.flat_map(table, words, out, chunksize=7, num_workers=workers)
    assert listed(found) == expected
    sums = table.map(lambda part: TensorDict({"n": part["ids"].lengths}, [len(part)]), num_workers=workers)
    assert sums.rows["n"].tolist() == [len(row["ids"]) for row in rows]
    with pytest.raises(OutputMismatch, match="must return rows"):
        table.map(lambda part: 3, num_workers=0)


def test_rows_that_raise_are_left_out(where: Any) -> None:
    table, out = where(plain(50))

    def fn(part: Table) -> Table:
        if (part["x"] % 10 == 7).any():
            raise ValueError("seven")
        return part

    errors = tdmap.RowErrors()
    assert table.map(fn, out, on_error=errors, chunksize=4, num_workers=2).rows["x"].tolist() == [
        x for x in range(50) if x % 10 != 7
    ]
    assert errors.rows == [7, 17, 27, 37, 47]


def test_jagged_rows_alone_go_through_the_functions_of_tdmap() -> None:
    rows = [word * (number % 3) for number, word in enumerate(WORDS * 3)]
    jagged = Jagged.from_list(rows)
    assert tdmap.sort(jagged, key="value").tolist() == sorted(rows)
    assert tdmap.sort(jagged, key="value", descending=True).tolist() == sorted(rows, reverse=True)
    assert tdmap.filter(jagged, lambda part: part.lengths > 2, num_workers=0).tolist() == [
        row for row in rows if len(row.encode()) > 2
    ]
    assert tdmap.map(jagged, lambda part: [row + "!" for row in part], num_workers=0).tolist() == [
        r + "!" for r in rows
    ]
    assert tdmap.shuffle(jagged, seed=1).tolist() == jagged.shuffle(seed=1).tolist()
    assert tdmap.shuffle(jagged, 1).tolist() == jagged.shuffle(seed=1).tolist()  # by position, as for tensors
    assert tdmap.sort(jagged, "value").tolist() == sorted(rows)
    counts = tdmap.group_by(jagged, "rows").reduce({"n": Count()}, num_workers=0)
    assert dict(zip(counts["rows"].tolist(), counts["n"].tolist(), strict=True)) == {
        row: rows.count(row) for row in sorted(set(rows))
    }
    other = Table.of({"rows": Jagged.from_list(["ant", "z"]), "n": torch.tensor([7, 8])})
    joined = tdmap.join(jagged, other, "rows")
    assert [(row["rows"], row["n"]) for row in listed(joined)] == [
        (r, {"ant": 7, "z": 8}[r]) for r in rows if r in ("ant", "z")
    ]


WRITERS: dict[str, Any] = {
    "map": lambda data, out, **options: data.map(lambda rows: rows, out, **options),
    "filter": lambda data, out, **options: data.filter(lambda rows: [True] * len(rows), out, **options),
    "sort": lambda data, out, **options: data.sort(*(["x"] if isinstance(data, Table) else []), out=out, **options),
    "shuffle": lambda data, out, **options: data.shuffle(out, seed=0, **options),
    "sample": lambda data, out, **options: data.sample(len(data), out, **options),
    "take": lambda data, out, **options: data.take(torch.arange(len(data)), out, **options),
    "join": lambda data, out, **options: data.join(data, "x", "semi", out, **options),
    "save": lambda data, out, num_workers, **options: data.save(out, **options),
}


KINDS = [(kind, name) for kind in ("table", "jagged") for name in WRITERS]
NOT_THEIRS = [("jagged", "take"), ("jagged", "join")]


@pytest.mark.parametrize(("kind", "name"), [case for case in KINDS if case not in NOT_THEIRS])
def test_a_folder_is_overwritten_when_it_is_asked_for(tmp_path: Path, kind: str, name: str) -> None:
    data: Any = table_of(plain(9))
    data = data if kind == "table" else data["word"]
    out = tmp_path / "out"
    TensorDict({"old": torch.arange(3)}, [3]).memmap(out)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        WRITERS[name](data, out, num_workers=0)
    assert sorted(Table.open(out).keys()) == ["old"]
    found = WRITERS[name](data, out, overwrite=True, num_workers=0)
    assert len(found) == len(data)
    assert sorted(Table.open(out).keys()) == (sorted(data.keys()) if kind == "table" else ["rows"])
    if name != "save":
        with pytest.raises(ValueError, match="out must be its path"):
            WRITERS[name](data, None, overwrite=True, num_workers=0)


def test_a_table_may_take_the_place_of_its_own_folder(tmp_path: Path) -> None:
    rows = plain(30)
    out = tmp_path / "rows"
    table = table_of(rows).save(out)
    found = table.sort("x", out, descending=True, overwrite=True, num_workers=2)
    assert listed(found) == listed(Table.open(out)) == rows[::-1]


def test_formulas_read_columns_of_tables(tmp_path: Path) -> None:
    rows = plain(50)
    table = table_of(rows)
    col = tdmap.col
    wanted = (col("word").isin(["ant", "z"]) & (col("x") > 10)) | (col(("deep", "m")).sum() == 3)
    expected = [
        row for row in rows if (row["word"] in ("ant", "z") and row["x"] > 10) or sum(map(sum, row["deep.m"])) == 3
    ]
    for out in (None, tmp_path / "out"):
        assert listed(table.filter(wanted, out, num_workers=2)) == expected
    kept = table.filter(col("word") == "größer", tmp_path / "kept", resume=True, num_workers=0)
    assert listed(kept) == [row for row in rows if row["word"] == "größer"]
    with pytest.raises(KeyError, match="no column 'wrod'; there are 'x'"):
        table.filter(col("wrod") == "ant", num_workers=0)
    with pytest.raises(TypeError, match="lists of different lengths"):
        table.filter(col("ids") == 1, num_workers=0)


def test_keys_that_cannot_be_are_told() -> None:
    table = table_of(plain(5))
    with pytest.raises(KeyError, match="no column 'wrod'; there are 'x', 'key'"):
        table.sort("wrod")
    with pytest.raises(TypeError, match="'ids' are tensors of different lengths"):
        table.group_by("ids")
    with pytest.raises(TypeError, match="takes names of columns, not a function"):
        table.top_k(lambda rows: rows["x"], 1)
    with pytest.raises(TypeError, match="never equal"):
        table.join(table, {"x": "word"})
    with pytest.raises(ValueError, match="would have the name"):
        table.join(table, "x", suffix="")
    with pytest.raises(IndexError):
        table.take(torch.tensor([5]))


def test_chunks_without_rows_tell_nothing_and_others_must_agree(tmp_path: Path) -> None:
    table = table_of(plain(40))

    def late(part: Table) -> dict[str, Any]:
        return {"word": [word for x, word in zip(part["x"].tolist(), part["word"], strict=True) if x >= 35]}

    for out in (None, tmp_path / "out"):
        assert table.map(late, out, chunksize=5, num_workers=2)["word"].tolist() == table["word"][35:].tolist()
        with pytest.raises(ValueError, match="no rows at all"):
            table.map(lambda part: {"word": []}, None if out is None else tmp_path / "none", num_workers=0)

    def changes(part: Table) -> dict[str, Any]:
        return {"a" if part["x"][0] < 20 else "b": part["word"]}

    with pytest.raises(OutputMismatch, match="the jagged columns 'a', and others 'b'"):
        table.map(changes, tmp_path / "mixed", chunksize=10, num_workers=0)


@pytest.mark.parametrize("kind", ["table", "jagged"])
def test_an_interrupted_filter_goes_on_where_it_was(tmp_path: Path, kind: str) -> None:
    words = [f"{number}" * (number % 7) for number in range(60)]
    table = Table.of({"x": torch.arange(60), "word": words})
    mark, calls = tmp_path / "mark", tmp_path / "calls"

    def predicate(rows: Any) -> Any:
        with calls.open("a") as file:
            file.write("x")
        lengths = (rows["word"] if isinstance(rows, Table) else rows).lengths
        if not mark.exists() and calls.stat().st_size == 8:
            mark.touch()
            raise KeyError("once")
        return lengths % 2 == 0

    data: Any = table if kind == "table" else table["word"]
    options: Any = {"resume": True, "chunksize": 5, "num_workers": 0}
    with pytest.raises(KeyError, match="once"):
        data.filter(predicate, tmp_path / "out", **options)
    found = data.filter(predicate, tmp_path / "out", **options)
    assert len(calls.read_text()) < 8 + 12
    kept = [word for word in words if len(word) % 2 == 0]
    assert (found["word"] if kind == "table" else found).tolist() == kept
    with pytest.raises(ValueError, match="pass out="):
        data.filter(predicate, resume=True, num_workers=0)
    assert len(data.filter(lambda rows: [False] * len(rows), tmp_path / "none", **options)) == 0


def test_open_says_what_opens_jagged_rows_and_tables(tmp_path: Path) -> None:
    table = Table.of({"x": torch.arange(2), "word": ["ant", "bee"]})
    table.save(tmp_path / "table")
    table["word"].save(tmp_path / "jagged")
    with pytest.raises(DatasetError, match=r"is a table, with rows of different lengths in 'word'.*Table\.open"):
        tdmap.open(tmp_path / "table")
    with pytest.raises(DatasetError, match=r"holds jagged rows.*Jagged\.open"):
        tdmap.open(tmp_path / "jagged")
    TensorDict({"jagged": torch.zeros(3)}, []).memmap(tmp_path / "other")
    assert tdmap.open(tmp_path / "other")["jagged"].shape == (3,)


def test_chunks_of_no_size_are_refused_at_once():
    table = Table.of({"text": ["a", "b"], "n": torch.arange(2)})
    for call in (table.map, table.filter):
        with pytest.raises(ValueError, match="at least 1: got 0"):
            call(lambda rows: rows, chunksize=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_a_group_names_its_key_as_the_table_has_it(workers: int) -> None:
    table = Table.of({"user": ["ada", "emmy", "ada"], "n": torch.tensor([4, 5, 4])})

    def fail(rows: Table) -> Table:
        if len(rows) == 1:
            raise ZeroDivisionError("no")
        return rows

    def backwards(rows: Table) -> list[str]:
        return [word[::-1] for word in rows["user"].tolist()]

    cases: list[tuple[Any, str]] = [("user", "'emmy'"), (["n", "user"], "5, 'emmy'"), ("n", "5")]
    for key, shown in [*cases, (backwards, "number 1, in the order of the keys,")]:
        with pytest.raises(ZeroDivisionError) as caught:
            table.group_by(key).map_groups(fail, num_workers=workers)
        assert f"in the group of the key {shown} (1 rows)" in caught.value.__notes__


def test_a_lazy_stack_becomes_a_table():
    rows = lazy_stack([TensorDict({"x": torch.tensor(number), "w": f"w{number}"}, []) for number in range(3)])
    table = Table.of(rows)
    assert table["x"].tolist() == [0, 1, 2] and table["w"].tolist() == ["w0", "w1", "w2"]
