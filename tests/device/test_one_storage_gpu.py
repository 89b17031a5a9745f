"""Consolidated trees, archives and safetensors files on a real device; skipped where there is none."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, from_safetensors, to_safetensors

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def tree() -> TensorDict:
    jagged = torch.nested.nested_tensor([torch.ones(i + 1, 2) * i for i in range(4)], layout=torch.jagged)
    return TensorDict(
        {f"k{i}": torch.full((4, i + 1), float(i)) for i in range(100)}
        | {"n": {"flag": torch.ones(4, dtype=torch.bool)}, "s": "x", "jagged": jagged},
        [4],
    )


def storages(td: Any) -> set[int]:
    return {(leaf._values if leaf.is_nested else leaf).untyped_storage().data_ptr() for leaf in td._leaves()}


def check(td: Any, device: torch.device) -> None:
    assert td.is_consolidated() and len(storages(td)) == 1
    assert all(leaf.device == device for leaf in td._leaves())
    assert all(td[f"k{i}"].eq(i).all() for i in range(100)) and td["n", "flag"].all() and td["s"] == "x"
    assert [part.sum().item() for part in td["jagged"].unbind()] == [0, 4, 12, 24]


def copies_to(gpu: torch.device, call: Any) -> int:
    """Copies from host to device that a call makes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if "Memcpy HtoD" in event.key)


def test_one_copy_there_and_one_back(gpu: torch.device) -> None:
    td = tree().exclude("jagged").consolidate()
    there = td.to(gpu)
    assert there.is_locked and there.device == gpu and len(storages(there)) == 1 and there.is_consolidated()
    assert copies_to(gpu, lambda: td.to(gpu)) == 1
    assert copies_to(gpu, lambda: tree().exclude("jagged").to(gpu)) > 50
    back = there.to("cpu")
    assert back.is_consolidated() and back["k7"].eq(7).all() and back["n", "flag"].all()
    check(tree().consolidate().to(gpu), gpu)
    check(tree().consolidate().cuda(), gpu)


def test_pinned_memory(gpu: torch.device) -> None:
    td = tree().consolidate(pin_memory=True)
    check(td, torch.device("cpu"))
    assert td["k3"].is_pinned() and td.consolidate(pin_memory=True) is td
    check(td.to(gpu, non_blocking=True), gpu)
    plain = tree().consolidate()
    assert plain.consolidate(pin_memory=True)["k3"].is_pinned() and not plain["k3"].is_pinned()


def test_consolidating_there(gpu: torch.device, tmp_path: Path) -> None:
    check(tree().consolidate(device=gpu), gpu)
    there = tree().to(gpu)
    check(there.consolidate(), gpu)
    check(there.consolidate(non_blocking=True, num_threads=3), gpu)
    check(there.consolidate(device="cpu"), torch.device("cpu"))
    check(there.consolidate(tmp_path / "x.bin"), torch.device("cpu"))
    loaded = TensorDict.from_consolidated(tmp_path / "x.bin")
    check(loaded, torch.device("cpu"))
    check(loaded.to(gpu), gpu)
    check(pickle.loads(pickle.dumps(there.consolidate())), gpu)


def test_archives_and_safetensors(gpu: torch.device, tmp_path: Path) -> None:
    there = tree().exclude("jagged").to(gpu)
    for compression in (None, "deflate"):
        there.memmap(tmp_path / "x.tdz", compression=compression)
        loaded = TensorDict.load_memmap(tmp_path / "x.tdz", device=gpu)
        assert loaded["k5"].device == gpu and loaded["k5"].eq(5).all() and loaded.device == gpu
    to_safetensors(there.exclude("s"), tmp_path / "x.safetensors")
    loaded = from_safetensors(tmp_path / "x.safetensors", device=gpu)
    assert loaded["k5"].device == gpu and loaded["n", "flag"].all() and loaded.device == gpu


def send_back(there: Any, back: Any) -> None:
    td = there.get()
    back.put((td.is_consolidated(), len(storages(td)), td["k9"].sum().item()))
    td["k9"].add_(1)
    torch.cuda.synchronize()
    back.put(None)
    del td
    there.get()


def test_memory_of_a_device_is_lent_to_a_process(gpu: torch.device) -> None:
    td = tree().exclude("jagged").to(gpu).consolidate()
    context = torch.multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=send_back, args=(there, back), daemon=True)
    process.start()
    there.put(td)
    assert back.get(timeout=300) == (True, 1, 360.0) and back.get(timeout=100) is None
    assert td["k9"].eq(10).all()
    there.put(None)
    process.join(60)
