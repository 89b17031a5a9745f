"""safetensors files: trees there and back, those of the reference and of others, and bad input."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch
from safetensors.torch import load_file, save_file

import tensordict_lite as project
from tensordict_lite import NonTensorData, TensorClass, TensorDict, from_safetensors, lazy_stack, to_safetensors
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tests import interpreters
from tests.memmap.trees import CROSSINGS, LIBRARIES, Point


def tree(ns: Any) -> Any:
    td, lib = ns.td, ns.lib
    return td(
        {
            "a": torch.arange(6).view(3, 2),
            "b": td({"c": torch.ones(3, 4, 2).transpose(1, 2), "d.e": torch.zeros(3, 0)}, [3], names=["time"]),
            "grid": td({"x": torch.rand(3, 4)}, [3, 4], names=["time", "y"]),
            "half": torch.linspace(0, 1, 3).half(),
            "brain": torch.ones(3, dtype=torch.bfloat16),
            "flag": torch.tensor([True, False, True]),
            "complex": torch.ones(3, dtype=torch.complex64),
            "text": "hello",
            "object": lib.NonTensorData({"k": [1, None]}, batch_size=[3]),
            "lazy": lib.lazy_stack([td({"r": torch.ones(2) * i, "n": {"y": torch.ones(1)}}, []) for i in range(3)]),
            "point": ns.point(torch.ones(3, 2), "q", batch_size=[3]),
            "empty": td({}, [3]),
        },
        [3],
        names=["time"],
    )


@pytest.mark.parametrize(("writer", "reader"), CROSSINGS)
def test_trees_cross_over(tmp_path: Path, writer: str, reader: str) -> None:
    out, back = LIBRARIES[writer], LIBRARIES[reader]
    saved = tree(out)
    out.lib.to_safetensors(saved, tmp_path / "x.safetensors")
    loaded = back.lib.from_safetensors(tmp_path / "x.safetensors")
    assert type(loaded) is back.td and tuple(loaded.batch_size) == (3,) and list(loaded.names) == ["time"]
    assert list(loaded.keys()) == list(saved.keys()) and loaded.device is None and not loaded.is_locked
    for key in ("a", ("b", "c"), ("b", "d.e"), ("grid", "x"), "half", "brain", "flag", "complex"):
        assert loaded[key].dtype is saved[key].dtype and loaded[key].equal(saved[key]), key
    assert tuple(loaded["grid"].batch_size) == (3, 4) and list(loaded["grid"].names) == ["time", "y"]
    assert loaded["text"] == "hello" and loaded["object"] == {"k": [1, None]}
    assert loaded["lazy"].stack_dim == 0 and loaded["lazy"][2]["r"].tolist() == [2, 2]
    assert loaded["lazy"]["n", "y"].shape == (3, 1)
    assert type(loaded["point"]) is back.point and loaded["point"].label == "q"
    names = {"a", "b.c", "b.d.e", "grid.x", "lazy.r", "lazy.n.y", "point.xy", "half", "brain", "flag", "complex"}
    assert set(load_file(tmp_path / "x.safetensors")) == names


def test_metadata_is_that_of_the_reference(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        LIBRARIES[name].lib.to_safetensors(tree(LIBRARIES[name]).exclude("lazy"), tmp_path / name)  # whose names differ
    metas = []
    for name in ("ours", "theirs"):
        content = (tmp_path / name).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        metas.append(json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["tensordict"]))
    assert metas[0] == metas[1]


class Pair(TensorClass):
    x: torch.Tensor
    y: torch.Tensor


def test_roots_and_batch_sizes(tmp_path: Path) -> None:
    for size in ([], [1], [0], [2, 3]):
        roots = [
            TensorDict({"a": torch.rand(*size, 2)}, size),
            TensorDict({}, size),
            Point(torch.rand(*size, 2), "l", batch_size=size),
            lazy_stack(
                [TensorDict({"a": torch.rand(*size, 2)}, size) for _ in range(2)], len(size), stack_dim_name="s"
            ),
            lazy_stack([Pair(torch.rand(*size, 2), torch.zeros(size), batch_size=size) for _ in range(2)]),
            lazy_stack([lazy_stack([TensorDict({"a": torch.rand(size)}, size) for _ in range(3)]) for _ in range(2)]),
        ]
        for root in roots:
            to_safetensors(root, tmp_path / "x")
            back = from_safetensors(tmp_path / "x")
            assert type(back) is type(root) and back.batch_size == root.batch_size and back.names == root.names
            found, expected = ({k: leaf.tolist() for k, leaf in each.items(True, True)} for each in (back, root))
            assert found == expected


def test_awkward_tensors(tmp_path: Path) -> None:
    x = torch.arange(6.0, requires_grad=True)
    td = TensorDict(
        {
            "x": x, "tied": x, "part": x.detach()[2:4], "strided": torch.arange(6).view(2, 3).T,
            "conj": torch.complex(torch.ones(2), torch.ones(2)).conj(), "expanded": torch.ones(1).expand(3),
        },
        [],
    )  # fmt: skip
    mapped = TensorDict({"m": torch.ones(3)}, []).memmap(tmp_path / "m.tdz")
    params = project.TensorDictParams(TensorDict({"w": torch.ones(2)}, []))
    for source in (td, mapped, params, td.detach().consolidate()):
        to_safetensors(source, tmp_path / "x")
        loaded = from_safetensors(tmp_path / "x")
        for key, value in source.items():
            assert loaded[key].equal(value.detach().as_subclass(torch.Tensor)) and not loaded[key].requires_grad


def test_devices(tmp_path: Path) -> None:
    to_safetensors(TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}}, [2], device="cpu"), tmp_path / "x")
    for device in ("cpu", torch.device("cpu"), "meta"):
        loaded = from_safetensors(tmp_path / "x", device=device)
        assert loaded.device == torch.device(device) and loaded["n", "b"].device == torch.device(device)
        assert loaded["n"].device == torch.device(device)


def test_checkpoint_of_a_model(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    save_file(model.state_dict(), tmp_path / "x", metadata={"format": "pt"})
    for lib in (project, reference):
        loaded = lib.from_safetensors(tmp_path / "x")
        assert sorted(loaded.keys()) == ["0", "1"] and loaded["0", "weight"].shape == (4, 3)
        assert tuple(loaded.batch_size) == ()
    twin = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    from_safetensors(tmp_path / "x").to_module(twin)
    assert twin[0].weight.equal(model[0].weight)
    save_file({"a..b": torch.ones(1), ".c": torch.ones(1), "d.": torch.ones(1)}, tmp_path / "x")
    assert from_safetensors(tmp_path / "x")["a", "", "b"].shape == (1,)


# -- bad input -----------------------------------------------------------------------------------------------------

UNSAVABLE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "jagged": (
        lambda: TensorDict({"n": {"j": torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)}}),
        TypeError,
        r"\('n', 'j'\).*nested",
    ),
    "sparse": (lambda: TensorDict({"s": torch.eye(2).to_sparse()}), TypeError, "sparse_coo"),
    "meta": (lambda: TensorDict({"s": torch.ones(2, device="meta")}), TypeError, "meta device"),
    "complex128": (lambda: TensorDict({"s": torch.ones(2, dtype=torch.complex128)}), TypeError, "complex128"),
    "words": (lambda: TensorDict({"w": ["a", "b"]}, [2]), TypeError, r"\('w',\).*one per row"),
    "set": (lambda: TensorDict({"w": {1}}), TypeError, "a set is not a JSON"),
    "object": (lambda: NonTensorData("x"), TypeError, "put it in a TensorDict"),
    "dict": (lambda: {"a": torch.ones(1)}, TypeError, "got a dict"),
    "keys": (lambda: lazy_stack([TensorDict({f"k{i}": torch.ones(1)}) for i in range(2)]), TypeError, "different keys"),
    "shapes": (lambda: lazy_stack([TensorDict({"k": torch.ones(i)}) for i in range(2)]), TypeError, r"\('k',\)"),
    "names": (
        lambda: TensorDict({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}),
        ValueError,
        "two entries are called 'a.b'",
    ),
}


@pytest.mark.parametrize("name", UNSAVABLE)
def test_what_the_format_does_not_hold_is_named(tmp_path: Path, name: str) -> None:
    make, error, message = UNSAVABLE[name]
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(error, match=message):
        to_safetensors(make(), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def about(tmp_path: Path, change: Callable[[Any], Any]) -> Path:
    """A file whose description was edited."""
    td = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3), "s": "x"}}, [3])
    td["l"] = lazy_stack([TensorDict({"r": torch.ones(1)}, []) for _ in range(3)])
    to_safetensors(td, tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    meta = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["tensordict"])
    change(meta)
    save_file(load_file(tmp_path / "x"), tmp_path / "x", metadata={"tensordict": json.dumps(meta)})
    return tmp_path / "x"


EDITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch": (lambda m: m["root"].update(batch_size=[4]), "batch size"),
    "batch text": (lambda m: m["root"].update(batch_size="3"), "batch_size"),
    "names": (lambda m: m["root"].update(names=["a", "b"]), "_names"),
    "keys": (lambda m: m["root"].update(keys=[]), "keys"),
    "entry": (lambda m: m["root"]["keys"].update(a=3), "an entry is"),
    "tensor": (lambda m: m["root"]["keys"].update(a={"tensor": "zz"}), "no tensor 'zz'"),
    "level": (lambda m: m["root"]["keys"].update(a={"td": 3}), "keys"),
    "stack": (lambda m: m["root"]["keys"]["l"]["td"].update(stack_dim=5), "no dimension 5"),
    "class": (lambda m: m["root"].update({"class": "os.system"}), "class"),
    "unbatched": (lambda m: m["root"]["keys"]["a"].update(unbatched=True), "UnbatchedTensor"),
    "version": (lambda m: m.update(version="1"), "version '1'"),
    "root": (lambda m: m.update(root=None), "keys"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_description_is_refused(tmp_path: Path, name: str) -> None:
    change, message = EDITS[name]
    with pytest.raises(DatasetError, match=message):
        from_safetensors(about(tmp_path, change))


def test_unknown_class_and_newer_version(tmp_path: Path) -> None:
    path = about(tmp_path, lambda m: m["root"].update({"class": "<class 'antigravity.Flight'>"}))
    with pytest.warns(UserWarning, match=r"antigravity\.Flight was saved") as caught:
        assert type(from_safetensors(path)) is TensorDict
    assert caught[0].filename == __file__ and "antigravity" not in sys.modules
    with pytest.raises(ValueError, match="version 99"):
        from_safetensors(about(tmp_path, lambda m: m.update(version=99)))


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        from_safetensors(tmp_path / "none")
    assert isinstance(caught.value, DatasetNotFoundError)
    with pytest.raises(DatasetError, match="is a folder"):
        from_safetensors(tmp_path)
    for content in (b"", b"junk" * 10, struct.pack("<Q", 1 << 60) + b"{}"):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(DatasetError, match="not a safetensors file"):
            from_safetensors(tmp_path / "x")
    for names in (["0", "0.b"], ["0.b", "0"]):
        save_file({name: torch.ones(1) for name in names}, tmp_path / "x")
        with pytest.raises(DatasetError, match="do not form a tree"):
            from_safetensors(tmp_path / "x")


def test_missing_package_is_named_with_its_extra() -> None:
    code = (
        "import sys; sys.modules['safetensors'] = None\n"
        "from tensordict_lite import TensorDict, from_safetensors, to_safetensors\n"
        "for call in (lambda: to_safetensors(TensorDict(), 'x'), lambda: from_safetensors('x')):\n"
        "    try: call()\n"
        "    except ImportError as err: print(err)\n"
    )
    done = interpreters.run(["-c", code], check=True)
    assert done.stdout.count("pip install 'tdmap[safetensors]'") == 2
