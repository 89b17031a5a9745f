"""Arithmetic, comparisons, casts and reductions of ragged columns: what plain torch computes for each row."""

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tdmap
from tensordict_lite import NonTensorStack, Ragged, TensorDict, lazy_stack
from tensordict_lite.hooks.torch_function import METHODS
from tensordict_lite.ops.generated import BINARY, DTYPES, OPERATORS, PREDICATES, UNARY
from tensordict_lite.raggednumbers import POINTWISE

ROWS = [torch.tensor([0.5, 4.0]), torch.tensor([]), torch.tensor([0.25]), torch.tensor([1.5, 0.75, 2.0])]
PAIRS = [torch.stack([row, row + 1], 1) for row in ROWS]
EACH = torch.tensor([1.0, 2.0, 3.0, 4.0])
TEXTS = {
    "text": Ragged.from_list(["a", "bc", ""]),
    "bytes": Ragged.from_list([b"a", b"", b"c"]),
    "JSON": Ragged.from_objects([[1], {"a": 2}, 3]),
}


def mapped(rows: list[Tensor], folder: Path) -> Any:
    return TensorDict({"x": Ragged.from_list(rows)}, [len(rows)]).memmap(folder).get("x")


KINDS: dict[str, Callable[[list[Tensor], Path], Any]] = {
    "memory": lambda rows, folder: Ragged.from_list(rows),
    "mapped": mapped,
    "slice": lambda rows, folder: Ragged.from_list([*rows[:1], *rows])[1:],
    "scattered": lambda rows, folder: Ragged.from_list([*rows[::-1], rows[0]])[list(range(len(rows)))[::-1]],
    "locked": lambda rows, folder: Ragged.from_list(rows).lock_(),
    "read": lambda rows, folder: (column := Ragged.from_list(rows), list(column.unbind(0)), column[0])[0],
}
kinds = pytest.mark.parametrize("kind", KINDS)

ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    **{name: operator.methodcaller(name) for name in (*UNARY, *PREDICATES, "int", "double", "bool", "half")},
    **{name: lambda x, name=name: getattr(x, name)(2) for name in ("add", "sub", "mul", "div", "pow", "clamp_min")},
    **{
        f"torch.{name}": getattr(torch, name) for name in ("log", "neg", "abs", "square", "relu", "isinf", "zeros_like")
    },
    "scaled": lambda x: 2 * x - 1 / (x + 1) + 2**x - x % 2,
    "itself": lambda x: x / x.abs() + (x - x) * x,
    "compared": lambda x: ((x > 0.3) & (x < 2)) | (x == 4) | ~(x != 0.5),
    "orderings": lambda x: (x <= x).logical_and(x >= 1),
    "numpy scalar": lambda x: np.float64(2) * x + np.int64(1),
    "tensor scalar": lambda x: torch.tensor(2.0) * x - torch.tensor(1),
    "to": lambda x: x.to(torch.int16),
    "to keyword": lambda x: x.to(dtype=torch.float64),
    "type": lambda x: x.type(torch.int8),
    "clamp": lambda x: x.clamp(0.5, 2),
    "torch.clamp": lambda x: torch.clamp(x, min=1),
    "add alpha": lambda x: torch.add(x, x, alpha=3),
    "addcmul": lambda x: x.addcmul(x, x + 1, value=2),
    "lerp": lambda x: x.lerp(x + 1, 0.5),
    "where": lambda x: torch.where(x > 1, x, -x),
    "masked_fill": lambda x: x.masked_fill(x > 1, 7),
}


def same(got: Any, rows: list[Tensor]) -> None:
    assert type(got) is Ragged
    assert got.dtype == rows[0].dtype and got.lengths.tolist() == [len(row) for row in rows]
    for mine, true in zip(got, rows, strict=True):
        torch.testing.assert_close(mine.as_subclass(Tensor), true, rtol=1e-6, atol=0, equal_nan=True)


