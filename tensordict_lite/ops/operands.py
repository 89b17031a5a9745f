"""Operands: how the other side of a binary operation is matched with the leaves of a collection.

=====================  ==================================================================================
number                 the same for every leaf
tensor                 aligned with the batch dimensions, expanded over the trailing ones of each leaf
collection, mapping    paired key by key; batch sizes are broadcast together
list of numbers        one number per leaf, in order
=====================  ==================================================================================
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.kernel import Flat

_interpreter = torch._C._functorch.peek_interpreter_stack
_is_compiling = torch.compiler.is_compiling
NUMBERS = frozenset((int, float, bool, complex))


def fused(
    foreach: Callable[..., Sequence[Tensor]] | None,
    each: Callable[..., Tensor],
    leaves: list[Tensor],
    *args: Any,
) -> Sequence[Tensor]:
    """One call for all leaves; leaf by leaf where torch has no fused call or rejects it.

    torch rejects an integer leaf next to one that requires grad, and nested tensors. A genuine error is raised again by
    the plain operation. Inside ``torch.vmap``, which has no rule for it, the fused call is not tried: during tracing
    its error could not be caught.

    Args:
        foreach: the fused function over lists.
        each: the same for one tensor.
        leaves: the tensors.
        *args: a list as long as ``leaves`` is passed leaf by leaf, any other value to every leaf.
    """
    if foreach is not None and _interpreter() is None:
        try:
            return tracked_rows(foreach(leaves, *args), leaves, *args)
        except RuntimeError:
            pass
    if not args:
        return [each(leaf) for leaf in leaves]
    columns = [arg if type(arg) is list else [arg] * len(leaves) for arg in args]
    return [each(*row) for row in zip(leaves, *columns)]


FEW = 3  # number of tensors from which converting a number once is faster
_HOLDS = {
    float: frozenset((torch.float32, torch.float64)),
    int: frozenset((torch.float32, torch.float64, torch.int64)),
}
"""Dtypes in which arithmetic with a number equals that with a tensor of that dtype, bit by bit.
In narrow dtypes torch keeps all digits of a number.
"""


def spelled_out(number: Any, tensors: Collection[Any], made: dict[torch.dtype, Tensor] | None = None) -> Any:
    """A number as tensors without dimensions, one for each of several tensors; or unchanged, if that is not faster.

    For a number, torch creates such a tensor in every call, with another dtype, and converts it: half the time of an
    operation on a small CPU tensor.

    Args:
        number: the operand of every tensor.
        tensors: the tensors.
        made: cached tensors of the same number for other tensors, to which more may be added.
    """
    holds = _HOLDS.get(type(number))
    if holds is None or not (made or len(tensors) >= FEW) or _interpreter() is not None or _is_compiling():
        return number
    kinds = (Tensor, torch.nn.Parameter, registry.MemoryMappedTensor)
    made = {} if made is None else made
    out = []
    for tensor in tensors:
        if (
            type(tensor) not in kinds
            or (dtype := tensor.dtype) not in holds
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or tensor.is_nested
        ):
            return number
        one = made.get(dtype)
        if one is None:
            try:
                one = made[dtype] = torch.scalar_tensor(number, dtype=dtype, device="cpu")
            except (OverflowError, RuntimeError):
                return number
        out.append(one)
    return out


def tracked_rows(out: Sequence[Tensor], *columns: Any) -> Sequence[Tensor]:
    """``out`` of a fused call, which tracks gradients for all of its results if one needs them.

    Results whose own operands need no gradients are detached, as in operations leaf by leaf.
    """
    if not out[0].requires_grad:
        return out
    needed = [False] * len(out)
    for column in columns:
        for i, operand in enumerate(column if type(column) is list else ()):
            needed[i] |= isinstance(operand, Tensor) and operand.requires_grad
    return [new if need else new.detach() for new, need in zip(out, needed)]


def is_collection(value: Any) -> bool:
    """Whether ``value`` is a tensor collection (without an import cycle)."""
    return hasattr(value, "_with_leaves")


def is_object(node: Any) -> bool:
    """Whether a collection is a non-tensor value, or a stack of them."""
    return registry.is_non_tensor(node)


def leaf_paths(node: Any, prefix: tuple[str, ...] = (), ragged: bool = False) -> list[tuple[str, ...]]:
    """Paths of the leaves, in the order of ``_leaves(ragged)``. Members of a lazy stack repeat the same paths."""
    if node._is_non_tensor and not node._leaves():
        return [prefix] if ragged and node._is_ragged_numbers else []
    source = node._source
    out: list[tuple[str, ...]] = []
    if type(source) is dict:
        for key, value in source.items():
            if isinstance(value, Tensor) or value._is_unbatched:
                out.append((*prefix, key))
            else:
                out.extend(leaf_paths(value, (*prefix, key), ragged))
    else:
        for sub in node._nested():
            out.extend(leaf_paths(sub, prefix, ragged))
    return out


def broadcast(left: torch.Size, right: torch.Size) -> torch.Size:
    """The shape that two shapes broadcast to.

    Raises:
        RuntimeError: they do not broadcast.
    """
    if len(left) < len(right):
        left, right = right, left
    offset = len(left) - len(right)
    out = list(left)
    for i, length in enumerate(right):
        mine = left[offset + i]
        if mine == 1:
            out[offset + i] = length
        elif length not in (mine, 1):
            raise RuntimeError(f"shapes {list(left)} and {list(right)} do not broadcast: {mine} against {length}")
    return torch.Size(out)


# -- tensors ------------------------------------------------------------------------------------------------


def spread(node: Any, tensor: Tensor) -> list[Tensor]:
    """``tensor``, which broadcasts to the batch size of ``node``, as one operand for each leaf.

    A tensor without dimensions is passed unchanged: with dimensions it would take part in type promotion.
    """
    if not tensor.ndim:
        return [tensor] * len(node._leaves(True))
    out: list[Tensor] = []
    _spread(node, tensor, len(node._batch_size), {}, out)
    return out


def _spread(node: Any, tensor: Tensor, dims: int, views: dict[int, Tensor], out: list[Tensor]) -> None:
    if node._is_ragged_numbers:
        out.append(node._by_element(tensor))
        return
    source = node._source
    if type(source) is dict:
        for value in source.values():
            if isinstance(value, Tensor):
                extra = value.ndim - dims
                view = views.get(extra)
                if view is None:
                    view = views[extra] = tensor[(...,) + (None,) * extra] if extra else tensor
                out.append(view)
            elif value._is_unbatched:
                raise RuntimeError(
                    f"a tensor of shape {list(tensor.shape)}, aligned with the batch dimensions, cannot be combined "
                    "with an unbatched entry: it has none of them. Leave it out with exclude()."
                )
            else:
                _spread(value, tensor, dims, views, out)
        return
    # A lazy stack: its members lack the stack dimension.
    stack_dim = node.stack_dim
    members = node._nested()
    if stack_dim >= dims:  # a nested stack along its own dimension
        for member in members:
            _spread(member, tensor, dims, views, out)
        return
    rows = tensor.expand(node._batch_size[:dims]).unbind(stack_dim)
    for member, row in zip(members, rows):
        _spread(member, row, dims - 1, {}, out)


# -- collections --------------------------------------------------------------------------------------------


def pair_leaves(node: Any, other: Any, ragged: Flat = False) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves of two collections, paired by key, in the order of the first.

    Raises:
        KeyError: one of them has a tensor that the other lacks.
        ValueError: ragged columns differ in the length of a row.
    """
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    if not _pair(node, other, ours, theirs, ragged):
        _check_same_paths(node, other, bool(ragged))
    return ours, theirs


