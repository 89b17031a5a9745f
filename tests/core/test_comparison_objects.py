"""Comparisons of trees with entries that are no tensors: objects, ``None``, plain mappings on the other side."""

from typing import Any

import pytest
import torch

from tensordict_lite import NonTensorData, NonTensorStack, TensorDict, lazy_stack, tensorclass


@tensorclass
class Photo:
    x: torch.Tensor
    y: Any = None


def _tree() -> TensorDict:
    nested = {"i": NonTensorData(3, batch_size=[2]), "b": NonTensorData(True, batch_size=[2])}
    return TensorDict({"a": torch.zeros(2), "s": "x", "n": {**nested, "k": NonTensorStack("p", "q")}}, [2])


def _all(found: Any) -> bool:
    """Also that every answer is a bool tensor of the batch size."""
    for leaf in found.values(True, True):
        assert leaf.dtype is torch.bool and leaf.shape[: found.batch_dims] == found.batch_size
    assert not list(found.non_tensor_items(True))
    return bool(found.all())


KINDS = {
    "dict": lambda td: td.to_dict(),
    "from_dict": lambda td: TensorDict.from_dict(td.to_dict(), auto_batch_size=True),
    "from_dict []": lambda td: TensorDict.from_dict(td.to_dict(), auto_batch_size=False),
    "clone": lambda td: td.clone(),
    "locked": lambda td: td.clone().lock_(),
    "lazy": lambda td: lazy_stack(list(td.unbind(0)), 0),
    "mapped": lambda td: td.memmap(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_objects_compare_with_those_of_every_kind(kind: str) -> None:
    td = _tree()
    other = KINDS[kind](td)
    assert _all(td == other)
    assert not (td != other).any()
    if kind != "dict":
        assert _all(other == td)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("s", "y"),
        ("s", None),
        ("s", torch.zeros(2)),
        ("s", 5),
        ("n", {"i": 4, "b": True, "k": ["p", "q"]}),
        ("n", {"i": 3, "b": False, "k": ["p", "q"]}),
        ("n", {"i": 3, "b": True, "k": ["p", "z"]}),
        ("n", {"i": torch.tensor(4), "b": True, "k": ["p", "q"]}),
        ("a", "not a number"),
    ],
)
def test_one_other_object_makes_trees_unequal(key: str, value: Any) -> None:
    td = _tree()
    found = td == {**td.to_dict(), key: value}
    assert not _all(found)
    assert (td != {**td.to_dict(), key: value}).any()


def test_a_number_compares_with_a_tensor_of_it() -> None:
    td = TensorDict({"n": NonTensorData(3, batch_size=[2])}, [2])
    assert _all(td == TensorDict({"n": torch.tensor([3, 3])}, [2]))
    assert (TensorDict({"n": torch.tensor([3, 4])}, [2]) == td)["n"].tolist() == [True, False]


def test_an_entry_none_is_no_entry() -> None:
    photo = Photo(torch.ones(3), batch_size=[3])
    for other in (photo.to_dict(), photo.to_tensordict(retain_none=True), TensorDict(photo.to_dict(), photo.shape)):
        assert (photo == other).all() and not (photo != other).any()
    for other in (photo.to_tensordict(retain_none=True), TensorDict(photo.to_dict(), photo.shape)):
        assert (other == photo).all() and type(other == photo) is Photo
        assert (other == photo.to_tensordict()).all()
    with pytest.raises(KeyError, match="y"):
        photo == Photo(torch.ones(3), torch.ones(3), batch_size=[3])  # noqa: B015


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("a", "b"), [(True, True), (True, False), (False, False)])
def test_logic_of_bool_objects_gives_bool_tensors(a: bool, b: bool, stacked: bool) -> None:
    def tree(value: bool) -> Any:
        td = TensorDict({"n": {"f": NonTensorData(value, batch_size=[2])}, "t": torch.tensor([value] * 2)}, [2])
        return lazy_stack([td, td.clone()]) if stacked else td

    one, two = tree(a), tree(b)
    for found, want in ((one | two, a | b), (one ^ two, a ^ b), (one & two, a & b), (one.logical_and(two), a and b)):
        assert found["n", "f"].dtype is torch.bool
        assert bool((found["n", "f"] == want).all()) and bool((found["t"] == want).all())
    rows = TensorDict({"f": NonTensorStack(a, b)}, [2])
    assert (rows ^ rows)["f"].tolist() == [False, False]
    assert (rows | TensorDict({"f": NonTensorData(b, batch_size=[2])}, [2]))["f"].tolist() == [a | b, b]


def test_objects_without_an_answer_are_kept() -> None:
    td = TensorDict({"a": torch.zeros(2, dtype=torch.bool), "s": "x"}, [2])
    assert (td | td)["s"] == "x" and (td & td)["s"] == "x" and (td < td)["s"] == "x"