@kinds
@pytest.mark.parametrize("rows", [ROWS, PAIRS], ids=["numbers", "pairs"])
def test_every_element_is_computed(kind: str, rows: list[Tensor], tmp_path: Path) -> None:
    column = KINDS[kind](rows, tmp_path)
    for call in ELEMENTWISE.values():
        same(call(column), [call(row) for row in rows])
    same(column, rows)


@kinds
@pytest.mark.parametrize("rows", [ROWS, PAIRS], ids=["numbers", "pairs"])
def test_a_tensor_has_one_value_for_each_row(kind: str, rows: list[Tensor], tmp_path: Path) -> None:
    column = KINDS[kind](rows, tmp_path)
    for op in (operator.add, operator.sub, operator.truediv, operator.pow, torch.maximum, operator.gt, operator.eq):
        same(op(column, EACH), [op(row, each) for row, each in zip(rows, EACH, strict=True)])
        same(op(EACH, column), [op(each, row) for row, each in zip(rows, EACH, strict=True)])
    same(column.clamp(EACH / 4, EACH), [row.clamp(each / 4, each) for row, each in zip(rows, EACH, strict=True)])
    for shape in ([4, 1], [3], [1], [4, 4], [6]):
        with pytest.raises(ValueError, match=r"tensor \[4\] with one value for each row"):
            column * torch.ones(shape)


@kinds
@pytest.mark.parametrize("nested", [False, True])
def test_writes_in_place_reach_views_and_files(kind: str, nested: bool, tmp_path: Path) -> None:
    column = KINDS[kind](ROWS, tmp_path)
    target = TensorDict({"x": column, "y": torch.ones(4)}, [4]) if nested else column
    for name, call in {
        "mul_": lambda x: x.mul_(2),
        "+=": lambda x: operator.iadd(x, 1),
        "sqrt_": lambda x: x.sqrt_(),
        "clamp_max_": lambda x: x.clamp_max_(2.5),
        "lerp_": lambda x: x.lerp_(x * 2, 0.5),
    }.items():
        assert call(target) is target, name
    rows = [(row * 2 + 1).sqrt().clamp_max(2.5).mul(1.5) for row in ROWS]
    same(target.get("x") if nested else target, rows)
    if kind == "mapped":
        same(TensorDict.load_memmap(tmp_path).get("x"), rows)
    same(target.zero_().get("x") if nested else target.zero_(), [row * 0 for row in ROWS])


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    **{
        name: operator.methodcaller(name)
        for name in (
            "sum",
            "mean",
            "nansum",
            "nanmean",
            "std",
            "var",
            "prod",
            "amin",
            "amax",
            "min",
            "max",
            "all",
            "any",
        )
    },
    "norm": lambda x: x.norm(),
    "dtype": lambda x: x.sum(dtype=torch.float64),
    "correction": lambda x: x.std(correction=0),
    "quantile": lambda x: x.quantile(0.25),
    "torch.mean": torch.mean,
}


@kinds
@pytest.mark.parametrize("rows", [ROWS, PAIRS], ids=["numbers", "pairs"])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_reductions_are_by_row(kind: str, rows: list[Tensor], tmp_path: Path) -> None:
    column = KINDS[kind](rows, tmp_path)
    for name, call in REDUCTIONS.items():
        try:
            true = torch.stack([call(row) for row in rows])
        except (IndexError, RuntimeError):  # not defined for an empty row
            with pytest.raises(ValueError, match="row 1 is empty"):
                call(column)
            true, full = torch.stack([call(row) for row in rows if len(row)]), column[column.lengths > 0]
            torch.testing.assert_close(call(full), true, msg=name)
        else:
            torch.testing.assert_close(call(column), true, equal_nan=True, msg=name)
    torch.testing.assert_close(column.sum(1), torch.stack([row.sum(0) for row in rows]))
    whole = column.to(torch.int64)
    torch.testing.assert_close(whole.prod(), torch.stack([row.long().prod() for row in rows]))
    with pytest.raises(TypeError, match=r"sum\(\) reduces each row .*dim=0.*flat"):
        column.sum(0)


