"""Whether a result can go where it should, and what is said when it cannot."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import Data, KeyPath, has_members, is_data, is_dense, key_name
from tdmap.errors import OutputMismatch
from tdmap.plan import ChunkPlan
from tensordict_lite import is_non_tensor
from tensordict_lite.objects.data import same_payload

if TYPE_CHECKING:
    from tensordict_lite import LazyStackedTensorDict


def not_a_collection(out: Data, result: Data) -> OutputMismatch:
    """The error for a tensor where a collection is wanted, or the other way round."""
    return OutputMismatch(
        f"out is a {type(out).__name__} and the function returned a {type(result).__name__}: "
        "both must be tensors, or both collections of tensors."
    )


def check_rows(out: Data, plan: ChunkPlan, source_shape: Sequence[int]) -> None:
    """Raise OutputMismatch unless `out` has the plan's rows along its dimension."""
    shape = tuple(out.shape)
    if len(shape) <= plan.dim or shape[plan.dim] != plan.length:
        raise OutputMismatch(
            f"out must have {plan.length} rows along dimension {plan.dim}, like the data of shape "
            f"{tuple(source_shape)}: got an out of shape {shape}."
        )


CLOSE = 0.75
"""Names that are more alike than this (`difflib`) are taken for one that is misspelt."""

Names: TypeAlias = "dict[str, Names | None]"
"""The names of a collection's entries, level by level; None for what has none."""


def names_of(data: Data) -> Names | None:
    """The names of the entries of a collection: of a lazy stack, those that any member has."""
    if has_members(data):
        return dict.fromkeys(key for member in data.unbind(data.stack_dim) for key in member.keys()) or None
    if not is_dense(data):
        return None
    return {key: names_of(value) for key, value in data._source.items()}


def misnamed(names: Names, result: Data, in_place: bool, path: KeyPath = ()) -> OutputMismatch | None:
    """The error for a result of which an entry would be lost for its name; None when nothing is wrong.

    A result need not have every entry of an output, and may have others. But an entry that the output lacks, with
    nearly the name of one that the result lacks, is misspelt; and so is a result without any entry of the output. In
    place, nothing may be lost at all.

    Args:
        names: of the output's entries.
        result: what the function returned.
        in_place: the output is the source.
        path: where both are in their trees.
    """
    theirs = result._source if is_dense(result) else dict.fromkeys(result.keys())
    extra = sorted(key for key in theirs if key not in names)
    missing = sorted(key for key in names if key not in theirs)
    if extra and in_place:
        return _no_room(extra, path)
    if extra:
        close = ((name, difflib.get_close_matches(name, missing, 1, CLOSE)) for name in extra)
        meant = next(((name, found[0]) for name, found in close if found), None)
        if meant is not None or len(extra) == len(theirs):
            return _misspelt(names, theirs, meant, path)
    for key, below in names.items():
        inner = theirs.get(key)
        if below is not None and inner is not None and is_dense(inner):
            error = misnamed(below, inner, in_place, (*path, key))
            if error is not None:
                return error
    return None


def _misspelt(names: Names, theirs: Iterable[str], meant: tuple[str, str] | None, path: KeyPath) -> OutputMismatch:
    where = f" in {key_name(path)}" if path else ""
    found = f"the function returned the entries {sorted(theirs)}{where}, and "
    hint = f" Did you mean {meant[1]!r} instead of {meant[0]!r}?" if meant else ""
    if names.keys().isdisjoint(theirs):
        return OutputMismatch(f"{found}none of them is in out, which has {sorted(names)}.{hint}")
    assert meant is not None
    return OutputMismatch(
        f"{found}out has {sorted(names)}: {meant[0]!r} would be lost, and {meant[1]!r} would not "
        f"change.{hint} Rename it, or leave it out of the result (result.exclude({meant[0]!r}))."
    )


def _no_room(extra: list[str], path: KeyPath) -> OutputMismatch:
    key = key_name((*path, extra[0]))
    return OutputMismatch(
        f"the function returned the new entry {key}, and out=data changes a dataset in place, which has no room for "
        "it. Pass out='folder' for a new dataset, or make the entry before the call: "
        f"data.make_memmap({key}, shape=..., dtype=...) on disk, data[{key}] = torch.zeros(...) in memory."
    )


RAGGED = "; rows of different lengths are a tensordict_lite.Ragged"
"""For messages about two shapes of as many dimensions."""


