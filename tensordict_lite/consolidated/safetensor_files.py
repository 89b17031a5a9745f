"""Trees in the format of the ``safetensors`` package, which model hubs use.

Each tensor is stored under its nested key, joined with dots, as in a ``state_dict``. What the format cannot express
(batch sizes, names, classes, stacks, objects) is JSON in its metadata, as the ``tensordict`` package writes it. Other
safetensors files open as a tree whose keys are split at the dots.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.callers import warn_caller
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.lazy.functions import LazyStackedTensorDict, lazy_stack
from tensordict_lite.memmap.disk.files import plain_values
from tensordict_lite.memmap.disk.format import check_names, check_shape, is_count
from tensordict_lite.memmap.disk.staging import staged_path
from tensordict_lite.memmap.load import missing_class
from tensordict_lite.memmap.plan import holds_json
from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.packages import need
from tensordict_lite.paths import absolute_path
from tensordict_lite.tensorclass.decorator import TensorClass, registered_class

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

_VERSION = 1
_META = "tensordict"  # key of the JSON in the metadata of the file
Path = tuple[str, ...]


def to_safetensors(data: TensorCollection, path: str | os.PathLike[str]) -> None:
    """Save a TensorDict, a tensorclass or a lazy stack to a safetensors file.

    Tensors that share memory are saved separately, those on another device through the CPU, and a lazy stack densely.
    The file is written next to ``path`` and renamed, so it is complete or absent.

    Args:
        data: the collection.
        path: the file; an existing one is replaced.

    Raises:
        ImportError: the ``safetensors`` package is missing (``pip install 'tdmap[safetensors]'``).
        TypeError: a tensor is nested, sparse, quantized or of a dtype that the format lacks; an object cannot be JSON
            or differs per row; the members of a lazy stack differ in keys or shapes.
        ValueError: two joined keys are equal, such as ``"a.b"`` and ``("a", "b")``.

    Example:
        >>> import tempfile, torch
        >>> from tensordict_lite import TensorDict, from_safetensors, to_safetensors
        >>> folder = tempfile.TemporaryDirectory()
        >>> data = TensorDict({"weight": torch.ones(2, 3), "sub": {"bias": torch.zeros(2)}}, [2])
        >>> to_safetensors(data, f"{folder.name}/data.safetensors")
        >>> from_safetensors(f"{folder.name}/data.safetensors").batch_size
        torch.Size([2])
    """
    save_file = need("safetensors.torch", "safetensors", "writing safetensors files").save_file
    if not hasattr(data, "_key_list"):
        raise TypeError(
            f"to_safetensors() saves a TensorDict, a tensorclass or a lazy stack, got a {type(data).__name__}"
        )
    tensors: dict[str, Tensor] = {}
    root = _describe(data, (), tensors)
    about = {_META: json.dumps({"version": _VERSION, "root": root})}
    with staged_path(absolute_path(path)) as temporary:
        try:
            save_file(_apart(tensors), temporary, metadata=about)
        except KeyError as err:
            raise TypeError(f"safetensors files have no tensors of {err.args[0]}: cast them first") from None


def _describe(node: Any, path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The JSON of a level; adds its tensors to ``tensors``."""
    if node._is_non_tensor:
        raise TypeError("an object alone cannot be saved as safetensors: put it in a TensorDict first")
    keys: dict[str, Any] = {}
    names = node.names
    out = {"batch_size": list(node.batch_size), "names": names if any(name is not None for name in names) else None}
    kind = type(node)
    if isinstance(node, LazyStackedTensorDict):
        out["stack_dim"] = node._stack_dim
        kind = getattr(node, "_member_class", None) or kind
        _check_members(node, path)
    if issubclass(kind, TensorClass):
        out["class"] = f"<class '{kind.__module__}.{kind.__qualname__}'>"
    out["keys"] = keys
    for key in node._key_list():
        where = (*path, key)
        value = _entry(node, key, where)
        if isinstance(value, Tensor):
            name = ".".join(where)
            if name in tensors:
                raise ValueError(f"two entries are called {name!r} in a safetensors file: rename one of them")
            tensors[name] = _savable(value, where)
            keys[key] = {"tensor": name}
        elif value._is_non_tensor:
            keys[key] = {"non_tensor": _object(value, where)}
        else:
            keys[key] = {"td": _describe(value, where, tensors)}
    return out


