"""``inplace=True`` of shape and row operations: this very collection changes, or there is an error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_lite import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    is_non_tensor,
    lazy_stack,
    pad,
    tensorclass,
)


@tensorclass
class Item:
    a: Any
    n: Any
    s: Any


def _dense() -> TensorDict:
    nested = TensorDict({"b": torch.arange(6).view(2, 3)}, [2, 3])
    return TensorDict({"a": torch.arange(24.0).view(2, 3, 4), "n": nested, "s": "x"}, [2, 3], names=["u", "v"])


DENSE: dict[str, Callable[[], Any]] = {
    "dense": _dense,
    "class": lambda: Item.from_tensordict(_dense()),
    "strided": lambda: TensorDict({"a": torch.arange(24.0).view(4, 3, 2).permute(2, 1, 0), "n": {}}, [2, 3]),
    "object": lambda: NonTensorData("x", batch_size=[2, 3]),
}
LAZY: dict[str, Callable[[], Any]] = {
    "lazy 0": lambda: lazy_stack(list(_dense().unbind(0)), 0),
    "lazy 1": lambda: lazy_stack(list(_dense().unbind(1)), 1),
    "lazy of lazy": lambda: lazy_stack([lazy_stack(list(row.unbind(0))) for row in _dense().unbind(0)]),
    "objects": lambda: NonTensorStack.from_list([["a", "b", "c"], ["d", "e", "f"]]),
}
LOCKED: dict[str, Callable[[], Any]] = {"locked": lambda: _dense().lock_(), "mapped": lambda: _dense().memmap()}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "reshape": lambda td, **kw: td.reshape(3, 2, **kw),
    "reshape to one": lambda td, **kw: td.reshape(-1, **kw),
    "flatten": lambda td, **kw: td.flatten(0, 1, **kw),
    "unflatten": lambda td, **kw: td.unflatten(1, (3, 1), **kw),
    "repeat": lambda td, **kw: td.repeat(2, 1, **kw),
    "repeat_interleave": lambda td, **kw: td.repeat_interleave(2, dim=0, **kw),
    "gather": lambda td, **kw: td.gather(0, torch.tensor([[1, 0, 1]]), **kw),
}
EVERYWHERE: dict[str, Callable[..., Any]] = {
    "roll": lambda td, **kw: td.roll(1, 0, **kw),
    "roll both": lambda td, **kw: td.roll((1, -1), (0, 1), **kw),
    "pad": lambda td, **kw: td.pad([0, 1, 2, 0], 5.0, **kw),
    "pad, cut": lambda td, **kw: td.pad([-1, 0, 0, -1], **kw),
}


def _plain(td: Any) -> Any:
    return td.tolist() if is_non_tensor(td) else td.to_tensordict().to_dict(convert_tensors=True)


@pytest.mark.parametrize("operation", [*OPERATIONS, *EVERYWHERE])
@pytest.mark.parametrize("kind", DENSE)
def test_the_collection_itself_takes_the_new_shape(kind: str, operation: str) -> None:
    apply = {**OPERATIONS, **EVERYWHERE}[operation]
    td = DENSE[kind]()
    if kind == "object" and operation.startswith("pad"):
        with pytest.raises(RuntimeError, match="identity"):
            apply(td, inplace=True)
        return
    nested = td.get("n") if kind != "object" else None
    want = apply(DENSE[kind]())
    assert apply(td, inplace=True) is td
    assert td.batch_size == want.batch_size and td.names == want.names and _plain(td) == _plain(want)
    if nested is not None:
        assert td.get("n") is nested and nested.batch_size == want.batch_size


@pytest.mark.parametrize("operation", [*OPERATIONS, "contiguous"])
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_stack_refuses_what_its_members_cannot_follow(kind: str, operation: str) -> None:
    td = LAZY[kind]()
    before = _plain(td)
    if operation == "contiguous":
        if kind == "objects":
            assert td.contiguous(inplace=True) is td
            return
        call: Any = lambda: td.contiguous(inplace=True)  # noqa: E731
    else:
        call = lambda: OPERATIONS[operation](td, inplace=True)  # noqa: E731
    with pytest.raises(NotImplementedError, match=rf"{operation.split()[0]}\(inplace=True\) is not supported"):
        call()
    assert _plain(td) == before


@pytest.mark.parametrize("operation", EVERYWHERE)
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_stack_rolls_and_pads_in_place(kind: str, operation: str) -> None:
    td = LAZY[kind]()
    members = td.tensordicts
    want = EVERYWHERE[operation](LAZY[kind]())
    assert EVERYWHERE[operation](td, inplace=True) is td
    assert isinstance(td, LazyStackedTensorDict) and td.batch_size == want.batch_size
    assert _plain(td) == _plain(want)
    if kind in ("lazy 0", "lazy 1") and operation != "pad, cut":
        kept = [any(member is new for new in td.tensordicts) for member in members]
        assert all(kept)


@pytest.mark.parametrize("operation", [*OPERATIONS, *EVERYWHERE, "to"])
@pytest.mark.parametrize("kind", [*LOCKED, *LAZY])
def test_a_lock_forbids_it(kind: str, operation: str) -> None:
    if kind in LAZY and operation in OPERATIONS or (kind == "objects" and operation == "to"):
        pytest.skip("refused in any case, or nothing to cast")
    td = {**LAZY, **LOCKED}[kind]().lock_()
    before = _plain(td)
    calls = {**OPERATIONS, **EVERYWHERE, "to": lambda td, **kw: td.to(torch.float64, **kw)}
    with pytest.raises(RuntimeError, match="locked"):
        calls[operation](td, inplace=True)
    assert _plain(td) == before


# -- pad -----------------------------------------------------------------------------------------------------------


def test_pad_checks_before_it_changes_anything() -> None:
    for make in (_dense, LAZY["lazy 0"], LAZY["objects"], DENSE["object"], DENSE["class"]):
        td = make()
        before = _plain(td)
        for pads, words in (([0, 0, 0, -4], "negative output size"), ([1] * 6, "pair"), ([1], "pair")):
            for options in ({}, {"inplace": True}, {"inplace": True, "safe": False}):
                with pytest.raises(RuntimeError, match=words):
                    pad(td, pads, **options)
        assert _plain(td) == before
