"""What an output may be: lazy stacks as dense ones, some entries of a folder, and no dataset of several folders."""

import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict, lazy_stack
from tests.cells.kinds import plain
from tests.cells.operations import OPERATIONS, resumable
from tests.products import sampled

CALLS = {
    "map": lambda data, out: tdmap.map(data, lambda rows: rows, out=out, num_workers=0),
    "map, a row each": lambda data, out: tdmap.map(data, lambda row: row, out=out, num_workers=0, chunksize=0),
    "sort": lambda data, out: tdmap.sort(data, "k", out=out, num_workers=0),
    "filter": lambda data, out: tdmap.filter(data, tdmap.col("k") > 0, out=out, num_workers=0),
    "shuffle": lambda data, out: tdmap.shuffle(data, out=out, seed=1, num_workers=0),
    "flat_map": lambda data, out: tdmap.flat_map(data, lambda rows: rows, out=out, num_workers=0),
    "join": lambda data, out: tdmap.join(data, data.select("k"), "k", out=out, num_workers=0),
    "sample": lambda data, out: tdmap.sample(data, 3, out=out, seed=1, num_workers=0),
}


def members(dtype=torch.int64, shape=(), key="k"):
    return lazy_stack([TensorDict({key: torch.full(shape, -1, dtype=dtype)}, []) for _ in range(3)])


@pytest.mark.parametrize("name", CALLS)
def test_a_lazy_stack_takes_rows_as_a_dense_collection_does(name):
    data = TensorDict({"k": torch.tensor([3, 1, 2]), "more": torch.zeros(3)}, [3])
    found, wanted = members(), TensorDict({"k": torch.full((3,), -1)}, [3])
    CALLS[name](data, found)  # what it lacks is left out
    CALLS[name](data, wanted)
    assert found["k"].tolist() == wanted["k"].tolist()


@pytest.mark.parametrize("name", CALLS)
def test_a_lazy_stack_refuses_what_does_not_fit(name):
    data = TensorDict({"k": torch.tensor([300, 1, 2])}, [3])
    for out in (members(torch.int8), members(shape=(2,)), members(key="other")):
        with pytest.raises(tdmap.errors.OutputMismatch):
            CALLS[name](data, out)


@pytest.mark.parametrize("name", CALLS)
def test_a_dataset_of_several_folders_is_refused_before_anything_runs(name, tmp_path):
    for part in range(2):
        TensorDict({"k": torch.full((2,), -1)}, [2]).memmap(str(tmp_path / str(part)))
    out = tdmap.open([str(tmp_path / "0"), str(tmp_path / "1")])
    with pytest.raises(ValueError, match="out cannot be a sharded dataset"):
        CALLS[name](TensorDict({"k": torch.tensor([3, 1, 2])}, [3]), out)


NAMES = [name for name in resumable() if name != "train_test_split"]  # whose output is a pair
IN_PLACE = ("map", "Pipeline.write")


def widened(result, data, folder):
    return result.apply(lambda values: torch.zeros(len(values), 7, 7, dtype=values.dtype))


def saved_and_read_only(result, data, folder):
    result.memmap(folder / "out")
    return TensorDict.load_memmap(folder / "out", mode="r")


def folder_with_a_file(result, data, folder):
    (folder / "full").mkdir()
    (folder / "full" / "note.txt").write_text("mine")
    return folder / "full"


def of_bits(result, data, folder):
    return result.apply(lambda values: torch.zeros_like(values, dtype=torch.bool))


def with_other_entries(result, data, folder):
    return TensorDict({"z": torch.zeros(len(result))}, [len(result)])


SHARES = "shares memory with the data"
WRONG = {
    "too few rows": (lambda result, data, folder: result[:-1].clone(), OutputMismatch, "rows"),
    "another shape": (widened, OutputMismatch, "shape"),
    "another dtype": (of_bits, OutputMismatch, "dtype"),
    "other entries": (with_other_entries, OutputMismatch, "none of"),
    "a tensor": (lambda result, data, folder: torch.zeros(len(result)), OutputMismatch, "ensor"),
    "the data": (lambda result, data, folder: data, ValueError, SHARES),
    "rows of the data": (lambda result, data, folder: data[: len(result)], ValueError, SHARES),
    "the folder of the data": (lambda r, data, folder: folder / "data", FileExistsError, "folder of the data|out=data"),
    "a folder with a file": (folder_with_a_file, FileExistsError, r"note\.txt"),
    "files that may only be read": (saved_and_read_only, PermissionError, "is read-only"),
    "a number": (lambda result, data, folder: 7, TypeError, "out must be|tensor, a collection"),
}  # fmt: skip
"""Outputs that cannot be, the error and what it says."""


