"""FIFOs, devices, huge and deep files in place of any file of a dataset: no reader waits, and none believes them.

Who waits for a FIFO waits for ever: pytest's limit of time ends that.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensordict_lite import DatasetError, DatasetWriter, NonTensorData, TensorDict
from tensordict_lite.memmap import checksum


def build(folder: Path) -> TensorDict:
    source = {
        "a": torch.arange(4),
        "b": {"c": torch.ones(4, 3)},
        "note": NonTensorData({"k": 1}, batch_size=[4]),
        "object": NonTensorData({1}, batch_size=[4]),
        "words": ["x", "y", "z", "w"],
        "ragged": torch.nested.nested_tensor([torch.ones(i + 1, 2) for i in range(4)], layout=torch.jagged),
    }
    return TensorDict(source, [4]).memmap(folder, allow_pickle=True)


FILES = [
    "meta.json",
    "a.memmap",
    "b/meta.json",
    "b/c.memmap",
    "note/meta.json",
    "object/other.pickle",
    "words/meta.json",
    "ragged.memmap",
    "ragged.shape.memmap",
    "checksums.json",
]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # what /dev/zero is
    except PermissionError:
        pytest.skip("only root makes devices")


def folder_instead(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 43)


def deep(path: Path) -> None:
    path.write_bytes(b'{"data": ' + b"[" * 500_000)


def deep_and_closed(path: Path) -> None:
    path.write_bytes(b'{"data": ' + b"[" * 900 + b"]" * 900 + b"}")


PLANTED = [fifo, endless, device, folder_instead, huge, deep, deep_and_closed]


def load(folder: Path) -> object:
    return TensorDict.load_memmap(folder, allow_pickle=True)


def write(folder: Path) -> object:
    return DatasetWriter(folder)


READERS: dict[str, Callable[[Path], object]] = {
    "load": load,
    "load without pickles": TensorDict.load_memmap,
    "verify": lambda folder: checksum.verify(folder).raise_if_corrupt(),
    "append": write,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_no_reader_waits_or_believes(tmp_path: Path, plant: Callable[[Path], None], reader: str) -> None:
    build(tmp_path / "whole")
    checksum.store(tmp_path / "whole")
    for number, file in enumerate(FILES):
        folder = tmp_path / f"d{number}"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / file).unlink()
        plant(folder / file)
        before = os.lstat(folder / file)
        read = file != "checksums.json" or reader == "verify"
        with pytest.raises(DatasetError) if read else contextlib.suppress(DatasetError) as caught:
            READERS[reader](folder)
        if caught is not None:
            assert str(folder) in str(caught.value)
        assert os.lstat(folder / file)[:7] == before[:7]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_save_over_such_a_dataset_ends(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    for number, file in enumerate(FILES):
        folder = tmp_path / f"d{number}"
        build(folder)
        with contextlib.suppress(FileNotFoundError):
            (folder / file).unlink()
        plant(folder / file)
        try:
            build(folder)
        except (DatasetError, OSError):
            continue
        assert load(folder)["a"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("plant", [fifo, endless, folder_instead, deep], ids=lambda plant: plant.__name__)
def test_new_entries_do_not_wait_for_metadata_either(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    data = TensorDict({"a": torch.arange(4)}, [4]).memmap(tmp_path / "data")
    (tmp_path / "data" / "meta.json").unlink()
    plant(tmp_path / "data" / "meta.json")
    with pytest.raises(DatasetError, match=r"meta\.json"):
        data.make_memmap("new", (4,), dtype=torch.int64)


def test_metadata_whose_values_lie_deep_is_an_error_in_one_line(tmp_path: Path) -> None:
    build(tmp_path / "data")
    path = tmp_path / "data" / "words" / "meta.json"
    meta = json.loads(path.read_text())
    value: list[object] = []
    for _ in range(400):
        value = [value]
    path.write_text(json.dumps({**meta, "data": value}))
    with pytest.raises(DatasetError, match=r"^[^\n]*$"):
        load(tmp_path / "data")


@pytest.mark.parametrize("plant", [fifo, endless, device, folder_instead], ids=lambda plant: plant.__name__)
def test_rows_are_appended_to_regular_files_only(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    row = TensorDict({"a": torch.tensor(1)}, [])
    with DatasetWriter(tmp_path / "data", row) as writer:
        writer.append(row)
    (tmp_path / "data" / "a.memmap").unlink()
    plant(tmp_path / "data" / "a.memmap")
    with pytest.raises((DatasetError, OSError)):
        with DatasetWriter(tmp_path / "data") as writer:
            writer.append(row)
            writer.flush()
