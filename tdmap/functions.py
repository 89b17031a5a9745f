"""What a function of the user may be, and may return.

It may be a module, a torchvision transform, or any of them on chosen entries (`as_function`); be called with the
numbers of its rows and with options; and return dicts of columns and arrays (`adapted`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, MappingView, Sequence
from numbers import Number
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from tdmap.data.kinds import Data, is_data
from tdmap.data.objects import Forms, with_ragged_rows
from tdmap.errors import OutputMismatch, add_note
from tdmap.job import FirstRow, function_name, takes_start
from tdmap.memory.rowfiles import SharedTensors
from tdmap.plan import ChunkPlan
from tdmap.process_state import DefaultDevice, caller_device
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.arrays import tensor_of
from tensordict_lite.base import TensorCollection
from tensordict_lite.building.arrays import column_of, require_unmasked

if TYPE_CHECKING:
    from typing import Self

Key: TypeAlias = "str | tuple[str, ...]"
Keys: TypeAlias = "Key | Sequence[Key]"

IMAGE_NAMES = ("image", "images", "img", "pixels")
"""Entries that a picture transform takes where several could be pictures."""

_CHANNELS = (1, 2, 3, 4)


def as_function(
    fn: Callable[..., Any], in_keys: Keys | None = None, out_keys: Keys | None = None
) -> Callable[..., Any]:
    """The function that the engine calls for `fn`.

    Functions are returned unchanged. With `in_keys`, `fn` takes these entries of each chunk (`OnKeys`). An `nn.Module`
    takes the chunk, without gradients and in its current train or eval mode; worker processes share one copy of its
    parameters. A torchvision transform takes the images of the chunk (`image_key`), or the chunk if it is a tensor.

    Args:
        fn: a function, an `nn.Module`, a transform, or any other callable.
        in_keys: entries to pass as arguments, in order.
        out_keys: entries for its results; None: `in_keys`.

    Raises:
        TypeError: `fn` cannot be called, or is async.
        ValueError: `out_keys` without `in_keys`.

    Example:
        >>> double = as_function(nn.Linear(3, 2).eval())
        >>> double(torch.ones(5, 3)).shape, double(torch.ones(5, 3)).requires_grad
        (torch.Size([5, 2]), False)
    """
    require_function(fn)
    if in_keys is not None:
        fn = OnKeys(fn, in_keys, out_keys)
    elif out_keys is not None:
        raise ValueError(f"out_keys={out_keys!r} needs in_keys as well: the entries that the function is called with.")
    elif _is_transform(fn):
        fn = OnPictures(fn)
    elif isinstance(fn, nn.Module):
        fn = ModuleFunction(fn)
    return _in_default_device(fn)


def require_function(fn: object) -> None:
    """Raise TypeError for what cannot be called, or whose result would have to be awaited."""
    if not callable(fn):
        hint = " A comparison of columns is written tdmap.col('x') > 3." if isinstance(fn, str) else ""
        raise TypeError(f"fn must be a function, a module or a transform: got {fn!r}.{hint}")
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        name = function_name(fn)
        raise TypeError(
            f"{name} is async: pass a function that runs it, as in lambda chunk: asyncio.run({name}(chunk))."
        )


def modules_of(fn: object) -> Iterator[nn.Module]:
    """The modules that a function of `as_function` calls."""
    if isinstance(fn, ModuleFunction):
        yield fn.module
    elif isinstance(fn, (OnKeys, OnPictures, Around)):
        yield from modules_of(fn.fn)


class Named:
    """Goes by the name of what it calls, in messages and progress bars."""

    options: Mapping[str, Any] = {}
    """Keyword arguments that it is called with."""

    def __init__(self, named: object) -> None:
        self.__qualname__ = function_name(named)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same function, called with these keyword arguments."""
        new = copy.copy(self)
        new.options = dict(options)
        return new

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__qualname__})"


class Around:
    """Calls a function of `as_function` and changes what goes in or comes out; a module in it is found and moved.

    Attributes:
        fn: the function.
        device: where its chunks are, once it was moved there.
    """

    fn: Callable[..., Any]
    device: torch.device | None = None

    def to_device(self, device: torch.device, own: bool) -> Self:
        """The same function for chunks on `device`."""
        new = copy.copy(self)
        new.fn, new.device = moved(self.fn, device, own), device
        return new


