"""`group_by(...).reduce(...)` is `tdmap.reduce` of each group's rows, whoever computes it."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import reducers as r
from tdmap import tuning
from tdmap.keys import Grouped
from tensordict_lite import TensorDict

WORKERS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "executor": "thread"}]


def rows_by_key(keys):
    groups = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    return dict(sorted(groups.items()))


def bits(td):
    return [(key, leaf.dtype, leaf.contiguous().view(torch.uint8).tolist()) for key, leaf in sorted_leaves(td)]


def sorted_leaves(td):
    return sorted(td.items(True, True), key=lambda item: str(item[0]))


@pytest.fixture
def small_pieces():
    """Many partitions, many batches, and workers for everything."""
    with tuning.use(partition_bytes=4096, light_bytes=0, heap_bytes=512):
        yield


def ready_made():
    return {
        "n": r.Count(),
        "sum": r.Sum("v"),
        "pixels": r.Sum(("m", "image"), dim=(0, 2)),
        "mean": r.Mean(("m", "image"), dim=None),
        "var": r.Var("v"),
        "std": r.Std(("m", "image"), dim=(0, 1), correction=0),
        "extrema": r.MinMax("half"),
        "min": r.Min("half"),
        "max": r.Max(("m", "image"), dim=(0, 2)),
    }


def one_by_one():
    return {"q": r.Quantile("v"), "hist": r.Histogram("v", bins=3, range=(-2.0, 2.0)), "cov": r.CovarianceMatrix("v")}


def dataset(rows, keys, seed=0):
    random = torch.Generator().manual_seed(seed)
    return TensorDict(
        {
            "k": torch.randint(0, keys, (rows,), generator=random) - keys // 2,
            "v": torch.randn(rows, generator=random),
            "half": torch.randn(rows, generator=random).bfloat16(),
            "m": {"image": torch.randint(0, 256, (rows, 2, 3), dtype=torch.uint8, generator=random)},
        },
        [rows],
    )


def check_against_reduce(data, result, reducers, keys):
    groups = rows_by_key(keys)
    assert result["k"].tolist() == list(groups)
    each = max(len(groups) // 60, 1)
    for number, rows in list(enumerate(groups.values()))[::each]:
        expected = tdmap.reduce(data[torch.tensor(rows)], reducers, num_workers=0)
        for key, leaf in expected.items(True, True):
            ours = result[number].get(key)
            assert ours.dtype is leaf.dtype and ours.shape == leaf.shape, key
            assert torch.allclose(ours.double(), leaf.double(), rtol=1e-9, atol=1e-12, equal_nan=True), key


@pytest.mark.parametrize("keys", [1, 7, 3000], ids="keys{}".format)
@pytest.mark.parametrize("chunksize", [None, 64])
def test_ready_made_reducers(keys, chunksize, small_pieces):
    data = dataset(3000, keys)
    result = tdmap.group_by(data, "k").reduce(ready_made(), chunksize=chunksize, num_workers=2)
    check_against_reduce(data, result, ready_made(), data["k"].tolist())


def test_reducers_that_go_group_by_group(small_pieces):
    data = dataset(600, 12)
    reducers = {**one_by_one(), "n": r.Count(), "top": r.TopK("v", k=2)}
    data = TensorDict({**dict(data.items()), "k": torch.arange(600) % 12}, [600])
    result = tdmap.group_by(data, "k").reduce(reducers, num_workers=2)
    check_against_reduce(data, result, reducers, data["k"].tolist())


class Product(r.Reducer):
    """A user's own reducer with a form for many groups."""

    def init(self):
        return 1

    def update(self, state, chunk, start=0):
        raise AssertionError("the form for groups is used")

    def merge(self, a, b):
        return a * b

    def grouped(self):
        return GroupedProduct()


class GroupedProduct(Grouped):
    key = "odd"

    def update(self, rows, starts):
        return (torch.from_numpy(np.multiply.reduceat(rows["odd"].numpy(), starts)),)

    def merge(self, a, b):
        return (a[0] * b[0],)

    def finish(self, states):
        return states[0]


