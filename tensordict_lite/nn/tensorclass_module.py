"""Modules from one tensorclass to another."""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from torch import nn

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import unravel_key
from tensordict_lite.nn.base import TensorDictModuleBase
from tensordict_lite.nn.dispatching import dispatch
from tensordict_lite.tensorclass.decorator import is_tensorclass

__all__ = ["TensorClassModuleBase", "TensorClassModuleWrapper"]

InputClass = TypeVar("InputClass")
OutputClass = TypeVar("OutputClass")


class TensorClassModuleBase(nn.Module, ABC, Generic[InputClass, OutputClass]):
    """Base of the modules that take and return a tensorclass (or a tensor).

    Subclass ``TensorClassModuleBase[InputClass, OutputClass]`` and implement :meth:`forward`. Type checkers then know
    the fields, and ``input_type`` and ``output_type`` hold the two classes.

    Example:
        >>> from tensordict_lite import TensorClass
        >>> class Pair(TensorClass):
        ...     a: torch.Tensor
        ...     b: torch.Tensor
        >>> class Sum(TensorClass):
        ...     total: torch.Tensor
        >>> class Add(TensorClassModuleBase[Pair, Sum]):
        ...     def forward(self, x: Pair) -> Sum:
        ...         return Sum(total=x.a + x.b, batch_size=x.batch_size)
        >>> Add()(Pair(a=torch.ones(1), b=torch.ones(1), batch_size=[1])).total
        tensor([2.])
        >>> Add().as_td_module()(TensorDict({"a": torch.ones(1), "b": torch.ones(1)}, [1]))["total"]
        tensor([2.])
    """

    input_type: Any
    output_type: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, TensorClassModuleBase):
                types = get_args(base)
                if len(types) == 2 and not any(isinstance(one, TypeVar) for one in types):
                    cls.input_type, cls.output_type = types

    @abstractmethod
    def forward(self, x: InputClass) -> OutputClass:
        """Compute the output; implemented by subclasses."""

    def __call__(self, x: InputClass) -> OutputClass:
        return super().__call__(x)

    def as_td_module(self) -> TensorClassModuleWrapper:
        """A module of tensordicts around this one, see :class:`TensorClassModuleWrapper`.

        Raises:
            ValueError: the subscript of the class does not name two tensorclasses.
        """
        return TensorClassModuleWrapper(self)


class TensorClassModuleWrapper(TensorDictModuleBase):
    """A :class:`TensorClassModuleBase` as a module of tensordicts.

    Its keys are the fields of the two classes; nested fields are nested keys. The result is a new TensorDict with only
    the fields of the output.

    Args:
        module: the module, whose input and output are tensorclasses.

    Raises:
        ValueError: one of them is not.

    Example:
        >>> from tensordict_lite import TensorClass, TensorDict
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        >>> class Length(TensorClass):
        ...     length: torch.Tensor
        >>> class Measure(TensorClassModuleBase[Point, Length]):
        ...     def forward(self, point):
        ...         return Length(length=point.x.norm(dim=-1), batch_size=point.batch_size)
        >>> module = TensorClassModuleWrapper(Measure())
        >>> module.in_keys, module.out_keys, module(TensorDict({"x": torch.tensor([[3.0, 4.0]])}, [1]))["length"]
        (['x'], ['length'], tensor([5.]))
    """

    def __init__(self, module: TensorClassModuleBase[Any, Any]) -> None:
        super().__init__()
        for name in ("input_type", "output_type"):
            kind = getattr(module, name, None)
            if not _has_fields(kind):
                raise ValueError(
                    f"{name} of {type(module).__name__} must be a tensorclass, and is {kind!r}: subclass "
                    "TensorClassModuleBase[InputClass, OutputClass] with two tensorclasses"
                )
        self.module = module
        self.in_keys = _field_keys(module.input_type)
        self.out_keys = _field_keys(module.output_type)

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, args: Any = None, **kwargs: Any) -> TensorDict:
        """Convert, call, and convert back.

        Args:
            tensordict: the input; entries that are not fields are ignored.
            args, kwargs: ignored, with a warning.
        """
        if args is not None or kwargs:
            given = sorted(kwargs) + ([] if args is None else [type(args).__name__])
            warnings.warn(f"{type(self).__name__} ignores {given}", FutureWarning, stacklevel=2)
        kind = self.module.input_type
        given = tensordict.select(*self.in_keys, strict=False)
        if not isinstance(given, TensorDict):
            given = given.to_tensordict()
        result = self.module(kind.from_tensordict(given))
        return result.to_tensordict()

    _shown = ("module",)


def _has_fields(kind: Any) -> bool:
    """Whether this is a tensorclass of a program; the classes of objects count as tensorclasses, too."""
    return isinstance(kind, type) and is_tensorclass(kind) and dataclasses.is_dataclass(kind)


def _field_keys(cls: Any) -> list[Any]:
    """The keys of the fields of a tensorclass; nested fields are nested keys."""
    try:
        hints = get_type_hints(cls)
    except (NameError, TypeError):  # the annotation cannot be evaluated: the field counts as one entry
        hints = {}
    keys: list[Any] = []
    for name in (field.name for field in dataclasses.fields(cls)):
        kind = hints.get(name)
        if _has_fields(kind):
            keys.extend(unravel_key((name, key)) for key in _field_keys(kind))
        else:
            keys.append(name)
    return keys
