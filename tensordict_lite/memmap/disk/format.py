"""The directory format as data: what a saved collection looks like on disk, without tensors.

A collection is a folder with one ``meta.json``, one ``<key>.memmap`` of raw numbers for each tensor, and one
sub-folder for each nested collection::

    data/
    ├── meta.json          {"image": {"device": "cpu", "shape": [8, 3], "dtype": "torch.uint8",
    ├── image.memmap         "is_nested": false}, "extra": {"type": "TensorDict"},
    └── extra/               "shape": [8], "device": "cpu", "_type": ..., "_format_version": 1, "_class": ...}
        ├── meta.json
        └── xy.memmap

It is the format of the ``tensordict`` package (``_format_version`` 1), so each library opens what the other saved. All
input is untrusted: it is checked before anything is mapped, and an inconsistent folder raises a
:class:`~tensordict_lite.errors.DatasetError` that names the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import torch

from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.files import open_at_once

META = "meta.json"
LEGACY_META = "meta.pt"  # used by tensordict up to 0.2
SUFFIX = ".memmap"
RUNS = ".tdmap"  # notes of resumable runs about the rows of a dataset
REPLACED = "replaced"  # in that folder: files of the rows were replaced since then
PICKLES = ("other.pickle", "pickle.pkl")  # objects that JSON cannot hold: one per batch, or one per row
TEXTS = ("values.memmap", "offsets.memmap")  # strings, bytes and JSON values, one per row
FORMAT_VERSION = 1

# Entries of meta.json that describe the folder itself. A tensor with such a key is listed in `_entries`.
RESERVED = frozenset({"shape", "device", "_type", "_format_version", "_class", "_names", "_entries", "_growing"})

_DENSE_TYPE = "<class 'tensordict._td.TensorDict'>"
MAX_META_BYTES = 64 << 20
MAX_LEVELS = 500  # maximum depth of folders, limited by Python's recursion
MAX_NAME = 4096  # maximum bytes of a path within a dataset, as for paths on Linux
MAX_DIMS = 64
MAX_BYTES = 1 << 62

ITEMSIZE: dict[str, int] = {
    **{f"torch.{name}": 1 for name in ("bool", "int8", "uint8", "bits8", "bits1x8", "bits2x4", "bits4x2")},
    **{f"torch.float8_{kind}": 1 for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
    **{f"torch.{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
    **{f"torch.{name}": 2 for name in ("float16", "bfloat16", "int16", "uint16", "bits16")},
    **{f"torch.{name}": 4 for name in ("float32", "int32", "uint32", "complex32")},
    **{f"torch.{name}": 8 for name in ("float64", "int64", "uint64", "complex64")},
    "torch.complex128": 16,
    "torch.float4_e2m1fn_x2": 1,
    # Dtypes of newer versions of torch, so that their datasets can be loaded.
    **{str(v): v.itemsize for v in vars(torch).values() if isinstance(v, torch.dtype) and "torch.q" not in str(v)},
}

# -- keys as file names -------------------------------------------------------------------------------------

_SAFE = re.compile(r"[\w.+-]*\w")
_UNSAFE = re.compile(r'[\x00-\x20\x7f"%*/:<>?\\|]')


def encode_key(key: str) -> str:
    """A key as one path component: control characters, spaces and ``"%*/:<>?\\|`` percent-encoded.

    Example:
        >>> encode_key("weird/key"), encode_key(".."), encode_key("")
        ('weird%2Fkey', '%2E%2E', '%')
    """
    if key.isidentifier() or _SAFE.fullmatch(key):  # almost every key, also "layers.0.weight"
        return key
    if key in ("", ".", ".."):
        return "%2E" * len(key) or "%"
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", key)


def is_encodable(key: str) -> bool:
    """Whether a key can be a file name: a lone surrogate cannot."""
    try:
        os.fsencode(key)
    except UnicodeEncodeError:
        return False
    return True


def raw_key(key: str) -> str | None:
    """The key itself if it is a path component that stays inside its folder, else ``None``."""
    return None if key in ("", ".", "..") or "/" in key or "\0" in key else key


# -- metadata -------------------------------------------------------------------------------------------------


class LeafMeta(NamedTuple):
    """One tensor of a folder."""

    dtype: str
    """Name of the dtype, such as ``"torch.float32"``."""
    shape: tuple[int, ...]
    """Its shape; for a nested tensor the shape of the table of shapes, ``(n, dims)``."""
    nbytes: int
    """Bytes of a tensor that is not nested."""
    is_nested: bool = False
    """Whether the elements have separate shapes, in ``<key>.shape.memmap``."""
    layout: str | None = None
    """``"jagged"`` for nested tensors of that layout; ``"ragged"`` for rows with a file of offsets."""
    capacity: int | None = None
    """Rows allocated in the file, if more than in ``shape``; -1 for any number."""
    slack: int = 0
    """Extra bytes allowed at the end of the file: early versions of torch wrote one."""
    values: tuple[int, ...] | None = None
    """For ragged rows, the shape of their concatenation, ``(total, ...)``."""

    @property
    def room(self) -> int | None:
        """Maximum size of the file, if larger than :attr:`nbytes`."""
        if self.capacity is None or not self.shape:
            return self.nbytes + self.slack if self.slack else None
        return MAX_BYTES if self.capacity < 0 else tensor_bytes(self.dtype, (self.capacity, *self.shape[1:]))


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor."""
    total = ITEMSIZE[dtype]
    for n in shape:
        total *= n
    return total


