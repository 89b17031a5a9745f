"""Operations on tensorclasses: results keep the class, through stacks, pickles, processes and disk."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_lite import (
    LazyStackedTensorDict,
    TensorClass,
    TensorDict,
    is_tensorclass,
    lazy_stack,
    set_printoptions,
    tensorclass,
)
from tensordict_lite.tensorclass.decorator import registered_class
from tests import interpreters


class Inner(TensorClass):
    value: Tensor
    note: str = "inner"


class Sample(TensorClass):
    image: Tensor
    inner: Inner | None = None
    caption: str = "none"
    extra: Any = None

    def total(self) -> Tensor:
        return self.image.sum()


@tensorclass
class Plain:
    x: Tensor


def make(n: int = 3) -> Sample:
    return Sample(torch.arange(float(n)), Inner(torch.ones(n, 2), batch_size=[n]), batch_size=[n])


OPERATIONS: dict[str, Callable[[Sample], Any]] = {
    "int": lambda s: s[0],
    "slice": lambda s: s[1:],
    "mask": lambda s: s[torch.tensor([True, False, True])],
    "rows": lambda s: s[[0, 2]],
    "none": lambda s: s[None],
    "reshape": lambda s: s.reshape(3, 1),
    "view": lambda s: s.view(1, 3),
    "unsqueeze": lambda s: s.unsqueeze(-1),
    "permute": lambda s: s[None].permute(1, 0),
    "expand": lambda s: s.expand(2, 3),
    "gather": lambda s: s.gather(0, torch.tensor([1, 0])),
    "split": lambda s: s.split(2)[1],
    "unbind": lambda s: s.unbind(0)[2],
    "iteration": lambda s: next(iter(s)),
    "stack": lambda s: torch.stack([s, s], 1),
    "cat": lambda s: torch.cat([s, s]),
    "where": lambda s: torch.where(torch.tensor([True, False, True]), s, s + 1),
    "zeros_like": torch.zeros_like,
    "add": lambda s: s + 1,
    "add class": lambda s: s + s,
    "add tensordict": lambda s: s + s.to_tensordict(),
    "compare": lambda s: s == s,
    "sum": lambda s: s.sum(0),
    "apply": lambda s: s.apply(lambda x: x + 1),
    "named_apply": lambda s: s.named_apply(lambda name, x: x + len(name)),
    "clone": lambda s: s.clone(),
    "to dtype": lambda s: s.to(torch.float64),
    "to device": lambda s: s.to("cpu"),
    "detach": lambda s: s.detach(),
    "select": lambda s: s.select("image", "inner"),
    "exclude": lambda s: s.exclude("caption"),
    "replace": lambda s: s.replace(image=torch.ones(3)),
    "new_zeros": lambda s: s.new_zeros(4),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "lazy stack": lambda s: lazy_stack([s, s]),
    "dense of lazy": lambda s: lazy_stack([s, s]).contiguous(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_keep_the_class_at_every_level(name: str) -> None:
    result = OPERATIONS[name](make())
    assert isinstance(result, Sample) and is_tensorclass(result) and type(result).__name__ == "Sample"
    assert isinstance(result.inner, Inner)
    leading = result.batch_size
    assert result.image.shape[: len(leading)] == leading == result.inner.batch_size[: len(leading)]


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"select", "exclude", "compare"}))
def test_the_tensors_are_those_of_the_same_operation_on_a_tensordict(name: str) -> None:
    sample = make()
    expected = OPERATIONS[name](sample.to_tensordict())  # type: ignore[arg-type]
    result = OPERATIONS[name](sample)
    assert torch.equal(result.image, expected["image"])
    assert torch.equal(result.inner.value, expected["inner", "value"])


def test_selected_away_fields_read_as_none() -> None:
    sample = make()
    assert sample.select("caption").image is None and sample.exclude("inner").inner is None
    assert sample.empty().image is None and sample.empty().batch_size == (3,)
    assert sample.pop("image").shape == (3,) and sample.image is None
    assert sample.rename_key_("inner", "extra").extra.note == "inner"


def test_equal_text_collapses_and_unequal_text_becomes_a_list() -> None:
    first, second = make(), make()
    second.caption = "other"
    assert torch.stack([first, second]).caption == [["none"] * 3, ["other"] * 3]
    assert torch.cat([first, first]).caption == "none"
    first[0] = second[0]
    assert first.caption == ["other", "none", "none"]


def test_classes_of_one_line_combine_and_others_do_not() -> None:
    class Child(Sample):
        more: Any = None

    child = Child(torch.zeros(3), batch_size=[3])
    parent = Sample(torch.zeros(3), batch_size=[3])
    assert type(torch.stack([child, parent])) is Child and type(torch.cat([parent, child])) is Sample
    plain = Plain(torch.zeros(3), batch_size=[3])
    for items in ([plain, parent], [parent, plain], [plain.to_tensordict(), plain]):
        for combine in (torch.stack, torch.cat):
            with pytest.raises(TypeError, match="Plain"):
                combine(items)  # type: ignore[operator]


def test_empty_fields_must_agree_to_stack_densely() -> None:
    full, bare = make(), make()
    bare.inner = None
    with pytest.raises(RuntimeError, match="inner"):
        torch.stack([full, bare])
    lazy = lazy_stack([full, bare])
    assert lazy.inner is None and lazy[0].inner is not None and lazy.image.shape == (2, 3)


def test_a_tensorclass_is_an_entry_like_any_other() -> None:
    td = TensorDict({"sample": make(), "x": torch.zeros(3)}, [3])
    assert type(td["sample"]) is Sample and td["sample", "inner", "value"].shape == (3, 2)
    assert ("sample", "image") in td.keys(True) and type(td[0]["sample"]) is Sample
    td["sample", "image"] = torch.ones(3)
    assert td["sample"].total() == 3
    td["sample"].caption = "changed"
    assert td["sample", "caption"] == "changed"


def test_metadata_reaches_nested_instances() -> None:
    sample = Sample(torch.zeros(3, 2), Inner(torch.zeros(3, 2), batch_size=[3, 2]), batch_size=[3], names=["rows"])
    assert sample.inner is not None and sample.inner.names == ["rows", None]
    sample.lock_()
    assert sample.inner.is_locked
    sample.unlock_()
    sample.batch_size = [3, 2]
    assert sample.batch_size == (3, 2)
    with pytest.raises(RuntimeError, match="image"):
        sample.batch_size = [4]
    meta = Sample(torch.zeros(3), Inner(torch.zeros(3), batch_size=[3]), batch_size=[3], device="meta")
    assert meta.image.device.type == "meta" == meta.inner.value.device.type  # type: ignore[union-attr]


# -- lazy stacks --------------------------------------------------------------------------------------------------


def test_a_lazy_stack_reads_and_writes_like_one_instance() -> None:
    first, second = make(), make()
    stack: Any = lazy_stack([first, second])
    assert isinstance(stack, Sample) and isinstance(stack, LazyStackedTensorDict)
    assert stack[0] is first and stack.total() == 6 and stack.get("image").shape == (2, 3)
    stack.image = torch.ones(2, 3)
    assert first.image.sum() == 3 and second.image.sum() == 3
    stack.caption = "both"
    assert first.caption == "both"
    stack.inner = None
    assert first.inner is None and stack.inner is None
    for bad in (lambda: stack.set("zzz", 1), lambda: setattr(stack, "zzz", 1)):
        with pytest.raises(AttributeError, match="zzz"):
            bad()
    with pytest.raises(ValueError, match="Sample"):
        stack["image"]
    with pytest.raises(TypeError, match="Sample"):
        stack.append(first.to_tensordict())
    stack.append(make())
    assert stack.batch_size == (3, 3) and type(pickle.loads(pickle.dumps(stack))) is type(stack)


def test_members_of_other_shapes_are_reached_one_by_one() -> None:
    stack: Any = lazy_stack([Plain(torch.zeros(3)), Plain(torch.zeros(4))])
    with pytest.raises(RuntimeError, match=r"'x'.*3.*4"):
        stack.x  # noqa: B018
    assert [x.shape[0] for x in stack.get("x", as_list=True)] == [3, 4]
    assert stack.get("x", as_padded_tensor=True).shape == (2, 4) and stack[1].x.shape == (4,)


def test_a_stack_of_two_classes_is_an_ordinary_lazy_stack() -> None:
    stack = lazy_stack([Plain(torch.zeros(3)), Inner(torch.zeros(3))])
    assert type(stack) is LazyStackedTensorDict


def test_from_tensordict_of_a_lazy_stack_is_a_lazy_stack_of_instances() -> None:
    stack = Plain.from_tensordict(lazy_stack([TensorDict(x=torch.zeros(3)), TensorDict(x=torch.zeros(4))]))
    assert isinstance(stack, Plain) and type(stack[1]) is Plain and stack[1].x.shape == (4,)


# -- text ---------------------------------------------------------------------------------------------------------


def test_repr_lists_set_fields_by_name_then_empty_ones() -> None:
    sample = Sample(torch.zeros(3), caption="c", batch_size=[3])
    fields = ["caption: str", "image: f32[]", "inner: None", "extra: None"]
    assert repr(sample) == "Sample(batch_size=[3], fields={\n    " + ",\n    ".join(fields) + "})"
    assert repr(Plain(torch.zeros(3, 2), batch_size=[3])) == "Plain(batch_size=[3], fields={x: f32[2]})"
    assert repr(TensorDict({"p": Plain(torch.zeros(3))})) == "TensorDict(batch_size=[], fields={p: Plain{x: f32[3]}})"
    with set_printoptions(compact=False):
        text = repr(sample)
    assert text.startswith("Sample(\n") and "inner=None" in text and "is_shared=False" in text


# -- processes and disk -------------------------------------------------------------------------------------------


def double(sample: Sample) -> Sample:
    assert type(sample) is Sample and sample.caption == "none"
    return sample * 2


def test_instances_travel_to_a_spawned_process_and_back() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        back = pool.apply(double, (make(),))
    assert type(back) is Sample and type(back.inner) is Inner and back.image.tolist() == [0.0, 2.0, 4.0]


def test_a_local_class_cannot_be_pickled_but_copied() -> None:
    class Local(TensorClass):
        x: Tensor

    local = Local(torch.zeros(3))
    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(local)
    assert type(copy.deepcopy(local)) is Local
    assert registered_class(f"{Local.__module__}.{Local.__qualname__}") is Local


def test_pickling_keeps_lock_names_and_sharing_apart() -> None:
    sample = make()
    sample.names = ["rows"]
    back = pickle.loads(pickle.dumps(sample.lock_()))
    assert back.is_locked and back.inner.is_locked and back.names == ["rows"]
    shallow = copy.copy(make())
    assert shallow.image is not None
    shallow.image = torch.ones(3)


def test_the_class_survives_saving_and_loading(tmp_path: Path) -> None:
    sample = make()
    mapped = sample.memmap(tmp_path / "one")
    assert type(mapped) is Sample and mapped.is_memmap() and mapped.is_locked
    for loaded in (TensorDict.load_memmap(tmp_path / "one"), Sample.load_memmap(tmp_path / "one")):
        assert type(loaded) is Sample and type(loaded.inner) is Inner
        assert loaded.caption == "none" and torch.equal(loaded.image, sample.image)
    TensorDict({"s": sample}, [3]).memmap(tmp_path / "tree")
    assert type(TensorDict.load_memmap(tmp_path / "tree")["s"]) is Sample
    lazy_stack([sample, sample]).memmap(tmp_path / "lazy")
    loaded = TensorDict.load_memmap(tmp_path / "lazy")
    assert isinstance(loaded, Sample) and loaded.image.shape == (2, 3)


def test_gradients_flow_through_fields() -> None:
    plain = Plain(torch.ones(3, requires_grad=True), batch_size=[3])
    (plain * 2).x.sum().backward()
    assert plain.x.grad is not None and plain.x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_cast_filter_of_the_class_is_the_default() -> None:
    @tensorclass(cast_filter=lambda key, value: key != ("rows",))
    class Mixed:
        data: Tensor
        rows: Tensor

    mixed = Mixed(torch.zeros(3), torch.zeros(3))
    assert mixed.double().data.dtype == torch.float64 and mixed.double().rows.dtype == torch.float32
    assert mixed.to(torch.float16).rows.dtype == torch.float32
    assert mixed.to(torch.float16, cast_filter=None).rows.dtype == torch.float16


def test_the_example_of_images_runs() -> None:
    root = Path(__file__).parents[2]
    command = ["examples/tensorclass_images.py", "--images", "20", "--side", "8"]
    result = interpreters.run(command, cwd=root)
    assert result.returncode == 0, result.stderr
    assert "MyData(batch_size=[10,2]" in result.stdout and "with the same labels: True" in result.stdout
    refused = interpreters.run([command[0], "--images", "7"], cwd=root)
    assert refused.returncode == 2 and "multiple of 10, got 7" in refused.stderr