class InDefaultDevice(Around):
    """Calls a function of the user where tensors are made on the default device of the caller (`user_function`)."""

    def __init__(self, fn: Callable[..., Any], default: torch.device) -> None:
        self.fn = fn
        self.default = default
        self.__qualname__ = function_name(fn)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with DefaultDevice(self.default):
            result = self.fn(*arguments, **options)
        return self._steps(result) if isinstance(result, Iterator) else result

    def _steps(self, values: Iterator[Any]) -> Iterator[Any]:
        while True:
            with DefaultDevice(self.default):
                try:
                    value = next(values)
                except StopIteration:
                    return
            yield value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "fn":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.fn, name)  # what the engine looks for on a function (docs/design.md)


def user_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as operations call it: within the default device of their caller, if it has set one.

    Raises:
        TypeError: it cannot be called, or is async.
    """
    require_function(fn)
    return _in_default_device(fn)


def _in_default_device(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` within the default device of the caller. A function of the engine stays as it is; it calls those of the user
    so."""
    default = caller_device()
    ours = type(fn).__module__.startswith("tdmap.") and not isinstance(fn, (ModuleFunction, OnKeys, OnPictures))
    return fn if default is None or ours else InDefaultDevice(fn, default)


class ModuleFunction(Named):
    """Calls a module without gradients. Worker processes share its parameters, and have buffers of their own.

    The module itself is left alone: it is neither copied here nor moved, and its parameters are copied to shared
    memory once a job, whatever the number of workers.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.module = module

    def __call__(self, chunk: Data, *more: Any) -> Any:
        return self.call(chunk, *more, **self.options)

    def call(self, *arguments: Any, **options: Any) -> Any:
        """The module's answer; a module with `in_keys` and `out_keys` of its own may write into the chunk."""
        first: Any = arguments[0] if len(arguments) == 1 else None
        collection = is_data(first) and not isinstance(first, Tensor)
        keyed = collection and hasattr(self.module, "in_keys") and hasattr(self.module, "out_keys")
        if keyed:
            arguments, collection = (first.clone(False),), False  # another tree of the same tensors, never locked
        with torch.no_grad():
            try:
                result = self.module(*arguments, **options)
                return _as_rows(result, first) if keyed else result
            except Exception as error:
                if collection:
                    add_note(
                        error,
                        f"{self.__qualname__} was called with a {type(first).__name__} of {list(first.keys())}. To "
                        "call it with entries, pass in_keys= and out_keys=, or use tdmap.functions.OnKeys.",
                    )
                raise

    def shared_tensors(self) -> Iterator[Tensor]:
        """What all workers may read in one place."""
        yield from self.module.parameters()

    def to_device(self, device: torch.device, own: bool) -> Self:
        """The same function for chunks on `device`; `own`: the module is private to this process and may be moved."""
        new = copy.copy(self)
        new.module = self.module.to(device) if own else _on_device(self.module, device)
        return new