@dataclass(slots=True)
class NodeMeta:
    """One folder, parsed and checked: only its own ``meta.json`` was read."""

    path: str
    kind: str
    """``tensordict``, ``lazystack``, ``nontensor``, ``nontensorstack`` or ``tensorclass``."""
    class_name: str = ""
    """Full name of the class that was saved, from ``_type``."""
    is_foreign: bool = False
    """Whether a dense collection has a class defined by a program, not by the format."""
    shape: tuple[int, ...] = ()
    device: str | None = None
    names: list[str | None] | None = None
    leaves: dict[str, LeafMeta] = field(default_factory=dict)
    children: dict[str, str] = field(default_factory=dict)
    """Nested collections: key -> class name."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The whole of ``meta.json``."""
    types: dict[str, str] = field(default_factory=dict)
    """Arrow types of entries that hold dates and times, see ``TensorDict.arrow_types``."""

    @property
    def is_old(self) -> bool:
        """Whether the version that wrote it is not recorded, as up to tensordict 0.6."""
        return "_format_version" not in self.raw

    @property
    def lists_children(self) -> bool:
        """Whether :attr:`children` lists all nested collections: tensordict 0.3 did not."""
        if not self.is_old or self.children:
            return True
        return any("is_nested" in entry for entry in self.raw.values() if type(entry) is dict)  # since 0.5

    @property
    def is_fixed(self) -> bool:
        """Whether its own ``meta.json`` describes it completely, so that the parsed result can be shared."""
        return self.kind == "tensordict" and self.names is None and "_growing" not in self.raw and self.lists_children

    def at(self, path: str) -> NodeMeta:
        """The same for another folder whose ``meta.json`` has the same content."""
        return NodeMeta(
            path, self.kind, self.class_name, self.is_foreign, self.shape, self.device, self.names, self.leaves,
            self.children, self.raw, self.types,
        )  # fmt: skip

    def keep_rows(self, rows: int) -> None:
        """Keep the rows of a growing dataset that its outermost folder has committed."""
        if self.shape[0] < rows:
            raise DatasetError(self.path, f"has {self.shape[0]} rows, and the parent has committed {rows}")
        self.shape = (rows, *self.shape[1:])
        for key, leaf in self.leaves.items():
            if not leaf.is_nested or leaf.layout == "ragged":
                shape = (rows, *leaf.shape[1:])
                self.leaves[key] = leaf._replace(shape=shape, nbytes=tensor_bytes(leaf.dtype, shape), capacity=-1)


