"""What becomes of rows that raise: padded, dropped or marked; what is no error of rows; and what the search costs."""

from __future__ import annotations

import json
import os

import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict, lazy_stack

ROWS = 60
BAD = [0, 1, 7, 23, 40, 41, 42, 59]
GOOD = [row for row in range(ROWS) if row not in BAD]


@pytest.fixture
def rows():
    return TensorDict({"row": torch.arange(ROWS), "name": [f"n{i}" for i in range(ROWS)]}, [ROWS])


def picky(chunk):
    for row in chunk["row"].reshape(-1).tolist():
        if row in BAD:
            raise ValueError(f"bad {row}")
    return chunk.clone().set("double", chunk["row"] * 2.0)


@pytest.fixture(params=[("serial", 7), ("process", 7), ("process", 0), ("thread", None)], ids=str)
def options(request):
    executor, chunksize = request.param
    return {"executor": executor, "num_workers": 2, "chunksize": chunksize}


@pytest.fixture(params=["gathered", "folder", "resumed folder"])
def target(request, tmp_path):
    return {
        "gathered": {},
        "folder": {"out": tmp_path / "out"},
        "resumed folder": {"out": tmp_path / "out", "resume": True},
    }[request.param]


def names(result):
    return [row["name"] for row in result.unbind(0)]


def test_skipped_rows_are_zeros_and_none(rows, options, target):
    errors = tdmap.RowErrors()
    result = tdmap.map(rows, picky, on_error=errors, **options, **target)
    assert errors.rows == BAD
    assert result["row"].tolist() == [row if row in GOOD else 0 for row in range(ROWS)]
    assert result["double"].tolist() == [2.0 * row if row in GOOD else 0 for row in range(ROWS)]
    assert names(result) == [f"n{row}" if row in GOOD else None for row in range(ROWS)]


def test_rows_of_a_lazy_stack_are_skipped(options):
    data = lazy_stack([TensorDict({"x": torch.arange(3) + 10 * row}, [3]) for row in range(6)])
    out, errors = data.clone(), tdmap.RowErrors()

    def negate(chunk):
        if (chunk["x"] == 21).any():
            raise ValueError("bad 21")
        return chunk.apply(torch.neg)

    tdmap.map(data, negate, out=out, on_error=errors, **options)
    assert errors.rows == [2]
    good = [0, 1, 3, 4, 5]
    assert torch.equal(out["x"][good], -data["x"][good]) and torch.equal(out["x"][2], data["x"][2])


def test_dropped_rows_are_not_there(rows, options, target):
    errors = tdmap.RowErrors("drop")
    result = tdmap.map(rows, picky, on_error=errors, **options, **target)
    assert errors.rows == BAD
    assert result["row"].tolist() == GOOD and names(result) == [f"n{row}" for row in GOOD]
    if target:
        assert TensorDict.load_memmap(target["out"])["double"].tolist() == [2.0 * row for row in GOOD]


def test_marked_rows_are_false_in_a_mask(rows, options, target):
    errors = tdmap.RowErrors("mark")
    result = tdmap.map(rows, picky, on_error=errors, **options, **target)
    assert torch.equal(result["__valid__"], errors.mask(ROWS))
    assert result["row"][result["__valid__"]].tolist() == GOOD


@pytest.mark.parametrize("mode", ["skip", "drop", "mark"])
def test_without_a_handler_a_warning_says_how_many_and_where_the_list_is(rows, mode, tmp_path):
    with pytest.warns(
        tdmap.errors.SkippedRows, match=r"picky: 8 rows failed \(row 0: ValueError\('bad 0'\); row 1"
    ) as caught:
        tdmap.map(rows, picky, on_error=mode, num_workers=2)
    message = caught.pop(tdmap.errors.SkippedRows).message
    assert message.errors.rows == BAD and "in the `errors` of this warning" in str(message)
    if mode != "drop":
        with pytest.warns(tdmap.errors.SkippedRows) as caught:
            tdmap.map(rows, picky, on_error=mode, num_workers=2, out=tmp_path / "out", resume=True)
        place = tmp_path / "out" / ".tdmap" / "skipped.jsonl"
        assert str(place) in str(caught.pop(tdmap.errors.SkippedRows).message)
        assert [json.loads(line)["row"] for line in place.read_text().splitlines()] == BAD


