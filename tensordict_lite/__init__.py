"""Trees of tensors that share their leading dimensions: TensorDict, tensorclasses, memory-mapped storage."""

from __future__ import annotations

from contextlib import suppress

from tensordict_lite import torch_function as _torch_function  # noqa: F401 - gives the classes their torch functions
from tensordict_lite.base import TensorCollection, TensorDictBase, is_tensor_collection
from tensordict_lite.combine import cat, pad, pad_sequence, stack, unpad_sequence
from tensordict_lite.keys import NestedKey, unravel_key, unravel_key_list, unravel_key_to_tuple
from tensordict_lite.settings import (
    capture_non_tensor_stack,
    get_defaults_to_none,
    lazy_legacy,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_get_defaults_to_none,
    set_lazy_legacy,
    set_list_to_stack,
)
from tensordict_lite.tensordict import TensorDict
from tensordict_lite.views import default_is_leaf, is_leaf_nontensor

with suppress(ImportError):
    from tensordict_lite.nontensor import NonTensorData, NonTensorStack, is_non_tensor
with suppress(ImportError):
    from tensordict_lite.lazystack import LazyStackedTensorDict, lazy_stack
with suppress(ImportError):
    from tensordict_lite.tensorclass import TensorClass, is_tensorclass, tensorclass
with suppress(ImportError):
    from tensordict_lite.memmap import MemoryMappedTensor

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("annotations", "suppress")]
