"""Rows come through every operation whatever lies between them in memory, one row in a chunk included.

Torch calls a tensor of one row contiguous whatever its stride, and a lazy conjugate has other values than its memory:
two things that code which copies bytes must know of.
"""

import pytest
import torch

import tdmap
import tdmap.ops.permute
from tdmap.reducers import Checksum, Sum
from tensordict_lite import TensorDict
from tests.products import sampled

DTYPES = [torch.bool, torch.uint16, torch.int64, torch.bfloat16, torch.complex64, torch.float8_e4m3fn]


def layouts(dtype, n, tail):
    """The same kind of rows in every way that they may lie in memory."""
    shape = torch.Size((2 * n + 3, *tail))
    full = torch.randint(0, 2 if dtype is torch.bool else 9, shape, dtype=torch.int32).to(dtype)
    yield full[:n]
    yield full[::2][:n]
    yield full[1 : n + 1]
    yield full[:1].expand(n, *tail)
    if tail:
        yield full[:n].transpose(0, -1).contiguous().transpose(0, -1)
    if dtype.is_complex:
        yield full[::2][:n].conj()
        yield full[:n].conj().imag


def same(result, wanted):
    """Equal bits, of equal dtype and shape."""
    parts = []
    for tensor in (result, wanted):
        flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten()
        parts.append((tensor.dtype, tensor.shape, bytes(flat.view(torch.uint8).numpy())))
    return parts[0] == parts[1]


OPERATIONS = {
    "map": lambda d, o: tdmap.map(d, lambda c: c, **o),
    "map_iter": lambda d, o: TensorDict(
        {"x": torch.cat([torch.empty_like(c["x"]).copy_(c["x"]) for c in tdmap.map_iter(d, lambda c: c, **o)])}
    ),
    "filter": lambda d, o: tdmap.filter(d, lambda c: c["k"] >= 0, **o),
    "flat_map": lambda d, o: tdmap.flat_map(d, lambda c: c, **o),
    "map_groups": lambda d, o: tdmap.group_by(d, "k").map_groups(lambda g: g, **o),
    "sort": lambda d, o: tdmap.sort(d, "k", **o),
    "join": lambda d, o: tdmap.join(d.select("k"), d, "k", **o),
    "gather": lambda d, o: tdmap.ops.permute.permute(d, torch.arange(len(d)), method="gather"),
    "scatter": lambda d, o: tdmap.ops.permute.permute(d, torch.arange(len(d)), method="scatter"),
    "pipeline": lambda d, o: d.pipeline().map(lambda td: td).collect(num_workers=o["num_workers"]),
}
NO_ROWS = ("filter", "sort", "gather", "scatter")
NO_CHUNKS = ("gather", "scatter", "pipeline")


@pytest.mark.parametrize(("dtype", "name"), sampled(3, DTYPES, OPERATIONS))
def test_rows_come_through_whatever_lies_between_them(dtype, name):
    for n in (0, 1, 7) if name in NO_ROWS else (1, 7):
        for tail in ((), (3,), (2, 0)):
            for rows in layouts(dtype, n, tail):
                data = TensorDict({"k": torch.arange(n), "x": rows}, [n])
                for chunk in (1, 3):  # 7 rows in threes: the last chunk has one
                    options = {"num_workers": 0, "chunksize": chunk}
                    result = OPERATIONS[name](data, options)["x"]
                    assert same(result, rows), (n, tail, rows.stride(), chunk)
                    if name in NO_CHUNKS:
                        break


@pytest.mark.parametrize("name", OPERATIONS)
def test_with_workers(name):
    for rows in layouts(torch.complex64, 7, ()):
        data = TensorDict({"k": torch.arange(7), "x": rows}, [7])
        for part in (data, data[:1]):
            assert same(OPERATIONS[name](part, {"num_workers": 2, "chunksize": 3})["x"], part["x"])


