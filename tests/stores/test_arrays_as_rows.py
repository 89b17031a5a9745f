"""Sources of rows pass `tdmap.testing.rows`: folders, stores of arrays, and one that a user might write."""

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.datasets import read, write
from tdmap.datasets.formats import SourceFiles, batches_of
from tdmap.datasets.textfiles.reading import TextTypes
from tdmap.errors import UnreadableFile
from tdmap.runtime.scheduler import Scheduler
from tdmap.shards.sources import FolderSource
from tdmap.testing.rows import CASES
from tdmap.types import OpenRows, RowSource
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.views import is_leaf_nontensor

ROWS = 23


def rows() -> TensorDict:
    numbers = torch.arange(ROWS)
    return TensorDict(
        {
            "x": numbers,
            "picture": (numbers[:, None] * 7 + torch.arange(6)).to(torch.uint8).view(ROWS, 2, 3),
            "inner": {"y": numbers.double() / 2, "flag": numbers % 2 == 0},
            "word": [f"word {n}" for n in range(ROWS)],
        },
        [ROWS],
    )


def save_zarr(path: Path, version: int, chunk: int) -> str:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for key, value in rows().items(True, True, is_leaf=is_leaf_nontensor):
        array = np.asarray(value) if isinstance(value, torch.Tensor) else np.array(value.tolist())
        name = key if isinstance(key, str) else "/".join(key)
        if array.dtype.kind == "U":
            group.create_array(name, shape=array.shape, chunks=(chunk,), dtype=str)[:] = array
        else:
            group.create_array(name, data=array, chunks=(chunk, *array.shape[1:]))
    group.attrs["tdmap_columns"] = ["x", "picture", "inner/y", "inner/flag", "word"]
    return str(path)


def save_hdf5(path: Path) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", track_order=True) as file:
        for key, value in rows().items(True, True, is_leaf=is_leaf_nontensor):
            name = key if isinstance(key, str) else "/".join(key)
            text = isinstance(value, list)
            file.create_dataset(
                name, data=value if text else value.numpy(), chunks=(5, *(() if text else value.shape[1:]))
            )
    return str(path)


class Numbers(RowSource):
    """The smallest one: rows that are computed."""

    def open(self) -> OpenRows:
        return OpenNumbers()

    def identity(self) -> str:
        return f"{self.rows} numbers"


class OpenNumbers(OpenRows):
    def read(self, first: int, last: int, keys: Any = None) -> TensorDict:
        return rows()[first:last].clone()


