"""Entries added to a mapped collection by several processes at one time."""

import multiprocessing
from pathlib import Path

import torch

from tensordict_lite import TensorDict


def test_entries_of_several_processes_are_all_there(tmp_path: Path) -> None:
    data = TensorDict({"a": torch.zeros(3)}, [3]).memmap_(tmp_path)

    def add(name: str) -> None:
        for number in range(25):
            data.make_memmap(f"{name}{number}", (3,)).fill_(number)

    context = multiprocessing.get_context("fork")
    adders = [context.Process(target=add, args=(name,)) for name in "pqrs"]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join()
    loaded = TensorDict.load_memmap(tmp_path)
    assert set(loaded.keys()) == {"a", *(f"{name}{number}" for name in "pqrs" for number in range(25))}
    assert all(loaded[f"{name}7"].tolist() == [7.0] * 3 for name in "pqrs")
