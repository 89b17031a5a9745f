"""Several processes save into one folder at once: each of them is there whole, one after the other."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict
from tensordict_lite.memmap import save as saving
from tests.processes import forked

PROCESSES, LEAVES, ROUNDS = 4, 8, 3


def rows(number: int) -> TensorDict:
    """A dataset that tells by every element, and by its length, who has written it."""
    source = {f"k{leaf}": torch.full((300 + number,), number) for leaf in range(LEAVES)}
    source["nested"] = {"x": torch.full((300 + number, 2), float(number))}
    return TensorDict(source, [300 + number])


def is_whole(data: TensorDict, number: int) -> bool:
    return len(data) == 300 + number and all(bool((leaf == number).all()) for leaf in data.values(True, True))


@pytest.mark.parametrize("others", [[], ["notes.txt"]], ids=["exchanged", "file by file"])
@pytest.mark.parametrize("existing", [False, True], ids=["new folder", "over a dataset"])
def test_concurrent_saves_do_not_mix(tmp_path: Path, existing: bool, others: list[str]) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / ("out" if existing else f"out{number}")
        if existing and not number:
            rows(9).memmap(folder)
        folder.mkdir(exist_ok=True)
        for name in others:
            (folder / name).touch()

        def save(number: int, folder: Path = folder) -> int:
            return 0 if is_whole(rows(number).memmap(folder), number) else 1

        assert forked(save, PROCESSES) == [0] * PROCESSES
        last = TensorDict.load_memmap(folder)
        assert is_whole(last, len(last) - 300)


def test_a_save_of_a_part_begins_anew_where_the_whole_is_exchanged_beneath_it(tmp_path: Path, monkeypatch: Any) -> None:
    """What a path leads to while a folder is made in it may be the old one, which is being removed."""
    rows(1).memmap(tmp_path / "d")
    staging = saving.Staging

    def exchanged_beneath(prefix: str) -> Any:
        made = staging(prefix)
        if prefix.endswith("nested"):
            monkeypatch.setattr(saving, "Staging", staging)
            rows(1).memmap(tmp_path / "d")
        return made

    monkeypatch.setattr(saving, "Staging", exchanged_beneath)
    part = TensorDict({"x": torch.full((301, 2), 7.0)}, [301])
    assert part.memmap(tmp_path / "d" / "nested")["x"].eq(7).all()
    assert saving.Staging is staging and TensorDict.load_memmap(tmp_path / "d")["nested", "x"].eq(7).all()
    assert not [name for _, names, files in os.walk(tmp_path) for name in names + files if "tdlite" in name]
