"""Every operation and pipeline that gives rows of its source gives text and numbers of the same row."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict
from tests.cells.kinds import rows_of
from tests.cells.operations import only_ones
from tests.products import sampled

N = 30

TEXTS: dict[str, Callable[[int], Any]] = {
    "list": lambda i: f"row {i}",
    "text": lambda i: f"row {i}" * (i % 4),
    "bytes": lambda i: b"%d" % i,
    "numbers": lambda i: [i] * (1 + i % 4),
    "json": lambda i: {"row": i},
}


def made(text: str, numbers: list[int], value: Callable[[int], Any] | None = None) -> TensorDict:
    values = [(value or TEXTS[text])(i) for i in numbers]
    column: Any = Ragged.from_objects(values) if text == "json" else Ragged.from_list(values)
    x = torch.tensor(numbers)
    return TensorDict({"x": x, "k": x % 3, "t": values if text == "list" else column}, [len(numbers)])


def is_even(chunk: Any) -> torch.Tensor:
    return chunk["x"] % 2 == 0


def kept(chunk: Any) -> Any:
    return chunk


def backwards(chunk: Any) -> Any:
    return chunk[torch.arange(len(chunk) - 1, -1, -1)]


def right() -> TensorDict:
    x = torch.arange(0, N, 2)
    return TensorDict({"x": x, "r": x * 3}, [len(x)])


OPERATIONS: dict[str, Callable[..., Any]] = {
    "map": lambda data, **o: tdmap.map(data, kept, **o),
    "map of a selection": lambda data, **o: tdmap.map(data, backwards, **o),
    "filter": lambda data, **o: tdmap.filter(data, is_even, **o),
    "sort": lambda data, **o: tdmap.sort(data, "x", descending=True, **o),
    "shuffle": lambda data, **o: tdmap.shuffle(data, seed=3, **o),
    "flat_map": lambda data, **o: tdmap.flat_map(data, only_ones, **o),
    "top_k": lambda data, **o: tdmap.top_k(data, "x", 7, **o),
    "join": lambda data, **o: tdmap.join(data, right(), "x", **o),
    "drop_duplicates": lambda data, **o: tdmap.drop_duplicates(data, "k", **o),
    "group_by.top_k": lambda data, **o: tdmap.group_by(data, "k").top_k("x", 2, **o),
    "sample": lambda data, **o: tdmap.sample(data, 10, seed=3, **o),
}

STAGES: dict[str, Callable[[Any], Any]] = {
    "filter": lambda p: p.filter(is_even),
    "map": lambda p: p.map(kept),
    "backwards": lambda p: p.map(backwards),
    "shuffle": lambda p: p.shuffle(1),
    "buffer": lambda p: p.shuffle(0, buffer=8),
    "flat_map": lambda p: p.flat_map(only_ones),
    "batch": lambda p: p.batch(7).unbatch(),
    "take": lambda p: p.take(12),
}


def torn(rows: list[dict[str, Any]], text: str) -> list[Any]:
    """Numbers of the rows that do not hold their text, with what they hold."""
    return [(row["x"], row["t"]) for row in rows if row["t"] != TEXTS[text](row["x"])]


def source_of(text: str, source: str, folder: Path) -> Any:
    data = made(text, [(7 * i) % N for i in range(N)])
    if source == "memory":
        return data
    if source == "selection":
        return made(text, list(range(2 * N)))[torch.arange(N) * 7 % N]
    return data.memmap(folder / "source")


def larger(text: str, output: str, like: Any, folder: Path) -> TensorDict:
    """A dataset of more rows than are written, whose rows hold other text of the lengths of the result."""
    spare = made(text, [row["x"] for row in rows_of(like)] + [1, 2, 3], lambda i: type(TEXTS[text](i))(TEXTS[text](i)))
    spare["x"].fill_(-1)
    return spare.memmap(folder / "larger") if output == "mapped rows" else spare


@pytest.mark.parametrize(
    "name, text, source, output, workers",
    sampled(
        31,
        OPERATIONS,
        TEXTS,
        ["memory", "mapped", "selection"],
        ["memory", "folder", "rows", "mapped rows"],
        [0, 2],
    ),
)
def test_operations(name: str, text: str, source: str, output: str, workers: int, tmp_path: Path) -> None:
    call, data = OPERATIONS[name], source_of(text, source, tmp_path)
    before = rows_of(data)
    result = call(data, num_workers=workers, **({"out": tmp_path / "out"} if output == "folder" else {}))
    if "rows" in output:
        spare = larger(text, output, result, tmp_path)
        call(data, out=spare[: len(result)], num_workers=workers)
        result = spare[: len(result)]
    assert not torn(rows_of(result), text)
    assert rows_of(data) == before


def pipeline_of(data: Any, seed: int) -> Any:
    chosen = random.Random(seed).sample(sorted(STAGES), 3)
    pipeline = data.pipeline()
    chosen = chosen if "buffer" in chosen or seed % 2 else [*chosen[:2], "buffer"]
    for stage in sorted(chosen, key=lambda stage: stage != "shuffle"):  # which needs the number of rows
        pipeline = STAGES[stage](pipeline)
    return pipeline


@pytest.mark.parametrize(
    "seed, text, source, end, workers",
    sampled(23, range(12), TEXTS, ["memory", "mapped"], ["iter", "collect", "write", "folder"], [0, 2]),
)
def test_pipelines(seed: int, text: str, source: str, end: str, workers: int, tmp_path: Path) -> None:
    pipeline = pipeline_of(source_of(text, source, tmp_path), seed)
    if end == "iter":
        rows = [row for batch in pipeline.batch(4).iter(num_workers=workers) for row in rows_of(batch)]
    elif end == "collect":
        rows = rows_of(pipeline.collect(num_workers=workers))
    elif end == "folder":
        rows = rows_of(pipeline.write(tmp_path / "out", num_workers=workers))
    else:
        result = pipeline.collect(num_workers=0)
        whole = larger(text, "rows", result, tmp_path)
        pipeline.write(whole, num_workers=workers)
        rows = rows_of(whole[: len(result)])
        assert rows == rows_of(result)
    assert rows and not torn(rows, text)
