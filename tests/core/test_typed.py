"""``TypedTensorDict``: entries declared as annotations, over the storage of any kind of collection."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tensordict_lite import LazyStackedTensorDict, TensorDict, TypedTensorDict, lazy_stack, tensorclass


class State(TypedTensorDict):
    a: Tensor
    n: TensorDict
    unit: ClassVar[str] = "m"

    def total(self) -> Tensor:
        return self.a.sum()

    @property
    def twice(self) -> Tensor:
        return self.a * 2


class Shadowing(TypedTensorDict, shadow=True):
    sum: Tensor
    values: Tensor
    keys: Tensor


@tensorclass
class Item:
    a: Tensor
    n: TensorDict


def _plain(rows: int = 2) -> TensorDict:
    return TensorDict({"a": torch.zeros(rows, 3), "n": TensorDict({"x": torch.zeros(rows)}, [rows])}, [rows])


def _state(rows: int = 2) -> State:
    return State(a=torch.zeros(rows, 3), n=TensorDict({"x": torch.zeros(rows)}, [rows]), batch_size=[rows])


def test_methods_and_class_variables_are_no_fields() -> None:
    state = _state()
    state.a = torch.ones(2, 3)
    assert state.total() == 6 and state.twice.sum() == 12 and state.unit == "m" and sorted(state.keys()) == ["a", "n"]


def test_fields_that_shadow_methods() -> None:
    it = Shadowing(sum=torch.ones(2), values=torch.zeros(2), keys=torch.zeros(2), batch_size=[2])
    assert it.sum.shape == (2,) and it[0].values == 0 and torch.stack([it, it]).keys.shape == (2, 2)
    assert "values: f32[]" in repr(it) and (it + 1).sum.sum() == 4
    lazy = Shadowing.from_tensordict(lazy_stack([it.to_tensordict()] * 2))
    assert lazy.sum.shape == (2, 2)


KEEP: dict[str, Callable[[Any], Any]] = {
    "index": lambda s: s[0],
    "rows": lambda s: s[torch.tensor([0, 0])],
    "iterate": lambda s: next(iter(s)),
    "unbind": lambda s: s.unbind(0)[1],
    "split": lambda s: s.split(1)[0],
    "clone": lambda s: s.clone(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "+": lambda s: s + 1,
    "==": lambda s: s == s,
    "sum": lambda s: s.sum(0),
    "select": lambda s: s.select("a"),
    "flatten_keys": lambda s: s.flatten_keys(),
    "stack": lambda s: torch.stack([s, s]),
    "cat": lambda s: torch.cat([s, s]),
    "apply": lambda s: s.apply(lambda x: x + 1),
    "expand": lambda s: s.expand(2, 2),
    "view": lambda s: s.view(-1),
    "to": lambda s: s.to(torch.float64),
    "zeros_like": torch.zeros_like,
    "tree_map": lambda s: torch.utils._pytree.tree_map(lambda x: x, s),
    "contiguous": lambda s: s.contiguous(),
    "data": lambda s: s.data,
    "lock": lambda s: s.lock_(),
    "share": lambda s: s.clone().share_memory_(),
}


@pytest.mark.parametrize("kind", ["own", "plain", "lazy", "tensorclass", "mapped"])
@pytest.mark.parametrize("name", KEEP)
def test_results_keep_the_class_around_every_kind(name: str, kind: str, tmp_path: Path) -> None:
    made = State.from_tensordict(_kinds(kind, tmp_path))
    if kind == "mapped" and name in ("share",):
        made = State.from_tensordict(made.clone())
    out = KEEP[name](made)
    assert isinstance(out, State) and type(out).__name__ == "State"
    assert type(made.to_tensordict()) is TensorDict


def _kinds(kind: str, folder: Path) -> Any:
    if kind == "own":
        return _state()
    if kind == "lazy":
        return lazy_stack([_plain(), _plain()])
    if kind == "tensorclass":
        return Item(a=torch.zeros(2, 3), n=TensorDict({"x": torch.zeros(2)}, [2]), batch_size=[2])
    return _plain().memmap(folder) if kind == "mapped" else _plain()


@pytest.mark.parametrize("kind", ["own", "plain", "lazy", "tensorclass"])
def test_the_storage_is_that_of_the_collection(kind: str, tmp_path: Path) -> None:
    source = _kinds(kind, tmp_path)
    around = State.from_tensordict(source)
    around.a = torch.ones(around.batch_size + (3,))
    assert (source.get("a") == 1).all()
    around.set_("a", around.a + 1)
    assert (source.get("a") == 2).all()
    source.get("a").zero_() if kind != "lazy" else source.apply_(lambda x: x.zero_())
    assert (around.a == 0).all()
    assert isinstance(around, LazyStackedTensorDict) == (kind == "lazy")


def test_around_mapped_and_locked_ones(tmp_path: Path) -> None:
    source = _plain().memmap(tmp_path)
    around = State.from_tensordict(source)
    assert around.is_memmap() and around.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        around.a = torch.ones(2, 3)
    around.set_("a", torch.ones(2, 3))
    assert (TensorDict.load_memmap(tmp_path)["a"] == 1).all()
    with pytest.raises(RuntimeError, match="locked"):
        State.from_tensordict(_plain().lock_())["new"] = torch.zeros(2)


def test_saved_and_loaded(tmp_path: Path) -> None:
    saved = _state().memmap(tmp_path)
    assert type(saved) is State and saved.is_memmap()
    assert type(TensorDict.load_memmap(tmp_path)) is TensorDict


def test_lazy_stacks_of_them_and_beside_others() -> None:
    state = _state()
    lazy = State.from_tensordict(lazy_stack([_plain(), _plain()]))
    again = pickle.loads(pickle.dumps(lazy))
    assert isinstance(again, State) and again.total() == 0
    again = pickle.loads(pickle.dumps(lazy.consolidate()))
    assert isinstance(again, State) and again.total() == 0
    item = Item.from_tensordict(state)
    item.a = torch.ones(2, 3)
    assert state.total() == 6 and isinstance(item, Item)


def test_constructors_from_other_forms_make_instances() -> None:
    class Sub(TensorDict):
        pass

    assert type(Sub.from_dict({"a": torch.zeros(2)})) is Sub
    assert type(Sub({"n": {"x": torch.zeros(2)}}).flatten_keys()) is Sub
    assert type(Sub.from_any({"a": torch.zeros(2)})) is Sub and type(Sub.from_any(TensorDict())) is TensorDict
