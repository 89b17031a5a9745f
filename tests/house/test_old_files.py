"""What was stored before the modules of the engine moved into rooms opens, and unfinished runs go on."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

import pytest
import torch

import tdmap
import tensordict_lite
from tdmap.identity.moved import known_as
from tdmap.resume import journal
from tensordict_lite import TensorDict
from tensordict_lite.moved import MOVED, old_name
from tests.house.old import make

OLD = Path(make.__file__).parent / "v0.1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy, with the rights that the originals had."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    for path in [folder, *folder.rglob("*")]:
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
    return folder


def wanted(name: str) -> TensorDict:
    data = make.data()
    if name in ("filter", "write_any"):
        return data[data["keep"]]
    return ~data


@pytest.mark.parametrize("name", make.runs())
def test_an_unfinished_run_of_before_goes_on(old: Path, name: str) -> None:
    before = journal.read(old / name / ".tdmap" / "journal")
    assert before is not None and not before.is_complete()
    result = make.runs()[name](old / name)
    after = journal.read(old / name / ".tdmap" / "journal")
    assert after is not None and after.is_complete() and after.header == before.header
    if name == "map_reduce":
        assert result["n"] == make.ROWS
        assert torch.equal(result["mean"], wanted(name)["x"].double().mean())
    else:
        assert (result == wanted(name)).all()


def test_a_run_of_before_with_another_function_is_still_refused(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "FLIP", abs)
    with pytest.raises(tdmap.ResumeMismatch, match="function"):
        make.runs()["map"](old / "map")


def test_values_that_torch_has_saved_before_load(old: Path) -> None:
    values = torch.load(old / "values.pt", weights_only=False)
    assert (values["dense"] == make.data()).all()
    assert type(values["class"]) is make.Point and values["class"].x.sum() == 3
    assert values["lazy"]["x"].tolist() == [0, 1]
    assert values["strings"]["s"] == ["a", "b"]


def test_a_folder_of_before_opens(old: Path) -> None:
    data = TensorDict.load_memmap(str(old / "dataset"))
    assert (data == make.data()).all()
    assert torch.equal(tdmap.map(data, lambda rows: rows["x"], num_workers=0), data["x"])


def test_modules_that_have_moved_answer_to_their_old_names() -> None:
    names = {name: getattr(tensordict_lite, name) for name in tensordict_lite.__all__}
    for old, new in MOVED.items():
        module = importlib.import_module(old)
        assert module is importlib.import_module(new) and module.__name__ == module.__spec__.name == new
        assert known_as(new) == old_name(new) == old
    assert all(getattr(tensordict_lite, name) is value for name, value in names.items())


def test_collections_that_torch_has_saved_before_load_without_running_code(old: Path) -> None:
    values = torch.load(old / "collections.pt", weights_only=True)
    assert (values["dense"] == make.data()).all()
    assert values["lazy"]["x"].tolist() == [0, 1]
    assert values["strings"]["s"] == ["a", "b"]


def test_a_module_that_never_was_is_still_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"tensordict_lite\.nosuch"):
        importlib.import_module("tensordict_lite.nosuch")
