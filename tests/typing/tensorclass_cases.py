"""What a strict type checker must say about tensorclasses. Read by test_type_checker.py, never run.

``# E: code`` at the end of a line: an error with that code and no other. ``# R: type``: what reveal_type shows there.
Lines without a mark must be clean.
"""

import dataclasses
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing import reveal_type

from tensordict_lite import TensorClass, TensorDict, tensorclass

T = TypeVar("T")


class Photo(TensorClass):
    image: Tensor
    label: Tensor
    caption: str = "none"
    tags: list[str] = dataclasses.field(default_factory=list)
    other: Photo | None = None

    def brighter(self) -> Tensor:
        return self.image + 1

    def of(self, label: int) -> Photo:
        return self[self.label == label]

    @property
    def height(self) -> int:
        return self.image.shape[-2]


class Framed(Photo):
    frame: str = "oak"


class Frozen(TensorClass, frozen=True):
    x: Tensor


class FrozenChild(Frozen, frozen=True):
    y: Tensor


class Kept(TensorClass, nocast=True):
    x: int


class Keyword(TensorClass, kw_only=True):
    x: Tensor


class Box(TensorClass, Generic[T]):
    value: T


@tensorclass
class Decorated:
    x: Tensor
    y: str = "a"


@tensorclass(nocast=True)
class DecoratedWithFlags:
    x: Tensor


# -- the constructor --------------------------------------------------------------------------------------------

zeros = torch.zeros(3)
photo = Photo(zeros, zeros)
Photo(zeros, label=zeros, caption="c", tags=["t"], other=photo, batch_size=[3], device="cpu", names=["rows", None])
Photo(zeros, zeros, batch_size=torch.Size([3]), device=torch.device("cpu"))
Photo(zeros, zeros, batch_size=3)
Photo(zeros)  # E: call-arg
Photo(zeros, zeros, caption=3)  # E: arg-type
Photo(zeros, zeros, colour=3)  # E: call-arg
Photo(zeros, zeros, batch_size="abc")  # E: arg-type
Photo("text", zeros)  # E: arg-type
Framed(zeros, zeros, frame="pine", batch_size=[3])
FrozenChild(zeros, zeros, batch_size=[3])
Kept(3, batch_size=[3])
Keyword(x=zeros, batch_size=[3])
Keyword()  # E: call-arg
Decorated(zeros)
Decorated()  # E: call-arg
Decorated(zeros, y=3)  # E: arg-type
DecoratedWithFlags()  # E: call-arg

# -- fields and methods -------------------------------------------------------------------------------------------

reveal_type(photo.image)  # R: torch._tensor.Tensor
reveal_type(photo.caption)  # R: str
reveal_type(photo.tags)  # R: list[str]
reveal_type(photo.other)  # R: tests.typing.tensorclass_cases.Photo | None
reveal_type(photo.brighter())  # R: torch._tensor.Tensor
reveal_type(photo.height)  # R: int
reveal_type(photo.batch_size)  # R: torch._C.Size
reveal_type(photo.device)  # R: torch._C.device | None
reveal_type(photo.names)  # R: list[str | None]
reveal_type(Framed(zeros, zeros).frame)  # R: str
reveal_type(Kept(3).x)  # R: int
reveal_type(Box(zeros).value)  # R: torch._tensor.Tensor
reveal_type(Decorated(zeros).y)  # R: str
photo.caption = "new"
photo.batch_size = [3]
photo.caption = 3  # E: assignment
photo.image = "text"  # E: assignment
print(photo.colour)  # E: attr-defined
photo.colour = 3  # E: attr-defined
Frozen(zeros).x = zeros  # E: misc

# -- results keep the class -----------------------------------------------------------------------------------

reveal_type(photo[0])  # R: tests.typing.tensorclass_cases.Photo
reveal_type(photo.of(1))  # R: tests.typing.tensorclass_cases.Photo
reveal_type(photo.clone())  # R: tests.typing.tensorclass_cases.Photo
reveal_type(photo.reshape(3, 1))  # R: tests.typing.tensorclass_cases.Photo
reveal_type(photo.to("cpu"))  # R: tests.typing.tensorclass_cases.Photo
reveal_type(Framed(zeros, zeros).unsqueeze(0))  # R: tests.typing.tensorclass_cases.Framed
reveal_type(photo.set("caption", "x"))  # R: tests.typing.tensorclass_cases.Photo
reveal_type(photo.lock_())  # R: tests.typing.tensorclass_cases.Photo
reveal_type(Photo.from_tensordict(TensorDict()))  # R: tests.typing.tensorclass_cases.Photo
for row in photo:
    reveal_type(row)  # R: tests.typing.tensorclass_cases.Photo


def takes_any(value: Any) -> None: ...


takes_any(photo.to_tensordict())
takes_any([field.name for field in dataclasses.fields(photo)])
