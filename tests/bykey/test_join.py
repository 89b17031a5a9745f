"""Every kind of join gives the rows that pandas gives, whatever the keys, their number, and the way that is taken."""

import contextlib
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.errors import OutputMismatch
from tdmap.ops import join as joining
from tensordict_lite import TensorClass, TensorDict
from tests.products import sampled

HOWS = ("inner", "left", "right", "outer", "semi", "anti")
COUNT = 100

KEYS: dict[str, Any] = {
    "dense": lambda n: np.arange(n) * 3 - n,
    "lowest": lambda n: np.arange(n) + np.iinfo(np.int64).min,
    "highest": lambda n: np.iinfo(np.int64).max - np.arange(n),
    "far apart": lambda n: np.arange(n) * (2**56 + 12345) - 2**62,
    "uint64": lambda n: np.arange(n, dtype=np.uint64) + np.uint64(2**63 - 1),
    "int32": lambda n: (np.arange(n) - 2**31).astype(np.int32),
    "int8": lambda n: (np.arange(n) - 100).astype(np.int8),
    "uint8": lambda n: np.arange(n).astype(np.uint8),
    "bool": lambda n: np.arange(2) > 0,
    "float": lambda n: np.where(np.arange(n) % 10 == 3, np.nan, (np.arange(n) - 3) * -0.5),
    "strings": lambda n: np.array([f"w{k}" for k in range(n)], dtype=object),
}
"""Distinct keys, NaN and -0.0 among them."""