def not_alike(
    difference: str, where: str = "", what: str = "results", purpose: str = "to go into one dataset", advice: str = ""
) -> OutputMismatch:
    """The error for rows that do not look like others with which they belong together.

    Args:
        difference: in words, from `describe_difference` or `Schema.difference`.
        where: which rows.
        what: how they are called.
        purpose: why they must be alike.
        advice: what to do.
    """
    where = f"{where}: " if where else ""
    return OutputMismatch(f"{where}{what} must look alike {purpose}, and {difference}.{' ' if advice else ''}{advice}")


def unlike_the_others(rows: Data, result: Data, objects: Iterable[KeyPath] = ()) -> OutputMismatch:
    """The error for a result that has not the schema of those that came before."""
    return not_alike(describe_difference(rows, result, objects=objects))


def wrong_shape(key: str, wanted: Sequence[int], found: Sequence[int], whose: str) -> OutputMismatch:
    """The error for rows of another shape than those of the output."""
    return OutputMismatch(
        f"{key}: out has shape {tuple(wanted)} for {whose} shape {tuple(found)}. Change the function, "
        "allocate out with its shape, or call without out=."
    )


def check_dtype(key: str, wanted: torch.dtype, found: torch.dtype, whose: str) -> None:
    """Raise OutputMismatch unless rows of one dtype may go into an output of another.

    That a cast is safe for their values too is seen when they are there, by `cast`.
    """
    if not torch.can_cast(found, wanted):
        raise OutputMismatch(
            f"{key}: out has dtype {wanted}, and {whose} {found}, which cannot be cast to it safely. Convert "
            f"the result, or allocate out with dtype {found}."
        )


def fits(rows: Data, result: Data) -> bool:
    """Whether `result`, without objects, has exactly the keys, shapes, dtypes, times and type of `rows`."""
    if isinstance(rows, Tensor):
        return (
            isinstance(result, Tensor)
            and result.dtype is rows.dtype
            and result.shape == rows.shape
            and result.layout is torch.strided
        )
    if type(rows) is not type(result) or result._batch_size != rows._batch_size or not is_dense(rows):
        return False
    ours = rows._source
    theirs = result._source
    if len(ours) != len(theirs) or rows._types != result._types:
        return False
    for key, value in ours.items():
        other = theirs.get(key)
        if other is None or not fits(value, other):
            return False
    return True


def check_fit(rows: Data, result: Data, path: KeyPath = ()) -> None:
    """Raise OutputMismatch unless the leaves of `result` can be copied into the same leaves of `rows`."""
    if isinstance(rows, Tensor):
        cast(check_leaf(rows, result, path), rows.dtype, path)
        return
    if is_dense(rows):
        for key, dst in rows._source.items():
            src = result._source.get(key) if is_dense(result) else result.get(key, None)
            if src is not None:
                check_fit(dst, src, (*path, key))
    elif has_members(rows):
        for member, part in member_pairs(rows, result, path):
            check_fit(member, part, path)


def member_pairs(rows: LazyStackedTensorDict, result: Data, path: KeyPath) -> list[tuple[Data, Data]]:
    """The members of a lazy stack, each with what a result has for it.

    Raises:
        OutputMismatch: the result is no collection, or has another number of rows.
    """
    if isinstance(result, Tensor) or not is_data(result):
        raise not_a_collection(rows, result)
    dim = rows.stack_dim
    if len(result.shape) <= dim or result.shape[dim] != rows.shape[dim]:
        raise wrong_shape(key_name(path), rows.shape, result.shape, "these rows and the function returned")
    return list(zip(rows.unbind(dim), result.unbind(dim)))


def check_leaf(dst: Tensor, src: Data, path: KeyPath) -> Tensor:
    """`src`, if it can be copied into `dst` without loss of kind; else raise OutputMismatch."""
    key = key_name(path)
    if not isinstance(src, Tensor):
        raise OutputMismatch(f"{key}: out holds a tensor and the function returned {_kind(src)}.")
    if src.shape != dst.shape:
        raise wrong_shape(key, dst.shape, src.shape, "these rows and the function returned")
    check_dtype(key, dst.dtype, src.dtype, "the function returned")
    return src


def cast(src: Tensor, dtype: torch.dtype, path: KeyPath) -> Tensor:
    """`src` in another dtype, if that has room for its values. Rounding is what a smaller dtype is for.

    Raises:
        OutputMismatch: an integer would wrap, or a finite number become infinite; names the value.
    """
    found = src.to(dtype)
    if _has_room(src.dtype, dtype) or not src.numel():
        return found
    if dtype.is_floating_point or dtype.is_complex:
        wide = found if dtype.itemsize > 1 else found.to(torch.float32)
        bad = ~torch.isfinite(wide) & torch.isfinite(src)
    else:
        before, after = src.to(torch.int64), found.to(torch.int64)
        bad = before != after
        if torch.uint64 in (src.dtype, dtype):  # whose upper half has the bits of negative numbers
            bad |= before < 0
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise OutputMismatch(
            f"{key_name(path)}: out has dtype {dtype}, and the function returned {src.dtype} with the value "
            f"{src[at].item()}, for which that has no room (it would become {found[at].item()}). Allocate out with "
            f"{src.dtype}, or clamp in the function."
        )
    return found


