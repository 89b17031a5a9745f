"""The only contact with `tensordict_lite`: reading rows, writing rows, joining results.

Everything else in the engine treats a dataset and a result as opaque values. Dense collections go through the
trusted constructor, because a chunk of a valid collection is valid; other kinds (lazy stacks, non-tensor data)
go through their public interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tdmap.errors import OutputMismatch, describe_rows
from tdmap.plan import ChunkPlan
from tensordict_lite import TensorDict, is_tensor_collection
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense import DenseCollection
from tensordict_lite.memmap.mapping import Region, SharedHandle, map_file, region_of

__all__ = [
    "Data",
    "Reader",
    "Region",
    "RowWriter",
    "SharedHandle",
    "allocate_like",
    "bytes_of",
    "data_length",
    "data_row_bytes",
    "flat_bytes",
    "gatherable",
    "is_data",
    "join",
    "joinable",
    "leaves_hold_rows",
    "map_file",
    "region_of",
    "signed_view",
    "tensors_of",
]

Data: TypeAlias = Any
"""A tensor or any collection of `tensordict_lite`."""

Put: TypeAlias = Callable[[Tensor, Tensor], Any]
"""Copies the second tensor into the first."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def signed_view(tensor: Tensor) -> Tensor:
    """The same bits in a dtype that torch can index: for unsigned integers of two bytes or more it cannot."""
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


BLOCK = 256
"""Chunks whose views are made in one call."""


def is_data(value: object) -> bool:
    """Whether `value` is a tensor or a collection of tensors."""
    return isinstance(value, (Tensor, TensorCollection))


def is_dense(value: object) -> bool:
    """A collection whose entries are in a plain dict: `TensorDict` and tensorclasses."""
    return isinstance(value, DenseCollection) and type(value._source) is dict and not value._is_non_tensor


def is_flat(data: Data) -> bool:
    """A tensor, or a collection of tensors without any levels."""
    if isinstance(data, Tensor):
        return True
    return is_dense(data) and all(isinstance(value, Tensor) for value in data._source.values())


def data_length(data: Data, dim: int) -> int:
    """Rows of `data` along `dim`."""
    return int(data.shape[dim])


def tensors_of(data: Data) -> list[Tensor]:
    """The tensors in `data`, as a flat list."""
    if isinstance(data, Tensor):
        return [data]
    return list(data._leaves())


def flat_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor of any dtype and shape, as a view: uint8, one dimension.

    Not by `reshape(-1)`: a tensor of one row is contiguous whatever its stride, which it keeps, and torch does not
    view elements as bytes where the stride is not 1.

    Example:
        >>> flat_bytes(torch.arange(20)[::2][:1]).tolist()
        [0, 0, 0, 0, 0, 0, 0, 0]
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, whatever its dtype."""
    array: Any = flat_bytes(tensor).numpy()
    return memoryview(array)


def leaves_hold_rows(data: Data) -> bool:
    """Whether every tensor in `data` has the rows along the same dim; the members of a lazy stack need not."""
    if isinstance(data, Tensor):
        return True
    if is_dense(data):
        return all(leaves_hold_rows(value) for value in data._source.values())
    return not data._leaves()


def data_row_bytes(data: Data, length: int) -> int:
    """Bytes of one of `length` rows of `data`."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(data)) // max(length, 1)


# -- reading ---------------------------------------------------------------------------------------


class Reader:
    """Rows of a dataset as the chunks of a plan.

    Args:
        data: the dataset.
        plan: how its rows are cut.
        order: int64 permutation of the rows, or None for their own order.
    """

    def __init__(self, data: Data, plan: ChunkPlan, order: Tensor | None = None) -> None:
        self.data = plain_tensors(data)
        self.plan = plan
        self.order = order

    def read(self, start: int, stop: int) -> Iterator[Data]:
        """The chunks `start..stop`; views of the dataset unless there is an order."""
        plan = self.plan
        for first in range(start, stop, BLOCK):
            last = min(first + BLOCK, stop)
            begin, end = plan.span(first, last)
            if self.order is not None:
                yield from self._gather(begin, end)
            elif plan.unbind:
                yield from narrow(self.data, plan.dim, begin, end).unbind(plan.dim)
            else:
                yield from cut(self.data, plan.dim, begin, end, plan.size)

    def _gather(self, begin: int, end: int) -> Iterator[Data]:
        plan = self.plan
        assert self.order is not None
        for first in range(begin, end, plan.size):
            rows = self.order[first : min(first + plan.size, end)]
            index: Any = rows[0].item() if plan.unbind else rows
            yield self.data[(slice(None),) * plan.dim + (index,)]


