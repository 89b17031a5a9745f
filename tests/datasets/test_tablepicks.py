"""Groups, distinct values and picked rows of tables: against pandas, and against the same operation on a TensorDict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap.datasets import Jagged, Table
from tdmap.errors import OutputMismatch
from tdmap.reducers import Count
from tensordict_lite import TensorDict

ROWS = 60
RANDOM = np.random.default_rng(0)
WORDS = RANDOM.choice(["ant", "", "größer", "a" * 30], ROWS).tolist()
FRAME = pandas.DataFrame({"word": WORDS, "key": RANDOM.integers(0, 3, ROWS), "x": RANDOM.permutation(ROWS) * 0.5})
KEYS: list[Any] = ["word", "key", ["word", "key"]]


def table() -> Table:
    columns = {"key": torch.tensor(FRAME["key"].to_numpy()), "x": torch.tensor(FRAME["x"].to_numpy())}
    ids = Jagged.from_list([[number] * (number % 3) for number in range(ROWS)])
    return Table(TensorDict(columns, [ROWS]), {"word": Jagged.from_list(WORDS), "ids": ids})


def listed(found: Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(found[name].tolist() for name in names), strict=True))


def names_of(key: Any) -> list[str]:
    return [key] if isinstance(key, str) else key


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_agg_has_the_figures_of_pandas(tmp_path: Path, key: Any, in_folder: bool) -> None:
    out = tmp_path / "out" if in_folder else None
    spec = {"x": ["sum", "median", "max"], "n": ("key", "count")}
    found = tdmap.group_by(table(), key).agg(spec, out=out, num_workers=0)
    groups = FRAME.groupby(key)["x"]
    expected = groups.agg(["sum", "median", "max", "count"]).reset_index()
    assert listed(found, *names_of(key)) == list(expected[names_of(key)].itertuples(index=False, name=None))
    for name in ("sum", "median", "max"):
        assert found[f"x.{name}"].tolist() == expected[name].tolist()
    assert found["n"].tolist() == expected["count"].tolist()
    if out is not None:
        assert sorted(Table.open(out).keys()) == sorted(found.keys())


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_reduce_into_a_folder_keeps_the_keys(tmp_path: Path, key: Any) -> None:
    groups = tdmap.group_by(table(), key)
    there = groups.reduce({"n": Count()}, out=tmp_path / "out", num_workers=0)
    for found in (there, Table.open(tmp_path / "out")):
        assert sorted(found.keys()) == sorted([*names_of(key), "n"])
        assert listed(found, *names_of(key), "n") == listed(groups.reduce({"n": Count()}), *names_of(key), "n")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        groups.reduce({"n": Count()}, out=tmp_path / "out", num_workers=0)
    groups.reduce({"m": Count()}, out=tmp_path / "out", overwrite=True, num_workers=0)
    assert "m" in Table.open(tmp_path / "out").keys()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_top_k_of_groups(key: Any, largest: bool) -> None:
    found = tdmap.group_by(table(), key).top_k("x", 2, largest=largest, num_workers=0)
    ordered = FRAME.sort_values("x", ascending=not largest, kind="stable")
    best = ordered.groupby(key).head(2).sort_values(names_of(key), kind="stable")
    assert listed(found, "word", "key", "x") == list(best.itertuples(index=False, name=None))
    assert found["ids"].tolist() == table()["ids"][torch.tensor(best.index.to_numpy())].tolist()


def test_groups_of_tables_may_return_dicts_and_tables() -> None:
    groups = tdmap.group_by(table(), "word")
    sums = groups.map_groups(lambda rows: {"word": rows["word"][0], "sum": rows["x"].sum()}, num_workers=0)
    assert sums["sum"].tolist() == FRAME.groupby("word")["x"].sum().tolist()
    first = groups.map_groups(lambda rows: Table(rows.rows[:1], {"word": rows["word"][:1]}), num_workers=0)
    assert list(first["word"]) == sorted(set(WORDS))


@pytest.mark.parametrize("out", [None, "out"])
def test_groups_of_tables_give_tables(tmp_path: Path, out: str | None) -> None:
    def figures(rows: Table) -> dict[str, Any]:
        raw = {} if out else {"raw": rows["word"][0].encode()}  # the engine puts no bytes into a folder
        return {"word": rows["word"][0], "sum": rows["x"].sum(), **raw}

    options: Any = {"out": None if out is None else tmp_path / out, "num_workers": 2}
    groups = tdmap.group_by(table(), "word")
    found = groups.map_groups(figures, **options)
    wanted = FRAME.groupby("word")["x"].sum()
    assert isinstance(found, Table) and found["word"].kind == "str"
    assert out or found["raw"].kind == "bytes"
    assert found["word"].tolist() == list(wanted.index) and found["sum"].tolist() == wanted.tolist()
    assert found.sort("sum", num_workers=0)["word"].tolist() == list(wanted.sort_values(kind="stable").index)
    if out is not None:
        assert listed(Table.open(tmp_path / out), "word", "sum") == listed(found, "word", "sum")
        with pytest.raises(FileExistsError, match="overwrite=True"):
            groups.map_groups(figures, **options)
        again = groups.map_groups(lambda rows: {"n": len(rows)}, overwrite=True, **options)
        assert again["n"].tolist() == FRAME.groupby("word").size().tolist()


@pytest.mark.parametrize("value", [None, {"a": 1}, ["a", None]], ids=str)
def test_objects_that_a_function_of_groups_returns_are_told_at_once(tmp_path: Path, value: Any) -> None:
    def one(rows: Table) -> dict[str, Any]:
        return {"word": rows["word"], "other": [value] * len(rows) if not isinstance(value, list) else value}

    with pytest.raises(OutputMismatch, match="the column 'other' .* has a (NoneType|dict), and a table has tensors"):
        table().group_by("word").map_groups(one, out=tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out").exists()


def test_keys_that_are_not_a_number() -> None:
    floats = Table.of({"f": torch.tensor([1.0, float("nan"), 1.0]), "s": ["a", "b", "c"]})
    assert tdmap.group_by(floats, "f", dropna=True).reduce({"n": Count()}, num_workers=0)["n"].tolist() == [2]
    assert tdmap.unique(floats, "f", dropna=True, num_workers=0)["f"].tolist() == [1.0]
    with pytest.raises(ValueError, match="NaN"):
        tdmap.group_by(floats, "f").reduce({"n": Count()}, num_workers=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_unique_and_value_counts(tmp_path: Path, workers: int) -> None:
    assert tdmap.unique(table(), "word", num_workers=workers)["word"].tolist() == sorted(set(WORDS))
    counts = tdmap.value_counts(table(), ["word", "key"], tmp_path / "out", num_workers=workers)
    expected = FRAME.groupby(["word", "key"]).size().reset_index(name="n")
    expected = expected.sort_values("n", ascending=False, kind="stable")
    assert listed(counts, "word", "key", "count") == list(expected.itertuples(index=False, name=None))
    words = Jagged.from_list(WORDS)
    assert tdmap.unique(words, num_workers=0)["rows"].tolist() == sorted(set(WORDS))
    assert tdmap.value_counts(words, num_workers=0)["count"].tolist() == FRAME["word"].value_counts().tolist()


def test_top_k_and_sample_pick_the_rows_that_they_pick_of_tensors(tmp_path: Path) -> None:
    plain = TensorDict({"x": table()["x"], "row": torch.arange(ROWS)}, [ROWS])
    for options in ({}, {"largest": False}):
        rows = tdmap.top_k(plain, "x", 5, num_workers=0, **options)["row"]
        assert tdmap.top_k(table(), "x", 5, num_workers=0, **options)["word"].tolist() == [WORDS[row] for row in rows]
    assert tdmap.top_k(table(), "word", 1, num_workers=0)["word"].tolist() == [max(WORDS)]
    cases: list[dict[str, Any]] = [{"n": 7}, {"frac": 0.5, "shuffle": True}, {"n": 9, "weights": "x", "replace": True}]
    for case in cases:
        rows = tdmap.sample(plain, seed=3, num_workers=0, **case)["row"]
        drawn = tdmap.sample(table(), seed=3, num_workers=0, **case)
        assert (
            drawn["word"].tolist() == [WORDS[row] for row in rows] and drawn["x"].tolist() == plain["x"][rows].tolist()
        )
    drawn = tdmap.sample(Jagged.from_list(WORDS), 4, seed=3, num_workers=0)
    assert drawn.tolist() == [WORDS[row] for row in tdmap.sample(plain, 4, seed=3, num_workers=0)["row"]]
    tdmap.sample(Jagged.from_list(WORDS), 4, tmp_path / "drawn", seed=3, num_workers=0)
    assert Jagged.open(tmp_path / "drawn").tolist() == drawn.tolist()
    with pytest.raises(TypeError, match="column of text"):
        tdmap.sample(table(), 3, weights="word")
