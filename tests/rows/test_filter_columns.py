"""Formulas over columns as predicates: the rows that pandas keeps, whatever the kind of data."""

import operator
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import col
from tdmap.errors import OutputMismatch, ResumeMismatch
from tensordict_lite import LazyStackedTensorDict, Ragged, TensorClass, TensorDict

ROWS = 10_007


class Point(TensorClass):
    v: torch.Tensor


def table(rows: int = ROWS) -> TensorDict:
    r = np.random.default_rng(0)
    words = np.array(["ant", "bee", "cat"])[r.integers(0, 3, rows)].tolist()
    data = TensorDict(
        {
            "v": torch.from_numpy(r.standard_normal(rows).astype(np.float32)),
            "id": torch.arange(rows),
            "flag": torch.from_numpy(r.random(rows) < 0.5),
            "wide": torch.from_numpy(r.standard_normal((rows, 4))),
            "one": torch.from_numpy(r.integers(0, 9, (rows, 1))),
            "in": {"x": torch.from_numpy(r.integers(-3, 3, rows).astype(np.int16))},
        },
        [rows],
    )
    data["v"][::97] = torch.nan
    data["word"] = words
    return data


PREDICATES: dict[str, tuple[Any, str]] = {
    "comparison": (col("v") > 0, "v > 0"),
    "reflected": (0 < col("v"), "v > 0"),
    "and or not": ((col("v") > 0) & ~(col("id") % 3 == 0) | col("flag"), "(v > 0) & ~(id % 3 == 0) | flag"),
    "xor": (col("flag") ^ (col("id") > 100), "flag != (id > 100)"),
    "arithmetic": ((col("v") * 2 - 1) / 3 + col("id") ** 2 // 7 > 50, "(v * 2 - 1) / 3 + id ** 2 // 7 > 50"),
    "from the right": (10 - col("id") < -2.5, "10 - id < -2.5"),
    "nested": (-col("in", "x") >= col(("in", "x")) + 1, "-x >= x + 1"),
    "nested int": (abs(col("in", "x")) == 2, "abs(x) == 2"),
    "isin": (col("in", "x").isin(torch.tensor([1, -3])), "x in [1, -3]"),
    "isin none": (col("v").isin([]), "v != v and v == v"),
    "between": (col("v").between(-0.5, 0.5), "-0.5 <= v <= 0.5"),
    "nan": (col("v").is_nan(), "v != v"),
    "strings": (
        (col("word") == "bee") | (col("word") > "bee") & (col("v") < 0),
        "word == 'bee' or (word > 'bee' and v < 0)",
    ),
    "strings isin": (~col("word").isin(["ant", "cat"]), "word not in ['ant', 'cat']"),
    "column of one": (col("one") > col("in", "x"), "one > x"),
    "rows": ((col("wide") > 0).all(), "wide > 0"),
    "rows sum": (col("wide").sum() > 1, "wide_sum > 1"),
    "nothing": (col("id") < 0, "id < 0"),
    "everything": (col("id") >= 0, "id >= 0"),
}  # fmt: skip


def frame_of(data: TensorDict) -> pandas.DataFrame:
    return pandas.DataFrame(
        {
            "v": data["v"].numpy(), "id": data["id"].numpy(), "flag": data["flag"].numpy(),
            "x": data["in", "x"].numpy(), "one": data["one"].numpy()[:, 0], "word": list(data["word"]),
            "wide": data["wide"].numpy().min(1), "wide_sum": data["wide"].numpy().sum(1),
        }
    )  # fmt: skip


@pytest.mark.parametrize("name", PREDICATES)
def test_keeps_the_rows_that_pandas_keeps(name: str, tmp_path: Path) -> None:
    predicate, query = PREDICATES[name]
    data = table()
    found = tdmap.filter(data, predicate, num_workers=0)
    wanted = frame_of(data).query(query, engine="python")
    assert found["id"].tolist() == wanted["id"].tolist()
    assert list(found["word"]) == wanted["word"].tolist()
    assert found.keys() == data.keys()
    again = tdmap.filter(data, pickle.loads(pickle.dumps(predicate)), out=tmp_path / "out", num_workers=2)
    assert torch.equal(again["id"], found["id"]) and torch.equal(again["in", "x"], found["in", "x"])


@pytest.mark.parametrize("rows", [0, 1, 2, 127])
def test_few_rows(rows: int) -> None:
    data = table(rows)
    found = tdmap.filter(data, (col("id") % 2 == 1) & (col("word") != ""), num_workers=0)
    assert found["id"].tolist() == list(range(1, rows, 2)) and found.keys() == data.keys()


@pytest.mark.parametrize("kind", ["list", "column"])
def test_none_is_neither_smaller_nor_larger(kind: str) -> None:
    words = ["b", None, "a", "c", None]
    frame = pandas.DataFrame({"s": words, "other": words[::-1], "id": range(5)})
    column = Ragged.from_list if kind == "column" else list
    data = TensorDict({"s": column(words), "other": column(words[::-1]), "id": torch.arange(5)}, [5])
    for sign in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        for other in ("b", "a"):
            wanted = frame.id[sign(frame.s, other)].tolist()
            assert tdmap.filter(data, sign(col("s"), other), num_workers=0)["id"].tolist() == wanted
        if sign not in (operator.eq, operator.ne):  # None equals None here, as in Python
            wanted = frame.id[sign(frame.s, frame.other)].tolist()
            assert tdmap.filter(data, sign(col("s"), col("other")), num_workers=0)["id"].tolist() == wanted
    between = frame.id[frame.s.between("a", "b")].tolist()
    assert tdmap.filter(data, col("s").between("a", "b"), num_workers=0)["id"].tolist() == between
    assert tdmap.filter(data, ~(col("s") < "b"), num_workers=0)["id"].tolist() == [0, 1, 3, 4]


def test_lazy_stacks_and_tensorclasses() -> None:
    rows = [TensorDict({"v": torch.tensor(float(v)), "r": torch.zeros(v + 1)}, []) for v in range(5)]
    stack = LazyStackedTensorDict.lazy_stack(rows)
    assert tdmap.filter(stack.select("v"), col("v") > 2, num_workers=0)["v"].tolist() == [3.0, 4.0]
    points = Point(v=torch.arange(5), batch_size=[5])
    assert tdmap.filter(points, col("v") % 2 == 1, num_workers=0).v.tolist() == [1, 3]


def test_a_job_gives_the_answer_of_the_caller() -> None:
    data, predicate = table(), (col("v") > 0) & (col("word") != "bee")
    here = tdmap.filter(data, predicate, num_workers=2)
    there = tdmap.filter(data, predicate, num_workers=2, timeout=600)  # which a job alone can hold to
    assert torch.equal(here["id"], there["id"])


def test_prints_as_it_was_written() -> None:
    texts = (
        "(col('v') > 0) & ~col('word').isin(['a']) | (col('x') == 1)",
        "(col('a') + 1) * 2 > -col('b') ** 2",
        "(col('a') ** 2) ** 3 < 2 ** col('b') ** 2",
        "col('a') - (col('b') - 1) > col('c').between(0, 1)",
        "((col('a') > 0) == (col('b') > 0)) ^ col('c')",
    )
    for text in texts:
        assert repr(eval(text)) == text


def test_is_no_condition_of_python() -> None:
    with pytest.raises(TypeError, match=r"combine conditions with &, \| and ~"):
        (col("v") > 0) and (col("id") > 0)
    with pytest.raises(TypeError, match="between"):
        0 < col("v") < 1  # noqa: B015


@pytest.mark.parametrize("words", [["", "a", "a\0", "\0", "b", "a\0b"], [b"", b"a", b"a\0", b"\0", b"b", b"\xff\0"]])
def test_text_and_bytes_that_end_in_zeros_are_compared_whole(words: list[Any]) -> None:
    data = TensorDict({"w": words}, [len(words)])
    w = col("w")
    for one in words:
        for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
            assert compare(w, one)(data).tolist() == [compare(word, one) for word in words], (compare, one)
        assert w.between(one, words[-1])(data).tolist() == [one <= word <= words[-1] for word in words], one
        assert w.isin([one])(data).tolist() == [word == one for word in words], one


def test_bad_formulas_say_what_is_wrong() -> None:
    data = table(10)
    cases: dict[str, tuple[type[Exception], Any]] = {
        "not an entry": (KeyError, col("w") > 0),
        "cannot be computed": (TypeError, col("word") > 3),
        "Reduce one of them first": (TypeError, col("wide") > col("v")),
        "must return bools": (tdmap.errors.OutputMismatch, col("v") + 1),
        "gives Python objects": (TypeError, col("word")),
        "collection of entries": (TypeError, col("in") > 1),
        "~ turns bools around": (TypeError, ~col("v")),
        "these are not": (TypeError, col("v").isin(["a"])),
    }
    for message, (kind, predicate) in cases.items():
        with pytest.raises(kind, match=message):
            tdmap.filter(data, predicate, num_workers=0)
    for wrong in (3, (), ("a", 1)):
        with pytest.raises(TypeError, match="col takes"):
            col(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="isin takes several"):
        col("word").isin("ab")
    with pytest.raises(TypeError, match="single values"):
        col("v") > torch.zeros(3)  # noqa: B015


@pytest.mark.parametrize("formula", [col("s") == "a", col("s") != "a", col("s").isin(["a"]), col("x") == 1])
def test_a_column_of_several_values_a_row_is_no_condition_for_rows(formula: Any) -> None:
    data = TensorDict({"s": [["a", "b"], ["c", "d"], ["a", "z"]], "x": torch.arange(6).reshape(3, 2)}, [3, 2])
    with pytest.raises(OutputMismatch, match=r"bools of shape \[3\].*of shape \[3, 2\]"):
        tdmap.filter(data, formula, num_workers=0)


def test_goes_where_functions_go() -> None:
    data = table()
    groups = tdmap.group_by(data, col("id") // 5000).reduce({"n": tdmap.reducers.Count()}, num_workers=0)
    assert groups["n"].tolist() == [5000, 5000, 7]
    rows = tdmap.Pipeline(data).filter(col("id") < 3).collect(num_workers=0)
    assert rows["id"].tolist() == [0, 1, 2]
    assert tdmap.filter(data, col("id") == 7, chunksize=0, num_workers=0)["id"].tolist() == [7]


def test_a_run_goes_on_with_the_same_text_and_no_other(tmp_path: Path) -> None:
    data, out = table().exclude("word"), tmp_path / "out"

    class Stop(tdmap.events.Callback):
        def on_lease_done(self, event: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tdmap.filter(data, col("v") > 0, out=out, resume=True, chunksize=500, num_workers=1, callbacks=[Stop()])
    with pytest.raises(ResumeMismatch):
        tdmap.filter(data, col("v") > 1, out=out, resume=True, chunksize=500, num_workers=1)
    found = tdmap.filter(data, col("v") > 0, out=out, resume=True, chunksize=500, num_workers=1)
    assert torch.equal(found["id"], data["id"][data["v"] > 0])
