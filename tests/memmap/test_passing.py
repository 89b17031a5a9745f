"""Memory without a file through the pipes and queues of multiprocessing, when the sender has forgotten it."""

import gc
import multiprocessing
import pickle
import sys
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import (
    DatasetError,
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    tensorclass,
)
from tensordict_lite.memmap.disk.cells import ObjectTable
from tests.descriptors import descriptors


@tensorclass
class Pair:
    x: torch.Tensor
    name: str


def tree() -> TensorDict:
    return TensorDict({"x": torch.arange(6).view(3, 2), "below": {"y": torch.ones(3), "text": list("abc")}}, [3])


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])


MADE: dict[str, Callable[[], Any]] = {
    "tree": lambda: tree().memmap_(),
    "of many leaves": lambda: TensorDict({str(number): torch.ones(2) for number in range(500)}, [2]).memmap_(),
    "entry": lambda: tree().memmap_()["below"],
    "rows": lambda: tree().memmap_()[1:],
    "locked, shared objects": lambda: TensorDict(
        {"x": torch.ones(2), "one": NonTensorData({"step": 1}), "rows": NonTensorStack("a", "b")}, [2]
    ).memmap_(share_non_tensor=True),
    "tensorclass": lambda: Pair(torch.ones(2), "name", batch_size=[2]).memmap_(),
    "lazy stack": lambda: TensorDict.lazy_stack([TensorDict({"x": torch.ones(n)}) for n in (2, 3)]).memmap_(),
    "consolidated": lambda: tree().memmap_().consolidate(),
    "tensor": lambda: MemoryMappedTensor.from_tensor(torch.arange(5.0)),
    "view of a tensor": lambda: MemoryMappedTensor.from_tensor(torch.arange(6.0).view(2, 3)).t()[1:],
    "nested tensor": lambda: MemoryMappedTensor.from_tensor(nested()),
    "results of a map": lambda: tree().map(lambda chunk: {"z": chunk["x"] + 1}, num_workers=2, chunksize=1),
    "entry of results of a map": lambda: MADE["results of a map"]()["z"][1:],
    "plain view": lambda: MemoryMappedTensor.from_tensor(torch.arange(5.0)).as_subclass(torch.Tensor)[2:],
    "parameter": lambda: torch.nn.Parameter(MemoryMappedTensor.from_tensor(torch.ones(3)).as_subclass(torch.Tensor)),
    "reserved": lambda: TensorDict({}, [4]).memmap_().make_memmap("x", (4, 2), dtype=torch.int8),
}


def told(value: Any) -> str:
    """What is in it."""
    if isinstance(value, LazyStackedTensorDict) and not value._is_non_tensor:
        return str([told(member) for member in value.tensordicts])
    if isinstance(value, torch.Tensor):
        return str([row.tolist() for row in value.unbind()])
    return str(value.tolist() if isinstance(value, TensorDict) and value._is_non_tensor else value.to_dict())


def send(kind: str, connection: Any) -> None:
    """In one process: sends something, drops it, and ends when the other says so."""
    before = descriptors()
    value = MADE[kind]()
    connection.send(value)
    expected = told(value)
    del value
    gc.collect()
    connection.send(expected)
    assert connection.recv() == "received"
    connection.send(sorted(descriptors() - before))
    connection.recv()


