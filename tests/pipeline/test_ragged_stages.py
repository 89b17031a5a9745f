"""Ragged columns in pipelines: against plain lists of Python's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict

ROWS = [[100 * number + n for n in range(number * 7 % 11)] for number in range(53)]


def rows(folder: Path | None = None) -> TensorDict:
    entries = {
        "x": torch.arange(len(ROWS)),
        "ids": Ragged.from_list([torch.tensor(row, dtype=torch.int32) for row in ROWS]),
        "word": ["w" * (number % 4) for number in range(len(ROWS))],
    }
    made = TensorDict(entries, [len(ROWS)])
    return made if folder is None else made.memmap(folder)


def unpadded(batch: Any, key: str = "ids") -> list[list[int]]:
    return [row[mask].tolist() for row, mask in zip(batch[key], batch[f"{key}_mask"], strict=True)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mapped", [False, True])
def test_padded_batches_have_the_rows(tmp_path: Path, workers: int, mapped: bool) -> None:
    pipeline = tdmap.Pipeline(rows(tmp_path / "in" if mapped else None)).shuffle(seed=3)
    seen: list[int] = []
    for batch in pipeline.batch(8).pad("ids").pad("word", value=9).iter(num_workers=workers):
        numbers = batch["x"].tolist()
        assert unpadded(batch) == [ROWS[number] for number in numbers]
        assert batch["ids"].shape[1] == max(len(ROWS[number]) for number in numbers)
        assert batch["ids"].dtype is torch.int32
        assert batch["word"].eq(ord("w")).sum(1).tolist() == [number % 4 for number in numbers]
        assert set(batch.keys()) == {"x", "ids", "ids_mask", "word", "word_mask"}
        seen += numbers
    assert sorted(seen) == list(range(len(ROWS)))
    fixed = list(pipeline.pad("ids", to=4, left=True).batch(8).iter(num_workers=workers))
    assert [unpadded(batch) for batch in fixed] == [[ROWS[n][:4] for n in batch["x"].tolist()] for batch in fixed]


@pytest.mark.parametrize("stage", ["pad", "pack"])
def test_rows_are_filled_with_what_their_dtype_holds(stage: str) -> None:
    ids = Ragged.from_list([torch.tensor(row, dtype=torch.uint16) for row in ([1, 60_000], [3])])
    made = tdmap.Pipeline(TensorDict({"ids": ids}, [2]))

    def filled(value: float) -> Any:
        ready = made.batch(2).pad("ids", value=value) if stage == "pad" else made.pack("ids", 4, value=value).batch(1)
        return next(iter(ready.iter(num_workers=0)))["ids"].flatten().tolist()

    assert filled(9) == [1, 60_000, 3, 9]
    with pytest.raises(ValueError, match=r"rows of torch.uint16 cannot be filled with value=-100"):
        filled(-100)


def test_other_stages_see_the_rows() -> None:
    long = tdmap.Pipeline(rows()).filter(lambda chunk: chunk["x"] % 2 == 0).take(9).pad("ids", to=12).batch(4)
    assert [row for batch in long.iter(num_workers=0) for row in unpadded(batch)] == ROWS[:18:2]

    def count(part: TensorDict) -> TensorDict:
        words = torch.tensor([len(word) for word in part["word"]])
        return TensorDict({"n": part["ids"].lengths + words}, part.batch_size)

    found = tdmap.Pipeline(rows()).map(count).collect(num_workers=0)
    assert found["n"].tolist() == [len(row) + number % 4 for number, row in enumerate(ROWS)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("n", "window"), [(4, 10), (64, 7), (5, 1000), (1, 1)])
def test_packed_blocks_as_by_hand(workers: int, n: int, window: int) -> None:
    keys = ("ids", "document", "position")
    pipeline = tdmap.Pipeline(rows()).pack("ids", n, window=window, columns=keys[1:]).batch(3)
    found = [
        list(zip(*(batch[key][row].tolist() for key in keys), strict=True))
        for batch in pipeline.iter(num_workers=workers)
        for row in range(len(batch))
    ]
    expected = []
    for start in range(0, len(ROWS), window):
        flat = [
            (value, number - start, position)
            for number in range(start, min(start + window, len(ROWS)))
            for position, value in enumerate(ROWS[number])
        ]
        flat += [(0, -1, 0)] * (-len(flat) % n)
        expected += [flat[at : at + n] for at in range(0, len(flat), n)]
    assert found == expected
    plain = next(iter(tdmap.Pipeline(rows()).pack("ids", n, window=window).batch(3).iter(num_workers=workers)))
    assert list(plain.keys()) == ["ids"]


def test_packing_after_a_shuffle_has_every_element_once() -> None:
    shuffled = tdmap.Pipeline(rows(), seed=1).shuffle(seed=1)
    blocks = list(shuffled.pack("ids", 8, window=16, columns=["document"]).batch(2).iter(num_workers=0))
    elements = torch.cat([block["ids"][block["document"] >= 0] for block in blocks])
    assert sorted(elements.tolist()) == sorted(value for row in ROWS for value in row)


def test_buckets_have_every_row_once_and_rows_of_one_length_together() -> None:
    column = Ragged.from_list([torch.zeros(number * 37 % 101) for number in range(400)])
    data = TensorDict({"rows": column}, [400])
    pipeline = tdmap.Pipeline(data, seed=0).shuffle(seed=0).bucket("rows", 10, window=20).pad("rows")
    batches = list(pipeline.iter(num_workers=0))
    lengths = [batch["rows_mask"].sum(1) for batch in batches]
    assert sorted(torch.cat(lengths).tolist()) == sorted(column.lengths.tolist())
    assert [len(batch) for batch in batches] == [10] * 40
    assert sum(batch["rows"].numel() for batch in batches) < 1.2 * int(column.lengths.sum())
    again = [batch["rows_mask"].sum(1) for batch in pipeline.iter(num_workers=2, epoch=0)]
    assert all(torch.equal(a, b) for a, b in zip(lengths, again, strict=True))
    other = [batch["rows_mask"].sum(1) for batch in pipeline.iter(num_workers=0, epoch=1)]
    assert not torch.equal(torch.cat(lengths), torch.cat(other))
    rest = tdmap.Pipeline(data[:47]).bucket("rows", 10, window=2, shuffle=False).pad("rows")
    assert [len(batch) for batch in rest.iter(num_workers=0)] == [10, 10, 10, 10, 7]


@pytest.mark.parametrize("stage", ["pad", "pack", "bucket"])
def test_an_epoch_is_resumed(tmp_path: Path, stage: str) -> None:
    start = tdmap.Pipeline(rows(tmp_path / "in"), seed=7).shuffle(seed=7)
    pipeline: Any = {
        "pad": start.batch(4).pad("ids"),
        "pack": start.pack("ids", 8, window=16).batch(2),
        "bucket": start.bucket("ids", 4, window=3).pad("ids"),
    }[stage]
    whole = [batch["ids"].tolist() for batch in pipeline.iter(num_workers=0, epoch=0)]
    for stop in (1, len(whole) // 2, len(whole) - 1):
        iterator = pipeline.iter(num_workers=2, epoch=0)
        head = [next(iterator)["ids"].tolist() for _ in range(stop)]
        state = json.loads(json.dumps(iterator.state_dict()))
        iterator.close()
        rest = pipeline.iter(num_workers=1, epoch=0)
        rest.load_state_dict(state)
        assert head + [batch["ids"].tolist() for batch in rest] == whole


def test_what_makes_no_sense_is_told() -> None:
    pipeline = tdmap.Pipeline(rows())
    with pytest.raises(TypeError, match="'x' must be a Ragged"):
        list(pipeline.pad("x", to=3).iter(num_workers=0))
    with pytest.raises(KeyError, match="'y'"):
        pipeline.pad("y", to=3)
    with pytest.raises(ValueError, match="pass to="):
        pipeline.pad("ids")
    with pytest.raises(ValueError, match="leave out the"):
        pipeline.batch(3).bucket("ids", 2)
    with pytest.raises(ValueError, match="at least 1"):
        pipeline.pack("ids", 0)
    with pytest.raises(ValueError, match="'document' and 'position'"):
        pipeline.pack("ids", 4, columns=["documents"])