def pair_alike(td: Any, source: Any, into: list[Tensor], values: list[Tensor]) -> bool:
    """Collect the tensors of ``source`` and of ``td`` by key, if their levels have the same class.

    False, with unusable lists, if other entries need the general code.
    """
    kind: Any = None
    levels = [(td, source)]
    while levels:
        td, source = levels.pop()
        if type(td) is not kind:
            kind = type(td)
            if kind._is_non_tensor or kind._is_unbatched:
                return False
        entries, items = td._source, source._source
        if type(entries) is not dict or type(items) is not dict:
            return False
        for key, value in items.items():
            current = entries.get(key)
            its = type(value)
            if its is Tensor or (its is not kind and isinstance(value, Tensor)):
                if type(current) is not Tensor and not isinstance(current, Tensor):
                    return False
                into.append(current)
                values.append(value)
            elif type(current) is its:
                levels.append((current, value))
            else:
                return False
    return True


def _pair(node: Any, other: Any, ours: list[Tensor], theirs: list[Tensor], ragged: Flat) -> bool:
    """Fill both lists; False if the number or kind of entries differs."""
    if node._is_ragged_numbers:
        if ragged and other._is_ragged_numbers:
            theirs.append(node._values_beside(other))
            ours.extend(node._leaves(ragged))
            return True
        return not ragged
    source = node._source
    if type(source) is not dict:
        same = True
        members = node._nested()
        rows = other._nested() if _same_stack(node, other) else other.unbind(node.stack_dim)
        for member, row in zip(members, rows):
            same &= _pair(member, row, ours, theirs, ragged)
        return same
    found = other._source
    if type(found) is not dict:
        found = {key: other._get_str(key) for key in other._key_list()}
    same = len(source) == len(found)
    for key, value in source.items():
        match = found.get(key)
        if type(value) is Tensor and type(match) is Tensor:  # the common case first
            ours.append(value)
            theirs.append(match)
        elif isinstance(value, Tensor):
            if not isinstance(match, Tensor):
                if match is not None and (match._is_unbatched or (ragged and match._is_ragged_numbers)):
                    _check_both_have_rows(key, value, match)
                same = False
                continue
            ours.append(value)
            theirs.append(match)
        elif match is None:
            same = False
        elif ragged and value._is_ragged_numbers:
            if isinstance(match, Tensor) or match._is_unbatched:
                _check_both_have_rows(key, value, match)
            if same := same and match._is_ragged_numbers:
                theirs.append(value._values_beside(match, key))
                ours.extend(value._leaves(ragged))
        elif value._is_unbatched and _is_leaf(match):
            _check_both_have_rows(key, value, match)
            ours.append(value._leaves()[0])
            theirs.append(match._leaves()[0])
        elif value._is_unbatched or isinstance(match, Tensor):
            same = False
        else:
            same &= _pair(value, match, ours, theirs, ragged)
    return same


