"""`col`: entries of a dataset in formulas, which stand where a function of a chunk is expected.

    col("v") > 0          ──►  Applied(">", Column("v"), Constant(0))
    called with a chunk   ──►  numpy arrays, one value a row (or more)  ──►  a tensor

A formula knows which entries it reads, prints as it was written, is pickled as data, and is the same for `resume=`
as another one of the same text. An operation may evaluate it on whole columns instead of chunk by chunk.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable
from numbers import Number
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.kinds import Data, is_data
from tdmap.data.reader import require_entry
from tdmap.data.stacks import column_at
from tdmap.times import TimeType, beside, is_time, time_type
from tensordict_lite import is_non_tensor
from tensordict_lite.ragged import is_ragged

Key: TypeAlias = "str | tuple[str, ...]"

_BINARY: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "|": (operator.or_, 1),
    "^": (operator.xor, 2),
    "&": (operator.and_, 3),
    "<": (operator.lt, 0),
    "<=": (operator.le, 0),
    ">": (operator.gt, 0),
    ">=": (operator.ge, 0),
    "==": (operator.eq, 0),
    "!=": (operator.ne, 0),
    "+": (operator.add, 5),
    "-": (operator.sub, 5),
    "*": (operator.mul, 6),
    "/": (operator.truediv, 6),
    "//": (operator.floordiv, 6),
    "%": (operator.mod, 6),
    "**": (operator.pow, 8),
}
"""What each sign does, and how tightly it binds: for parentheses in what is printed."""

_ORDERS = frozenset({"<", "<=", ">", ">="})
_COMPARISONS = _ORDERS | {"==", "!="}

_UNARY: dict[str, Callable[[Any], Any]] = {"~": operator.invert, "-": operator.neg}

_METHODS: dict[str, Callable[..., Any]] = {
    "abs": lambda values: np.abs(values),
    "is_nan": lambda values: _is_nan(values),
    "isin": lambda values, wanted: _is_in(values, wanted),
    "between": lambda values, low, high: _ordered(">=", values, low) & _ordered("<=", values, high),
    "any": lambda values: _of_row(values, np.any),
    "all": lambda values: _of_row(values, np.all),
    "sum": lambda values: _of_row(values, np.sum),
    "mean": lambda values: _of_row(values, np.mean),
    "min": lambda values: _of_row(values, np.min),
    "max": lambda values: _of_row(values, np.max),
}

ATOM = 9


class Expression:
    """An expression over the entries of a dataset; made by `col`.

    It is a function of a chunk: pass it as the predicate of `tdmap.filter`, as a key of `tdmap.group_by` and
    `tdmap.sort`, or as the function of `tdmap.map`. Arithmetic, comparisons, `&`, `|`, `^` and `~` work as in NumPy,
    but a list or a dict is one value: that of a row of JSON values. Use `&`, `|` and `between` instead of `and`, `or`
    and `0 < col("v") < 1`. Dates and times (`TensorDict.arrow_types`) compare with those of Python, NumPy and pandas,
    and with text: `col("day") >= datetime.date(2024, 6, 1)`, or `>= "2024-06-01"`.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> rows = TensorDict({"v": torch.tensor([1.0, -2.0, 5.0]), "name": ["a", "b", "c"]}, [3])
        >>> wanted = (col("v") > 0) & ~col("name").isin(["c"])
        >>> wanted
        (col('v') > 0) & ~col('name').isin(['c'])
        >>> wanted(rows), sorted(wanted.keys)
        (tensor([ True, False, False]), ['name', 'v'])
    """

    _binds = ATOM

    @property
    def keys(self) -> frozenset[Key]:
        """The entries that are read."""
        raise NotImplementedError

    def values(self, chunk: Data) -> Any:
        """Of the rows of a chunk: a numpy array, or a constant."""
        raise NotImplementedError

    def time(self, chunk: Data) -> TimeType | None:
        """The type of the values, if `arrow_types` declares times."""
        return None

    def __call__(self, chunk: Data) -> Tensor:
        """The values as a tensor with rows in dimension 0; for a single row, without that dimension.

        Raises:
            KeyError: unknown entry.
            TypeError: values cannot be compared or computed with.
        """
        single = is_data(chunk) and not isinstance(chunk, Tensor) and not chunk.batch_size
        with np.errstate(all="ignore"):  # as torch has it
            array = np.asarray(self.values(chunk.unsqueeze(0) if single else chunk))
        if array.dtype == object:
            raise TypeError(f"{self!r} gives Python objects, not numbers or bools: compare them, with == or isin.")
        found = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
        return found[0] if single and found.ndim else found

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} has a value for each row, so it is neither true nor false: combine conditions with &, | and ~ "
            "(in parentheses) instead of and, or and not, and use between(low, high) instead of low <= x <= high."
        )

    def isin(self, values: Iterable[Any]) -> Expression:
        """Whether each value is one of `values`."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"isin takes several values, as a list: got {values!r}.")
        if isinstance(values, np.ndarray) and values.dtype.kind in "mM":  # whose tolist is of numbers without a unit
            return Method(self, "isin", (list(values),))
        return Method(self, "isin", (values.tolist() if isinstance(values, (Tensor, np.ndarray)) else list(values),))

    def between(self, low: object, high: object) -> Expression:
        """Whether each value is at least `low` and at most `high`."""
        return Method(self, "between", (low, high))

    def is_nan(self) -> Expression:
        """Whether each value is NaN, or None."""
        return Method(self, "is_nan", ())

    def any(self) -> Expression:
        """Whether any value of each row is true, for entries with further dimensions."""
        return Method(self, "any", ())

    def all(self) -> Expression:
        """Whether all values of each row are true."""
        return Method(self, "all", ())

    def sum(self) -> Expression:
        """The sum of each row."""
        return Method(self, "sum", ())

    def mean(self) -> Expression:
        """The mean of each row."""
        return Method(self, "mean", ())

    def min(self) -> Expression:
        """The smallest value of each row."""
        return Method(self, "min", ())

    def max(self) -> Expression:
        """The largest value of each row."""
        return Method(self, "max", ())

    def __abs__(self) -> Expression:
        return Method(self, "abs", ())

    def abs(self) -> Expression:
        """The absolute values."""
        return Method(self, "abs", ())

    def __invert__(self) -> Expression:
        return Changed("~", self)

    def __neg__(self) -> Expression:
        return Changed("-", self)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return Applied("==", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return Applied("!=", self, other)


def _operator(sign: str, swapped: bool) -> Callable[[Expression, Any], Expression]:
    def apply(self: Expression, other: object) -> Expression:
        return Applied(sign, other, self) if swapped else Applied(sign, self, other)

    return apply


for _sign, _name in {
    "|": "or", "^": "xor", "&": "and", "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv",
    "%": "mod", "**": "pow",
}.items():  # fmt: skip
    setattr(Expression, f"__{_name}__", _operator(_sign, False))
    setattr(Expression, f"__r{_name}__", _operator(_sign, True))
for _sign, _name in {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}.items():
    setattr(Expression, f"__{_name}__", _operator(_sign, False))


class Column(Expression):
    """One entry."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"col({self.key!r})"

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset([self.key])

    def time(self, chunk: Data) -> TimeType | None:
        path = (self.key,) if isinstance(self.key, str) else self.key
        node = chunk if len(path) == 1 or not is_data(chunk) else chunk.get(path[:-1], None)
        types = getattr(node, "_types", None)
        return time_type(types[path[-1]]) if types and path[-1] in types else None

    def values(self, chunk: Data) -> Any:
        if isinstance(chunk, Tensor) or not is_data(chunk):
            raise TypeError(f"{self!r} reads an entry, and a {type(chunk).__name__} has none: use a TensorDict.")
        require_entry(chunk, self.key, "the column")
        return _array(column_at(chunk, self.key), self)


class Constant(Expression):
    """A value that is the same for all rows."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset()

    def values(self, chunk: Data) -> Any:
        return self.value


class Applied(Expression):
    """Two operands and a sign."""

    def __init__(self, sign: str, left: object, right: object) -> None:
        self.sign = sign
        self.left = _operand(left)
        self.right = _operand(right)

    @property
    def _binds(self) -> int:  # type: ignore[override]
        return _BINARY[self.sign][1]

    def __repr__(self) -> str:
        first = self.sign == "**"  # the only one that goes from right to left
        left, right = _within(self.left, self._binds + first), _within(self.right, self._binds + (not first))
        return f"{left} {self.sign} {right}"

    @property
    def keys(self) -> frozenset[Key]:
        return self.left.keys | self.right.keys

    def values(self, chunk: Data) -> Any:
        sign: str = self.sign
        left, right = self.left.values(chunk), self.right.values(chunk)
        kind, other = self.left.time(chunk), self.right.time(chunk)
        if sign in _COMPARISONS and _is_time_beside(right, left, kind):
            found = _beside(self, self.left, sign, right, kind)
            if found is None:  # a time between two numbers of the column
                return np.full(np.shape(left), sign == "!=")
            sign, right = found
        elif kind is not None and other is not None:
            _require_alike(self, sign, kind, other)
        shapes = [side.shape if isinstance(side, np.ndarray) else () for side in (left, right)]
        if all(shapes) and shapes[0] != shapes[1]:
            raise TypeError(
                f"{self!r}: rows of {self.left!r} have shape {list(shapes[0][1:])}, and rows of "
                f"{self.right!r} have shape {list(shapes[1][1:])}. Reduce one of them first: .any(), .all(), "
                ".sum(), .mean(), .min(), .max()."
            )
        for column, one, text in ((self.left, left, right), (self.right, right, left)):
            if isinstance(text, _SINGLE) and isinstance(one, np.ndarray) and one.dtype.kind in "biufc":
                said = {str: "a text", bytes: "bytes"}.get(type(text), f"a {type(text).__name__}")
                raise TypeError(f"{self!r}: {column!r} holds numbers ({one.dtype}), and {text!r} is {said}.")
        compute = functools.partial(_ordered, sign) if sign in _ORDERS else _BINARY[sign][0]
        return _computed(self, compute, _whole(left), _whole(right))


class Changed(Expression):
    """One operand and a sign."""

    _binds = 7

    def __init__(self, sign: str, operand: Expression) -> None:
        self.sign = sign
        self.operand = operand

    def __repr__(self) -> str:
        return f"{self.sign}{_within(self.operand, self._binds)}"

    @property
    def keys(self) -> frozenset[Key]:
        return self.operand.keys

    def values(self, chunk: Data) -> Any:
        values = self.operand.values(chunk)
        if self.sign == "~" and np.asarray(values).dtype.kind == "f":
            raise TypeError(f"{self!r}: ~ turns bools around, and {self.operand!r} has floating point numbers.")
        return _computed(self, _UNARY[self.sign], values)


class Method(Expression):
    """One operand, the name of what is done to it, and arguments."""

    def __init__(self, operand: Expression, name: str, arguments: tuple[Any, ...]) -> None:
        self.operand = operand
        self.name = name
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"{_within(self.operand, ATOM)}.{self.name}({', '.join(map(repr, self.arguments))})"

    @property
    def keys(self) -> frozenset[Key]:
        return self.operand.keys

    def values(self, chunk: Data) -> Any:
        kind, arguments = self.operand.time(chunk), self.arguments
        if self.name == "between" and (kind is not None or any(map(is_time, arguments))):
            low, high = Applied(">=", self.operand, arguments[0]), Applied("<=", self.operand, arguments[1])
            return low.values(chunk) & high.values(chunk)
        if self.name == "isin" and kind is not None:
            times = [one for one in arguments[0] if is_time(one) or isinstance(one, str)]
            found = [_beside(self, self.operand, "==", one, kind) for one in times]
            others = [one for one in arguments[0] if not (is_time(one) or isinstance(one, str))]
            arguments = (others + [one[1] for one in found if one is not None],)
        if self.name != "isin":
            arguments = tuple(map(_whole, arguments))
        return _computed(self, _METHODS[self.name], self.operand.values(chunk), *arguments)


def col(key: Key, *more: str) -> Expression:
    """An entry of a dataset, for expressions; see `Expression`.

    Args:
        key: name of the entry; a tuple of strings, or several strings, for a nested entry.

    Raises:
        TypeError: `key` is of another type.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> import tdmap
        >>> data = TensorDict({"v": torch.tensor([3.0, -1.0, 2.0]), "id": torch.arange(3)}, [3])
        >>> tdmap.filter(data, col("v") > 0, num_workers=0)["id"]
        tensor([0, 2])
    """
    path = (*((key,) if isinstance(key, str) else key), *more) if isinstance(key, (str, tuple)) else ()
    if not path or not all(isinstance(part, str) for part in path):
        raise TypeError(f"col takes the name of an entry, a string or a tuple of strings: got {key!r}.")
    return Column(path if len(path) > 1 else path[0])


def _computed(formula: Expression, function: Callable[..., Any], *operands: object) -> Any:
    """What a function returns; a TypeError that names the formula if it cannot."""
    try:
        return function(*operands)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{formula!r:.200} cannot be computed: {error}") from error


def _operand(value: object) -> Expression:
    if isinstance(value, Expression):
        return value
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        if isinstance(value, (np.datetime64, np.timedelta64)):
            return Constant(value)
        if value.ndim:
            raise TypeError(
                f"an expression takes columns and single values: got an array of shape {list(value.shape)}. "
                "Make it an entry of the dataset, or use isin."
            )
        value = value.item()
    return Constant(value)


def _is_time_beside(value: object, column: object, kind: TimeType | None) -> bool:
    """Whether a value is a time that is compared with the numbers of a column; Python objects compare themselves."""
    if kind is not None:
        return is_time(value) or isinstance(value, str)
    return is_time(value) and np.asarray(column).dtype.kind in "biufc"


def _beside(
    formula: Expression, column: Expression, sign: str, value: object, kind: TimeType | None
) -> tuple[str, int] | None:
    """A comparison with a time as one with a number; see `beside`."""
    if kind is None:
        raise TypeError(
            f"{formula!r}: {value!r} is a time, and {column!r} has no type in data.arrow_types: set the type, "
            "or compare with a number."
        )
    try:
        return beside(sign, value, kind)
    except TypeError as error:
        raise TypeError(f"{formula!r}: of {column!r}, {error}.") from None


def _require_alike(formula: Expression, sign: str, kind: TimeType, other: TimeType) -> None:
    """Raise TypeError where equal numbers of two columns are different times."""
    same = kind.unit == other.unit and (
        sign not in _COMPARISONS or (kind.family, kind.zoned) == (other.family, other.zoned)
    )
    if not same:
        raise TypeError(
            f"{formula!r}: one column is {kind.name} and the other {other.name}: convert both to one unit first."
        )


def _within(part: Expression, binds: int) -> str:
    return f"({part!r})" if part._binds < binds or (part._binds == 0 and binds <= 1) else repr(part)


def _array(value: Data, column: Expression) -> Any:
    """The values of an entry: one a row as `[rows]`."""
    if is_non_tensor(value):
        if is_ragged(value) and value.kind == "tensor":
            raise TypeError(f"{column!r}: its rows are lists of different lengths, which have no values to compare.")
        return _objects(value.tolist(), tuple(value.batch_size))
    if not isinstance(value, Tensor):
        raise TypeError(f"{column!r} is a collection of entries: name one of them, as in col('a', 'b').")
    value = value.detach().cpu()
    value = (
        value.float()
        if value.dtype is torch.bfloat16 or value.dtype.itemsize == 1 and value.is_floating_point()
        else value
    )
    array = value.resolve_conj().resolve_neg().numpy()
    return array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array


def _whole(value: object) -> object:
    """A text, or another object that numpy would make an array of: it would cut zeros off the end of a text."""
    return _objects(value, ()) if isinstance(value, _SINGLE) else value


_SINGLE = (str, bytes, list, tuple, dict, set)
"""Types of which one value is an object, in a column of objects."""


def _objects(values: Any, shape: tuple[int, ...]) -> Any:
    """Objects of nested lists as an array. Assigned together, those that are lists themselves would become arrays."""
    for _ in shape[1:]:
        values = [one for row in values for one in row]
    return np.fromiter(values if shape else [values], object, math.prod(shape)).reshape(shape)


def _ordered(sign: str, left: Any, right: Any) -> Any:
    """A comparison that is false for None, as it is for NaN."""
    compare = _BINARY[sign][0]
    missing = _is_none(left) | _is_none(right)
    if not missing.any():
        return compare(left, right)
    one, other, present = np.broadcast_arrays(left, right, ~missing)
    found = np.zeros(present.shape, dtype=bool)
    found[present] = compare(one[present], other[present])
    return found


def _is_none(values: Any) -> Any:
    if values is None or (isinstance(values, np.ndarray) and values.dtype.kind == "O"):
        return np.asarray(operator.eq(np.asarray(values, dtype=object), None), dtype=bool)
    return np.False_  # a scalar stays one, so that it does not get a dtype


def _is_nan(values: object) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype == object:
        return np.fromiter((one is None or one != one for one in array.reshape(-1)), bool, array.size)
    return np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, dtype=bool)


