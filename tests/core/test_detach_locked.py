"""A locked TensorDict hands out what it detached last, and never a tree that has become another."""

import copy
import gc
import pickle
import tempfile
import threading
import weakref

import pytest
import torch
from torch import Tensor

import tensordict_lite as lib
from tensordict_lite import LazyStackedTensorDict, TensorDict, tensorclass
from tests.differential.harness.namespace import PROJECT
from tests.differential.interface.drawing import _compiled, _scope
from tests.differential.interface.expressions import EXPRESSIONS


def tree() -> TensorDict:
    """Two levels with the keys that the lines of the interface name, the lower one with all of them again."""
    part = {"a": torch.ones(3, 2), "n": TensorDict({"b": torch.arange(3)}, [3])}
    return TensorDict({**part, "m": TensorDict({"a": torch.zeros(3, 2), "n": {"b": torch.ones(3)}}, [3])}, [3])


def is_detached_of(result: TensorDict, source: TensorDict) -> bool:
    """Same keys, sizes, names, device and memory, locked, and nothing requires grad."""
    same = (result.batch_size, result.names, result.device) == (source.batch_size, source.names, source.device)
    if not same or list(result.keys()) != list(source.keys()) or result.is_locked != source.is_locked:
        return False
    for key, value in source.items():
        mine = result.get(key)
        if not isinstance(value, Tensor):
            if not is_detached_of(mine, value):
                return False
        elif mine.requires_grad or mine.shape != value.shape or mine.data_ptr() != value.data_ptr():
            return False
    return True


@pytest.mark.parametrize("made", ["lock_", "memmap_", "share_memory_"])
@pytest.mark.parametrize("place", ["source", "part of the source", "result", "part of the result"])
@pytest.mark.filterwarnings("ignore")
def test_no_method_makes_what_is_kept_another_tree(made: str, place: str) -> None:
    wrong = []
    for expression in EXPRESSIONS:
        source = getattr(tree(), made)()
        touched = source.detach() if "result" in place else source
        assert source.detach() is source.detach()
        x = touched.get("m") if "part" in place else touched
        with tempfile.TemporaryDirectory() if "folder" in expression.source else threading.Lock() as folder:
            scope = {**_scope(PROJECT), "x": x, "y": tree().get("m"), "size": (3,), "folder": folder}
            try:
                eval(_compiled(expression.source), scope)
            except Exception:  # refused under the lock, say: then nothing has changed
                pass
            if not is_detached_of(source.detach(), source):
                wrong.append(expression.source)
    assert not wrong


def test_the_same_tree_is_handed_out_until_a_lock_ends() -> None:
    source = tree().lock_()
    first = source.detach()
    assert source.detach() is first
    assert source.get("m").detach() is source.get("m").detach()
    first.unlock_()["z"] = torch.ones(3)
    second = source.detach()
    assert second is not first and "z" not in second.keys() and second.is_locked
    source.unlock_()["z"] = torch.ones(3)
    assert source.detach() is not source.detach()
    source.lock_()
    assert source.detach() is source.detach() and "z" in source.detach().keys()
    first.lock_()
    assert source.detach() is not first


def test_requires_grad_of_a_result_does_not_stick() -> None:
    source = tree().float().lock_()
    source.detach().requires_grad_()
    assert not source.detach().requires_grad
    source.detach().get("m").requires_grad_()
    assert not source.detach().requires_grad
    assert source.detach() is source.detach()


def test_writes_in_place_are_seen_by_both() -> None:
    source = tree().lock_()
    source.detach().set_("a", torch.full((3, 2), 5.0))
    source.set_(("m", "a"), torch.full((3, 2), 6.0))
    assert source["a"].sum() == 30 and source.detach()["m", "a"].sum() == 36


def test_what_may_be_swapped_under_a_lock_is_detached_anew() -> None:
    @tensorclass
    class Row:
        a: Tensor

    net = torch.nn.Linear(2, 2)
    weights = TensorDict.from_module(net).lock_()
    assert weights.detach() is not weights.detach()
    net.double()  # puts other memory under each parameter
    assert weights.detach()["weight"].dtype is torch.float64
    net.requires_grad_(False)
    assert weights.detach() is not weights.detach()

    text = TensorDict({"s": "before", "a": torch.ones(3)}, [3]).lock_()
    text.detach()
    text.set_("s", "after")
    assert text.detach()["s"] == "after"

    row, stack = Row(a=torch.ones(3), batch_size=[3]), LazyStackedTensorDict(tree(), tree())
    for part in (row, stack, lib.TensorDictParams(tree())):
        for other in (part, TensorDict({"x": part}, [])):
            assert other.lock_().detach() is not other.detach()


def test_copies_do_not_carry_what_is_kept(tmp_path) -> None:
    source = tree().lock_()
    kept = source.detach()
    folder = source.memmap(tmp_path / "saved")
    copies = [
        pickle.loads(pickle.dumps(source)), copy.copy(source), copy.deepcopy(source), source.clone(False).lock_(),
        source.copy().lock_(), folder, TensorDict.load_memmap(tmp_path / "saved"),
    ]  # fmt: skip
    assert len(pickle.dumps(source)) == len(pickle.dumps(tree().lock_()))
    for other in copies:
        assert other.detach() is not kept and is_detached_of(other.detach(), other)


def test_what_is_kept_makes_no_circle() -> None:
    gc.collect()
    gc.disable()
    try:
        source = tree().lock_()
        refs = [weakref.ref(source), weakref.ref(source.detach()), weakref.ref(source.detach().detach())]
        del source
        assert [ref() for ref in refs] == [None] * 3
        source = tree().lock_()
        kept = weakref.ref(source.detach())
        source.unlock_()
        assert kept() is None  # unlocked: nothing holds the memory of entries that are replaced
    finally:
        gc.enable()


def test_nothing_of_a_transform_is_kept() -> None:
    source = TensorDict({"a": torch.arange(3.0)}, []).lock_()
    torch.func.grad(lambda x: (x * source.detach()["a"]).sum())(torch.ones(3))
    torch.vmap(lambda x: x * source.detach()["a"])(torch.ones(2, 3))
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        source.detach()
    assert source.detach()["a"].tolist() == [0, 1, 2] and type(source.detach()["a"]) is Tensor


def test_threads_that_detach_at_once_get_trees_of_the_same_memory() -> None:
    source = tree().lock_()
    results: list[TensorDict] = []
    threads = [threading.Thread(target=lambda: results.append(source.detach())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(is_detached_of(result, source) for result in results)