def leaf_meta(dtype: str, shape: tuple[int, ...], is_nested: bool = False, **extra: Any) -> dict[str, Any]:
    """The entry of a tensor in ``meta.json``."""
    out = {"device": "cpu", "shape": list(shape), "dtype": dtype, "is_nested": is_nested}
    if extra:
        out.update({key: value for key, value in extra.items() if value is not None})
    return out


def node_meta(
    entries: dict[str, dict[str, Any]],
    shape: tuple[int, ...],
    names: list[str | None] | None = None,
) -> dict[str, Any]:
    """``meta.json`` of a dense collection, from the entries of its tensors and nested collections."""
    meta: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for key, entry in entries.items():
        (hidden if key in RESERVED else meta)[key] = entry
    meta["shape"] = list(shape)
    meta["device"] = "cpu"
    meta["_type"] = _DENSE_TYPE
    meta["_format_version"] = FORMAT_VERSION
    meta["_class"] = "tensordict:TensorDict"
    if names is not None:
        meta["_names"] = names
    if hidden:
        meta["_entries"] = hidden
    return meta


# -- reading ------------------------------------------------------------------------------------------------


def read_meta(folder: str, *, nested: bool = False, known: dict[bytes, NodeMeta] | None = None) -> NodeMeta:
    """Read and check the ``meta.json`` of a folder.

    Args:
        folder: the folder. With ``nested`` it must be a folder itself, not a link to one.
        known: see :func:`parse_content`.

    Raises:
        DatasetNotFoundError: the folder or its ``meta.json`` does not exist.
        DatasetError: it is invalid.
    """
    path = folder + "/" + META
    if nested:
        _check_folder(folder)
    return parse_content(path, folder, read_small(path, folder), known)


def parse_content(path: str, folder: str, content: bytes, known: dict[bytes, NodeMeta] | None = None) -> NodeMeta:
    """The metadata in the bytes of a ``meta.json``; DatasetError if it is invalid.

    Args:
        path: the file, for messages.
        folder: its folder.
        content: the bytes.
        known: parsed metadata by content; many folders of a model, its layers, have the same.
    """
    if known is None:
        return parse_meta(path, folder, decode_json(path, content))
    same = known.get(content)
    if same is not None:
        return same.at(folder)
    meta = parse_meta(path, folder, decode_json(path, content))
    if meta.is_fixed:
        known[content] = meta
    return meta


def _check_folder(folder: str) -> None:
    try:
        mode = os.lstat(folder).st_mode
    except OSError as err:
        raise DatasetError(folder, f"a nested collection is missing ({err.strerror}); was the copy complete?") from None
    if stat.S_ISLNK(mode):
        raise DatasetError(folder, "is a symbolic link; a dataset is not followed out of its folder")
    if not stat.S_ISDIR(mode):
        raise DatasetError(folder, "is not a folder, though the metadata lists a nested collection there")


def read_json(path: str, folder: str) -> Any:
    """The content of a metadata file: a regular file, not a link, of a plausible size, that holds JSON.

    Raises:
        DatasetNotFoundError: the file does not exist.
        DatasetError: it is another kind of file, too large, or not JSON.
    """
    return decode_json(path, read_small(path, folder))


def read_small(path: str, folder: str, limit: int = MAX_META_BYTES) -> bytes:
    """The bytes of a regular file of a plausible size. Errors as in :func:`read_json`."""
    try:
        fd = open_at_once(path)
    except FileNotFoundError:
        raise DatasetNotFoundError(folder, _absent(path, folder)) from None
    except NotADirectoryError:
        raise DatasetError(folder, "is a file, not the folder of a dataset") from None
    except OSError as err:
        raise DatasetError(path, f"cannot be read ({err.strerror})") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise DatasetError(path, "is not a regular file")
        if info.st_size > limit:
            raise DatasetError(path, f"has {info.st_size:,} bytes, which is not credible (limit {limit:,})")
        data = os.read(fd, info.st_size + 1)
        while len(data) < info.st_size:
            more = os.read(fd, info.st_size - len(data))
            if not more:
                break
            data += more
    finally:
        os.close(fd)
    return data


