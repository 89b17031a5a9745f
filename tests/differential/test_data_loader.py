"""Batches that the DataLoader of torch makes of every kind of collection, beside those of the reference."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensordict
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Subset

import tdmap
import tensordict_lite
from tests.differential.harness.namespace import build
from tests.products import sampled

LIBRARIES = (tensordict, tensordict_lite)


@tensordict_lite.tensorclass
class Point:
    x: torch.Tensor
    s: str = "hi"


@tensordict.tensorclass
class ReferencePoint:
    x: torch.Tensor
    s: str = "hi"


class Picture(tensordict_lite.TensorClass):
    x: torch.Tensor
    n: int = 3


class ReferencePicture(tensordict.TensorClass):
    x: torch.Tensor
    n: int = 3


KINDS = {
    "dense": "TD({'a': A, 'n': {'b': R}}, [6])",
    "locked": "TD({'a': A, 'n': {'b': R}}, [6]).lock_()",
    "named": "TD({'a': A}, [6], names=['row'])",
    "two batch dimensions": "TD({'a': A}, [6, 2])",
    "non-tensor": "TD({'a': A, 's': list('abcdef'), 'o': 'one'}, [6])",
    "unbatched": "TD({'a': A, 'u': UnbatchedTensor(torch.ones(3))}, [6])",
    "consolidated": "TD({'a': A, 'n': {'b': R}}, [6]).consolidate()",
    "mapped": "TD({'a': A, 'n': {'b': R}}, [6]).memmap(folder / 'mapped')",
    "hdf5": "PersistentTensorDict.from_dict(TD({'a': A, 'n': {'b': R}}, [6]), folder / 'file.h5')",
    "zarr": "TD({'a': A, 'n': {'b': R}}, [6]).to_zarr(folder / 'store.zarr')",
    "lazy": "lazy_stack([TD({'a': A[i]}) for i in range(6)])",
    "lazy along 1": "lazy_stack([TD({'a': A}, [6]) for i in range(3)], 1)",
    "ragged": "lazy_stack([TD({'a': torch.ones(i + 1)}) for i in range(6)])",
    "tensorclass": "Point(A, s='hi', batch_size=[6])",
    "derived tensorclass": "Picture(A, n=4, batch_size=[6])",
    "lazy tensorclass": "lazy_stack([Point(A[i], s=str(i), batch_size=[]) for i in range(6)])",
    "ragged tensorclass": "lazy_stack([Point(torch.ones(i + 1), s=str(i), batch_size=[]) for i in range(6)])",
    "nested tensorclass": "TD({'c': Point(A, batch_size=[6])}, [6])",
    "parameters": "TensorDictParams(TD({'a': A, 'n': {'b': A + 1}}, [6]))",
    "objects": "NonTensorStack(*'abcdef')",
    "one object": "NonTensorData('x', batch_size=[6])",
}

ROWS: list[Any] = [
    [0, 2], [2, 0, 0], [-1, 0], [], [0, 6], [-7], [True, False], [True] * 6, range(2), None, [None], ["a"],
    [[0, 1], [2, 3]], [torch.tensor(1), torch.tensor(0)], torch.tensor([3, 1]), torch.tensor([0, 1], device="meta"),
    2, slice(1, 3),
]  # fmt: skip


def made(kind: str, library: ModuleType, folder: Path) -> Any:
    folder = folder / library.__name__
    folder.mkdir()
    if kind in ("hdf5", "zarr"):
        pytest.importorskip({"hdf5": "h5py", "zarr": "zarr"}[kind])
    scope = build(library.__name__, set())
    if library is tensordict:
        scope.update(Point=ReferencePoint, Picture=ReferencePicture)
    else:
        scope.update(Point=Point, Picture=Picture)
    scope.update(A=torch.arange(12.0).view(6, 2), R=torch.arange(6), folder=folder, Path=Path)
    scope.update({name: getattr(library, name) for name in ("PersistentTensorDict", "UnbatchedTensor")})
    return eval(KINDS[kind], scope)


def as_it_is(batch: Any) -> Any:
    return batch


def seen(batch: Any) -> Any:
    """Type, batch size, names and entries of a batch."""
    if not hasattr(batch, "batch_size"):
        return type(batch)
    # Rows of a file are a view of it there, and in memory here.
    name = type(batch).__name__.replace("_SubTensorDict", "TensorDict").removeprefix("Reference")
    if name.startswith("NonTensor"):
        return name, batch.batch_size, batch.names, batch.tolist()
    keys = set(map(str, batch.keys(True)))
    rows = [row.to_dict() for row in batch.unbind(0)] if batch.batch_dims else batch.to_dict()
    return name, batch.batch_size, batch.names, keys, tree_map(as_plain, rows)


def as_plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("kind, collate_fn, workers", sampled(2, KINDS, [as_it_is, None], [0, 1]))
def test_batches_are_those_of_the_reference(kind: str, collate_fn: Any, workers: int, tmp_path: Path) -> None:
    if kind == "parameters" and workers:
        pytest.skip("torch sends no tensors that require gradients to another process")
    found = []
    method = "fork" if workers and kind == "hdf5" else None  # HDF5 locks an open file against other processes
    for library in LIBRARIES:
        data = made(kind, library, tmp_path)
        options = {"num_workers": workers, "multiprocessing_context": method}
        loaders = [DataLoader(data, batch_size=4, collate_fn=collate_fn, **options)]
        if not workers:
            loaders.append(DataLoader(Subset(data, [5, 0, 2]), batch_size=2, collate_fn=collate_fn))
            loaders.append(DataLoader(data, batch_sampler=[[5, 1], [-1]], collate_fn=collate_fn))
        found.append([seen(batch) for loader in loaders for batch in loader])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_are_those_of_an_index(kind: str, tmp_path: Path) -> None:
    data = made(kind, tensordict_lite, tmp_path)

    def answer(ask: Any) -> Any:
        try:
            return seen(ask())
        except Exception as error:
            return type(error), str(error)

    for rows in ROWS:
        found, expected = answer(lambda rows=rows: data.__getitems__(rows)), answer(lambda rows=rows: data[rows])
        if getattr(rows, "is_meta", False):  # of which torch makes rows without values
            found, expected = found[:4], expected[:4]
        assert found == expected, rows
    assert seen(data.__getitems__((3, 1))) == seen(data[[3, 1]])  # of a batch sampler that yields tuples


@pytest.mark.parametrize("collate_fn", [as_it_is, None], ids=["identity", "default"])
def test_datasets_of_several_folders_give_batches(collate_fn: Any, tmp_path: Path) -> None:
    whole = tensordict_lite.TensorDict({"a": torch.arange(9), "s": list("abcdefghi")}, [9])
    for number, part in enumerate(whole.split(3)):
        part.memmap(tmp_path / f"shard-{number}")
    for data in (tdmap.open([str(path) for path in sorted(tmp_path.iterdir())]), tdmap.concat(whole.split(3))):
        batches = list(DataLoader(data, batch_size=4, collate_fn=collate_fn, num_workers=2))
        assert [type(batch) for batch in batches] == [tensordict_lite.TensorDict] * 3
        assert [batch["a"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
        assert [list(batch["s"]) for batch in batches] == [list("abcd"), list("efgh"), ["i"]]
        with pytest.raises(IndexError, match="9"):
            data.__getitems__([0, 9])