@pytest.mark.parametrize("keys", [5, 900])
def test_a_form_for_groups_of_the_users(keys, small_pieces):
    data = TensorDict({"k": torch.randint(0, keys, (1000,)), "odd": torch.randint(0, 9, (1000,)) * 2 + 1}, [1000])
    result = tdmap.group_by(data, "k").reduce({"p": Product()}, num_workers=2, chunksize=50)
    for key, product in zip(result["k"], result["p"], strict=True):
        assert product == data["odd"][data["k"] == key].prod()


@pytest.mark.parametrize("keys", [3, 4000])
def test_the_same_bits_for_any_workers(keys, small_pieces):
    data = dataset(2000, keys)
    reducers = {**ready_made(), **(one_by_one() if keys == 3 else {})}
    results = [tdmap.group_by(data, "k").reduce(reducers, chunksize=300, **options) for options in WORKERS]
    results.append(tdmap.group_by(data, "k").reduce(reducers, chunksize=300, num_workers=1))
    assert bits(results[0]) == bits(results[1]) == bits(results[2]) == bits(results[3])


KEY_COLUMNS = st.sampled_from(["bool", "uint8", "int8", "int16", "int64", "uint64", "float32", "float64", "bytes"])


def draw_keys(kind, rows, spread, random):
    numbers = torch.from_numpy(random.integers(0, spread, rows))
    if kind == "bool":
        return numbers % 2 == 0
    if kind == "bytes":
        return torch.stack([numbers % 3, numbers % 5, numbers % 256], 1).byte()
    if kind.startswith("float"):
        return ((numbers - spread // 2) / 4 * random.choice([1.0, 1e30])).to(getattr(torch, kind))
    shift = 0 if kind.startswith("u") else spread // 2
    return torch.from_numpy((numbers - shift).numpy().astype(kind))


def hashable(column):
    return [tuple(row) if isinstance(row, list) else row for row in column.tolist()]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(KEY_COLUMNS, min_size=1, max_size=3), st.integers(1, 400), st.integers(1, 300), st.integers(0, 9))
def test_any_keys(small_pieces, kinds, rows, spread, seed):
    random = np.random.default_rng(seed)
    columns = {f"k{n}": draw_keys(kind, rows, spread, random) for n, kind in enumerate(kinds)}
    data = TensorDict({**columns, "v": torch.arange(rows)}, [rows])
    result = tdmap.group_by(data, list(columns)).reduce(
        {"n": r.Count(), "sum": r.Sum("v")}, chunksize=37, num_workers=0
    )
    groups = rows_by_key(list(zip(*map(hashable, columns.values()), strict=True)))
    assert list(zip(*(hashable(result[name]) for name in columns), strict=True)) == list(groups)
    assert result["n"].tolist() == [len(rows) for rows in groups.values()]
    assert result["sum"].tolist() == [sum(rows) for rows in groups.values()]
    assert all(result[name].dtype is column.dtype for name, column in columns.items())


def test_nan_as_a_group_or_left_out():
    data = TensorDict({"k": torch.tensor([1.0, torch.nan, -0.0, 0.0, -torch.nan]), "v": torch.arange(5)}, [5])
    kept = tdmap.group_by(data, "k", dropna=False).reduce({"s": r.Sum("v")}, num_workers=2)
    assert kept["k"].tolist()[:2] == [0.0, 1.0] and kept["k"].isnan().tolist() == [False, False, True]
    assert kept["s"].tolist() == [5, 0, 5]
    left_out = tdmap.group_by(data, "k", dropna=True).reduce({"s": r.Sum("v")}, num_workers=2)
    assert left_out["k"].tolist() == [0.0, 1.0] and left_out["s"].tolist() == [5, 0]
    data["f"] = torch.tensor([2.0, 2.0, torch.nan, 2.0, torch.nan])
    for keys in (["k", "f"], ["f", "k"]):
        both = tdmap.group_by(data, keys, dropna=True).reduce({"s": r.Sum("v")}, num_workers=2)
        assert both["k"].tolist() == [0.0, 1.0] and both["s"].tolist() == [3, 0]


@pytest.mark.parametrize("make", [list, lambda v: np.array(v), lambda v: np.array(v, dtype=object)])
def test_a_function_may_return_strings(make, small_pieces):
    words = ["pear", "fig", "äpple", "fig", "", "pear", "fig"] * 50
    data = TensorDict({"row": torch.arange(350)}, [350])
    by_word = tdmap.group_by(data, lambda td: make([words[row] for row in td["row"].tolist()]), name="word")
    result = by_word.reduce({"n": r.Count(), "first": r.Min("row")}, num_workers=2, chunksize=40)
    assert result["word"] == sorted(set(words))
    assert result["n"].tolist() == [words.count(word) for word in sorted(set(words))]
    assert result["first"].tolist() == [words.index(word) for word in sorted(set(words))]


def test_strings_of_the_dataset_in_an_output_that_is_there():
    groups = tdmap.group_by(TensorDict({"word": ["b", "a", "a"], "v": torch.arange(3)}, [3]), "word")
    with pytest.raises(ValueError, match="strings cannot be written"):
        groups.reduce({"sum": r.Sum("v")}, num_workers=2, out=groups.reduce({"sum": r.Sum("v")}, num_workers=0).clone())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float32, torch.bool], ids=str)
