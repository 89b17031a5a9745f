"""Reducers against numpy: any way of cutting the rows into chunks gives the same answer."""

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import reducers as r
from tensordict_lite import TensorDict

ROWS = 101


def make_data() -> TensorDict:
    generator = torch.Generator().manual_seed(7)
    return TensorDict(
        {
            "image": torch.randint(0, 256, (ROWS, 3, 4, 4), dtype=torch.uint8, generator=generator),
            "x": torch.randn(ROWS, 5, generator=generator) * 3 + 1000,
            "score": torch.randint(-50, 50, (ROWS,), generator=generator),
            "nested": {"v": torch.randn(ROWS, generator=generator)},
        },
        [ROWS],
    )


def reduce_in_chunks(reducer: r.Reducer[Any], data: Any, size: int) -> Any:
    """The reduction as workers and driver do it: states of chunks, merged by the tree, through pickle."""
    parts = list(data.split(size))
    tree = r.MergeTree(len(parts), reducer.merge)
    for at, part in reversed(list(enumerate(parts))):
        state = pickle.loads(pickle.dumps(reducer.update(reducer.init(), part, at * size)))
        tree.add(at, at + 1, state)
    return reducer.finish(tree.result())


CASES: list[tuple[r.Reducer[Any], Callable[[dict[str, np.ndarray]], Any]]] = [
    (r.Count(), lambda d: len(d["x"])),
    (r.Sum("image", dim=(0, 2, 3)), lambda d: d["image"].sum((0, 2, 3), dtype=np.int64)),
    (r.Sum("x"), lambda d: d["x"].sum(0, dtype=np.float64)),
    (r.Mean("image", dim=(0, 2, 3)), lambda d: d["image"].mean((0, 2, 3))),
    (r.Mean("x"), lambda d: d["x"].astype(np.float64).mean(0)),
    (r.Mean(("nested", "v"), dim=None), lambda d: d["v"].astype(np.float64).mean()),
    (r.Var("image", dim=(0, 2, 3)), lambda d: d["image"].astype(np.float64).var((0, 2, 3), ddof=1)),
    (r.Var("x", correction=0), lambda d: d["x"].astype(np.float64).var(0)),
    (r.Std("x"), lambda d: d["x"].astype(np.float64).std(0, ddof=1)),
    (r.Min("score"), lambda d: d["score"].min(0)),
    (r.Max("x"), lambda d: d["x"].max(0)),
    (r.CovarianceMatrix("x"), lambda d: np.cov(d["x"].astype(np.float64).T)),
    (r.Unique("score"), lambda d: np.unique(d["score"])),
]


@pytest.mark.parametrize(
    "reducer, oracle", CASES, ids=[f"{type(case[0]).__name__}-{at}" for at, case in enumerate(CASES)]
)
@pytest.mark.parametrize("size", [1, 7, 64, ROWS])
def test_statistics_equal_numpy(reducer: r.Reducer[Any], oracle: Callable[..., Any], size: int) -> None:
    data = make_data()
    arrays = {"image": data["image"].numpy(), "x": data["x"].numpy(), "score": data["score"].numpy()}
    arrays["v"] = data["nested", "v"].numpy()
    got = torch.as_tensor(reduce_in_chunks(reducer, data, size))
    np.testing.assert_allclose(got.numpy(), oracle(arrays), rtol=1e-9, atol=1e-12)


def test_histogram_counts_what_lies_outside_and_leaves_nan_out() -> None:
    x = torch.tensor([-5.0, 0.0, 0.5, 1.0, 7.0, torch.nan])
    got = reduce_in_chunks(r.Histogram(None, bins=2, range=(0, 1)), x, 2)
    assert got["count"].tolist() == [1, 2] and int(got["below"]) == 1 and int(got["above"]) == 1


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200),
    st.floats(0, 1),
    st.integers(1, 50),
)
@settings(max_examples=60, deadline=None)
def test_quantile_is_within_its_error_bound(values: list[float], q: float, size: int) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    got = float(reduce_in_chunks(r.Quantile(None, q, 0.01), x, size))
    true = float(np.quantile(x.numpy(), q, method="lower"))
    assert abs(got - true) <= 0.01 * abs(true) * (1 + 1e-9) + 1e-9


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 10))
@settings(max_examples=60, deadline=None)
def test_value_counts_and_top_k(values: list[int], size: int, k: int) -> None:
    x = torch.tensor(values)
    counts = reduce_in_chunks(r.ValueCounts(None), x, size)
    distinct, wanted = np.unique(x.numpy(), return_counts=True)
    assert counts["value"].tolist() == distinct.tolist() and counts["count"].tolist() == wanted.tolist()
    top = reduce_in_chunks(r.TopK(None, k), x, size)
    order = sorted(range(len(values)), key=lambda row: (-values[row], row))[:k]
    assert top["row"].tolist() == order


@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_checksum_sees_every_change_and_no_chunking(size: int, row: int, column: int) -> None:
    data = TensorDict({"a": torch.arange(120).reshape(40, 3), "b": torch.ones(40)}, [40])
    base = reduce_in_chunks(r.Checksum(), data, 40)
    assert reduce_in_chunks(r.Checksum(), data, size) == base
    data["a"][row, column] += 1
    assert reduce_in_chunks(r.Checksum(), data, size) != base