def sources(folder: Path) -> dict[str, Any]:
    return {
        "written by a user": lambda: Numbers("numbers", ROWS),
        "folder": lambda: (rows().memmap(folder / "m"), FolderSource.at(str(folder / "m")))[1],
        "zarr 3": lambda: tdmap.open(save_zarr(folder / "a.zarr", 3, 5))._spans[0].source,
        "zarr 2": lambda: tdmap.open(save_zarr(folder / "b.zarr", 2, 4))._spans[0].source,
        "zarr in one block": lambda: tdmap.open(save_zarr(folder / "c.zarr", 3, 1000))._spans[0].source,
        "hdf5": lambda: tdmap.open(save_hdf5(folder / "d.h5"))._spans[0].source,
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", sources(Path()))
def test_a_source_gives_its_rows(kind: str, case: str, tmp_path: Path) -> None:
    CASES[case](sources(tmp_path)[kind](), rows())


def test_leases_and_chunks_are_whole_blocks(tmp_path: Path) -> None:
    data = tdmap.open(save_zarr(tmp_path / "a.zarr", 3, 5))
    assert data.blocks == [5, 10, 15, 20] and data.window(3, 13).blocks == [2, 7]
    assert tdmap.concat([rows(), data]).blocks == [28, 33, 38, 43]
    many = Numbers("numbers", 10**9)
    assert not tdmap.open(many).blocks
    many.block = 2
    assert 0 < len(tdmap.open(many).blocks) <= 10**5
    seen = tdmap.map(data, lambda chunk: torch.full((len(chunk),), len(chunk)), num_workers=0)
    assert seen.tolist() == [5] * 20 + [3] * 3
    scheduler, found = Scheduler(23, 2, blocks=data.blocks), []
    while (lease := scheduler.lease(0, 0.0)) is not None:
        found.append(lease.stop)
        scheduler.done(lease.id, lease.stop, 0.01, 0.0)
    assert set(found) <= {5, 10, 15, 20, 23}


def test_each_block_is_decompressed_once(tmp_path: Path) -> None:
    """Whatever the chunks are, while rows are read in order."""
    path = save_zarr(tmp_path / "a.zarr", 3, 5)
    for size in (1, 3, 5, 7, 11):
        opened = tdmap.open(path)._spans[0].source.open()
        counting = Counting(opened.arrays["x",])
        opened.arrays = {("x",): counting}
        found = [opened.read(first, min(first + size, ROWS))["x"] for first in range(0, ROWS, size)]
        assert torch.cat(found).tolist() == list(range(ROWS))
        assert counting.blocks == list(range(5)), size


class Counting:
    """An array that notes which blocks are read."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.blocks: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def __getitem__(self, rows: slice) -> Any:
        self.blocks += range(rows.start // 5, -(-rows.stop // 5))
        return self.array[rows]


def test_what_is_no_column_is_an_error(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    with pytest.raises(DatasetError, match="no arrays"):
        tdmap.open(tmp_path / "a.zarr")
    group.create_array("x", data=np.arange(3))
    group.create_array("y", data=np.arange(4))
    with pytest.raises(DatasetError, match="different numbers of rows"):
        tdmap.open(tmp_path / "a.zarr")
    del group["y"]
    group.create_array("t", data=np.arange(3).astype("M8[s]"))
    with pytest.raises(DatasetError, match=r"'t' is datetime64.*tdmap.datasets.read"):
        tdmap.open(tmp_path / "a.zarr")
    data = tdmap.open(save_zarr(tmp_path / "b.zarr", 3, 5))
    save_zarr(tmp_path / "b.zarr", 2, 4)
    zarr.open_group(str(tmp_path / "b.zarr"), mode="r+").create_array("new", data=np.arange(ROWS))
    with pytest.raises(DatasetError, match="other arrays"):
        pickle.loads(pickle.dumps(data))[:]
    (tmp_path / "c.h5").write_bytes(b"no HDF5")
    with pytest.raises((DatasetError, OSError)):
        tdmap.open(tmp_path / "c.h5")


SINGLE, COORDINATES = {"gain": np.float32(2.5)}, {"freq": np.arange(6.0), "inner/z": np.arange(8)}
COLUMNS = {"x": np.arange(5), "cube": np.zeros((5, 8, 6), np.uint8), "inner/y": np.zeros((5, 6))}


def mixed(path: Path, names: bool) -> Path:
    """A file with single values and coordinates; with the names of dimensions, one is as long as there are rows."""
    dims = {"x": ["row"], "cube": ["row", "z", "freq"], "inner/y": ["row", "freq"], "freq": ["freq"], "inner/z": ["z"]}
    arrays = {**COLUMNS, **SINGLE, **COORDINATES}
    if names:
        arrays.update({"cube": np.zeros((5, 5, 6), np.uint8), "z": np.arange(5), "row": np.arange(5)})
        arrays.pop("inner/z")
        dims.update({"z": ["z"], "row": ["row"]})
    if path.suffix == ".npz":
        np.savez(path, **{name.replace("/", "."): array for name, array in arrays.items()})
    elif path.suffix == ".zarr":
        group = pytest.importorskip("zarr").open_group(str(path), mode="w")
        for name, array in arrays.items():
            given = {"dimension_names": dims[name]} if names and name in dims and "/" not in name else {}
            group.create_array(name, data=np.asarray(array), **given)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
            for name in ("row", "freq", "z") if names else ():
                file[name].make_scale()
            for name in ("x", "cube", "inner/y") if names else ():
                for number, dim in enumerate(dims[name]):
                    file[name].dims[number].attach_scale(file[dim])
            if names:
                file["bare"] = np.zeros(5)
                file["bare"].make_scale("This is a netCDF dimension but not a netCDF variable.         5")
    return path


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("ending", ["h5", "nc", "zarr", "npz"])
def test_single_values_and_coordinates_are_no_columns(tmp_path: Path, ending: str, names: bool) -> None:
    if names and ending == "npz":
        pytest.skip("NumPy does not name dimensions")
    path = mixed(tmp_path / f"a.{ending}", names)
    wanted = {*COLUMNS} | ({"row"} if names else set())
    readers: list[Any] = [read] if ending == "npz" else [read, tdmap.open]
    for reader in readers:
        data = reader(path)
        found = data.keys(True, True, is_leaf=is_leaf_nontensor)
        assert {"/".join(key) if isinstance(key, tuple) else key.replace(".", "/") for key in found} == wanted
        assert len(data) == 5 and data[1:3]["x"].tolist() == [1, 2]
        assert [*reader(path, columns=["freq"])["freq"]] == [0, 1, 2, 3, 4, 5]
        assert {*reader(path, columns=["inner.y", "x"]).keys(True, True)} <= {("inner", "y"), "inner.y", "x"}
        with pytest.raises((ValueError, DatasetError), match=r"'?gain.* one value"):
            reader(path, columns=["x", "gain"])
        with pytest.raises((ValueError, DatasetError), match="different numbers of rows.*columns="):
            reader(path, columns=["x", "freq"])
        with pytest.raises((ValueError, KeyError), match=r"no column 'fre'.*Did you mean 'freq'"):
            reader(path, columns=["fre"])


def test_columns_are_chosen_of_every_kind_of_dataset(tmp_path: Path) -> None:
    rows().memmap(tmp_path / "folder")
    tdmap.map(rows(), lambda chunk: chunk, out=tmp_path / "shards", rows_per_shard=10, num_workers=0)
    for place in (tmp_path / "folder", tmp_path / "shards", [tmp_path / "folder", Numbers("numbers", ROWS)]):
        data = tdmap.open(place, columns=["word", "inner.y"])
        assert list(data.keys(True, True, is_leaf=is_leaf_nontensor)) == ["word", ("inner", "y")]
        assert data[1]["word"] == "word 1" and data[1]["inner", "y"] == 0.5
        with pytest.raises(KeyError, match="no column 'words'"):
            tdmap.open(place, columns=["words"])
    with pytest.raises(TypeError, match="list of names"):
        tdmap.open(tmp_path / "folder", columns="x")


@pytest.mark.parametrize("kind", ["S6", "ascii", "utf-8"])
def test_text_of_hdf5_is_utf8_whatever_the_file_says(tmp_path: Path, kind: str) -> None:
    h5py = pytest.importorskip("h5py")
    words = [f"ß{n}".encode() for n in range(20)]
    for bad, name in ((False, "a.h5"), (True, "b.h5")):
        with h5py.File(tmp_path / name, "w") as file:
            dtype = np.dtype("S6") if kind == "S6" else h5py.string_dtype(kind)
            file.create_dataset("s", data=[*words[:-1], b"\xe4" if bad else words[-1]], dtype=dtype)
    wanted = [word.decode() for word in words]
    data = tdmap.open(tmp_path / "a.h5")
    assert list(data[:]["s"]) == list(read(tmp_path / "a.h5")["s"]) == wanted and data[[7, 2]]["s"] == ["ß7", "ß2"]
    for call in (lambda: tdmap.open(tmp_path / "b.h5")[11:], lambda: tdmap.open(tmp_path / "b.h5")[[19, 0]]):
        with pytest.raises(DatasetError, match=r"b\.h5.*'s'.* row 19 "):
            call()
    with pytest.raises(UnreadableFile, match=r"b\.h5.*'s'.* row 19 "):
        read(tmp_path / "b.h5")


OPENERS = {
    "open": lambda path: tdmap.open(path)[3:5]["x"],
    "map": lambda path: tdmap.map(tdmap.open(path), lambda chunk: chunk["x"], chunksize=5, num_workers=2),
    "threads": lambda path: tdmap.map(tdmap.open(path), lambda chunk: chunk["x"], executor="thread", num_workers=2),
    "read": read,
    "from_h5": TensorDict.from_h5,
    "h5py": lambda path: pytest.importorskip("h5py").File(path),
    "no locks": lambda path: pytest.importorskip("h5py").File(path, locking=False),
    "refused": lambda path: pytest.raises(KeyError, tdmap.open, path, columns=["none"]),
}


@pytest.mark.parametrize("first", OPENERS)
def test_a_file_can_be_open_in_several_ways(tmp_path: Path, first: str) -> None:
    path = save_hdf5(tmp_path / "a.h5")
    kept = OPENERS[first](path)
    for name, opener in OPENERS.items():
        if (first == "no locks") != (name == "no locks") and "h5" in first + name:
            continue  # h5py refuses itself
        found = opener(path)
        del found
    if first == "open":  # what idle workers and forks have open locks nothing
        with pytest.importorskip("h5py").File(path, "r+") as file:
            file["new"] = np.arange(ROWS)
        assert len(tdmap.open(path)["new"]) == ROWS
    del kept


def test_lists_take_the_path(tmp_path: Path) -> None:
    path = save_zarr(tmp_path / "a.zarr", 3, 5)
    rows().memmap(tmp_path / "folder")
    both = tdmap.open([path, save_hdf5(tmp_path / "b.h5"), tmp_path / "folder", Numbers("numbers", ROWS)])
    assert both["x"].tolist() == [*range(ROWS)] * 4 and both.ends == [ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS]
    assert tdmap.sort(both, "x", num_workers=0)["x"].tolist() == sorted([*range(ROWS)] * 4)
    with pytest.raises(ValueError, match="twice"):
        tdmap.open([path, path])


def by_chunks(path: Path) -> Iterator[Any]:
    yield from tdmap.map_iter(tdmap.open(path), lambda chunk: chunk, chunksize=100, num_workers=0)


def by_slices(path: Path) -> Iterator[Any]:
    data = TensorDict.from_zarr(path) if path.suffix == ".zarr" else TensorDict.from_h5(path)
    for start in range(0, 400, 100):
        yield data[start : start + 100]


def by_parts(path: Path) -> Iterator[Any]:
    with tuning.use(read_bytes=800):
        files, name = SourceFiles([str(path)], [{}]), {".zarr": "zarr", ".h5": "hdf5"}[path.suffix]
        yield from batches_of(files, name, None, "raise", TextTypes(None, None, False))


REFUSED = (DatasetError, UnreadableFile)


def rewrite_in_zarr(path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.open_group(str(path), mode="w", zarr_format=3).create_array("x", data=np.full(100, 2), chunks=(100,))


@pytest.mark.parametrize("reader", [by_chunks, by_slices, by_parts])
@pytest.mark.parametrize("suffix", [".zarr", ".h5", "rewritten.zarr"])
def test_rows_of_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, reader: Any, suffix: str) -> None:
    pytest.importorskip("h5py" if suffix == ".h5" else "zarr")
    path = tmp_path / f"rows{suffix}"
    write(TensorDict({"x": torch.ones(400, dtype=torch.int64)}, [400]), path)
    parts = reader(path)
    seen = {*next(parts)["x"].tolist()}
    if suffix == "rewritten.zarr":
        rewrite_in_zarr(path)
    else:
        write(TensorDict({"x": torch.full((100,), 2)}, [100]), path)
    with contextlib.nullcontext() if suffix == ".h5" else pytest.raises(REFUSED, match="was replaced while"):
        for part in parts:
            seen |= {*part["x"].tolist()}
    assert seen == {1}


class Blocks(Numbers):
    """Rows of which a block is read for each of them that is asked for; it counts the blocks."""

    block, reads = 5, 0

    def open(self) -> OpenRows:
        return OpenBlocks(self)


class OpenBlocks(OpenNumbers):
    def __init__(self, source: Blocks) -> None:
        self.source = source

    def read(self, first: int, last: int, keys: Any = None) -> TensorDict:
        self.source.reads += -(-last // 5) - first // 5
        return wide()[first:last].clone()


def wide() -> TensorDict:
    return rows().update({"empty": torch.zeros(ROWS, 0), "key": torch.arange(ROWS) * 7 % ROWS})


ORDERS: dict[str, Any] = {
    "sort": (lambda data, **options: tdmap.sort(data, "key", **options), wide()["key"].argsort()),
    "sort by text": (
        lambda data, **options: tdmap.sort(data, "word", descending=True, **options),
        torch.tensor(sorted(range(ROWS), key=lambda row: f"word {row}", reverse=True)),
    ),
    "shuffle": (
        lambda data, **options: tdmap.shuffle(data, 3, **options),
        torch.randperm(ROWS, generator=torch.Generator().manual_seed(3)),
    ),
    "scatter": (
        lambda data, **options: tdmap.shuffle(data, 3, method="scatter", **options),
        torch.randperm(ROWS, generator=torch.Generator().manual_seed(3)),
    ),
}


@pytest.mark.parametrize("place", ["memory", "folder", "resume"])
@pytest.mark.parametrize("name", ORDERS)
def test_rows_in_another_order_read_each_block_a_few_times(tmp_path: Path, name: str, place: str) -> None:
    operation, order = ORDERS[name]
    source = Blocks("blocks", ROWS)
    options: dict[str, Any] = {} if place == "memory" else {"out": tmp_path / "out", "resume": place == "resume"}
    with tuning.use(gather_bytes=1):  # as where blocks of the output are a small part of the rows
        found = operation(tdmap.open(source), num_workers=0, **options)
    wanted = wide()[order]
    for key in wanted.keys(True, True, is_leaf=is_leaf_nontensor):
        assert torch.as_tensor(found[key]).equal(wanted[key]) if key != "word" else found[key] == wanted[key], key
    assert source.reads < 10 * 5, source.reads  # of 5 blocks
    assert not [path for path in tmp_path.rglob("*") if "copy-" in path.name]
