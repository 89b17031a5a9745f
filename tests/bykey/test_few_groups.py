"""Few groups go without files: the same answers as pandas gives, the same bits for any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.keys import slots
from tdmap.reducers import Count, Max, Mean, Min, MinMax, Std, Sum, Var
from tensordict_lite import TensorDict

ROWS = 20_011

KEYS: dict[str, Any] = {
    "dense": lambda r, n: r.integers(-4, 4, n),
    "one": lambda r, n: np.full(n, 7),
    "far apart": lambda r, n: r.choice([-(2**62), 3, 2**61], n),
    "float": lambda r, n: r.choice(np.array([-1.5, 0.0, 2.5], dtype=np.float32), n),
    "bool": lambda r, n: r.random(n) < 0.3,
    "uint8": lambda r, n: r.integers(0, 256, n).astype(np.uint8),
    "thousand": lambda r, n: r.integers(0, 1000, n) * 1_000_003,
}


def table(kind: str, rows: int = ROWS) -> TensorDict:
    r = np.random.default_rng(3)
    return TensorDict(
        {
            "k": torch.from_numpy(KEYS[kind](r, rows)),
            "v": torch.from_numpy(r.standard_normal(rows).astype(np.float32)),
            "n": torch.from_numpy(r.integers(-(2**40), 2**40, rows)),
            "m": torch.from_numpy(r.standard_normal((rows, 3))),
        },
        [rows],
    )


@pytest.mark.parametrize("kind", KEYS)
def test_answers_are_those_of_pandas(kind: str) -> None:
    data = table(kind)
    reducers = {
        "count": Count(), "sum": Sum("v"), "mean": Mean("v"), "var": Var("v"), "std": Std("v"), "min": Min("v"),
        "max": Max("v"), "whole": Sum("n"), "least": Min("n"),
    }  # fmt: skip
    found = tdmap.group_by(data, "k").reduce(reducers, num_workers=0, chunksize=3000)
    frame = pandas.DataFrame({name: data[name].numpy() for name in ("k", "v", "n")})
    frame["v"] = frame["v"].astype(np.float64)
    groups = frame.groupby("k")
    assert found["k"].tolist() == sorted(groups.groups)
    np.testing.assert_array_equal(found["count"].numpy(), groups["v"].size())
    np.testing.assert_array_equal(found["whole"].numpy(), groups["n"].sum())
    np.testing.assert_array_equal(found["least"].numpy(), groups["n"].min())
    for name, wanted in (("sum", "sum"), ("mean", "mean"), ("var", "var"), ("std", "std"), ("min", "min")):
        np.testing.assert_allclose(found[name].numpy(), groups["v"].agg(wanted), rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("kind", ["dense", "far apart"])
def test_bits_do_not_depend_on_workers(kind: str) -> None:
    data, reducers = table(kind), {"s": Sum("v"), "v": Var("v"), "m": Mean("m"), "w": Sum("m", dim=(0, 1))}
    answers = [tdmap.group_by(data, "k").reduce(reducers, num_workers=n, chunksize=1000) for n in (0, 1, 2)]
    for other in answers[1:]:
        assert all(torch.equal(answers[0][name], other[name]) for name in answers[0].keys())


def test_states_of_slots_are_those_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table("dense")
    for name, dtype in (("bf", torch.bfloat16), ("h", torch.half), ("u", torch.uint64), ("c", torch.complex64)):
        data[name] = data["n"].abs().view(dtype) if name == "u" else data["v"].to(dtype)
    data["flag"] = data["v"] > 0
    data["wide"] = torch.randn(ROWS, 20, generator=torch.Generator().manual_seed(0))
    reducers: dict[str, Any] = {}
    for key in ("v", "n", "bf", "h", "u", "c", "flag", "m", "wide"):
        reducers |= {f"sum {key}": Sum(key), f"mean {key}": Mean(key), f"var {key}": Var(key)}
        if key != "c":
            reducers |= {f"range {key}": MinMax(key)}
    fast = tdmap.group_by(data, "k").reduce(reducers, num_workers=0)
    for name in ("dense", "hashed"):
        monkeypatch.setattr(slots.KeyTable, name, lambda *args: None)
    slow = tdmap.group_by(data, "k").reduce(reducers, num_workers=0)
    for name in reducers:
        torch.testing.assert_close(fast[name], slow[name], rtol=1e-9, atol=1e-9)


INTEGERS: dict[str, Any] = {
    "holes": lambda n: np.where(np.arange(n) % 7 == 0, 100, -3),
    "late": lambda n: np.where(np.arange(n) == n - 1, 1, np.arange(n) % 2 * 2),
    "lowest": lambda n: np.arange(n) % 3 + np.iinfo(np.int64).min,
    "highest": lambda n: np.iinfo(np.int64).max - np.arange(n) % 3,
    "int8": lambda n: (np.arange(n) % 256 - 128).astype(np.int8),
    "uint16": lambda n: (np.arange(n) % 5 + 65530).astype(np.uint16),
    "int32": lambda n: (np.arange(n) % 4 - 2**31).astype(np.int32),
    "uint64": lambda n: np.arange(n, dtype=np.uint64) % np.uint64(3) + np.uint64(2**64 - 3),
}


@pytest.mark.parametrize("rows", [1, 4999])
@pytest.mark.parametrize("kind", INTEGERS)
def test_dense_integers_of_every_kind(kind: str, rows: int) -> None:
    keys = INTEGERS[kind](rows)
    strided = torch.from_numpy(np.stack([keys, keys[::-1]], axis=1))[:, 0]
    data = TensorDict({"in": {"k": strided}, "v": torch.arange(rows)}, [rows])
    found = tdmap.group_by(data, ("in", "k")).reduce({"n": Count(), "s": Sum("v"), "m": Mean("v")}, num_workers=0)
    wanted = pandas.DataFrame({"k": keys, "v": np.arange(rows)}).groupby("k")["v"].agg(["size", "sum", "mean"])
    assert found["in", "k"].dtype == strided.dtype and found["in", "k"].tolist() == wanted.index.tolist()
    for name, column in (("n", "size"), ("s", "sum"), ("m", "mean")):
        np.testing.assert_array_equal(found[name].numpy(), wanted[column], err_msg=column)


def test_memory_that_is_used_again_keeps_nothing_of_the_chunk_before() -> None:
    rows = 5003
    data = TensorDict({"k": torch.arange(rows) // 1000 * 10 + torch.arange(rows) % 3, "v": torch.randn(rows)}, [rows])
    answers = [
        tdmap.group_by(data, "k").reduce(
            {"s": Sum("v"), "v": Var("v")}, num_workers=2, chunksize=size, executor=executor
        )
        for size in (rows, 1000, 77)
        for executor in ("serial", "thread", "process")
    ]
    for other in answers[1:]:
        assert torch.equal(answers[0]["k"], other["k"])
        torch.testing.assert_close(answers[0].exclude("k").to_dict(), other.exclude("k").to_dict(), equal_nan=True)


def test_nan_is_smallest_and_largest_of_its_group() -> None:
    data = table("dense")
    data["v"][5] = torch.nan
    found = tdmap.group_by(data, "k").reduce({"r": MinMax("v")}, num_workers=0)
    of_it = found["k"] == data["k"][5]
    assert (found["r", "min"].isnan() == of_it).all() and (found["r", "max"].isnan() == of_it).all()


def test_sums_too_large_for_float64_stay_exact() -> None:
    data = TensorDict({"k": torch.arange(ROWS) % 3, "n": torch.full((ROWS,), 2**48 + 1)}, [ROWS])
    found = tdmap.group_by(data, "k").reduce({"s": Sum("n")}, num_workers=0)
    assert found["s"].tolist() == [len(range(k, ROWS, 3)) * (2**48 + 1) for k in range(3)]
    data["n"] = torch.full((ROWS,), 2**62)
    with pytest.raises(OverflowError, match="the sum of a group"):
        tdmap.group_by(data, "k").reduce({"s": Sum("n")}, num_workers=0)


@tuning.use(unseen_share=1.0, kept_bytes=16_000)
def test_chunks_with_more_keys_than_the_sample_told_go_through_files() -> None:
    data = table("far apart")
    data["k"][1000:1900] = torch.arange(900) * 77_777  # a chunk whose keys the sample has not seen
    found = tdmap.group_by(data, "k").reduce({"n": Count()}, num_workers=2, chunksize=1000)
    keys, counts = data["k"].unique(return_counts=True)
    assert torch.equal(found["k"], keys) and torch.equal(found["n"], counts)


def test_few_groups_leave_no_files(tmp_path: Any) -> None:
    data = table("dense")
    found = tdmap.group_by(data, "k", spill_dir=tmp_path).reduce(
        {"n": Count()}, num_workers=2, chunksize=1000, out=tmp_path / "out"
    )
    assert found["n"].sum() == ROWS and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_several_keys_nan_and_strings() -> None:
    r = np.random.default_rng(1)
    a, b = r.choice([1.0, np.nan, -2.0], ROWS), r.integers(0, 5, ROWS)
    data = TensorDict({"a": torch.from_numpy(a), "in": {"b": torch.from_numpy(b)}}, [ROWS])
    data["s"] = [f"word {number}" for number in b]
    found = tdmap.group_by(data, ["a", ("in", "b")], dropna=False).reduce({"n": Count()}, num_workers=0)
    wanted = pandas.DataFrame({"a": a, "b": b}).groupby(["a", "b"], dropna=False).size()
    assert found["n"].tolist() == wanted.tolist()
    named = tdmap.group_by(data, "s").reduce({"n": Count()}, num_workers=2)
    assert (
        dict(zip(named["s"].tolist(), named["n"].tolist(), strict=True))
        == pandas.Series(data["s"].tolist()).value_counts().to_dict()
    )
