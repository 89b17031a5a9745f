"""Flags of tensorclasses: what each changes, in every spelling, and what may not go together."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
import pytest
import torch
from torch import Tensor

from tensordict_lite import NonTensorData, TensorClass, TensorDict, tensorclass


class Inner(TensorClass):
    value: Tensor
    note: str = "inner"


class Sample(TensorClass):
    image: Tensor
    label: Any = None


def make() -> Sample:
    return Sample(torch.zeros(3), torch.arange(3), batch_size=[3])


def test_numbers_become_tensors_unless_the_batch_cannot_hold_them() -> None:
    class Numbers(TensorClass):
        i: int
        f: float = 0.5
        o: int | None = None

    scalar = Numbers(1, 2.0, 3)
    assert isinstance(scalar.i, Tensor) and isinstance(scalar.f, Tensor) and isinstance(scalar.o, Tensor)
    batch = Numbers(1, 2, 3, batch_size=[3])
    assert (batch.i, batch.f, batch.o) == (1, 2, 3)
    with pytest.raises(RuntimeError, match="'i'"):
        Numbers(1.5, batch_size=[3])  # type: ignore[arg-type]


@pytest.mark.parametrize("spelling", ["brackets", "keyword", "decorator"])
def test_every_spelling_sets_the_flag(spelling: str) -> None:
    if spelling == "brackets":

        class Foo(TensorClass["nocast"]):  # type: ignore[misc, type-arg, name-defined]
            x: Any
    elif spelling == "keyword":

        class Foo(TensorClass, nocast=True):  # type: ignore[no-redef]
            x: Any
    else:

        @tensorclass(nocast=True)
        class Foo:  # type: ignore[no-redef]
            x: Any

    array = np.arange(3)
    assert Foo(1).x == 1 and type(Foo(1).x) is int and Foo(array).x is array
    assert isinstance(Foo([1, 2]).x, Tensor)  # lists are stacked all the same

    class Bar(Foo):  # type: ignore[misc, valid-type]
        y: Any = None

    assert type(Bar(1, 2.5).y) is float and type(Bar(1, 2.5)[None].y) is float


def test_autocast_calls_the_annotation() -> None:
    class Cast(TensorClass, autocast=True):
        i: int = 0
        s: str = ""
        t: Tensor = None  # type: ignore[assignment]
        a: Any = None
        inner: Inner = None  # type: ignore[assignment]
        array: np.ndarray = None  # type: ignore[assignment]

    cast = Cast(torch.ones(()), 3, (1, 2), [1, 2], {"value": torch.zeros(3)}, [1.0])  # type: ignore[arg-type]
    assert (cast.i, cast.s, cast.a) == (1, "3", [1, 2]) and type(cast.i) is int
    assert torch.equal(cast.t, torch.tensor([1, 2])) and type(cast.inner) is Inner
    assert isinstance(cast.array, np.ndarray)
    cast.i = 4.7  # type: ignore[assignment]
    assert cast.i == 4
    with pytest.raises(TypeError, match=r"Cast\.t.*Tensor"):
        cast.t = "text"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="invalid literal"):
        cast.i = "text"  # type: ignore[assignment]


def test_tensor_only_refuses_other_annotations_and_values() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.s.*str"):

        class Wrong(TensorClass, tensor_only=True):
            s: str

    class Only(TensorClass, tensor_only=True):
        x: Tensor
        y: Optional[TensorDict] = None  # noqa: UP045

    only = Only([1, 2], {"a": 1})  # type: ignore[arg-type]
    assert isinstance(only.x, Tensor) and isinstance(only.y, TensorDict)
    for value in ("text", object(), NonTensorData("text")):
        with pytest.raises(TypeError, match=r"Only\.x.*tensor_only"):
            Only(value)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"Only\.x.*tensor_only"):
            only.x = value  # type: ignore[assignment]


def test_frozen_instances_are_locked_hashable_and_final() -> None:
    class Frozen(TensorClass, frozen=True):
        x: Tensor

    frozen = Frozen(torch.zeros(3), batch_size=[3])
    assert frozen.is_locked and isinstance(hash(frozen), int) and not frozen[0].is_locked
    for write in (
        lambda: setattr(frozen, "x", 1),
        lambda: delattr(frozen, "x"),
        lambda: setattr(frozen, "batch_size", []),
        lambda: setattr(frozen, "names", ["a"]),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError, match="Frozen"):
            write()
    with pytest.raises(RuntimeError, match="locked Frozen"):
        frozen.set("x", torch.ones(3))
    with pytest.raises(AttributeError, match="zzz"):
        frozen.zzz = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(make())


def test_frozen_and_other_classes_do_not_inherit_from_each_other() -> None:
    class Frozen(TensorClass, frozen=True):
        x: Tensor

    class Child(Frozen, frozen=True):
        y: Any = None

    assert Child(torch.zeros(3)).is_locked
    with pytest.raises(TypeError, match=r"Thawed.*non-frozen.*frozen.*Frozen"):

        class Thawed(Frozen, frozen=False):
            y: Any = None

    with pytest.raises(TypeError, match="cannot inherit frozen"):

        class Late(Sample, frozen=True):
            y: Any = None


def test_contradictory_and_unknown_flags_are_refused() -> None:
    with pytest.raises(TypeError, match="autocast is exclusive with nocast"):
        TensorClass["autocast", "nocast"]  # type: ignore[misc, type-arg, name-defined]
    with pytest.raises(TypeError, match="autocast is exclusive with nocast"):
        tensorclass(autocast=True, nocast=True)
    with pytest.raises(TypeError, match="nocats"):
        TensorClass["nocats"]  # type: ignore[misc, type-arg, name-defined]
    with pytest.raises(TypeError):

        class Wrong(TensorClass, nocats=True):  # type: ignore[call-arg]
            x: Any

    with pytest.raises(TypeError, match="Sample is not a generic class"):
        Sample["nocast"]  # type: ignore[misc, type-arg, name-defined]


@pytest.mark.parametrize("name", ["batch_size", "device", "names", "values", "shape", "sum", "get", "from_tensordict"])
def test_a_field_may_not_hide_a_method_unless_shadow(name: str) -> None:
    def define(**flags: bool) -> Any:
        return type(TensorClass)("Foo", (TensorClass,), {"__annotations__": {name: Tensor}}, **flags)

    with pytest.raises(AttributeError, match=rf"Foo.*{name}.*shadow"):
        define()
    if name not in ("get", "from_tensordict"):
        assert getattr(define(shadow=True)(torch.zeros(3)), name).shape == (3,)


def test_the_storage_keeps_its_private_names() -> None:
    with pytest.raises(AttributeError, match="Foo.*_source"):

        class Foo(TensorClass, shadow=True):
            _source: Tensor

    for name in ("_leaves", "_rebuild", "_fit", "_flags"):
        with pytest.raises(AttributeError, match=f"Bar.*{name}"):
            type(TensorClass)("Bar", (TensorClass,), {name: lambda self: None})


def test_a_class_may_override_public_methods() -> None:
    class Own(TensorClass):
        x: Tensor

        def sum(self) -> str:  # type: ignore[override]
            return "mine"

        def __len__(self) -> int:
            return 77

    own = Own(torch.zeros(3), batch_size=[3])
    assert own.sum() == "mine" and len(own) == 77 and own.mean().x == 0


def test_the_error_of_a_failing_property_is_shown() -> None:
    class Failing(TensorClass):
        x: Tensor

        @property
        def bad(self) -> Any:
            return self.x.no_such_attribute  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="no_such_attribute"):
        Failing(torch.zeros(3)).bad  # noqa: B018


def test_flags_survive_a_second_decoration() -> None:
    class Parent(TensorClass):
        x: Any

    @tensorclass
    class Child(Parent, nocast=True):
        y: Any = None

        def __init__(self, n: int) -> None:
            self.x = n
            self.y = n + 1

    assert type(Child(3).x) is int and Child(3).y == 4


def test_a_setattr_of_the_class_sees_the_fields_alone() -> None:
    seen: list[tuple[str, Any]] = []

    class Doubled(TensorClass, nocast=True):
        a: torch.Tensor
        b: int
        c: str = "x"

        def __setattr__(self, name: str, value: Any) -> None:
            seen.append((name, value))
            super().__setattr__(name, value * 2)

    it = Doubled(a=torch.ones(2), b=3, batch_size=[2])
    it.b = 5
    assert [name for name, _ in seen] == ["a", "b", "c", "b"]
    assert (it.a.tolist(), it.b, it.c) == ([2, 2], 10, "xx")
    row = (it + 1)[0].clone().lock_()  # operations fill the storage, not the fields
    assert row.a == 3 and row.b == 10 and len(seen) == 4


def test_a_setattr_is_inherited_once() -> None:
    class Base(TensorClass):
        a: torch.Tensor

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value + 1)

    class Child(Base):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value * 10)

    assert Child(torch.ones(2), batch_size=[2]).a.tolist() == [11, 11]
    assert Base(torch.ones(2), batch_size=[2]).a.tolist() == [2, 2]