def test_marks_in_an_output_that_there_is(rows):
    out = TensorDict({"double": torch.full((ROWS,), -1.0), "__valid__": torch.zeros(ROWS, dtype=torch.bool)}, [ROWS])
    errors = tdmap.RowErrors("mark")
    tdmap.map(rows, picky, out=out, on_error=errors, num_workers=2, chunksize=7)
    assert torch.equal(out["__valid__"], errors.mask(ROWS)) and (out["double"][BAD] == -1).all()
    with pytest.raises(ValueError, match="on_error='mark' needs a bool entry '__valid__' in out"):
        tdmap.map(rows, picky, out=rows.select("row").clone(), on_error="mark", num_workers=0)


def test_what_has_a_place_for_every_row_drops_none(rows):
    for out in (rows, rows.clone()):
        with pytest.raises(ValueError, match="out has a place for every row"):
            tdmap.map(rows, picky, out=out, on_error="drop", num_workers=0)


def test_marks_need_results_with_entries(rows):
    with pytest.raises(OutputMismatch, match="on_error='mark' adds an entry '__valid__'.*returned a Tensor"):
        tdmap.map(rows, lambda c: c["row"], on_error="mark", num_workers=0)


@pytest.mark.parametrize("call", ["filter", "flat_map", "map_iter", "map_reduce"])
def test_operations_that_leave_rows_out_know_no_marks(rows, call):
    run = {
        "filter": lambda: tdmap.filter(rows, lambda c: c["row"] > 0, on_error="mark"),
        "flat_map": lambda: tdmap.flat_map(rows, picky, on_error="mark"),
        "map_iter": lambda: tdmap.map_iter(rows, picky, on_error="mark"),
        "map_reduce": lambda: tdmap.map_reduce(rows, None, tdmap.reducers.Count(), on_error="mark"),
    }[call]
    with pytest.raises(ValueError, match="on_error must be 'raise', 'skip', 'drop' or a function.*got 'mark'"):
        run()


def test_a_mode_that_there_is_not():
    with pytest.raises(ValueError, match="mode must be one of 'skip', 'drop', 'mark': got 'raise'"):
        tdmap.RowErrors("raise")


@pytest.mark.parametrize("bad", [[0], [0, 1, 2, 3, 4, 5, 6], [59]], ids=["first", "first chunk", "last"])
def test_the_first_row_may_be_bad(rows, bad, options, target):
    def fail(chunk):
        if any(row in bad for row in chunk["row"].reshape(-1).tolist()):
            raise ValueError("bad")
        return chunk.clone()

    errors = tdmap.RowErrors()
    result = tdmap.map(rows, fail, on_error=errors, **options, **target)
    assert errors.rows == bad and names(result) == [None if i in bad else f"n{i}" for i in range(ROWS)]


# -- a schema is no bad row ------------------------------------------------------------------------------------------


def odd_first(chunk):
    width = 3 if int(chunk["row"].reshape(-1)[0]) == 0 else 4
    return TensorDict({"y": torch.zeros(*chunk.batch_size, width)}, chunk.batch_size)


def wrong_for_all(chunk):
    return TensorDict({"y": torch.zeros(*chunk.batch_size, 5)}, chunk.batch_size)