def test_a_key_of_one_column_keeps_its_shape(dtype):
    data = TensorDict({"k": torch.tensor([[1], [0], [1]]).to(dtype)}, [3])
    found = tdmap.group_by(data, "k").reduce({"n": r.Count()}, num_workers=0)
    assert torch.equal(found["k"], torch.tensor([[0], [1]]).to(dtype)) and found["n"].tolist() == [1, 2]


def test_no_rows_give_no_keys(tmp_path):
    data = dataset(5, 3)[:0]
    result = tdmap.group_by(data, "k").reduce(ready_made(), num_workers=2)
    full = tdmap.group_by(dataset(5, 3), "k").reduce(ready_made(), num_workers=0)
    assert result.batch_size == torch.Size([0])
    assert {key: (leaf.dtype, leaf.shape[1:]) for key, leaf in result.items(True, True)} == {
        key: (leaf.dtype, leaf.shape[1:]) for key, leaf in full.items(True, True)
    }
    assert len(tdmap.group_by(data, "k").reduce(r.Count(), num_workers=2, out=tmp_path / "out")) == 0
    strings = TensorDict({"word": ["a", "b"], "f": torch.full((2,), torch.nan)}, [2])
    assert len(tdmap.group_by(strings[:0], "word").reduce(r.Count(), num_workers=0)) == 0
    assert len(tdmap.group_by(strings, "f", dropna=True).reduce({"q": r.Quantile("f")}, num_workers=0)) == 0


def test_into_a_dataset_that_there_is():
    data = dataset(100, 10)
    keys = len(data["k"].unique())
    out = TensorDict({"k": torch.zeros(20).long(), "n": torch.zeros(20).long()}, [20])
    result = tdmap.group_by(data, "k").reduce({"n": r.Count(), "ignored": r.Sum("v")}, out=out, num_workers=2)
    assert len(result) == keys and result["n"].sum() == 100
    assert out["n"][:keys].tolist() == result["n"].tolist() and not out["n"][keys:].any()
    with pytest.raises(tdmap.errors.OutputMismatch, match=rf"out has 3 rows and the result has {keys}"):
        tdmap.group_by(data, "k").reduce({"n": r.Count()}, out=out[:3].clone(), num_workers=2)


@pytest.mark.usefixtures("small_pieces")
@tuning.use(combine_share=0.0)
def test_one_huge_key_is_reduced_in_batches():
    """Rows that are mostly distinct are not reduced chunk by chunk, and one key may have half of them all the same."""
    keys = torch.where(torch.rand(3000) < 0.7, 5, torch.randint(0, 10_000, (3000,)))
    data = TensorDict({**dict(dataset(3000, 5).items()), "k": keys}, [3000])
    reducers = {**ready_made(), "q": r.Quantile("v")}
    result = tdmap.group_by(data, "k").reduce(reducers, num_workers=2, chunksize=100)
    check_against_reduce(data, result, reducers, keys.tolist())


