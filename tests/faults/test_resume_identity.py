"""What tells one dataset from another: the same in every process."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

import tdmap
from tdmap.reducers import Sum
from tdmap.run.fingerprint import source_parts
from tensordict_lite import TensorClass, TensorDict


def test_sources_are_known_by_their_files(tmp_path):
    data = TensorDict({"x": torch.arange(4), "n": {"s": "text"}}, [4])
    memory = source_parts(data)
    assert memory == source_parts(data.clone())
    mapped = data.memmap(tmp_path / "a")
    first = source_parts(mapped)
    assert "written at" in first["'x'"] and "written at" not in source_parts(mapped, contents=False)["'x'"]
    mapped["x"].fill_(7)
    assert source_parts(mapped, contents=False) == source_parts(TensorDict.load_memmap(tmp_path / "a"), contents=False)
    assert source_parts(mapped[1:], contents=False) != source_parts(mapped, contents=False)
    assert memory["('n', 's')"] == first["('n', 's')"]
    assert memory["('n', 's')"] != source_parts(TensorDict({"n": {"s": "other"}}, [4]))["('n', 's')"]


def test_rows_whose_file_a_later_save_has_replaced_are_known_by_their_values(tmp_path):
    """Path, size and time are those of the other dataset by now, which were taken for those of this one."""
    old = TensorDict({"x": torch.zeros(4), "gone": torch.zeros(4)}, [4]).memmap(tmp_path / "a")
    new = TensorDict({"x": torch.ones(4)}, [4]).memmap(tmp_path / "a")
    assert source_parts(old)["'x'"] == source_parts(TensorDict({"x": torch.zeros(4)}))["'x'"]
    assert "content" in source_parts(old)["'gone'"] and "written at" in source_parts(new)["'x'"]


class Rows(TensorClass):
    """A tensorclass of one column."""

    x: torch.Tensor


def nested(rows, folder):
    data = TensorDict({"n": {"x": rows}}, [len(rows)]).memmap(folder)
    return data, data["n", "x"]


def sharded(rows, folder):
    for number in (0, 1):
        TensorDict({"x": rows[number::2]}, [len(rows) // 2]).memmap(folder / str(number))
    return tdmap.open([folder / "0", folder / "1"]), TensorDict.load_memmap(folder / "1")["x"]


def consolidated(rows, folder):
    TensorDict({"x": rows}, [len(rows)]).consolidate(folder.with_suffix(".file"))
    data = TensorDict.from_consolidated(folder.with_suffix(".file"))
    return data, data.get("x")


def numpy_file(rows, folder):
    array = np.memmap(folder.with_suffix(".bin"), np.int64, "w+", shape=(len(rows),))
    array[:] = rows
    return TensorDict({"x": torch.from_numpy(array)}, [len(rows)]), array


def plain(data):
    return data, data.get("x")


SOURCES = {
    "dense": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)]).memmap(folder)),
    "another mapping": lambda rows, folder: (
        TensorDict({"x": rows}, [len(rows)]).memmap(folder),
        TensorDict.load_memmap(folder)["x"],
    ),
    "part": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)]).memmap(folder)[2:]),
    "nested": nested,
    "tensorclass": lambda rows, folder: plain(Rows(x=rows, batch_size=[len(rows)]).memmap(folder)),
    "with words": lambda rows, folder: plain(
        TensorDict({"x": rows, "w": [str(n) for n in rows.tolist()]}, [len(rows)]).memmap(folder)
    ),
    "sharded": sharded,
    "consolidated": consolidated,
    "np.memmap": numpy_file,
    "memory": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)])),
    "shared memory": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)]).share_memory_()),
}
"""By kind: a dataset, and the memory that some of its rows lie in."""


def numbers_of(chunk):
    return chunk.apply(lambda value: value * 2) if not isinstance(chunk, torch.Tensor) else chunk * 2


CALLS = {
    "map": lambda data, out: tdmap.map(data, numbers_of, out=out, resume=True, num_workers=0),
    "filter": lambda data, out: tdmap.filter(data, every_row, out=out, resume=True, num_workers=0),
    "shuffle": lambda data, out: tdmap.shuffle(data, 1, out=out, resume=True, num_workers=0),
    "reduce": lambda data, out: tdmap.map_reduce(data, None, Sum("x"), resume=out, num_workers=0),
    "cache": lambda data, out: data.pipeline().map(numbers_of).cache(out).collect(num_workers=0),
    "shards": lambda data, out: tdmap.map(
        data, numbers_of, out=out, rows_per_shard=4, resume=True, chunksize=4, num_workers=0
    ),
}


def every_row(chunk):
    return torch.ones(len(chunk), dtype=torch.bool)


@pytest.mark.parametrize("place", ["disk", "memory"])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_store_to_rows_that_were_stored_to_before_is_another_source(kind, place, tmp_path):
    """The kernel notes the first store to a page of a mapping only, and on tmpfs for the life of the mapping."""
    with contextlib.ExitStack() as stack:
        if place == "memory":
            tmp_path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        data, rows = SOURCES[kind](torch.arange(8), tmp_path / "data")
        seen = []
        for value in range(4):
            rows[3] = value
            seen.append(source_parts(data))
            assert source_parts(data) == seen[-1]
        assert all(one != other for number, one in enumerate(seen) for other in seen[:number])


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_refused_after_a_store_to_its_rows(call, tmp_path):
    data = TensorDict({"x": torch.arange(8)}, [8]).memmap(tmp_path / "data")
    data["x"][3] = 100
    CALLS[call](data, tmp_path / "out")
    data["x"][3] = 200
    with pytest.raises(tdmap.errors.ResumeMismatch, match="written at"):
        CALLS[call](data, tmp_path / "out")
