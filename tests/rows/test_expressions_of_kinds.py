"""Expressions over entries of every kind: the same for single rows and chunks, and errors that quote the expression."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tdmap
from tdmap import col
from tensordict_lite import NonTensorStack, Ragged, TensorDict, lazy_stack

TABLE = torch.arange(12).reshape(4, 3) - 4
LISTS = [["a"], ["b"], [], ["a"]]
CHUNKS = pytest.mark.parametrize("chunksize", [0, 1, 3, None])


def rows() -> TensorDict:
    return TensorDict(
        {
            "table": TABLE,
            "column": torch.arange(4)[:, None],
            "x": torch.tensor([0, 1, 2, 3]),
            "y": torch.tensor([1, 2, 1, 2]),
            "u": torch.tensor([0, 3, 255, 1], dtype=torch.uint8),
            "none": torch.zeros(4, 0),
            "text": ["a", "b", "", "a"],
            "lists": Ragged.from_objects(LISTS),
            "same": NonTensorStack(*[["a"], ["b"], ["c"], ["a"]]),
        },
        [4],
    )


VALUES: dict[str, tuple[tdmap.expressions.Expression, torch.Tensor]] = {
    "sum": (col("table").sum(), TABLE.sum(1)),
    "mean": (col("table").mean(), TABLE.double().mean(1)),
    "max": (col("table").max() > 0, TABLE.amax(1) > 0),
    "column": (col("column") + 1, torch.arange(1, 5)),
    "sum of a column": (col("column").sum(), torch.arange(4)),
    "any of numbers": (col("x").any() & col("y").any(), torch.tensor([False, True, True, True])),
    "not any": (~col("u").any(), torch.tensor([True, False, False, False])),
    "all of numbers": (col("u").all(), torch.tensor([False, True, True, True])),
    "mean of numbers": (col("u").mean(), torch.tensor([0.0, 3.0, 255.0, 1.0], dtype=torch.float64)),
    "sum of no elements": (col("none").sum(), torch.zeros(4)),
    "text": (col("text") == "a", torch.tensor([True, False, False, True])),
    "one of texts": (col("text").isin(["a", ""]), torch.tensor([True, False, True, True])),
    "a list": (col("lists") == ["a"], torch.tensor([True, False, False, True])),
    "not a list": (col("same") != ["a"], torch.tensor([False, True, True, False])),
    "one of lists": (col("lists").isin([["a"], []]), torch.tensor([True, False, True, True])),
    "none of texts": (col("lists").isin(["a"]), torch.zeros(4, dtype=torch.bool)),
}


@CHUNKS
@pytest.mark.parametrize("name", VALUES)
def test_values_of_rows(name: str, chunksize: int | None) -> None:
    expression, wanted = VALUES[name]
    for data in (rows(), lazy_stack(list(rows().unbind(0)))):
        found = tdmap.map(data, expression, num_workers=0, chunksize=chunksize)
        assert found.dtype is wanted.dtype and torch.equal(found, wanted)
    assert torch.equal(expression(rows()[1]), wanted[1])
    if wanted.dtype is torch.bool:
        kept = tdmap.filter(rows(), expression, num_workers=0, chunksize=chunksize)
        assert torch.equal(kept["x"], rows()["x"][wanted])


@CHUNKS
@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (lambda: -col("text"), "unary -"),
        (lambda: ~col("text"), "unary ~"),
        (lambda: abs(col("text")), "abs"),
        (lambda: col("text").between(0, 1), "not supported between"),
        (lambda: col("u") + 300, "300 out of bounds for uint8"),
        (lambda: col("none").min(), "zero-size array"),
        (lambda: col("x").isin(["a"]), "the values of the column are numbers"),
        (lambda: col("x") == [0, 1, 2, 3], "holds numbers .int64., and .* is a list"),
        (lambda: col("table") == [0, 1, 2], "holds numbers .int64., and .* is a list"),
    ],
)
def test_errors_quote_the_expression(
    expression: Callable[[], tdmap.expressions.Expression], said: str, chunksize: int | None
) -> None:
    formula = expression()
    with pytest.raises(TypeError, match=said) as caught:
        tdmap.map(rows(), formula, num_workers=0, chunksize=chunksize)
    assert str(caught.value).startswith(repr(formula))


@pytest.mark.parametrize("chunksize", [2, 4])
def test_rows_of_different_lengths_have_no_values(chunksize: int | None) -> None:
    uneven = [torch.arange(length) for length in (3, 2, 0, 1)]
    columns = TensorDict({"v": Ragged.from_list(uneven)}, [4])
    data: Any
    for data in (columns, lazy_stack([TensorDict({"v": row}) for row in uneven])):
        with pytest.raises(TypeError, match="its rows are lists of different lengths"):
            tdmap.map(data, col("v") > 1, num_workers=0, chunksize=chunksize)