def _check_members(node: Any, path: Path) -> None:
    keys = {frozenset(member._key_list()) for member in node._source}
    if len(keys) > 1:
        raise TypeError(
            f"the lazy stack at {path or 'the root'} cannot be saved as safetensors: its members have different keys"
        )


def _entry(node: Any, key: str, where: Path) -> Any:
    try:
        return node._get_str(key)
    except RuntimeError as err:
        raise TypeError(f"the entry {where} of a lazy stack cannot be saved as safetensors: {err}") from None


def _savable(tensor: Tensor, where: Path) -> Tensor:
    kind = None
    if tensor.is_nested:
        kind = "nested"
    elif tensor.layout is not torch.strided:
        kind = f"of the layout {tensor.layout}"
    elif tensor.is_quantized:
        kind = "quantized"
    elif tensor.device.type == "meta":
        kind = "on the meta device, and has no data"
    if kind is not None or type(tensor).__name__ == "UnbatchedTensor":
        raise TypeError(f"the tensor at {where} cannot be saved as safetensors: it is {kind or 'unbatched'}")
    tensor = plain_values(tensor).cpu()
    return (tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)).contiguous()


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, each with its own memory."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        alone = storage.data_ptr() not in seen and tensor.numel() * tensor.element_size() == storage.nbytes()
        seen.add(storage.data_ptr())
        out[name] = tensor if alone else tensor.clone()
    return out


def _object(value: Any, where: Path) -> Any:
    if not isinstance(value, NonTensorData):
        raise TypeError(
            f"the objects at {where}, one per row, cannot be saved as safetensors: only one JSON value for all rows can"
        )
    payload = value._payload
    if not holds_json(payload):
        raise TypeError(
            f"the object at {where} cannot be saved as safetensors: a {type(payload).__name__} is not a JSON value "
            "(str, int, float, bool, None, list or dict)"
        )
    return payload


# -- reading -----------------------------------------------------------------------------------------------------


