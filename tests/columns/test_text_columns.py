"""Columns of strings that lie in files: every operation gives their rows, and takes no string of another row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.data.objects import Each, RaggedPiece
from tensordict_lite import TensorDict
from tensordict_lite.memmap import tuning
from tensordict_lite.ragged import RaggedColumn

ROWS = 211
WORDS = [f"w{i % 13} é" * (i % 3) + str(i) for i in range(ROWS)]


@pytest.fixture(autouse=True)
def every_column_in_files() -> Iterator[None]:
    with tuning.use(text_rows=1):
        yield


@pytest.fixture
def data(tmp_path: Path) -> TensorDict:
    table = TensorDict({"n": torch.arange(ROWS), "in": {"word": WORDS}}, [ROWS])
    table.memmap(tmp_path / "source")
    loaded = TensorDict.load_memmap(tmp_path / "source")
    assert isinstance(loaded.get(("in", "word"))._objects, RaggedColumn)
    return loaded


def same(rows: TensorDict) -> TensorDict:
    return rows


def loud(rows: TensorDict) -> TensorDict:
    words = [word.upper() for word in rows["in", "word"]]
    return TensorDict({"n": rows["n"], "in": {"word": words}}, rows.batch_size)


def is_even(rows: TensorDict) -> torch.Tensor:
    return rows["n"] % 2 == 0


def twice(rows: TensorDict) -> TensorDict:
    return torch.cat([rows, rows])


def words_of(data: TensorDict) -> list[str]:
    return list(data["in", "word"])


PERMUTED = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2)).tolist()
UPPER = [word.upper() for word in WORDS]

OPERATIONS = {
    "map": (lambda data, **how: tdmap.map(data, same, **how), WORDS),
    "map to other strings": (lambda data, **how: tdmap.map(data, loud, **how), UPPER),
    "map by rows": (lambda data, **how: tdmap.map(data, loud_row, chunksize=0, **how), UPPER),
    "filter": (lambda data, **how: tdmap.filter(data, is_even, **how), WORDS[::2]),
    "shuffle": (lambda data, **how: tdmap.shuffle(data, seed=2, **how), [WORDS[i] for i in PERMUTED]),
    "sort": (lambda data, **how: tdmap.sort(data, ("in", "word"), **how), sorted(WORDS)),
    "pipeline": (
        lambda data, out=None, **how: (
            data.pipeline().map(loud).write(out, **how) if out is not None else data.pipeline().map(loud).collect(**how)
        ),
        UPPER,
    ),
}


def loud_row(row: TensorDict) -> TensorDict:
    return TensorDict({"n": row["n"], "in": {"word": row["in", "word"].upper()}}, [])


@pytest.mark.parametrize("into", ["memory", "folder"])
@pytest.mark.parametrize("method", ["serial", "fork", "forkserver"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_give_the_strings(data: TensorDict, name: str, method: str, into: str, tmp_path: Path) -> None:
    if method == "forkserver" and name not in ("map to other strings", "shuffle"):
        pytest.skip("two of them tell")
    run, wanted = OPERATIONS[name]
    how: dict[str, Any] = {"num_workers": 0} if method == "serial" else {"num_workers": 2, "mp_start_method": method}
    if into == "folder":
        how["out"] = tmp_path / "out"
    result = run(data, **how)
    assert words_of(result) == wanted
    if into == "folder":
        loaded = TensorDict.load_memmap(tmp_path / "out")
        assert words_of(loaded) == wanted
        assert isinstance(loaded.get(("in", "word"))._objects, RaggedColumn)
    if name != "map by rows":  # nobody else has asked for the rows of the source
        assert data.get(("in", "word"))._objects._cells == {}


def test_flat_map_and_map_iter(data: TensorDict) -> None:
    chunks = tdmap.map_iter(data, loud, num_workers=2, chunksize=50)
    assert [word for chunk in chunks for word in words_of(chunk)] == UPPER
    many = words_of(tdmap.flat_map(data, twice, chunksize=ROWS, num_workers=1))
    assert many == WORDS + WORDS


def some_fail(rows: TensorDict) -> TensorDict:
    if (rows["n"] % 50 == 7).any():
        raise ValueError("a bad row")
    return loud(rows)


@pytest.mark.filterwarnings("ignore::tdmap.errors.SkippedRows")
@pytest.mark.parametrize("resume", [False, True])
def test_rows_that_fail_are_none(data: TensorDict, resume: bool, tmp_path: Path) -> None:
    result = tdmap.map(data, some_fail, out=tmp_path / "out", on_error="skip", resume=resume, num_workers=2)
    wanted = [None if i % 50 == 7 else word for i, word in enumerate(UPPER)]
    assert words_of(result) == wanted == words_of(TensorDict.load_memmap(tmp_path / "out"))


def test_strings_travel_as_their_bytes() -> None:
    import pickle

    piece = pickle.loads(pickle.dumps(Each(list(WORDS))))
    assert isinstance(piece, RaggedPiece) and piece.values == WORDS and len(piece) == ROWS
    assert pickle.loads(pickle.dumps(piece)).values == WORDS
    for others in ([*WORDS, None], [*WORDS, 3], WORDS[:3], [(word,) for word in WORDS]):
        assert pickle.loads(pickle.dumps(Each(others))).values == others
