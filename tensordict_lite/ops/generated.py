"""Methods defined as rows of a table, with a signature, a docstring and a stub.

``python -m tensordict_lite.ops.stubs`` writes ``generated.pyi`` next to this file.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.ops.comparison import with_answers
from tensordict_lite.ops.operands import NUMBERS, fused, is_collection, pair_leaves, resolve, spelled_out

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

# name: (what it computes, an argument in the domain). Each has an in-place form.
UNARY: dict[str, tuple[str, str]] = {
    "abs": ("absolute value", "-1.5"),
    "acos": ("arc cosine, in radians", "0.5"),
    "asin": ("arc sine, in radians", "0.5"),
    "atan": ("arc tangent, in radians", "0.5"),
    "ceil": ("smallest integer that is not below the value", "0.5"),
    "cos": ("cosine of an angle in radians", "0.5"),
    "cosh": ("hyperbolic cosine", "0.5"),
    "erf": ("error function", "0.5"),
    "erfc": ("complement of the error function, 1 - erf(x)", "0.5"),
    "exp": ("exponential", "0.5"),
    "expm1": ("exponential minus one, precise near zero", "0.5"),
    "floor": ("largest integer that is not above the value", "0.5"),
    "frac": ("fractional part, with the sign of the value", "1.5"),
    "lgamma": ("logarithm of the absolute value of the gamma function", "2.5"),
    "log": ("natural logarithm", "0.5"),
    "log10": ("logarithm to base 10", "0.5"),
    "log1p": ("natural logarithm of one plus the value, precise near zero", "0.5"),
    "log2": ("logarithm to base 2", "0.5"),
    "neg": ("negative", "0.5"),
    "reciprocal": ("one divided by the value", "0.5"),
    "round": ("nearest integer, halves to the even one", "1.5"),
    "sigmoid": ("logistic function 1 / (1 + exp(-x))", "0.5"),
    "sign": ("sign: -1, 0 or 1", "-1.5"),
    "sin": ("sine of an angle in radians", "0.5"),
    "sinh": ("hyperbolic sine", "0.5"),
    "sqrt": ("square root", "0.5"),
    "tan": ("tangent of an angle in radians", "0.5"),
    "tanh": ("hyperbolic tangent", "0.5"),
    "trunc": ("integer part", "-1.5"),
}

# name: the question about each element
PREDICATES: dict[str, str] = {
    "isfinite": "is neither infinite nor NaN",
    "isnan": "is NaN",
    "isneginf": "is negative infinity",
    "isposinf": "is positive infinity",
    "isreal": "has a zero imaginary part, as every real number has",
}

# name: (what it computes, torch function, has a fused form, takes alpha, has an in-place form)
BINARY: dict[str, tuple[str, Callable[..., Tensor], bool, bool, bool]] = {
    "add": ("sum with ``other``", torch.add, True, True, True),
    "sub": ("difference from ``other``", torch.sub, True, True, True),
    "rsub": ("``other`` minus alpha times the value", torch.rsub, False, True, False),
    "mul": ("product with ``other``", torch.mul, True, False, True),
    "div": ("quotient by ``other``", torch.div, True, False, True),
    "pow": ("power with exponent ``other``", torch.pow, True, False, True),
    "mod": ("remainder of the division by ``other``, of its sign", torch.remainder, False, False, False),
    "maximum": ("larger of the value and ``other``, NaN where either is", torch.maximum, True, False, True),
    "minimum": ("smaller of the value and ``other``, NaN where either is", torch.minimum, True, False, True),
    "clamp_min": ("value, not below ``other``", torch.clamp_min, True, False, True),
    "clamp_max": ("value, not above ``other``", torch.clamp_max, True, False, True),
    "bitwise_and": ("bitwise and with ``other``", torch.bitwise_and, False, False, False),
    "logical_and": ("logical and with ``other``", torch.logical_and, False, False, False),
}

_LINEAR = frozenset(("add", "sub", "rsub", "mul", "div"))
"""Operators without a fast torch path for numbers, unlike powers and bounds."""

# The operators of a method, without its keyword arguments.
OPERATORS: dict[str, tuple[str, ...]] = {
    "abs": ("__abs__",),
    "neg": ("__neg__",),
    "add": ("__add__", "__radd__"),
    "sub": ("__sub__",),
    "rsub": ("__rsub__",),
    "mul": ("__mul__", "__rmul__"),
    "div": ("__truediv__",),
    "pow": ("__pow__",),
    "mod": ("__mod__",),
    "bitwise_and": ("__and__", "__rand__"),
    "add_": ("__iadd__",),
    "sub_": ("__isub__",),
    "mul_": ("__imul__",),
    "div_": ("__itruediv__",),
    "pow_": ("__ipow__",),
}

_CASTS = """
    bfloat16 complex32 complex64 complex128 float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32
    uint64 qint8 qint32 quint8 quint4x2
