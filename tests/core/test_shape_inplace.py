"""``inplace=True`` of shape and row operations: this very collection changes, or there is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_lite import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
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
    return td.tolist() if td._is_non_tensor else td.to_tensordict().to_dict(convert_tensors=True)


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


def test_a_shape_that_is_the_same_changes_nothing() -> None:
    td = _dense().lock_()
    assert td.reshape(2, 3, inplace=True) is td and td.names == ["u", "v"]


def test_repeat_interleave_in_place_needs_a_dim() -> None:
    with pytest.raises(RuntimeError, match="explicit dim"):
        _dense().repeat_interleave(2, inplace=True)


@pytest.mark.parametrize("method", ["squeeze", "unsqueeze", "permute", "expand", "view"])
def test_operations_without_such_an_option_say_so(method: str) -> None:
    arguments = {"squeeze": (0,), "unsqueeze": (0,), "permute": (1, 0), "expand": (2, 3), "view": (6,)}[method]
    for td in (_dense(), LAZY["lazy 0"]()):
        with pytest.raises(TypeError, match="inplace"):
            getattr(td, method)(*arguments, inplace=True)


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


def test_ragged_stacks_are_padded_member_by_member() -> None:
    def make() -> Any:
        return lazy_stack([TensorDict({"a": torch.ones(3, n)}, [3]) for n in (1, 2)])

    for td in (make().pad([1, 0, 1, 0], 5), make().pad([1, 0, 1, 0], 5, inplace=True)):
        assert td.batch_size == (3, 4)
        assert [member["a"].shape for member in td.tensordicts] == [(4, 1), (4, 1), (4, 2)]
        assert (td[0]["a"] == 5).all() and (td[1]["a"][0] == 5).all() and (td[1]["a"][1:] == 1).all()


def test_one_collection_twice_in_a_stack_is_padded_once() -> None:
    row = TensorDict({"a": torch.ones(2)}, [2])
    assert lazy_stack([row, row]).pad([0, 0, 0, 1], inplace=True).batch_size == (2, 3)


# -- gather -----------------------------------------------------------------------------------------------------------


def test_gather_goes_to_one_place() -> None:
    index = torch.tensor([[1, 0, 1]])
    for td in (_dense(), LAZY["lazy 0"](), LAZY["objects"]()):
        with pytest.raises(ValueError, match="mutually exclusive"):
            td.gather(0, index, out=td.clone(), inplace=True)
    with pytest.raises(NotImplementedError, match="index.ndim == batch_dims"):
        _dense().gather(0, torch.tensor([0]), inplace=True)


def test_gather_with_an_index_of_the_first_dimensions() -> None:
    td = _dense().exclude("s")
    rows = td.gather(0, torch.tensor([1]))
    assert rows.batch_size == (1,) and rows["a"].equal(td["a"][[1]])
    one_each = td.gather(1, torch.tensor([2, 0]))
    assert one_each.batch_size == (2,)
    assert one_each["a"][:, 0].equal(torch.stack([td["a"][0, 2], td["a"][1, 0]]))
    assert one_each["n", "b"].shape == (2, 1)


def test_gather_into_a_collection_does_not_lose_gradients() -> None:
    td = TensorDict({"a": torch.ones(2, 3, requires_grad=True)}, [2])
    out = TensorDict({"a": torch.zeros(1, 3)}, [1])
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        td.gather(0, torch.tensor([1]), out=out)
    assert not out["a"].any()
    with torch.no_grad():
        assert td.gather(0, torch.tensor([1]), out=out) is out and out["a"].all()
