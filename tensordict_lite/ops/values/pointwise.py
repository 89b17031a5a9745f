"""Pointwise arithmetic: operators, ternary operations, filling and copying.

Unary and binary methods are rows of the tables in ``generated.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite.indexing import normalise_index
from tensordict_lite.keys import require_path
from tensordict_lite.ops.put import put_alike
from tensordict_lite.ops.shape import positive_dim
from tensordict_lite.ops.values.generated import GeneratedOps, inplace
from tensordict_lite.ops.values.operands import NUMBERS, fused, is_collection, pair_leaves, resolve

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

    Operand = TensorCollection | Tensor | float


class PointwiseOps(GeneratedOps):
    """Mixin of the pointwise family. Results keep type, names and lock; in-place forms ignore the lock."""

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        inplace(torch._foreach_copy_, Tensor.copy_, *pair_leaves(out, new))
        return out  # type: ignore[return-value]

    def _clamped(self, low: Any, high: Any) -> Any:
        if type(low) in NUMBERS and type(high) in NUMBERS:
            return self._with_leaves(iter([leaf.clamp(low, high) for leaf in self._leaves()]))
        node, leaves, (lower, upper) = self._beside(low, high)
        if isinstance(lower, list) or isinstance(upper, list):  # torch accepts two tensors or two numbers
            lower, upper = (_as_column(bound, leaves) for bound in (lower, upper))
            return node._with_leaves(iter(fused(None, torch.clamp, leaves, lower, upper)))
        return node._with_leaves(iter([leaf.clamp(lower, upper) for leaf in leaves]))

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        new = node._with_leaves(iter(fused(foreach, each, leaves, *columns) if leaves else ()))
        if self._lock is not None:
            new._propagate_lock(None)
        return new

    def _ternary_(
        self, foreach: Callable[..., Any], each: Callable[..., Tensor], *operands: Any, value: Any = None
    ) -> Self:
        if value is not None:
            foreach, each = _with_value(foreach, value), _with_value(each, value)
        _, _, columns = self._beside(*operands, inplace=True)
        inplace(foreach, each, self._leaves(), *columns)
        return self

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Self:
        """Softmax of every tensor along a batch dimension.

        Args:
            dim: batch dimension; negative counts from the last one.
            dtype: cast to it first.

        Raises:
            IndexError: ``dim`` is not a batch dimension.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> TensorDict({"a": torch.zeros(2, 3)}, [2]).softmax(0)["a"][0]
            tensor([0.5000, 0.5000, 0.5000])
        """
        dim = positive_dim(dim, len(self._batch_size), self._batch_size)
        return self._map_leaves(lambda leaf: torch.softmax(leaf, dim, dtype=dtype))

    # -- writing -------------------------------------------------------------------------------------------

    def zero_(self) -> Self:
        """Fill every tensor with zeros, in place. Returns ``self``.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> TensorDict({"a": torch.ones(3)}, [3]).zero_()["a"]
            tensor([0., 0., 0.])
        """
        inplace(torch._foreach_zero_, Tensor.zero_, self._leaves())
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
        for leaf in part._leaves():
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

    def __iadd__(self, other: Operand) -> Self:
        return self.add_(other)

    def __isub__(self, other: Operand) -> Self:
        return self.sub_(other)

    def __imul__(self, other: Operand) -> Self:
        return self.mul_(other)

    def __rtruediv__(self, other: Operand) -> Self:
        return self._reflected(torch.div, other)

    def __itruediv__(self, other: Operand) -> Self:
        return self.div_(other)

    def __rpow__(self, other: Operand) -> Self:
        return self._reflected(torch.pow, other)

    def __ipow__(self, other: Operand) -> Self:
        return self.pow_(other)

    def __neg__(self) -> Self:
        return self.neg()

    def __abs__(self) -> Self:
        return self.abs()

    def __invert__(self) -> Self:
        new = self._map_leaves(torch.bitwise_not)
        if self._lock is not None:
            new._propagate_lock(None)
        return new

    def _reflected(self, fn: Callable[[Any, Tensor], Tensor], other: Any) -> Self:
        """``fn(other, self)`` for non-commutative operations."""
        node, leaves, operand = resolve(self, other)
        operands = operand if isinstance(operand, list) else [operand] * len(leaves)
        new = node._with_leaves(iter([fn(left, leaf) for left, leaf in zip(operands, leaves)]))
        if self._lock is not None:
            new._propagate_lock(None)
        return new


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
