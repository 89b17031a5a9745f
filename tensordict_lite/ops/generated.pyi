# Written by `python -m tensordict_lite.ops.stubs`: change the tables in generated.py instead.
# fmt: off
# ruff: noqa: E501

import builtins
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.kernel import Kernel

UNARY: dict[str, tuple[str, str]]
PREDICATES: dict[str, str]
BINARY: dict[str, tuple[str, Callable[..., Tensor], bool, bool, bool]]
OPERATORS: dict[str, tuple[str, ...]]
DTYPES: dict[str, torch.dtype]

def inplace(
    foreach: Callable[..., Any] | None, each: Callable[..., Any], leaves: list[Tensor], *args: Any
) -> None: ...
def any_requires_grad() -> Callable[..., bool]: ...

class GeneratedOps(Kernel):
    def abs(self) -> Self:
        """Absolute value, element by element, see :func:`torch.abs`. Keeps names and lock."""
    def acos(self) -> Self:
        """Arc cosine, in radians, element by element, see :func:`torch.acos`. Keeps names and lock."""
    def asin(self) -> Self:
        """Arc sine, in radians, element by element, see :func:`torch.asin`. Keeps names and lock."""
    def atan(self) -> Self:
        """Arc tangent, in radians, element by element, see :func:`torch.atan`. Keeps names and lock."""
    def ceil(self) -> Self:
        """Smallest integer that is not below the value, element by element, see :func:`torch.ceil`. Keeps names and lock."""
    def cos(self) -> Self:
        """Cosine of an angle in radians, element by element, see :func:`torch.cos`. Keeps names and lock."""
    def cosh(self) -> Self:
        """Hyperbolic cosine, element by element, see :func:`torch.cosh`. Keeps names and lock."""
    def erf(self) -> Self:
        """Error function, element by element, see :func:`torch.erf`. Keeps names and lock."""
    def erfc(self) -> Self:
        """Complement of the error function, 1 - erf(x), element by element, see :func:`torch.erfc`. Keeps names and lock."""
    def exp(self) -> Self:
        """Exponential, element by element, see :func:`torch.exp`. Keeps names and lock."""
    def expm1(self) -> Self:
        """Exponential minus one, precise near zero, element by element, see :func:`torch.expm1`. Keeps names and lock."""
    def floor(self) -> Self:
        """Largest integer that is not above the value, element by element, see :func:`torch.floor`. Keeps names and lock."""
    def frac(self) -> Self:
        """Fractional part, with the sign of the value, element by element, see :func:`torch.frac`. Keeps names and lock."""
    def lgamma(self) -> Self:
        """Logarithm of the absolute value of the gamma function, element by element, see :func:`torch.lgamma`. Keeps names and lock."""
    def log(self) -> Self:
        """Natural logarithm, element by element, see :func:`torch.log`. Keeps names and lock."""
    def log10(self) -> Self:
        """Logarithm to base 10, element by element, see :func:`torch.log10`. Keeps names and lock."""
    def log1p(self) -> Self:
        """Natural logarithm of one plus the value, precise near zero, element by element, see :func:`torch.log1p`. Keeps names and lock."""
    def log2(self) -> Self:
        """Logarithm to base 2, element by element, see :func:`torch.log2`. Keeps names and lock."""
    def neg(self) -> Self:
        """Negative, element by element, see :func:`torch.neg`. Keeps names and lock."""
    def reciprocal(self) -> Self:
        """One divided by the value, element by element, see :func:`torch.reciprocal`. Keeps names and lock."""
    def round(self) -> Self:
        """Nearest integer, halves to the even one, element by element, see :func:`torch.round`. Keeps names and lock."""
    def sigmoid(self) -> Self:
        """Logistic function 1 / (1 + exp(-x)), element by element, see :func:`torch.sigmoid`. Keeps names and lock."""
    def sign(self) -> Self:
        """Sign: -1, 0 or 1, element by element, see :func:`torch.sign`. Keeps names and lock."""
    def sin(self) -> Self:
        """Sine of an angle in radians, element by element, see :func:`torch.sin`. Keeps names and lock."""
    def sinh(self) -> Self:
        """Hyperbolic sine, element by element, see :func:`torch.sinh`. Keeps names and lock."""
    def sqrt(self) -> Self:
        """Square root, element by element, see :func:`torch.sqrt`. Keeps names and lock."""
    def tan(self) -> Self:
        """Tangent of an angle in radians, element by element, see :func:`torch.tan`. Keeps names and lock."""
    def tanh(self) -> Self:
        """Hyperbolic tangent, element by element, see :func:`torch.tanh`. Keeps names and lock."""
    def trunc(self) -> Self:
        """Integer part, element by element, see :func:`torch.trunc`. Keeps names and lock."""
    def abs_(self) -> Self:
        """:meth:`abs` in place: absolute value, element by element. Returns ``self``."""
    def acos_(self) -> Self:
        """:meth:`acos` in place: arc cosine, in radians, element by element. Returns ``self``."""
    def asin_(self) -> Self:
        """:meth:`asin` in place: arc sine, in radians, element by element. Returns ``self``."""
    def atan_(self) -> Self:
        """:meth:`atan` in place: arc tangent, in radians, element by element. Returns ``self``."""
    def ceil_(self) -> Self:
        """:meth:`ceil` in place: smallest integer that is not below the value, element by element. Returns ``self``."""
    def cos_(self) -> Self:
        """:meth:`cos` in place: cosine of an angle in radians, element by element. Returns ``self``."""
    def cosh_(self) -> Self:
        """:meth:`cosh` in place: hyperbolic cosine, element by element. Returns ``self``."""
    def erf_(self) -> Self:
        """:meth:`erf` in place: error function, element by element. Returns ``self``."""
    def erfc_(self) -> Self:
        """:meth:`erfc` in place: complement of the error function, 1 - erf(x), element by element. Returns ``self``."""
    def exp_(self) -> Self:
        """:meth:`exp` in place: exponential, element by element. Returns ``self``."""
    def expm1_(self) -> Self:
        """:meth:`expm1` in place: exponential minus one, precise near zero, element by element. Returns ``self``."""
    def floor_(self) -> Self:
        """:meth:`floor` in place: largest integer that is not above the value, element by element. Returns ``self``."""
    def frac_(self) -> Self:
        """:meth:`frac` in place: fractional part, with the sign of the value, element by element. Returns ``self``."""
    def lgamma_(self) -> Self:
        """:meth:`lgamma` in place: logarithm of the absolute value of the gamma function, element by element. Returns ``self``."""
    def log_(self) -> Self:
        """:meth:`log` in place: natural logarithm, element by element. Returns ``self``."""
    def log10_(self) -> Self:
        """:meth:`log10` in place: logarithm to base 10, element by element. Returns ``self``."""
    def log1p_(self) -> Self:
        """:meth:`log1p` in place: natural logarithm of one plus the value, precise near zero, element by element. Returns ``self``."""
    def log2_(self) -> Self:
        """:meth:`log2` in place: logarithm to base 2, element by element. Returns ``self``."""
    def neg_(self) -> Self:
        """:meth:`neg` in place: negative, element by element. Returns ``self``."""
    def reciprocal_(self) -> Self:
        """:meth:`reciprocal` in place: one divided by the value, element by element. Returns ``self``."""
    def round_(self) -> Self:
        """:meth:`round` in place: nearest integer, halves to the even one, element by element. Returns ``self``."""
    def sigmoid_(self) -> Self:
        """:meth:`sigmoid` in place: logistic function 1 / (1 + exp(-x)), element by element. Returns ``self``."""
    def sign_(self) -> Self:
        """:meth:`sign` in place: sign: -1, 0 or 1, element by element. Returns ``self``."""
    def sin_(self) -> Self:
        """:meth:`sin` in place: sine of an angle in radians, element by element. Returns ``self``."""
    def sinh_(self) -> Self:
        """:meth:`sinh` in place: hyperbolic sine, element by element. Returns ``self``."""
    def sqrt_(self) -> Self:
        """:meth:`sqrt` in place: square root, element by element. Returns ``self``."""
    def tan_(self) -> Self:
        """:meth:`tan` in place: tangent of an angle in radians, element by element. Returns ``self``."""
    def tanh_(self) -> Self:
        """:meth:`tanh` in place: hyperbolic tangent, element by element. Returns ``self``."""
    def trunc_(self) -> Self:
        """:meth:`trunc` in place: integer part, element by element. Returns ``self``."""
    def isfinite(self) -> Self:
        """Whether each element is neither infinite nor NaN: bool tensors under the same keys."""
    def isnan(self) -> Self:
        """Whether each element is NaN: bool tensors under the same keys."""
    def isneginf(self) -> Self:
        """Whether each element is negative infinity: bool tensors under the same keys."""
    def isposinf(self) -> Self:
        """Whether each element is positive infinity: bool tensors under the same keys."""
    def isreal(self) -> Self:
        """Whether each element has a zero imaginary part, as every real number has: bool tensors under the same keys."""
    def add(self, other: TensorCollection | Tensor | builtins.float, *, alpha: builtins.float | None = None, default: Tensor | builtins.float | str | None = None) -> Self:
        """Sum with ``other``, element by element, see :func:`torch.add`. Keeps names and lock."""
    def sub(self, other: TensorCollection | Tensor | builtins.float, *, alpha: builtins.float | None = None, default: Tensor | builtins.float | str | None = None) -> Self:
        """Difference from ``other``, element by element, see :func:`torch.sub`. Keeps names and lock."""
    def rsub(self, other: TensorCollection | Tensor | builtins.float, *, alpha: builtins.float | None = None, default: Tensor | builtins.float | str | None = None) -> Self:
        """``other`` minus alpha times the value, element by element, see :func:`torch.rsub`. Keeps names and lock."""
    def mul(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Product with ``other``, element by element, see :func:`torch.mul`. Keeps names and lock."""
    def div(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Quotient by ``other``, element by element, see :func:`torch.div`. Keeps names and lock."""
    def pow(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Power with exponent ``other``, element by element, see :func:`torch.pow`. Keeps names and lock."""
    def mod(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Remainder of the division by ``other``, of its sign, element by element, see :func:`torch.remainder`. Keeps names and lock."""
    def maximum(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Larger of the value and ``other``, NaN where either is, element by element, see :func:`torch.maximum`. Keeps names and lock."""
    def minimum(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Smaller of the value and ``other``, NaN where either is, element by element, see :func:`torch.minimum`. Keeps names and lock."""
    def clamp_min(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Value, not below ``other``, element by element, see :func:`torch.clamp_min`. Keeps names and lock."""
    def clamp_max(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Value, not above ``other``, element by element, see :func:`torch.clamp_max`. Keeps names and lock."""
    def bitwise_and(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Bitwise and with ``other``, element by element, see :func:`torch.bitwise_and`. Keeps names and lock."""
    def logical_and(self, other: TensorCollection | Tensor | builtins.float, *, default: Tensor | builtins.float | str | None = None) -> Self:
        """Logical and with ``other``, element by element, see :func:`torch.logical_and`. Keeps names and lock."""
    def add_(self, other: TensorCollection | Tensor | builtins.float, alpha: builtins.float | None = None) -> Self:
        """:meth:`add` in place. Returns ``self``, whose tensors keep their dtype."""
    def sub_(self, other: TensorCollection | Tensor | builtins.float, alpha: builtins.float | None = None) -> Self:
        """:meth:`sub` in place. Returns ``self``, whose tensors keep their dtype."""
    def mul_(self, other: TensorCollection | Tensor | builtins.float) -> Self:
        """:meth:`mul` in place. Returns ``self``, whose tensors keep their dtype."""
    def div_(self, other: TensorCollection | Tensor | builtins.float) -> Self:
        """:meth:`div` in place. Returns ``self``, whose tensors keep their dtype."""
    def pow_(self, other: TensorCollection | Tensor | builtins.float) -> Self:
        """:meth:`pow` in place. Returns ``self``, whose tensors keep their dtype."""
    def maximum_(self, other: TensorCollection | Tensor | builtins.float) -> Self:
        """:meth:`maximum` in place. Returns ``self``, whose tensors keep their dtype."""
    def minimum_(self, other: TensorCollection | Tensor | builtins.float) -> Self:
        """:meth:`minimum` in place. Returns ``self``, whose tensors keep their dtype."""
    def clamp_min_(self, other: TensorCollection | Tensor | builtins.float) -> Self:
        """:meth:`clamp_min` in place. Returns ``self``, whose tensors keep their dtype."""
    def clamp_max_(self, other: TensorCollection | Tensor | builtins.float) -> Self:
        """:meth:`clamp_max` in place. Returns ``self``, whose tensors keep their dtype."""
    def bfloat16(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.bfloat16``. Keeps names and lock."""
    def complex32(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.complex32``. Keeps names and lock."""
    def complex64(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.complex64``. Keeps names and lock."""
    def complex128(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.complex128``. Keeps names and lock."""
    def float16(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.float16``. Keeps names and lock."""
    def float32(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.float32``. Keeps names and lock."""
    def float64(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.float64``. Keeps names and lock."""
    def int8(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.int8``. Keeps names and lock."""
    def int16(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.int16``. Keeps names and lock."""
    def int32(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.int32``. Keeps names and lock."""
    def int64(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.int64``. Keeps names and lock."""
    def uint8(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.uint8``. Keeps names and lock."""
    def uint16(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.uint16``. Keeps names and lock."""
    def uint32(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.uint32``. Keeps names and lock."""
    def uint64(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.uint64``. Keeps names and lock."""
    def qint8(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.qint8``. Keeps names and lock."""
    def qint32(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.qint32``. Keeps names and lock."""
    def quint8(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.quint8``. Keeps names and lock."""
    def quint4x2(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.quint4x2``. Keeps names and lock."""
    def half(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.float16``. Keeps names and lock."""
    def float(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.float32``. Keeps names and lock."""
    def double(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.float64``. Keeps names and lock."""
    def int(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.int32``. Keeps names and lock."""
    def bool(self, *, cast_filter: Callable[[tuple[str, ...], Tensor], Any] | None = None) -> Self:
        """Casts every tensor to ``torch.bool``. Keeps names and lock."""
    def __abs__(self) -> Self: ...
    def __neg__(self) -> Self: ...
    def __add__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __radd__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __sub__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __rsub__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __mul__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __rmul__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __truediv__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __pow__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __mod__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __and__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __rand__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __iadd__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __isub__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __imul__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __itruediv__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
    def __ipow__(self, other: TensorCollection | Tensor | builtins.float) -> Self: ...
