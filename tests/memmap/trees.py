"""A tree with every kind of entry, in this project and in the reference, and what must come back."""

import sys
from types import SimpleNamespace
from typing import Any

import tensordict as reference
import torch

import tensordict_lite as project
from tensordict_lite import TensorClass


class Point(TensorClass):
    """A class that both libraries know under this name."""

    xy: torch.Tensor
    label: str = "p"


def _reference_point() -> Any:
    hints = {"xy": torch.Tensor, "label": str}
    cls = type("Point", (), {"__module__": __name__, "__qualname__": "Point", "__annotations__": hints, "label": "p"})
    mine = sys.modules[__name__].Point
    made = reference.tensorclass(cls)
    sys.modules[__name__].Point = mine  # the reference looks the class up in its own registry
    return made


LIBRARIES = {
    "ours": SimpleNamespace(td=project.TensorDict, lib=project, point=Point),
    "theirs": SimpleNamespace(td=reference.TensorDict, lib=reference, point=_reference_point()),
}
CROSSINGS = [("ours", "ours"), ("ours", "theirs"), ("theirs", "ours")]


def entries(name: str, *, jagged: bool = False, strided: bool = True, classes: bool = True) -> Any:
    """A tree of batch size [3] of a library. Ragged lazy stacks and jagged tensors are not in every format."""
    ns = LIBRARIES[name]
    td, lib = ns.td, ns.lib
    content: dict[str, Any] = {
        "a": torch.arange(6).view(3, 2),
        "b": {
            "half": torch.linspace(0, 1, 3).half(),
            "brain": torch.ones(3, 2, dtype=torch.bfloat16),
            "flag": torch.tensor([True, False, True]),
            "byte": torch.arange(9, dtype=torch.uint8).view(3, 3),
            "weird/key ü": torch.ones(3, 1, dtype=torch.complex64),
        },
        "strides": torch.arange(24.0).view(2, 4, 3).permute(2, 0, 1)[:, :, ::2],
        "expanded": torch.ones(1, 2).expand(3, 2),
        "none": torch.zeros(3, 0),
        "large": torch.arange(3 * 45_000, dtype=torch.int64).view(3, 45_000),  # more than is gathered
        "text": "hello",
        "object": lib.NonTensorData({"k": [1, None, "x"]}, batch_size=[3]),
        "words": ["x", "y", "z"],
        "lazy": lib.lazy_stack([td({"r": torch.ones(2) * i, "s": str(i)}, []) for i in range(3)]),
        "deep": {"er": {"still": torch.arange(3)}, "empty": td({}, [3])},
    }
    if strided:
        content["strided"] = torch.nested.nested_tensor([torch.ones(i + 1, 4 - i) * i for i in range(3)])
    if jagged:
        parts = [torch.ones(i + 1, 2) * i for i in range(3)]
        content["jagged"] = torch.nested.nested_tensor(parts, layout=torch.jagged)
    if classes:
        content["point"] = ns.point(torch.ones(3, 2), "q", batch_size=[3])
    return td(content, [3], names=["time"])


def assert_entries(loaded: Any, expected: Any, kind: str = "ours") -> None:
    """That a loaded tree has the content of :func:`entries`."""
    assert tuple(loaded.batch_size) == (3,) and list(loaded.names) == ["time"]
    assert set(loaded.keys()) == set(expected.keys())
    for key in ("a", "strides", "expanded", "none", "large"):
        assert loaded[key].dtype is expected[key].dtype
        assert torch.equal(loaded[key].as_subclass(torch.Tensor), expected[key].as_subclass(torch.Tensor)), key
    for key in ("half", "brain", "flag", "byte", "weird/key ü"):
        one, other = loaded["b", key], expected["b", key]
        assert one.dtype is other.dtype and one.shape == other.shape and bool((one == other).all()), key
    assert loaded["text"] == "hello" and loaded["object"] == {"k": [1, None, "x"]}
    assert list(loaded["words"]) == ["x", "y", "z"]
    assert loaded["lazy"]["r"].tolist() == [[0, 0], [1, 1], [2, 2]] and loaded["lazy"][1]["s"] == "1"
    assert type(loaded["lazy"]).__name__ == "LazyStackedTensorDict"
    assert loaded["deep", "er", "still"].tolist() == [0, 1, 2] and loaded["deep", "empty"].is_empty()
    for key in {"strided", "jagged"} & set(loaded.keys()):
        assert [part.sum().item() for part in loaded[key].unbind()] == [
            part.sum().item() for part in expected[key].unbind()
        ]
        assert [tuple(part.shape) for part in loaded[key].unbind()] == [tuple(p.shape) for p in expected[key].unbind()]
    if "point" in loaded.keys():
        assert type(loaded["point"]) is LIBRARIES[kind].point
        assert loaded["point"].xy.sum() == 6 and loaded["point"].label == "q"


def leaves(tree: Any) -> list[torch.Tensor]:
    """Every tensor below a tree; those of a lazy stack, which may be ragged, member by member."""
    if isinstance(tree, project.LazyStackedTensorDict):
        return [leaf for member in tree.tensordicts for leaf in leaves(member)]
    values = list(tree.values())
    return [leaf for value in values for leaf in ([value] if isinstance(value, torch.Tensor) else leaves(value))]


def touch(tree: Any) -> None:
    """Read every byte: memory beyond the end of a file would be a bus error here."""
    for leaf in leaves(tree):
        for part in leaf.unbind() if leaf.is_nested else [leaf]:
            part.as_subclass(torch.Tensor).clone()
