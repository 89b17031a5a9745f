"""`tdmap.sort` gives the rows in the order that a stable sort of the keys has."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import tuning
from tdmap.output import permute
from tensordict_lite import TensorDict
from tests.products import sampled


@pytest.fixture
def small_pieces():
    with tuning.use(partition_bytes=1024, light_bytes=0, heap_bytes=1000):
        yield


@pytest.fixture
def no_memory():
    """Data does not fit into memory, and pieces are small."""
    with tuning.use(available_memory=0, bucket_bytes=2048):
        yield


def dataset(rows, spread):
    return TensorDict(
        {
            "k": torch.randint(0, spread, (rows,)) - spread // 2,
            "f": torch.randint(0, 4, (rows,)).float(),
            "m": {"row": torch.arange(rows)},
        },
        [rows],
    )


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
@pytest.mark.parametrize("descending", [False, True])
def test_a_stable_order(executor, descending, small_pieces):
    data = dataset(3000, 100)
    result = tdmap.sort(data, "k", descending=descending, num_workers=2, executor=executor, chunksize=100)
    order = torch.sort(data["k"], stable=True, descending=descending).indices
    assert (result == data[order]).all()


@pytest.mark.parametrize("heavy", [0.3, 0.9, 1.0])
def test_a_key_that_most_rows_have(heavy, small_pieces):
    data = dataset(4000, 2000)
    data["k"][torch.rand(4000) < heavy] = 7
    result = tdmap.sort(data, "k", num_workers=2, chunksize=100)
    assert (result == data[torch.sort(data["k"], stable=True).indices]).all()


@pytest.mark.parametrize("heavy", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("executor", ["process", "serial"])
def test_rows_that_do_not_fit_into_memory_travel_with_their_keys(heavy, executor, no_memory, tmp_path, monkeypatch):
    monkeypatch.setattr(permute, "scatter_rows", None)  # nothing is gathered by number
    data = TensorDict(
        {
            **dataset(3001, 700).to_dict(),
            "none": torch.zeros(3001, 0),
            "bit": torch.rand(3001, 3) > 0.5,
            "z": torch.randn(3001, 2, dtype=torch.complex64),
        },
        [3001],
    )
    data["k"][torch.rand(3001) < heavy] = 7
    data = data.memmap(tmp_path / "data")
    wanted = data[torch.sort(data["k"], stable=True, descending=True).indices]
    result = tdmap.sort(
        data, "k", out=tmp_path / "out", descending=True, num_workers=2, executor=executor, spill_dir=tmp_path / "spill"
    )
    assert (result == wanted).all() and not list((tmp_path / "spill").iterdir())
    room = wanted.clone().zero_()
    assert (tdmap.sort(data, "k", out=room, descending=True, num_workers=0, chunksize=100) == wanted).all()
    with pytest.raises(tdmap.errors.OutputMismatch, match="out has 3000 rows and the result has 3001"):
        tdmap.sort(data, "k", out=room[:3000], num_workers=0)


def test_a_tensor_and_strings_that_do_not_fit_into_memory(no_memory):
    x = torch.randperm(5000)
    assert tdmap.sort(x, lambda chunk: chunk, num_workers=2).equal(torch.arange(5000))
    data = TensorDict({"word": ["b", "a", "c"] * 500, "v": torch.arange(1500)}, [1500])
    wanted = torch.arange(1500).view(500, 3)[:, [1, 0, 2]].T.flatten()
    assert tdmap.sort(data, "word", num_workers=0)["v"].equal(wanted)
    data = TensorDict({"v": torch.arange(1500)}, [1500])
    found = tdmap.sort(data, lambda chunk: ["bac"[v % 3] for v in chunk["v"].tolist()], num_workers=0)
    assert found["v"].equal(wanted) and list(found.keys()) == ["v"]


def test_several_keys_with_directions_of_their_own(tmp_path, small_pieces):
    data = dataset(2000, 30)
    for f_down in (False, True):
        order = torch.sort(data["k"], stable=True, descending=not f_down).indices
        order = order[torch.sort(data["f"][order], stable=True, descending=f_down).indices]
        result = tdmap.sort(
            data, ["f", "k"], out=tmp_path / str(f_down), descending=[f_down, not f_down], num_workers=2
        )
        assert (result == data[order]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_comes_last_and_both_zeros_are_one(dtype):
    tiny = torch.finfo(dtype).tiny
    numbers = [0.0, -0.0, 1.5, torch.nan, -1.5, tiny, -tiny, -torch.inf, torch.inf, -torch.nan, 0.0]
    data = TensorDict({"f": torch.tensor(numbers, dtype=dtype), "row": torch.arange(11)}, [11])
    for descending in (False, True):
        lost = -torch.inf if descending else torch.inf
        numbers = data["f"].double().nan_to_num(nan=lost, posinf=torch.inf, neginf=-torch.inf)
        wanted = np.lexsort((-numbers if descending else numbers, data["f"].isnan()))
        assert tdmap.sort(data, "f", descending=descending, num_workers=2)["row"].tolist() == wanted.tolist()
        smallest = tdmap.top_k(data, "f", 11, largest=descending, num_workers=0)["row"]
        assert smallest.tolist() == wanted.tolist()
        groups = tdmap.group_by(TensorDict({**data, "k": torch.zeros(11)}, [11]), "k")
        assert groups.top_k("f", 11, largest=descending, num_workers=0)["row"].tolist() == wanted.tolist()


def test_strings_functions_tensors_and_nested_keys():
    words = ["b", "a", "", "ä", "b"]
    data = TensorDict({"word": words, "m": {"row": torch.arange(5)}}, [5])
    assert tdmap.sort(data, "word", num_workers=2)["m", "row"].tolist() == [2, 1, 0, 4, 3]
    assert tdmap.sort(data, "word", num_workers=2)["word"] == sorted(words)
    assert tdmap.sort(data, ("m", "row"), descending=True, num_workers=2)["m", "row"].tolist() == [4, 3, 2, 1, 0]
    x = torch.arange(10)
    assert tdmap.sort(x, lambda chunk: chunk % 3, num_workers=2).tolist() == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.sampled_from(["bool", "uint8", "int8", "int16", "int64", "uint16", "uint32", "uint64", "float16", "float64"]),
    st.integers(0, 500),
    st.sampled_from([1, 2, 10, 2**62]),
    st.integers(1, 600),
)
def test_any_dtype_and_size(small_pieces, dtype, rows, spread, chunksize):
    random = np.random.default_rng(rows)
    with np.errstate(over="ignore"):  # halves of large numbers are infinite
        keys = random.integers(-(spread // 2), spread // 2 + 1, rows).astype(dtype)
    data = TensorDict({"k": torch.from_numpy(keys), "row": torch.arange(rows)}, [rows])
    result = tdmap.sort(data, "k", num_workers=0, chunksize=chunksize)
    assert result["row"].tolist() == np.argsort(keys, kind="stable").tolist()
    assert np.array_equal(result["k"].numpy(), np.sort(keys))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "key", ["i", "u", "b", "f", "bytes", ["b", "i"], ["f", "u"], ("n", "i"), ["b", "f", "bytes"], "one"], ids=str
)
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_travel_have_every_bit(key, descending, workers):
    """As for data larger than memory: a key that its words tell does not travel; -0.0 and the bits of NaN do."""
    rows = torch.Generator().manual_seed(1)
    i = torch.randint(-50, 50, (3000,), generator=rows)
    f = torch.tensor([0.0, -0.0, 1.5, float("nan"), -2.0])[i % 5]
    f.view(torch.int32)[f.isnan()] += i[f.isnan()].to(torch.int32).abs()
    columns = {"i": i, "u": (i % 7).to(torch.uint8), "b": i > 3, "f": f, "one": torch.zeros(3000, dtype=torch.int16)}
    columns |= {
        "bytes": (i[:, None] % torch.tensor([3, 5, 9])).to(torch.uint8),
        "n": {"i": -i},
        "id": torch.arange(3000),
    }
    data = TensorDict(columns, [3000])
    wanted = tdmap.sort(data, key, descending=descending, num_workers=0)
    with tuning.use(available_memory=0, bucket_bytes=9_000):
        found = tdmap.sort(data, key, descending=descending, num_workers=workers)
    assert torch.equal(found["id"], wanted["id"])
    for name, column in found.items(True, True):
        there, expected = column.contiguous().view(torch.uint8), wanted[name].contiguous().view(torch.uint8)
        assert torch.equal(there, expected), name


SPREADS = [1, 2, 255, 257, 65_535, 65_537, 200_000, 1 << 33, 1 << 50, 1 << 62]


@pytest.mark.parametrize("rows, low, spread", sampled(2, [4096, 30_011], [0, -40_000, 65_000, -(1 << 62)], SPREADS))
def test_keys_near_and_far_from_each_other(rows, low, spread):
    keys = np.random.default_rng(rows).integers(0, spread, rows) + low
    keys[:2] = low, low + spread - 1
    data = TensorDict({"k": torch.from_numpy(keys), "row": torch.arange(rows)}, [rows])
    with tuning.use(partition_bytes=1 << 17):
        result = tdmap.sort(data, "k", num_workers=0)
    assert result["row"].tolist() == np.argsort(keys, kind="stable").tolist()
    present, counts = np.unique(keys, return_counts=True)
    counted = tdmap.sort(
        tdmap.group_by(data, "k").reduce({"n": tdmap.reducers.Count()}, num_workers=0), "k", num_workers=0
    )
    assert (counted["k"].tolist(), counted["n"].tolist()) == (present.tolist(), counts.tolist())


@pytest.mark.parametrize("view", [slice(None), slice(7, None), slice(None, None, 2)], ids=["whole", "later", "strided"])
def test_large_rows_in_files_by_a_function(tmp_path, view):
    rows = 300
    like = TensorDict({"x": torch.zeros(()).expand(rows, 1 << 15)}, [rows]).memmap_like(tmp_path)
    like["x"][:, 3] = torch.randperm(rows).float()
    data = TensorDict.load_memmap(tmp_path)[view]
    result = tdmap.sort(data, lambda chunk: chunk["x"][:, 3], num_workers=0)
    assert result["x"][:, 3].equal(data["x"][:, 3].sort().values) and not result["x"][:, 4:].any()