def test_a_middle_that_is_unlike_the_rest(small_pieces):
    """The chunk in the middle has one key, and is what tells that chunks should be reduced on their own."""
    keys = torch.arange(9000)
    keys[4000:5000] = 4000
    data = TensorDict({"k": keys, "v": torch.arange(9000)}, [9000])
    result = tdmap.group_by(data, "k").reduce({"n": r.Count(), "sum": r.Sum("v")}, num_workers=2, chunksize=500)
    assert torch.equal(result["k"], torch.cat([keys[:4001], keys[5000:]]))
    assert result["n"].sum() == 9000 and result["n"][4000] == 1000
    assert result["sum"][4000] == torch.arange(4000, 5000).sum()


def test_answers_of_several_shapes_are_refused():
    with pytest.raises(ValueError, match=r"results of 'values'.*one shape.*map_groups"):
        data = TensorDict({"k": torch.tensor([0, 0, 1]), "v": torch.tensor([1, 2, 3])}, [3])
        tdmap.group_by(data, "k").reduce({"values": r.ValueCounts("v")}, num_workers=0)


def test_means_of_large_integers():
    time = torch.full((8,), 1_763_000_000_000_000_000)
    result = tdmap.group_by(TensorDict({"k": torch.zeros(8).long(), "t": time}, [8]), "k").reduce(
        {"t": r.Mean("t")}, num_workers=0
    )
    assert result["t"].tolist() == [1.763e18]


@tuning.use(heap_bytes=512)
def test_moments_of_complex_numbers():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(200, 3, dtype=torch.complex64, generator=generator)
    data = TensorDict({"k": torch.arange(200) % 2, "z": values}, [200])
    parts = {
        "var": r.Var("z"),
        "std": r.Std("z", dim=(0, 1)),
        "mean": r.Mean("z", dim=(0, 1)),
        "cov": r.CovarianceMatrix("z"),
    }
    result = tdmap.group_by(data, "k").reduce(parts, num_workers=0, chunksize=16)
    for group in range(2):
        rows = values[group::2].to(torch.complex128)
        torch.testing.assert_close(result["var"][group], rows.var(0))
        torch.testing.assert_close(result["std"][group], rows.std())
        torch.testing.assert_close(result["mean"][group], rows.mean())
        torch.testing.assert_close(result["cov"][group], torch.cov(rows.T))
    torch.testing.assert_close(
        tdmap.reduce(data, r.CovarianceMatrix("z"), num_workers=0, chunksize=30),
        torch.cov(values.to(torch.complex128).T),
    )


@pytest.mark.parametrize("executor", WORKERS)
def test_rows_of_a_group_are_numbered_through_all_batches(executor, small_pieces):
    generator = torch.Generator().manual_seed(0)
    # The third group is in some batches only; the first one is in all of them.
    keys = torch.where(torch.arange(600) % 7 == 3, 2, torch.randint(2, [600], generator=generator))
    keys[100:400][keys[100:400] == 2] = 0
    data = TensorDict({"k": keys, "x": torch.randperm(600, generator=generator)}, [600])
    parts = {"sum": r.Checksum("x"), "top": r.TopK("x", 3)}
    result = tdmap.group_by(data, "k").reduce(parts, chunksize=30, **executor)
    for group in range(3):
        expected = tdmap.reduce(data[keys == group], parts, num_workers=0)
        assert int(result["sum"][group]) == int(expected["sum"])
        assert result["top", "row"][group].tolist() == expected["top", "row"].tolist()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]
)
@pytest.mark.parametrize("groups", [3, 400])
def test_figures_of_float8_are_those_of_its_values(dtype, groups):
    values = (torch.arange(1000) % 13 - 6).float().to(dtype)
    data = TensorDict({"k": torch.arange(1000) % groups, "x": values}, [1000])
    figures = {"sum": r.Sum("x"), "mean": r.Mean("x"), "min": r.Min("x"), "max": r.Max("x"), "var": r.Var("x")}
    found = tdmap.group_by(data, "k").reduce(figures, num_workers=0)
    data["x"] = values.float()
    wanted = tdmap.group_by(data, "k").reduce(figures, num_workers=0)
    assert found["max"].dtype is dtype
    for name in figures:
        assert torch.equal(found[name].double(), wanted[name].double()), name
