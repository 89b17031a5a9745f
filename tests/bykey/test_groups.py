"""Figures of groups are those of pandas, whatever the keys, their number, and the way that is taken."""

from typing import Any
from unittest import mock

import numpy as np
import pandas
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.keys import aggregates, reducing, slots
from tdmap.keys.order import order_of_numbers
from tdmap.reducers import Count, First, Last, Max, Mean, Min, MinMax, Reducer, Std, Sum, Var
from tensordict_lite import TensorDict
from tests.products import sampled

ROWS = 2003  # a prime number
KEYS: dict[str, Any] = {
    "few": lambda r, n: r.integers(-4, 4, n),
    "one": lambda r, n: np.full(n, 7),
    "thousand": lambda r, n: r.integers(0, 1000, n) * 1_000_003,
    "few, far apart": lambda r, n: r.choice([-(2**62), 3, 2**61], n),
    "few, float": lambda r, n: r.choice(np.array([-1.5, 0.0, 2.5], dtype=np.float32), n),
    "few, lowest": lambda r, n: np.arange(n) % 3 + np.iinfo(np.int64).min,
    "few, highest": lambda r, n: np.iinfo(np.int64).max - np.arange(n) % 3,
    "few, int32": lambda r, n: (np.arange(n) % 4 - 2**31).astype(np.int32),
    "few, uint64": lambda r, n: np.arange(n, dtype=np.uint64) % np.uint64(3) + np.uint64(2**64 - 3),
    "holes": lambda r, n: np.where(np.arange(n) % 7 == 0, 100, -3),
    "late": lambda r, n: np.where(np.arange(n) == n - 1, 1, np.arange(n) % 2 * 2),
    "uint16": lambda r, n: (np.arange(n) % 5 + 65530).astype(np.uint16),
    "many": lambda r, n: r.integers(-n // 2, n // 2 + 1, n),
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
WAYS: dict[str, Any] = {
    "as it comes": {},
    "in partitions": {"combine_share": -1.0, "partition_bytes": 8000},  # as for many keys: chunks leave their rows
    "in batches": {"combine_share": -1.0, "partition_bytes": 8000, "heap_bytes": 2000},
}


def rows_of(keys: np.ndarray) -> tuple[TensorDict, pandas.DataFrame]:
    r, n = np.random.default_rng(1), len(keys)
    whole, real = r.integers(-(2**40), 2**40, n), r.standard_normal(n).astype(np.float32)
    data = TensorDict(
        {
            "in": {"key": torch.from_numpy(np.stack([keys, keys], 1))[:, 0]},
            "whole": torch.from_numpy(whole),
            "real": torch.from_numpy(np.stack([real, real], 1))[:, 1],
            "m": torch.from_numpy(np.random.default_rng(2).standard_normal((n, 3))),
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
    "std": Std("real"),
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
    for name in ("var", "std"):
        np.testing.assert_allclose(found[name].numpy(), groups["real"].agg(name), rtol=1e-9)
    wide = (frame["whole"] % 1000).groupby(frame["key"], dropna=False).sum()
    np.testing.assert_array_equal(found["wide"].numpy(), np.repeat(wide.to_numpy()[:, None], 11, 1))


@pytest.mark.parametrize("kind, way, rows, chunksize", sampled(5, KEYS, WAYS, [1, ROWS], [97, 300, 5000]))
def test_figures_are_those_of_pandas(kind: str, way: str, rows: int, chunksize: int) -> None:
    data, frame = rows_of(KEYS[kind](np.random.default_rng(0), rows))
    with tuning.use(**WAYS[way]):
        groups = tdmap.group_by(data, ("in", "key"), dropna=False)
        check(groups.reduce(REDUCERS, num_workers=0, chunksize=chunksize), frame)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["few", "few, far apart", "many"])
def test_workers_give_the_same_bits(kind: str, way: str) -> None:
    data, frame = rows_of(KEYS[kind](np.random.default_rng(0), ROWS))
    reducers = {**REDUCERS, "rows": Mean("m"), "all": Sum("m", dim=(0, 1))}
    with tuning.use(**WAYS[way]):
        groups = tdmap.group_by(data, ("in", "key"))
        alone = groups.reduce(reducers, num_workers=0, chunksize=300)
        for workers in ({"num_workers": 2}, {"num_workers": 2, "executor": "thread"}):
            found = groups.reduce(reducers, chunksize=300, **workers)
            check(found, frame)
            for name in ("var", "std"):
                assert torch.equal(found[name].view(torch.int64), alone[name].view(torch.int64))  # NaN equals no NaN
            assert (found.exclude("var", "std") == alone.exclude("var", "std")).all()


@pytest.mark.parametrize("kind", ["many", "far apart"])
def test_keys_that_lie_close_together_are_not_sorted(kind: str) -> None:
    data, frame = rows_of(KEYS[kind](np.random.default_rng(0), ROWS))
    with mock.patch.object(reducing, "stable_order", wraps=reducing.stable_order) as sort:
        with tuning.use(**WAYS["in partitions"]):
            check(tdmap.group_by(data, ("in", "key")).reduce(REDUCERS, num_workers=0, chunksize=300), frame)
    assert bool(sort.call_count) is (kind == "far apart")


@pytest.mark.parametrize("way", WAYS)
def test_several_keys_nan_and_strings(way: str) -> None:
    r = np.random.default_rng(1)
    a, b = r.choice([1.0, np.nan, -2.0], ROWS), r.integers(0, 30, ROWS)
    data = TensorDict({"a": torch.from_numpy(a), "in": {"b": torch.from_numpy(b)}}, [ROWS])
    data["s"] = [f"{number:02}" for number in b]
    wanted = pandas.DataFrame({"a": a, "b": b}).groupby(["a", "b"], dropna=False).size()
    with tuning.use(**WAYS[way]):
        for second in (("in", "b"), "s"):
            found = tdmap.group_by(data, ["a", second], dropna=False).reduce({"n": Count()}, num_workers=0)
            assert found["n"].tolist() == wanted.tolist()
            assert [int(key) for key in found[second]] == wanted.index.get_level_values("b").tolist()
            np.testing.assert_array_equal(found["a"].numpy(), wanted.index.get_level_values("a"))


LARGE = 20_011


def table(kind: str) -> TensorDict:
    r = np.random.default_rng(3)
    numbers = torch.from_numpy(r.integers(-(2**40), 2**40, LARGE))
    values = torch.from_numpy(r.standard_normal(LARGE).astype(np.float32))
    keys = torch.from_numpy(KEYS[kind](r, LARGE))
    return TensorDict({"k": keys, "v": values, "n": numbers, "m": torch.from_numpy(r.random((LARGE, 3)))}, [LARGE])


def test_states_of_slots_are_those_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table("few")
    for name, dtype in (("bf", torch.bfloat16), ("h", torch.half), ("u", torch.uint64), ("c", torch.complex64)):
        data[name] = data["n"].abs().view(dtype) if name == "u" else data["v"].to(dtype)
    data["flag"] = data["v"] > 0
    data["wide"] = torch.randn(LARGE, 20, generator=torch.Generator().manual_seed(0))
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


@tuning.use(unseen_share=1.0, kept_bytes=16_000)
def test_chunks_with_more_keys_than_the_sample_told_go_through_files() -> None:
    data = table("few, far apart")
    data["k"][1000:1900] = torch.arange(900) * 77_777  # a chunk whose keys the sample has not seen
    found = tdmap.group_by(data, "k").reduce({"n": Count()}, num_workers=2, chunksize=1000)
    keys, counts = data["k"].unique(return_counts=True)
    assert torch.equal(found["k"], keys) and torch.equal(found["n"], counts)


def test_few_groups_leave_no_files(tmp_path: Any) -> None:
    data = table("few")
    found = tdmap.group_by(data, "k", spill_dir=tmp_path).reduce(
        {"n": Count()}, num_workers=2, chunksize=1000, out=tmp_path / "out"
    )
    assert found["n"].sum() == LARGE and [path.name for path in tmp_path.iterdir()] == ["out"]


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


@tuning.use(combine_share=-1.0, partition_bytes=8000)
def test_reducers_that_know_of_runs_only() -> None:
    data, frame = rows_of(KEYS["many"](np.random.default_rng(0), ROWS))
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
