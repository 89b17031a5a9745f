"""Every kind of join gives the rows that pandas gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import tuning
from tensordict_lite import TensorDict

HOWS = ("inner", "left", "right", "outer", "semi", "anti")

KEYS: dict[str, Any] = {
    "dense": lambda r, n: r.integers(-5, 60, n),
    "far apart": lambda r, n: r.integers(0, 60, n) * (2**56 + 12345) - 2**62,
    "float": lambda r, n: np.where(r.random(n) < 0.1, np.nan, r.integers(0, 40, n) / 7),
    "uint8": lambda r, n: r.integers(0, 200, n).astype(np.uint8),
    "bool": lambda r, n: r.random(n) < 0.97,
    "distinct": lambda r, n: r.permutation(3 * n)[:n],
    "distinct, far apart": lambda r, n: r.permutation(3 * n)[:n] * 1_000_000_007_000,
    "strings": lambda r, n: np.array([f"w{k}" for k in r.integers(0, 50, n)], dtype=object),
}


def side(kind: str, rows: int, seed: int, name: str) -> TensorDict:
    r = np.random.default_rng(seed)
    keys = KEYS[kind](r, rows)
    data = TensorDict({"x": torch.arange(rows) + 1, name: torch.from_numpy(r.random((rows, 2)))}, [rows])
    data["k"] = keys.tolist() if keys.dtype == object else torch.from_numpy(keys)
    return data


def frame_of(data: TensorDict, name: str) -> pandas.DataFrame:
    keys = data["k"].tolist() if not isinstance(data["k"], torch.Tensor) else data["k"].numpy()
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


@pytest.fixture
def small_pieces() -> Iterator[None]:
    with tuning.use(light_bytes=0, lookup_here_bytes=0, join_bytes=2000):
        yield


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("how", HOWS)
def test_pairs_are_those_of_pandas(kind: str, how: str) -> None:
    for rows, others in ((101, 67), (1, 1), (40, 300)):
        a, b = side(kind, rows, 1, "l"), side(kind, others, 2, "r")
        check(tdmap.join(a, b, "k", how, num_workers=0, chunksize=17), a, b, how)


@pytest.mark.parametrize("how", HOWS)
def test_no_rows_on_either_side(how: str) -> None:
    for rows, others in ((0, 5), (5, 0), (0, 0)):
        a, b = side("dense", rows, 1, "l"), side("dense", others, 2, "r")
        check(tdmap.join(a, b, "k", how, num_workers=0), a, b, how)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["dense", "distinct, far apart", "strings"])
def test_bits_do_not_depend_on_workers(kind: str, tmp_path: Any) -> None:
    a, b = side(kind, 503, 1, "l"), side(kind, 211, 2, "r")
    for how in HOWS:
        answer = tdmap.join(a, b, "k", how, out=tmp_path / how, num_workers=2, chunksize=50)
        check(answer, a, b, how)


@tuning.use(lookup_bytes=0, lookup_here_bytes=0)
def test_more_keys_than_tables_are_made_for() -> None:
    for kind in ("dense", "distinct"):
        a, b = side(kind, 101, 1, "l"), side(kind, 67, 2, "r")
        for how in HOWS:
            check(tdmap.join(a, b, "k", how, num_workers=0), a, b, how)


@pytest.mark.parametrize("how", HOWS)
def test_integers_of_different_widths(how: str) -> None:
    for ours, theirs in (("int64", "int32"), ("int8", "uint8"), ("uint16", "uint64"), ("int16", "uint32")):
        a, b = side("dense", 61, 1, "l"), side("dense", 43, 2, "r")
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


def test_objects_of_either_side_stay_with_their_rows() -> None:
    a = TensorDict({"k": torch.tensor([1, 2, 1]), "note": ["a", "b", "c"]}, [3])
    b = TensorDict({"k": torch.tensor([1, 4]), "tag": ["s", "t"]}, [2])
    right = tdmap.join(a, b, "k", "right", num_workers=0)
    assert (right["k"].tolist(), right["note"], right["tag"]) == ([1, 1, 4], ["a", "c", None], ["s", "s", "t"])
    outer = tdmap.join(a, b, "k", "outer", num_workers=2)
    assert outer["k"].tolist() == [1, 2, 1, 4]
    assert (outer["note"], outer["tag"]) == (["a", "b", "c", None], ["s", None, "s", "t"])
    assert tdmap.join(a, b, "k", "anti", num_workers=0)["note"] == ["b"]


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
