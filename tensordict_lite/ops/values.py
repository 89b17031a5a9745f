"""Pointwise arithmetic, comparisons, filling, copying, and functions over the leaves (``apply``).

Unary and binary methods are rows of the tables in ``generated.py``; ``comparison.py`` implements the comparisons.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite.indexing import normalise_index
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.keys import missing_key_error, require_path
from tensordict_lite.ops.comparison import comparing
from tensordict_lite.ops.generated import GeneratedOps, inplace
from tensordict_lite.ops.operands import NUMBERS, check_out, fused, is_collection, pair_leaves, resolve
from tensordict_lite.ops.put import put_alike
from tensordict_lite.ops.shape import positive_dim
from tensordict_lite.settings import MISSING, settings
from tensordict_lite.views import as_read, entry_of, public

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

    Operand = TensorCollection | Tensor | float


class ValueOps(GeneratedOps):
    """Operations on the values of the leaves. Arithmetic keeps type, names and lock; in-place forms ignore the lock."""

    __slots__ = ()

    # -- three operands ------------------------------------------------------------------------------------

    def clamp(self, min: Any = None, max: Any = None, *, out: TensorCollection | None = None) -> Self:
        """Every element limited to ``[min, max]``; ``max`` has precedence.

        Args:
            min: lower bound: number, tensor, or collection paired by key. ``None``: no bound.
            max: upper bound. Both are collections, or neither is.
            out: collection whose tensors receive the result, and which is returned.

        Raises:
            ValueError: one bound is a collection and the other is not.
            TypeError: there is no bound.

        Example:
            >>> TensorDict({"a": torch.tensor([-2.0, 0.5, 3.0])}, [3]).clamp(0, 1)["a"]
            tensor([0.0000, 0.5000, 1.0000])
        """
        if min is None and max is None:
            raise TypeError("clamp() needs a lower bound (min), an upper bound (max), or both; got neither")
        if max is None:
            new = self.clamp_min(min)
        elif min is None:
            new = self.clamp_max(max)
        elif is_collection(min) != is_collection(max):
            raise ValueError("Mixed tensordict and non-tensordict min/max values are not authorized.")
        else:
            new = self._clamped(min, max)
        if out is None:
            return new
        check_out(out, new)
        inplace(torch._foreach_copy_, Tensor.copy_, *pair_leaves(out, new, "own"))
        return out  # type: ignore[return-value]

    def _clamped(self, low: Any, high: Any) -> Any:
        if type(low) in NUMBERS and type(high) in NUMBERS:
            return self._with_leaves(iter([leaf.clamp(low, high) for leaf in self._leaves(True)]), True)
        node, leaves, (lower, upper) = self._beside(low, high)
        if isinstance(lower, list) or isinstance(upper, list):  # torch accepts two tensors or two numbers
            lower, upper = (_as_column(bound, leaves) for bound in (lower, upper))
            return node._with_leaves(iter(fused(None, torch.clamp, leaves, lower, upper)), True)
        return node._with_leaves(iter([leaf.clamp(lower, upper) for leaf in leaves]), True)

    def _beside(self, *others: Any, inplace: bool = False) -> tuple[Any, list[Tensor], list[Any]]:
        """A collection with the broadcast batch size, its leaves, and for each operand one value per leaf.

        Raises:
            RuntimeError: with ``inplace``, that is not the batch size of this collection.
        """
        node: Any = self
        found = [resolve(node, other, None, inplace) for other in others]
        if any(to is not node for to, _, _ in found):
            for other in others:
                node = resolve(node, other)[0]
            found = [resolve(node, other, None, True) for other in others]
        leaves = found[0][1]
        for _, widened, operand in found[1:]:  # after the batch, if an operand has more dimensions
            if type(operand) is list:
                leaves = [a if a.ndim >= b.ndim else b for a, b in zip(leaves, widened)]
        return node, leaves, [operand for _, _, operand in found]

    def lerp(self, end: TensorCollection | Tensor, weight: Operand) -> Self:
        """Linear interpolation ``self + weight * (end - self)``.

        Args:
            end: the result for weight 1: a collection or a tensor.
            weight: number, tensor or collection.

        Example:
            >>> td = TensorDict({"a": torch.zeros(2)}, [2])
            >>> td.lerp(td + 10, 0.3)["a"]
            tensor([3., 3.])
        """
        _check_end(end)
        return self._ternary(torch._foreach_lerp, torch.lerp, end, weight)

    def lerp_(self, end: TensorCollection | Tensor, weight: Operand) -> Self:
        """:meth:`lerp` in place. Returns ``self``."""
        _check_end(end)
        return self._ternary_(torch._foreach_lerp_, Tensor.lerp_, end, weight)

    def addcmul(
        self, other1: TensorCollection | Tensor, other2: TensorCollection | Tensor, *, value: float | None = 1
    ) -> Self:
        """``self + value * other1 * other2``.

        Args:
            other1: collection, paired by key, or tensor, aligned with the batch dimensions.
            other2: the same.
            value: multiplier of the product.
        """
        return self._ternary(torch._foreach_addcmul, torch.addcmul, *_factors(other1, other2), value=value)

    def addcmul_(self, other1: Any, other2: Any, *, value: float | None = 1) -> Self:
        """:meth:`addcmul` in place. Returns ``self``."""
        return self._ternary_(torch._foreach_addcmul_, Tensor.addcmul_, *_factors(other1, other2), value=value)

    def addcdiv(
        self, other1: TensorCollection | Tensor, other2: TensorCollection | Tensor, value: float | None = 1
    ) -> Self:
        """``self + value * other1 / other2``.

        Args:
            other1: collection, paired by key, or tensor, aligned with the batch dimensions.
            other2: the same.
            value: multiplier of the quotient.
        """
        return self._ternary(torch._foreach_addcdiv, torch.addcdiv, *_factors(other1, other2), value=value)

    def addcdiv_(self, other1: Any, other2: Any, *, value: float | None = 1) -> Self:
        """:meth:`addcdiv` in place. Returns ``self``."""
        return self._ternary_(torch._foreach_addcdiv_, Tensor.addcdiv_, *_factors(other1, other2), value=value)

    def _ternary(
        self, foreach: Callable[..., Any], each: Callable[..., Tensor], *operands: Any, value: Any = None
    ) -> Self:
        node, leaves, columns = self._beside(*operands)
        if value is not None:
            foreach, each = _with_value(foreach, value), _with_value(each, value)
        results = iter(fused(foreach, each, leaves, *columns) if leaves else ())
        return self._keep_lock(node._with_leaves(results, True))

    def _ternary_(
        self, foreach: Callable[..., Any], each: Callable[..., Tensor], *operands: Any, value: Any = None
    ) -> Self:
        if value is not None:
            foreach, each = _with_value(foreach, value), _with_value(each, value)
        _, _, columns = self._beside(*operands, inplace=True)
        inplace(foreach, each, self._leaves("own"), *columns)
        return self

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Self:
        """Softmax of every tensor along a batch dimension.

        Args:
            dim: batch dimension; negative counts from the last one.
            dtype: cast to it first.

        Raises:
            IndexError: ``dim`` is not a batch dimension.

        Example:
            >>> TensorDict({"a": torch.zeros(2, 3)}, [2]).softmax(0)["a"][0]
            tensor([0.5000, 0.5000, 0.5000])
        """
        dim = positive_dim(dim, len(self._batch_size), self._batch_size)
        if len(self._leaves(True)) != len(self._leaves()):
            raise TypeError("softmax() runs along rows of one shape: leave ragged columns out with exclude() first")
        return self._map_leaves(lambda leaf: torch.softmax(leaf, dim, dtype=dtype))

    # -- writing -------------------------------------------------------------------------------------------

    def zero_(self) -> Self:
        """Fill every tensor with zeros, in place. Returns ``self``.

        Example:
            >>> TensorDict({"a": torch.ones(3)}, [3]).zero_()["a"]
            tensor([0., 0., 0.])
        """
        inplace(torch._foreach_zero_, Tensor.zero_, self._leaves("own"))
        return self

    def fill_(self, key: Any, value: float | bool) -> Self:
        """Fill the entry at ``key`` with a number, in place; in a nested collection, every tensor.

        Args:
            key: (nested) key.
            value: number.

        Raises:
            KeyError: there is no such entry.

        Returns:
            self
        """
        path = require_path(key)
        try:
            part = self.select(path)  # a lazy stack returns copies of its tensors
        except KeyError:
            self._get_path(path)  # distinguishes a key below a tensor from a missing one
            raise
        for leaf in part._leaves("own"):
            leaf.fill_(value)
        return self

    def copy_(self, tensordict: Any, non_blocking: bool = False) -> Self:
        """Copy the entries of a collection or mapping into the existing ones, see :meth:`update_`.

        Raises:
            KeyError: this collection lacks an entry.
            RuntimeError: a value does not fit the shape of its entry.

        Returns:
            self
        """
        return self.update_(tensordict, non_blocking=non_blocking)

    def copy_at_(self, tensordict: Any, idx: Any, non_blocking: bool = False, *, fast: bool = True) -> Self:
        """Copy the tensors of a collection into the rows at ``idx`` of the existing entries.

        Args:
            tensordict: collection with the batch size of ``self[idx]``.
            idx: any index of the batch dimensions.
            non_blocking: for copies between devices.
            fast: only tensors with matching keys. ``False``: as :meth:`update_at_`.

        Raises:
            RuntimeError: with ``fast``, this collection lacks an entry of the source.

        Returns:
            self
        """
        if not fast:
            return self.update_at_(tensordict, idx, non_blocking=non_blocking)
        if not is_collection(tensordict):
            raise RuntimeError(
                f"copy_at_() copies from a tensor collection, got a {type(tensordict).__name__}. Use "
                "fast=False or update_at_() for mappings and values that need a conversion."
            )
        if not non_blocking and put_alike(self, normalise_index(idx, len(self._batch_size)), tensordict):
            return self
        rows = self[idx]
        try:
            targets, sources = pair_leaves(rows.select(*tensordict.keys(True, True)), tensordict)
        except KeyError as err:
            raise RuntimeError(
                f"copy_at_() needs every entry of the source to exist in the destination: {err} "
                "Use fast=False or update_at_() for anything else."
            ) from err
        if any(target._base is None for target in targets):  # an advanced index makes copies: write by index
            return self.update_at_(tensordict, idx, non_blocking=non_blocking)
        for target, source in zip(targets, sources):
            target.copy_(source, non_blocking=non_blocking)
        return self

    # -- operators (the table in generated.py has the others) ---------------------------------------------

    def __rtruediv__(self, other: Operand) -> Self:
        return self._reflected(torch.div, other)

    def __rpow__(self, other: Operand) -> Self:
        return self._reflected(torch.pow, other)

    def __invert__(self) -> Self:
        return self._keep_lock(self._map_leaves(torch.bitwise_not, True))

    def _reflected(self, fn: Callable[[Any, Tensor], Tensor], other: Any) -> Self:
        """``fn(other, self)`` for non-commutative operations."""
        node, leaves, operand = resolve(self, other)
        operands = operand if isinstance(operand, list) else [operand] * len(leaves)
        return self._keep_lock(node._with_leaves(iter([fn(left, leaf) for left, leaf in zip(operands, leaves)]), True))

    # -- comparisons: unlocked, and unnamed unless the other side is a tensor ------------------------------

    __hash__ = None  # type: ignore[assignment]
    __eq__ = comparing(operator.eq, False)
    __ne__ = comparing(operator.ne, True)
    __lt__ = comparing(operator.lt, False)
    __le__ = comparing(operator.le, False)
    __gt__ = comparing(operator.gt, False)
    __ge__ = comparing(operator.ge, False)
    __or__ = __ror__ = comparing(operator.or_)
    __xor__ = __rxor__ = comparing(operator.xor)

    # -- functions over the leaves ------------------------------------------------------------------------

    def apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Sequence[int] | None = None,
        device: DeviceLike | None = MISSING,
        names: Sequence[str | None] | None | object = MISSING,
        inplace: bool = False,
        default: Any = MISSING,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: Any = None,
    ) -> Self | None:
        """Call a function on every tensor of the tree and return a tree of the results.

        Args:
            fn: ``fn(leaf, *other_leaves)``, returns a tensor or a collection, or ``None`` to drop the entry.
            *others: collections with the same keys, whose leaves are the further arguments.
            batch_size: batch size of the result, at every level, for a function that changes shapes. The names
                of dimensions are dropped then.
            device: move the results to this device. ``None``: leave them.
            names: names of the batch dimensions of the result.
            inplace: copy the results into the leaves of ``self`` and return it; ``None`` leaves a leaf unchanged,
                and ``out`` is not used.
            default: argument for an entry that one of ``others`` lacks (by default: KeyError).
            filter_empty: drop nested collections without entries: all of them (``True``), none (``False``), those that
                ``fn`` emptied (``None``).
            propagate_lock: lock the result of a locked collection.
            call_on_nested: call ``fn`` on the direct entries, including collections, without entering these.
            is_leaf: function of a type: ``fn`` is called on entries of these types, and collections of other types are
                entered. Default: tensors; non-tensor data is kept.
            out: collection to write the results to.

        Returns:
            A collection of the same type, ``out`` or ``self`` (``inplace``). ``None`` if ``fn`` returned ``None`` for
            every leaf, unless ``filter_empty=False``.

        Raises:
            RuntimeError: a result does not start with the batch size.
            KeyError: an entry is missing in one of ``others``.

        Example:
            >>> td = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(3)}}, [3])
            >>> td.apply(lambda x, y: x + y, td)["a"]
            tensor([2., 2., 2.])
            >>> td.apply(lambda x: x[:2], batch_size=[2])["b"].batch_size
            torch.Size([2])
        """
        if (
            batch_size is None
            and not inplace
            and out is None
            and device is MISSING
            and names is MISSING
            and default is MISSING
            and filter_empty is None
            and is_leaf is None
            and not (propagate_lock or call_on_nested)
            and type(self._source) is dict
        ):
            return self._apply_plainly(fn, others)
        call = _Call(fn, False, False, batch_size, device, inplace, default, filter_empty, call_on_nested, is_leaf)
        return self._run_apply(call, others, names, propagate_lock, out)

    def _apply_plainly(self, fn: Callable[..., Any], others: Sequence[Any]) -> Any:
        """:meth:`apply` without options on dense storage, the form used in loops."""
        size, names, plain = self._batch_size, self._names, self._device is None
        dims = len(size)
        result = self._rebuild({}, size, names)
        entries = result._source
        for key, value in self._source.items():
            rest = _arguments(others, key, MISSING) if others else ()
            if type(value) is Tensor or isinstance(value, Tensor):
                new = fn(value, *rest) if rest else fn(value)
                if not (plain and type(new) is Tensor and (not dims or new.shape[:dims] == size)):
                    if new is None:
                        continue
                    new = result._fit(new, key)
            elif value._is_unbatched:
                new = value._apply_entry(lambda x, rest=rest: fn(x, *map(public, rest)), result)
                if new is None:
                    continue
            elif value._is_ragged_numbers:
                new = value._applied(fn, rest, key)
                if new is None:
                    continue
            elif value._is_non_tensor:
                new = value._with_leaves(iter(()))
            else:
                new = value._apply_plainly(fn, rest) if type(value._source) is dict else value.apply(fn, *rest)
                if new is None:
                    continue
            entries[key] = new
        return result if entries or not self._source else None

    def named_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        nested_keys: bool = False,
        batch_size: Sequence[int] | None = None,
        device: DeviceLike | None = MISSING,
        names: Sequence[str | None] | None | object = MISSING,
        inplace: bool = False,
        default: Any = MISSING,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: Any = None,
    ) -> Self | None:
        """:meth:`apply` with the key as first argument: ``fn(key, leaf, *other_leaves)``.

        Args:
            fn: the function.
            *others: as for :meth:`apply`, like all other arguments.
            nested_keys: pass the path of entries below the top as a tuple, instead of its last step.

        Example:
            >>> td = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(3)}}, [3])
            >>> list(td.named_apply(lambda key, x: x if key == "c" else None).keys(True, True))
            [('b', 'c')]
        """
        call = _Call(fn, True, nested_keys, batch_size, device, inplace, default, filter_empty, call_on_nested, is_leaf)
        return self._run_apply(call, others, names, propagate_lock, out)

    def apply_(self, fn: Callable[..., Any], *others: Any, **kwargs: Any) -> Self:
        """:meth:`apply` with ``inplace=True``: results are copied into the leaves.

        Returns:
            self
        """
        result: Any = self.apply(fn, *others, inplace=True, **kwargs)
        return result

    def _run_apply(self, call: _Call, others: tuple[Any, ...], names: Any, propagate_lock: bool, out: Any) -> Any:
        if call.inplace:
            self._apply_into(call, list(others), (), self)
            return self
        if out is not None:
            if call.batch_size is not None and call.batch_size != out.batch_size:
                raise RuntimeError(
                    f"batch_size={list(call.batch_size)} must be equal to the batch size of `out`, "
                    f"{list(out.batch_size)}"
                )
            if call.device not in (MISSING, None) and torch.device(call.device) != out.device:
                raise RuntimeError(f"device={call.device} must be equal to the device of `out`, {out.device}")
            self._apply_into(call, list(others), (), out)
            if propagate_lock and self._lock is not None:
                out.lock_()
            return out
        result = self._apply_level(call, list(others), ())
        if result is None:
            return None
        if names is not MISSING and names is not None:
            result._assign_names(names)
        if propagate_lock and self._lock is not None:
            result.lock_()
        return result

    def _apply_level(self, call: _Call, others: list[Any], prefix: tuple[str, ...]) -> Any:
        """The results of one level as a new collection; ``None`` if it is dropped."""
        size = self._batch_size if call.batch_size is None else call.batch_size
        result = self._rebuild({}, size, self._names if call.batch_size is None else None)
        if call.device is not MISSING:
            result._device = None if call.device is None else torch.device(call.device)
        plain = result._device is None
        dims = len(size)
        had_entries = False
        for key, value in self._entries():
            had_entries = True
            if not isinstance(value, Tensor) and value._is_unbatched:
                new = self._apply_unbatched(call, key, value, others, prefix, result)
                if new is None:
                    continue
            elif call.takes(value):
                new = call.run(key, prefix, value, _arguments(others, key, call.default))
                if new is None:
                    continue
                if not (plain and type(new) is Tensor and (not dims or new.shape[:dims] == size)):
                    new = result._fit(new, key)
            elif isinstance(value, Tensor):
                new = value
            elif value._is_ragged_numbers and call.batch_size is None and call.is_leaf is None:
                new = value._apply_level(call, _arguments(others, key, call.default), (*prefix, key))
                if new is None:
                    continue
                new._device = result._device
            elif value._is_non_tensor:
                new = _carried(value, call.batch_size, result._device)
            else:
                new = value._apply_level(call, _arguments(others, key, call.default), (*prefix, key))
                if new is None:
                    continue
            result._set_str(key, new)
        return None if call.emptied(result, had_entries) else result

    def _apply_unbatched(
        self, call: _Call, key: str, value: Any, others: list[Any], prefix: tuple[str, ...], result: Any
    ) -> Any:
        """Apply to an entry without batch dimensions; a function that changes those leaves it unchanged."""
        if call.batch_size is not None or not call.takes(value._as_value()):
            return value._apply_entry(lambda x: x, result)
        rest = [public(other) for other in _arguments(others, key, call.default)]
        return value._apply_entry(lambda x: call.run(key, prefix, x, rest), result)

    def _apply_into(self, call: _Call, others: list[Any], prefix: tuple[str, ...], out: Any) -> None:
        """Write the results of one level to ``out`` (which may be ``self``)."""
        for key, value in list(as_read(self._entries())):
            if call.takes(value):
                rest = _arguments(others, key, call.default)
                new = call.run(key, prefix, value, [public(other) for other in rest] if settings.unbatched else rest)
                if new is None or (new is value and out is self):
                    continue
                if call.inplace:
                    out.set_(key, new)
                else:
                    out.set(key, new)
            elif not isinstance(value, Tensor) and value._is_ragged_numbers and call.is_leaf is None:
                if out is not self and entry_of(out, (key,)) is None:
                    out.set(key, value.clone())
                value._apply_into(call, _arguments(others, key, call.default), (*prefix, key), entry_of(out, (key,)))
            elif isinstance(value, Tensor) or value._is_non_tensor:
                if out is not self:
                    kept = isinstance(value, Tensor) or value._is_unbatched
                    out.set(key, value if kept else _carried(value, call.batch_size, value._device))
            else:
                target = value if out is self else entry_of(out, (key,))
                if target is None:
                    out.set(key, value.empty() if call.batch_size is None else value.empty(batch_size=call.batch_size))
                    target = entry_of(out, (key,))
                value._apply_into(call, _arguments(others, key, call.default), (*prefix, key), target)


def _as_column(bound: Any, leaves: list[Tensor]) -> list[Tensor]:
    return bound if isinstance(bound, list) else [torch.tensor(bound, device=leaf.device) for leaf in leaves]


def _check_end(end: Any) -> None:
    if not isinstance(end, Tensor) and not is_collection(end):
        raise TypeError(f"lerp() interpolates to a tensor or a collection, got the {type(end).__name__} {end!r}")


def _factors(*others: Any) -> tuple[Any, ...]:
    if not all(isinstance(other, Tensor) or is_collection(other) for other in others):
        kinds = " and ".join(type(other).__name__ for other in others)
        raise TypeError(f"addcmul() and addcdiv() take two tensors or collections; got {kinds}")
    return others


def _with_value(fn: Callable[..., Any], value: Any) -> Callable[..., Any]:
    def call(*operands: Any) -> Any:
        return fn(*operands, value=value)

    return call


@dataclass(slots=True)
class _Call:
    """The options of one call of ``apply``, at every level of the tree."""

    fn: Callable[..., Any]
    """The user's function, ``fn(leaf, *others)`` or ``fn(key, leaf, *others)``."""
    named: bool = False
    nested_keys: bool = False
    """Pass whole paths instead of the last step."""
    batch_size: Any = None
    device: Any = MISSING
    inplace: bool = False
    default: Any = MISSING
    filter_empty: bool | None = None
    call_on_nested: bool = False
    is_leaf: Callable[[type], bool] | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            self.batch_size = torch.Size(self.batch_size)

    def takes(self, value: object) -> bool:
        """Whether the function is called on this entry (otherwise it is entered, or kept)."""
        if self.call_on_nested:
            return True
        if self.is_leaf is not None:
            return self.is_leaf(type(value))
        return isinstance(value, Tensor)

    def run(self, key: str, prefix: tuple[str, ...], value: Any, others: list[Any]) -> Any:
        if not self.named:
            return self.fn(value, *others)
        return self.fn((*prefix, key) if prefix and self.nested_keys else key, value, *others)

    def emptied(self, result: Any, had_entries: bool) -> bool:
        """Whether a level without entries is dropped from the result."""
        if self.filter_empty is False or result._key_list():
            return False
        return had_entries or self.filter_empty is True


def _arguments(others: Sequence[Any], key: str, default: Any) -> list[Any]:
    """The entries of the other trees under a key; a default replaces everything below it."""
    if default is MISSING:
        try:
            return [other._source[key] for other in others]
        except (KeyError, TypeError, AttributeError):  # a lazy stack, or a missing key, which raises below
            pass
    found = []
    for other in others:
        if default is not MISSING and other is default:
            found.append(default)
            continue
        value = entry_of(other, (key,))
        if value is None:
            if default is MISSING:
                raise missing_key_error(key, other._key_list(), type(other).__name__)
            value = default
        found.append(value)
    return found


def _carried(value: Any, batch_size: torch.Size | None, device: torch.device | None) -> Any:
    """Non-tensor data of the result: the same object with the new batch size and device."""
    new = value._with_leaves(iter(()))
    if batch_size is not None and new.batch_size != batch_size:
        new._change_batch_size(batch_size)
    new._device = device
    return new
