"""Lists of objects, text of ragged rows, and columns without elements."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, NonTensorData, TensorDict


@pytest.mark.parametrize("rows", [["a", "b"], [["a"], ["b"]], NonTensorData("a", batch_size=[2]).maybe_to_stack()])
def test_objects_are_read_as_a_plain_list_that_is_a_copy(rows: Any) -> None:
    size = [2, 1] if isinstance(rows, list) and rows[0] == ["a"] else [2]
    td = TensorDict({"x": rows}, size)
    for read in (lambda: td["x"], lambda: td.get("x").tolist(), lambda: td.to_dict()["x"]):
        values, before = read(), read()
        values[0] = "changed"
        assert type(values) is list and read() == before


def test_values_that_cannot_be_compared_count_as_different() -> None:
    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    assert not (NonTensorData(Stubborn()) == NonTensorData(Stubborn()))
    assert NonTensorData(np.ones(3)) == NonTensorData(np.ones(3))


def ragged_stack() -> LazyStackedTensorDict:
    episodes = [
        TensorDict({"tok": torch.arange(n), "prompt": text, "deep": TensorDict({"p": text}, [n])}, [n])
        for n, text in ((2, "first"), (3, "second"))
    ]
    return LazyStackedTensorDict(*episodes)


BOTH_TEXTS = [["first"] * 2, ["second"] * 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda stack: stack,
        lambda stack: stack.clone(),
        lambda stack: pickle.loads(pickle.dumps(stack)),
        lambda stack: torch.cat([stack[:1], stack[1:]]),
        lambda stack: stack[[0, 1]],
        lambda stack: stack[torch.tensor([True, True])],
        lambda stack: stack.densify(layout=torch.jagged),
        lambda stack: TensorDict({"l": stack}, [2])["l"],
        lambda stack: stack.apply(lambda tensor: tensor + 1),
    ],
)
def test_rows_of_different_lengths_keep_the_text_they_share(change: Any) -> None:
    stack = change(ragged_stack())
    assert stack["prompt"] == BOTH_TEXTS
    assert stack.get("prompt").tolist() == BOTH_TEXTS
    assert stack["deep", "p"] == BOTH_TEXTS
    assert stack.pop("prompt").tolist() == BOTH_TEXTS


def test_text_of_ragged_rows_is_saved_and_grows(tmp_path: Path) -> None:
    stack = ragged_stack()
    stack.memmap(tmp_path)
    stack = TensorDict.load_memmap(tmp_path)
    assert stack["prompt"] == BOTH_TEXTS
    stack = ragged_stack()
    stack.append(stack[0].clone())
    assert stack["prompt"] == [*BOTH_TEXTS, BOTH_TEXTS[0]]


@pytest.mark.parametrize("size", [(0,), (2, 0), (0, 2), (1, 0, 2)], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.unsqueeze(0),
        lambda x: x.unsqueeze(-1),
        lambda x: x.squeeze(),
        lambda x: x.reshape(0, 3),
        lambda x: x.reshape(3, 0),
        lambda x: x.view(0, 2, 1),
        lambda x: x.flatten(0, -1),
        lambda x: x.unflatten(-1, (x.shape[-1], 1)),
        lambda x: x.permute(*reversed(range(x.ndim))),
        lambda x: x.expand(2, *x.shape),
        lambda x: x.repeat(*[2] * x.ndim),
        lambda x: x.flip(0),
        lambda x: x.roll(1, 0),
        lambda x: x[None],
        lambda x: x[torch.zeros(x.shape[0], dtype=torch.bool)],
        lambda x: torch.cat([x, x], -1),
        lambda x: torch.stack([x, x], -1),
    ],
)
def test_a_column_without_an_element_has_the_shape_of_its_tree(size: tuple[int, ...], call) -> None:
    rows = TensorDict({"s": NonTensorData("x", batch_size=[3, *size[1:]]).maybe_to_stack()}, [3, *size[1:]])
    empty = (
        rows[:0] if size[0] == 0 else TensorDict({"s": NonTensorData("x", batch_size=[*size]).maybe_to_stack()}, size)
    )
    result = call(empty)
    assert result.get("s").batch_size == result.batch_size == call(torch.empty(size)).shape
    assert np.array(result["s"], dtype=object).size == 0