def test_of_no_rows() -> None:
    none = Ragged.from_list(ROWS)[:0]
    for call in ELEMENTWISE.values():
        assert len(call(none)) == 0 and call(none).dtype == call(ROWS[1]).dtype
    for name, call in REDUCTIONS.items():
        assert call(none).shape == (0,), name
    assert none.quantile(torch.tensor([0.0, 1.0])).shape == (2, 0)


DTYPE_ROWS = [[1, 2], [], [3]]


@pytest.mark.parametrize("dtype", sorted({str(dtype) for dtype in DTYPES.values() if "q" not in str(dtype)}))
def test_every_dtype_computes_what_torch_does_or_raises(dtype: str) -> None:
    kind = getattr(torch, dtype.removeprefix("torch."))
    rows = [torch.tensor(row).to(kind) for row in DTYPE_ROWS]
    column = Ragged(torch.cat(rows), torch.tensor([0, 2, 2, 3]))
    for call in (lambda x: x * 2, lambda x: x + x, lambda x: x > 1, lambda x: x == x, lambda x: x.double(), torch.sqrt):
        try:
            true = [call(row) for row in rows]
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                call(column)
        else:
            got = call(column)
            assert got.dtype == true[0].dtype and got.tolist() == [row.tolist() for row in true]


def all_calls() -> dict[str, Callable[[Any], Any]]:
    """Every function and method that computes, with arguments."""
    binary = {f"{name}{end}" for name, row in BINARY.items() for end in (("", "_") if row[-1] else ("",))}
    unary = {*UNARY, *(f"{name}_" for name in UNARY), *PREDICATES, *DTYPES}
    binary |= {name for names in OPERATORS.values() for name in names} - {"__abs__", "__neg__"}
    binary |= {"__lt__", "__gt__", "__rtruediv__", "__rpow__", "__or__", "__xor__"}
    calls: dict[str, Callable[[Any], Any]] = {name: operator.methodcaller(name) for name in unary}
    calls |= {name: operator.methodcaller(name, 2) for name in binary}
    for name in "sum mean nansum nanmean std var prod amin amax min max all any norm logsumexp".split():
        calls[name] = operator.methodcaller(name)
    calls |= {
        "quantile": lambda x: x.quantile(0.5),
        "clamp": lambda x: x.clamp(0, 1),
        "lerp": lambda x: x.lerp(x + 1, 0.5),
        "addcmul": lambda x: x.addcmul(x, x),
        "addcdiv": lambda x: x.addcdiv(x, x),
        "zero_": lambda x: x.zero_(),
        "to": lambda x: x.to(torch.float64),
        "type": lambda x: x.type(torch.float64),
        "softmax": lambda x: x.softmax(0),
        "cummin": lambda x: x.cummin(0),
        "cummax": lambda x: x.cummax(0),
        "apply": lambda x: x.apply(lambda values: values + 1),
        "apply_": lambda x: x.apply_(lambda values: values + 1),
        "named_apply": lambda x: x.named_apply(lambda key, values: values + 1),
        "-": operator.neg,
        "~": operator.invert,
    }
    for name in sorted({*METHODS, *POINTWISE, "cumsum", "sort", "dot", "zeros_like", "rand_like"} - {"where"}):
        function = getattr(torch, name)
        if name in unary or name.endswith("_like") or name in POINTWISE and takes_one(function):
            calls[f"torch.{name}"] = function
        elif name in POINTWISE or name in BINARY:
            calls[f"torch.{name}"] = lambda x, function=function: function(x, -x if x.kind == "tensor" else x)
        elif name in calls or name not in METHODS:
            calls[f"torch.{name}"] = lambda x, function=function: function(x, 0)
    return calls


