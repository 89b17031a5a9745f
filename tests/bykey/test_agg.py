"""Statistics by name, distinct values, the largest rows and rows at random: as pandas has them."""

from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import reducers as reducers_
from tdmap import tuning
from tdmap.reducers import First, Last, Max, Min, Sum
from tensordict_lite import TensorDict

ROWS = 3001

DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


def table(rows: int = ROWS, groups: int = 37) -> TensorDict:
    r = np.random.default_rng(5)
    data = TensorDict(
        {
            "k": torch.from_numpy(r.integers(0, groups, rows) * 1_000_003),
            "x": torch.from_numpy(r.standard_normal(rows).astype(np.float32).round(1)),
            "n": torch.from_numpy(r.integers(-50, 50, rows).astype(np.int16)),
            "id": torch.arange(rows),
        },
        [rows],
    )
    data["x"][:: max(rows // 50, 1)] = torch.nan
    return data


def frame_of(data: TensorDict) -> pandas.DataFrame:
    frame = pandas.DataFrame({name: data[name].numpy() for name in ("k", "x", "n", "id")})
    frame["x"] = frame["x"].astype(np.float64)
    return frame


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rows", [1, 13, ROWS])
def test_named_statistics_are_those_of_pandas(rows: int, workers: int) -> None:
    data = table(rows)
    spec: dict[str, Any] = {
        "n": ["count", "sum", "mean", "min", "max", "first", "last", "nunique", "median", ("quantile", 0.9)],
        "x": "median",
        "several": ("x", "quantile", [0.1, 0.5, 1.0]),
        "kinds": ("x", "nunique"),
        "own": Sum("n"),
        "newest": ("id", "last"),
    }
    found = tdmap.group_by(data, "k").agg(spec, num_workers=workers, chunksize=500)
    groups = frame_of(data).groupby("k")
    assert found["k"].tolist() == sorted(groups.groups)
    for name in ("count", "sum", "mean", "min", "max", "first", "last", "nunique", "median"):
        np.testing.assert_allclose(found["n", name].numpy(), groups["n"].agg(name), rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(found["n", "quantile_0.9"].numpy(), groups["n"].quantile(0.9), rtol=1e-12)
    np.testing.assert_allclose(found["x"].numpy(), groups["x"].median(), rtol=1e-7)
    wanted = groups["x"].quantile([0.1, 0.5, 1.0]).to_numpy().reshape(-1, 3)
    np.testing.assert_allclose(found["several"].numpy(), wanted, rtol=1e-6, atol=1e-7)
    assert found["kinds"].tolist() == groups["x"].nunique().tolist()
    assert found["own"].tolist() == groups["n"].sum().tolist()
    assert found["newest"].tolist() == groups["id"].last().tolist()


def test_no_rows_and_a_folder(tmp_path: Any) -> None:
    found = tdmap.group_by(table(0), "k").agg({"n": ["sum", "median"], "x": "nunique"}, num_workers=0)
    assert found.batch_size == (0,) and set(found["n"].keys()) == {"sum", "median"}
    data = table()
    saved = tdmap.group_by(data, "k").agg({"n": ["sum", "median"]}, out=tmp_path / "out", num_workers=2)
    again = TensorDict.load_memmap(tmp_path / "out")
    memory = tdmap.group_by(data, "k").agg({"n": ["sum", "median"]}, num_workers=0)
    for path in (("n", "sum"), ("n", "median"), "k"):
        assert torch.equal(saved[path], memory[path]) and torch.equal(again[path], memory[path])


def test_nan_keys_several_keys_and_strings() -> None:
    data = table()
    frame = frame_of(data)
    found = tdmap.group_by(data, ["x", "n"], dropna=True).agg({"id": "median"}, num_workers=0)
    wanted = frame.groupby(["x", "n"])["id"].median()
    assert found["id"].tolist() == wanted.tolist()
    with pytest.raises(ValueError, match="the key is NaN"):
        tdmap.group_by(data, "x").agg({"id": "median"}, num_workers=0)
    data["s"] = [f"w{n}" for n in data["n"].tolist()]
    named = tdmap.group_by(data, "s").agg({"id": ["median", "first"]}, num_workers=0)
    wanted = frame.assign(s=list(data["s"])).groupby("s")["id"].agg(["median", "first"])
    assert list(named["s"]) == wanted.index.tolist()
    assert named["id", "median"].tolist() == wanted["median"].tolist()
    assert named["id", "first"].tolist() == wanted["first"].tolist()


def test_bad_statistics_name_those_that_there_are() -> None:
    groups = tdmap.group_by(table(20), "k")
    with pytest.raises(ValueError, match="'mode' for 'x' is none of 'count', 'sum'"):
        groups.agg({"x": "mode"})
    with pytest.raises(TypeError, match="agg takes a mapping"):
        groups.agg("mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"quantile must be in \[0, 1\]"):
        groups.agg({"x": ("x", "quantile", 2)})
    with pytest.raises(KeyError, match="not an entry"):
        groups.agg({"y": "median"}, num_workers=0)
    with pytest.raises(ValueError, match="has the name of a key"):
        groups.agg({"k": "sum"}, num_workers=0)
    with pytest.raises(TypeError, match="make its result an entry first"):
        tdmap.group_by(table(20), lambda rows: rows["n"]).agg({"x": "median"}, num_workers=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_first_last_smallest_and_largest_of_every_dtype(dtype: torch.dtype) -> None:
    r = np.random.default_rng(2)
    numbers = torch.from_numpy(r.integers(0, 2 if dtype is torch.bool else 100, 500))
    data = TensorDict({"k": torch.from_numpy(r.integers(0, 5, 500)), "v": numbers.to(dtype)}, [500])
    reducers = {"first": First("v"), "last": Last("v"), "min": Min("v"), "max": Max("v")}
    groups = pandas.DataFrame({"k": data["k"].numpy(), "v": numbers.to(dtype).to(torch.float64).numpy()}).groupby("k")
    for chunksize in (None, 40):
        found = tdmap.group_by(data, "k").reduce(reducers, num_workers=0, chunksize=chunksize)
        for name in reducers:
            assert found[name].dtype is dtype
            assert found[name].double().tolist() == groups["v"].agg(name).tolist()
    whole = tdmap.reduce(data, reducers, num_workers=0, chunksize=40)
    assert [whole[name].double() for name in ("first", "last", "min", "max")] == [
        numbers.to(dtype)[0].double(), numbers.to(dtype)[-1].double(), groups["v"].min().min(), groups["v"].max().max(),
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse", "int8", "float", "text", "two"])
def test_quantiles_of_groups_are_exact(kind: str, dropna: bool, workers: int) -> None:
    r = np.random.default_rng(1)
    number = r.integers(0, 9, 5000)
    keys: dict[str, Any] = {
        "dense": torch.from_numpy(number),
        "sparse": torch.from_numpy(number * 10**15),
        "int8": torch.from_numpy(number.astype(np.int8)),
        "float": torch.from_numpy(np.where(number == 8, np.nan, number)),
        "text": [None if n == 8 else f"k{n}" for n in number.tolist()],
        "two": torch.from_numpy(number),
    }
    x = r.standard_normal(5000)
    x[r.random(5000) < 0.1] = np.nan
    x[number == 3] = np.nan
    columns = {"f": torch.from_numpy(x), "h": torch.from_numpy(x).half(), "n": torch.from_numpy(number * 7 % 5)}
    data = TensorDict({"k": keys[kind], "zero": torch.zeros(5000, dtype=torch.int64), **columns}, [5000])
    groups = tdmap.group_by(data, ["zero", "k"] if kind == "two" else "k", dropna=dropna)
    with tuning.use(partition_bytes=20_000):
        found = groups.agg(
            {name: ["median", ("quantile", [0.0, 0.3, 1.0]), "nunique"] for name in columns},
            num_workers=workers,
            chunksize=700,
        )
    several = 8 if dropna and kind in ("float", "text") else 9
    assert found.batch_size == (several,)
    for name, column in columns.items():
        for at in range(several):
            values = column[torch.from_numpy(number == at)].double().numpy()
            values = values[~np.isnan(values)]
            wanted = np.quantile(values, [0.5, 0.0, 0.3, 1.0]) if len(values) else [np.nan] * 4
            got = [float(found[name, "median"][at]), *found[name, "quantile_[0.0, 0.3, 1.0]"][at].tolist()]
            np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=1e-16)
            assert int(found[name, "nunique"][at]) == len(np.unique(values))


def test_answers_have_names_of_their_own() -> None:
    data = table(50)
    found = tdmap.group_by(data, "k").agg({"x": [("quantile", 1.0), ("quantile", 1 - 1e-10)]}, num_workers=0)
    assert set(found["x"].keys()) == {"quantile_1", "quantile_0.9999999999"}
    half = tdmap.group_by(data, "k").agg({"x": ("x", "quantile", np.float32(0.5))}, num_workers=0)
    assert torch.equal(half["x"].nan_to_num(), tdmap.group_by(data, "k").agg({"x": "median"})["x"].nan_to_num())
    data["count"] = data["n"]
    for key in ("count", ["k", "count"]):
        with pytest.raises(ValueError, match="counts cannot be named 'count', as a key is: pass another name="):
            tdmap.value_counts(data, key, num_workers=0)
    assert "n_rows" in tdmap.value_counts(data, "count", name="n_rows", num_workers=0).keys()


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int16, torch.complex64]


def holes(dtype: torch.dtype) -> TensorDict:
    """Rows of which some, and in one group all, are NaN; and rows far from zero."""
    r = np.random.default_rng(3)
    numbers = torch.from_numpy(r.integers(-50, 50, (400, 2, 3))).to(torch.complex128 if dtype.is_complex else dtype)
    keys = torch.from_numpy(r.integers(0, 6, 400))
    if dtype is torch.float64:
        numbers += 1e9
    numbers = numbers.to(dtype)
    if dtype is not torch.int16:
        numbers[torch.from_numpy(r.random((400, 2, 3)) < 0.3)] = torch.nan
        numbers[keys == 2] = torch.nan
        numbers[:120, 0] = torch.nan  # all of the first chunks
    return TensorDict({"k": keys, "x": numbers, "n": {"y": numbers[:, 1, 2].clone()}}, [400])


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom|All-NaN")
@pytest.mark.parametrize("skipna", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("key", ["x", ("n", "y")], ids=str)
def test_nan_is_passed_on_or_left_out(key: Any, dtype: torch.dtype, skipna: bool, tmp_path: Any) -> None:
    data = holes(dtype).memmap(tmp_path / "data")
    wide = data[key].to(torch.complex128 if dtype.is_complex else torch.float64).numpy()
    dims: list[Any] = [0, None, (0, 2)] if key == "x" else [0]
    names = ["sum", "mean", "var", "std"] if dtype.is_complex else ["sum", "mean", "var", "std", "min", "max"]

    def oracle(name: str, values: Any, dim: Any) -> Any:
        options = {"ddof": 1} if name in ("var", "std") else {}
        found = getattr(np, ("nan" if skipna else "") + name)(values, axis=dim, **options)
        # NumPy's sum without NaN of complex numbers takes the other part for a number.
        return np.where(np.isnan(values), 0, values).sum(dim) if skipna and name == "sum" else found

    def check(found: Any, values: Any, dim: Any, name: str) -> None:
        wanted = oracle(name, values, dim)
        got = found.to(torch.complex128 if found.is_complex() else torch.float64).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12, err_msg=f"{name} {dim}")

    for dim in dims:
        reducers = {name: getattr(reducers_, name.capitalize())(key, dim, skipna=skipna) for name in names}
        for found in (
            tdmap.reduce(data, reducers, num_workers=0, chunksize=50),
            data.pipeline().map(lambda rows: rows).reduce(reducers, num_workers=0, chunksize=50),
            *(tdmap.reduce(data, {name: part}, num_workers=0, chunksize=50) for name, part in reducers.items()),
        ):
            for name in found.keys():
                check(found[name], wide, dim, name)
        for chunksize in (None, 50):
            for rows, label in ((data, "k"), (data.exclude(), lambda chunk: chunk["k"] * 10.0**9)):
                groups = tdmap.group_by(rows, label).reduce(reducers, num_workers=0, chunksize=chunksize)
                for number, k in enumerate(range(6)):
                    for name in names:
                        check(groups[name][number], wide[data["k"] == k], dim, name)
    named = tdmap.group_by(data, "k").agg(
        {"r": (key, "mean")} | {n: (key, n) for n in names}, skipna=skipna, num_workers=0
    )
    for k in range(6):
        for name in names:
            check(named[name][k], wide[data["k"] == k], 0, name)


@pytest.mark.parametrize("largest", [True, False])
def test_the_largest_rows_of_each_group(largest: bool) -> None:
    data = table()
    found = tdmap.group_by(data, "k").top_k("x", 3, largest=largest, num_workers=2)
    frame = frame_of(data).sort_values(["k", "x"], ascending=[True, not largest], kind="stable", na_position="last")
    assert found["id"].tolist() == frame.groupby("k").head(3)["id"].tolist()
    found = tdmap.group_by(data, "k").top_k("k", 3, largest=largest, num_workers=2)  # the key itself
    assert found["id"].tolist() == frame_of(data).sort_values("k", kind="stable").groupby("k").head(3)["id"].tolist()
    with pytest.raises(ValueError, match="at least 1"):
        tdmap.group_by(data, "k").top_k("x", 0)


@pytest.mark.parametrize("largest", [True, False])
def test_the_largest_rows(largest: bool, tmp_path: Any) -> None:
    data = table()
    found = tdmap.top_k(data, "x", 20, out=tmp_path / "out", largest=largest, num_workers=2)
    frame = frame_of(data).sort_values("x", ascending=not largest, kind="stable", na_position="last")
    assert found["id"].tolist() == frame["id"].head(20).tolist() and found.keys() == data.keys()
    data["s"] = [f"w{n:03}" for n in (data["n"] + 50).tolist()]
    assert tdmap.top_k(data, "s", 1, num_workers=0)["s"] == [max(data["s"])]
    with pytest.raises(KeyError, match="not an entry"):
        tdmap.top_k(data, "y", 1, num_workers=0)


def test_distinct_values_and_how_often_they_occur(tmp_path: Any) -> None:
    data = table()
    frame = frame_of(data)
    assert tdmap.unique(data, "n", num_workers=0)["n"].tolist() == sorted(frame["n"].unique())
    assert tdmap.unique(data, "x", out=tmp_path / "x", num_workers=2)["x"].isnan().tolist()[-2:] == [False, True]
    assert not tdmap.unique(data, "x", dropna=True, num_workers=0)["x"].isnan().any()
    pairs = tdmap.value_counts(data, ["n", "k"], num_workers=2)
    wanted = frame.value_counts(["n", "k"])
    assert pairs["count"].tolist() == wanted.tolist()
    assert {tuple(row) for row in zip(pairs["n"].tolist(), pairs["k"].tolist(), strict=True)} == set(wanted.index)
    data["s"] = [f"w{n}" for n in data["n"].tolist()]
    strings = tdmap.value_counts(data, "s", num_workers=0, sort=False, name="number")
    counts = frame.assign(s=list(data["s"]))["s"].value_counts().sort_index()
    assert list(strings["s"]) == counts.index.tolist() and strings["number"].tolist() == counts.tolist()
    assert tdmap.unique(table(0), "n", num_workers=0).batch_size == (0,)


def test_rows_at_random(tmp_path: Any) -> None:
    data = table()
    first, again = (tdmap.sample(data, 100, seed=3, num_workers=n)["id"] for n in (0, 2))
    assert torch.equal(first, again) and len(first.unique()) == 100 and (first.diff() > 0).all()
    drawn = tdmap.sample(data, 100, out=tmp_path / "out", seed=3, shuffle=True, num_workers=0)
    assert torch.equal(drawn["id"].sort().values, first) and not torch.equal(drawn["id"], first)
    assert len(tdmap.sample(data, frac=0.5, seed=0, num_workers=0)) == 1500
    assert len(tdmap.sample(data, 5000, replace=True, seed=0, num_workers=0)) == 5000
    assert not torch.equal(tdmap.sample(data, 100, seed=4, num_workers=0)["id"], first)


@pytest.mark.parametrize("replace", [True, False])
def test_weights_say_how_likely_a_row_is(replace: bool) -> None:
    data = TensorDict({"x": torch.arange(4000), "w": (torch.arange(4000) % 4).float()}, [4000])
    found = tdmap.sample(data, 1000, weights="w", replace=replace, seed=1, num_workers=0)["x"] % 4
    counts = torch.bincount(found, minlength=4)
    assert counts[0] == 0 and counts[1] < counts[2] < counts[3]
    other = tdmap.sample(data, 1000, weights=data["w"], replace=replace, seed=1, num_workers=0)["x"] % 4
    assert torch.equal(found, other)
    assert len(tdmap.sample(data, 3000, weights="w", seed=1, num_workers=0)) == 3000


def test_bad_samples_say_what_is_wrong() -> None:
    data = table(10)
    data["w"] = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    for options, message in (
        ({"n": 11}, "from 10 rows"),
        ({"n": 2, "weights": "w"}, "from 1 rows with a weight"),
        ({"n": -1}, "a number of rows"),
        ({"frac": -1.0}, "a share of the rows"),
        ({"n": 1, "weights": -data["w"]}, "the one of row 0"),
        ({"n": 1, "weights": torch.ones(3)}, "one number a row"),
    ):
        with pytest.raises(ValueError, match=message):
            tdmap.sample(data, num_workers=0, **options)
    with pytest.raises(TypeError, match="n=, or their share frac="):
        tdmap.sample(data, num_workers=0)
    with pytest.raises(KeyError, match="not an entry"):
        tdmap.sample(data, 1, weights="y", num_workers=0)