def _is_in(values: object, wanted: list[Any]) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype == object or not wanted:
        try:
            return _each_in(array, set(wanted))
        except TypeError:  # lists or dicts, which have no hash
            return _each_in(array, wanted)
    kinds = set(map(type, wanted))
    if not all(issubclass(kind, (Number, np.bool_)) for kind in kinds):
        raise TypeError(f"the values of the column are numbers, and these are not: {wanted!r:.80}.")
    return np.isin(array, _in_dtype(wanted, kinds, array.dtype))


def _each_in(array: NDArray[Any], known: Collection[Any]) -> NDArray[np.bool_]:
    return np.fromiter((one in known for one in array.reshape(-1)), bool, array.size).reshape(array.shape)


def _in_dtype(wanted: list[Any], kinds: set[type], dtype: np.dtype[Any]) -> Any:
    """Numbers in the dtype of a column, as `==` compares them; without numbers that the dtype cannot represent."""
    if dtype.kind not in "fc":
        low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        if kinds != {int}:
            finite = [one.real for one in wanted if not one.imag and math.isfinite(one.real)]
            wanted = [int(one) for one in finite if one == int(one)]
        wanted = wanted if not wanted or low <= min(wanted) <= max(wanted) <= high else _between(wanted, low, high)
    elif dtype.kind == "f":
        wanted = [one.real for one in wanted if not one.imag] if any(issubclass(k, complex) for k in kinds) else wanted
    with np.errstate(all="ignore"):
        return np.array(wanted, dtype=dtype)


def _between(numbers: list[int], low: int, high: int) -> list[int]:
    return [one for one in numbers if low <= one <= high]


def _of_row(values: object, reduce: Callable[..., Any]) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype == object or not array.ndim:
        return array
    array = array.reshape(len(array), array.size // max(len(array), 1))
    found: NDArray[Any] = reduce(array, axis=1)
    return found
