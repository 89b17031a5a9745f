"""`on_error`: a result that does not fit the output is an error of its rows, and the others go on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import Ragged, TensorDict, tensorclass

BAD = [5, 17]
GOOD = [row for row in range(40) if row not in BAD]


@pytest.fixture(params=["serial", "thread", "process"])
def options(request):
    return {"executor": request.param, "num_workers": 2, "chunksize": 8}


def has_bad(td):
    return any(row in BAD for row in td["meta", "row"].tolist())


def wide(td):
    """Bad rows have a column too many, in the entry that comes last."""
    y = td["x"] * 2
    return TensorDict({"a": y[:, 0], "y": torch.cat([y, y], 1) if has_bad(td) else y}, td.batch_size)


def text(td):
    return "nothing" if has_bad(td) else TensorDict({"a": td["x"][:, 0], "y": td["x"]}, td.batch_size)


def complex_rows(td):
    y = td["x"] * 2
    return TensorDict({"a": y[:, 0], "y": y.to(torch.complex64) if has_bad(td) else y}, td.batch_size)


@pytest.mark.parametrize("fn", [wide, text, complex_rows])
@pytest.mark.parametrize("nested", [False, True])
def test_rows_that_do_not_fit_a_given_output_keep_what_they_had(options, data, fn, nested):
    out = TensorDict({"a": torch.full((40,), -1.0), "y": torch.full((40, 3), -1.0)}, [40])
    out["__valid__"] = torch.zeros(40, dtype=torch.bool)
    if nested:
        out["meta"] = {"row": torch.zeros(40)}
    errors = tdmap.RowErrors()
    tdmap.map(data, fn, out=out, on_error=errors, **options)
    assert errors.rows == BAD and all(isinstance(bad.error, OutputMismatch) for bad in errors)
    assert (out["a"][BAD] == -1).all() and (out["y"][BAD] == -1).all()
    assert (out["y"][GOOD] != -1).any(-1).all()
    assert torch.equal(out["__valid__"], errors.mask(40))


@pytest.mark.parametrize("bad", [[5, 17], [0, 39], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_rows_that_do_not_fit_a_new_folder_are_zero(options, data, tmp_path, bad):
    def fn(td):
        rows = td["meta", "row"].tolist()
        if any(row in bad for row in rows):
            if rows[0] < 8:
                raise ValueError("the first result sets the schema, so it is not one of these")
            return TensorDict({"z": td["x"]}, td.batch_size) if 17 in rows else None
        return TensorDict({"y": td["x"] + 1}, td.batch_size)

    errors = tdmap.RowErrors()
    result = tdmap.map(data, fn, out=tmp_path / "out", on_error=errors, **options)
    assert errors.rows == bad
    assert torch.equal(result["y"], (data["x"] + 1) * errors.mask(40)[:, None])


def test_rows_that_do_not_fit_in_place_stay_as_they_were(options, data):
    def spoil(td):
        td["x"].add_(1)
        return TensorDict({"x": td["x"].repeat(1, 2)}, td.batch_size) if has_bad(td) else None

    before, errors = data["x"].clone(), tdmap.RowErrors()
    tdmap.map(data, spoil, out=data, on_error=errors, **options)
    assert errors.rows == BAD
    assert torch.equal(data["x"], before + errors.mask(40)[:, None])


def test_rows_one_by_one(options, data):
    out = TensorDict({"y": torch.zeros(40, 3)}, [40])
    errors = tdmap.RowErrors()

    def one(td):
        return TensorDict({"y": td["x"][: 2 if int(td["meta", "row"]) in BAD else 3] + 1}, [])

    tdmap.map(data, one, out=out, on_error=errors, **{**options, "chunksize": 0})
    assert errors.rows == BAD
    assert torch.equal(out["y"], (data["x"] + 1) * errors.mask(40)[:, None])


@tensorclass
class Row:
    y: torch.Tensor


UNLIKE = {
    "an entry more": lambda rows: rows.copy().set("z", rows["y"]),
    "none of the entries": lambda rows: rows.select(),
    "a class": lambda rows: Row(rows["y"], batch_size=rows.batch_size),
    "a batch dimension more": lambda rows: TensorDict(rows.to_dict(), [*rows.batch_size, 3]),
}


@pytest.mark.parametrize("change", UNLIKE.values(), ids=UNLIKE)
def test_a_later_result_unlike_the_first_is_an_error_of_its_rows(options, data, change, tmp_path):
    def fn(td):
        rows = TensorDict({"y": td["x"] + 1}, td.batch_size)
        return change(rows) if has_bad(td) and len(td) == 1 or int(td["meta", "row"][0]) == 16 else rows

    errors = tdmap.RowErrors()
    result = tdmap.map(data, fn, out=tmp_path / "out", on_error=errors, **options)
    assert errors.rows and all(isinstance(bad.error, OutputMismatch) for bad in errors)
    assert torch.equal(result["y"], (data["x"] + 1) * errors.mask(40)[:, None])
    with pytest.raises(OutputMismatch):
        tdmap.map(data, fn, out=tmp_path / "none", **options)


def test_results_of_another_shape_everywhere_are_an_error(options, data):
    out = TensorDict({"y": torch.zeros(40, 7)}, [40])
    with pytest.raises(OutputMismatch, match="'y'"):
        tdmap.map(data, lambda td: TensorDict({"y": td["x"]}, td.batch_size), out=out, on_error="skip", **options)
    assert not out["y"].any()


def test_without_on_error_the_job_ends(options, data):
    out = TensorDict({"a": torch.zeros(40), "y": torch.zeros(40, 3)}, [40])
    with pytest.raises(OutputMismatch):
        tdmap.map(data, wide, out=out, **options)


@pytest.mark.parametrize("out", ["in place", "another"])
@pytest.mark.parametrize("by_row", [False, True], ids=["chunks", "rows"])
def test_a_nested_entry_that_does_not_fit_is_named_with_its_path(options, out, by_row):
    data = TensorDict({"a": {"b": {"c": torch.zeros(8, 2)}}}, [8])

    def fn(td):
        return TensorDict({"a": {"b": {"c": torch.zeros(*td.batch_size, 3)}}}, td.batch_size)

    chunks = {"chunksize": 0} if by_row else {}
    with pytest.raises(OutputMismatch, match=r"^\('a', 'b', 'c'\): "):
        tdmap.map(data, fn, out=data if out == "in place" else data.clone(), **{**options, **chunks})
    assert (data["a", "b", "c"] == 0).all()


def sparse(rows):
    return {"y": torch.eye(rows).to_sparse()}


def ragged(rows):
    return {"y": torch.nested.nested_tensor([torch.ones(n + 1) for n in range(rows)], layout=torch.jagged)}


@pytest.mark.parametrize(("make", "kind"), [(sparse, "layout torch.sparse_coo"), (ragged, "ragged")])
@pytest.mark.parametrize("workers", [0, 2])
def test_gathered_results_that_are_not_dense_name_the_entry_and_a_way_out(make, kind, workers):
    data = TensorDict({"x": torch.zeros(8)}, [8])
    with pytest.raises(OutputMismatch, match=rf"^row.*: 'y' is .*{kind}, .* or use map_iter") as found:
        tdmap.map(data, lambda td: make(len(td)), num_workers=workers)
    assert found.value.__cause__ is None and found.value.__suppress_context__


@pytest.mark.parametrize("out", [None, "folder"])
def test_rows_of_different_lengths_name_the_entry_and_both_shapes(tmp_path, out):
    data = TensorDict({"n": torch.arange(1, 9)}, [8])
    shapes = r"'y' is float32 \(\d, 2\) where the others are float32 \(\d, 2\)"
    with pytest.raises(OutputMismatch, match=shapes):
        tdmap.map(
            data,
            lambda row: {"y": torch.zeros(int(row["n"]), 2)},
            chunksize=0,
            num_workers=2,
            out=None if out is None else tmp_path / out,
        )


def test_columns_of_dicts_that_are_ragged_or_read_only():
    data = TensorDict({"name": ["ant", "", "bee"], "x": torch.arange(3)}, [3])
    fixed = np.arange(3.0)
    fixed.flags.writeable = False

    def fn(td):
        return {
            "name": Ragged.from_list(list(td["name"])),
            "x": fixed[td["x"].numpy()],
            "all": fixed[: len(td)].view(),
        }

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tdmap.map(data, fn, num_workers=0)
        assert tdmap.map(data["x"], lambda x: fixed[: len(x)], num_workers=0, chunksize=3).tolist() == [0, 1, 2]
    assert result["name"] == ["ant", "", "bee"] and result["x"].tolist() == [0, 1, 2]
    found = tdmap.map(data, lambda td: {"y": Ragged.from_list([[1]] * len(td))}, num_workers=0)
    assert found["y"].tolist() == [[1]] * 3
