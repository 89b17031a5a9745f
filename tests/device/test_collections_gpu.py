"""Collections on a CUDA device: run with `make gpu`, skipped where there is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensordict_lite as lib
from tensordict_lite import TensorDict, lazy_stack, tensorclass

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

CUDA = torch.device("cuda", 0)
KINDS = ["dense", "lazy", "tensorclass"]


@tensorclass
class Pictures:
    x: torch.Tensor
    n: TensorDict


def make(kind: str = "dense", rows: int = 4) -> Any:
    """A collection of a kind with `rows` rows, on the CPU."""
    x, y = torch.arange(rows * 3.0).reshape(rows, 3), torch.arange(rows).bfloat16()
    td = TensorDict({"x": x, "n": {"y": y}}, [rows])
    if kind == "lazy":
        return lazy_stack(list(td.clone().unbind(0)), 0)
    return Pictures(x=x, n=td["n"], batch_size=[rows]) if kind == "tensorclass" else td


def same(got: Any, want: Any) -> None:
    for key in ("x", ("n", "y")):
        assert torch.equal(got.get(key).cpu(), want.get(key).cpu()), key


@pytest.mark.parametrize("kind", KINDS)
def test_to_cuda_and_back(kind: str) -> None:
    td = make(kind)
    there = td.pin_memory().cuda()
    assert there.device == CUDA and there.get(("n", "y")).is_cuda and there.is_shared()
    assert torch.equal(td.to(CUDA, non_blocking=True).get("x"), there.get("x"))
    back = there.cpu()
    assert back.device.type == "cpu"
    same(back, td)


INDICES = {
    "row": 1,
    "slice": slice(1, 3),
    "mask": torch.tensor([True, False, True, False]),
    "numbers": torch.tensor([3, 0]),
    "list": [3, 0],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", list(INDICES))
@pytest.mark.parametrize("way", ["there", "back"])
def test_rows_of_another_device_are_written(kind: str, index: str, way: str) -> None:
    """By a mask or numbers as well, where torch itself refuses."""
    at = INDICES[index]
    td, want, rows = make(kind), make(), make()[at] * 7
    want[at] = rows
    td, rows = (td.to(CUDA), rows) if way == "there" else (td, rows.to(CUDA))
    td[at] = rows if kind != "tensorclass" else Pictures.from_tensordict(rows)
    same(td.cpu(), want)


def test_rows_of_another_device_that_do_not_fit_are_refused() -> None:
    td = make().to(CUDA)
    with pytest.raises(RuntimeError):
        td[INDICES["mask"]] = make(rows=3)
    same(td.cpu(), make())


@pytest.mark.parametrize("non_blocking", [False, True])
def test_load_to_a_device(tmp_path: Path, non_blocking: bool) -> None:
    td = make()
    td.memmap(tmp_path)
    out = TensorDict.load_memmap(tmp_path, device="cuda", non_blocking=non_blocking)
    torch.cuda.synchronize()
    assert out.device == out["n"].device == out["n", "y"].device == CUDA
    same(out.cpu(), td)
    target = TensorDict({"x": torch.zeros(4, 3)}, [4], device="cuda")
    TensorDict.load_memmap(tmp_path, out=target)
    assert torch.equal(target["x"].cpu(), td["x"]) and target["x"].device == CUDA


@pytest.mark.parametrize("kind", KINDS)
def test_save_from_a_device(tmp_path: Path, kind: str) -> None:
    td = make(kind).to(CUDA)
    same(td.memmap(tmp_path / "copy"), make())
    saved = td.memmap_(tmp_path / "own")
    assert saved is td and td.is_memmap() and td.device.type == "cpu"
    same(TensorDict.load_memmap(tmp_path / "own"), make())


def linear() -> Any:
    return lib.nn.TensorDictModule(nn.Linear(3, 2), ["x"], ["o"]).cuda().requires_grad_(False)
