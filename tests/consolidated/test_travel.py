"""A consolidated tree goes to other processes and files as one storage."""

import io
import multiprocessing
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack
from tests import interpreters
from tests.memmap.trees import assert_entries, entries, leaves


def numbers(count: int = 500) -> TensorDict:
    return TensorDict({f"k{i}": torch.full((3,), i) for i in range(count)}, [3])


def test_pickle_is_smaller_than_that_of_many_tensors() -> None:
    td = numbers()
    whole = pickle.dumps(td.consolidate())
    assert len(whole) < len(pickle.dumps(td)) / 3
    assert len(whole) < 500 * 3 * 8 + 500 * 60


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_protocols(protocol: int) -> None:
    td = entries("ours", jagged=True, strided=False)
    back = pickle.loads(pickle.dumps(td.consolidate(), protocol))
    assert_entries(back, td)
    assert back.is_consolidated() and not back.is_locked
    assert pickle.loads(pickle.dumps(td.lock_().consolidate(), protocol)).is_locked


def test_objects_that_are_not_json_are_pickled() -> None:
    td = TensorDict({"a": torch.ones(2), "s": {1, 2}}, [2]).consolidate()
    assert pickle.loads(pickle.dumps(td))["s"] == {1, 2}


@pytest.mark.parametrize("weights_only", [True, False])
def test_torch_save(weights_only: bool) -> None:
    td = entries("ours", jagged=True, strided=False, classes=False).exclude("object")
    lazy = lazy_stack([TensorDict({"a": torch.ones(i + 1)}, []) for i in range(3)])
    for tree in (td, lazy):
        buffer = io.BytesIO()
        torch.save(tree.consolidate(), buffer)
        buffer.seek(0)
        back = torch.load(buffer, weights_only=weights_only)
        assert back.is_consolidated() and type(back) is type(tree)
        assert [leaf.sum().item() for leaf in leaves(back) if not leaf.is_nested] == [
            leaf.sum().item() for leaf in leaves(tree) if not leaf.is_nested
        ]


def test_pickle_opens_in_a_program_that_knows_only_the_package(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(numbers(5).consolidate(tmp_path / "x.bin")))
    os.unlink(tmp_path / "x.bin")  # the values are in the pickle
    code = (
        "import pickle, sys; td = pickle.load(open(sys.argv[1], 'rb')); print(td['k4'].tolist(), td.is_consolidated())"
    )
    done = interpreters.run(["-c", code, str(tmp_path / "x.pkl")], check=True)
    assert done.stdout.strip() == "[4, 4, 4] True"


# -- between processes ---------------------------------------------------------------------------------------------


def add_one(queue_in: Any, queue_out: Any) -> None:
    while (td := queue_in.get()) is not None:
        td["k3"].add_(1)
        queue_out.put((td.is_consolidated(), len({leaf.untyped_storage().data_ptr() for leaf in leaves(td)})))
        del td


def test_queues_carry_one_storage_without_a_copy(tmp_path: Path) -> None:
    numbers().memmap(tmp_path / "x.tdz")
    context = torch.multiprocessing.get_context("fork")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(there, back), daemon=True)
    process.start()
    try:
        for td, whole in (
            (numbers().consolidate(), True),
            (numbers().consolidate(share_memory=True), True),
            (numbers().consolidate(tmp_path / "x.bin"), True),
            (pickle.loads(pickle.dumps(numbers().consolidate())), True),
            (numbers().consolidate(tmp_path / "y.bin").select("k3"), False),
            (numbers().consolidate(tmp_path / "z.bin")[:2], False),
            (TensorDict.load_memmap(tmp_path / "x.tdz", mode="r+"), False),
        ):
            there.put(td)
            assert back.get(timeout=300) == (whole, 1)
            assert set(td["k3"].tolist()) == {4}, "the other process wrote into the same memory"
        for td in (TensorDict.from_consolidated(tmp_path / "x.bin"), TensorDict.load_memmap(tmp_path / "x.tdz")):
            there.put(td)
            back.get(timeout=300)
            assert td["k3"].tolist() == [4, 4, 4], "a copy-on-write mapping is no shared memory"
    finally:
        there.put(None)
        process.join()


def test_few_descriptors_and_bytes_go_through_a_pipe(tmp_path: Path) -> None:
    for td in (numbers().consolidate(share_memory=True), numbers().consolidate(tmp_path / "x.bin")):
        assert len(ForkingPickler.dumps(td)) < 500 * 60


class Rows(torch.utils.data.Dataset):
    def __init__(self, td: Any) -> None:
        self.td = td

    def __len__(self) -> int:
        return len(self.td)

    def __getitem__(self, index: int) -> Any:
        return self.td[index]["a"]


def test_spawned_workers_of_a_loader_get_an_archive_by_its_name(tmp_path: Path) -> None:
    data = TensorDict({"a": torch.arange(40).view(20, 2)}, [20])
    data.memmap(tmp_path / "x.tdz")
    loaded = TensorDict.load_memmap(tmp_path / "x.tdz")
    spawn = multiprocessing.get_context("spawn")
    loader = torch.utils.data.DataLoader(Rows(loaded), batch_size=5, num_workers=1, multiprocessing_context=spawn)
    assert torch.cat(list(loader)).equal(data["a"])
