"""Tensorclasses: fields, constructor, flags, inheritance, and what they refuse."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import sys
from abc import ABC, abstractmethod
from dataclasses import InitVar, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Optional, TypeVar, Union

import pytest
import torch
from torch import Tensor

from tensordict_lite import TensorClass, TensorDict, TypedTensorDict, from_dataclass, is_tensorclass, tensorclass


class Inner(TensorClass):
    value: Tensor
    note: str = "inner"


class Sample(TensorClass):
    image: Tensor
    label: Any
    inner: Optional[Inner] = None  # noqa: UP045 - both spellings are tested
    caption: str = "none"

    scale: ClassVar[float] = 2.0

    def scaled(self) -> Tensor:
        return self.image * self.scale

    @property
    def doubled(self) -> Tensor:
        return self.image * 2

    @doubled.setter
    def doubled(self, value: Tensor) -> None:
        self.image = value / 2

    @classmethod
    def zeros(cls, n: int) -> Sample:
        return cls(torch.zeros(n), torch.zeros(n), batch_size=[n])

    @staticmethod
    def answer() -> int:
        return 42


@tensorclass
class Decorated:
    x: Tensor
    y: Any = None

    def kind(self) -> str:
        return __class__.__name__ + super().__repr__()[:9]  # type: ignore[name-defined]


class Node(TensorClass):
    value: Tensor
    next: Node | None = None


def make() -> Sample:
    return Sample(torch.zeros(3), torch.arange(3), Inner(torch.ones(3, 2), batch_size=[3]), batch_size=[3])


# -- what it is -------------------------------------------------------------------------------------------------


def test_it_is_a_dataclass_to_the_standard_library() -> None:
    names = [f.name for f in dataclasses.fields(Sample)]
    assert names == ["image", "label", "inner", "caption"] == [f.name for f in Sample.fields()]
    assert dataclasses.is_dataclass(Sample) and Sample.__match_args__ == tuple(names)
    changed = dataclasses.replace(make(), image=torch.ones(3), batch_size=[3])
    assert changed.image.sum() == 3 and changed.inner is not None
    assert set(dataclasses.asdict(Decorated(torch.zeros(2)))) == {"x", "y"}
    match make():
        case Sample(image, label):
            assert image.shape == label.shape == (3,)
        case _:
            pytest.fail("the class pattern did not match")


# -- construction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Sample(), TypeError, ["Sample", "'image' and 'label'"]),
        (lambda: Sample(torch.zeros(3)), TypeError, ["Sample", "'label'"]),
        (lambda: Sample(torch.zeros(3), 1, colour=2), AttributeError, ["Sample", "'colour'", "caption"]),
        (lambda: Sample(torch.zeros(3), 1, captoin="x"), AttributeError, ["Did you mean 'caption'"]),
        (lambda: Sample(1, 2, 3, 4, 5), TypeError, ["Sample", "positional"]),
        (lambda: Sample(torch.zeros(3), 1, image=2), TypeError, ["Sample", "'image'"]),
        (lambda: Sample(torch.zeros(3), None, batch_size=[4]), RuntimeError, ["image", "4", "3"]),
        (lambda: Sample(torch.zeros(3), None, batch_size=[3], names=["a", "b"]), ValueError, ["names"]),
        (lambda: TensorClass(), NotImplementedError, ["TensorClass"]),
        (lambda: make().zzz, AttributeError, ["Sample", "zzz"]),
        (lambda: make().set("zzz", 1), AttributeError, ["Sample", "zzz"]),
        (lambda: make().set(("inner", "zzz"), 1), AttributeError, ["Inner", "zzz"]),
        (lambda: make().set(("label", "zzz"), 1), AttributeError, ["Sample", "label", "Tensor"]),
        (lambda: make().update({"zzz": 1}), ValueError, ["Sample", "zzz"]),
        (lambda: make()["image"], ValueError, ["Sample", "image", "get"]),
        (lambda: make()["inner", "value"], ValueError, ["Sample", "inner"]),
        (lambda: make().__setitem__("image", 1), ValueError, ["Sample", "image", "set"]),
        (lambda: make().__setitem__(0, {"image": 1}), ValueError, ["Sample", "dict"]),
        (lambda: make().__setitem__(0, TensorDict(zzz=torch.zeros(()))), ValueError, ["Sample", "zzz"]),
        (lambda: Sample.from_tensordict({"image": 1}), RuntimeError, ["Sample", "dict"]),
        (lambda: Sample.from_tensordict(TensorDict(zzz=1)), ValueError, ["Sample", "zzz"]),
        (lambda: Sample.from_tensordict(TensorDict(label=1), {"zzz": 1}), ValueError, ["Sample", "zzz"]),
        (lambda: Sample.from_tensordict(TensorDict(label=1), {"label": 1}), KeyError, ["Sample", "label"]),
        (lambda: make().load_state_dict({"zzz": 1}), KeyError, ["Sample", "zzz"]),
        (lambda: torch.stack([make(), Decorated(torch.zeros(3), batch_size=[3])]), TypeError, ["Sample", "Decorated"]),
        (lambda: torch.cat([make(), make().to_tensordict()]), TypeError, ["Sample", "TensorDict"]),
        (lambda: bool(make()), RuntimeError, ["is_empty"]),
        (lambda: setattr(make(), "shape", [3]), AttributeError, []),
        (lambda: setattr(make(), "device", "cpu"), RuntimeError, ["device"]),
        (lambda: delattr(Decorated(torch.zeros(3)), "y"), AttributeError, ["Decorated", "y"]),
    ],
)
def test_bad_input_names_class_and_field(call: Any, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_a_misspelt_field_is_suggested_and_reading_one_takes_the_fast_way() -> None:
    with pytest.raises(AttributeError) as caught:
        make().captoin  # noqa: B018
    assert caught.value.name == "captoin" and "caption" in dir(caught.value.obj)  # of which Python suggests the nearest
    assert not any("__getattr__" in vars(base) for base in Sample.__mro__)  # it slows every read of any attribute


def test_defaults_factories_and_fields_without_init() -> None:
    class Made(TensorClass):
        x: Tensor = field(default_factory=lambda: torch.ones(3))
        tags: dict[str, int] = field(default_factory=dict, kw_only=True)
        hidden: Any = field(init=False, default="h")
        unset: Any = field(init=False)

    one, two = Made(batch_size=[3]), Made(batch_size=[3])
    one.tags["a"] = 1
    assert two.tags == {} and one.tags == {"a": 1}
    assert one.hidden == "h" and one.unset is None and one.x.sum() == 3
    with pytest.raises(TypeError, match="Made.*'hidden'.*init=False"):
        Made(hidden=1)  # type: ignore[call-arg]


def test_own_init_sees_batch_size_and_must_set_fields() -> None:
    class Own(TensorClass):
        x: Tensor
        y: Any = "default"

        def __init__(self, n: int, fill: bool = True) -> None:
            if fill:
                self.x = torch.arange(n)

    own = Own(3, batch_size=[3], device="cpu", names=["rows"])  # type: ignore[call-arg]
    assert own.batch_size == (3,) and own.x.sum() == 3 and own.y == "default"
    assert own.device == torch.device("cpu") and own.names == ["rows"]
    assert own[1:].x.tolist() == [1, 2]
    with pytest.raises(TypeError, match="Own.*'x'"):
        Own(3, fill=False)


def test_post_init_runs_in_constructors_and_on_results() -> None:
    calls = []

    class Post(TensorClass):
        x: Tensor
        y: Any = None

        def __post_init__(self) -> None:
            calls.append(self.batch_size)
            if self.y is None:
                self.y = self.x + 1

    post = Post(torch.zeros(3), batch_size=[3])
    assert post.y.sum() == 3 and calls == [(3,)]
    post[0], post.clone(), post + 1, post.apply(lambda x: x), torch.stack([post, post])
    assert calls == [(3,), (), (3,), (3,), (3,), (2, 3)]
    assert Post.from_tensordict(TensorDict({"x": torch.ones(2)}, [2])).y.sum() == 4
    calls.clear()
    post.empty()
    assert calls == []


def test_post_init_can_stay_in_the_constructor() -> None:
    calls = []

    class Quiet(TensorClass["skip_post_init_on_rebuild"]):  # type: ignore[misc, type-arg, name-defined]
        x: Tensor

        def __post_init__(self) -> None:
            calls.append(1)

    quiet = Quiet(torch.zeros(3), batch_size=[3])
    quiet[0], quiet + 1, quiet.apply(lambda x: x), quiet.clone()
    assert calls == [1]
    Quiet.from_tensordict(TensorDict(x=torch.zeros(3)))
    assert calls == [1, 1]


def test_init_vars_reach_post_init() -> None:
    class Required(TensorClass):
        x: Tensor
        plus: InitVar[int]

        def __post_init__(self, plus: int) -> None:
            self.x = self.x + plus

    assert Required(torch.zeros(3), 2, batch_size=[3])[0].x == 2  # no default: rebuilding does not run it


# -- annotations ------------------------------------------------------------------------------------------------


def test_forward_references_resolve_to_classes() -> None:
    class Local(TensorClass):
        x: Tensor

    class Outer(TensorClass):
        local: Local
        maybe: Union[Local, None] = None  # noqa: UP007
        unknown: NotDefinedAnywhere = None  # type: ignore[name-defined]  # noqa: F821

    outer = Outer.from_tensordict(TensorDict({"local": {"x": torch.zeros(3)}, "maybe": {"x": torch.zeros(3)}}, [3]))
    assert type(outer.local) is Local and type(outer.maybe) is Local
    chain = Node.from_dict({"value": torch.zeros(3), "next": {"value": torch.ones(3)}}, batch_size=[3])
    assert type(chain.next) is Node and chain[0].next.value == 1


BARE = """
class Child(TensorClass):
    x: Tensor
    next: Child | None = None
    later: Later | None = None
