"""`on_error`: rows on which the function raises are found and named, and every other row is processed."""

from __future__ import annotations

import os
import signal
import warnings

import pytest
import torch

import tdmap
from tdmap.reducers import Count, Reducer
from tensordict_lite import TensorDict

BAD = [5, 6, 17, 39]
GOOD = [row for row in range(40) if row not in BAD]


@pytest.fixture(params=["serial", "thread", "process"])
def options(request):
    return {"executor": request.param, "num_workers": 2, "chunksize": 8}


def check(td):
    """Raises on a chunk that holds a bad row."""
    rows = td["meta", "row"]
    for bad in BAD:
        if (rows == bad).any():
            raise ValueError(f"cannot read row {bad}")


def double(td):
    check(td)
    return TensorDict({"y": td["x"] * 2, "row": td["meta", "row"] + 1}, td.batch_size)


def test_skip_processes_every_other_row_and_warns(options, data):
    with pytest.warns(tdmap.errors.SkippedRows, match=r"double: 4 rows failed \(row 5: ValueError") as caught:
        result = tdmap.map(data, double, on_error="skip", **options)
    assert torch.equal(result["y"][GOOD], data["x"][GOOD] * 2)
    assert torch.equal(result["row"][GOOD], torch.tensor(GOOD) + 1)
    assert not result["y"][BAD].any() and not result["row"][BAD].any()
    errors = caught.pop(tdmap.errors.SkippedRows).message.errors
    assert errors.rows == BAD
    assert torch.equal(result["row"] > 0, errors.mask(40))
    assert [str(bad.error) for bad in errors] == [f"cannot read row {row}" for row in BAD]
    assert all("in check" in bad.traceback and "skipping.py" not in bad.traceback for bad in errors)


def test_raise_is_the_default(options, data):
    with pytest.raises(ValueError, match="cannot read row"):
        tdmap.map(data, double, **options)


def test_a_function_is_called_once_for_each_row_and_silences_the_warning(options, data):
    calls = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tdmap.map(data, double, on_error=lambda error, rows: calls.append((rows, str(error))), **options)
    assert sorted(calls) == [((row, row + 1), f"cannot read row {row}") for row in BAD]


def test_a_function_may_end_the_job(options, data):
    def stop(error, rows):
        raise RuntimeError(f"enough at {rows[0]}") from error

    with pytest.raises(RuntimeError, match="enough at"):
        tdmap.map(data, double, on_error=stop, **options)


def test_out_keeps_skipped_rows_and_masks_them(options, data, tmp_path):
    out = TensorDict(
        {"y": torch.full((40, 3), -1.0), "__valid__": torch.zeros(40, dtype=torch.bool), "row": torch.full((40,), -1)},
        [40],
    ).memmap_(tmp_path / "out")
    errors = tdmap.RowErrors()
    tdmap.map(data, double, out=out, on_error=errors, **options)
    assert torch.equal(out["__valid__"], errors.mask(40))
    assert torch.equal(out["y"][GOOD], data["x"][GOOD] * 2)
    assert (out["y"][BAD] == -1).all() and (out["row"][BAD] == -1).all()


def test_a_new_folder_has_zeros_in_skipped_rows(options, data, tmp_path):
    def marked(td):
        return double(td).set("__valid__", torch.ones(td.batch_size, dtype=torch.bool))

    errors = tdmap.RowErrors()
    result = tdmap.map(data, marked, out=tmp_path / "out", on_error=errors, **options)
    assert errors.rows == BAD
    assert torch.equal(result["__valid__"], errors.mask(40))
    assert torch.equal(result["y"][GOOD], data["x"][GOOD] * 2)


@pytest.mark.parametrize("write_back", [True, False])
def test_in_place_changes_each_good_row_once_and_no_bad_row(options, data, write_back):
    def spoil(td):
        td["x"].add_(1)
        check(td)  # half-way
        td["x"].mul_(2)

    before, errors = data["x"].clone(), tdmap.RowErrors()
    tdmap.map(data, spoil, out=data if write_back else None, on_error=errors, **options)
    assert errors.rows == BAD
    assert torch.equal(data["x"][GOOD], (before[GOOD] + 1) * 2)
    assert torch.equal(data["x"][BAD], before[BAD])


def test_in_place_without_a_copy_is_refused(data):
    def spoil(td):
        td["x"].add_(1)
        check(td)

    with pytest.raises(ValueError, match="cannot read row") as caught:
        tdmap.map(data, spoil, num_workers=1, chunksize=8, undo=False, on_error="skip")
    assert any("undo=True" in note for note in caught.value.__notes__)


def test_results_of_other_lengths_lack_the_rows(options, data):
    def twice(td):
        check(td)
        return td["meta", "row"].repeat_interleave(2)

    errors = tdmap.RowErrors()
    result = tdmap.map(data, twice, on_error=errors, **options)
    assert torch.equal(result, torch.tensor(GOOD).repeat_interleave(2))


def test_rows_one_by_one(options, data):
    errors = tdmap.RowErrors()
    result = tdmap.map(data, double, on_error=errors, **{**options, "chunksize": 0})
    assert errors.rows == BAD
    assert torch.equal(result["y"][GOOD], data["x"][GOOD] * 2) and not result["y"][BAD].any()


