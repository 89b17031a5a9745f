"""What was stored before the modules of the engine moved into rooms opens, and unfinished runs go on."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
import tensordict_lite
from tdmap.functions import as_function
from tdmap.identity.moved import known_as
from tdmap.operations.filter import Mask
from tdmap.operations.keeping import Marked, SameRows
from tdmap.plan import ChunkPlan
from tdmap.resume import journal
from tdmap.resume.fingerprint import function_parts
from tensordict_lite import TensorDict
from tensordict_lite.moved import MOVED, old_name
from tests.house.old import make

FLIP, KEEP = make.FLIP, make.KEEP
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


INVERT, FALSE = "1601593b4b426aa66c948f89e34796fd", "b89b3dc5b1add50e37ce2101c3053ac0"
NAMED = {"attribute __qualname__": "cff683a812e2058457c3eb200f7539de", "attribute fn": INVERT}


@pytest.mark.parametrize(
    ("fn", "known_by"),
    [
        (Marked(FLIP), {**NAMED, "class": "99b2618e538bfab3e22ba2683367a37b", "attribute _positional": FALSE}),
        (
            SameRows(FLIP, ChunkPlan(60, 10)),
            {**NAMED, "class": "b2980e5e8f9ebf9e1ecc86a06691b634", "attribute _positional": FALSE},
        ),
        (
            Mask(KEEP, False),
            {
                "class": "03e5ef0371ff86e38664d9c442dca587",
                "attribute __qualname__": "c61dc0352a8d7788d75c9b93be878ed6",
                "attribute _positional": FALSE,
                "attribute predicate": "854392c3a5612915b8f3ced5894a8c86",
                "attribute single": FALSE,
            },
        ),
        (
            as_function(FLIP, ["x"], ["x"]),
            {
                **NAMED,
                "class": "f329cd2f9a1b1d37e0be0d07a99950ef",
                "attribute in_keys": "bd9e10bf6f3e15ff5ececdb056333e40",
                "attribute keep": "692a4caa296743974d46a72e8a7074a0",
                "attribute out_keys": "bd9e10bf6f3e15ff5ececdb056333e40",
            },
        ),
    ],
    ids=lambda value: type(value).__name__ if callable(value) else "",
)
def test_functions_of_the_engine_are_known_by_what_they_were(fn: Any, known_by: dict[str, str]) -> None:
    """A class that moves, or has another attribute, makes another run of every unfinished one."""
    parts = function_parts(fn)
    parts.pop("attribute plan", None)  # an object, which is not pickled in the same way by every Python
    assert parts == known_by


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