def _absent(path: str, folder: str) -> str:
    name = os.path.basename(path)
    if name == META and os.path.exists(os.path.join(folder, LEGACY_META)):
        return (
            f"has a {LEGACY_META} and no {META}: tensordict 0.2 or older saved it. Load it with that version and save "
            "it again with a newer one"
        )
    what = f"has no {name}" if os.path.isdir(folder) else "does not exist"
    return f"{what}, so it is not a saved dataset"


def decode_json(path: str, data: bytes) -> Any:
    """The content of a metadata file that has been read; DatasetError if it is not JSON."""
    try:
        text = data.decode()
        value, end = _raw_decode(text)
        return value if end == len(text) else _decode(text)  # spaces may surround it
    except RecursionError:
        raise DatasetError(path, "is nested too deeply to be a dataset") from None
    except ValueError as err:
        reason = "empty" if not data else f"not valid JSON ({str(err)[:100]})"
        raise DatasetError(path, f"is {reason}; it was truncated or edited") from None


_decode, _raw_decode = json.JSONDecoder().decode, json.JSONDecoder().raw_decode
_TYPE = re.compile(r"<class '([^']*)'>")
_KINDS = {
    "tensordict.tensorclass.NonTensorData": "nontensor",
    "tensordict.tensorclass.NonTensorStack": "nontensorstack",
    "tensordict_lite.TextStack": "text",
    "tensordict._lazy.LazyStackedTensorDict": "lazystack",
    "tensordict._td.TensorDict": "tensordict",
    "tensordict.nn.params.TensorDictParams": "tensordict",
}
_KINDS_BY_CLASS = {
    "tensordict:TensorDict": "tensordict",
    "tensordict:LazyStackedTensorDict": "lazystack",
    "tensordict:NonTensorStack": "nontensorstack",
    "tensordict:NonTensorData": "nontensor",
}


def parse_meta(path: str, folder: str, data: Any) -> NodeMeta:
    """The metadata of a folder from the content of its ``meta.json`` at ``path``; DatasetError if it is invalid."""
    if type(data) is not dict:
        raise DatasetError(path, f"the metadata of a collection is an object, found {_short(data)}")
    version = data.get("_format_version", 1)
    if type(version) is not int or not 0 <= version <= FORMAT_VERSION:
        raise DatasetError(
            path,
            f"format version {_short(version)} is not known here (up to {FORMAT_VERSION}); a newer release may be",
        )
    kind, class_name, is_foreign = _kind_of(path, data)
    node = NodeMeta(folder, kind, class_name, is_foreign, raw=data)
    if kind == "tensordict":
        _parse_dense(path, data, node)
    elif kind in ("lazystack", "nontensorstack"):
        _check_stack_dim(path, data.get("stack_dim"))
    return node


def _kind_of(path: str, data: dict[str, Any]) -> tuple[str, str, bool]:
    """Kind, class name, and whether a program defined that class."""
    written = data.get("_type")
    if written == _DENSE_TYPE:
        return "tensordict", "tensordict._td.TensorDict", False
    if data.get("_is_non_tensor") is True:
        return "nontensor", "tensordict.tensorclass.NonTensorData", False
    match = _TYPE.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        raise DatasetError(path, f"'_type' should be the class that was saved, found {_short(written)}")
    name = match[1]
    kind = _KINDS.get(name)
    if kind is None:
        label = data.get("_class")
        kind = _KINDS_BY_CLASS.get(label) if isinstance(label, str) else None
    if kind is None and name.rpartition(".")[2] == "_SubTensorDict":
        raise DatasetError(
            path, "holds a view of another collection (_SubTensorDict); save `td.to_tensordict()` instead"
        )
    if kind is not None:
        return kind, name, False
    if "shape" in data and "device" in data:
        return "tensordict", name, not name.startswith(("tensordict.", "tensordict_lite."))
    return "tensorclass", name, False