def _same_stack(node: Any, other: Any) -> bool:
    return type(other._source) is not dict and other.stack_dim == node.stack_dim


def _check_same_paths(node: Any, other: Any, ragged: bool) -> None:
    missing: set[tuple[str, ...]] = set()
    extra: set[tuple[str, ...]] = set()
    _compare_paths(node, other, (), missing, extra, ragged)
    if missing or extra:
        raise keys_mismatch(missing, extra)


def _compare_paths(
    node: Any, other: Any, path: tuple[str, ...], missing: set[Any], extra: set[Any], ragged: bool
) -> None:
    """Add the paths of tensors that only one collection has; members of a stack have their own keys."""
    if type(node._source) is not dict:
        rows = other._nested() if _same_stack(node, other) else other.unbind(node.stack_dim)
        for member, row in zip(node._nested(), rows):
            _compare_paths(member, row, path, missing, extra, ragged)
        return
    found = {key: other._get_str(key) for key in other._key_list()}
    for key in {**node._source, **found}:
        value, match = node._source.get(key), found.get(key)
        if all(entry is not None and not _is_leaf(entry) and not is_object(entry) for entry in (value, match)):
            _compare_paths(value, match, (*path, key), missing, extra, ragged)
        else:
            ours, theirs = (_paths_at(entry, (*path, key), ragged) for entry in (value, match))
            missing |= ours - theirs
            extra |= theirs - ours


def _paths_at(entry: Any, path: tuple[str, ...], ragged: bool) -> set[tuple[str, ...]]:
    if entry is None:
        return set()
    return {path} if isinstance(entry, Tensor) or entry._is_unbatched else set(leaf_paths(entry, path, ragged))


