"""Partitions whose keys lie close together are reduced without sorting, and give what sorting gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.keys import aggregates, reducing
from tdmap.keys.order import order_of_numbers
from tdmap.reducers import Count, First, Last, Max, Mean, Min, Reducer, Sum, Var
from tensordict_lite import TensorDict

ROWS = 2003  # a prime number
KEYS: dict[str, Any] = {
    "int64": lambda r, n: r.integers(-n // 2, n // 2 + 1, n),
    "lowest": lambda r, n: r.integers(0, n + 1, n) + np.iinfo(np.int64).min,
    "highest": lambda r, n: np.iinfo(np.int64).max - r.integers(0, n + 1, n),
    "far apart": lambda r, n: r.integers(0, n + 1, n) * (2**62 // max(n, 1)),
    "uint64": lambda r, n: r.integers(0, n + 1, n).astype(np.uint64) + np.uint64(2**63 - n // 2),
    "int32": lambda r, n: r.integers(-(2**31), -(2**31) + n + 1, n).astype(np.int32),
    "int8": lambda r, n: r.integers(-128, 128, n).astype(np.int8),
    "uint8": lambda r, n: r.integers(0, 256, n).astype(np.uint8),
    "bool": lambda r, n: r.integers(0, 2, n) > 0,
    "float with nan": lambda r, n: np.where(r.random(n) < 0.01, np.nan, r.integers(-n, n, n) / 4),
}


@pytest.fixture(autouse=True)
def partitions() -> Iterator[None]:
    """As for many keys: chunks leave their rows, in several partitions."""
    with tuning.use(combine_share=-1.0, partition_bytes=8000):
        yield


def rows_of(keys: np.ndarray) -> tuple[TensorDict, pandas.DataFrame]:
    r, n = np.random.default_rng(1), len(keys)
    whole, real = r.integers(-(2**40), 2**40, n), r.standard_normal(n).astype(np.float32)
    data = TensorDict(
        {
            "in": {"key": torch.from_numpy(np.stack([keys, keys], 1))[:, 0]},
            "whole": torch.from_numpy(whole),
            "real": torch.from_numpy(np.stack([real, real], 1))[:, 1],
            "wide": torch.from_numpy(np.repeat(whole[:, None] % 1000, 11, 1)),
        },
        [n],
    )
    return data, pandas.DataFrame({"key": keys, "whole": whole, "real": real.astype(np.float64), "place": range(n)})


REDUCERS: dict[str, Any] = {
    "n": Count(),
    "sum": Sum("whole"),
    "mean": Mean("real"),
    "var": Var("real"),
    "min": Min("whole"),
    "max": Max("real"),
    "first": First("whole"),
    "last": Last("whole"),
    "wide": Sum("wide", dim=0),
}


def check(found: TensorDict, frame: pandas.DataFrame) -> None:
    groups = frame.groupby("key", dropna=False)
    np.testing.assert_array_equal(found["in", "key"].numpy(), groups.size().index.to_numpy())
    np.testing.assert_array_equal(found["n"].numpy(), groups.size())
    for name, entry, how in (
        ("sum", "whole", "sum"),
        ("min", "whole", "min"),
        ("max", "real", "max"),
        ("first", "whole", "first"),
        ("last", "whole", "last"),
    ):
        np.testing.assert_array_equal(found[name].numpy(), groups[entry].agg(how), err_msg=name)
    np.testing.assert_allclose(found["mean"].numpy(), groups["real"].mean(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["var"].numpy(), groups["real"].var(), rtol=1e-9)
    wide = (frame["whole"] % 1000).groupby(frame["key"], dropna=False).sum()
    np.testing.assert_array_equal(found["wide"].numpy(), np.repeat(wide.to_numpy()[:, None], 11, 1))


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("kind", KEYS)
def test_every_kind_of_key(kind: str, rows: int) -> None:
    data, frame = rows_of(KEYS[kind](np.random.default_rng(0), rows))
    with mock.patch.object(reducing, "stable_order", wraps=reducing.stable_order) as sort:
        found = tdmap.group_by(data, ("in", "key"), dropna=False).reduce(REDUCERS, num_workers=0, chunksize=300)
    check(found, frame)
    if rows == ROWS and kind != "float with nan":
        assert bool(sort.call_count) is (kind == "far apart")


def test_no_rows_have_no_groups() -> None:
    data, _ = rows_of(np.zeros(0, dtype=np.int64))
    found = tdmap.group_by(data, ("in", "key")).reduce(REDUCERS, num_workers=0)
    assert found.shape == (0,) and found["wide"].shape == (0, 11)


def test_batches_of_a_partition_are_joined() -> None:
    data, frame = rows_of(KEYS["int64"](np.random.default_rng(0), ROWS))
    with tuning.use(heap_bytes=2000):
        check(tdmap.group_by(data, ("in", "key")).reduce(REDUCERS, num_workers=0, chunksize=97), frame)


def test_several_keys_and_strings() -> None:
    r = np.random.default_rng(0)
    first, second = r.integers(0, 40, ROWS), r.integers(0, 30, ROWS)
    data = TensorDict(
        {"a": torch.from_numpy(first), "b": torch.from_numpy(second), "s": [f"{n:02}" for n in first]}, [ROWS]
    )
    wanted = pandas.DataFrame({"a": first, "b": second}).groupby(["a", "b"])["b"].size()
    for keys in (["a", "b"], ["s", "b"]):
        found = tdmap.group_by(data, keys).reduce({"n": Count()}, num_workers=0)
        assert [int(key) for key in found[keys[0]]] == wanted.index.get_level_values("a").tolist()
        assert found["b"].tolist() == wanted.index.get_level_values("b").tolist()
        assert found["n"].tolist() == wanted.tolist()


def test_workers_give_the_same_bits() -> None:
    data, frame = rows_of(KEYS["int64"](np.random.default_rng(0), ROWS))
    groups = tdmap.group_by(data, ("in", "key"))
    found = groups.reduce(REDUCERS, num_workers=2, executor="thread", chunksize=300)
    check(found, frame)
    alone = groups.reduce(REDUCERS, num_workers=0, chunksize=300)
    assert torch.equal(found["var"].view(torch.int64), alone["var"].view(torch.int64))  # NaN equals no NaN
    assert (found.exclude("var") == alone.exclude("var")).all()


class Rows(Reducer[Any]):
    """Which rows of a group come first: a reducer that is asked group by group, batch after batch."""

    def init(self) -> Any:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        return torch.stack([torch.tensor(start), chunk["whole"][-1]])

    def merge(self, a: Any, b: Any) -> Any:
        return a if b is None else b

    def finish(self, state: Any) -> Any:
        return state


class OfOnesOwn(aggregates.GroupedCount):
    """A reduction that knows of runs only."""

    def update_slots(self, chunk: Any) -> Any:
        return None


class Counted(Count):
    def grouped(self) -> OfOnesOwn:
        return OfOnesOwn()


def test_reducers_that_know_of_runs_only() -> None:
    data, frame = rows_of(KEYS["int64"](np.random.default_rng(0), ROWS))
    groups = tdmap.group_by(data, ("in", "key"))
    found = groups.reduce({"n": Counted(), "sum": Sum("whole")}, num_workers=0)
    assert found["n"].tolist() == frame.groupby("key").size().tolist()
    assert found["sum"].tolist() == frame.groupby("key")["whole"].sum().tolist()
    last = groups.reduce({"rows": Rows()}, num_workers=0)["rows"][:, 1]
    assert last.tolist() == frame.groupby("key")["whole"].last().tolist()


@pytest.mark.parametrize("count", [1, 2, 256, 257, 1 << 16, (1 << 16) + 1, 200_000])
def test_order_of_numbers_of_any_width(count: int) -> None:
    numbers = np.append(np.random.default_rng(0).integers(0, count, ROWS), [count - 1, 0, count - 1])
    np.testing.assert_array_equal(order_of_numbers(numbers, count), np.argsort(numbers, kind="stable"))