def _parse_dense(path: str, data: dict[str, Any], node: NodeMeta) -> None:
    node.shape = check_shape(path, data.get("shape"), "batch size")
    node.device = check_device(path, data.get("device"))
    node.names = check_names(path, data.get("_names"), len(node.shape))
    if "_growing" in data and (not is_count(data["_growing"], MAX_BYTES) or not node.shape):
        raise DatasetError(path, f"'_growing' should be the number of rows with room, found {_short(data['_growing'])}")
    hidden = data.get("_entries", {})
    if type(hidden) is not dict:
        raise DatasetError(path, f"'_entries' should be an object, found {_short(hidden)}")
    batch, leaves = node.shape, node.leaves
    for key, entry in data.items():
        if type(entry) is dict and key not in RESERVED:
            leaf = _plain_leaf(entry, batch) if key.isidentifier() else None
            if leaf is None:
                _parse_entry(path, key, entry, node)
            else:
                leaves[key] = leaf
    for key, entry in hidden.items():
        if type(entry) is not dict:
            raise DatasetError(path, f"the entry {key!r} should be an object, found {_short(entry)}")
        _parse_entry(path, key, entry, node)
    if node.is_old:
        node.leaves = {key: leaf._replace(slack=1) for key, leaf in leaves.items()}


def _plain_leaf(entry: dict[str, Any], batch: tuple[int, ...]) -> LeafMeta | None:
    """The entry of an ordinary tensor, checked at once; ``None`` for others and for invalid ones."""
    if len(entry) != 4 or entry.get("is_nested") is not False or "device" not in entry:
        return None
    dtype, shape = entry.get("dtype"), entry.get("shape")
    nbytes = ITEMSIZE.get(dtype) if type(dtype) is str else None
    if nbytes is None or type(shape) is not list or len(shape) > MAX_DIMS:
        return None
    for n in shape:
        if type(n) is not int or n <= 0:
            return None
        nbytes *= n
    size = tuple(shape)
    if nbytes >= MAX_BYTES or (batch and size[: len(batch)] != batch):
        return None
    return _new_tuple(LeafMeta, (dtype, size, nbytes, False, None, None, 0, None))


_new_tuple = tuple.__new__  # takes a third of the time of the named tuple's constructor


def _parse_entry(path: str, key: str, entry: dict[str, Any], node: NodeMeta) -> None:
    if not key.isidentifier() and not is_encodable(key):
        raise DatasetError(path, f"the key {_short(key)} is not text, and no file has such a name")
    child = entry.get("type")
    if isinstance(child, str):
        node.children[key] = child
        return
    dtype = entry.get("dtype")
    if type(dtype) is not str or dtype not in ITEMSIZE:
        raise DatasetError(path, f"{key!r} has the unknown dtype {_short(dtype)}")
    batch = node.shape
    shape = check_shape(path, entry.get("shape"), key)
    nbytes = tensor_bytes(dtype, shape)
    if nbytes >= MAX_BYTES or (not nbytes and tensor_bytes(dtype, tuple(n or 1 for n in shape)) >= MAX_BYTES):
        raise DatasetError(path, f"{key!r} of shape {list(shape)} would have {nbytes:,} bytes")
    is_nested = entry.get("is_nested", False)
    if type(is_nested) is not bool:
        raise DatasetError(path, f"'is_nested' of {key!r} should be true or false, found {_short(is_nested)}")
    layout = entry.get("layout")
    if layout not in (None, "jagged", "strided", "ragged"):
        raise DatasetError(path, f"{key!r} has the unknown layout {_short(layout)}")
    capacity = entry.get("capacity")
    if capacity is not None and not is_count(capacity, MAX_BYTES):
        raise DatasetError(path, f"'capacity' of {key!r} should be a number of rows, found {_short(capacity)}")
    if is_nested and len(shape) != 2:
        raise DatasetError(path, f"the shapes of the nested tensor {key!r} should be two-dimensional: {list(shape)}")
    values = None
    if layout == "ragged":
        values = check_shape(path, entry.get("values"), f"the values of {key}")
        if not is_nested or len(values) != shape[1] or tensor_bytes(dtype, tuple(n or 1 for n in values)) >= MAX_BYTES:
            raise DatasetError(
                path, f"the rows of {key!r} cannot have the shape {list(shape)} and values {list(values)}"
            )
    lead = shape[:1] if is_nested else shape
    if lead[: len(batch)] != batch[: len(lead)] or (not is_nested and len(lead) < len(batch)):
        raise _no_batch(path, key, shape, batch)
    arrow = entry.get("arrow")
    if arrow is not None:
        if not isinstance(arrow, str) or not 0 < len(arrow) <= MAX_NAME:
            raise DatasetError(path, f"'arrow' of {key!r} should be the name of a type, found {_short(arrow)}")
        node.types[key] = arrow
    node.leaves[key] = LeafMeta(dtype, shape, nbytes, is_nested, layout, capacity, 0, values)