@pytest.mark.parametrize("kind", MADE)
def test_what_was_sent_arrives_when_the_sender_has_dropped_it(kind: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.get_context("fork").Process(target=send, args=(kind, theirs))
    sender.start()
    theirs.close()
    try:
        pickled = ours.recv_bytes()  # not looked at before the sender has dropped it
        expected = ours.recv()
        before = descriptors()
        received = pickle.loads(pickled)
        assert told(received) == expected
        del received
        gc.collect()
        assert descriptors() - before == set()
        ours.send("received")
        left = ours.recv()
        assert len(left) <= 3, left  # of the thread that hands over descriptors
        ours.send("end")
    finally:
        ours.close()
        sender.join()
    assert sender.exitcode == 0


def pass_on(connection: Any, out: Any) -> None:
    value = connection.recv()
    out.send(value)
    del value
    gc.collect()
    out.send("dropped")
    connection.recv()


def test_a_receiver_is_an_owner_who_may_send_it_on() -> None:
    context = multiprocessing.get_context("fork")
    (a, b), (c, d) = context.Pipe(), context.Pipe()
    between = context.Process(target=pass_on, args=(b, d))
    between.start()
    data = tree().memmap_()
    a.send(data)
    pickled = c.recv_bytes()
    assert c.recv() == "dropped"
    again = pickle.loads(pickled)
    again["x"].fill_(7)
    assert data["x"].eq(7).all() and told(again) == told(data)
    a.send("end")
    between.join()
    assert between.exitcode == 0


def check_arguments(values: list[Any], expected: list[str]) -> None:
    sys.exit(0 if [told(value) for value in values] == expected else 1)


def test_arguments_of_a_process_may_be_dropped_before_it_has_begun() -> None:
    values = [
        MADE[kind]() for kind in ("tree", "locked, shared objects", "nested tensor", "results of a map", "consolidated")
    ]
    expected = [told(value) for value in values]
    child = multiprocessing.get_context("spawn").Process(target=check_arguments, args=(values, expected))
    child.start()
    child._args = ()
    del values
    gc.collect()
    child.join()
    assert child.exitcode == 0


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> TensorDict:
        return TensorDict({"x": torch.tensor(index)})


def mapped_batch(rows: list[TensorDict]) -> TensorDict:
    return torch.stack(rows).memmap_()


def test_batches_that_a_data_loader_makes_in_its_workers_arrive() -> None:
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, collate_fn=mapped_batch, num_workers=2)
    assert [batch["x"].tolist() for batch in loader] == torch.arange(20).view(5, 4).tolist()


def test_memory_whose_owner_still_has_it_is_found_once_more() -> None:
    """What is loaded a second time finds no descriptor, and goes by the name of the owner's."""
    data = MemoryMappedTensor.from_tensor(torch.arange(3))
    pickled = bytes(ForkingPickler.dumps(data))
    assert pickle.loads(pickled).tolist() == [0, 1, 2]
    assert pickle.loads(pickled).data_ptr() == data.data_ptr()


def make_and_end(connection: Any) -> None:
    connection.send(tree().memmap_())


def test_memory_of_a_process_that_has_ended_is_said_to_be_gone() -> None:
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.get_context("fork").Process(target=make_and_end, args=(theirs,))
    sender.start()
    sender.join()
    with pytest.raises(DatasetError, match="released it or ended"):
        ours.recv()


def test_operations_of_the_engine_take_what_was_received() -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.send(tree().memmap_())
    data = ours.recv()
    out = tdmap.map(data, lambda chunk: {"z": chunk["x"] * 2}, num_workers=2, chunksize=1)
    assert torch.equal(out["z"], data["x"] * 2)


def waits_for_a_lock(process: Any) -> bool:
    with open("/proc/locks") as lines:
        return any(line.split()[1] == "->" and str(process.pid) in line.split() for line in lines)


def test_a_writer_of_shared_objects_keeps_others_out_while_a_thread_sends_them() -> None:
    """A descriptor travels with what is sent; that one is closed must not end the lock of a writer."""
    arena = ObjectTable(1)
    other = multiprocessing.get_context("fork").Process(target=arena.write, args=(0, b"theirs"))
    with arena._locked():
        sender = threading.Thread(target=lambda: pickle.loads(bytes(ForkingPickler.dumps(arena))))
        sender.start()
        sender.join()
        other.start()
        while not waits_for_a_lock(other):
            assert other.is_alive() and arena.generation(0) == 0, "it has written"
    other.join()
    assert arena.read(0) == (1, b"theirs")
