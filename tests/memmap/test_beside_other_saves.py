"""What reads, maps, or appends to a dataset at the very moment when a save is about to change it."""

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import DatasetError, DatasetWriter, TensorDict, append_memmap
from tensordict_lite.memmap import save as saving
from tensordict_lite.memmap import tuning
from tensordict_lite.memmap.disk import staging
from tests.processes import call_at

ROWS = 5


def dataset(value: int) -> TensorDict:
    tree = {"x": torch.full((ROWS,), value), "below": {"y": torch.full((ROWS, 2), float(value))}}
    return TensorDict(tree, [ROWS])


def values(data: TensorDict) -> list[float]:
    return sorted({*data["x"].tolist(), *data["below", "y"].flatten().tolist()})


# -- saves that keep some files of a dataset which another one replaces -----------------------------------------------


@pytest.fixture
def another_save(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, TensorDict]]:
    """Put a folder and a dataset here: it is saved there just before the next save locks the folder."""
    real, others = staging.lock, []

    def lock(folder: str) -> int:
        if others:
            path, data = others.pop()
            data.memmap(path)
        return real(folder)

    monkeypatch.setattr(staging, "lock", lock)
    return others


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("changed", ["x", ("below", "y")])
def test_files_that_stay_are_those_of_this_dataset(tmp_path: Path, mode: str, changed: Any, another_save: Any) -> None:
    dataset(1).memmap(tmp_path / "d")
    data = TensorDict.load_memmap(tmp_path / "d", mode=mode).unlock_()
    data[changed] = torch.full_like(data[changed], 1)
    another_save.append((tmp_path / "d", dataset(9)))
    saved = data.memmap(tmp_path / "d")
    assert not another_save
    assert values(saved) == values(TensorDict.load_memmap(tmp_path / "d")) == [1]


def test_runs_over_the_rows_of_another_save_are_not_taken_for_runs_over_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the metadata would change, but for a save that comes first, and a run over its rows."""
    path = tmp_path / "d"
    dataset(1).memmap(path)
    data = TensorDict.load_memmap(path).unlock_()
    data["note"] = "changed"
    real = staging.lock

    def lock(folder: str) -> int:
        monkeypatch.setattr(staging, "lock", real)
        dataset(9).memmap(path)
        (path / ".tdmap").mkdir()
        return real(folder)

    monkeypatch.setattr(staging, "lock", lock)
    data.memmap_(path)
    assert values(TensorDict.load_memmap(path)) == [1] and not (path / ".tdmap").exists()


def test_nothing_to_write_is_found_again_where_another_save_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset(1).memmap(tmp_path / "d")
    data = TensorDict.load_memmap(tmp_path / "d", mode="r")
    real, others = saving.reading, [dataset(9)]

    def reading(folder: str) -> Any:
        if others:
            others.pop().memmap(folder)
        return real(folder)

    monkeypatch.setattr(saving, "reading", reading)
    assert values(data.memmap(tmp_path / "d")) == [1] and not others
    assert values(TensorDict.load_memmap(tmp_path / "d")) == [1]


# -- rows that wait for a dataset which a save replaces ---------------------------------------------------------------

OTHERS = {
    "dtype": {"x": torch.full((7,), 2.0, dtype=torch.float64), "below": {"y": torch.zeros(7, 2)}},
    "shape": {"x": torch.full((7, 3), 2), "below": {"y": torch.zeros(7, 2)}},
    "dtype below": {"x": torch.full((7,), 2), "below": {"y": torch.zeros(7, 2, dtype=torch.int16)}},
    "shape below": {"x": torch.full((7,), 2), "below": {"y": torch.zeros(7, 3)}},
    "key below": {"x": torch.full((7,), 2), "below": {"z": torch.zeros(7, 2)}},
    "kind": {"x": torch.full((7,), 2), "below": torch.zeros(7, 2)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_rows_are_not_appended_to_a_dataset_of_other_rows(tmp_path: Path, other: str) -> None:
    """Before its first flush, a writer has no file open by which it would know that they are others now."""
    writer = DatasetWriter(tmp_path / "d", dataset(1)[0])
    TensorDict(OTHERS[other], [7]).memmap(tmp_path / "d")
    sizes = {file: file.stat().st_size for file in (tmp_path / "d").rglob("*.memmap")}
    writer.append(dataset(3))
    with pytest.raises(DatasetError, match="got other entries"):
        writer.flush()
    assert {file: file.stat().st_size for file in (tmp_path / "d").rglob("*.memmap")} == sizes
    there = TensorDict.load_memmap(tmp_path / "d")
    assert torch.equal(there["x"], OTHERS[other]["x"])


OPERATIONS: dict[str, Callable[..., Any]] = {
    "map": lambda data, out: tdmap.map(data, lambda chunk: chunk, out=out, num_workers=0),
    "filter": lambda data, out: tdmap.filter(data, tdmap.col("x") >= 0, out=out, num_workers=0),
    "shuffle": lambda data, out: tdmap.shuffle(data, 0, out=out, num_workers=0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_save_while_an_operation_moves_its_result_into_place(tmp_path: Path, name: str) -> None:
    def saved_at(number: int) -> bool:
        out, steps = tmp_path / str(number), [(os, "replace"), (os, "unlink")]

        def save() -> None:
            with contextlib.suppress(TimeoutError):  # until the operation has moved its files
                dataset(2).memmap(out)

        def work() -> None:
            with contextlib.suppress(FileExistsError):
                OPERATIONS[name](dataset(1), out)

        with tuning.use(lock_seconds=0.01):
            was_taken = call_at(number, save, work, steps)
        assert values(TensorDict.load_memmap(out)) in ([1], [2])
        return was_taken

    assert next(number for number in itertools.count(1) if not saved_at(number)) > 3


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "memmap": lambda data, out: data.memmap(out),
    "map": lambda data, out: tdmap.map(data, lambda chunk: chunk, out=out, overwrite=True, num_workers=0),
    "shards": lambda data, out: tdmap.map(
        data, lambda chunk: chunk, out=out, overwrite=True, rows_per_shard=2, num_workers=0
    ),
}
SAVES: dict[str, Callable[..., Any]] = {
    "memmap": lambda out: dataset(1).memmap(out),
    "memmap_like": lambda out: dataset(1).memmap_like(out),
    "append": lambda out: append_memmap(out, dataset(1)),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
@pytest.mark.parametrize("save", SAVES)
def test_a_dataset_that_is_replaced_while_another_call_saves_there(tmp_path: Path, save: str, name: str) -> None:
    def replaced_at(number: int) -> bool:
        out, steps = tmp_path / str(number), [(os, step) for step in ("open", "replace", "unlink", "ftruncate")]
        dataset(0).memmap(out)

        def replace() -> None:
            with contextlib.suppress(TimeoutError):  # until the save has ended
                REPLACEMENTS[name](dataset(2), out)

        def work() -> None:
            with contextlib.suppress(DatasetError):
                SAVES[save](out)

        with tuning.use(lock_seconds=0.01):
            was_taken = call_at(number, replace, work, steps)
        whole = tdmap.open(out)[:]
        assert save == "memmap_like" or values(whole) in ([0, 1], [1], [1, 2], [2])
        assert len(whole) in (ROWS, 2 * ROWS)
        assert len(os.listdir(tmp_path)) == number
        return was_taken

    assert next(number for number in itertools.count(1) if not replaced_at(number)) > 3
