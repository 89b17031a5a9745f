"""Every format writes columns of every kind alike, however they lie in memory and whatever rows it takes at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tdmap.datasets import read, to_arrow, tokenise, write
from tensordict_lite import NonTensorData, NonTensorStack, Ragged, TensorDict, lazy_stack, tensorclass

pytest.importorskip("pyarrow")

TEXT = [None, None, "a", "", None, "ü"]
VALUES = [None, {"a": 1}, None, {"a": 2}, {"a": None}, None]
LISTS = [["x"], [], None, ["y", None], None, ["z"]]
COLUMNS = {"text": TEXT, "value": VALUES, "list": LISTS, "none": [None] * 6}


@tensorclass
class Rows:
    text: Any
    value: Any
    list: Any
    none: Any


def of_form(form: str) -> Any:
    wrapped = {name: [*map(NonTensorData, rows)] for name, rows in COLUMNS.items()}
    if form == "objects":
        return TensorDict({name: NonTensorStack(*rows) for name, rows in wrapped.items()}, [6])
    if form == "lazy stack":
        return lazy_stack([TensorDict({name: rows[row] for name, rows in wrapped.items()}) for row in range(6)])
    columns = {"text": Ragged.from_list(TEXT), "value": Ragged.from_objects(VALUES), "list": Ragged.from_objects(LISTS)}
    columns["none"] = Ragged.from_list(["", *COLUMNS["none"]])[1:]
    return Rows(**columns, batch_size=[6]) if form == "tensorclass" else TensorDict(columns, [6])


@pytest.mark.parametrize("form", ["columns", "objects", "lazy stack", "tensorclass"])
@pytest.mark.parametrize("batch_rows", [1, 2, None])
@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_rows_with_none_are_nulls_in_every_format(
    form: str, batch_rows: int | None, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"rows.{ending}"
    write(of_form(form), path, batch_rows=batch_rows)
    found = read(path, nulls="mask", num_workers=0, columns=["text", "list"])
    for name in ("text", "list"):
        rows = COLUMNS[name]
        assert found[f"{name}.valid"].tolist() == [row is not None for row in rows]
        valid = [row for row, value in enumerate(rows) if value is not None]
        assert [found[name][row] for row in valid] == [rows[row] for row in valid]
    import pyarrow.parquet

    if ending == "parquet":
        table = pyarrow.parquet.read_table(path)
        assert {name: table[name].to_pylist() for name in COLUMNS} == COLUMNS


@pytest.mark.parametrize("form", ["columns", "objects", "lazy stack", "tensorclass"])
def test_text_is_tokenised_in_every_form(form: str) -> None:
    rows = of_form(form)[[2, 3, 5]] if form != "lazy stack" else of_form(form)[2:4]
    found = tokenise(rows, lambda texts: [[ord(letter) for letter in text] for text in texts], "text", num_workers=0)
    assert found["input_ids"][0].tolist() == [97] and found["input_ids"][1].tolist() == []


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_an_array_whose_rows_have_no_elements_is_named(ending: str, tmp_path: Path) -> None:
    data = TensorDict({"x": torch.arange(3), "deep": {"y": torch.zeros(3, 2, 0)}}, [3])
    with pytest.raises(TypeError, match=r"the column 'deep.y' has rows of shape \[2, 0\], without elements"):
        write(data, tmp_path / f"rows.{ending}")
    with pytest.raises(TypeError, match=r"the column 'deep.y' has rows of shape \[2, 0\], without elements"):
        to_arrow(data)
