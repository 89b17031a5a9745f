"""Values that torch, NumPy or pandas treat in a way of their own, through every operation."""

import numpy as np
import pytest
import torch

import tdmap
from tdmap import reducers
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict

ROWS = torch.arange(40)
WORKERS = [{"num_workers": 0}, {"num_workers": 2, "executor": "thread"}, {"num_workers": 2}]
WIDE = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64]


# -- dtypes that torch cannot index ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_rows_of_every_dtype_are_written_by_any_index(dtype):
    x = ROWS.to(dtype)
    raw = x.view(torch.uint8).view(40, -1)
    for index in ([3, 1], torch.tensor([5, 0]), ROWS % 2 == 0, slice(2, 9), 4):
        data = TensorDict({"x": x.clone(), "n": {"y": x.clone()}}, [40])
        size = data[index].batch_size
        data[index] = TensorDict({"x": x[7].expand(size), "n": {"y": x[7].expand(size)}}, size)
        wanted = raw.clone()
        wanted[index] = raw[7]
        for found in (data["x"], data["n", "y"]):
            assert torch.equal(found.view(torch.uint8).view(40, -1), wanted)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_a_shuffle_buffer_takes_every_dtype(dtype, workers):
    data = TensorDict({"x": ROWS.to(torch.uint8).to(dtype) if dtype.itemsize == 1 else ROWS.to(dtype), "n": ROWS}, [40])
    batches = list(data.pipeline(seed=0).shuffle(seed=1, buffer=8).batch(4).iter(**workers, epoch=0))
    found = torch.cat([batch["n"] for batch in batches])
    assert sorted(found.tolist()) == ROWS.tolist()
    wanted = data["x"].view(torch.uint8).view(40, -1)[found]
    assert torch.equal(torch.cat([batch["x"].view(torch.uint8).view(len(batch), -1) for batch in batches]), wanted)


# -- views whose memory holds other values -----------------------------------------------------------------------------

VIEWS = {
    "neg float": (lambda: torch.complex(torch.arange(6.0), torch.arange(6.0)).conj().imag),
    "neg int": (lambda: torch._neg_view(torch.arange(6))),
    "conj": (lambda: torch.complex(torch.arange(6.0), torch.arange(6.0)).conj()),
}
OPERATIONS = {
    "sort": lambda d, w: tdmap.sort(d, "x", **w),
    "unique": lambda d, w: tdmap.unique(d, "x", **w),
    "value_counts": lambda d, w: tdmap.value_counts(d, "x", **w),
    "top_k": lambda d, w: tdmap.top_k(d, "x", 2, **w),
    "join": lambda d, w: tdmap.join(d, d.clone(), "x", **w)["k"],
    "group_by": lambda d, w: tdmap.group_by(d, "x").reduce({"n": reducers.Count()}, **w),
    "agg": lambda d, w: tdmap.group_by(d, "k").agg(
        {"x": ["sum", "mean", "std", "min", "max", "median", "nunique"]}, **w
    ),
}
"""By a key. Of rows, and of reducers: `tests/rows/test_strided_rows.py` and `tests/reduce/test_views.py`."""


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg())
    return all(same(a.get(key), b.get(key)) for key in a.keys())