""".split()
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _CASTS} | {
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "bool": torch.bool,
}

_EXAMPLE = """
    Example:
        >>> td = TensorDict({{"a": torch.tensor([{data}])}}, [1])
        >>> td.{call}["a"].equal({expected})
        True
    """


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = name
    function.__qualname__ = f"GeneratedOps.{name}"
    function.__doc__ = doc
    return function


def _sentence(text: str) -> str:
    return text if text.startswith("`") else text[0].upper() + text[1:]


def _each_number(each: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``each`` for torch functions that accept only tensors: a number becomes a tensor without dimensions."""

    def call(leaf: Tensor, other: Any) -> Tensor:
        return each(leaf, other if isinstance(other, Tensor) else torch.tensor(other, device="cpu"))

    return call


def _both(a: Any, b: Any) -> Any:
    """``logical_and`` of objects: for bools and numbers; other objects do not support it, as for ``&``."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.logical_and(a, b)
    if not (isinstance(a, (bool, int, float)) and isinstance(b, (bool, int, float))):
        raise TypeError(f"no logical and of {type(a).__name__} and {type(b).__name__}")
    return bool(a) and bool(b)


_LOGIC = {"bitwise_and": operator.and_, "logical_and": _both}

_EACH = {
    "maximum": _each_number(torch.maximum),
    "minimum": _each_number(torch.minimum),
}


def _unary(name: str, meaning: str, data: str) -> Callable[..., Any]:
    foreach, each = getattr(torch, f"_foreach_{name}", None), getattr(torch, name)

    def method(self) -> Self:  # type: ignore[no-untyped-def]
        leaves = self._leaves(True)
        new = self._with_leaves(iter(fused(foreach, each, leaves) if leaves else ()), True)
        if self._lock is not None:
            new._propagate_lock(None)
        return new

    doc = f"{_sentence(meaning)}, element by element, see :func:`torch.{name}`. Keeps names and lock.\n"
    return _named(method, name, doc + _EXAMPLE.format(data=data, call=f"{name}()", expected=f'td["a"].{name}()'))


def _unary_inplace(name: str, meaning: str) -> Callable[..., Any]:
    foreach, each = getattr(torch, f"_foreach_{name}_", None), getattr(Tensor, f"{name}_")

    def method(self) -> Self:  # type: ignore[no-untyped-def]
        inplace(foreach, each, self._leaves("own"))
        return self

    return _named(method, f"{name}_", f":meth:`{name}` in place: {meaning}, element by element. Returns ``self``.")


def inplace(foreach: Callable[..., Any] | None, each: Callable[..., Any], leaves: list[Tensor], *args: Any) -> None:
    """Like ``fused``, but for calls that change tensors and must not be repeated: decide beforehand."""
    if not leaves:
        return
    if foreach is not None and not _tracked(leaves, *args) and _interpreter() is None:
        try:
            foreach(leaves, *args)
        except NotImplementedError:  # with nested tensors: rejected before anything is changed
            fused(None, each, leaves, *args)
    else:
        fused(None, each, leaves, *args)


_interpreter = torch._C._functorch.peek_interpreter_stack


def _tracked(*columns: Any) -> bool:
    """Whether autograd records an operation on these tensors: a fused call would record it for all of them."""
    if torch.is_grad_enabled():
        any_tracked = any_requires_grad()
        for column in columns:
            if type(column) is list and any_tracked(*column):
                return True
    return False


def _any_tracked(*operands: Any) -> bool:
    return any(isinstance(operand, Tensor) and operand.requires_grad for operand in operands)


_is_traced = torch.compiler.is_dynamo_compiling
_any_of_torch: Callable[..., bool] = getattr(torch._C, "_any_requires_grad", _any_tracked)


def any_requires_grad() -> Callable[..., bool]:
    """A function that returns whether an argument requires grad: torch's own, unless torch.compile traces."""
    return _any_tracked if _is_traced() else _any_of_torch  # torch's own takes a fifth of the time


