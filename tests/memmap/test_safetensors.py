"""safetensors files: tensors there and back, files of the reference and of others, and bad input."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch
from safetensors.torch import load_file, save_file

import tensordict_lite as project
from tensordict_lite import (
    NonTensorData,
    Ragged,
    TensorDict,
    UnbatchedTensor,
    from_safetensors,
    lazy_stack,
    to_safetensors,
)
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tests import interpreters
from tests.memmap.trees import CROSSINGS, LIBRARIES, Point


@pytest.mark.parametrize(("writer", "reader"), CROSSINGS)
def test_tensors_cross_over_under_their_keys(tmp_path: Path, writer: str, reader: str) -> None:
    td, nested = LIBRARIES[writer].td, {"c": torch.ones(3, 4, 2).transpose(1, 2), "d.e": torch.zeros(3, 0)}
    dtypes = {str(t): torch.ones(3, dtype=t) for t in (torch.half, torch.bfloat16, torch.bool, torch.complex64)}
    saved = td({"a": torch.arange(6).view(3, 2), "b": td(nested, [3], names=["time"]), **dtypes}, [3])
    LIBRARIES[writer].lib.to_safetensors(saved, tmp_path / "x")
    assert load_file(tmp_path / "x").keys() == set(saved.flatten_keys(".").keys())
    if writer == "ours":
        loaded = LIBRARIES[reader].lib.from_safetensors(tmp_path / "x")
    else:
        with pytest.warns(UserWarning, match="only tensors are read") as caught:
            loaded = from_safetensors(tmp_path / "x")
        assert caught[0].filename == __file__
    assert type(loaded) is LIBRARIES[reader].td and tuple(loaded.batch_size) == () and loaded.device is None
    for key, value in saved.flatten_keys(".").items():
        read = loaded[tuple(key.split("."))]
        assert read.dtype is value.dtype and read.equal(value), key


def test_the_batch_size_is_an_argument(tmp_path: Path) -> None:
    to_safetensors(TensorDict({"a": torch.rand(2, 3), "n": {"b": torch.rand(2, 3, 1)}}, [2, 3]), tmp_path / "x")
    for size in ([], [2], [2, 3]):
        loaded = from_safetensors(tmp_path / "x", batch_size=size)
        assert loaded.batch_size == loaded["n"].batch_size == torch.Size(size)
    with pytest.raises(RuntimeError, match="batch"):
        from_safetensors(tmp_path / "x", batch_size=[3])


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
    "meta": (lambda: TensorDict({"s": torch.ones(2, device="meta")}), TypeError, "on meta"),
    "complex128": (lambda: TensorDict({"s": torch.ones(2, dtype=torch.complex128)}), TypeError, "complex128"),
    "words": (lambda: TensorDict({"w": ["a", "b"]}, [2]), TypeError, r"\('w',\) is a NonTensorStack.*memmap\(\)"),
    "ragged": (lambda: TensorDict({"w": Ragged.from_list([[1], []])}, [2]), TypeError, "Ragged"),
    "unbatched": (lambda: TensorDict({"w": UnbatchedTensor(torch.ones(2))}, [3]), TypeError, "Unbatched"),
    "text": (lambda: TensorDict({"n": {"w": "one"}}), TypeError, r"\('n', 'w'\) is a NonTensorData.*consolidate"),
    "object": (lambda: NonTensorData("x"), TypeError, "the root is a NonTensorData"),
    "class": (lambda: TensorDict({"p": Point(torch.ones(2))}), TypeError, r"\('p',\) is a Point.*to_tensordict\(\)"),
    "dict": (lambda: {"a": torch.ones(1)}, TypeError, "got a dict"),
    "stack": (lambda: TensorDict({"s": lazy_stack([TensorDict()])}), TypeError, r"\('s',\) is a Lazy"),
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
    for names in (["0", "0.b"], ["0.b", "0"], ["a." * 100_000]):
        save_file({name: torch.ones(1) for name in names}, tmp_path / "x")
        with pytest.raises(DatasetError, match="do not form a tree|nested too deeply"):
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
