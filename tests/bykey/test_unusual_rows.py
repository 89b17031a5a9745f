"""Operations by key on unusual rows: lazy stacks, strings, numbers at the end of a dtype."""

import numpy as np
import pytest
import torch

import tdmap
from tensordict_lite import TensorDict, lazy_stack

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
@pytest.mark.parametrize("side", ["first", "second", "both"])
def test_strings_of_a_lazy_stack_are_compared_as_strings(how, side):
    first = TensorDict({"k": ["b", "d", "a"], "v": torch.tensor([1, 2, 3])}, [3])
    second = TensorDict({"k": ["a", "c", "d"], "w": torch.tensor([7, 8, 9])}, [3])
    wanted = tdmap.join(first, second, "k", how, num_workers=0)
    a = lazy_stack(list(first.unbind(0))) if side != "second" else first
    b = lazy_stack(list(second.unbind(0))) if side != "first" else second
    found = tdmap.join(a, b, "k", how, num_workers=0)
    assert list(found["k"]) == list(wanted["k"])
    for name in {"v", "w"} & set(wanted.keys()):
        assert found[name].tolist() == wanted[name].tolist()


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@pytest.mark.parametrize("names", [(["x", "y"], ["y", "x"]), (["x", "y"], ["y", "z"])])
def test_keys_may_have_the_names_of_other_keys(how, names):
    ours, theirs = names
    a = TensorDict({"x": torch.tensor([1, 2, 3]), "y": torch.tensor([10, 20, 30]), "s": ["a", "b", "c"]}, [3])
    values = [torch.tensor([1, 2, 98]), torch.tensor([10, 20, 99])]
    b = TensorDict({**dict(zip(theirs, values, strict=True)), "t": ["p", "q", "r"]}, [3])
    found = tdmap.join(a, b, left_on=ours, right_on=theirs, how=how, num_workers=0)
    plain = tdmap.join(a.exclude("s"), b.exclude("t"), left_on=ours, right_on=theirs, how=how, num_workers=0)
    for name in ("x", "y"):
        assert found[name].tolist() == plain[name].tolist()
    strings = {1: "a", 2: "b", 3: "c"}
    assert list(found["s"]) == [strings.get(x) for x in found["x"].tolist()]
    assert list(found["t"]) == [{1: "p", 2: "q", 98: "r"}.get(x) for x in found["x"].tolist()]


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@pytest.mark.parametrize("kinds", [("uint32", "int32"), ("int8", "int64"), ("int16", "uint8"), ("uint8", "uint8")])
@pytest.mark.parametrize("second", [[2], [2, 3], [7]])
def test_keys_beside_strings_have_the_dtype_that_they_have_without(how, kinds, second):
    a = TensorDict({"k": torch.tensor([1, 2]).to(getattr(torch, kinds[0])), "s": ["a", "b"]}, [2])
    b = TensorDict({"k": torch.tensor(second).to(getattr(torch, kinds[1]))}, [len(second)])
    found, plain = tdmap.join(a, b, "k", how, num_workers=0), tdmap.join(a.exclude("s"), b, "k", how, num_workers=0)
    assert found["k"].dtype is plain["k"].dtype and found["k"].tolist() == plain["k"].tolist()
    if kinds[0] != kinds[1]:
        return  # a column of shape [rows, 1] is joined with one of its dtype
    column = TensorDict({"k": a["k"][:, None], "s": ["a", "b"]}, [2])
    found = tdmap.join(column, b, "k", how, num_workers=0)
    plain = tdmap.join(column.exclude("s"), b, "k", how, num_workers=0)
    assert found["k"].shape == plain["k"].shape and found["k"].tolist() == plain["k"].tolist()


@pytest.mark.parametrize("values", [[1.0, 2.0, INF], [-INF, 3.0, 4.0], [5.0, INF, INF], [NAN, 1.0, INF]])
def test_quantiles_beside_infinite_numbers_are_elements_where_they_fall_on_one(values):
    data = TensorDict({"g": torch.zeros(len(values), dtype=torch.int64), "v": torch.tensor(values)}, [len(values)])
    present = [one for one in values if one == one]
    found = tdmap.group_by(data, "g").agg({"q": ("v", ("quantile", [0.0, 0.5, 1.0]))}, num_workers=0)["q"][0].tolist()
    assert found[0] == min(present) and found[2] == max(present)
    assert len(present) % 2 == 0 or found[1] == sorted(present)[len(present) // 2]


def test_a_median_between_numbers_that_are_far_apart():
    data = TensorDict({"g": torch.zeros(2).long(), "v": torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64)}, [2])
    assert tdmap.group_by(data, "g").agg({"m": ("v", "median")}, num_workers=0)["m"].tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 5, 7])
def test_top_k_ranks_nan_behind_infinite_numbers(dtype, largest, k):
    values = torch.tensor([NAN, -INF, 1.0, -0.0, 0.0, INF, NAN])
    data = TensorDict({"v": values.to(dtype), "g": torch.zeros(7).long(), "row": torch.arange(7)}, [7])
    numbers = [row for row in range(7) if not values[row].isnan()]
    wanted = sorted(numbers, key=lambda row: -values[row].item() if largest else values[row].item()) + [0, 6]
    assert tdmap.top_k(data, "v", k, largest=largest, num_workers=0)["row"].tolist() == wanted[:k]
    if dtype is not torch.float8_e5m2:
        found = tdmap.group_by(data, "g").top_k("v", k, largest=largest, num_workers=0)
        assert found["row"].tolist() == wanted[:k]


