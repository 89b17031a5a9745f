"""A join with one partner a row is done in one pass, and with integers that lie close together without sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap.bykey import joining
from tdmap.bykey.joins import lookup
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
    assert lookup.Lookup.of_integers(b["k"].numpy(), 0, share=False) is None
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
