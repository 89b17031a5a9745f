"""Tensorclasses: fields, constructor, flags, inheritance, and what they refuse."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, InitVar, field
from typing import Any, ClassVar, Generic, Optional, TypeVar, Union

import numpy as np
import pytest
import torch
from torch import Tensor

from tensordict_lite import (
    NonTensorData,
    TensorClass,
    TensorDict,
    TypedTensorDict,
    is_tensor_collection,
    is_tensorclass,
    tensorclass,
)
from tensordict_lite.base import TensorDictBase
from tensordict_lite.tensorclass.decorator import from_dataclass, registered_class


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


def test_a_tensorclass_is_a_collection_and_not_a_tensordict() -> None:
    sample = make()
    assert isinstance(sample, TensorClass) and not isinstance(sample, TensorDictBase)
    assert is_tensorclass(sample) and is_tensorclass(Sample) and is_tensorclass(Decorated)
    assert not is_tensorclass(TensorDict()) and not is_tensorclass(TensorDict)
    assert is_tensor_collection(sample) and is_tensor_collection(Sample)


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


def test_the_signature_names_fields_and_keywords() -> None:
    assert list(inspect.signature(Sample).parameters) == [
        *("image", "label", "inner", "caption"),
        *("batch_size", "device", "names"),
    ]
    assert "image" in (Sample.__doc__ or "")


def test_instances_are_slots_only() -> None:
    assert not hasattr(make(), "__dict__")
    with pytest.raises(AttributeError, match="Sample.*colour"):
        make().colour = 1  # type: ignore[attr-defined]


# -- construction -----------------------------------------------------------------------------------------------


def test_fields_are_given_by_position_or_keyword() -> None:
    sample = Sample(torch.zeros(3, 2), label="a", caption="b", batch_size=[3], device="cpu", names=["rows"])
    assert sample.batch_size == (3,) and sample.device == torch.device("cpu") and sample.names == ["rows"]
    assert (sample.label, sample.caption, sample.inner) == ("a", "b", None)
    assert Sample(torch.zeros(3), 1.0).batch_size == () and Sample.zeros(2).shape == (2,)


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


def test_keyword_only_fields() -> None:
    class Keyword(TensorClass):
        x: Tensor
        _: KW_ONLY
        y: Any = None

    assert Keyword(torch.zeros(3), y=1).y == 1
    with pytest.raises(TypeError, match="Keyword.*positional"):
        Keyword(torch.zeros(3), 1)  # type: ignore[misc]

    @tensorclass(kw_only=True)
    class All:
        x: Tensor

    assert All(x=torch.zeros(3)).x.shape == (3,)
    with pytest.raises(TypeError, match="All"):
        All(torch.zeros(3))  # type: ignore[misc]


def test_a_required_field_after_a_default_is_refused() -> None:
    with pytest.raises(TypeError, match="Wrong: non-default argument 'y' follows default argument 'x'"):

        class Wrong(TensorClass):
            x: Any = None
            y: Any


def test_own_init_sees_batch_size_and_must_set_fields() -> None:
    class Own(TensorClass):
        x: Tensor
        y: Any = "default"

        def __init__(self, n: int, fill: bool = True) -> None:
            if fill:
                self.x = torch.arange(n)

    own = Own(3, batch_size=[3])  # type: ignore[call-arg]
    assert own.batch_size == (3,) and own.x.sum() == 3 and own.y == "default"
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
    class Var(TensorClass):
        x: Tensor
        plus: InitVar[int] = 10

        def __post_init__(self, plus: int) -> None:
            self.x = self.x + plus

    assert Var(torch.zeros(3), 5, batch_size=[3]).x.tolist() == [5.0, 5.0, 5.0]
    assert Var(torch.zeros(3), batch_size=[3]).x.sum() == 30
    assert [f.name for f in dataclasses.fields(Var)] == ["x"]

    class Required(TensorClass):
        x: Tensor
        plus: InitVar[int]

        def __post_init__(self, plus: int) -> None:
            self.x = self.x + plus

    assert Required(torch.zeros(3), 2, batch_size=[3])[0].x == 2  # no default: rebuilding does not run it


# -- reading and writing ---------------------------------------------------------------------------------------


def test_fields_read_as_values_and_keys_list_what_is_set() -> None:
    sample = make()
    assert sample.caption == "none" == sample.get("caption")
    assert isinstance(dict(sample.items())["caption"], NonTensorData)
    assert list(sample.keys()) == ["image", "label", "inner", "caption"] and "image" in sample.keys()
    assert list(sample.keys(True, True)) == ["image", "label", ("inner", "value")]
    assert sample.get(("inner", "note")) == "inner" and sample.get(("inner", "value")).shape == (3, 2)
    assert sample.get("zzz") is None and sample.get("zzz", 4) == 4 and sample.get(("image", "zzz"), 5) == 5
    assert Decorated(torch.zeros(3)).get("y", 4) is None
    assert sample.scaled().sum() == 0 and sample.doubled.sum() == 0 and Sample.answer() == 42


def test_writing_converts_and_none_empties() -> None:
    sample = make()
    sample.label = [1, 2, 3]
    assert torch.equal(sample.label, torch.tensor([1, 2, 3]))
    sample.label = np.arange(3.0)
    assert sample.label.dtype == torch.float64
    sample.label = {"a": 1}
    assert sample.label == {"a": 1}
    sample.label = (1, 2)
    assert sample.label == (1, 2)
    sample.label = None
    assert sample.label is None and "label" not in sample.keys()
    sample.doubled = torch.full((3,), 4.0)
    assert sample.image.tolist() == [2.0, 2.0, 2.0]
    del sample.image
    assert sample.image is None
    with pytest.raises(RuntimeError, match="label.*leading dimensions"):
        sample.label = torch.zeros(4)


def test_set_reaches_nested_fields_and_writes_in_place() -> None:
    sample = make()
    image = sample.image
    assert sample.set("image", torch.ones(3), inplace=True).image is image and image.sum() == 3
    assert sample.set(("inner", "value"), torch.zeros(3)).inner.value.shape == (3,)
    sample.update({"inner": {"value": torch.ones(3)}, "caption": "new", ("label",): torch.ones(3)})
    assert sample.inner.value.sum() == 3 and sample.inner.note == "inner"
    assert sample.caption == "new" and sample.label.sum() == 3
    sample.update({"label": {"a": torch.zeros(3)}})
    assert type(sample.label) is TensorDict and sample.label.batch_size == (3,)


def test_update_makes_the_tensorclass_of_an_empty_field() -> None:
    node = Node(torch.zeros(3), batch_size=[3])
    node.update({"next": {"value": torch.ones(3)}})
    assert type(node.next) is Node and node.next.batch_size == (3,)


def test_locked_instances_refuse_assignment_and_take_in_place_writes() -> None:
    sample = make().lock_()
    for write in (lambda: setattr(sample, "image", torch.ones(3)), lambda: sample.set("label", None)):
        with pytest.raises(RuntimeError, match="locked Sample"):
            write()
    assert sample.set_("image", torch.ones(3)).image.sum() == 3
    sample[0] = sample[1]


def test_rows_are_assigned_from_any_collection_with_the_fields() -> None:
    sample = make()
    sample[0] = Sample(torch.tensor(5.0), torch.tensor(9), Inner(torch.zeros(2)))
    sample[1] = TensorDict({"image": torch.tensor(7.0)})
    assert sample.image.tolist() == [5.0, 7.0, 0.0] and sample.label.tolist() == [9, 1, 2]
    assert sample.inner.value[0].sum() == 0


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
    with pytest.raises(TypeError, match="decorates a class"):
        tensorclass(3)  # type: ignore[call-overload]


def test_classes_are_registered_under_their_public_name() -> None:
    assert registered_class(f"{__name__}.Sample") is Sample
    assert registered_class(f"{__name__}.Decorated") is Decorated
    assert registered_class("os.path") is None


# -- conversion -------------------------------------------------------------------------------------------------


def test_from_tensordict_shares_entries_and_leaves_the_rest_empty() -> None:
    td = TensorDict({"image": torch.zeros(3), "inner": {"value": torch.ones(3)}}, [3], names=["rows"])
    sample = Sample.from_tensordict(td, {"label": object})
    assert sample.image is td["image"] and sample.label is object and sample.names == ["rows"]
    assert type(sample.inner) is Inner and sample.inner.value is td["inner", "value"]
    assert sample.caption is None and sample.inner.note is None  # defaults are for the constructor
    assert type(td["inner"]) is TensorDict
    assert Sample.from_tensordict(TensorDict(image=1).lock_()).is_locked


def test_to_tensordict_copies_and_keeps_none_on_request() -> None:
    sample = make()
    sample.label = None
    td = sample.to_tensordict()
    assert type(td) is TensorDict and type(td["inner"]) is TensorDict and "label" not in td.keys()
    assert td["image"] is not sample.image and td["caption"] == "none"
    kept = sample.to_tensordict(retain_none=True)
    assert kept["label"] is None and "label" in kept.keys()
    assert sample.to_dict()["label"] is None and "label" not in sample.to_dict(retain_none=False)


def test_other_constructors_check_fields() -> None:
    assert Sample.fromkeys(["image", "label"], 1).image == 1
    assert Inner.from_any({"value": torch.zeros(3), "note": "n"}).note == "n"
    with pytest.raises(ValueError, match=r"Inner.*zzz"):
        Inner.from_dict({"zzz": 1})


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


def test_state_dict_round_trip() -> None:
    sample, other = make(), make().zero_()
    other.load_state_dict((sample + 1).state_dict())
    assert other.image.sum() == 3 and other.inner.value.sum() == 12 and other.caption == "none"
    other.load_state_dict({"image": torch.full((3,), 8.0)})
    assert other.image.sum() == 24 and other.inner.value.sum() == 12


class Holder:
    @tensorclass
    class Held:
        x: torch.Tensor


def test_a_class_within_another_keeps_its_full_name() -> None:
    assert Holder.Held.__qualname__ == "Holder.Held"
    again = pickle.loads(pickle.dumps(Holder.Held(torch.ones(2), batch_size=[2])))
    assert type(again) is Holder.Held and again.x.tolist() == [1, 1]
