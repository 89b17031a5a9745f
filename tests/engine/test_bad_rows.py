"""Rows on which a function raises, or whose results do not fit: they are named, and every other row is processed.

Ways to fail × which rows × `on_error` × where results go × who works; then what is special to each.
"""

import json
import os
import signal
import warnings

import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch, SkippedRows
from tdmap.reducers import Count, Reducer
from tensordict_lite import TensorDict, lazy_stack, tensorclass
from tests.products import sampled

ROWS = 40
SOME = [5, 6, 17, 39]
GOOD = [row for row in range(ROWS) if row not in SOME]

BAD = {
    "some": SOME,
    "the first": [0],
    "the first chunk": [*range(8)],
    "two chunks": [*range(8, 24)],
    "the last chunk": [*range(32, 40)],
}
"""Which rows are bad."""
MODES = ("skip", "drop")
WORKERS = {
    "here": {"executor": "serial", "chunksize": 8},
    "threads": {"executor": "thread", "num_workers": 2, "chunksize": None},
    "processes": {"num_workers": 2, "chunksize": 8},
    "row by row": {"num_workers": 2, "chunksize": 0},
}
PLACES = {
    "memory": lambda folder: {},
    "folder": lambda folder: {"out": folder / "out"},
    "resumed folder": lambda folder: {"out": folder / "out", "resume": True},
    "shards": lambda folder: {"out": folder / "out", "rows_per_shard": 8},
    "resumed shards": lambda folder: {"out": folder / "out", "rows_per_shard": 8, "resume": True},
}
"""Where new rows go."""


@tensorclass
class Other:
    y: torch.Tensor


def throw(rows):
    raise ValueError(f"cannot read {rows['row'].reshape(-1).tolist()}")


MISFITS = {
    "too wide": lambda rows: rows.set("y", torch.cat([rows["y"]] * 2, -1)),
    "another dtype": lambda rows: rows.set("y", rows["y"].to(torch.complex64)),
    "no collection": lambda rows: "nothing",
    "none of the entries": lambda rows: TensorDict({"Y": rows["y"]}, rows.batch_size),
    "an entry more": lambda rows: rows.set("z", rows["y"]),
    "a class": lambda rows: Other(rows["y"], batch_size=rows.batch_size),
    "a batch dimension more": lambda rows: TensorDict({"y": rows["y"]}, [*rows.batch_size, 3]),
}
"""What a function makes of rows, where a chunk holds a bad one."""


@pytest.fixture
def rows():
    columns = {"row": torch.arange(ROWS), "x": torch.arange(3.0 * ROWS).view(ROWS, 3)}
    return TensorDict({**columns, "name": [f"n{row}" for row in range(ROWS)]}, [ROWS])


def failing(fail, bad=SOME):
    """A function that doubles a column, and fails where one of its rows is bad."""

    def fn(chunk):
        made = chunk.clone().set("y", chunk["x"] * 2)
        return fail(made) if set(bad) & set(chunk["row"].reshape(-1).tolist()) else made

    return fn


def check(result, rows, bad, mode):
    """Bad rows are zeros and None, or are not there."""
    kept = [row for row in range(ROWS) if mode != "drop" or row not in bad]
    zero = torch.tensor([row in bad for row in kept])
    assert torch.equal(result["y"], rows["x"][kept] * 2 * ~zero[:, None])
    assert torch.equal(result["row"], torch.tensor(kept) * ~zero)
    assert list(result["name"]) == [None if row in bad else f"n{row}" for row in kept]


@pytest.mark.parametrize("bad, mode, place, workers", sampled(5, BAD, MODES, PLACES, WORKERS))
def test_rows_on_which_a_function_raises(rows, bad, mode, place, workers, tmp_path):
    errors = tdmap.RowErrors(mode)
    result = tdmap.map(rows, failing(throw, BAD[bad]), on_error=errors, **PLACES[place](tmp_path), **WORKERS[workers])
    check(result, rows, BAD[bad], mode)
    assert errors.rows == BAD[bad] and {str(error.error) for error in errors} == {
        f"cannot read [{row}]" for row in BAD[bad]
    }
    if place != "memory":
        check(tdmap.open(tmp_path / "out"), rows, BAD[bad], mode)


BAD_LATER = [9, 10, 17, 39]


