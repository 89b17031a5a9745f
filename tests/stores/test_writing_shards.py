"""`out=folder, rows_per_shard=`: whole or not there, the same rows, and resumed after any interruption."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.errors import DatasetNotFoundError
from tests.stores.kinds import KINDS, numbers, same


def keep(chunk: Any) -> Any:
    return chunk.clone()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_every_kind_are_written_as_shards(kind: Any, workers: int, tmp_path: Path) -> None:
    rows = kind(0, 23)
    if kind is KINDS["ragged"]:
        pytest.skip("results of different shapes have no place in one folder")
    result = tdmap.map(rows, keep, num_workers=workers, out=tmp_path / "set", rows_per_shard=5)
    assert isinstance(result, tdmap.types.ShardedDataset) and result.ends == [5, 10, 15, 20, 23]
    assert same(result.contiguous(), rows)
    assert same(tdmap.open(str(tmp_path / "set"))[3:12], rows[3:12])
    assert all(same(TensorDict.load_memmap(path), rows[5 * n : 5 * n + 5]) for n, path in enumerate(result.shards))


def test_shards_are_made_of_shards(tmp_path: Path) -> None:
    first = tdmap.map(numbers(0, 50), keep, num_workers=0, out=tmp_path / "a", rows_per_shard=7)
    second = tdmap.map(first, keep, num_workers=2, out=tmp_path / "b", rows_per_shard=11)
    third = tdmap.map(second, keep, num_workers=2, out=tmp_path / "c")
    assert second.ends == [11, 22, 33, 44, 50]
    assert same(second.contiguous(), numbers(0, 50)) and same(third, numbers(0, 50))


def draw(chunk: Any) -> TensorDict:
    return TensorDict({"r": torch.rand(len(chunk)), "x": chunk["x"]}, [len(chunk)])


def test_a_seed_gives_the_bits_that_one_folder_gets(tmp_path: Path) -> None:
    data = numbers(0, 40)
    alone = tdmap.map(data, draw, num_workers=2, seed=5, chunksize=4)
    shards = tdmap.map(data, draw, num_workers=2, seed=5, chunksize=4, out=tmp_path / "set", rows_per_shard=8)
    assert torch.equal(shards["r"], alone["r"])


def fail_on(rows: set[int]) -> Any:
    def fn(chunk: Any) -> TensorDict:
        if rows & set(chunk["x"].tolist()):
            raise ValueError("bad row")
        return TensorDict({"x": chunk["x"] + 1}, [len(chunk)])

    return fn


def words_without(rows: set[int]) -> Any:
    def fn(chunk: Any) -> TensorDict:
        if rows & set(chunk["x"].tolist()):
            raise ValueError("bad day")
        return TensorDict({"x": chunk["x"] + 1, "word": [f"w{x}" for x in chunk["x"].tolist()]}, [len(chunk)])

    return fn


def of_lengths(first: int, count: int) -> TensorDict:
    """Ragged columns, which lie in files as values and offsets."""
    rows = [torch.arange(row % 4) for row in range(first, first + count)]
    return TensorDict({"x": torch.arange(first, first + count), "r": Ragged.from_list(rows)}, [count])


FLAT = {name: kind for name, kind in {**KINDS, "of_lengths": of_lengths}.items() if name != "ragged"}


@pytest.mark.parametrize("kind", FLAT.values(), ids=FLAT)
def test_rows_of_a_shard_that_all_raise_are_those_that_a_folder_gets(kind: Any, tmp_path: Path) -> None:
    def fn(chunk: Any, rows: torch.Tensor) -> Any:
        if any(row in range(5, 11) for row in rows.tolist()):
            raise ValueError("bad row")
        return chunk.clone()

    how: Any = {"num_workers": 0, "chunksize": 2, "with_indices": True}
    folder = tdmap.map(kind(0, 20), fn, out=tmp_path / "folder", on_error=tdmap.RowErrors(), **how)
    how |= {"out": tmp_path / "set", "rows_per_shard": 5}
    shards = tdmap.map(kind(0, 20), fn, on_error=tdmap.RowErrors(), **how)
    assert same(shards.contiguous(), folder)


@pytest.mark.parametrize("how", [{}, {"rows_per_shard": 10}], ids=["folder", "shards"])
def test_results_that_did_not_fit_in_an_earlier_session_count(how: Any, tmp_path: Path) -> None:
    marker = str(tmp_path / "interrupted")

    def fn(chunk: Any) -> TensorDict:
        row = int(chunk["x"][0])
        if row == 25 and not os.path.exists(marker):
            Path(marker).touch()
            raise KeyboardInterrupt
        return TensorDict({"y": torch.ones(1, 1 + bool(row % 10))}, [1])

    how = {"num_workers": 0, "chunksize": 1, "on_error": "skip", "resume": True, "out": tmp_path / "out", **how}
    with pytest.raises(KeyboardInterrupt):
        tdmap.map(numbers(0, 40), fn, **how)
    with pytest.raises(tdmap.errors.OutputMismatch) as caught:
        tdmap.map(numbers(0, 40), fn, **how)
    assert any("36 of the first 40 results" in note for note in caught.value.__notes__)


def test_results_of_a_shard_that_do_not_fit_are_judged_with_those_of_the_others(tmp_path: Path) -> None:
    odd: set[int] = set()

    def fn(chunk: Any) -> TensorDict:
        wide = bool(odd & set(chunk["x"].tolist()))
        return TensorDict({"y": torch.ones(len(chunk), 2 if wide else 1)}, [len(chunk)])

    errors, odd = tdmap.RowErrors(), set(range(11, 20))
    how: Any = {"num_workers": 2, "chunksize": 1, "rows_per_shard": 10}
    tdmap.map(numbers(0, 40), fn, on_error=errors, out=tmp_path / "few", **how)
    assert errors.rows == list(range(11, 20))
    odd = {row for row in range(40) if row % 10}
    with pytest.raises(tdmap.errors.OutputMismatch) as caught:
        tdmap.map(numbers(0, 40), fn, on_error="skip", out=tmp_path / "most", **how)
    assert any("36 of the first 40 results" in note for note in caught.value.__notes__)


class _Stop(tdmap.events.Callback):
    def on_lease_done(self, event: Any) -> None:
        raise KeyboardInterrupt


def test_a_resumed_call_knows_the_rows_that_raised_before(tmp_path: Path) -> None:
    fn = words_without({1, *range(5, 10)})
    how: Any = {"num_workers": 1, "out": tmp_path / "set", "rows_per_shard": 5, "resume": True}
    with pytest.raises(KeyboardInterrupt):
        tdmap.map(numbers(0, 20), fn, on_error="skip", callbacks=[_Stop()], **how)
    errors = tdmap.RowErrors()
    result = tdmap.map(numbers(0, 20), fn, on_error=errors, **how)
    assert errors.rows == [1, *range(5, 10)]
    assert {str(bad.error) for bad in errors} == {"bad day"}
    assert result["x"].tolist() == [0 if row in errors.rows else row + 1 for row in range(20)]


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "set"
    with pytest.raises(ValueError, match="bad row"):
        tdmap.map(numbers(0, 20), fail_on({11}), num_workers=2, out=out, rows_per_shard=4)
    assert not out.exists() or not list(out.glob("shard*"))
    assert len(tdmap.map(numbers(0, 20), fail_on(set()), num_workers=2, out=out, rows_per_shard=4)) == 20


def test_shards_that_are_whole_are_not_made_again(tmp_path: Path) -> None:
    out, log, mended = tmp_path / "set", tmp_path / "log", tmp_path / "mended"

    def fn(chunk: Any) -> Any:
        with open(log, "a") as file:
            print(int(chunk["x"][0]), file=file)
        if int(chunk["x"][0]) == 20 and not mended.exists():
            raise KeyboardInterrupt
        return chunk.select("x")

    how: Any = {"num_workers": 0, "chunksize": 4, "out": out, "rows_per_shard": 8, "resume": True}
    with pytest.raises(KeyboardInterrupt):
        tdmap.map(numbers(0, 40), fn, **how)
    with pytest.raises(DatasetNotFoundError, match="is unfinished"):
        tdmap.open(out)
    mended.touch()
    assert tdmap.map(numbers(0, 40), fn, **how)["x"].tolist() == list(range(40))
    assert log.read_text().split() == ["0", "4", "8", "12", "16", "20", "16", "20", "24", "28", "32", "36"]
    assert not list((out / ".tdmap").glob("*/*"))


def test_a_run_is_gone_on_with_by_the_same_call_alone(tmp_path: Path) -> None:
    out, data = tmp_path / "set", numbers(0, 20)
    with pytest.raises(ValueError, match="bad row"):
        tdmap.map(data, fail_on({11}), num_workers=0, out=out, rows_per_shard=4, resume=True)
    with pytest.raises(FileExistsError, match="unfinished run"):
        tdmap.map(data, fail_on({11}), num_workers=0, out=out, rows_per_shard=4)
    with pytest.raises(tdmap.errors.ResumeMismatch, match="rows per shard was 4, and is 5"):
        tdmap.map(data, fail_on({11}), num_workers=0, out=out, rows_per_shard=5, resume=True)
    with pytest.raises(tdmap.errors.ResumeMismatch, match="closure variable rows"):
        tdmap.map(data, fail_on({12}), num_workers=0, out=out, rows_per_shard=4, resume=True)
    (out / ".tdmap" / "run.json").write_text("{}")
    with pytest.raises(tdmap.errors.UntrustedFile):
        tdmap.map(data, fail_on({11}), num_workers=0, out=out, rows_per_shard=4, resume=True)


def test_a_shard_of_the_source_with_other_values_is_another_source(tmp_path: Path) -> None:
    """Whichever of its files was written, and whether its metadata changed or not."""
    source = tdmap.map(numbers(0, 20), keep, num_workers=0, out=tmp_path / "source", rows_per_shard=10)

    def run() -> Any:
        data = tdmap.open(tmp_path / "source")
        return tdmap.map(data, keep, num_workers=0, out=tmp_path / "set", rows_per_shard=10, resume=True)

    run()
    oldest = Path(source.shards[0], "x.memmap")
    oldest.write_bytes(oldest.read_bytes()[::-1])
    os.utime(oldest, ns=(1, 1))  # as a copy that keeps the time of its original: not the file that was written last
    with pytest.raises(tdmap.errors.ResumeMismatch):
        run()


def interrupted(data: Any, fn: Any, **how: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        tdmap.map(data, fn, num_workers=1, resume=True, callbacks=[_Stop()], **how)


@pytest.mark.parametrize("resume", [False, True])
def test_an_unfinished_run_into_one_folder_gets_no_shards_beside_it(resume: bool, tmp_path: Path) -> None:
    out, data = tmp_path / "set", numbers(0, 20)
    interrupted(data, keep, out=out, chunksize=2)
    with pytest.raises(FileExistsError, match="unfinished run of a call without rows_per_shard="):
        tdmap.map(data, fail_on(set()), num_workers=0, out=out, rows_per_shard=4, resume=resume)
    assert same(tdmap.map(data, keep, num_workers=1, out=out, resume=True, chunksize=2), data)
    assert same(tdmap.open(out)[:], data)


@pytest.mark.parametrize("resume", [False, True])
def test_an_unfinished_run_of_shards_gets_no_dataset_beside_it(resume: bool, tmp_path: Path) -> None:
    out, data = tmp_path / "set", numbers(0, 20)
    interrupted(data, keep, out=out, rows_per_shard=4)
    for how in ({}, {"rows_per_shard": 4}) if not resume else ({},):
        with pytest.raises(FileExistsError, match="unfinished run"):
            tdmap.map(data, fail_on(set()), num_workers=0, out=out, resume=resume, **how)  # type: ignore[call-overload]
    assert same(tdmap.map(data, keep, num_workers=1, out=out, resume=True, rows_per_shard=4)[:], data)
    with pytest.raises(FileExistsError, match="holds a dataset of shards"):
        tdmap.map(data, keep, num_workers=0, out=out, resume=resume)


def test_a_run_whose_folder_got_other_shards_does_not_go_on(tmp_path: Path) -> None:
    out, data = tmp_path / "set", numbers(0, 20)
    interrupted(data, keep, out=out, chunksize=2)
    other = tdmap.map(data, fail_on(set()), num_workers=0, out=out, rows_per_shard=4, overwrite=True)
    with pytest.raises(FileExistsError, match="holds a dataset of shards"):
        tdmap.map(data, keep, num_workers=1, out=out, resume=True, chunksize=2)
    assert same(tdmap.open(out)[:], other[:])
    tdmap.map(data, keep, num_workers=0, out=tmp_path / "more", rows_per_shard=4, resume=True)
    tdmap.map(data, fail_on(set()), num_workers=0, out=tmp_path / "more", rows_per_shard=4, overwrite=True)
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        tdmap.map(data, keep, num_workers=0, out=tmp_path / "more", rows_per_shard=4, resume=True)


def test_what_is_there_is_replaced_only_when_asked_and_when_the_new_one_is_whole(tmp_path: Path) -> None:
    out, data = tmp_path / "set", numbers(0, 20)
    tdmap.map(data, keep, num_workers=0, out=out, rows_per_shard=4)
    for again in ({"rows_per_shard": 4}, {}):
        with pytest.raises(FileExistsError):
            tdmap.map(data, keep, num_workers=0, out=out, **again)
    with pytest.raises(ValueError, match="bad row"):
        tdmap.map(data, fail_on({11}), num_workers=0, out=out, rows_per_shard=3, overwrite=True)
    assert same(tdmap.open(out).contiguous(), data)
    result = tdmap.map(tdmap.open(out), fail_on(set()), num_workers=2, out=out, rows_per_shard=7, overwrite=True)
    assert torch.equal(result["x"], data["x"] + 1) and len(list(out.glob("shard-*"))) == 3
    plain = tmp_path / "plain"
    data.memmap(plain)
    tdmap.map(data, keep, num_workers=0, out=plain, rows_per_shard=10, overwrite=True)
    assert same(tdmap.open(plain).contiguous(), data) and not (plain / "meta.json").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        tdmap.map(data, keep, num_workers=0, out=tmp_path / "file", rows_per_shard=10)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rows_per_shard": 0}, "at least 1"),
        ({"rows_per_shard": True}, "at least 1"),
        ({"rows_per_shard": 4, "out": None}, "pass out="),
        ({"rows_per_shard": 4, "shard": (0, 2)}, "cannot be combined"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        tdmap.map(numbers(0, 8), keep, **{"out": tmp_path / "set", **options})
