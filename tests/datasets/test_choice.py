"""Choices of jagged rows are written part by part, and their folder is looked at before any work is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tdmap import tuning
from tdmap.datasets import Jagged, Table
from tdmap.memory.scratch import Scratch

WORDS = [f"{'w' * (i % 7)}{i}" if i % 5 else "" for i in range(503)]


@pytest.fixture(params=["memory", "folder", "part"])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> Jagged:
    rows = Jagged.from_list(WORDS if request.param != "part" else ["before", *WORDS, "behind"])
    if request.param != "memory":
        rows = rows.save(tmp_path / "words", num_workers=0)
    return rows[1:-1] if request.param == "part" else rows


@pytest.fixture(params=[1, 40, 1 << 20])
def many_parts(request: pytest.FixtureRequest) -> Iterator[None]:
    with tuning.use(gather_bytes=request.param):
        yield


@pytest.mark.usefixtures("many_parts")
def test_every_choice_gives_its_rows(words: Jagged, tmp_path: Path) -> None:
    check_choices(words, tmp_path, num_workers=0)


@tuning.use(gather_bytes=1000)
def test_workers_that_inherit_nothing_write_them(tmp_path: Path) -> None:
    words = Jagged.from_list(WORDS).save(tmp_path / "words", num_workers=0)
    check_choices(words, tmp_path, num_workers=2, mp_start_method="forkserver")


def check_choices(words: Jagged, folder: Path, **options: Any) -> None:
    kept = words.filter(_is_short, folder / "filter", **options)
    assert kept.tolist() == [word for word in WORDS if len(word) < 5]
    assert words.filter(_never, folder / "none", **options).tolist() == []
    order = torch.randperm(len(WORDS), generator=torch.Generator().manual_seed(3))
    assert words.shuffle(folder / "shuffle", seed=3, **options).tolist() == [WORDS[i] for i in order]
    assert words.sort(folder / "sort", key="length", **options).tolist() == sorted(WORDS, key=len)
    assert words.save(folder / "save", **options).tolist() == WORDS
    table = Table.of({"rows": words, "n": torch.arange(len(WORDS))})
    some = torch.tensor([-1, 0, 7, 7])
    taken = table.take(some, folder / "take", **options)
    assert taken["rows"].tolist() == [WORDS[i] for i in some]
    assert taken["n"].tolist() == [len(WORDS) - 1, 0, 7, 7]


def _is_short(rows: Jagged) -> torch.Tensor:
    return rows.lengths < 5


def _never(rows: Jagged) -> list[bool]:
    return [False] * len(rows)


@pytest.mark.parametrize("kind", ["jagged", "table"])
def test_a_taken_folder_is_told_before_the_predicate_is_asked(kind: str, tmp_path: Path) -> None:
    rows = Jagged.from_list(WORDS)
    rows.save(tmp_path / "taken", num_workers=0)
    data = rows if kind == "jagged" else Table.of(rows)
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        data.filter(_not_asked, tmp_path / "taken", num_workers=0)
    assert Jagged.open(tmp_path / "taken").tolist() == WORDS


def _not_asked(rows: Jagged) -> list[bool]:
    raise AssertionError("the predicate was asked")


def test_rows_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="row 9 of 3 rows"):
        Table.of(Jagged.from_list(["a", "b", "c"])).take(torch.tensor([0, 9]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_scratch_files_go_whatever_happens(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Scratch(tmp_path) as scratch:
        room = scratch.empty(1000, torch.int32)
        assert room.shape == (1000,) and scratch.empty(0).shape == (0,)
        assert len(list(tmp_path.iterdir())) == 2
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
    assert room.fill_(7).sum() == 7000  # what was mapped stays readable


def test_a_predicate_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="was asked"):
        Jagged.from_list(WORDS).filter(_not_asked, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out").exists()