@pytest.mark.parametrize("misfit, mode, place, workers", sampled(5, MISFITS, MODES, PLACES, WORKERS))
def test_rows_whose_results_do_not_fit_a_new_dataset(rows, misfit, mode, place, workers, tmp_path):
    """The first result, whatever it is, says how the others must look; of each shard, where there are several."""
    errors, fn, how = tdmap.RowErrors(mode), failing(MISFITS[misfit], BAD_LATER), PLACES[place](tmp_path)
    if "rows_per_shard" in how:
        how["rows_per_shard"] = 20
    if (misfit, place) == ("another dtype", "memory"):
        assert tdmap.map(rows, fn, on_error=errors, **WORKERS[workers])["y"].dtype is torch.complex64 and not errors
        return
    result = tdmap.map(rows, fn, on_error=errors, **how, **WORKERS[workers])
    check(result, rows, BAD_LATER, mode)
    assert errors.rows == BAD_LATER and all(isinstance(error.error, OutputMismatch) for error in errors)


@pytest.mark.parametrize("misfit, place, workers", sampled(4, MISFITS, PLACES, ["here", "threads", "processes"]))
def test_rows_whose_results_do_not_fit_those_of_other_numbers_of_rows(rows, misfit, place, workers, tmp_path):
    errors, fn, how = tdmap.RowErrors(), failing(MISFITS[misfit], BAD_LATER), PLACES[place](tmp_path)
    how = {**how, **WORKERS[workers], "chunksize": 8}
    result = tdmap.flat_map(rows, fn, on_error=errors, **how)
    check(result, rows, BAD_LATER, "drop")
    assert errors.rows == BAD_LATER and all(isinstance(error.error, OutputMismatch) for error in errors)


FITTING_NO_OUTPUT = {"raises": throw, **{name: MISFITS[name] for name in list(MISFITS)[:4]}}


@pytest.mark.parametrize(
    "fail, kind, workers", sampled(2, FITTING_NO_OUTPUT, ["memory", "mapped", "nested", "lazy"], WORKERS)
)
def test_bad_rows_of_an_existing_output_keep_what_they_had(rows, fail, kind, workers, tmp_path):
    out = TensorDict({"row": torch.full((ROWS,), -1), "y": torch.full((ROWS, 3), -1.0)}, [ROWS])
    if kind == "nested":
        out["meta"] = {"row": torch.zeros(ROWS)}
    if kind == "lazy":
        out = lazy_stack([row.clone() for row in out.unbind(0)])
    out = out.memmap_(tmp_path / "out") if kind == "mapped" else out
    errors = tdmap.RowErrors()
    tdmap.map(rows.exclude("name"), failing(FITTING_NO_OUTPUT[fail]), out=out, on_error=errors, **WORKERS[workers])
    assert errors.rows == SOME
    assert torch.equal(out["y"][GOOD], rows["x"][GOOD] * 2) and torch.equal(out["row"][GOOD], torch.tensor(GOOD))
    assert (out["y"][SOME] == -1).all() and (out["row"][SOME] == -1).all()


@pytest.mark.parametrize("result", ["raises", "too wide"])
@pytest.mark.parametrize("write_back", [True, False])
@pytest.mark.parametrize("workers", WORKERS)
def test_good_rows_in_place_are_changed_once_and_bad_ones_not_at_all(rows, result, write_back, workers):
    def spoil(chunk):
        chunk["x"].add_(1)
        if set(SOME) & set(chunk["row"].reshape(-1).tolist()):  # half-way
            return throw(chunk) if result == "raises" else TensorDict({"x": chunk["x"][..., :1]}, chunk.batch_size)
        chunk["x"].mul_(2)
        return None

    if result != "raises" and not write_back:
        pytest.skip("without an output there is none that a result does not fit")
    before, errors = rows["x"].clone(), tdmap.RowErrors()
    rows = rows.exclude("name")
    tdmap.map(rows, spoil, out=rows if write_back else None, on_error=errors, **WORKERS[workers])
    assert errors.rows == SOME
    assert torch.equal(rows["x"][GOOD], (before[GOOD] + 1) * 2) and torch.equal(rows["x"][SOME], before[SOME])


def checked(chunk):
    return failing(throw)(chunk)


class Rows(Reducer):
    """The numbers of the rows, in order."""

    def init(self):
        return []

    def update(self, state, chunk, start=0):
        return state + list(range(start, start + len(chunk)))

    def merge(self, a, b):
        return a + b


def iterated(rows, **options):
    return torch.cat(list(tdmap.map_iter(rows, checked, **options)))["row"].tolist()


