"""Arithmetic on a ragged column of numbers: its flat values ``[total, ...]`` are one tensor.

Operations on each element are those of every collection (``ops/``): ``_leaves(True)`` gives them the flat values, and
``_with_leaves`` puts the results between the same offsets. Reductions work on all rows of one length at a time, as on a
tensor ``[rows, length, ...]``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from tensordict_lite.base import HANDLED
from tensordict_lite.gathering import gather_rows, offsets_of
from tensordict_lite.kernel import Flat
from tensordict_lite.objects.stack import NonTensorStack
from tensordict_lite.ops.generated import BINARY, DTYPES, OPERATORS, PREDICATES, UNARY
from tensordict_lite.ops.put import signed_view

BLOCK_ELEMENTS = 1 << 22
"""Number of elements that a reduction gathers at a time, if rows of one length are scattered."""

POINTWISE = frozenset(
    """
    acosh asinh atan2 atanh bitwise_not bitwise_or bitwise_xor deg2rad eq exp2 float_power floor_divide fmax fmin fmod
    ge greater greater_equal gt heaviside hypot isclose isinf le less less_equal logaddexp logical_not logical_or
    logical_xor logit lt nan_to_num ne not_equal positive rad2deg relu remainder rsqrt sgn signbit sinc square where
    xlogy