@tensorclass
class Decorated:
    x: Tensor
    next: Decorated | None = None
    later: Later | None = None
class Typed(TypedTensorDict):
    x: Tensor
    next: Typed
    later: Later
class Later(TensorClass):
    x: Tensor
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated where they stand")
def test_annotations_may_name_what_is_defined_later() -> None:
    space = {
        "TensorClass": TensorClass,
        "TypedTensorDict": TypedTensorDict,
        "tensorclass": tensorclass,
        "Tensor": Tensor,
    }
    exec(compile(BARE, "bare", "exec", dont_inherit=True), space)
    for cls in (space["Child"], space["Decorated"]):
        one = cls(torch.zeros(3), cls(torch.ones(3), batch_size=[3]), batch_size=[3])
        assert [field.name for field in dataclasses.fields(cls)] == ["x", "next", "later"]
        assert type(one.next) is cls and type(cls.from_tensordict(one.to_tensordict()).next) is cls
        assert one[0].next.x == 1 and f"next: '{cls.__name__} | None'" in cls.__doc__
    assert space["Typed"].__expected_keys__ == {"x", "next", "later"}


def test_subclasses_add_and_override_fields() -> None:
    class Child(Decorated):
        z: Any = 3
        y: str = "other"

        def kind(self) -> str:
            return "child of " + super().kind()

    child = Child(torch.zeros(3))
    assert [f.name for f in dataclasses.fields(Child)] == ["x", "y", "z"]
    assert child.y == "other" and child.z == 3 and child.kind().startswith("child of Decorated")

    @tensorclass(nocast=True)
    class Flagged(Decorated):
        z: int = 4

    assert type(Flagged(torch.zeros(3)).z) is int and type(Flagged(1).x) is int

    class Redeclared(Decorated):
        x: Any

    with pytest.raises(TypeError, match="'x'"):
        Redeclared()  # type: ignore[call-arg]


