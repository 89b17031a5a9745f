"""``out=``: what the destination has is written in place, what it lacks is added, and it is returned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict, lazy_stack, maybe_dense_stack


def _tree() -> TensorDict:
    nested = TensorDict({"b": torch.ones(3, 2)}, [3])
    return TensorDict({"a": torch.arange(12.0).view(3, 4), "n": nested}, [3])


def _lazy() -> LazyStackedTensorDict:
    return lazy_stack(list(_tree().unbind(0)))


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "logsumexp": lambda td, out: td.logsumexp(dim=0, out=out),
    "norm": lambda td, out: td.norm(out=out),
    "stack": lambda td, out: torch.stack([td, td], out=out),
    "cat": lambda td, out: torch.cat([td, td], out=out),
    "lazy_stack": lambda td, out: lazy_stack([td, td], out=out),
    "maybe_dense_stack": lambda td, out: maybe_dense_stack([td, td], out=out),
    "where": lambda td, out: td.where(torch.tensor([True, False, True]), td + 1, out=out),
}
EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "clamp": lambda td, out: td.clamp(1, 2, out=out),
    "gather": lambda td, out: td.gather(0, torch.tensor([0, 2]), out=out),
}


@pytest.mark.parametrize("make", [_tree, _lazy])
@pytest.mark.parametrize("name", CALLS)
def test_entries_are_added_or_written_in_place(name: str, make: Callable[[], Any]) -> None:
    call = CALLS[name]
    wanted = call(make(), None).to_tensordict()
    empty = TensorDict({}, wanted.batch_size)
    assert call(make(), empty) is empty and (empty == wanted).all()

    partial = wanted.clone().zero_().exclude("n").set("other", torch.zeros(wanted.batch_size))
    before = partial["a"]
    assert call(make(), partial) is partial
    assert partial["a"] is before and (partial.exclude("other") == wanted).all() and "other" in partial


@pytest.mark.parametrize("make", [_tree, _lazy])
@pytest.mark.parametrize("name", {**CALLS, **EXACT})
def test_a_whole_destination_is_written_in_place_locked_or_not(name: str, make: Callable[[], Any]) -> None:
    call = {**CALLS, **EXACT}[name]
    wanted = call(make(), None).to_tensordict()
    out = wanted.clone().zero_()
    leaves = dict(out.items(True, True))
    assert call(make(), out) is out
    assert (out == wanted).all() and all(out[key] is leaf for key, leaf in leaves.items())
    locked = wanted.clone().zero_().lock_()
    assert (call(make(), locked) == wanted).all() and locked.is_locked
    if name in CALLS:
        with pytest.raises((RuntimeError, KeyError)):
            call(make(), TensorDict({}, wanted.batch_size).lock_())


JOINS = ("stack", "cat", "lazy_stack", "maybe_dense_stack")


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("kind", ["other dtype", "strided", "mapped", "wider", "gradients", "parameter"])
def test_a_destination_of_any_kind_holds_what_was_joined(name: str, kind: str, tmp_path: Path) -> None:
    td = _tree()
    wanted = CALLS[name](td, None).to_tensordict()
    out = wanted.clone().zero_()
    if kind == "other dtype":
        out = out.to(torch.float64)
    elif kind == "strided":
        out = torch.cat([out, out], 0)[::2]
    elif kind == "mapped":
        out = out.memmap(tmp_path)
    elif kind == "wider":
        td["a"], wanted["a"] = td["a"][:, :1], wanted["a"][..., :1].expand(out["a"].shape)
    elif kind == "gradients":
        td["a"].requires_grad_()
    elif kind == "parameter":
        out["a"].requires_grad_()
    leaves = dict(out.items(True, True))
    if kind == "parameter":
        with pytest.raises(RuntimeError, match="requires grad"):
            CALLS[name](td, out)
        return
    assert CALLS[name](td, out) is out
    assert (out == wanted).all() and all(out[key] is leaf for key, leaf in leaves.items())
    if kind == "gradients":
        out["a"].sum().backward()
        assert (td["a"].grad == 2).all()


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("where", ["itself", "other key"])
def test_items_may_be_rows_of_the_destination(name: str, where: str) -> None:
    """Columns, which torch does not see to overlap."""
    join = {"stack": torch.stack, "cat": torch.cat, "lazy_stack": lazy_stack, "maybe_dense_stack": maybe_dense_stack}
    out = TensorDict({"a": torch.arange(12).view(3, 4), "b": torch.arange(12, 24).view(3, 4)}, [3, 4])
    if where == "itself":
        items = list(out.unbind(1))[::-1]
    else:
        items = [row.rename_key_("a", "c").rename_key_("b", "a").rename_key_("c", "b") for row in out.unbind(1)]
    if name == "cat":
        items = [item.unsqueeze(1) for item in items]
    wanted = join[name]([item.clone() for item in items], 1).to_tensordict()
    assert join[name](items, 1, out=out) is out and (out == wanted).all()


@pytest.mark.parametrize("name", EXACT)
def test_clamp_and_gather_ask_for_all_entries(name: str) -> None:
    out = EXACT[name](_tree(), None)
    with pytest.raises(KeyError):
        EXACT[name](_tree(), out.exclude("n"))


@pytest.mark.parametrize("make", [_tree, _lazy])
@pytest.mark.parametrize("name", [name for name in {**CALLS, **EXACT} if name != "norm"])
def test_a_destination_of_other_rows_raises_and_is_unchanged(name: str, make: Callable[[], Any]) -> None:
    call = {**CALLS, **EXACT, "logsumexp": lambda td, out: td[None].logsumexp(dim=0, out=out)}[name]
    for source in (make(), *([make()[:1]] if name not in ("where", "gather") else ())):
        wanted = call(source, None).to_tensordict()
        for out in (torch.cat([wanted, wanted, wanted]), wanted[:0].clone()):
            before = out.clone()
            with pytest.raises(RuntimeError, match="batch size"):
                call(source, out)
            assert out.batch_size == before.batch_size and (out == before).all()


@pytest.mark.parametrize("make", [_tree, _lazy])
def test_one_row_is_not_gathered_into_several(make: Callable[[], Any]) -> None:
    out = _tree()
    with pytest.raises(RuntimeError, match=r"out has batch size \[3\], the result has \[1\]"):
        make().gather(0, torch.tensor([2]), out=out)
    assert (out == _tree()).all()


@pytest.mark.parametrize("target", ["dense", "empty", "partial", "lazy", "lazy, other dim", "lazy, empty"])
@pytest.mark.parametrize("method", ["apply", "named_apply"])
def test_apply_of_a_lazy_stack_reaches_any_destination(method: str, target: str) -> None:
    source = lazy_stack([_tree(), _tree() * 2])
    wanted = source + 1
    blank = wanted.to_tensordict().zero_()
    out: Any = {
        "dense": lambda: blank,
        "empty": lambda: TensorDict({}, [2, 3]),
        "partial": lambda: blank.exclude("n"),
        "lazy": lambda: lazy_stack(list(blank.unbind(0))),
        "lazy, other dim": lambda: lazy_stack(list(blank.unbind(1)), 1),
        "lazy, empty": lambda: lazy_stack([TensorDict({}, [3]), TensorDict({}, [3])]),
    }[target]()
    fn = (lambda x: x + 1) if method == "apply" else (lambda _, x: x + 1)
    assert getattr(source, method)(fn, out=out) is out
    assert (out == wanted).all()
    tree, wide = TensorDict({"l": source}, [2]), TensorDict({"l": out * 0}, [2])
    assert (getattr(tree, method)(fn, out=wide)["l"] == wanted).all()


def test_a_lazy_stack_applies_in_place_under_its_own_size_only() -> None:
    stack = lazy_stack([_tree(), _tree()])
    for options in ({"batch_size": [2]}, {"batch_size": []}, {"device": "cpu"}):
        for call in (stack.apply, lambda fn, **kw: stack.named_apply(lambda _, x: fn(x), **kw)):
            with pytest.raises(ValueError, match="members keep theirs"):
                call(lambda x: x + 1, inplace=True, **options)
    with pytest.raises(TypeError, match="Cannot pass batch-size to a LazyStackedTensorDict"):
        stack.to(batch_size=[2])
    assert (stack == lazy_stack([_tree(), _tree()])).all()