@given(st.integers(1, 70), st.randoms())
@settings(max_examples=80, deadline=None)
def test_the_merge_tree_has_one_shape_whatever_the_order(n: int, random: Any) -> None:
    def run(cuts: list[tuple[int, int]]) -> str:
        tree = r.MergeTree(n, lambda a, b: f"({a}{b})")
        for start, stop in cuts:
            tree.add(start, stop, r.fold(_Words(), [f"[{i}]" for i in range(start, stop)]))
        return str(tree.result())

    singles = [(i, i + 1) for i in range(n)]
    wanted = run(singles)
    random.shuffle(singles)
    assert run(singles) == wanted
    cut = sorted({0, n, *[random.randint(0, n) for _ in range(3)]})
    runs = [node for a, b in itertools.pairwise(cut) for node in r.nodes(a, b, n)]
    random.shuffle(runs)
    assert run(runs) == wanted


class _Words(r.Reducer[str]):
    def init(self) -> str:
        return ""

    def update(self, state: str, chunk: Any, start: int = 0) -> str:
        return state + chunk

    def merge(self, a: str, b: str) -> str:
        return f"({a}{b})"


def test_merging_leaves_its_arguments_alone() -> None:
    data = make_data()
    for reducer, _ in CASES:
        a = reducer.update(reducer.init(), data[:50], 0)
        b = reducer.update(reducer.init(), data[50:], 50)
        before = pickle.dumps((a, b))
        reducer.merge(a, b)
        assert pickle.dumps((a, b)) == before, reducer


def test_errors_say_what_was_asked() -> None:
    data = make_data()
    with pytest.raises(ValueError, match="leaves out dimension 0"):
        r.Mean("x", dim=1).update(None, data)
    with pytest.raises(ValueError, match="zero rows is not defined"):
        r.Mean("x").finish(None)
    with pytest.raises(ValueError, match="one value each"):
        r.TopK("x").update(None, data)
    with pytest.raises(TypeError, match="pass an instance"):
        r.as_reducer(r.Mean)
    with pytest.raises(TypeError, match="'n' is a class: pass an instance"):
        r.as_reducer({"n": r.Count})
    with pytest.raises(TypeError, match="a function of two states"):
        r.as_reducer(3)
    with pytest.raises(ValueError, match=r"quantile must be in \[0, 1\]"):
        r.Quantile("x", 1.5)
    with pytest.raises(ValueError, match="about must be a finite number"):
        r.Quantile("x", about=float("nan"))


def test_checksum_tells_entries_whose_keys_begin_alike_apart():
    a, b = torch.arange(8), torch.arange(8) * 3
    for first, second in ((("obs", "a"), ("obs", "b")), ("next_observation", "next_observed")):
        one = TensorDict({first: a, second: b}, [8])
        swapped = TensorDict({first: b, second: a}, [8])
        assert reduce_in_chunks(r.Checksum(), one, 3) != reduce_in_chunks(r.Checksum(), swapped, 3)


STAGES = {
    "filter": lambda p: p.filter(lambda td: td["x"] % 3 == 0),
    "map and filter": lambda p: p.map(lambda td: td.clone()).filter(lambda td: td["x"] % 3 == 0),
    "flat_map": lambda p: p.flat_map(lambda td: td[torch.arange(len(td)).repeat_interleave(td["x"] % 3)]),
    "batches that grow": lambda p: p.batch(7).map(lambda td: torch.cat([td, td[:3]])),
    "filter, then batches": lambda p: p.filter(lambda td: td["x"] % 3 == 0).batch(4),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chunksize", [1, 16, None])
@pytest.mark.parametrize("stages", STAGES)
def test_rows_are_numbered_as_a_pipeline_gives_them(stages, chunksize, workers):
    data = TensorDict({"x": torch.randperm(101, generator=torch.Generator().manual_seed(0))}, [101])
    pipeline = STAGES[stages](data.pipeline())
    rows = pipeline.collect()
    options = {"num_workers": workers} if chunksize is None else {"num_workers": workers, "chunksize": chunksize}
    found = pipeline.reduce({"top": r.TopK("x", 5), "sum": r.Checksum(), "n": r.Count()}, **options)
    assert found["top"]["row"].tolist() == rows["x"].sort(descending=True, stable=True).indices[:5].tolist()
    assert found["sum"] == tdmap.reduce(rows, r.Checksum(), num_workers=0) and found["n"] == len(rows)


class FirstOfLargest(r.Reducer[tuple[int, int]]):
    """A reducer of a user, which numbers rows and does not say so."""

    def init(self):
        return -1, -1

    def update(self, state, chunk, first=0):
        best = int(chunk["x"].argmax()) if len(chunk) else -1
        return self.merge(state, (int(chunk["x"][best]), first + best)) if len(chunk) else state

    def merge(self, a, b):
        return a if a[0] >= b[0] else b


def test_the_code_of_a_reducer_tells_whether_it_numbers_rows():
    assert FirstOfLargest.numbers_rows and not r.Reducer.numbers_rows
    numbering = {cls for cls in vars(r).values() if isinstance(cls, type) and getattr(cls, "numbers_rows", False)}
    assert numbering == {r.TopK, r.Checksum}
    data = TensorDict({"x": torch.arange(200)}, [200])
    pipeline = data.pipeline().filter(lambda td: td["x"] % 3 == 0)
    assert pipeline.reduce(FirstOfLargest(), num_workers=2, chunksize=16) == (198, 66)


@pytest.mark.parametrize(
    "reducer",
    [r.TopK("x"), r.Checksum(), {"n": r.Count(), "top": r.TopK("x")}],
    ids=lambda reducer: type(reducer).__name__,
)
def test_a_mapper_that_drops_rows_leaves_them_without_numbers(reducer):
    data = TensorDict({"x": torch.arange(20)}, [20])
    with pytest.raises(ValueError, match=r"numbers rows, .* and the mapper returned 3 rows for 4"):
        tdmap.map_reduce(data, lambda td: td[1:], reducer, num_workers=0, chunksize=4)
    assert tdmap.map_reduce(data, lambda td: td[1:], r.Count(), num_workers=0, chunksize=4) == 15