def _has_room(src: torch.dtype, dst: torch.dtype) -> bool:
    if dst.is_floating_point and dst.itemsize < 4 and dst is not torch.bfloat16 and not src.is_floating_point:
        return src.itemsize == 1
    try:
        return torch.promote_types(src, dst) is dst
    except RuntimeError:  # dtypes that have nothing in common
        return False


def _kind(value: Data) -> str:
    if is_non_tensor(value):
        return "Python objects (strings, or numbers with None among them)"
    return f"a {type(value).__name__}"


def describe_difference(rows: Data, result: Data, path: KeyPath = (), objects: Iterable[KeyPath] = ()) -> str:
    """What a result has that the rows it should go to have not, or the other way round, in words.

    Args:
        rows: what the others look like.
        result: the one that differs.
        path: where both are.
        objects: entries that the others have as Python objects, and `rows` lacks.
    """
    key = key_name(path, "this one")
    if isinstance(rows, Tensor) and isinstance(result, Tensor):
        ours, theirs = (f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in (rows, result))
        lengths = rows.dtype is result.dtype and rows.dim() == result.dim() > 0
        return f"{key} is {theirs} where the others are {ours}{RAGGED if lengths else ''}"
    if not (is_dense(rows) and is_dense(result)) or type(rows) is not type(result):
        return f"{key} is {_kind(result)} where the others are {_kind(rows)}"
    here = {where[0] for where in objects if len(where) == 1}
    mine, other = set(rows._source) | here, set(result._source)
    if mine != other:
        extra, missing = sorted(other - mine), sorted(mine - other)
        parts = [f"{what} {names}" for what, names in (("has also", extra), ("lacks", missing)) if names]
        return f"{key} {' and '.join(parts)}"
    if rows._batch_size != result._batch_size:
        return f"{key} has batch size {tuple(result.shape)} where {tuple(rows.shape)} is wanted"
    for name, value in result._source.items():
        own = rows._source.get(name)
        if name in here and own is None:
            if not is_non_tensor(value):
                return f"{name!r} is {_kind(value)} where the others are Python objects"
        elif not (is_non_tensor(own) and is_non_tensor(value)) and not fits(own, value):
            below = [where[1:] for where in objects if len(where) > 1 and where[0] == name]
            return describe_difference(own, value, (*path, name), below)
    times = [node._types or {} for node in (result, rows)]
    for name in {**times[0], **times[1]}:
        found, wanted = (known.get(name, "plain numbers") for known in times)
        if found != wanted:
            return f"{name!r} is {found} where the others are {wanted}"
    return f"{key} differs"


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    return a.data_ptr() == b.data_ptr() and a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()


def _is_another(value: Data, old: Data) -> bool:
    """Whether an entry of a chunk is not what was read: other memory, or other objects."""
    if isinstance(old, Tensor):
        return not (isinstance(value, Tensor) and same_memory(value, old))
    if not is_non_tensor(old):
        return False
    return not is_non_tensor(value) or _differ(value.tolist(), old.tolist())


def _differ(one: object, other: object) -> bool:
    """Whether two objects, or lists of them, are known to differ: those that do not compare are not."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(_differ, one, other))
    try:
        return not (same_payload(one, other) or bool(one != one) or isinstance(one == other, (Tensor, np.ndarray)))
    except Exception:  # an __eq__ of the user's own
        return False


def assigned(chunk: Data, before: Data, path: KeyPath = ()) -> OutputMismatch | None:
    """The error for a function that has given its chunk other entries and returned None: they are lost with the chunk.

    Args:
        chunk: after the function had it.
        before: the same rows, read again; their elements may have changed.
        path: where both are in their trees.
    """
    if not (is_dense(chunk) and is_dense(before)):
        return None
    for key, value in chunk._source.items():
        old = before._source.get(key)
        if is_dense(value) and is_dense(old):
            error = assigned(value, old, (*path, key))
            if error is not None:
                return error
        elif old is None or _is_another(value, old):
            name = key_name((*path, key))
            way = f", or write into the rows: chunk[{name}][:] = ..., chunk[{name}].mul_(2)"
            way = way if isinstance(old, Tensor) else ""
            return OutputMismatch(
                f"the function assigned chunk[{name}] and returned None, and what is assigned is lost with the chunk. "
                f"Return the chunk (`return chunk`){way}."
            )
    return None
