"""Draw a line of ``expressions.py`` over a kind of ``kinds.py`` in both libraries, and say where the answers part.

Compared are the value (type, batch size, names, device, lock, keys, leaves), the type of an exception, what became of
``x``, whether the answer is ``x`` itself, and which leaves of the answer share memory with which leaves of ``x``.
"""

import collections
import contextlib
import copy
import dataclasses
import functools
import math
import operator
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
import torch

from tests.differential.harness import Outcome, difference
from tests.differential.harness.namespace import PROJECT, REFERENCE, load
from tests.differential.harness.snapshot import snapshot
from tests.differential.interface.expressions import Expression
from tests.differential.interface.kinds import CLASS_NAMES, CLASSES, KINDS


def parts(expression: Expression, kind: str) -> list[str]:
    """Where the two libraries part, in words; empty when they agree."""
    return difference(answer(expression.source, kind, REFERENCE), answer(expression.source, kind, PROJECT),
                      expression.case.relaxation)  # fmt: skip


def answer(source: str, kind: str, library: str) -> Outcome:
    """What a line gives of a fresh collection of the kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory(prefix="interface-") if "folder" in source else contextlib.nullcontext() as at:
            x = _made(kind, library)
            scope = {**_scope(library), "x": x, "size": tuple(x.batch_size), "folder": at}
            if re.search(r"\by\b", source):
                scope["y"] = _made(kind, library)
            torch.default_generator.manual_seed(0)  # `torch.manual_seed` formats its stack each time
            before = _leaves(x)
            try:
                value = eval(_compiled(source), scope)
                described = (snapshot(value), value is x, _shared(value, before))
                return Outcome(described, {"x": snapshot(x)})
            except Exception as error:
                return Outcome(error=error)


def _made(kind: str, library: str) -> Any:
    return eval(_compiled(KINDS[kind]), _scope(library))


@functools.cache
def _compiled(source: str) -> CodeType:
    return compile(source, f"<{source}>", "eval", dont_inherit=True)


@dataclasses.dataclass
class Point:
    """For ``from_dataclass``."""

    a: torch.Tensor


@functools.cache
def _scope(library: str) -> dict[str, Any]:
    lib = load(library)
    scope = {name: getattr(lib, name) for name in dir(lib) if not name.startswith("_")}
    scope.update(
        TD=lib.TensorDict, Params=scope.get("TensorDictParams"), torch=torch, math=math, np=np, nn=torch.nn, copy=copy,
        pickle=pickle, collections=collections, Point=Point, with_of=_with_of, saved=_saved,
        delitem=operator.delitem, __name__=__name__,
    )  # fmt: skip
    made = dict(scope)
    exec(compile(CLASSES, "<classes>", "exec", dont_inherit=True), made)
    scope.update({name: made[name] for name in CLASS_NAMES})
    return scope


def _with_of(view: Any, call: Callable[[Any], Any]) -> Any:
    """What ``call`` gives within ``with view``."""
    with view as inner:
        return call(inner)


def _saved(x: Any, folder: str) -> str:
    x.memmap(folder, copy_existing=True)
    return folder


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], torch.Tensor]]:
    """The tensors below a value with their paths; the members of a lazy stack by number."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in _leaves(item, (*path, i))]
    if isinstance(value, type) or not (isinstance(value, dict) or hasattr(value, "batch_size")):
        return []
    if hasattr(value, "tensordicts"):
        return _leaves(list(value.tensordicts), path)
    return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]


def _shared(value: Any, before: list[tuple[Any, torch.Tensor]]) -> list[tuple[str, str]]:
    """Which leaves of the answer lie in the memory of which leaves of the tree."""
    owners = {_memory(leaf): path for path, leaf in before}
    owners.pop(0, None)
    pairs = ((path, owners.get(_memory(leaf))) for path, leaf in _leaves(value))
    return sorted((str(path), str(owner)) for path, owner in pairs if owner is not None)


def _memory(leaf: torch.Tensor) -> int:
    try:
        return leaf.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
