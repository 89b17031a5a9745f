"""Rows of objects that come from different trees: mapped ones are on the CPU, fresh ones nowhere, some have names."""

from pathlib import Path

import pytest
import torch

import tdmap
from tensordict_lite import NonTensorData, TensorDict

ROWS = 12


def words(start: int = 0, stop: int = ROWS, **options: object) -> TensorDict:
    """Rows with two batch dimensions: each row's objects are a stack of their own."""
    number = torch.arange(2 * start, 2 * stop).view(-1, 2)
    return TensorDict(
        {"n": number, "word": [[f"w{i}" for i in row] for row in number.tolist()]}, number.shape, **options
    )


def each(row: TensorDict) -> list[list[str]]:
    return [list(part) for part in row["word"]]


@pytest.fixture
def mapped(tmp_path: Path) -> TensorDict:
    words().memmap(tmp_path / "source")
    return TensorDict.load_memmap(tmp_path / "source")


def fails_at_some(chunk: TensorDict) -> TensorDict:
    if any(number % 6 == 0 for number in chunk["n"][:, 0].tolist()):
        raise ValueError("a bad row")
    return chunk


@pytest.mark.filterwarnings("ignore::tdmap.errors.SkippedRows")
@pytest.mark.parametrize("executor", ["serial", "process"])
@pytest.mark.parametrize("chunksize", [1, 5, ROWS])
def test_failed_rows_of_a_mapped_dataset_are_none(mapped: TensorDict, executor: str, chunksize: int) -> None:
    result = tdmap.map(mapped, fails_at_some, on_error="skip", chunksize=chunksize, executor=executor, num_workers=2)
    wanted = [[None, None] if i % 3 == 0 else [f"w{2 * i}", f"w{2 * i + 1}"] for i in range(ROWS)]
    assert each(result) == wanted


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"names": ["row", "part"]}], ids=["device", "names"])
def test_chunks_may_differ_in_what_is_no_row(options: dict[str, object]) -> None:
    def some(chunk: TensorDict) -> TensorDict:
        start = int(chunk["n"][0, 0]) // 2
        return words(start, start + 4, **(options if start == 4 else {}))

    assert each(tdmap.map(words(), some, chunksize=4, executor="serial")) == each(words())


def test_one_object_a_chunk_beside_mapped_rows(mapped: TensorDict) -> None:
    def some(chunk: TensorDict) -> TensorDict:
        if chunk["n"][0, 0] != 8:
            return chunk
        return TensorDict({"n": chunk["n"], "word": NonTensorData("same", batch_size=[4, 2])}, [4, 2])

    result = tdmap.map(mapped, some, chunksize=4, executor="serial")
    wanted = each(words())
    wanted[4:8] = [["same", "same"]] * 4
    assert each(result) == wanted
    assert torch.equal(result["n"], mapped["n"])