def keys_mismatch(missing: set[tuple[str, ...]], extra: set[tuple[str, ...]]) -> KeyError:
    """KeyError that names the keys that only one of two collections has."""
    parts = []
    if missing:
        parts.append(f"The first TD has keys {_readable(missing)} that the second does not have.")
    if extra:
        parts.append(f"The second TD has keys {_readable(extra)} that the first does not have.")
    return KeyError(
        f"keys in tensordicts mismatch. {' '.join(parts)} Select the common keys first, or pass `default=` "
        "to the method form of the operation."
    )


def _readable(paths: set[tuple[str, ...]]) -> str:
    return str(sorted((path[0] if len(path) == 1 else path for path in paths), key=str))


def _with_default(node: Any, other: Any, default: Tensor | None) -> tuple[Any, list[Tensor], list[Tensor]]:
    """The tree of the result, and its leaves in both collections.

    Where one collection has no tensor, ``default`` takes its place; None leaves the entry out. Objects of the first
    collection are kept, as without a default.

    Raises:
        KeyError: a tensor in one collection has the key of a tree in the other.
    """
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    clashes: tuple[set[tuple[str, ...]], set[tuple[str, ...]]] = set(), set()

    def leaf(out: dict[str, Any], key: str, like: Any, mine: Any, match: Any) -> None:
        if default is not None or (mine is not None and match is not None):
            out[key] = like
            for leaves, entry in ((ours, mine), (theirs, match)):
                value: Any = default if entry is None else entry
                leaves.append(value if isinstance(value, Tensor) else value._leaves(True)[0])

    def level(node: Any, other: Any, path: tuple[str, ...]) -> Any:
        if type(node._source) is not dict:
            rows = other._nested() if _same_stack(node, other) else other.unbind(node.stack_dim)
            return node._with_members([level(*pair, path) for pair in zip(node._nested(), rows)])
        out: dict[str, Any] = {}
        others = {key: other._get_str(key) for key in other._key_list()}
        others = {key: entry for key, entry in others.items() if _is_leaf(entry) or not is_object(entry)}
        for key, value in node._source.items():
            match = others.pop(key, None)
            if not _is_leaf(value) and is_object(value):
                out[key] = value
            elif match is not None and _is_leaf(value) != _is_leaf(match):
                for clash, entry in zip(clashes, (value, match)):
                    below = [()] if _is_leaf(entry) else leaf_paths(entry)
                    clash.update((*path, key, *rest) for rest in below)
            elif _is_leaf(value):
                if match is not None:
                    _check_both_have_rows(key, value, match)
                leaf(out, key, value, value, match)
            else:
                nested = level(value, value.empty() if match is None else match, (*path, key))
                if default is not None or nested._key_list():
                    out[key] = nested
        for key, match in others.items():
            if _is_leaf(match):
                leaf(out, key, match, None, match)
            elif default is not None and leaf_paths(match):
                out[key] = level(match.empty(), match, (*path, key))
        return node._rebuild(out, node._batch_size, node._names)

    tree = level(node, other, ())
    if default is not None and any(clashes):
        raise keys_mismatch(*clashes)
    return tree, ours, theirs


def _is_leaf(entry: Any) -> bool:
    return isinstance(entry, Tensor) or bool(entry._is_unbatched or entry._is_ragged_numbers)


def _check_both_have_rows(key: str, value: Any, match: Any) -> None:
    """Raise for a tensor with rows beside an unbatched one: it is open whether the result has rows."""
    kinds = [isinstance(value, Tensor), isinstance(match, Tensor)]
    if kinds[0] != kinds[1] or (not kinds[0] and value._is_ragged_numbers != match._is_ragged_numbers):
        ragged = not all(isinstance(entry, Tensor) or entry._is_unbatched for entry in (value, match))
        raise RuntimeError(
            f"the entry {key!r} has rows in one collection and is {'ragged' if ragged else 'an unbatched tensor'} in "
            "the other: leave it out with exclude(), or convert it"
        )


