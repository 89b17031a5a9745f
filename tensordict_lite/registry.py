"""Names of higher packages that lower ones use: each package registers its own when it is imported.

The kernel creates objects that are built on it: a value that is set may become non-tensor data, a list of collections a
lazy stack. An import at the top of the file would be circular; an import inside a function would cost time at each call
and hide the dependency. This list is complete. Use ``registry.TensorDict``: a name imported from here would be looked
up too early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tensordict_lite import dense, lazy, memmap, nn, objects
    from tensordict_lite.tensorclass import decorator

# dense/
TensorDict: type[dense.tensordict.TensorDict]
# lazy/
LazyStackedTensorDict: type[lazy.stack.LazyStackedTensorDict]
lazy_stack: Callable[..., Any]
maybe_dense_stack: Callable[..., Any]
stack_lazily: Callable[..., Any]
typed_stack_class: Callable[..., Any]
# objects/
NonTensorData: type[objects.data.NonTensorData]
NonTensorStack: type[objects.stack.NonTensorStack]
TupleEntry: type[Any]
from_sequence: Callable[..., Any]
holds_collections: Callable[..., bool]
is_non_tensor: Callable[[Any], bool]
rows_of: Callable[..., Any]
same_payload: Callable[..., bool]
stack_non_tensors: Callable[..., Any]
cat_non_tensors: Callable[..., Any]
# tensorclass/
TensorClass: type[decorator.TensorClass]
# memmap/, consolidated/
MappedNestedTensor: type[memmap.MemoryMappedTensor]
MemoryMappedTensor: type[memmap.MemoryMappedTensor]
open_archive: Callable[..., Any]
save_archive: Callable[..., Any]
store_archive_checksums: Callable[[str, int | None], dict[str, list[int]]]
verify_archive: Callable[..., Any]
record_of: Callable[..., Any]
reduce_tree: Callable[..., Any]
relocated: Callable[..., Any]
rewrite: Callable[..., None]
# nn/
TensorDictParams: type[nn.TensorDictParams]
row_of_uninitialized: Callable[..., Any]
tell_slot: Callable[..., Any]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        if name not in __annotations__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ModuleNotFoundError(f"this needs {name!r} of a package that was left out of this installation.")


def register(**parts: Any) -> None:
    """Set classes or functions declared above."""
    unknown = parts.keys() - __annotations__.keys()
    if unknown:
        raise ValueError(f"declare {sorted(unknown)} in registry.py")
    globals().update(parts)