def test_mixins_generics_and_abstract_bases() -> None:
    class Mixin:
        def hello(self) -> str:
            return "hello"

    class Mixed(Mixin, TensorClass):
        x: Tensor

    mixed = Mixed(torch.zeros(3))
    assert mixed.hello() == "hello"
    with pytest.raises(AttributeError, match="zzz.*Mixed"):
        mixed.zzz = 1  # type: ignore[attr-defined]
    mixed.x = torch.ones(3)
    assert mixed.x.sum() == 3

    T = TypeVar("T")

    class Box(TensorClass, Generic[T]):
        x: T

    assert Box[Tensor](torch.zeros(3), batch_size=[3])[0].x.shape == ()

    class Shape(TensorClass, ABC):
        x: Tensor

        @abstractmethod
        def area(self) -> Tensor: ...

    class Square(Shape):
        def area(self) -> Tensor:
            return self.x**2

    assert Square(torch.full((3,), 2.0)).area().sum() == 12
    with pytest.raises(TypeError, match="abstract"):
        Shape(torch.zeros(3))  # type: ignore[abstract]


def test_decorated_methods_see_the_decorated_class() -> None:
    assert Decorated(torch.zeros(3)).kind() == "DecoratedDecorated"
    assert Decorated.__module__ == __name__ and Decorated.__qualname__ == "Decorated"


