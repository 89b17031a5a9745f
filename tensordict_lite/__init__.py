"""Trees of tensors that share their leading dimensions: TensorDict, tensorclasses, memory-mapped storage."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("fcntl") is None:
    raise ImportError(
        "tensordict_lite needs a POSIX system, such as Linux or macOS: it uses their file locks and memory maps. "
        "On Windows, use it within WSL 2"
    )

_collects = gc.isenabled()
gc.disable()  # it would walk over all that torch defines, again and again: more than half of the time of this import
try:
    from torch.serialization import add_safe_globals as _add_safe_globals

    from tensordict_lite import kernel as _kernel
    from tensordict_lite.api.tables import from_arrow, to_arrow
    from tensordict_lite.base import KEY_SEPARATOR, TensorCollection, TensorDictBase, is_tensor_collection
    from tensordict_lite.building.batches import collate, merge_tensordicts
    from tensordict_lite.building.builders import (
        from_any,
        from_namedtuple,
        from_struct_array,
        from_tuple,
        make_tensordict,
    )
    from tensordict_lite.consolidated import from_consolidated
    from tensordict_lite.consolidated import layout as _layout
    from tensordict_lite.consolidated import record as _record
    from tensordict_lite.consolidated.safetensor_files import from_safetensors, to_safetensors
    from tensordict_lite.dense.combine import cat, pad, pad_sequence, stack, unpad_sequence
    from tensordict_lite.dense.tensordict import TensorDict
    from tensordict_lite.errors import DatasetError
    from tensordict_lite.hooks import torch_function as _torch_function  # noqa: F401  (gives the classes __torch_function__)
    from tensordict_lite.hooks import vmapping as _vmapping
    from tensordict_lite.hooks.pytree import from_pytree
    from tensordict_lite.keys import NestedKey, unravel_key, unravel_key_list, unravel_key_to_tuple
    from tensordict_lite.lazy.functions import LazyStackedTensorDict, lazy_stack, maybe_dense_stack
    from tensordict_lite.memmap import DatasetWriter, MemoryMappedTensor, TensorDictFuture
    from tensordict_lite.memmap.api import append_memmap, load, load_memmap, save
    from tensordict_lite.memmap.archive import (
        is_memmap_archive,
        pack_memmap,
        refresh_archive_checksums,
        unpack_memmap,
    )
    from tensordict_lite.nn import (
        TensorClassModuleBase,
        TensorClassModuleWrapper,
        TensorDictParams,
        as_tensordict_module,
    )
    from tensordict_lite.nn import uninitialized as _uninitialized  # noqa: F401  (registers its part)
    from tensordict_lite.objects import metadata as _metadata
    from tensordict_lite.objects.data import NonTensorData, NonTensorDataBase, is_non_tensor
    from tensordict_lite.objects.metadata import MetaData
    from tensordict_lite.objects.stack import NonTensorStack
    from tensordict_lite.objects.unbatched import UnbatchedTensor
    from tensordict_lite.ragged import Ragged, RaggedPart
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
    from tensordict_lite.show.options import get_printoptions, set_printoptions
    from tensordict_lite.tensorclass.attrs import TensorAttrs
    from tensordict_lite.tensorclass.decorator import TensorClass, from_dataclass, is_tensorclass, tensorclass
    from tensordict_lite.tensorclass.typed import TypedTensorDict
    from tensordict_lite.testing import assert_allclose_td, assert_close
    from tensordict_lite.views import default_is_leaf, is_leaf_nontensor

    from tensordict_lite.building.functions import (  # isort: skip
        dense_stack_tds,
        from_module,
        group_by,
        is_bool,
        is_floating,
        is_inexact,
        is_integer,
    )
finally:
    if _collects:
        gc.enable()

if TYPE_CHECKING:
    from tensordict_lite.persistent import PersistentTensorDict

from_csv = TensorDict.from_csv
from_dict = TensorDict.from_dict
from_h5 = TensorDict.from_h5
from_json = TensorDict.from_json
from_modules = TensorDict.from_modules
from_pandas = TensorDict.from_pandas
from_parquet = TensorDict.from_parquet
from_zarr = TensorDict.from_zarr
fromkeys = TensorDict.fromkeys

_vmapping.install()

# Containers that `torch.load(weights_only=True)` may build; it checks their content in turn.
_SAFE: list[Any] = [
    TensorDict,
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    Ragged,
    RaggedPart,
    MetaData,
    _kernel.blank,
    _metadata._restored,
    _layout.JaggedSpot,
    _record._placeholder,
    _layout.RaggedSpot,
    _record._rebuild,
    _record._same,
]
_add_safe_globals(_SAFE)

_LATER = {
    "PersistentTensorDict": "tensordict_lite.persistent",
}
"""Names that are imported at their first use, by the module that defines them."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name == "__version__":
        return importlib.metadata.version("tdmap")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "KEY_SEPARATOR",
    "DatasetError",
    "DatasetWriter",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "MetaData",
    "NestedKey",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "PersistentTensorDict",
    "Ragged",
    "TensorAttrs",
    "TensorClass",
    "TensorClassModuleBase",
    "TensorClassModuleWrapper",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "TensorDictFuture",
    "TensorDictParams",
    "TypedTensorDict",
    "UnbatchedTensor",
    "append_memmap",
    "as_tensordict_module",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "cat",
    "collate",
    "default_is_leaf",
    "dense_stack_tds",
    "from_any",
    "from_arrow",
    "from_consolidated",
    "from_csv",
    "from_dataclass",
    "from_dict",
    "from_h5",
    "from_json",
    "from_module",
    "from_modules",
    "from_namedtuple",
    "from_pandas",
    "from_parquet",
    "from_pytree",
    "from_safetensors",
    "from_struct_array",
    "from_tuple",
    "from_zarr",
    "fromkeys",
    "get_defaults_to_none",
    "get_printoptions",
    "group_by",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_leaf_nontensor",
    "is_memmap_archive",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
    "lazy_legacy",
    "lazy_stack",
    "list_to_stack",
    "load",
    "load_memmap",
    "make_tensordict",
    "maybe_dense_stack",
    "memmap",
    "merge_tensordicts",
    "pack_memmap",
    "pad",
    "pad_sequence",
    "refresh_archive_checksums",
    "save",
    "set_capture_non_tensor_stack",
    "set_get_defaults_to_none",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "stack",
    "tensorclass",
    "to_arrow",
    "to_safetensors",
    "unpack_memmap",
    "unpad_sequence",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]