WITHOUT_THEM = {
    "map_iter": iterated,
    "map_iter of values": lambda rows, **o: sum(
        tdmap.map_iter(rows, lambda chunk: checked(chunk)["row"].tolist(), **o), []
    ),
    "map_iter, shuffled": lambda rows, **o: sorted(iterated(rows, shuffle=True, seed=3, **o)),
    "map of other lengths": lambda rows, **o: tdmap.map(
        rows, lambda chunk: checked(chunk)["row"].repeat_interleave(2), **o
    )[::2].tolist(),
    "map_reduce": lambda rows, **o: list(tdmap.map_reduce(rows, checked, {"rows": Rows(), "n": Count()}, **o)["rows"]),
    "filter": lambda rows, **o: tdmap.filter(rows, lambda chunk: checked(chunk)["row"] >= 0, **o)["row"].tolist(),
    "flat_map": lambda rows, **o: tdmap.flat_map(rows, checked, **o)["row"].tolist(),
}


@pytest.mark.parametrize("name", WITHOUT_THEM)
@pytest.mark.parametrize("workers", ["here", "threads", "processes"])
def test_operations_whose_results_have_no_places_leave_bad_rows_out(rows, name, workers):
    errors = tdmap.RowErrors()
    assert WITHOUT_THEM[name](rows, on_error=errors, **{**WORKERS[workers], "chunksize": 8}) == GOOD
    assert errors.rows == SOME


# -- who is told -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", ["here", "threads", "processes"])
def test_without_a_handler_a_warning_says_how_many_and_where_the_list_is(rows, mode, workers, tmp_path):
    options = {"on_error": mode, **WORKERS[workers]}
    with pytest.warns(
        SkippedRows, match=r"fn: 4 rows failed \(row 5: ValueError\('cannot read \[5\]'\); row 6"
    ) as seen:
        tdmap.map(rows, failing(throw), **options)
    message = seen.pop(SkippedRows).message
    assert message.errors.rows == SOME and "in the `errors` of this warning" in str(message)
    assert all("in throw" in bad.traceback and "skipping.py" not in bad.traceback for bad in message.errors)
    if mode != "drop":
        with pytest.warns(SkippedRows) as seen:
            tdmap.map(rows, failing(throw), out=tmp_path / "out", resume=True, **options)
        place = tmp_path / "out" / ".tdmap" / "skipped.jsonl"
        assert str(place) in str(seen.pop(SkippedRows).message)
        assert [json.loads(line)["row"] for line in place.read_text().splitlines()] == SOME


@pytest.mark.parametrize("workers", ["here", "threads", "processes"])
def test_a_handler_is_called_once_for_each_row_and_may_end_the_job(rows, workers):
    calls = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tdmap.map(rows, checked, on_error=lambda error, at: calls.append((at, str(error))), **WORKERS[workers])
    assert sorted(calls) == [((row, row + 1), f"cannot read [{row}]") for row in SOME]

    def stop(error, at):
        raise RuntimeError(f"enough at {at[0]}") from error

    with pytest.raises(RuntimeError, match="enough at"):
        tdmap.map(rows, checked, on_error=stop, **WORKERS[workers])


def test_events_carry_the_rows(rows):
    class Log(tdmap.events.Callback):
        skipped, ended = (), None

        def on_rows_skipped(self, event):
            self.skipped += event.errors

        def on_job_ended(self, event):
            self.ended = event

    log = Log()
    tdmap.map(rows, checked, num_workers=2, chunksize=8, on_error=tdmap.RowErrors(), callbacks=[log])
    assert sorted(bad.row for bad in log.skipped) == SOME
    assert [bad.row for bad in log.ended.errors] == SOME and log.ended.ok


def test_a_resumed_run_takes_skipped_rows_as_done(rows, tmp_path):
    calls, errors = tmp_path / "calls", tdmap.RowErrors()

    def count(chunk):
        with open(calls, "a") as file:
            file.write("x")
        return checked(chunk)

    call = {"num_workers": 2, "chunksize": 8, "out": tmp_path / "out", "resume": True}
    tdmap.map(rows, count, on_error=errors, **call)
    ran = calls.stat().st_size
    with pytest.warns(tdmap.errors.AlreadyComplete), pytest.warns(SkippedRows):
        check(tdmap.map(rows, count, on_error="skip", **call), rows, SOME, "skip")
    assert errors.rows == SOME and calls.stat().st_size == ran


