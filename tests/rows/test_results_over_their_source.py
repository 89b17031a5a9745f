"""Results that are views of the rows which they are written into: the same values as in a new dataset."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict, lazy_stack, tensorclass

ROWS = 23


@tensorclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor


def rows() -> TensorDict:
    x = torch.arange(ROWS)
    entries = {"a": x.clone(), "b": x * 100, "m": torch.arange(ROWS * 9).view(ROWS, 3, 3), "n": {"c": x - 50, "d": -x}}
    return TensorDict(entries, [ROWS])


def shift(chunk: Any) -> Any:
    return {"a": chunk["a"] + 1, "b": chunk["a"]}


def swap(chunk: Any) -> Any:
    return {"a": chunk["b"], "b": chunk["a"]}


def swap_nested(chunk: Any) -> Any:
    return TensorDict({"n": {"c": chunk["n", "d"], "d": chunk["n", "c"]}, "a": chunk["n", "c"]}, chunk.batch_size)


def transpose(chunk: Any) -> Any:
    return {"m": chunk["m"].transpose(-1, -2), "a": chunk["m"][..., 0, 1]}


def rename(chunk: Any) -> Any:
    chunk = chunk.copy()
    chunk["a"], chunk["b"] = chunk["b"], chunk["a"]
    return chunk


def expand(chunk: Any) -> Any:
    return {"m": chunk["a"].view(-1, 1, 1).expand(-1, 3, 3), "a": chunk["a"] * 2}


FUNCTIONS = [shift, swap, swap_nested, transpose, rename, expand]
WORKERS = [{"num_workers": 0}, {"num_workers": 2, "executor": "thread"}, {"num_workers": 2}]


@pytest.mark.parametrize("workers", WORKERS, ids=["here", "threads", "processes"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("where", ["memory", "disk", "another tree of the same files", "resumable"])
def test_what_is_written_is_what_the_function_has_returned(
    function: Any, where: str, workers: dict[str, Any], tmp_path: Path
) -> None:
    data = rows() if where == "memory" else rows().memmap(tmp_path / "d")
    out = TensorDict.load_memmap(tmp_path / "d") if where.startswith("another") else data
    wanted = rows()
    wanted.update_(tdmap.map(rows(), function, num_workers=0))
    options = {"resume": True} if where == "resumable" else {}
    tdmap.map(data, function, out=out, chunksize=5, **workers, **options)
    assert (data == wanted).all()
    if where != "memory":
        assert (TensorDict.load_memmap(tmp_path / "d") == wanted).all()


@pytest.mark.parametrize("chunksize", [0, 1, 7, 100])
def test_kinds_of_rows(chunksize: int) -> None:
    pair = Pair(a=torch.arange(ROWS), b=torch.arange(ROWS) * 10, batch_size=[ROWS])
    tdmap.map(pair, lambda c: Pair(a=c.b, b=c.a, batch_size=c.batch_size), out=pair, num_workers=0, chunksize=chunksize)
    assert pair.a.tolist() == [10 * x for x in range(ROWS)] and pair.b.tolist() == list(range(ROWS))
    stack = lazy_stack([TensorDict({"a": torch.arange(4), "b": torch.arange(4) * 10}, [4]) for _ in range(6)], 1)
    wanted = stack.contiguous()
    tdmap.map(stack, lambda c: c.copy().update({"a": c["b"], "b": c["a"]}), out=stack, num_workers=0)
    assert torch.equal(stack["a"], wanted["b"]) and torch.equal(stack["b"], wanted["a"])
    square = torch.arange(ROWS * 9).view(ROWS, 3, 3)
    before = square.clone()
    tdmap.map(square, lambda c: c.transpose(-1, -2), out=square, num_workers=0, chunksize=chunksize)
    assert torch.equal(square, before.transpose(-1, -2))
    one_storage = torch.arange(ROWS * 2).view(2, ROWS)
    halves = TensorDict({"a": one_storage[0], "b": one_storage[1]}, [ROWS])
    tdmap.map(halves, swap, out=halves, num_workers=0, chunksize=chunksize)
    assert halves["a"].tolist() == list(range(ROWS, 2 * ROWS)) and halves["b"].tolist() == list(range(ROWS))


def test_what_the_function_changed_itself_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rows()

    def change(chunk: Any) -> Any:
        chunk["a"].add_(1)
        return chunk

    with monkeypatch.context() as patch:
        for kind in (torch.Tensor, TensorDict):
            patch.setattr(kind, "clone", lambda self, **how: pytest.fail("copied"))
        tdmap.map(data, change, out=data, num_workers=0, undo=False)
    assert data["a"].tolist() == list(range(1, ROWS + 1))
