"""Digests of functions and datasets that are the same in every process, to tell whether a run may be resumed.

    function ──► {"code": ..., "default 0": ..., "global SIZE": ..., "helper images.crop": ..., "package torch": ...}
    dataset  ──► {"('obs', 'image')": "uint8 [1000, 3, 64, 64], image.memmap, 12288000 bytes, changed at ..."}

Both are mappings of a part to its digest or description, so that a mismatch can name the part.

What a function does is its bytecode, its constants, defaults and closure, and what its code names: globals, attributes
of modules, what it imports while it runs. Functions and classes of the user's own modules are followed, each to a part
of its own (see `tdmap.identity.walk`); those of installed packages count by the version of the package.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import Data, is_opened_by_row
from tdmap.identity.walk import Reached, function_pieces
from tdmap.memory.files import written_at
from tdmap.memory.regions import is_reachable, region_of
from tdmap.user_code import is_users_own
from tensordict_lite import Ragged
from tensordict_lite.views import is_leaf_nontensor

PACKAGE = "package "
"""Parts with such names hold versions of installed packages."""


def function_parts(fn: Any) -> dict[str, str]:
    """The parts that a function consists of, each with its digest.

    Args:
        fn: a function, a bound method, a partial, or any callable object; one with a method `identity_parts` says
            itself what it consists of. Tensors and arrays that it refers to count by their content, those of more than
            64 MiB by pieces of it.

    Example:
        >>> import functools, torch
        >>> list(function_parts(functools.partial(torch.clamp, min=0)))
        ['function callable', 'function package torch', 'argument min']
    """
    if hasattr(type(fn), "identity_parts"):
        return dict(fn.identity_parts())
    if isinstance(fn, functools.partial):
        parts = {f"function {name}": value for name, value in function_parts(fn.func).items()}
        given = {f"argument {number}": value for number, value in enumerate(fn.args)}
        return parts | _digests(given | {f"argument {name}": value for name, value in fn.keywords.items()})
    if isinstance(fn, types.MethodType):
        return _digests({"object": fn.__self__}) | function_parts(fn.__func__)
    if isinstance(fn, types.FunctionType) and is_users_own(fn.__globals__.get("__name__")):
        return _parts_of(fn)
    plain = isinstance(fn, (types.FunctionType, types.BuiltinFunctionType, type, torch.jit.ScriptFunction))
    if plain or not hasattr(fn, "__dict__") or hasattr(fn, "__wrapped__"):
        return _digests({"callable": fn})
    if isinstance(fn, torch.nn.Module):
        return _digests({"class": type(fn), "module": fn})
    values: dict[str, Any] = {"class": type(fn)}
    inner: dict[str, str] = {}
    for name, value in sorted(vars(fn).items()):
        if isinstance(value, (types.FunctionType, functools.partial)) or hasattr(type(value), "identity_parts"):
            inner |= {f"{name}: {part}": digest for part, digest in function_parts(value).items()}
        else:
            values[f"attribute {name}"] = value
    return _digests(values) | inner


def _parts_of(fn: types.FunctionType) -> dict[str, str]:
    reached = Reached()
    reached.skip(fn)
    parts = {name: reached.digest_of(add) for name, add in function_pieces(fn)}
    reached.add_imports(fn)
    return parts | reached.settle()


def _digests(values: dict[str, Any]) -> dict[str, str]:
    """Digests of values, and the parts that they lead to."""
    reached = Reached()
    parts = {name: reached.digest(value) for name, value in values.items()}
    return parts | reached.settle()


def _digest(value: Any) -> str:
    """The digest of data, all of it."""
    return Reached(bounded=False).digest(value)


def _digest_objects(values: Any) -> str:
    """As `_digest`, of strings in millions at a fifth of the time."""
    if isinstance(values, list) and set(map(type, values)) == {str}:
        values = ("strings", np.fromiter(map(len, values), np.int64, len(values)), "".join(values))
    return _digest(values)


def source_parts(data: Data, contents: bool = True) -> dict[str, str]:
    """What a dataset consists of: for each tensor its key, dtype, shape and file, or a digest of its content.

    Args:
        data: a tensor or a collection.
        contents: tell one content from another: by the time when a file was last written (see `written_at`), or by
            a digest of memory. False for a dataset that the run itself changes.
    """
    if is_opened_by_row(data):
        return _member_parts(data, contents)
    return {_key_name(key): _describe_leaf(leaf, contents) for key, leaf in _leaves(data)}


def _member_parts(data: Data, contents: bool) -> dict[str, str]:
    """What a dataset of several folders consists of: each of them, and the entries that are read of it."""
    parts = {"entries": ", ".join(sorted(map(str, data.keys(True, True))))}
    for name, identity in data.member_identities():
        if isinstance(identity, str):
            parts[name] = identity
        else:
            parts |= {f"{name}, {key}": text for key, text in source_parts(identity, contents).items()}
    return parts


def _leaves(data: Data) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, Tensor):
        yield "the tensor", data
    else:
        yield from data.items(True, True, is_leaf_nontensor)


def _key_name(key: Any) -> str:
    return repr(key) if not isinstance(key, tuple) or len(key) > 1 else repr(key[0])


def _describe_leaf(leaf: Any, contents: bool) -> str:
    if isinstance(leaf, Ragged) and leaf.column is not None:
        return f"{leaf.kind} {', '.join(_describe_leaf(tensor, contents) for tensor in leaf.flat())}"
    if not isinstance(leaf, Tensor):
        text = f"{type(leaf).__name__} {list(leaf.shape)}"
        return f"{text}, content {_digest_objects(leaf.tolist())}" if contents else text
    # The symbol that stands for a ragged length is another one in each process.
    shape = f"nested, {leaf.dim()} dimensions" if leaf.is_nested else list(leaf.shape)
    text = f"{str(leaf.dtype).removeprefix('torch.')} {shape}"
    if leaf.is_nested or leaf.layout is not torch.strided:
        return f"{text}, content {_digest(leaf)}" if contents else f"{text}, in memory"
    plain = leaf.as_subclass(Tensor) if type(leaf) is not Tensor else leaf
    region = region_of(plain)
    # Of a file in whose place a save has put another one since it was mapped, the rows are in memory only.
    if region is None or region.handle.anonymous or not is_reachable(region.handle, plain.untyped_storage()):
        return f"{text}, content {_digest(plain)}" if contents else f"{text}, in memory"
    path = region.handle.path
    text += f", {os.path.basename(path)} from element {region.offset}, strides {list(region.stride)}"
    text += f", {os.path.getsize(path)} bytes" + ", conjugated" * leaf.is_conj() + ", negated" * leaf.is_neg()
    if not contents:
        return text
    written = written_at(path)
    return f"{text}, content {_digest(plain)}" if written is None else f"{text}, written at {written}"