def _predicate(name: str, meaning: str) -> Callable[..., Any]:
    each = getattr(torch, name)

    def method(self) -> Self:  # type: ignore[no-untyped-def]
        return self._keep_lock(self._with_leaves(iter([each(leaf) for leaf in self._leaves(True)]), True))

    doc = f"Whether each element {meaning}: bool tensors under the same keys.\n"
    return _named(method, name, doc + _EXAMPLE.format(data="0.5", call=f"{name}()", expected=f'torch.{name}(td["a"])'))


_BINARY_DOC = """{meaning}, element by element, see :func:`torch.{torch_name}`. Keeps names and lock.

    Args:
        other: a number; a tensor, aligned with the batch dimensions and expanded over the others; or a
            collection, paired key by key. Batch sizes are broadcast together.{alpha}
        default: for keys that only one of two collections has: a tensor or number in place of the missing
            entry, ``"intersection"`` to drop them, ``None`` to refuse them.

    Raises:
        KeyError: the keys differ and there is no ``default``.
        RuntimeError: shapes do not broadcast.
        TypeError: ``other`` is something else.
"""


def _binary_doc(name: str, meaning: str, torch_name: str, has_alpha: bool) -> str:
    alpha = "\n        alpha: multiplier of what is added or subtracted." if has_alpha else ""
    data = "2" if name in ("bitwise_and", "logical_and") else "2.0"
    example = _EXAMPLE.format(
        data=data, call=f"{name}(torch.tensor(3))", expected=f'torch.{torch_name}(td["a"], torch.tensor(3))'
    )
    return _BINARY_DOC.format(meaning=_sentence(meaning), torch_name=torch_name, alpha=alpha) + example


