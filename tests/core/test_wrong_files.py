"""Files that are missing, empty, cut, or of another format: every reader names them and says what it expects."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensordict_lite as lib
from tensordict_lite import TensorDict

FORMATS: dict[str, tuple[Callable[[Any, Path], Any], Callable[[Path], Any], str, str]] = {
    "h5": (lambda data, path: data.to_h5(path).close(), lib.from_h5, "h5py", "HDF5 file"),
    "zarr": (lambda data, path: data.to_zarr(path), lib.from_zarr, "zarr", "Zarr store|the array .* is damaged"),
    "parquet": (lambda data, path: data.to_parquet(path), lib.from_parquet, "pyarrow", "Parquet|known format"),
    "csv": (lambda data, path: data.to_csv(path), lib.from_csv, "pyarrow", "as csv|known format|row 1|has no rows"),
    "json": (lambda data, path: data.to_json(path), lib.from_json, "pyarrow", "as json|known format|has no rows"),
    "consolidated": (lambda data, path: data.consolidate(path), TensorDict.from_consolidated, "torch", "file"),
    "safetensors": (
        lambda data, path: lib.to_safetensors(data, path),
        lambda path: lib.from_safetensors(path),
        "safetensors",
        "safetensors",
    ),
    "folder": (lambda data, path: data.memmap(path), lib.load_memmap, "torch", "dataset|is truncated"),
    "tdz": (lambda data, path: data.save(path), lib.load_memmap, "torch", "dataset|truncated"),
}  # fmt: skip
"""How each format is written and read, what it needs, and the words for what is expected."""


def cut(path: Path) -> None:
    """Halve a file; of a folder, the largest one that is not metadata."""
    if path.is_dir():
        path = max((each for each in path.rglob("*") if each.is_file() and each.suffix != ".json"), key=os.path.getsize)
    os.truncate(path, path.stat().st_size // 2)


FAULTS: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: shutil.rmtree(path) if path.is_dir() else path.unlink(),
    "empty": lambda path: (FAULTS["missing"](path), path.touch()),
    "another format": lambda path: (FAULTS["missing"](path), path.write_bytes(b"\xff\xfe{\0PAR1\n1,2,3" * 20)),
    "an empty folder": lambda path: (FAULTS["missing"](path), path.mkdir()),
    "cut": cut,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("form", FORMATS)
def test_the_error_names_the_file_and_what_was_expected(form: str, fault: str, tmp_path: Path) -> None:
    write, read, package, expected = FORMATS[form]
    pytest.importorskip(package)
    path, data = tmp_path / f"data.{form}", TensorDict({"a": torch.arange(300), "b": torch.ones(300)}, [300])
    write(data, path)
    assert torch.equal(read(path)["a"], data["a"])
    FAULTS[fault](path)
    with pytest.raises((OSError, ValueError, RuntimeError)) as caught:
        [value.sum() for value in read(path).values()]
    said = str(caught.value)
    assert str(path) in said and (fault == "missing" or re.search(expected, said)), said
    assert fault != "missing" or isinstance(caught.value, FileNotFoundError)