""".split()
)
"""Further functions of torch that compute each element alone."""


class RaggedNumbers(NonTensorStack):
    """The arithmetic of :class:`Ragged`."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves its operators to the methods of this class

    if TYPE_CHECKING:
        _hold: Callable[[Tensor, Tensor], None]
        _over: Callable[..., Any]
        _ragged: Callable[[], Any]
        column: Any
        flat: Callable[[], tuple[Tensor, Tensor]]
        kind: Any
        lengths: Any

    # -- the flat values as a leaf -------------------------------------------------------------------------------

    @property
    def _is_ragged_numbers(self) -> bool:  # type: ignore[override]  # depends on the column
        column = self.column
        return column is not None and column.kind == "tensor"

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        if not ragged or not self._is_ragged_numbers:
            return super()._leaves()
        if ragged == "own":
            self.column._settle()
        values, offsets = self.flat()
        held: Tensor = self.column.values
        if ragged == "own" and values.untyped_storage().data_ptr() != held.untyped_storage().data_ptr():
            self._hold(values, offsets)
        return [values]

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Any:
        return self._around(next(leaves)) if ragged and self._is_ragged_numbers else super()._with_leaves(leaves)

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Any:
        return self._around(fn(*self._leaves(True))) if ragged and self._is_ragged_numbers else super()._map_leaves(fn)

    def _around(self, values: Any) -> Any:
        """Rows of the same lengths with other values."""
        lengths = self.lengths
        if not isinstance(values, Tensor) or values.shape[:1] != (total := int(lengths.sum()),):
            found = f"shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise TypeError(
                f"a function of each element of {self!r} gets its {total} elements in one tensor and returns as many, "
                f"got {found}: compute with flat(), or leave the column out with exclude()"
            )
        new = self._over("tensor", values if values.is_cpu else values.cpu(), offsets_of(lengths), self._device)
        new._names = self._names
        return new

    def _hold_values(self, values: Tensor) -> None:
        self._hold(values, offsets_of(self.lengths))

    def _by_element(self, rows: Tensor) -> Tensor:
        """One value for each row as an operand of the flat values."""
        if not rows.ndim:
            return rows
        out = torch.repeat_interleave(signed_view(rows.expand(len(self))), self.lengths.to(rows.device))
        return out.view(rows.dtype)[(...,) + (None,) * (self.column.values.ndim - 1)]

    def _values_beside(self, other: Any, key: str | None = None) -> Tensor:
        """The flat values of another column with rows of the same lengths.

        Raises:
            ValueError: a row has another length; the message names it.
        """
        values: Tensor = other._leaves(True)[0]
        mine, its = self.lengths, other.lengths
        name = "ragged columns" if key is None else f"the ragged columns {key!r}"
        if not torch.equal(mine, its):
            row = int((mine != its).nonzero()[0])
            raise ValueError(
                f"{name} need rows of the same lengths to be combined: row {row} has {int(mine[row])} and "
                f"{int(its[row])} elements"
            )
        shape = self.column.values.shape[1:]
        if values.ndim != len(shape) + 1:
            raise ValueError(
                f"{name} with elements of shape {list(shape)} and {list(values.shape[1:])} cannot be combined"
            )
        return values

    # -- functions of the flat values ------------------------------------------------------------------------------

    def _applied(self, fn: Callable[..., Any], others: Sequence[Any], key: str | None = None) -> Any:
        """The column of ``fn(flat values, ...)``; None if it returns None."""
        rest = [self._values_beside(one, key) if getattr(one, "_is_ragged_numbers", False) else one for one in others]
        new = fn(*self._leaves(True), *rest)
        return None if new is None else self._around(new)

    def _apply_level(self, call: Any, others: list[Any], prefix: tuple[str, ...]) -> Any:
        if call.batch_size is not None or call.is_leaf is not None or not self._is_ragged_numbers:
            return super()._apply_level(call, others, prefix)
        key = prefix[-1] if prefix else ""
        return self._applied(lambda values, *rest: call.run(key, prefix[:-1], values, list(rest)), others, key or None)

    def _apply_into(self, call: Any, others: list[Any], prefix: tuple[str, ...], out: Any) -> None:
        new = self._apply_level(call, others, prefix)
        if new is not None and self._is_ragged_numbers:
            out._leaves("own")[0].copy_(out._values_beside(new))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = (*args, *(kwargs or {}).values()), getattr(func, "__name__", str(func))
        column = next((arg for arg in given if isinstance(arg, RaggedNumbers)), None)
        if func in HANDLED and not (name == "where" and column is given[0]):
            if column is not None and name.endswith("_like"):
                column._require_numbers(name)
            return super().__torch_function__(func, types, args, kwargs)
        if column is None:
            return NotImplemented
        column._require_numbers(name)
        if name not in POINTWISE:
            column._refuse(name)
        options = {key: column._flat_operand(name, arg) for key, arg in (kwargs or {}).items()}
        return column._around(func(*[column._flat_operand(name, arg) for arg in args], **options))

    def where(self, condition: Any, other: Any, **kwargs: Any) -> Any:
        """These elements where a ragged condition is True, otherwise those of ``other``; rows for a tensor [rows]."""
        if isinstance(condition, RaggedNumbers):
            return torch.where(condition, self, other)  # type: ignore[call-overload]
        return super().where(condition, other, **kwargs)

    def masked_fill(self, mask: Any, value: Any) -> Any:
        """A number where the mask is True: a ragged column, or a tensor with one value for each row."""
        if not self._is_ragged_numbers:
            return super().masked_fill(mask, value)
        return self._around(self._leaves(True)[0].masked_fill(self._flat_operand("masked_fill", mask), value))

    def masked_fill_(self, mask: Any, value: Any) -> Any:
        """:meth:`masked_fill` in place."""
        if not self._is_ragged_numbers:
            return super().masked_fill_(mask, value)
        self._leaves("own")[0].masked_fill_(self._flat_operand("masked_fill_", mask), value)
        return self

    def _flat_operand(self, name: str, operand: Any) -> Any:
        operand = self._operand(name, operand)
        if isinstance(operand, RaggedNumbers):
            return self._values_beside(operand)
        return self._by_element(operand) if isinstance(operand, Tensor) else operand

    # -- reductions ------------------------------------------------------------------------------------------------

    def _by_row(self, name: str, fn: Callable[..., Any], dim: Any, keepdim: bool, lead: int | None = None) -> Tensor:
        """Reduce each row: over all of its elements, or with ``dim=1`` along its length only.

        Args:
            fn: ``fn(tensor [m, length, ...], dim, keepdim)``.
            lead: the number of results of ``fn`` for each row, their first dimension; None for one.

        Raises:
            ValueError: a row is empty, and torch reduces no empty tensor so; the message names the row.
        """
        column = self.column
        values = column.values.as_subclass(Tensor)
        if keepdim or dim not in (None, "feature", 1, (1,), [1]) and not (dim in (-1, (-1,)) and values.ndim == 1):
            raise TypeError(
                f"{name}() reduces each row of {self!r}, to a tensor [rows], or along its length with dim=1; got "
                f"dim={dim!r}, keepdim={keepdim}: compute with flat() or pad()"
            )
        starts, ends = column.spans(self._rows)
        lengths, order = torch.sort(ends - starts, stable=True)
        found: list[Tensor] = []
        for length, count in zip(*(part.tolist() for part in torch.unique_consecutive(lengths, return_counts=True))):
            done = sum(part.shape[lead is not None] for part in found)
            for rows in order[done : done + count].split(max(1, BLOCK_ELEMENTS // max(1, length))):
                block = _block(values, starts[rows], ends[rows], length)
                try:
                    found.append(fn(block.flatten(1) if dim in (None, "feature") else block, 1, False))
                except (IndexError, RuntimeError) as error:
                    if length:
                        raise
                    raise ValueError(
                        f"{name}() of no elements is not defined, and row {int(rows[0])} is empty: select the rows "
                        "with lengths > 0 first"
                    ) from error
        if not found:
            block = values.new_zeros((1, 1, *values.shape[1:]))
            found.append(fn(block.flatten(1) if dim in (None, "feature") else block, 1, False))
        at = 0 if lead is None else 1
        return torch.cat(found, at).index_select(at, torch.argsort(order))

    def all(self, dim: Any = None) -> Any:
        """Whether all elements of each row are nonzero, bool ``[rows]``; True for an empty row."""
        self._require_numbers("all")
        return self._by_row("all", torch.all, dim, False)

    def any(self, dim: Any = None) -> Any:
        """Whether an element of each row is nonzero, bool ``[rows]``; False for an empty row."""
        self._require_numbers("any")
        return self._by_row("any", torch.any, dim, False)

    def logsumexp(self, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
        """Logarithm of the sum of exponentials of each row."""
        self._require_numbers("logsumexp")
        return self._by_row("logsumexp", torch.logsumexp, dim, keepdim)

    def norm(self, *, out: Any = None, dtype: torch.dtype | None = None, key_transform: Any = None) -> Any:
        """Euclidean norm of each row."""
        self._require_numbers("norm")
        norm = torch.linalg.vector_norm
        return self._by_row("norm", lambda block, dim, keepdim: norm(block, 2, dim, keepdim, dtype=dtype), None, False)

    # -- checks ----------------------------------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(given, torch.dtype) for given in (*args, *kwargs.values())):
            self._require_numbers("to")
        return super().to(*args, **kwargs)

    def _require_numbers(self, name: str) -> None:
        kind, name = self._ragged().kind, name.removeprefix("__").removesuffix("__")
        if kind != "tensor":
            what = {"str": "text", "json": "JSON values"}.get(kind, kind)
            raise TypeError(f"{name}() needs numbers, but {self!r} holds {what}: flat() returns its encoded bytes")

    def _refuse(self, name: str) -> NoReturn:
        raise TypeError(
            f"{name}() of {self!r} has no meaning for rows of different lengths: compute with the tensor of flat(), "
            "with pad(), or row by row"
        )

    def _operand(self, name: str, operand: Any) -> Any:
        if isinstance(operand, RaggedNumbers):
            operand._require_numbers(name)
            if len(operand) != len(self):
                raise ValueError(f"ragged columns of {len(self)} and {len(operand)} rows cannot be combined")
        elif isinstance(operand, Tensor) and operand.ndim and operand.shape != self._batch_size:
            name = name.removeprefix("__").removesuffix("__")
            raise ValueError(
                f"{name}() of {self!r} takes a number, a tensor [{len(self)}] with one value for each row, or a ragged "
                f"column; got a tensor {list(operand.shape)}: combine values for each element with those of flat()"
            )
        elif hasattr(operand, "_with_leaves"):
            raise TypeError(f"{name}() of {self!r} and a {type(operand).__name__}: combine it with a ragged column")
        return operand


def _block(values: Tensor, starts: Tensor, ends: Tensor, length: int) -> Tensor:
    """Rows of one length as a tensor ``[rows, length, ...]``, which shares adjacent rows."""
    shape = (len(starts), length, *values.shape[1:])
    if torch.equal(starts[1:], ends[:-1]):
        return values[int(starts[0]) : int(ends[-1])].reshape(shape)
    if values.requires_grad:
        return values[starts[:, None] + torch.arange(length)]
    flat = values.new_empty((len(starts) * length, *values.shape[1:]))
    gather_rows(values, starts, ends, flat)
    return flat.reshape(shape)


def _of_numbers(name: str, combines: bool = True) -> Callable[..., Any]:
    """The inherited method, of numbers; ``combines``: its arguments are operands."""
    method = getattr(NonTensorStack, name)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._require_numbers(name)
        if combines:
            for operand in (*args, *kwargs.values()):
                self._operand(name, operand)
        return method(self, *args, **kwargs)

    return call


def _refused(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(NonTensorStack, name))
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._require_numbers(name)
        self._refuse(name)

    return call


for _name in (
    *UNARY,
    *[f"{name}_" for name in UNARY],
    *PREDICATES,
    *BINARY,
    *[f"{name}_" for name, row in BINARY.items() if row[-1]],
    *[symbol for symbols in OPERATORS.values() for symbol in symbols],
    *DTYPES,
    *"""
    __rtruediv__ __rpow__ __invert__ __or__ __ror__ __xor__ __rxor__ __lt__ __le__ __gt__ __ge__ addcdiv addcdiv_
    addcmul addcmul_ clamp lerp lerp_ zero_
    """.split(),
):
    setattr(RaggedNumbers, _name, _of_numbers(_name))
for _name in """
    amax amin apply apply_ is_floating_point max mean min nanmean nansum prod quantile std sum type var
""".split():
    setattr(RaggedNumbers, _name, _of_numbers(_name, combines=False))
for _name in "cummax cummin fill_ named_apply softmax".split():
    setattr(RaggedNumbers, _name, _refused(_name))
