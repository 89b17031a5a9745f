"""Functions that work in place find their pages ready for writing, and no page is made dirty that they leave alone."""

import ctypes
import mmap
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap.runtime import writeahead
from tdmap.runtime.writeahead import WriteAhead
from tensordict_lite import TensorDict

PAGE = mmap.PAGESIZE


Calls = list[tuple[int, int]]


def recorded(monkeypatch: pytest.MonkeyPatch, answer: int | None = None) -> Calls:
    """The addresses and bytes of all calls; None lets them reach the kernel."""
    calls: Calls = []
    real = writeahead._madvise()

    def madvise(start: ctypes.c_void_p, nbytes: ctypes.c_size_t, advice: int) -> int:
        calls.append((start.value or 0, nbytes.value))
        return int(real(start, nbytes, advice)) if answer is None else answer

    monkeypatch.setattr(writeahead, "_madvise", lambda: madvise)
    return calls


@pytest.fixture
def data(tmp_path: Path) -> TensorDict:
    """Two columns of a hundred pages each, none of which is dirty."""
    columns = {name: torch.zeros(100, PAGE, dtype=torch.uint8) for name in ("a", "b")}
    TensorDict(columns, [100]).memmap(tmp_path / "td")
    return TensorDict.load_memmap(tmp_path / "td")


def test_only_what_the_function_writes_throughout_is_mapped(data: TensorDict, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch)
    ahead = WriteAhead([data["a"], data["b"]])
    ahead.before(0, 20, 100)
    data["a"][:20] += 1
    data["b"][:2] += 1
    ahead.after()
    assert ahead.is_of_use and not calls
    for start in (20, 40, 60):
        ahead.before(start, start + 20, 90)
    assert calls == [(data["a"].data_ptr() + 20 * PAGE, 70 * PAGE)]
    assert int(data["a"].sum()) == 20 * PAGE


def test_nothing_is_done_for_a_function_that_writes_little(data: TensorDict) -> None:
    ahead = WriteAhead([data["a"]])
    ahead.before(0, 50, 100)
    data["a"][7] = 1
    ahead.after()
    assert not ahead.is_of_use


def test_ordinary_memory_is_left_alone() -> None:
    assert not WriteAhead([torch.zeros(1000)]).is_of_use
    assert not WriteAhead([]).is_of_use


@pytest.mark.parametrize("answer", [0, -1])
def test_rows_are_right_whatever_the_kernel_says(
    data: TensorDict, answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded(monkeypatch, answer)
    tdmap.map(data, add_one, num_workers=0, chunksize=7)
    assert (data["a"] == 1).all() and (data["b"] == 0).all()
    # Not for the first chunk, and then for all of a lease at once; or never again.
    first = data["a"].data_ptr()
    assert calls and all(first + 7 * PAGE <= at and at + nbytes <= first + 100 * PAGE for at, nbytes in calls)
    assert answer == 0 or len(calls) == 1


@pytest.mark.parametrize("chunksize", [0, 1, 7, 100])
@pytest.mark.parametrize("undo", [True, False])
def test_passes_in_place_of_every_kind(tmp_path: Path, chunksize: int, undo: bool) -> None:
    rows = 33
    source = {
        "x": torch.arange(rows * 300.0).reshape(rows, 300),
        "in": {"flag": torch.arange(rows) % 2 == 0, "half": torch.arange(rows).half()},
        "none": torch.zeros(rows, 0),
    }
    TensorDict(source, [rows]).memmap(tmp_path / "td")
    data = TensorDict.load_memmap(tmp_path / "td")
    shared = TensorDict(source, [rows]).clone().share_memory_()
    for one in (data, shared):
        for workers in (0, 2):
            tdmap.map(one, change, num_workers=workers, chunksize=chunksize, undo=undo)
        assert torch.equal(one["x"], source["x"] + 2) and torch.equal(one["in", "flag"], source["in"]["flag"])
        assert torch.equal(one["in", "half"], source["in"]["half"])


def change(td: TensorDict) -> None:
    td["x"].add_(1)
    td["in", "flag"].logical_not_()


def add_one(td: TensorDict) -> None:
    td["a"].add_(1)