def _on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy of `module` with its parameters and buffers on `device`; the module itself where it is there already.

    `torch.func.functional_call` would exchange the parameters of the one module, which other threads call meanwhile.
    """
    parameters, buffers = list(module.parameters()), list(module.buffers())
    if all(tensor.device == device for tensor in [*parameters, *buffers]):
        return module
    memo: dict[int, Any] = {id(x): nn.Parameter(x.detach().to(device), x.requires_grad) for x in parameters}
    memo.update((id(x), x.detach().to(device, copy=True)) for x in buffers)
    return copy.deepcopy(module, memo)


def _as_rows(result: Data, chunk: Data) -> Data:
    """The result of a module that writes into a tensordict of its own, which has no batch size yet."""
    if is_data(result) and not isinstance(result, Tensor) and not result.batch_size and chunk.batch_size:
        with contextlib.suppress(RuntimeError):  # entries that are no rows: what takes the result says so
            result.batch_size = chunk.batch_size
    return result


class OnKeys(Named):
    """Calls a function, module or transform with entries of a collection, and stores its results as entries.

    The result has all entries of the chunk, as with `in_keys` and `out_keys` of a tensordict module.

    Args:
        fn: called with the entries as positional arguments.
        in_keys: one key or a sequence of keys. A tuple is one nested key.
        out_keys: keys of the results; None: `in_keys`. With several keys, the function returns a tuple of results.
        keep: keep the other entries; False returns a collection of the results only.

    Raises:
        ValueError: there are no keys.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3), "label": torch.arange(2)}, [2])
        >>> OnKeys(lambda x: x.sum(-1), "x", "total")(td)["total"]
        tensor([3., 3.])
    """

    def __init__(self, fn: Callable[..., Any], in_keys: Keys, out_keys: Keys | None = None, keep: bool = True) -> None:
        super().__init__(fn)
        self.fn: Callable[..., Any] = ModuleFunction(fn) if isinstance(fn, nn.Module) else fn
        self.in_keys = _key_list(in_keys, "in_keys")
        self.out_keys = self.in_keys if out_keys is None else _key_list(out_keys, "out_keys")
        self.keep = keep

    def __call__(self, chunk: Data, *more: Any) -> Data:
        """`chunk` with the results of the function on its entries, and on what else it is to be called with.

        Raises:
            TypeError: the chunk is a tensor.
            KeyError: it lacks an entry.
            ValueError: the function returned another number of results than there are `out_keys`.
        """
        if isinstance(chunk, Tensor) or not is_data(chunk):
            raise TypeError(f"in_keys={self.in_keys} needs a collection of tensors: got a {type(chunk).__name__}.")
        arguments = [chunk.get(key, None) for key in self.in_keys]
        for key, value in zip(self.in_keys, arguments):
            if value is None:
                raise KeyError(f"in_keys: unknown entry {key!r}. Entries: {list(chunk.keys(True, True))}")
        call = self.fn.call if isinstance(self.fn, ModuleFunction) else self.fn
        results = call(*arguments, *more, **self.options)
        if len(self.out_keys) == 1:
            results = (results,)
        elif not isinstance(results, (tuple, list)) or len(results) != len(self.out_keys):
            found = f"{len(results)} results" if isinstance(results, (tuple, list)) else f"a {type(results).__name__}"
            raise ValueError(f"out_keys={self.out_keys} needs a tuple of {len(self.out_keys)} results: got {found}.")
        new = chunk.clone(False) if self.keep else chunk.select()
        for key, value in zip(self.out_keys, results):
            new.set(key, value)
        return new

    def to_device(self, device: torch.device, own: bool) -> Self:
        """The same function for chunks on `device`."""
        new = copy.copy(self)
        new.fn = moved(self.fn, device, own)
        return new


class OnPictures(Named):
    """Calls an image transform with a tensor, or with the images of a collection, whose other entries stay.

    A random transform draws once per chunk, as on a batch. With `chunksize=0` it draws for each row.

    Args:
        fn: a transform of `torchvision.transforms` or `torchvision.transforms.v2`.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__(fn)
        self.fn = fn

    def __call__(self, chunk: Data, *more: Any) -> Any:
        with torch.no_grad():
            if isinstance(chunk, Tensor) or not is_data(chunk):
                return self.fn(chunk, *more, **self.options)
            key = image_key(chunk)
            return chunk.clone(False).set(key, self.fn(chunk.get(key), *more, **self.options))


def image_key(chunk: Data) -> Any:
    """The entry of images: `[*batch, channels, height, width]` with 1 to 4 channels.

    Raises:
        ValueError: no entry fits; or several fit, and not exactly one of them is called image, images, img or pixels.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> image_key(TensorDict({"photo": torch.zeros(2, 3, 8, 8), "label": torch.zeros(2)}, [2]))
        'photo'
    """
    batch_dims = len(chunk.shape)
    entries = {key: value for key, value in chunk.items(True, True) if isinstance(value, Tensor)}
    found = [key for key, x in entries.items() if x.dim() - batch_dims == 3 and x.shape[-3] in _CHANNELS]
    named = [key for key in found if (key if isinstance(key, str) else key[-1]) in IMAGE_NAMES]
    choice = found if len(found) == 1 else named
    if len(choice) == 1:
        return choice[0]
    shapes = ", ".join(f"{key!r} {tuple(x.shape)}" for key, x in entries.items())
    raise ValueError(
        f"an image transform needs one entry of shape [*batch, channels, height, width], and {len(found)} of "
        f"these have it: {shapes}. Name the entry: in_keys='image', or tdmap.functions.OnKeys(transform, 'image')."
    )