@pytest.mark.parametrize("bad", [range(8), range(32, 40), range(8, 24)])
def test_a_whole_chunk_may_fail(options, data, bad):
    def fail(td):
        if set(td["meta", "row"].tolist()) & set(bad):
            raise KeyError("gone")
        return td["x"] + 1

    errors = tdmap.RowErrors()
    result = tdmap.map(data, fail, on_error=errors, **options)
    assert errors.rows == list(bad)
    assert torch.equal(result[errors.mask(40)], data["x"][errors.mask(40)] + 1)
    assert result.shape == (40, 3) and not result[list(bad)].any()


def test_when_every_row_fails_the_first_exception_is_raised(options, data):
    def broken(td):
        raise LookupError("no such column")

    with pytest.raises(LookupError) as caught:
        tdmap.map(data, broken, on_error="skip", **options)
    assert any("every one of 40 rows" in note for note in caught.value.__notes__)


def test_map_iter_yields_what_is_left_in_order(options, data):
    errors = tdmap.RowErrors()
    parts = list(tdmap.map_iter(data, double, on_error=errors, **options))
    assert [len(part) for part in parts] == [6, 8, 7, 8, 7]
    assert torch.equal(torch.cat(parts)["row"], torch.tensor(GOOD) + 1)
    assert errors.rows == BAD


def test_map_iter_with_values_that_cannot_be_joined(options, data):
    def total(td):
        check(td)
        return {"sum": int(td["meta", "row"].sum())}

    values = list(tdmap.map_iter(data, total, on_error=tdmap.RowErrors(), **options))
    assert sum(value["sum"] for value in values) == sum(GOOD) and len(values) == 5


def test_shuffled_rows_are_named_by_their_own_number(options, data):
    errors = tdmap.RowErrors()
    parts = list(tdmap.map_iter(data, double, shuffle=True, seed=3, on_error=errors, **options))
    assert errors.rows == BAD
    assert sorted((torch.cat(parts)["row"] - 1).tolist()) == GOOD


class Rows(Reducer):
    """The numbers of the rows, in order."""

    def init(self):
        return []

    def update(self, state, chunk, start=0):
        return state + list(range(start, start + len(chunk)))

    def merge(self, a, b):
        return a + b


def test_reduce_leaves_skipped_rows_out(options, data):
    def checked(td):
        check(td)
        return td

    errors = tdmap.RowErrors()
    answer = tdmap.map_reduce(data, checked, {"rows": Rows(), "n": Count()}, on_error=errors, **options)
    assert int(answer["n"]) == 36 and list(answer["rows"]) == GOOD
    assert errors.rows == BAD


def test_events_carry_the_rows(data):
    class Log(tdmap.events.Callback):
        skipped, ended = (), None

        def on_rows_skipped(self, event):
            self.skipped += event.errors

        def on_job_ended(self, event):
            self.ended = event

    log = Log()
    tdmap.map(data, double, num_workers=2, chunksize=8, on_error=tdmap.RowErrors(), callbacks=[log])
    assert sorted(bad.row for bad in log.skipped) == BAD
    assert [bad.row for bad in log.ended.errors] == BAD and log.ended.ok


def test_a_death_in_the_middle_of_the_search_changes_nothing(data, tmp_path):
    def spoil(td):
        td["x"].add_(1)
        if len(td) == 2 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        check(td)

    before, calls = data["x"].clone(), []
    result = tdmap.map(
        data, spoil, num_workers=2, chunksize=8, out=data, on_error=lambda error, rows: calls.append(rows[0])
    )
    assert sorted(calls) == BAD
    assert torch.equal(result["x"][GOOD], before[GOOD] + 1)
    assert torch.equal(result["x"][BAD], before[BAD])


def test_the_search_takes_few_calls():
    calls = []

    def fail(x):
        calls.append(len(x))
        if 700 in x:
            raise ValueError
        return x

    errors = tdmap.RowErrors()
    tdmap.map(torch.arange(1024), fail, chunksize=1024, executor="serial", on_error=errors)
    assert errors.rows == [700] and len(calls) <= 70 and sum(calls) <= 2.1 * 1024


def test_seeded_rows_keep_the_seed_of_their_chunk(options, data):
    def noise(td):
        check(td)
        return torch.rand(len(td))

    first, second = (
        tdmap.map(data, noise, seed=7, on_error=tdmap.RowErrors(), **{**options, "num_workers": n}) for n in (1, 2)
    )
    assert torch.equal(first, second)


def test_a_resumed_run_takes_skipped_rows_as_done(data, tmp_path):
    calls = tmp_path / "calls"

    def count(td):
        with open(calls, "a") as file:
            file.write("x")
        return double(td)

    errors = tdmap.RowErrors()
    tdmap.map(data, count, num_workers=2, chunksize=8, out=tmp_path / "out", resume=True, on_error=errors)
    ran = calls.stat().st_size
    with pytest.warns(tdmap.errors.AlreadyComplete), pytest.warns(tdmap.errors.SkippedRows):
        again = tdmap.map(data, count, num_workers=2, chunksize=8, out=tmp_path / "out", resume=True, on_error="skip")
    assert errors.rows == BAD and calls.stat().st_size == ran
    assert torch.equal(again["y"][GOOD], data["x"][GOOD] * 2)


def test_an_on_error_that_means_nothing_is_refused(data):
    with pytest.raises(ValueError, match="'raise', 'skip', 'drop', 'mark' or a function"):
        tdmap.map(data, double, on_error="ignore")
