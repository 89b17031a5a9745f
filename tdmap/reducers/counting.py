"""Histograms, quantiles, distinct values, the largest rows, checksums."""

from __future__ import annotations

import hashlib
import heapq
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import Data
from tdmap.data.objects import objects_of
from tdmap.reducers.base import Key, Reducer, entry_of, reduced_dims, values_of
from tdmap.reducers.blocks import BLOCK, blocks, byte_counts, byte_values
from tdmap.reducers.moments import _Keyed
from tdmap.reducers.ranks import ranked, require_real, unranked
from tensordict_lite import NonTensorStack, TensorDict, is_non_tensor
from tensordict_lite.gathering import flat_bytes, offsets_of
from tensordict_lite.ragged import bytes_tensor, is_ragged, json_of, text_of
from tensordict_lite.views import is_leaf_nontensor

Counts = TypeVar("Counts", Counter[Any], tuple[Tensor, Tensor])
"""Distinct values and how often each occurs: of objects, or of numbers."""


class Histogram(_Keyed):
    """Counts of values in equal bins, per channel if ``dim`` omits dimensions.

    Result: a TensorDict with ``count`` (int64 ``[..., bins]``), ``edges`` (float64 ``[bins + 1]``), and ``below`` and
    ``above`` (int64 ``[...]``), the numbers of values outside the range. The last bin includes its upper edge, as in
    :func:`numpy.histogram`. NaN are not counted.

    Args:
        key: entry to reduce.
        bins: number of bins.
        range: lower edge of the first and upper edge of the last bin.
        dim: dimensions of the entry that are counted together; 0 is the rows, ``None`` all.
    """

    def __init__(
        self,
        key: Key | None = None,
        bins: int = 256,
        range: tuple[float, float] = (0.0, 256.0),
        dim: int | tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(key, dim)
        self.bins = bins
        self.range = (float(range[0]), float(range[1]))
        low, high = self.range
        if bins < 1 or not low < high or not math.isfinite(high - low):
            raise ValueError(
                "a histogram needs bins >= 1, and a range of two finite numbers, the smaller one first, with a finite "
                f"difference: got bins={bins}, range={range}."
            )
        self._edges = torch.from_numpy(np.linspace(low, high, bins + 1))
        if not bool((self._edges.diff() >= sys.float_info.min).all()):
            raise ValueError(
                f"{bins} bins from {low} to {high} are narrower than float64 tells apart: take fewer bins."
            )

    def of(self, values: Tensor, dims: tuple[int, ...]) -> Tensor:
        require_real(values, f"Histogram({self.key!r})")
        table = byte_counts(values, dims)
        if table is not None:
            counts = torch.zeros(*table.shape[:-1], self._slots, dtype=torch.int64)
            return counts.index_add_(-1, self._slot_of(byte_values(values.dtype).double()), table)
        kept = [d for d in range(values.ndim) if d not in dims]
        sizes = [values.shape[d] for d in kept]
        groups = math.prod(sizes)
        counts = torch.zeros(groups * self._slots, dtype=torch.int64)
        offsets = torch.arange(groups).unsqueeze(1) * self._slots
        for block in blocks(values):
            flat = block.permute(*kept, *dims).reshape(groups, block.numel() // max(groups, 1)).double()
            index = self._slot_of(flat).add_(offsets)
            real = flat.isnan().logical_not_()
            counts += torch.bincount(index.reshape(-1) if bool(real.all()) else index[real], minlength=len(counts))
        return counts.view(*sizes, self._slots)

    @property
    def _slots(self) -> int:
        """One below the bins and one above them besides."""
        return self.bins + 2

    def _slot_of(self, flat: Tensor) -> Tensor:
        low, high = self.range
        values, edges = flat.numpy(force=True), self._edges.numpy()
        with np.errstate(all="ignore"):
            place = (values - low) / (high - low)
            place *= self.bins
            slots = np.fmin(np.fmax(place, 0, out=place), self.bins - 1, out=place).astype(np.int64)  # NaN: any
        # A rounded place may be that of a neighbour: the edges decide. The last one is in the last bin.
        below = values < edges.take(slots)
        ends = np.append(edges[1:-1], math.nextafter(high, math.inf))
        slots += values >= ends.take(slots)
        slots -= below
        slots += 1
        return torch.from_numpy(slots)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def finish(self, state: Any) -> Any:
        counts = torch.zeros(self.bins + 2, dtype=torch.int64) if state is None else state
        inside, edges = counts[..., 1:-1].clone(), self._edges.clone()
        return TensorDict({"count": inside, "edges": edges, "below": counts[..., 0], "above": counts[..., -1]}, [])


class Quantile(_Keyed):
    """Approximate quantiles of all values of an entry, with a bounded relative error (DDSketch).

    The sketch (Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
    guarantees", VLDB 2019) counts values in buckets with geometrically growing bounds. States merge by addition, so the
    result does not depend on the order. A state has at most one bucket per distinct value, and with a
    ``relative_error`` of 0.01 at most 145,000 in all. NaN are ignored.

    Args:
        key: entry to reduce.
        q: quantiles in [0, 1]; the result has one float64 for each.
        relative_error: maximum error of each quantile, relative to its true value.
        about: a reference value; the error is relative to the distance of values from it. Set it for values that are
            far from zero and close together, such as times. Any fixed value near them, such as the first.

    Example:
        >>> import tdmap
        >>> from tensordict_lite import TensorDict
        >>> times = TensorDict({"t": 1_700_000_000 + torch.arange(101)}, [101])
        >>> median = tdmap.reduce(times, Quantile("t", about=1_700_000_000), num_workers=0)
        >>> round(median.item()) - 1_700_000_000
        50
    """

    grows = True

    def __init__(
        self,
        key: Key | None = None,
        q: float | tuple[float, ...] = 0.5,
        relative_error: float = 0.01,
        about: float = 0.0,
    ) -> None:
        super().__init__(key, None)
        self.q = q
        for one in (q,) if isinstance(q, (int, float)) else q:
            if not 0 <= one <= 1:
                raise ValueError(f"a quantile must be in [0, 1]: got {one}")
        if not 0 < relative_error < 1:
            raise ValueError(f"the relative_error must be in (0, 1): got {relative_error}")
        if not math.isfinite(about):
            raise ValueError(f"the value of about must be a finite number: got {about}")
        self.relative_error = relative_error
        self.about = about
        self._gamma = (1 + relative_error) / (1 - relative_error)
        # Distances from a huge number may exceed float64: half of them do not.
        self._scale = 1.0 if abs(about) < 1e300 else 0.5

    def of(self, values: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        require_real(values, f"Quantile({self.key!r})")
        table = byte_counts(values, dims)
        if table is not None:
            every = byte_values(values.dtype).double()
            return *_counted(self._bucket_of(every), table), _ends(every[table > 0])
        found = [(*_tabled(self._bucket_of(flat)), _ends(flat)) for flat in self._flat_blocks(values)]
        buckets, counts, ends = zip(*found)
        return *_counted(torch.cat(buckets), torch.cat(counts)), _ends(torch.cat(ends))

    @staticmethod
    def _flat_blocks(values: Tensor) -> Iterator[Tensor]:
        """Numbers in float64, without NaN."""
        for block in blocks(values):
            flat = block.reshape(-1).double()
            nan = flat.isnan()
            yield flat[~nan] if bool(nan.any()) else flat

    def _exponents(self) -> tuple[int, int]:
        """Of gamma, for the smallest number above zero and for infinity, which is beyond the largest one."""
        base = math.log(self._gamma)
        return math.ceil(math.log(math.ulp(0.0)) / base), math.ceil(math.log(sys.float_info.max) / base) + 2

    def _bucket_of(self, flat: Tensor) -> Tensor:
        """Signed bucket numbers; zero for `about`."""
        if self.about:
            flat = flat * self._scale - self.about * self._scale
        least, most = self._exponents()
        bucket = flat.abs().log_().div_(math.log(self._gamma)).ceil_().clamp_(least, most).sub_(least - 1)
        return bucket.mul_(flat.sign()).long()

    def _numbers_of(self, buckets: Tensor) -> Tensor:
        """The number that each bucket stands for."""
        least, _ = self._exponents()
        # By halves, as the whole may exceed float64, or be rounded twice.
        half = self._gamma ** ((buckets.abs() + (least - 1)).double() / 2)
        size = half * (half * (2 / (self._gamma + 1)))
        return (torch.where(buckets == 0, 0.0, buckets.sign() * size) + self.about * self._scale) / self._scale

    def join(self, a: tuple[Tensor, Tensor, Tensor], b: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return *_add_counts(a[:2], b[:2]), _ends(torch.cat([a[2], b[2]]))

    def finish(self, state: Any) -> Tensor:
        buckets, counts, ends = self.need(state)
        if not len(buckets):
            raise ValueError(f"{self!r}: every value is NaN")
        ranks = torch.as_tensor(self.q, dtype=torch.float64) * (int(counts.sum()) - 1)
        where = torch.searchsorted(counts.cumsum(0), ranks.floor().long(), right=True)
        found = self._numbers_of(buckets[where.clamp(max=len(buckets) - 1)])
        return found.clamp(ends[0], ends[-1])  # a bucket may reach beyond the values in it


def _ends(values: Tensor) -> Tensor:
    return torch.stack(values.aminmax()) if len(values) else values


def _add_counts(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two tables (sorted distinct values, counts) as one."""
    return _counted(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]]))


def _counted(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """A table of values, which may repeat, and their counts; values with a count of 0 are left out."""
    values, counts = values[counts > 0], counts[counts > 0]
    distinct, inverse = torch.unique(ranked(values), return_inverse=True)
    distinct = unranked(distinct, values.dtype)
    return _nan_once(distinct, torch.zeros(len(distinct), dtype=torch.int64).index_add_(0, inverse, counts))


def _nan_once(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """A sorted table with all NaN, which come last, as one value."""
    first = len(values) - int(ranked(values).isnan().sum()) if values.is_floating_point() else len(values)
    if first >= len(values) - 1:
        return values, counts
    return values[: first + 1], torch.cat([counts[:first], counts[first:].sum().reshape(1)])


def _tabled(buckets: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ones of integers, and their counts."""
    if not len(buckets):
        return buckets, buckets
    low, high = buckets.aminmax()
    if high - low > BLOCK:
        places, counts = torch.unique(buckets, return_counts=True)
        return places, counts
    counts = torch.bincount(buckets - low)
    (places,) = torch.where(counts > 0)
    return places + low, counts[places]


def _sorted(flat: Tensor) -> Tensor:
    """In ascending order: numpy sorts plain numbers several times as fast, and knows fewer types."""
    if flat.dtype is torch.bfloat16 or flat.is_complex() or flat.device.type != "cpu":
        return flat.sort().values
    return torch.from_numpy(np.sort(flat.numpy(force=True)))


class ValueCounts(_Keyed):
    """The distinct values of an entry, sorted, with their counts.

    Result: a TensorDict of batch size ``[distinct]`` with ``value`` and ``count`` (int64). A state holds every distinct
    value; ``max_values`` limits them. Values may be strings and other hashable Python objects; None comes first. -0.0
    equals 0.0, and NaN equals NaN and comes last.

    Args:
        key: entry to reduce, with any number of elements per row.
        max_values: raise if an entry has more distinct values.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> words = TensorDict({"word": ["b", "a", "b"]}, [3])
        >>> counts = ValueCounts("word")
        >>> answer = counts.finish(counts.update(counts.init(), words))
        >>> list(answer["value"]), answer["count"]
        (['a', 'b'], tensor([1, 2]))
    """

    numbers_rows = False
    grows = True

    def __init__(self, key: Key | None = None, max_values: int = 10_000_000) -> None:
        super().__init__(key, None)
        self.max_values = max_values

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        values = listed(chunk, self.key)
        if values is None:
            if state is None and not chunk.shape[0]:
                none = values_of(chunk, self.key, elements=True)
                return self.of(none, reduced_dims(self.dim, none.ndim))  # which tells their dtype
            return super().update(state, chunk, start)
        return self.merge(state, self._limited(counted(values, self.key)))

    def of(self, values: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        table = byte_counts(values, dims)
        if table is not None:
            return self._limited(_counted(byte_values(values.dtype), table))
        ranks = ranked(values, repr(self)).reshape(-1)
        ranks = ranks + 0.0 if ranks.is_floating_point() else ranks  # -0.0 becomes 0.0
        distinct, counts = torch.unique_consecutive(_sorted(ranks), return_counts=True)
        return self._limited(_nan_once(unranked(distinct, values.dtype), counts))

    def join(self, a: Any, b: Any) -> Any:
        if isinstance(a, Counter):
            return self._limited(_one_nan(a + b))
        return self._limited(_add_counts(a, b))

    def _limited(self, out: Counts) -> Counts:
        if len(out if isinstance(out, Counter) else out[0]) > self.max_values:
            raise ValueError(
                f"{type(self).__name__}({self.key!r}) met more than max_values={self.max_values} distinct values; use "
                "tdmap.group_by(), which works through files, or raise the limit"
            )
        return out

    def finish(self, state: Any) -> Any:
        if isinstance(state, Counter):
            found = in_order(state)
            counts = torch.tensor([state[value] for value in found], dtype=torch.int64)
            return TensorDict({"value": NonTensorStack(*found), "count": counts}, [len(found)])
        values, counts = state if state is not None else (torch.empty(0), torch.empty(0, dtype=torch.int64))
        return TensorDict({"value": values, "count": counts}, [len(values)])


class Unique(ValueCounts):
    """The distinct values of an entry, sorted: a tensor, or a list of Python objects."""

    def finish(self, state: Any) -> Any:
        if isinstance(state, Counter):
            return in_order(state)
        values: Tensor = state[0] if state is not None else torch.empty(0)
        return values


class TopK(Reducer[Any]):
    """The rows with the largest (or smallest) values of a scalar entry. Among ties the earlier row comes first.

    Result: a TensorDict of batch size ``[min(k, rows)]`` with ``value`` and ``row`` (int64), best first. NaN come last.
    Strings are compared by code point; None is ignored.

    Args:
        key: entry with one value per row.
        k: number of rows.
        largest: largest first, or smallest first.
    """

    numbers_rows = True

    def __init__(self, key: Key | None = None, k: int = 10, largest: bool = True) -> None:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise ValueError(f"k must be a number of rows, at least 1: got {k!r}.")
        self.key = key
        self.k = int(k)
        self.largest = largest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, k={self.k}, largest={self.largest})"

    def init(self) -> Any:
        return None

    def update(self, state: Any, chunk: Any, start: int = 0) -> Any:
        objects = listed(chunk, self.key)
        if objects is not None:
            rows = int(chunk.shape[0]) if chunk.shape else 1
            if len(objects) != rows:
                raise self._several([len(objects) // rows])
            return self.merge(state, best(zip(objects, range(start, start + len(objects))), self.k, self.largest))
        values = values_of(chunk, self.key)
        if values.numel() != values.shape[0]:
            raise self._several(list(values.shape[1:]))
        values = values.reshape(-1)
        good = self._candidates(self._ranked(values))
        return self.merge(state, self._best(values[good], good + start))

    def _several(self, shape: list[int]) -> ValueError:
        return ValueError(f"TopK ranks rows by one value each; the entry {self.key!r} has rows of shape {shape}")

    def _candidates(self, rank: Tensor) -> Tensor:
        """The places of all values better than the k-th, and of the first k that equal it: hardly more than k."""
        if len(rank) <= self.k:
            return torch.arange(len(rank))
        last = torch.topk(rank, self.k, largest=self.largest).values[-1]
        better = rank > last if self.largest else rank < last
        return torch.cat([torch.where(better)[0], torch.where(rank == last)[0][: self.k]])

    def _ranked(self, values: Tensor) -> Tensor:
        values = ranked(values, repr(self))
        if not values.dtype.is_floating_point:
            return values.to(torch.uint8) if values.dtype is torch.bool else values
        nan = values.isnan()
        if not nan.any():
            return values
        # As integers in the same order, where there is room below and above the infinite ones; -0.0 becomes 0.0.
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize]
        least, most = torch.iinfo(integers).min, torch.iinfo(integers).max
        bits = (values + 0.0).view(integers)
        return (bits ^ ((bits >> (8 * values.itemsize - 1)) & most)).masked_fill_(nan, least if self.largest else most)

    def _best(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.argsort(rows)
        values, rows = values[order], rows[order]
        best = torch.sort(self._ranked(values), descending=self.largest, stable=True).indices[: self.k]
        return values[best], rows[best]

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        if isinstance(a, list):
            return best([*a, *b], self.k, self.largest)
        return self._best(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]]))

    def finish(self, state: Any) -> Any:
        if state is None:
            return TensorDict({"value": torch.empty(0), "row": torch.empty(0, dtype=torch.int64)}, [0])
        if isinstance(state, list):
            rows = torch.tensor([row for _, row in state], dtype=torch.int64)
            return TensorDict({"value": NonTensorStack(*[value for value, _ in state]), "row": rows}, [len(state)])
        return TensorDict({"value": state[0], "row": state[1]}, [len(state[1])])


class Checksum(Reducer[int]):
    """A 64-bit checksum of the bytes of entries and their order; the same for every chunk size.

    Every byte is multiplied by an odd weight that depends on its key, its row and its place in the row; the products
    are added modulo 2**64. A swapped or flipped byte changes the sum. The checksum is not cryptographic. Strings count
    as UTF-8, objects as JSON. Rows of one length have the same sum as a tensor and as a ``Ragged``.

    Args:
        key: one entry, or ``None`` for all leaves.

    Raises:
        TypeError: an entry holds an object that JSON cannot represent.
    """

    numbers_rows = True
    _STEP = -7046029254386353131  # 2**64 / golden ratio, as a signed number (Knuth, vol. 3, 6.4)
    _ROW_STEP = -4658895280553007687  # odd, and no multiple of the other: a constant of SplitMix64

    def __init__(self, key: Key | None = None) -> None:
        self.key = key

    def init(self) -> int:
        return 0

    def update(self, state: int, chunk: Any, start: int = 0) -> int:
        if isinstance(chunk, Tensor):
            return self._add(state, chunk, start, str(self.key))
        keys = chunk.keys(True, True, is_leaf=is_leaf_nontensor) if self.key is None else (self.key,)
        for key in keys:
            state = self._add(state, entry_of(chunk, key), start, str(key))
        return state

    def _add(self, state: int, rows: Any, start: int, key: str) -> int:
        data, offsets = _row_bytes(rows)
        steps = torch.arange(BLOCK) * self._STEP
        salt = _salt(key) * self._STEP
        count = len(offsets) - 1
        width = len(data) // max(count, 1) if isinstance(rows, Tensor) else 0
        some = min(max(BLOCK // width, 1), count) if width else BLOCK
        row_steps = torch.arange(min(some, count)) * self._ROW_STEP
        for first in range(0, count, some):
            last = min(first + some, count)
            firsts = row_steps[: last - first] + _signed((start + first) * self._ROW_STEP + salt)
            state += int(firsts.bitwise_or(1).sum())  # a byte before each row, which tells an empty one from none
            begin, end = int(offsets[first]), int(offsets[last])
            for at in range(begin, end, BLOCK):
                block = data[at : min(at + BLOCK, end)].long()
                weights = self._weights(firsts, offsets[first : last + 1], at, len(block), width, steps)
                state += int(weights.bitwise_or_(1).mul_(block.add_(1).view_as(weights)).sum())
        return state % (1 << 64)

    def _weights(self, firsts: Tensor, offsets: Tensor, at: int, size: int, width: int, steps: Tensor) -> Tensor:
        """The weights of some bytes of some rows."""
        if 0 < width and len(firsts) > 1:  # whole rows of one length; along the longer side in memory
            if width < 32:
                return (steps[:width, None] + (firsts + self._STEP)).t()
            return (firsts + self._STEP)[:, None] + steps[:width]
        bases = firsts - (offsets[:-1] - 1) * self._STEP  # what the place among all bytes is added to
        if len(firsts) > 1:
            bases = torch.repeat_interleave(bases, offsets.clamp(at, at + size).diff(), output_size=size)
        return steps[:size] + (bases + _signed(at * self._STEP))

    def merge(self, a: int, b: int) -> int:
        return (a + b) % (1 << 64)

    def finish(self, state: int) -> int:
        return state % (1 << 63)  # one that an int64 holds, beside other answers in a TensorDict


def _signed(number: int) -> int:
    """The number that the lowest 64 bits are, with a sign."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _salt(key: str) -> int:
    """A number of a key, below 2**56."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=7).digest(), "little")


def _row_bytes(rows: Any) -> tuple[Tensor, Tensor]:
    """The bytes of rows, one after the other, and the offsets of the rows."""
    if isinstance(rows, Tensor):
        data = flat_bytes(rows.resolve_conj().resolve_neg().contiguous())
        return data, torch.arange(len(rows) + 1) * (len(data) // max(len(rows), 1))
    if is_ragged(rows) and rows.kind != "json":
        values, offsets = rows.flat()
        data = flat_bytes(values.contiguous())
        return data, offsets * (len(data) // max(len(values), 1))
    parts = [_encoded(row) for row in objects_of(rows)]
    return bytes_tensor(b"".join(parts)), offsets_of(torch.tensor([len(part) for part in parts], dtype=torch.int64))


def _encoded(row: Any) -> bytes:
    """The bytes of an object, by itself: those of its neighbours must not change them."""
    if isinstance(row, bytes):
        return row
    if isinstance(row, Tensor):
        return flat_bytes(row.contiguous()).numpy().tobytes()
    if row is None:  # as among strings
        return b"\xff"
    _, values, _ = text_of([row]) or json_of([row])
    return values.numpy().tobytes()


# -- entries that are no tensors -----------------------------------------------------------------------


def listed(chunk: Data, key: Key | None) -> list[Any] | None:
    """The objects of an entry, all of its elements in order; None where the entry is a tensor or ragged numbers.

    Raises:
        TypeError: they are tensors.
    """
    entry = None if key is None or isinstance(chunk, Tensor) else entry_of(chunk, key)
    if entry is None or not is_non_tensor(entry) or (is_ragged(entry) and entry.kind == "tensor"):
        return None
    found: list[Any] = _flat(entry.tolist(), len(entry.batch_size))
    if any(isinstance(value, Tensor) for value in found):
        raise TypeError(f"the entry {key!r} holds rows of different lengths, and values are numbers, text or bytes.")
    return found


def _flat(values: Any, dims: int) -> list[Any]:
    if dims == 0:
        return [values]
    return values if dims == 1 else [item for row in values for item in _flat(row, dims - 1)]


def counted(values: list[Any], key: Key | None) -> Counter[Any]:
    """How often each value occurs.

    Raises:
        TypeError: one cannot be hashed; names it.
    """
    try:
        return _one_nan(Counter(values))
    except TypeError as error:
        bad = next(value for value in values if not _is_hashable(value))
        raise TypeError(
            f"the entry {key!r} holds a {type(bad).__name__}, and only values that can be hashed are counted "
            "(strings, bytes, numbers, None, tuples of them). Map it to one of these first: json.dumps(value, "
            "sort_keys=True), for one."
        ) from error


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value


def _one_nan(counts: Counter[Any]) -> Counter[Any]:
    """The same counts, with those of all NaN together: to a dict, each is a value of its own."""
    found = [value for value in counts if _is_nan(value)]
    if found:
        counts[math.nan] = sum(counts.pop(value) for value in found)
    return counts


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
        return True
    except TypeError:
        return False


def in_order(values: Iterable[Any]) -> list[Any]:
    """Values in ascending order; None first, NaN last, and values that do not compare by the names of their types."""
    values = list(values)
    known = [value for value in values if value is not None and not _is_nan(value)]
    try:
        return [*(v for v in values if v is None), *sorted(known), *(v for v in values if _is_nan(v))]
    except TypeError:
        return sorted(values, key=lambda value: (value is not None, type(value).__name__, repr(value)))


def best(pairs: Iterable[tuple[Any, int]], k: int, largest: bool) -> list[tuple[Any, int]]:
    """The `k` pairs of a value and a row with the largest (or smallest) values, best first; ties to the earlier row.

    None is left out, and NaN comes last.
    """
    known = sorted(((value, row) for value, row in pairs if value is not None), key=itemgetter(1))
    last = [pair for pair in known if _is_nan(pair[0])]
    if last:
        known = [pair for pair in known if not _is_nan(pair[0])]
    try:  # both keep the order of equal values, and rows are ascending
        return [*(heapq.nlargest if largest else heapq.nsmallest)(k, known, key=itemgetter(0)), *last][:k]
    except TypeError as error:
        raise TypeError(f"TopK ranks values that compare with each other, and these do not: {error}") from error