def moved(fn: Callable[..., Any], device: torch.device, own: bool) -> Callable[..., Any]:
    """`fn` for chunks on `device`: a module's parameters go there, anything else is as it was.

    Args:
        fn: a function of `as_function`.
        device: where its chunks are.
        own: its modules belong to this worker alone; otherwise they are left where they are, and copied.
    """
    return fn.to_device(device, own) if isinstance(fn, (ModuleFunction, OnKeys, Around)) else fn


def check_placement(fn: Callable[..., Any] | None, processes: bool, device: torch.device | None) -> None:
    """Raise ValueError where a module's parameters cannot be where its chunks are."""
    for module in modules_of(fn):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.device.type == "meta":
                raise ValueError(
                    f"the module's {name} is on the meta device and has no values: load its weights first."
                )
            if processes and device is None and tensor.device.type != "cpu":
                raise ValueError(
                    f"the module's {name} is on {tensor.device}, and the workers run on the CPU: pass "
                    f'device="{tensor.device}" to run it there, or the module on the CPU (module.cpu()).'
                )


def _key_list(keys: Keys, name: str) -> list[Key]:
    if isinstance(keys, str) or (isinstance(keys, tuple) and keys and all(isinstance(part, str) for part in keys)):
        return [keys]
    out = list(keys)
    if not out:
        raise ValueError(f"{name} must name an entry: got {keys!r}.")
    return out


def _is_transform(fn: object) -> bool:
    """Whether `fn` comes from torchvision's transforms; nothing is imported to find out."""
    if "torchvision" not in sys.modules:
        return False
    with contextlib.suppress(AttributeError):
        return any(cls.__module__.startswith("torchvision.transforms") for cls in type(fn).__mro__)
    return False


# -- what it is called with, and what it returns ------------------------------------------------------------


def adapted(
    fn: Callable[..., Any],
    plan: ChunkPlan,
    with_indices: bool = False,
    fn_kwargs: Mapping[str, Any] | None = None,
    forms: Forms | None = None,
) -> Callable[..., Any]:
    """`fn` as the engine calls it: it may return dicts of columns and arrays, and be called with more.

    Functions, methods, partials, callable objects and modules of users are changed; builtins, and objects of this
    package, only if the other arguments ask for it. Arguments as `called_with`, and the ragged entries of rows that
    come one by one.
    """
    made = called = called_with(fn, plan, with_indices, fn_kwargs)
    if isinstance(called, InDefaultDevice):
        called = called.fn
    ours = isinstance(called, (BuiltinFunctionType, type)) or type(called).__module__.startswith("tdmap.")
    plain = isinstance(called, _AS_THEY_ARE) or not (ours or takes_start(called))
    return Returning(made, plan, forms) if plain or forms else made


def called_with(
    fn: Callable[..., Any],
    plan: ChunkPlan,
    with_indices: bool = False,
    fn_kwargs: Mapping[str, Any] | None = None,
    numbers: SharedTensors | None = None,
) -> Callable[..., Any]:
    """`fn`, called with more than its chunk.

    Args:
        fn: the function.
        plan: how its rows are cut.
        with_indices: call it with the numbers of the rows as second argument: int64 `[rows]`, or one int where it is
            called with rows one by one.
        fn_kwargs: call it with these keyword arguments.
        numbers: of one tensor, int64: the rows that the plan cuts, where they are in another order.

    Raises:
        TypeError: `fn_kwargs` is not a mapping with string keys.
    """
    if fn_kwargs is not None:
        if not isinstance(fn_kwargs, Mapping) or not all(isinstance(name, str) for name in fn_kwargs):
            raise TypeError(f"fn_kwargs must be a dict of keyword arguments: got {fn_kwargs!r:.80}.")
        if fn_kwargs:
            fn = _with_options(fn, fn_kwargs)
    return Numbered(fn, plan, numbers) if with_indices else fn


