"""Digests of functions and datasets that are the same in every process, to tell whether a run may be resumed.

    function ──► {"its code": ..., "its global SIZE": ..., "its module images": ..., "its package torch": ...}
    dataset  ──► {"('obs', 'image')": "uint8 [1000, 3, 64, 64], image.memmap, 12288000 bytes, changed at ..."}

Both are mappings of a part to its digest or description, so that a mismatch can name the part.

What a function does is its bytecode, its constants, defaults and closure, and what its code names. Functions and
classes of its own module are followed, each to a part of its own; other modules of the user's count by their source,
with the modules that they import; installed packages by their version (see `tdmap.run.digests`).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import Data
from tdmap.data.reader import rows_of
from tdmap.functions import Numbered, Returning
from tdmap.memory.files import written_at
from tdmap.run.digests import Contents, code_parts, digest_alone
from tdmap.user_code import OWN_PACKAGES
from tensordict_lite.memmap.disk.mapping import is_reachable, region_of
from tensordict_lite.ragged import is_ragged
from tensordict_lite.views import is_leaf_nontensor

OWN = "its "
"""How the names of parts of a function begin: what a version stands for."""

VERSION, PACKAGE = f"{OWN}version", f"{OWN}package "
"""The part that is the version of a function; how names of those begin that hold versions of installed packages."""

F = TypeVar("F", bound=Callable[..., Any])


def versioned(version: str) -> Callable[[F], F]:
    """Identify a function by a version, instead of its code and what it holds, when a call is resumed.

    Without a version, `resume=` raises after any change of the function, of functions and classes of its module that it
    uses, and of your other modules that these import. With a version, only the version and the arguments of a
    `functools.partial` count: change the version when results change.

    Args:
        version: any string. The message of `ResumeMismatch` names the version that resumes the run.

    Returns:
        A decorator of functions and classes that returns its argument.

    Example:
        >>> import tdmap
        >>> @tdmap.versioned("2")
        ... def crop(chunk):
        ...     return chunk[:, :10]
        >>> function_parts(crop)
        {'its version': '2'}
    """
    if not isinstance(version, str):
        raise TypeError(f"versioned() takes the version as text: got {version!r}. Decorate with @versioned('1').")

    def decorate(fn: F) -> F:
        try:
            fn.tdmap_version = version  # type: ignore[attr-defined]
        except AttributeError:
            raise TypeError(
                f"versioned() sets an attribute, which a {type(fn).__name__} does not have: decorate the function or "
                "class where it is defined."
            ) from None
        return fn

    return decorate


def function_parts(fn: Any) -> dict[str, str]:
    """The parts that a function consists of, each with its digest, and a version that stands for those.

    Args:
        fn: a function, a bound method, a partial, or any callable object; one with a method `identity_parts` says
            itself what it consists of. Tensors and arrays that it refers to count by their content, those of more than
            64 MiB by pieces of it.

    Example:
        >>> import functools, torch
        >>> list(function_parts(functools.partial(torch.clamp, min=0)))
        ['function its version', 'function its callable', 'function its package torch', 'argument min']
    """
    version = getattr(fn, "tdmap_version", None)
    if isinstance(version, str):
        return {VERSION: version}
    if hasattr(type(fn), "identity_parts"):
        return dict(fn.identity_parts())
    if isinstance(fn, Returning):  # it adds nothing
        return function_parts(fn.fn)
    if isinstance(fn, Numbered):
        return {**function_parts(fn.fn), "with_indices": "True"}
    if isinstance(fn, functools.partial):
        given = {str(number): value for number, value in enumerate(fn.args)} | fn.keywords
        parts = {f"function {name}": value for name, value in function_parts(fn.func).items()}
        return parts | {f"argument {name}": digest_alone(value) for name, value in given.items()}
    if type(fn).__module__.partition(".")[0] in OWN_PACKAGES and hasattr(fn, "__dict__"):
        # The engine's, around a function of the user's.
        parts = {"class": type(fn).__qualname__}
        for name, value in sorted(vars(fn).items()):
            found = function_parts(value) if callable(value) and not isinstance(value, type) else {}
            parts |= {f"{name}, {part}": digest for part, digest in found.items()}
            parts |= {} if found else {f"attribute {name}": _digest(value)}
        return parts
    parts = {f"{OWN}{name}": digest for name, digest in code_parts(fn).items()}
    text = repr(sorted(part for part in parts.items() if not part[0].startswith(PACKAGE)))
    return {VERSION: f"#{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}", **parts}


def without_versioned(parts: Mapping[str, str]) -> dict[str, str]:
    """Parts without those that a version stands for."""
    known = tuple(part.removesuffix(VERSION) + OWN for part in parts if part.endswith(VERSION))
    return {part: value for part, value in parts.items() if part.endswith(VERSION) or not part.startswith(known)}


def _digest(value: object) -> str:
    """The digest of data, all of it."""
    return digest_alone(value, Contents(whole_bytes=None))


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
    parts: dict[str, str] = {}
    for name, identity in rows_of(data).identities():
        if isinstance(identity, str):
            parts[name] = identity
            continue
        prefix = f"{name}, " if name else ""
        for key, leaf in _leaves(identity):
            name = repr(key[0] if isinstance(key, tuple) and len(key) == 1 else key)
            parts[prefix + name] = _describe_leaf(leaf, contents)
    return parts


def _leaves(data: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, Tensor):
        yield "the tensor", data
    else:
        for key in data.keys(True, True, is_leaf_nontensor):
            try:
                yield key, data.get(key)
            except RuntimeError:  # members of a lazy stack that differ in shape
                yield key, data.get(key, as_list=True)


def _describe_leaf(leaf: Any, contents: bool) -> str:
    if type(leaf) is list:
        return f"{len(leaf)} rows, content {_digest([_describe_leaf(row, contents) for row in leaf])}"
    if not isinstance(leaf, Tensor):
        if is_ragged(leaf):
            return f"{leaf.kind} {', '.join(_describe_leaf(tensor, contents) for tensor in leaf.flat())}"
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