def from_safetensors(path: str | os.PathLike[str], *, device: DeviceLike | None = None) -> Any:
    """Load a safetensors file.

    A file of :func:`to_safetensors` gives the saved collection. Any other, such as a checkpoint of a model, gives a
    nested TensorDict without batch dimensions: names are split at the dots, so :meth:`to_module` can put it into the
    model.

    Args:
        path: the file.
        device: device of the tensors and the result. ``None``: the CPU, and no device for the result.

    Returns:
        A collection of the class that was saved. If the program does not define that class: a TensorDict, with a
        warning.

    Raises:
        ImportError: the ``safetensors`` package is missing (``pip install 'tdmap[safetensors]'``).
        DatasetNotFoundError: (a FileNotFoundError) the file does not exist.
        DatasetError: the file has another format, or its description of the structure is inconsistent.
        ValueError: a newer version wrote it.

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
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    except safetensors.SafetensorError as err:
        raise DatasetError(file, f"is not a safetensors file, or was truncated ({err})") from None
    reader = _Reader(file, tensors)
    node = reader.flat() if _META not in about else reader.root(about[_META])
    return node if device is None else node.to(device)


class _Reader:
    def __init__(self, path: str, tensors: dict[str, Tensor]) -> None:
        self.path = path
        self.tensors = tensors
        self.missing: set[str] = set()

    def flat(self) -> Any:
        """A tree of names split at the dots."""
        root: dict[str, Any] = {}
        for name, tensor in self.tensors.items():
            *levels, last = name.split(".")
            level = root
            for part in levels:
                level = level.setdefault(part, {})
                if not isinstance(level, dict):
                    raise DatasetError(
                        self.path, f"{name!r} lies below another tensor, so the names do not form a tree"
                    )
            if last in level:
                raise DatasetError(self.path, f"other tensors lie below {name!r}, so the names do not form a tree")
            level[last] = tensor

        def build(level: dict[str, Any]) -> Any:
            entries = {key: build(value) if isinstance(value, dict) else value for key, value in level.items()}
            return TensorDict._trusted(entries, torch.Size(()))

        return build(root)

    def root(self, text: str) -> Any:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as err:
            raise DatasetError(self.path, f"its description of the tree is not valid JSON ({str(err)[:100]})") from None
        version = data.get("version") if type(data) is dict else None
        if type(version) is int and version > _VERSION:
            raise ValueError(f"{self.path} was written in version {version} of the format; known here is {_VERSION}")
        if version != _VERSION:
            raise DatasetError(self.path, f"its description of the tree has the version {version!r}")
        try:
            return self.level(data.get("root"), ())
        except RecursionError:
            raise DatasetError(self.path, "is nested too deeply to be a dataset") from None

    def fail(self, where: Path, what: str) -> DatasetError:
        return DatasetError(self.path, f"what it says of {where or 'the root'} is wrong: {what}")

    def level(self, data: Any, where: Path) -> Any:
        """One level as it was saved: dense, a class, or a stack."""
        if type(data) is not dict or type(data.get("keys")) is not dict:
            raise self.fail(where, "it should have a batch size and keys")
        size = check_shape(self.path, data.get("batch_size"), "batch_size")
        names = check_names(self.path, data.get("names"), len(size))
        node = self._dense(data["keys"], size, names, where)
        dim = data.get("stack_dim")
        if dim is not None:
            if not is_count(dim, len(size) - 1):
                raise self.fail(where, f"a stack of batch size {list(size)} has no dimension {dim!r}")
            return self._stack(node, dim, data.get("class"), where)
        return self._classed(node, data.get("class"), where)

    def _dense(self, keys: dict[str, Any], size: tuple[int, ...], names: Any, where: Path) -> Any:
        entries: dict[str, Any] = {}
        for key, value in keys.items():
            here = (*where, key)
            if type(value) is not dict:
                raise self.fail(here, "an entry is a tensor, a non-tensor value or a level")
            if "td" in value:
                entry: Any = self.level(value["td"], here)
            elif "non_tensor" in value:
                entry = NonTensorData(value["non_tensor"], batch_size=size)
            else:
                name = value.get("tensor")
                if type(name) is not str or name not in self.tensors:
                    raise self.fail(here, f"there is no tensor {name!r} in the file")
                if value.get("unbatched"):
                    raise self.fail(here, "it is an UnbatchedTensor, which is not known here")
                entry = self.tensors[name]
            if tuple(entry.shape[: len(size)]) != size:
                raise self.fail(here, f"{list(entry.shape)} does not start with the batch size {list(size)}")
            entries[key] = entry
        return TensorDict._trusted(entries, torch.Size(size), None, names)

    def _class(self, name: Any, where: Path) -> Any:
        if name is None:
            return None
        if type(name) is not str or not (name.startswith("<class '") and name.endswith("'>")):
            raise self.fail(where, f"'class' should be the class that was saved, found {str(name)[:60]!r}")
        found = registered_class(name[8:-2])
        if found is None and name not in self.missing:
            self.missing.add(name)
            warn_caller(missing_class(name[8:-2], self.path))
        return found

    def _classed(self, node: Any, name: Any, where: Path) -> Any:
        cls = self._class(name, where)
        if cls is None:
            return node
        try:
            return cls.from_tensordict(node)
        except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as err:
            raise self.fail(where, f"the saved fields do not fit the class {cls.__name__}: {err}") from None

    def _stack(self, node: Any, dim: int, name: Any, where: Path) -> Any:
        cls = self._class(name, where)
        members = list(node.unbind(dim))
        if not members:
            return LazyStackedTensorDict(stack_dim=dim, batch_size=node.batch_size[:dim] + node.batch_size[dim + 1 :])
        own = None if node._names is None else node._names[dim]
        members = [member if cls is None else cls.from_tensordict(member) for member in members]
        return lazy_stack(members, dim, stack_dim_name=own)