# -- what ends the job -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["here", "threads", "processes"])
@pytest.mark.parametrize("place", PLACES)
def test_a_job_ends_without_on_error_and_where_every_row_fails(rows, workers, place, tmp_path):
    options = {**WORKERS[workers], **PLACES[place](tmp_path)}
    with pytest.raises(ValueError, match="cannot read"):
        tdmap.map(rows, checked, **options)
    for _ in range(2):  # once more where it is resumed
        with pytest.raises(ValueError, match="cannot read") as caught:
            tdmap.map(
                rows, throw, **{**options, "out": tmp_path / "all" if place != "memory" else None}, on_error="skip"
            )
        assert any("every one of 40 rows" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("handler", ["skip", "drop", tdmap.RowErrors()], ids=["skip", "drop", "function"])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_misfit_of_nearly_every_row_is_raised(rows, workers, handler, tmp_path):
    """It is the first result that is odd, or the output: no row is bad."""

    def odd_first(chunk):
        width = 3 if int(chunk["row"].reshape(-1)[0]) == 0 else 4
        return TensorDict({"y": torch.zeros(*chunk.batch_size, width)}, chunk.batch_size)

    with pytest.raises(OutputMismatch, match="on_error is about single rows, and .* do not fit|must look alike"):
        tdmap.map(rows, odd_first, on_error=handler, out=tmp_path / "out", **WORKERS[workers])
    assert not (tmp_path / "out").exists()
    out = TensorDict({"y": torch.zeros(ROWS, 7)}, [ROWS])
    with pytest.raises(OutputMismatch, match="'y': out has shape"):
        tdmap.map(rows, checked, on_error="skip" if handler == "drop" else handler, out=out, **WORKERS[workers])
    assert not out["y"].any()


def test_a_misfit_of_every_row_ends_the_job_early():
    data, calls = TensorDict({"row": torch.arange(5000)}, [5000]), []

    def wrong(chunk):
        calls.append(len(chunk))
        return TensorDict({"y": torch.zeros(len(chunk), 5)}, chunk.batch_size)

    with pytest.raises(OutputMismatch):
        out = TensorDict({"y": torch.zeros(5000, 3)}, [5000])
        tdmap.map(data, wrong, on_error="skip", out=out, num_workers=0, chunksize=20)
    assert sum(calls) < 500


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda rows: tdmap.map(rows, checked, on_error="ignore"), "'raise', 'skip', 'drop' or a function"),
        (lambda rows: tdmap.RowErrors("raise"), "mode must be one of 'skip', 'drop': got 'raise'"),
        (lambda rows: tdmap.map(rows, checked, out=rows, on_error="drop"), "out has a place for every row"),
        (lambda rows: tdmap.map(rows, checked, out=rows.clone(), on_error="drop"), "out has a place for every row"),
    ],
)
def test_a_mode_that_has_no_meaning_is_refused(rows, call, message):
    with pytest.raises((ValueError, OutputMismatch), match=message):
        call(rows)


def test_rows_in_place_without_a_copy_cannot_be_skipped(rows):
    def spoil(chunk):
        chunk["x"].add_(1)
        checked(chunk)

    with pytest.raises(ValueError, match="cannot read") as caught:
        tdmap.map(rows, spoil, num_workers=1, chunksize=8, undo=False, on_error="skip")
    assert any("undo=True" in note for note in caught.value.__notes__)


# -- the search for bad rows -------------------------------------------------------------------------------------------


def test_a_death_in_the_middle_of_the_search_changes_nothing(rows, tmp_path):
    def spoil(chunk):
        chunk["x"].add_(1)
        if len(chunk) == 2 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if set(SOME) & set(chunk["row"].tolist()):
            raise ValueError

    rows, calls = rows.exclude("name"), []
    before = rows["x"].clone()
    handler = lambda error, at: calls.append(at[0])  # noqa: E731
    tdmap.map(rows, spoil, num_workers=2, chunksize=8, out=rows, on_error=handler)
    assert sorted(calls) == SOME
    assert torch.equal(rows["x"][GOOD], before[GOOD] + 1) and torch.equal(rows["x"][SOME], before[SOME])


@pytest.mark.parametrize("count, chunksize, seed", sampled(2, [1, 8, 54, 1000, 1999], [None, 100, 1000], [None, 1]))
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


def test_random_streams_depend_neither_on_workers_nor_on_bad_rows_elsewhere():
    data = TensorDict({"row": torch.arange(200)}, [200])

    def noise(bad, **workers):
        def run(chunk):
            if any(row in bad for row in chunk["row"].tolist()):
                raise ValueError
            return TensorDict({"y": torch.rand(len(chunk))}, chunk.batch_size)

        return tdmap.map(data, run, seed=3, chunksize=10, on_error=tdmap.RowErrors(), **workers)["y"]

    few, many = noise({15}, num_workers=0), noise({5, 15, 25, 27}, num_workers=0)
    assert torch.equal(few[30:], many[30:]) and torch.equal(few[16:20], many[16:20])
    for workers in ({"num_workers": 1}, {"num_workers": 2}, {"executor": "thread", "num_workers": 2}):
        assert torch.equal(few, noise({15}, **workers))
