"""Copy-on-write mappings: other processes get what was written into them, and files may be larger than memory."""

import errno
import fcntl
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_lite import MemoryMappedTensor, TensorDict
from tensordict_lite.memmap.disk.mapping import map_file, region_of
from tests.descriptors import descriptors
from tests.processes import in_child


@pytest.fixture
def loaded(tmp_path: Path, request: pytest.FixtureRequest) -> TensorDict:
    data = TensorDict({"a": torch.arange(5000), "b": torch.zeros(5000), "none": torch.zeros(5000, 0)}, [5000])
    if request.param == "folder":
        data.memmap(tmp_path / "d")
        return TensorDict.load_memmap(tmp_path / "d", mode="r")
    if request.param == "archive":
        data.memmap(tmp_path / "x.tdz")
        return TensorDict.load_memmap(tmp_path / "x.tdz")
    data.consolidate(tmp_path / "x.bin")
    return TensorDict.from_consolidated(tmp_path / "x.bin")


KINDS = pytest.mark.parametrize("loaded", ["folder", "archive", "consolidated"], indirect=True)


def _refused(*_: Any) -> int:
    raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))


@KINDS
@pytest.mark.parametrize("scan", [True, False])
def test_tensor_that_was_written_to_has_no_region(
    loaded: TensorDict, scan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file holds the old values, which is what another process would see by its name."""
    if not scan:  # as with older kernels
        monkeypatch.setattr(fcntl, "ioctl", _refused)
    a, b = loaded["a"], loaded["b"]
    a.sum(), b.sum()  # read, which is no change
    assert region_of(a) is not None and region_of(b) is not None and not region_of(a).writable
    b[3000] = 1
    assert region_of(b) is None and region_of(b[2990:3010]) is None and region_of(b[::2]) is None
    assert region_of(b[:100]) is not None and region_of(a[:4000]) is not None  # other pages
    assert region_of(torch.empty(0, dtype=torch.float32).set_(b.untyped_storage(), 0, (0,))) is not None


@KINDS
def test_written_values_reach_a_forked_process(loaded: TensorDict) -> None:
    loaded["b"][7] = 5
    data, pieces = pickle.dumps(loaded), [bytes(ForkingPickler.dumps(leaf)) for leaf in (loaded["b"], loaded["a"])]

    def check() -> None:
        assert pickle.loads(data)["b"][7] == 5 and pickle.loads(data)["a"][9] == 9
        assert pickle.loads(pieces[0])[7] == 5 and pickle.loads(pieces[1])[9] == 9

    assert in_child(check) == 0


def double(chunk: Any) -> Any:
    return TensorDict({"c": chunk["b"] * 2}, chunk.batch_size)


@KINDS
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_map_sees_what_was_written(loaded: TensorDict, method: str) -> None:
    assert not loaded.map(double, num_workers=2, chunksize=1000, mp_start_method=method)["c"].any()
    loaded["b"].add_(3)
    out = loaded.map(double, num_workers=2, chunksize=1000, mp_start_method=method)
    assert out["c"].eq(6).all()


@KINDS
def test_in_place_map_of_what_cannot_be_written_is_refused(loaded: TensorDict) -> None:
    with pytest.raises(PermissionError, match="read-only"):
        loaded.map(double_in_place, out=loaded, num_workers=2, chunksize=1000)
    assert not loaded["b"].any()


def double_in_place(chunk: Any) -> Any:
    return chunk.apply(lambda leaf: leaf * 2)


def test_only_the_tensor_travels(tmp_path: Path) -> None:
    """Not the whole archive that it is a part of."""
    TensorDict({"big": torch.zeros(1 << 20), "small": torch.zeros(3)}, []).memmap(tmp_path / "x.tdz")
    loaded = TensorDict.load_memmap(tmp_path / "x.tdz")
    loaded["small"].add_(1)
    data = pickle.dumps(loaded["small"])
    assert len(data) < 2000 and pickle.loads(data).tolist() == [1, 1, 1]


def test_swapped_and_forked_pages_count_as_written(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 16))
    x = MemoryMappedTensor.from_filename(tmp_path / "f", torch.uint8, (1 << 16,), mode="r")
    x[5] = 1

    def check() -> None:
        assert region_of(x) is None  # the page is shared with the parent, and still not that of the file

    assert in_child(check) == 0


def test_file_larger_than_memory_is_mapped(tmp_path: Path) -> None:
    """Copy-on-write: the kernel refuses by default, since all of it might be written to."""
    size = 1 << 43
    try:
        with open(tmp_path / "f", "wb") as file:
            os.truncate(file.fileno(), size)
    except OSError:
        pytest.skip("no sparse file of that size here")
    storage = map_file(str(tmp_path / "f"), size, writable=False)
    x = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,))
    x[-1] = 7
    x[0] = 3
    assert x[-1] == 7 and x[size // 2] == 0
    assert region_of(x[: 1 << 12]) is None and region_of(x[1 << 14 : 1 << 15]) is not None
    with open(tmp_path / "f", "rb") as file:
        file.seek(size - 1)
        assert file.read() == b"\0"
    y = MemoryMappedTensor.from_filename(tmp_path / "f", torch.uint8, (size,), mode="r")
    assert y[-1] == 0 and isinstance(y, MemoryMappedTensor)
    assert bytes(np.asarray(y[:3])) == b"\0\0\0"
    del x, y, storage


def test_few_descriptors_stay_open(tmp_path: Path) -> None:
    TensorDict({f"k{i}": torch.ones(3) for i in range(50)}, [3]).memmap(tmp_path / "x.tdz")
    kept = [TensorDict.load_memmap(tmp_path / "x.tdz") for _ in range(20)]
    assert kept and not descriptors(tmp_path)