def _no_batch(path: str, key: str, shape: tuple[int, ...], batch: tuple[int, ...]) -> DatasetError:
    return DatasetError(path, f"{key!r} of shape {list(shape)} does not start with the batch size {list(batch)}")


def check_shape(path: str, value: Any, what: str) -> tuple[int, ...]:
    """A shape from JSON; DatasetError if it is invalid."""
    if type(value) is not list or len(value) > MAX_DIMS:
        raise DatasetError(path, f"{what!r} should have a list of dimensions, found {_short(value)}")
    for n in value:
        if type(n) is not int or not 0 <= n < MAX_BYTES:
            raise DatasetError(path, f"{what!r} has the impossible shape {_short(value)}")
    return tuple(value)


def check_device(path: str, value: Any) -> str | None:
    """The name of a device from JSON; DatasetError if it is invalid."""
    if value == "cpu" or value is None:
        return value
    if value == "None":  # as tensordict 0.3.0 wrote it
        return None
    if type(value) is not str or not re.fullmatch(r"[a-z_]{1,32}(:\d{1,5})?", value):
        raise DatasetError(path, f"'device' should be the name of a device, found {_short(value)}")
    return value


def check_names(path: str, value: Any, dims: int) -> list[str | None] | None:
    """Names of dimensions from JSON, ``None`` if there are none; DatasetError if they do not fit."""
    if value is None:
        return None
    if type(value) is not list or len(value) != dims or not all(n is None or type(n) is str for n in value):
        raise DatasetError(path, f"'_names' should have a name or null for each of {dims} dimensions: {_short(value)}")
    given = [n for n in value if n is not None]
    if len(set(given)) != len(given):
        raise DatasetError(path, f"the dimension names {_short(value)} are not distinct")
    return value if given else None


def _check_stack_dim(path: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < MAX_DIMS:
        raise DatasetError(path, f"'stack_dim' should be a dimension, found {_short(value)}")


def check_leaf_file(path: str, nbytes: int, *, room: int | None = None) -> None:
    """Check that the file of a tensor is a regular file of the size in the metadata.

    Args:
        path: the file. It may be missing if the tensor is empty.
        nbytes: the expected size.
        room: the maximum size; ``nbytes`` by default.

    Raises:
        DatasetError: it is missing, a link, or of another size.
    """
    try:
        info = os.lstat(path)
    except OSError as err:
        if not nbytes and isinstance(err, FileNotFoundError):
            return
        raise DatasetError(path, f"the file of a tensor is missing ({err.strerror}); was the copy complete?") from None
    if not stat.S_ISREG(info.st_mode):
        what = (
            "a symbolic link; a dataset is not followed out of its folder" if stat.S_ISLNK(info.st_mode) else "no file"
        )
        raise DatasetError(path, f"is {what}")
    check_size(path, info.st_size, nbytes, room)


def check_size(path: str, found: int, nbytes: int, room: int | None = None) -> None:
    """Raise DatasetError if the file is smaller than the tensor, or larger than ``room`` (by default, the tensor)."""
    if found < nbytes:
        raise DatasetError(path, f"is truncated: the metadata describes {nbytes:,} bytes, the file has {found:,}")
    if found > (nbytes if room is None else max(nbytes, room)):
        raise DatasetError(path, f"does not fit the metadata, which describes {nbytes:,} bytes: the file has {found:,}")


def is_count(value: Any, limit: int) -> TypeGuard[int]:
    """Whether a value from JSON is a count up to a limit."""
    return type(value) is int and 0 <= value <= limit


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