@pytest.mark.parametrize("name, wrong", sampled(2, NAMES, WRONG))
def test_an_output_that_cannot_be_is_refused_and_nothing_is_written(name, wrong, tmp_path):
    make, error, message = WRONG[wrong]
    if name in IN_PLACE and wrong in ("the data", "rows of the data"):
        return  # which functions of chunks may write
    call, data = OPERATIONS[name].call, plain().memmap(tmp_path / "data")
    out = make(call(plain(), out=None, num_workers=0), data, tmp_path)
    before = out.clone() if isinstance(out, TensorDict) else None
    with pytest.raises(error, match=message):
        call(data, out=out, num_workers=0)
    assert (data == plain()).all() and (before is None or (out == before).all())
    assert {path.name for path in tmp_path.iterdir()} <= {"data", "out", "full"}
    assert not list((tmp_path / "data").rglob(".tdmap"))


def file_of(data, path):
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}[path.suffix[1:]])
    return getattr(data, f"to_{path.suffix[1:]}")(path)


COPIES = {
    "HDF5": lambda data, folder: file_of(data, folder / "x.h5"),
    "Zarr": lambda data, folder: file_of(data, folder / "x.zarr"),
    "an entry in a file": lambda data, folder: TensorDict({"k": data["k"], "n": file_of(data, folder / "x.h5")}, [3]),
    "a stack of files": lambda data, folder: lazy_stack([file_of(data[n], folder / f"{n}.h5") for n in range(3)]),
}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("name", CALLS)
def test_an_output_whose_rows_are_copies_is_refused_before_anything_runs(name, kind, tmp_path):
    rows = TensorDict({"k": torch.tensor([3, 1, 2])}, [3])
    out = COPIES[kind](rows.clone().zero_(), tmp_path)
    with pytest.raises(ValueError, match="a PersistentTensorDict, whose rows are copies in memory"):
        CALLS[name](rows, out)


@pytest.mark.parametrize("kind", ["HDF5", "Zarr"])
def test_a_function_that_changes_rows_that_are_copies_is_told_so(kind, tmp_path):
    data = COPIES[kind](TensorDict({"k": torch.tensor([3, 1, 2])}, [3]), tmp_path)
    with pytest.raises(tdmap.errors.OutputMismatch, match="in place has no effect on a PersistentTensorDict"):
        tdmap.map(data, lambda rows: [rows.zero_(), None][1], num_workers=0)


def saved(folder):
    data = {"k": torch.tensor([1, 2]), "y": torch.tensor([5, 6]), "s": ["a", "b"], "t": ["m", "n"]}
    TensorDict(data, [2]).memmap(folder)
    return TensorDict.load_memmap(folder)


@pytest.mark.parametrize("workers", [0, 2])
def test_strings_written_into_some_entries_of_a_dataset_leave_the_others_there(tmp_path, workers):
    folder = str(tmp_path / "data")
    out = saved(folder).select("k", "s")
    source = TensorDict({"k": torch.tensor([7, 8]), "s": ["A", "B"]}, [2])
    tdmap.map(source, lambda rows: rows, out=out, num_workers=workers)
    found = TensorDict.load_memmap(folder)
    assert sorted(found.keys()) == ["k", "s", "t", "y"]
    assert (found["k"].tolist(), list(found["s"])) == ([7, 8], ["A", "B"])
    assert (found["y"].tolist(), list(found["t"])) == ([5, 6], ["m", "n"])


def test_concat_takes_what_it_is_given_and_not_what_the_folder_has(tmp_path):
    data = saved(str(tmp_path / "data"))
    assert tdmap.concat([data]).folders  # the whole of it: by its folder, without a copy
    changed = data.copy()
    changed["s"] = ["X", "Y"]
    assert list(tdmap.concat([changed])["s"]) == ["X", "Y"]
    assert sorted(tdmap.concat([data.select("k")]).keys()) == ["k"]
    more = data.select("k").copy()
    more["new"] = ["P", "Q"]
    assert sorted(tdmap.concat([more]).keys()) == ["k", "new"]
    assert tdmap.concat([data.select("k"), TensorDict({"k": torch.tensor([3])}, [1])])["k"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_strings_that_a_function_assigns_are_not_lost_in_silence(workers):
    data = TensorDict({"k": torch.tensor([1, 2]), "s": ["a", "b"]}, [2])

    def upper(rows):
        rows["s"] = [text.upper() for text in rows["s"]]

    with pytest.raises(tdmap.errors.OutputMismatch, match="assigned chunk\\['s'\\] and returned None"):
        tdmap.map(data, upper, num_workers=workers)

    def add(rows):
        rows["k"].add_(1)

    tdmap.map(data, add, num_workers=workers)
    assert data["k"].tolist() == [2, 3]
