"""A join with one partner a row is done in one pass, and with integers that lie close together without sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.keys.joins import lookup
from tdmap.ops import join as joining
from tensordict_lite import TensorDict

KEYS: dict[str, Any] = {
    "int64": lambda n: np.arange(n) * 3 - n,
    "lowest": lambda n: np.arange(n) + np.iinfo(np.int64).min,
    "highest": lambda n: np.iinfo(np.int64).max - np.arange(n),
    "uint64": lambda n: np.arange(n, dtype=np.uint64) + np.uint64(2**63 - 1),
    "int32": lambda n: (np.arange(n) - 2**31).astype(np.int32),
    "int8": lambda n: (np.arange(min(n, 200)) - 100).astype(np.int8),
    "uint8": lambda n: np.arange(min(n, 251)).astype(np.uint8),
    "bool": lambda n: np.arange(min(n, 2)) > 0,
    "far apart": lambda n: np.arange(n) * (2**62 // max(n, 1)),
    "float": lambda n: np.arange(n) * 0.5 - 3,
}


def sides(keys: np.ndarray, rows: int) -> tuple[TensorDict, TensorDict, pandas.DataFrame]:
    """Rows whose keys are all in a table of distinct keys, in strided and nested entries, and their join."""
    r = np.random.default_rng(5)
    other = r.permutation(keys)
    mine = r.choice(keys, rows) if len(keys) else keys[:0]
    a = TensorDict(
        {"in": {"k": torch.from_numpy(np.stack([mine, mine], 1))[:, 0]}, "v": torch.arange(len(mine))}, [len(mine)]
    )
    b = TensorDict({"k": torch.from_numpy(other), "w": torch.arange(len(other)) * 2.5}, [len(other)])
    frames = (
        pandas.DataFrame({"k": mine, "v": np.arange(len(mine))}),
        pandas.DataFrame({"k": other, "w": b["w"].numpy()}),
    )
    return a, b, frames[0].merge(frames[1], "left", "k")


def check(found: TensorDict, wanted: pandas.DataFrame) -> None:
    assert found["in", "k"].tolist() == wanted["k"].tolist() and found["v"].tolist() == wanted["v"].tolist()
    np.testing.assert_array_equal(found["w"].numpy(), wanted["w"].fillna(0))


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("size", [1, 997])
@pytest.mark.parametrize("kind", KEYS)
def test_every_row_has_a_partner(kind: str, size: int, how: str) -> None:
    a, b, wanted = sides(KEYS[kind](size), 1009)
    found = tdmap.join(a, b, how=how, left_on=[("in", "k")], right_on=["k"], num_workers=0, chunksize=100)
    check(found, wanted)
    assert found["in", "k"].dtype == a["in", "k"].dtype


@pytest.mark.parametrize("kind", ["int64", "uint64", "int8", "float"])
def test_rows_without_a_partner(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KEYS[kind](150)
    a, b, wanted = sides(keys, 1009)
    b = b[::2]  # as a view
    kept = wanted["k"].isin(b["k"].numpy())
    how = {"left_on": [("in", "k")], "right_on": ["k"], "num_workers": 0, "chunksize": 100}
    left = tdmap.join(a, b, how="left", **how)
    check(left, wanted.assign(w=wanted["w"].where(kept, 0.0)))
    assert left["__matched__"].tolist() == kept.tolist()
    inner = tdmap.join(a, b, **how)
    check(inner, wanted[kept])
    # The sample says that all have one, and chunks find otherwise.
    monkeypatch.setattr(joining._Join, "_has_one_each", lambda *args: True)
    assert (tdmap.join(a, b, **how) == inner).all()


def test_a_row_that_the_sample_has_not_seen_has_no_partner() -> None:
    rows = 40_000
    a = TensorDict({"k": torch.arange(rows) % 1000, "v": torch.arange(rows)}, [rows])
    a["k"][[100, 39_800]] = 5000
    b = TensorDict({"k": torch.arange(1000), "w": -torch.arange(1000)}, [1000])
    found = tdmap.join(a, b, "k", num_workers=2)
    kept = a["k"] < 1000
    assert torch.equal(found["v"], a["v"][kept]) and torch.equal(found["w"], -a["k"][kept])


def test_right_join_is_in_the_order_of_the_second_dataset(tmp_path: Any) -> None:
    a, b, wanted = sides(np.arange(50), 300)
    found = tdmap.join(b, a, how="right", left_on=["k"], right_on=[("in", "k")], out=tmp_path / "out", num_workers=2)
    assert found["k"].tolist() == wanted["k"].tolist() and found["w"].tolist() == wanted["w"].tolist()


def test_repeated_integers_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    b = TensorDict({"k": torch.arange(500) // 2, "w": torch.arange(500)}, [500])
    a = TensorDict({"k": torch.tensor([3, 3, 249]), "v": torch.arange(3)}, [3])
    found = tdmap.join(a, b, "k", num_workers=0)
    assert found["w"].tolist() == [6, 7, 6, 7, 498, 499]
    b["k"] = torch.arange(500)
    b["k"][499] = 0  # of which a sample may know nothing
    assert lookup.Lookup.of_integers(b["k"].numpy(), 0, share=False, most_bytes=1 << 20) is None
    assert tdmap.join(TensorDict({"k": torch.zeros(1, dtype=torch.int64)}, [1]), b, "k", num_workers=0)[
        "w"
    ].tolist() == [0, 499]


@pytest.mark.parametrize(("rows", "others"), [(0, 3), (3, 0), (0, 0)])
def test_no_rows(rows: int, others: int) -> None:
    a, b = (
        TensorDict({"k": torch.arange(rows)}, [rows]),
        TensorDict({"k": torch.arange(others), "w": torch.ones(others)}, [others]),
    )
    assert len(tdmap.join(a, b, "k", num_workers=0)) == 0
    assert tdmap.join(a, b, "k", "left", num_workers=0)["w"].tolist() == [0.0] * rows


def few_and_many() -> tuple[TensorDict, TensorDict]:
    r = np.random.default_rng(2)
    few = TensorDict({"k": torch.from_numpy(r.permutation(60) - 20), "v": torch.arange(60)}, [60])
    many = TensorDict({"k": torch.from_numpy(r.integers(-5, 70, 900)), "w": torch.arange(900) * 0.5}, [900])
    return few, many


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
def test_the_smaller_side_is_looked_up_with_the_same_answer(how: str, workers: int) -> None:
    few, many = few_and_many()
    sides = (many, few) if how == "right" else (few, many)
    with tuning.use(join_bytes=700):  # rows whose pairs are in several blocks
        found = tdmap.join(*sides, "k", how, num_workers=workers)
    with tuning.use(lookup_bytes=0):
        wanted = tdmap.join(*sides, "k", how, num_workers=workers)
    assert len(found) == len(wanted) > 0 and (found == wanted).all()
    frames = [pandas.DataFrame({name: side[name].numpy() for name in side.keys()}) for side in (few, many)]
    if how == "inner":
        assert found["w"].tolist() == frames[0].merge(frames[1], on="k")["w"].tolist()


@pytest.mark.parametrize("kind", ["uint64", "int8", "float", "far apart"])
def test_a_smaller_first_dataset_of_every_kind(kind: str) -> None:
    keys = KEYS[kind](40)
    a, b, _ = sides(keys, 700)
    found = tdmap.join(b, a, left_on=["k"], right_on=[("in", "k")], num_workers=0)
    frame = pandas.DataFrame({"k": b["k"].numpy(), "w": b["w"].numpy()})
    wanted = frame.merge(pandas.DataFrame({"k": a["in", "k"].numpy(), "v": a["v"].numpy()}), on="k")
    assert found["k"].tolist() == wanted["k"].tolist() and found["v"].tolist() == wanted["v"].tolist()


def test_nan_strings_and_repeated_keys_of_a_smaller_first_dataset() -> None:
    few, many = few_and_many()
    few["k"], many["k"] = few["k"].double(), many["k"].double()
    few["k"][3] = many["k"][5] = torch.nan
    found = tdmap.join(few, many, "k", "left", num_workers=0)
    nan = found["k"].isnan()
    assert int(nan.sum()) == 1 and not found["__matched__"][nan].any()
    few["k"][4] = few["k"][6]
    twice = tdmap.join(few, many, "k", num_workers=0)
    frames = [pandas.DataFrame({name: side[name].numpy() for name in side.keys()}).dropna() for side in (few, many)]
    assert twice["w"].tolist() == frames[0].merge(frames[1], on="k")["w"].tolist()
    for side in (few, many):
        side["s"] = [f"name {key}" for key in side["k"].tolist()]
    named = tdmap.join(few.select("s", "v")[7:], many.select("s", "w"), "s", num_workers=0)
    assert (
        named["w"].tolist()
        == tdmap.join(few.select("k", "v")[7:], many.select("k", "w"), "k", num_workers=0)["w"].tolist()
    )


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


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
@pytest.mark.parametrize("executor", ["serial", "thread"])
def test_a_small_dataset_of_which_no_row_has_a_partner(executor: str, how: str) -> None:
    few = TensorDict({"id": torch.tensor([3, 5]), "a": torch.tensor([7, 8])}, [2])
    many = TensorDict({"id": torch.arange(100, 150), "b": torch.arange(1, 51)}, [50])
    found: Any = tdmap.join(few, many, "id", how, executor=executor, num_workers=2)
    alone, others = how in ("left", "outer", "anti"), how in ("right", "outer")
    assert found["id"].tolist() == [3, 5] * alone + [*range(100, 150)] * others
    assert found["a"].tolist() == [7, 8] * alone + [0] * 50 * others
    if how not in ("semi", "anti"):
        assert found["b"].tolist() == [0, 0] * alone + [*range(1, 51)] * others
