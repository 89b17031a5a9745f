"""Classes with fields over the same storage as a TensorDict; a field is a compiled property."""

from __future__ import annotations

from tensordict_lite.objects.data import NonTensorData, NonTensorDataBase, is_non_tensor
from tensordict_lite.objects.metadata import MetaData
from tensordict_lite.objects.stack import NonTensorStack
from tensordict_lite.tensorclass.build import registered_class
from tensordict_lite.tensorclass.convert import from_dataclass
from tensordict_lite.tensorclass.decorator import TensorClass, is_tensorclass, tensorclass

__all__ = ["TensorClass", "from_dataclass", "is_tensorclass", "registered_class", "tensorclass"]
__all__ += ["MetaData", "NonTensorData", "NonTensorDataBase", "NonTensorStack", "is_non_tensor"]
