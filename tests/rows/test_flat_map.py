"""`flat_map`: any number of rows for each chunk, one after the other."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap import tuning
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict

from .conftest import WORKERS, Sample, bits, make


def repeat(td):
    """Row x becomes x % 4 rows; some chunks have none."""
    return td[torch.arange(len(td)).repeat_interleave(td["x"] % 4)] if int(td["x"][0]) % 5 else td[:0]


def wanted_rows(data, size):
    return torch.cat([repeat(part) for part in data.split(size)])


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("to", ["memory", "folder", "spill elsewhere"])
def test_results_follow_each_other_in_the_order_of_the_chunks(options, to, tmp_path):
    data = make()
    out = tmp_path / "out" if to == "folder" else None
    spill = tmp_path / "spill" if to == "spill elsewhere" else None
    rows = tdmap.flat_map(data, repeat, out=out, chunksize=7, spill_dir=spill, **options)
    assert bits(rows) == bits(wanted_rows(data, 7))
    if to == "folder":
        assert bits(TensorDict.load_memmap(tmp_path / "out")) == bits(rows)
        assert not (tmp_path / "out" / ".tdmap").exists()
    if spill is not None:
        assert list(spill.iterdir()) == []


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=40), chunksize=st.integers(1, 12))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_counts_give_what_cat_gives(counts, chunksize):
    n = torch.tensor(counts)
    rows = tdmap.flat_map(n, lambda part: part.repeat_interleave(part), num_workers=0, chunksize=chunksize)
    assert torch.equal(rows, n.repeat_interleave(n))


def test_the_function_runs_once_a_chunk(tmp_path):
    log = tmp_path / "log"

    def costly(td):
        with open(log, "a") as file:
            file.write(f"{int(td['x'][0])}\n")
        return td[: int(torch.randint(0, 9, ()))]

    tdmap.flat_map(make(), costly, num_workers=2, chunksize=10)
    assert sorted(map(int, log.read_text().split())) == list(range(0, 200, 10))


def test_random_functions_give_the_same_rows_for_any_workers():
    data = make()

    def some(td):
        return td[torch.rand(len(td)) < 0.3]

    rows = [bits(tdmap.flat_map(data, some, seed=1, chunksize=9, **options)) for options in WORKERS]
    assert all(row == rows[0] for row in rows)


def test_other_kinds_of_results():
    data = make()
    x = data["x"]
    assert torch.equal(tdmap.flat_map(data, lambda td: td["x"][::2], num_workers=2, chunksize=10), x[::2])
    typed = tdmap.flat_map(
        data, lambda td: Sample(x=td["x"], label=td["half"], batch_size=[len(td)])[1:], num_workers=2, chunksize=10
    )
    assert type(typed) is Sample and typed.x.tolist() == [i for i in range(200) if i % 10]
    pieces = tdmap.flat_map(
        data, lambda td: (row for row in td.split(3) if row["x"][0] % 2), num_workers=2, chunksize=9
    )
    assert bits(pieces) == bits(torch.cat([p for c in data.split(9) for p in c.split(3) if p["x"][0] % 2]))
    rows = tdmap.flat_map(data, lambda row: row["x"].repeat(int(row["x"]) % 3), num_workers=2, chunksize=0)
    assert torch.equal(rows, x.repeat_interleave(x % 3))
    lazy = tdmap.flat_map(data, lambda td: TensorDict.lazy_stack(list(td.select("x").unbind(0))), num_workers=2)
    assert torch.equal(lazy["x"], x)


def test_objects_are_one_or_one_a_row():
    data = make(20)

    def named(td):
        return TensorDict({"x": td["x"], "who": "a" if int(td["x"][0]) < 10 else "b"}, [len(td)])

    rows = tdmap.flat_map(data, named, num_workers=2, chunksize=5)
    assert list(rows["who"]) == ["a"] * 10 + ["b"] * 10
    assert tdmap.flat_map(data[:10], named, num_workers=2, chunksize=5)["who"] == "a"


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda td: td.select("x", "half"), "this one lacks 'flag'"),
        (lambda td: td.select("x", "half", "flag").set("new", td["x"]), "has also 'new'"),
        (
            lambda td: TensorDict({"x": td["x"].int(), "half": td["half"], "flag": td["flag"]}, [len(td)]),
            "'x' is int32",
        ),
        (
            lambda td: TensorDict({"x": td["x"], "half": td["half"][:, :2], "flag": td["flag"]}, [len(td)]),
            r"'half' is float16 with rows of shape \(2,\), where it was float16 with rows of shape \(3,\)",
        ),
        (lambda td: td["x"], "this one is a tensor, where it was a TensorDict"),
    ],
)
def test_results_that_look_different_are_named(second, message, tmp_path):
    def fn(td):
        return td.select("x", "half", "flag") if int(td["x"][0]) < 100 else second(td)

    with pytest.raises(OutputMismatch, match=message) as caught:
        tdmap.flat_map(make(), fn, out=tmp_path / "out", num_workers=2, chunksize=50)
    assert "rows 1" in str(caught.value) or "rows 0:50" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda td: td["x"].sum(), r"rows in dimension 0.*got one of shape \(\)"),
        (lambda td: 3, "an iterable of these: got a int"),
        (lambda td: "text", "got a str"),
        (lambda td: TensorDict({"s": torch.eye(50).to_sparse()}, [50]), "'s' is of layout torch.sparse_coo"),
    ],
)
def test_results_that_are_no_rows_are_named(fn, message):
    with pytest.raises(OutputMismatch, match=message):
        tdmap.flat_map(make(), fn, num_workers=2, chunksize=50)


def test_no_rows_at_all(tmp_path):
    data = make()
    told = tdmap.flat_map(data, lambda td: td.select("x", "half")[:0], out=tmp_path / "told", num_workers=2)
    assert told.batch_size == (0,) and told["half"].shape == (0, 3)
    assert bits(tdmap.flat_map(data[:0], lambda td: [td.select("x", "half")])) == bits(told)
    with pytest.raises(ValueError, match="fails on zero rows"):
        tdmap.flat_map(data[:0], lambda td: td["x"].max().unsqueeze(0))
    for source in (data, data[:0]):
        with pytest.raises(ValueError, match="returned no rows"):
            tdmap.flat_map(source, lambda td: None, out=tmp_path / "none", num_workers=2)
    assert not (tmp_path / "none").exists()
    out = TensorDict({"x": torch.arange(5)}, [5])
    assert tdmap.flat_map(data, lambda td: None, out=out, num_workers=2).batch_size == (0,)


def test_empty_results_may_look_as_they_like():
    data = make()
    rows = tdmap.flat_map(
        data, lambda td: td.select("x") if td["x"][0] >= 50 else TensorDict({}, [0]), num_workers=2, chunksize=50
    )
    assert rows["x"].tolist() == list(range(50, 200))


@tuning.use(copy_bytes=1000)
def test_pieces_larger_than_a_task_are_cut(tmp_path):
    data = make()
    rows = tdmap.flat_map(data, lambda td: [td, td], out=tmp_path / "out", num_workers=2, chunksize=100)
    assert bits(rows) == bits(torch.cat([data[:100], data[:100], data[100:], data[100:]]))


def test_copies_without_help_of_the_kernel(monkeypatch):
    monkeypatch.setattr("tdmap.output.spill._copies_in_kernel", False)
    data = make()
    assert bits(tdmap.flat_map(data, repeat, num_workers=0, chunksize=7)) == bits(wanted_rows(data, 7))


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_of_one_expanded_element_are_written(workers):
    data = TensorDict({"x": torch.arange(3)}, [3])

    def fn(chunk):
        return TensorDict({"x": chunk["x"].reshape(()).expand(1)}, [1])  # contiguous, with stride 0

    assert tdmap.flat_map(data, fn, chunksize=1, num_workers=workers)["x"].tolist() == [0, 1, 2]
    one = TensorDict({"x": torch.tensor(7).expand(1)}, [1])
    for result in (tdmap.shuffle(one, num_workers=workers), tdmap.sort(one, "x", num_workers=workers)):
        assert result["x"].tolist() == [7]
    assert tdmap.map(one, lambda chunk: chunk, num_workers=workers)["x"].tolist() == [7]