@pytest.mark.parametrize("handler", ["skip", "drop", tdmap.RowErrors()], ids=["skip", "drop", "function"])
def test_a_mismatch_of_nearly_every_row_is_raised(rows, options, handler, tmp_path):
    with pytest.raises(OutputMismatch, match="on_error is about single rows, and .* do not fit|must look alike"):
        tdmap.map(rows, odd_first, on_error=handler, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_result_that_fits_no_row_of_out_is_raised(rows, options):
    out = TensorDict({"y": torch.zeros(ROWS, 3)}, [ROWS])
    with pytest.raises(OutputMismatch, match=r"'y': out wants shape"):
        tdmap.map(rows, wrong_for_all, on_error="skip", out=out, **options)


def test_a_mismatch_of_every_row_ends_the_job_early(tmp_path):
    log = tmp_path / "log"
    data = TensorDict({"row": torch.arange(5000)}, [5000])

    def wrong(chunk):
        with open(log, "a") as file:
            file.write("." * len(chunk))
        return TensorDict({"y": torch.zeros(len(chunk), 5)}, chunk.batch_size)

    out = TensorDict({"y": torch.zeros(5000, 3)}, [5000])
    with pytest.raises(OutputMismatch):
        tdmap.map(data, wrong, on_error="skip", out=out, num_workers=0, chunksize=20)
    assert len(log.read_text()) < 500


def test_single_rows_that_do_not_fit_are_bad_rows(rows, options, tmp_path):
    def odd(chunk):
        if any(row in BAD[2:] for row in chunk["row"].reshape(-1).tolist()):
            return TensorDict({"y": torch.zeros(*chunk.batch_size, 4)}, chunk.batch_size)
        return TensorDict({"y": torch.ones(*chunk.batch_size, 3)}, chunk.batch_size)

    errors = tdmap.RowErrors()
    result = tdmap.map(rows, odd, on_error=errors, out=tmp_path / "out", **options)
    assert errors.rows == BAD[2:] and all(isinstance(bad.error, OutputMismatch) for bad in errors)
    assert result["y"][:, 0].tolist() == [0.0 if row in BAD[2:] else 1.0 for row in range(ROWS)]


# -- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8, 54, 1000, 2000 - 1])
@pytest.mark.parametrize("chunksize", [None, 100, 1000])
@pytest.mark.parametrize("seed", [None, 1])
def test_skipping_costs_about_twice_the_work_at_most(count, chunksize, seed):
    data = torch.arange(2000)
    bad = set(torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:count].tolist())
    calls = []

    def fail(chunk):
        calls.append(len(chunk))
        if any(row in bad for row in chunk.tolist()):
            raise ValueError
        return chunk

    errors = tdmap.RowErrors()
    tdmap.map(data, fail, chunksize=chunksize, num_workers=0, on_error=errors, seed=seed)
    assert set(errors.rows) == bad
    # With a seed, a chunk must not know of others: it is tried whole, then in parts, then row by row.
    assert sum(calls) <= (3.05 if seed is not None else 2.2) * 2000


def test_random_streams_do_not_depend_on_bad_rows_elsewhere():
    data = TensorDict({"row": torch.arange(200)}, [200])

    def noise(bad):
        def run(chunk):
            if any(row in bad for row in chunk["row"].tolist()):
                raise ValueError
            return TensorDict({"y": torch.rand(len(chunk))}, chunk.batch_size)

        return tdmap.map(data, run, seed=3, chunksize=10, num_workers=0, on_error=tdmap.RowErrors())["y"]

    few, many = noise({15}), noise({5, 15, 25, 27})
    assert torch.equal(few[30:], many[30:]) and torch.equal(few[16:20], many[16:20])


def test_an_in_place_function_runs_once_on_every_good_row(tmp_path):
    data = TensorDict({"x": torch.zeros(300), "row": torch.arange(300)}, [300])
    bad = {i for i in range(300) if i % 7 == 3}

    def add(chunk):
        chunk["x"] += 1
        if any(row in bad for row in chunk["row"].tolist()):
            raise ValueError

    for workers in (0, 2):
        data["x"].zero_()
        tdmap.map(data, add, num_workers=workers, chunksize=30, on_error=tdmap.RowErrors())
        assert data["x"].tolist() == [0.0 if row in bad else 1.0 for row in range(300)]


def test_a_file_of_pictures_of_which_some_are_broken(tmp_path):
    """The job of a newcomer: an index of file names, a function of one row, some files that cannot be read."""
    paths = []
    for number in range(40):
        paths.append(str(tmp_path / f"{number}.bin"))
        if number % 9 != 4:
            with open(paths[-1], "wb") as file:
                file.write(bytes([number]) * 12)
    index = TensorDict({"path": paths, "label": torch.arange(40)}, [40])

    def load(row):
        with open(row["path"], "rb") as file:
            pixels = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).view(3, 2, 2)
        return TensorDict({"image": pixels, "label": row["label"], "path": os.path.basename(row["path"])}, [])

    with pytest.warns(tdmap.errors.SkippedRows) as caught:
        result = index.map(load, chunksize=0, num_workers=2, out=str(tmp_path / "images"), on_error="drop")
    kept = [i for i in range(40) if i % 9 != 4]
    assert result["path"] == [f"{i}.bin" for i in kept] and result["label"].tolist() == kept
    assert result["image"][:, 0, 0, 0].tolist() == kept
    errors = caught.pop(tdmap.errors.SkippedRows).message.errors
    assert [bad.row for bad in errors] == [4, 13, 22, 31]
    assert all(isinstance(bad.error, FileNotFoundError) for bad in errors)
