"""Collections in HDF5 files and Zarr stores: what the reference package does with them, this one does."""

import json
import math
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict as reference
import torch

import tdmap
import tensordict_lite as ours
from tensordict_lite import PersistentTensorDict, TensorDict, lazy_stack, tensorclass
from tests.products import sampled

h5py = pytest.importorskip("h5py")
BACKENDS = ["h5", "zarr"]

LIBRARIES = (ours, reference)
DTYPES = [torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.bool, torch.complex64, torch.complex128]


def tree(library: Any, size: tuple[int, ...] = (5,)) -> Any:
    entries = {"a": torch.arange(int(np.prod(size))).view(size)}
    nested = {"b": torch.randn(*size, 3, generator=torch.Generator().manual_seed(0)), "c": torch.ones(size) > 0}
    return library.TensorDict({**entries, "n": nested}, list(size))


def written(data: Any, path: Path, **options: Any) -> Any:
    """The collection in a file of the format that its ending says."""
    backend = path.suffix[1:]
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}[backend])
    return getattr(data, f"to_{backend}")(path, **options)


def opened(library: Any, path: Path, **options: Any) -> Any:
    return getattr(library, f"from_{path.suffix[1:]}")(path, **options)


PAIRS = [(backend, size) for backend in BACKENDS for size in [(), (5,), (4, 3), (0,)]]


def pair(backend: str, size: tuple[int, ...], folder: Path) -> Iterator[tuple[Any, Any]]:
    files = [written(tree(lib, size), folder / f"{lib.__name__}.{backend}") for lib in LIBRARIES]
    yield tuple(files)
    for file in files:
        file.close()


@pytest.fixture
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    yield from pair(*request.param, tmp_path)


@pytest.fixture(scope="module", params=PAIRS, ids=str)
def both_to_read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    yield from pair(*request.param, tmp_path_factory.mktemp("read"))


