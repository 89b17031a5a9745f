"""Tensors of a tree in the format of the ``safetensors`` package, which model hubs use.

Each tensor is stored under its nested key, joined with dots, as in a ``state_dict``. Nothing else is stored.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.callers import warn_caller
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.lazy.stack import LazyStackedTensorDict
from tensordict_lite.memmap.disk.files import plain_values
from tensordict_lite.memmap.disk.staging import staged_path
from tensordict_lite.packages import need
from tensordict_lite.paths import absolute_path
from tensordict_lite.tensorclass.decorator import TensorClass

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection


def to_safetensors(data: TensorCollection, path: str | os.PathLike[str]) -> None:
    """Save the tensors of a TensorDict to a safetensors file, under their keys joined with dots.

    Batch sizes, names of dimensions and empty nested TensorDicts are not stored. Tensors that share memory are saved
    separately, those on another device through the CPU. The file is written next to ``path`` and renamed, so it is
    complete or absent.

    Args:
        data: the TensorDict. Its entries are tensors and nested TensorDicts.
        path: the file; an existing one is replaced.

    Raises:
        ImportError: the ``safetensors`` package is missing (``pip install 'tdmap[safetensors]'``).
        TypeError: an entry is text, another object, a lazy stack or a tensorclass (:meth:`~TensorDict.memmap` and
            :meth:`~TensorDict.consolidate` store these), or a tensor is nested, sparse, quantized, unbatched, without
            data or of a dtype that the format lacks.
        ValueError: two joined keys are equal, such as ``"a.b"`` and ``("a", "b")``.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict, from_safetensors, to_safetensors
        >>> folder = tempfile.TemporaryDirectory()
        >>> data = TensorDict({"weight": torch.ones(2, 3), "sub": {"bias": torch.zeros(2)}}, [2])
        >>> to_safetensors(data, f"{folder.name}/data.safetensors")
        >>> from_safetensors(f"{folder.name}/data.safetensors", batch_size=[2])["sub"].batch_size
        torch.Size([2])
    """
    save_file = need("safetensors.torch", "safetensors", "writing safetensors files").save_file
    if not hasattr(data, "_key_list"):
        raise TypeError(f"to_safetensors() saves a TensorDict, got a {type(data).__name__}")
    tensors: dict[str, Tensor] = {}
    _collect(data, (), tensors, set())
    with staged_path(absolute_path(path)) as temporary:
        try:
            save_file(tensors, temporary)
        except KeyError as err:
            raise TypeError(f"safetensors files have no tensors of {err.args[0]}: cast them first") from None


def _collect(node: Any, path: tuple[str, ...], tensors: dict[str, Tensor], storages: set[int]) -> None:
    """Add the tensors of a level, each with its own memory."""
    if node._is_non_tensor or isinstance(node, (TensorClass, LazyStackedTensorDict)):
        raise TypeError(
            f"safetensors files hold tensors, and {path or 'the root'} is a {type(node).__name__}: save it with "
            "memmap() or consolidate(), leave it out with exclude(), or convert it (to_tensordict(), densify())"
        )
    for key in node._key_list():
        value, where = node._get_str(key), (*path, key)
        if not isinstance(value, Tensor):
            _collect(value, where, tensors, storages)
            continue
        if value.is_nested or value.layout is not torch.strided or value.is_quantized or value.is_meta:
            kind = "a nested tensor" if value.is_nested else f"{value.layout}, {value.dtype}, on {value.device}"
            raise TypeError(f"the tensor at {where} ({kind}) cannot be saved as safetensors: make it dense, with data")
        name = ".".join(where)
        if name in tensors:
            raise ValueError(f"two entries are called {name!r} in a safetensors file: rename one of them")
        tensor = plain_values(value).cpu().as_subclass(Tensor).contiguous()
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)


def from_safetensors(
    path: str | os.PathLike[str], *, batch_size: Sequence[int] = (), device: DeviceLike | None = None
) -> TensorDict:
    """Load a safetensors file, such as one of :func:`to_safetensors` or a checkpoint of a model.

    Names are split at the dots, so :meth:`to_module` can put the result into the model.

    Args:
        path: the file.
        batch_size: of the result and its nested TensorDicts.
        device: device of the tensors and the result. ``None``: the CPU, and no device for the result.

    Raises:
        ImportError: the ``safetensors`` package is missing (``pip install 'tdmap[safetensors]'``).
        DatasetNotFoundError: (a FileNotFoundError) the file does not exist.
        DatasetError: the file has another format, or its names do not form a tree.
        RuntimeError: a tensor does not have the batch size.

    Example:
        >>> import tempfile, torch
        >>> from safetensors.torch import save_file
        >>> from tensordict_lite import from_safetensors
        >>> folder = tempfile.TemporaryDirectory()
        >>> save_file({"0.weight": torch.ones(4, 3), "0.bias": torch.zeros(4)}, f"{folder.name}/model.safetensors")
        >>> params = from_safetensors(f"{folder.name}/model.safetensors")
        >>> params["0", "weight"].shape
        torch.Size([4, 3])
        >>> _ = params.to_module(torch.nn.Sequential(torch.nn.Linear(3, 4)))
    """
    safetensors = need("safetensors", "safetensors", "reading safetensors files")
    file = absolute_path(path)
    if not os.path.isfile(file):
        what = "is a folder, and not a safetensors file" if os.path.isdir(file) else "does not exist"
        raise (DatasetError if os.path.isdir(file) else DatasetNotFoundError)(file, what)
    where = "cpu" if device is None or torch.device(device).type == "meta" else str(torch.device(device))
    try:
        with safetensors.safe_open(file, "pt", device=where) as opened:
            if "tensordict" in (opened.metadata() or {}):
                warn_caller(f"{file}: only tensors are read, not the classes, stacks and objects that tensordict added")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    except safetensors.SafetensorError as err:
        raise DatasetError(file, f"is not a safetensors file, or was truncated ({err})") from None
    flat = TensorDict(tensors, batch_size, device=device)
    try:
        return flat.unflatten_keys(".")
    except KeyError as err:
        raise DatasetError(file, f"has names that do not form a tree ({err.args[0]})") from None
    except RecursionError:
        raise DatasetError(file, "is nested too deeply to be a dataset") from None