def takes_one(function: Callable[..., Any]) -> bool:
    try:
        function(torch.ones(1, dtype=torch.int64))
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("what", TEXTS)
def test_what_holds_no_numbers_is_refused(what: str) -> None:
    column = TEXTS[what]
    before = column.tolist()
    for name, call in all_calls().items():
        with pytest.raises(TypeError) as caught:
            call(column)
        if not name.startswith("torch.") or name[6:] in POINTWISE:
            assert what in str(caught.value) and "flat()" in str(caught.value), (name, caught.value)
    assert column.tolist() == before
    numbers = Ragged.from_list([[1, 2], [3], [4]])
    for call in (lambda: numbers * column, lambda: numbers > column, lambda: torch.add(numbers, column)):
        with pytest.raises(TypeError, match=what):
            call()
    assert (column == column).tolist() == [True] * 3


def test_nothing_returns_numbers_unchanged() -> None:
    for name, call in all_calls().items():
        column = Ragged.from_list([torch.tensor([2.3, -4.6]), torch.tensor([9.7])])
        before = column.clone()
        try:
            got = call(column)
        except (TypeError, RuntimeError, ValueError):
            continue
        if isinstance(got, Ragged):
            alike = got.dtype == before.dtype and torch.equal(got.flat()[0], before.flat()[0])
            assert not alike or name in ("float", "float32", "torch.nan_to_num", "torch.positive"), name
        else:
            assert isinstance(got, Tensor) and got.shape == (2,), (name, got)


def test_columns_need_rows_of_the_same_lengths() -> None:
    column, other = Ragged.from_list(ROWS), Ragged.from_list([ROWS[0], *ROWS[2:], ROWS[3]])
    td, its = (TensorDict({"n": {"x": each}}, [4]) for each in (column, other))
    for op in (operator.add, operator.gt, operator.eq, operator.ne, torch.maximum):
        with pytest.raises(ValueError, match="row 1 has 0 and 1 elements"):
            op(column, other)
        with pytest.raises(ValueError, match="row 1 has 0 and 1 elements"):
            op(td, its)
    with pytest.raises(ValueError, match="'x'"):
        td.mul_(its)
    with pytest.raises(ValueError, match="4 and 3 rows"):
        column + other[:3]
    with pytest.raises(ValueError, match=r"elements of shape \[\] and \[2\]"):
        column + Ragged.from_list(PAIRS)
    with pytest.raises(TypeError, match="ndarray"):
        np.ones(4) * column
    with pytest.raises(TypeError, match="cumsum.*flat"):
        torch.cumsum(column, 0)
    with pytest.raises(TypeError, match=r"6 elements .*got shape \[1\].*flat"):
        column.apply(lambda values: values[:1])
    other[0] = "text"
    with pytest.raises(TypeError, match="stack of objects"):
        other * 2


def tree() -> TensorDict:
    column = Ragged.from_list(ROWS)
    return TensorDict({"x": column, "t": Ragged.from_list(list("abcd")), "n": {"x": column * 2}, "y": EACH}, [4])


TREES: dict[str, Callable[[Any], Any]] = {
    "mul": lambda x: x * 2,
    "rows": lambda x: x + EACH,
    "reflected": lambda x: EACH / (1 - x),
    "two": lambda x: x * x,
    "compared": lambda x: x > 1,
    "equal": lambda x: x == x,
    "abs": lambda x: (-x).abs(),
    "double": lambda x: x.double(),
    "to": lambda x: x.to("cpu", torch.int32),
    "filtered": lambda x: x.to(torch.float64, cast_filter=lambda path, leaf: True),
    "in place": lambda x: x.clone().to(torch.float64, inplace=True),
    "apply": lambda x: x.apply(lambda leaf: leaf + 1),
    "apply two": lambda x: x.apply(lambda a, b: a + b, x),
    "named": lambda x: x.named_apply(lambda key, leaf: leaf * len(key)),
    "apply_": lambda x: x.clone().apply_(lambda leaf: leaf * 3),
    "intersection": lambda x: x.mul(x, default="intersection"),
    "mul_": lambda x: x.clone().mul_(2),
    "clamp": lambda x: x.clamp(x * 0, x * 0 + 1),
}