PAIRS: dict[str, Any] = {
    "some have a partner": lambda r, v: (r.choice(v, 53), r.choice(v, 31)),
    "each has one": lambda r, v: (r.choice(v, 150), r.permutation(v)),
    "half have one": lambda r, v: (r.choice(v, 150), r.permutation(v)[::2]),
    "few and many": lambda r, v: (r.permutation(v)[: len(v) // 2 + 1], r.choice(v, 400)),
    "one key for all": lambda r, v: (v[:1].repeat(40), v[:1].repeat(60)),
    "none has one": lambda r, v: (v[: len(v) // 2], v[len(v) // 2 :].repeat(2)),
    "one row": lambda r, v: (v[:1], v[:1]),
    "no first": lambda r, v: (v[:0], v),
    "no second": lambda r, v: (v, v[:0]),
    "no rows": lambda r, v: (v[:0], v[:0]),
}
"""The keys of both datasets, out of the distinct ones."""

WAYS: dict[str, Any] = {
    "by tables": {},
    "by sorting": {"lookup_bytes": 0, "lookup_here_bytes": 0},
    "in small pieces": {"light_bytes": 0, "lookup_here_bytes": 0, "join_bytes": 700, "partition_bytes": 1024},
}


def side(keys: np.ndarray, name: str) -> TensorDict:
    """Rows from 1 on, whose keys do not lie one after the other."""
    rows = np.random.default_rng(0).random((len(keys), 2))
    data = TensorDict({"x": torch.arange(len(keys)) + 1, name: torch.from_numpy(rows)}, [len(keys)])
    if keys.dtype == object:
        data["k"] = TensorDict({"k": [*keys.tolist(), "one more"]}, [len(keys) + 1])[: len(keys)].get("k")
    else:
        data["k"] = torch.from_numpy(np.stack([keys, keys], 1))[:, 0]
    return data


def sides(kind: str, pair: str) -> tuple[TensorDict, TensorDict]:
    ours, theirs = PAIRS[pair](np.random.default_rng(5), KEYS[kind](COUNT))
    return side(ours, "l"), side(theirs, "r")


def frame_of(data: TensorDict, name: str) -> pandas.DataFrame:
    keys = list(data["k"]) if not isinstance(data["k"], torch.Tensor) else data["k"].numpy()
    return pandas.DataFrame({"k": keys, name: data["x"].numpy()})


def wanted_rows(a: TensorDict, b: TensorDict, how: str) -> list[tuple[int, int]]:
    """Pairs of `x`, from 1 on; 0 where there is no partner."""
    one, other = frame_of(a, "x"), frame_of(b, "y")
    real = [frame[frame["k"].notna()] for frame in (one, other)]
    if how in ("semi", "anti"):
        found = one["k"].isin(real[1]["k"])
        return [(x, 0) for x in one["x"][found if how == "semi" else ~found]]
    pairs = real[0].merge(real[1], on="k")
    pairs = pairs.sort_values(["x", "y"] if how != "right" else ["y", "x"])
    found = list(zip(pairs["x"], pairs["y"], strict=True))
    ours, theirs = {x for x, _ in found}, {y for _, y in found}
    if how in ("left", "outer"):
        found = sorted(found + [(x, 0) for x in one["x"] if x not in ours])
    if how == "right":
        found = sorted(found + [(0, y) for y in other["y"] if y not in theirs], key=lambda pair: pair[::-1])
    if how == "outer":
        found += [(0, y) for y in other["y"] if y not in theirs]
    return found


def check(result: Any, a: TensorDict, b: TensorDict, how: str) -> None:
    rows = wanted_rows(a, b, how)
    assert result["x"].tolist() == [x for x, _ in rows]
    if how in ("semi", "anti"):
        assert set(result.keys()) == set(a.keys())
        assert torch.equal(result["l"], a["l"][[x - 1 for x, _ in rows]])
        return
    assert result["x_right"].tolist() == [y for _, y in rows]
    if not rows:
        return
    keys = [a["k"][x - 1] if x else b["k"][y - 1] for x, y in rows]
    assert str([float(k) if isinstance(k, torch.Tensor) else k for k in keys]) == str(
        [float(k) if isinstance(k, torch.Tensor) else k for k in result["k"]]
    )
    for name, data, place in (("l", a, 0), ("r", b, 1)):
        wanted = [data[name][row[place] - 1] if row[place] else torch.zeros(2, dtype=torch.float64) for row in rows]
        assert torch.equal(result[name], torch.stack(wanted))
    if how in ("left", "right"):
        assert result["__matched__"].tolist() == [bool(x and y) for x, y in rows]
    if how == "outer":
        assert result["__matched__", "left"].tolist() == [x > 0 for x, _ in rows]
        assert result["__matched__", "right"].tolist() == [y > 0 for _, y in rows]


@pytest.mark.parametrize("kind, pair, how, way", sampled(10, KEYS, PAIRS, HOWS, WAYS))
def test_pairs_are_those_of_pandas(kind: str, pair: str, how: str, way: str) -> None:
    a, b = sides(kind, pair)
    with tuning.use(**WAYS[way]):
        for chunksize in (None, 17):
            check(tdmap.join(a, b, "k", how, num_workers=0, chunksize=chunksize), a, b, how)


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("kind", ["dense", "far apart", "strings"])
@pytest.mark.parametrize("pair", ["some have a partner", "few and many"])
def test_workers_change_nothing(kind: str, pair: str, executor: str, tmp_path: Any) -> None:
    a, b = sides(kind, pair)
    for number, how in enumerate(HOWS):
        with tuning.use(**WAYS["in small pieces"]) if number % 2 else contextlib.nullcontext():
            out = tmp_path / how if number % 3 else None
            check(tdmap.join(a, b, "k", how, out=out, executor=executor, num_workers=2, chunksize=50), a, b, how)


def test_what_the_sample_says_of_partners_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 40_000
    a = TensorDict({"k": torch.arange(rows) % 1000, "v": torch.arange(rows)}, [rows])
    a["k"][[100, 39_800]] = 5000
    b = TensorDict({"k": torch.arange(1000), "w": -torch.arange(1000)}, [1000])
    kept = a["k"] < 1000
    for sampled_rows in (True, False):
        if not sampled_rows:
            monkeypatch.setattr(joining._Join, "_has_one_each", lambda *args: True)
        found = tdmap.join(a, b, "k", num_workers=2)
        assert torch.equal(found["v"], a["v"][kept]) and torch.equal(found["w"], -a["k"][kept])
    b = TensorDict({"k": torch.arange(500), "w": torch.arange(500)}, [500])
    b["k"][499] = 0  # a key that is there twice, of which a sample may know nothing
    a = TensorDict({"k": torch.arange(600) % 500}, [600])
    wanted = [row for key in a["k"].tolist() for row in {0: [0, 499], 499: []}.get(key, [key])]
    assert tdmap.join(a, b, "k", num_workers=0)["w"].tolist() == wanted


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_rows_of_a_large_second_dataset_find_those_of_a_smaller_first_one(executor: str) -> None:
    few, many = 20_000, 200_000  # owner and row in one number are more than 32 bits
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(2 * few, generator=generator)[:few]
    wanted = torch.randint(0, 2 * few, (many,), generator=generator)
    left = TensorDict({"id": ids, "a": torch.arange(few)}, [few])
    right = TensorDict({"id": wanted, "b": torch.arange(many)}, [many])
    place = torch.full((2 * few,), -1)
    place[ids] = torch.arange(few)
    owners = place[wanted]
    rows = (owners >= 0).nonzero()[:, 0]
    rows = rows[owners[rows].argsort(stable=True)]
    found: Any = tdmap.join(left, right, "id", executor=executor, num_workers=2)
    assert torch.equal(found["b"], rows) and torch.equal(found["a"], owners[rows])


@pytest.mark.parametrize("how", HOWS)
def test_integers_of_different_widths(how: str) -> None:
    for ours, theirs in (("int64", "int32"), ("int8", "uint8"), ("uint16", "uint64"), ("int16", "uint32")):
        a, b = sides("dense", "some have a partner")
        keys = [torch.from_numpy(data["k"].abs().numpy().astype(dtype)) for data, dtype in ((a, ours), (b, theirs))]
        for data, column in ((a, keys[0]), (b, keys[1])):
            data["k"] = column
        result = tdmap.join(a, b, "k", how, num_workers=0)
        check(result, a, b, how)
        wider = max((ours, theirs), key=lambda name: np.dtype(name).itemsize) if ours != "int8" else "int64"
        wider = "int64" if "int16" in (ours, theirs) else wider
        assert str(result["k"].dtype) == f"torch.{ours if how in ('inner', 'left', 'semi', 'anti') else wider}"
    with pytest.raises(TypeError, match="they must be of one kind"):
        a["k"], b["k"] = a["x"], b["x"].to(torch.uint64)
        tdmap.join(a, b, "k", how, num_workers=0)


def test_keys_of_other_names_and_nested_ones() -> None:
    a = TensorDict({"id": torch.tensor([1, 2, 3]), "m": {"n": torch.tensor([5, 6, 7])}}, [3])
    b = TensorDict({"in": {"key": torch.tensor([3, 9])}, "w": torch.tensor([30, 90])}, [2])
    for how, ids, w in (
        ("inner", [3], [30]), ("left", [1, 2, 3], [0, 0, 30]), ("right", [3, 9], [30, 90]),
        ("outer", [1, 2, 3, 9], [0, 0, 30, 90]),
    ):  # fmt: skip
        for result in (
            tdmap.join(a, b, how=how, left_on="id", right_on=("in", "key"), num_workers=0),
            tdmap.join(a, b, {"id": ("in", "key")}, how, num_workers=0),
        ):
            assert result["id"].tolist() == ids and result["w"].tolist() == w and "in" not in result.keys()
    turned = tdmap.join(b, a, how="right", left_on=("in", "key"), right_on="id", num_workers=0)
    assert turned["in", "key"].tolist() == [1, 2, 3] and turned["w"].tolist() == [0, 0, 30]
    assert turned["m", "n"].tolist() == [5, 6, 7]


def test_several_keys_other_names_and_strings(tmp_path):
    a = TensorDict({"who": ["x", "y", "x", "z"], "day": torch.tensor([1, 1, 2, 1]), "v": torch.arange(4)}, [4])
    b = TensorDict({"m": {"name": ["y", "x", "x"]}, "day": torch.tensor([1, 1, 1]), "w": torch.arange(3) + 10}, [3])
    result = tdmap.join(a, b, {"who": ("m", "name"), "day": "day"}, num_workers=2)
    assert result["who"] == ["x", "x", "y"] and result["w"].tolist() == [11, 12, 10]
    assert set(result.keys()) == {"who", "day", "v", "w"}
    numbers = tdmap.join(a.select("day", "v"), b.select("day", "w"), "day", out=tmp_path / "out", num_workers=2)
    assert numbers["v"].tolist() == [v for v in (0, 1, 3) for _ in range(3)]
    assert numbers["w"].tolist() == [10, 11, 12] * 3


def test_objects_of_either_side_stay_with_their_rows():
    a = TensorDict({"k": torch.tensor([1, 2, 1]), "note": ["a", "b", "c"]}, [3])
    b = TensorDict({"k": torch.tensor([1, 4]), "tag": ["s", "t"], "unit": "metre"}, [2])
    for how, keys, notes, tags in (
        ("inner", [1, 1], ["a", "c"], ["s", "s"]),
        ("left", [1, 2, 1], ["a", "b", "c"], ["s", None, "s"]),
        ("right", [1, 1, 4], ["a", "c", None], ["s", "s", "t"]),
        ("outer", [1, 2, 1, 4], ["a", "b", "c", None], ["s", None, "s", "t"]),
    ):
        found = tdmap.join(a, b, "k", how, num_workers=2)
        assert (found["k"].tolist(), found["note"], found["tag"]) == (keys, notes, tags)
        assert found["unit"] == ([tag and "metre" for tag in tags] if None in tags else "metre")
    assert tdmap.join(a, b, "k", "anti", num_workers=0)["note"] == ["b"]


class Point(TensorClass):
    at: torch.Tensor


def test_nested_collections_keep_their_type_and_batch():
    point = Point(at=torch.arange(6).reshape(2, 3), batch_size=[2, 3])
    b = TensorDict({"k": torch.tensor([1, 0]), "point": point}, [2])
    result = tdmap.join(TensorDict({"k": torch.tensor([0, 1, 0])}, [3]), b, "k", num_workers=2)
    assert result["point"].batch_size == torch.Size([3, 3])
    assert type(result["point"]).__name__ == "Point"
    assert result["point"].at.tolist() == [[3, 4, 5], [0, 1, 2], [3, 4, 5]]


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
    result = tdmap.join(a, b, "k", "left", num_workers=num_workers)
    assert [row.tolist() for row in result["ragged", "v"]] == [[0.0] * 5, [], [0.0] * 6]
    ragged = [TensorDict({"v": torch.zeros(2, n)}) for n in (5, 6)]
    b = TensorDict({"k": b["k"], "ragged": TensorDict.lazy_stack(ragged)}, [2])
    with pytest.raises(OutputMismatch, match=r"row 1 of 'ragged', unlike row 0: .*'v' is float32.*\(6,\).*\(5,\)"):
        tdmap.join(a, b, "k", "left", num_workers=num_workers)
    assert tdmap.join(a, b, "k", "anti", num_workers=num_workers)["k"].tolist() == [9]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "uint16", "uint64", "bfloat16"])
@pytest.mark.parametrize("objects", [False, True])
def test_gaps_of_any_dtype_are_zeros(dtype, objects):
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(getattr(torch, dtype))
    a = TensorDict({"k": torch.tensor([1, 2]), "x": values, "y": values[:, 0]}, [2])
    if objects:
        a["word"] = ["one", "two"]
    b = TensorDict({"k": torch.tensor([2, 5])}, [2])
    both = tdmap.join(a, b, "k", "outer", num_workers=0)
    assert both["k"].tolist() == [1, 2, 5] and both["x"].dtype == both["y"].dtype == values.dtype
    zero = torch.zeros(1, 2).to(values.dtype)
    assert both["x"].view(torch.uint8).tolist() == torch.cat([values.clone(), zero]).view(torch.uint8).tolist()
    assert both["y"][2].float() == 0 and both["y"][:2].float().tolist() == [1.0, 3.0]


def test_suffixes_of_both_sides() -> None:
    a = TensorDict({"k": torch.tensor([1]), "v": torch.tensor([2]), "w": torch.tensor([0])}, [1])
    b = TensorDict({"k": torch.tensor([1]), "v": torch.tensor([3])}, [1])
    result = tdmap.join(a, b, "k", suffixes=("_x", "_y"), num_workers=0)
    assert set(result.keys()) == {"k", "v_x", "v_y", "w"} and result["v_y"].tolist() == [3]
    with pytest.raises(ValueError, match="suffixes="):
        tdmap.join(a, b, "k", suffixes=("", ""), num_workers=0)
    with pytest.raises(TypeError, match="two strings"):
        tdmap.join(a, b, "k", suffixes=("_x",), num_workers=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not the two"):
        tdmap.join(a, b, "k", suffix="_b", suffixes=("_x", "_y"), num_workers=0)


def test_bad_arguments_say_what_to_do() -> None:
    a = TensorDict({"k": torch.arange(3)}, [3])
    for options in ({}, {"on": "k", "left_on": "k"}, {"left_on": "k"}):
        with pytest.raises(TypeError, match="join needs on="):
            tdmap.join(a, a.clone(), num_workers=0, **options)
    with pytest.raises(ValueError, match="pair them up"):
        tdmap.join(a, a.clone(), left_on="k", right_on=["k", "k2"], num_workers=0)
    with pytest.raises(ValueError, match="how must be one of"):
        tdmap.join(a, a.clone(), "k", "full", num_workers=0)


def test_names():
    a, b = side(np.array([1]), "l"), side(np.array([1]), "r")
    assert "x_b" in tdmap.join(a, b, "k", suffix="_b", num_workers=0).keys()
    a["x_right"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"'x'.*'x_right'.*suffix"):
        tdmap.join(a, b, "k", num_workers=0)
    with pytest.raises(ValueError, match="suffix"):
        tdmap.join(a, b, "k", suffix="", num_workers=0)
    with pytest.raises(ValueError, match="indicator"):
        tdmap.join(a, b.select("k"), "k", "left", indicator="x", num_workers=0)