def test_a_group_of_nan_alone_does_not_change_the_order_of_others():
    data = TensorDict({"g": torch.tensor([0, 0, 1, 1, 1]), "v": torch.tensor([NAN, NAN, 1.0, 2.0, NAN])}, [5])
    found = tdmap.group_by(data, "g").top_k("v", 2, largest=False, num_workers=0)["v"]
    assert found[2:].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weights", [[0, 0, 5e-324, 0], [0, 0, 1e-310, 0], [0, 0, 1e308, 0]])
def test_weights_at_the_end_of_their_dtype_draw_the_row_that_has_one(replace, weights):
    data = TensorDict({"x": torch.arange(4)}, [4])
    odds = torch.tensor(weights, dtype=torch.float64)
    for seed in range(5):
        found = tdmap.sample(data, 1, weights=odds, seed=seed, replace=replace, num_workers=0)["x"]
        assert found.tolist() == [2]
    large = torch.full((4,), 1e308, dtype=torch.float64)
    assert len(tdmap.sample(data, 9, weights=large, seed=0, replace=True, num_workers=0)) == 9


@pytest.mark.parametrize("make", [list, np.array, tuple, torch.tensor])
def test_weights_may_be_a_list_or_an_array(make, tmp_path):
    data = TensorDict({"x": torch.arange(3)}, [3])
    draw = {"seed": 0, "num_workers": 0, "out": str(tmp_path / "out"), "resume": True}
    assert tdmap.sample(data, 1, weights=make([0.0, 0.0, 1.0]), **draw)["x"].tolist() == [2]
    with pytest.raises(tdmap.errors.ResumeMismatch):
        tdmap.sample(data, 1, weights=make([0.0, 1.0, 0.0]), **draw)


@pytest.mark.parametrize(
    ("dtype", "values", "wanted", "found"),
    [
        (torch.int64, [2**60, 2**60 + 1], [2**60, 0.5], [True, False]),
        (torch.int64, [2**60, 2**60 + 1], [2**60, 2**63], [True, False]),
        (torch.int64, [2**60, 5], [float(2**60), NAN, INF, 1j], [True, False]),
        (torch.uint64, [2**63, 2**63 + 1], [2**63, 5], [True, False]),
        (torch.int8, [1, -1], [255, -1], [False, True]),
        (torch.bool, [True, False], [1, 7], [True, False]),
        (torch.float32, [0.1, 0.2], [0.1, 3], [True, False]),
        (torch.complex64, [1 + 1j, 2], [1 + 1j], [True, False]),
    ],
)
def test_isin_finds_what_equals(dtype, values, wanted, found):
    data = TensorDict({"x": torch.tensor(values, dtype=dtype), "row": torch.arange(2)}, [2])
    kept = tdmap.filter(data, tdmap.col("x").isin(wanted), num_workers=0)["row"].tolist()
    assert kept == [row for row in range(2) if found[row]]


@pytest.mark.parametrize("k", [2.5, "2", True, 0, None])
def test_top_k_refuses_what_is_no_number_of_rows(k):
    data = TensorDict({"x": torch.arange(3)}, [3])
    with pytest.raises(ValueError, match="number of rows"):
        tdmap.top_k(data, "x", k, num_workers=0)
    with pytest.raises(TypeError, match="plain tensor"):
        tdmap.top_k(torch.arange(3), "x", 1, num_workers=0)


def test_a_count_of_an_entry_that_is_not_there_is_refused():
    data = TensorDict({"k": torch.tensor([0, 1])}, [2])
    for spec in ({"n": ("kk", "count")}, {"kk": ["count"]}):
        with pytest.raises(KeyError, match="Did you mean 'k'"):
            tdmap.group_by(data, "k").agg(spec, num_workers=0)


def test_rows_that_cannot_be_cut_or_joined_are_named():
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    data, other = TensorDict({"k": torch.tensor([1, 2]), "t": ragged}, [2]), TensorDict({"k": torch.tensor([1])}, [1])
    calls = [
        lambda: tdmap.sort(data, "k", num_workers=0),
        lambda: tdmap.join(other, data, "k", num_workers=0),
        lambda: tdmap.group_by(data, "k").top_k("k", 1, num_workers=0),
        lambda: tdmap.unique(data, "k", num_workers=0),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="'t' is a nested tensor"):
            call()


@pytest.mark.parametrize("make", [lambda c: c == "1", lambda c: c != "1", lambda c: c < "1"])
def test_numbers_are_not_compared_with_text(make):
    data = TensorDict({"n": torch.arange(3)}, [3])
    with pytest.raises(TypeError, match=r"col\('n'\) holds numbers \(int64\), and '1' is a text"):
        tdmap.filter(data, make(tdmap.col("n")), num_workers=0)