def plain(value: Any) -> Any:
    """A result without the library that it is of."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), list(value.shape), value.tolist())
    if hasattr(value, "batch_size"):
        entries = {key: plain(value[key]) for key in sorted(value.keys())}
        return (list(value.batch_size), entries)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def outcome(call: Callable[[Any], Any], data: Any) -> Any:
    try:
        return plain(call(data))
    except Exception as err:
        return ("raises", KeyError if isinstance(err, KeyError) else None)


def rows(data: Any, index: Any) -> Any:
    return type(data.to_tensordict())({"a": torch.full_like(data["a"][index], 9)}, data["a"][index].shape)


def write_rows(data: Any, index: Any) -> Any:
    data[index] = rows(data, index)
    return data


READS: dict[str, Callable[[Any], Any]] = {
    "entry": lambda data: data["a"],
    "nested entry": lambda data: data["n", "b"],
    "group": lambda data: data["n"],
    "missing": lambda data: data["nope"],
    "get": lambda data: data.get(("n", "b")),
    "get, missing": lambda data: data.get("nope", 7),
    "get, below a tensor": lambda data: [data.get(("a", "q"), 7), data.get(("n", "b", "q"), None)],
    "int": lambda data: data[1],
    "negative": lambda data: data[-1],
    "slice": lambda data: data[1:3],
    "step": lambda data: data[::2],
    "backwards list": lambda data: data[[3, 0, 3]],
    "mask": lambda data: data[data["a"] % 2 == 0],
    "tensor": lambda data: data[torch.tensor([2, 0])],
    "two": lambda data: data[1, 2],
    "get_at": lambda data: data.get_at("a", 1),
    "keys": lambda data: sorted(map(str, data.keys(True, True))),
    "contains": lambda data: ["a" in data.keys(), ("n", "b") in data.keys(True), "x" in data.keys()],
    "add": lambda data: data.to_tensordict() + 1,
    "times": lambda data: data * 2,
    "apply": lambda data: data.apply(lambda x: x + x),
    "sum": lambda data: data.to_tensordict().sum(),
    "clone": lambda data: data.clone(),
    "to_dict": lambda data: sorted(data.to_dict()),
    "to_tensordict": lambda data: data.to_tensordict(),
    "dtype": lambda data: data.to(torch.float64),
    "device": lambda data: str(data.to("cpu").device),
    "unbind": lambda data: data.unbind(0),
    "split": lambda data: data.split(2),
    "iterate": lambda data: list(data),
    "stack": lambda data: torch.stack([data, data]),
    "reshape": lambda data: data.reshape(-1),
    "length": lambda data: [len(data), data.ndim, data.numel(), data.is_empty()],
    "locked": lambda data: [data.lock_().is_locked, data.unlock_().is_locked],
    "size": lambda data: list(data.batch_size),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "set": lambda data: data.set("z", data["a"] + 1),
    "replace": lambda data: data.set("a", data["n", "b"]),
    "misfit": lambda data: data.set("z", torch.ones(7, 7)),
    "nested": lambda data: [data.set(("x", "y"), data["a"] + 1), data][1],
    "in place": lambda data: data.set_("a", data["a"] * 2),
    "in place, missing": lambda data: data.set_("nope", data["a"]),
    "rows": lambda data: write_rows(data, 1),
    "more rows": lambda data: write_rows(data, slice(0, 2)),
    "some rows": lambda data: write_rows(data, torch.tensor([2, 0])),
    "rows of an entry": lambda data: data.set_at_("a", 7, 0),
    "update": lambda data: data.update({"a": data["a"] + 5, "n": {"b": data["n", "b"] + 1}, "new": data["a"]}),
    "update in place": lambda data: data.update_({"a": data["a"] + 5}),
    "update by a tree": lambda data: data.update(data.to_tensordict().apply(lambda leaf: leaf + 1)),
    "update by a tree, in place": lambda data: data.update_(data.to_tensordict().apply(lambda leaf: leaf + 1)),
    "update by a file": lambda data: data.update(data),
    "update below": lambda data: data.update({"n": data["n"].to_tensordict().zero_()}),
    "state": lambda data: data.load_state_dict(data.to_tensordict().zero_().state_dict()),
    "state below": lambda data: [data["n"].load_state_dict(data["n"].to_tensordict().zero_().state_dict()), data],
    "nested level": lambda data: data.create_nested(("n", "new")),
    "names": lambda data: [data.rename_(*"pq"[: data.ndim]), data.names],
    "refined names": lambda data: [data.refine_names(*"pq"[: data.ndim]), data.names],
    "out": lambda data: data.apply(torch.zeros_like, out=data),
    "where": lambda data: data.where(torch.zeros(data.shape).bool(), data.to_tensordict().zero_(), out=data),
    "cast in place": lambda data: data.to(torch.float64, inplace=True),
    "delete": lambda data: data.del_("a"),
    "delete below": lambda data: data.del_(("n", "b")),
    "rename": lambda data: data.rename_key_("a", "other"),
    "rename below a tensor": lambda data: data.rename_key_("n", ("a", "q")),
    "rename into itself": lambda data: [data.rename_key_("n", ("n", "x")), data],
    "rename out of itself": lambda data: [data.rename_key_(("n", "b"), "n"), data],
    "rename to itself": lambda data: [data.rename_key_("a", "a"), data],
    "pop": lambda data: [data.pop("a"), data],
    "zero": lambda data: data.zero_(),
    "arithmetic": lambda data: data.del_(("n", "c")).add_(1),
    "clear": lambda data: data.clear(),
    "locked": lambda data: data.lock_().set("z", data["a"]),
    "locked, in place": lambda data: data.lock_().set_("a", data["a"] + 1),
    "batch size": lambda data: setattr(data, "batch_size", [9]),
}


@pytest.mark.parametrize("name", READS)
def test_reading_is_that_of_the_reference(both_to_read: tuple[Any, Any], name: str) -> None:
    mine, theirs = (outcome(READS[name], data) for data in both_to_read)
    assert mine == theirs or theirs[0] == "raises" != mine[0]  # what it refuses may have an answer


@pytest.mark.parametrize("both, name", sampled(3, PAIRS, WRITES), indirect=["both"])
def test_writing_is_that_of_the_reference_and_reaches_the_file(
    both: tuple[Any, Any], name: str, tmp_path: Path
) -> None:
    mine, theirs = (outcome(WRITES[name], data) for data in both)
    if theirs[0] == "raises" != mine[0]:  # rows in no order
        assert name in ("some rows", "rename to itself")
        return
    assert mine == theirs or (name == "rename below a tensor" and mine[0] == theirs[0] == "raises")
    assert contents(both[0], ours, tmp_path) == contents(both[1], reference, tmp_path)
    assert both[0].batch_size == both[1].batch_size


def contents(data: Any, library: Any, folder: Path) -> dict[str, Any]:
    """Values and batch sizes that other programs find in the file."""
    store = folder / f"{library.__name__}.zarr"
    if store.exists():
        zarr = pytest.importorskip("zarr")
        nodes = zarr.open_group(str(store), mode="r", use_consolidated=False).members(max_depth=None)
        return {name: node[...].tolist() if hasattr(node, "dtype") else "group" for name, node in nodes}
    found: dict[str, Any] = {}
    data.file.visititems(
        lambda key, entry: found.__setitem__(key, entry[()].tolist() if hasattr(entry, "dtype") else "group")
    )
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_library_reads_what_the_other_wrote(tmp_path: Path, dtype: torch.dtype, backend: str) -> None:
    shapes = [(), (3,), (0, 2), (2, 3, 1)]
    values = {str(shape): (torch.arange(math.prod(shape)) % 3).view(shape).to(dtype) for shape in shapes}
    for writer, reader in (LIBRARIES, LIBRARIES[::-1]):
        path = tmp_path / f"{writer.__name__}.{backend}"
        written(writer.TensorDict({**values, "n": values}), path).close()
        data = opened(reader, path)
        for name, value in values.items():
            for found in (data[name], data["n", name]):
                assert found.dtype == dtype and torch.equal(found, value), name
        data.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_strings_come_back_as_strings_from_either(tmp_path: Path, backend: str) -> None:
    for writer in LIBRARIES:
        path = tmp_path / f"{writer.__name__}.{backend}"
        written(writer.TensorDict({"s": "hello", "l": ["x", "y"], "t": torch.ones(2, 3)}, [2]), path).close()
        data = opened(ours, path)
        assert data.batch_size == (2,) and data["s"] == "hello" and data["l"] == ["x", "y"]
        assert data[1]["l"] == "y" and data[torch.tensor([1, 0])]["l"] == ["y", "x"]
        data.close()


OBJECTS: dict[str, Any] = {
    "numbers": {"num": 3, "float": 1.5, "none": None, "truth": True},
    "containers": {"list": [1, [2]], "dict": {"k": [1, None], "n": {}}, "surrogate": "\ud800", "empty": ""},
    "rows": {"st": [1, {"a": 2}], "lists": [[1], [2]], "mixed": ["x", None]},
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_in_a_store_come_back_from_either(tmp_path: Path, kind: str) -> None:
    for writer, reader in (LIBRARIES, LIBRARIES[::-1]):
        path = tmp_path / f"{writer.__name__}.zarr"
        is_rows = kind == "rows"
        wrapped = {
            key: writer.NonTensorStack(*map(writer.NonTensorData, value)) if is_rows
            else writer.NonTensorData(value, batch_size=[2])
            for key, value in OBJECTS[kind].items()
        }  # fmt: skip
        inner = writer.TensorDict(wrapped, [2], names=["row"])
        data = writer.TensorDict({"x": torch.ones(2, 3), "n": inner}, [2], names=["row"])
        written(data, path, chunks=(1,))
        for library in (writer, reader):
            found = opened(library, path)
            assert found.batch_size == found["n"].batch_size == (2,) and found.names == found["n"].names == ["row"]
            for key, value in OBJECTS[kind].items():
                entry = found["n"].get(key)
                assert type(entry).__name__ == ("NonTensorStack" if is_rows else "NonTensorData")
                assert (entry.tolist() if is_rows else entry.data) == value


def test_a_store_keeps_sizes_chunks_and_what_was_there(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    data = TensorDict({"x": torch.arange(10), "n": TensorDict({"y": torch.ones(10, 3, 2)}, [10, 3])}, [10])
    stored = data.to_zarr(tmp_path / "s.zarr", chunks=(4,))
    found = zarr.open_group(str(tmp_path / "s.zarr"), mode="r")
    assert found["x"].chunks == (4,) and found["n/y"].chunks == (4, 3, 2)
    assert stored["n"].batch_size == (10, 3) and stored[:2]["n"].batch_size == (2, 3)
    assert stored.to_tensordict()["n"].batch_size == (10, 3)
    again = stored.apply(lambda leaf: leaf + 1).to_zarr(tmp_path / "s.zarr")  # over itself
    assert again["x"].tolist() == list(range(1, 11))
    for entry, error in ((torch.ones(10).bfloat16(), TypeError), ({1, 2}, TypeError), (torch.ones(10), ValueError)):
        key = "/" if error is ValueError else "bad"
        with pytest.raises(error, match="bfloat16|allow_pickle=True|'/'"):
            TensorDict({"x": torch.zeros(10), key: entry}, [10]).to_zarr(tmp_path / "s.zarr")
    assert ours.from_zarr(tmp_path / "s.zarr")["x"].tolist() == list(range(1, 11))
    (tmp_path / "s.zarr" / "mine.txt").touch()
    for write in (data.to_zarr, lambda path: PersistentTensorDict(filename=path, mode="w", backend="zarr")):
        with pytest.raises(FileExistsError, match=r"mine\.txt"):
            write(tmp_path / "s.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.zarr"]
    schema = {"obs": ((2,), torch.float32), ("n", "done"): ((), torch.bool)}
    made = TensorDict.from_schema(schema, batch_size=[3], storage="zarr", filename=tmp_path / "c.zarr", chunks=(1,))
    made[1] = TensorDict({"obs": torch.ones(2), "n": {"done": torch.tensor(True)}})
    assert ours.from_zarr(tmp_path / "c.zarr")["obs"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert reference.from_zarr(tmp_path / "c.zarr").batch_size == (3,)
    lone = ["\ud800", "x"]  # no UTF-8
    assert TensorDict({"s": lone}, [2]).to_zarr(tmp_path / "t.zarr")["s"] == lone


def test_stores_of_other_programs_open(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "other.zarr"), mode="w")
    for name, values in {
        "a": np.ones((3, 2)),
        "n/b": np.arange(15).reshape(3, 5),
        "s": np.array(["x", "y", "zz"]),
    }.items():
        group.create_array(name, data=values)
    consolidated = reference.TensorDict({"x": torch.ones(2)}, [2], names=["row"]).to_zarr(tmp_path / "c.zarr")
    ours.from_zarr(tmp_path / "c.zarr", mode="r+")["z"] = torch.zeros(2)
    assert sorted(reference.from_zarr(tmp_path / "c.zarr").keys()) == ["x", "z"] and consolidated.names == ["row"]
    assert ours.from_zarr(tmp_path / "c.zarr", batch_size=[2]).names == ["row"]
    for options in ({}, {"non_tensor_as_stack": True}, {"batch_size": []}, {"auto_batch_size": True, "batch_dims": 0}):
        mine, theirs = (lib.from_zarr(tmp_path / "other.zarr", **options) for lib in LIBRARIES)
        assert mine.batch_size == theirs.batch_size and type(mine.get("s")).__name__ == type(theirs.get("s")).__name__
        assert list(mine["s"]) == list(theirs["s"]) and torch.equal(mine["n", "b"], theirs["n", "b"])


# -- nothing outside of a store ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["chunk", "array", "group", "metadata", "fifo"])
def test_a_store_that_leads_out_of_itself_is_not_opened(tmp_path: Path, what: str) -> None:
    for name in ("other.zarr", "data.zarr"):
        pytest.importorskip("zarr")
        TensorDict({"x": torch.arange(3), "g": {"y": torch.arange(3)}}, [3]).to_zarr(tmp_path / name)
    inner = {"chunk": "x/c/0", "array": "x", "group": "g", "metadata": "zarr.json", "fifo": "x/c/0"}[what]
    place = tmp_path / "data.zarr" / inner
    place.rename(tmp_path / "moved")
    os.mkfifo(place) if what == "fifo" else place.symlink_to(tmp_path / "other.zarr" / inner)
    for read in (ours.from_zarr, tdmap.datasets.read, lambda path: ours.from_zarr(path, mode="r+")):
        with pytest.raises(ValueError, match=rf"data\.zarr: {inner} is a symbolic link, a pipe or a device"):
            read(tmp_path / "data.zarr")
    os.symlink(tmp_path / "other.zarr", tmp_path / "reached.zarr")
    assert ours.from_zarr(tmp_path / "reached.zarr")["x"].tolist() == [0, 1, 2]


def test_pickles_in_a_store_are_not_read_without_leave(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    path = tmp_path / "s.zarr"
    reference.TensorDict({"x": torch.ones(2), "o": reference.NonTensorData({1, 2})}, [2]).to_zarr(path)
    for allow_pickle in (None, False):
        data = ours.from_zarr(path, allow_pickle=allow_pickle)
        assert data["x"].tolist() == [1, 1]
        with pytest.raises(RuntimeError, match="/o of .* is pickled.*allow_pickle=True"):
            data["o"]
    assert ours.from_zarr(path, allow_pickle=True)["o"] == {1, 2}
    shutil.rmtree(path)
    pickled = {"id": "pickle", "protocol": 5}
    array = {
        "zarr_format": 2,
        "shape": [3],
        "chunks": [3],
        "dtype": "|O",
        "compressor": None,
        "fill_value": "",
        "order": "C",
    }
    (path / "x").mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "x" / ".zarray").write_text(json.dumps({**array, "filters": [{"id": "vlen-utf8"}, pickled]}))
    (path / "x" / "0").write_bytes(pickle.dumps(Planted()))
    for read in (lambda: ours.from_zarr(path)["x"], lambda: tdmap.datasets.read(path)):
        with pytest.raises((TypeError, ValueError), match="pickle"):
            read()
    assert not Planted.ran


class Planted:
    ran: list[int] = []

    def __reduce__(self) -> Any:
        return Planted.ran.append, (1,)


def test_files_of_other_programs_open(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["deep/below"] = np.arange(6, dtype=">i4").reshape(3, 2)
        file["text"] = "abc"
        file["number"] = 2.5
    data = TensorDict.from_h5(tmp_path / "other.h5")
    assert data["deep", "below"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data["text"] == b"abc" and data["number"] == 2.5 and data.batch_size == ()
    data.close()


def test_the_batch_size_that_entries_share_is_found(tmp_path: Path) -> None:
    tree(ours, (4, 3)).to_h5(tmp_path / "a.h5").close()
    for options, size in (({}, [4, 3]), ({"auto_batch_size": True}, [4, 3]), ({"batch_size": [4]}, [4])):
        with_options = [lib.PersistentTensorDict.from_h5(tmp_path / "a.h5", **options) for lib in LIBRARIES]
        assert [list(data.batch_size) for data in with_options] == [size, size]
        assert list(with_options[0]["n"].batch_size) == size
        [data.close() for data in with_options]
    limited = PersistentTensorDict.from_h5(tmp_path / "a.h5", auto_batch_size=True, batch_dims=1)
    assert limited.batch_size == (4,)


def test_rows_are_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDict({"x": torch.arange(100_000)}, [100_000]).to_h5(tmp_path / "big.h5", chunks=(1000,))
    read: list[int] = []
    real = h5py.Dataset.__getitem__

    def counting(self: Any, index: Any, **kwargs: Any) -> Any:
        value = real(self, index, **kwargs)
        read.append(np.size(value))
        return value

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counting)
    assert data[7]["x"] == 7 and data[50:60]["x"].tolist() == list(range(50, 60))
    assert data[torch.tensor([99_999, 5, -1])]["x"].tolist() == [99_999, 5, 99_999]
    assert data.get_at("x", slice(3, 5)).tolist() == [3, 4]
    assert list(data.keys()) == ["x"] and data.batch_size == (100_000,) and "x" in repr(data)
    assert sum(read) < 2000
    with pytest.raises(IndexError):
        data[torch.tensor([100_000])]


def test_from_dict_keeps_names_compression_and_size(tmp_path: Path) -> None:
    data = TensorDict({"x": torch.zeros(100, 10)}, [100], names=["time"])
    stored = PersistentTensorDict.from_dict(data, tmp_path / "a.h5", compression="gzip")
    assert stored.names == ["time"] and stored.batch_size == (100,)
    assert stored.file["x"].compression == "gzip"
    stored["x"] = torch.ones(100, 10)
    assert stored.file["x"].compression == "gzip" and (stored["x"] == 1).all()
    made = PersistentTensorDict.from_dict({"a": torch.ones(4, 2), "b": {"c": torch.ones(4)}}, tmp_path / "b.h5")
    assert made.batch_size == (4,)
    schema = {"obs": ((2,), torch.float32), ("n", "done"): ((), torch.bool)}
    zeros = TensorDict.from_schema(schema, batch_size=[3], storage="h5", filename=tmp_path / "c.h5")
    assert zeros["obs"].shape == (3, 2) and zeros["n", "done"].tolist() == [False] * 3


@pytest.mark.parametrize("options", [{}, {"strict": False}, {"as_tensordict": True}], ids=str)
def test_select_takes_the_options_of_a_tree(tmp_path: Path, options: dict[str, bool]) -> None:
    tree = TensorDict({"a": torch.ones(2), "b": torch.zeros(2)}, [2])
    with PersistentTensorDict.from_dict(tree, tmp_path / "d.h5") as data:
        assert plain(data.select("a", **options)) == plain(tree.select("a", **options))


def test_it_pickles_by_its_file(tmp_path: Path) -> None:
    data = tree(ours).to_h5(tmp_path / "a.h5")
    data.file.flush()
    again = pickle.loads(pickle.dumps(data["n"]))
    assert type(again) is PersistentTensorDict and (again["b"] == data["n", "b"]).all() and again.batch_size == (5,)


def test_every_kind_is_written(tmp_path: Path) -> None:
    @tensorclass
    class Point:
        x: torch.Tensor

    data = TensorDict({"p": Point(x=torch.ones(2), batch_size=[2])}, [2]).to_h5(tmp_path / "p.h5")
    assert data["p", "x"].tolist() == [1, 1]
    stack = lazy_stack([TensorDict({"a": torch.zeros(3)}, [3]), TensorDict({"a": torch.ones(3)}, [3])])
    assert stack.to_h5(tmp_path / "l.h5")["a"].tolist() == [[0] * 3, [1] * 3]
    assert TensorDict({}, [3]).update(data[:1].expand(3)).batch_size == (3,)
    total = TensorDict({"p": {"x": torch.ones(2)}}, [2]) + data.to_tensordict()
    assert total["p", "x"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (torch.ones(2, dtype=torch.bfloat16), "bfloat16"),
        (ours.NonTensorData({"k": 1}, batch_size=[2]), "dict"),
        (torch.ones(2, 2).to_sparse(), "sparse"),
    ],
)
def test_what_hdf5_cannot_hold_is_named(tmp_path: Path, entry: Any, says: str) -> None:
    with pytest.raises(TypeError, match=rf"(?s)/x.*{says}"):
        TensorDict({"x": entry}, [2]).to_h5(tmp_path / "x.h5")


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    data = tree(ours).to_h5(tmp_path / "a.h5")
    with pytest.raises(NotImplementedError, match="to_tensordict"):
        data.share_memory_()
    with pytest.raises(RuntimeError, match=r"batch size \[9\]"):
        data.batch_size = [9]
    data.close()
    with pytest.raises(KeyError, match="closed"):
        data["a"]
    assert "closed" in repr(data)
    with pytest.raises(FileNotFoundError):
        TensorDict.from_h5(tmp_path / "nope.h5")
    os.mkfifo(tmp_path / "fifo.h5")
    for place in ("fifo.h5", "."):
        with pytest.raises(OSError, match="not a regular file"):
            TensorDict.from_h5(tmp_path / place)
    with pytest.raises(TypeError, match="batch_size and auto_batch_size"):
        TensorDict.from_h5(tmp_path / "a.h5", batch_size=[5], auto_batch_size=True)
    with pytest.raises(RuntimeError, match="Either group or filename"):
        PersistentTensorDict(batch_size=[3])
    with pytest.raises(NotImplementedError, match="Unknown backend 'npz'"):
        PersistentTensorDict(filename=tmp_path / "a.zarr", backend="npz")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_size_that_does_not_fit_is_refused_as_by_the_reference(tmp_path: Path, backend: str) -> None:
    for library in LIBRARIES:
        written(tree(library), tmp_path / f"x.{backend}").close()
        with pytest.raises(ValueError, match="batch size and array size mismatch"):
            opened(library, tmp_path / f"x.{backend}", batch_size=[4])
        (shutil.rmtree if backend == "zarr" else os.unlink)(tmp_path / f"x.{backend}")


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "flatten_keys": lambda data: data.flatten_keys(".", True),
    "flatten_keys by name": lambda data: data.flatten_keys(".", inplace=True),
    "reshape": lambda data: data.reshape(2, 3, inplace=True),
    "flatten": lambda data: data.flatten(inplace=True),
    "separates": lambda data: data.separates("a"),
    "cat_tensors": lambda data: data.cat_tensors("a", ("n", "c"), out_key="z", dim=1),
    "stack_tensors": lambda data: data.stack_tensors("a", ("n", "c"), out_key="z", dim=1),
    "create_nested": lambda data: data.create_nested("z"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_works_in_place_changes_the_file_as_it_changes_a_tree(tmp_path: Path, name: str, backend: str) -> None:
    dense = tree(ours, (3, 2)).auto_batch_size_(1 if "_tensors" in name else 2)
    dense.names = ["p", "q"][: dense.ndim]
    data = written(dense, tmp_path / f"data.{backend}")
    for each in (dense, data):
        IN_PLACE[name](each)
    assert data.batch_size == dense.batch_size and data.names == dense.names
    assert plain(data.to_tensordict()) == plain(dense)
    data.close()


# -- nothing outside of the file --------------------------------------------------------------------------------------


def leading_out(h5py: Any, file: Any, what: str, other: Path) -> None:
    if what == "virtual":
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(str(other), "x", (3,))
        file.create_virtual_dataset("g/s", layout)
    elif what == "raw":
        file.create_dataset("g/s", (3,), "u1", external=[(str(other), 0, 3)])
    elif what == "itself":
        file["g/s"] = file["/"]
    else:
        file["g/s"] = {
            "soft": h5py.SoftLink("/x"),
            "external": h5py.ExternalLink(str(other), "/x"),
            "group": h5py.ExternalLink(str(other), "/"),
        }[what]


@pytest.mark.parametrize("what", ["soft", "external", "group", "virtual", "raw", "itself"])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_leads_out_of_itself_is_not_opened(tmp_path: Path, what: str, mode: str) -> None:
    for name in ("other.h5", "data.h5"):
        TensorDict({"x": torch.arange(3), "g": {"y": torch.arange(3)}}, [3]).to_h5(tmp_path / name).close()
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        leading_out(h5py, file, what, tmp_path / "other.h5")
    for opened in (
        lambda: PersistentTensorDict.from_h5(tmp_path / "data.h5", mode=mode),
        lambda: PersistentTensorDict(filename=tmp_path / "data.h5", batch_size=[3], mode=mode),
        lambda: PersistentTensorDict(filename=tmp_path / "data.h5", mode=mode),
    ):
        with pytest.raises(ValueError, match=r"data\.h5: g\.s "):
            opened()
    with h5py.File(tmp_path / "data.h5") as file, pytest.raises(ValueError, match=r"data\.h5: .*s "):
        PersistentTensorDict(group=file["g"], batch_size=[3])


@pytest.mark.parametrize("kind", ["negated", "conjugate"])
def test_views_that_negate_or_conjugate_are_written(tmp_path: Path, kind: str) -> None:
    value = torch.complex(torch.arange(3.0), torch.arange(3.0)).conj()
    value = value.imag if kind == "negated" else value
    data = TensorDict({"x": value}, [3]).to_h5(tmp_path / "x.h5")
    assert torch.equal(data["x"], value)
    data.set_at_("x", value[1:] + 0 * value[1:], slice(1, 3))
    data.set_at_("x", value[:1], slice(0, 1))
    data.set("y", value)
    assert torch.equal(data["x"], value) and torch.equal(data["y"], value)
