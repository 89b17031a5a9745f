"""Operations of tables and jagged rows have the options of their namesakes, but for those with a reason here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tdmap
from tdmap import GroupBy
from tdmap.datasets import Jagged, Table, jaggedmap
from tdmap.datasets.tables import joining, ops, picks
from tdmap.datasets.tables.groups import TableGroups
from tdmap.run.operation import worker_options

APART = {"data", "a", "b", *worker_options()}
"""What a method is called on, `other` in a join, and the options about workers, which all have as `**options`."""

ONE_FOLDER = dict.fromkeys(["rows_per_shard", "storage_options", "shard"], "a table lies in one folder")
OF_MAP = {
    **dict.fromkeys(["dim", "index_with_generator"], "those of `tensordict`'s map, for tensors"),
    **dict.fromkeys(["in_keys", "out_keys"], "a function of a chunk reads the columns that it names"),
    **dict.fromkeys(["with_indices", "fn_kwargs"], "functools.partial; a column with the numbers of the rows"),
    "device": "columns of text lie on none",
    "undo": "no function changes a table in place",
}
LACKING: dict[str, dict[str, str]] = {
    "map": OF_MAP,
    "flat_map": {"spill_dir": "rows wait within out"},
    "filter": {"spill_dir": "no rows wait: numbers of rows do, and jagged rows are copied once"},
    "shuffle": dict.fromkeys(["method", "spill_dir"], "rows are looked up where they lie, and never wait in files"),
}
"""By operation: options that tables and jagged rows lack on purpose, and why."""

OF_ALL = {**ONE_FOLDER, "num_chunks": "chunksize= says as much"}

ONLY_JAGGED: dict[str, dict[str, str]] = {
    "sort": dict.fromkeys(["chunksize", "spill_dir", "retries", "timeout"], "lengths and ranks are sorted in memory"),
}

TABLE: dict[str, Callable[..., Any]] = {
    "map": ops.map_table,
    "flat_map": ops.map_table,
    "filter": ops.filter_table,
    "sort": ops.sort_table,
    "shuffle": picks.shuffle_table,
    "join": joining.join_table,
    "unique": picks.unique_of,
    "value_counts": picks.value_counts_of,
    "top_k": picks.top_of,
    "sample": picks.sample_of,
    "group_by": TableGroups,
}
JAGGED: dict[str, Callable[..., Any]] = {
    "map": jaggedmap.map_jagged,
    "flat_map": jaggedmap.map_jagged,
    "filter": jaggedmap.filter_jagged,
    "sort": picks.sort_jagged,
    "shuffle": picks.shuffle_jagged,
    "sample": picks.sample_jagged,
}
THROUGH_A_TABLE = {"join", "group_by", "unique", "value_counts"}
"""Operations of jagged rows that are those of the table with them as a column."""


def options(*functions: Callable[..., Any]) -> set[str]:
    found = set()
    for function in functions:
        for name, parameter in inspect.signature(inspect.unwrap(function)).parameters.items():
            if parameter.kind is not parameter.VAR_KEYWORD and name != "self":
                found.add(name)
    return found


def test_every_operation_is_looked_at() -> None:
    assert Table.__tdmap_operations__ == set(TABLE)
    assert Jagged.__tdmap_operations__ == set(JAGGED) | THROUGH_A_TABLE


@pytest.mark.parametrize("name", TABLE)
def test_operations_of_tables_have_the_options_of_their_namesakes(name: str) -> None:
    wanted = options(getattr(tdmap, name)) - APART
    reasons = {**OF_ALL, **LACKING.get(name, {})}
    assert wanted - options(getattr(Table, name), TABLE[name]) == wanted & set(reasons)


@pytest.mark.parametrize("name", JAGGED)
def test_operations_of_jagged_rows_have_the_options_of_their_namesakes(name: str) -> None:
    wanted = options(getattr(tdmap, name)) - APART
    reasons = {**OF_ALL, **LACKING.get(name, {}), **ONLY_JAGGED.get(name, {})}
    assert wanted - options(getattr(Jagged, name), JAGGED[name]) == wanted & set(reasons)


@pytest.mark.parametrize("name", ["reduce", "agg", "top_k", "map_groups"])
def test_groups_of_tables_hand_options_on(name: str) -> None:
    method = getattr(TableGroups, name)
    named = {"out", "overwrite", "resume"}
    assert named <= options(method)
    assert any(p.kind is p.VAR_KEYWORD for p in inspect.signature(method).parameters.values())
    assert named <= options(getattr(GroupBy, name))


def test_options_about_tries_and_files_reach_the_engine(tmp_path: Any) -> None:
    table = Table.of({"x": torch.tensor([3, 1, 2]), "word": ["c", "a", "b"]})
    engine: Any = {"spill_dir": tmp_path, "chunksize": 2, "retries": 0, "timeout": 600.0, "num_workers": 0}
    assert table.sort("word", **engine)["x"].tolist() == [1, 2, 3]
    assert table.join(table.rename({"x": "y"}), "word", **engine)["y"].tolist() == [3, 1, 2]
    groups = table.group_by("word", spill_dir=tmp_path)
    found = groups.map_groups(lambda rows: rows, chunksize=2, retries=0, timeout=600.0, num_workers=0)
    assert found["word"].tolist() == ["a", "b", "c"]
    random: Any = {"seed": 5, "retries": 0, "timeout": 600.0, "chunksize": 1, "num_workers": 0}
    for data in (table, table["word"]):
        draws = [data.filter(lambda rows: torch.rand(len(rows)) < 0.5, **random) for _ in range(2)]
        assert len(draws[0]) == len(draws[1])
    once, again = (table.map(lambda rows: {"r": torch.rand(len(rows))}, **random)["r"] for _ in range(2))
    assert torch.equal(once, again) and len(set(once.tolist())) == 3
    for call in (table.sort, table.join):
        with pytest.raises(ValueError, match="retries"):
            call(*(["x"] if call == table.sort else [table, "x"]), retries=-1, num_workers=0)
