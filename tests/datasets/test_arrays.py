"""HDF5 and Zarr: against h5py and zarr themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdmap.datasets import Jagged, Table, read, write
from tdmap.datasets import arrays as arrays_module
from tensordict_lite import TensorDict


def data(rows: int = 50) -> TensorDict:
    return TensorDict(
        {"x": torch.arange(rows), "image": torch.randint(0, 255, (rows, 3, 4), dtype=torch.uint8),
         "deep": TensorDict({"flag": torch.arange(rows) % 2 == 0, "f": torch.randn(rows)}, [rows])},
        [rows],
    )  # fmt: skip


@pytest.mark.parametrize("ending", ["h5", "zarr"])
def test_tensors_go_out_and_come_back(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}[ending])
    monkeypatch.setattr(arrays_module, "PART_BYTES", 300)  # some rows at a time
    rows = data()
    write(rows, tmp_path / f"d.{ending}", batch_rows=17)
    write(rows, tmp_path / f"d.{ending}", batch_rows=23)  # in the place of the first
    found = read(tmp_path / f"d.{ending}", tmp_path / "out")
    for key in ("x", "image", ("deep", "flag"), ("deep", "f")):
        name = key if isinstance(key, str) else ".".join(key)
        assert torch.equal(found[name], rows[key]), key
    assert read(tmp_path / f"d.{ending}", columns=["x"]).keys() == ["x"]
    with pytest.raises(ValueError, match="no column 'y'"):
        read(tmp_path / f"d.{ending}", columns=["y"])
    assert {path.name for path in tmp_path.iterdir()} == {f"d.{ending}", "out"}


def test_hdf5_has_text_and_rows_of_different_lengths(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    table = Table(
        TensorDict({"x": torch.arange(3)}, [3]),
        {"word": Jagged.from_list(["größer", "", "ant"]), "ids": Jagged.from_list([[1, 2], [], [3]])},
    )
    write(table, tmp_path / "d.h5", batch_rows=2)
    with h5py.File(tmp_path / "d.h5") as file:
        assert [word.decode() for word in file["word"]] == ["größer", "", "ant"]
        assert [row.tolist() for row in file["ids"]] == [[1, 2], [], [3]]
    found = read(tmp_path / "d.h5", tmp_path / "out")
    assert found["word"].tolist() == ["größer", "", "ant"] and found["ids"].tolist() == [[1, 2], [], [3]]
    with pytest.raises(TypeError, match="bytes"):
        write({"b": Jagged.from_list([b"a\0"])}, tmp_path / "e.h5")
    assert not list(tmp_path.glob("e.h5*"))


@pytest.mark.parametrize("ending", ["h5", "zarr", "tar"])
@pytest.mark.parametrize("name", ["a/b", "../x", "/"])
def test_names_that_would_lead_elsewhere_are_refused(tmp_path: Path, ending: str, name: str) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    with pytest.raises(ValueError, match=f"{name!r} .*slash"):
        write({name: torch.arange(2)}, tmp_path / f"d.{ending}")
    if ending == "h5":
        with pytest.raises(ValueError, match="slash"):
            write({name: ["a", "b"]}, tmp_path / "d.h5")
        with pytest.raises(ValueError, match="slash"):
            write({"": torch.arange(2)}, tmp_path / "d.h5")


def test_numpy_takes_every_name_and_says_what_it_would_cut(tmp_path: Path) -> None:
    names = ["file", "allow_pickle", "a/b", "arr_0", "größe"]
    write({name: torch.arange(2) for name in names}, tmp_path / "d.npz")
    assert list(np.load(tmp_path / "d.npz")) == read(tmp_path / "d.npz").keys() == names
    for row in ("a\0", b"\0"):
        with pytest.raises(ValueError, match="'word' end in zeros"):
            write({"word": [row]}, tmp_path / "e.npz")
    write({"word": ["a\0b"]}, tmp_path / "e.npz")
    assert read(tmp_path / "e.npz")["word"].tolist() == ["a\0b"]
    for rows, kind in ((["a"], "str"), ([b"a"], "bytes")):
        write(Table.of({"word": rows})[:0], tmp_path / "f.npz")
        assert read(tmp_path / "f.npz")["word"].kind == kind
    pytest.importorskip("h5py")
    with pytest.raises(ValueError, match="'word' has zero characters"):
        write({"word": ["a\0b"]}, tmp_path / "e.h5")


def test_hdf5_of_other_programs(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["big"] = np.arange(4, dtype=">i4")
        file["group/half"] = np.arange(4, dtype=np.float16)
    found = read(tmp_path / "d.h5")
    assert found["big"].tolist() == [0, 1, 2, 3] and found["group.half"].dtype is torch.float16
    for name, change in {
        "lengths": lambda file: file.create_dataset("longer", data=np.arange(5)),
        "is a link": lambda file: file.__setitem__("away", h5py.ExternalLink("/etc/other.h5", "/x")),
        "other files": lambda file: file.create_dataset("raw", (4,), "u1", external=[(str(tmp_path / "raw"), 0, 4)]),
        "different numbers": lambda file: file.create_dataset("scalar", data=3),
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(4)
            change(file)
        match = "different numbers" if name == "lengths" else name
        with pytest.raises(ValueError, match=match):
            read(tmp_path / f"{name}.h5")


def test_zarr_of_other_programs(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    for version in (2, 3):
        group: Any = zarr.open_group(str(tmp_path / f"v{version}.zarr"), mode="w", zarr_format=version)
        group.create_array("a/b", shape=(10, 2), chunks=(3, 1), dtype="f4")[:] = np.arange(20).reshape(10, 2)
        found = read(tmp_path / f"v{version}.zarr", tmp_path / f"out{version}")
        assert found["a.b"].tolist() == np.arange(20).reshape(10, 2).tolist()
    with pytest.raises(TypeError, match="no array of Zarr's"):
        write({"s": Jagged.from_list(["a"])}, tmp_path / "s.zarr")
    with pytest.raises(ValueError, match="local disks"):
        write(data(3), "s3://there/s.zarr")
