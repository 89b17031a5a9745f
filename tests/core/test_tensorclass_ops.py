"""Operations on tensorclasses: results keep the class, through stacks, pickles, processes and disk."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_lite import LazyStackedTensorDict, TensorClass, lazy_stack, tensorclass


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


# -- processes and disk -------------------------------------------------------------------------------------------


def test_a_local_class_cannot_be_pickled_but_copied() -> None:
    class Local(TensorClass):
        x: Tensor

    local = Local(torch.zeros(3))
    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(local)
    assert type(copy.deepcopy(local)) is Local


def test_a_cast_filter_of_the_class_is_the_default() -> None:
    @tensorclass(cast_filter=lambda key, value: key != ("rows",))
    class Mixed:
        data: Tensor
        rows: Tensor

    mixed = Mixed(torch.zeros(3), torch.zeros(3))
    assert mixed.double().data.dtype == torch.float64 and mixed.double().rows.dtype == torch.float32
    assert mixed.to(torch.float16).rows.dtype == torch.float32
    assert mixed.to(torch.float16, cast_filter=None).rows.dtype == torch.float16
