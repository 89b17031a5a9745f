"""Runs whose rows were saved anew since: nothing that they have noted about the old rows reaches the new ones."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
import tensordict_lite as lib
from tdmap.errors import AlreadyComplete
from tensordict_lite import TensorClass, TensorDict, load_memmap
from tests.products import sampled

ROWS = 100


class Pair(TensorClass):
    """A tensorclass of two columns."""

    x: torch.Tensor
    y: torch.Tensor


def dense(first: int) -> Any:
    return TensorDict({"x": torch.arange(first, first + ROWS)}, [ROWS])


def nested(first: int) -> Any:
    return TensorDict({"x": torch.arange(first, first + ROWS), "n": {"y": torch.zeros(ROWS, 3)}}, [ROWS])


def with_words(first: int) -> Any:
    return dense(first).set("w", [f"word {row}" for row in range(first, first + ROWS)])


def typed(first: int) -> Any:
    return Pair(x=torch.arange(first, first + ROWS), y=torch.zeros(ROWS), batch_size=[ROWS])


def large(first: int) -> Any:
    """Of more bytes than are written in place."""
    return dense(first).set("z", torch.zeros(ROWS, 4096))


KINDS = {kind.__name__: kind for kind in (dense, nested, with_words, typed, large)}


def unpack(rows: Any, folder: Path) -> None:
    rows.memmap(folder.with_suffix(".tdz"))
    lib.unpack_memmap(folder.with_suffix(".tdz"), folder)


SAVES = {
    "memmap": lambda rows, folder: rows.memmap(folder),
    "memmap_": lambda rows, folder: rows.memmap_(folder),
    "threads": lambda rows, folder: rows.memmap(folder, num_threads=2),
    "early": lambda rows, folder: rows.memmap(folder, num_threads=2, return_early=True).result(),
    "reference": lambda rows, folder: rows.memmap(folder, reference_format=True),
    "copy": lambda rows, folder: rows.memmap(folder.with_name("other")).memmap(folder, copy_existing=True),
    "unpack": unpack,
    "overwrite": lambda rows, folder: tdmap.map(rows, torch.clone, out=folder, overwrite=True, num_workers=0),
}


def change(chunk: Any) -> None:
    """Doubles a column; where the working folder has a file `kill`, it is killed in the middle of a chunk."""
    x = chunk.get("x")
    if os.path.exists("kill") and int(x[0]) == 40:
        x[:5] = -1
        os.kill(os.getpid(), signal.SIGKILL)
    x.mul_(2)


def count(chunk: Any) -> None:
    chunk["late"].add_(1)


def in_place(folder: Path) -> Any:
    data = load_memmap(folder)
    return tdmap.map(data, change, out=data, resume=True, chunksize=10, num_workers=0)


def stop_at(point: str, run: Any) -> None:
    """Run in a process of its own, to one of the points at which a run may end."""
    if point == "kill":
        Path("kill").touch()
    child = os.fork()
    if not child:
        try:
            run()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    Path("kill").unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.mark.parametrize("kind, save, point", sampled(2, KINDS, SAVES, ["kill", "complete"]))
def test_rows_that_were_saved_anew_are_changed_once(kind: str, save: str, point: str, folder: Path) -> None:
    if kind == "with_words" and save == "overwrite":
        pytest.skip("torch.clone is of tensors")
    KINDS[kind](0).memmap(folder)
    stop_at(point, lambda: in_place(folder))
    SAVES[save](KINDS[kind](1000), folder)
    in_place(folder)
    assert load_memmap(folder).get("x").tolist() == [2 * row for row in range(1000, 1000 + ROWS)]


@pytest.mark.parametrize("kind", [nested, large])
@pytest.mark.parametrize("point", ["kill", "complete"])
def test_a_dataset_with_some_columns_saved_anew_is_refused(point: str, kind: Any, folder: Path) -> None:
    kind(0).memmap(folder)
    stop_at(point, lambda: in_place(folder))
    data = load_memmap(folder).unlock_()
    data["x"] = torch.arange(1000, 1000 + ROWS)
    data.memmap_(folder)
    with pytest.raises(
        tdmap.errors.ResumeMismatch, match="a save has replaced files of the dataset since, and not all"
    ):
        in_place(folder)
    assert load_memmap(folder)["x"].tolist() == list(range(1000, 1000 + ROWS))
    kind(2000).memmap(folder)  # one of the ways on
    in_place(folder)
    assert load_memmap(folder)["x"].tolist() == [2 * row for row in range(2000, 2000 + ROWS)]


def test_columns_that_are_added_leave_complete_runs_as_they_are(folder: Path) -> None:
    dense(0).memmap(folder)
    in_place(folder)
    data = load_memmap(folder)
    data.memmap_()  # nothing to write
    with pytest.warns(AlreadyComplete):
        in_place(folder)
    data.make_memmap_from_tensor("late", torch.zeros(ROWS))
    tdmap.map(data, count, out=data, resume=True, num_workers=0)
    assert data["late"].tolist() == [1] * ROWS


@pytest.mark.parametrize("save", ["memmap", "unpack"])
@pytest.mark.parametrize("step", ["unlink", "rename", "rmdir", "_exchanged"])
def test_a_save_that_is_killed_leaves_old_rows_or_new_ones(
    step: str, save: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first call of each function that changes the folder: runs of the old rows never reach the new ones."""
    dense(0).memmap(folder)
    stop_at("kill", lambda: in_place(folder))

    def killed() -> None:
        from tensordict_lite.memmap.disk import staging

        module = staging if step == "_exchanged" else staging.os
        real = getattr(module, step)

        def kill(path: Any, *args: Any, **options: Any) -> Any:
            if "/data/" in str(path) or ".data.tdlite" in str(path):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(path, *args, **options)

        setattr(module, step, kill)
        SAVES[save](dense(1000), folder)

    stop_at("complete", killed)
    first = int(load_memmap(folder)["x"][-1]) + 1 - ROWS
    assert first in (0, 1000)
    in_place(folder)
    assert load_memmap(folder)["x"].tolist() == [2 * row for row in range(first, first + ROWS)]
    SAVES[save](dense(1000), folder)
    in_place(folder)
    assert load_memmap(folder)["x"].tolist() == [2 * row for row in range(1000, 1000 + ROWS)]


def test_a_result_that_was_saved_over_is_not_taken_for_the_result(folder: Path) -> None:
    """Of runs out of place, and of the cache of a pipeline."""
    source = dense(0)

    def run() -> Any:
        return tdmap.map(source, torch.neg, out=folder, resume=True, num_workers=0)

    def cache() -> Any:
        return source.pipeline().map(torch.neg).cache(folder.with_name("cache")).collect(num_workers=0)

    for call, place in ((run, folder), (cache, folder.with_name("cache"))):
        call()
        dense(1000).memmap(place)
        with pytest.raises(FileExistsError):
            call()
        assert load_memmap(place)["x"][0] == 1000


def test_a_planted_link_is_not_written_through_by_a_save(folder: Path, tmp_path: Path) -> None:
    dense(0).memmap(folder)
    (tmp_path / "elsewhere").mkdir()
    (folder / ".tdmap").symlink_to(tmp_path / "elsewhere")
    dense(1000).memmap(folder)
    assert not list((tmp_path / "elsewhere").iterdir())