def plain_tensors(data: Data) -> Data:
    """`data` with memory-mapped tensors as plain views of the same memory: their slices are cheaper to make."""
    if isinstance(data, Tensor):
        return data.as_subclass(Tensor) if type(data) is not Tensor else data
    if not is_dense(data):
        return data
    source = {key: plain_tensors(value) for key, value in data._source.items()}
    new = data._rebuild(source, data._batch_size, data._names)
    if data._lock is not None:
        new.lock_()
    return new


def narrow(data: Data, dim: int, begin: int, end: int) -> Data:
    """Rows `begin..end` of `data` along `dim`, as a view."""
    if isinstance(data, Tensor):
        return data.narrow(dim, begin, end - begin)
    return data[(slice(None),) * dim + (slice(begin, end),)]


def cut(data: Data, dim: int, begin: int, end: int, size: int) -> Sequence[Data]:
    """Rows `begin..end` along `dim` as pieces of `size` rows, the last one perhaps shorter."""
    if isinstance(data, Tensor):
        pieces: Sequence[Data] = data.narrow(dim, begin, end - begin).split(size, dim)
        return pieces
    if not is_dense(data):
        return tuple(narrow(data, dim, begin, end).split(size, dim))
    keys = tuple(data._source)
    columns = [cut(value, dim, begin, end, size) for value in data._source.values()]
    count = -(-(end - begin) // size)
    shape = data._batch_size
    full = torch.Size((*shape[:dim], size, *shape[dim + 1 :]))
    rest = torch.Size((*shape[:dim], end - begin - (count - 1) * size, *shape[dim + 1 :]))
    names, locked = data._names, data._lock is not None
    nested = any(not isinstance(value, Tensor) for value in data._source.values())
    rows = zip(*columns) if columns else repeat((), count)
    out = []
    rebuild = data._rebuild
    for number, row in enumerate(rows, 1):
        chunk = rebuild(dict(zip(keys, row)), full if number < count else rest, names)
        if locked:
            if nested:
                chunk.lock_()
            else:
                chunk._lock = []
        out.append(chunk)
    return out


# -- writing ---------------------------------------------------------------------------------------


class RowWriter:
    """Writes the results of chunks into the rows of a preallocated output.

    Args:
        out: the output, a tensor or a collection, with the plan's rows along its `dim`.
        plan: how rows are cut.
        exact: a result must have the very keys, shapes and dtypes of `out`, or it is refused (`write` returns
            False). Otherwise entries that `out` lacks are ignored, safe casts are made, and a result that does
            not fit raises.
        aliased: `out` is the source itself, so a result may lie in the rows already.
        strict: with `exact`, a result that is refused has nowhere else to go.
    """

    def __init__(self, out: Data, plan: ChunkPlan, exact: bool, aliased: bool = False, strict: bool = False) -> None:
        self.out = out
        self.strict = strict
        self.plan = plan
        self.exact = exact
        self.aliased = aliased
        self._flat: tuple[str, ...] = ()
        self._files: dict[int, Any] = {}

    def rows(self, start: int, stop: int) -> Iterator[Data]:
        """Views of the output rows of the chunks `start..stop`: collections, or tuples of tensors when it is flat."""
        plan = self.plan
        for first in range(start, stop, BLOCK):
            begin, end = plan.span(first, min(first + BLOCK, stop))
            if self._flat:
                yield from zip(*(cut(self.out._source[key], plan.dim, begin, end, plan.size) for key in self._flat))
            elif plan.unbind:
                yield from narrow(self.out, plan.dim, begin, end).unbind(plan.dim)
            else:
                yield from cut(self.out, plan.dim, begin, end, plan.size)

    def prepare(self) -> None:
        """Drop what slows slicing, and open the files; called once by each worker."""
        from tdmap.filecolumn import columns_behind

        self.out = out = plain_tensors(self.out)
        if not self.aliased and self.plan.dim == 0:
            self._files = columns_behind(tensors_of(out), self.plan.size)
        if is_dense(out) and not self.plan.unbind and all(type(leaf) is Tensor for leaf in out._source.values()):
            self._flat = tuple(out._source)

    def misfit(self, rows: Data, result: Data) -> OutputMismatch | None:
        """What is wrong with a result for these rows, found before anything is written; None when it is welcome."""
        if type(rows) is tuple:
            rows = self.out._rebuild(dict(zip(self._flat, rows)), rows[0].shape[: len(self.out._batch_size)])
        if result is None:
            return OutputMismatch("the function returned None, and results go to a folder.") if self.strict else None
        if self.exact:
            if not self.strict or fits(rows, result):
                return None
            return unlike_the_others(rows, result)
        try:
            if isinstance(rows, Tensor) is not isinstance(result, Tensor) or not is_data(result):
                raise not_a_collection(self.out, result)
            if nothing_in_common(rows, result):
                raise nothing_for_out(self.out, result)
            check_fit(rows, result)
        except OutputMismatch as error:
            return error.with_traceback(None)
        return None

    def write(self, rows: Data, result: Data) -> bool:
        """Copy `result` into `rows`.

        Returns:
            False when `exact` and it does not fit.

        Raises:
            OutputMismatch: not `exact` and it does not fit; names the key, what was wanted and what came.
        """
        if type(rows) is tuple:
            return self._write_flat(rows, result)
        if self.exact:
            if not fits(rows, result):
                return False
        elif isinstance(rows, Tensor) is not isinstance(result, Tensor) or not is_data(result):
            raise not_a_collection(self.out, result)
        elif nothing_in_common(rows, result):
            raise nothing_for_out(self.out, result)
        if self.aliased:
            copy_moved(rows, result)
        else:
            copy_rows(rows, result, (), self.exact, self._put if self._files else Tensor.copy_)
        return True

    def _put(self, dst: Tensor, src: Tensor) -> None:
        """Copy, through the file where there is one for it."""
        file = self._files.get(dst.untyped_storage().data_ptr())
        if file is None or src.dtype is not dst.dtype or not (src.is_contiguous() and dst.is_contiguous()):
            dst.copy_(src)
        elif src.is_conj() or src.is_neg() or dst.is_conj() or dst.is_neg():  # its memory is not its values
            dst.copy_(src)
        else:
            file.write(dst, src)

    def _write_flat(self, rows: tuple[Tensor, ...], result: Data) -> bool:
        """`write` for an output without nested entries: one pass that checks and copies.

        What a refused result has overwritten does not matter: its rows are taken from the result itself.
        """
        exact, aliased, out = self.exact, self.aliased, self.out
        put = self._put if self._files else Tensor.copy_
        if not is_dense(result):
            if exact:
                return False
            if isinstance(result, Tensor) or not is_data(result):
                raise not_a_collection(out, result)
            entries = {key: result.get(key, None) for key in self._flat}
        elif exact and (
            type(result) is not type(out)
            or len(result._source) != len(rows)
            or len(result._batch_size) != len(out._batch_size)
        ):
            return False
        else:
            entries = result._source
        found = False
        for key, dst in zip(self._flat, rows):
            src = entries.get(key)
            if src is None:
                if exact:
                    return False
                continue  # a result need not carry every key of out: the rows keep what they had
            if not isinstance(src, Tensor) or src.dtype is not dst.dtype or src.shape != dst.shape:
                if exact:
                    return False
                check_leaf(dst, src, (key,))
            if not (aliased and same_memory(dst, src)):
                put(dst, src.detach() if src.requires_grad else src)
            found = True
        if not found and entries:
            raise nothing_for_out(out, result)
        return True


def not_a_collection(out: Data, result: Data) -> OutputMismatch:
    """The error for a tensor where a collection is wanted, or the other way round."""
    return OutputMismatch(
        f"out is a {type(out).__name__} and the function returned a {type(result).__name__}: "
        "both must be tensors, or both collections of tensors."
    )


def nothing_in_common(rows: Data, result: Data) -> bool:
    """Whether a result has entries, and the rows that it should go to have none of them."""
    if not (is_dense(rows) and is_dense(result)):
        return False
    return bool(result._source) and rows._source.keys().isdisjoint(result._source)


def nothing_for_out(out: Data, result: Data) -> OutputMismatch:
    """The error for a result of which `out` has no entry: most often a name that is misspelt."""
    return OutputMismatch(
        f"the function returned the entries {sorted(result.keys())}, and none of them is in out, which has "
        f"{sorted(out.keys())}."
    )


def unlike_the_others(rows: Data, result: Data) -> OutputMismatch:
    """The error for a result that has not the schema of those that came before."""
    return OutputMismatch(f"results must look alike to go into one dataset, and {describe_difference(rows, result)}.")


def check_fit(rows: Data, result: Data, path: tuple[str, ...] = ()) -> None:
    """Raise OutputMismatch unless the leaves of `result` can be copied into the same leaves of `rows`."""
    if isinstance(rows, Tensor):
        check_leaf(rows, result, path)
        return
    if is_dense(rows):
        for key, dst in rows._source.items():
            src = result._source.get(key) if is_dense(result) else result.get(key, None)
            if src is not None:
                check_fit(dst, src, (*path, key))


def fits(rows: Data, result: Data) -> bool:
    """Whether `result` has exactly the keys, shapes, dtypes and type of `rows`."""
    if isinstance(rows, Tensor):
        return (
            isinstance(result, Tensor)
            and result.dtype is rows.dtype
            and result.shape == rows.shape
            and result.layout is torch.strided
        )
    if type(rows) is not type(result) or result._batch_size != rows._batch_size:
        return False
    ours = rows._source
    theirs = result._source
    if not is_dense(rows):
        return same_non_tensor(rows, result)
    if len(ours) != len(theirs):
        return False
    for key, value in ours.items():
        other = theirs.get(key)
        if other is None or not fits(value, other):
            return False
    return True


def same_non_tensor(a: Data, b: Data) -> bool:
    """Whether two entries that are not tensors carry the same value."""
    if not (getattr(a, "_is_non_tensor", False) and getattr(b, "_is_non_tensor", False)):
        return False
    try:
        return bool(a.data is b.data or a.data == b.data)
    except Exception:  # values may define == as they please, arrays raise on bool()
        return False


def copy_rows(rows: Data, result: Data, path: tuple[str, ...], checked: bool, put: Put = Tensor.copy_) -> None:
    """Copy tensor leaves of `result` into the same leaves of `rows`."""
    if isinstance(rows, Tensor):
        copy_leaf(rows, result, path, checked, put)
        return
    if not is_dense(rows):
        if not checked:
            rows.update_(result)
        return
    dense = is_dense(result)
    theirs = result._source if dense else None
    for key, dst in rows._source.items():
        src = theirs.get(key) if theirs is not None else result.get(key, None)
        if src is None:
            continue  # a result need not carry every key of out: the rows keep what they had
        if type(dst) is Tensor and type(src) is Tensor:
            if not checked and (src.shape != dst.shape or src.dtype is not dst.dtype):
                check_leaf(dst, src, (*path, key))
            put(dst, src.detach() if src.requires_grad else src)
        else:
            copy_rows(dst, src, (*path, key), checked, put)


def copy_moved(rows: Data, result: Data) -> None:
    """`copy_rows` for rows that the result may share: only what lies elsewhere is copied."""
    if isinstance(rows, Tensor):
        if not (isinstance(result, Tensor) and same_memory(rows, result)):
            copy_leaf(rows, result, (), False)
        return
    if not (is_dense(rows) and is_dense(result)):
        copy_rows(rows, result, (), False)
        return
    for key, dst in rows._source.items():
        src = result._source.get(key)
        if src is None:
            continue
        if isinstance(dst, Tensor):
            if not (isinstance(src, Tensor) and same_memory(dst, src)):
                copy_leaf(dst, src, (key,), False)
        else:
            copy_moved(dst, src)


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    return a.data_ptr() == b.data_ptr() and a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()


def copy_leaf(dst: Tensor, src: Data, path: tuple[str, ...], checked: bool, put: Put = Tensor.copy_) -> None:
    if not checked:
        check_leaf(dst, src, path)
    put(dst, src.detach() if src.requires_grad else src)


def check_leaf(dst: Tensor, src: Data, path: tuple[str, ...]) -> None:
    """Raise OutputMismatch unless `src` can be copied into `dst` without loss of kind."""
    key = repr(path[0] if len(path) == 1 else path) if path else "the result"
    if not isinstance(src, Tensor):
        raise OutputMismatch(f"{key}: out holds a tensor and the function returned a {type(src).__name__}.")
    if src.shape != dst.shape:
        raise OutputMismatch(
            f"{key}: out wants shape {tuple(dst.shape)} for these rows and the function returned "
            f"{tuple(src.shape)}. Allocate out with the function's shape, or leave out=None."
        )
    if not torch.can_cast(src.dtype, dst.dtype):
        raise OutputMismatch(
            f"{key}: out wants dtype {dst.dtype} and the function returned {src.dtype}, which does not cast to "
            "it safely. Convert in the function, or allocate out with that dtype."
        )


# -- results without a preallocated output ---------------------------------------------------------


def gatherable(result: Data, rows: int, plan: ChunkPlan) -> bool:
    """Whether results like this one, of a chunk of `rows` rows, can be written into one preallocated output."""
    if isinstance(result, Tensor):
        if result.layout is not torch.strided or result.device.type != "cpu" or result.is_quantized:
            return False
        return plan.unbind or (result.dim() > plan.dim and result.shape[plan.dim] == rows)
    if not is_dense(result):
        # One object for all rows may turn out to be the same in every chunk; a stack holds one a row.
        return isinstance(result, DenseCollection) and bool(result._is_non_tensor)
    shape = result._batch_size
    if not plan.unbind and (len(shape) <= plan.dim or shape[plan.dim] != rows):
        return False
    return all(gatherable(value, rows, plan) for value in result._source.values())


def allocate_like(result: Data, plan: ChunkPlan, allocate: Callable[[torch.dtype, torch.Size], Tensor]) -> Data:
    """An output for every row of the plan, with the keys, dtypes and row shapes of one gatherable result."""
    shape = result.shape
    if plan.unbind:
        full = torch.Size((*shape[: plan.dim], plan.length, *shape[plan.dim :]))
    else:
        full = torch.Size((*shape[: plan.dim], plan.length, *shape[plan.dim + 1 :]))
    if isinstance(result, Tensor):
        return allocate(result.dtype, full)
    if not is_dense(result):
        return result._rebuild(result._source, full)
    source = {key: allocate_like(value, plan, allocate) for key, value in result._source.items()}
    names = result._names
    if names is not None and plan.unbind:
        names = [*names[: plan.dim], None, *names[plan.dim :]]
    return result._rebuild(source, full, names)


def join(parts: list[Data], plan: ChunkPlan) -> Data:
    """Results in order as one value: concatenated along the plan's dimension, or stacked when it unbinds.

    Raises:
        TypeError: a result is neither a tensor nor a collection.
    """
    for part in parts:
        if not is_data(part):
            raise TypeError(
                f"map joins tensors or collections of tensors, and the function returned a {type(part).__name__}. "
                "Return one of those or None, or use map_iter, which yields any value."
            )
    if len(parts) == 1 and not plan.unbind:
        return parts[0]
    return torch.stack(parts, plan.dim) if plan.unbind else torch.cat(parts, plan.dim)


def joinable(parts: list[Data], plan: ChunkPlan) -> bool:
    """Whether results can be joined."""
    try:
        join(parts, plan)
        return True
    except (RuntimeError, KeyError, ValueError, IndexError):
        return False


def check_rows(out: Data, plan: ChunkPlan, source_shape: Sequence[int]) -> None:
    """Raise OutputMismatch unless `out` has the plan's rows along its dimension."""
    shape = tuple(out.shape)
    if len(shape) <= plan.dim or shape[plan.dim] != plan.length:
        raise OutputMismatch(
            f"out must have {plan.length} rows along dimension {plan.dim}, as the data of shape "
            f"{tuple(source_shape)} has: got an out of shape {shape}."
        )


__all__ += ["TensorDict", "check_rows", "describe_rows", "is_tensor_collection"]


def describe_difference(rows: Data, result: Data, path: tuple[str, ...] = ()) -> str:
    """What a result has that the rows it should go to have not, or the other way round, in words."""
    key = repr(path[0] if len(path) == 1 else path) if path else "this one"
    if isinstance(rows, Tensor) and isinstance(result, Tensor):
        ours, theirs = (f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in (rows, result))
        return f"{key} is {theirs} where the others are {ours}"
    if not (is_dense(rows) and is_dense(result)) or type(rows) is not type(result):
        return f"{key} is a {type(result).__name__} where the others are a {type(rows).__name__}, or of another value"
    mine, other = set(rows._source), set(result._source)
    if mine != other:
        extra, missing = sorted(other - mine), sorted(mine - other)
        parts = [f"{what} {names}" for what, names in (("has also", extra), ("lacks", missing)) if names]
        return f"{key} {' and '.join(parts)}"
    if rows._batch_size != result._batch_size:
        return f"{key} has batch size {tuple(result.shape)} where {tuple(rows.shape)} is wanted"
    for name, value in rows._source.items():
        if not fits(value, result._source[name]):
            return describe_difference(value, result._source[name], (*path, name))
    return f"{key} differs"


__all__ += ["describe_difference"]
