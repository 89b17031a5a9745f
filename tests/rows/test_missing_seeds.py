"""What decides a random order when no seed is given: torch's global random stream, in every operation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict

ROWS = 29
TEXTS = [str(row) for row in range(ROWS)]


def _data() -> TensorDict:
    return TensorDict({"x": torch.arange(ROWS)}, [ROWS])


def _text() -> TensorDict:
    return _data().set("text", Ragged.from_list(TEXTS))


def _numbers(rows: TensorDict) -> list[int]:
    numbers: list[int] = rows["x"].tolist()
    assert [str(number) for number in numbers] == rows["text"]
    return numbers


def _same(chunk: TensorDict) -> TensorDict:
    return chunk


def _iterated(**options: Any) -> list[int]:
    parts = tdmap.map_iter(_data(), _same, chunksize=3, shuffle=True, num_workers=0, **options)
    return [row for part in parts for row in part["x"].tolist()]


DRAWS: dict[str, Callable[..., list[int]]] = {
    "shuffle": lambda **options: tdmap.shuffle(_data(), num_workers=0, **options)["x"].tolist(),
    "sample": lambda **options: tdmap.sample(_data(), 7, shuffle=True, num_workers=0, **options)["x"].tolist(),
    "text shuffle": lambda **options: _numbers(tdmap.shuffle(_text(), num_workers=0, **options)),
    "text sample": lambda **options: _numbers(tdmap.sample(_text(), 7, shuffle=True, num_workers=0, **options)),
    "train_test_split": lambda **options: tdmap.train_test_split(_data(), 5, num_workers=0, **options)[1]["x"].tolist(),
    "map_iter": _iterated,
}
RESUMED = ("shuffle", "sample", "text shuffle", "text sample")


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_without_a_seed_torchs_stream_decides(draw: Callable[..., list[int]]) -> None:
    torch.manual_seed(5)
    first, second = draw(), draw()
    torch.manual_seed(5)
    assert first == draw()
    assert first != second


@pytest.mark.parametrize("name", RESUMED)
def test_resume_draws_the_seed_that_the_call_without_it_draws(name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    plain = DRAWS[name]()
    torch.manual_seed(5)
    assert plain == DRAWS[name](out=tmp_path / "out", resume=True)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_any_integer_is_a_seed(draw: Callable[..., list[int]]) -> None:
    assert draw(seed=3) == draw(seed=np.int32(3))
    assert draw(seed=-3) == draw(seed=-3) != draw(seed=3)
    assert draw(seed=1 << 70) == draw(seed=1 << 70)


@pytest.mark.parametrize("wrong", [True, 1.5, "1"], ids=repr)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_is_no_integer_is_no_seed(draw: Callable[..., list[int]], wrong: Any) -> None:
    with pytest.raises(TypeError, match="seed must be an integer or None"):
        draw(seed=wrong)