def _with_options(fn: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    if isinstance(fn, InDefaultDevice):
        return InDefaultDevice(_with_options(fn.fn, options), fn.default)
    return fn.with_options(options) if isinstance(fn, Named) else functools.partial(fn, **options)


class Numbered(Around):
    """Calls a function with the numbers of its rows besides."""

    takes_start = True

    def __init__(self, fn: Callable[..., Any], plan: ChunkPlan, numbers: SharedTensors | None) -> None:
        self.fn = fn
        self.dim, self.single = plan.dim, plan.unbind
        self.numbers = numbers
        self.__qualname__ = function_name(fn)

    def __call__(self, chunk: Data, start: int = 0) -> Any:
        if self.single:
            return self.fn(chunk, start if self.numbers is None else int(self.numbers.tensors[0][start]))
        if isinstance(start, FirstRow):
            numbers = start.rows
        else:
            numbers = torch.arange(start, start + int(chunk.shape[self.dim]))
        if self.numbers is not None:
            numbers = self.numbers.tensors[0][numbers]
        return self.fn(chunk, numbers if self.device is None else numbers.to(self.device))


class Returning(Around):
    """Calls a function that may return dicts and arrays, which become rows.

    Args:
        fn: the function.
        plan: how its rows are cut.
        forms: where rows come one by one: the entries that are ragged in the data, and so in the results.
    """

    def __init__(self, fn: Callable[..., Any], plan: ChunkPlan, forms: Forms | None = None) -> None:
        self.fn = fn
        self.forms = forms or {}
        self.dim, self.single = plan.dim, plan.unbind
        self.takes_start = takes_start(fn)
        self.__qualname__ = function_name(fn)

    def __call__(self, chunk: Data, *start: int) -> Any:
        rows = plain_rows(self.fn(chunk, *start), chunk, "one" if self.single else "same", self.dim)
        return with_ragged_rows(rows, self.forms) if self.forms else rows


_AS_THEY_ARE = (Numbered, ModuleFunction, OnPictures)
"""What gives back whatever the user's function has returned."""


def plain_rows(result: object, chunk: Data, rows: str = "same", dim: int = 0) -> Any:
    """What a function has returned; a dict of columns as a TensorDict, an array as a tensor.

    Dates and times stay what they are: an entry has the type in `chunk.arrow_types` of the entry of the same name and
    dtype, or of the one whose memory it shares. A TensorDict with types of its own and the chunk itself are unchanged.

    Args:
        result: anything.
        chunk: what the function was called with; None: unknown.
        rows: of a dict. "same": as many as a column says, or as many as the chunk has. "any": as many as a column says.
            "one": a single row. "group": as many as a column says, or a single row.
        dim: where its rows lie.

    Raises:
        OutputMismatch: the columns of a dict differ in length, or none of them says how many rows there are.
    """
    if isinstance(result, np.ndarray):
        require_unmasked(result, "the array that the function returned")
        return tensor_of(np.require(_numbers("the array", result), requirements=["C", "W"]))
    if isinstance(result, dict):
        columns = _columns(result, rows != "one")
        size = [] if rows == "one" else _rows_of(columns, dim)
        if size is None and rows == "group":
            columns, size = _columns(result, False), []
        if size is None and rows == "any" and columns:
            kinds = ", ".join(f"{name!r} is a {type(value).__name__}" for name, value in columns.items())
            raise OutputMismatch(
                f"the function returned a dict without a column of rows ({kinds}), so the number of its rows is "
                "unknown. Return a tensor, an array or a list with one value per row for at least one entry."
            )
        if size is None:
            size = list(chunk.shape[: dim + 1]) if is_data(chunk) else [0]
        result = _collection(columns, size)
    elif type(result) is not TensorDict or result is chunk or result._types is not None:
        return result
    if times := getattr(chunk, "arrow_types", None):
        _keep_times(result, chunk, times)
    return result


def _keep_times(result: TensorDict, chunk: Data, times: Mapping[Any, str]) -> None:
    columns = [(chunk.get(key), name) for key, name in times.items()]
    found = result.arrow_types
    for key, leaf in result.items(True, True):
        if isinstance(leaf, Tensor) and key not in found:
            same = chunk.get(key).dtype is leaf.dtype if key in times else None
            name = times[key] if same else next((name for column, name in columns if _lies_in(leaf, column)), None)
            if name is not None:
                found[key] = name
    if found:
        result.arrow_types = found


def _lies_in(part: Tensor, column: Tensor) -> bool:
    """Whether a tensor is a view of a column, which is contiguous."""
    if part.dtype is not column.dtype or part.layout is not torch.strided or not column.is_contiguous():
        return False
    offset = _address(part) - _address(column)
    return 0 <= offset < column.nbytes or (offset == column.nbytes and not part.numel())


def _address(tensor: Tensor) -> int:
    """Where a tensor begins; `data_ptr` of one without elements is 0."""
    return tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * tensor.itemsize


def _collection(columns: dict[str, Any], size: list[int]) -> TensorDict:
    try:
        return TensorDict(columns, size)
    except (RuntimeError, TypeError, ValueError) as error:
        wrong = "whose columns differ in length" if isinstance(error, RuntimeError) else "which cannot become rows"
        names = ", ".join(map(repr, columns))
        raise OutputMismatch(f"the function returned a dict ({names}), {wrong}: {error}") from error


def _rows_of(columns: dict[str, Any], dim: int) -> list[int] | None:
    """The batch size that the first column with rows has; None: there is no such column."""
    for value in columns.values():
        if isinstance(value, dict):
            if (found := _rows_of(value, dim)) is not None:
                return found
        elif isinstance(value, list):
            if not dim:
                return [len(value)]
        elif hasattr(value, "shape") and len(value.shape) > dim:
            return list(value.shape[: dim + 1])
    return None


def _columns(result: dict[Any, Any], has_rows: bool) -> dict[Any, Any]:
    """The columns of a dict as a TensorDict takes them.

    With `has_rows`, what has several values in order is a column with one value per row: arrays of every library,
    sequences (but text and bytes), views of dicts, and iterators.

    Raises:
        OutputMismatch: None is among numbers or bytes, which have no value for it; names the column and the row.
    """
    return {name: _column(name, value, has_rows) for name, value in result.items()}


def _column(name: object, value: Any, has_rows: bool) -> Any:
    if type(value) is Tensor and not value.is_nested:  # by far the most
        return value
    if isinstance(value, dict):
        return _columns(value, has_rows)
    if has_rows:
        if isinstance(value, Tensor) and value.is_nested:
            return Ragged.from_nested(value)
        if isinstance(value, memoryview):
            value = np.asarray(value)
        elif isinstance(value, _ORDERED) and not isinstance(value, _SINGLE) and not hasattr(value, "_fields"):
            return _listed(name, list(value))
        elif not isinstance(value, np.ndarray) or value.dtype.kind not in "biufcmM":
            size = torch.Size([len(value) if getattr(value, "ndim", 1) and hasattr(value, "__len__") else -1])
            found = column_of(value, size)
            return value if found is None else found
    if not isinstance(value, np.ndarray):
        return value
    return np.require(_numbers(f"the column {name!r}", value), requirements="W")


_ORDERED: tuple[type[Any], ...] = (Sequence, MappingView, Iterator)
_SINGLE = (str, bytes, bytearray, TensorCollection)
"""One value, which all rows have where other columns say how many they are."""


def _numbers(what: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.char in "gG":
        raise OutputMismatch(f"{what} that the function returned is {array.dtype}, which torch lacks: use .astype().")
    return array


_WITHOUT_NONE: tuple[tuple[str, tuple[type, ...]], ...] = (("numbers", (Number, np.bool_)), ("bytes", (bytes,)))


def _listed(name: object, rows: list[Any]) -> Any:
    """A list with one value per row: NumPy's numbers as an array, bytes and arrays as ragged rows."""
    kinds = set(map(type, rows))
    found = kinds - {type(None)}
    what = next((what for what, known in _WITHOUT_NONE if found and all(issubclass(k, known) for k in found)), None)
    if what is not None and found != kinds:
        row = next(number for number, value in enumerate(rows) if value is None)
        blank = "an empty one" if what == "bytes" else "0 or NaN"
        raise OutputMismatch(
            f"the function returned {name!r} with None among {what}, in row {row} of {len(rows)}: {what} "
            f"cannot be None. Return {blank} for such rows, and False in a bool column {f'{name}.valid'!r}."
        )
    if what == "numbers" and any(issubclass(kind, np.generic) for kind in kinds):
        array = np.asarray(rows)
        exact = array.dtype.kind != "f" or any(issubclass(kind, (float, np.floating)) for kind in kinds)
        return array if array.dtype.kind in "biufc" and exact else rows
    if kinds == {np.ndarray} or (kinds == {Tensor} and len({row.shape for row in rows}) > 1):
        with contextlib.suppress(TypeError, ValueError):  # rows of several dtypes, or without a first dimension
            return Ragged.from_list(rows)
    return Ragged.from_list(rows) if what == "bytes" else rows