@pytest.mark.parametrize("workers", WORKERS[::2])
@pytest.mark.parametrize("view", ["neg float", "neg int"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_lazy_view_counts_as_the_values_that_it_shows(name, view, workers):
    x = VIEWS[view]()
    lazy = TensorDict({"x": x, "k": torch.arange(6) % 2}, [6])
    plain = TensorDict({"x": torch.tensor(x.tolist(), dtype=x.dtype), "k": torch.arange(6) % 2}, [6])
    assert same(OPERATIONS[name](lazy, workers), OPERATIONS[name](plain, workers))


@pytest.mark.parametrize("ending", [".npz", ".parquet", ".csv", ".jsonl", ".arrow", ".h5", ".zarr"])
@pytest.mark.parametrize("view", ["neg float", "neg int"])
def test_a_lazy_view_is_written_as_the_values_that_it_shows(view, ending, tmp_path):
    tdmap.datasets.write({"x": (x := VIEWS[view]())}, tmp_path / f"t{ending}")
    assert tdmap.datasets.read(tmp_path / f"t{ending}")["x"].tolist() == x.tolist()
    data = TensorDict({"x": x, "c": VIEWS["conj"]()}, [6])
    assert data.to_h5(tmp_path / "td.h5")["c"].tolist() == data["c"].tolist()


# -- arrays and objects that functions return --------------------------------------------------------------------------

ARRAYS = {
    "negative strides": (lambda a: a[:, ::-1]),
    "reversed rows": (lambda a: a[::-1]),
    "big-endian": (lambda a: a.astype(">f4")),
    "read only": (lambda a: np.broadcast_to(a[:, :1], a.shape)),
    "Fortran order": np.asfortranarray,
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_of_any_layout_becomes_rows(kind, workers):
    change, data = ARRAYS[kind], ROWS.reshape(20, 2)
    wanted = [change(part.numpy()).tolist() for part in data.split(5)]
    for fn in (lambda c: {"y": change(c.numpy())}, lambda c: change(c.numpy())):
        found = tdmap.map(data, fn, chunksize=5, **workers)
        assert (found if isinstance(found, torch.Tensor) else found["y"]).tolist() == sum(wanted, [])


@pytest.mark.parametrize("workers", WORKERS[::2])
def test_a_class_of_collections_is_a_value_like_any_other(workers):
    rows = torch.arange(200)  # enough that the size of results counts
    found = list(tdmap.map_iter(rows, lambda chunk: {"kind": TensorDict}, **workers))
    assert found and all(value == {"kind": TensorDict} for value in found)
    with pytest.raises(TypeError, match="the function returned a type"):
        tdmap.map(rows, lambda chunk: TensorDict, **workers)


def test_a_column_with_none_in_some_chunks_only_is_told_so():
    pandas = pytest.importorskip("pandas")
    for made in (list, lambda values: pandas.array(values, dtype="Int64")):
        with pytest.raises(OutputMismatch, match="'y' is Python objects.*None among them.*a Tensor"):
            tdmap.map(ROWS, lambda c, made=made: {"y": made([None if i == 9 else int(i) for i in c])}, num_workers=0)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("layout", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, None])
def test_what_cannot_be_cut_into_rows_is_named_by_every_operation(layout, workers):
    x = (
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2), torch.ones(3)])
        if layout is None
        else layout(torch.eye(3))
    )
    data = TensorDict({"x": x, "k": torch.arange(3)}, [3])
    for run in (
        lambda: tdmap.map(data, lambda c: c, **workers),
        lambda: tdmap.sort(data, "k", **workers),
        lambda: list(data.pipeline().batch(2).iter(**workers)),
        lambda: data.pipeline().collect(**workers),
    ):
        with pytest.raises(TypeError, match="'x'.*(sparse|nested)"):
            run()


# -- no rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.uint8, torch.bool, torch.float32])
def test_distinct_values_of_no_rows_have_the_dtype_of_the_column(dtype):
    none = TensorDict({"k": torch.zeros(0, dtype=dtype)}, [0])
    several = {"u": reducers.Unique("k"), "c": reducers.ValueCounts("k")}
    for workers in WORKERS:
        assert tdmap.reduce(none, reducers.Unique("k"), **workers).dtype is dtype
        assert tdmap.reduce(none, reducers.ValueCounts("k"), **workers)["value"].dtype is dtype
        assert tdmap.reduce(none, several, **workers)["u"].dtype is dtype


# -- quantiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("about", [0.0, 100.0])
def test_a_quantile_lies_within_the_values(dtype, about):
    for values in ([0, 255], [3, 77, 200], [7], list(range(0, 250, 3)) * 20):
        rows = torch.tensor(values, dtype=dtype)
        found = tdmap.reduce(rows, reducers.Quantile(None, (0.0, 0.5, 1.0), about=about), num_workers=0, chunksize=2)
        assert found[0] >= min(values) and found[-1] <= max(values)
        assert torch.allclose(found[[0, -1]], torch.tensor([min(values), max(values)]).double(), rtol=0.02, atol=2.0)
