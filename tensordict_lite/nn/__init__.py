"""Modules that read and write tensordicts, and parameters as collections.

=================================  ===========================================================================
:class:`TensorDictModule`          a module of tensors, with the keys that it reads and writes
:class:`TensorDictSequential`      several of them in order
:class:`TensorDictParams`          a collection of parameters that is a module
:func:`dispatch`                   lets a function of a tensordict be called with tensors
=================================  ===========================================================================
"""

from __future__ import annotations

from tensordict_lite.building.builders import make_tensordict
from tensordict_lite.nn.common import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    WrapModule,
    as_tensordict_module,
    dispatch,
)
from tensordict_lite.nn.params import TensorDictParams
from tensordict_lite.nn.sequence import TensorDictSequential
from tensordict_lite.nn.tensorclass_module import TensorClassModuleBase, TensorClassModuleWrapper
from tensordict_lite.nn.utils import set_skip_existing, skip_existing

__all__ = [
    "TensorClassModuleBase",
    "TensorClassModuleWrapper",
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictModuleWrapper",
    "TensorDictParams",
    "TensorDictSequential",
    "WrapModule",
    "as_tensordict_module",
    "dispatch",
    "make_tensordict",
    "set_skip_existing",
    "skip_existing",
]
