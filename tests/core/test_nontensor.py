"""Any object as an entry: shared by the batch, or one an element."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_lite import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    is_non_tensor,
    set_capture_non_tensor_stack,
    set_list_to_stack,
)

OBJECTS = ["a string!", b"bytes", None, {"nested": [1, 2]}, {1, 2}, print, object(), np.array(["x", "y"]), 1 + 2j]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_any_object_comes_back_as_it_went_in(value: Any) -> None:
    td = TensorDict({}, [3])
    td.set_non_tensor("x", value)
    assert td["x"] is value
    assert type(td.get("x")) is NonTensorData
    assert td.get("x").batch_size == (3,)
    assert td[1]["x"] is value
    assert td.reshape(1, 3).unsqueeze(0)["x"] is value
    assert torch.stack([td[0], td[1]])["x"] == [value, value] or isinstance(value, np.ndarray)


def test_shape_operations_change_the_batch_size_only() -> None:
    td = TensorDict({"x": "word", "t": torch.zeros(4, 6)}, [4])
    for out in (
        td[:2],
        td[torch.tensor([0, 3])],
        td[None],
        td.view(2, 2),
        td.split(3)[0],
        td.repeat(2),
        td.gather(0, torch.tensor([1])),
    ):
        assert out.get("x").batch_size == out.batch_size
        assert out["x"] == "word"


def test_rows_with_another_value_turn_the_entry_into_a_stack() -> None:
    td = TensorDict({"x": "a"}, [3])
    td[1] = {"x": "a"}
    assert type(td.get("x")) is NonTensorData
    td[1] = {"x": "b"}
    assert td["x"] == ["a", "b", "a"]
    td[:2] = TensorDict({"x": ["p", "q"]}, [2])
    assert td["x"] == ["p", "q", "a"]
    td[torch.tensor([False, False, True])] = {"x": "z"}
    assert td["x"] == ["p", "q", "z"]


def test_rows_of_a_locked_collection_can_be_written_and_stay_locked() -> None:
    td = TensorDict({"x": "a"}, [2]).lock_()
    td[0] = TensorDict({"x": "b"})
    assert td["x"] == ["b", "a"]
    assert td.get("x").is_locked
    with pytest.raises(RuntimeError, match="locked"):
        td["x"] = "c"


def test_lazy_preallocation_in_any_order() -> None:
    td = TensorDict({}, [3])
    for row in (2, 0, 1):
        td[row] = TensorDict({"x": f"row {row}"})
    assert td["x"] == ["row 0", "row 1", "row 2"]


def test_stacking_collapses_equal_values_when_asked_to() -> None:
    parts = [TensorDict({"x": "same", "y": k}) for k in range(2)]
    assert type(torch.stack(parts).get("x")) is NonTensorStack
    with set_capture_non_tensor_stack(True):
        out = torch.stack(parts)
        assert type(out.get("x")) is NonTensorData
        assert out["x"] == "same"
        parts[1].set_non_tensor("x", "other")
        assert torch.stack(parts)["x"] == ["same", "other"]


def test_joining_keeps_one_value_where_all_are_equal() -> None:
    a, b = TensorDict({"x": "a"}, [2]), TensorDict({"x": "b"}, [1])
    assert torch.cat([a, a])["x"] == "a"
    assert torch.cat([a, b])["x"] == ["a", "a", "b"]


def test_lists_of_words_become_rows() -> None:
    td = TensorDict({"x": ["a", "b"]}, [2])
    assert td[1]["x"] == "b"
    assert td.get("x").tolist() == ["a", "b"]
    with pytest.raises(RuntimeError, match="batch dimension mismatch.*'x'"):
        td["x"] = ["a", "b", "c"]
    with set_list_to_stack(False):
        td["x"] = ["p", "q", "r"]
    assert td["x"].tolist() == ["p", "q", "r"]
    assert td.get("x").batch_size == (2,)


@pytest.mark.parametrize(
    ("value", "shape"),
    [([1, 2], (2,)), ([[1, 2], [3, 4]], (2, 2)), ([1.5, 2], (2,)), ([torch.ones(3)] * 2, (2, 3)), ([[], []], (2, 0))],
)
def test_lists_of_numbers_become_tensors(value: Any, shape: tuple[int, ...]) -> None:
    td = TensorDict({"x": value}, [2])
    assert isinstance(td["x"], torch.Tensor)
    assert td["x"].shape == shape


def test_writing_to_the_list_of_a_key_writes_to_the_entry() -> None:
    td = TensorDict({"x": [["a", "b"], ["c", "d"]]}, [2, 2])
    td["x"][0][1] = "Q"
    assert td["x"] == [["a", "Q"], ["c", "d"]]
    other = copy.deepcopy(td["x"])
    other[0][1] = "R"
    assert td["x"] == [["a", "Q"], ["c", "d"]]


@pytest.mark.parametrize("change", ["append", "insert", "pop", "remove", "sort", "reverse", "del", "+="])
def test_a_list_whose_items_moved_writes_no_more(change: str) -> None:
    td = TensorDict({"x": ["c", "b", "a"]}, [3])
    values = td["x"]
    arguments = {"append": ("d",), "insert": (0, "d"), "remove": ("c",)}.get(change, ())
    if change == "del":
        del values[0]
    elif change == "+=":
        values += ["d"]
    else:
        getattr(values, change)(*arguments)
    values[0] = "changed"
    assert td["x"] == ["c", "b", "a"] and values[0] == "changed"


def test_a_list_is_unchanged_when_the_write_fails() -> None:
    values = TensorDict({"x": ["a", "b"]}, [2])["x"]
    with pytest.raises(IndexError):
        values[2] = "c"
    assert values == ["a", "b"] and str(values) == "LinkedList(['a', 'b'])"


def test_apply_arithmetic_and_casts_leave_objects_alone() -> None:
    td = TensorDict({"x": "word", "l": ["p", "q"], "t": torch.ones(2)}, [2])
    for out in (td + 1, td.apply(lambda leaf: leaf * 2), td.to(torch.float64), td.clone(), td.detach(), td.float()):
        assert out["x"] == "word"
        assert out["l"] == ["p", "q"]


def test_comparison_is_element_by_element() -> None:
    td = TensorDict({"x": "a", "l": ["p", "q"]}, [2])
    same = td == TensorDict({"x": ["a", "b"], "l": ["z", "q"]}, [2])
    assert same["x"].tolist() == [True, False]
    assert same["l"].tolist() == [False, True]
    assert (td != td)["x"].tolist() == [False, False]
    assert (NonTensorData("a") == "a") is False


def test_values_that_cannot_be_compared_count_as_different() -> None:
    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    assert not (NonTensorData(Stubborn()) == NonTensorData(Stubborn()))
    assert NonTensorData(np.ones(3)) == NonTensorData(np.ones(3))


def test_clone_copies_the_object_deeply_and_a_shallow_copy_shares_it() -> None:
    td = TensorDict({}, [2])
    td.set_non_tensor("x", {"k": [1]})
    deep, shallow = td.clone(), td.clone(False)
    td["x"]["k"].append(2)
    assert deep["x"] == {"k": [1]}
    assert shallow["x"] == {"k": [1, 2]}


def test_in_place_writes_replace_the_object() -> None:
    td = TensorDict({"x": "a", "l": ["p", "q"]}, [2]).lock_()
    view = td[:1]
    td.set_("x", "b")
    td.update_({"l": ["r", "s"]})
    assert (td["x"], td["l"]) == ("b", ["r", "s"])
    assert view["x"] == "a"
    td.set_("x", ["b", "c"])  # an object a row
    assert td["x"] == ["b", "c"]
    for wrong in (["b"], ["b", "c", "d"], []):
        with pytest.raises(RuntimeError, match="a list cannot be written into it in place"):
            TensorDict({"x": "a"}, [2]).lock_().set_("x", wrong)
        for write in (td.set_, lambda key, value: td.update_({key: value}), lambda k, v: td.set_at_(k, v, slice(None))):
            with pytest.raises(RuntimeError, match=rf"a list of {len(wrong)} objects cannot be written .* size \[2\]"):
                write("l", wrong)
    assert (td["x"], td["l"]) == (["b", "c"], ["r", "s"])


def test_a_list_for_rows_that_hold_lists_is_one_object() -> None:
    td = TensorDict({"l": NonTensorStack(NonTensorData(["a"]), NonTensorData(["b", "c"]))}, [2])
    td.set_("l", ["x", "y", "z"])
    assert td["l"] == [["x", "y", "z"]] * 2


def test_conversions_give_the_plain_objects() -> None:
    td = TensorDict({"x": "a", "l": ["p", "q"], "t": torch.arange(2)}, [2])
    assert td.to_dict()["x"] == "a"
    assert td.to_dict()["l"] == ["p", "q"]
    assert [row["l"] for row in td.tolist()] == ["p", "q"]
    assert NonTensorData("a", batch_size=[2, 1]).tolist() == [["a"], ["a"]]


def test_pickling_keeps_objects_names_and_batch_size() -> None:
    td = TensorDict({"x": {"a", "b"}, "l": ["p", "q"]}, [2], names=["time"])
    back = pickle.loads(pickle.dumps(td))
    assert back["x"] == {"a", "b"}
    assert back["l"] == ["p", "q"]
    assert back.get("x").names == ["time"]


def test_an_object_that_cannot_be_pickled_says_so_itself() -> None:
    with pytest.raises(TypeError, match="lock"):
        pickle.dumps(TensorDict({"x": threading.Lock()}))


def test_rows_of_a_stack_move_as_those_of_a_tensor() -> None:
    words = NonTensorStack.from_list([["a", "b", "c"], ["d", "e", "f"]])
    assert words.flip(1).tolist() == [["c", "b", "a"], ["f", "e", "d"]]
    assert words.roll(1, 0).tolist() == [["d", "e", "f"], ["a", "b", "c"]]
    assert words.gather(1, torch.tensor([[2], [0]])).tolist() == [["c"], ["d"]]
    assert words.permute(1, 0).tolist() == [["a", "d"], ["b", "e"], ["c", "f"]]
    assert words.reshape(3, 2).tolist() == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert words[:, torch.tensor([True, False, True])].tolist() == [["a", "c"], ["d", "f"]]
    assert words[:, :0].batch_size == (2, 0)


def test_where_chooses_among_objects() -> None:
    td = TensorDict({"x": "a", "l": ["p", "q"]}, [2])
    out = td.where(torch.tensor([True, False]), TensorDict({"x": "b", "l": ["r", "s"]}, [2]))
    assert out["x"] == ["a", "b"]
    assert out["l"] == ["p", "s"]


def test_ragged_lists_keep_the_lengths_of_their_rows() -> None:
    td = TensorDict({"x": [["a", "b"], ["c"]]}, [2])
    assert td["x"] == [["a", "b"], ["c"]]
    assert td[1]["x"] == ["c"]


def test_data_of_a_stack_exists_only_when_all_agree() -> None:
    assert NonTensorStack("a", "a").data == "a"
    with pytest.raises(AttributeError, match="tolist"):
        _ = NonTensorStack("a", "b").data


def test_predicates_and_classes() -> None:
    stack = NonTensorStack("a", "b")
    assert is_non_tensor(stack) and is_non_tensor(NonTensorData("a")) and not is_non_tensor("a")
    assert isinstance(stack, LazyStackedTensorDict)
    assert TensorDict({"x": "a"}).is_non_tensor("x")
    with pytest.raises(RuntimeError, match="TensorDict"):
        NonTensorStack(TensorDict())


def test_the_object_of_locked_data_is_fixed() -> None:
    data = NonTensorData("a")
    data.data = "b"
    assert data.data == "b"
    with pytest.raises(RuntimeError, match="locked"):
        data.lock_().data = "c"


def test_the_list_of_a_key_can_be_assigned_to_another() -> None:
    td = TensorDict({"x": ["a", "b"]}, [2])
    td["y"] = td["x"]
    assert type(td.get("y")) is NonTensorStack
    td["y"][0] = "c"
    assert (td["x"], td["y"]) == (["a", "b"], ["c", "b"])


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


def test_text_of_ragged_rows_of_two_dimensions() -> None:
    members = [TensorDict({"s": text}, [2, n]) for n, text in ((1, "a"), (2, "b"))]
    assert LazyStackedTensorDict(*members)["s"] == [[["a"], ["a"]], [["b", "b"], ["b", "b"]]]
    assert LazyStackedTensorDict(*members, stack_dim=1)["s"] == [[["a"], ["b", "b"]], [["a"], ["b", "b"]]]


def test_a_row_of_ragged_text_is_written_in_its_member() -> None:
    stack = ragged_stack()
    with pytest.raises(ValueError, match="different lengths.*of the member"):
        stack["prompt"][0] = "new"
    stack[0].set("prompt", "new")
    assert stack["prompt"] == [["new", "new"], BOTH_TEXTS[1]]


def test_an_element_of_what_a_row_shares_is_not_written_alone() -> None:
    rows = torch.stack([TensorDict({"s": "x"}, [3]), TensorDict({"s": ["b", "c", "d"]}, [3])])
    with pytest.raises(ValueError, match=r"maybe_to_stack\(\)"):
        rows["s"][0][1] = "Q"
    rows["s"][1][1] = "Q"
    assert rows["s"] == [["x", "x", "x"], ["b", "Q", "d"]]


def test_a_list_of_words_gives_one_to_each_member_of_a_ragged_stack() -> None:
    stack = ragged_stack()
    stack.set("q", ["x", "y"])
    assert (stack[0]["q"], stack[1]["q"]) == ("x", "y")
    stack["prompt"] = stack["prompt"]
    assert stack["prompt"] == BOTH_TEXTS
    stack["rows"] = [["a", "b"], ["c", "d", "e"]]
    assert stack[1]["rows"] == ["c", "d", "e"]
    with pytest.raises(RuntimeError, match="a list with one value per member"):
        stack["q"] = ["x", "y", "z"]


def test_equal_objects_of_a_lazy_stack_are_one_where_that_is_set() -> None:
    stack = LazyStackedTensorDict(*[TensorDict({"s": "a", "t": text}) for text in "xy"])
    with set_capture_non_tensor_stack(True):
        assert (stack["s"], stack["t"]) == ("a", ["x", "y"])
        assert stack.get("s").batch_size == (2,)
        assert stack.contiguous()["s"] == "a"
        assert ragged_stack()["prompt"] == BOTH_TEXTS
    assert stack["s"] == ["a", "a"]


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
