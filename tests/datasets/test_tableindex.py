"""Rows and columns of tables by index, and tables behind one another: against lists of Python's and numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.datasets import Jagged, Table
from tdmap.reducers import Sum
from tensordict_lite import TensorDict

ROWS = 7


@pytest.fixture(params=["both", "tensors", "strings", "folder"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    tensors = TensorDict({"x": torch.arange(ROWS), "deep": {"y": torch.arange(ROWS * 2.0).view(ROWS, 2)}}, [ROWS])
    words = {"word": Jagged.from_list([f"w{row}" * (row % 3) for row in range(ROWS)])}
    if request.param == "tensors":
        return Table(tensors)
    if request.param == "strings":
        return Table(TensorDict({}, [ROWS]), words)
    found = Table(tensors, words)
    return found.save(tmp_path / "table") if request.param == "folder" else found


def listed(table: Table) -> dict[str, Any]:
    return {name: table[name].tolist() for name in table.keys()}


MASK = [True, False, False, True, True, False, True]


@pytest.mark.parametrize(
    "index",
    [
        slice(None, None, -1),
        slice(5, 1, -2),
        slice(1, 6, 2),
        slice(4, 2),
        slice(2, 4, -1),
        [0, -1, 3],
        [],
        (2, 2),
        range(1, 4),
        MASK,
        np.array([6, 0]),
        np.array(MASK),
        torch.tensor([1, -7]),
        torch.tensor(MASK),
        torch.arange(3, dtype=torch.uint8),
    ],
    ids=str,
)
def test_rows_are_those_that_numpy_takes(table: Table, index: Any) -> None:
    plain = list(index) if isinstance(index, (tuple, range)) else index
    order = np.arange(ROWS)[np.asarray(plain, dtype=np.int64) if isinstance(plain, list) and not plain else plain]
    found = table[index]
    assert len(found) == len(order)
    assert listed(found) == {name: [values[row] for row in order] for name, values in listed(table).items()}


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, torch.tensor, np.array])
def test_a_number_of_any_kind_is_one_row(table: Table, kind: Any) -> None:
    row = table[kind(3)]
    assert isinstance(row, dict)
    if "word" in row:
        assert row["word"] == ""
    if "x" in row:
        assert row["x"] == 3 and row["deep"]["y"].tolist() == [6.0, 7.0]


@pytest.mark.parametrize(
    "index", [None, ..., "wird", ["x", "wird"], 1.5, [1.5], {1}, ("x", 2), True, ROWS, [ROWS], [True]]
)
def test_what_is_no_row_and_no_column_is_refused(table: Table, index: Any) -> None:
    with pytest.raises((IndexError, KeyError)):
        table[index]


def test_columns_are_chosen_by_a_list_of_names() -> None:
    table = Table.of({"x": torch.arange(2), "word": ["a", "b"]})
    assert listed(table[["word"]]) == {"word": ["a", "b"]}
    assert listed(table[["word", "x"]]) == {"x": [0, 1], "word": ["a", "b"]}
    nested = Table(TensorDict({"deep": {"y": torch.arange(2), "z": torch.arange(2)}}, [2]))
    assert listed(nested[["deep.y"]]) == {"deep.y": [0, 1]}
    with pytest.raises(KeyError, match="there is no column 'wird': there are 'x', 'word'.*Did you mean 'word'"):
        table["wird"]


def test_tables_follow_one_another(table: Table) -> None:
    both = Table.cat([table, table[:0], table[2:]])
    assert listed(both) == {name: values + values[2:] for name, values in listed(table).items()}
    assert len(both) == 2 * ROWS - 2


def test_tables_with_other_columns_do_not_follow_one_another() -> None:
    one = Table.of({"x": torch.arange(2), "word": ["a", "b"]})
    with pytest.raises(ValueError, match="column 'word'"):
        Table.cat([one, one[["x"]]])
    with pytest.raises(ValueError, match="column 'x'"):
        Table.cat([one, one[["word"]]])
    with pytest.raises(ValueError, match="at least one table"):
        Table.cat([])
    with pytest.raises(ValueError, match="needs a column"):
        Table.of({})


def test_operations_without_tables_say_what_tables_have() -> None:
    table = Table.of({"x": torch.arange(2), "word": ["a", "b"]})
    with pytest.raises(TypeError, match=r"reduce needs .* got a Table, which has filter, .*table\.rows"):
        tdmap.reduce(table, Sum("x"))
    with pytest.raises(TypeError, match=r"In memory: Table\.cat"):
        tdmap.concat([table, table])


def test_jagged_rows_are_described_by_their_lengths() -> None:
    found = tdmap.describe(Jagged.from_list(["a", "bbb"]), num_workers=0)
    assert found["rows (length)"].max == 3 and found.rows == 2


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def deep() -> Table:
    tensors = {"x": torch.arange(4), "deep": {"a": torch.arange(4.0), "b": torch.zeros(4, 2)}}
    return Table(TensorDict(tensors, [4]), {"größe": Jagged.from_list(["s", "m", "", "xl"])})


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ([], ["x", "deep.a", "deep.b", "größe"]),
        (["x"], ["deep.a", "deep.b", "größe"]),
        (["deep"], ["x", "größe"]),
        (["deep.a", "größe"], ["x", "deep.b"]),
        ([("deep", "b"), "x"], ["deep.a", "größe"]),
        (["größe", "x", "deep"], []),
    ],
    ids=str,
)
def test_columns_are_selected_and_excluded(deep: Table, names: list[Any], left: list[str]) -> None:
    whole = listed(deep)
    without, chosen = deep.exclude(*names), deep.select(*names)
    assert len(without) == len(chosen) == 4
    assert listed(without) == {name: whole[name] for name in left}
    assert listed(chosen) == {name: values for name, values in whole.items() if name not in left}
    assert listed(deep) == whole  # which stays as it was
    if "x" in names:
        assert chosen["x"].data_ptr() == deep["x"].data_ptr()


def test_columns_are_renamed(deep: Table, tmp_path: Path) -> None:
    whole = listed(deep)
    found = deep.rename({"x": "größe", "größe": "x", "deep.a": "only"})
    assert listed(found) == {
        "größe": whole["x"],
        "x": whole["größe"],
        "only": whole["deep.a"],
        "deep.b": whole["deep.b"],
    }
    assert listed(found.save(tmp_path / "out")) == listed(found)
    assert list(deep.rename({"deep": "top"}).keys()) == ["x", "top.a", "top.b", "größe"]
    assert listed(deep.rename({})) == whole
    for names, name in [({"x": "größe"}, "größe"), ({"größe": "x"}, "x"), ({"x": "deep"}, "deep")]:
        with pytest.raises(ValueError, match=f"two columns would have the name '{name}'"):
            deep.rename(names)


def test_columns_that_are_not_there_are_told(deep: Table) -> None:
    for call in (deep.select, deep.exclude, lambda name: deep.rename({name: "new"})):
        with pytest.raises(KeyError, match="no column 'grösse': there are 'x', 'deep.a', 'deep.b', 'größe'. Did you"):
            call("grösse")
    with pytest.raises(TypeError, match=r"takes names one by one, as in select\('a', 'b'\): got \['x'\]"):
        deep.select(["x"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rename takes a dict of new names"):
        deep.rename("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [0, 3, 5000])
@pytest.mark.parametrize("kind", ["str", "bytes"])
def test_a_dataset_with_strings_is_opened_as_a_table_with_all_columns(tmp_path: Path, rows: int, kind: str) -> None:
    words = [f"wört {row}" * (row % 3) for row in range(rows)]
    values = words if kind == "str" else [word.encode() for word in words]
    TensorDict({"x": torch.arange(rows), "deep": {"word": values}}, [rows]).memmap(tmp_path / "data")
    table = Table.open(tmp_path / "data")
    assert table.keys() == ["x", "deep.word"] and table["deep.word"].tolist() == values
    assert rows == 0 or table["deep.word"].kind == kind
    kept = table.filter(lambda part: part["x"] % 2 == 0, num_workers=0)
    assert kept["deep.word"].tolist() == values[::2]


def test_objects_that_are_no_columns_of_a_table_are_told(tmp_path: Path) -> None:
    for values, what in [
        (["a", None], "row 1 is a NoneType"),
        ([{"a": 1}, {}], "dict"),
        (["a", b"b"], "row 1 is a bytes"),
    ]:
        data = TensorDict({"x": torch.arange(2), "w": values}, [2])
        with pytest.raises(TypeError, match=rf"the column 'w' cannot be one of a table.*{what}.*exclude\('w'\)"):
            Table.of(data)
    TensorDict({"x": torch.arange(2), "w": ["a", None]}, [2]).memmap(tmp_path / "data")
    with pytest.raises(TypeError, match="row 1 is a NoneType"):
        Table.open(tmp_path / "data")
    many = TensorDict({"w": ["a", None] * 500}, [1000]).memmap(tmp_path / "many")
    with pytest.raises(TypeError, match="row 1 is a NoneType"):
        Table.of(many)
    with pytest.raises(TypeError, match=r"the column 'w' is no tensor: Table.of\(rows\)"):
        Table(TensorDict({"w": ["a", "b"]}, [2]))
