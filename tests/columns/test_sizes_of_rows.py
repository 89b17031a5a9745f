"""Chunks, blocks and budgets are cut by the bytes of whole rows, text, bytes and lists of numbers included."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.output import ragged
from tensordict_lite import NonTensorStack, Ragged, TensorDict
from tensordict_lite.memmap import tuning as files

ROWS, SMALL, LARGE = 4000, 200, 100_000_000
LENGTHS = [LARGE if row == ROWS // 3 else SMALL for row in range(ROWS)]
CHUNK = 1 << 20


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "text": lambda lengths: Ragged.from_list(["a" * n for n in lengths]),
    "bytes": lambda lengths: Ragged.from_list([bytes(n) for n in lengths]),
    "lists": lambda lengths: Ragged.from_list([torch.zeros(n // 8, dtype=torch.int64) for n in lengths]),
    "chosen rows": lambda lengths: Ragged.from_list(["a" * n for n in [5, *lengths, 5]])[torch.arange(1, ROWS + 1)],
    "objects": lambda lengths: NonTensorStack(*["a" * n for n in lengths]),
}


@pytest.fixture(scope="module", params=KINDS)
def data(request: pytest.FixtureRequest) -> TensorDict:
    """One row holds most of the bytes."""
    return TensorDict({"x": torch.arange(ROWS), "w": KINDS[request.param](LENGTHS)}, [ROWS])


OPERATIONS: dict[str, Callable[[TensorDict, Callable[[Any], None]], Any]] = {
    "map": lambda data, see: tdmap.map(data, lambda rows: see(rows) or rows["x"], num_workers=0),
    "map_iter": lambda data, see: list(tdmap.map_iter(data, see, num_workers=0)),
    "filter": lambda data, see: tdmap.filter(data, lambda rows: see(rows) or rows["x"] < 0, num_workers=0),
    "flat_map": lambda data, see: tdmap.flat_map(data, lambda rows: see(rows) or rows["x"], num_workers=0),
    "map_reduce": lambda data, see: tdmap.map_reduce(
        data, lambda rows: see(rows) or rows["x"].sum(), lambda a, b: a + b, num_workers=0
    ),
    "pipeline": lambda data, see: data.pipeline().map(lambda rows: see(rows) or rows["x"]).collect(num_workers=0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_chunks_are_cut_by_the_mean_bytes_of_a_row(
    data: TensorDict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("tdmap.ops.filter"), "MASK_BYTES", CHUNK)
    sizes: list[int] = []
    OPERATIONS[name](data, lambda rows: sizes.append(len(rows)))
    assert max(sizes) <= CHUNK * ROWS / sum(LENGTHS)


@pytest.mark.parametrize("kind", ["text", "bytes", "lists", "chosen rows"])
def test_blocks_are_cut_by_the_bytes_of_their_own_rows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long rows that follow one another are not gathered together: blocks are not cut by the mean of all rows."""
    blocks: list[int] = []
    gather = ragged.gather_rows

    def gathered(values: Any, starts: Any, ends: Any, out: torch.Tensor) -> None:
        blocks.append(out.nbytes)
        gather(values, starts, ends, out)

    monkeypatch.setattr(ragged, "gather_rows", gathered)
    lengths = [LARGE // 100 if 100 <= row < 140 else 8 for row in range(ROWS)]
    data = TensorDict({"x": torch.arange(ROWS), "w": KINDS[kind](lengths)}, [ROWS])
    with files.use(text_rows=1):
        result = tdmap.sort(data, "x", out=tmp_path / "out", descending=True, num_workers=0)
    assert result.get("w").lengths.tolist() == data.get("w").lengths.tolist()[::-1]
    assert blocks and max(blocks) <= 2 << 20
