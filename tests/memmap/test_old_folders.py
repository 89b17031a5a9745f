"""Folders that early versions of the ``tensordict`` package wrote, as versions 0.2 to 0.6 really wrote them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tensordict_lite as lib
from tensordict_lite import NonTensorStack, TensorClass, TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError

DENSE = "<class 'tensordict._td.TensorDict'>"
DEVICE = {"0.3.0": "None", "0.3.2": "cpu", "0.4.0": "cpu", "0.6.2": "cpu"}


class Old(TensorClass):
    x: torch.Tensor
    s: str = "unset"
    t: Any = None


def write(folder: Path, version: str, tensors: dict[str, torch.Tensor], children: dict[str, str] | None = None) -> None:
    """One folder, in the words of a version. Up to 0.3, the metadata does not list the nested ones."""
    folder.mkdir(parents=True, exist_ok=True)
    meta: dict[str, Any] = {}
    for key, tensor in tensors.items():
        meta[key] = {"device": "cpu", "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
        if version >= "0.5":
            meta[key]["is_nested"] = False
        if tensor.numel():
            (folder / f"{key}.memmap").write_bytes(tensor.numpy().tobytes())
    if version >= "0.4":
        meta.update({key: {"type": kind} for key, kind in (children or {}).items()})
    meta.update({"shape": [2], "device": DEVICE[version], "_type": DENSE})
    (folder / "meta.json").write_text(json.dumps(meta))


def nested(root: Path, version: str) -> Path:
    write(root, version, {"a b": torch.arange(2), "none": torch.zeros(2, 0)}, {"n": "TensorDict", "w x": "TensorDict"})
    write(root / "n", version, {"x": torch.ones(2, 3)}, {"m": "TensorDict"})
    write(root / "n" / "m", version, {"y": torch.zeros(2, dtype=torch.bool)})
    write(root / "w x", version, {})
    return root


@pytest.mark.parametrize("version", DEVICE)
@pytest.mark.parametrize("packed", [False, True])
def test_nested_folders_are_found(tmp_path: Path, version: str, packed: bool) -> None:
    """Version 0.3 does not list them, and the present reference drops them without a word."""
    root = nested(tmp_path / "d", version)
    loaded = TensorDict.load_memmap(lib.pack_memmap(root, tmp_path / "x.tdz") if packed else root)
    assert loaded["a b"].tolist() == [0, 1] and loaded["none"].shape == (2, 0)
    assert loaded["n", "x"].sum() == 6 and loaded["n", "m", "y"].tolist() == [False, False]
    assert loaded["w x"].is_empty() and loaded["w x"].batch_size == torch.Size([2])
    assert loaded.device == (None if version == "0.3.0" else torch.device("cpu"))
    assert TensorDict.load_memmap(tmp_path / ("x.tdz" if packed else "d"), subpath="n/m")["y"].shape == (2,)


def test_folders_that_were_left_behind_are_not_taken_for_entries(tmp_path: Path) -> None:
    for version in ("0.4.0", "0.6.2"):
        root = tmp_path / version
        write(root, version, {"a": torch.arange(2)}, {"n": "TensorDict"})
        write(root / "n", version, {"x": torch.ones(2)})
        write(root / "before", version, {"x": torch.ones(2)})
        assert sorted(TensorDict.load_memmap(root).keys()) == ["a", "n"]
    TensorDict({"a": torch.arange(2)}, [2]).memmap(tmp_path / "now")
    TensorDict({"x": torch.arange(2)}, [2]).memmap(tmp_path / "now" / "other")
    assert sorted(TensorDict.load_memmap(tmp_path / "now").keys()) == ["a"]


@pytest.mark.parametrize("version", DEVICE)
def test_fields_of_a_tensorclass_beside_its_name(tmp_path: Path, version: str) -> None:
    write(tmp_path, version, {}, {"t": "Old"})
    old = {"_type": f"<class '{Old.__module__}.Old'>", "s": "q", "t": None}
    write(tmp_path / "t" / "_tensordict", version, {"x": torch.ones(2)})
    (tmp_path / "t" / "meta.json").write_text(json.dumps(old))
    loaded = TensorDict.load_memmap(tmp_path)["t"]
    assert type(loaded) is Old and loaded.s == "q" and loaded.t is None and loaded.x.tolist() == [1, 1]
    (tmp_path / "t" / "meta.json").write_text(json.dumps({**old, "unknown": 3}))
    with pytest.raises(DatasetError, match="do not fit the class Old"):
        TensorDict.load_memmap(tmp_path)


def test_objects_with_an_empty_folder_of_fields(tmp_path: Path) -> None:
    write(tmp_path, "0.3.2", {})
    about = {"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "data": "x", "_metadata": None}
    write(tmp_path / "s" / "_tensordict", "0.3.2", {})
    (tmp_path / "s" / "meta.json").write_text(json.dumps({**about, "_is_non_tensor": True}))
    stack = {"_type": "<class 'tensordict.tensorclass.NonTensorStack'>", "stack_dim": 0, "device": None}
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "meta.json").write_text(json.dumps({**stack, "data": ["x", "y"]}))
    for number in (0, 1):
        write(tmp_path / "w" / str(number), "0.3.2", {})
    loaded = TensorDict.load_memmap(tmp_path)
    assert loaded["s"] == "x" and loaded["w"] == ["x", "y"] and type(loaded.get("w")) is NonTensorStack


def test_stack_without_a_length(tmp_path: Path) -> None:
    write(tmp_path, "0.3.0", {})
    (tmp_path / "l").mkdir()
    about = {"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0}
    (tmp_path / "l" / "meta.json").write_text(json.dumps(about))
    for number in (0, 1):
        write(tmp_path / "l" / str(number), "0.3.0", {"x": torch.ones(2, number + 1)})
    assert TensorDict.load_memmap(tmp_path)["l"][1]["x"].shape == (2, 2)


def test_one_byte_more_than_the_metadata_says(tmp_path: Path) -> None:
    """Early versions of torch wrote a byte behind a file that they made."""
    for version in DEVICE:
        root = nested(tmp_path / version, version)
        file = root / "n" / "x.memmap"
        file.write_bytes(file.read_bytes() + b"\0")
        assert TensorDict.load_memmap(root)["n", "x"].sum() == 6
        assert TensorDict.load_memmap(lib.pack_memmap(root, tmp_path / "x.tdz"))["n", "x"].sum() == 6
        file.write_bytes(file.read_bytes() + b"\0")
        with pytest.raises(DatasetError, match="does not fit the metadata"):
            TensorDict.load_memmap(root)
        file.write_bytes(file.read_bytes()[:20])
        with pytest.raises(DatasetError, match="truncated"):
            TensorDict.load_memmap(root)


def test_what_is_written_today_fits_to_the_byte(tmp_path: Path) -> None:
    TensorDict({"a": torch.arange(2)}, [2]).memmap(tmp_path)
    file = tmp_path / "a.memmap"
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(DatasetError, match="does not fit the metadata"):
        TensorDict.load_memmap(tmp_path)


def test_versions_before_the_format_are_named(tmp_path: Path) -> None:
    torch.save({"shape": [2]}, tmp_path / "meta.pt")
    (tmp_path / "a.memmap").write_bytes(bytes(16))
    with pytest.raises(DatasetNotFoundError, match=r"meta\.pt.*tensordict 0\.2 or older"):
        TensorDict.load_memmap(tmp_path)