# -- conversion -------------------------------------------------------------------------------------------------


def test_dataclasses_convert_to_tensorclasses() -> None:
    @dataclasses.dataclass
    class Leg:
        length: Tensor

    @dataclasses.dataclass
    class Animal:
        weight: Tensor
        leg: Leg
        name: str = "cat"
        extra: dict[str, int] = field(default_factory=dict)

        def shout(self) -> str:
            return self.name.upper()

    cat = Animal(torch.zeros(3), Leg(torch.ones(3)), extra={"a": 1})
    made = from_dataclass(cat, batch_size=[3])
    assert type(made).__name__ == "Animal_tc" and is_tensorclass(made) and is_tensorclass(made.leg)
    assert made.extra == {"a": 1} and made.shout() == "CAT" and made[0].leg.length == 1
    assert from_dataclass(Animal) is type(made)
    assert from_dataclass(cat, auto_batch_size=True).batch_size == (3,)
    assert Decorated.from_dataclass(dataclasses.make_dataclass("D", ["x", "y"])(torch.zeros(3), "t")).y == "t"
    assert TensorDict.from_dataclass(cat, as_tensorclass=True).name == "cat"
    with pytest.raises(TypeError, match="dataclass"):
        from_dataclass(3)
    with pytest.raises(TypeError, match="nocats"):
        from_dataclass(cat, nocats=True)


class Holder:
    @tensorclass
    class Held:
        x: torch.Tensor


def test_a_class_within_another_keeps_its_full_name(tmp_path: Path) -> None:
    assert Holder.Held.__qualname__ == "Holder.Held"
    held = Holder.Held(torch.ones(2), batch_size=[2])
    held.memmap(tmp_path)
    for again in (pickle.loads(pickle.dumps(held)), TensorDict.load_memmap(tmp_path)):
        assert type(again) is Holder.Held and again.x.tolist() == [1, 1]


def test_the_storage_keeps_its_private_names() -> None:
    for name in ("_leaves", "_rebuild", "_fit", "_flags"):
        with pytest.raises(AttributeError, match=f"Bar.*{name}"):
            type(TensorClass)("Bar", (TensorClass,), {name: lambda self: None})


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


def test_a_cached_property_is_computed_once_for_each_instance():
    calls = []

    @tensorclass
    class Decorated:
        x: torch.Tensor

        @functools.cached_property
        def total(self):
            calls.append(self)
            return self.x.sum()

    class Derived(TensorClass):
        x: torch.Tensor
        total = functools.cached_property(lambda self: calls.append(self) or self.x.sum())

    for cls in (Decorated, Derived):
        one = cls(x=torch.ones(3), batch_size=[3])
        assert one.total is one.total and one[:2].total == 2 and one.clone().total == 3
        with pytest.raises(AttributeError, match="no such field"):
            one.other = 1
    assert len(calls) == 6
