"""`tdmap.join` gives the pairs of rows that two nested loops give."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import tuning
from tensordict_lite import TensorClass, TensorDict


@pytest.fixture
def small_pieces():
    with tuning.use(partition_bytes=1024, light_bytes=0, heap_bytes=1000, join_bytes=1000, lookup_here_bytes=0):
        yield


def side(keys, name):
    rows = len(keys)
    return TensorDict({"k": keys, "x": torch.arange(rows), "m": {name: torch.randn(rows, 2)}}, [rows])


def pairs(a, b, how):
    """What two nested loops give; -1 for no partner."""
    rows = defaultdict(list)
    for row, key in enumerate(b):
        rows[key].append(row)
    return [(row, other) for row, key in enumerate(a) for other in rows.get(key) or ([-1] if how == "left" else [])]


def check(result, a, b, expected, how):
    assert len(result) == len(expected)
    ours, theirs = torch.tensor(expected, dtype=torch.int64).reshape(-1, 2).unbind(1)
    has = theirs >= 0
    assert torch.equal(result["x"], a["x"][ours]) and torch.equal(result["k"], a["k"][ours])
    assert torch.equal(result["m", "l"], a["m", "l"][ours])
    assert torch.equal(result["x_right"][has], b["x"][theirs[has]])
    assert torch.equal(result["m_right", "r"][has], b["m", "r"][theirs[has]])
    if how == "left":
        assert torch.equal(result["__matched__"], has)
        assert not result["x_right"][~has].any() and not result["m_right", "r"][~has].any()
    else:
        assert "__matched__" not in result.keys()


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("spread", [3, 400, 100_000])
def test_all_pairs_in_the_order_of_the_first(executor, how, spread, small_pieces):
    a, b = side(torch.randint(0, spread, (500,)), "l"), side(torch.randint(0, spread, (300,)), "r")
    result = tdmap.join(a, b, "k", how, num_workers=2, executor=executor, chunksize=60)
    check(result, a, b, pairs(a["k"].tolist(), b["k"].tolist(), how), how)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.sampled_from(["bool", "uint8", "int64", "float32"]),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([1, 3, 50]),
    st.sampled_from(["inner", "left"]),
)
def test_any_dtype_and_size(small_pieces, dtype, rows, others, spread, how):
    random = np.random.default_rng(rows * 100 + others)
    a, b = (
        side(torch.from_numpy(random.integers(0, spread, n).astype(dtype)), s) for n, s in ((rows, "l"), (others, "r"))
    )
    result = tdmap.join(a, b, "k", how, num_workers=0, chunksize=17)
    check(result, a, b, pairs(a["k"].tolist(), b["k"].tolist(), how), how)


def test_several_keys_other_names_and_strings(tmp_path):
    a = TensorDict({"who": ["x", "y", "x", "z"], "day": torch.tensor([1, 1, 2, 1]), "v": torch.arange(4)}, [4])
    b = TensorDict({"m": {"name": ["y", "x", "x"]}, "day": torch.tensor([1, 1, 1]), "w": torch.arange(3) + 10}, [3])
    result = tdmap.join(a, b, {"who": ("m", "name"), "day": "day"}, num_workers=2)
    assert result["who"] == ["x", "x", "y"] and result["w"].tolist() == [11, 12, 10]
    assert set(result.keys()) == {"who", "day", "v", "w"}
    numbers = tdmap.join(a.select("day", "v"), b.select("day", "w"), "day", out=tmp_path / "out", num_workers=2)
    assert numbers["v"].tolist() == [v for v in (0, 1, 3) for _ in range(3)]
    assert numbers["w"].tolist() == [10, 11, 12] * 3


def test_nan_equals_nothing():
    a, b = side(torch.tensor([1.0, torch.nan, -0.0]), "l"), side(torch.tensor([torch.nan, 0.0]), "r")
    assert tdmap.join(a, b, "k", num_workers=2)["x"].tolist() == [2]
    left = tdmap.join(a, b, "k", "left", num_workers=2)
    assert left["__matched__"].tolist() == [False, False, True] and left["x_right"].tolist() == [0, 0, 1]


def test_one_key_with_many_rows_on_both_sides(small_pieces):
    a, b = side(torch.zeros(200).long(), "l"), side(torch.zeros(300).long(), "r")
    result = tdmap.join(a, b, "k", num_workers=2)
    assert torch.equal(result["x"], torch.arange(200).repeat_interleave(300))
    assert torch.equal(result["x_right"], torch.arange(300).repeat(200))


def test_objects_travel_along():
    a = TensorDict({"k": torch.tensor([1, 2, 1]), "note": ["a", "b", "c"]}, [3])
    b = TensorDict({"k": torch.tensor([1, 1]), "tag": ["s", "t"], "unit": "metre"}, [2])
    result = tdmap.join(a, b, "k", num_workers=2)
    assert (result["note"], result["tag"], result["unit"]) == (["a", "a", "c", "c"], ["s", "t", "s", "t"], "metre")
    result = tdmap.join(a, b, "k", "left", num_workers=2)
    assert (result["note"], result["tag"]) == (["a", "a", "b", "c", "c"], ["s", "t", None, "s", "t"])
    assert result["unit"] == ["metre", "metre", None, "metre", "metre"]


class Point(TensorClass):
    at: torch.Tensor


def test_nested_collections_keep_their_type_and_batch():
    point = Point(at=torch.arange(6).reshape(2, 3), batch_size=[2, 3])
    b = TensorDict({"k": torch.tensor([1, 0]), "point": point}, [2])
    result = tdmap.join(TensorDict({"k": torch.tensor([0, 1, 0])}, [3]), b, "k", num_workers=2)
    assert result["point"].batch_size == torch.Size([3, 3])
    assert type(result["point"]).__name__ == "Point"
    assert result["point"].at.tolist() == [[3, 4, 5], [0, 1, 2], [3, 4, 5]]


def test_names():
    a, b = side(torch.tensor([1]), "l"), side(torch.tensor([1]), "r")
    assert "x_b" in tdmap.join(a, b, "k", suffix="_b", num_workers=0).keys()
    a["x_right"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"'x'.*'x_right'.*suffix"):
        tdmap.join(a, b, "k", num_workers=0)
    with pytest.raises(ValueError, match="suffix"):
        tdmap.join(a, b, "k", suffix="", num_workers=0)
    with pytest.raises(ValueError, match="indicator"):
        tdmap.join(a, b.select("k"), "k", "left", indicator="x", num_workers=0)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers_beside_keys(dtype):
    left = torch.arange(5).to(dtype)
    right = torch.tensor([[7, 8], [9, 250]]).to(dtype)
    a = TensorDict({"k": torch.tensor([3, 1, 2, 1, 0]), "a": left}, [5])
    b = TensorDict({"k": torch.tensor([1, 2]), "b": right}, [2])
    result = tdmap.join(a, b, "k", "left", num_workers=0)
    assert result["b"].dtype == result["a"].dtype == dtype
    assert result["b"].tolist() == [[0, 0], [7, 8], [9, 250], [7, 8], [0, 0]]
    assert result["a"].tolist() == [0, 1, 2, 3, 4]
    assert tdmap.sort(a, "k", num_workers=0)["a"].tolist() == [4, 1, 3, 2, 0]
    for nbytes in (tuning.DEFAULT.heap_bytes, 1):
        with tuning.use(heap_bytes=nbytes):
            groups = tdmap.group_by(a, "k").map_groups(lambda rows: rows, num_workers=0)
        assert groups["a"].dtype == dtype and groups["a"].tolist() == [4, 1, 3, 2, 0]
    spread = TensorDict({"k": a["k"], "a": torch.arange(10).to(dtype)[::2]}, [5])  # not contiguous
    assert tdmap.sort(spread, "k", num_workers=0)["a"].tolist() == [8, 2, 6, 4, 0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_without_a_partner_have_the_values_of_no_other_row(num_workers):
    a = TensorDict({"k": torch.tensor([1, 9, 2])}, [3])
    b = TensorDict({"k": torch.tensor([1, 2])}, [2])
    stack = TensorDict.lazy_stack([TensorDict({"v": torch.tensor(n), "w": {"x": torch.ones(2)}}) for n in (5, 6)])
    b["nested"] = TensorDict({"stack": stack}, [2])
    b["stack"] = stack
    result = tdmap.join(a, b, "k", "left", num_workers=num_workers)
    assert result["stack", "v"].tolist() == result["nested", "stack", "v"].tolist() == [5, 0, 6]
    assert result["stack", "w", "x"].tolist() == [[1, 1], [0, 0], [1, 1]]
    b["meta"] = TensorDict({"name": ["one", "two"]}, [2])
    result = tdmap.join(a, b, "k", "left", num_workers=num_workers)
    assert result["meta", "name"] == ["one", None, "two"]
    ragged = [TensorDict({"v": torch.zeros(n)}) for n in (5, 6)]
    b = TensorDict({"k": b["k"], "ragged": TensorDict.lazy_stack(ragged)}, [2])
    with pytest.raises(ValueError, match=r"'ragged'.*differ in shape"):
        tdmap.join(a, b, "k", "left", num_workers=num_workers)