@pytest.mark.parametrize("name", TREES)
def test_trees_compute_numbers_and_keep_text(name: str) -> None:
    call, data = TREES[name], tree()
    flat = {"x": torch.cat(ROWS), "y": torch.repeat_interleave(EACH, data.get("x").lengths)}
    if name in ("rows", "reflected"):
        true = flat["x"] + flat["y"] if name == "rows" else flat["y"] / (1 - flat["x"])
    else:
        true = call(TensorDict({"x": flat["x"]}, [6]))["x"]
    got = call(data)
    assert type(got.get("x")) is Ragged
    torch.testing.assert_close(got.get("x").flat()[0], true, rtol=1e-6, atol=0)
    assert got.get(("n", "x")).lengths.tolist() == [2, 0, 1, 3]
    assert got["t"] == list("abcd") if name not in ("equal",) else bool(got["t"].all())
    stacked = call(lazy_stack([data, data])) if name not in ("rows", "reflected", "in place", "to") else None
    for member in () if stacked is None else stacked.unbind(0):
        torch.testing.assert_close(member.get("x").flat()[0], true, rtol=1e-6, atol=0)


def test_trees_reduce_elements_or_say_why_not() -> None:
    data = tree().exclude("t")
    assert float(data.sum()["x"]) == 9.0 and float(data.amax()["n", "x"]) == 8.0
    assert data.sum("feature")["x"].tolist() == [4.5, 0.0, 0.25, 4.25]
    assert float(data.sum(reduce=True)) == 9 + 18 + 10 and (data == data).all() and not (data > 100).any()
    torch.testing.assert_close(data.norm()["x"], torch.cat(ROWS).norm())
    for call in (lambda: data.sum(0), lambda: data.mean(dim=0), lambda: data.std(0)):
        with pytest.raises(RuntimeError, match="ragged entry 'x'.*exclude"):
            call()
    for call in (lambda: data * torch.ones(2, 4), lambda: data > torch.ones(2, 4), lambda: data.softmax(0)):
        with pytest.raises(TypeError, match=r"exclude\(\)"):
            call()
    with pytest.raises(KeyError, match="'x'"):
        data * data.exclude("x")
    with pytest.raises(RuntimeError, match="'x'.*ragged"):
        data + tree().exclude("t").set("x", EACH)
    with data.double() as wide:
        wide["z"] = EACH
    assert data.get("x").dtype is torch.float32


def test_objects_are_left_alone() -> None:
    objects = TensorDict({"o": NonTensorStack("a", "b"), "x": torch.ones(2)}, [2])
    assert (objects * 2)["o"] == ["a", "b"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_map_writes_what_it_computes(workers: int, executor: str, where: str, tmp_path: Path) -> None:
    rows = [torch.arange(n % 5) + 0.5 for n in range(40)]
    data = TensorDict({"x": Ragged.from_list(rows)}, [40])
    out = tmp_path / "out" if where == "folder" else None
    options: dict[str, Any] = {"num_workers": workers, "executor": executor, "chunksize": 7}
    got = tdmap.map(data, scaled, in_keys=["x"], out_keys=["y", "m"], out=out, **options)
    same(got.get("y"), [(row * 10).log() for row in rows])
    torch.testing.assert_close(got["m"], torch.stack([row.sum() for row in rows]))


def scaled(x: Any) -> Any:
    return torch.log(x * 10), x.sum()


def test_the_length_of_padding_leaves_something_of_the_rows() -> None:
    column = Ragged.from_list(ROWS)
    for length in (0, -1):
        with pytest.raises(ValueError, match=rf"pad\({length}\).* the length .*value="):
            column.pad(length)
    assert column[[1]].pad(0)[0].shape == (1, 0) and column.pad(value=0)[0].shape == (4, 3)
