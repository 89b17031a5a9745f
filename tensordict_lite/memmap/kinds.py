"""The disk layout of each class of collections except dense ones: a planner to save, a reader to load.

===================  =============================================================================================
``NonTensorData``    ``meta.json`` with the object under ``"data"``; objects that JSON cannot hold in ``other.pickle``
``MetaData``         like ``NonTensorData``, under its own name, which may have a type in brackets
``NonTensorStack``   ``meta.json`` with nested lists of objects; those that JSON cannot hold in ``pickle.pkl``
the same of strings  ``meta.json`` and two files, see ``text.py``: for thousands of strings, and for bytes
lazy stack           ``meta.json`` with ``stack_dim``, and a sub-folder ``0``, ``1``... per member
tensorclass          ``meta.json`` with the name of the class, and its fields as a collection in ``_tensordict``
===================  =============================================================================================

Other files of this package do not import the classes: ``register_all`` registers them. The class of a saved tensorclass
is looked up among those that the program has defined; it is never imported.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch

from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.errors import DatasetError
from tensordict_lite.lazy.functions import LazyStackedTensorDict, lazy_stack
from tensordict_lite.memmap.disk.format import FORMAT_VERSION, META, NodeMeta, check_shape, is_count
from tensordict_lite.memmap.load import Loader, register_reader
from tensordict_lite.memmap.plan import SavePlan, holds_json, pickled, plan_dense, register_planner
from tensordict_lite.memmap.text import plan_text, read_text
from tensordict_lite.objects.data import NonTensorData, NonTensorDataBase, filled, holds_collections
from tensordict_lite.objects.metadata import MetaData, typed_by_name
from tensordict_lite.objects.stack import NonTensorStack, _without_rows
from tensordict_lite.objects.unbatched import UnbatchedEntry
from tensordict_lite.paths import paths_as_text
from tensordict_lite.ragged import Ragged, is_ragged
from tensordict_lite.tensorclass.decorator import TensorClass, registered_class

Where = tuple[str, ...]


def register_all() -> None:
    """Register the layouts of the classes of this package."""
    register_planner(DenseCollection, plan_dense)
    register_planner(NonTensorDataBase, plan_nontensor)
    register_planner(UnbatchedEntry, refuse_unbatched)
    register_planner(NonTensorStack, plan_nontensor_stack)
    register_planner(LazyStackedTensorDict, plan_lazy_stack)
    register_planner(TensorClass, plan_tensorclass)
    register_reader("nontensor", read_nontensor)
    register_reader("nontensorstack", read_nontensor_stack)
    register_reader("text", read_text)
    register_reader("lazystack", read_lazy_stack)
    register_reader("tensorclass", read_tensorclass)


# -- one object ------------------------------------------------------------------------------------------------


def plan_nontensor(plan: SavePlan, node: Any, path: str, where: Where) -> str:
    """One object."""
    name = type(node).__name__ if isinstance(node, MetaData) else "NonTensorData"
    meta: dict[str, Any] = {"_type": f"<class 'tensordict.tensorclass.{name}'>"}
    folder = plan.folder(node, path, where, meta)
    if not plan.objects:
        return name
    value = node._payload
    if holds_json(value):
        meta["data"] = value
    else:
        folder.blobs["other.pickle"] = pickled(plan, value, {"data": value}, where)
    meta["_metadata"] = None
    meta["_is_non_tensor"] = True
    return name


def refuse_unbatched(plan: SavePlan, node: Any, path: str, where: Where) -> str:
    """Raise for a tensor shared by all rows, which has no form on disk."""
    raise NotImplementedError(
        f"UnbatchedTensor entries cannot be memory-mapped yet, but {'.'.join(where)!r} is one. Exclude it first, "
        f"td.exclude({where if len(where) > 1 else where[0]!r}), and save it beside the dataset."
    )


def read_nontensor(loader: Loader, meta: NodeMeta, lead: torch.Size | None) -> Any:
    """The object of :func:`plan_nontensor` for the whole batch of its parent."""
    if "data" in meta.raw:
        value = meta.raw["data"]
    else:
        content = _unpickle(loader, meta.path, "other.pickle")
        if type(content) is not dict or "data" not in content:
            raise DatasetError(meta.path + "/other.pickle", "does not hold the object of a non-tensor entry")
        value = content["data"]
    size = torch.Size(()) if lead is None else lead
    return _object_class(meta, value)(value, batch_size=size, device=loader.device or "cpu")


def _object_class(meta: NodeMeta, value: Any) -> Any:
    """``NonTensorData``, or the saved metadata class if the object is still of its type."""
    written = str(meta.raw.get("_type"))
    name = written.removeprefix("<class 'tensordict.tensorclass.").removesuffix("'>")
    if name == written or not name.startswith("MetaData"):
        return NonTensorData
    cls = typed_by_name(name)
    return cls if cls.accepts(value) else MetaData  # JSON has no tuples


# -- one object an element -----------------------------------------------------------------------------------


def plan_nontensor_stack(plan: SavePlan, node: Any, path: str, where: Where) -> str:
    """Objects that differ from element to element."""
    if not plan.objects:
        plan.folder(node, path, where, {})
        return "NonTensorStack"
    if node.batch_dims == 1 and not is_ragged(node):
        rows = node._payloads() or []
        text_rows = paths_as_text(rows)
        node = node if text_rows is rows else NonTensorStack._of_objects(text_rows)
    if not plan.reference_format or (plan.ragged_text and isinstance(node, Ragged)):
        text = plan_text(plan, node, path, where)
        if text is not None:
            return text
    meta: dict[str, Any] = {
        "_type": "<class 'tensordict.tensorclass.NonTensorStack'>",
        "_format_version": FORMAT_VERSION,
        "_class": "tensordict:NonTensorStack",
        "stack_dim": node._stack_dim,
        "device": None,
    }
    if is_ragged(node) and node.kind in ("str", "json"):
        meta["_ragged"] = node.kind  # few rows, stored like the reference does
    folder = plan.folder(node, path, where, meta)
    folder.compact = True
    size = tuple(node._batch_size)
    values = filled(None, size) if 0 in size else node.tolist()  # an empty stack has no rows to list
    if holds_json(values):
        meta["data"] = values
    else:
        odd = next((row for row in node._payloads() or () if not holds_json(row)), values)
        folder.blobs["pickle.pkl"] = pickled(plan, odd, values, where)
        meta["data"] = "pickle.pkl"
    if len(size) > 1 and 0 in size:
        meta["_batch_size"] = list(size)  # empty lists do not determine it
    elif max(_regular_depth(values), 1) != len(size):
        meta["_batch_dims"] = len(size)  # the objects are lists themselves
    return "NonTensorStack"


def read_nontensor_stack(loader: Loader, meta: NodeMeta, lead: torch.Size | None) -> Any:
    """The objects of :func:`plan_nontensor_stack`."""
    path = meta.path + "/" + META
    values = meta.raw.get("data")
    if values == "pickle.pkl":
        values = _unpickle(loader, meta.path, "pickle.pkl")
    if type(values) is not list:
        raise DatasetError(path, f"'data' of a stack should be a list, found a {type(values).__name__}")
    if "_batch_size" in meta.raw:
        return _no_objects(path, meta.raw["_batch_size"], values, loader.device or torch.device("cpu"))
    dims = meta.raw.get("_batch_dims")
    if dims is None:
        dims = max(_regular_depth(values), 1)
    elif not is_count(dims, 64) or dims < 1:
        raise DatasetError(path, f"'_batch_dims' should be a number of dimensions, found {dims!r}")
    dim = meta.raw["stack_dim"]
    if dim >= dims:
        raise DatasetError(path, f"the stack dim {dim} does not exist in objects of {dims} batch dims")
    ragged = meta.raw.get("_ragged") if dims == 1 else None
    device = loader.device or torch.device("cpu")
    rows = Ragged._of_list(ragged, values, device) if ragged in ("str", "json") else None
    return rows if rows is not None else _stack_objects(path, values, dims, device)


def _no_objects(path: str, size: Any, values: Any, device: torch.device) -> Any:
    """A stack without objects, whose batch size its lists do not determine."""
    if type(size) is not list or not all(is_count(n, 1 << 40) for n in size) or 0 not in size:
        raise DatasetError(path, f"'_batch_size' should be the size of a stack without objects, found {size!r:.100}")
    level = values
    for length in size[: size.index(0) + 1]:  # not more rows than lists
        if type(level) is not list or len(level) != length:
            raise DatasetError(path, f"the lists of a stack of objects do not have the size {size}")
        level = level[0] if level else None
    return _without_rows(torch.Size(size), device)


def _regular_depth(values: Any) -> int:
    """The number of levels at which all lists have the same length: the batch dims of objects that are not lists."""
    if type(values) not in (list, tuple) or not values:  # tuples become lists in JSON
        return 0
    if not {list, tuple}.intersection(map(type, values)):
        return 1
    inner = {(_regular_depth(value), len(value) if type(value) in (list, tuple) else -1) for value in values}
    return 1 + (next(iter(inner))[0] if len(inner) == 1 else 0)


def _stack_objects(path: str, values: Any, dims: int, device: torch.device) -> Any:
    if dims == 0:
        return NonTensorData(values, device=device)
    if type(values) is not list:
        raise DatasetError(path, "the lists of a stack of objects are not of one depth")
    if dims == 1 and not holds_collections(values):
        return NonTensorStack._of_objects(values, device=device)
    members = [_stack_objects(path, value, dims - 1, device) for value in values]
    sizes = {member.batch_size for member in members}
    if len(sizes) > 1:
        raise DatasetError(path, f"the lists of a stack of objects have different lengths: {sorted(map(list, sizes))}")
    size = next(iter(sizes)) if sizes else torch.Size([0] * (dims - 1))
    return NonTensorStack._of(members, 0, size, device)


# -- lazy stacks -----------------------------------------------------------------------------------------------


def plan_lazy_stack(plan: SavePlan, node: Any, path: str, where: Where) -> str:
    """One sub-folder per member; a stack of tensorclasses is a tensorclass whose fields are a stack."""
    members = node._source
    kind = type(members[0]) if members else object
    # (a stack of instances counts as an instance too, but its entries are a list)
    if (
        issubclass(kind, TensorClass)
        and type(members[0]._source) is dict
        and all(type(member) is kind for member in members)
    ):
        plan.folder(node, path, where, {"_type": f"<class '{_class_name(kind)}'>"})
        inner = f"{path}/_tensordict" if path else "_tensordict"
        _plan_members(plan, node, inner, where, plan_dense)
        return kind.__name__
    _plan_members(plan, node, path, where, lambda plan, *args: plan.add(*args))
    return "LazyStackedTensorDict"


def _plan_members(plan: SavePlan, node: Any, path: str, where: Where, add: Callable[..., str]) -> None:
    dim = node._stack_dim
    meta = {
        "_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>",
        "_format_version": FORMAT_VERSION,
        "_class": "tensordict:LazyStackedTensorDict",
        "stack_dim": dim,
        "stack_dim_name": node._names[dim] if node._names is not None else None,
        "_length": len(node._source),
    }
    if not node._source:
        meta["_member_shape"] = list(node._member_batch_size())
    plan.folder(node, path, where, meta)
    for number, member in enumerate(node._source):
        add(plan, member, f"{path}/{number}" if path else str(number), (*where, str(number)))


def read_lazy_stack(loader: Loader, meta: NodeMeta, lead: torch.Size | None) -> Any:
    """The stack of :func:`plan_lazy_stack`."""
    return _read_members(loader, meta, lambda member: member)


def _read_members(loader: Loader, meta: NodeMeta, wrap: Callable[[Any], Any]) -> Any:
    path = meta.path + "/" + META
    count = _count_members(loader, meta, path)
    members = [wrap(loader.load(f"{meta.path}/{number}")) for number in range(count)]
    dim, name = meta.raw["stack_dim"], meta.raw.get("stack_dim_name")
    if name is not None and type(name) is not str:
        raise DatasetError(path, f"'stack_dim_name' should be a name, found {name!r}")
    if not members:
        size = check_shape(path, meta.raw.get("_member_shape", []), "_member_shape")
        return LazyStackedTensorDict(stack_dim=min(dim, len(size)), batch_size=torch.Size(size))
    try:
        return lazy_stack(members, dim, stack_dim_name=name)
    except (RuntimeError, ValueError, TypeError, IndexError) as err:
        raise DatasetError(path, f"the members do not stack: {err}") from None


def _count_members(loader: Loader, meta: NodeMeta, path: str) -> int:
    """Members are the sub-folders 0, 1, 2... without a gap; further ones belong to an earlier save."""
    numbers = {int(name) for name in loader.names(meta.path) if _is_number(name)}
    count = meta.raw.get("_length", len(numbers))
    first = next(number for number in range(len(numbers) + 1) if number not in numbers)
    if not is_count(count, 1 << 31) or count > first:
        raise DatasetError(
            path,
            f"a stack of {count!r:.100} members was saved, but only {len(numbers)} exist; the first missing one is "
            f"{first}",
        )
    return count


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name


# -- tensorclasses -----------------------------------------------------------------------------------------------


def plan_tensorclass(plan: SavePlan, node: Any, path: str, where: Where) -> str:
    """The name of the class, and its fields as an ordinary collection one level below."""
    cls = type(node)
    plan.folder(node, path, where, {"_type": f"<class '{_class_name(cls)}'>"})
    plan_dense(plan, node, f"{path}/_tensordict" if path else "_tensordict", where)
    return cls.__name__


def _class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def read_tensorclass(loader: Loader, meta: NodeMeta, lead: torch.Size | None) -> Any:
    """The instance of :func:`plan_tensorclass`; if the class is not defined, its fields."""
    path = meta.path + "/" + META
    cls = registered_class(meta.class_name)
    folder = meta.path + "/_tensordict"
    if cls is None:
        if not loader.exists(folder):
            raise DatasetError(path, f"names the class {meta.class_name}, but its fields are missing")
        loader.warn_missing(meta.class_name, meta.path)
    inner = loader.meta(folder, nested=True)
    if inner.kind == "lazystack":
        return _read_members(loader, inner, lambda member: _as_class(cls, member, path))
    if inner.kind != "tensordict":
        raise DatasetError(path, f"the fields of a tensorclass are a collection, found a {inner.kind}")
    fields = loader.dense(inner)
    if meta.is_old:
        _add_old_fields(fields, meta)
    return _as_class(cls, fields, path)


def _add_old_fields(fields: Any, meta: NodeMeta) -> None:
    """Add the non-tensor fields that tensordict up to version 0.4 stored next to the name of the class."""
    for key, value in meta.raw.items():
        if key != "_type" and value is not None and key not in fields._key_list():
            fields._set_str(key, NonTensorData(value, batch_size=fields.batch_size, device=fields.device))


def _as_class(cls: Any, fields: Any, path: str) -> Any:
    if cls is None:
        return fields
    try:
        return cls.from_tensordict(fields)
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as err:
        raise DatasetError(path, f"the saved fields do not fit the class {cls.__name__}: {err}") from err


# -- pickles ------------------------------------------------------------------------------------------------------


def _unpickle(loader: Loader, folder: str, name: str) -> Any:
    """Open a pickle if the caller trusts this dataset."""
    path = f"{folder}/{name}"
    if not loader.exists(path):
        raise DatasetError(folder + "/" + META, "describes non-tensor data without its file")
    if not loader.allow_pickle:
        raise DatasetError(
            path,
            "holds pickled data, which can run any code when it is opened. Pass allow_pickle=True only if you "
            "trust the author of this dataset",
        )
    data = loader.content(path)
    try:
        return pickle.loads(data)
    except Exception as err:
        raise DatasetError(path, f"cannot be unpickled ({type(err).__name__}: {err})") from err
