"""Copies, casts, shared memory, gradients: what is shared, what is locked, what comes back."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import weakref
from typing import Any

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict, lazy_stack
from tensordict_lite.ops.values.generated import DTYPES


def make() -> TensorDict:
    return TensorDict({"a": torch.rand(2, 3), "b": torch.arange(2), "n": {"c": torch.ones(2, 2)}}, [2], names=["x"])


def leaves(td: Any) -> dict[Any, torch.Tensor]:
    return dict(td.items(True, True))


# -- copies ---------------------------------------------------------------------------------------------------


def test_clone_copies_tensors_and_unlocks() -> None:
    td = make().lock_()
    new = td.clone()
    assert new["n"] is not td["n"] and new["a"].data_ptr() != td["a"].data_ptr()
    assert not new.is_locked and not new["n"].is_locked and new.names == ["x"]
    for key, leaf in leaves(td).items():
        assert torch.equal(new[key], leaf)


def test_shallow_copies_share_tensors_only() -> None:
    td = make().lock_()
    for new in (td.clone(recurse=False), td.copy()):
        assert new["a"] is td["a"] and new["n"] is not td["n"] and not new.is_locked
        new["n", "new"] = torch.zeros(2)
        assert "new" not in td["n"].keys()


def test_clone_keeps_strides_gradients_and_copies_objects() -> None:
    x = torch.rand(3, 2, requires_grad=True)
    payload = ["text"]
    td = TensorDict({"t": torch.rand(2, 3).t(), "x": x, "i": torch.arange(3)}, [3]).set_non_tensor("o", payload)
    new = td.clone()
    assert new["t"].stride() == td["t"].stride() and new["x"].grad_fn is not None
    new["o"].append("more")
    assert payload == ["text"]


def test_contiguous_shares_what_already_is() -> None:
    td = TensorDict({"t": torch.rand(2, 3).t(), "a": torch.rand(3)}, [3]).lock_()
    assert not td.is_contiguous()
    new = td.contiguous()
    assert new.is_contiguous() and new["a"] is td["a"] and not new.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        td.contiguous(inplace=True)
    assert td.unlock_().contiguous(inplace=True) is td and td["t"].is_contiguous()
    odd = TensorDict({"a": torch.rand(1, 3).as_strided((1, 3), (7, 1))}, [1])
    assert odd.is_contiguous() and odd.contiguous()["a"] is odd["a"]
    assert odd.contiguous(canonical=True)["a"].stride() == (3, 1)


# -- to -------------------------------------------------------------------------------------------------------


def test_to_a_device_makes_it_the_rule() -> None:
    td = make().lock_()
    new = td.to("meta")
    assert new.device == new["n"].device == torch.device("meta") and new["n", "c"].is_meta
    assert new.is_locked and new["n"].is_locked and new.names == ["x"] and td.device is None
    assert new.to("meta") is new and new.is_meta and not td.is_cpu
    assert td.cpu()["a"] is td["a"] and td.cpu().is_cpu
    assert TensorDict({"a": torch.ones(2), "s": "text"}, [2]).to("cpu").get("s").device == torch.device("cpu")


@pytest.mark.parametrize(
    "args",
    [
        (torch.float16,),
        ("meta", torch.float16),
        (torch.zeros((), dtype=torch.float16, device="meta"),),
        ("meta", torch.float16, True),
    ],
)
def test_to_takes_the_forms_of_a_tensor(args: Any) -> None:
    td = make()
    new = td.to(*args)
    for key, leaf in leaves(td).items():
        expected = leaf.to(*args)
        assert new[key].dtype == expected.dtype and new[key].device == expected.device


def test_to_another_collection_takes_its_device_and_common_dtype() -> None:
    td = make()
    other = TensorDict({"z": torch.zeros(1, dtype=torch.float64)}, device="meta")
    for new in (td.to(other), td.to(other=other)):
        assert new.device == torch.device("meta") and new["b"].dtype == torch.float64
    assert td.to(make()) is td  # no device, no common dtype


def test_to_with_nothing_to_do_is_self() -> None:
    td = make()
    assert td.to() is td and td.to(None) is td and td.to(device=None) is td
    assert td.to(batch_size=[]) is td and td.batch_size == torch.Size([])
    assert make().to("cpu", batch_size=[])["n"].batch_size == torch.Size([])


def test_to_in_place_keeps_the_tree() -> None:
    td = make()
    nested = td["n"]
    assert td.to("meta", torch.float64, inplace=True) is td
    assert td["n"] is nested and nested.device == torch.device("meta") and nested["c"].dtype == torch.float64


def test_cast_filter_chooses_by_path_and_tensor() -> None:
    seen = []

    def wanted(path: tuple[str, ...], leaf: torch.Tensor) -> bool:
        seen.append(path)
        return leaf.is_floating_point()

    for new in (make().to(torch.float64, cast_filter=wanted), make().double(cast_filter=wanted)):
        assert new["a"].dtype == torch.float64 and new["b"].dtype == torch.int64
    assert seen[:3] == [("a",), ("b",), ("n", "c")]
    moved = make().to("meta", torch.float64, cast_filter=wanted)
    assert moved["b"].is_meta and moved["b"].dtype == torch.int64
    assert make().type(torch.float64, cast_filter=wanted)["b"].dtype == torch.int64


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", [name for name in DTYPES if "q" not in name])
def test_dtype_shorthands(name: str) -> None:
    td = make().lock_()
    new = getattr(td, name)()
    assert {leaf.dtype for leaf in leaves(new).values()} == {DTYPES[name]} and new.is_locked
    assert new.dtype == DTYPES[name]


def test_type_takes_names_and_unlocks() -> None:
    assert make().type("torch.IntTensor")["a"].dtype == torch.int32
    assert not make().lock_().type(torch.int8).is_locked


@pytest.mark.parametrize("args", [("foo",), (dict,), (torch.float32, torch.float64), ("cpu", 3.5)])
def test_bad_arguments_are_refused(args: Any) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        make().to(*args)


def test_with_to_writes_back_on_exit() -> None:
    td = make()
    before = td["a"].clone()
    with td.to(torch.float64) as wide:
        wide["a"] = wide["a"] + 1
        wide["new"] = torch.zeros(2, dtype=torch.float64)
    assert td["a"].dtype == torch.float32 and td["new"].dtype == torch.float64
    torch.testing.assert_close(td["a"], before + 1)


def test_a_cast_does_not_keep_its_origin_alive() -> None:
    td = make()
    ref = weakref.ref(td)
    new = td.to(torch.float64)
    del td
    gc.collect()
    assert ref() is None and new["a"].dtype == torch.float64


# -- memory ---------------------------------------------------------------------------------------------------


def test_share_memory_locks_and_is_forgotten_by_unlock() -> None:
    td = make()
    assert not td.is_shared() and td.share_memory_() is td
    assert td.is_shared() and td["n"].is_shared() and td.is_locked
    assert all(leaf.is_shared() for leaf in leaves(td).values())
    with pytest.raises(RuntimeError, match="locked"):
        td["new"] = torch.zeros(2)
    td.set_("a", torch.zeros(2, 3))
    assert td.share_memory_().is_shared() and not td.clone().is_shared()
    assert not td.unlock_().is_shared() and not td["n"].is_shared()


def test_figures_of_memory() -> None:
    td = make()
    assert td.bytes() == 4 * 6 + 8 * 2 + 4 * 4 and td.param_count() == 12
    x = torch.zeros(6, requires_grad=True)
    twice = TensorDict({"a": x, "b": x})
    assert twice.bytes() == 48 and twice.bytes(count_duplicates=False) == 24
    assert twice.param_count() == 12 and twice.param_count(count_duplicates=False) == 6
    x.sum().backward()
    assert twice.bytes(count_duplicates=False) == 48


def test_data_ptr_is_a_tree_of_addresses() -> None:
    td = make()
    assert td.data_ptr()["n", "c"] == td["n", "c"].data_ptr() and td.data_ptr().batch_size == torch.Size([])
    assert (td[1:].data_ptr(storage=True) == td.data_ptr(storage=True)).all()
    assert not (td[1:].data_ptr() == td.data_ptr()).any()
    stack = LazyStackedTensorDict(td, td, stack_dim=0)
    assert list(stack.data_ptr().keys()) == ["0", "1"]


def test_dtype_questions() -> None:
    assert make().dtype is None and make().float().dtype == torch.float32 and TensorDict().dtype is None
    assert make().float().is_floating_point() and not make().is_floating_point()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without an accelerator")
def test_pinning_needs_an_accelerator() -> None:
    for pin in (make().pin_memory, make().pin_memory_, lambda: make().pin_memory(num_threads=2)):
        with pytest.raises(RuntimeError):
            pin()


@pytest.mark.gpu
def test_to_cuda_and_back() -> None:
    td = make()
    there = td.pin_memory().cuda()
    assert there.device == torch.device("cuda", 0) and there["n", "c"].is_cuda and there.is_shared()
    back = there.cpu()
    for key, leaf in leaves(td).items():
        assert torch.equal(back[key], leaf)


# -- gradients ------------------------------------------------------------------------------------------------


def test_requires_grad_data_and_detach() -> None:
    td = make().select("a", "n").lock_()
    assert td.requires_grad_() is td and td.requires_grad
    for new in (td.detach(), td.data):
        assert not new.requires_grad and new.is_locked and new["a"].data_ptr() == td["a"].data_ptr()
    moved = td * 2
    assert moved.detach_() is moved and not moved.requires_grad
    with pytest.raises(RuntimeError):
        make().requires_grad_()


def test_grad_has_the_keys_that_have_one() -> None:
    td = make().select("a", "n").requires_grad_()
    assert td.grad is None
    td["a"].sum().backward()
    assert list(td.grad.keys()) == ["a"] and td.grad.names == ["x"] and torch.equal(td.grad["a"], torch.ones(2, 3))
    td.zero_grad(set_to_none=False)
    assert not td["a"].grad.any()
    assert td.zero_grad() is td and td["a"].grad is None and td.grad is None


def test_backward_from_all_leaves_at_once() -> None:
    td = make().select("a", "n").requires_grad_()
    (td * 2).sum().backward()
    assert (td.grad == 2).all()
    td.zero_grad()
    (td * 2).backward(td.detach() * 0 + 3)
    assert (td.grad == 6).all()
    td.zero_grad()
    (td * 2).sum().backward(inputs=td.select("a"))
    assert list(td.grad.keys()) == ["a"]
    with pytest.raises(RuntimeError, match=r"scalar outputs.*'a'.*\(2, 3\)"):
        (td * 2).backward()
    with pytest.raises(RuntimeError, match="no leaf"):
        make().backward()
    with pytest.raises(KeyError):
        (td * 2).backward(td.detach().select("a"))


def test_lazy_stacks_cast_and_share() -> None:
    stack = LazyStackedTensorDict(make(), make(), stack_dim=0)
    new = stack.to(torch.float64)
    assert type(new) is LazyStackedTensorDict and new["b"].dtype == torch.float64
    assert stack.to("cpu").device == torch.device("cpu")
    assert stack.clone()["a"].data_ptr() != stack["a"].data_ptr()
    assert stack.share_memory_().is_shared()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_tree_without_entries_does_not_go_to_a_device_that_is_not_there() -> None:
    for move in (lambda td: td.cuda(), lambda td: td.to("cuda")):
        with pytest.raises((AssertionError, RuntimeError)):
            move(TensorDict({}, [3]))


def test_a_shared_tree_is_shared_in_the_process_that_receives_it() -> None:
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3]).share_memory_()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for tree in (td, lazy_stack([td, td])):
            assert pool.apply(_whether_shared, (tree,)) == (True, True)
    assert not pickle.loads(pickle.dumps(td)).is_shared()  # a copy, in the memory of this process


def _whether_shared(td: Any) -> tuple[bool, bool]:
    return td.is_shared(), td.get("n").is_shared()