def _binary(
    name: str, meaning: str, each: Callable[..., Tensor], has_foreach: bool, has_alpha: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    foreach = getattr(torch, f"_foreach_{name}", None) if has_foreach else None
    single = _EACH.get(name, each)

    logic = _LOGIC.get(name)  # supports objects too
    is_linear = name in _LINEAR

    def compute(self: Any, other: Any, default: Any = None) -> Any:
        locked = self._lock is not None
        given = other
        if type(other) in NUMBERS:
            leaves = self._leaves(True)
            if is_linear:
                other = spelled_out(other, leaves)
        elif type(other) is type(self) and other._batch_size == self._batch_size and default is None:
            leaves, other = pair_leaves(self, other, True)
        else:
            self, leaves, other = resolve(self, other, default)
        new = self._with_leaves(iter(fused(foreach, single, leaves, other) if leaves else ()), True)
        if logic is not None and is_collection(given):
            new = with_answers(new, self, given, logic)
        if locked:
            new._propagate_lock(None)
        return new

    doc = _binary_doc(name, meaning, each.__name__, has_alpha)
    if name == "rsub":

        def method(  # type: ignore[no-untyped-def]
            self,
            other: TensorCollection | Tensor | float,
            *,
            alpha: float | None = None,
            default: Tensor | float | str | None = None,
        ) -> Self:
            return compute(self if alpha is None else self.mul(alpha), other, default)

    elif has_alpha:

        def method(  # type: ignore[no-untyped-def,misc]
            self,
            other: TensorCollection | Tensor | float,
            *,
            alpha: float | None = None,
            default: Tensor | float | str | None = None,
        ) -> Self:
            return compute(self, other if alpha is None else other * alpha, default)

    else:

        def method(  # type: ignore[no-untyped-def,misc]
            self,
            other: TensorCollection | Tensor | float,
            *,
            default: Tensor | float | str | None = None,
        ) -> Self:
            return compute(self, other, default)

    compute.__name__, compute.__qualname__ = f"__{name}__", f"GeneratedOps.__{name}__"
    return _named(method, name, doc), compute


def _binary_inplace(name: str, has_alpha: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    foreach = getattr(torch, f"_foreach_{name}_")
    single = getattr(Tensor, f"{name}_", None) or _copying(_EACH[name])
    is_linear = name in _LINEAR

    def compute(self: Any, other: Any) -> Any:
        if type(other) is type(self) and other._batch_size == self._batch_size:
            leaves, other = pair_leaves(self, other, "own")
        else:
            _, leaves, other = resolve(self, other, None, True)
            if is_linear:
                other = spelled_out(other, leaves)
        inplace(foreach, single, leaves, other)
        return self

    if has_alpha:

        def method(  # type: ignore[no-untyped-def]
            self, other: TensorCollection | Tensor | float, alpha: float | None = None
        ) -> Self:
            return compute(self, other if alpha is None else other * alpha)

    else:

        def method(self, other: TensorCollection | Tensor | float) -> Self:  # type: ignore[no-untyped-def,misc]
            return compute(self, other)

    doc = f":meth:`{name}` in place. Returns ``self``, whose tensors keep their dtype."
    return _named(method, f"{name}_", doc), compute


def _copying(each: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An in-place form of a function for which torch has none."""

    def call(leaf: Tensor, other: Any) -> Tensor:
        return leaf.copy_(each(leaf, other))

    return call


def _cast(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    def method(  # type: ignore[no-untyped-def]
        self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None
    ) -> Self:
        return self._cast(dtype) if cast_filter is None else self.to(dtype, cast_filter=cast_filter)

    return _named(
        method,
        name,
        f"Casts every tensor to ``{dtype}``. Keeps names and lock.\n\n"
        "    Args:\n        cast_filter: ``fn(path, tensor)``, which tensors to cast; all by default.\n",
    )


class GeneratedOps(Kernel):
    """The methods of the tables above."""

    __slots__ = ()


def _add(name: str, method: Callable[..., Any], operator: Callable[..., Any]) -> None:
    setattr(GeneratedOps, name, method)
    for symbol in OPERATORS.get(name, ()):
        setattr(GeneratedOps, symbol, operator)


for _name, (_meaning, _data) in UNARY.items():
    _method = _unary(_name, _meaning, _data)
    _add(_name, _method, _method)
    setattr(GeneratedOps, f"{_name}_", _unary_inplace(_name, _meaning))
for _name, _meaning in PREDICATES.items():
    setattr(GeneratedOps, _name, _predicate(_name, _meaning))
for _name, (_meaning, _each, _has_foreach, _has_alpha, _has_inplace) in BINARY.items():
    _add(_name, *_binary(_name, _meaning, _each, _has_foreach, _has_alpha))
    if _has_inplace:
        _add(f"{_name}_", *_binary_inplace(_name, _has_alpha))
for _name, _dtype in DTYPES.items():
    setattr(GeneratedOps, _name, _cast(_name, _dtype))