def check_out(out: Any, new: Any) -> None:
    """Raise if a result has other rows than the ``out`` that it goes to, into which it might be broadcast.

    One of them may have fewer batch dimensions: those are metadata.
    """
    if any(n != m for n, m in zip(out._batch_size, new._batch_size)):
        raise RuntimeError(f"out has batch size {list(out._batch_size)}, the result has {list(new._batch_size)}")


def widened(left: Tensor, right: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Two tensors with the same leading ``dims``; the one with fewer others gets dimensions of size 1 after those.

    A value without feature dimensions, expanded over a batch, is thus matched with the same row of the other side.
    """
    missing = left.ndim - right.ndim
    if min(left.ndim, right.ndim) < dims:  # a default, which has no rows
        return left, right
    if missing > 0:
        right = right[(slice(None),) * dims + (None,) * missing]
    elif missing < 0:
        left = left[(slice(None),) * dims + (None,) * -missing]
    return left, right


# -- all of them --------------------------------------------------------------------------------------------


def align(node: Any, other: Any, inplace: bool = False, common: bool = False) -> tuple[Any, Any]:
    """Both collections with the same batch size; with ``common``, an entry that one lacks need not fit it.

    Batch sizes are metadata, so an entry with the shape of its counterpart is matched element by element, and an entry
    of a collection without batch dimensions is broadcast to its counterpart if it fits. Otherwise batch sizes are
    broadcast like shapes.

    Raises:
        RuntimeError: the batch sizes do not broadcast.
    """
    mine, size = node._batch_size, other._batch_size
    if size == mine:
        return node, other
    if inplace:
        if len(size) > len(mine) and size[: len(mine)] == mine:
            return node, with_batch_size(other, mine)
        target = mine if mine[: len(size)] == size else broadcast(mine, size)
        if target != mine:
            raise RuntimeError(
                f"an in-place operation cannot change the batch size: {list(mine)} and that of the operand, "
                f"{list(size)}, broadcast to {list(target)}"
            )
    elif len(mine) == len(size):
        target = broadcast(mine, size)
    else:
        target = _common_size(*sorted((mine, size), key=len))
    if len(mine) < len(size):
        other = other if size == target else other.expand(target)
        return _laid_out(node, other, target, len(mine), common), other
    node = node if mine == target else node.expand(target)
    if len(mine) == len(size):
        return node, other if size == target else other.expand(target)
    return node, _laid_out(other, node, target, len(size), common)


def _common_size(shorter: torch.Size, longer: torch.Size) -> torch.Size:
    if longer[: len(shorter)] == shorter:
        try:
            return broadcast(longer, shorter)
        except RuntimeError:
            return longer  # for entries of the same shapes
    return broadcast(longer, shorter)


def with_batch_size(node: Any, size: torch.Size) -> Any:
    """The same entries with another batch size, which each of them has to start with."""
    node = node.copy() if type(node._source) is dict else node._densified()
    node._change_batch_size(size)
    return node


def _laid_out(node: Any, model: Any, size: torch.Size, dims: int, common: bool) -> Any:
    """A collection under the longer batch size of ``model``, whose shapes determine the layout of each entry."""
    if type(node._source) is not dict:
        try:
            node = node._densified()
        except (RuntimeError, TypeError):
            node = None
        if node is None or type(node._source) is not dict:
            raise RuntimeError(f"a lazy stack of {dims} batch dimensions cannot be laid out as {list(size)}")
    deeper = torch.Size((*size, *node._batch_size[dims:]))
    out = {}
    for key, value in node._source.items():
        match = _counterpart(model, key)
        if common and match is None and not is_object(value):
            continue
        if isinstance(value, Tensor):
            out[key] = _laid_out_leaf(value, match, size, dims)
        elif value._is_non_tensor:
            same = getattr(match, "shape", None) == value._batch_size
            out[key] = value if same else value.expand(*size, *value._batch_size[dims:])
        else:
            out[key] = _laid_out(value, match, size, dims, common)
    if any(value.shape[: len(deeper)] != deeper for value in out.values()):
        deeper = size
    return node._rebuild(out, deeper)


def _counterpart(model: Any, key: str) -> Any:
    if model is None or isinstance(model, Tensor) or model._is_non_tensor:
        return None
    try:
        return model._get_str(key)
    except (KeyError, RuntimeError, TypeError):  # none, or a lazy stack whose shapes differ
        return None


def _laid_out_leaf(leaf: Tensor, match: Any, size: torch.Size, dims: int) -> Tensor:
    shape = leaf.shape
    if isinstance(match, Tensor):
        target = match.shape
        if target == shape:
            return leaf
        if not dims and len(shape) <= len(target):
            ahead = target[len(target) - len(shape) :]
            if all(n in (1, m) for n, m in zip(shape, ahead)):
                return leaf.expand(target)
    broadcast(shape[:dims], size)  # raises the error for the entry that does not fit
    return leaf.expand(*size, *shape[dims:])


def resolve(node: Any, other: Any, default: Any = None, inplace: bool = False) -> tuple[Any, list[Tensor], Any]:
    """The operands of a binary operation: the collection whose tree the result has, its leaves, and the other operand.

    The operand is a number, or a list with one tensor (or number) per leaf.

    Raises:
        TypeError: ``other`` is not a valid operand.
        RuntimeError: shapes do not broadcast.
        KeyError: collections with different keys, without a ``default``.
    """
    kind = type(other)
    ragged: Flat = "own" if inplace else True
    if kind in NUMBERS:
        return node, node._leaves(ragged), other
    if is_collection(other):
        alike = other._batch_size == node._batch_size
        if not alike:
            before = node, other
            node, other = align(node, other, inplace, default == "intersection")
            require_ragged_kept(before, (node, other))
        if default is None:
            ours, theirs = pair_leaves(node, other, ragged)
        else:
            node, ours, theirs = _with_default(node, other, _default(default))
        if alike:
            return node, ours, theirs
        dims = len(node._batch_size)
        pairs = [widened(mine, match, dims) for mine, match in zip(ours, theirs)]
        return node, [mine for mine, _ in pairs], [match for _, match in pairs]
    if isinstance(other, np.generic):
        return node, node._leaves(ragged), other.item()
    if isinstance(other, Tensor):
        if not other.ndim:
            leaves = node._leaves(ragged)
            return node, leaves, [other] * len(leaves)
        size = other.shape
        if size != node._batch_size and (size := broadcast(node._batch_size, size)) != node._batch_size:
            if inplace:
                raise RuntimeError(
                    f"an in-place operation cannot change the batch size: {list(node._batch_size)} and "
                    f"an operand of shape {list(other.shape)} broadcast to {list(size)}"
                )
            before, node = node, node.expand(size)
            require_ragged_kept((before,), (node,))
        return node, node._leaves(ragged), spread(node, other)
    if isinstance(other, numbers.Number):
        return node, node._leaves(ragged), other
    leaves = node._leaves(ragged)
    if kind in (list, tuple) and len(other) == len(leaves) and all(type(item) in NUMBERS for item in other):
        return node, leaves, list(other)
    raise TypeError(
        f"unsupported operand: got a {kind.__name__}, expected a number, a tensor or a tensor collection"
        + (" (convert the mapping with TensorDict(...) first)" if isinstance(other, Mapping) else "")
    )


def require_ragged_kept(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise if broadcasting made objects of ragged columns of numbers, which arithmetic would leave unchanged."""
    for old, new in zip(before, after):
        counts = [len(node._leaves(True)) - len(node._leaves()) for node in (old, new) if new is not old]
        if counts and counts[0] and not counts[1]:
            raise TypeError(
                f"ragged columns cannot be broadcast from batch size {list(old._batch_size)} to "
                f"{list(new._batch_size)}: give one value for each row, or leave them out with exclude()"
            )


def _default(default: Any) -> Tensor | None:
    """The tensor that a ``default`` stands for; None for ``"intersection"``."""
    if isinstance(default, str):
        if default != "intersection":
            raise TypeError(f'default is a tensor, a number or "intersection"; got the string {default!r}')
        return None
    return default if isinstance(default, Tensor) else torch.tensor(default, device="cpu")
