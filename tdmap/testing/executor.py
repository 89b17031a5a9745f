"""What every executor must do: the tests that serial, threads, processes, pools of other libraries and Ray pass.

@pytest.mark.parametrize("case", CASES)
def test_my_executor(case):
    CASES[case](executor=MyExecutor())          # or any other options about workers
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch

import tdmap
from tdmap.events import Callback, JobEnded, JobStarted, LeaseDone
from tensordict_lite import TensorDict

ROWS = 23
CHUNK = 5

Case = Callable[..., None]
CASES: dict[str, Case] = {}
"""The tests by name. Each takes options about workers, and raises AssertionError."""


def _case(fn: Case) -> Case:
    CASES[fn.__name__] = fn
    return fn


def _data() -> TensorDict:
    return TensorDict({"x": torch.arange(2 * ROWS).view(ROWS, 2), "word": [str(n) for n in range(ROWS)]}, [ROWS])


def _same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, TensorDict):
        assert isinstance(found, TensorDict) and found.keys() == wanted.keys(), found
        for key in wanted.keys():
            _same(found[key], wanted[key])
    elif isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted), (found, wanted)
    else:
        assert list(found) == list(wanted), (found, wanted)


@_case
def results_are_in_the_order_of_rows(**options: Any) -> None:
    """Chunks are equal in size but for the last one; tensors and objects come back."""

    def fn(chunk: TensorDict) -> TensorDict:
        words = [word + "!" for word in chunk["word"]]
        return TensorDict({"y": chunk["x"] * 2, "n": torch.full((len(chunk),), len(chunk)), "w": words}, [len(chunk)])

    found = tdmap.map(_data(), fn, chunksize=CHUNK, **options)
    _same(found["y"], _data()["x"] * 2)
    _same(found["n"], torch.tensor([CHUNK] * 20 + [3] * 3))
    _same(found["w"], [f"{n}!" for n in range(ROWS)])


@_case
def the_size_of_chunks_may_follow_from_results(**options: Any) -> None:
    """Without a chunk size, the first results settle it, and where the others go."""
    rows = torch.arange(100_000)
    _same(tdmap.map(rows, lambda chunk: chunk + 1, **options), rows + 1)


@_case
def rows_are_written_into_an_output(**options: Any) -> None:
    """Of memory, in a folder, and in place."""
    wanted = _data()["x"] + 1
    out = torch.zeros(ROWS, 2, dtype=torch.int64)
    assert tdmap.map(_data()["x"], lambda x: x + 1, out=out, chunksize=CHUNK, **options) is out
    _same(out, wanted)
    with tempfile.TemporaryDirectory() as folder:
        found = tdmap.map(_data(), lambda td: {"y": td["x"] + 1}, out=f"{folder}/out", chunksize=CHUNK, **options)
        _same(found["y"], wanted)
        data = _data().select("x").memmap(f"{folder}/data")
        tdmap.map(data, _add_one, out=data, chunksize=CHUNK, **options)
        _same(TensorDict.load_memmap(f"{folder}/data")["x"], wanted)


def _add_one(chunk: TensorDict) -> None:
    chunk["x"].add_(1)


@_case
def rows_come_one_by_one(**options: Any) -> None:
    """With `chunksize=0`."""
    _same(tdmap.map(_data()["x"], lambda row: row.sum(), chunksize=0, **options), _data()["x"].sum(1))


@_case
def no_rows_are_no_work(**options: Any) -> None:
    """The function is called with an empty chunk at most."""
    assert tdmap.map(_data()[:0], lambda td: td["x"] * 2, **options).shape == (0, 2)


@_case
def states_merge_with_their_neighbours(**options: Any) -> None:
    """In the order of rows, for a function that is associative and not commutative."""
    text = tdmap.map_reduce(_data(), lambda td: " ".join(td["word"]), "{} {}".format, chunksize=CHUNK, **options)
    assert text == " ".join(map(str, range(ROWS))), text


@_case
def a_seed_gives_the_same_bits(**options: Any) -> None:
    """As in the calling process."""

    def fn(chunk: torch.Tensor) -> torch.Tensor:
        return torch.rand(len(chunk))

    wanted = tdmap.map(_data()["x"], fn, seed=3, chunksize=CHUNK, num_workers=0)
    _same(tdmap.map(_data()["x"], fn, seed=3, chunksize=CHUNK, **options), wanted)


@_case
def chunks_are_iterated_in_order(**options: Any) -> None:
    """An iteration may be left, and the executor takes the next job."""
    for _ in range(2):
        stream = tdmap.map_iter(_data()["x"], lambda x: x + 1, chunksize=CHUNK, **options)
        _same(next(iter(stream)), _data()["x"][:CHUNK] + 1)
        stream.close()
    stream = tdmap.map_iter(_data()["x"], lambda x: x + 1, chunksize=CHUNK, **options)
    _same(torch.cat(list(stream)), _data()["x"] + 1)


@_case
def an_exception_ends_the_job_and_names_the_rows(**options: Any) -> None:
    """It keeps its type; the next job is not concerned."""
    try:
        tdmap.map(_data()["x"], _fails_at_7, chunksize=CHUNK, **options)
    except ZeroDivisionError as error:
        assert any("5 to 9" in note or "5..9" in note or "rows 5" in note for note in error.__notes__), error.__notes__
    else:
        raise AssertionError("no exception")
    _same(tdmap.map(_data()["x"], lambda x: x + 1, chunksize=CHUNK, **options), _data()["x"] + 1)


def _fails_at_7(chunk: torch.Tensor) -> torch.Tensor:
    if (chunk[:, 0] == 14).any():
        raise ZeroDivisionError("row 7")
    return chunk


@_case
def rows_that_raise_are_left_out(**options: Any) -> None:
    """With `on_error`, and they are named."""
    errors = tdmap.RowErrors(mode="drop")
    found = tdmap.map(_data()["x"], _fails_at_7, chunksize=CHUNK, on_error=errors, **options)
    _same(found, torch.cat([_data()["x"][:7], _data()["x"][8:]]))
    assert [error.row for error in errors] == [7], errors


@_case
def events_tell_of_all_rows(**options: Any) -> None:
    """The job, its leases and its end."""
    seen = _Seen()
    tdmap.map(_data()["x"], lambda x: x + 1, chunksize=CHUNK, callbacks=[seen], **options)
    assert seen.started == 1 and seen.ok == [True] and seen.rows == ROWS, vars(seen)


class _Seen(Callback):
    def __init__(self) -> None:
        self.started, self.rows, self.ok = 0, 0, list[bool]()

    def on_job_started(self, event: JobStarted) -> None:
        self.started += 1

    def on_lease_done(self, event: LeaseDone) -> None:
        self.rows += event.rows

    def on_job_ended(self, event: JobEnded) -> None:
        self.ok.append(event.ok)


@_case
def a_worker_that_dies_loses_no_row_in_silence(**options: Any) -> None:
    """Its chunk runs again, or `WorkerLost` names the rows. Workers of this process cannot die."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(tdmap.errors.WorkerLost),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        caller, mark = os.getpid(), os.path.join(folder, "mark")

        def fn(chunk: torch.Tensor) -> torch.Tensor:
            if os.getpid() != caller and (chunk[:, 0] == 14).any():
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
            return chunk + 1

        _same(tdmap.map(_data()["x"], fn, chunksize=CHUNK, **options), _data()["x"] + 1)