def test_one_row_in_a_closure_and_in_a_checksum():
    for dtype in DTYPES:
        for rows in layouts(dtype, 1, ()):
            (found,) = tdmap.map_iter(torch.zeros(1), lambda _, rows=rows: rows, num_workers=1)
            assert same(found, rows)
            plain = torch.empty(rows.shape, dtype=rows.dtype).copy_(rows)
            sums = [tdmap.reduce(TensorDict({"x": x}, [1]), Checksum("x"), num_workers=0) for x in (rows, plain)]
            assert sums[0] == sums[1]
    assert Checksum("x").update(7, TensorDict({"x": torch.zeros(0, 3)}, [0])) == 7


# -- lazy conjugates ---------------------------------------------------------------------------------


@pytest.fixture(params=["files", "shared memory", "memory"])
def complex_rows(request, tmp_path):
    rows = torch.randn(9, 3, dtype=torch.complex64)
    if request.param == "files":
        return TensorDict({"x": rows}, [9]).memmap(tmp_path / "in")["x"]
    return rows.share_memory_() if request.param == "shared memory" else rows


VIEWS = {"conj": torch.conj, "imag of conj": lambda x: x.conj().imag, "slice": lambda x: x.conj()[::2]}


@pytest.mark.parametrize("view", VIEWS)
def test_workers_read_the_values_of_a_conjugate_not_its_memory(complex_rows, view):
    rows = VIEWS[view](complex_rows)
    wanted = rows.resolve_conj().resolve_neg().clone()
    data = TensorDict({"k": torch.arange(len(rows)), "x": rows}, [len(rows)])
    options = {"num_workers": 2, "chunksize": 2}
    for name in ("map", "map_iter", "filter", "flat_map", "map_groups", "sort", "join", "pipeline"):
        assert same(OPERATIONS[name](data, options)["x"], wanted), name
    assert same(tdmap.map(rows, lambda c: c + 0, **options), wanted)
    assert same(next(tdmap.map_iter(torch.zeros(1), lambda _: rows + 0, num_workers=1)), wanted)
    sums = tdmap.group_by(data, "k").reduce(Sum("x"), num_workers=2)["result"]
    assert torch.equal(sums.to(wanted.dtype), wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_written_through_a_conjugate(complex_rows, workers):
    before = complex_rows.clone()
    data = TensorDict({"x": complex_rows.conj()}, [9])

    def turn(chunk):
        chunk["x"].add_(1j)

    tdmap.map(data, turn, out=data, num_workers=workers, chunksize=2)
    assert torch.allclose(complex_rows, before - 1j)
    twice = TensorDict({"x": before * 2}, [9])
    tdmap.map(twice, lambda c: c, out=data, num_workers=workers, chunksize=2)
    assert torch.equal(complex_rows, before.conj() * 2)
    tdmap.sort(TensorDict({"k": -torch.arange(9), "x": before}, [9]), "k", out=data, num_workers=workers)
    assert torch.equal(complex_rows, before.flip(0).conj())


def test_rows_of_a_conjugate_are_put_back_when_the_function_raises(complex_rows):
    before = complex_rows.clone()
    data = TensorDict({"x": complex_rows.conj()}, [9])

    def spoil(chunk):
        chunk["x"].add_(1j)
        raise ValueError("half-way")

    for workers in (0, 1):
        with pytest.raises(ValueError, match="half-way"):
            tdmap.map(data, spoil, out=data, num_workers=workers)
        assert torch.equal(complex_rows, before)


def test_a_large_output_behind_a_conjugate(tmp_path):
    # Large blocks go through the descriptor of the file, where that is faster.
    wide = torch.randn(8, 40_000, dtype=torch.complex64)
    kept = TensorDict({"x": torch.zeros_like(wide)}, [8]).memmap(tmp_path / "out")["x"]
    tdmap.map(TensorDict({"x": wide}, [8]), lambda c: c, out=TensorDict({"x": kept.conj()}, [8]), num_workers=1)
    assert torch.equal(kept, wide.conj())
