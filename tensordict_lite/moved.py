"""Old names of modules: what was pickled, saved or imported by the name of a module that has moved still opens.

A pickle names its classes by module. Where a module moves, its old name stays here, and importing that gives the
module itself under its new name.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["MOVED", "old_name"]

_PACKAGE = __name__.rpartition(".")[0]

_MOVED = {
    "arrays": "building.arrays",
    "attrs": "tensorclass.attrs",
    "batches": "building.batches",
    "builders": "building.builders",
    "combine": "dense.combine",
    "fitting": "dense.fitting",
    "functions": "building.functions",
    "html": "show.html",
    "lazystack": "lazy.functions",
    "lazystack_class": "lazy.stack",
    "lazystack_index": "lazy.index",
    "lazystack_members": "lazy.members",
    "lazystack_ragged": "lazy.ragged",
    "lazystack_shape": "lazy.shape",
    "lazystack_typed": "lazy.typed",
    "lazystack_update": "lazy.update",
    "lazystack_values": "lazy.values",
    "lazystack_write": "lazy.write",
    "linkedlist": "objects.linkedlist",
    "memmap.cells": "memmap.disk.cells",
    "memmap.files": "memmap.disk.files",
    "memmap.format": "memmap.disk.format",
    "memmap.mapping": "memmap.disk.mapping",
    "memmap.pieces": "memmap.disk.pieces",
    "memmap.staging": "memmap.disk.staging",
    "metadata": "objects.metadata",
    "nn.interaction": "nn.sampling.interaction",
    "nn.modes": "nn.sampling.modes",
    "nn.randomness": "nn.sampling.randomness",
    "nontensor": "objects.data",
    "nontensor_stack": "objects.stack",
    "nontensor_tuple": "objects.tuple",
    "object_column": "objects.column",
    "ops.comparison": "ops.values.comparison",
    "ops.consolidation": "doors.consolidation",
    "ops.construct": "doors.construct",
    "ops.convert": "doors.convert",
    "ops.distributed": "doors.distributed",
    "ops.engine": "doors.engine",
    "ops.extreme": "ops.values.extreme",
    "ops.frames": "doors.frames",
    "ops.generated": "ops.values.generated",
    "ops.join": "ops.keys.join",
    "ops.keyed": "ops.keys.keyed",
    "ops.mapping": "ops.keys.mapping",
    "ops.module": "doors.module",
    "ops.objects": "ops.values.objects",
    "ops.operands": "ops.values.operands",
    "ops.pointwise": "ops.values.pointwise",
    "ops.reduce_tree": "ops.values.reduce_tree",
    "ops.reduction": "ops.values.reduction",
    "ops.restructure": "ops.keys.restructure",
    "ops.state": "ops.keys.state",
    "ops.storage": "doors.storage",
    "ops.stubs": "ops.values.stubs",
    "ops.update": "ops.keys.update",
    "parsing": "show.parsing",
    "printing": "show.printing",
    "pytree": "hooks.pytree",
    "rowwrites": "dense.rowwrites",
    "safetensor_files": "consolidated.safetensor_files",
    "shown": "show.options",
    "tensorclass_build": "tensorclass.build",
    "tensorclass_convert": "tensorclass.convert",
    "tensorclass_fields": "tensorclass.fields",
    "tensordict": "dense.tensordict",
    "torch_function": "hooks.torch_function",
    "typed": "tensorclass.typed",
    "unbatched": "objects.unbatched",
    "vmapping": "hooks.vmapping",
}

MOVED = {f"{_PACKAGE}.{old}": f"{_PACKAGE}.{new}" for old, new in _MOVED.items()}
"""The name of each module that has moved, by the name that it had."""

_OLD = {new: old for old, new in MOVED.items()}
# Of these, the room has the name that the module had, and its `__init__` what was pickled by it.
_OLD |= {
    f"{_PACKAGE}.dense.storage": f"{_PACKAGE}.dense",
    f"{_PACKAGE}.tensorclass.decorator": f"{_PACKAGE}.tensorclass",
}


def old_name(module: str) -> str:
    """The first name that a module had: the one under which digests know it.

    Example:
        >>> old_name("tensordict_lite.dense.tensordict"), old_name("json")
        ('tensordict_lite.tensordict', 'json')
    """
    return _OLD.get(module, module)


class _Finder:
    """Asked last, for modules that nothing else has found."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Loader(MOVED[name])) if name in MOVED else None


class _Loader:
    """Gives a module that exists. The import system notes how it came by a module in ``__spec__``: that is put back."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.new)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


sys.meta_path.append(_Finder)  # type: ignore[arg-type]
